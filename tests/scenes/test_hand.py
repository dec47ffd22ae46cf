"""Hands are read off their surface, reach holds what it promises, and paths keep their clocks."""

from __future__ import annotations

import numpy as np
import pytest
from tables import robot_named

from kinema4d.geometry.se3 import apply, difference, invert, place
from kinema4d.robot.ik import inverse_kinematics
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.scenes.hand import TIP_BAND_M, closedness_to_q, measure_hand
from kinema4d.scenes.path import FRAMES, SPEED, TICK, TURN, Commands, Key, Path, interpolate, solve
from kinema4d.scenes.reach import HIGH_M, LOW_M, comfortable, forward_pose, grasp_pose, measure_reach
from kinema4d.scenes.world import TIMESTEP
from kinema4d.types import check_transforms

ROBOTS = ("panda", "wx250s", "k4arm", "ur5+k4hand", "xarm7+k4grip")
OPENING = {"panda": 0.08, "k4arm": 0.09, "ur5+k4hand": 0.09, "xarm7+k4grip": 0.085}


def fingers(robot, closed: float) -> list[np.ndarray]:
    """Surface of everything that the gripper moves, in the grasp frame."""
    q = np.tile(robot.home, (2, 1))
    closedness_to_q(robot, q, np.array([closed, 0.5]))
    Ts = forward_kinematics(robot, q)
    Ts = invert(Ts[:, [robot.link_index(robot.tool_link)]] @ measure_hand(robot).T_tool_grasp) @ Ts
    moving = [v for v in robot.visuals if np.abs(Ts[0, v.link] - Ts[1, v.link]).max() > 1e-5]
    return [apply(Ts[0, v.link], v.mesh.vertices) for v in moving]


@pytest.mark.parametrize("name", ROBOTS)
def test_the_grasp_frame_lies_between_the_finger_tips(name):
    robot = robot_named(name)
    hand = measure_hand(robot)
    check_transforms(hand.T_tool_grasp, "grasp")
    if name in OPENING:
        assert hand.opening == pytest.approx(OPENING[name], abs=0.002)
    opened, shut = fingers(robot, 0.0), fingers(robot, 1.0)
    tips = np.concatenate(opened)
    tips = tips[tips[:, 2] > tips[:, 2].max() - TIP_BAND_M]
    assert np.abs(tips[:, 1]).min() >= hand.opening / 2 - 1e-3  # nothing stands in the gap
    assert (tips[:, 1] > 0).any()
    assert (tips[:, 1] < 0).any()
    for a, b in zip(opened, shut, strict=True):  # fingers close along y, towards the middle
        way = (b - a).mean(axis=0)
        assert abs(way[1]) > 0.9 * np.linalg.norm(way)
        side = np.sign(a[a[:, 2] > a[:, 2].max() - TIP_BAND_M][:, 1].mean())
        assert side * way[1] < 0
    closed = np.concatenate(shut)
    assert closed[:, 2].max() == pytest.approx(hand.tip, abs=1e-6)  # z points out of the palm
    pads = closed[closed[:, 2] > closed[:, 2].max() - TIP_BAND_M]
    assert abs(pads[:, 1].max() + pads[:, 1].min()) < 0.002
    np.testing.assert_allclose(np.abs(pads[:, :2]).max(axis=0), hand.finger[:2], atol=0.002)
    assert hand.depth > hand.tip
    assert (hand.palm > 0).all()


def test_a_robot_without_a_gripper_is_told_what_to_do():
    with pytest.raises(ValueError, match=r"'ur5' has no gripper.*ur5\+k4grip"):
        measure_hand(robot_named("ur5"))


def test_a_hand_with_one_moving_finger_is_refused():
    with pytest.raises(ValueError, match="'so101' .*two fingers"):
        measure_hand(robot_named("so101"))


def test_closedness_is_linear_and_touches_only_fingers():
    robot = robot_named("ur5+k4grip")
    q = np.tile(robot.home, (3, 1))
    closedness_to_q(robot, q, np.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(q[:, -1], [0, 0.41, 0.82])
    np.testing.assert_array_equal(q[:, :-1], np.tile(robot.home[:-1], (3, 1)))


@pytest.mark.parametrize("name", ROBOTS)
def test_reach_holds_what_it_promises(name):
    robot = robot_named(name)
    reach = measure_reach(robot)
    assert reach.depth > 0.05
    assert reach.breadth > 0.1
    T_base_world, T_grasp_tool = invert(place(reach.base_x, 0, 0)), invert(reach.hand.T_tool_grasp)
    rng = np.random.default_rng(0)
    along = [(s * reach.depth, 0.0) for s in (-1, -0.5, 0, 0.5, 1)]
    across = [(rng.uniform(-0.7, 0.7) * reach.depth, s * reach.breadth) for s in rng.uniform(-1, 1, 30)]
    poses = [grasp_pose(x, y, z, reach.yaw) for x, y in along + across for z in (HIGH_M, LOW_M)]
    solved = inverse_kinematics(robot, T_base_world @ np.stack(poses) @ T_grasp_tool, robot.home)
    assert solved.converged.all()
    tool = forward_kinematics(robot, solved.q)[:, robot.link_index(robot.tool_link)]
    metres, radians = difference(place(reach.base_x, 0, 0) @ tool @ reach.hand.T_tool_grasp, np.stack(poses))
    assert metres.max() < 1e-3
    assert radians.max() < 1e-2


@pytest.mark.parametrize("yaw", [-2.5, 0.0, 0.7, 3.0])
def test_grasp_poses_point_down_and_close_along_their_yaw(yaw):
    T = grasp_pose(0.1, 0.2, 0.3, yaw)
    check_transforms(T, "grasp")
    np.testing.assert_allclose(T[:3, 3], [0.1, 0.2, 0.3])
    np.testing.assert_allclose(T[:3, 2], [0, 0, -1], atol=1e-12)
    np.testing.assert_allclose(T[:3, 1], [np.cos(yaw), np.sin(yaw), 0], atol=1e-12)
    pitched = grasp_pose(0, 0, 0, yaw, pitch=0.4)
    np.testing.assert_allclose(pitched[:3, 1], T[:3, 1], atol=1e-12)  # pitch keeps the closing direction
    rolled = grasp_pose(0, 0, 0, yaw, pitch=0.4, roll=1.0)
    np.testing.assert_allclose(rolled[:3, 2], pitched[:3, 2], atol=1e-12)  # roll keeps the approach
    for natural in (np.pi / 2, -np.pi / 2):
        same = comfortable(yaw, natural)
        assert abs(same - natural) <= np.pi / 2 + 1e-12
        assert abs(np.sin(same - yaw)) < 1e-9  # the same line
        ahead = forward_pose(0, 0, 0, yaw, 0.0, natural)
        assert ahead[:2, 2] @ [np.cos(yaw), np.sin(yaw)] > 0.8  # points along its heading
        assert ahead[2, 2] < 0  # and still down a little


KEYS = [
    Key(T_world_grasp=grasp_pose(0.0, 0.0, 0.2, 1.5), closed=0.0),
    Key(T_world_grasp=grasp_pose(0.1, 0.1, 0.2, 1.2), closed=0.0),
    Key(T_world_grasp=grasp_pose(0.1, 0.1, 0.05, 1.2), closed=0.0, seconds=0.8),
    Key(T_world_grasp=grasp_pose(0.1, 0.1, 0.05, 1.2), closed=1.0, seconds=0.4),
    Key(T_world_grasp=grasp_pose(0.1, 0.1, 0.05, -1.2), closed=1.0),
]


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("slower", [1.0, 3.7])
def test_paths_keep_their_clocks(count, slower):
    keys = [Key(T_world_grasp=k.T_world_grasp, closed=k.closed, seconds=k.seconds and slower * k.seconds) for k in KEYS]
    commands = interpolate(keys[:count])
    n = (FRAMES - 1) * commands.ticks + 1
    assert commands.Ts_world_grasp.shape == (n, 4, 4)
    assert commands.closed.shape == (n,)
    assert commands.seconds == commands.steps * TIMESTEP
    assert commands.seconds <= TICK + TIMESTEP
    check_transforms(commands.Ts_world_grasp, "commands")
    robot = robot_named("k4arm")
    reach = measure_reach(robot)
    way = solve(robot, reach, place(reach.base_x, 0, 0), commands)
    assert len(way.q) == len(way.converged) == len(way.residual_m) == n
    assert way.converged.all()
    steps = way.at_steps
    assert steps.shape == ((n - 1) * commands.steps, robot.dof)
    np.testing.assert_allclose(steps[commands.steps - 1 :: commands.steps], way.q[1:], atol=1e-12)  # on each tick
    middle = way.q[0] + (way.q[1] - way.q[0]) / commands.steps
    np.testing.assert_allclose(steps[0], middle, atol=1e-12)
    fingers_q = way.q[:, robot.joint_names.index("finger_joint")]
    np.testing.assert_allclose(fingers_q, 0.045 * (1 - commands.closed), atol=1e-12)


def test_durations_are_as_asked_or_as_far_as_it_is():
    commands = interpolate(KEYS)
    expected = [np.hypot(0.1, 0.1) / SPEED, 0.8, 0.4, 2.4 / TURN]
    total = (FRAMES - 1) * commands.ticks * commands.seconds
    assert total == pytest.approx(sum(expected), rel=0.06)  # ticks are whole physics steps
    short = interpolate([KEYS[2], KEYS[2]])
    assert len(short.closed) == FRAMES  # 0.2 s: one tick per frame
    np.testing.assert_allclose(short.Ts_world_grasp, np.broadcast_to(KEYS[2].T_world_grasp, (FRAMES, 4, 4)), atol=1e-9)


def test_paths_pass_through_their_keys_and_pause_there():
    commands = interpolate(KEYS)
    n = len(commands.closed)
    np.testing.assert_allclose(commands.Ts_world_grasp[0], KEYS[0].T_world_grasp, atol=1e-9)
    np.testing.assert_allclose(commands.Ts_world_grasp[-1], KEYS[-1].T_world_grasp, atol=1e-9)
    at = np.cumsum([0, np.hypot(0.1, 0.1) / SPEED, 0.8, 0.4, 2.4 / TURN])
    ticks = at / at[-1] * (n - 1)
    moved = np.linalg.norm(np.diff(commands.Ts_world_grasp[:, :3, 3], axis=0), axis=1)
    for key, tick in zip(KEYS, ticks, strict=True):
        nearest = commands.Ts_world_grasp[round(tick)]
        metres, radians = difference(nearest, key.T_world_grasp)
        assert metres < 0.004
        assert radians < 0.05
        assert moved[max(round(tick) - 1, 0)] < 0.3 * moved.max()  # gently
    assert moved[0] < 0.3 * moved.max()
    assert (commands.closed >= 0).all()
    assert (commands.closed <= 1).all()
    assert (np.diff(commands.closed) >= -1e-12).all()


def test_poses_out_of_reach_are_flagged():
    robot = robot_named("k4arm")
    reach = measure_reach(robot)
    far = [Key(T_world_grasp=grasp_pose(x, 0, 0.1, reach.yaw), closed=0.0) for x in (0.0, 2.0)]
    way = solve(robot, reach, place(reach.base_x, 0, 0), interpolate(far))
    assert isinstance(way, Path)
    assert isinstance(way.commands, Commands)
    assert way.converged[0]
    assert not way.converged[-1]
    assert way.residual_m[-1] > 0.5
