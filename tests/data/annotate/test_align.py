"""Alignment to the robot: exact on exact data, robust, and it refuses what it cannot know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d.data.annotate.align import METHODS, Alignment, align_to_robot, apply, fit
from kinema4d.geometry.camera import from_depth, off_ray_px

K = np.array([[100.0, 0, 31.5], [0, 100, 23.5], [0, 0, 1]])
SHAPE = (3, 48, 64)


def known_depth(rng) -> np.ndarray:
    return (1.0 + 0.4 * rng.random(SHAPE)).astype(np.float32)


def maps(method: str, k: np.ndarray, scale: float, shift: float) -> np.ndarray:
    """The prediction that ``scale`` and ``shift`` turn into ``k``."""
    if method == "disparity":
        return (scale / (1 / k - shift)).astype(np.float32)
    return ((k - shift) / scale).astype(np.float32)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("per_frame", [False, True])
def test_exact_data_gives_exact_parameters(method, per_frame):
    k = known_depth(np.random.default_rng(0))
    shift = 0.0 if method == "scale" else -0.3
    predicted = from_depth(K, maps(method, k, 2.7, shift), np.ones(SHAPE, bool))
    found = fit(predicted, k, np.ones(SHAPE, bool), method=method, per_frame=per_frame)
    assert len(found.scale) == (SHAPE[0] if per_frame else 1)
    np.testing.assert_allclose(found.scale, 2.7, rtol=1e-4)
    np.testing.assert_allclose(found.shift, shift, atol=1e-4)
    assert found.inliers == 1.0
    aligned = apply(predicted, found)
    np.testing.assert_allclose(aligned.depth, k, rtol=1e-4)
    assert off_ray_px(K, aligned) < 1e-3  # scaling a point moves it along its own ray


@pytest.mark.parametrize("method", METHODS)
def test_forty_percent_of_nonsense_changes_little(method):
    rng = np.random.default_rng(1)
    k = known_depth(rng)
    z = maps(method, k, 0.5, 0.0 if method == "scale" else 0.2)
    z = np.where(rng.random(SHAPE) < 0.4, 0.2 * z, z).astype(np.float32)  # one-sided, as an occluder is
    found = fit(from_depth(K, z, np.ones(SHAPE, bool)), k, np.ones(SHAPE, bool), method=method)
    assert abs(found.scale[0] / 0.5 - 1) < 1e-3, found
    assert 0.55 < found.inliers < 0.65


def test_mixed_pixels_at_the_rim_are_left_out():
    k = known_depth(np.random.default_rng(2))
    mask = np.zeros(SHAPE, bool)
    mask[:, 10:38, 10:54] = True
    inner = np.zeros(SHAPE, bool)
    inner[:, 12:36, 12:52] = True
    z = np.where(inner, k / 2, 5.0).astype(np.float32)
    assert fit(from_depth(K, z, z > 0), k, mask, method="scale").inliers == 1.0
    assert fit(from_depth(K, z, z > 0), k, mask, method="scale", erode_px=0).inliers < 0.9


def test_refusals_say_why():
    k = known_depth(np.random.default_rng(3))
    everywhere, few = np.ones(SHAPE, bool), np.zeros(SHAPE, bool)
    few[0, :12, :12] = True
    predicted = from_depth(K, k, everywhere)
    with pytest.raises(ValueError, match="needs 200"):
        fit(predicted, k, few, method="scale")
    few[0] = True
    with pytest.raises(ValueError, match="frame 1 shows the robot's known depth on 0 pixels"):
        fit(predicted, k, few, method="scale", per_frame=True)
    flat = np.full(SHAPE, 1.2, np.float32)
    with pytest.raises(ValueError, match="too little to tell scale from shift"):
        fit(predicted, flat, everywhere, method="affine")
    with pytest.raises(ValueError, match="negative scale; is this depth or inverse depth"):
        fit(from_depth(K, 3 - k, everywhere), k, everywhere, method="affine")
    nonsense = np.random.default_rng(4).uniform(0.1, 9, SHAPE).astype(np.float32)
    with pytest.raises(ValueError, match="come within 10 %"):
        fit(from_depth(K, nonsense, everywhere), k, everywhere, method="scale")
    with pytest.raises(ValueError, match="one of scale, affine, disparity, got 'log'"):
        fit(predicted, k, everywhere, method="log")


def test_points_that_leave_the_world_become_invalid():
    z = np.array([[[0.5, 1.0, 4.0]]], np.float32)
    predicted = from_depth(np.eye(3), z, np.ones((1, 1, 3), bool))
    scale, shift = np.array([1.0]), np.array([-0.5])
    made = {"scale": scale, "shift": shift, "inliers": 1.0, "residual_m": 0.0, "pixels": 1}
    behind = apply(predicted, Alignment(method="affine", **made))
    np.testing.assert_array_equal(behind.valid, [[[False, True, True]]])
    beyond = apply(predicted, Alignment(method="disparity", **made))  # 1/4 - 0.5 < 0
    np.testing.assert_array_equal(beyond.valid, [[[True, True, False]]])
    assert np.isfinite(beyond.points).all()


def test_a_robot_mask_keeps_occluders_out_of_the_fit(occluded):
    labelled = replace(occluded.episode, labels=occluded.mask.astype(np.uint8), label_names=("robot",))
    blind = align_to_robot(occluded.episode, occluded.pointmap, method="scale")[1]
    seeing = align_to_robot(labelled, occluded.pointmap, method="scale")[1]
    assert seeing.inliers == 1.0
    assert blind.inliers < 0.97
    assert seeing.pixels < blind.pixels
    np.testing.assert_allclose([blind.scale[0], seeing.scale[0]], 1.0, atol=1e-3)


def test_no_camera_or_no_joints_no_ruler(truth):
    with pytest.raises(ValueError, match="camera is only guessed"):
        align_to_robot(replace(truth.episode, camera_from="guessed"), truth.pointmap, method="scale")
    with pytest.raises(ValueError, match="no joint states"):
        align_to_robot(replace(truth.episode, arms=()), truth.pointmap, method="scale")
