"""``kinema4d data curate``: score every episode, decide what to keep, and show it."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import tyro

from kinema4d.cli.progress import bar


def curate(
    dataset: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    thresholds: Path | None = None,
    limit: tuple[str, ...] = (),
    report: bool = True,
    worst: int = 200,
    sample: int = 100,
    assets: Path | None = None,
    workers: int = 2,
    json: bool = False,
) -> None:
    """Score every episode, write curation.json, and a page to browse: reports/curation.html.

    Args:
        dataset: Folder that 'data generate' or 'data ingest' wrote.
        thresholds: JSON object with other limits (docs/curation.md).
        limit: One limit each, "name=number" or "name=warn,bad", e.g. keep_score=0.5.
        report: Write the page.
        worst: Episodes shown on the page for their low score.
        sample: Others shown on the page.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
        workers: Processes.
        json: Print one JSON object instead of a table.
    """
    from kinema4d.data.curate import curate as judge
    from kinema4d.data.report import write_report
    from kinema4d.data.thresholds import load_thresholds

    with bar("checking", quiet=json) as progress:
        curation = judge(dataset, load_thresholds(thresholds, limit), workers=workers, assets=assets, progress=progress)
    page = None
    if report:
        with bar("drawing", quiet=json) as progress:
            page = write_report(dataset, curation, worst=worst, sample=sample, workers=workers, progress=progress)
    kept, total = len(curation.kept), len(curation.decisions)
    if json:
        summary = {
            "kept": kept,
            "dropped": total - kept,
            "reasons": curation.reasons,
            "curation": str(dataset / "curation.json"),
            "report": str(page) if page else None,
        }
        print(json_module.dumps(summary))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("check")
    table.add_column("bad", justify="right")
    table.add_column("warn", justify="right")
    for check, n in curation.reasons.items():
        table.add_row(check, str(n["bad"]), str(n["warn"]))
    console = Console(soft_wrap=True)
    if table.row_count:
        console.print(table)
    console.print(f"kept {kept} of {total} episodes; decisions in {dataset / 'curation.json'}", highlight=False)
    if page:
        console.print(f"look: {page}", highlight=False)
