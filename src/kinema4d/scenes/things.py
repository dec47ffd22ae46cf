"""Things on the table: what they look like, what they collide with, how they move. All from primitives of our own.

A thing is a tree of bodies. Blocks and cups have one that moves freely; a cabinet has a fixed body and a drawer.
Collision shapes are MuJoCo primitives that fill the surface which is seen, so touching looks like touching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, UInt8

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.se3 import place, rotvec_to_matrix, transform
from kinema4d.scenes import looks
from kinema4d.scenes.shapes import Color, ball, box, cylinder, moved, revolve

IDENTITY = np.eye(4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Geom:
    """A collision shape."""

    kind: str
    """``box``, ``cylinder`` (upright) or ``sphere``."""
    size: tuple[float, ...]
    """Half sizes; radius and half height; radius."""
    T_body_geom: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    """Where in its body."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """One rigid part."""

    name: str
    """Label, unique in the scene once the thing's name stands before it."""
    meshes: tuple[Mesh, ...]
    """Its surface, in its own frame."""
    geoms: tuple[Geom, ...]
    """What it collides with; nothing for a mark on the table."""
    mass: float
    """Kilograms."""
    joint: str = "free"
    """``free``, ``fixed``, ``slide`` or ``hinge``."""
    parent: int = -1
    """Body of the same thing that it hangs on; -1 for the world."""
    T_parent_body: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    """Its frame in the parent at joint position 0."""
    axis: tuple[float, float, float] = (0.0, 0.0, 1.0)
    """Joint axis."""
    range: tuple[float, float] = (0.0, 0.0)
    """Joint limits, m or rad."""
    start: float = 0.0
    """Joint position at the start."""
    hold: float = 0.0
    """Dry friction of the joint, N or N m: what keeps a lid where it was left."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Thing:
    """One thing of a scene."""

    name: str
    """What an instruction calls it: "red block"."""
    kind: str
    """Which maker made it."""
    bodies: tuple[Body, ...]
    """Its parts; the first carries the others."""
    half: tuple[float, float, float]
    """Half sizes of its bounding box at the start."""
    T_world_thing: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    """Where its first body starts."""
    friction: float = 1.0
    """Sliding friction."""
    grip: float = 0.0
    """Width between the fingers when it is held from above; 0 where it cannot be."""
    spots: dict[str, Float[np.ndarray, "4 4"]] = field(default_factory=dict)
    """Named places in the frame of the body that the expert deals with: ``handle`` of a drawer, ``edge`` of a lid."""

    @property
    def radius(self) -> float:
        """Of a circle around its footprint."""
        return float(np.hypot(self.half[0], self.half[1]))


Maker = Callable[[np.random.Generator, str], Thing]


def _coat(rng: np.random.Generator, color: Color) -> UInt8[np.ndarray, "h w 3"] | None:
    """One in three things has a pattern."""
    return looks.texture(rng, str(rng.choice(looks.KINDS)), color) if rng.random() < 0.33 else None


def _single(
    rng: np.random.Generator,
    name: str,
    kind: str,
    meshes: tuple[Mesh, ...],
    geoms: tuple[Geom, ...],
    half: tuple[float, float, float],
    volume: float,
    grip: float,
) -> Thing:
    body = Body(name="body", meshes=meshes, geoms=geoms, mass=volume * rng.uniform(250, 700))
    return Thing(name=name, kind=kind, bodies=(body,), half=half, friction=rng.uniform(0.7, 1.2), grip=grip)


def block(rng: np.random.Generator, color: str) -> Thing:
    """A block that fits between fingers."""
    half = (rng.uniform(0.017, 0.028), rng.uniform(0.02, 0.034), rng.uniform(0.02, 0.036))
    paint = looks.named_color(rng, color)
    mesh = box(half, paint, texture=_coat(rng, paint), texel=0.06)
    return _single(
        rng,
        f"{color} block",
        "block",
        (mesh,),
        (Geom(kind="box", size=half),),
        half,
        8 * half[0] * half[1] * half[2],
        2 * half[0],
    )


def can(rng: np.random.Generator, color: str) -> Thing:
    """An upright cylinder."""
    r, h = rng.uniform(0.018, 0.028), rng.uniform(0.025, 0.045)
    paint = looks.named_color(rng, color)
    mesh = cylinder(r, h, paint, texture=_coat(rng, paint))
    return _single(
        rng,
        f"{color} can",
        "can",
        (mesh,),
        (Geom(kind="cylinder", size=(r, h)),),
        (r, r, h),
        2 * np.pi * r * r * h,
        2 * r,
    )


def ball_thing(rng: np.random.Generator, color: str) -> Thing:
    """A ball."""
    r = rng.uniform(0.018, 0.028)
    paint = looks.named_color(rng, color)
    mesh = ball(r, paint, texture=_coat(rng, paint))
    return _single(
        rng, f"{color} ball", "ball", (mesh,), (Geom(kind="sphere", size=(r,)),), (r, r, r), 4 / 3 * np.pi * r**3, 2 * r
    )


def bottle(rng: np.random.Generator, color: str) -> Thing:
    """A tall thing that topples."""
    r, h = rng.uniform(0.02, 0.027), rng.uniform(0.065, 0.085)
    paint = looks.named_color(rng, color)
    neck, shoulder = 0.45 * r, 0.35 * h
    profile = np.array([[0, -h], [r, -h], [r, shoulder], [neck, shoulder + 0.3 * h], [neck, h], [0, h]])
    mesh = revolve(profile, paint, texture=_coat(rng, paint))
    low = Geom(kind="cylinder", size=(r, (shoulder + h) / 2), T_body_geom=place(0, 0, (shoulder - h) / 2))
    high = Geom(kind="cylinder", size=(neck, (h - shoulder) / 2), T_body_geom=place(0, 0, (shoulder + h) / 2))
    return _single(
        rng, f"{color} bottle", "bottle", (mesh,), (low, high), (r, r, h), 2 * np.pi * r * r * h * 0.8, 2 * r
    )


def plank(rng: np.random.Generator, color: str) -> Thing:
    """A tall thin box that topples."""
    half = (rng.uniform(0.015, 0.02), rng.uniform(0.024, 0.034), rng.uniform(0.06, 0.08))
    paint = looks.named_color(rng, color)
    mesh = box(half, paint, texture=_coat(rng, paint), texel=0.08)
    return _single(
        rng,
        f"{color} plank",
        "plank",
        (mesh,),
        (Geom(kind="box", size=half),),
        half,
        8 * half[0] * half[1] * half[2],
        2 * half[0],
    )


def _ring(radius: float, low: float, high: float, thick: float, lean: float = 0.0, count: int = 12) -> tuple[Geom, ...]:
    """A wall of boxes around z, leaning out by ``lean`` radians."""
    out = radius + np.tan(lean) * (high - low) / 2
    size = (thick / 2, out * np.tan(np.pi / count) * 1.04, (high - low) / 2 / np.cos(lean))
    angles = 2 * np.pi * np.arange(count) / count
    R = rotvec_to_matrix(np.stack([0 * angles, 0 * angles, angles], axis=1)) @ rotvec_to_matrix(np.array([0, lean, 0]))
    at = np.stack([out * np.cos(angles), out * np.sin(angles), np.full(count, (low + high) / 2)], axis=1)
    return tuple(Geom(kind="box", size=size, T_body_geom=T) for T in transform(at, R))


def cup(rng: np.random.Generator, color: str) -> Thing:
    """A cup that fits between fingers and holds small balls."""
    r, h, wall = rng.uniform(0.021, 0.03), rng.uniform(0.032, 0.042), 0.004
    paint = looks.named_color(rng, color)
    profile = [[0, -h], [r, -h], [r, h], [r - wall, h], [r - wall, -h + wall], [0, -h + wall]]
    mesh = revolve(np.array(profile), paint, texture=_coat(rng, paint))
    floor = Geom(kind="cylinder", size=(r, wall / 2), T_body_geom=place(0, 0, -h + wall / 2))
    walls = _ring(r - wall / 2, -h + wall, h, wall)
    volume = 2 * np.pi * r * (2 * h) * wall * 2
    return _single(rng, f"{color} cup", "cup", (mesh,), (floor, *walls), (r, r, h), volume, 2 * r)


def bowl(rng: np.random.Generator, color: str) -> Thing:
    """A shallow bowl to put things into: heavy, so that it stays."""
    foot, rim, h, wall = rng.uniform(0.035, 0.042), rng.uniform(0.065, 0.078), rng.uniform(0.018, 0.024), 0.005
    lean = float(np.arctan2(rim - foot, 2 * h))
    paint = looks.named_color(rng, color)
    profile = [[0, -h], [foot, -h], [rim, h], [rim - wall, h], [foot - wall, -h + wall], [0, -h + wall]]
    mesh = revolve(np.array(profile), paint, texture=_coat(rng, paint))
    floor = Geom(kind="cylinder", size=(foot, wall / 2), T_body_geom=place(0, 0, -h + wall / 2))
    thick = wall * np.cos(lean)
    dip = thick / 2 * np.sin(lean)  # a leaning wall is thick downwards too: it must not stand below the foot
    walls = _ring(foot - wall / 2 + dip * np.tan(lean), -h + dip, h, thick, lean=lean, count=14)
    thing = _single(rng, f"{color} bowl", "bowl", (mesh,), (floor, *walls), (rim, rim, h), 3e-4, 0.0)
    return thing


def mark(rng: np.random.Generator, color: str) -> Thing:
    """A flat pad on the table that says where something should go. Nothing collides with it."""
    r = rng.uniform(0.045, 0.06)
    mesh = cylinder(r, 0.0006, looks.named_color(rng, color))
    body = Body(name="body", meshes=(mesh,), geoms=(), mass=0.0, joint="fixed")
    return Thing(name=f"{color} mark", kind="mark", bodies=(body,), half=(r, r, 0.0006))


SMALL: dict[str, Maker] = {"block": block, "can": can, "ball": ball_thing, "cup": cup}
"""Things that a gripper can pick up."""
TALL: dict[str, Maker] = {"bottle": bottle, "plank": plank}
"""Things that can be toppled."""


def painted_box(half: tuple[float, float, float], paint: Color, T: Float[np.ndarray, "4 4"]) -> tuple[Mesh, Geom]:
    """A box as it is seen and felt."""
    return moved(box(half, paint), T), Geom(kind="box", size=half, T_body_geom=T)
