"""Tasks: what lies on the table, how a scripted expert does it, and how physics says whether it worked.

A task is three functions in one of the dicts ``TASKS`` of ``grasp_tasks``, ``push_tasks`` and ``joint_tasks``. ``setup`` makes the things that matter and puts them on the table,
``plan`` writes key poses of the hand from what it knows of the scene, ``success`` looks at the simulator's states, never
at the plan. What ``success`` needs is small and plain (:class:`Roles`), is kept with the episode, and so lets anybody
judge later where a generated clip puts the things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import invert, matrix_to_rotvec, place
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


@dataclass(frozen=True, kw_only=True)
class Moving:
    """The joint of a thing that has one."""

    body: str
    """Track of the part that moves; it hangs on the thing's first body."""
    kind: str
    """``slide`` or ``hinge``."""
    axis: tuple[float, float, float]
    """In the frame of the part."""
    T_parent_body: tuple[tuple[float, ...], ...]
    """The part's frame in its parent at position 0."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """As much of a thing as the rules of success need, in plain numbers."""

    name: str
    """What an instruction calls it."""
    kind: str
    """Which maker made it."""
    half: tuple[float, float, float]
    """Half sizes of its bounding box at the start."""
    body: str
    """Track of its first body."""
    joint: Moving | None = None
    """Its own joint, where it has one."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Who is who in a task: what an episode keeps as its fact ``roles``."""

    target: Role
    """What is acted on."""
    goal: Role | None = None
    """Where it should go."""
    extra: tuple[Role, ...] = ()
    """Other things that belong to the task."""

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return _listed(asdict(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Roles:
        """Back from JSON."""
        try:
            goal = None if data["goal"] is None else _role(data["goal"])
            return cls(target=_role(data["target"]), goal=goal, extra=tuple(_role(r) for r in data["extra"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the roles of an episode lack or mistake something ({error!r}): generate again") from None


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value


def _role(data: Mapping[str, Any]) -> Role:
    moving = None
    if (joint := data["joint"]) is not None:
        x, y, z = (float(n) for n in joint["axis"])
        rows = tuple(tuple(float(n) for n in row) for row in joint["T_parent_body"])
        moving = Moving(body=joint["body"], kind=joint["kind"], axis=(x, y, z), T_parent_body=rows)
    a, b, c = (float(n) for n in data["half"])
    return Role(name=data["name"], kind=data["kind"], half=(a, b, c), body=data["body"], joint=moving)


def role_of(thing: Thing) -> Role:
    """A thing's role."""
    moving = None
    for body in thing.bodies:
        if body.joint in ("slide", "hinge"):
            x, y, z = (float(n) for n in body.axis)
            rows = tuple(tuple(float(n) for n in row) for row in body.T_parent_body)
            moving = Moving(body=f"{thing.name}/{body.name}", kind=body.joint, axis=(x, y, z), T_parent_body=rows)
            break
    a, b, c = (float(n) for n in thing.half)
    first = f"{thing.name}/{thing.bodies[0].name}"
    return Role(name=thing.name, kind=thing.kind, half=(a, b, c), body=first, joint=moving)


def roles_of(cast: Cast) -> Roles:
    """Everybody's role."""
    goal = None if cast.goal is None else role_of(cast.goal)
    return Roles(target=role_of(cast.target), goal=goal, extra=tuple(role_of(t) for t in cast.extra))


def joint_position(role: Role, Ts: Mapping[str, Float[np.ndarray, "t 4 4"]]) -> Float[np.ndarray, " t"] | None:
    """Position of a thing's joint from where its parts are, metres or radians; None where it has none."""
    if role.joint is None:
        return None
    axis, T_parent_body = np.array(role.joint.axis), np.array(role.joint.T_parent_body)
    T = invert(T_parent_body) @ invert(Ts[role.body]) @ Ts[role.joint.body]
    moved = T[:, :3, 3] if role.joint.kind == "slide" else matrix_to_rotvec(T[:, :3, :3])
    return moved @ axis / np.linalg.norm(axis)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What happened: what success is judged by. From the simulator, or from where somebody found the things."""

    roles: Roles
    """Who was meant."""
    Ts: dict[str, Float[np.ndarray, "t 4 4"]]
    """World pose of every body of every thing at every frame, by name."""
    joint: Float[np.ndarray, " t"] | None
    """Position of the target's own joint, where it has one."""
    gaps: Float[np.ndarray, " n"]
    """Distance between robot and target at every tick, metres."""
    slack: float = 0.0
    """How far poses may be off, metres: 0 from the simulator, some millimetres from a picture."""

    def target(self) -> Float[np.ndarray, "t 4 4"]:
        """Poses of the target's first body."""
        return self.Ts[self.roles.target.body]

    def goal(self) -> Float[np.ndarray, "t 4 4"]:
        """Poses of the goal."""
        assert self.roles.goal is not None
        return self.Ts[self.roles.goal.body]

    @property
    def touched(self) -> bool:
        """Whether the robot ever touched the target."""
        return bool(self.gaps.min() < 0.001 + self.slack)

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
