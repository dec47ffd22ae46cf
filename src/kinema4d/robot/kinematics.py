"""Forward kinematics: joint positions to link poses."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from kinema4d.robot import kinematics_kernels
from kinema4d.robot.model import Robot


def forward_kinematics(robot: Robot, q: Float[np.ndarray, "t dof"]) -> Float[np.ndarray, "t link 4 4"]:
    """``Ts_base_link`` of all links for every row of ``q`` (columns as ``robot.joint_names``)."""
    q = np.array(q, np.float64, ndmin=2)
    if q.ndim != 2 or q.shape[1] != robot.dof:
        raise ValueError(f"q must be [t, {robot.dof}] for joints {robot.joint_names}, got {list(q.shape)}")
    if not np.isfinite(q).all():
        raise ValueError(f"q has a non-finite value in row {int(np.argwhere(~np.isfinite(q))[0][0])}")
    Ts_base_link = np.empty((len(q), len(robot.link_names), 4, 4))
    kinematics_kernels.forward(
        robot.parent, robot.T_parent_joint, robot.kind, robot.axis, robot.column, robot.multiplier, robot.offset,
        q, Ts_base_link,
    )  # fmt: skip
    return Ts_base_link


def integrate_velocity(
    robot: Robot, q_start: Float[np.ndarray, " dof"], steps: Float[np.ndarray, "t dof"]
) -> tuple[Float[np.ndarray, "t dof"], np.ndarray]:
    """Positions after each joint displacement ``velocity * dt``, held at the limits; and, per step, whether
    no limit was hit."""
    q, free = np.empty_like(steps), np.ones(len(steps), bool)
    now = np.array(q_start, np.float64)
    for t, step in enumerate(steps):
        wanted = now + step
        now = np.clip(wanted, robot.lower, robot.upper)
        free[t] = np.allclose(now, wanted, atol=1e-9, rtol=0)
        q[t] = now
    return q, free
