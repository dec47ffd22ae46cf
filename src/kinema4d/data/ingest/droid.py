"""DROID (15 Hz, Franka Panda with Robotiq 2F-85) in the three layouts that people have, told apart by their files.

RLDS (``dataset_info.json``), LeRobot v2.1 and v3 (``meta/info.json``), and JSON with videos (``annotation/`` and
``videos/``, as Ctrl-World samples it: every third row has a frame). Cameras are at best ``estimated``: DROID's own
extrinsics are wrong in many episodes (droid #15, #42, #64), and its intrinsics are in none of these layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.data.ingest.droid_parts import FPS, GRIPPER, JOINTS, arms, commands, outcome, view_camera
from kinema4d.data.ingest.parts import decode_frames, numbers, without_depth
from kinema4d.data.ingest.rlds_recordings import is_rlds, read_recording, rlds_recordings
from kinema4d.types import Commands, Episode

VIEWS = ("exterior_image_1_left", "exterior_image_2_left", "wrist_image_left")
"""Cameras of the RLDS layout."""
NEEDS = (
    "steps/is_first",
    "steps/observation/joint_position",
    "steps/observation/gripper_position",
    "steps/observation/exterior_image_1_left",
)
"""Features without which an RLDS data set is not DROID."""
_TEXTS = ("language_instruction", "language_instruction_2", "language_instruction_3")
_METADATA = ("file_path", "recording_folderpath")
_EXTRINSICS = {
    "exterior_image_1_left": "extrinsics_exterior_cam_1",
    "exterior_image_2_left": "extrinsics_exterior_cam_2",
    "wrist_image_left": "extrinsics_wrist_cam",
}
_WANTS = (
    *(f"steps/observation/{view}" for view in VIEWS),
    *(f"steps/{text}" for text in _TEXTS),
    "steps/action",
    "steps/action_dict/joint_velocity",
    "steps/action_dict/gripper_position",
    *(f"episode_metadata/{name}" for name in (*_METADATA, *_EXTRINSICS.values())),
)


def recordings(root: Path) -> Sequence[str]:
    """Names of all recordings of whichever layout is in ``root``."""
    other = _other_layout(Path(root))
    return other.recordings(Path(root)) if other else rlds_recordings(root, source="DROID", needs=NEEDS)


def read(root: Path, recording: str) -> list[Episode]:
    """One episode per camera."""
    other = _other_layout(Path(root))
    return other.read(Path(root), recording) if other else _read_rlds(Path(root), recording)


def _other_layout(root: Path) -> Any:
    """The module that reads the layout in ``root``; None for RLDS, which is read here."""
    if (root / "meta" / "info.json").is_file():
        from kinema4d.data.ingest import droid_lerobot

        return droid_lerobot
    if (root / "annotation").is_dir() and (root / "videos").is_dir():
        from kinema4d.data.ingest import droid_json

        return droid_json
    if is_rlds(root):
        return None
    raise ValueError(
        f"{root} is not DROID in a known layout: expected dataset_info.json (RLDS), meta/info.json (LeRobot), or the "
        "folders annotation and videos (JSON and mp4)"
    )


def _read_rlds(root: Path, recording: str) -> list[Episode]:
    found = read_recording(root, recording, source="DROID", needs=NEEDS, wants=_WANTS)
    where, steps = f"recording {recording} of {found.file}", found.steps
    q = numbers(steps["observation/joint_position"], f"{where}, observation/joint_position", JOINTS)
    gripper = numbers(steps["observation/gripper_position"], f"{where}, observation/gripper_position", GRIPPER)
    robots, facts = arms(q, gripper[:, 0], FPS)
    texts = [t for name in _TEXTS if (t := next((str(x).strip() for x in steps.get(name, ()) if str(x).strip()), ""))]
    paths = {name: str(found.metadata.get(f"episode_metadata/{name}", "")) for name in _METADATA}
    facts |= {name: path for name, path in paths.items() if path} | ({"instructions": texts} if texts else {})
    told = _commands(steps, where)
    episodes = []
    for view in VIEWS:
        if f"observation/{view}" not in steps:
            continue
        rgb = decode_frames(steps[f"observation/{view}"], f"{where}, {view}")
        extrinsics = found.metadata.get(f"episode_metadata/{_EXTRINSICS[view]}")
        camera, origin = view_camera(*rgb.shape[1:3], view=view, extrinsics=_pose(extrinsics))
        episodes.append(
            Episode(
                clip=without_depth(camera, rgb, FPS),
                arms=robots,
                text=texts[0] if texts else "",
                outcome=outcome(*paths.values()),
                source=f"droid/{recording}",
                group=f"droid/{recording}",
                view=view,
                camera_from=origin,
                commands=told,
                facts=facts,
            )
        )
    return episodes


def _pose(extrinsics: Any) -> Float[np.ndarray, "1 6"] | None:
    return np.asarray(extrinsics, np.float64)[None] if np.shape(extrinsics) == (6,) else None


def _commands(steps: dict[str, Any], where: str) -> Commands | None:
    """Joint velocities where the data set has them: what ``action`` alone means differs between versions."""
    if "action_dict/joint_velocity" in steps and "action_dict/gripper_position" in steps:
        velocity = numbers(steps["action_dict/joint_velocity"], f"{where}, action_dict/joint_velocity", JOINTS)
        closed = numbers(steps["action_dict/gripper_position"], f"{where}, action_dict/gripper_position", GRIPPER)
        return commands(velocity, closed)
    if "action" not in steps:
        return None
    names = tuple(f"action_{i}" for i in range(np.shape(steps["action"])[1]))
    return Commands(values=numbers(steps["action"], f"{where}, action", names), names=names, fps=FPS)
