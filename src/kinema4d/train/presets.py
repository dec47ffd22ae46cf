"""What can be trained, by name: networks that see from pictures, and the correction of motions from episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinema4d.data.generate import Recipe
from kinema4d.data.pool import Progress
from kinema4d.train import direct, direct_pack, move_pack, see_pack
from kinema4d.train.groups import split
from kinema4d.train.loop import Plan, Task, train
from kinema4d.train.move import MoveTask
from kinema4d.train.moves import MovesTask
from kinema4d.train.see import BlindTask, CompleteTask, SegmentTask
from kinema4d.train.see_episodes import add_episodes
from kinema4d.train.see_pack import Picture
from kinema4d.world.small.checkpoint import load_small, save_small, usual_config
from kinema4d.world.small.complete import CompleteConfig, CompleteNet
from kinema4d.world.small.diffusion import DiffusionNet
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.direct import start_from
from kinema4d.world.small.look import Eyes
from kinema4d.world.small.move import MoveConfig, MoveNet
from kinema4d.world.small.moves import Moves
from kinema4d.world.small.see import BlindNet, SeeConfig, SegmentNet

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
        plan=Plan(steps=8000, rate=2e-3, warmup=100, ema=0.998, validate_every=250, log_every=25, save_every=120),
    ),
    "small-complete": Preset(
        about="unseen sides of parts",
        make=lambda: CompleteNet(CompleteConfig()),
        task=lambda net, pictures, held_out: CompleteTask(net, pictures, held_out, size=12),
        plan=Plan(steps=7500, rate=2e-3, warmup=100, ema=0.998, validate_every=250, log_every=25, save_every=120),
    ),
    "small-blind": Preset(
        about="depth and parts where no sensor gives depth",
        make=lambda: BlindNet(SeeConfig()),
        task=lambda net, pictures, held_out: BlindTask(net, pictures, held_out, size=8),
        plan=Plan(steps=8000, rate=2e-3, warmup=100, ema=0.998, validate_every=250, log_every=25, save_every=120),
    ),
}
"""Every network that sees; ``small`` trains all of them and writes the checkpoint."""
MOVE = "small-move"
"""The correction of motions, which learns from a data set of episodes and from what the others see in them."""
MOVE_PLAN = Plan(steps=3000, rate=1e-3, warmup=100, ema=0.998, validate_every=250, log_every=25, save_every=120)
"""How long."""


DIRECT = "small-direct"
"""The 4D diffusion transformer alone, which learns from a data set of episodes."""
PAINT = "small-paint"
"""The painter, which corrects what the small world draws of the episodes of a data set."""
DIRECT_PLAN = Plan(
    steps=6000, rate=1e-3, muon=20.0, warmup=100, ema=0.998, validate_every=500, log_every=25, save_every=120
)
"""How long."""


MOVES_PLAN = Plan(steps=3000, rate=2e-3, warmup=100, ema=0.998, validate_every=250, log_every=25, save_every=120)
"""Of what moves, before it."""


def pack(
    folder: Path,
    *,
    scenes: int,
    held_out: int,
    workers: int,
    progress: Progress | None,
    episodes: Sequence[Path] = (),
) -> None:
    """Draw what is missing of the pictures in ``folder`` and ``folder/held_out``, and take those of ``episodes``."""
    for data in episodes:
        add_episodes(folder, data, workers=workers, progress=progress)
    for where, count, seed in ((folder, scenes, SEED), (folder / "held_out", held_out, HELD_OUT_SEED)):
        recipe = Recipe(episodes=count, robots=ROBOTS, failures=0, seed=seed, height=192, width=288)
        see_pack.make_pack(where, recipe, workers=workers, progress=progress)


def run(
    name: str,
    data: Path,
    out: Path,
    *,
    steps: int | None = None,
    start: Path | None = None,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> nn.Module:
    """Train one network on the pictures in ``data``, from nothing or from that of the weights ``start``; goes on where
    an earlier run in ``out`` stopped."""
    preset = PRESETS[name]
    plan = preset.plan if steps is None else replace(preset.plan, steps=steps)
    pictures, held_out = see_pack.read_pack(data), see_pack.read_pack(data / "held_out", most=4)
    torch.manual_seed(plan.seed)
    net = preset.make()
    task = preset.task(net, pictures, held_out)
    if start is not None:
        net.load_state_dict(own_network(start, name).state_dict())
    return train(task, plan, out, config={"preset": name}, tell=tell)


def _file(weights: Path) -> Path | None:
    """``small`` are the package's own."""
    return None if weights == Path("small") else weights


def own_network(weights: Path, name: str) -> nn.Module:
    """The network that a preset trains, out of the weights of a small world."""
    return getattr(load_small(_file(weights))[0], name.removeprefix("small-"))


def _named(eyes: Eyes, move: MoveNet | None) -> dict[str, nn.Module]:
    """All networks of a small world that are there, by name."""
    every = {"segment": eyes.segment, "complete": eyes.complete, "blind": eyes.blind}
    return every if move is None else {**every, "move": move}


def replaced(weights: Path, name: str, run: Path, path: Path, about: dict[str, Any]) -> str:
    """The ``weights`` of a small world with the averaged network of a finished ``run`` of a preset; returns the hash."""
    eyes, move, before = load_small(_file(weights))
    networks = _named(eyes, move)
    state = torch.load(run / "last.pt", weights_only=True)
    net = PRESETS[name].make()
    net.load_state_dict(state["average"])
    networks[name.removeprefix("small-")] = net
    kept = {k: v for k, v in before.items() if k != "file"}
    return save_small(
        path, networks, usual_config(*networks), {"before": kept, name: {"steps": state["step"], **about}}
    )


def run_move(
    shards: Sequence[Path],
    out: Path,
    *,
    steps: int | None = None,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> MoveNet:
    """Train the correction of motions on the shards of a pack; goes on where an earlier run in ``out`` stopped."""
    plan = MOVE_PLAN if steps is None else replace(MOVE_PLAN, steps=steps)
    samples, held_out = split(move_pack.read_pack(shards))
    torch.manual_seed(plan.seed)
    task = MoveTask(MoveNet(MoveConfig()), samples, held_out)
    net = train(task, plan, out, config={"preset": MOVE, "shards": [p.stem for p in shards]}, tell=tell)
    assert isinstance(net, MoveNet)
    return net


def run_direct(
    shards: Sequence[Path],
    out: Path,
    config: DiffusionConfig,
    *,
    steps: int | None = None,
    start: Path | None = None,
    robots: Sequence[str] | None = None,
    groups: int | None = direct.GROUPS,
    judged: int = 48,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> DiffusionNet:
    """Train the transformer on the shards of a pack, from nothing or from the weights ``start``, on all robots or only on
    some, validated on at most ``judged`` clips; goes on where an earlier run in ``out`` stopped."""
    plan = (
        DIRECT_PLAN
        if steps is None
        else replace(DIRECT_PLAN, steps=steps, warmup=min(DIRECT_PLAN.warmup, steps // 10 + 1))
    )
    takes, held_out = split(direct_pack.index_pack(shards))
    if robots is not None:
        takes = [t for t in takes if t.robot_name in robots]
        if not takes:
            raise ValueError(f"the data set has no episode of {', '.join(robots)} to learn from")
    about = {
        "preset": PAINT if config.prior else DIRECT, "config": json.loads(json.dumps(asdict(config))), "shards": [p.stem for p in shards],
        "start": None if start is None else start.name, "robots": None if robots is None else list(robots), "groups": groups,
    }  # fmt: skip
    held_out = held_out[:judged]
    torch.manual_seed(plan.seed)
    net = DiffusionNet(config)
    if start is not None:
        start_from(net, start)
    if net.moves is not None:
        _run_moves(net.moves, takes, held_out, out / "moves", about, steps, tell)
    task = direct.DirectTask(net, takes, held_out, groups=groups)
    net = train(task, plan, out, config=about, tell=tell)
    assert isinstance(net, DiffusionNet)
    return net


def _run_moves(
    moves: Moves,
    takes: Sequence[direct_pack.Kept],
    held_out: Sequence[direct_pack.Kept],
    out: Path,
    about: dict[str, Any],
    steps: int | None,
    tell: Callable[[int, dict[str, float]], None] | None,
) -> None:
    """How the first frame's pixels move is learned first, and stays as it is then."""
    plan = (
        MOVES_PLAN
        if steps is None
        else replace(MOVES_PLAN, steps=steps, warmup=min(MOVES_PLAN.warmup, steps // 10 + 1))
    )
    average = train(MovesTask(moves, takes, held_out), plan, out, config={**about, "part": "moves"}, tell=tell)
    moves.load_state_dict(average.state_dict())
    moves.requires_grad_(False)


def with_mover(net: MoveNet, path: Path, about: dict[str, Any]) -> str:
    """A checkpoint of the shipped networks and a correction of motions; returns its hash."""
    eyes, _, shipped = load_small()
    networks = _named(eyes, net)
    kept = {k: v for k, v in shipped.items() if k != "file"}
    return save_small(path, networks, usual_config(*networks), {"eyes": kept, **about})


def assemble(runs: Path, path: Path, about: dict[str, Any]) -> str:
    """One checkpoint of the averaged networks of finished runs ``runs/<name>``, with a correction of motions where
    there is a run of it; returns its hash."""
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
    if (runs / MOVE / "last.pt").is_file():
        state = torch.load(runs / MOVE / "last.pt", weights_only=True)
        networks["move"] = MoveNet(MoveConfig())
        networks["move"].load_state_dict(state["average"])
        figures[MOVE] = {"steps": state["step"], "plan": asdict(MOVE_PLAN)}
    return save_small(path, networks, usual_config(*networks), {**about, "training": figures})
