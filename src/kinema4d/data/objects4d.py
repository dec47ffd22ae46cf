"""A data set of objects in 4D: meshes of one topology each, in many poses and in free motion.

::

    objects4d/
      manifest.json   format, version, recipe, objects: [{id, kind, category, split}]
      <id>/
        object.json   id, kind, category, split
        shape.npz     vertices [v,3] float64 at rest in metres, faces [f,3] int64
        poses.npz     poses [p,v,3] float32 in metres, in any order
        motion.npz    vertices [n,v,3] float32: all free motions under gravity, one after the other; lengths [m] int64, the frames
                      of each; step, seconds. A motion ends where a joint comes to its limit, so they differ in length, none is
                      padded, and an object whose joints are at their ends within 0.3 s has none.
        truth.json    what only judges may read: freedom, material, gravity, the start of each motion. Training never opens it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32, Float64, Int64

from kinema4d.files import whole_folder

FORMAT, VERSION = "objects4d", 1
"""What ``manifest.json`` says it is."""
CATEGORIES = ("articulated", "elastic", "cloth", "rope", "rigid", "mixed", "real")
"""What an object can be."""
SPLITS = ("train", "val", "test-instance", "test-category")
"""New instances of known kinds are in ``test-instance``, whole kinds that nothing learns from in ``test-category``."""
FILES = ("object.json", "shape.npz", "poses.npz", "motion.npz")
"""That a reader needs; ``truth.json`` may be absent."""


@dataclass(frozen=True, kw_only=True)
class Object4D:
    """One object; its arrays are read when they are asked for."""

    id: str
    """Kind and seed."""
    kind: str
    """Such as ``door``."""
    category: str
    """One of ``CATEGORIES``."""
    split: str
    """One of ``SPLITS``."""
    folder: Path
    """Where its files are."""

    def shape(self) -> tuple[Float64[np.ndarray, "v 3"], Int64[np.ndarray, "f 3"]]:
        """Vertices at rest, metres, and triangles."""
        file = self.folder / "shape.npz"
        found = _arrays(file, {"vertices": (np.float64, 2), "faces": (np.int64, 2)})
        vertices, faces = found["vertices"], found["faces"]
        if vertices.shape[1:] != (3,) or faces.shape[1:] != (3,):
            raise ValueError(f"{file} has vertices {vertices.shape} and faces {faces.shape}; want [v,3] and [f,3]")
        if len(faces) and not (faces.min() >= 0 and faces.max() < len(vertices)):
            raise ValueError(
                f"{file} has faces of vertices {faces.min()} to {faces.max()}, and {len(vertices)} vertices"
            )
        return vertices, faces

    def poses(self) -> Float32[np.ndarray, "p v 3"]:
        """Vertices in many poses, metres."""
        poses = _arrays(self.folder / "poses.npz", {"poses": (np.float32, 3)})["poses"]
        self._same(poses, "poses.npz")
        return poses

    def motion(self) -> tuple[list[Float32[np.ndarray, "t v 3"]], float]:
        """Free motions under gravity, metres, each as long as it lasted; and the seconds from frame to frame."""
        file = self.folder / "motion.npz"
        found = _arrays(file, {"vertices": (np.float32, 3), "lengths": (np.int64, 1), "step": (np.float64, 0)})
        lengths, step = found["lengths"], float(found["step"])
        self._same(found["vertices"], "motion.npz")
        if lengths.sum() != len(found["vertices"]) or (lengths < 1).any() or step <= 0:
            raise ValueError(f"{file} has {len(found['vertices'])} frames, lengths {lengths.tolist()} and step {step}; they do not fit")  # fmt: skip
        return np.split(found["vertices"], np.cumsum(lengths)[:-1]) if len(lengths) else [], step

    def truth(self) -> dict[str, Any]:
        """For judges, never for training."""
        return _json(self.folder / "truth.json")

    def _same(self, vertices: np.ndarray, name: str) -> None:
        count = len(self.shape()[0])
        if vertices.shape[1:] != (count, 3):
            raise ValueError(
                f"{self.folder / name} has meshes of shape {vertices.shape[1:]}, its shape.npz has {count} vertices"
            )


def read_objects(folder: str | Path, split: str | None = None) -> list[Object4D]:
    """The objects of a data set, or of one split of it, in the order of the manifest."""
    root = Path(folder)
    if split is not None and split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known are {', '.join(SPLITS)}")
    out = []
    for row in read_manifest(root)["objects"]:
        one = root / str(row.get("id") if isinstance(row, dict) else row)
        if row != read_row(one):
            raise ValueError(f"{one / 'object.json'} is not what manifest.json lists: {row}; generate the set again")
        out.append(Object4D(**row, folder=one))
    return [o for o in out if split is None or o.split == split]


def read_manifest(root: Path) -> dict[str, Any]:
    """``manifest.json``, or why it is none."""
    file = root / "manifest.json"
    if not file.is_file():
        raise ValueError(
            f"{root} is no data set of objects: it has no manifest.json; make one with 'kinema4d objects generate'"
        )
    content = _json(file)
    if content.get("format") != FORMAT or not isinstance(content.get("objects"), list):
        raise ValueError(f'{file} is not of a data set of objects: it must say "format": "{FORMAT}" and list objects')
    if content.get("version") != VERSION:
        raise ValueError(f"{file} has version {content.get('version')!r}, this kinema4d reads {VERSION}")
    return content


def read_row(folder: Path) -> dict[str, str]:
    """``object.json`` of an object whose files are all there."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is no whole object: {', '.join(missing)} missing")
    row = _json(folder / "object.json")
    if sorted(row) != ["category", "id", "kind", "split"] or row["id"] != folder.name:
        raise ValueError(
            f"{folder / 'object.json'} must hold id (that of the folder), kind, category and split, has {row}"
        )
    for key, known in {"category": CATEGORIES, "split": SPLITS}.items():
        if row[key] not in known:
            raise ValueError(f"{folder / 'object.json'} has {key} {row[key]!r}; known are {', '.join(known)}")
    return row


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """What is written of an object."""

    vertices: Float64[np.ndarray, "v 3"]
    """At rest, metres."""
    faces: Int64[np.ndarray, "f 3"]
    """Triangles."""
    poses: Float64[np.ndarray, "p v 3"]
    """Metres."""
    motions: tuple[Float64[np.ndarray, "_ v 3"], ...]
    """Free motions, metres."""
    step: float
    """Seconds from frame to frame."""
    truth: dict[str, Any]
    """For judges."""


def write_object(root: Path, row: dict[str, str], content: Content) -> None:
    """A folder that appears whole; one that is there already is replaced."""
    frames = np.concatenate([np.zeros((0, *content.vertices.shape)), *content.motions])
    for name, array in {"vertices": content.vertices, "poses": content.poses, "motions": frames}.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{row['id']}: its {name} have values that are no numbers")
    with whole_folder(root / row["id"], overwrite=True, ours=lambda f: (f / "object.json").is_file()) as folder:
        np.savez_compressed(folder / "shape.npz", vertices=content.vertices, faces=content.faces)
        np.savez_compressed(folder / "poses.npz", poses=content.poses.astype(np.float32))
        lengths = np.array([len(m) for m in content.motions], np.int64)
        np.savez_compressed(
            folder / "motion.npz", vertices=frames.astype(np.float32), lengths=lengths, step=content.step
        )
        for name, value in {"object.json": row, "truth.json": content.truth}.items():
            (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _arrays(file: Path, want: dict[str, tuple[Any, int]]) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as held:
            found = {name: held[name] for name in want if name in held.files}
    except FileNotFoundError:
        raise ValueError(f"{file} is missing") from None
    except (OSError, ValueError, BadZipFile) as error:
        raise ValueError(f"{file} is not readable: {error}") from None
    for name, (dtype, axes) in want.items():
        if name not in found or found[name].dtype != dtype or found[name].ndim != axes:
            has = f"{found[name].dtype} {list(found[name].shape)}" if name in found else "nothing"
            raise ValueError(f"{file} must hold {name} as {np.dtype(dtype)} with {axes} axes, has {has}")
        if not np.isfinite(found[name]).all():
            raise ValueError(f"{file} has {name} that are no numbers (NaN or infinite)")
    return found


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, has {type(content).__name__}")
    return content
