"""Meshes out of files: one object, or one object in many poses with the same vertices."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from kinema4d.objects.solid import Mesh, checked, parts

SUFFIXES = (".glb", ".gltf", ".obj", ".ply", ".stl", ".off")
"""Of files that are read."""
UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}
"""Metres per unit of a file."""
FEWEST = 16
"""Poses."""
SAME = 1e-6
"""Distance of vertices, of the size, at which they are one."""
HINT = "if the file is not in metres, say so with --unit mm or --unit cm"


def read_mesh(path: str | Path, *, unit: str = "m", up: str = "z") -> Mesh:
    """One object at rest, in metres and with +Z up. Scenes are flattened with their transforms. Files that tear triangles apart (for
    normals, textures, or as STL always does) are sewn together again; what is closed already, and what is of another part of the scene,
    stays apart. Closed parts whose triangles look inwards are turned over."""
    raw = _raw(Path(path), unit, up)
    mesh, _ = _sewn(raw, raw.vertices[None], str(path))
    return _whole(mesh, str(path))


def read_sequence(path: str | Path, *, unit: str = "m", up: str = "z") -> tuple[Mesh, Float64[np.ndarray, "t v 3"]]:
    """One object at rest and its poses, in metres and with +Z up: a folder of mesh files in the order of their names, the first at rest;
    an ``.npz`` file with ``vertices`` or ``poses`` [t,v,3] and ``faces`` [f,3], the first at rest unless there is a ``rest`` [v,3]; or the
    folder of one object of an objects4d data set."""
    path = Path(path)
    if path.is_dir() and (path / "shape.npz").is_file() and (path / "poses.npz").is_file():
        shape, poses = _arrays(path / "shape.npz"), _arrays(path / "poses.npz")
        raw, goals = _from_arrays({**poses, "rest": shape.get("vertices"), "faces": shape.get("faces")}, str(path), unit, up)  # fmt: skip
    elif path.is_dir():
        raw, goals = _from_files(path, unit, up)
    elif path.suffix.lower() == ".npz" and path.is_file():
        raw, goals = _from_arrays(dict(_arrays(path)), str(path), unit, up)
    else:
        why = "there is no such folder or file" if not path.exists() else "it is one file"
        raise ValueError(f"{path}: {why}; a sequence is a folder of meshes ({' '.join(SUFFIXES)}) or an .npz file")
    if len(goals) < FEWEST:
        raise ValueError(f"{path} has {len(goals)} poses, one object is learned from at least {FEWEST}")
    if len(wrong := np.flatnonzero(~np.isfinite(goals).all(axis=(1, 2)))):
        raise ValueError(f"{path} has vertices that are no numbers (NaN or infinite), first in pose {wrong[0]}")
    mesh, poses = _sewn(raw, np.concatenate([raw.vertices[None], goals]), str(path))
    return _whole(mesh, str(path)), poses[1:]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Raw:
    vertices: Float64[np.ndarray, "v 3"]
    faces: Int64[np.ndarray, "f 3"]
    part: Int64[np.ndarray, " v"]


# ---------------------------------------------------------------------- files


def _raw(path: Path, unit: str, up: str) -> _Raw:
    """As it is in the file, in metres."""
    import trimesh

    if not path.is_file():
        raise ValueError(f"there is no mesh file {path}")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} is no mesh file that is read; {' '.join(SUFFIXES)} are")
    vertices, faces, part, count = [], [], [], 0
    try:
        scene = trimesh.load_scene(path, process=False, maintain_order=True, skip_materials=True)
        for name in sorted(scene.graph.nodes_geometry):
            T, key = scene.graph[name]
            piece = scene.geometry[str(key)]
            if not isinstance(piece, trimesh.Trimesh) or not len(piece.faces):
                continue
            T = np.asarray(T, np.float64)
            with np.errstate(invalid="ignore"):  # what is no number is refused later, by name
                own = np.asarray(piece.vertices, np.float64) @ T[:3, :3].T + T[:3, 3]
            side = -1 if np.linalg.det(T[:3, :3]) < 0 else 1  # a mirror turns triangles over
            vertices.append(own)
            faces.append(np.asarray(piece.faces, np.int64)[:, ::side] + count)
            part.append(np.full(len(own), len(part), np.int64))
            count += len(own)
    except Exception as error:  # the parsers raise anything from KeyError to struct.error on bad bytes
        raise ValueError(f"cannot read the mesh file {path}: {type(error).__name__}: {error}") from None
    if not vertices:
        raise ValueError(f"{path} has no triangles")
    return _Raw(
        vertices=_metres(np.concatenate(vertices), unit, up), faces=np.concatenate(faces), part=np.concatenate(part)
    )


def _metres(vertices: np.ndarray, unit: str, up: str) -> Float64[np.ndarray, "*b 3"]:
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; known are {', '.join(UNITS)}")
    if up not in ("y", "z"):
        raise ValueError(f"up is y or z, got {up!r}")
    out = UNITS[unit] * np.asarray(vertices, np.float64)
    return out if up == "z" else np.stack([out[..., 0], -out[..., 2], out[..., 1]], -1)


def _from_files(folder: Path, unit: str, up: str) -> tuple[_Raw, Float64[np.ndarray, "t v 3"]]:
    files = [f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith(".")]
    files.sort(key=lambda f: [(int(w), "") if w.isdigit() else (-1, w) for w in re.split(r"(\d+)", f.name)])
    if not files:
        raise ValueError(f"{folder} has no mesh files; {' '.join(SUFFIXES)} are read")
    if len(kinds := sorted({f.suffix.lower() for f in files})) > 1:
        raise ValueError(f"{folder} has mesh files of several kinds ({', '.join(kinds)}); keep those of the sequence")
    if len(files) < FEWEST:
        raise ValueError(f"{folder} has {len(files)} meshes, one object is learned from at least {FEWEST} poses")
    first, poses = _raw(files[0], unit, up), []
    for file in files:
        now = _raw(file, unit, up)
        for what, a, b in (("vertices", first.vertices, now.vertices), ("triangles", first.faces, now.faces)):
            if len(a) != len(b):
                raise ValueError(f"the topology changes: {file} has {len(b)} {what}, {files[0].name} has {len(a)}")
        if len(other := np.flatnonzero((first.faces != now.faces).any(axis=1))):
            raise ValueError(
                f"the topology changes: {file} has other triangles than {files[0].name}, first triangle {other[0]}"
            )
        if not np.isfinite(now.vertices).all():
            raise ValueError(f"{file} has vertices that are no numbers (NaN or infinite)")
        poses.append(now.vertices)
    return first, np.stack(poses)


def _from_arrays(found: dict[str, np.ndarray | None], name: str, unit: str, up: str) -> tuple[_Raw, Float64[np.ndarray, "t v 3"]]:  # fmt: skip
    goals = found.get("poses") if found.get("poses") is not None else found.get("vertices")
    faces, rest = found.get("faces"), found.get("rest")
    if goals is None or faces is None:
        raise ValueError(
            f"{name} must hold vertices or poses [t,v,3] and faces [f,3], has {', '.join(found) or 'nothing'}"
        )
    if goals.ndim != 3 or goals.shape[2] != 3 or not len(goals) or goals.dtype.kind not in "fiu":
        raise ValueError(f"{name}: poses are numbers [t,v,3], got {goals.dtype} {list(goals.shape)}")
    if faces.ndim != 2 or faces.shape[1] != 3 or not len(faces) or faces.dtype.kind not in "iu":
        raise ValueError(f"{name}: faces are whole numbers [f,3], got {faces.dtype} {list(faces.shape)}")
    rest = goals[0] if rest is None else rest
    if rest.shape != goals.shape[1:]:
        raise ValueError(
            f"the topology changes: {name} has {goals.shape[1]} vertices in its poses, {len(rest)} at rest"
        )
    if faces.min() < 0 or faces.max() >= len(rest):
        raise ValueError(f"{name} has triangles of vertices {faces.min()} to {faces.max()}, and {len(rest)} vertices")
    raw = _Raw(vertices=_metres(rest, unit, up), faces=faces.astype(np.int64), part=np.zeros(len(rest), np.int64))
    return raw, _metres(goals, unit, up)


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is not readable: {error}") from None


# ---------------------------------------------------------------------- seams


def _sewn(raw: _Raw, poses: Float64[np.ndarray, "t v 3"], name: str) -> tuple[Mesh, Float64[np.ndarray, "t w 3"]]:
    """Vertices that are in the same place in all poses are one, within a part of the file; those of surfaces that are closed already are
    left alone. Vertices without triangles go."""
    if not np.isfinite(poses).all():
        bad = (~np.isfinite(poses)).any(axis=(0, 2)).sum()
        raise ValueError(f"{name} has {bad} vertices that are no numbers (NaN or infinite)")
    count = len(raw.vertices)
    label = parts(Mesh(vertices=raw.vertices, faces=raw.faces))
    grid = (
        np.round(poses / max(SAME * float(np.linalg.norm(np.ptp(raw.vertices, axis=0))), 1e-300)) + 0.0
    )  # no minus zero
    key = np.concatenate([raw.part[:, None], np.where(_closed(raw.faces, label)[label], np.arange(count), -1)[:, None]], 1)  # fmt: skip
    _, first, same = np.unique(np.concatenate([key, grid.swapaxes(0, 1).reshape(count, -1)], 1), axis=0, return_index=True, return_inverse=True)  # fmt: skip
    faces = first[same.ravel()][raw.faces]
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(axis=1)]
    if not len(faces):
        raise ValueError(f"{name} is degenerate: every triangle has two corners in one place")
    keep, flat = np.unique(faces, return_inverse=True)
    return Mesh(vertices=poses[0][keep], faces=flat.reshape(-1, 3).astype(np.int64)), poses[:, keep]


def _closed(faces: np.ndarray, label: np.ndarray) -> np.ndarray:
    """[part] whether every edge has two triangles."""
    edges = np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    each, many = np.unique(edges, axis=0, return_counts=True)
    out = np.ones(label.max() + 1, bool)
    out[label[each[many != 2, 0]]] = False
    return out


def _whole(mesh: Mesh, name: str) -> Mesh:
    """Refused if it is no object; with closed parts the right side out."""
    try:
        checked(mesh, name)
    except ValueError as error:
        raise ValueError(f"{error}; {HINT}" if "metres" in str(error) else str(error)) from None
    label, v = parts(mesh), mesh.vertices
    whose = label[mesh.faces[:, 0]]
    a, b, c = (v[mesh.faces[:, i]] for i in range(3))
    area = np.bincount(whose, np.linalg.norm(np.cross(b - a, c - a), axis=1))
    if (area <= 1e-14 * mesh.size**2).any():
        lost = int(area.argmin())
        raise ValueError(
            f"{name} is degenerate: its part {lost} ({int((whose == lost).sum())} triangles near "
            f"{_text(v[label == lost].mean(axis=0))}) has no area; remove it"
        )
    middle = np.stack([np.bincount(label, v[:, i]) for i in range(3)], 1) / np.bincount(label)[:, None]
    m = middle[whose]
    volume = np.bincount(whose, np.einsum("fi,fi->f", np.cross(a - m, b - m), c - m))
    inside_out = _closed(mesh.faces, label) & (volume < 0)
    return Mesh(vertices=v, faces=np.where(inside_out[whose][:, None], mesh.faces[:, ::-1], mesh.faces))


def wound_both_ways(mesh: Mesh) -> int:
    """Triangles whose neighbour across an edge looks the other way: volumes and so masses of such a part are wrong."""
    f = mesh.faces
    sides = f[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
    _, same, many = np.unique(sides, axis=0, return_inverse=True, return_counts=True)
    return int((many[same.ravel()] > 1).reshape(-1, 3).any(axis=1).sum())


def _text(x: Sequence[float] | np.ndarray) -> str:
    return ",".join(f"{v:.3g}" for v in x)
