"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary sibling to write, which becomes ``path`` at the end and vanishes on any failure."""
    if path.is_dir() or (path.exists() and not overwrite):
        raise ValueError(f"{path} exists; pass overwrite (--overwrite) to replace a file, or choose another path")
    # The suffix stays last, because encoders choose the container by it.
    temporary = path.with_name(f".{path.stem}.tmp-{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {path.parent}: {error.strerror}; choose another folder") from None
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: str | Path, *, overwrite: bool, ours: Callable[[Path], bool]) -> Iterator[Path]:
    """A temporary sibling folder to fill, which becomes ``path`` at the end and vanishes on any failure.

    An existing ``path`` is refused, or with ``overwrite`` replaced if it is empty or ``ours(path)``.
    """
    # A link is followed, so that the folder behind it is replaced and not the link.
    target = Path(path).resolve()
    _check_replaceable(target, overwrite, ours)
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Containers reuse process ids: what a killed run with ours left behind is nobody's.
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    except OSError as error:
        raise ValueError(f"cannot write to {target.parent}: {error.strerror}; choose another folder") from None
    try:
        yield temporary
        # Writing takes seconds, in which somebody may have put something there.
        _check_replaceable(target, overwrite, ours)
        _move_in(temporary, target)
    finally:
        # After a swap this is the old content.
        shutil.rmtree(temporary, ignore_errors=True)


def _check_replaceable(target: Path, overwrite: bool, ours: Callable[[Path], bool]) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise ValueError(f"{target} exists; pass overwrite (--overwrite) to replace it, or choose another path")
    if not target.is_dir() or (any(target.iterdir()) and not ours(target)):
        raise ValueError(f"{target} exists and kinema4d did not write it, so it is not replaced; choose another path")


def _move_in(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
    elif not _exchange(temporary, target):
        old = target.with_name(f".{target.name}.old-{os.getpid()}")
        target.rename(old)
        try:
            temporary.rename(target)
        except OSError:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders in one step, so that readers always find one; False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, TypeError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of linux/fs.h
    return renameat2(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0
