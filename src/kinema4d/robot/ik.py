"""Inverse kinematics along a sequence: ``q_t = IK(T_ee_t, q_{t-1})`` (section 3.1 of the paper)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from kinema4d.robot import kinematics_kernels
from kinema4d.robot.model import FIXED, Robot
from kinema4d.types import check_transforms

TOLERANCE_M, TOLERANCE_RAD = 1e-6, 1e-6
"""When the solver stops refining."""
CONVERGED_M, CONVERGED_RAD = 1e-4, 1e-4
"""Residuals up to which a pose counts as reached."""
STRIDE_M, STRIDE_RAD = 0.1, 0.4
"""Goals further away than this are approached in several strides."""
PULL, LEAN = 0.02, 0.03
"""How free directions move to the preferred posture, per iteration: this share of the way, at most so many rad or m,
slow enough not to look like a jump. Paths that miss a pose are tried again with more."""
JUMP = 0.5
"""A step of a joint, in rad or m, that makes the solver look for a smoother path."""
ATTEMPTS = 18
"""How many further postures to try for a path that misses a pose or jumps."""


@dataclass(frozen=True, kw_only=True, eq=False)
class IKResult:
    """A joint path and, for every pose, whether it was reached."""

    q: Float[np.ndarray, "t dof"]
    """Joint positions, within limits; the nearest found where the pose was not reached."""
    converged: Bool[np.ndarray, " t"]
    """Whether the tool is at the asked pose within ``CONVERGED_M`` and ``CONVERGED_RAD``."""
    residual_m: Float[np.ndarray, " t"]
    """Distance from asked to reached tool position."""
    residual_rad: Float[np.ndarray, " t"]
    """Angle from asked to reached tool orientation."""


def inverse_kinematics(
    robot: Robot,
    Ts_base_tool: Float[np.ndarray, "t 4 4"],
    q_seed: Float[np.ndarray, " dof"],
    *,
    tool_link: str | None = None,
    iterations: int = 60,
) -> IKResult:
    """Follow tool poses from ``q_seed``. Each pose is solved from the previous answer, so the arm stays on its
    branch; an unreachable pose is flagged and the nearest configuration returned. Joints that do not move the
    tool keep their seed."""
    Ts_base_tool = np.ascontiguousarray(Ts_base_tool, np.float64)
    check_transforms(Ts_base_tool, "end-effector poses")
    q_seed = np.asarray(q_seed, np.float64)
    if q_seed.shape != (robot.dof,) or not np.isfinite(q_seed).all():
        raise ValueError(f"the IK seed must be {robot.dof} finite joint positions {robot.joint_names}, got {q_seed}")
    chain = _serial_chain(robot, robot.link_index(tool_link or robot.tool_link))
    columns = chain.columns
    if len(columns) == 0:
        raise ValueError(f"no joint moves link {tool_link or robot.tool_link!r}: choose another tool link")
    best = None
    for posture, pull, lean in _attempts(robot, chain, Ts_base_tool, q_seed[columns], iterations):
        q_chain, residuals = _follow(robot, chain, Ts_base_tool, q_seed[columns], posture, pull, lean, iterations)
        converged = (residuals[:, 0] <= CONVERGED_M) & (residuals[:, 1] <= CONVERGED_RAD)
        jump = np.abs(np.diff(q_chain, axis=0)).max(initial=0.0)
        score = (int((~converged).sum()), float(jump))
        if best is None or score < best[0]:
            best = score, q_chain, residuals, converged
        if best[0][0] == 0 and best[0][1] <= JUMP:
            break
    assert best is not None
    _, q_chain, residuals, converged = best
    q = np.tile(q_seed, (len(Ts_base_tool), 1))
    q[:, columns] = q_chain
    return IKResult(
        q=q,
        converged=converged,
        residual_m=np.ascontiguousarray(residuals[:, 0]),
        residual_rad=np.ascontiguousarray(residuals[:, 1]),
    )


def _attempts(
    robot: Robot, chain: _Chain, goals: np.ndarray, q_seed: np.ndarray, iterations: int
) -> Iterator[tuple[np.ndarray, float, float]]:
    """Ways to spend the freedom that the tool leaves, from the plainest on. Only a path that misses a pose or
    jumps asks for the next. A redundant arm can walk into its limits long before the pose that shows it, so the
    later attempts pull, from the first pose on, towards configurations that reach the hard poses."""
    lower, upper = robot.lower[chain.columns], robot.upper[chain.columns]
    finite = np.isfinite(lower) & np.isfinite(upper)
    low, high = np.where(finite, lower, -np.pi), np.where(finite, upper, np.pi)
    middle = np.where(finite, (low + high) / 2, q_seed)
    yield middle, PULL, LEAN
    yield q_seed, 0.0, 0.0
    yield q_seed, PULL, LEAN
    yield middle, PULL, 4 * LEAN
    rng = np.random.default_rng(0)
    targets = goals[np.linspace(len(goals) - 1, len(goals) // 3, 3).astype(int)]
    for goal in targets:
        for _ in range(ATTEMPTS // 3):
            guess = rng.uniform(low, high)
            q, residual = _follow(robot, chain, goal[None], guess, guess, 0.0, 0.0, iterations)
            if residual[0, 0] <= CONVERGED_M and residual[0, 1] <= CONVERGED_RAD:
                yield q[0], 2 * PULL, LEAN
                yield q[0], 2 * PULL, 4 * LEAN


def _follow(
    robot: Robot,
    chain: _Chain,
    goals: np.ndarray,
    q_seed: np.ndarray,
    posture: np.ndarray,
    pull: float,
    lean: float,
    iterations: int,
) -> tuple[np.ndarray, np.ndarray]:
    lower, upper = robot.lower[chain.columns], robot.upper[chain.columns]
    q = np.empty((len(goals), len(q_seed)))
    residuals = np.empty((len(goals), 2))
    kinematics_kernels.inverse(
        chain.pre, chain.kind, chain.axis, chain.column, chain.multiplier, chain.offset, chain.last, lower, upper,
        posture, pull, lean, goals, np.clip(q_seed, lower, upper), iterations, TOLERANCE_M, TOLERANCE_RAD,
        _reach(chain), STRIDE_M, STRIDE_RAD, q, residuals,
    )  # fmt: skip
    return q, residuals


@dataclass(frozen=True, kw_only=True, eq=False)
class _Chain:
    """The moving joints between root and tool, fixed joints folded into ``pre`` and ``last``."""

    pre: np.ndarray
    kind: np.ndarray
    axis: np.ndarray
    column: np.ndarray
    multiplier: np.ndarray
    offset: np.ndarray
    last: np.ndarray
    columns: np.ndarray


def _serial_chain(robot: Robot, tool: int) -> _Chain:
    path = []
    while tool >= 0:
        path.append(tool)
        tool = int(robot.parent[tool])
    pre, moving, T = [], [], np.eye(4)
    for link in reversed(path):
        T = T @ robot.T_parent_joint[link]
        if robot.kind[link] != FIXED:
            pre.append(T)
            moving.append(link)
            T = np.eye(4)
    columns = np.array(list(dict.fromkeys(robot.column[moving].tolist())), np.int64)
    return _Chain(
        pre=np.array(pre).reshape(-1, 4, 4),
        kind=robot.kind[moving],
        axis=robot.axis[moving],
        column=np.array([columns.tolist().index(c) for c in robot.column[moving]], np.int64),
        multiplier=robot.multiplier[moving],
        offset=robot.offset[moving],
        last=T,
        columns=columns,
    )


def _reach(chain: _Chain) -> float:
    """A length that makes radians and metres comparable: about the arm's mean segment times its joints."""
    lengths = np.linalg.norm(chain.pre[:, :3, 3], axis=1).sum() + np.linalg.norm(chain.last[:3, 3])
    return float(max(0.25 * lengths, 0.05))
