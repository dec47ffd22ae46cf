"""Put a hand on an arm: two robots become one tree, so that any flange can carry any gripper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from kinema4d.robot.model import Robot, Visual


def attach(
    arm: Robot, hand: Robot, *, link: str | None = None, T_link_hand: Float[np.ndarray, "4 4"] | None = None
) -> Robot:
    """``arm`` with ``hand`` fixed to its ``link`` (default: its tool). The hand's links and joints are named
    ``hand/...``; its tool link and gripper become those of the whole."""
    if arm.gripper is not None:
        raise ValueError(f"robot {arm.name!r} has a gripper already ({', '.join(arm.gripper.joints)})")
    at, links, dof = arm.link_index(link or arm.tool_link), len(arm.link_names), arm.dof
    T_parent_joint = hand.T_parent_joint.copy()
    T_parent_joint[0] = np.eye(4) if T_link_hand is None else T_link_hand
    parent = np.where(hand.parent < 0, at, hand.parent + links).astype(np.int32)
    column = np.where(hand.column < 0, -1, hand.column + dof).astype(np.int32)
    names = [f"hand/{name}" for name in hand.joint_names]
    gripper = hand.gripper and replace(hand.gripper, joints=tuple(f"hand/{name}" for name in hand.gripper.joints))

    def both(field: str) -> np.ndarray:
        return np.concatenate([getattr(arm, field), getattr(hand, field)])

    return replace(
        arm,
        name=f"{arm.name}+{hand.name}",
        source=f"{arm.source}+{hand.source}",
        link_names=(*arm.link_names, *(f"hand/{name}" for name in hand.link_names)),
        joint_names=(*arm.joint_names, *names),
        parent=np.concatenate([arm.parent, parent]),
        T_parent_joint=np.concatenate([arm.T_parent_joint, T_parent_joint]),
        column=np.concatenate([arm.column, column]),
        visuals=(*arm.visuals, *(Visual(link=v.link + links, mesh=v.mesh) for v in hand.visuals)),
        tool_link=f"hand/{hand.tool_link}",
        gripper=gripper,
        **{f: both(f) for f in ("lower", "upper", "velocity", "kind", "axis", "multiplier", "offset", "home")},
    )
