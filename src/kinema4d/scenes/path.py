"""From key poses of the hand to a joint path on the clocks of commands, frames and physics."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from kinema4d.geometry.se3 import invert, matrix_to_rotvec, rotvec_to_matrix
from kinema4d.robot.ik import inverse_kinematics
from kinema4d.robot.model import Robot
from kinema4d.scenes.hand import closedness_to_q
from kinema4d.scenes.reach import Reach
from kinema4d.scenes.world import TIMESTEP

FRAMES = 49
"""Frames of an episode, as in the paper."""
TICK = 0.05
"""Longest time between two commands, seconds."""
SPEED, TURN = 0.4, 2.0
"""How fast the hand travels between keys on average, m/s and rad/s."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Key:
    """Where the hand should be at some moment."""

    T_world_grasp: Float[np.ndarray, "4 4"]
    """The grasp frame."""
    closed: float
    """The gripper, 0 open to 1 closed."""
    seconds: float | None = None
    """Time to get here from the key before; by default as far as it is, at ``SPEED`` and ``TURN``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Commands:
    """What the robot is told: one grasp pose and gripper number per tick."""

    Ts_world_grasp: Float[np.ndarray, "n 4 4"]
    """The grasp frame, the first at the start."""
    closed: Float[np.ndarray, " n"]
    """The gripper."""
    steps: int
    """Physics steps per tick."""
    ticks: int
    """Ticks per frame."""

    @property
    def seconds(self) -> float:
        """Time between two commands."""
        return self.steps * TIMESTEP


@dataclass(frozen=True, kw_only=True, eq=False)
class Path:
    """Commands as joint targets."""

    commands: Commands
    """What they follow."""
    q: Float[np.ndarray, "n dof"]
    """Targets at each tick."""
    converged: Bool[np.ndarray, " n"]
    """Whether the pose can be reached."""
    residual_m: Float[np.ndarray, " n"]
    """By how much it is missed."""
    residual_rad: Float[np.ndarray, " n"]
    """By how much it is missed."""

    @property
    def at_steps(self) -> Float[np.ndarray, "s dof"]:
        """Targets at each physics step, linear between ticks."""
        n = len(self.q) - 1
        share = np.arange(1, self.commands.steps + 1) / self.commands.steps
        between = self.q[:-1, None] + share[None, :, None] * (self.q[1:] - self.q[:-1])[:, None]
        return between.reshape(n * self.commands.steps, -1)


def interpolate(keys: list[Key]) -> Commands:
    """Travel from key to key, starting and stopping gently at each."""
    seconds = [0.0]
    for a, b in itertools.pairwise(keys):
        if b.seconds is not None:
            seconds.append(b.seconds)
            continue
        far = float(np.linalg.norm(b.T_world_grasp[:3, 3] - a.T_world_grasp[:3, 3]))
        R = a.T_world_grasp[:3, :3].T @ b.T_world_grasp[:3, :3]
        seconds.append(max(far / SPEED, float(np.linalg.norm(matrix_to_rotvec(R))) / TURN, 0.2))
    at = np.cumsum(seconds)
    ticks = int(np.ceil(at[-1] / ((FRAMES - 1) * TICK)))
    steps = max(round(at[-1] / ((FRAMES - 1) * ticks) / TIMESTEP), 1)
    times = np.linspace(0, at[-1], (FRAMES - 1) * ticks + 1)
    segment = np.clip(np.searchsorted(at, times, side="right") - 1, 0, len(keys) - 2)
    span = np.maximum(at[segment + 1] - at[segment], 1e-9)
    u = np.clip((times - at[segment]) / span, 0, 1)
    u = u * u * (3 - 2 * u)
    Ts = np.stack([key.T_world_grasp for key in keys])
    turns = matrix_to_rotvec(np.swapaxes(Ts[:-1, :3, :3], 1, 2) @ Ts[1:, :3, :3])
    path = Ts[segment].copy()
    path[:, :3, :3] = Ts[segment, :3, :3] @ rotvec_to_matrix(u[:, None] * turns[segment])
    path[:, :3, 3] += u[:, None] * (Ts[segment + 1, :3, 3] - Ts[segment, :3, 3])
    shut = np.array([key.closed for key in keys])
    closed = shut[segment] + u * (shut[segment + 1] - shut[segment])
    return Commands(Ts_world_grasp=path, closed=closed, steps=steps, ticks=ticks)


def solve(
    robot: Robot,
    reach: Reach,
    T_world_base: Float[np.ndarray, "4 4"],
    commands: Commands,
    q_seed: Float[np.ndarray, " dof"] | None = None,
) -> Path:
    """Commands to joint targets by inverse kinematics; poses out of reach are flagged and nearly reached."""
    Ts_base_tool = invert(T_world_base) @ commands.Ts_world_grasp @ invert(reach.hand.T_tool_grasp)
    solved = inverse_kinematics(robot, Ts_base_tool, robot.home if q_seed is None else q_seed)
    q = solved.q.copy()
    closedness_to_q(robot, q, commands.closed)
    return Path(
        commands=commands,
        q=q,
        converged=solved.converged,
        residual_m=solved.residual_m,
        residual_rad=solved.residual_rad,
    )
