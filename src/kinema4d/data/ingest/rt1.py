"""RT-1 (fractal20220817_data, RLDS, 3 Hz, Google's mobile manipulator).

Joints are not recorded: they come from inverse kinematics of ``base_pose_tool_reached``, the tool in the robot's base.
That base can drive; where it is told to, ``facts["base_moves"]`` says so, for the world here is the base's own frame.

Outcome: where people judged the episode (``aspects/has_aspects``), what they said (``aspects/success``). Otherwise a
reward above 0 at the last step, or a ``success`` that is set, is a success; and no reward is ``unknown``, because
episodes that nobody judged carry zeros too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data.ingest.guessed import guessed_camera
from kinema4d.data.ingest.parts import arms_of, decode_frames, numbers, without_depth
from kinema4d.data.ingest.rlds import RldsEpisode
from kinema4d.data.ingest.rlds_recordings import read_recording, rlds_recordings
from kinema4d.robot.actions import CONVENTIONS, Actions, drive
from kinema4d.robot.model import Robot
from kinema4d.types import Arm, Commands, Episode

FPS = 3.0
"""Steps per second."""
ROBOT = "google_robot"
"""Zoo robot."""
POSE = ("x", "y", "z", "qx", "qy", "qz", "qw")
"""Columns of ``base_pose_tool_reached``."""
ACTION = {
    "world_vector": ("x", "y", "z"),
    "rotation_delta": ("rx", "ry", "rz"),
    "gripper_closedness_action": ("gripper",),
}
"""Parts of the action that move the arm, and their columns; the gripper is relative, + closes."""
NEEDS = (
    "steps/is_first",
    "steps/observation/image",
    "steps/observation/base_pose_tool_reached",
    "steps/observation/gripper_closed",
    *(f"steps/action/{part}" for part in ACTION),
)
"""Features without which a data set is not RT-1."""
_ASPECTS = ("already_success", "feasible", "has_aspects", "success", "undesirable")
_ATTRIBUTES = ("collection_mode_name", "data_type_name", "env_name", "location_name", "task_family_name")
_WANTS = (
    "steps/observation/natural_language_instruction",
    "steps/reward",
    "steps/action/base_displacement_vector",
    "steps/action/base_displacement_vertical_rotation",
    *(f"aspects/{name}" for name in _ASPECTS),
    *(f"attributes/{name}" for name in _ATTRIBUTES),
)


def recordings(root: Path) -> Sequence[str]:
    """Names of all recordings, as ``dataset_info.json`` promises them."""
    return rlds_recordings(root, source="RT-1", needs=NEEDS)


def read(root: Path, recording: str) -> list[Episode]:
    """The episode of the robot's head camera."""
    found = read_recording(root, recording, source="RT-1", needs=NEEDS, wants=_WANTS)
    where = f"recording {recording} of {found.file}"
    steps = found.steps
    rgb = decode_frames(steps["observation/image"], f"{where}, image")
    pose = numbers(steps["observation/base_pose_tool_reached"], f"{where}, base_pose_tool_reached", POSE)
    closed = numbers(steps["observation/gripper_closed"], f"{where}, gripper_closed", ["gripper"])
    empty = np.linalg.norm(pose[:, 3:], axis=1) < 0.5
    if empty.any():
        raise ValueError(
            f"{where}: base_pose_tool_reached has no rotation in row {int(np.argmax(empty))} (its quaternion is "
            f"{pose[np.argmax(empty), 3:].tolist()}); leave this recording out"
        )
    arms, facts = arms_of(ROBOT, lambda robot: _follow(robot, pose, closed))
    parts = [numbers(steps[f"action/{part}"], f"{where}, {part}", names) for part, names in ACTION.items()]
    commands = Commands(
        values=np.hstack(parts),
        names=tuple(name for names in ACTION.values() for name in names),
        fps=FPS,
        space="ee_delta",
        convention="rt1",
    )
    moves = [np.abs(np.asarray(steps[n])).max() > 1e-6 for n in _base_commands(steps)]
    facts |= {name: value for name, value in found.metadata.items() if value != ""} | {"base_moves": bool(any(moves))}
    texts: Any = steps.get("observation/natural_language_instruction", [""])
    return [
        Episode(
            clip=without_depth(guessed_camera(*rgb.shape[1:3]), rgb, FPS),
            arms=arms,
            text=next((t.strip() for t in texts if t.strip()), ""),
            outcome=_outcome(found),
            source=f"rt1/{recording}",
            task=str(found.metadata.get("attributes/task_family_name", "")),
            group=f"rt1/{recording}",
            view="image",
            camera_from="guessed",
            commands=commands,
            facts=facts,
        )
    ]


def _follow(robot: Robot, pose: np.ndarray, closed: np.ndarray) -> Arm:
    # The convention's gripper is a change; the observed one is a position, 0 open to 1 closed, as in our own.
    rt1 = CONVENTIONS["rt1"]
    actions = Actions(
        space="ee_pose",
        values=np.hstack([pose, closed]),
        fps=FPS,
        rotation=rt1.pose_rotation,
        tool_link=rt1.tool_link,
    )
    return drive(robot, actions)


def _base_commands(steps: dict[str, np.ndarray | list]) -> list[str]:
    return [name for name in steps if name.startswith("action/base_displacement")]


def _outcome(found: RldsEpisode) -> str:
    said = found.metadata.get("aspects/success")
    if said is not None and found.metadata.get("aspects/has_aspects"):
        return "success" if said else "failure"
    reward = np.asarray(found.steps.get("reward", []))
    return "success" if said or (len(reward) and reward[-1] > 0) else "unknown"
