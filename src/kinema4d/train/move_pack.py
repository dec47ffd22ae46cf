"""What the correction of motions learns from: episodes as the small world sees and moves them, beside the truth.

Every episode of a data set is looked at in its first frame, the engine answers to its robot several times, and each
part is told how the thing that its pixels show really moved. A pack is a folder of shards (``.npz``), each whole or
absent, so an interrupted run goes on. Episodes of one group share their first frame, but not the robot's path, which
says what is completed: each is looked at for itself.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32

from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.pool import Progress, spread
from kinema4d.files import whole_file
from kinema4d.geometry.se3 import invert
from kinema4d.robot.recorded import control_of
from kinema4d.types import Episode
from kinema4d.world.load import load_world
from kinema4d.world.protocol import first_depth
from kinema4d.world.small.move_scene import Case, case_of, lowered
from kinema4d.world.small.parts import Part
from kinema4d.world.small.rigid import Physics, answer, draw
from kinema4d.world.small.world import SmallWorld, SmallWorldWarning

PER_SHARD = 8
"""Episodes per shard."""
SHARE = 0.5
"""A part is what at least this share of its pixels show."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One episode."""

    case: Case
    """What was seen, the robot, and the engine's answers."""
    truth: Float32[np.ndarray, "p t 4 4"]
    """How each part really moved against the first frame; support at z = 0."""
    known: Bool[np.ndarray, " p"]
    """Whether it is known what a part is; others are shown but not judged."""
    group: str
    """Episodes of one scene."""
    task: str
    """Of the episode."""


def true_motions(
    parts: Sequence[Part], episode: Episode
) -> tuple[Float[np.ndarray, "p t 4 4"], Bool[np.ndarray, " p"]]:
    """Motions of the things that most pixels of each part show; what shows none of them stands still. A part that
    shows several things is not known."""
    assert episode.labels is not None
    tracks = {t.name: t.Ts_world_object for t in episode.tracks}
    motions = np.tile(np.eye(4), (len(parts), len(episode.clip), 1, 1))
    known = np.zeros(len(parts), bool)
    for i, part in enumerate(parts):
        seen = np.bincount(episode.labels[0][part.mask].astype(np.int64), minlength=1)
        label = int(seen.argmax()) if seen.sum() else 0
        known[i] = seen.sum() > 0 and seen[label] >= SHARE * seen.sum()
        name = episode.label_names[label - 1] if label else ""
        if known[i] and name in tracks:
            Ts = np.asarray(tracks[name], np.float64)
            motions[i] = Ts @ invert(Ts[0])
    return motions, known


def sample_of(world: SmallWorld, episode: Episode, *, draws: int = 2) -> Sample | None:
    """An episode as a sample; None where nothing was seen that could move. One without truth is refused."""
    if not episode.tracks or episode.labels is None:
        raise ValueError(f"episode {episode.source or '?'} has no tracks or no labels: there is nothing to learn from")
    control = control_of(episode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallWorldWarning)
        seen = world.see(episode.clip.rgb[0], control, depth=first_depth(episode.clip))
    if not seen.parts:
        return None
    here: dict[str, Any] = {"fps": control.fps, "support": seen.view.support}
    number = zlib.crc32(episode.source.encode())
    physics = [Physics(), *(draw(np.random.default_rng([number, k])) for k in range(1, draws))]
    proposals = np.stack([answer(seen.parts, control.solids, physics=p, **here) for p in physics])
    truth, known = true_motions(seen.parts, episode)
    return Sample(
        case=case_of(seen.parts, control.solids, proposals, **here),
        truth=lowered(truth, seen.view.support).astype(np.float32),
        known=known,
        group=episode.group or episode.source,
        task=episode.task,
    )


# ---------------------------------------------------------------------- files


def episodes_in(data: str | Path) -> Dataset:
    """The data set at a path; anything else is refused with what it is."""
    data = Path(data)
    if any(data.glob("see-*.npz")):
        raise ValueError(
            f"{data} is a pack of pictures (see-*.npz), which the seeing networks learn from; small-move learns from "
            "episodes: give a data set (kinema4d data generate)"
        )
    dataset = open_dataset(data)
    if not len(dataset):
        raise ValueError(f"{data} is a data set without episodes: generate or ingest some first (kinema4d data)")
    return dataset


def make_pack(
    folder: str | Path,
    data: str | Path,
    *,
    draws: int = 2,
    world: str = "small",
    most: int | None = None,
    workers: int = 2,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """See and move the episodes of ``data`` (the first ``most``) into shards; those that are there already are kept."""
    if draws < 1:
        raise ValueError(f"at least 1 draw of the engine is needed, got {draws}")
    folder, dataset = Path(folder), episodes_in(data)
    _check_about(folder, {"draws": draws, "weights": dict(the_small_world(world).about).get("sha256", "")})
    ids = dataset.ids[:most]
    parts = [ids[i : i + PER_SHARD] for i in range(0, len(ids), PER_SHARD)]
    # The name says which episodes: a data set that has grown makes its last shard anew.
    paths = [folder / f"move-{i:05d}-{zlib.crc32(' '.join(p).encode()):08x}.npz" for i, p in enumerate(parts)]
    missing = [(p, str(data), x, draws, world) for p, x in zip(paths, parts, strict=True) if not p.exists()]
    spread(_make_shard, missing, workers=workers, progress=progress)
    return tuple(paths)


def _check_about(folder: Path, about: dict[str, Any]) -> None:
    file = folder / "about.json"
    if not file.exists():
        with whole_file(file, overwrite=True) as temporary:
            temporary.write_text(json.dumps(about))
    elif (found := json.loads(file.read_text())) != about:
        raise ValueError(f"{folder} holds a pack made with {found}, now {about}; use another folder")


@lru_cache(maxsize=1)
def the_small_world(name: str) -> SmallWorld:
    """A small world, kept."""
    world = load_world(name)
    if not isinstance(world, SmallWorld):
        raise ValueError(f"only the small world's motions can be corrected, got {name!r}")
    return world


def _make_shard(content: tuple[Path, str, list[str], int, str]) -> None:
    path, root, ids, draws, world = content
    dataset, found = open_dataset(root), []
    for id in ids:
        try:
            sample = sample_of(the_small_world(world), dataset.load(id), draws=draws)
        except ValueError as error:  # one bad episode is no reason to stop; a pack without any sample is
            warnings.warn(f"left out {id}: {error}", stacklevel=2)
            continue
        if sample is not None:
            found.append(sample)
    write_shard(path, found)


_ARRAYS = tuple(f.name for f in fields(Case) if f.name != "seconds")


def write_shard(path: Path, samples: Sequence[Sample]) -> None:
    """One file, arrays by number and name."""
    rows: dict[str, Any] = {"count": np.array(len(samples))}
    for i, s in enumerate(samples):
        rows |= {f"{i}.{k}": getattr(s.case, k) for k in _ARRAYS}
        rows |= {f"{i}.{k}": np.array(getattr(s, k)) for k in ("truth", "known", "group", "task")}
        rows[f"{i}.seconds"] = np.array(s.case.seconds)
    with whole_file(path, overwrite=True) as temporary:
        np.savez(temporary, **rows)


def read_shard(path: Path) -> list[Sample]:
    """What :func:`write_shard` wrote."""
    with np.load(path, allow_pickle=False) as file:
        found = {k: file[k] for k in file.files}
    return [
        Sample(
            case=Case(**{k: found[f"{i}.{k}"] for k in _ARRAYS}, seconds=float(found[f"{i}.seconds"])),
            truth=found[f"{i}.truth"],
            known=found[f"{i}.known"],
            group=str(found[f"{i}.group"]),
            task=str(found[f"{i}.task"]),
        )
        for i in range(int(found["count"]))
    ]


def read_pack(paths: Sequence[Path]) -> list[Sample]:
    """Every sample of the shards."""
    samples = [s for path in paths for s in read_shard(path)]
    if not samples:
        raise ValueError("no episode of this data set shows parts with a known truth: there is nothing to learn from")
    return samples
