"""The paper's three scenarios (Table V): canonical, cluttered and dynamic, by the things that do not matter."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.raster import assemble, rasterize
from kinema4d.scenes.hand import Hand
from kinema4d.scenes.joint_tasks import moving_frame
from kinema4d.scenes.path import Commands
from kinema4d.scenes.reach import Reach
from kinema4d.scenes.tasks import Cast, CrowdedError, at, colors, pick_maker, put
from kinema4d.scenes.things import SMALL, TALL, Maker, Thing
from kinema4d.types import Camera

SCENARIOS: dict[str, str] = {
    "canonical": "no distractors",
    "cluttered": "3 to 5 distractors within 5 cm of the target",
    "dynamic": "6 to 8 distractors anywhere, one of them before the target as the camera sees it",
    "packed": "3 distractors beside the target and 5 to 7 anywhere: kept for judging layouts that no world learns from",
}
"""Every scenario."""
PAPER = ("canonical", "cluttered", "dynamic")
"""Those of the paper."""
CROWD = {"cluttered": (3, 6), "dynamic": (6, 9), "packed": (8, 11)}
"""How many distractors, from and below."""
NEAR_M = 0.05
"""How near the distractors of a cluttered scene are, surface to surface."""
HIDDEN = (0.05, 0.85)
"""How much of the target the thing before it hides in a dynamic scene: a part that counts, and not all."""
ROUND = ("can", "ball", "bottle", "cup", "bowl", "mark")
"""Things that stand on a disc; the others stand on a rectangle."""
CLEAR_M = 0.012
"""How far they stay from the way of the fingers."""


def clutter(
    rng: np.random.Generator, scenario: str, cast: Cast, reach: Reach, commands: Commands, camera: Camera
) -> tuple[Thing, ...]:
    """Distractors for a scene, out of the hand's way."""
    if scenario == "canonical":
        return ()
    taken, made = list(cast.things), []
    names = {thing.name for thing in taken}
    # What the target sweeps is its own path when it is carried, and the way of a drawer when it opens.
    count = int(rng.integers(*CROWD[scenario]))
    for n in range(count):
        makers = TALL if scenario == "dynamic" and n == 0 else SMALL
        thing = _fitting(rng, scenario, n, makers, names, cast, reach, commands, camera, taken)
        taken.append(thing)
        made.append(thing)
        names.add(thing.name)
    return tuple(made)


def _fitting(
    rng: np.random.Generator, scenario: str, n: int, makers: dict[str, Maker], names: set[str], cast: Cast,
    reach: Reach, commands: Commands, camera: Camera, taken: list[Thing],
) -> Thing:  # fmt: skip
    """A new thing at a place that is free and clear of the hand's way."""
    beside = scenario == "cluttered" or (scenario == "packed" and n < 3)
    before = scenario == "dynamic" and n == 0
    for _ in range(12):
        made = pick_maker(rng, makers, colors(rng, 1)[0])
        if made.name in names:
            continue
        for _ in range(24):
            if beside:
                thing = _beside(rng, cast.target, made)
            elif before:
                thing = _before(rng, cast.target, made, camera)
            else:
                x, y = rng.uniform(-reach.depth - 0.05, reach.depth + 0.1), rng.uniform(-1, 1) * (reach.breadth + 0.08)
                thing = put(made, x, y, yaw=rng.uniform(-np.pi, np.pi))
            if beside and surface_gap(cast.target, thing) > NEAR_M:
                continue
            if not (_free(thing, taken) and _clear(thing, cast, reach.hand, commands)):
                continue
            if not before or HIDDEN[0] <= hidden_share(cast.target, thing, camera) <= HIDDEN[1]:
                return thing
    raise CrowdedError(f"found no room for distractor {n + 1}")


def _beside(rng: np.random.Generator, target: Thing, thing: Thing) -> Thing:
    angle = rng.uniform(-np.pi, np.pi)
    reach = (target.radius + thing.radius) * rng.uniform(0.85, 1.0) + rng.uniform(0.012, NEAR_M)
    x, y, _ = at(target)
    return put(thing, x + reach * np.cos(angle), y + reach * np.sin(angle), yaw=rng.uniform(-np.pi, np.pi))


def _before(rng: np.random.Generator, target: Thing, thing: Thing, camera: Camera) -> Thing:
    """Between camera and target, so that it hides a part of it."""
    eye = camera.T_world_camera[:2, 3]
    x, y, _ = at(target)
    towards = (eye - (x, y)) / np.linalg.norm(eye - (x, y))
    across = np.array([-towards[1], towards[0]])
    far = target.radius + thing.radius + rng.uniform(0.02, 0.07)
    px, py = np.array([x, y]) + far * towards + rng.uniform(-0.8, 0.8) * target.half[0] * across
    return put(thing, px, py, yaw=rng.uniform(-np.pi, np.pi))


def surface_gap(a: Thing, b: Thing) -> float:
    """Distance between the footprints of two things on the table that do not overlap, metres; a drawer or a door counts
    as its cabinet."""
    return float(min(_beyond(a, _outline(b)).min(), _beyond(b, _outline(a)).min()))


def _outline(thing: Thing) -> Float[np.ndarray, "n 2"]:
    """Corners of its footprint."""
    x, y = thing.half[:2]
    turn = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    corners = np.array([[x, y], [-x, y], [-x, -y], [x, -y]])
    points = x * np.stack([np.cos(turn), np.sin(turn)], axis=1) if thing.kind in ROUND else corners
    return points @ thing.T_world_thing[:2, :2].T + at(thing)[:2]


def _beyond(thing: Thing, points: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
    """How far points on the table are from its footprint."""
    local = (points - at(thing)[:2]) @ thing.T_world_thing[:2, :2]
    if thing.kind in ROUND:
        return np.maximum(np.hypot(*local.T) - thing.half[0], 0)
    return np.hypot(*np.maximum(np.abs(local) - thing.half[:2], 0).T)


def hidden_share(target: Thing, thing: Thing, camera: Camera) -> float:
    """Share of the target's pixels that a thing hides from the camera at the start."""
    frames = [target.T_world_thing, *(moving_frame(target, b.start) for b in target.bodies[1:]), thing.T_world_thing]
    parts = [(mesh, n) for n, body in enumerate((*target.bodies, *thing.bodies)) for mesh in body.meshes]
    own = [(mesh, n) for mesh, n in parts if n < len(target.bodies)]
    camera = camera.resized(96, max(round(96 * camera.width / camera.height), 1))  # the same scene at every size
    Ts = T_camera_world(camera, 1)[:, None] @ np.stack(frames)
    alone, both = (rasterize(assemble(p), Ts, camera, threads=1) for p in (own, parts))
    seen = (both.valid & (both.ids <= len(target.bodies))).sum()
    return 1.0 - float(seen) / max(float(alone.valid.sum()), 1.0)


def _free(thing: Thing, taken: list[Thing]) -> bool:
    x, y, _ = at(thing)
    return all(np.hypot(x - at(t)[0], y - at(t)[1]) > 0.9 * (thing.radius + t.radius) + 0.008 for t in taken)


def _clear(thing: Thing, cast: Cast, hand: Hand, commands: Commands) -> bool:
    """Whether the fingers, the palm and what they carry or push keep away from a thing all the way."""
    x, y, _ = at(thing)
    top = 2 * thing.half[2]
    Ts = commands.Ts_world_grasp
    down = Ts[:, 2, 2] < -0.9
    tips = Ts[:, 2, 3] - hand.tip
    low = tips < top + 0.02
    # Fingers are on both sides of the grasp point along its y axis, as far out as the gripper is open.
    spread = hand.opening / 2 * (1 - commands.closed) + 2 * hand.finger[1]
    here = np.array([x, y]) - Ts[:, :2, 3]
    lies = np.stack([(here * Ts[:, :2, 0]).sum(axis=1), (here * Ts[:, :2, 1]).sum(axis=1)], axis=1)
    beyond = np.maximum(np.abs(lies) - np.stack([np.full(len(Ts), hand.finger[0]), spread], axis=1), 0)
    if (down & low & (np.hypot(*beyond.T) < thing.radius + CLEAR_M)).any():
        return False
    palm = Ts[:, 2, 3] - hand.tip + hand.depth
    beyond = np.maximum(np.abs(lies) - hand.palm, 0)
    if (down & (palm < top + 0.008) & (np.hypot(*beyond.T) < thing.radius + CLEAR_M)).any():
        return False
    if not down.all() and not _clear_of_lying(thing, hand, Ts[~down], spread[~down]):
        return False
    room = thing.radius + max(cast.target.half[0], cast.target.half[1]) + CLEAR_M
    if any(np.hypot(x - px, y - py) < room for px, py in cast.sweep):
        return False
    # What is pulled or carried low needs room for itself.
    size = min(cast.target.radius, 0.05)
    carried = low & (np.hypot(*here.T) < thing.radius + size + CLEAR_M)
    start = np.hypot(*(Ts[:, :2, 3] - at(cast.target)[:2]).T) < 0.03
    return not (carried & ~start).any()


def _clear_of_lying(thing: Thing, hand: Hand, Ts: Float[np.ndarray, "n 4 4"], spread: Float[np.ndarray, " n"]) -> bool:
    """The same for a hand that points forward: as a strip on the table below it, from the finger tips to the wrist."""
    x, y, _ = at(thing)
    flat = np.linalg.norm(Ts[:, :2, 2], axis=1)
    ahead = Ts[:, :2, 2] / flat[:, None]
    aside = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
    here = np.array([x, y]) - Ts[:, :2, 3]
    along, across = (here * ahead).sum(axis=1), np.abs((here * aside).sum(axis=1))
    fingers = along > hand.tip - hand.depth
    wide = np.where(fingers, spread * np.abs((Ts[:, :2, 1] * aside).sum(axis=1)) + 0.01, float(hand.palm.max()))
    rises = np.clip(-along, 0, None) * -Ts[:, 2, 2] / flat  # the wrist is higher than the finger tips
    low = Ts[:, 2, 3] + rises - 0.035 < 2 * thing.half[2]
    room = thing.radius + CLEAR_M
    return not (low & (across < wide + room) & (along < hand.tip + room) & (along > -0.25 - room)).any()
