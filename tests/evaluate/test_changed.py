"""Masks and scores of change against cases by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from played import blurred, delayed, frozen, noisy

from kinema4d.evaluate.changed import METRICS, PSNR_CAP, changed_scores, find_changes
from kinema4d.evaluate.score import NA, Pair, value_or
from kinema4d.geometry.camera import from_depth
from kinema4d.types import Camera, Clip, Episode

H, W, T = 16, 20, 3


def scene() -> Episode:
    """A wall at 1 m, a block of 5x5 pixels at 0.9 m that moves by 6 pixels in the last frame, a robot at the left that
    moves away by two columns."""
    labels, depth = np.zeros((T, H, W), np.uint16), np.ones((T, H, W), np.float32)
    rgb = np.full((T, H, W, 3), 100, np.uint8)
    for t in range(T):
        x = 6 if t < 2 else 12
        labels[t, 4:9, x : x + 5], depth[t, 4:9, x : x + 5], rgb[t, 4:9, x : x + 5] = 2, 0.9, (200, 0, 0)
        wide = 4 if t < 2 else 2
        labels[t, :, :wide], depth[t, :, :wide], rgb[t, :, :wide] = 1, 0.5, 250
    K = np.array([[20.0, 0, 9.5], [0, 20, 7.5], [0, 0, 1]])
    camera = Camera(K=K, T_world_camera=np.eye(4), height=H, width=W)
    pointmap = from_depth(K, depth, np.ones((T, H, W), bool))
    return Episode(
        clip=Clip(camera=camera, rgb=rgb, pointmap=pointmap, fps=10.0), labels=labels, label_names=("robot", "block")
    )


def test_masks():
    found = find_changes(scene(), ["block"])
    assert not isinstance(found, NA)
    assert found.covered.sum() == 25
    assert found.disoccluded.sum() == 25 + 2 * H
    assert found.changed.sum() == 50 + 2 * H
    assert not found.changed[:2].any()


def test_scores_by_hand():
    truth = scene()
    perfect = changed_scores(Pair(predicted=truth.clip, truth=truth), ["block"])
    assert perfect == {
        "changed_psnr_db": PSNR_CAP, "covered_psnr_db": PSNR_CAP, "disoccluded_psnr_db": PSNR_CAP,
        "changed_depth_mae_m": 0.0, "covered_iou": 1.0,
    }  # fmt: skip
    static = changed_scores(Pair(predicted=frozen(truth), truth=truth), ["block"])
    mse = (100**2 + 100**2 + 100**2) / 3
    assert static["covered_psnr_db"] == pytest.approx(10 * np.log10(255**2 / mse), abs=1e-4)
    robot, block = 150.0**2, mse
    uncovered = (2 * H * robot + 25 * block) / (2 * H + 25)
    assert static["disoccluded_psnr_db"] == pytest.approx(10 * np.log10(255**2 / uncovered), abs=1e-4)
    assert static["changed_depth_mae_m"] == pytest.approx((50 * 0.1 + 2 * H * 0.5) / (50 + 2 * H), abs=1e-5)
    assert static["covered_iou"] == 0.0


def test_overlap_of_half():
    truth = scene()
    points = truth.clip.pointmap.points.copy()
    points[2, 4:9, 12:17, 2] = 1.0
    points[2, 4:9, 14:19, 2] = 0.9
    clip = replace(truth.clip, pointmap=replace(truth.clip.pointmap, points=points))
    assert changed_scores(Pair(predicted=clip, truth=truth), ["block"])["covered_iou"] == pytest.approx(15 / 35)


def test_no_score_without_pixels():
    truth = scene()
    still = replace(truth, clip=delayed(truth.clip, T), labels=np.repeat(np.asarray(truth.labels)[:1], T, axis=0))
    scores = changed_scores(Pair(predicted=still.clip, truth=still), [])
    assert all(isinstance(scores[name], NA) for name in METRICS)
    bare = replace(truth, labels=None)
    assert isinstance(changed_scores(Pair(predicted=bare.clip, truth=bare), [])["changed_psnr_db"], NA)
    blind = replace(truth.clip, pointmap=replace(truth.clip.pointmap, valid=np.zeros((T, H, W), bool)))
    missing = changed_scores(Pair(predicted=blind, truth=truth), ["block"])["changed_depth_mae_m"]
    assert isinstance(missing, NA)
    assert "depth at only 0" in missing.reason


def test_damage_never_helps():
    truth = scene()
    ways = {
        "noise": [noisy(truth.clip, 0, s) for s in (0.0, 4.0, 12.0, 40.0)],
        "blur": [blurred(truth.clip, s) for s in (0.0, 0.7, 1.5, 3.0)],
        "delay": [delayed(truth.clip, n) for n in (0, 1, 2)],
    }
    for way, clips in ways.items():
        psnr = [changed_scores(Pair(predicted=c, truth=truth), ["block"]) for c in clips]
        values = [value_or(s, "changed_psnr_db", np.nan) for s in psnr]
        assert all(b <= a + 1e-9 for a, b in pairwise(values)), (way, values)
