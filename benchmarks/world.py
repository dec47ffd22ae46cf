"""How well worlds foretell: fixed validation sets, every world beside the static one, with 95 % intervals.

    python benchmarks/world.py                              # tables; hours on two cores for all sets
    python benchmarks/world.py --json --episodes 24         # quick
    python benchmarks/world.py --rows 96 --splits iid --worlds small small-motion small-direct static truth    # paint
    python benchmarks/world.py --splits iid --depth predicted
    python benchmarks/world.py --libero robo4d_libero/      # live LIBERO, recorded and ingested before
    python benchmarks/world.py --draws 16 --drift 24 --sheets out/sheets    # calibration, chunks, contact sheets

Sets of 192x288 pictures (or of --rows) are generated once into --data and kept; whatever is found is kept by episode, world and
weights in DATA/scores, so a run that was interrupted goes on (throw that folder away when the code of a world has
changed). ``iid`` are fresh scenes of the generator that training used, ``unseen_layout`` packs ten things around the
target, ``unseen_look`` has textures and cameras that no training picture has, ``unseen_robot`` is the WidowX.

Objects are judged from the generated pixels and geometry alone (``object_error_m`` and the like); ``..._said`` are the
world's own tracks. An episode's error is the mean over its things that moved (1 cm or 10 degrees at any frame) and that
some frame of the truth shows; medians and means are over episodes. In pixels, that is over things that are seen at the
end and found; said, over all of them. So both count things that the first frame does not show at all, as the beads in
the cup of ``pour``, which nobody can foretell from it (a thing without a part is said to stand still), and not those
that no frame ever shows. ``..._shown`` leaves these out: errors are over the moved things, outcomes over the episodes
whose named things (target, goal, extra) have at least one pixel in the first frame. ``..._near_mean_m`` is the mean
over things that truly went less than 1 m: the truth's engine throws some away (``thrown_things`` of ``moved_things``),
and ``displacement_near_mean_m`` is what a world that says that nothing moves is off by there. ``moved_5cm`` repeats the
error for things that truly went further than 5 cm.
"""

from __future__ import annotations

import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from world_parts import calibration, drift, speed
from world_pictures import reliability_plot, sheets
from world_scores import ALSO_MEAN, KEYS, Work, keep_folder, one, summary

from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, doable, generate
from kinema4d.data.pool import spread
from kinema4d.files import whole_file

HEIGHT, WIDTH = 192, 288
"""Of the pictures."""
TRAIN = ("panda", "xarm7", "ur5")
SPLITS: dict[str, dict[str, Any]] = {
    "iid": {"seed": 7001, "robots": TRAIN},
    "unseen_layout": {"seed": 7002, "robots": TRAIN, "scenarios": ("packed",)},
    "unseen_look": {"seed": 7003, "robots": TRAIN, "look": "unseen"},
    "unseen_robot": {"seed": 7004, "robots": ("wx250s",)},
}
"""Recipes of the generated sets."""


def works_of(root: Path, split: str, world: str, *, depth: bool, pixels: bool, episodes: int) -> list[Work]:
    """What is to be done for one world on a set."""
    keep = keep_folder(root, split, world, depth=depth, what=str(int(pixels)))
    return [Work(str(root), row.id, world, depth, pixels, keep) for row in open_dataset(root).rows[:episodes]]


def elsewhere(works: list[Work], what: str, *, most: int | None = None) -> list[Work]:
    """The same with what is found kept in a folder of its own; at most so many, spread over the whole set."""
    if most is not None:
        picks = np.unique(np.linspace(0, len(works) - 1, min(most, len(works))).round().astype(int))
        works = [works[i] for i in picks]
    return [replace(w, keep=f"{w.keep.rpartition('-')[0]}-{what}") for w in works]


def main(
    *,
    data: Path = Path("out/world"),
    episodes: int = 200,
    splits: tuple[str, ...] = tuple(SPLITS),
    worlds: tuple[str, ...] = ("small", "static"),
    rows: int = HEIGHT,
    libero: Path | None = None,
    depth: str = "given",
    pixels: bool = True,
    draws: int = 0,
    drift_episodes: Annotated[int, tyro.conf.arg(name="drift")] = 0,
    sheet_folder: Annotated[Path | None, tyro.conf.arg(name="sheets")] = None,
    timing: bool = True,
    workers: int = 2,
    json: bool = False,
) -> None:
    """See the top of this file.

    Args:
        data: Where the sets and scores are kept.
        episodes: Of each set.
        splits: Sets to judge.
        worlds: Worlds to judge: small, small-motion (unpainted), small-direct, static, a .safetensors file, or truth, which is
            the truth as its own prediction.
        rows: Of the pictures, 3/2 times as many columns.
        libero: Data set of live LIBERO episodes.
        depth: given or predicted: whether worlds get the first frame's depth.
        pixels: Also whole-frame video and geometry scores.
        draws: Sampled futures per episode for calibration of the first world on every set, with DATA/reliability.png;
            0 leaves it out.
        drift_episodes: Episodes of every set that the first world foretells in 1, 2 and 4 chunks; 0 leaves it out.
        sheet_folder: Write contact sheets of the first world's best, middling and worst episodes of every set there.
        timing: Also real-time factor and memory at 480x720.
        workers: Processes.
        json: Print one JSON object.
    """
    if depth not in ("given", "predicted"):
        raise SystemExit(f"--depth must be given or predicted, got {depth!r}")
    out: dict[str, Any] = {"depth": depth, "splits": {}}
    roots: dict[str, Path] = {}
    for split in splits:
        if split not in SPLITS:
            raise SystemExit(f"unknown split {split!r}; known are {', '.join(SPLITS)} (libero by --libero)")
        roots[split] = data / (split if rows == HEIGHT else f"{split}-{rows}")
        tasks, _ = doable(SPLITS[split]["robots"])
        size = {"height": rows, "width": rows * WIDTH // HEIGHT}
        recipe = Recipe(episodes=episodes, failures=3, tasks=tasks, **size, **SPLITS[split])
        generate(roots[split], recipe, workers=workers)
    if libero is not None:
        roots["libero"] = libero
    calibrations: dict[str, dict[str, Any]] = {}
    drifts: dict[str, dict[str, Any]] = {}
    for split, root in roots.items():
        out["splits"][split] = {}
        for world in worlds:
            works = works_of(root, root.name, world, depth=depth == "given", pixels=pixels, episodes=episodes)
            found = spread(one, works, workers=workers)
            out["splits"][split][world] = summary(found)
            if not json:
                show(split, world, out["splits"][split][world])
            if world != worlds[0]:
                continue
            if sheet_folder is not None:
                sheets(sheet_folder, split, found, works, workers=workers)
            if draws:
                calibrations[split] = calibration(elsewhere(works, f"draws{draws}"), draws=draws, workers=workers)
            if drift_episodes:
                drifts[split] = drift(elsewhere(works, "drift", most=drift_episodes), workers=workers)
    if calibrations:
        out |= calibrations.get("iid", {})
        out["calibration"] = calibrations
        tables = {s: (c["calibration_error"], c["reliability"]) for s, c in calibrations.items() if c}
        with whole_file(data / "reliability.png", overwrite=True) as file:
            reliability_plot(tables).save(file)
    if drifts:
        out["drift"] = drifts
    if timing:
        out |= speed(data)
    if json:
        print(json_module.dumps(out, indent=1))
    else:
        print({k: v for k, v in out.items() if k != "splits"})


def show(split: str, world: str, found: dict[str, Any]) -> None:
    """A few lines for people."""
    print(f"\n{split}, {world}: {found['episodes']} episodes, {found['cpu_seconds']:.2f} CPU-s each")
    for name in (*KEYS, *ALSO_MEAN.values()):
        if name in found:
            print(f"  {name:31s} {found[name]:.4f}  {found.get(f'{name}_interval', '')}")
    print(
        f"  {found['moved_things']} things moved, {found['shown_things']} of them shown, {found['thrown_things']} thrown"
    )
    for task, values in found["tasks"].items():
        print(f"    {task:14s} " + "  ".join(f"{k} {v}" for k, v in values.items()))


if __name__ == "__main__":
    tyro.cli(main)
