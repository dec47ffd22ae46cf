"""Two runs on the same episodes: who is better, and how sure that is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from judged import ABOUT, EVIL, report

from kinema4d.evaluate.compare import compare, comparison_table, comparison_to_dict, write_comparison
from kinema4d.evaluate.report import write
from kinema4d.evaluate.report_summary import numbers
from kinema4d.evaluate.score import NA
from kinema4d.evaluate.statistics import paired

pytest.importorskip("pyarrow", reason="pip install 'kinema4d[parquet]'")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write(report(), root / "a")
    write(report(seed=1, error=0.7), root / "b")
    write(report(seed=2), root / "noise")
    write(report(n=6), root / "small")
    return root


def test_the_better_run_is_found(runs):
    found = compare(runs / "a", runs / "b")
    assert (found.a, found.b, found.episodes, found.pairs, found.groups) == ("a", "b", 24, 24, 12)
    assert {n: found.winner(n) for n in found.metrics} == {
        "psnr": "b",
        "fscore": "b",
        "delay": "",
        "object_end": "b",
        "right": "",
        "touch": "",
    }
    rows_a, rows_b = report().of("prediction"), report(seed=1, error=0.7).of("prediction")
    expected = paired(numbers(rows_a, "psnr"), numbers(rows_b, "psnr"), groups=[r.group for r in rows_a])
    assert not isinstance(expected, NA)
    psnr = found.metrics["psnr"]
    assert (psnr["difference"], psnr["interval"], psnr["p"]) == (expected.difference, expected.interval, expected.p)
    assert psnr["p_holm"] >= psnr["p"]
    assert (found.metrics["object_end"]["n"], found.metrics["object_end"]["n_missing"]) == (20, 4)
    assert found.metrics["touch"]["missing"].startswith("no pair has both")
    assert found.set_scores["fvd"] == (100.0, pytest.approx(70.0))


def test_the_other_way_round(runs):
    there, back = compare(runs / "a", runs / "b"), compare(runs / "b", runs / "a")
    assert back.metrics["psnr"]["difference"] == pytest.approx(-there.metrics["psnr"]["difference"])
    assert back.winner("psnr") == "a"
    assert there.metrics["psnr"]["p"] == back.metrics["psnr"]["p"]


def test_noise_is_no_winner(runs):
    found = compare(runs / "a", runs / "noise")
    assert {found.winner(n) for n in found.metrics} == {""}


def test_only_shared_rollouts_count(runs, tmp_path):
    more = report(n=30, seed=1, error=0.7)
    rows = [replace(r, world="mine") if r.world == "prediction" else r for r in reversed(more.rows)]
    sets = {("mine" if k == "prediction" else k): v for k, v in more.set_scores.items()}
    named = replace(more, rows=tuple(rows), set_scores=sets, config=more.config | {"prediction": "mine"})
    write(named, tmp_path / "b")
    found = compare(runs / "a", tmp_path / "b")
    assert found.pairs == 24
    assert found.metrics["psnr"]["difference"] == compare(runs / "a", runs / "b").metrics["psnr"]["difference"]
    assert "6 of 30 rollouts are only in b and left out" in found.notes
    assert any("each run's own" in n for n in found.notes)


def test_too_little_in_common_is_refused(runs, tmp_path):
    base = report(n=6, seed=1)
    write(replace(base, rows=tuple(replace(r, seed=7) for r in base.rows)), tmp_path / "seeds")
    with pytest.raises(ValueError, match="share 0 episodes"):
        compare(runs / "small", tmp_path / "seeds")
    write(report(n=1), tmp_path / "one")
    with pytest.raises(ValueError, match="share 1 episodes"):
        compare(runs / "small", tmp_path / "one")
    with pytest.raises(ValueError, match="are the same report"):
        compare(runs / "small", runs / "small")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"truth": {"e003": "other"}}, "truth.e000 is 'hash0' and None and 5 more"),
        ({"settings": {"tau": 0.02}}, "settings.tau is 0.01 and 0.02"),
        ({"weights": {"lpips": "abc"}}, "weights is None and"),
    ],
)
def test_other_truth_or_settings_are_refused(runs, tmp_path, config, words):
    write(report(n=6, seed=1, config=config), tmp_path / "b")
    with pytest.raises(ValueError, match=words):
        compare(runs / "small", tmp_path / "b")


def test_another_meaning_is_refused(runs, tmp_path):
    about = ABOUT | {"psnr": replace(ABOUT["psnr"], better="lower")}
    write(replace(report(n=6, seed=1), about=about), tmp_path / "b")
    with pytest.raises(ValueError, match="psnr means different things.*better is 'higher' and 'lower'"):
        compare(runs / "small", tmp_path / "b")


def test_what_may_differ_is_noted(runs, tmp_path):
    config = {"versions": {"kinema4d": "2"}, "settings": {"tau": 0.01, "metrics": ["video"]}}
    less = report(n=6, seed=1, config=config)
    rows = tuple(replace(r, scores={k: v for k, v in r.scores.items() if k != "fscore"}) for r in less.rows)
    about = {k: v for k, v in ABOUT.items() if k != "fscore"}
    write(replace(less, rows=rows, about=about), tmp_path / "b")
    found = compare(runs / "small", tmp_path / "b")
    assert "fscore" not in found.metrics
    assert found.notes == ("versions.kinema4d: 1 in a, 2 in b", "only in a: fscore")


def test_files_and_table(runs, tmp_path):
    from rich.console import Console

    found = compare(runs / "a", runs / "b")
    for name in ("x", "y"):
        write_comparison(found, tmp_path / name)
    for name in ("comparison.json", "comparison.html"):
        assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "y" / name).read_bytes()
    data = json.loads((tmp_path / "x" / "comparison.json").read_text())
    assert data == json.loads(json.dumps(comparison_to_dict(found)))
    assert data["metrics"]["psnr"]["winner"] == "b"
    assert data["correction"] == "Holm, over 5 metrics"
    assert data["set_scores"]["fid"]["a"]["missing"].startswith("no weights")
    page = (tmp_path / "x" / "comparison.html").read_text()
    assert "<script" not in page
    assert "http" not in page
    assert "&lt;script&gt;" in page
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(comparison_table(found))
    text = console.export_text()
    assert "b is better in 3 and a in 0 of 5 metrics" in text
    assert "b: b" in text
    assert EVIL.split()[-1] in text


def test_holm_is_over_the_metrics(runs):
    metrics = [m for m in compare(runs / "a", runs / "b").metrics.values() if "p" in m]
    p = np.array([m["p"] for m in metrics])
    assert min(m["p_holm"] for m in metrics) == pytest.approx(len(p) * p.min())
