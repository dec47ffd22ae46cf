"""Distances between boxes that can be computed by hand, and hands against MuJoCo's own distances."""

from __future__ import annotations

import numpy as np
import pytest
from played import episode

from kinema4d.evaluate.penetration import FARTHEST_M, depths, distance, gaps, link_poses, robot_solids, thing_solid
from kinema4d.geometry.se3 import place
from kinema4d.scenes.shapes import box, revolve

pytest.importorskip("mujoco")


def test_boxes_by_hand():
    a = thing_solid(*_box((0.05, 0.05, 0.05)))
    b = thing_solid(*_box((0.01, 0.01, 0.01)))
    assert len(a.pieces) == 1
    assert distance(a, b, place(0.08, 0, 0), 0.2) == pytest.approx(0.02, abs=1e-6)
    assert distance(a, b, place(0.055, 0, 0), 0.2) == pytest.approx(-0.005, abs=1e-6)
    assert distance(a, b, place(1, 0, 0), 0.2) == 0.2
    # A small box within the large one: its far side is 2 cm deep more than its near side.
    assert distance(a, b, place(0.03, 0, 0), 0.2) == pytest.approx(-0.03, abs=1e-3)


def test_a_bowl_is_hollow():
    profile = np.array([[0, 0], [0.05, 0], [0.05, 0.05], [0.046, 0.05], [0.046, 0.004], [0, 0.004]])
    bowl = revolve(profile, (0, 0, 0))
    solid = thing_solid(bowl.vertices, bowl.faces)
    assert solid.pieces == ()
    inside = thing_solid(*_box((0.01, 0.01, 0.01)))
    assert distance(inside, solid, np.linalg.inv(place(0, 0, 0.03)), 0.2) > 0.005


def test_gaps_agree_with_mujoco():
    truth = episode("near_miss")
    track = next(t for t in truth.tracks if t.name == truth.facts["roles"]["target"]["body"])
    assert track.vertices is not None
    assert track.faces is not None
    solid = thing_solid(track.vertices, track.faces)
    found = gaps(truth.arms, np.arange(len(truth)), [(solid, track.Ts_world_object)])
    assert found.min() == pytest.approx(truth.facts["min_gap_m"], abs=0.004)  # the fact is of every tick
    assert found.max() <= FARTHEST_M


def test_a_thing_in_the_palm_is_deep_inside():
    truth = episode("push")
    arm = truth.arms[0]
    solids, Ts = robot_solids(arm.robot), link_poses(arm)
    links = [i for i, s in enumerate(solids) if s is not None]
    solid = solids[links[-3]]
    assert solid is not None
    T = Ts[:1, links[-3]].copy()
    T[0, :3, 3] = T[0, :3, :3] @ solid.centre + T[0, :3, 3]
    small = thing_solid(*_box((0.002, 0.002, 0.002)))
    assert depths(truth.arms, np.array([0]), {"small": (small, T)})[0] > 0.005
    far = np.tile(place(0, 0, 5), (1, 1, 1))
    assert depths(truth.arms, np.array([0]), {"small": (small, far)})[0] == 0


def _box(half: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray]:
    mesh = box(half, (0, 0, 0))
    return mesh.vertices, mesh.faces
