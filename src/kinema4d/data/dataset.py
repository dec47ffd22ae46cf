"""A data set: a folder of episodes and a manifest of them, which no kill at any moment can put out of step.

``episodes/<id>/`` is a clip folder of :mod:`kinema4d.data.store`, which appears whole or not at all. ``manifest.jsonl``
has a line per episode with the hash of its ``meta.json``, which has the hashes of all its other files
(:mod:`kinema4d.data.manifest`). Opening a data set to write puts right what a killed run left (:mod:`kinema4d.data.mend`):
the folders are the truth, and the manifest is their index.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kinema4d.data.manifest import Manifest, Row
from kinema4d.data.mend import ID, alone, check_format, mend, row_of
from kinema4d.data.meta_file import sha256, wrong_files
from kinema4d.data.store import load, read_meta, save
from kinema4d.types import Episode

__all__ = ["Dataset", "Row", "open_dataset", "row_of", "write_episode"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Dataset:
    """An open data set. Reading needs no lock; several processes may :meth:`add` different episodes at once."""

    def __init__(self, root: str | Path, *, manifest: Manifest | None = None, mended: tuple[str, ...] = ()) -> None:
        self.root = Path(root)
        check_format(self.root)
        self.mended = mended
        """What was wrong when it was opened to write, and what became of it: for the user to read."""
        self._manifest = manifest or Manifest(self.root / "manifest.jsonl")
        self._rows = self._manifest.rows
        self._order: list[str] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: str) -> bool:
        return id in self._rows

    def refresh(self) -> None:
        """Also see what other processes have listed since."""
        if self._manifest.refresh():
            self._order = None

    @property
    def ids(self) -> list[str]:
        """Every id, sorted."""
        if self._order is None:
            self._order = sorted(self._rows)
        return self._order

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every episode, sorted by id."""
        return tuple(self._rows[id] for id in self.ids)

    def row(self, episode: int | str) -> Row:
        """One episode by its id, or by its number in the order of ids."""
        if isinstance(episode, str) and episode not in self._rows and episode.isdecimal():
            episode = int(episode)
        if isinstance(episode, str) and episode in self._rows:
            return self._rows[episode]
        ids = self.ids
        if not ids:
            raise ValueError(f"{self.root} has no episodes yet")
        if isinstance(episode, int):
            if not 0 <= episode < len(ids):
                raise ValueError(f"{self.root} has {len(ids)} episodes, 0 to {len(ids) - 1}; got {episode}")
            return self._rows[ids[episode]]
        near = [id for id in ids if episode in id][:3]
        hint = f"did you mean {', '.join(near)}?" if near else f"its first ids are {', '.join(ids[:3])}"
        raise ValueError(f"{self.root} has no episode {episode!r}; {hint}")

    def folder(self, episode: int | str) -> Path:
        """Where an episode lies."""
        return self.root / "episodes" / self.row(episode).id

    def load(self, episode: int | str, frames: slice | None = None) -> Episode:
        """An episode, or a window of its frames."""
        thing = load(self.folder(episode), frames=frames)
        if not isinstance(thing, Episode):
            raise ValueError(f"{self.folder(episode)} holds a {type(thing).__name__}, expected an Episode")
        return thing

    def verify(self, episode: int | str) -> list[str]:
        """What is wrong with the files of an episode, by their hashes; empty when all is right."""
        row, folder = self.row(episode), self.folder(episode)
        try:
            meta = read_meta(folder)
            wrong = wrong_files(folder, meta)
            if sha256(folder / "meta.json") != row.sha256:
                wrong.insert(0, f"{folder / 'meta.json'} is not the one in the manifest (its SHA-256 differs)")
            return wrong
        except ValueError as error:
            return [str(error)]

    def add(self, id: str, episode: Episode, provenance: Mapping[str, Any] = _NOTHING) -> Row:
        """Store an episode and list it. An id that is listed already is refused."""
        self.refresh()
        if id in self._rows:
            raise ValueError(f"{self.root} has an episode {id!r} already; choose another id")
        row = write_episode(self.root, id, episode, provenance)
        self.enter(row)
        return row

    def enter(self, row: Row) -> None:
        """List an episode that :func:`write_episode` wrote; one that is listed as it is stays as it is."""
        self._manifest.append(row)
        self._order = None


def open_dataset(root: str | Path, *, create: bool = False) -> Dataset:
    """Open a data set; with ``create`` to write: it is made where it is missing and mended where it was torn, and
    refused while another process writes to it under :func:`kinema4d.data.jobs.writing`."""
    if not create:
        return Dataset(root)
    with alone(Path(root)):
        manifest, mended = mend(Path(root))
    return Dataset(root, manifest=manifest, mended=mended)


def write_episode(root: Path, id: str, episode: Episode, provenance: Mapping[str, Any] = _NOTHING) -> Row:
    """Store an episode without listing it: what worker processes do. What is there under that id is replaced."""
    if not ID.fullmatch(id):
        raise ValueError(
            "an episode id has at most 200 letters, digits and . _ = + - and starts with a letter or digit, got "
            f"{id!r:.100}"
        )
    folder = save(episode, root / "episodes" / id, provenance=provenance, overwrite=True)
    return row_of(folder)
