"""The paper's ablations (Tables 4 and VI) as fields of one configuration, trained with one budget.

All members start from one model that every batch tells of the robot in another way, as the paper's start from 4DNeX, and learn for
the same number of steps from the same episodes in the same order. Disturbances have no training: they are the first member's signal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kinema4d.train.presets import run_direct
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.direct import save_direct

BASE = "base"
"""What all start from: told in every way by turns."""
OURS = "ours"
"""The paper's own design, which the others are compared with."""
JUDGED = 6
"""Clips that a member's log has figures of; the table is made on others, and more."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One column of a table."""

    about: str
    """One line for people."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields that differ from ours."""
    robots: tuple[str, ...] | None = None
    """Only episodes of these are learned from."""
    disturb: str | None = None
    """The first member with its signal disturbed so, when it is judged."""
    paper: tuple[float, float] | None = None
    """PSNR in dB and Chamfer L1 in metres that the paper reports."""


TABLES: dict[str, dict[str, Member]] = {
    "table4": {
        OURS: Member(about="robot pointmap, soft mask of 10 %", paper=(22.50, 0.0479)),
        "text": Member(about="the instruction in words", config={"control": "text"}, paper=(19.89, 0.0750)),
        "binary": Member(about="where the robot is, no geometry", config={"control": "mask"}, paper=(21.47, 0.0639)),
        "emb.": Member(about="actions of the hand as numbers", config={"control": "embedding"}, paper=(20.89, 0.0528)),
        "RGB": Member(about="pictures of the robot", config={"control": "rgb"}, paper=(21.53, 0.0677)),
        "RGB+pm": Member(about="pictures and pointmap", config={"control": "pointmap+rgb"}, paper=(22.98, 0.0495)),
        "2D-out": Member(about="only colour is made, then reconstructed", config={"output": "2d"}, paper=(20.07, 0.0712)),
        "w/o mask": Member(about="no mask", config={"mask": "none"}, paper=(21.03, 0.0510)),
        "0%": Member(about="hard mask", config={"mask": "hard"}, paper=(21.10, 0.0528)),
        "50%": Member(about="half of the mask soft", config={"soft_ratio": 0.5}, paper=(21.75, 0.0455)),
        "w/o contact": Member(about="not told how near the robot comes to things", config={"contact": False}),
        "single": Member(about="learned from one robot alone", robots=("panda",), paper=(21.26, 0.0581)),
        "remove": Member(about="5 % of the points removed", disturb="remove", paper=(22.48, 0.0499)),
        "gaus.": Member(about="noise on the points", disturb="gaussian", paper=(21.98, 0.0501)),
        "trans.": Member(about="signal shifted in the picture", disturb="translate", paper=(21.87, 0.0513)),
        "rot.": Member(about="signal turned in the picture", disturb="rotate", paper=(22.34, 0.0483)),
    },
    "table6": {
        OURS: Member(about="robot pointmap, first frame's pointmap", paper=(21.93, 0.0420)),
        "w/o env. pm": Member(about="not told the first frame's pointmap", config={"environment": False}, paper=(22.50, 0.0479)),
        "depth": Member(about="depth instead of points", config={"control": "depth"}, paper=(21.04, 0.0583)),
        "none": Member(about="told nothing of the robot", config={"control": "none"}),
    },
}  # fmt: skip
"""Members by the paper's names; ``none`` and ``w/o contact`` are our own. All but one know the first frame's pointmap, which the paper has as ``add env. pm``."""


def chosen(table: str, members: Sequence[str] = ()) -> dict[str, Member]:
    """The members of a table, all or some; ours is always among them."""
    if table not in TABLES:
        raise ValueError(f"unknown ablation {table!r}; known are {', '.join(TABLES)}")
    every = TABLES[table]
    if unknown := [m for m in members if m not in every]:
        raise ValueError(f"{table} has no member {unknown[0]!r}; it has {', '.join(every)}")
    return {name: m for name, m in every.items() if not members or name in members or name == OURS}


def folder_of(out: Path, name: str) -> Path:
    """Of a member's run."""
    return out / name.replace("/", "").replace("%", "pc").replace(".", "").replace(" ", "-").replace("+", "-")


def train_members(
    shards: Sequence[Path],
    out: Path,
    config: DiffusionConfig,
    members: Mapping[str, Member],
    *,
    steps: int,
    base_steps: int,
    tell: Callable[[str, int, dict[str, float]], None] | None = None,
) -> dict[str, Path]:
    """Train what is not trained yet, and return each member's weights; goes on after a kill."""
    weights: dict[str, Path] = {}

    def run(name: str, config: DiffusionConfig, steps: int, **options: Any) -> Path:
        folder = folder_of(out, name)
        file = folder / "direct.safetensors"
        if not file.is_file():
            say = None if tell is None else partial(tell, name)
            net = run_direct(shards, folder, config, steps=steps, tell=say, **options)
            save_direct(file, net, {"member": name, "steps": steps, "base_steps": base_steps})
        return file

    base = run(BASE, replace(config, control="mixed"), base_steps) if base_steps else None
    for name, member in members.items():
        if member.disturb is None:
            weights[name] = run(
                name, replace(config, **member.config), steps, start=base, robots=member.robots, judged=JUDGED
            )
    return {name: weights.get(name, weights[OURS]) for name in members}
