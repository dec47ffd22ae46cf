"""Every kind of soft object, drawn by chance: bars, blobs, plates, cloth, ropes, rigid bodies, a door with a rope, a box with a cloth lid."""

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

STEP, ROPE_STEP = 2e-4, 5e-4
"""Seconds; elastic bodies blow up with much longer steps."""
POISSON = 0.3
"""Of everything elastic."""


def _elastic(name: str, counts: tuple[int, int, int], points: np.ndarray, held: np.ndarray, young: float) -> Soft:
    cells = tetrahedra(counts, points)
    a, b, c, d = (points[cells[:, i]] for i in range(4))
    volume = float(np.einsum("ei,ei->e", np.cross(b - a, c - a), d - a).sum() / 6)
    damping = 3e-4
    pins = np.flatnonzero(held)
    body = flex(points, cells, pins, mass=DENSITY * volume, young=young, poisson=POISSON, damping=damping)
    nodes, faces = surface(cells)
    return Soft(
        name=name, category="elastic", xml=world(body, step=STEP), pieces=(Piece(faces=faces, nodes=nodes),),
        pinned=np.flatnonzero(np.isin(nodes, pins)), limits={},
        material={"density": DENSITY, "young": young, "poisson": POISSON, "damping": damping},
    )  # fmt: skip


def bar(rng: np.random.Generator) -> Soft:
    """A beam that is held at one end or at both, thinner towards the far end."""
    counts = (int(rng.integers(10, 14)), 3, 3)
    size = rng.uniform((0.3, 0.04, 0.04), (0.5, 0.07, 0.07))
    x = grid(counts)
    along = (x[:, 0] + 1) / 2
    both = bool(rng.random() < 0.3)
    taper = 1.0 if both else 1 - rng.uniform(0, 0.4) * along
    points = np.stack([along * size[0], x[:, 1] * size[1] / 2 * taper, x[:, 2] * size[2] / 2 * taper], axis=1)
    young = float(rng.uniform(5e4, 1e5) if both else rng.uniform(2e5, 4e5))
    return _elastic("bar", counts, points, (along == 0) | (both & (along == 1)), young)


def blob(rng: np.random.Generator) -> Soft:
    """A lump, round or with bumps, that stands on its underside."""
    counts = (6, 6, 6)
    x = grid(counts)
    s = x**2
    ball = x * np.sqrt(1 - (s[:, [1, 2, 0]] + s[:, [2, 0, 1]]) / 2 + s[:, [1, 2, 0]] * s[:, [2, 0, 1]] / 3)
    around = 0.75 * ball + 0.25 * x  # a pure ball has flat tetrahedra where the edges of the cube were
    way, phase = rng.normal(size=(3, 3)) * 1.5, rng.uniform(0, 6, 3)
    bumps = 1 + 0.06 * np.sin(around @ way.T + phase).sum(axis=1)
    points = around * bumps[:, None] * rng.uniform(0.07, 0.13, 3)
    points[:, 2] -= points[:, 2].min()
    weight = DENSITY * 9.81 * float(points[:, 2].max())  # pressure at the foot
    return _elastic("blob", counts, points, x[:, 2] == -1, float(rng.uniform(35, 60)) * weight)


def plate(rng: np.random.Generator) -> Soft:
    """A thick sheet that is held along one side or two, a little curved."""
    counts = (9, int(rng.integers(7, 10)), 2)
    size = rng.uniform((0.25, 0.2, 0.015), (0.4, 0.35, 0.025))
    x = grid(counts)
    points = x * size / 2
    points[:, 2] += rng.uniform(-0.03, 0.03) * (x[:, 1] ** 2 - 1)
    two = bool(rng.random() < 0.3)
    held = (x[:, 0] == -1) | (two & (x[:, 0] == 1))
    return _elastic("plate", counts, points, held, float(rng.uniform(5e4, 1e5) if two else rng.uniform(2e5, 4e5)))


def cloth(rng: np.random.Generator) -> Soft:
    """A sheet, hung by two corners, by one, or by a side."""
    rows, columns = int(rng.integers(9, 12)), int(rng.integers(9, 12))
    size = rng.uniform(0.25, 0.4, 2)
    x = grid((1, rows, columns))
    points = np.stack([x[:, 1] * size[0] / 2, np.zeros(len(x)), x[:, 2] * size[1] / 2], axis=1)
    top, aside = x[:, 2] == 1, np.abs(x[:, 1]) == 1
    held = (top & aside, top, top & (x[:, 1] == 1))[int(rng.choice(3, p=(0.5, 0.3, 0.2)))]
    areal, thick, damping = float(rng.uniform(0.3, 0.8)), 0.001, 1e-4
    young = float(rng.uniform(800, 1200)) * areal / thick  # a wave runs some 30 m/s in it, whatever its weight
    pins = np.flatnonzero(held)
    cells = sheet(rows, columns)
    body = flex(
        points, cells, pins, mass=areal * size.prod(), young=young, poisson=POISSON, damping=damping, thickness=thick
    )
    return Soft(
        name="cloth", category="cloth", xml=world(body, step=STEP),
        pieces=(Piece(faces=cells, nodes=np.arange(len(points))),), pinned=pins, limits={},
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
    """A rope that hangs from one end."""
    facts = _rope_facts(rng, float(rng.uniform(0.35, 0.8)))
    body, piece = _rope(facts, (0.0, 0.0, 0.0))
    nothing = np.zeros(0, np.int64)
    return Soft(name="rope", category="rope", xml=world(body, step=ROPE_STEP), pieces=(piece,), pinned=nothing, limits={}, material=facts)  # fmt: skip


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
    """An open box that swings about a bar, with a loose cloth over it."""
    w, d, h = rng.uniform((0.12, 0.12, 0.08), (0.2, 0.2, 0.15))  # half sides, and half height
    t, up = 0.006, float(rng.uniform(0.15, 0.3))
    walls = (
        ("box", (w, d, t), (0.0, 0.0, -2 * h)), ("box", (w, t, h), (0.0, d, -h)), ("box", (w, t, h), (0.0, -d, -h)),
        ("box", (t, d, h), (w, 0.0, -h)), ("box", (t, d, h), (-w, 0.0, -h)),
    )  # fmt: skip
    arms = tuple(("box", (t, t, up / 2), (side * w, 0.0, up / 2)) for side in (-1, 1))
    box = Part(solids=(*walls, *arms, ("box", (w, t, t), (0.0, 0.0, up))))
    rows, columns = int(rng.integers(8, 11)), int(rng.integers(8, 11))
    x = grid((1, rows, columns))[:, 1:]
    loose = float(rng.uniform(0.02, 0.05)) * (1 - x[:, 0] ** 2) * (1 - x[:, 1] ** 2)
    points = np.stack([x[:, 0] * w, x[:, 1] * d, loose], axis=1)
    corner, back = (np.abs(x) == 1).all(axis=1), x[:, 1] == 1
    pins = np.flatnonzero(corner | back if rng.random() < 0.5 else (np.abs(x) == 1).any(axis=1))
    areal, thick, damping = float(rng.uniform(0.3, 0.8)), 0.001, 1e-4
    young = float(rng.uniform(400, 800)) * areal / thick
    cells = sheet(rows, columns)
    lid = flex(
        points, cells, pins, mass=areal * 4 * w * d, young=young, poisson=POISSON, damping=damping, thickness=thick
    )
    hinge = f'<joint name="swing" type="hinge" axis="1 0 0" pos="0 0 {up:.9g}"/>'
    body = f'<body name="box">{hinge}{solids(box, density=DENSITY)}{lid}</body>'
    return Soft(
        name="box-cloth", category="mixed", xml=world(body, step=STEP),
        pieces=(carried("box", shapes(box)), Piece(faces=cells, nodes=np.arange(len(points)))),
        pinned=np.zeros(0, np.int64), limits={"swing": (-2.0, 2.0)},
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
