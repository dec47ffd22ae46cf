"""Every kind of soft object, drawn by chance: bars, blobs, plates, cloth, ropes, rigid bodies, a door with a rope, a box with a cloth lid.

What holds it is part of it and touches it where it is held: clamps, a slab, pegs. Otherwise nothing that can be seen would say where it hangs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import trimesh

from kinema4d.scenes import jointed
from kinema4d.scenes.jointed import DENSITY, Part
from kinema4d.scenes.soft import Piece, Soft
from kinema4d.scenes.soft_pieces import (
    carried,
    flex,
    grid,
    rope,
    shapes,
    sheet,
    solids,
    surface,
    tetrahedra,
    text,
    tube,
    world,
)

STEP, FINE_STEP, ROPE_STEP = 2e-4, 1e-4, 5e-4
"""Seconds, of cloth and blobs, of bars and plates, and of ropes; elastic bodies blow up with much longer steps."""
POISSON = 0.3
"""Of everything elastic."""


Solid = tuple[str, jointed.Vector, jointed.Vector]
_HOLDER = '<body name="holder"/>'


def _holder(*solids: Solid) -> Piece:
    """What stands still."""
    return carried("holder", shapes(Part(solids=solids)))


def _elastic(name: str, counts: tuple[int, int, int], points: np.ndarray, held: np.ndarray, young: float, holder: Piece, step: float = FINE_STEP) -> Soft:  # fmt: skip
    cells = tetrahedra(counts, points)
    a, b, c, d = (points[cells[:, i]] for i in range(4))
    volume = float(np.einsum("ei,ei->e", np.cross(b - a, c - a), d - a).sum() / 6)
    damping = 3e-4
    pins = np.flatnonzero(held)
    body = flex(points, cells, pins, mass=DENSITY * volume, young=young, poisson=POISSON, damping=damping)
    nodes, faces = surface(cells)
    still = np.concatenate([np.isin(nodes, pins), np.ones(len(holder.bodies), bool)])
    return Soft(
        name=name, category="elastic", xml=world(_HOLDER + body, step=step), pieces=(Piece(faces=faces, nodes=nodes), holder),
        pinned=np.flatnonzero(still), limits={},
        material={"density": DENSITY, "young": young, "poisson": POISSON, "damping": damping},
    )  # fmt: skip


def bar(rng: np.random.Generator) -> Soft:
    """A beam in a clamp at one end or at both, thinner towards the far end."""
    # Tetrahedra in few layers are half as stiff again as the material that they are given, and more, by how they happen to lie.
    counts = (2 * int(rng.integers(10, 14)) - 1, 5, 5)
    size = rng.uniform((0.25, 0.05, 0.05), (0.4, 0.08, 0.08))
    x = grid(counts)
    along = (x[:, 0] + 1) / 2
    both = bool(rng.random() < 0.3)
    taper = 1.0 if both else 1 - rng.uniform(0, 0.4) * along
    points = np.stack([along * size[0], x[:, 1] * size[1] / 2 * taper, x[:, 2] * size[2] / 2 * taper], axis=1)
    young = float(rng.uniform(5e4, 1e5) if both else rng.uniform(3e5, 4e5))
    c, wide = 0.012, 0.6 * size[1:]
    clamps: list[Solid] = [("box", (c, wide[0], wide[1]), (x, 0.0, 0.0)) for x in ([-c, size[0] + c] if both else [-c])]
    return _elastic("bar", counts, points, (along == 0) | (both & (along == 1)), young, _holder(*clamps))


def blob(rng: np.random.Generator) -> Soft:
    """A lump, round or with bumps, that stands on its underside on a slab."""
    counts = (6, 6, 6)
    x = grid(counts)
    s = x**2
    ball = x * np.sqrt(1 - (s[:, [1, 2, 0]] + s[:, [2, 0, 1]]) / 2 + s[:, [1, 2, 0]] * s[:, [2, 0, 1]] / 3)
    around = 0.75 * ball + 0.25 * x  # a pure ball has flat tetrahedra where the edges of the cube were
    way, phase = rng.normal(size=(3, 3)) * 1.5, rng.uniform(0, 6, 3)
    bumps = 1 + 0.06 * np.sin(around @ way.T + phase).sum(axis=1)
    points = around * bumps[:, None] * rng.uniform(0.07, 0.13, 3)
    points[:, 2] -= points[:, 2].min()
    foot = x[:, 2] == -1
    points[foot, 2] = 0.0
    weight = DENSITY * 9.81 * float(points[:, 2].max())  # pressure at the foot
    a, b = np.abs(points[foot, :2]).max(axis=0) + 0.01
    slab: Solid = ("box", (float(a), float(b), 0.006), (0.0, 0.0, -0.006))
    return _elastic("blob", counts, points, foot, float(rng.uniform(35, 60)) * weight, _holder(slab), STEP)


def plate(rng: np.random.Generator) -> Soft:
    """A thick sheet, a little curved, in a rail along one side or two."""
    counts = (13, int(rng.integers(10, 14)), 3)
    size = rng.uniform((0.2, 0.18, 0.02), (0.32, 0.3, 0.035))
    x = grid(counts)
    points = x * size / 2
    bow = float(rng.uniform(-0.03, 0.03))
    points[:, 2] += bow * (x[:, 1] ** 2 - 1)
    two = bool(rng.random() < 0.3)
    held = (x[:, 0] == -1) | (two & (x[:, 0] == 1))
    c, high = 0.008, float(size[2] + abs(bow)) / 2 + 0.004
    rails: list[Solid] = [("box", (c, float(size[1]) / 2 + 0.004, high), (s * (float(size[0]) / 2 + c), 0.0, -bow / 2)) for s in ((-1, 1) if two else (-1,))]  # fmt: skip
    young = float(rng.uniform(5e4, 1e5) if two else rng.uniform(3e5, 4e5))
    return _elastic("plate", counts, points, held, young, _holder(*rails))


def cloth(rng: np.random.Generator) -> Soft:
    """A sheet, hung on pegs by two corners or by one, or by a side on a rod."""
    rows, columns = int(rng.integers(9, 12)), int(rng.integers(9, 12))
    size = rng.uniform(0.25, 0.4, 2)
    x = grid((1, rows, columns))
    points = np.stack([x[:, 1] * size[0] / 2, np.zeros(len(x)), x[:, 2] * size[1] / 2], axis=1)
    top, aside = x[:, 2] == 1, np.abs(x[:, 1]) == 1
    how = int(rng.choice(3, p=(0.5, 0.3, 0.2)))
    held, r = (top & aside, top, top & (x[:, 1] == 1))[how], 0.006
    rod: list[Solid] = [("box", (float(size[0]) / 2 + r, r, r), (0.0, 0.0, float(size[1]) / 2 + r))]
    pegs: list[Solid] = [("box", (r, r, r), (float(p[0]), 0.0, float(p[2]) + r)) for p in points[held]]
    holder = _holder(*(rod if how == 1 else pegs))
    areal, thick, damping = float(rng.uniform(0.3, 0.8)), 0.001, 1e-4
    young = float(rng.uniform(800, 1200)) * areal / thick  # a wave runs some 30 m/s in it, whatever its weight
    pins = np.flatnonzero(held)
    cells = sheet(rows, columns)
    body = flex(
        points, cells, pins, mass=areal * size.prod(), young=young, poisson=POISSON, damping=damping, thickness=thick
    )
    still = np.concatenate([pins, len(points) + np.arange(len(holder.bodies))])
    return Soft(
        name="cloth", category="cloth", xml=world(_HOLDER + body, step=STEP),
        pieces=(Piece(faces=cells, nodes=np.arange(len(points))), holder), pinned=still, limits={},
        material={"density": areal / thick, "thickness": thick, "young": young, "poisson": POISSON, "damping": damping},
    )  # fmt: skip


def _rope_facts(rng: np.random.Generator, length: float) -> dict[str, float]:
    thick = float(rng.uniform(0.005, 0.011))
    count = int(np.clip(length / (4 * thick), 7, 18))  # shorter rods than that are beads
    long = length / count
    weight = DENSITY * np.pi * thick**2 * long  # of one rod
    return {
        "count": count, "long": long, "thick": thick, "density": DENSITY,
        "stiffness": float(rng.uniform(2.0, 6.0)) * weight * 9.81 * long, "damping": 2.0 * weight * long**1.5,
    }  # fmt: skip


def _rope(facts: dict[str, float], at: tuple[float, float, float]) -> tuple[str, Piece]:
    count, long, thick = int(facts["count"]), facts["long"], facts["thick"]
    body = rope(count, long, thick, at=at, density=facts["density"], stiffness=facts["stiffness"], damping=facts["damping"])  # fmt: skip
    return body, tube(count, long, thick)


def hung_rope(rng: np.random.Generator) -> Soft:
    """A rope that hangs from a hook by one end."""
    facts = _rope_facts(rng, float(rng.uniform(0.35, 0.8)))
    body, piece = _rope(facts, (0.0, 0.0, 0.0))
    hook = _holder(("box", (0.02, 0.02, 0.01), (0.0, 0.0, facts["thick"] + 0.01)))
    return Soft(
        name="rope", category="rope", xml=world(_HOLDER + body, step=ROPE_STEP), pieces=(hook, piece),
        pinned=np.arange(len(hook.bodies)), limits={}, material=facts,
    )  # fmt: skip


def rigid(rng: np.random.Generator) -> Soft:
    """One solid without a joint, thrown up."""
    a, b, c = rng.uniform(0.05, 0.15, 3)
    make: tuple[Callable[[], trimesh.Trimesh], ...] = (
        lambda: trimesh.creation.box((2 * a, 2 * b, c)),
        lambda: trimesh.creation.cylinder(a / 2, 3 * b, sections=16),
        lambda: trimesh.creation.capsule(2 * a, b / 2, count=(10, 10)),
        lambda: trimesh.creation.torus(a, a / 3, major_sections=20, minor_sections=8),
        lambda: trimesh.creation.icosphere(2).apply_scale((a, b, c)),
        lambda: trimesh.creation.annulus(0.6 * a, a, 2 * b, sections=20),
    )
    shape = make[int(rng.integers(len(make)))]()
    shape.apply_translation(-shape.center_mass)
    shape.density = DENSITY
    turned = np.asarray(shape.moment_inertia)
    full = [turned[0, 0], turned[1, 1], turned[2, 2], turned[0, 1], turned[0, 2], turned[1, 2]]
    body = f'<body name="solid"><freejoint/><inertial pos="0 0 0" mass="{shape.mass:.9g}" fullinertia="{text(full)}"/></body>'
    return Soft(
        name="rigid", category="rigid", xml=world(body, step=ROPE_STEP), pieces=(carried("solid", [shape]),),
        pinned=np.zeros(0, np.int64), limits={}, material={"density": DENSITY, "mass": float(shape.mass)},
    )  # fmt: skip


def door_rope(rng: np.random.Generator) -> Soft:
    """A door of :mod:`kinema4d.scenes.jointed` with a rope on its handle."""
    frame, leaf = jointed.door(rng).parts
    _, (_, grip, _), (x, y, z) = leaf.solids[1]
    facts = _rope_facts(rng, float(rng.uniform(0.6, 0.95)) * (z - grip))
    line, piece = _rope(facts, (x, y - 0.012, z - grip))
    hinge = f'<joint name="leaf" type="hinge" axis="{text(leaf.axis)}"/>'
    body = (
        f'<body name="frame" pos="{text(frame.at)}">{solids(frame, density=DENSITY)}'
        f'<body name="leaf" pos="{text(leaf.at)}">{hinge}{solids(leaf, density=DENSITY)}{line}</body></body>'
    )
    still = carried("frame", shapes(frame))
    return Soft(
        name="door-rope", category="mixed", xml=world(body, step=ROPE_STEP),
        pieces=(still, carried("leaf", shapes(leaf)), piece), pinned=np.arange(len(still.bodies)),
        limits={"leaf": leaf.limits}, material=facts,
    )  # fmt: skip


def box_cloth(rng: np.random.Generator) -> Soft:
    """An open box that swings about a bar between two posts, with a loose cloth that is tied to its rim here and there."""
    w, d, h = rng.uniform((0.12, 0.12, 0.08), (0.2, 0.2, 0.15))  # half sides, and half height
    t, up = 0.006, float(rng.uniform(0.15, 0.3))
    walls = (
        ("box", (w, d, t), (0.0, 0.0, -2 * h)), ("box", (w, t, h), (0.0, d, -h)), ("box", (w, t, h), (0.0, -d, -h)),
        ("box", (t, d, h), (w, 0.0, -h)), ("box", (t, d, h), (-w, 0.0, -h)),
    )  # fmt: skip
    arms = tuple(("box", (t, t, up / 2), (side * w, 0.0, up / 2)) for side in (-1, 1))
    out = 0.01  # from the box to the posts
    box = Part(solids=(*walls, *arms, ("box", (w + out + 3 * t, t, t), (0.0, 0.0, up))))
    tall = float(rng.uniform(0.4, 1.0)) * (up + 2 * h) / 2
    posts: list[Solid] = [("box", (1.5 * t, 2 * t, tall), (s * (w + out + 2.5 * t), 0.0, up + 2 * t - tall)) for s in (-1, 1)]  # fmt: skip
    rows, columns = int(rng.integers(8, 11)), int(rng.integers(8, 11))
    x = grid((1, rows, columns))[:, 1:]
    loose = float(rng.uniform(0.02, 0.05)) * (1 - x[:, 0] ** 2) * (1 - x[:, 1] ** 2)
    corner, back, rim = (np.abs(x) == 1).all(axis=1), x[:, 1] == 1, (np.abs(x) == 1).any(axis=1)
    tied = corner | back if rng.random() < 0.5 else rim
    tied = tied | ((np.abs(x[:, 0]) == 1) & (np.abs(x[:, 1]) * d < 1.5 * t))  # to the arms
    points = np.stack([x[:, 0] * w, x[:, 1] * d, loose + np.where(rim & ~tied, 0.012, 0.0)], axis=1)
    pins = np.flatnonzero(tied)
    areal, thick, damping = float(rng.uniform(0.3, 0.8)), 0.001, 1e-4
    young = float(rng.uniform(400, 800)) * areal / thick
    cells = sheet(rows, columns)
    lid = flex(
        points, cells, pins, mass=areal * 4 * w * d, young=young, poisson=POISSON, damping=damping, thickness=thick
    )
    hinge = f'<joint name="swing" type="hinge" axis="1 0 0" pos="0 0 {up:.9g}"/>'
    body = f'<body name="box">{hinge}{solids(box, density=DENSITY)}{lid}</body>'
    holder = _holder(*posts)
    return Soft(
        name="box-cloth", category="mixed", xml=world(_HOLDER + body, step=STEP),
        pieces=(holder, carried("box", shapes(box)), Piece(faces=cells, nodes=np.arange(len(points)))),
        pinned=np.arange(len(holder.bodies)), limits={"swing": (-2.0, 2.0)},
        material={"density": DENSITY, "cloth_density": areal / thick, "thickness": thick, "young": young, "poisson": POISSON, "damping": damping},
    )  # fmt: skip


KINDS: dict[str, Callable[[np.random.Generator], Soft]] = {
    "bar": bar, "blob": blob, "plate": plate, "cloth": cloth, "rope": hung_rope, "rigid": rigid, "door-rope": door_rope, "box-cloth": box_cloth,
}  # fmt: skip
"""Every kind by name."""


def draw(kind: str, seed: int) -> Soft:
    """One of a kind."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind of soft object {kind!r}; known are {', '.join(KINDS)}")
    return KINDS[kind](np.random.default_rng([seed, sorted(KINDS).index(kind), 31]))
