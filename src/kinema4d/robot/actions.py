"""Action sequences: named spaces, the conventions of each data source, and robot motion from them.

A *space* says what the numbers mean, a *convention* how a source scales and signs them. Both are plain dicts.
The conventions are tested one by one against the facts in the sources' own controllers (tests/robot/test_actions.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import euler_to_matrix, matrix_to_euler, quaternion_to_matrix, rotvec_to_matrix, transform
from kinema4d.robot.ik import inverse_kinematics
from kinema4d.robot.kinematics import forward_kinematics, integrate_velocity
from kinema4d.robot.model import Robot
from kinema4d.types import Arm, Trajectory, check_transforms

SPACES: dict[str, str] = {
    "joint_position": "joint positions, rad or m; one row per frame",
    "joint_velocity": "joint velocities; frame 0 is the start, each row moves on by one frame",
    "ee_pose": "tool poses in the robot's base frame; one row per frame",
    "ee_delta": "tool displacements in the base or tool frame; frame 0 is the start, each row moves on by one frame",
}
"""Every action space."""

ROTATIONS = {"quaternion": 4, "quaternion_xyzw": 4, "euler": 3, "rotvec": 3}
"""Rotation columns of ``ee_pose``: w x y z (default), x y z w, extrinsic-xyz Euler, rotation vector."""


@dataclass(frozen=True, kw_only=True)
class GripperColumn:
    """How a source writes its gripper."""

    kind: Literal["absolute", "relative", "toward"] = "absolute"
    """``absolute``: position. ``relative``: added to the state, + closes. ``toward``: the sign drives at ``rate``."""
    open: float = 0.0
    """Value that means fully open (absolute)."""
    closed: float = 1.0
    """Value that means fully closed (absolute)."""
    rate: float = 1.0
    """Closedness per step (toward) or per unit (relative)."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How a source scales, orients and signs its actions."""

    about: str
    """Where it comes from."""
    fps: float | None = None
    """Control rate of the source; used where a file states none."""
    joint_step: float | None = None
    """Radians per unit of ``joint_velocity`` and frame; None means true rad/s."""
    linear_step: float = 1.0
    """Metres per unit of ``ee_delta``."""
    angular_step: float = 1.0
    """Radians per unit of ``ee_delta``."""
    follow: float = 1.0
    """Share of each ``ee_delta`` that the source's controller carries out before the next command."""
    bound: Literal["none", "scale", "clip"] = "none"
    """Inputs beyond 1: kept, scaled down as a vector, or clipped per column."""
    pose_rotation: str = "quaternion"
    """Rotation columns of ``ee_pose``."""
    delta_rotation: Literal["rotvec", "euler", "euler_sum"] = "rotvec"
    """``euler_sum``: the Euler angles themselves are added, as data sets that subtract states do."""
    frame: Literal["base", "tool"] = "base"
    """Axes of ``ee_delta``: the base's (turning about the tool's own origin) or the tool's."""
    gripper: GripperColumn = GripperColumn()
    """The last column, where there is one."""
    tool_link: str | None = None
    """Link the source calls its end effector, if the robot has it; else the robot's own tool."""
    tool_offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Where on that link the source's end effector sits, metres."""
    R_zero: tuple[tuple[float, float, float], ...] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    """Tool orientation that the source writes as zero angles (``ee_pose``)."""


CONVENTIONS: dict[str, Convention] = {
    "kinema4d": Convention(about="ours: SI units, quaternions w x y z, gripper 0 open to 1 closed"),
    "droid": Convention(
        about="DROID controller: 0.2 rad, 0.075 m, 0.15 rad per unit and step, vectors longer than 1 scaled down",
        fps=15.0,
        joint_step=0.2,
        linear_step=0.075,
        angular_step=0.15,
        bound="scale",
        pose_rotation="euler",
        delta_rotation="euler",
        tool_link="panda_link8",
    ),
    "bridge": Convention(
        about="Bridge commands: metres and Euler angles about the tool, base axes; gripper 1 open, 0 closed",
        fps=5.0,
        pose_rotation="euler",
        delta_rotation="euler",
        gripper=GripperColumn(open=1.0, closed=0.0),
        tool_link="ee_gripper_link",
        R_zero=((0, 0, 1), (0, 1, 0), (-1, 0, 0)),
    ),
    "bridge_relabelled": Convention(
        about="Bridge as OpenVLA relabels it: differences of successive states, Euler angles subtracted",
        fps=5.0,
        pose_rotation="euler",
        delta_rotation="euler_sum",
        gripper=GripperColumn(open=1.0, closed=0.0),
        tool_link="ee_gripper_link",
        R_zero=((0, 0, 1), (0, 1, 0), (-1, 0, 0)),
    ),
    "bridge_local": Convention(
        about="Bridge as IRASim and Cosmos write it: displacements in the gripper frame; gripper 0 open",
        fps=5.0,
        pose_rotation="euler",
        delta_rotation="euler",
        frame="tool",
        tool_link="ee_gripper_link",
        R_zero=((0, 0, 1), (0, 1, 0), (-1, 0, 0)),
    ),
    "rt1": Convention(
        about="RT-1: metres and rotation vectors, base axes; gripper relative, + closes",
        fps=3.0,
        pose_rotation="quaternion_xyzw",
        gripper=GripperColumn(kind="relative"),
        tool_link="link_gripper_tcp",
    ),
    "libero": Convention(
        about="LIBERO OSC_POSE: +-1 is 0.05 m and 0.5 rad of axis-angle, base axes, clipped; gripper -1 opens, +1 closes",
        fps=20.0,
        linear_step=0.05,
        angular_step=0.5,
        bound="clip",
        gripper=GripperColumn(kind="toward", rate=0.125),  # speed 0.01 of a range of 2, at 25 physics steps per action
        tool_link="panda_hand",
        tool_offset=(0.0, 0.0, 0.097),  # robosuite's grip_site
    ),
}
"""Every source convention."""
# Commands are goals, and the compliant controller of LIBERO lags: ten steps of 0.5 were measured to move 5.5 cm,
# not 25. ``libero`` takes commands at their word, ``libero_tracked`` scales them to what happens.
CONVENTIONS["libero_tracked"] = replace(
    CONVENTIONS["libero"], about="LIBERO OSC_POSE with the measured lag of its controller", follow=0.22
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Actions:
    """An action sequence for one robot."""

    space: str
    """One of ``SPACES``."""
    values: Float[np.ndarray, "t d"]
    """The numbers, one row per step. Tool spaces may end in a gripper column, and so may the arm's joints; where
    that makes as many columns as the robot has joints, ours means joints and other conventions mean the gripper."""
    fps: float
    """Steps per second."""
    convention: str = "kinema4d"
    """One of ``CONVENTIONS``."""
    gripper: Float[np.ndarray, " t"] | None = None
    """The convention's gripper number per step, where it is not a column of ``values``."""
    joint_names: tuple[str, ...] = ()
    """Joint spaces: the joints of the columns, where they are not the robot's arm."""
    rotation: str | None = None
    """``ee_pose``: one of ``ROTATIONS``; the convention's where not given."""
    frame: Literal["base", "tool"] | None = None
    """``ee_delta``: axes of the displacement; the convention's where not given."""
    tool_link: str | None = None
    """Tool spaces: the link that moves; the convention's, or else the robot's, where not given."""
    q_start: Float[np.ndarray, " n"] | None = None
    """Start (all joints, or the arm's alone); the robot's home where not given."""
    T_world_base: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    """Where the robot stands."""

    def __post_init__(self) -> None:
        if self.space not in SPACES:
            raise ValueError(f"unknown action space {self.space!r}; known are {', '.join(SPACES)}")
        if self.convention not in CONVENTIONS:
            raise ValueError(f"unknown action convention {self.convention!r}; known are {', '.join(CONVENTIONS)}")
        if self.rotation is not None and self.rotation not in ROTATIONS:
            raise ValueError(f"unknown rotation {self.rotation!r}; known are {', '.join(ROTATIONS)}")
        if self.frame not in (None, "base", "tool"):
            raise ValueError(f"unknown frame {self.frame!r}; known are base, tool")
        if self.values.ndim != 2 or len(self.values) == 0:
            raise ValueError(f"actions must be [steps, columns] with at least one step, got {list(self.values.shape)}")
        if not np.isfinite(self.values).all():
            row, column = np.argwhere(~np.isfinite(self.values))[0]
            raise ValueError(f"action row {row}, column {column} is {self.values[row, column]}; all must be finite")
        if self.gripper is not None and (
            self.gripper.shape != self.values.shape[:1] or not np.isfinite(self.gripper).all()
        ):
            raise ValueError(
                f"gripper must be {len(self.values)} finite numbers, one per step, got {self.gripper.shape}"
            )
        if not (np.isfinite(self.fps) and self.fps > 0):
            raise ValueError(f"fps must be positive, got {self.fps}")
        check_transforms(np.asarray(self.T_world_base), "actions' T_world_base")


def drive(robot: Robot, actions: Actions) -> Arm:
    """Actions to a full-body joint path (section 3.1): direct mapping, integration, or seeded IK."""
    convention = CONVENTIONS[actions.convention]
    start, closedness = _start(robot, actions)
    if actions.space in ("joint_position", "joint_velocity"):
        columns, width = _joint_columns(robot, actions)
        body, gripper = _split(robot, actions, width)
        if actions.space == "joint_position":
            q = np.tile(start, (len(body), 1))
            q[:, columns] = body
            over = np.maximum(q - robot.upper, robot.lower - q)[:, columns].max(axis=1)
            reached, residuals = over <= 1e-3, np.zeros((2, len(q)))
        else:
            steps = np.zeros((len(body), robot.dof))
            bounded = _bound(body, convention.bound, ord=np.inf)
            steps[:, columns] = bounded * (1 / actions.fps if convention.joint_step is None else convention.joint_step)
            q, free = integrate_velocity(robot, start, steps)
            q, reached = np.vstack([start, q]), np.concatenate([[True], free])
            residuals = np.zeros((2, len(q)))
    else:
        link, T_link_tool = _tool(robot, actions.tool_link, convention)
        width = 6 if actions.space == "ee_delta" else 3 + ROTATIONS[actions.rotation or convention.pose_rotation]
        _check_width(robot, actions, {width: "the tool", width + 1: "the tool and the gripper"})
        body, gripper = _split(robot, actions, width)
        if actions.space == "ee_pose":
            goals = _poses(body, actions.rotation or convention.pose_rotation, convention)
        else:
            T_start = forward_kinematics(robot, start[None])[0, robot.link_index(link)] @ T_link_tool
            goals = _accumulate(T_start, body, actions.frame or convention.frame, convention)
        Ts_base_link = goals @ transform(-T_link_tool[:3, 3], np.eye(3))
        if actions.space == "ee_pose" and actions.q_start is None:
            start = _first_configuration(robot, Ts_base_link[0], start, link)
        solved = inverse_kinematics(robot, Ts_base_link, start, tool_link=link)
        q, reached = solved.q, solved.converged
        residuals = np.stack([solved.residual_m, solved.residual_rad])
    if gripper is not None:
        closed = _closedness(gripper, closedness, convention.gripper)
        if len(closed) < len(q):
            closed = np.concatenate([[closedness], closed])
        _set_gripper(robot, q, closed)
    return Arm(
        robot=robot.source,
        trajectory=Trajectory(q=q, joint_names=robot.joint_names, fps=actions.fps, T_world_base=actions.T_world_base),
        link_names=robot.link_names,
        converged=reached,
        residual_m=residuals[0],
        residual_rad=residuals[1],
    )


def _joint_columns(robot: Robot, actions: Actions) -> tuple[np.ndarray, int]:
    """Which joints the columns drive, and how many columns they take; one more is the gripper."""
    if actions.joint_names:
        columns = robot.joint_indices(actions.joint_names)
        _check_width(robot, actions, {len(columns): "the joints", len(columns) + 1: "the joints and the gripper"})
        return columns, len(columns)
    arm, width = robot.arm_columns, actions.values.shape[1]
    _check_width(
        robot, actions, {len(arm): "the arm", len(arm) + 1: "the arm and the gripper", robot.dof: "all joints"}
    )
    if width == robot.dof and (width != len(arm) + 1 or actions.convention == "kinema4d"):
        return np.arange(robot.dof), robot.dof
    return arm, len(arm)


def _check_width(robot: Robot, actions: Actions, options: Mapping[int, str]) -> None:
    got = actions.values.shape[1]
    if got not in options:
        wanted = " or ".join(f"{n} ({what})" for n, what in sorted(options.items()))
        raise ValueError(f"{actions.space} actions for {robot.name!r} need {wanted} columns, got {got}")


def _split(robot: Robot, actions: Actions, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The columns that move the arm, and the gripper numbers if there are any."""
    values = np.asarray(actions.values, np.float64)
    body, column = values[:, :width], values[:, width:]
    if column.shape[1] and actions.gripper is not None:
        raise ValueError("the gripper is given twice: as the last action column and as 'gripper'")
    gripper = column[:, 0] if column.shape[1] else actions.gripper
    if gripper is not None and robot.gripper is None:
        raise ValueError(
            f"the actions move a gripper, but robot {robot.name!r} has no known gripper; pass gripper= to load_robot (--gripper), "
            "name the columns' joints (joint_names), or drop the gripper"
        )
    return body, gripper


def _start(robot: Robot, actions: Actions) -> tuple[np.ndarray, float]:
    """The configuration before the first action, and how closed the gripper is in it."""
    q, given, arm = robot.home.copy(), actions.q_start, robot.arm_columns
    if given is not None:
        given = np.asarray(given, np.float64)
        if not np.isfinite(given).all():
            raise ValueError(f"q_start must be finite joint positions, got {given}")
        if len(given) == robot.dof:
            q = given.copy()
        elif len(given) == len(arm):
            q[arm] = given
        else:
            raise ValueError(
                f"q_start for {robot.name!r} needs {robot.dof} (all joints) or {len(arm)} (the arm) numbers, got {len(given)}"
            )
    closedness = 0.0
    if robot.gripper is not None:
        first = robot.joint_indices(robot.gripper.joints[:1])[0]
        span = robot.gripper.closed[0] - robot.gripper.open[0]
        closedness = float(np.clip((q[first] - robot.gripper.open[0]) / span, 0, 1))
    return q, closedness


def _set_gripper(robot: Robot, q: np.ndarray, closedness: np.ndarray) -> None:
    assert robot.gripper is not None
    opened, closed = np.array(robot.gripper.open), np.array(robot.gripper.closed)
    q[:, robot.joint_indices(robot.gripper.joints)] = opened + closedness[:, None] * (closed - opened)


def _closedness(column: np.ndarray, start: float, source: GripperColumn) -> np.ndarray:
    """The source's gripper column as closedness, 0 open to 1 closed."""
    if source.kind == "absolute":
        return np.clip((column - source.open) / (source.closed - source.open), 0, 1)
    steps = np.sign(column) if source.kind == "toward" else column
    out, now = np.empty(len(column)), start
    for t, step in enumerate(steps):
        now = min(max(now + source.rate * step, 0.0), 1.0)
        out[t] = now
    return out


def _bound(x: np.ndarray, how: str, *, ord: float) -> np.ndarray:
    if how == "clip":
        return np.clip(x, -1, 1)
    if how == "scale":
        return x / np.maximum(np.linalg.norm(x, ord=ord, axis=1, keepdims=True), 1)
    return x


def _tool(robot: Robot, chosen: str | None, convention: Convention) -> tuple[str, np.ndarray]:
    if chosen is not None:
        robot.link_index(chosen)
        return chosen, np.eye(4)
    if convention.tool_link in robot.link_names:
        return str(convention.tool_link), transform(np.array(convention.tool_offset), np.eye(3))
    return robot.tool_link, np.eye(4)


def _poses(body: np.ndarray, rotation: str, convention: Convention) -> np.ndarray:
    angles = body[:, 3:]
    if rotation == "euler":
        R = euler_to_matrix(angles)
    elif rotation == "rotvec":
        R = rotvec_to_matrix(angles)
    else:
        R = quaternion_to_matrix(angles if rotation == "quaternion" else np.roll(angles, 1, axis=1))
    return transform(body[:, :3], R @ np.array(convention.R_zero, np.float64))


def _accumulate(T_start: np.ndarray, body: np.ndarray, frame: str, convention: Convention) -> np.ndarray:
    """Poses from displacements; the start itself comes first."""
    linear = _bound(body[:, :3], convention.bound, ord=2) * (convention.linear_step * convention.follow)
    angular = _bound(body[:, 3:], convention.bound, ord=2) * (convention.angular_step * convention.follow)
    R_zero = np.array(convention.R_zero, np.float64)
    turn = rotvec_to_matrix(angular) if convention.delta_rotation == "rotvec" else euler_to_matrix(angular)
    goals = [T_start]
    for t in range(len(body)):
        T = goals[-1].copy()
        if frame == "tool":
            # The source's tool axes are ours turned by R_zero.
            R = T[:3, :3] @ R_zero.T
            T[:3, 3] += R @ linear[t]
            T[:3, :3] = R @ turn[t] @ R_zero
        elif convention.delta_rotation == "euler_sum":
            angles = matrix_to_euler(T[:3, :3] @ R_zero.T) + angular[t]
            T[:3, 3] += linear[t]
            T[:3, :3] = euler_to_matrix(angles) @ R_zero
        else:
            T[:3, 3] += linear[t]
            T[:3, :3] = turn[t] @ T[:3, :3]
        goals.append(T)
    return np.stack(goals)


def _first_configuration(robot: Robot, goal: np.ndarray, home: np.ndarray, link: str) -> np.ndarray:
    """Absolute poses without a start: of several solutions of the first pose take the one nearest to home."""
    best, rng = home, np.random.default_rng(0)
    columns = robot.chain_columns(link)
    lower, upper = np.maximum(robot.lower, -np.pi), np.minimum(robot.upper, np.pi)
    scores = []
    for attempt in range(24):
        seed = home.copy()
        if attempt:
            width = min(1.0, attempt / 12)
            seed[columns] += width * (rng.uniform(lower, upper) - home)[columns]
        solved = inverse_kinematics(robot, goal[None], seed, tool_link=link)
        if solved.converged[0]:
            scores.append((float(np.abs(solved.q[0] - home)[columns].max()), attempt, solved.q[0]))
            if attempt == 0:
                break
    return min(scores, key=lambda s: s[:2])[2] if scores else best
