"""Things with joints: a drawer, a cabinet door, a lid, a lever. Each faces the robot, which stands at -x."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.se3 import place
from kinema4d.scenes import looks
from kinema4d.scenes.shapes import Color, ball, moved
from kinema4d.scenes.things import Body, Geom, Thing, painted_box

WALL = 0.004
"""Half thickness of boards, metres."""
STEEL: Color = (70, 72, 76)
"""Colour of handles."""


@dataclass
class _Boards:
    """Boxes that make up a body."""

    paint: Color
    meshes: list[Mesh] = field(default_factory=list)
    geoms: list[Geom] = field(default_factory=list)

    def add(self, x: float, y: float, z: float, half: tuple[float, float, float], paint: Color | None = None) -> None:
        mesh, geom = painted_box(half, paint or self.paint, place(x, y, z))
        self.meshes.append(mesh)
        self.geoms.append(geom)

    def body(self, name: str, mass: float, **options: object) -> Body:
        return Body(name=name, meshes=tuple(self.meshes), geoms=tuple(self.geoms), mass=mass, **options)  # pyright: ignore[reportArgumentType]


def _post(
    boards: _Boards, x: float, y: float, z: float, reach: float, inward: tuple[float, float] = (1.0, 0.0)
) -> None:
    """An upright handle at ``reach`` before a panel, and the arm that carries it."""
    boards.add(x, y, z, (0.008, 0.009, 0.022), STEEL)
    boards.add(x + inward[0] * reach / 2, y + inward[1] * reach / 2, z - 0.012, (reach / 2, 0.006, 0.006), STEEL)


def _shell(paint: Color, d: float, w: float, h: float) -> _Boards:
    """A cabinet that is open towards -x."""
    boards = _Boards(paint)
    boards.add(0, 0, h - WALL, (d, w, WALL))
    boards.add(0, 0, -h + WALL, (d, w, WALL))
    for side in (-1, 1):
        boards.add(0, side * (w - WALL), 0, (d, WALL, h - 2 * WALL))
    boards.add(d - WALL, 0, 0, (WALL, w - 2 * WALL, h - 2 * WALL))
    return boards


def drawer(rng: np.random.Generator, color: str, *, start: float = 0.0) -> Thing:
    """A small chest with one drawer, open by ``start`` metres."""
    d, w, h, reach, travel = rng.uniform(0.065, 0.08), rng.uniform(0.07, 0.09), rng.uniform(0.04, 0.048), 0.05, 0.11
    chest = _shell(looks.named_color(rng, color), d, w, h).body("chest", 2.0, joint="fixed")
    tray = _Boards(looks.muted_color(rng))
    wide, tall = w - 2 * WALL - 0.003, h - 2 * WALL - 0.003
    tray.add(-d + WALL, 0, 0, (WALL, wide, tall))
    tray.add(0, 0, -tall + WALL, (d - 2 * WALL, wide, WALL))
    for side in (-1, 1):
        tray.add(0, side * (wide - WALL), -0.3 * tall, (d - 2 * WALL, WALL, 0.6 * tall))
    tray.add(d - 4 * WALL, 0, -0.3 * tall, (WALL, wide - 2 * WALL, 0.6 * tall))
    _post(tray, -d - reach, 0, 0.0, reach)
    body = tray.body("drawer", 0.25, joint="slide", parent=0, axis=(-1, 0, 0), range=(0, travel), start=start, hold=1.0)
    spots = {"handle": place(-d - reach, 0, 0.012)}
    return Thing(name=f"{color} drawer", kind="drawer", bodies=(chest, body), half=(d, w, h), spots=spots)


def door(rng: np.random.Generator, color: str, *, start: float = 0.0) -> Thing:
    """A small cabinet whose door turns about an upright axis, open by ``start`` radians."""
    d, w, h, reach = rng.uniform(0.05, 0.06), rng.uniform(0.06, 0.07), rng.uniform(0.042, 0.05), 0.045
    side = float(rng.choice([-1, 1]))  # which side the hinge is on
    cabinet = _shell(looks.named_color(rng, color), d, w, h).body("cabinet", 2.0, joint="fixed")
    panel = _Boards(looks.muted_color(rng))
    panel.add(-WALL, -side * w, 0, (WALL, w, h))
    y = -side * (2 * w - 0.016)
    _post(panel, -2 * WALL - reach, y, 0.0, reach)
    T = place(-d, side * w, 0)
    body = panel.body("door", 0.2, joint="hinge", parent=0, T_parent_body=T, axis=(0, 0, -side), range=(0, 1.7), start=start, hold=0.02)  # fmt: skip
    spots = {"handle": place(-2 * WALL - reach, y, 0.012), "edge": place(-2 * WALL, -side * 1.55 * w, 0.65 * h)}
    return Thing(name=f"{color} cabinet", kind="door", bodies=(cabinet, body), half=(d, w, h), spots=spots)


def lid(rng: np.random.Generator, color: str, *, start: float = 0.0) -> Thing:
    """A box with a lid that turns up towards the robot, open by ``start`` radians."""
    d, w, h = rng.uniform(0.05, 0.06), rng.uniform(0.06, 0.075), rng.uniform(0.022, 0.03)
    tub = _Boards(looks.named_color(rng, color))
    tub.add(0, 0, -h + WALL, (d, w, WALL))
    for side in (-1, 1):
        tub.add(0, side * (w - WALL), WALL, (d, WALL, h - WALL))
        tub.add(side * (d - WALL), 0, WALL, (WALL, w - 2 * WALL, h - WALL))
    cover = _Boards(looks.muted_color(rng))
    cover.add(d, 0, WALL, (d, w, WALL))
    cover.add(1.7 * d, 0, 2 * WALL + 0.016, (0.008, 0.018, 0.016), STEEL)
    T = place(-d, 0, h + 0.0005)
    body = cover.body("lid", 0.06, joint="hinge", parent=0, T_parent_body=T, axis=(0, -1, 0), range=(0, 1.6), start=start, hold=0.045)  # fmt: skip
    spots = {
        "handle": place(1.7 * d, 0, 2 * WALL + 0.02),
        "edge": place(1.6 * d, float(rng.choice([-0.6, 0.6])) * w, 2 * WALL),
    }
    fixed = tub.body("box", 1.0, joint="fixed")
    return Thing(name=f"{color} box", kind="lid", bodies=(fixed, body), half=(d, w, h), spots=spots)


def lever(rng: np.random.Generator, color: str, *, start: float = -0.5) -> Thing:
    """An upright lever that leans to the robot and can be pushed over."""
    base = _Boards(looks.muted_color(rng))
    base.add(0, 0, 0, (0.035, 0.03, 0.012))
    length, paint = rng.uniform(0.045, 0.055), looks.named_color(rng, color)
    rod = _Boards(STEEL)
    rod.add(0, 0, length, (0.006, 0.008, length))
    radius = rng.uniform(0.014, 0.018)
    rod.meshes.append(moved(ball(radius, paint), place(0, 0, 2 * length)))
    rod.geoms.append(Geom(kind="sphere", size=(radius,), T_body_geom=place(0, 0, 2 * length)))
    body = rod.body("lever", 0.05, joint="hinge", parent=0, T_parent_body=place(0, 0, 0.012), axis=(0, 1, 0), range=(-0.6, 0.6), start=start, hold=0.06)  # fmt: skip
    spots: dict[str, Float[np.ndarray, "4 4"]] = {"edge": place(-radius, 0, 2 * length)}
    fixed = base.body("base", 1.0, joint="fixed")
    return Thing(name=f"{color} lever", kind="lever", bodies=(fixed, body), half=(0.035, 0.03, 0.012), spots=spots)
