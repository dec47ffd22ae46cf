"""The motion of an object as a folder that appears whole or not at all: arrays, a PLY per frame, a film, and the energy over time."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.files import whole_folder
from kinema4d.geometry.deforming import ObjectMotion

KIND, VERSION = "object-motion", 1
"""What ``meta.json`` says it is, and the layout this module writes and reads."""
_MESH = {"faces": "faces", "vertices": "rest", "q": "rest_q"}
_MOTION = ("vertices", "q", "place", "turn", "kinetic", "potential", "work", "momentum", "penetration", "force_at", "force")  # fmt: skip
_SLIDERS = {"reach": "reach", "shapes": "sliders"}
_OBSTACLE = {"vertices": "obstacle", "faces": "obstacle_faces"}
"""Only of a motion that has some: folders without them are as they always were."""
_AGAIN = "simulate again, or restore the file"


def save_motion(
    motion: ObjectMotion, folder: str | Path, *, meshes: bool = True, video: bool = True, overwrite: bool = False
) -> Path:
    """Write a folder and return its path. ``meshes`` and ``video`` are for people and other programs: reading does without. An existing
    folder is refused; with ``overwrite`` it is replaced whole, if it is empty or one of these."""
    from kinema4d.geometry.film import write_film
    from kinema4d.geometry.ledger import ledger_svg

    with whole_folder(folder, overwrite=overwrite, ours=is_motion_folder) as part:
        np.savez(part / "mesh.npz", **{key: getattr(motion, name) for key, name in _MESH.items()})
        np.savez(part / "motion.npz", **{name: getattr(motion, name) for name in _MOTION})
        np.savez(part / "sliders.npz", **{key: getattr(motion, name) for key, name in _SLIDERS.items()})
        if len(motion.obstacle_faces):
            np.savez(part / "obstacles.npz", **{key: getattr(motion, name) for key, name in _OBSTACLE.items()})
        (part / "energy.svg").write_text(ledger_svg(motion), encoding="utf-8")
        if meshes:
            (part / "meshes").mkdir()
            for frame, vertices in enumerate(motion.vertices):
                (part / "meshes" / f"{frame:05d}.ply").write_bytes(ply(vertices, motion.faces))
            if len(motion.obstacle_faces):
                (part / "obstacles.ply").write_bytes(ply(motion.obstacle, motion.obstacle_faces))
        if video:
            write_film(motion, part / "video.mp4")
        files = sorted(file for file in part.rglob("*") if file.is_file())
        meta = {
            "kind": KIND,
            "version": VERSION,
            "frames": len(motion),
            "step": float(motion.step),
            "stopped": motion.stopped,
            "flags": list(motion.flags),
            "about": dict(motion.about),
            "sha256": {file.relative_to(part).as_posix(): _hash(file) for file in files},
        }
        (part / "meta.json").write_text(json.dumps(meta, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return Path(folder)


def load_motion(folder: str | Path) -> ObjectMotion:
    """Read a folder that :func:`save_motion` wrote; ``ValueError`` says what is wrong with any other."""
    folder = Path(folder)
    meta = _meta(folder)
    for name, known in meta["sha256"].items():
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{file} is missing; {_AGAIN}")
        if _hash(file) != known:
            raise ValueError(f"{file} was changed after it was written (its SHA-256 differs); {_AGAIN}")
    arrays: dict[str, Any] = _arrays(folder / "mesh.npz", _MESH)
    arrays |= _arrays(folder / "motion.npz", {name: name for name in _MOTION})
    arrays |= _arrays(folder / "sliders.npz", _SLIDERS)
    if "obstacles.npz" in meta["sha256"]:
        arrays |= _arrays(folder / "obstacles.npz", _OBSTACLE)
    if len(arrays["vertices"]) != meta["frames"]:
        raise ValueError(f"{folder}: meta.json says {meta['frames']} frames, motion.npz has {len(arrays['vertices'])}; {_AGAIN}")  # fmt: skip
    said = {key: meta[key] for key in ("step", "stopped", "about")}
    try:
        return ObjectMotion(**arrays, **said, flags=tuple(meta["flags"]))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}; {_AGAIN}") from None


def is_motion_folder(folder: str | Path) -> bool:
    """Whether a folder says that it is one of these."""
    try:
        meta = json.loads((Path(folder) / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and meta.get("kind") == KIND


def ply(vertices: np.ndarray, faces: np.ndarray) -> bytes:
    """A mesh [v,3] [f,3] as a binary PLY file."""
    header = (
        "ply\nformat binary_little_endian 1.0\ncomment metres, z up\n"
        f"element vertex {len(vertices)}\nproperty float x\nproperty float y\nproperty float z\n"
        f"element face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    )
    rows = np.zeros(len(faces), np.dtype([("count", "u1"), ("at", "<i4", 3)]))
    rows["count"], rows["at"] = 3, faces
    return header.encode() + np.ascontiguousarray(vertices, "<f4").tobytes() + rows.tobytes()


def _meta(folder: Path) -> dict[str, Any]:
    file = folder / "meta.json"
    if not file.is_file():
        raise ValueError(f"{folder} is not the motion of an object: it has no meta.json; pass the folder that was written")  # fmt: skip
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}; {_AGAIN}") from None
    if not isinstance(meta, dict) or meta.get("kind") != KIND:
        raise ValueError(f'{file} is not of the motion of an object: it must say "kind": "{KIND}"')
    if meta.get("version") != VERSION:
        raise ValueError(f"{file} has version {meta.get('version')!r}, this kinema4d reads {VERSION}")
    kinds = {"frames": int, "step": float, "stopped": str | None, "flags": list, "about": dict, "sha256": dict}
    for key, kind in kinds.items():
        if key not in meta or not isinstance(meta[key], kind):
            raise ValueError(f"{file}: '{key}' must be a {getattr(kind, '__name__', kind)}, got {meta.get(key)!r:.60}; {_AGAIN}")  # fmt: skip
    if lost := {"mesh.npz", "motion.npz", "sliders.npz"} - set(meta["sha256"]):
        raise ValueError(f"{file}: 'sha256' lacks {', '.join(sorted(lost))}; {_AGAIN}")
    return meta


def _arrays(file: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    """Arrays of a file under the names that :class:`ObjectMotion` has for them."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[key] for key, name in names.items()}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error}; {_AGAIN}") from None


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
