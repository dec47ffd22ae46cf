"""Policy ranking on the published numbers of SIMPLER, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from kinema4d.evaluate.rank import METRICS, mmrv, pearson, scores
from kinema4d.evaluate.score import NA

PUBLISHED = {
    "google_robot_pick_coke_can": (0.975, 0.031),
    "google_robot_move_near": (0.856, 0.111),
    "google_robot_open_drawer": (0.983, 0.0),
    "google_robot_close_drawer": (0.771, 0.123),
}


def _reference(sim, real) -> float:
    """The definition, one pair at a time."""
    worst = []
    for i in range(len(sim)):
        gaps = [abs(real[i] - real[j]) for j in range(len(sim)) if (sim[i] > sim[j]) != (real[i] > real[j])]
        worst.append(max(gaps, default=0.0))
    return sum(worst) / len(worst)


@pytest.mark.parametrize("task", PUBLISHED)
def test_published_numbers(data, task):
    found = json.loads((data / "simpler" / "real_perf.json").read_text())
    got = scores(found["SIMPLER_PERF"][task], found["REAL_PERF"][task])
    assert got["pearson"] == pytest.approx(PUBLISHED[task][0], abs=6e-4)
    assert got["mmrv"] == pytest.approx(PUBLISHED[task][1], abs=6e-4)


def test_every_published_task_against_the_definition(data):
    found = json.loads((data / "simpler" / "real_perf.json").read_text())
    for task, real in found["REAL_PERF"].items():
        sim = found["SIMPLER_PERF"][task]
        got = scores(sim, dict(reversed(real.items())))
        assert got["mmrv"] == pytest.approx(_reference([sim[k] for k in real], list(real.values())), abs=1e-12)
        assert got["pearson"] == pytest.approx(stats.pearsonr([sim[k] for k in real], list(real.values()))[0])


def test_the_order_of_arguments_matters(data):
    found = json.loads((data / "simpler" / "real_perf.json").read_text())
    sim, real = (list(found[k]["google_robot_move_near"].values()) for k in ("SIMPLER_PERF", "REAL_PERF"))
    assert mmrv(sim, real) != pytest.approx(mmrv(real, sim))
    assert pearson(sim, real) == pytest.approx(pearson(real, sim))


def test_by_hand():
    # the last two change places, 0.3 apart in reality: (0 + 0.3 + 0.3) / 3
    assert mmrv([0.9, 0.1, 0.2], [0.8, 0.5, 0.2]) == pytest.approx(0.2)
    assert mmrv([0.8, 0.5, 0.2], [0.9, 0.1, 0.2]) == pytest.approx((0 + 0.1 + 0.1) / 3)
    assert mmrv([0.1, 0.2, 0.3], [0.3, 0.6, 0.7]) == 0.0
    assert mmrv([0.3, 0.2, 0.1], [0.0, 0.5, 1.0]) == pytest.approx((1.0 + 0.5 + 1.0) / 3)
    assert pearson([0.0, 0.5, 1.0], [0.2, 0.3, 0.4]) == pytest.approx(1.0)
    assert pearson([0.0, 0.5, 1.0], [0.4, 0.3, 0.2]) == pytest.approx(-1.0)


def test_ties():
    # equal in simulation, 0.4 apart in reality: only the better one is violated
    assert mmrv([0.5, 0.5], [0.7, 0.3]) == pytest.approx(0.2)
    # equal in reality: confusing them costs nothing
    assert mmrv([0.7, 0.3], [0.5, 0.5]) == 0.0
    assert mmrv([0.5, 0.5], [0.5, 0.5]) == 0.0


def test_random_ones_against_the_definition():
    rng = np.random.default_rng(0)
    for n in range(2, 9):
        sim, real = np.round(rng.random((2, n)), 1)
        assert mmrv(sim, real) == pytest.approx(_reference(sim, real))
        assert 0 <= mmrv(sim, real) <= real.max() - real.min()  # type: ignore[operator]


def test_a_worse_simulator_never_scores_better():
    real = np.linspace(0, 1, 8)
    swapped = [mmrv(np.roll(real, k), real) for k in range(5)]
    assert swapped == sorted(swapped)  # type: ignore[type-var]
    noisy = [
        np.mean([pearson(real + s * np.random.default_rng(i).normal(size=8), real) for i in range(50)])  # type: ignore[arg-type]
        for s in (0.0, 0.1, 0.3, 1.0)
    ]
    assert noisy == sorted(noisy, reverse=True)


def test_no_number_where_there_is_none():
    for sim, real in (([], []), ([0.4], [0.5])):
        assert isinstance(pearson(sim, real), NA)
        assert isinstance(mmrv(sim, real), NA)
    for sim, real, word in (([0.2, 0.2], [0.1, 0.4], "simulation"), ([0.1, 0.4], [0.2, 0.2], "reality")):
        found = pearson(sim, real)
        assert isinstance(found, NA)
        assert word in found.reason
    with pytest.raises(ValueError, match="per policy"):
        mmrv([0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match="not finite"):
        mmrv([0.1, np.nan], [0.1, 0.2])
    with pytest.raises(ValueError, match="only one side has rt-1, rt-2"):
        scores({"octo": 0.1, "rt-1": 0.3}, {"octo": 0.2, "rt-2": 0.3})


def test_what_is_said_of_each():
    assert set(METRICS) == set(scores({"a": 0.1, "b": 0.2}, {"a": 0.3, "b": 0.1}))
