"""Save and load control signals, clips, rollouts and episodes as folders that appear whole or not at all.

A folder holds ``meta.json``, ``camera.json``, ``rgb.mp4``, the geometry, ``labels.mkv`` and
``trajectory.npz``. Geometry is 16-bit depth plus the camera where every point lies on the ray of its
own pixel (``depth.mkv``), and otherwise all three coordinates (``points.mkv``, ``valid.mkv``).
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from kinema4d.data import video
from kinema4d.files import whole_folder
from kinema4d.geometry.camera import camera_to_dict, load_camera, off_ray_px, rays
from kinema4d.types import Arm, Camera, Clip, Control, Episode, Pointmap, Rollout, Trajectory

FORMAT = "kinema4d clip"
"""What ``meta.json`` says it is."""
VERSION = 1
"""Layout version this module writes and reads."""
OFF_RAY_PX = 1e-3
"""Points further than this from the ray of their pixel are stored with their own x and y."""
DEPTH_STEPS = 65533
"""Steps between the nearest and the farthest depth; code 0 means "nothing here"."""
POINT_STEPS = 65535
"""Steps per axis where validity has its own file."""
SMALLEST_STEP_M = 1e-9
"""Step of a clip whose depth is constant."""

Storable = Control | Clip | Rollout | Episode
_KINDS = {"control": Control, "clip": Clip, "rollout": Rollout, "episode": Episode}
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_AGAIN = "save the clip again or restore the file"


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
        "provenance": _plain({"kinema4d_version": _version(), **provenance}, "provenance"),
    }
    if isinstance(thing, Rollout):
        meta["rollout"] = _plain(thing.provenance, "Rollout.provenance")
    if isinstance(thing, Episode):
        meta |= {"text": thing.text, "outcome": thing.outcome, "source": thing.source}
    with whole_folder(path, overwrite=overwrite, ours=_is_clip_folder) as folder:
        _write(parts, folder, meta)
    return Path(path)


def load(path: str | Path) -> Storable:
    """Read a clip folder that :func:`save` wrote; ``ValueError`` says what is wrong with any other."""
    folder = Path(path)
    meta = read_meta(folder)
    parts = _read(folder, meta)
    if meta["kind"] == "control":
        if parts.labels is None:
            raise ValueError(f"{folder / 'meta.json'}: a control signal needs 'labels'; {_AGAIN}")
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
        return Rollout(clip=clip, provenance=_get(folder, meta, "rollout", dict))
    if meta["kind"] == "episode":
        texts = {key: _get(folder, meta, key, str) for key in ("text", "outcome", "source")}
        return Episode(clip=clip, arms=parts.arms, labels=parts.labels, label_names=parts.label_names, **texts)
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
        meta = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}; {_AGAIN}") from None
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
        if _get(folder, meta, key, int) < 1:
            raise ValueError(f"{file}: '{key}' must be positive, got {meta[key]}")
    video.frame_rate(_get(folder, meta, "fps", float))
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
        meta["rgb"] = _entry(folder / "rgb.mp4")
    meta |= _write_pointmap(parts.camera.K, parts.pointmap, folder, fps)
    if parts.labels is not None:
        dtype, pixels = (np.uint8, "gray8") if len(parts.label_names) <= 255 else (np.uint16, "gray16le")
        video.write_ffv1(folder / "labels.mkv", (image.astype(dtype, copy=False) for image in parts.labels), fps)
        entry = {"pixel_format": pixels, "dtype": parts.labels.dtype.name, "names": list(parts.label_names)}
        meta["labels"] = {**_entry(folder / "labels.mkv"), **entry}
    if parts.arms:
        arrays = {}
        for number, arm in enumerate(parts.arms):
            arrays |= {f"arm{number}_{key}": getattr(arm.trajectory, key) for key in ("q", "T_world_base")}
            arrays |= {f"arm{number}_{key}": getattr(arm, key) for key in ("converged", "residual_m", "residual_rad")}
        np.savez(folder / "trajectory.npz", **arrays)
    meta["arms"] = [
        {
            "robot": arm.robot,
            "joint_names": list(arm.trajectory.joint_names),
            "link_names": list(arm.link_names),
            "fps": float(arm.trajectory.fps),
            "frames": len(arm.trajectory.q),
        }
        for arm in parts.arms
    ]
    (folder / "camera.json").write_text(json.dumps(camera_to_dict(parts.camera)) + "\n", encoding="utf-8")
    (folder / "meta.json").write_text(json.dumps(meta, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _write_pointmap(K: np.ndarray, pointmap: Pointmap, folder: Path, fps: Fraction) -> dict[str, Any]:
    points, valid = pointmap.points, pointmap.valid
    if off_ray_px(K, pointmap) <= OFF_RAY_PX:
        offset, scale = _affine_of(points[..., 2], valid, DEPTH_STEPS)
        codes = (
            _quantise(z, seen, offset, scale, DEPTH_STEPS) + seen  # code 0 is kept for "nothing here"
            for z, seen in zip(points[..., 2], valid, strict=True)
        )
        video.write_ffv1(folder / "depth.mkv", codes, fps)
        entry = {"pixel_format": "gray16le", "scale": scale, "offset": offset}
        return {"depth": {**_entry(folder / "depth.mkv"), **entry}}
    offsets, scales = np.transpose([_affine_of(points[..., axis], valid, POINT_STEPS) for axis in range(3)])
    codes = (
        _quantise(xyz, seen[..., None], offsets, scales, POINT_STEPS) for xyz, seen in zip(points, valid, strict=True)
    )
    video.write_ffv1(folder / "points.mkv", codes, fps)
    video.write_ffv1(folder / "valid.mkv", valid.view(np.uint8), fps)
    entry = {"pixel_format": "gbrp16le", "scale": scales.tolist(), "offset": offsets.tolist()}
    return {
        "points": {**_entry(folder / "points.mkv"), **entry},
        "valid": {**_entry(folder / "valid.mkv"), "pixel_format": "gray8"},
    }


def _affine_of(values: np.ndarray, valid: np.ndarray, steps: int) -> tuple[float, float]:
    """Offset and scale, metres, that spread the valid ``values`` [t,h,w] over ``steps`` steps."""
    low, high = np.inf, -np.inf
    for i, (image, seen) in enumerate(zip(values, valid, strict=True)):
        inside = image[seen]
        if inside.size:
            low, high = min(low, float(inside.min())), max(high, float(inside.max()))
            if not np.isfinite(inside.min() + inside.max()):
                raise ValueError(f"the pointmap has a non-finite point in frame {i}; mark such pixels as not valid")
    if low > high:
        low = high = 0.0
    return low, max((high - low) / steps, SMALLEST_STEP_M)


def _quantise(
    values: np.ndarray, seen: np.ndarray, offset: float | np.ndarray, scale: float | np.ndarray, steps: int
) -> np.ndarray:
    # What is not seen may be NaN, and compresses best as one constant: 0.
    above = np.subtract(np.where(seen, values, offset), offset, dtype=np.float64)
    return np.minimum(np.rint(above / scale), steps).astype(np.uint16)


def _entry(file: Path) -> dict[str, str]:
    return {"file": file.name, "sha256": _sha256(file)}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _plain(value: Any, name: str) -> Any:
    """``value`` as JSON has it; anything without a faithful JSON form is refused by name."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), name)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and np.isfinite(value)):
        return value
    raise ValueError(f"{name} must be text, a finite number, a list or a mapping of these; got {value!r:.80}")


def _version() -> str:
    try:
        return metadata.version("kinema4d")
    except metadata.PackageNotFoundError:
        return "not installed (run from a checkout)"


# ---------------------------------------------------------------------- reading


def _read(folder: Path, meta: dict[str, Any]) -> _Parts:
    count, height, width = meta["frames"], meta["height"], meta["width"]
    camera = load_camera(folder / "camera.json")
    if (camera.height, camera.width) != (height, width):
        raise ValueError(
            f"{folder / 'camera.json'} is {camera.height}x{camera.width} but meta.json says {height}x{width}; {_AGAIN}"
        )
    try:
        camera.poses(count)
    except ValueError as error:
        raise ValueError(f"{folder / 'camera.json'}: {error}") from None
    rgb = _frames(folder, meta, "rgb", "rgb.mp4", (np.uint8, 3)) if meta.get("rgb") is not None else None
    labels, names = None, ()
    if meta.get("labels") is not None:
        entry = _get(folder, meta, "labels", dict)
        names = _names(folder, entry, "names")
        kind = np.uint16 if entry.get("pixel_format") == "gray16le" else np.uint8
        labels = _frames(folder, meta, "labels", "labels.mkv", (kind,))
        if labels.max() > len(names):
            raise ValueError(f"{folder / 'labels.mkv'} has label {labels.max()} but meta.json names {len(names)}")
        dtype = entry.get("dtype")
        if dtype not in _LABEL_DTYPES:
            raise ValueError(f"{folder / 'meta.json'}: label 'dtype' must be one of {_LABEL_DTYPES}, got {dtype!r}")
        labels = labels.astype(dtype, copy=False)
    return _Parts(
        camera=camera,
        rgb=rgb,
        pointmap=_read_pointmap(folder, meta, camera.K),
        fps=float(meta["fps"]),
        labels=labels,
        label_names=names,
        arms=_read_arms(folder, meta),
    )


_LABEL_DTYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")


def _read_pointmap(folder: Path, meta: dict[str, Any], K: np.ndarray) -> Pointmap:
    if "depth" in meta:
        scale, offset = _affine(folder, meta, "depth", ())
        codes = _frames(folder, meta, "depth", "depth.mkv", (np.uint16,))
        valid, directions = codes > 0, rays(K, *codes.shape[1:])
        points = np.empty((*codes.shape, 3), np.float32)
        for i, code in enumerate(codes):
            depth = np.where(valid[i], offset + (code - 1.0) * scale, 0)
            np.multiply(depth[..., None], directions, out=points[i], casting="same_kind")
        return Pointmap(points=points, valid=valid)
    if "points" in meta:
        scale, offset = _affine(folder, meta, "points", (3,))
        codes = _frames(folder, meta, "points", "points.mkv", (np.uint16, 3))
        valid = _frames(folder, meta, "valid", "valid.mkv", (np.uint8,)).astype(bool)
        points = np.empty(codes.shape, np.float32)
        for i, code in enumerate(codes):
            points[i] = np.where(valid[i][..., None], offset + code * scale, 0)
        return Pointmap(points=points, valid=valid)
    raise ValueError(f"{folder / 'meta.json'} has neither 'depth' nor 'points'; {_AGAIN}")


def _affine(folder: Path, meta: dict[str, Any], key: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Scale and offset of the geometry in ``key``, metres."""
    entry = _get(folder, meta, key, dict)
    try:
        scale, offset = np.array(entry["scale"], np.float64), np.array(entry["offset"], np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / 'meta.json'}: '{key}' needs numbers 'scale' and 'offset': {error!r}") from None
    if scale.shape != shape or offset.shape != shape or not (scale > 0).all() or not np.isfinite([scale, offset]).all():
        raise ValueError(
            f"{folder / 'meta.json'}: '{key}' needs a positive 'scale' and a finite 'offset' "
            f"{'per axis' if shape else 'each'}, got {entry['scale']} and {entry['offset']}"
        )
    return scale, offset


def _frames(folder: Path, meta: dict[str, Any], key: str, name: str, pixel: tuple[Any, ...]) -> np.ndarray:
    """Decode one video and hold it against ``meta``; ``pixel`` is its dtype and channels, if several."""
    entry = _get(folder, meta, key, dict)
    images = video.read(folder / name, count=meta["frames"])
    shape = (meta["frames"], meta["height"], meta["width"], *pixel[1:])
    if images.shape != shape or images.dtype != pixel[0]:
        raise ValueError(
            f"{folder / name} holds {images.dtype} {list(images.shape)}, meta.json says "
            f"{np.dtype(pixel[0])} {list(shape)}; {_AGAIN}"
        )
    # Decoders conceal flipped bits instead of failing.
    if _sha256(folder / name) != entry.get("sha256"):
        raise ValueError(f"{folder / name} was changed after it was saved (its SHA-256 differs); {_AGAIN}")
    return images


def _read_arms(folder: Path, meta: dict[str, Any]) -> tuple[Arm, ...]:
    entries = _get(folder, meta, "arms", list)
    if not entries:
        return ()
    file = folder / "trajectory.npz"
    if not file.is_file():
        raise ValueError(f"{file} is missing: expected the motion of {len(entries)} arms; {_AGAIN}")
    try:
        with zipfile.ZipFile(file), np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error}; {_AGAIN}") from None
    return tuple(_read_arm(folder, entry, number, arrays) for number, entry in enumerate(entries))


def _read_arm(folder: Path, entry: Any, number: int, arrays: dict[str, np.ndarray]) -> Arm:
    file, prefix = folder / "trajectory.npz", f"arm{number}_"
    if not isinstance(entry, dict):
        raise ValueError(f"{folder / 'meta.json'}: each of 'arms' must be an object, got {entry!r:.60}")
    joints, count = _names(folder, entry, "joint_names"), _get(folder, entry, "frames", int)
    expected: dict[str, tuple[tuple[int, ...], str]] = {
        "q": ((count, len(joints)), "f"),
        "T_world_base": ((4, 4), "f"),
        "converged": ((count,), "b"),
        "residual_m": ((count,), "f"),
        "residual_rad": ((count,), "f"),
    }
    for name, (shape, kind) in expected.items():
        array = arrays.get(prefix + name)
        if array is None or array.shape != shape or array.dtype.kind != kind:
            found = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            allowed = f"{'flags' if kind == 'b' else 'floats'} {list(shape)}"
            raise ValueError(f"{file}: {prefix}{name} must be {allowed}, found {found}; {_AGAIN}")
        if kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{file}: {prefix}{name} has a non-finite value; {_AGAIN}")
    try:
        trajectory = Trajectory(
            q=arrays[prefix + "q"],
            joint_names=joints,
            fps=float(_get(folder, entry, "fps", float)),
            T_world_base=arrays[prefix + "T_world_base"],
        )
    except ValueError as error:
        raise ValueError(f"{file}, arm {number}: {error}") from None
    return Arm(
        robot=_get(folder, entry, "robot", str),
        trajectory=trajectory,
        link_names=_names(folder, entry, "link_names"),
        **{name: arrays[prefix + name] for name in ("converged", "residual_m", "residual_rad")},
    )


def _get(folder: Path, entry: dict[str, Any], key: str, kind: type) -> Any:
    value = entry.get(key)
    wrong = isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind)
    if wrong:
        raise ValueError(f"{folder / 'meta.json'}: '{key}' must be a {kind.__name__}, got {value!r:.60}; {_AGAIN}")
    return value


def _names(folder: Path, entry: dict[str, Any], key: str) -> tuple[str, ...]:
    names = _get(folder, entry, key, list)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{folder / 'meta.json'}: '{key}' must be a list of names, got {names!r:.60}")
    return tuple(names)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"it holds {text}, which is not a number JSON allows")


def _is_clip_folder(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and meta.get("format") == FORMAT
