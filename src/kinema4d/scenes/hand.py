"""What a gripper is, read off its geometry: where it grasps, which way it closes, how far it opens.

Any robot with a :class:`~kinema4d.robot.model.Gripper` works, because nothing here knows names or conventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import apply, invert
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot

TIP_BAND_M = 0.015
"""The pads: finger surface this close to the finger tips."""
GRASP_DEPTH_M = 0.012
"""The grasp point lies this far behind the finger tips."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Hand:
    """A two-finger gripper. The grasp frame has z out of the palm, y along the closing direction."""

    T_tool_grasp: Float[np.ndarray, "4 4"]
    """The grasp frame in the robot's tool link."""
    opening: float
    """Largest gap between the pads, metres."""
    tip: float
    """From the grasp point to the finger tips, metres."""
    depth: float
    """From the palm to the finger tips: how tall a thing fits in, metres."""
    finger: Float[np.ndarray, "3"]
    """Half sizes of the closed fingers at their tips in the grasp frame, metres."""
    palm: Float[np.ndarray, "2"]
    """Half sizes of the palm along x and y of the grasp frame, metres."""


def closedness_to_q(robot: Robot, q: Float[np.ndarray, "t dof"], closed: Float[np.ndarray, " t"]) -> None:
    """Set the finger joints in ``q`` for a closedness of 0 (open) to 1."""
    assert robot.gripper is not None
    for joint, a, b in zip(robot.gripper.joints, robot.gripper.open, robot.gripper.closed, strict=True):
        q[:, robot.joint_names.index(joint)] = a + (b - a) * closed


def measure_hand(robot: Robot) -> Hand:
    """Read the hand of ``robot`` off its meshes, open and closed."""
    if robot.gripper is None:
        raise ValueError(
            f"robot {robot.name!r} has no gripper; put one on its flange: {robot.source}+k4grip or {robot.source}+k4hand"
        )
    q = np.tile(robot.home, (2, 1))
    closedness_to_q(robot, q, np.array([0.0, 1.0]))
    Ts_base_link = forward_kinematics(robot, q)
    Ts_tool_link = invert(Ts_base_link[:, robot.link_index(robot.tool_link)])[:, None] @ Ts_base_link
    moved = [i for i in range(len(robot.link_names)) if np.abs(np.diff(Ts_tool_link[:, i], axis=0)).max() > 1e-4]
    clouds = {
        v: [apply(Ts_tool_link[s, v.link], v.mesh.vertices) for s in (0, 1)] for v in robot.visuals if v.link in moved
    }
    if not clouds:
        raise ValueError(f"the gripper of robot {robot.name!r} moves no visible finger: {robot.gripper}")
    # The shift of each visual between open and closed; fingers move apart, so the shifts differ most along y.
    shifts = np.array([(c[1] - c[0]).mean(axis=0) for c in clouds.values()])
    y = np.linalg.svd(shifts - shifts.mean(axis=0))[2][0] if len(shifts) > 1 else shifts[0] / np.linalg.norm(shifts[0])
    everything = np.concatenate([c[0] for c in clouds.values()])
    wrist = _wrist(robot, moved)
    origin = Ts_tool_link[0, wrist][:3, 3]
    z = everything.mean(axis=0) - origin
    z -= (z @ y) * y
    z /= np.linalg.norm(z)
    # The nearest axis of the tool link, where one is near: designers align them, averages of vertices do not.
    y, z = _snap(y), _snap(z)
    x = np.cross(y, z)
    R = np.stack([x, y, z], axis=1)
    opened, closed = (np.concatenate([c[s] for c in clouds.values()]) @ R for s in (0, 1))
    ends = closed[:, 2].max()
    band = opened[opened[:, 2] > opened[:, 2].max() - TIP_BAND_M]
    middle = (band[:, 1].max() + band[:, 1].min()) / 2
    gap = band[band[:, 1] > middle, 1].min() - band[band[:, 1] < middle, 1].max()
    if gap < 1e-3:
        raise ValueError(
            f"the gripper of robot {robot.name!r} does not open between two fingers that move (gap {gap:.4f} m): "
            "tabletop scenes need such a gripper"
        )
    pads = closed[closed[:, 2] > ends - TIP_BAND_M]
    centre = np.array([(pads[:, 0].max() + pads[:, 0].min()) / 2, middle, ends - GRASP_DEPTH_M])
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, R @ centre
    palm = [apply(Ts_tool_link[0, v.link], v.mesh.vertices) @ R for v in robot.visuals if v.link == wrist]
    body = np.concatenate(palm) if palm else opened
    front = body[:, 2].max() if palm else opened[:, 2].min()
    return Hand(
        T_tool_grasp=T,
        opening=float(gap),
        tip=GRASP_DEPTH_M,
        depth=float(max(ends - front, 0.02)),
        finger=np.array([np.ptp(pads[:, 0]) / 2, np.ptp(pads[:, 1]) / 2, TIP_BAND_M / 2]),
        palm=np.array([np.abs(body[:, 0] - centre[0]).max(), np.abs(body[:, 1] - centre[1]).max()]),
    )


@lru_cache(maxsize=16)
def hand_links(robot: Robot) -> tuple[str, ...]:
    """The palm and everything that the gripper moves."""
    assert robot.gripper is not None
    fingers = {robot.joint_names.index(name) for name in robot.gripper.joints}
    moved = [i for i in range(len(robot.link_names)) if _moved_by(robot, i, fingers)]
    return tuple(robot.link_names[i] for i in sorted({_wrist(robot, moved), *moved}))


def _moved_by(robot: Robot, link: int, columns: set[int]) -> bool:
    while link >= 0:
        if int(robot.column[link]) in columns:
            return True
        link = int(robot.parent[link])
    return False


def _wrist(robot: Robot, moved: list[int]) -> int:
    """The link that carries all fingers."""
    parents = {int(robot.parent[i]) for i in moved} - set(moved)
    if len(parents) != 1:
        raise ValueError(
            f"the fingers of robot {robot.name!r} hang on several links: {sorted(parents)}; one palm is needed"
        )
    return parents.pop()


def _snap(direction: np.ndarray) -> np.ndarray:
    axis = np.zeros(3)
    largest = int(np.abs(direction).argmax())
    axis[largest] = np.sign(direction[largest])
    return axis if direction @ axis > 0.97 else direction / np.linalg.norm(direction)
