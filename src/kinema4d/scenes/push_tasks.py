"""Tasks that touch without a grasp, or nearly touch: push, topple, poke, near miss."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from kinema4d.scenes.path import Key
from kinema4d.scenes.reach import Reach, comfortable, grasp_pose
from kinema4d.scenes.tasks import HOVER, Cast, CrowdedError, Evidence, Task, at, colors, pick_maker, put, somewhere
from kinema4d.scenes.things import SMALL, TALL, Thing, block, can, cup, mark


def key(point: Float[np.ndarray, "2"], z: float, yaw: float, closed: float, seconds: float | None = None) -> Key:
    """The hand over a point of the table, pointing down."""
    pose = grasp_pose(float(point[0]), float(point[1]), z, yaw)
    return Key(T_world_grasp=pose, closed=closed, seconds=seconds)


def _push_setup(rng: np.random.Generator, reach: Reach) -> Cast:
    a, b = colors(rng, 2)
    thing = pick_maker(rng, {"block": block, "can": can, "cup": cup}, a)
    for _ in range(200):
        thing = somewhere(rng, reach, [], thing)
        yaw, far = rng.uniform(-np.pi, np.pi), rng.uniform(0.1, 0.16)
        x, y = at(thing)[:2] + far * np.array([np.cos(yaw), np.sin(yaw)])
        behind = at(thing)[:2] - 0.12 * np.array([np.cos(yaw), np.sin(yaw)])
        inside = [abs(p[0]) < reach.depth and abs(p[1]) < reach.breadth for p in ((x, y), behind)]
        if all(inside):
            goal = put(mark(rng, b), x, y)
            text = f"push the {thing.name} to the {goal.name}"
            return Cast(target=thing, goal=goal, text=text, yaw=yaw, sweep=_ahead(thing, yaw, far))
    raise CrowdedError("found no room for a push")


def _ahead(thing: Thing, yaw: float, far: float) -> tuple[tuple[float, float], ...]:
    """Points from a thing on in one direction."""
    x, y, _ = at(thing)
    return tuple((x + d * np.cos(yaw), y + d * np.sin(yaw)) for d in np.arange(0.02, far + 0.02, 0.02).tolist())


def straddle(reach: Reach, gap: float) -> float:
    """Closedness that leaves a gap between the fingers: two points of contact push straight."""
    return float(np.clip(1 - gap / reach.hand.opening, 0, 1))


def push_yaw(yaw: float, reach: Reach) -> float:
    """Closing direction across the push, so that both fingers touch."""
    return comfortable(yaw + np.pi / 2, reach.yaw)


def _push_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    assert cast.goal is not None
    along = np.array([np.cos(cast.yaw), np.sin(cast.yaw)])
    half = cast.target.half
    thick = reach.hand.finger[0]
    # Far apart on a flat side; close together on a round one, which would wedge between the fingers.
    wide = 1.1 * min(half[0], half[1]) if cast.target.kind == "block" else 0.5 * half[0]
    closed, yaw = straddle(reach, wide), push_yaw(cast.yaw, reach)
    z = max(reach.hand.tip + 0.006, 0.7 * half[2])  # below the middle, so that it slides and does not tip
    a, b = at(cast.target)[:2], at(cast.goal)[:2]
    start = a - (cast.target.radius + thick + 0.035) * along
    end = b - (_support(cast.target, along) + thick) * along
    back = end - 0.03 * along
    return [
        key(start, z + HOVER, yaw, closed),
        key(start, z, yaw, closed, 0.45),
        key(end, z, yaw, closed, 0.5 + float(np.linalg.norm(end - start)) / 0.16),
        key(back, z, yaw, closed, 0.25),
        key(back, z + HOVER, yaw, closed),
    ]


def _support(thing: Thing, along: np.ndarray) -> float:
    """How far a thing extends along a horizontal direction."""
    if thing.kind not in ("block", "plank"):
        return thing.half[0]
    T = thing.T_world_thing
    return float(abs(along @ T[:2, 0]) * thing.half[0] + abs(along @ T[:2, 1]) * thing.half[1])


def _pushed(evidence: Evidence) -> bool:
    offset = evidence.target()[-1, :2, 3] - evidence.goal()[-1, :2, 3]
    return bool(np.hypot(*offset) < 0.04 and evidence.tilt[-1] < 0.5 and evidence.released)


def _topple_setup(rng: np.random.Generator, reach: Reach) -> Cast:
    (a,) = colors(rng, 1)
    thing = somewhere(rng, reach, [], TALL[str(rng.choice(list(TALL)))](rng, a), edge=0.05)
    yaw = rng.uniform(-np.pi, np.pi)
    if thing.kind == "plank":  # over its narrow side
        T = thing.T_world_thing
        yaw = float(np.arctan2(T[1, 0], T[0, 0])) + rng.choice([0.0, np.pi]) + rng.uniform(-0.2, 0.2)
    return Cast(
        target=thing, text=f"knock over the {thing.name}", yaw=yaw, sweep=_ahead(thing, yaw, 2 * thing.half[2] + 0.03)
    )


def _topple_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    along = np.array([np.cos(cast.yaw), np.sin(cast.yaw)])
    top, thick, yaw = 2 * cast.target.half[2], reach.hand.finger[0], push_yaw(cast.yaw, reach)
    # A bottle below its shoulder, which would ride up on the fingers, and hold it.
    z = top * (rng.uniform(0.56, 0.62) if cast.target.kind == "bottle" else rng.uniform(0.78, 0.88))
    a = at(cast.target)[:2]
    start, end = a - (cast.target.radius + thick + 0.03) * along, a + 0.055 * along
    back = end - 0.06 * along  # off the thing before going up, or it may come along
    return [
        key(start, z + 0.06, yaw, 1.0),
        key(start, z, yaw, 1.0, 0.4),
        key(end, z, yaw, 1.0, 0.9),
        key(back, z, yaw, 1.0, 0.35),
        key(back, z + 0.07, yaw, 1.0, 0.4),
    ]


def _poke_setup(rng: np.random.Generator, reach: Reach) -> Cast:
    (a,) = colors(rng, 1)
    thing = pick_maker(rng, {"block": block, "can": can, "cup": cup}, a)
    thing = somewhere(rng, reach, [], thing, edge=0.05)
    return Cast(target=thing, text=f"poke the {thing.name}", yaw=rng.uniform(-np.pi, np.pi))


def _poke_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    along = np.array([np.cos(cast.yaw), np.sin(cast.yaw)])
    thick, yaw = reach.hand.finger[0], push_yaw(cast.yaw, reach)
    z = max(reach.hand.tip + 0.006, 0.8 * cast.target.half[2])
    a = at(cast.target)[:2]
    touch = a - (_support(cast.target, along) + thick) * along
    start, end = touch - 0.05 * along, touch + rng.uniform(0.014, 0.022) * along
    return [
        key(start, z + HOVER, yaw, 1.0),
        key(start, z, yaw, 1.0, 0.45),
        key(end, z, yaw, 1.0, 0.7),
        key(start, z, yaw, 1.0, 0.6),
        key(start, z + HOVER, yaw, 1.0),
    ]


def _poked(evidence: Evidence) -> bool:
    return bool(evidence.touched and 0.003 < evidence.shift < 0.06 and evidence.tilt[-1] < 0.3 and evidence.released)


def _miss_setup(rng: np.random.Generator, reach: Reach) -> Cast:
    (a,) = colors(rng, 1)
    makers = {**SMALL, **TALL}
    thing = somewhere(rng, reach, [], pick_maker(rng, makers, a), edge=0.05)
    return Cast(target=thing, text=f"move past the {thing.name} without touching it", yaw=rng.uniform(-np.pi, np.pi))


def _miss_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    """Pass over the thing, or beside it, with a gap that a glance does not see."""
    along = np.array([np.cos(cast.yaw), np.sin(cast.yaw)])
    across = np.array([-along[1], along[0]])
    gap, closed = rng.uniform(0.006, 0.025), 1.0
    yaw = push_yaw(cast.yaw, reach)
    a, top = at(cast.target)[:2], 2 * cast.target.half[2]
    if rng.random() < 0.5:
        z, aside = top + reach.hand.tip + gap, 0.0
    else:
        z = max(reach.hand.tip + 0.008, rng.uniform(0.4, 0.9) * cast.target.half[2])
        aside = _support(cast.target, across) + reach.hand.finger[1] + gap
        aside *= float(rng.choice([-1, 1]))
        if top > reach.hand.depth - 0.02:  # beside a tall thing the palm would touch
            z, aside = top + reach.hand.tip + gap, 0.0
    start, end = a - 0.1 * along + aside * across, a + 0.1 * along + aside * across
    return [
        key(start, z + HOVER, yaw, closed),
        key(start, z, yaw, closed, 0.5),
        key(end, z, yaw, closed, 1.2),
        key(end, z + HOVER, yaw, closed, 0.5),
    ]


def _missed(evidence: Evidence) -> bool:
    return bool(-evidence.slack < evidence.gaps.min() < 0.04 and evidence.shift < 0.002)


TASKS: dict[str, Task] = {
    "push": Task(about="push a thing along the table to a mark", setup=_push_setup, plan=_push_plan, success=_pushed),
    "topple": Task(
        about="knock a tall thing over",
        setup=_topple_setup,
        plan=_topple_plan,
        success=lambda e: bool(e.tilt[-1] > 1.0),
    ),
    "poke": Task(
        about="touch a thing so that it moves a little and stands", setup=_poke_setup, plan=_poke_plan, success=_poked
    ),
    "near_miss": Task(
        about="pass close to a thing without touching it", setup=_miss_setup, plan=_miss_plan, success=_missed
    ),
}
"""Every task without a grasp."""
