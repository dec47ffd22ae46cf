"""Inverse kinematics: reaches what can be reached, without jumps; flags the rest."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d.geometry.se3 import difference, rotvec_to_matrix, transform
from kinema4d.robot.ik import inverse_kinematics
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot


def smooth_path(robot: Robot, rng: np.random.Generator, frames: int = 49, share: float = 0.5) -> np.ndarray:
    """A smooth joint path inside the limits that covers about ``share`` of them."""
    lower, upper = np.maximum(robot.lower, -np.pi), np.minimum(robot.upper, np.pi)
    a, b = rng.uniform(lower, upper, (2, robot.dof))
    t = np.linspace(0, 1, frames)[:, None]
    wave = (
        0.1
        * (upper - lower)
        * np.sin(2 * np.pi * (rng.uniform(0.5, 1.5, robot.dof) * t + rng.uniform(0, 1, robot.dof)))
    )
    return np.clip(a + share * ((b - a) * (1 - np.cos(np.pi * t)) / 2 + wave), lower, upper)


@pytest.mark.parametrize("name", ["k4arm", "panda", "xarm7", "ur5", "wx250s"])
def test_follows_smooth_paths_without_jumps(name):
    robot = load_robot(name, visuals=False)
    rng = np.random.default_rng(0)
    tool, arm = robot.link_index(robot.tool_link), robot.arm_columns
    reached, jumps = [], []
    for _ in range(100):
        q = smooth_path(robot, rng)
        goals = forward_kinematics(robot, q)[:, tool]
        result = inverse_kinematics(robot, goals, q[0])
        metres, radians = difference(forward_kinematics(robot, result.q)[:, tool], goals)
        truly = (metres <= 1e-4) & (radians <= 1e-4)
        np.testing.assert_array_equal(result.converged, truly)  # the report is the truth
        np.testing.assert_allclose(result.residual_m, metres, atol=1e-9)
        assert (result.q >= robot.lower - 1e-12).all()
        assert (result.q <= robot.upper + 1e-12).all()
        reached.append(truly.mean())
        step = np.abs(np.diff(result.q[:, arm], axis=0)).max()
        jumps.append(step / max(np.abs(np.diff(q[:, arm], axis=0)).max(), 0.02))
    assert np.mean(reached) >= 0.995
    assert np.percentile(jumps, 95) <= 3
    assert max(jumps) <= 25  # next to a singular posture exact tracking itself asks for a fast wrist


def test_unreachable_poses_are_flagged_and_stay_near():
    robot = load_robot("k4arm", visuals=False)
    tool = robot.link_index(robot.tool_link)
    start = forward_kinematics(robot, robot.home[None])[0, tool]
    goals = np.repeat(start[None], 30, axis=0)
    goals[:, 0, 3] += np.linspace(0, 1.5, 30)  # walk out of reach
    result = inverse_kinematics(robot, goals, robot.home)
    assert result.converged[:5].all()
    assert not result.converged[-10:].any()
    assert (result.residual_m[-10:] > 0.05).all()
    got = forward_kinematics(robot, result.q)[:, tool]
    metres, _ = difference(got, goals)
    np.testing.assert_allclose(metres, result.residual_m, atol=1e-9)
    back = inverse_kinematics(robot, goals[::-1], result.q[-1])  # and the arm comes back
    assert back.converged[-5:].all()


def test_far_goals_are_walked_to_on_the_same_branch():
    robot = load_robot("panda", visuals=False)
    tool = robot.link_index(robot.tool_link)
    q = np.stack([robot.home, robot.home])
    q[1, 0] += 1.2
    q[1, 3] += 0.5
    result = inverse_kinematics(robot, forward_kinematics(robot, q)[:, tool], q[0])
    assert result.converged.all()
    assert np.abs(result.q[1] - q[0])[robot.arm_columns].max() < 2.0


def test_nearly_half_turns_are_solved():
    robot = load_robot("k4arm", visuals=False)
    tool = robot.link_index(robot.tool_link)
    q = robot.home.copy()
    q[5] = -1.5
    T = forward_kinematics(robot, q[None])[0, tool]
    turned = T @ transform(np.zeros(3), rotvec_to_matrix(np.array([0, 0, 3.1])))
    result = inverse_kinematics(robot, turned[None], q)
    assert result.converged.all()
    assert result.q[0, 5] == pytest.approx(1.6, abs=1e-3)


def test_deterministic():
    robot = load_robot("panda", visuals=False)
    q = smooth_path(robot, np.random.default_rng(5))
    goals = forward_kinematics(robot, q)[:, robot.link_index(robot.tool_link)]
    a, b = (inverse_kinematics(robot, goals, q[0]) for _ in range(2))
    np.testing.assert_array_equal(a.q, b.q)


def test_other_joints_keep_their_seed():
    robot = load_robot("k4arm", visuals=False)
    seed = robot.home.copy()
    seed[-1] = 0.02
    goal = forward_kinematics(robot, robot.home[None])[:, robot.link_index("flange")]
    result = inverse_kinematics(robot, goal, seed, tool_link="flange")
    assert result.q[0, -1] == 0.02


def test_bad_requests_are_named():
    robot = load_robot("k4arm", visuals=False)
    good = np.eye(4)[None]
    with pytest.raises(ValueError, match="not orthonormal"):
        inverse_kinematics(robot, 2 * good, robot.home)
    with pytest.raises(ValueError, match="7 finite joint positions"):
        inverse_kinematics(robot, good, np.zeros(3))
    with pytest.raises(ValueError, match="no link 'hand'"):
        inverse_kinematics(robot, good, robot.home, tool_link="hand")
    with pytest.raises(ValueError, match="no joint moves link 'base'"):
        inverse_kinematics(robot, good, robot.home, tool_link="base")
