"""``kinema4d data record-libero``: demonstrations and failures in a live LIBERO, which has an environment of its own."""

from __future__ import annotations

import json as json_module
from pathlib import Path


def record_libero(
    *,
    python: Path,
    assets: Path,
    out: Path,
    suites: tuple[str, ...] = ("libero_object", "libero_spatial"),
    tasks: tuple[int, ...] = tuple(range(10)),
    inits: tuple[int, ...] = (0,),
    failures: bool = True,
    seed: int = 0,
    height: int = 240,
    width: int = 360,
    workers: int = 1,
    json: bool = False,
) -> None:
    """Record scripted demonstrations and the paper's nine failures of each in LIBERO (docs/libero.md sets it up).

    Then: kinema4d data ingest libero_live --root OUT --out robo4d/

    Args:
        python: Interpreter of LIBERO's own environment.
        assets: LIBERO's asset folder.
        out: Folder for the recordings; those that are there are kept.
        suites: Task suites.
        tasks: Numbers of tasks.
        inits: Numbers of initial states.
        failures: Also record the nine perturbed replays of each success.
        seed: Of the noise.
        height: Image rows.
        width: Image columns.
        workers: Tasks at once.
        json: Print one JSON object per event.
    """
    from dataclasses import asdict

    from kinema4d.data.ingest.libero_live import Progress, record

    def say(progress: Progress) -> None:
        line = asdict(progress)
        print(json_module.dumps(line, default=str) if json else "  ".join(f"{v}" for v in line.values() if v != ""))

    done = record(
        out, python=python, assets=assets, suites=suites, tasks=tasks, inits=inits, failures=failures, seed=seed,
        size=(height, width), workers=workers, report=say,
    )  # fmt: skip
    if not json:
        print(f"{len(done)} events; next: kinema4d data ingest libero_live --root {out} --out robo4d/")
