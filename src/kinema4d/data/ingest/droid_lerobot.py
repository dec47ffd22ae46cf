"""DROID as LeRobot ports it: what every LeRobot data set has, and what only DROID's columns tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.data.ingest import lerobot
from kinema4d.data.ingest.droid_parts import GRIPPER, JOINTS, arms, commands, view_camera
from kinema4d.data.ingest.lerobot_layout import Info, find_episode, read_info, read_rows
from kinema4d.data.ingest.parts import numbers
from kinema4d.types import Episode

JOINT, CLOSED = "observation.state.joint_position", "observation.state.gripper_position"
"""Measured joints and gripper; or both in ``observation.state``."""
VELOCITY, GRIP = "action.joint_velocity", "action.gripper_position"
"""What the controller was told."""
EXTRINSICS = "camera_extrinsics."
"""Followed by the view: xyz and extrinsic Euler angles of the camera in the robot's base."""
_TEXTS = ("language_instruction", "language_instruction_2", "language_instruction_3")


def recordings(root: Path) -> Sequence[str]:
    """Names of all episodes; ``ValueError`` where the data set is not DROID's."""
    _check(read_info(root))
    return lerobot.recordings(root)


def read(root: Path, recording: str) -> list[Episode]:
    """One episode per camera, with joints, commands and, where they are given, cameras."""
    info = read_info(root)
    _check(info)
    plain = lerobot.read(root, recording)
    columns = [c for c in (JOINT, CLOSED, "observation.state", VELOCITY, GRIP, *_TEXTS) if c in info.features]
    columns += [c for c in info.features if c.startswith(EXTRINSICS)]
    place = find_episode(info, int(recording.removeprefix("episode_")))
    where = f"recording {recording}, {place.data}"
    rows = read_rows(info, place, columns)
    if JOINT in rows and CLOSED in rows:
        q = numbers(rows[JOINT], f"{where}, {JOINT}", JOINTS)
        gripper = numbers(_flat(rows[CLOSED]), f"{where}, {CLOSED}", GRIPPER)
    else:
        state = numbers(rows["observation.state"], f"{where}, observation.state", (*JOINTS, *GRIPPER))
        q, gripper = state[:, :7], state[:, 7:]
    robots, facts = arms(q, gripper[:, 0], info.fps)
    told = None
    if VELOCITY in rows and GRIP in rows:
        velocity = numbers(rows[VELOCITY], f"{where}, {VELOCITY}", JOINTS)
        told = commands(velocity, numbers(_flat(rows[GRIP]), f"{where}, {GRIP}", GRIPPER))
    texts = list(dict.fromkeys(str(x).strip() for name in _TEXTS for x in _flat(rows.get(name, ()))))
    texts = [t for t in texts if t]
    return [_enriched(e, rows, robots, told, facts | ({"instructions": texts} if texts else {})) for e in plain]


def _check(info: Info) -> None:
    has = info.features.keys()
    if not {JOINT, CLOSED} <= has and not (
        "observation.state" in has and info.features["observation.state"]["shape"] == [8]
    ):
        raise ValueError(
            f"{info.root} is a LeRobot data set but not DROID: it has neither {JOINT} and {CLOSED} nor an observation.state "
            f"of 8 numbers; ingest it as 'lerobot'"
        )


def _enriched(
    episode: Episode, rows: Mapping[str, list[Any]], robots: Any, told: Any, facts: dict[str, Any]
) -> Episode:
    clip, origin = episode.clip, episode.camera_from
    poses = rows.get(EXTRINSICS + episode.view)
    if origin == "guessed":
        camera, origin = view_camera(*clip.rgb.shape[1:3], view=episode.view, extrinsics=_poses(poses))
        clip = replace(clip, camera=camera)
    source = f"droid/{episode.source.removeprefix('lerobot/')}"
    return replace(
        episode,
        clip=clip,
        arms=robots,
        text=episode.text or next(iter(facts.get("instructions", [])), ""),
        source=source,
        group=source,
        camera_from=origin,
        commands=told or episode.commands,
        facts={**{k: v for k, v in episode.facts.items() if k != "robot_missing"}, **facts},
    )


def _poses(cells: list[Any] | None) -> Float[np.ndarray, "t 6"] | None:
    """Camera poses; None where they are not six numbers each. Missing ones are zeros or NaN, so those are no error."""
    try:
        poses = np.asarray(cells, np.float64)
    except (TypeError, ValueError):
        return None
    return poses if poses.ndim == 2 and poses.shape[1] == 6 else None


def _flat(cells: Sequence[Any]) -> list[Any]:
    """One value per row, whether the table has it bare or as a list of one."""
    return [np.squeeze(cell).tolist() for cell in cells]
