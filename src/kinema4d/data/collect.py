"""Bring recordings of any source into a data set: read, down-sample to 49 frames, store; skip what is broken, and say so.

A source is a module with ``recordings(root)`` and ``read(root, recording)`` (docs/extending.md). What is finished stands
in ``ingest-<name>.jsonl``, so a killed run goes on where it stopped; what was skipped, and why, in ``reports/``.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from kinema4d.data.dataset import Row, write_episode
from kinema4d.data.jobs import Job, Summary, run, writing
from kinema4d.data.resample import FRAMES, downsample
from kinema4d.files import whole_file
from kinema4d.types import Episode

SOURCES: dict[str, str] = {
    "droid": "DROID: RLDS, LeRobot v2.1 and v3, or JSON and mp4",
    "bridge": "Bridge V2: RLDS",
    "rt1": "RT-1 (fractal20220817_data): RLDS",
    "libero": "LIBERO demonstrations: HDF5",
    "libero_live": "LIBERO recordings made by 'data record-libero'",
    "lerobot": "any LeRobot data set, v2.1 or v3",
    "robo4d": "the official Robo4D-200k layout",
}
"""Every source: the module of that name in ``data/ingest``."""


@runtime_checkable
class Source(Protocol):
    """What a module in ``data/ingest`` offers."""

    @staticmethod
    def recordings(root: Path) -> Sequence[str]:
        """Names of all recordings, without decoding any."""
        ...

    @staticmethod
    def read(root: Path, recording: str) -> list[Episode]:
        """One episode per camera; a ``ValueError`` says what is wrong and what to do."""
        ...


@dataclass(frozen=True, kw_only=True)
class Order:
    """One recording to bring in."""

    source: str
    """One of ``SOURCES``."""
    name: str
    """What the ids begin with."""
    root: str
    """Where the source lies."""
    recording: str
    """Which recording."""
    frames: int
    """Frames to keep at most; 0 keeps all."""


def source_module(source: str) -> Source:
    """The module behind a name."""
    if source not in SOURCES:
        raise ValueError(f"unknown source {source!r}; known are {', '.join(SOURCES)}")
    return importlib.import_module(f"kinema4d.data.ingest.{source}")  # pyright: ignore[reportReturnType]


def bring(root: str, order: Order) -> list[Row]:
    """Store the episodes of one recording; what a worker process does."""
    episodes = source_module(order.source).read(Path(order.root), order.recording)
    if not episodes:
        raise ValueError(f"recording {order.recording} of {order.root} has no camera view")
    ready: dict[str, Episode] = {}
    for episode in episodes:  # all of them before any is written: a recording comes whole or not at all
        if order.name != order.source:  # two roots of one source must not look like one
            episode = replace(episode, source=_renamed(episode.source, order), group=_renamed(episode.group, order))
        short = downsample(episode, order.frames) if order.frames else episode
        id = slug(f"{order.name}-{order.recording}-{episode.view or 'view'}")
        if id in ready:
            raise ValueError(
                f"recording {order.recording} of {order.root} has two views that are called {episode.view!r}"
            )
        ready[id] = short
    provenance = {"source": order.source, "recording": order.recording}
    return [write_episode(Path(root), id, episode, provenance) for id, episode in ready.items()]


def _renamed(text: str, order: Order) -> str:
    return f"{order.name}/{text.removeprefix(order.source + '/')}"


def slug(text: str) -> str:
    """An episode id: what is not a letter, digit or one of ``._=+-`` becomes a dash."""
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", text).strip("-.")


def ingest(
    source: str,
    root: str | Path,
    out: str | Path,
    *,
    name: str | None = None,
    frames: int = FRAMES,
    limit: int | None = None,
    engine: str = "local",
    workers: int = 2,
    address: str | None = None,
    tell: Callable[[Summary, int], None] | None = None,
) -> Summary:
    """Bring every recording of ``source`` at ``root`` that is not there yet into the data set ``out``; ``limit`` stops
    after that many recordings. The summary counts what was skipped and why; so does ``reports/ingest-<name>.json``."""
    root, name = Path(root), name or source
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: --root is where the {source} data lies")
    if frames == 1 or frames < 0:
        raise ValueError(f"frames must be 0 (all) or at least 2, got {frames}")
    if slug(name) != name:
        raise ValueError(f"--name may have letters, digits and . _ = + - only, got {name!r}")
    found = list(source_module(source).recordings(root))[:limit]
    same = {slug(recording): recording for recording in found}
    if len(same) < len(found):
        twice = next(r for r in found if same[slug(r)] != r)
        raise ValueError(
            f"recordings {twice!r} and {same[slug(twice)]!r} of {root} would get one id; rename one of them"
        )
    with writing(Path(out)) as dataset:
        ledger = dataset.root / f"ingest-{name}.jsonl"
        finished = _finished(ledger, root, frames)
        left = [r for r in found if not (r in finished and all(id in dataset for id in finished[r]))]
        jobs = [
            Job(name=r, work=Order(source=source, name=name, root=str(root), recording=r, frames=frames)) for r in left
        ]

        def done(job: Job, rows: list[Row]) -> None:
            line = {"root": root.name, "frames": frames, "recording": job.name, "ids": [row.id for row in rows]}
            with ledger.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

        summary = run(
            dataset, jobs, bring, engine=engine, workers=workers, address=address, done=done,
            tell=None if tell is None else lambda s: tell(s, len(jobs)),
        )  # fmt: skip
        summary.before = len(found) - len(left)
        report = {
            "source": source,
            "recordings": len(found),
            "skipped": dict(sorted(summary.skipped.items())),
            "reasons": reasons(summary),
        }
        with whole_file(dataset.root / "reports" / f"ingest-{name}.json", overwrite=True) as temporary:
            temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        return summary


def reasons(summary: Summary) -> dict[str, int]:
    """How often each reason for skipping came up, with names and numbers left out so that like is counted with like."""
    counts: dict[str, int] = {}
    for text in summary.skipped.values():
        kind = re.sub(r"\S*/\S+|\d[\d.e+-]*", "…", text)
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _finished(ledger: Path, root: Path, frames: int) -> dict[str, list[str]]:
    """Recordings that an earlier run finished, with their ids."""
    if not ledger.exists():
        return {}
    finished: dict[str, list[str]] = {}
    for text in ledger.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            line: dict[str, Any] = json.loads(text)
        except ValueError:
            continue  # torn by a kill in the middle of a write: that recording is read again
        if line["root"] != root.name or line["frames"] != frames:
            raise ValueError(
                f"{ledger} was written for {line['root']} with {line['frames']} frames, this is {root.name} with "
                f"{frames}; give another --name to keep both"
            )
        finished[line["recording"]] = line["ids"]
    return finished
