"""``kinema4d doctor``: what is installed and what is missing."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict


def doctor(*, json: bool = False) -> None:
    """Say what is installed, what is missing and how to get it.

    Args:
        json: Print one JSON object instead of a table.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from kinema4d import __version__
    from kinema4d.doctor import examine

    findings = examine()
    if json:
        print(json_module.dumps({"version": __version__, "findings": [asdict(f) for f in findings]}, indent=1))
    else:
        table = Table(title=f"kinema4d {__version__}", title_justify="left", box=None, pad_edge=False)
        for column in ("", "what", "found", "to get it"):
            table.add_column(column, overflow="fold")
        for f in findings:
            table.add_row(
                "[green]ok[/]" if f.ok else "[yellow]--[/]", f.name, f.detail, "" if f.ok else escape(f.remedy)
            )
        Console().print(table)
    if any(f.group in ("system", "core") and not f.ok for f in findings):
        raise SystemExit(1)
