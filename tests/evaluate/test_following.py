"""Action following catches robots that do not do what they were told, and leaves alone those that do."""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import itertools

from corruptions import (
    blurred,
    delayed,
    frozen,
    joint_offset,
    mirrored,
    noisy,
    redrawn,
    shuffled,
    take,
    without_points,
)

from kinema4d.evaluate.following import METRICS, details, follow, scores
from kinema4d.evaluate.following_time import mask_disagreement, timing
from kinema4d.evaluate.score import NA, Pair
from kinema4d.geometry.camera import rays
from kinema4d.geometry.se3 import look_at
from kinema4d.robot.control import project
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Arm, Camera, Clip, Episode, Pointmap, Trajectory

ROBOT = load_robot("k4arm")
FRAMES, H, W = 17, 96, 144


def episode(*, pause: bool = False) -> Episode:
    """k4arm waves before a coloured wall; with ``pause`` it rests for the middle third."""
    s = np.linspace(0, 1, FRAMES)
    if pause:
        s = np.interp(s, [0, 0.33, 0.67, 1], [0, 0.5, 0.5, 1])
    q = np.tile(ROBOT.home, (FRAMES, 1))
    q[:, 0] += 0.9 * s - 0.3
    q[:, 1] += 0.5 * s
    q[:, 3] += 0.3 * s
    arm = Arm(
        robot="k4arm",
        trajectory=Trajectory(q=q, joint_names=ROBOT.joint_names, fps=10),
        link_names=ROBOT.link_names,
        converged=np.ones(FRAMES, bool),
        residual_m=np.zeros(FRAMES),
        residual_rad=np.zeros(FRAMES),
    )
    K = np.array([[1.1 * H, 0, (W - 1) / 2], [0, 1.1 * H, (H - 1) / 2], [0, 0, 1]])
    camera = Camera(K=K, T_world_camera=look_at(np.array([1.0, 0.5, 0.7]), np.array([0.2, 0, 0.3])), height=H, width=W)
    control = project([ROBOT], [arm], camera, rgb=True)
    assert control.rgb is not None
    v, u = np.mgrid[:H, :W]
    wall_rgb = np.stack([40 + u // 2, 110 + v, np.full_like(u, 60)], axis=-1).astype(np.uint8)
    wall = (1.8 + 0.3 * u / W)[..., None] * rays(K, H, W)
    mask = control.mask
    clip = Clip(
        camera=camera,
        rgb=np.where(mask[..., None], control.rgb, wall_rgb),
        pointmap=Pointmap(
            points=np.where(mask[..., None], control.pointmap.points, wall).astype(np.float32),
            valid=np.ones(mask.shape, bool),
        ),
        fps=10,
    )
    return Episode(clip=clip, arms=(arm,), labels=mask.astype(np.uint8), label_names=("robot",), group="g", view="v")


EPISODE = episode()


def judge(clip: Clip, truth: Episode = EPISODE):
    return follow(Pair(predicted=clip, truth=truth))


def number(clip: Clip, name: str, truth: Episode = EPISODE) -> float:
    value = judge(clip, truth).scores[name]
    assert isinstance(value, float), value
    return value


@pytest.mark.parametrize("colour_only", [False, True])
def test_the_truth_follows_and_so_does_a_slightly_worse_one(colour_only: bool):
    rng = np.random.default_rng(0)
    for clip in (EPISODE.clip, noisy(EPISODE.clip, rng), blurred(EPISODE.clip)):
        done = judge(without_points(clip) if colour_only else clip)
        assert done.scores["follows"] == 1.0, done.details["faults"]
        assert done.scores["delay_frames"] == 0.0
    done = judge(EPISODE.clip)
    assert set(done.scores) == set(METRICS)
    assert number(EPISODE.clip, "robot_error_m") < 1e-4
    assert number(EPISODE.clip, "ee_error_m") < 0.003
    assert number(EPISODE.clip, "robot_iou") > 0.97
    assert number(EPISODE.clip, "ee_found") == 1.0
    assert number(EPISODE.clip, "robot_missing") == 0.0


@pytest.mark.parametrize("colour_only", [False, True])
@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (lambda c: shuffled(c, np.random.default_rng(1)), "frames out of order"),
        (mirrored, "mirrored"),
        (lambda c: delayed(c, 2), "late by 2 frames"),
        (lambda c: take(c, np.minimum(np.arange(FRAMES) + 3, FRAMES - 1)), "early by 3 frames"),
        (frozen, "does not move"),
    ],
)
def test_faults_are_caught_and_named(made, fault: str, colour_only: bool):
    clip = made(EPISODE.clip)
    done = judge(without_points(clip) if colour_only else clip)
    assert done.scores["follows"] == 0.0
    assert done.details["fault"] == fault or fault in done.details["faults"]


def test_joint_offsets_and_other_motions_stand_elsewhere():
    off = judge(joint_offset(EPISODE, np.random.default_rng(0), degrees=3))
    assert off.scores["follows"] == 0.0
    assert off.details["fault"].startswith("stands elsewhere by")
    q = EPISODE.arms[0].trajectory.q.copy()
    q[8:, 0] += np.linspace(0, 0.2, FRAMES - 8)  # right at first, wrong later
    assert judge(redrawn(EPISODE, [q])).scores["follows"] == 0.0


def test_a_robot_that_is_not_there_is_not_found():
    wall = np.where(EPISODE.clip.pointmap.valid[..., None], 2.2 * rays(EPISODE.clip.camera.K, H, W), 0).astype(
        np.float32
    )
    done = judge(replace(EPISODE.clip, pointmap=Pointmap(points=wall, valid=EPISODE.clip.pointmap.valid)))
    assert done.scores["follows"] == 0.0
    assert "robot not found" in done.details["faults"]
    assert done.scores["robot_iou"] == 0.0
    assert isinstance(done.scores["ee_error_m"], NA)


@pytest.mark.parametrize(
    ("ladder", "names"),
    [
        ([EPISODE.clip, *(delayed(EPISODE.clip, n) for n in (1, 3, 6))], ("robot_error_m", "ee_error_m", "robot_iou")),
        (
            [EPISODE.clip, *(joint_offset(EPISODE, np.random.default_rng(0), degrees=d) for d in (1, 3, 6))],
            ("robot_error_m", "ee_error_m", "robot_iou"),
        ),
        (
            [EPISODE.clip, *(noisy(EPISODE.clip, np.random.default_rng(0), metres=m) for m in (0.004, 0.008, 0.016))],
            ("robot_error_m", "ee_error_m", "robot_iou"),
        ),
        ([EPISODE.clip, *(blurred(EPISODE.clip, pixels=p) for p in (0.5, 1.0, 2.0))], ("robot_error_m", "robot_iou")),
    ],
    ids=["delay", "offset", "noise", "blur"],
)
def test_worse_never_scores_better(ladder: list[Clip], names: tuple[str, ...]):
    done = [judge(c).scores for c in ladder]
    for name in names:
        values = [d[name] for d in done]
        sign = 1 if METRICS[name].better == "lower" else -1
        for a, b in itertools.pairwise(values):
            assert isinstance(a, float)
            assert isinstance(b, float)
            assert sign * b >= sign * a, (name, values)


def test_robot_error_is_the_mean_distance_by_hand():
    """Everything 3 cm further along the ray: the mean of |0.03 ray| over the robot, frame by frame."""
    clip = EPISODE.clip
    ray = rays(clip.camera.K, H, W)
    moved = replace(
        clip,
        pointmap=Pointmap(points=(clip.pointmap.points + 0.03 * ray).astype(np.float32), valid=clip.pointmap.valid),
    )
    mask = EPISODE.robot_mask
    assert mask is not None
    by_hand = np.mean([np.linalg.norm(0.03 * ray, axis=-1)[m].mean() for m in mask])
    assert number(moved, "robot_error_m") == pytest.approx(by_hand, rel=1e-3)
    assert judge(moved).scores["follows"] == 0.0
    assert number(moved, "ee_error_m") > 0.015


def test_missing_points_are_counted_and_not_scored():
    valid = EPISODE.clip.pointmap.valid.copy()
    valid[:, :, ::2] = False
    points = np.where(valid[..., None], EPISODE.clip.pointmap.points, np.nan).astype(np.float32)
    half = replace(EPISODE.clip, pointmap=Pointmap(points=points, valid=valid))
    assert number(half, "robot_missing") == pytest.approx(0.5, abs=0.05)
    assert number(half, "robot_error_m") < 1e-4
    valid = valid.copy()
    valid[3:5] = False  # frames without any point
    assert isinstance(
        judge(replace(half, pointmap=Pointmap(points=points, valid=valid))).scores["robot_error_m"], float
    )
    none = judge(without_points(EPISODE.clip)).scores
    for name in ("robot_error_m", "robot_iou", "ee_error_m", "ee_error_end_m", "ee_found"):
        value = none[name]
        assert isinstance(value, NA)
        assert "no points" in value.reason
    assert none["robot_missing"] == 1.0
    assert isinstance(none["robot_iou_rgb"], float)


def test_what_cannot_be_judged_says_why():
    for truth, why in (
        (replace(EPISODE, arms=()), "no robot"),
        (replace(EPISODE, camera_from="guessed"), "guess"),
    ):
        done = judge(EPISODE.clip, truth)
        assert all(isinstance(v, NA) and why in v.reason for v in done.scores.values())
    away = Camera(
        K=EPISODE.clip.camera.K,
        T_world_camera=look_at(np.array([1.3, 0.6, 0.8]), np.array([3.0, 2.0, 1.0])),
        height=H,
        width=W,
    )
    clip = replace(EPISODE.clip, camera=away)
    done = judge(clip, replace(EPISODE, clip=clip))
    assert all(isinstance(v, NA) and "no part of the robot" in v.reason for v in done.scores.values())
    short = EPISODE.arms[0]
    short = replace(short, trajectory=replace(short.trajectory, q=short.trajectory.q[:5]))
    with pytest.raises(ValueError, match="resample"):
        judge(EPISODE.clip, replace(EPISODE, arms=(short,)))


def test_what_objects_hide_is_not_expected():
    labels = EPISODE.labels
    assert labels is not None
    hiding = labels.copy()
    hiding[:, : H // 2] = np.where(labels[:, : H // 2] > 0, 2, 0)
    truth = replace(EPISODE, labels=hiding, label_names=("robot", "box"))
    points = EPISODE.clip.pointmap.points.copy()
    points[:, : H // 2] *= 0.5  # the box stands before the upper half
    clip = replace(EPISODE.clip, pointmap=Pointmap(points=points, valid=EPISODE.clip.pointmap.valid))
    assert number(clip, "robot_error_m", truth) < 1e-4
    assert number(clip, "robot_error_m") > 0.1


def test_a_robot_that_rests_for_a_while():
    truth = episode(pause=True)
    assert number(truth.clip, "follows", truth) == 1.0
    assert judge(delayed(truth.clip, 2), truth).details["fault"] == "late by 2 frames"
    still = replace(truth.arms[0].trajectory, q=np.tile(truth.arms[0].trajectory.q[:1], (FRAMES, 1)))
    rest = replace(
        truth, arms=(replace(truth.arms[0], trajectory=still),), clip=frozen(truth.clip), labels=None, label_names=()
    )
    done = judge(rest.clip, rest)
    assert done.scores["follows"] == 1.0
    assert isinstance(done.scores["delay_frames"], NA)


def test_details_are_plain_and_complete():
    import json

    pair = Pair(predicted=EPISODE.clip, truth=EPISODE)
    info = details(pair)
    json.dumps(info, allow_nan=False)
    assert len(info["matrix"]) == FRAMES
    assert len(info["ee"][0]["fitted"]) == FRAMES
    assert set(info["error_per_link_m"]) <= set(ROBOT.link_names)
    assert info["robot_iou_rgb_truth"] > 0.5
    assert scores(pair) == scores(pair)  # the same input gives the same numbers


def test_timing_on_matrices_made_by_hand():
    t = np.arange(20)
    S = np.minimum(np.abs(t[:, None] - t[None]) / 20, 1.0)
    assert timing(S, S).delay == 0
    assert timing(S, S).order == pytest.approx(1)
    assert timing(S, S).moved == pytest.approx(1)
    late = S[np.maximum(t - 4, 0)]
    assert timing(late, S).delay == 4
    assert timing(S[np.minimum(t + 2, 19)], S).delay == -2
    assert timing(np.tile(S[:1], (20, 1)), S).moved == 0.0
    backwards = timing(S[::-1], S)
    assert backwards.order == pytest.approx(-1)
    assert backwards.reordered
    flat = np.zeros((20, 20))
    assert timing(flat, flat).delay is None
    assert timing(flat, flat).order is None
    assert timing(flat, flat).moved is None


def test_mask_disagreement_is_one_minus_iou():
    rng = np.random.default_rng(0)
    a, b, hidden = (rng.random((3, 8, 9)) > 0.5 for _ in range(3))
    hidden &= ~b
    by_hand = [[1 - (x & y).sum() / ((x & ~z) | y).sum() for y, z in zip(b, hidden, strict=True)] for x in a]
    np.testing.assert_allclose(mask_disagreement(a, b, hidden), by_hand, atol=1e-6)
