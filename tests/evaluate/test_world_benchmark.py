"""The benchmark of worlds: what counts as shown, which figures leave what out, calibration, sheets."""

# pyright: reportMissingImports=false
from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from world_parts import calibrated, last_changed_psnr
from world_pictures import LARGEST, Strip, chosen, contact_sheet, jpeg, reliability_plot
from world_scores import FORMAT, all_shown, derived, kept, named_things, shown_pixels, summary

from kinema4d.types import Camera, Clip, Episode, Pointmap, Track


def _role(body: str, joint: str | None = None):
    return {"body": body, "joint": None if joint is None else {"body": joint}}


def _episode(*, hidden: bool) -> Episode:
    """Two frames of a cup, with a bead in it that only the second shows."""
    h, w = 12, 16
    camera = Camera(K=np.array([[10.0, 0, 8], [0, 10.0, 6], [0, 0, 1]]), T_world_camera=np.eye(4), height=h, width=w)
    labels = np.zeros((2, h, w), np.uint8)
    labels[:, 2:6, 2:6] = 2
    labels[1 if hidden else 0 :, 8, 8] = 3
    labels[0, 0, 0] = 1
    rgb = np.repeat(40 * labels[..., None], 3, axis=-1)
    points = np.ones((2, h, w, 3), np.float32)
    return Episode(
        clip=Clip(camera=camera, rgb=rgb, pointmap=Pointmap(points=points, valid=np.ones((2, h, w), bool)), fps=10.0),
        labels=labels,
        label_names=("robot:hand", "cup", "bead"),
        tracks=tuple(Track(name=n, Ts_world_object=np.tile(np.eye(4), (2, 1, 1))) for n in ("cup", "bead", "ghost")),
        facts={"roles": {"target": _role("cup"), "goal": None, "extra": [_role("bead")]}},
    )


def test_a_thing_is_shown_by_one_pixel_of_the_first_frame():
    seen, unseen = _episode(hidden=False), _episode(hidden=True)
    assert shown_pixels(seen) == {"cup": 16, "bead": 1, "ghost": 0}
    assert shown_pixels(unseen) == {"cup": 16, "bead": 0, "ghost": 0}
    assert named_things(seen) == {"cup", "bead"}
    assert all_shown(named_things(seen), shown_pixels(seen))
    assert not all_shown(named_things(unseen), shown_pixels(unseen))
    assert not all_shown({"stranger"}, shown_pixels(seen))
    assert all_shown(set(), {})


def test_the_moving_part_of_a_target_is_named_and_the_goal():
    truth = _episode(hidden=False)
    roles = {"target": _role("chest", "drawer"), "goal": _role("mat", "flap"), "extra": []}
    object.__setattr__(truth, "facts", {"roles": roles})
    assert named_things(truth) == {"chest", "drawer", "mat"}
    object.__setattr__(truth, "facts", {"thing": "cup", "place": "bead_contain_region"})
    assert named_things(truth) == {"cup", "bead"}


def _scores(**errors: tuple[float, float, int]):
    """Scores of an episode whose things are off by, went and are shown by so much."""
    return {
        "objects": {n: {"moved": True, "error_m": e, "true_displacement_m": d} for n, (e, d, _) in errors.items()}
        | {"wall": {"moved": False, "error_m": 9.0, "true_displacement_m": 0.0}},
        "said": {n: {"moved": True, "error_m": 2 * e} for n, (e, _, _) in errors.items()},
        "shown": {n: p for n, (_, _, p) in errors.items()} | {"wall": 50},
        "named": list(errors),
        "object_error_m_said": float(np.mean([2 * e for e, _, _ in errors.values()])),
        "outcome_right": 1.0, "outcome_right_said": 0.0, "group": str(errors), "task": "pour", "seconds": 1.0,
    }  # fmt: skip


def test_figures_leave_out_what_is_not_shown_and_what_was_thrown():
    row = derived(_scores(cup=(0.01, 0.2, 30), bead=(0.25, 0.3, 0), ball=(2.6, 2.7, 9)))
    assert row["object_error_said_shown_m"] == pytest.approx((0.02 + 5.2) / 2)
    assert row["object_error_near_m"] == pytest.approx((0.01 + 0.25) / 2)
    assert row["object_error_near_m_said"] == pytest.approx((0.02 + 0.5) / 2)
    assert row["displacement_near_m"] == pytest.approx(0.25)
    assert (row["moved_things"], row["shown_things"], row["thrown_things"]) == (3, 2, 1)
    assert row["outcome_right_shown"] is None
    whole = summary([_scores(cup=(0.01, 0.2, 30), bead=(0.25, 0.3, 0)), _scores(cup=(0.03, 0.2, 30))])
    assert (whole["outcome_accuracy"], whole["outcome_accuracy_n"]) == (1.0, 2)
    assert (whole["outcome_accuracy_said_shown"], whole["outcome_accuracy_said_shown_n"]) == (0.0, 1)
    assert whole["object_error_said_shown_m"] == pytest.approx(0.04)
    assert whole["object_error_said_shown_mean_m"] == pytest.approx(0.04)
    assert whole["object_error_mean_m_said"] == pytest.approx((0.26 + 0.06) / 2)


def test_calibration_error_is_the_gap_weighted_by_count():
    error, table = calibrated([0.1, 0.1, 0.9, 1.0], [False, True, True, True])
    assert table == [[0.1, 0.5, 2], [0.95, 1.0, 2]]
    assert error == pytest.approx(0.5 * 0.4 + 0.5 * 0.05)
    assert calibrated([0.0, 1.0], [False, True])[0] == 0
    with pytest.raises(ValueError, match="as many outcomes"):
        calibrated([0.5], [True, False])


def test_reliability_has_a_panel_per_set_and_its_dots():
    one = np.asarray(reliability_plot({"iid": (0.2, [[0.1, 0.5, 2], [0.95, 1.0, 2]])}))
    two = np.asarray(reliability_plot({"iid": (0.2, [[0.1, 0.5, 2]]), "unseen_look": (0.0, [[0.5, 0.5, 7]])}))
    assert two.shape[1] == 2 * one.shape[1]
    blue = (one == (0, 114, 178)).all(axis=-1)
    assert blue.sum() > 300
    assert np.ptp(np.nonzero(blue)[1]) > 0.8 * 300  # from a tenth to nearly one
    empty = np.asarray(reliability_plot({"iid": (0.0, [])}))
    assert not (empty == (0, 114, 178)).all(axis=-1).any()


def test_sheets_fit_their_size_and_show_their_episodes():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (5, 48, 72, 3), np.uint8)
    picture = contact_sheet([Strip("push, panda: 0.1 cm", {"truth": noise, "foretold": noise[::-1]})] * 3)
    assert picture.size == (5 * 72, 3 * (20 + 2 * 48))
    loose, tight = jpeg(picture), jpeg(picture, largest=20_000)
    assert len(tight) <= 20_000 < len(loose) <= LARGEST
    assert np.asarray(Image.open(io.BytesIO(loose))).std() > 40


def test_best_middling_and_worst_are_of_those_that_moved_something():
    rows = [{"id": str(i), "object_error_m_said": float(i)} for i in (4, 0, 8, 2, 6, 1, 7, 3, 5)]
    picked = chosen([*rows, {"id": "still", "object_error_m_said": None}])
    assert {k: [r["id"] for r in v] for k, v in picked.items()} == {
        "best": ["0", "1", "2"],
        "median": ["3", "4", "5"],
        "worst": ["6", "7", "8"],
    }
    assert [r["id"] for r in chosen(rows[:1])["median"]] == ["4"]
    assert chosen([{"id": "still"}]) == {}


def test_what_was_found_is_kept_and_an_old_format_made_again(tmp_path: Path):
    calls = []
    make = lambda: calls.append(1) or {"x": len(calls)}  # noqa: E731
    file = tmp_path / "deep" / "a.json"
    assert kept(file, make) == kept(file, make) == {"format": FORMAT, "x": 1}
    file.write_text('{"x": 5}')
    assert kept(file, make)["x"] == 2


def test_the_last_frame_counts_where_it_changed():
    truth = _episode(hidden=True)
    assert last_changed_psnr(truth.clip, truth) is None  # one bead's pixel and the robot's are too few
    truth.clip.rgb[1, 6:12] = 200
    assert last_changed_psnr(truth.clip, truth) == 60
    still = Clip(camera=truth.clip.camera, rgb=truth.clip.rgb[[0, 0]], pointmap=truth.clip.pointmap, fps=10.0)
    assert 0 < (last_changed_psnr(still, truth) or 0) < 10
