"""Simulated episodes: demonstrations of tabletop tasks, and the failures that noise makes of them."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data.dataset import Row, write_episode
from kinema4d.data.jobs import Job, Summary, run, writing
from kinema4d.files import whole_file
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.clutter import PAPER, SCENARIOS
from kinema4d.scenes.episode import (  # fmt: skip
    NOISE_M,
    NOISE_RAD,
    SEGMENTS,
    SIGMAS,
    TASKS,
    Outcome,
    Stage,
    Wish,
    disturb,
    perform,
    record,
    set_stage,
)
from kinema4d.scenes.looks import LOOKS
from kinema4d.scenes.reach import measure_reach

SUITES = {"tabletop": "one robot at a table, twelve tasks, three scenarios"}
"""Every suite."""
HANDS = {"xarm7": "k4grip", "ur5": "k4hand"}
"""The hand that a bare arm gets; ``k4grip`` where it is not listed."""
CANDIDATES = tuple(itertools.product(range(SEGMENTS), SIGMAS))
"""The nine disturbances of a demonstration."""
DEMONSTRATIONS = 8
"""Scenes in which the expert may fail before a job is given up."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to generate. The same recipe gives the same episodes, whatever the number of workers."""

    suite: str = "tabletop"
    """One of ``SUITES``."""
    episodes: int = 100
    """How many, demonstrations and disturbed ones together."""
    robots: tuple[str, ...] = ("panda", "xarm7", "ur5")
    """Robots that take turns; a bare arm gets a hand."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Tasks that take turns."""
    scenarios: tuple[str, ...] = PAPER
    """Scenarios that take turns."""
    failures: int = 3
    """How many of the nine disturbances of each demonstration."""
    seed: int = 0
    """Of everything random."""
    height: int = 96
    """Image rows."""
    width: int = 144
    """Image columns."""
    look: str = "train"
    """``unseen`` for textures and cameras that no world learns from."""

    def __post_init__(self) -> None:
        for name, known in {"tasks": TASKS, "scenarios": SCENARIOS}.items():
            strangers = [x for x in getattr(self, name) if x not in known]
            if strangers or not getattr(self, name):
                raise ValueError(f"unknown {name} {', '.join(strangers) or '(none)'}; known are {', '.join(known)}")
        if self.suite not in SUITES:
            raise ValueError(f"unknown suite {self.suite!r}; known are {', '.join(SUITES)}")
        if self.look not in LOOKS:
            raise ValueError(f"unknown look {self.look!r}; known are {', '.join(LOOKS)}")
        if not self.robots:
            raise ValueError("give at least one robot")
        if not 0 <= self.failures <= len(CANDIDATES):
            raise ValueError(f"failures must be 0 to {len(CANDIDATES)} per demonstration, got {self.failures}")
        if self.episodes < 1 or self.height < 16 or self.width < 16:
            raise ValueError(
                f"episodes must be at least 1 and images at least 16x16, got {self.episodes} and {self.height}x{self.width}"
            )
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class Order:
    """One demonstration and some disturbances of it."""

    id: str
    """Of the demonstration; the others add to it."""
    robot: str
    """With its hand."""
    wish: Wish
    """Task, scenario, seed and size."""
    disturbances: tuple[tuple[int, float], ...]
    """Segments and sigmas."""

    @property
    def ids(self) -> list[str]:
        """Of all episodes that it makes."""
        return [self.id, *(f"{self.id}-s{segment}n{round(100 * sigma)}" for segment, sigma in self.disturbances)]


def with_hand(name: str) -> str:
    """The robot's name with a hand, where it has none."""
    robot = _robot(name)
    return name if robot.gripper is not None else f"{name}+{HANDS.get(name, 'k4grip')}"


@lru_cache(maxsize=8)
def _robot(name: str) -> Robot:
    return load_robot(name)


def doable(robots: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tasks that at least one of the robots can do, and the others."""
    reaches = [measure_reach(_robot(with_hand(name))) for name in robots]
    able = tuple(name for name, task in TASKS.items() if any(task.possible(reach) for reach in reaches))
    return able, tuple(name for name in TASKS if name not in able)


def orders(recipe: Recipe) -> list[Order]:
    """All demonstrations of a recipe. Robots, tasks and scenarios take turns, so that any part of it is balanced: in
    robots x scenarios rounds of all tasks, every task meets every pair of robot and scenario once."""
    robots, scenarios = [with_hand(name) for name in recipe.robots], recipe.scenarios
    each = 1 + recipe.failures
    made: list[Order] = []
    who = {task: [n for n in robots if TASKS[task].possible(measure_reach(_robot(n)))] for task in recipe.tasks}
    if idle := [task for task in recipe.tasks if not who[task]]:
        raise ValueError(f"none of {', '.join(robots)} can do {', '.join(idle)}: choose other robots or leave it out")
    for number in range(-(-recipe.episodes // each)):
        round_, turn = divmod(number, len(recipe.tasks))
        task = recipe.tasks[turn]
        # Robots and scenarios step together and would pair up for ever: every full turn of both shifts the scenario.
        able = who[task]
        together = math.lcm(len(able), len(scenarios))
        robot = able[(turn + round_) % len(able)]
        scenario = scenarios[(turn + turn // together + round_ + round_ // together) % len(scenarios)]
        rng = np.random.default_rng([recipe.seed, number])
        chosen = sorted(rng.permutation(len(CANDIDATES))[: recipe.failures])
        left = min(recipe.failures, recipe.episodes - number * each - 1)
        wish = Wish(task=task, scenario=scenario, seed=recipe.seed * 1_000_000 + number, height=recipe.height, width=recipe.width, look=recipe.look)  # fmt: skip
        id = f"{recipe.suite}-{recipe.seed}-{number:06d}-{task}-{_plain_name(robot)}"
        made.append(Order(id=id, robot=robot, wish=wish, disturbances=tuple(CANDIDATES[i] for i in chosen[:left])))
    return made


def _plain_name(robot: str) -> str:
    """A robot's name as an id may hold it: of a path, the file."""
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", Path(robot).name)


def demonstrate(order: Order) -> tuple[Stage, Outcome, int]:
    """The expert's success in the order's scene, or in the next ones where it fails; and how many failed."""
    robot = _robot(order.robot)
    for attempt in range(DEMONSTRATIONS):
        stage = set_stage(robot, replace(order.wish, seed=order.wish.seed + attempt * 1_000_000_007))
        outcome = perform(stage)
        if outcome.success:
            return stage, outcome, attempt
    raise ValueError(
        f"the expert failed in {DEMONSTRATIONS} {order.wish.scenario} scenes of {order.wish.task} with {order.robot}"
    )


def make(root: str, content: tuple[Order, tuple[str, ...]]) -> list[Row]:
    """Write the episodes of an order that are missing; what a worker process does."""
    order, missing = content
    stage, outcome, attempt = demonstrate(order)
    rows = []
    for id, disturbance in zip(order.ids, [None, *order.disturbances], strict=True):
        if id not in missing:
            continue
        facts: dict[str, Any] = {"expert_attempts": attempt + 1, "demonstration": order.id}
        result = outcome
        if disturbance is not None:
            segment, sigma = disturbance
            result = perform(stage, disturb(stage, segment, sigma))
            facts |= {"segment": segment, "sigma": sigma, "sigma_unit": [NOISE_M, NOISE_RAD]}
        episode = record(stage, result, source=f"tabletop/{id}", facts=facts, threads=1)
        # Not the whole order: how many disturbances it has depends on how many episodes were asked for.
        made_by = {"suite": "tabletop", "robot": order.robot, "wish": asdict(order.wish), "disturbance": disturbance}
        rows.append(write_episode(Path(root), id, episode, made_by))
    return rows


def generate(
    root: str | Path,
    recipe: Recipe,
    *,
    engine: str = "local",
    workers: int = 2,
    address: str | None = None,
    tell: Callable[[Summary, int], None] | None = None,
) -> Summary:
    """Make every episode of ``recipe`` that is not in the data set at ``root`` yet. ``tell`` hears of progress and of
    the number of jobs in all."""
    wanted = orders(recipe)
    with writing(Path(root)) as dataset:
        _remember(dataset.root, recipe)
        jobs = []
        for order in wanted:
            missing = tuple(id for id in order.ids if id not in dataset)
            if missing:
                jobs.append(Job(name=order.id, work=(order, missing)))
        total = len(jobs)
        summary = run(
            dataset, jobs, make, engine=engine, workers=workers, address=address,
            tell=None if tell is None else lambda s: tell(s, total),
        )  # fmt: skip
        summary.before = len(wanted) - total
        return summary


def _remember(root: Path, recipe: Recipe) -> None:
    """Keep the recipe beside the episodes; another one for the same ids is refused, only their number may change."""
    file = root / f"recipe-{recipe.suite}-{recipe.seed}.json"
    now = json.loads(json.dumps(asdict(recipe)))
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        before = {"look": "train"} | before  # recipes of 0.1's first months had no look
        changed = [key for key in now if now[key] != before.get(key) and key != "episodes"]
        if changed:
            said = ", ".join(f"{key} {before.get(key)} now {now[key]}" for key in changed)
            raise ValueError(
                f"{root} was generated with another recipe ({said}); use another --out, or another --seed to add to it"
            )
        now["episodes"] = max(now["episodes"], before["episodes"])
    with whole_file(file, overwrite=True) as temporary:
        temporary.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")


def balance(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Successes and episodes by task."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        good, all_ = found.get(row.task, (0, 0))
        found[row.task] = good + (row.outcome == "success"), all_ + 1
    return found
