"""Tasks with joints: drawers, doors, lids and levers, pulled by their handles or pushed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import invert, rotvec_to_matrix, transform
from kinema4d.scenes import furniture
from kinema4d.scenes.path import Key
from kinema4d.scenes.reach import Reach, comfortable, grasp_pose
from kinema4d.scenes.tasks import Cast, CrowdedError, Evidence, Task, colors, put
from kinema4d.scenes.things import Thing

OPEN_DRAWER, SHUT_DRAWER = 0.06, 0.015
"""A drawer that is pulled further than this is open; nearer than this it is shut, metres."""
OPEN_HINGE, SHUT_HINGE = 0.6, 0.15
"""The same for doors and lids, radians."""
STEPS = 6
"""Keys along an arc."""


def moving_frame(thing: Thing, position: float) -> Float[np.ndarray, "4 4"]:
    """World frame of the part that moves, at a position of its joint."""
    body = thing.bodies[1]
    axis = np.array(body.axis, np.float64)
    if body.joint == "slide":
        T = transform(axis * position, np.eye(3))
    else:
        T = transform(np.zeros(3), rotvec_to_matrix(axis * position))
    return thing.T_world_thing @ body.T_parent_body @ T


def _far(thing: Thing, rng: np.random.Generator, reach: Reach, out: float) -> Thing:
    """Furniture stands towards the far end of the reach, so that what opens towards the robot has room: ``out``."""
    far = reach.depth - 0.02 - thing.half[0] * 0.3
    near = -reach.depth + out
    if near > far:
        raise CrowdedError(f"the {thing.name} opens further than this robot's reach is deep")
    side = max(reach.breadth - thing.half[1] - 0.02, 0.0)
    y = rng.uniform(-side, side)
    # A little turned, so that no two look alike, and towards the robot at its side.
    yaw = rng.uniform(-0.15, 0.15) + 0.6 * np.arctan2(y, -reach.base_x)
    return put(thing, rng.uniform(max(near, far - 0.08), far), y, yaw=yaw)


def _grasp_at(T_world_spot: Float[np.ndarray, "4 4"], reach: Reach) -> Float[np.ndarray, "4 4"]:
    """From above at a handle, closing across the panel that it is on."""
    x, y, z = T_world_spot[:3, 3]
    yaw = float(np.arctan2(T_world_spot[1, 1], T_world_spot[0, 1]))
    return grasp_pose(x, y, z, comfortable(yaw, reach.yaw))


def _pull(cast: Cast, reach: Reach, start: float, end: float) -> list[Key]:
    """Grasp the handle and move it as its joint moves."""
    thing = cast.target
    T_spot = thing.spots["handle"]
    T_handle_grasp = invert(moving_frame(thing, start) @ T_spot) @ _grasp_at(moving_frame(thing, start) @ T_spot, reach)
    way = [moving_frame(thing, p) @ T_spot @ T_handle_grasp for p in np.linspace(start, end, STEPS)]
    slide = thing.bodies[1].joint == "slide"
    arc = abs(end - start) * (1.0 if slide else 0.1)
    up, away = transform(np.array([0, 0, 0.08]), np.eye(3)), transform(np.array([0.0, 0.0, -0.05]), np.eye(3))
    keys = [
        Key(T_world_grasp=up @ way[0], closed=0.0),
        Key(T_world_grasp=way[0], closed=0.0, seconds=0.5),
        Key(T_world_grasp=way[0], closed=1.0, seconds=0.35),
    ]
    keys += [Key(T_world_grasp=T, closed=1.0, seconds=max(arc / 0.1 / (STEPS - 1), 0.2)) for T in way[1:]]
    keys.append(Key(T_world_grasp=way[-1], closed=0.0, seconds=0.3))
    keys.append(Key(T_world_grasp=way[-1] @ away, closed=0.0, seconds=0.4))  # back out the way it points
    return keys


def _shove(
    cast: Cast, reach: Reach, start: float, end: float, spot: str, normal: tuple[float, float, float], gap: float
) -> list[Key]:
    """Push a spot along its joint's way with closed fingers that point down; ``normal`` leaves the surface in the
    frame of the part, ``gap`` is how far its surface is from the spot."""
    thing = cast.target
    yaw = None
    way = []
    for p in np.linspace(start, end, STEPS):
        T = moving_frame(thing, p)
        out = T[:3, :3] @ np.array(normal)
        if yaw is None:  # fingers side by side across the push
            flat = np.arctan2(out[1], out[0])
            yaw = comfortable(float(flat + np.pi / 2), reach.yaw)
        thick = reach.hand.finger[0] * np.hypot(out[0], out[1]) + reach.hand.tip * max(out[2], 0.0)
        x, y, z = (T @ thing.spots[spot])[:3, 3] + out * (gap + thick)
        way.append(grasp_pose(x, y, z, yaw))
    T0 = moving_frame(thing, start)
    off = transform(0.04 * (T0[:3, :3] @ np.array(normal)), np.eye(3))
    up = transform(np.array([0, 0, 0.07]), np.eye(3))
    keys = [
        Key(T_world_grasp=up @ off @ way[0], closed=1.0),
        Key(T_world_grasp=off @ way[0], closed=1.0, seconds=0.4),
    ]
    keys += [Key(T_world_grasp=T, closed=1.0, seconds=0.35) for T in way]
    keys.append(Key(T_world_grasp=up @ way[-1], closed=1.0, seconds=0.5))
    return keys


def _setup(
    make: Callable[..., Thing], low: float, high: float, verb: str, out: float
) -> Callable[[np.random.Generator, Reach], Cast]:
    def setup(rng: np.random.Generator, reach: Reach) -> Cast:
        (color,) = colors(rng, 1)
        thing = make(rng, color, start=float(rng.uniform(low, high)))
        return Cast(target=_far(thing, rng, reach, out), text=f"{verb} the {thing.name}")

    return setup


def _deep(out: float) -> Callable[[Reach], bool]:
    """Whether a robot's reach is deep enough for something that opens towards it by ``out``."""
    return lambda reach: 2 * reach.depth > out + 0.035


def _either(*setups: Callable[[np.random.Generator, Reach], Cast]) -> Callable[[np.random.Generator, Reach], Cast]:
    return lambda rng, reach: setups[int(rng.integers(len(setups)))](rng, reach)


def _start(cast: Cast) -> float:
    return cast.target.bodies[1].start


def _open_drawer_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    return _pull(cast, reach, _start(cast), rng.uniform(0.08, 0.1))


def _close_drawer_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    return _shove(cast, reach, _start(cast), -0.004, "handle", (-1, 0, 0), 0.008)


def _open_hinge_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    far = rng.uniform(0.9, 1.2) if cast.target.kind == "door" else rng.uniform(0.85, 1.05)
    return _pull(cast, reach, _start(cast), far)


def _close_hinge_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    normal = (-1, 0, 0) if cast.target.kind == "door" else (0, 0, 1)
    return _shove(cast, reach, _start(cast), 0.02, "edge", normal, 0.0)


def _lever_plan(rng: np.random.Generator, cast: Cast, reach: Reach) -> list[Key]:
    return _shove(cast, reach, _start(cast), 0.5, "edge", (-1, 0, 0), 0.0)


def _past(limit: float, sign: int) -> Callable[[Evidence], bool]:
    def success(evidence: Evidence) -> bool:
        assert evidence.joint is not None
        return bool(sign * (evidence.joint[-1] - limit) > 0)

    return success


TASKS: dict[str, Task] = {
    "open_drawer": Task(
        about="pull a drawer open by its handle",
        setup=_setup(furniture.drawer, 0.0, 0.0, "open", 0.22),
        plan=_open_drawer_plan,
        success=_past(OPEN_DRAWER, 1),
        side=True,
        possible=_deep(0.22),
    ),
    "close_drawer": Task(
        about="push an open drawer shut",
        setup=_setup(furniture.drawer, 0.06, 0.09, "close", 0.22),
        plan=_close_drawer_plan,
        success=_past(SHUT_DRAWER, -1),
        side=True,
        possible=_deep(0.22),
    ),
    "open_hinge": Task(
        about="open a door or a lid by its handle",
        setup=_either(
            _setup(furniture.door, 0.0, 0.0, "open", 0.2), _setup(furniture.lid, 0.0, 0.0, "open the lid of", 0.12)
        ),
        plan=_open_hinge_plan,
        success=_past(OPEN_HINGE, 1),
        side=True,
        possible=_deep(0.12),
    ),
    "close_hinge": Task(
        about="push an open door or lid shut",
        setup=_either(
            _setup(furniture.door, 0.9, 1.2, "close", 0.2), _setup(furniture.lid, 0.8, 1.1, "close the lid of", 0.12)
        ),
        plan=_close_hinge_plan,
        success=_past(SHUT_HINGE, -1),
        side=True,
        possible=_deep(0.12),
    ),
    "push_lever": Task(
        about="push a lever over",
        setup=_setup(furniture.lever, -0.55, -0.4, "push", 0.12),
        plan=_lever_plan,
        success=_past(0.3, 1),
        side=True,
        possible=_deep(0.12),
    ),
}
"""Every task with a joint."""
