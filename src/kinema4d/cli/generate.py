"""``kinema4d data generate``: simulated episodes, successes and failures."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Literal

from kinema4d.cli.console import warn
from kinema4d.cli.progress import bar


def generate(
    *,
    out: Path,
    suite: Literal["tabletop"] = "tabletop",
    episodes: int = 100,
    robots: str = "panda,xarm7,ur5",
    tasks: str = "all",
    scenarios: str = "canonical,cluttered,dynamic",
    failures: int = 3,
    seed: int = 0,
    height: int = 96,
    width: int = 144,
    look: Literal["train", "unseen"] = "train",
    workers: int = 2,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    json: bool = False,
) -> None:
    """Simulate episodes: a robot at a table, expert demonstrations and the failures that noise makes of them.

    A killed run goes on where it stopped: give the same command again. More --episodes add to what is there.

    Args:
        out: Data set to make or to go on with.
        suite: Kind of scenes.
        episodes: How many, demonstrations and disturbed ones together.
        robots: Zoo names or files, separated by commas; a bare arm gets a hand (arm+k4grip chooses one).
        tasks: Names separated by commas, or all: pick_place, stack, pour, push, topple, poke, near_miss,
            open_drawer, close_drawer, open_hinge, close_hinge, push_lever.
        scenarios: The paper's canonical, cluttered, dynamic; or packed, which no world learns from.
        failures: Disturbed episodes per demonstration, 0 to 9; 9 is the paper's set.
        seed: Of everything random.
        height: Image rows.
        width: Image columns.
        look: unseen has textures and cameras that no world learns from.
        workers: Processes, each on one core.
        engine: Processes here, or a Ray cluster.
        ray_address: Cluster to join; by default a local one with --workers cores.
        json: Print one JSON object instead of a table.
    """
    from kinema4d.data.dataset import open_dataset
    from kinema4d.data.generate import Recipe, balance, doable
    from kinema4d.data.generate import generate as make

    chosen = _names(tasks)
    if tasks == "all":
        chosen, idle = doable(_names(robots))
        if idle:
            warn(f"left out, because none of {robots} can do it: {', '.join(idle)}")
    recipe = Recipe(
        suite=suite,
        episodes=episodes,
        robots=_names(robots),
        tasks=chosen,
        scenarios=_names(scenarios),
        failures=failures,
        seed=seed,
        height=height,
        width=width,
        look=look,
    )
    with bar("simulating", quiet=json) as progress:
        tell = None if progress is None else lambda s, total: progress(s.jobs + len(s.skipped), total)
        summary = make(out, recipe, engine=engine, workers=workers, address=ray_address, tell=tell)
    for line in summary.mended:
        warn(line)
    dataset = open_dataset(out)
    counts = balance(dataset.rows)
    if json:
        print(
            json_module.dumps(
                {
                    "episodes": len(dataset),
                    "written": summary.episodes,
                    "seconds": round(summary.seconds, 3),
                    "skipped": summary.skipped,
                    "tasks": {task: {"success": good, "episodes": all_} for task, (good, all_) in counts.items()},
                }
            )
        )
    else:
        _show(out, len(dataset), summary.episodes, summary.seconds, counts)
        for name, reason in summary.skipped.items():
            print(f"skipped {name}: {reason}")
    if summary.skipped:
        raise SystemExit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _show(out: Path, total: int, written: int, seconds: float, counts: dict[str, tuple[int, int]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("task")
    table.add_column("episodes", justify="right")
    table.add_column("success", justify="right")
    for task, (good, all_) in sorted(counts.items()):
        table.add_row(task, str(all_), str(good))
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"{written} episodes in {seconds:.1f} s; {total} in {out}", highlight=False)
    console.print(f"look: kinema4d view {out} --episode 0", highlight=False)
