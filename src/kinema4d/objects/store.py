"""A fitted object as a folder that appears whole or not at all: ``fitted.npz`` with its arrays, ``meta.json`` with what was found."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from kinema4d.files import whole_folder
from kinema4d.objects.fit import Fitted
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.solid import Mesh, Weighed, checked

KIND, VERSION = "object", 1
"""What ``meta.json`` says it is, and the layout this module writes and reads."""
_ARRAYS = {
    "vertices": (np.float64, 2), "faces": (np.int64, 2), "piece": (np.int64, 1), "twists": (np.float64, 3), "reach": (np.float64, 2),
    "errors": (np.float64, 1), "mass": (np.float64, 1), "rows_data": (np.float64, 1), "rows_indices": (np.int64, 1), "rows_indptr": (np.int64, 1),
}  # fmt: skip
_AGAIN = "fit it again, or restore the file"


def save_fitted(
    fitted: Fitted, folder: str | Path, *, about: Mapping[str, Any] | None = None, overwrite: bool = False
) -> Path:
    """Write a folder and return its path. An existing one is refused; with ``overwrite`` it is replaced whole, if it is empty or one of
    these."""
    rows = csr_matrix(fitted.weighed.rows)
    arrays = {
        "vertices": fitted.mesh.vertices, "faces": fitted.mesh.faces, "piece": fitted.piece, "twists": fitted.twists, "reach": fitted.reach,
        "errors": fitted.errors, "mass": fitted.weighed.mass, "rows_data": rows.data, "rows_indices": rows.indices, "rows_indptr": rows.indptr,
    }  # fmt: skip
    with whole_folder(folder, overwrite=overwrite, ours=is_fitted_folder) as part:
        file = part / "fitted.npz"
        np.savez(file, **{name: np.asarray(array, _ARRAYS[name][0]) for name, array in arrays.items()})  # pyright: ignore[reportArgumentType]
        found = fitted.freedom
        meta = {
            "kind": KIND,
            "version": VERSION,
            "freedom": {
                "count": found.count,
                "errors": list(found.errors),
                "ratios": list(found.ratios),
                "why": found.why,
                "bends": found.bends,
            },
            "about": dict(about or {}),
            "sha256": {file.name: _hash(file)},
        }
        (part / "meta.json").write_text(json.dumps(meta, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return Path(folder)


def load_fitted(folder: str | Path) -> Fitted:
    """Read a folder that :func:`save_fitted` wrote; ``ValueError`` says what is wrong with any other."""
    folder = Path(folder)
    meta, file = _meta(folder), folder / "fitted.npz"
    if not file.is_file():
        raise ValueError(f"{file} is missing; {_AGAIN}")
    if _hash(file) != meta["sha256"].get(file.name):
        raise ValueError(f"{file} was changed after it was written (its SHA-256 differs); {_AGAIN}")
    a = _arrays(file)
    try:
        found = {**meta["freedom"], "errors": tuple(meta["freedom"]["errors"]), "ratios": tuple(meta["freedom"]["ratios"])}  # fmt: skip
        freedom = Freedom(**found)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'meta.json'}: 'freedom' must hold count, errors, ratios and why: {error}; {_AGAIN}") from None  # fmt: skip
    v, k, n = len(a["vertices"]), a["twists"].shape[1], len(a["mass"])
    fits = a["vertices"].shape == (v, 3) and a["faces"].shape[1:] == (3,) and a["piece"].shape == (v,)
    fits = fits and a["twists"].shape[2] == 6 and a["reach"].shape == (k, 2) and a["errors"].shape == (k,)
    fits = fits and len(a["rows_indptr"]) == n + 1
    if not (fits and a["piece"].min() >= 0 and a["piece"].max() < len(a["twists"])):
        raise ValueError(f"{file} has arrays that do not fit together: { {m: list(x.shape) for m, x in a.items()} }; {_AGAIN}")  # fmt: skip
    mesh = Mesh(vertices=a["vertices"], faces=a["faces"])
    checked(mesh, str(file))
    rows = csr_matrix((a["rows_data"], a["rows_indices"], a["rows_indptr"]), shape=(n, v))
    return Fitted(
        mesh=mesh, weighed=Weighed(rows=rows, mass=a["mass"]), piece=a["piece"], twists=a["twists"], freedom=freedom,
        reach=a["reach"], errors=a["errors"],
    )  # fmt: skip


def is_fitted_folder(folder: str | Path) -> bool:
    """Whether a folder says that it is one of these."""
    try:
        meta = json.loads((Path(folder) / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and meta.get("kind") == KIND


def _meta(folder: Path) -> dict[str, Any]:
    file = folder / "meta.json"
    if not file.is_file():
        raise ValueError(f"{folder} is not a fitted object: it has no meta.json; make one with 'kinema4d objects fit'")
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}; {_AGAIN}") from None
    if not isinstance(meta, dict) or meta.get("kind") != KIND:
        raise ValueError(f'{file} is not of a fitted object: it must say "kind": "{KIND}"')
    if meta.get("version") != VERSION:
        raise ValueError(f"{file} has version {meta.get('version')!r}, this kinema4d reads {VERSION}")
    for key in ("freedom", "about", "sha256"):
        if not isinstance(meta.get(key), dict):
            raise ValueError(f"{file}: '{key}' must be an object, got {meta.get(key)!r:.60}; {_AGAIN}")
    return meta


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as archive:
            out = {name: archive[name] for name in _ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error}; {_AGAIN}") from None
    for name, (dtype, axes) in _ARRAYS.items():
        if out[name].dtype != dtype or out[name].ndim != axes or not np.isfinite(out[name]).all():
            raise ValueError(f"{file}: '{name}' must be finite {np.dtype(dtype)} with {axes} axes, is {out[name].dtype} {list(out[name].shape)}; {_AGAIN}")  # fmt: skip
    return out


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
