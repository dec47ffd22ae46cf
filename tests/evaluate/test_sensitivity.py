"""Sensitivity: 1 for the truth, 0 for a world that ignores its actions, and never a number without a difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d.evaluate.score import NA, Pair
from kinema4d.evaluate.sensitivity import METRICS, sensitivity
from kinema4d.geometry.camera import rays
from kinema4d.types import Camera, Clip, Episode, Pointmap

H, W, FRAMES = 20, 30, 4
CAMERA = Camera(K=np.array([[20.0, 0, 14.5], [0, 20, 9.5], [0, 0, 1]]), T_world_camera=np.eye(4), height=H, width=W)


def world(robot_step: int, object_step: int) -> Episode:
    """A robot and an object that slide right by so many pixels a frame."""
    rgb, depth = np.full((FRAMES, H, W, 3), 90, np.uint8), np.full((FRAMES, H, W), 2.0)
    labels = np.zeros((FRAMES, H, W), np.uint8)
    for t in range(FRAMES):
        for row, step, label, colour, z in ((3, robot_step, 1, 200, 1.0), (12, object_step, 2, 20, 1.8)):
            c = 2 + step * t
            rgb[t, row : row + 5, c : c + 5], depth[t, row : row + 5, c : c + 5] = colour, z
            labels[t, row : row + 5, c : c + 5] = label
    points = (depth[..., None] * rays(CAMERA.K, H, W)).astype(np.float32)
    clip = Clip(camera=CAMERA, rgb=rgb, pointmap=Pointmap(points=points, valid=np.ones(depth.shape, bool)), fps=5)
    return Episode(clip=clip, labels=labels, label_names=("robot", "cup"), group="g")


A, B = world(5, 0), world(0, 4)


def test_two_truths_give_exactly_one_and_one_world_exactly_zero():
    done = sensitivity(Pair(predicted=A.clip, truth=A), Pair(predicted=B.clip, truth=B))
    assert done == dict.fromkeys(METRICS, 1.0)
    done = sensitivity(Pair(predicted=A.clip, truth=A), Pair(predicted=A.clip, truth=B))
    assert done == dict.fromkeys(METRICS, 0.0)


def test_half_the_difference_is_half_and_only_where_it_is():
    mixed = (A.clip.rgb.astype(int) + B.clip.rgb) // 2
    done = sensitivity(
        Pair(predicted=A.clip, truth=A), Pair(predicted=replace(A.clip, rgb=mixed.astype(np.uint8)), truth=B)
    )
    assert done["sensitivity_robot"] == pytest.approx(0.5, abs=0.01)
    assert done["sensitivity_world"] == pytest.approx(0.5, abs=0.01)
    assert done["sensitivity_robot_points"] == 0.0
    robot_only = world(0, 0)  # what B would be if the object did not react
    done = sensitivity(Pair(predicted=A.clip, truth=A), Pair(predicted=robot_only.clip, truth=B))
    assert done["sensitivity_robot"] == 1.0
    assert done["sensitivity_world"] == 0.0


def test_no_difference_no_labels_no_points():
    same = sensitivity(Pair(predicted=A.clip, truth=A), Pair(predicted=B.clip, truth=A))
    assert all(isinstance(v, NA) for v in same.values())
    robot_only = world(5, 4)
    done = sensitivity(Pair(predicted=A.clip, truth=A), Pair(predicted=A.clip, truth=robot_only))
    assert isinstance(done["sensitivity_robot"], NA)
    assert done["sensitivity_world"] == 0.0
    bare = [replace(e, labels=None, label_names=()) for e in (A, B)]
    done = sensitivity(*(Pair(predicted=e.clip, truth=e) for e in bare))
    assert all(isinstance(v, NA) and "labelled" in v.reason for v in done.values())
    empty = replace(A.clip, pointmap=Pointmap(points=A.clip.pointmap.points, valid=np.zeros((FRAMES, H, W), bool)))
    done = sensitivity(Pair(predicted=empty, truth=A), Pair(predicted=B.clip, truth=B))
    assert isinstance(done["sensitivity_robot_points"], NA)
    assert done["sensitivity_robot"] == 1.0


def test_episodes_must_share_group_view_and_start():
    with pytest.raises(ValueError, match="one group"):
        sensitivity(Pair(predicted=A.clip, truth=A), Pair(predicted=B.clip, truth=replace(B, group="other")))
    with pytest.raises(ValueError, match="view by view"):
        sensitivity(Pair(predicted=A.clip, truth=A), Pair(predicted=B.clip, truth=replace(B, view="wrist")))
    other = replace(B.clip, rgb=(255 - B.clip.rgb))
    done = sensitivity(Pair(predicted=A.clip, truth=A), Pair(predicted=other, truth=replace(B, clip=other)))
    assert all(isinstance(v, NA) and "same picture" in v.reason for v in done.values())
