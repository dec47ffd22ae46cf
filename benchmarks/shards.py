"""Shards for training: are they read faster than a small model trains, and what do they cost on disk?

    python benchmarks/shards.py                    # a table; generates 12 episodes first
    python benchmarks/shards.py --dataset robo4d/  # on your own data set
    python benchmarks/shards.py --json             # one object

One process, one reading thread. Clip folders and shards are read turn by turn, so that a busy moment hits both, and times
are medians over rounds of CPU seconds (wall in brackets): video decoders use threads, wall time alone would flatter them.
Files are in the page cache, except in the row that says otherwise.
"""

from __future__ import annotations

import json as json_module
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from kinema4d.data.batches import batches
from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.pack import pack
from kinema4d.data.shards import Shards, open_shards

TRAIN_SECONDS = 2.08
"""Core-seconds of a training step per sample of 49 frames at 96x144: an 8x384 transformer on 4x16x16 patches of RGB and
pointmap, forward and backward, fp32, measured on this machine."""
WINDOW = 17
"""Frames of a random window."""


def clocks(work: Callable[[], Any]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def sample_of(shards: Shards, id: str, frames: slice | None) -> None:
    """All that an episode has, with depth in metres, as a trainer takes it."""
    shards.read(id, frames).depth()


def windows(dataset: Dataset, seed: int) -> Iterator[tuple[str, slice]]:
    rng = np.random.default_rng(seed)
    for row in dataset.rows:
        first = int(rng.integers(0, max(row.frames - WINDOW, 0) + 1))
        yield row.id, slice(first, first + WINDOW)


def forget(path: Path) -> None:
    """Ask the system to drop the files from its page cache."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def cold(path: Path, ids: list[str]) -> None:
    shards = open_shards(path)
    for id in ids:
        sample_of(shards, id, None)


def measure(dataset: Dataset, folder: Path, rounds: int) -> dict[str, Any]:
    done = pack(dataset, folder / "shards", overwrite=True)
    path, ids = done.path, dataset.ids
    shards = open_shards(path)
    length = int(shards.frames.min())
    times: dict[str, list[tuple[float, float]]] = {}

    def note(name: str, work: Callable[[], Any], count: int = len(ids)) -> None:
        cpu, wall = clocks(work)
        times.setdefault(name, []).append((1e3 * cpu / count, 1e3 * wall / count))

    for number in range(rounds):
        note("folders, whole", lambda: [dataset.load(id) for id in ids])
        note("shards, whole", lambda: [sample_of(shards, id, None) for id in ids])
        note("shards, whole, as Episode", lambda: [shards.read(id).episode() for id in ids])
        chosen = list(windows(dataset, number))
        note("folders, window", lambda chosen=chosen: [dataset.load(id, frames) for id, frames in chosen])
        note("shards, window", lambda chosen=chosen: [sample_of(shards, id, frames) for id, frames in chosen])
        batch = max(n for n in (1, 2, 4, 8) if n <= len(ids))
        note(
            "batches, whole",
            lambda batch=batch: list(batches(shards, batch, length, epochs=1)),
            len(ids) // batch * batch,
        )
        forget(path)
        note("shards, whole, not cached", lambda: cold(path, ids))
    ms = {name: np.median(found, axis=0).round(3).tolist() for name, found in times.items()}
    frames = done.frames / done.episodes
    raw = frames * shards.height * shards.width * (3 + 2 + 1) / 1e6
    cpu = {name: both[0] for name, both in ms.items()}
    share = frames * shards.height * shards.width / (49 * 96 * 144)
    return {
        "ms_per_sample_cpu_wall": ms,
        "episodes_per_second": 1e3 / cpu["shards, whole"],
        "frames_per_second": 1e3 * frames / cpu["shards, whole"],
        "windows_per_second": 1e3 / cpu["shards, window"],
        "speedup_whole": cpu["folders, whole"] / cpu["shards, whole"],
        "speedup_window": cpu["folders, window"] / cpu["shards, window"],
        "trainer_over_loader": 1e3 * TRAIN_SECONDS * share / cpu["batches, whole"],
        "mb_per_episode": done.bytes / done.episodes / 1e6,
        "folder_mb_per_episode": done.folder_bytes / done.episodes / 1e6,
        "raw_mb_per_episode": raw,
        "pack_seconds_per_episode": done.seconds / done.episodes,
        "episodes": done.episodes,
        "frames": frames,
        "size": [shards.height, shards.width],
    }


def main(dataset: Path | None = None, rounds: int = 5, json: bool = False) -> None:
    """Measure shards.

    Args:
        dataset: Data set to pack; by default 12 tabletop episodes are generated.
        rounds: Repetitions, of which the median counts.
        json: Print one JSON object instead of a table.
    """
    with tempfile.TemporaryDirectory() as folder:
        if dataset is None:
            from kinema4d.data.generate import Recipe, generate

            dataset = Path(folder) / "set"
            generate(dataset, Recipe(episodes=12, failures=1), workers=2)
        found = measure(open_dataset(dataset), Path(folder), rounds)
    versions = {name: metadata.version(name) for name in ("numpy", "lz4", "av")}
    found["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), **versions}
    if json:
        print(json_module.dumps(found))
        return
    print(f"{found['episodes']} episodes of {found['frames']:g} frames, {'x'.join(map(str, found['size']))}")
    print(f"{'':28}{'CPU ms':>9}  (wall)   per second")
    for name, (cpu, wall) in found["ms_per_sample_cpu_wall"].items():
        print(f"{name:28}{cpu:9.2f}  ({wall:.2f})".ljust(50) + f"{1e3 / cpu:8.1f}")
    print(f"shards over folders: whole {found['speedup_whole']:.0f}x, window {found['speedup_window']:.0f}x")
    print(f"one reading thread feeds {found['trainer_over_loader']:.0f} cores of the small trainer")
    sizes = [found[f"{name}mb_per_episode"] for name in ("", "folder_", "raw_")]
    print("MB per episode: shards {:.3f}, clip folder {:.3f}, raw images {:.3f}".format(*sizes))
    print(f"packing: {found['pack_seconds_per_episode']:.2f} s per episode with 2 workers")
    print(found["machine"])


if __name__ == "__main__":
    tyro.cli(main)
