"""``kinema4d doctor``: what is installed and what is missing."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path


def doctor(*, weights: Path | None = None, adapter: Path | None = None, json: bool = False) -> None:
    """Say what is installed, what is missing and how to get it; or check weights of the world wan without loading them.

    Args:
        weights: Folder of Wan2.1-I2V as diffusers has it, to be checked instead.
        adapter: Folder of an adapter for it.
        json: Print one JSON object instead of a table.
    """
    if weights is not None or adapter is not None:
        _weights(weights, adapter, json)
        return
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


def _weights(weights: Path | None, adapter: Path | None, json: bool) -> None:
    if weights is None:
        raise ValueError("an adapter is checked against its base: give --weights too")
    try:
        from kinema4d.world.wan.load import check
        from kinema4d.world.wan.memory import LOWER, load_of
    except ImportError as error:
        raise ValueError(f"checking weights needs {error.name}: pip install 'kinema4d[wan]'") from None
    found = check(weights, adapter)
    config = json_module.loads((weights / "transformer" / "config.json").read_text())
    needs = {n: round(load_of(config, **o).total_gb, 1) for n, o in {"as it is": {}, **LOWER}.items()}
    if json:
        print(json_module.dumps({**found, "needs_gb": needs}))
        return
    base, own = found["transformer"], found["adapter"]
    print(
        f"transformer: {base['tensors']} tensors, {base['gb']} GB, {base['layers']} layers: whole, every name and size is right"
    )
    if own is not None:
        print(f"adapter: {own['kind']}, {own['variant']}, LoRA of rank {own['rank']} at scale {own['scale']:g}: fits")
    print("on the card, computed for 49 frames of 480x720: " + ", ".join(f"{n} {gb} GB" for n, gb in needs.items()))
