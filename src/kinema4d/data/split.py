"""Train, validation and test: stratified by source, task and outcome, never tearing a scene apart, and stable.

Groups are taken in the order of a hash of seed and name, and each goes where it brings the counts of its strata, its
tasks, its sources and the whole nearest to the wanted fractions. Groups that an earlier split placed stay where they are.
The trade-off: a purely hashed split needs no memory, but a small stratum may miss validation altogether; this one is
balanced to about a group, but a set that grew in steps is split otherwise than the same set split at once.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data.curate import kept_ids
from kinema4d.data.dataset import Dataset, Row, open_dataset
from kinema4d.data.leaks import Look, looks_of, same_content
from kinema4d.data.meta_file import version
from kinema4d.data.pool import Progress, spread
from kinema4d.files import whole_folder

SPLITS = ("train", "val", "test")
"""The parts."""
FORMAT = "kinema4d splits"
"""What ``splits.json`` says it is."""
VERSION = 1
"""Layout version."""


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """How one kind of episode was divided."""

    source: str
    """Data set."""
    task: str
    """Kind of task."""
    outcome: str
    """How it ended."""
    counts: tuple[int, int, int]
    """Episodes in train, val and test."""
    deviation: float
    """Largest difference from the wanted number, in episodes."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A division of a data set."""

    seed: int
    """What the order of groups is drawn from."""
    fractions: tuple[float, float, float]
    """Wanted shares of train, val and test."""
    ids: Mapping[str, tuple[str, ...]]
    """Episodes of each part, sorted."""
    groups: Mapping[str, str]
    """Where each group is, including groups that have no episode left."""
    strata: tuple[Stratum, ...]
    """Balance."""
    curated: bool
    """Whether only episodes that curation keeps were divided."""
    unjudged: tuple[str, ...]
    """Episodes that curation has not judged as they are now, and that are therefore left out."""
    left_out: tuple[str, ...]
    """New episodes that look like episodes of two parts at once."""
    joined: int
    """Groups that were taken together because they share a video or a first frame."""


def split(
    root: str | Path,
    fractions: tuple[float, float, float] = (0.96, 0.02, 0.02),
    *,
    seed: int = 0,
    every: bool = False,
    fresh: bool = False,
    workers: int = 2,
    progress: Progress | None = None,
) -> Split:
    """Divide a data set and write ``splits/``. Without ``every``, only what curation keeps, where it ran; with
    ``fresh`` an earlier split is forgotten. ``ValueError`` where the result leaks."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"fractions must be three shares that sum to 1 (train, val, test), got {fractions}")
    dataset = open_dataset(root)
    judged = None if every else kept_ids(dataset)
    rows = list(dataset.rows) if judged is None else [dataset.row(id) for id in judged[0]]
    if not rows:
        raise ValueError(f"{root} has no episode to divide; generate or ingest some, or see curation.json for reasons")
    before = {} if fresh else _earlier(dataset, seed, fractions)
    looks = spread(partial(looks_of, dataset.root), [row.id for row in rows], workers=workers, progress=progress)
    units = _units(rows, looks)
    placed, left_out = _place(units, before, fractions, seed)
    ids = {part: tuple(sorted(id for id, where in placed.items() if where == part)) for part in SPLITS}
    used = [row for row in rows if row.id in placed]
    result = Split(
        seed=seed,
        fractions=fractions,
        ids=ids,
        groups={**before, **{_group(row): placed[row.id] for row in used}},
        strata=_strata(used, placed, fractions),
        curated=judged is not None,
        unjudged=tuple(judged[1]) if judged else (),
        left_out=tuple(sorted(left_out)),
        joined=len({_group(row) for row in rows}) - len(units),
    )
    found = _leaks(used, [look for row, look in zip(rows, looks, strict=True) if row.id in placed], placed)
    if found:
        raise ValueError(f"the split leaks, and nothing was written: {'; '.join(found[:3])}; pass fresh (--fresh)")
    _write(dataset, result)
    return result


def leaks(root: str | Path, *, workers: int = 2, progress: Progress | None = None) -> list[str]:
    """What the split in ``splits/`` lets leak: a group, a video or a first frame that is in two parts."""
    dataset, placed, out = open_dataset(root), dict[str, str](), list[str]()
    for part in SPLITS:
        for id in read_split(root, part):
            if id in placed:
                out.append(f"episode {id} is in {placed[id]} and in {part}")
            placed[id] = part
    rows = [dataset.row(id) for id in sorted(placed)]
    looks = spread(partial(looks_of, dataset.root), [row.id for row in rows], workers=workers, progress=progress)
    return out + _leaks(rows, looks, placed)


def read_split(root: str | Path, part: str) -> list[str]:
    """Ids of one part."""
    if part not in SPLITS:
        raise ValueError(f"a split has the parts {', '.join(SPLITS)}, got {part!r}")
    file = Path(root) / "splits" / f"{part}.txt"
    if not file.is_file():
        raise ValueError(f"{file} does not exist; run 'kinema4d data split {root}'")
    return file.read_text(encoding="utf-8").split()


def split_to_dict(result: Split) -> dict[str, Any]:
    """As ``splits.json`` has it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "kinema4d_version": version(),
        "seed": result.seed,
        "fractions": list(result.fractions),
        "curated": result.curated,
        "counts": {part: len(result.ids[part]) for part in SPLITS},
        "strata": [
            {
                "source": s.source,
                "task": s.task,
                "outcome": s.outcome,
                **dict(zip(SPLITS, s.counts, strict=True)),
                "deviation": round(s.deviation, 3),
            }
            for s in result.strata
        ],
        "joined_groups": result.joined,
        "unjudged": list(result.unjudged),
        "left_out": list(result.left_out),
        "groups": dict(sorted(result.groups.items())),
    }


# ---------------------------------------------------------------------- parts


def _group(row: Row) -> str:
    return row.group or f"episode {row.id}"


def _units(rows: Sequence[Row], looks: Sequence[Look]) -> list[list[Row]]:
    """Rows that must stay together: of one group, or of groups that share a video or a first frame."""
    parent: dict[str, str] = {_group(row): _group(row) for row in rows}

    def top(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for i, j in same_content(looks):
        a, b = sorted((top(_group(rows[i])), top(_group(rows[j]))))
        parent[b] = a
    units: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        units[top(_group(row))].append(row)
    return list(units.values())


def _keys(row: Row) -> list[tuple[str, ...]]:
    """The levels at which a row counts, coarse to fine."""
    return [
        (),
        (row.dataset,),
        (row.dataset, row.task),
        (row.dataset, row.task, row.outcome),
    ]


def _place(
    units: list[list[Row]], before: Mapping[str, str], fractions: tuple[float, float, float], seed: int
) -> tuple[dict[str, str], list[str]]:
    counts: dict[tuple[str, ...], np.ndarray] = defaultdict(lambda: np.zeros(3))
    placed: dict[str, str] = {}
    left_out: list[str] = []
    wanted = np.array(fractions)

    def put(rows: list[Row], part: int) -> None:
        for row in rows:
            placed[row.id] = SPLITS[part]
            for key in _keys(row):
                counts[key][part] += 1

    new = []
    for unit in units:
        known = {_group(row): before[_group(row)] for row in unit if _group(row) in before}
        if not known:
            new.append(unit)
        elif len(set(known.values())) == 1:
            put(unit, SPLITS.index(next(iter(known.values()))))
        else:  # something new looks like two old groups in different parts
            for row in unit:
                if _group(row) in known:
                    put([row], SPLITS.index(known[_group(row)]))
                else:
                    left_out.append(row.id)
    names = [min(_group(row) for row in unit) for unit in new]
    order = sorted(range(len(new)), key=lambda i: hashlib.sha256(f"{seed} {names[i]}".encode()).digest())
    for i in order:
        adds: dict[tuple[str, ...], int] = defaultdict(int)
        for row in new[i]:
            for key in _keys(row):
                adds[key] += 1
        costs = np.zeros(3)
        for key, n in adds.items():
            gap = counts[key] - wanted * (counts[key].sum() + n)
            costs += ((gap + n * np.eye(3)) ** 2).sum(axis=1)
        costs[wanted == 0] = np.inf
        put(new[i], int(costs.argmin()))
    return placed, left_out


def _strata(
    rows: Sequence[Row], placed: Mapping[str, str], fractions: tuple[float, float, float]
) -> tuple[Stratum, ...]:
    counts: dict[tuple[str, str, str], np.ndarray] = defaultdict(lambda: np.zeros(3, int))
    for row in rows:
        counts[(row.dataset, row.task, row.outcome)][SPLITS.index(placed[row.id])] += 1
    return tuple(
        Stratum(
            source=source,
            task=task,
            outcome=outcome,
            counts=(int(n[0]), int(n[1]), int(n[2])),
            deviation=float(np.abs(n - np.array(fractions) * n.sum()).max()),
        )
        for (source, task, outcome), n in sorted(counts.items())
    )


def _leaks(rows: Sequence[Row], looks: Sequence[Look], placed: Mapping[str, str]) -> list[str]:
    out = []
    where: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        where[_group(row)].setdefault(placed[row.id], row.id)
    for group, parts in where.items():
        if len(parts) > 1:
            out.append(f"group {group!r} is in {' and '.join(f'{p} ({id})' for p, id in parts.items())}")
    for i, j in same_content(looks):
        a, b = rows[i], rows[j]
        if placed[a.id] != placed[b.id]:
            what = "the same video" if looks[i].video == looks[j].video else "the same first frame"
            out.append(f"{a.id} ({placed[a.id]}) and {b.id} ({placed[b.id]}) have {what}")
    return out


def _earlier(dataset: Dataset, seed: int, fractions: tuple[float, float, float]) -> dict[str, str]:
    file = dataset.root / "splits" / "splits.json"
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        groups = {str(group): str(part) for group, part in content["groups"].items()}
        then = (content["seed"], tuple(content["fractions"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}); pass fresh (--fresh) to divide anew") from None
    if then != (seed, tuple(fractions)):
        raise ValueError(
            f"{file.parent} was made with seed {then[0]} and fractions {then[1]}, now asked are {seed} and "
            f"{tuple(fractions)}; use the same, or pass fresh (--fresh) to divide anew: groups will move"
        )
    return groups


def _write(dataset: Dataset, result: Split) -> None:
    ours = lambda folder: (folder / "splits.json").is_file()  # noqa: E731
    with whole_folder(dataset.root / "splits", overwrite=True, ours=ours) as folder:
        for part in SPLITS:
            (folder / f"{part}.txt").write_text("".join(f"{id}\n" for id in result.ids[part]), encoding="utf-8")
        text = json.dumps(split_to_dict(result), indent=1, allow_nan=False) + "\n"
        (folder / "splits.json").write_text(text, encoding="utf-8")
