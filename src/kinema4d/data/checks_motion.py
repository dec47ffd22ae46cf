"""Is the motion itself believable: smooth, as commanded, and with a gripper that closes when it is told to close?"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from kinema4d.data.probe import Probe
from kinema4d.data.thresholds import Finding, Thresholds, grade, nothing
from kinema4d.robot.actions import CONVENTIONS, ROTATIONS, Actions, drive
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.types import Commands

WINDOWS = 16
"""Moments at which relative commands are carried out and compared."""
EARLY = 3
"""Frames by which states may come before their commands, in clocks that are off."""


def check_jitter(look: Probe, limits: Thresholds) -> list[Finding]:
    """Does the arm shake?"""
    if not look.episode.arms:
        return [nothing("jitter", "the episode has no robot motion")]
    out = []
    for number, arm in enumerate(look.episode.arms):
        name = arm.robot if len(look.episode.arms) == 1 else f"arm {number} ({arm.robot})"
        path, unit = arm.trajectory.q, "rad"
        if number == 0 and look.tool is not None:
            path, unit = look.tool, "m"
        if len(path) < 4:
            out.append(nothing("jitter", "too few frames"))
            continue
        speed = np.diff(path, axis=0)
        change = np.diff(speed, axis=0)
        size, moves = _rms(change), _rms(speed)
        if size < limits.jitter_m or moves == 0:
            out.append(Finding(check="jitter", severity="ok", value=0.0, message=f"{name} does not shake"))
            continue
        text = f"{name} changes its velocity by {size:.3g} {unit} per frame at a velocity of {moves:.3g}"
        remedy = "smooth the states or use the encoder's own clock; drop the episode if the robot really shook"
        out.append(grade("jitter", size / moves, limits.jitter, text, remedy))
    return out


def check_polarity(look: Probe, limits: Thresholds) -> list[Finding]:
    """Does the gripper close when it is told to close?"""
    commands = look.episode.commands
    why = _why_not(look)
    if why or commands is None:
        return [nothing("polarity", why)]
    robot, q = look.robots[0], look.paths[0]
    if robot.gripper is None:
        return [nothing("polarity", f"robot {robot.name!r} has no known gripper")]
    try:
        told = _told_closedness(robot, q, commands)
    except ValueError as error:
        return [nothing("polarity", str(error))]
    if told is None:
        return [nothing("polarity", "the commands have no gripper column")]
    told = _at_frames(told[:, None], commands.fps, look)[:, 0]
    observed = closedness(robot, q)
    if min(np.ptp(told), np.ptp(observed)) < limits.gripper_motion:
        return [nothing("polarity", "the gripper is not told to move, or does not")]
    scores = {}
    for lag in range(-EARLY, limits.command_lag + 1):
        a, b = _lagged(told, observed, lag)
        if len(a) >= max(4, len(q) // 2) and a.std() > 1e-6 and b.std() > 1e-6:
            scores[lag] = float(np.corrcoef(a, b)[0, 1])
    if not scores:
        return [nothing("polarity", "too few frames")]
    lag = max(scores, key=lambda k: abs(scores[k]))
    value = scores[lag]
    text = f"commanded and observed gripper closedness correlate by {value:.2f} (states {lag} frames behind)"
    remedy = (
        f"the gripper column is {'reversed' if value < 0 else 'not a gripper command'} under convention "
        f"{commands.convention!r}: swap open and closed of its GripperColumn (Bridge has 1 = open, DROID 1 = closed, "
        "LIBERO +1 = close) or of the state's mapping, and ingest again"
    )
    return [grade("polarity", value, limits.polarity, text, remedy)]


def check_actions(look: Probe, limits: Thresholds) -> list[Finding]:
    """Do the states follow the commands?"""
    commands = look.episode.commands
    why = _why_not(look)
    if why or commands is None:
        return [nothing("actions", why)]
    try:
        if commands.space in ("joint_position", "ee_pose"):
            return [_absolute(look, commands, limits)]
        return [_relative(look, commands, limits)]
    except ValueError as error:
        return [
            Finding(
                check="actions",
                severity="warn",
                message=f"the commands do not drive the robot: {error}",
                remedy="store the commands with the space and convention they have, or with empty ones where there is none",
                score=0.75,
            )
        ]


def closedness(robot: Robot, q: Float[np.ndarray, "t dof"]) -> Float[np.ndarray, " t"]:
    """How closed the gripper is: 0 open to 1 closed."""
    assert robot.gripper is not None
    column = robot.joint_indices(robot.gripper.joints[:1])[0]
    opened, closed = robot.gripper.open[0], robot.gripper.closed[0]
    return np.clip((q[:, column] - opened) / (closed - opened), 0, 1)


# ---------------------------------------------------------------------- parts


def _why_not(look: Probe) -> str:
    commands = look.episode.commands
    if commands is None:
        return "the episode has no commands"
    if not commands.space or not commands.convention:
        return "the commands have no known space and convention"
    if not look.robots:
        return "a robot's files are not here" if look.missing else "the episode has no robot motion"
    if len(look.robots) > 1:
        return "the commands are for several arms"
    if len(look.paths[0]) != len(look.episode) or len(look.episode) < 4:
        return "states and frames differ in number, or are too few"
    return ""


def _absolute(look: Probe, commands: Commands, limits: Thresholds) -> Finding:
    robot, q = look.robots[0], look.paths[0]
    driven = drive(robot, _actions(commands, commands.values, q[0]))
    goal = _at_frames(_tool(robot, driven.trajectory.q), commands.fps, look)
    reached = _tool(robot, q)
    errors = {}
    for lag in range(-EARLY, limits.command_lag + 1):
        a, b = _lagged(goal, reached, lag)
        if len(a) >= max(2, len(q) // 2):
            errors[lag] = np.linalg.norm(a - b, axis=1)
    lag = min(errors, key=lambda k: (float(np.median(errors[k])), abs(k)))
    middle, high = float(np.median(errors[lag])), float(np.quantile(errors[lag], 0.95))
    text = (
        f"the tool is {1e3 * middle:.1f} mm (median) and {1e3 * high:.1f} mm (95 %) from where it was sent, "
        f"{lag} frames later"
    )
    return grade("actions", middle, limits.command_m, text, _REMEDY.format(commands.space, commands.convention))


def _relative(look: Probe, commands: Commands, limits: Thresholds) -> Finding:
    """Carry out the commands of single frames from the observed state: errors do not add up, as they would over time."""
    robot, q = look.robots[0], look.paths[0]
    per_frame = commands.fps / look.episode.clip.fps
    reached = _tool(robot, q)
    last = min(len(q) - 1, int(len(commands.values) / per_frame))
    starts = np.unique(np.linspace(0, max(last - 1, 0), WINDOWS).astype(int))
    goals = {}
    for t in starts:
        rows = commands.values[round(t * per_frame) : round((t + 1) * per_frame)]
        if len(rows):
            driven = drive(robot, _actions(commands, rows, q[t])).trajectory.q
            goals[int(t)] = _tool(robot, driven[[0, -1]])
    best, lag, gain = -np.inf, 0, 0.0
    told = {t: g[1] - g[0] for t, g in goals.items()}
    for k in range(-EARLY, limits.command_lag + 1):
        both = [(s, reached[t + 1 + k] - reached[t + k]) for t, s in told.items() if 0 <= t + k < len(q) - 1]
        if len(both) < max(4, len(told) // 2):
            continue
        a, b = (np.stack([p[i] for p in both]) for i in (0, 1))
        size = np.linalg.norm(a) * np.linalg.norm(b)
        if size < 1e-8:
            continue
        cosine = float((a * b).sum() / size)
        if cosine > best:
            best, lag, gain = cosine, k, float((a * b).sum() / (a * a).sum())
    if not np.isfinite(best):
        return nothing("actions", "the commands or the states hardly move the tool")
    text = (
        f"commanded and observed tool steps agree by {best:.2f} (cosine), {lag} frames later; the tool carries out "
        f"{gain:.2f} of each command"
    )
    return grade("actions", best, limits.command_agreement, text, _REMEDY.format(commands.space, commands.convention))


_REMEDY = (
    "space {0!r} with convention {1!r} does not describe these numbers: check frame, units, order and sign of the "
    "columns, and that commands and states start at the same moment"
)


def _told_closedness(robot: Robot, q: np.ndarray, commands: Commands) -> np.ndarray | None:
    """Closedness that the commands ask for, one per command."""
    convention, values = CONVENTIONS.get(commands.convention), commands.values
    if convention is None:
        raise ValueError(f"unknown convention {commands.convention!r}; known are {', '.join(CONVENTIONS)}")
    arm = robot.arm_columns
    if commands.space == "joint_position" and commands.convention == "kinema4d" and values.shape[1] == robot.dof:
        return closedness(robot, np.asarray(values, np.float64))
    width = {"ee_delta": 6, "ee_pose": 3 + ROTATIONS[convention.pose_rotation]}.get(commands.space, len(arm))
    if values.shape[1] != width + 1:
        return None
    # The arm stands still, so that no kinematics is solved for the sake of the gripper.
    still = Actions(
        space="joint_position",
        values=np.tile(q[0, arm], (len(values), 1)),
        gripper=np.asarray(values[:, -1], np.float64),
        fps=commands.fps,
        convention=commands.convention,
        q_start=q[0],
    )
    return closedness(robot, drive(robot, still).trajectory.q)


def _actions(commands: Commands, rows: np.ndarray, q_start: np.ndarray) -> Actions:
    return Actions(
        space=commands.space,
        values=np.asarray(rows, np.float64),
        fps=commands.fps,
        convention=commands.convention,
        q_start=q_start,
    )


def _tool(robot: Robot, q: np.ndarray) -> np.ndarray:
    return forward_kinematics(robot, q)[:, robot.link_index(robot.tool_link), :3, 3]


def _at_frames(values: np.ndarray, fps: float, look: Probe) -> np.ndarray:
    """Rows of another clock at the times of the frames; the last row holds on."""
    at = np.arange(len(look.episode)) * (fps / look.episode.clip.fps)
    at = np.minimum(at, len(values) - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, len(values) - 1)
    part = (at - low)[:, None]
    return (1 - part) * values[low] + part * values[high]


def _lagged(commanded: np.ndarray, observed: np.ndarray, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Commanded at t beside observed at t + lag; empty where the lag is longer than the episode."""
    if abs(lag) >= len(commanded):
        return commanded[:0], observed[:0]
    if lag >= 0:
        return commanded[: len(commanded) - lag], observed[lag:]
    return commanded[-lag:], observed[: len(observed) + lag]


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt((x**2).sum(axis=1).mean()))
