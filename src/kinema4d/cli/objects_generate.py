"""``kinema4d objects generate``: objects in 4D, for kinematics that are learnt from meshes alone."""

from __future__ import annotations

import json as json_module
from collections import Counter
from pathlib import Path

from kinema4d.cli.console import warn
from kinema4d.cli.progress import bar


def generate_objects(
    *,
    out: Path,
    objects: int = 200,
    kinds: tuple[str, ...] = ("all",),
    poses: int = 64,
    motions: int = 2,
    held_out: tuple[str, ...] = ("faucet", "scissors"),
    seed: int = 0,
    workers: int = 2,
    assets: Path | None = None,
    json: bool = False,
) -> None:
    """Draw objects (jointed, elastic, cloth, ropes, rigid, mixed, real), and let MuJoCo pose and move them.

    A killed run goes on where it stopped: give the same command again. More --objects add to what is there.

    Args:
        out: Data set to make or to go on with.
        objects: How many; real ones come first, each once, the other kinds take turns.
        kinds: all (every kind, and real ones where their files are found), or some of door, drawers, laptop, scissors, lamp, faucet,
            chain, bar, blob, plate, cloth, rope, rigid, door-rope, box-cloth, real-door, real-drawer, ...
        poses: Of each object.
        motions: Free motions of each object, of one second or until a joint comes to its end.
        held_out: Kinds that nothing learns from: all of them are the split test-category.
        seed: Of everything random.
        workers: Processes, each on one core.
        assets: Folder with metaworld/ and gymnasium_robotics/ out of their wheels; else KINEMA4D_OBJECT_ASSETS, KINEMA4D_ASSETS and pip
            packages are searched.
        json: Print one JSON object instead of a table.
    """
    from kinema4d.data.objects4d import read_objects
    from kinema4d.data.objects_generate import KINDS, Recipe, generate
    from kinema4d.scenes.assets import available

    chosen = (*KINDS, *available(assets)) if kinds == ("all",) else kinds
    recipe = Recipe(objects=objects, kinds=chosen, poses=poses, motions=motions, held_out=held_out, seed=seed)
    with bar("moving objects", quiet=json) as progress:
        tell = None if progress is None else lambda s, total: progress(s.jobs + len(s.skipped), total)
        summary = generate(out, recipe, workers=workers, assets=assets, tell=tell)
    for line in summary.mended:
        warn(line)
    found = read_objects(out)
    splits = Counter(o.split for o in found)
    if json:
        categories = dict(sorted(Counter(o.category for o in found).items()))
        told = {
            "objects": len(found),
            "written": summary.episodes,
            "seconds": round(summary.seconds, 3),
            "skipped": summary.skipped,
        }
        print(json_module.dumps(told | {"splits": dict(splits), "categories": categories}))
    else:
        _show(Counter((o.category, o.kind) for o in found), splits)
        print(f"{summary.episodes} objects in {summary.seconds:.1f} s; {len(found)} in {out}")
        for name, reason in summary.skipped.items():
            print(f"skipped {name}: {reason}")
    if summary.skipped:
        raise SystemExit(1)


def _show(kinds: Counter[tuple[str, str]], splits: Counter[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("category", "kind"):
        table.add_column(name)
    table.add_column("objects", justify="right")
    for (category, kind), count in sorted(kinds.items()):
        table.add_row(category, kind, str(count))
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(", ".join(f"{count} {name}" for name, count in sorted(splits.items())), highlight=False)
