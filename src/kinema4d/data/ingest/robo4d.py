"""The official Robo4D-200k layout: colour, pointmap and robot mask of each episode as mp4, and little else.

Its pointmaps are 8-bit video in 0..1 whose scale was thrown away, so they are not metric and the camera is guessed;
unless :mod:`kinema4d.data.export_robo4d` wrote the folder: then ``kinema4d_meta.jsonl`` brings both back, and
the robots, actions and texts. A folder may hold ``videos/`` itself, or ``sample_test/`` with them, or both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from jaxtyping import Bool, UInt8

from kinema4d.data import video
from kinema4d.data.ingest.guessed import guessed_camera
from kinema4d.geometry.camera import camera_from_dict
from kinema4d.types import Arm, Clip, Commands, Episode, Pointmap, Track, Trajectory

FPS = 24.0
"""Rate of the official videos."""
FRAMES = 49
"""Fewest frames of an episode; the official code skips shorter ones without a word."""
MASK_THRESHOLD = 16
"""A pixel is not black where the mean of its channels is above this."""
LISTS = ("train_shuffled.txt", "val_sample.txt")
"""Lists of videos, one path per line; the first names training, the second sample episodes."""
META, MASKS = "kinema4d_meta.jsonl", "kinema4d_masks"
"""Our additions: everything that the layout has no place for, and the exact robot masks."""
_AGAIN = "download it again or restore it"


def recordings(root: Path) -> Sequence[str]:
    """Names of all episodes: from the lists where there are any, else from ``videos/``."""
    names: list[str] = []
    for base in _bases(root):
        prefix = "" if base == root else f"{base.name}/"
        lists = [base / name for name in LISTS if (base / name).is_file()]
        if lists:
            lines = [line.strip() for file in lists for line in file.read_text(encoding="utf-8").splitlines()]
            found = [_name(line) for line in lines if line]
        else:
            found = [_name(str(file.relative_to(base))) for file in (base / "videos").rglob("*.mp4")]
        names += [prefix + name for name in found]
    return sorted(set(names))


def read(root: Path, recording: str) -> list[Episode]:
    """The one view of an episode."""
    base, name = _find(root, recording)
    who = f"recording {recording} of {root}"
    rgb = _video(base / "videos" / f"{name}.mp4", who)
    if len(rgb) < FRAMES:
        raise ValueError(
            f"{base / 'videos' / f'{name}.mp4'} has {len(rgb)} frames, an episode needs at least {FRAMES}; "
            "leave it out, or write it again from a longer recording"
        )
    codes = _video(base / "pointmap" / f"{name}.mp4", who)
    _same(base / "pointmap" / f"{name}.mp4", codes.shape[:3], base / "videos" / f"{name}.mp4", rgb.shape[:3])
    mask = _mask(base, name, who, rgb.shape[:3])
    meta = _meta(base, name)
    if meta is None:
        points, valid = codes.astype(np.float32) / np.float32(255), np.ones(codes.shape[:3], bool)
        clip = Clip(
            camera=guessed_camera(*rgb.shape[1:3]), rgb=rgb, pointmap=Pointmap(points=points, valid=valid), fps=FPS
        )
        told: dict[str, Any] = {
            "source": f"robo4d/{recording}",
            "group": recording,
            "camera_from": "guessed",
            "metric": False,
        }
    else:
        try:
            clip, told = _restored(meta, rgb, codes)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{base / META}, {name}: {type(error).__name__} {error}; {_AGAIN}") from None
    return [Episode(clip=clip, labels=mask.astype(np.uint8), label_names=("robot",), **told)]


def decode_points(
    codes: UInt8[np.ndarray, "t h w 3"], low: Sequence[float], high: Sequence[float], *, dense: bool
) -> Pointmap:
    """Metres of a pseudo-RGB pointmap whose smallest and largest x, y, z are known; black is nothing unless ``dense``."""
    step = (np.array(high, np.float64) - np.array(low, np.float64)) / 255
    points = (np.array(low, np.float64) + codes * step).astype(np.float32)
    valid = np.ones(codes.shape[:3], bool) if dense else not_black(codes)
    return Pointmap(points=points, valid=valid)


def not_black(images: UInt8[np.ndarray, "t h w 3"]) -> Bool[np.ndarray, "t h w"]:
    """What a video with a black background shows.

    H.264 leaves neither black nor edges alone. On 480x720 clips this rule gives masks with an IoU of 0.992 to 0.998 to
    the true ones at crf 25; the brightest channel, into which colour bleeds, 0.982; the official "any channel is not
    0" 0.88 to 0.97.
    """
    return images.sum(axis=-1, dtype=np.uint16) > 3 * MASK_THRESHOLD


# ---------------------------------------------------------------------- finding


def _bases(root: Path) -> list[Path]:
    bases = [base for base in (root, root / "sample_test") if (base / "videos").is_dir()]
    if not bases:
        raise ValueError(
            f"{root} is not in the Robo4D-200k layout: it has neither videos/ nor sample_test/videos/; "
            "unzip the release there, or pass the folder that holds videos/"
        )
    return bases


def _find(root: Path, recording: str) -> tuple[Path, str]:
    for base in reversed(_bases(root)):
        prefix = "" if base == root else f"{base.name}/"
        if recording.startswith(prefix):
            return base, recording.removeprefix(prefix)
    raise ValueError(f"{root} has no recording {recording!r}")


def _name(line: str) -> str:
    """``videos/<n>.mp4``, with or without a slash before it, to ``<n>``."""
    return line.replace("\\", "/").lstrip("/").removeprefix("videos/").removesuffix(".mp4")


def _video(file: Path, who: str) -> UInt8[np.ndarray, "t h w 3"]:
    if not file.is_file():
        raise ValueError(f"{file} of {who} is missing; {_AGAIN}")
    try:
        with av.open(str(file)) as container:
            count = container.streams.video[0].frames
    except (FFmpegError, IndexError) as error:
        raise ValueError(f"{file} of {who} is not a readable video: {error}; {_AGAIN}") from None
    images = video.read(file, count=count)
    if images.ndim != 4 or images.dtype != np.uint8:
        raise ValueError(f"{file} of {who} must be an 8-bit colour video, got {images.dtype} {list(images.shape)}")
    return images


def _mask(base: Path, name: str, who: str, shape: tuple[int, ...]) -> Bool[np.ndarray, "t h w"]:
    """Robot pixels: the official arrays, or our exact masks, or else what is not black in the mask video."""
    exact = base / "arm_masks_npy" / f"{name}.npy"
    ours = base / MASKS / f"{name}.mkv"
    if exact.is_file():
        try:
            array = np.load(exact, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{exact} of {who} is damaged: {error}; {_AGAIN}") from None
        if array.shape != (*shape, 1) or array.dtype != np.uint8:
            raise ValueError(
                f"{exact} of {who} holds {array.dtype} {list(array.shape)}, expected uint8 {[*shape, 1]}; "
                "make the masks again from these videos"
            )
        return array[..., 0] > 0
    if ours.is_file():
        return video.read(ours, count=shape[0]) > 0
    file = base / "mask_videos" / f"{name}.mp4"
    images = _video(file, who)
    _same(file, images.shape[:3], base / "videos" / f"{name}.mp4", shape)
    return not_black(images)


def _same(file: Path, found: tuple[int, ...], other: Path, wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ValueError(
            f"{file} has {found[0]} frames of {found[1]}x{found[2]}, but {other} {wanted[0]} of {wanted[1]}x{wanted[2]}; "
            "they are not of one episode: restore the one that is wrong"
        )


# ---------------------------------------------------------------------- our side file


def _meta(base: Path, name: str) -> dict[str, Any] | None:
    file = base / META
    if not file.is_file():
        return None
    start = f'{{"name": {json.dumps(name)},'
    with file.open(encoding="utf-8") as lines:
        line = next((line for line in lines if line.startswith(start)), None)
    if line is None:
        raise ValueError(f"{file} has no line for {name}; {_AGAIN}, or delete it to read the folder without metres")
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{file}: the line of {name} is not JSON: {error}; {_AGAIN}") from None


def _restored(meta: Mapping[str, Any], rgb: np.ndarray, codes: np.ndarray) -> tuple[Clip, dict[str, Any]]:
    pointmap = decode_points(codes, meta["min"], meta["max"], dense=bool(meta["dense"]))
    clip = Clip(camera=camera_from_dict(meta["camera"]), rgb=rgb, pointmap=pointmap, fps=float(meta["fps"]))
    commands = meta["commands"]
    told = {key: meta[key] for key in ("text", "outcome", "source", "task", "group", "view", "camera_from")}
    return clip, told | {
        "metric": bool(meta["metric"]),
        "facts": meta["facts"],
        "arms": tuple(_arm(arm) for arm in meta["arms"]),
        "tracks": tuple(
            Track(name=track["name"], Ts_world_object=np.array(track["Ts_world_object"], np.float64))
            for track in meta["tracks"]
        ),
        "commands": None
        if commands is None
        else Commands(
            values=np.array(commands["values"], np.float64).reshape(-1, len(commands["names"])),
            names=tuple(commands["names"]),
            fps=float(commands["fps"]),
            space=commands["space"],
            convention=commands["convention"],
        ),
    }


def _arm(arm: Mapping[str, Any]) -> Arm:
    joints = tuple(arm["joint_names"])
    return Arm(
        robot=arm["robot"],
        trajectory=Trajectory(
            q=np.array(arm["q"], np.float64).reshape(-1, len(joints)),
            joint_names=joints,
            fps=float(arm["fps"]),
            T_world_base=np.array(arm["T_world_base"], np.float64),
        ),
        link_names=tuple(arm["link_names"]),
        converged=np.array(arm["converged"], bool),
        residual_m=np.array(arm["residual_m"], np.float64),
        residual_rad=np.array(arm["residual_rad"], np.float64),
    )
