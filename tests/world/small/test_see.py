from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinema4d.geometry.se3 import look_at, place
from kinema4d.types import Camera
from kinema4d.world.small.group import gather, without_slivers
from kinema4d.world.small.look import View, carried, resized, support_height
from kinema4d.world.small.see import (
    BlindNet,
    PatchNet,
    SeeConfig,
    SegmentNet,
    blind_input,
    level_frame,
    reference_inverse,
    segment_input,
    world_rays,
)
from kinema4d.world.small.surface import settled

H, W = 48, 72


def a_camera(height: int = H, width: int = W) -> Camera:
    K = np.array([[60.0 * height / H, 0, (width - 1) / 2], [0, 60.0 * height / H, (height - 1) / 2], [0, 0, 1]])
    return Camera(K=K, T_world_camera=look_at(np.array([0.6, 0.2, 0.5]), np.zeros(3)), height=height, width=width)


def a_table(camera: Camera, height: float = 0.0) -> np.ndarray:
    """Depth of an endless table."""
    direction, origin = world_rays(camera)
    return ((origin[2] - height) / np.maximum(-direction[..., 2], 0.05)).astype(np.float32)


def moved(camera: Camera, T: np.ndarray) -> Camera:
    return replace(camera, T_world_camera=T @ camera.T_world_camera)


@pytest.mark.parametrize("eye", [(0.6, 0.2, 0.5), (-0.3, -0.4, 0.2), (0.0, 0.0, 0.8), (0.01, 0.5, 1.0)])
def test_the_level_frame_is_a_rotation_about_the_vertical(eye):
    camera = replace(a_camera(), T_world_camera=look_at(np.array(eye, float), np.zeros(3), (1, 0, 0.1)))
    R = level_frame(camera)
    np.testing.assert_allclose(R @ R.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(R) == pytest.approx(1)
    np.testing.assert_allclose(R[2], [0, 0, 1])


def test_what_the_networks_see_does_not_depend_on_how_the_world_is_turned_or_where_it_is():
    camera, rng = a_camera(), np.random.default_rng(0)
    depth, rgb = a_table(camera), rng.integers(0, 255, (H, W, 3)).astype(np.uint8)
    robot = np.zeros((H, W), bool)
    robot[:5] = True
    there = moved(camera, place(1.0, -2.0, 0.0, yaw=1.1))
    for make in (
        lambda c: segment_input(rgb, depth, depth > 0, robot, c)[0],
        lambda c: blind_input(rgb, robot, depth, c)[0],
        lambda c: segment_input(rgb, depth, depth > 0, robot, c)[1],
    ):
        np.testing.assert_allclose(make(there), make(camera), atol=2e-5)


def test_points_and_normals_of_a_table_are_level():
    camera = a_camera()
    x, X = segment_input(
        np.zeros((H, W, 3), np.uint8), a_table(camera), np.ones((H, W), bool), np.zeros((H, W), bool), camera
    )
    assert np.abs(X[..., 2]).max() < 1e-4
    np.testing.assert_allclose(
        x[4:7, 2:-2, 2:-2].reshape(3, -1).T, np.tile([0, 0, 1], ((H - 4) * (W - 4), 1)), atol=1e-3
    )
    higher = segment_input(
        np.zeros((H, W, 3), np.uint8), a_table(camera), np.ones((H, W), bool), np.zeros((H, W), bool), camera, 0.1
    )[1]
    np.testing.assert_allclose(higher[..., 2], -0.1, atol=1e-4)


def test_the_reference_depth_is_the_tables():
    camera = a_camera()
    table, reference = a_table(camera), reference_inverse(camera)
    near = 1 / table > 1 / 2.5
    np.testing.assert_allclose(reference[near], 1 / table[near], rtol=1e-5)


def test_an_untrained_network_without_a_sensor_says_the_support():
    camera = a_camera()
    x, reference = blind_input(np.zeros((H, W, 3), np.uint8), np.zeros((H, W), bool), np.zeros((H, W)), camera)
    guess, _ = BlindNet(SeeConfig())(torch.from_numpy(x)[None], torch.from_numpy(reference)[None])
    np.testing.assert_allclose(guess[0].detach().numpy(), reference, rtol=1e-5)


@pytest.mark.parametrize("shape", [(48, 72), (47, 71), (33, 50)])
def test_networks_take_any_size(shape):
    x = torch.randn(1, 10, *shape)
    assert PatchNet(10, 3, (8, 16, 16))(x).shape == (1, 3, *shape)
    assert SegmentNet(SeeConfig(widths=(8, 16, 16)))(x).room.shape == (1, 2, *shape)


def test_pixels_gather_by_the_middle_they_vote_for():
    rng = np.random.default_rng(1)
    middles = np.array([[0.0, 0.0, 0.02], [0.08, 0.0, 0.02], [0.0, 0.1, 0.05]])
    owner = rng.integers(3, size=(20, 30))
    votes = middles[owner] + rng.normal(0, 0.004, (20, 30, 3))
    labels, found = gather(np.ones((20, 30), bool), votes)
    assert found == 3
    for k in range(3):
        mine = labels[owner == k]
        assert (mine == np.bincount(mine).argmax()).mean() == 1.0
    none, nothing = gather(np.zeros((20, 30), bool), votes)
    assert none.max() == 0
    assert nothing == 0


def test_thin_lines_along_an_edge_are_no_parts():
    labels = np.zeros((40, 40), np.int32)
    labels[10:30, 10:30] = 1
    labels[10:30, 30] = 2  # a line beside it
    labels[2:6, 2:6] = 3
    X = np.zeros((40, 40, 3))
    X[..., 0], X[..., 1] = np.meshgrid(np.arange(40) * 0.003, np.arange(40) * 0.003)
    out = without_slivers(labels, X)
    assert set(np.unique(out)) == {0, 1, 2}
    assert (out[10:30, 30] == out[15, 15]).all()
    X[:, 30] += 0.5  # far behind: it belongs to nothing near
    assert (without_slivers(labels, X)[10:30, 30] == 0).all()


def test_labels_of_a_small_picture_follow_the_edges_of_a_large_one():
    camera = a_camera(384, 576)
    depth = np.full((384, 576), 1.0, np.float32)
    rgb = np.full((384, 576, 3), 200, np.uint8)
    depth[101:213, 203:311] = 0.9  # odd borders
    rgb[101:213, 203:311] = (200, 20, 20)
    view = View(rgb=rgb, depth=depth, robot=np.zeros(depth.shape, bool), camera=camera)
    small = resized(view)
    assert small.robot.shape == (192, 288)
    full = carried((small.depth < 0.95).astype(np.int32), small, view)
    assert (full == (depth < 0.95)).mean() > 0.9999


@pytest.mark.parametrize("rows", [96, 192, 240, 480])
def test_a_resized_view_is_the_same_scene(rows):
    camera = a_camera(rows, rows * 3 // 2)
    depth = a_table(camera)
    view = View(
        rgb=np.zeros((*depth.shape, 3), np.uint8), depth=depth, robot=np.zeros(depth.shape, bool), camera=camera
    )
    small = resized(view)
    assert 130 <= small.robot.shape[0] <= 250
    X = segment_input(small.rgb, small.depth, small.depth > 0, small.robot, small.camera)[1]
    assert np.abs(X[..., 2]).max() < (1e-3 if rows > 120 else 0.02)  # repeated pixels are steps


@pytest.mark.parametrize("height", [0.0, 0.42, -0.1])
def test_the_support_is_found_at_any_height(height):
    camera = a_camera(192, 288)
    depth = a_table(camera, height)
    view = View(rgb=np.zeros((192, 288, 3), np.uint8), depth=depth, robot=np.zeros(depth.shape, bool), camera=camera)
    assert support_height(view) == pytest.approx(height, abs=1e-3)


def test_a_part_near_the_support_stands_on_it_and_one_above_does_not():
    rng = np.random.default_rng(0)
    cloud = rng.uniform(0, 0.05, (200, 3))
    cloud[0, 2], cloud[1, 2] = 0.0, 0.05
    low = settled(cloud + np.array([0, 0, 0.004]), "free")
    assert low[:, 2].min() == 0
    assert low[:, 2].max() == pytest.approx(0.054)
    high = settled(cloud + np.array([0, 0, 0.1]), "free")
    np.testing.assert_allclose(high, cloud + np.array([0, 0, 0.1]))
