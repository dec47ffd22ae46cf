"""The manifest of a data set: a line of JSON per episode, appended under a lock and read without one.

Every line is one write, so a kill tears at most the last line, and a torn line has no newline. Who appends holds a lock
on the file: a torn line that it finds is of the dead and is cut off, and what others appended meanwhile it reads first,
so that several processes may list episodes at once and none is listed twice.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kinema4d.files import whole_file


@dataclass(frozen=True, kw_only=True)
class Row:
    """One episode in the manifest."""

    id: str
    """Its name: the folder under ``episodes/``."""
    sha256: str
    """Hash of its ``meta.json``."""
    frames: int
    """Frames."""
    height: int
    """Image rows."""
    width: int
    """Image columns."""
    fps: float
    """Frames per second."""
    source: str
    """Data set and recording it came from."""
    task: str
    """Kind of task."""
    group: str
    """What a split keeps together."""
    view: str
    """Which camera."""
    outcome: str
    """``success``, ``failure`` or ``unknown``."""
    robots: tuple[str, ...]
    """Robots in it."""
    text: str
    """Instruction."""
    camera_from: str
    """``exact``, ``estimated`` or ``guessed``."""
    metric: bool
    """Whether its geometry is in metres."""
    bytes: int
    """Size on disk."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else its source said."""

    @property
    def dataset(self) -> str:
        """The first part of ``source``: which data set it is from."""
        return self.source.split("/")[0]


_FIELDS = tuple(f.name for f in fields(Row))


class Manifest:
    """The rows of a manifest file, as far as it has been read. A file that is missing has no rows."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: dict[str, Row] = {}
        self._forget()
        self.refresh()

    def refresh(self) -> bool:
        """Read what was appended since; whether there was anything."""
        try:
            descriptor = os.open(self.file, os.O_RDONLY)
        except FileNotFoundError:
            changed = bool(self.rows)
            self._forget()
            return changed
        try:
            return self._catch_up(descriptor)
        finally:
            os.close(descriptor)

    def append(self, row: Row) -> None:
        """List an episode, or what has become of it."""
        with self._locked() as descriptor:
            self._catch_up(descriptor)
            if self.rows.get(row.id) == row:
                return
            os.ftruncate(descriptor, self._whole)
            line = _line(row)
            if os.write(descriptor, line) != len(line):
                os.ftruncate(descriptor, self._whole)
                raise ValueError(f"cannot write to {self.file}: the disk is full; make room and run it again")
            self.rows[row.id], self._whole, self._lines = row, self._whole + len(line), self._lines + 1

    def cut_torn_line(self) -> None:
        """Cut off the last line where a kill tore it."""
        if self.file.exists():
            with self._locked() as descriptor:
                self._catch_up(descriptor)
                os.ftruncate(descriptor, self._whole)

    def drop(self, ids: Collection[str]) -> None:
        """Take episodes off the list; a reader finds the old list or the new one."""
        with self._locked() as descriptor:
            self._catch_up(descriptor)
            kept = [row for id, row in self.rows.items() if id not in ids]
            with whole_file(self.file, overwrite=True) as temporary:
                temporary.write_bytes(b"".join(_line(row) for row in kept))
        self.refresh()

    def _forget(self) -> None:
        self.rows.clear()
        self._file_id: tuple[int, int] | None = None
        self._whole = 0  # bytes of whole lines read
        self._lines = 0

    @contextmanager
    def _locked(self) -> Iterator[int]:
        while True:
            descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # drop() may have put another file in place while this one waited.
                if self.file.exists() and os.path.samestat(os.fstat(descriptor), self.file.stat()):
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def _catch_up(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != self._file_id or status.st_size < self._whole:
            self._forget()
            self._file_id = status.st_dev, status.st_ino
        content = b""
        while part := os.pread(descriptor, 1 << 24, self._whole + len(content)):
            content += part
        lines = content.split(b"\n")[:-1]  # what follows the last newline is a line in the making, or torn
        for line in lines:
            self._lines += 1
            row = self._parse(line)
            self.rows[row.id] = row
            self._whole += len(line) + 1
        return bool(lines)

    def _parse(self, line: bytes) -> Row:
        try:
            values = json.loads(line)
            known: dict[str, Any] = {key: values[key] for key in _FIELDS if key in values}
            known["robots"] = tuple(values["robots"])
            return Row(**known)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{self.file}, line {self._lines} is damaged ({error}); delete the manifest and run any writing "
                "command: it is rebuilt from the episodes"
            ) from None


def _line(row: Row) -> bytes:
    # Not asdict, which copies what it holds: this is done for every episode.
    values = {name: getattr(row, name) for name in _FIELDS}
    return json.dumps(values, allow_nan=False, separators=(",", ":"), sort_keys=True).encode() + b"\n"
