"""Save and load control signals, clips, rollouts and episodes as folders that appear whole or not at all.

A folder holds ``meta.json`` with the hash of every other file, ``camera.json``, ``rgb.mp4``, the geometry,
``labels.mkv`` and ``trajectory.npz``; an episode also ``commands.npz``, an episode or a rollout ``tracks.npz``. Geometry is 16-bit depth
plus the camera where every point lies on the ray of its own pixel (``depth.mkv``), and otherwise all three
coordinates (``points.mkv``, ``valid.mkv``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from kinema4d.data import video
from kinema4d.data.meta_file import AGAIN, check_hash, entry, get, names, plain, read_video, refuse_constant, version
from kinema4d.data.motion_file import read_arms, read_commands, read_tracks, write_arms, write_commands, write_tracks
from kinema4d.data.pointmap_file import read_pointmap, write_pointmap
from kinema4d.files import whole_folder
from kinema4d.geometry.camera import camera_to_dict, load_camera
from kinema4d.types import Arm, Camera, Clip, Commands, Control, Episode, Pointmap, Rollout, Track

FORMAT = "kinema4d clip"
"""What ``meta.json`` says it is."""
VERSION = 1
"""Layout version this module writes and reads."""

Storable = Control | Clip | Rollout | Episode
_KINDS = {"control": Control, "clip": Clip, "rollout": Rollout, "episode": Episode}
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_EPISODE_TEXTS = ("text", "outcome", "source", "task", "group", "view", "camera_from")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parts:
    """What all four kinds have in common, as it lies on disk."""

    camera: Camera
    rgb: np.ndarray | None
    pointmap: Pointmap
    fps: float
    labels: np.ndarray | None = None
    label_names: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()


def save(
    thing: Storable, path: str | Path, *, provenance: Mapping[str, Any] = _NOTHING, overwrite: bool = False
) -> Path:
    """Write ``thing`` as a clip folder and return its path.

    ``provenance`` (config, command, seed) describes this run and lands in ``meta.json``; tuples come back
    as lists. An existing folder is refused; with ``overwrite`` it is replaced whole, if it is empty or a
    clip folder. Depth is rounded to 1/65533 of the clip's own depth range: 8 micrometres at most over 1 m.
    """
    kind = next((name for name, cls in _KINDS.items() if type(thing) is cls), None)
    if kind is None:
        raise ValueError(f"save takes a Control, Clip, Rollout or Episode, got {type(thing).__name__}")
    parts = _parts(thing)
    _check(parts)
    meta: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "frames": len(parts.pointmap.valid),
        "height": parts.camera.height,
        "width": parts.camera.width,
        "fps": float(parts.fps),
        "provenance": plain({"kinema4d_version": version(), **provenance}, "provenance"),
    }
    if isinstance(thing, Rollout):
        meta["rollout"] = plain(thing.provenance, "Rollout.provenance")
    if isinstance(thing, Episode):
        meta |= {key: getattr(thing, key) for key in _EPISODE_TEXTS}
        meta |= {"metric": thing.metric, "facts": plain(thing.facts, "Episode.facts")}
    with whole_folder(path, overwrite=overwrite, ours=_is_clip_folder) as folder:
        if isinstance(thing, Episode) and thing.commands is not None:
            meta["commands"] = write_commands(thing.commands, folder)
        if isinstance(thing, Episode | Rollout) and thing.tracks:
            meta["tracks"] = write_tracks(thing.tracks, folder)
        _write(parts, folder, meta)
    return Path(path)


def load(path: str | Path, *, frames: slice | None = None) -> Storable:
    """Read a clip folder that :func:`save` wrote, or a window of its ``frames``; ``ValueError`` says what is wrong
    with any other folder. Commands keep their own clock: of these a window holds what was told during it."""
    folder = Path(path)
    meta = read_meta(folder)
    window = _window(meta["frames"], frames)
    parts = _read(folder, meta, window)
    if meta["kind"] == "control":
        if parts.labels is None:
            raise ValueError(f"{folder / 'meta.json'}: a control signal needs 'labels'; {AGAIN}")
        return Control(
            camera=parts.camera,
            pointmap=parts.pointmap,
            link_ids=parts.labels.astype(np.uint16, copy=False),
            link_names=parts.label_names,
            arms=parts.arms,
            fps=parts.fps,
            rgb=parts.rgb,
        )
    if parts.rgb is None:
        raise ValueError(f"{folder / 'meta.json'}: only a control signal may lack 'rgb', this is a {meta['kind']}")
    clip = Clip(camera=parts.camera, rgb=parts.rgb, pointmap=parts.pointmap, fps=parts.fps)
    if meta["kind"] == "rollout":
        return Rollout(clip=clip, provenance=get(folder, meta, "rollout", dict), tracks=_tracks(folder, meta, window))
    if meta["kind"] == "episode":
        return _episode(folder, meta, parts, clip, window)
    return clip


def read_meta(path: str | Path) -> dict[str, Any]:
    """The ``meta.json`` of a clip folder, with its kind, sizes and provenance, checked but for the files."""
    folder = Path(path)
    if not folder.is_dir():
        state = "a file" if folder.exists() else "missing"
        raise ValueError(f"{folder} is {state}: expected a clip folder, one that holds meta.json")
    file = folder / "meta.json"
    if not file.is_file():
        raise ValueError(f"{folder} is not a kinema4d clip folder: it has no meta.json; pass the folder save() wrote")
    try:
        meta = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}; {AGAIN}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ValueError(f'{file} is not of a kinema4d clip: it must say "format": "{FORMAT}"')
    if meta.get("version") != VERSION:
        raise ValueError(
            f"{file} has format version {meta.get('version')!r}, this kinema4d reads {VERSION}; "
            "install the version that wrote it (see 'provenance')"
        )
    if meta.get("kind") not in _KINDS:
        raise ValueError(f"{file}: 'kind' must be one of {', '.join(_KINDS)}, got {meta.get('kind')!r}")
    for key in ("frames", "height", "width"):
        if get(folder, meta, key, int) < 1:
            raise ValueError(f"{file}: '{key}' must be positive, got {meta[key]}")
    video.frame_rate(get(folder, meta, "fps", float))
    return meta


# ---------------------------------------------------------------------- writing


def _parts(thing: Storable) -> _Parts:
    if isinstance(thing, Control):
        return _Parts(
            camera=thing.camera,
            rgb=thing.rgb,
            pointmap=thing.pointmap,
            fps=thing.fps,
            labels=thing.link_ids,
            label_names=thing.link_names,
            arms=thing.arms,
        )
    clip = thing if isinstance(thing, Clip) else thing.clip
    extra = {}
    if isinstance(thing, Episode):
        extra = {"labels": thing.labels, "label_names": thing.label_names, "arms": thing.arms}
    return _Parts(camera=clip.camera, rgb=clip.rgb, pointmap=clip.pointmap, fps=clip.fps, **extra)


def _check(parts: _Parts) -> None:
    """Refuse what could not be loaded again."""
    shape = parts.pointmap.valid.shape
    if len(shape) != 3 or 0 in shape:
        raise ValueError(f"a clip needs at least one frame and one pixel, got {list(shape)} (frames, height, width)")
    if shape[1:] != (parts.camera.height, parts.camera.width):
        raise ValueError(
            f"pointmap is {list(shape[1:])} but the camera is {parts.camera.height}x{parts.camera.width}; "
            "Camera.resized gives the camera of another pixel grid"
        )
    parts.camera.poses(shape[0])
    for name, array in {"rgb": parts.rgb, "points": parts.pointmap.points, "labels": parts.labels}.items():
        if array is not None and array.shape[:3] != shape:
            raise ValueError(f"{name} is {list(array.shape)} but the pointmap has {list(shape)} pixels")
    if parts.labels is not None:
        if parts.labels.dtype.kind not in "bui":
            raise ValueError(f"labels must be whole numbers, got {parts.labels.dtype}")
        low, high = int(parts.labels.min()), int(parts.labels.max())
        if low < 0 or high > len(parts.label_names) or high > 65535:
            raise ValueError(
                f"labels range from {low} to {high}, allowed are 0 to {len(parts.label_names)} (the number of label "
                "names) and at most 65535"
            )
    for number, arm in enumerate(parts.arms):
        for name in ("residual_m", "residual_rad"):
            if not np.isfinite(getattr(arm, name)).all():
                raise ValueError(f"arm {number} ({arm.robot}) has a non-finite {name}")


def _write(parts: _Parts, folder: Path, meta: dict[str, Any]) -> None:
    fps = video.frame_rate(parts.fps)
    if parts.rgb is not None:
        video.write_h264(folder / "rgb.mp4", parts.rgb, fps)
        meta["rgb"] = entry(folder / "rgb.mp4")
    meta |= write_pointmap(parts.camera.K, parts.pointmap, folder, fps)
    if parts.labels is not None:
        dtype, pixels = (np.uint8, "gray8") if len(parts.label_names) <= 255 else (np.uint16, "gray16le")
        video.write_ffv1(folder / "labels.mkv", (image.astype(dtype, copy=False) for image in parts.labels), fps)
        form = {"pixel_format": pixels, "dtype": parts.labels.dtype.name, "names": list(parts.label_names)}
        meta["labels"] = {**entry(folder / "labels.mkv"), **form}
    meta |= write_arms(parts.arms, folder)
    (folder / "camera.json").write_text(json.dumps(camera_to_dict(parts.camera)) + "\n", encoding="utf-8")
    meta["camera"] = entry(folder / "camera.json")
    (folder / "meta.json").write_text(json.dumps(meta, indent=2, allow_nan=False) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------- reading


def _window(count: int, frames: slice | None) -> slice | None:
    if frames is None:
        return None
    wanted = range(count)[frames]
    if not len(wanted) or wanted.step < 1:
        raise ValueError(f"frames must select at least one of the {count} frames, forwards; got {frames}")
    return slice(wanted.start, wanted.stop, wanted.step)


def _read(folder: Path, meta: dict[str, Any], window: slice | None) -> _Parts:
    count, height, width = meta["frames"], meta["height"], meta["width"]
    camera = load_camera(folder / "camera.json")
    if (camera.height, camera.width) != (height, width):
        raise ValueError(
            f"{folder / 'camera.json'} is {camera.height}x{camera.width} but meta.json says {height}x{width}; {AGAIN}"
        )
    try:
        camera.poses(count)
    except ValueError as error:
        raise ValueError(f"{folder / 'camera.json'}: {error}") from None
    if "camera" in meta:
        check_hash(folder / "camera.json", get(folder, meta, "camera", dict))
    rgb = read_video(folder, meta, "rgb", "rgb.mp4", (np.uint8, 3), window) if meta.get("rgb") is not None else None
    labels, label_names = None, ()
    if meta.get("labels") is not None:
        found = get(folder, meta, "labels", dict)
        label_names = names(folder, found, "names")
        kind = np.uint16 if found.get("pixel_format") == "gray16le" else np.uint8
        labels = read_video(folder, meta, "labels", "labels.mkv", (kind,), window)
        if labels.max() > len(label_names):
            raise ValueError(f"{folder / 'labels.mkv'} has label {labels.max()} but meta.json names {len(label_names)}")
        dtype = found.get("dtype")
        if dtype not in _LABEL_DTYPES:
            raise ValueError(f"{folder / 'meta.json'}: label 'dtype' must be one of {_LABEL_DTYPES}, got {dtype!r}")
        labels = labels.astype(dtype, copy=False)
    pointmap, arms, fps = read_pointmap(folder, meta, camera.K, window), read_arms(folder, meta), float(meta["fps"])
    if window is not None:
        if camera.moving:
            camera = replace(camera, T_world_camera=camera.T_world_camera[window])
        arms = tuple(_arm_window(folder, arm, count, window) for arm in arms)
        fps /= window.step
    return _Parts(camera=camera, rgb=rgb, pointmap=pointmap, fps=fps, labels=labels, label_names=label_names, arms=arms)


def _arm_window(folder: Path, arm: Arm, count: int, window: slice) -> Arm:
    if len(arm.converged) != count:
        raise ValueError(
            f"{folder}: the arm has {len(arm.converged)} states for {count} frames: load it without a window"
        )
    path = replace(arm.trajectory, q=arm.trajectory.q[window], fps=arm.trajectory.fps / window.step)
    per_frame = {key: getattr(arm, key)[window] for key in ("converged", "residual_m", "residual_rad")}
    return replace(arm, trajectory=path, **per_frame)


def _episode(folder: Path, meta: dict[str, Any], parts: _Parts, clip: Clip, window: slice | None) -> Episode:
    texts = {key: get(folder, meta, key, str) for key in _EPISODE_TEXTS if key in meta}
    commands = read_commands(folder, get(folder, meta, "commands", dict)) if "commands" in meta else None
    if window is not None:
        commands = commands and command_window(commands, window, float(meta["fps"]))
    try:
        return Episode(
            clip=clip,
            arms=parts.arms,
            labels=parts.labels,
            label_names=parts.label_names,
            metric=meta.get("metric", True) is not False,
            commands=commands,
            tracks=_tracks(folder, meta, window),
            facts=get(folder, {"facts": {}} | meta, "facts", dict),
            **texts,
        )
    except ValueError as error:
        raise ValueError(f"{folder / 'meta.json'}: {error}; {AGAIN}") from None


def _tracks(folder: Path, meta: dict[str, Any], window: slice | None) -> tuple[Track, ...]:
    if "tracks" not in meta:
        return ()
    tracks = read_tracks(folder, get(folder, meta, "tracks", dict), meta["frames"])
    return tracks if window is None else tuple(replace(t, Ts_world_object=t.Ts_world_object[window]) for t in tracks)


def command_window(commands: Commands, window: slice, fps: float) -> Commands:
    """From the command in force at the first frame to the first one at or after the last frame."""
    rate, last_frame = commands.fps / fps, range(window.stop)[window][-1]
    near = 1e-6  # 3 * 33.3 / 16.7 is 6, whatever the last bit says
    first, last = int(np.floor(window.start * rate + near)), int(np.ceil(last_frame * rate - near))
    return replace(commands, values=commands.values[first : last + 1])


_LABEL_DTYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")


def _is_clip_folder(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and meta.get("format") == FORMAT
