"""Tasks that begin with a grasp: pick and place, stack, pour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kinema4d.geometry.se3 import place
from kinema4d.scenes.path import Key
from kinema4d.scenes.reach import POUR_ROLL, Reach, comfortable, forward_pose, grasp_pose
from kinema4d.scenes.tasks import HOVER, Cast, CrowdedError, Evidence, Task, at, colors, pick_maker, somewhere
from kinema4d.scenes.things import SMALL, Thing, ball_thing, block, bowl, can, cup, mark


def closing_yaw(rng: np.random.Generator, thing: Thing, reach: Reach) -> float:
    """Which way to close on a thing from above: across its narrow side, or as is comfortable for a round one."""
    if thing.kind in ("block", "plank"):
        T = thing.T_world_thing
        return comfortable(float(np.arctan2(T[1, 0], T[0, 0])), reach.yaw)
    return reach.yaw + rng.uniform(-0.5, 0.5)


def grasp_height(thing: Thing, reach: Reach) -> float:
    """Height of the grasp point: the middle of the thing, or as deep as palm and table allow."""
    top = 2 * thing.half[2]
    return float(
        max(min(thing.half[2], top - 0.008), reach.hand.tip + 0.004, top - reach.hand.depth + reach.hand.tip + 0.008)
    )


def pick(thing: Thing, reach: Reach, yaw: float, lift: float) -> list[Key]:
    """Come from above, close, lift."""
    x, y, _ = at(thing)
    z = grasp_height(thing, reach)
    down = grasp_pose(x, y, z, yaw)
    return [
        Key(T_world_grasp=grasp_pose(x, y, z + HOVER, yaw), closed=0.0),
        Key(T_world_grasp=down, closed=0.0, seconds=0.45),
        Key(T_world_grasp=down, closed=1.0, seconds=0.35),
        Key(T_world_grasp=grasp_pose(x, y, z + lift, yaw), closed=1.0),
    ]


def release(x: float, y: float, z: float, yaw: float, lift: float) -> list[Key]:
    """Go down at a place, open, rise."""
    down = grasp_pose(x, y, z, yaw)
    return [
        Key(T_world_grasp=grasp_pose(x, y, z + lift, yaw), closed=1.0),
        Key(T_world_grasp=down, closed=1.0, seconds=0.45),
        Key(T_world_grasp=down, closed=0.0, seconds=0.3),
        Key(T_world_grasp=grasp_pose(x, y, z + HOVER, yaw), closed=0.0, seconds=0.4),
    ]


def _graspable(reach: Reach) -> float:
    return reach.hand.opening - 0.012


def _pick_place_setup(rng: np.random.Generator, reach: Reach) -> Cast:
    a, b = colors(rng, 2)
    thing = pick_maker(rng, SMALL, a, widest=_graspable(reach))
    goal = bowl(rng, b) if thing.kind == "ball" or rng.random() < 0.5 else mark(rng, b)
    goal = somewhere(rng, reach, [], goal, edge=0.02)
    thing = somewhere(rng, reach, [goal], thing, margin=0.05)
    where = "in" if goal.kind == "bowl" else "on"
    text = f"pick up the {thing.name} and put it {where} the {goal.name}"
    return Cast(target=thing, goal=goal, text=text, yaw=closing_yaw(rng, thing, reach))


def _pick_place_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    assert cast.goal is not None
    x, y, _ = at(cast.goal)
    lift = 0.12 if cast.goal.kind == "bowl" else 0.09
    # Into a bowl it is let go above the ground of the bowl, beside whose walls the open fingers must fit.
    above = cast.goal.half[2] * 2 + 0.012 if cast.goal.kind == "bowl" else 0.003
    z = grasp_height(cast.target, reach) + above
    turn = comfortable(reach.yaw + rng.uniform(-0.4, 0.4), reach.yaw)
    return [*pick(cast.target, reach, cast.yaw, lift), *release(x, y, z, turn, max(lift - above, 0.03))]


def _placed(evidence: Evidence) -> bool:
    goal = evidence.roles.goal
    assert goal is not None
    offset = evidence.target()[-1, :3, 3] - evidence.goal()[-1, :3, 3]
    near = float(np.hypot(offset[0], offset[1])) < (0.8 * goal.half[0] if goal.kind == "bowl" else goal.half[0])
    low = offset[2] < goal.half[2] + max(evidence.roles.target.half)
    return bool(near and low and evidence.released)


def _stack_setup(rng: np.random.Generator, reach: Reach) -> Cast:
    a, b = colors(rng, 2)
    thing = pick_maker(rng, {"block": block, "can": can}, a, widest=_graspable(reach))
    under = somewhere(rng, reach, [], block(rng, b), edge=0.02)
    thing = somewhere(rng, reach, [under], thing, margin=0.07)
    text = f"stack the {thing.name} on the {under.name}"
    return Cast(target=thing, goal=under, text=text, yaw=closing_yaw(rng, thing, reach))


def _stack_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    assert cast.goal is not None
    x, y, _ = at(cast.goal)
    above = 2 * cast.goal.half[2] + 0.003
    z = grasp_height(cast.target, reach) + above
    return [*pick(cast.target, reach, cast.yaw, above + 0.06), *release(x, y, z, cast.yaw, 0.05)]


def _stacked(evidence: Evidence) -> bool:
    roles = evidence.roles
    assert roles.goal is not None
    offset = evidence.target()[-1, :3, 3] - evidence.goal()[-1, :3, 3]
    high = abs(offset[2] - roles.target.half[2] - roles.goal.half[2]) < 0.01
    return bool(high and np.hypot(offset[0], offset[1]) < 0.025 and evidence.released)


def _pour_setup(rng: np.random.Generator, reach: Reach) -> Cast:
    a, b, c = colors(rng, 3)
    held = cup(rng, a)
    if held.grip > _graspable(reach):
        raise CrowdedError(f"the {held.name} is too wide for this hand")
    goal = somewhere(rng, reach, [], bowl(rng, b), edge=0.06)
    held = somewhere(rng, reach, [goal], held, margin=0.06, edge=0.06)
    beads = tuple(_bead(rng, held, c, n) for n in range(3))
    text = f"pour from the {held.name} into the {goal.name}"
    return Cast(target=held, goal=goal, extra=beads, text=text, yaw=reach.yaw)


def _bead(rng: np.random.Generator, held: Thing, color: str, number: int) -> Thing:
    small = ball_thing(rng, color)
    r = 0.0075
    body = replace(small.bodies[0], mass=0.003)
    scale = r / small.half[0]
    mesh = replace(body.meshes[0], vertices=body.meshes[0].vertices * scale)
    body = replace(body, meshes=(mesh,), geoms=(replace(body.geoms[0], size=(r,)),))
    x, y, _ = at(held)
    a = 2 * np.pi * number / 3
    T = place(x + 0.0095 * np.cos(a), y + 0.0095 * np.sin(a), 0.004 + r + 0.003)
    return replace(
        small, name=f"{color} bead {number + 1}", kind="bead", bodies=(body,), half=(r, r, r), T_world_thing=T, grip=0.0
    )


POUR_HEIGHT = 0.135
"""Height of the hand while it pours, metres: the mouth of the cup is just over the rim of the bowl."""


def _pour_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    assert cast.goal is not None
    x, y, _ = at(cast.target)
    gx, gy, _ = at(cast.goal)
    grip = 0.02  # below the mouth
    z = 2 * cast.target.half[2] - grip
    turn = rng.uniform(-0.2, 0.2)  # the hand points away from the robot
    face = float(np.arctan2(y, x - reach.base_x)) + turn
    towards = float(np.arctan2(gy, gx - reach.base_x)) + turn
    sign = reach.pours[int(rng.integers(len(reach.pours)))]
    roll = sign * POUR_ROLL
    upright, over = (forward_pose(0, 0, 0, towards, r, reach.yaw) for r in (0.0, roll))
    mouth = over[:3, :3] @ upright[:3, :3].T @ np.array([0, 0, grip])
    px, py = gx - mouth[0], gy - mouth[1]
    near, rise = 0.08, max(z + 0.09, POUR_HEIGHT)
    before = (x - near * np.cos(face), y - near * np.sin(face), z + 0.06)
    return [
        Key(T_world_grasp=forward_pose(*before, face, 0.0, reach.yaw), closed=0.0),
        Key(T_world_grasp=forward_pose(x, y, z, face, 0.0, reach.yaw), closed=0.0, seconds=0.6),
        Key(T_world_grasp=forward_pose(x, y, z, face, 0.0, reach.yaw), closed=1.0, seconds=0.35),
        Key(T_world_grasp=forward_pose(x, y, rise, face, 0.0, reach.yaw), closed=1.0, seconds=0.6),
        Key(T_world_grasp=forward_pose(px, py, rise, towards, 0.0, reach.yaw), closed=1.0),
        Key(T_world_grasp=forward_pose(px, py, POUR_HEIGHT, towards, roll, reach.yaw), closed=1.0, seconds=1.4),
        Key(T_world_grasp=forward_pose(px, py, POUR_HEIGHT, towards, roll, reach.yaw), closed=1.0, seconds=1.0),
    ]


def _poured(evidence: Evidence) -> bool:
    assert evidence.roles.goal is not None
    tilted = evidence.tilt.max() > np.radians(75) and evidence.target()[-1, 2, 3] > 0.08
    bowl_at = evidence.goal()[-1, :3, 3]
    beads = [evidence.Ts[role.body][-1, :3, 3] for role in evidence.roles.extra]
    inside = [np.hypot(*(b - bowl_at)[:2]) < evidence.roles.goal.half[0] and b[2] < 0.08 for b in beads]
    return bool(tilted and sum(inside) >= 2)


TASKS: dict[str, Task] = {
    "pick_place": Task(
        about="pick a thing up and put it into a bowl or on a mark",
        setup=_pick_place_setup,
        plan=_pick_place_plan,
        success=_placed,
    ),
    "stack": Task(about="put a thing on a block", setup=_stack_setup, plan=_stack_plan, success=_stacked),
    "pour": Task(
        about="tilt a cup of beads over a bowl",
        setup=_pour_setup,
        plan=_pour_plan,
        success=_poured,
        possible=lambda reach: bool(reach.pours),
    ),
}
"""Every task that begins with a grasp."""
