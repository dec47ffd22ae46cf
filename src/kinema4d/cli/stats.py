"""``kinema4d data stats``: what a data set holds."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import tyro

from kinema4d.cli.progress import bar


def stats(
    dataset: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    assets: Path | None = None,
    json: bool = False,
) -> None:
    """Count episodes by source, task, robot, outcome and more; sizes, motion ranges and gap distribution.

    Args:
        dataset: Folder that 'data generate' or 'data ingest' wrote.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
        json: Print one JSON object instead of tables.
    """
    from kinema4d.data.stats import stats as count

    with bar("reading", quiet=json) as progress:
        found = count(dataset, assets=assets, progress=progress)
    if json:
        print(json_module.dumps(found, indent=1))
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False)
    size = found["bytes_per_episode"]
    table.add_row("episodes", f"{found['episodes']} in {found['groups']} groups, {found['instructions']} instructions")
    table.add_row("length", f"{found['frames']} frames, {found['hours']:.3g} hours")
    if size:
        table.add_row("size", f"{found['bytes'] / 1e6:.1f} MB, {size['p50'] / 1e3:.0f} kB per episode (median)")
    gap = found["min_gap_m"]
    if gap:
        parts = ", ".join(f"{key[1:]} % {1e3 * value:.1f}" for key, value in gap.items() if key.startswith("p"))
        table.add_row("gap, mm", f"{parts} ({gap['count']} episodes)")
    for name, counts in found["by"].items():
        shown = list(counts.items())[:8]
        more = f", {len(counts) - 8} more" if len(counts) > 8 else ""
        table.add_row(name, ", ".join(f"{value} {n}" for value, n in shown) + more)
    for name, box in found["tool_box_m"].items():
        spans = ", ".join(f"{axis} {low:.2f}..{high:.2f}" for axis, low, high in zip("xyz", *box, strict=True))
        table.add_row(f"tool of {name}", f"{spans} m")
    console.print(table, highlight=False)
    ranges = Table(box=None, pad_edge=False)
    for column in ("robot", "joint", "lowest", "highest"):
        ranges.add_column(column, justify="right" if column.endswith("est") else "left")
    for robot, joints in found["joints"].items():
        for joint, (low, high) in joints.items():
            ranges.add_row(robot, joint, f"{low:.3f}", f"{high:.3f}")
    if ranges.row_count:
        console.print(ranges, highlight=False)
    if found["unreadable"]:
        console.print(f"[red]{len(found['unreadable'])} episodes cannot be read: run 'kinema4d data doctor'[/]")
