"""``kinema4d data ingest``: recordings of other data sets."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Literal

import tyro

from kinema4d.cli.console import warn
from kinema4d.cli.progress import bar


def ingest(
    source: Annotated[
        Literal["droid", "bridge", "rt1", "libero", "libero_live", "lerobot", "robo4d"], tyro.conf.Positional
    ],
    /,
    *,
    root: Path,
    out: Path,
    name: str | None = None,
    frames: int = 49,
    limit: int | None = None,
    workers: int = 2,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    json: bool = False,
) -> None:
    """Bring recordings of another data set in. What is broken is skipped, counted and explained.

    A killed run goes on where it stopped: give the same command again.

    Args:
        source: What --root holds. DROID, Bridge and RT-1 as RLDS (TensorFlow is not needed), DROID also as LeRobot or
            JSON and mp4, LIBERO as HDF5 or recorded live (docs/libero.md), any LeRobot data set, the official layout.
        root: Where it lies.
        out: Data set to make or to add to.
        name: What the ids begin with; needed where two roots of one source go into one data set.
        frames: Keep this many frames, evenly spaced; 0 keeps all.
        limit: Stop after this many recordings.
        workers: Processes.
        engine: Processes here, or a Ray cluster.
        ray_address: Cluster to join; by default a local one with --workers cores.
        json: Print one JSON object instead of text.
    """
    from kinema4d.data.collect import ingest as bring
    from kinema4d.data.collect import reasons
    from kinema4d.data.dataset import open_dataset

    with bar("reading", quiet=json) as progress:
        tell = None if progress is None else lambda s, total: progress(s.jobs + len(s.skipped), total)
        summary = bring(
            source, root, out, name=name, frames=frames, limit=limit,
            engine=engine, workers=workers, address=ray_address, tell=tell,
        )  # fmt: skip
    for line in summary.mended:
        warn(line)
    total = len(open_dataset(out))
    if json:
        numbers = {"episodes": total, "written": summary.episodes, "recordings": summary.jobs, "before": summary.before}
        print(json_module.dumps({**numbers, "skipped": summary.skipped, "reasons": reasons(summary)}))
    else:
        print(f"{summary.jobs} recordings read, {summary.before} were there, {summary.episodes} episodes written")
        for reason, count in reasons(summary).items():
            print(f"skipped {count}: {reason}")
        if summary.skipped:
            print(f"each one, with file and remedy: {out / 'reports' / f'ingest-{name or source}.json'}")
        print(f"{total} episodes in {out}; next: kinema4d data doctor {out}")
    if summary.skipped and not summary.jobs and not summary.before:
        raise SystemExit(1)
