"""What can be trained, by name. A preset is a function from its data to a task and a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinema4d.data.generate import Recipe
from kinema4d.data.pool import Progress
from kinema4d.train import see_pack
from kinema4d.train.loop import Plan, Task, train
from kinema4d.train.see import CompleteTask, DepthTask, SegmentTask
from kinema4d.train.see_pack import Picture
from kinema4d.world.small.checkpoint import save_small, usual_config
from kinema4d.world.small.complete import CompleteConfig, CompleteNet
from kinema4d.world.small.see import DepthNet, SeeConfig, SegmentNet

ROBOTS = ("panda", "xarm7", "ur5", "k4arm", "ur5+k4grip", "xarm7+k4hand")
"""Robots that the small world learns from; the WidowX is kept for judging."""
SEED, HELD_OUT_SEED = 900, 901
"""Of the scenes to learn from and of those to validate on."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One network of the small world."""

    about: str
    """One line for people."""
    make: Callable[[], nn.Module]
    """The network before training."""
    task: Callable[[Any, Sequence[Picture], Sequence[Picture]], Task]
    """What it is taught."""
    plan: Plan
    """How long."""


PRESETS: dict[str, Preset] = {
    "small-segment": Preset(
        about="which pixels are one part, and how it can move",
        make=lambda: SegmentNet(SeeConfig()),
        task=lambda net, pictures, held_out: SegmentTask(net, pictures, held_out, size=8),
        plan=Plan(steps=2200, rate=2e-3, warmup=100, ema=0.998, validate_every=250, log_every=25, save_every=120),
    ),
    "small-depth": Preset(
        about="depth where no sensor gives it",
        make=lambda: DepthNet(SeeConfig()),
        task=lambda net, pictures, held_out: DepthTask(net, pictures, held_out, size=8),
        plan=Plan(steps=2000, rate=2e-3, warmup=100, ema=0.998, validate_every=250, log_every=25, save_every=120),
    ),
    "small-complete": Preset(
        about="unseen sides of parts",
        make=lambda: CompleteNet(CompleteConfig()),
        task=lambda net, pictures, held_out: CompleteTask(net, pictures, held_out, size=12),
        plan=Plan(steps=4000, rate=2e-3, warmup=100, ema=0.998, validate_every=250, log_every=25, save_every=120),
    ),
}
"""Every network; ``small`` trains all of them and writes the checkpoint."""


def pack(folder: Path, *, scenes: int, held_out: int, workers: int, progress: Progress | None) -> None:
    """Draw what is missing of the pictures in ``folder`` and ``folder/held_out``."""
    for where, count, seed in ((folder, scenes, SEED), (folder / "held_out", held_out, HELD_OUT_SEED)):
        recipe = Recipe(episodes=count, robots=ROBOTS, failures=0, seed=seed, height=192, width=288)
        see_pack.make_pack(where, recipe, workers=workers, progress=progress)


def run(
    name: str,
    data: Path,
    out: Path,
    *,
    steps: int | None = None,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> nn.Module:
    """Train one network on the pictures in ``data``; goes on where an earlier run in ``out`` stopped."""
    preset = PRESETS[name]
    plan = preset.plan if steps is None else replace(preset.plan, steps=steps)
    pictures, held_out = see_pack.read_pack(data), see_pack.read_pack(data / "held_out", most=4)
    torch.manual_seed(plan.seed)
    task = preset.task(preset.make(), pictures, held_out)
    return train(task, plan, out, config={"preset": name}, tell=tell)


def assemble(runs: Path, path: Path, about: dict[str, Any]) -> str:
    """One checkpoint of the averaged networks of finished runs ``runs/<name>``; returns its hash."""
    networks: dict[str, nn.Module] = {}
    figures: dict[str, Any] = {}
    for name, preset in PRESETS.items():
        file = runs / name / "last.pt"
        if not file.is_file():
            raise ValueError(f"{file} is missing: train --preset {name} --out {runs / name} first")
        state = torch.load(file, weights_only=True)
        net = preset.make()
        net.load_state_dict(state["average"])
        networks[name.removeprefix("small-")] = net
        figures[name] = {"steps": state["step"], "plan": asdict(preset.plan)}
    return save_small(path, networks, usual_config(), {**about, "training": figures})
