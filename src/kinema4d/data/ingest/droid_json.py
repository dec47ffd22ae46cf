"""DROID as JSON and mp4: ``annotation/<split>/<n>.json`` with rows at 15 Hz, ``videos/<split>/<n>/<view>.mp4`` at 5 Hz.

Frame t belongs to row 3 t. The videos are squashed from 320x180 to 320x192. Cameras that were estimated from the
footage are in ``calib/*.json``; each names its episode and view.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import UInt8

from kinema4d.data import video
from kinema4d.data.ingest.droid_parts import FPS, GRIPPER, JOINTS, arms, commands, view_camera
from kinema4d.data.ingest.parts import numbers, without_depth
from kinema4d.geometry.camera import load_camera
from kinema4d.types import Camera, Episode

ROWS_PER_FRAME = 3
"""A frame for every third row."""
VIEWS = ("exterior_1_left", "exterior_2_left", "wrist_left")
"""Cameras, in the order of the videos."""
OUTCOMES = {"1": "success", "0": "failure"}
"""By the annotation's ``success``."""
_ROWS = {
    "observation.state.joint_position": JOINTS,
    "observation.state.gripper_position": GRIPPER,
    "action.joint_velocity": JOINTS,
    "action.gripper_position": GRIPPER,
}
_NEEDS = (*_ROWS, "videos", "video_length", "raw_length")


def recordings(root: Path) -> Sequence[str]:
    """Names such as ``train/4``: all annotation files."""
    files = [f.relative_to(root / "annotation").with_suffix("") for f in (root / "annotation").rglob("*.json")]
    if not files:
        raise ValueError(f"{root / 'annotation'} holds no .json file; expected annotation/train/0.json and so on")
    numbered = sorted(files, key=lambda f: (f.parent.parts, not f.name.isdigit(), f.name.zfill(9)))
    return [f.as_posix() for f in numbered]


def read(root: Path, recording: str) -> list[Episode]:
    """One episode per video of a recording."""
    file = _inside(root / "annotation", f"{recording}.json", recording)
    about = _annotation(file, recording)
    where = f"recording {recording}, {file}"
    frames, length = about["video_length"], about["raw_length"]
    if frames != math.ceil(length / ROWS_PER_FRAME):
        raise ValueError(
            f"{where}: {length} rows need {math.ceil(length / ROWS_PER_FRAME)} frames (one for every third row), but "
            f"video_length is {frames}; download the recording again"
        )
    rows = {key: numbers(about[key], f"{where}, {key}", names, length) for key, names in _ROWS.items()}
    q = rows["observation.state.joint_position"][::ROWS_PER_FRAME]
    gripper = rows["observation.state.gripper_position"][::ROWS_PER_FRAME, 0]
    fps = FPS / ROWS_PER_FRAME
    robots, facts = arms(q, gripper, fps)
    told = commands(rows["action.joint_velocity"], rows["action.gripper_position"])
    texts = [t.strip() for t in about.get("texts", []) if isinstance(t, str) and t.strip()]
    calibrations = _calibrations(root, recording)
    episodes = []
    for view, path in enumerate(_videos(about, where)):
        name = VIEWS[view] if view < len(VIEWS) else str(view)
        rgb = _frames(_inside(root, path, recording), frames, recording)
        camera, origin = calibrations.get(view) or view_camera(*rgb.shape[1:3], view=name, extrinsics=None)
        if (camera.height, camera.width) != rgb.shape[1:3]:
            raise ValueError(
                f"recording {recording}, view {view}: the calibration in {root / 'calib'} is for {camera.height}x{camera.width}, "
                f"the video is {rgb.shape[1]}x{rgb.shape[2]}; calibrate again or remove it"
            )
        episodes.append(
            Episode(
                clip=without_depth(camera, rgb, fps),
                arms=robots,
                text=texts[0] if texts else "",
                outcome=OUTCOMES.get(str(about.get("success")), "unknown"),
                source=f"droid/{recording}",
                group=f"droid/{recording}",
                view=name,
                camera_from=origin,
                commands=told,
                facts=facts | ({"instructions": texts} if texts else {}),
            )
        )
    return episodes


def _annotation(file: Path, recording: str) -> dict[str, Any]:
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"recording {recording}: cannot read {file}: {error.strerror}; download it") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"recording {recording}: {file} is not JSON: {error}; download it again") from None
    lacking = [key for key in _NEEDS if key not in about] if isinstance(about, dict) else list(_NEEDS)
    if lacking:
        raise ValueError(f"recording {recording}: {file} is of an unknown schema: it lacks {', '.join(lacking)}")
    for key in ("video_length", "raw_length"):
        if not isinstance(about[key], int) or about[key] < 1:
            raise ValueError(f"recording {recording}: {file}: {key} must be a positive number, got {about[key]!r:.60}")
    return about


def _videos(about: dict[str, Any], where: str) -> list[str]:
    try:
        return [str(entry["video_path"]) for entry in about["videos"]]
    except (TypeError, KeyError):
        raise ValueError(f"{where}: 'videos' must be a list of {{video_path}}, got {about['videos']!r:.80}") from None


def _frames(path: Path, count: int, recording: str) -> UInt8[np.ndarray, "t h w 3"]:
    try:
        return video.read(path, count=count)
    except ValueError as error:
        raise ValueError(f"recording {recording}: {error}; download the video again") from None


def _inside(folder: Path, path: str, recording: str) -> Path:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"recording {recording}: {path!r} does not lie in {folder}; give a path below it")
    return folder / path


def _calibrations(root: Path, recording: str) -> dict[int, tuple[Camera, str]]:
    """Estimated cameras of a recording by view."""
    found = {}
    for file in sorted((root / "calib").glob("*.json")):
        try:
            about = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} is not readable as JSON: {error}; repair or remove it") from None
        if isinstance(about, dict) and about.get("episode") == recording and isinstance(about.get("view"), int):
            found[about["view"]] = load_camera(file), "estimated"
    return found
