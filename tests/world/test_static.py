from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d.geometry.camera import from_depth
from kinema4d.types import Arm, Camera, Control, Trajectory
from kinema4d.world.compose import lit_like, robot_pixels
from kinema4d.world.fill import fill
from kinema4d.world.protocol import World
from kinema4d.world.static import StaticWorld

H, W = 30, 40
K = np.array([[40.0, 0, 19.5], [0, 40, 14.5], [0, 0, 1]])


def a_control(frames: int = 4, *, rgb: bool = True) -> Control:
    """A robot that is a square at depth 0.8 m, moving right by 5 pixels per frame."""
    camera = Camera(K=K, T_world_camera=np.eye(4), height=H, width=W)
    v, u = np.mgrid[:H, :W]
    mask = np.stack([(v >= 8) & (v < 16) & (u >= 5 + 5 * t) & (u < 13 + 5 * t) for t in range(frames)])
    depth = np.full(mask.shape, 0.8, np.float32)
    path = Trajectory(q=np.zeros((frames, 1)), joint_names=("j",), fps=10.0)
    arm = Arm(
        robot="toy",
        trajectory=path,
        link_names=("link",),
        converged=np.ones(frames, bool),
        residual_m=np.zeros(frames),
        residual_rad=np.zeros(frames),
    )
    colour = np.where(mask[..., None], np.array([100, 80, 60], np.uint8), np.uint8(0))
    return Control(
        camera=camera,
        pointmap=from_depth(K, depth, mask),
        link_ids=mask.astype(np.uint16),
        link_names=("link",),
        arms=(arm,),
        fps=10.0,
        rgb=colour if rgb else None,
    )


def a_view(control: Control) -> tuple[np.ndarray, np.ndarray]:
    """An even green wall at 1 m behind the robot, with a box at 0.7 m in front of its second place."""
    image = np.full((H, W, 3), (40, 160, 60), np.uint8)
    depth = np.full((H, W), 1.0)
    image[10:14, 20:23], depth[10:14, 20:23] = (220, 30, 30), 0.7
    image[control.mask[0]], depth[control.mask[0]] = (200, 160, 120), 0.8
    return image, depth


def test_a_membrane_continues_a_slope_exactly():
    v, u = np.mgrid[:40, :50]
    plane = (0.3 + 0.01 * u + 0.02 * v)[..., None]
    known = np.ones((40, 50), bool)
    known[10:25, 15:35] = False
    np.testing.assert_allclose(fill(plane, known), plane, atol=2e-3)
    np.testing.assert_array_equal(fill(plane, known)[known], plane[known])


def test_a_fill_stays_between_what_is_known():
    rng = np.random.default_rng(0)
    values, known = rng.uniform(2, 5, (33, 47, 3)), rng.random((33, 47)) < 0.1
    out = fill(values, known)
    assert out.min() >= 1.9
    assert out.max() <= 5.1
    with pytest.raises(ValueError, match="nothing is known"):
        fill(values, np.zeros((33, 47), bool))


def test_the_first_frame_is_the_image_and_the_world_stands_still():
    control = a_control()
    image, depth = a_view(control)
    rollout = StaticWorld().simulate(image, control, depth=depth, seed=3)
    clip = rollout.clip
    assert isinstance(StaticWorld(), World)
    assert rollout.provenance["world"] == "static"
    np.testing.assert_array_equal(clip.rgb[0], image)
    np.testing.assert_allclose(clip.pointmap.depth[0], depth, atol=1e-6)
    away = np.logical_not(control.mask.any(axis=0))
    away[7:17, 4:14] = False  # and one pixel around where it stood
    for t in range(len(clip)):
        np.testing.assert_array_equal(clip.rgb[t][away], image[away])


def test_the_robot_is_composited_by_depth_and_leaves_wall_behind():
    control = a_control()
    image, depth = a_view(control)
    clip = StaticWorld().simulate(image, control, depth=depth).clip
    last = clip.rgb[3]
    # Behind the box the robot is hidden; beside it it is in front of the wall, as bright as the first frame shows it.
    assert (last[10:14, 20:23] == (220, 30, 30)).all()
    np.testing.assert_allclose(last[9, 26].astype(int), (200, 160, 120), atol=2)
    np.testing.assert_allclose(clip.pointmap.depth[3, 9, 26], 0.8)
    # Where it stood at first is wall again, a guess from around it.
    np.testing.assert_allclose(last[12, 8].astype(int), (40, 160, 60), atol=3)
    np.testing.assert_allclose(clip.pointmap.depth[3, 12, 8], 1.0, atol=5e-3)


def test_without_depth_there_is_no_geometry_but_the_robots():
    control = a_control()
    image, _ = a_view(control)
    clip = StaticWorld().simulate(image, control).clip
    np.testing.assert_array_equal(clip.pointmap.valid, control.mask)


def test_holes_of_the_sensor_stay_holes():
    control = a_control()
    image, depth = a_view(control)
    depth[25:, :] = np.nan
    depth[0, 0] = 0.0
    clip = StaticWorld().simulate(image, control, depth=depth).clip
    assert not clip.pointmap.valid[2, 25:].any()
    assert not clip.pointmap.valid[2, 0, 0]
    assert np.isfinite(clip.pointmap.points[clip.pointmap.valid]).all()


def test_what_stands_before_the_robot_is_not_taken_for_it():
    control = a_control()
    _, depth = a_view(control)
    depth[9:12, 6:9] = 0.5
    shown = robot_pixels(control, depth, depth > 0)
    assert not shown[9:12, 6:9].any()
    assert shown[13, 8]


def test_few_robot_pixels_leave_the_shading_alone():
    control = a_control()
    image, _ = a_view(control)
    nothing = np.zeros((H, W), bool)
    np.testing.assert_array_equal(lit_like(image, control, nothing), control.rgb)


def test_bad_views_are_refused():
    control = a_control()
    image, depth = a_view(control)
    with pytest.raises(ValueError, match=r"20x40 pixels .* camera says 30x40"):
        StaticWorld().simulate(image[:20], control)
    with pytest.raises(ValueError, match="depth is 30x39 but the image 30x40"):
        StaticWorld().simulate(image, control, depth=depth[:, 1:])
    with pytest.raises(ValueError, match="without colour"):
        StaticWorld().simulate(image, a_control(rgb=False), depth=depth)
    moving = replace(control.camera, T_world_camera=np.tile(control.camera.T_world_camera, (4, 1, 1)))
    with pytest.raises(ValueError, match="moving camera"):
        StaticWorld().simulate(image, replace(control, camera=moving), depth=depth)
