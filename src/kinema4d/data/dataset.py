"""A data set: a folder of episodes and a manifest of them, which no kill at any moment can put out of step.

``episodes/<id>/`` is a clip folder of :mod:`kinema4d.data.store`, which appears whole or not at all. ``manifest.jsonl``
has a line per episode with the hash of its ``meta.json``, which has the hashes of all its other files. Lines are only
ever appended, each in one write; opening a data set to write drops a torn last line and enters episodes that a killed
run finished but did not list. So the folders are the truth, and the manifest is their index.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kinema4d.data.meta_file import plain, sha256, version
from kinema4d.data.store import load, read_meta, save
from kinema4d.files import whole_file
from kinema4d.types import Episode

FORMAT = "kinema4d dataset"
"""What ``dataset.json`` says it is."""
VERSION = 1
"""Layout version this module writes and reads."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


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


class Dataset:
    """An open data set. Reading needs no lock; several processes may :meth:`write` different episodes at once."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        _check_format(self.root)
        self._rows = _read_manifest(self.root)
        self._order: list[str] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: str) -> bool:
        return id in self._rows

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
        if isinstance(episode, str) and episode not in self._rows and episode.isdigit():
            episode = int(episode)
        if isinstance(episode, int):
            if not 0 <= episode < len(self.ids):
                raise ValueError(f"{self.root} has {len(self.ids)} episodes, 0 to {len(self.ids) - 1}; got {episode}")
            episode = self.ids[episode]
        if episode not in self._rows:
            near = [id for id in self.ids if episode in id][:3]
            hint = f"did you mean {', '.join(near)}?" if near else f"its first ids are {', '.join(self.ids[:3])}"
            raise ValueError(f"{self.root} has no episode {episode!r}; {hint}")
        return self._rows[episode]

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
        except ValueError as error:
            return [str(error)]
        wrong = []
        if sha256(folder / "meta.json") != row.sha256:
            wrong.append(f"{folder / 'meta.json'} is not the one in the manifest (its SHA-256 differs)")
        for entry in (value for value in meta.values() if isinstance(value, dict) and "sha256" in value):
            file = folder / str(entry.get("file"))
            if not file.is_file():
                wrong.append(f"{file} is missing")
            elif sha256(file) != entry["sha256"]:
                wrong.append(f"{file} was changed after it was saved (its SHA-256 differs)")
        return wrong

    def add(self, id: str, episode: Episode, provenance: Mapping[str, Any] = _NOTHING) -> Row:
        """Store an episode and list it. An id that is listed already is refused."""
        if id in self._rows:
            raise ValueError(f"{self.root} has an episode {id!r} already")
        row = write_episode(self.root, id, episode, provenance)
        self.enter(row)
        return row

    def enter(self, row: Row) -> None:
        """List an episode that :func:`write_episode` wrote."""
        if row.id in self._rows:
            return
        line = json.dumps(asdict(row), allow_nan=False, separators=(",", ":"), sort_keys=True) + "\n"
        descriptor = os.open(self.root / "manifest.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())  # one write, so that a kill tears at most the last line
        finally:
            os.close(descriptor)
        self._rows[row.id], self._order = row, None


def open_dataset(root: str | Path, *, create: bool = False) -> Dataset:
    """Open a data set; with ``create`` for writing: it is made where it is missing and mended where it was torn."""
    root = Path(root)
    if create:
        _create(root)
        _mend(root)
    return Dataset(root)


def write_episode(root: Path, id: str, episode: Episode, provenance: Mapping[str, Any] = _NOTHING) -> Row:
    """Store an episode without listing it: what worker processes do. What is there under that id is replaced."""
    if not _ID.fullmatch(id):
        raise ValueError(
            f"an episode id needs letters, digits and . _ = + - only and starts with one of the first two, got {id!r}"
        )
    folder = save(episode, root / "episodes" / id, provenance=provenance, overwrite=True)
    return row_of(folder)


def row_of(folder: Path) -> Row:
    """The manifest row of an episode's folder."""
    meta = read_meta(folder)
    if meta["kind"] != "episode":
        raise ValueError(f"{folder} holds a {meta['kind']}, a data set holds episodes")
    texts = ("source", "task", "group", "view", "outcome", "text", "camera_from")
    same: dict[str, Any] = {key: str(meta.get(key, "")) for key in texts}
    same |= {key: meta[key] for key in ("frames", "height", "width", "fps")}
    return Row(
        id=folder.name,
        sha256=sha256(folder / "meta.json"),
        robots=tuple(arm["robot"] for arm in meta["arms"]),
        metric=bool(meta.get("metric", True)),
        bytes=sum(file.stat().st_size for file in folder.iterdir()),
        facts=meta.get("facts", {}),
        **same,
    )


def _create(root: Path) -> None:
    if (root / "dataset.json").exists():
        return
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(f"{root} exists and is not a kinema4d data set; choose another folder")
    root.mkdir(parents=True, exist_ok=True)
    (root / "episodes").mkdir(exist_ok=True)
    content = plain({"format": FORMAT, "version": VERSION, "kinema4d_version": version()}, "dataset.json")
    with whole_file(root / "dataset.json", overwrite=True) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _check_format(root: Path) -> None:
    file = root / "dataset.json"
    if not file.is_file():
        raise ValueError(
            f"{root} is not a kinema4d data set: it has no dataset.json; make one with 'kinema4d data generate' or 'ingest'"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'{file} is not of a kinema4d data set: it must say "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise ValueError(f"{file} has version {content.get('version')!r}, this kinema4d reads {VERSION}")


def _mend(root: Path) -> None:
    """Bring the manifest in step with the folders: what a kill can leave behind."""
    (root / "episodes").mkdir(exist_ok=True)
    manifest = root / "manifest.jsonl"
    if manifest.exists():
        content = manifest.read_bytes()
        if not content.endswith(b"\n") and content:
            os.truncate(manifest, content.rfind(b"\n") + 1)
    for leftover in root.glob("episodes/.*.tmp-*"):
        if not _alive(leftover.name):
            shutil.rmtree(leftover, ignore_errors=True)
    dataset = Dataset(root)
    for folder in sorted((root / "episodes").iterdir()):
        if folder.name not in dataset and not folder.name.startswith("."):
            dataset.enter(row_of(folder))
    gone = [row.id for row in dataset.rows if not (root / "episodes" / row.id / "meta.json").is_file()]
    if gone:
        kept = [
            json.dumps(asdict(row), allow_nan=False, separators=(",", ":"), sort_keys=True) + "\n"
            for row in dataset.rows
            if row.id not in set(gone)
        ]
        with whole_file(manifest, overwrite=True) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")


def _alive(name: str) -> bool:
    """Whether the process that made a temporary folder still runs on this machine."""
    process = name.rsplit("-", 1)[-1]
    if not process.isdigit():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(process) != os.getpid()


def _read_manifest(root: Path) -> dict[str, Row]:
    manifest = root / "manifest.jsonl"
    if not manifest.exists():
        return {}
    known = {f.name for f in fields(Row)}
    rows: dict[str, Row] = {}
    lines = manifest.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is a line in the making
        try:
            values = json.loads(line)
            row = Row(**{**{k: v for k, v in values.items() if k in known}, "robots": tuple(values["robots"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{manifest}, line {number} is damaged ({error}); delete the manifest and run any writing command: it is rebuilt from the episodes"
            ) from None
        rows[row.id] = row
    return rows
