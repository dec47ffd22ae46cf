"""Parsed meshes on disk, by the hash of the file's bytes: reading a robot again should take a moment.

Only files that stand alone are kept: what they look like must not depend on a texture or material beside them.
``KINEMA4D_CACHE`` names another folder; setting it to nothing turns the cache off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kinema4d.files import whole_file
from kinema4d.geometry.mesh import Mesh

VARIABLE = "KINEMA4D_CACHE"
"""Environment variable with the cache folder."""
VERSION = 1
"""Part of the key: raise it when parsing changes."""
ALONE = (".stl", ".ply", ".dae")
"""Formats that can stand alone; a Collada file that names an image does not."""


def folder() -> Path | None:
    """Where parsed meshes are kept, or None where the cache is off."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen) if chosen else None
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a container's user may have no home
        return None
    return home / "kinema4d" / "meshes"


def get(data: bytes, suffix: str) -> list[Mesh] | None:
    """The meshes of a file with these bytes, if they were kept."""
    file = _file(data, suffix)
    if file is None or not file.is_file():
        return None
    try:
        with np.load(file, allow_pickle=False) as kept:
            return [
                Mesh(
                    vertices=kept[f"vertices{i}"],
                    faces=kept[f"faces{i}"],
                    colors=kept[f"colors{i}"],
                    uvs=kept.get(f"uvs{i}"),
                )
                for i in range(int(kept["count"]))
            ]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # damaged: parse again, and replace it


def put(data: bytes, suffix: str, meshes: Sequence[Mesh]) -> None:
    """Keep the meshes of a file, where there is room for them."""
    file = _file(data, suffix)
    if file is None or any(m.texture is not None for m in meshes):
        return
    names = ("vertices", "faces", "colors", "uvs")
    arrays = {f"{n}{i}": getattr(m, n) for i, m in enumerate(meshes) for n in names if getattr(m, n) is not None}
    # A full or read-only disk costs time, not correctness.
    with contextlib.suppress(OSError, ValueError), whole_file(file, overwrite=True) as part:
        np.savez(part, count=len(meshes), **arrays)


def _file(data: bytes, suffix: str) -> Path | None:
    where = folder()
    if where is None or suffix.lower() not in ALONE or (suffix.lower() == ".dae" and b"<image" in data):
        return None
    key = hashlib.sha256(f"{VERSION}{suffix.lower()}".encode() + data).hexdigest()
    return where / f"{key}.npz"
