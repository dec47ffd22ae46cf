"""The fit finds a robot where it is, not where it is expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d.evaluate import following_kernels
from kinema4d.evaluate.articulated import COLUMNS, ROWS, body, draw, fit, stage, tool_path
from kinema4d.geometry.camera import rays
from kinema4d.geometry.se3 import look_at
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Arm, Camera, Trajectory

ROBOT = load_robot("k4arm")
FRAMES = 6


def camera(height: int = 96, width: int = 144) -> Camera:
    f = 1.1 * height
    K = np.array([[f, 0, (width - 1) / 2], [0, f, (height - 1) / 2], [0, 0, 1]])
    return Camera(
        K=K, T_world_camera=look_at(np.array([1.0, 0.5, 0.7]), np.array([0.15, 0, 0.3])), height=height, width=width
    )


def arm(q: np.ndarray) -> Arm:
    return Arm(
        robot="k4arm",
        trajectory=Trajectory(q=q, joint_names=ROBOT.joint_names, fps=10),
        link_names=ROBOT.link_names,
        converged=np.ones(len(q), bool),
        residual_m=np.zeros(len(q)),
        residual_rad=np.zeros(len(q)),
    )


def motion(frames: int = FRAMES) -> np.ndarray:
    q = np.tile(ROBOT.home, (frames, 1))
    q[:, 0] += np.linspace(0, 0.4, frames)
    q[:, 1] += np.linspace(0, 0.3, frames)
    return q


def seen(at, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A perfect pointmap of the robot at ``q`` before a wall two metres behind."""
    render = draw(at.surfaces, at.bodies, at.arms, [q], at.camera)
    wall = 3.0 * rays(at.camera.K, at.camera.height, at.camera.width)
    points = np.where(render.valid[..., None], render.points, wall).astype(np.float32)
    return points, np.ones(render.valid.shape, bool)


def test_kernel_kinematics_are_the_robots():
    rng = np.random.default_rng(0)
    for name in ("k4arm", "k4hand", "ur5+k4grip"):
        robot = load_robot(name, visuals=False)
        q = rng.uniform(-0.5, 0.5, robot.dof)
        Ts = np.empty((len(robot.link_names), 4, 4))
        following_kernels._pose(
            robot.parent, robot.T_parent_joint, robot.kind, robot.axis, robot.column, robot.multiplier, robot.offset,
            q, np.eye(4), Ts,
        )  # fmt: skip
        np.testing.assert_allclose(Ts[:, :3], forward_kinematics(robot, q[None])[0][:, :3], atol=1e-12)


def test_patches_lie_on_the_surface_and_look_outwards():
    own = body("k4arm")
    assert len(own.patches) == len(own.normals) == len(own.links) == len(own.areas)
    np.testing.assert_allclose(np.linalg.norm(own.normals, axis=1), 1, atol=1e-5)
    for link in np.unique(own.links):
        vertices = np.concatenate([v.mesh.vertices for v in own.robot.visuals if v.link == link])
        p = own.patches[own.links == link]
        assert (p > vertices.min(axis=0) - 1e-3).all()
        assert (p < vertices.max(axis=0) + 1e-3).all()
        inwards = ((p - p.mean(axis=0)) * own.normals[own.links == link]).sum(axis=1) < -0.02
        assert inwards.mean() < 0.2
    assert 0.05 < own.areas.sum() < 1.0


def test_a_true_robot_is_found_where_it_stands():
    at = stage([arm(motion())], camera())
    found = fit(at, *seen(at, motion()))
    assert found.found.all()
    assert found.share.min() > 0.95
    off = np.linalg.norm(tool_path(at, 0, found.q[0]) - tool_path(at, 0, motion()), axis=1)
    assert off.max() < 0.003
    assert (found.mask & ~at.expected.valid).sum() < 0.02 * at.expected.valid.sum()


@pytest.mark.parametrize("degrees", [2, 4])
def test_a_displaced_robot_is_found_where_it_is_and_not_where_it_should_be(degrees: float):
    q = motion()
    other = q + np.radians(degrees) * np.array([1, 1, -1, 1, 1, 0, 0])
    at = stage([arm(q)], camera())
    found = fit(at, *seen(at, other))
    fitted, real, expected = (tool_path(at, 0, x) for x in (found.q[0], other, q))
    assert found.found.all()
    assert np.linalg.norm(fitted - real, axis=1).mean() < 0.2 * np.linalg.norm(expected - real, axis=1).mean()


def test_noise_moves_the_fit_by_less_than_its_size():
    at, rng = stage([arm(motion())], camera()), np.random.default_rng(0)
    points, valid = seen(at, motion())
    last = 0.0
    for noise in (0.0, 0.005, 0.02):
        z = 1 + noise * rng.standard_normal(valid.shape) / points[..., 2]
        found = fit(at, (points * z[..., None]).astype(np.float32), valid)
        off = np.linalg.norm(tool_path(at, 0, found.q[0]) - tool_path(at, 0, motion()), axis=1).mean()
        assert last <= off <= noise + 0.002
        last = off


def test_no_robot_and_no_points_are_not_found():
    at = stage([arm(motion())], camera())
    points, valid = seen(at, motion())
    wall = np.tile((3.0 * rays(at.camera.K, at.camera.height, at.camera.width)).astype(np.float32), (FRAMES, 1, 1, 1))
    for p, v in ((wall, valid), (np.zeros_like(points), np.zeros_like(valid))):
        found = fit(at, p, v)
        assert not found.found.any()
        assert not found.mask.any()
        assert np.isfinite(found.q[0]).all()


def test_joints_stay_within_their_limits():
    q = np.tile(ROBOT.home, (2, 1))
    at = stage([arm(q)], camera())
    found = fit(at, *seen(at, np.clip(q + 0.3, ROBOT.lower, ROBOT.upper)))
    assert (found.q[0] >= ROBOT.lower - 1e-9).all()
    assert (found.q[0] <= ROBOT.upper + 1e-9).all()


def test_a_large_picture_is_thinned_ray_for_ray():
    big = camera(480, 720)
    at = stage([arm(motion(2))], big)
    assert at.camera.height <= ROWS
    assert at.camera.width <= COLUMNS
    full = rays(big.K, 480, 720)[None]
    np.testing.assert_allclose(at.thin(full)[0], rays(at.camera.K, at.camera.height, at.camera.width), atol=1e-12)


def test_two_arms_and_a_moving_camera():
    cam = camera()
    moving = replace(cam, T_world_camera=np.stack([cam.T_world_camera] * FRAMES))
    left = arm(motion())
    T = np.eye(4)
    T[:3, 3] = [-0.1, -0.5, 0]
    right = replace(left, trajectory=replace(left.trajectory, T_world_base=T, q=motion()[::-1]))
    at = stage([left, right], moving)
    points = np.where(at.expected.valid[..., None], at.expected.points, 3.0 * rays(cam.K, cam.height, cam.width))
    found = fit(at, points.astype(np.float32), np.ones(at.expected.valid.shape, bool))
    assert found.found.shape == (FRAMES, 2)
    assert found.found.all()
    for i, q in enumerate((motion(), motion()[::-1])):
        assert np.linalg.norm(tool_path(at, i, found.q[i]) - tool_path(at, i, q), axis=1).mean() < 0.004
