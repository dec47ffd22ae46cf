"""``kinema4d data doctor``: what is wrong with a data set, and how to fix it."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from kinema4d.cli.progress import bar

if TYPE_CHECKING:
    from kinema4d.data.doctor import Report


def doctor(
    dataset: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    episode: tuple[str, ...] = (),
    all: bool = False,
    thresholds: Path | None = None,
    limit: tuple[str, ...] = (),
    assets: Path | None = None,
    workers: int = 2,
    json: bool = False,
) -> None:
    """Check every episode: files, frames, camera, gripper polarity, sync, flips, robot against image, depth, motion.

    Exits with 1 when anything is bad.

    Args:
        dataset: Folder that 'data generate' or 'data ingest' wrote. Raw data goes through 'data ingest' first.
        episode: Only these episodes, by id or number.
        all: Show every finding, not only problems.
        thresholds: JSON object with other limits (docs/curation.md).
        limit: One limit each, "name=number" or "name=warn,bad", e.g. sync_frames=2,3.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
        workers: Processes.
        json: Print one JSON object instead of tables.
    """
    from kinema4d.data.doctor import doctor as examine
    from kinema4d.data.doctor import report_to_dict
    from kinema4d.data.thresholds import load_thresholds

    limits = load_thresholds(thresholds, limit)
    with bar("checking", quiet=json) as progress:
        report = examine(dataset, limits, episodes=episode, workers=workers, assets=assets, progress=progress)
    if json:
        print(json_module.dumps(report_to_dict(report), indent=1))
    else:
        _print(report, all)
    if report.severity == "bad":
        raise SystemExit(1)


def _print(report: Report, every: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colors = {"ok": "green", "warn": "yellow", "bad": "red"}
    table = Table(box=None, pad_edge=False, show_header=True)
    for column in ("", "episode", "check", "found", "to fix it"):
        table.add_column(column, overflow="fold", ratio=None if column in ("", "check") else 1)
    lines = [("(data set)", f) for f in report.findings]
    lines += [(e.id, f) for e in report.episodes for f in e.findings]
    for where, f in lines:
        if every or f.severity != "ok":
            mark = f"[{colors[f.severity]}]{f.severity}[/]"
            table.add_row(mark, escape(where), f.check, escape(f.message), escape(f.remedy))
    console = Console()
    if table.row_count:
        console.print(table, highlight=False)
    n = report.counts
    text = f"{len(report.episodes)} episodes: {n['ok']} ok, {n['warn']} with warnings, {n['bad']} bad"
    console.print(f"[{colors[report.severity]}]{text}[/]", highlight=False)
