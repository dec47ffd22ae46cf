"""Reading and writing the JSON that describes a clip folder: plain values, hashed files, clear complaints."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data import video

AGAIN = "save the clip again or restore the file"
"""What to do about a damaged folder."""


def entry(file: Path) -> dict[str, str]:
    """Name and hash of a file, as ``meta.json`` keeps them."""
    return {"file": file.name, "sha256": sha256(file)}


def sha256(file: Path) -> str:
    """Hash of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def plain(value: Any, name: str) -> Any:
    """``value`` as JSON has it; anything without a faithful JSON form is refused by name."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), name)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and np.isfinite(value)):
        return value
    raise ValueError(f"{name} must be text, a finite number, a list or a mapping of these; got {value!r:.80}")


@cache  # looking it up takes longer than hashing an episode
def version() -> str:
    """Which kinema4d this is."""
    try:
        return metadata.version("kinema4d")
    except metadata.PackageNotFoundError:
        return "not installed (run from a checkout)"


def read_video(
    folder: Path, meta: dict[str, Any], key: str, name: str, pixel: tuple[Any, ...], window: slice | None = None
) -> np.ndarray:
    """Decode one video, or a window of it, and hold it against ``meta``; ``pixel`` is its dtype and channels."""
    found = get(folder, meta, key, dict)
    images = video.read(folder / name, count=meta["frames"], frames=window)
    count = len(range(meta["frames"])[window or slice(None)])
    shape = (count, meta["height"], meta["width"], *pixel[1:])
    if images.shape != shape or images.dtype != pixel[0]:
        raise ValueError(
            f"{folder / name} holds {images.dtype} {list(images.shape)}, meta.json says "
            f"{np.dtype(pixel[0])} {list(shape)}; {AGAIN}"
        )
    # Decoders conceal flipped bits instead of failing.
    check_hash(folder / name, found)
    return images


def check_hash(file: Path, found: Mapping[str, Any]) -> None:
    """Refuse a file that is not the one that was saved."""
    if sha256(file) != found.get("sha256"):
        raise ValueError(f"{file} was changed after it was saved (its SHA-256 differs); {AGAIN}")


def wrong_files(folder: Path, meta: Mapping[str, Any]) -> list[str]:
    """What is wrong with the files that ``meta`` names, by their hashes; empty when all is right."""
    wrong = []
    for found in (value for value in meta.values() if isinstance(value, dict) and "sha256" in value):
        file = folder / str(found.get("file"))
        try:
            check_hash(file, found)
        except FileNotFoundError:
            wrong.append(f"{file} is missing; {AGAIN}")
        except OSError as error:
            wrong.append(f"{file} is not readable: {error.strerror}; {AGAIN}")
        except ValueError as error:
            wrong.append(str(error))
    return wrong


def read_arrays(folder: Path, name: str, what: str) -> dict[str, np.ndarray]:
    """All arrays of an ``.npz`` file; ``what`` it is for is named where it is missing."""
    file = folder / name
    if not file.is_file():
        raise ValueError(f"{file} is missing: expected {what}; {AGAIN}")
    try:
        with zipfile.ZipFile(file), np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error}; {AGAIN}") from None


def checked(
    file: Path, arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int | None, ...], kind: str
) -> np.ndarray:
    """One array of a file, held against its shape (None is any length) and kind (``f``, ``b`` or ``i``)."""
    array = arrays.get(name)
    right = array is not None and array.dtype.kind == kind and len(array.shape) == len(shape)
    if array is None or not right or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        found = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
        allowed = f"{ {'b': 'flags', 'f': 'floats', 'i': 'whole numbers'}[kind] } {['any' if n is None else n for n in shape]}"
        raise ValueError(f"{file}: {name} must be {allowed}, found {found}; {AGAIN}")
    if kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{file}: {name} has a non-finite value; {AGAIN}")
    return array


def get(folder: Path, entry: Mapping[str, Any], key: str, kind: type) -> Any:
    """A value of ``meta.json`` that must be of ``kind``."""
    value = entry.get(key)
    wrong = isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind)
    if wrong:
        raise ValueError(f"{folder / 'meta.json'}: '{key}' must be a {kind.__name__}, got {value!r:.60}; {AGAIN}")
    return value


def names(folder: Path, entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of names in ``meta.json``."""
    found = get(folder, entry, key, list)
    if not all(isinstance(name, str) for name in found):
        raise ValueError(f"{folder / 'meta.json'}: '{key}' must be a list of names, got {found!r:.60}")
    return tuple(found)


def refuse_constant(text: str) -> float:
    """For ``json.loads``: NaN and Infinity are not JSON."""
    raise ValueError(f"it holds {text}, which is not a number JSON allows")
