"""Run a user's own program or model on the frames of a clip: files in, files out, and its complaints passed on."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

STDERR_CHARACTERS = 800
"""How much of the end of a failed program's stderr is repeated."""


def check_command(command: str, needs: Sequence[str]) -> None:
    """Raise ``ValueError`` where a command line cannot be split, or lacks a ``{name}`` that it needs."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"cannot split the command {command!r}: {error}") from None
    missing = [name for name in needs if not any(f"{{{name}}}" in word for word in words)]
    if not words or missing:
        wanted = " and ".join(f"{{{name}}}" for name in needs)
        raise ValueError(f"the command must contain {wanted}, which are replaced by paths; got {command!r}")


def run_command(command: str, paths: Mapping[str, Path], *, timeout_s: float) -> None:
    """Run ``command`` (no shell) with every ``{name}`` replaced by its path; ``ValueError`` where it fails."""
    words = shlex.split(command)
    for name, path in paths.items():
        words = [word.replace(f"{{{name}}}", str(path)) for word in words]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"the command {command!r} did not end within {timeout_s:g} s; allow more, or fix it") from None
    except OSError as error:
        raise ValueError(f"cannot start the command {command!r}: {error.strerror}: {words[0]}") from None
    if done.returncode != 0:
        said = done.stderr.strip()[-STDERR_CHARACTERS:] or "nothing on stderr"
        raise ValueError(f"the command {command!r} ended with exit code {done.returncode}: {said}")


@contextmanager
def model_errors(name: str) -> Iterator[None]:
    """A model that runs out of memory, or weights that do not fit, fail this episode and not the whole run."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # torch.cuda.OutOfMemoryError is a RuntimeError
        raise ValueError(f"{name} failed: {type(error).__name__}: {str(error)[:STDERR_CHARACTERS]}") from None


def frame_name(index: int, suffix: str) -> str:
    """File name of a frame; SAM2 wants numbers."""
    return f"{index:05d}{suffix}"


def write_frames(rgb: UInt8[np.ndarray, "t h w 3"], folder: Path, suffix: str = ".png") -> list[Path]:
    """One image file per frame, in a new folder."""
    folder.mkdir()
    files = [folder / frame_name(i, suffix) for i in range(len(rgb))]
    options: dict[str, Any] = {".png": {"compress_level": 1}, ".jpg": {"quality": 95}}[suffix]
    for image, file in zip(rgb, files, strict=True):
        Image.fromarray(image).save(file, **options)
    return files
