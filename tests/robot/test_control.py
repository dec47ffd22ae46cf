"""The control signal: robot, actions and camera in; pointmap, mask, links and colour out."""

from __future__ import annotations

import numpy as np
import pytest

import kinema4d as k4d
from kinema4d.geometry.camera import off_ray_px
from kinema4d.geometry.se3 import apply, invert
from kinema4d.robot.kinematics import forward_kinematics


def camera(eye=(1.3, -0.8, 0.8), target=(0.15, 0.0, 0.3), height=96, width=144, focal=130.0) -> k4d.Camera:
    K = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1.0]])
    return k4d.Camera(
        K=K, T_world_camera=k4d.look_at(np.array(eye, float), np.array(target, float)), height=height, width=width
    )


def sway(frames=6, **extra) -> k4d.Actions:
    arm = k4d.load_robot("k4arm", visuals=False)
    q = np.tile(arm.home[:6], (frames, 1))
    q[:, 0] += np.linspace(-0.5, 0.5, frames)
    return k4d.Actions(space="joint_position", values=q, fps=10.0, **extra)


def test_points_lie_on_the_robot_and_on_their_rays():
    robot = k4d.load_robot("k4arm")
    control = k4d.control(robot, sway(), camera())
    assert len(control) == 6
    assert off_ray_px(control.camera.K, control.pointmap) <= 1e-3
    Ts_world_link = forward_kinematics(robot, control.arms[0].trajectory.q)
    # every point, taken back into its link's frame, lies inside the bounds of that link's own surface
    for t in range(len(control)):
        world = apply(control.camera.T_world_camera, control.pointmap.points[t][control.mask[t]].astype(np.float64))
        ids = control.link_ids[t][control.mask[t]]
        for i in np.unique(ids):
            local = apply(invert(Ts_world_link[t, i - 1]), world[ids == i])
            surface = np.concatenate([v.mesh.vertices for v in robot.visuals if v.link == i - 1])
            assert (local >= surface.min(axis=0) - 1e-5).all()
            assert (local <= surface.max(axis=0) + 1e-5).all()
    assert control.link_names[int(control.link_ids.max()) - 1] in robot.link_names
    assert control.clip.rgb.shape == (6, 96, 144, 3)
    assert (control.clip.rgb[~control.mask] == 0).all()


def test_base_and_camera_move_together():
    robot = k4d.load_robot("k4arm")
    T = k4d.look_at(np.array([0.3, -2, 0.4]), np.array([0.1, 0.2, 0.0]))
    here = camera()
    there = k4d.Camera(K=here.K, T_world_camera=T @ here.T_world_camera, height=96, width=144)
    a = k4d.control(robot, sway(), here, rgb=False)
    b = k4d.control(robot, sway(T_world_base=T), there, rgb=False)
    assert (a.link_ids != b.link_ids).mean() < 1e-4
    both = a.mask & b.mask
    np.testing.assert_allclose(a.pointmap.points[both], b.pointmap.points[both], atol=2e-3)
    with pytest.raises(ValueError, match="without colour"):
        _ = a.clip


def test_two_arms_share_a_scene_and_hide_each_other():
    robot = k4d.load_robot("k4arm")
    left, right = np.eye(4), np.eye(4)
    left[1, 3], right[1, 3] = 0.3, -0.3
    side = camera(eye=(0.4, -1.8, 0.5))  # one arm stands behind the other
    alone = [k4d.control(robot, sway(T_world_base=T), side, rgb=False) for T in (left, right)]
    both = k4d.control([robot, robot], [sway(T_world_base=left), sway(T_world_base=right)], side, rgb=False)
    np.testing.assert_array_equal(both.mask, alone[0].mask | alone[1].mask)
    n = len(robot.link_names)
    assert both.link_names[0] == "0/base"
    assert both.link_names[n] == "1/base"
    overlap = alone[0].mask & alone[1].mask
    assert overlap.any()
    z = [np.where(c.mask, c.pointmap.depth, np.inf) for c in alone]
    nearer = np.where(z[0] <= z[1], 0, 1)
    np.testing.assert_array_equal(((both.link_ids.astype(int) - 1) // n)[overlap], nearer[overlap])
    with pytest.raises(ValueError, match="2 robots need as many action sequences, got 1"):
        k4d.control([robot, robot], [sway()], camera())
    with pytest.raises(ValueError, match="share one clock"):
        k4d.control([robot, robot], [sway(), sway(frames=4)], camera())


def test_a_blind_camera_is_told_why():
    robot = k4d.load_robot("k4arm")
    with pytest.raises(ValueError, match="behind the camera.*T_world_camera"):
        k4d.control(robot, sway(), camera(target=(3.0, -1.7, 1.0)))
    with pytest.raises(ValueError, match="outside its image"):
        k4d.control(robot, sway(), camera(eye=(1.3, -2.0, 0.8), target=(1.3, 1.0, 0.8), focal=900.0))


def test_moving_camera_and_frame_counts():
    robot = k4d.load_robot("k4arm")
    Ts = np.stack([k4d.look_at(np.array([1.3, y, 0.8]), np.array([0.15, 0, 0.3])) for y in np.linspace(-0.8, 0.8, 6)])
    moving = k4d.Camera(K=camera().K, T_world_camera=Ts, height=96, width=144)
    control = k4d.control(robot, sway(), moving, rgb=False)
    for t in (0, 5):
        still = k4d.Camera(K=camera().K, T_world_camera=Ts[t], height=96, width=144)
        np.testing.assert_array_equal(k4d.control(robot, sway(), still, rgb=False).link_ids[t], control.link_ids[t])
    with pytest.raises(ValueError, match="6 poses but the sequence has 4 frames"):
        k4d.control(robot, sway(frames=4), moving)


def test_unreachable_poses_are_rendered_and_flagged():
    robot = k4d.load_robot("k4arm")
    delta = np.tile([0.05, 0, 0, 0, 0, 0.0], (12, 1))
    control = k4d.control(robot, k4d.Actions(space="ee_delta", values=delta, fps=5.0), camera(), rgb=False)
    arm = control.arms[0]
    assert arm.converged[:3].all()
    assert not arm.converged[-1]
    assert arm.residual_m[-1] > 0.01
    assert control.mask[-1].any()


@pytest.mark.parametrize("size", [(480, 720), (37, 53), (1, 1)])
def test_any_resolution(size):
    robot = k4d.load_robot("k4arm")
    view = camera(target=(0.0, 0.0, 0.3)).resized(*size)
    control = k4d.control(robot, sway(frames=2), view)
    assert control.mask.shape == (2, *size)
