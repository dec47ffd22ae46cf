"""Where a robot can work on a table: measured with its own inverse kinematics, so that any arm finds its place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import invert, rotvec_to_matrix, transform
from kinema4d.robot.ik import inverse_kinematics
from kinema4d.robot.model import Robot
from kinema4d.scenes.hand import Hand, measure_hand

LOW_M, HIGH_M = 0.015, 0.24
"""Heights of the grasp point over the table between which the work goes on."""
POUR_PITCH = 1.1
"""How far the hand is raised from pointing down while it holds a cup, radians."""
POUR_ROLL = 2.65
"""How far it rolls to pour, radians: with this pitch the mouth of the cup then looks down by 30 degrees."""
STEP_M = 0.025
"""Grid on which reach is measured."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """A robot's place at the table."""

    hand: Hand
    """Its gripper."""
    base_x: float
    """Where its base stands, so that the world's origin is in the middle of its reach."""
    depth: float
    """It can grasp from above at least this far before and behind the origin."""
    breadth: float
    """And this far to either side."""
    yaw: float
    """Direction of closing that is most comfortable for it."""
    pours: tuple[float, ...]
    """Which way it can turn over a cup that it holds pointing forward: signs of the roll; none where the wrist does not
    bend that far, as a Panda's."""


def grasp_pose(
    x: float, y: float, z: float, yaw: float, *, pitch: float = 0.0, roll: float = 0.0
) -> Float[np.ndarray, "4 4"]:
    """A grasp frame in the world that points down and closes along ``yaw``; ``pitch`` turns it about its closing
    direction and ``roll`` about its approach."""
    R = np.array([[-np.sin(yaw), np.cos(yaw), 0.0], [np.cos(yaw), np.sin(yaw), 0.0], [0.0, 0.0, -1.0]])
    R = R @ rotvec_to_matrix(np.array([0.0, pitch, 0.0])) @ rotvec_to_matrix(np.array([0.0, 0.0, roll]))
    return transform(np.array([x, y, z], np.float64), R)


def comfortable(yaw: float, natural: float) -> float:
    """The same closing direction (a hand may turn by half a turn), nearest to the robot's natural one."""
    return natural + (yaw - natural + np.pi / 2) % np.pi - np.pi / 2


def forward_pose(x: float, y: float, z: float, heading: float, roll: float, natural: float) -> Float[np.ndarray, "4 4"]:
    """A grasp that points along ``heading``, raised by ``POUR_PITCH`` from pointing down, rolled about its approach."""
    yaw = comfortable(heading + np.pi / 2, natural)
    # Which way the pitch raises the hand depends on which of the two equal closing directions was taken.
    ahead = np.array([np.cos(heading), np.sin(heading)])
    sign = 1.0 if grasp_pose(0, 0, 0, yaw, pitch=0.5)[:2, 2] @ ahead > 0 else -1.0
    return grasp_pose(x, y, z, yaw, pitch=sign * POUR_PITCH, roll=roll)


@lru_cache(maxsize=16)
def measure_reach(robot: Robot) -> Reach:
    """Try grasps from above, high and low, straight ahead and to the side."""
    hand = measure_hand(robot)
    T_grasp_tool = invert(hand.T_tool_grasp)
    best: tuple[int, float, list[float]] = 0, np.inf, []
    natural = np.pi / 2
    for yaw in (np.pi / 2, -np.pi / 2):
        good = [r for r in np.arange(0.2, 0.9, STEP_M).tolist() if _reaches(robot, T_grasp_tool, r, 0.0, yaw)]
        turn = 0.0
        if good:
            T = grasp_pose(good[len(good) // 2], 0, 0.1, yaw) @ T_grasp_tool
            turn = float(np.abs(inverse_kinematics(robot, T[None], robot.home).q[0] - robot.home).max())
        if (len(good), -turn) > (best[0], -best[1]):
            best, natural = (len(good), turn, good), yaw
    run = _longest_run(best[2])
    if len(run) < 4:
        raise ValueError(
            f"robot {robot.name!r} cannot grasp from above within 0.9 m of its base on the plane that it stands on"
        )
    middle = (run[0] + run[-1]) / 2
    depth = min((run[-1] - run[0]) / 2, 0.14)
    middle = min(middle, run[0] + depth + 0.1)  # rather near than at the end of its reach
    breadth = 0.0
    corners = (middle - 0.7 * depth, middle + 0.7 * depth)
    while breadth < 0.19 and all(
        _reaches(robot, T_grasp_tool, r, s * (breadth + STEP_M), natural) for r in corners for s in (-1, 1)
    ):
        breadth += STEP_M
    pours = tuple(sign for sign in (-1.0, 1.0) if _pours(robot, T_grasp_tool, middle, sign, natural))
    return Reach(hand=hand, base_x=-float(middle), depth=float(depth), breadth=float(breadth), yaw=natural, pours=pours)


def _pours(robot: Robot, T_grasp_tool: np.ndarray, x: float, sign: float, natural: float) -> bool:
    """Whether it can roll a cup over at a few places around the middle."""
    for y in (0.0, -0.1, 0.1):
        heading = float(np.arctan2(y, x))
        rolls = np.linspace(0, sign * POUR_ROLL, 9)
        Ts = [forward_pose(x, y, z, heading, 0.0, natural) for z in (0.06, 0.13)]
        Ts += [forward_pose(x, y, 0.13, heading, float(roll), natural) for roll in rolls]
        if not inverse_kinematics(robot, np.stack(Ts) @ T_grasp_tool, robot.home).converged.all():
            return False
    return True


def _reaches(robot: Robot, T_grasp_tool: np.ndarray, x: float, y: float, yaw: float) -> bool:
    Ts = np.stack([grasp_pose(x, y, z, yaw) @ T_grasp_tool for z in np.linspace(HIGH_M, LOW_M, 4)])
    return bool(inverse_kinematics(robot, Ts, robot.home).converged.all())


def _longest_run(values: list[float]) -> list[float]:
    best: list[float] = []
    run: list[float] = []
    for value in values:
        run = [*run, value] if run and value - run[-1] < 1.5 * STEP_M else [value]
        best = max(best, run, key=len)
    return best
