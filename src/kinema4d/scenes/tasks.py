"""Tasks: what lies on the table, how a scripted expert does it, and how physics says whether it worked.

A task is three functions in one of the dicts ``TASKS`` of ``grasp_tasks``, ``push_tasks`` and ``joint_tasks``. ``setup`` makes the things that matter and puts them on the table,
``plan`` writes key poses of the hand from what it knows of the scene, ``success`` looks at the simulator's states, never
at the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import place
from kinema4d.scenes import looks
from kinema4d.scenes.path import Key
from kinema4d.scenes.reach import Reach
from kinema4d.scenes.things import Maker, Thing

HOVER = 0.09
"""How high above a thing the hand comes and goes, metres."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cast:
    """The things that a task is about."""

    target: Thing
    """What is acted on."""
    goal: Thing | None = None
    """Where it should go."""
    extra: tuple[Thing, ...] = ()
    """Other things that belong to the task."""
    text: str
    """The instruction."""
    yaw: float = 0.0
    """Direction in which the hand closes, or of the push, as the task needs it."""

    sweep: tuple[tuple[float, float], ...] = ()
    """Points of the table that the target will come over: what does not matter stays away from them."""

    @property
    def things(self) -> tuple[Thing, ...]:
        """All of them."""
        return (self.target, *((self.goal,) if self.goal else ()), *self.extra)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What happened, from the simulator: what success is judged by."""

    cast: Cast
    """Who was meant."""
    Ts: dict[str, Float[np.ndarray, "t 4 4"]]
    """World pose of every body of every thing at every frame, by name."""
    joint: Float[np.ndarray, " t"] | None
    """Position of the target's own joint, where it has one."""
    gaps: Float[np.ndarray, " n"]
    """Distance between robot and target at every tick, metres."""

    def target(self) -> Float[np.ndarray, "t 4 4"]:
        """Poses of the target's first body."""
        return self.Ts[f"{self.cast.target.name}/{self.cast.target.bodies[0].name}"]

    def goal(self) -> Float[np.ndarray, "t 4 4"]:
        """Poses of the goal."""
        assert self.cast.goal is not None
        return self.Ts[f"{self.cast.goal.name}/{self.cast.goal.bodies[0].name}"]

    @property
    def released(self) -> bool:
        """Whether the robot touches the target no more."""
        return bool(self.gaps[-1] > 0.003)

    @property
    def shift(self) -> float:
        """How far the target is from where it began, metres."""
        T = self.target()
        return float(np.linalg.norm(T[-1, :3, 3] - T[0, :3, 3]))

    @property
    def tilt(self) -> Float[np.ndarray, " t"]:
        """Angle between the target's axis and where it pointed at the start, radians."""
        T = self.target()
        return np.arccos(np.clip((T[:, :3, 2] * T[0, :3, 2]).sum(axis=1), -1, 1))


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task."""

    about: str
    """One line for people."""
    setup: Callable[[np.random.Generator, Reach], Cast]
    """Make and place what it is about."""
    plan: Callable[[np.random.Generator, Cast, Reach], list[Key]]
    """Key poses of the hand from above the first thing to the end; the start is put before them."""
    success: Callable[[Evidence], bool]
    """Whether it worked."""
    side: bool = False
    """Whether it is seen best from the side."""
    possible: Callable[[Reach], bool] = lambda reach: True
    """Whether a robot can do it at all."""


# ---------------------------------------------------------------------- placing


def put(thing: Thing, x: float, y: float, *, yaw: float = 0.0) -> Thing:
    """The thing standing on the table."""
    return replace(thing, T_world_thing=place(x, y, thing.half[2] + 2e-4, yaw=yaw))


def at(thing: Thing) -> Float[np.ndarray, "3"]:
    """Where its first body starts."""
    return thing.T_world_thing[:3, 3]


def somewhere(
    rng: np.random.Generator, reach: Reach, taken: list[Thing], thing: Thing, *, margin: float = 0.03, edge: float = 0.0
) -> Thing:
    """The thing at a free place within reach, turned at random; ``edge`` keeps it away from the end of the reach."""
    for _ in range(400):
        x = rng.uniform(-reach.depth + 0.02, reach.depth - edge)
        y = rng.uniform(-reach.breadth, reach.breadth)
        if all(np.hypot(x - at(t)[0], y - at(t)[1]) > thing.radius + t.radius + margin for t in taken):
            return put(thing, x, y, yaw=rng.uniform(-np.pi, np.pi))
    raise CrowdedError(f"found no room for the {thing.name} beside {', '.join(t.name for t in taken)}")


class CrowdedError(ValueError):
    """The table is too full, or a plan out of reach: draw another scene."""


def pick_maker(rng: np.random.Generator, makers: dict[str, Maker], color: str, *, widest: float = 1.0) -> Thing:
    """A random thing that is no wider than ``widest`` where it is held."""
    for _ in range(50):
        thing = makers[str(rng.choice(list(makers)))](rng, color)
        if thing.grip <= widest:
            return thing
    raise CrowdedError(f"no thing is narrower than {widest:.3f} m")


def colors(rng: np.random.Generator, count: int) -> list[str]:
    """Different colours by name."""
    return [str(c) for c in rng.choice(list(looks.NAMED), size=count, replace=False)]
