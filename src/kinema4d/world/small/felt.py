"""Felt: what the hand that holds something tells about it.

Fingers that close and are stopped with a gap have something between them, and where they are is exact. Without a sensor
a thing is a centimetre or more off along the line of sight: the part whose pixels are there is shifted along it until it
is abreast of the fingers. And where the picture shows nothing because something else hides the place, there is something
all the same: a thing as wide as the gap, or the handle of a drawer or door, if it is at furniture and goes along a line or
an arc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.camera import project
from kinema4d.geometry.se3 import invert
from kinema4d.types import Camera, Solid
from kinema4d.world.small.grip import Grip, grips, holds, palm_of
from kinema4d.world.small.look import HANG, View
from kinema4d.world.small.parts import Part
from kinema4d.world.small.pieces import dense, hull, shifted
from kinema4d.world.small.shape import Shape, mesh_of, moved

BESIDE = 0.03
"""How far from the pixels of a thing fingers that hold it may be, as a length where they are, metres."""
FARTHEST = 0.08
"""Things are not shifted further than this, metres."""
RIM = 0.5
"""Fingers whose gap is a smaller share of a thing's width hold its rim, which says little about its middle."""
LED = 0.03
"""What fingers hold and lead further than this is there, even if nobody sees it, metres."""
IN_FRONT = 0.01
"""What is nearer than a place by this hides it, metres."""
STRAYS, WIDEST = 0.004, 0.4
"""How far a handle strays from its line or arc, and the largest radius of that arc, metres."""
SLICE = 0.015
"""What is this far above or below the fingers says how wide a thing is between them, metres."""


def felt(view: View, parts: Sequence[Part], solids: Sequence[Solid]) -> tuple[View, list[Part]]:
    """A view whose depth was guessed, and its parts with surfaces, those that the fingers grip first where they are."""
    out, depth = list(parts), view.depth.copy()
    palm, found = palm_of(solids), grips(solids)
    if palm is None or not found:
        return view, out
    g = found[0]  # what is gripped later may have been moved by what was gripped before
    i = gripped(parts, g, view.camera)
    if i is None:
        return view, out
    T = palm.Ts_world_link[g.first]
    shift = _shift(parts[i], g, T[:3, :3] @ g.axis, view.camera)
    if shift is None:
        return view, out
    together = [i]
    if parts[i].joint != "free":  # furniture goes with its door
        together = [k for k, p in enumerate(parts) if p.joint != "free"]
    forward = view.camera.poses(1)[0][:3, 2]
    for k in together:
        out[k] = _moved(parts[k], shift)
        depth[parts[k].mask & (depth > 0)] += np.float32(shift @ forward)
    return replace(view, depth=np.where(view.robot, view.depth, depth)), out


def gripped(parts: Sequence[Part], g: Grip, camera: Camera) -> int | None:
    """Which part's pixels show what is between the fingers when they close: the nearest to there in the picture."""
    u, v, z = _pixel(g.path[g.first], camera)
    if z <= 0:
        return None
    best, least = None, BESIDE * float(camera.K[1, 1]) / z
    for i, part in enumerate(parts):
        if part.joint == "fixed" or not part.mask.any():
            continue
        rows, columns = np.nonzero(part.mask)
        away = float(np.hypot(rows - v, columns - u).min())
        if away < least:
            best, least = i, away
    return best


def _shift(part: Part, g: Grip, across: Float[np.ndarray, "3"], camera: Camera) -> Float[np.ndarray, "3"] | None:
    """How a part has to be shifted, level and along the line of sight, to be between the fingers; None where the fingers
    do not tell."""
    place = g.path[g.first]
    points = dense(part.vertices, part.faces)
    level = np.abs(points[:, 2] - place[2]) < SLICE
    points = points[level] if level.sum() >= 4 else points
    sight = (place - camera.poses(1)[0][:3, 3]) * [1, 1, 0]
    if np.linalg.norm(sight) < 1e-3:
        return None
    sight = sight / np.linalg.norm(sight)
    along = points @ sight
    if part.joint == "free":
        if g.high - g.low < RIM * float(np.ptp(points @ across)):
            return None
        middle = float(along.min() + along.max()) / 2
    else:  # a handle is what is nearest to the hand beside the line of sight
        side = np.linalg.norm(np.cross(points - place, sight), axis=1)
        near = along[side < side.min() + 0.01]
        middle = float(near[np.abs(near - place @ sight).argmin()])
    far = float(place @ sight) - middle
    return far * sight if abs(far) < FARTHEST else None


def _moved(part: Part, shift: Float[np.ndarray, "3"]) -> Part:
    return replace(
        part,
        vertices=part.vertices + shift,
        pivot=None if part.pivot is None else part.pivot + shift,
        shape=None if part.shape is None else moved(part.shape, np.eye(3), shift),
        pieces=tuple(shifted(p, shift) for p in part.pieces),
    )


# ---------------------------------------------------------------------- what nothing but the hand tells of


def unseen(view: View, parts: Sequence[Part], solids: Sequence[Solid]) -> list[Part]:
    """What the fingers hold in places that the first picture does not show, and where no part is; no surfaces of boards
    yet."""
    found, held = grips(solids), {h.first for h in holds(parts, solids)}
    if not found or found[0].first in held or not _hides(view, found[0].path[found[0].first]):
        return []
    g = found[0]
    way = g.path[g.first : g.last + 1]
    if float(np.linalg.norm(way - way[0], axis=1).max()) < LED:
        return []
    place, nothing = way[0], np.zeros(view.robot.shape, bool)
    gap = float(np.clip(g.high - g.low, 0.01, 0.1))
    chests = [p for p in parts if p.joint == "fixed" and _near(p, place)]
    if chests:
        joint = _joint(way)
        if joint is None:
            return []
        corners = place + np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]) * gap / 2
        shell = hull(corners)
        assert shell is not None
        return [
            Part(
                name="unseen 1", mask=nothing, vertices=shell.vertices, faces=shell.faces, confidence=0.5,
                **joint,
            )
        ]  # fmt: skip
    r, above = gap / 2, float(place[2]) - view.support
    low = max(float(place[2]) - r, view.support)
    shape = Shape(centre=place[:2].copy(), low=low, high=low + 2 * r, ball=r)
    if above > 2 * r:  # it stands on the support, and fingers hold it above its middle
        line = np.array([[r, view.support], [r, place[2] + r]])
        shape = Shape(centre=place[:2].copy(), low=view.support, high=float(place[2] + r), profile=line)
    vertices, faces = mesh_of(shape)
    return [
        Part(
            name="unseen 1", joint="free", mask=nothing, vertices=vertices, faces=faces, shape=shape, confidence=0.5
        )
    ]  # fmt: skip


def _hides(view: View, place: Float[np.ndarray, "3"]) -> bool:
    """Whether the picture shows something before a place, or does not reach it."""
    u, v, z = _pixel(place, view.camera)
    h, w = view.robot.shape
    if z <= 0 or not (0 <= u <= w - 1 and 0 <= v <= h - 1):
        return True
    seen = view.depth[round(v), round(u)]
    return bool(0 < seen < z - IN_FRONT)


def _near(part: Part, place: Float[np.ndarray, "3"]) -> bool:
    return float(np.linalg.norm(dense(part.vertices, part.faces) - place, axis=1).min()) < HANG


def _joint(way: Float[np.ndarray, "n 3"]) -> dict[str, Any] | None:
    """The slide or upright hinge that leads a handle along ``way``; None where it goes another way."""
    if np.ptp(way[:, 2]) > STRAYS:
        return None
    level = way[:, :2] - way[0, :2]
    far = level[np.linalg.norm(level, axis=1).argmax()]
    along = far / np.linalg.norm(far)
    if np.abs(level @ np.array([-along[1], along[0]])).max() < STRAYS:
        return {"joint": "slide", "axis": np.array([*along, 0.0]), "room": (0.0, float((level @ along).max()))}
    # A circle through the points: |x - c|^2 = r^2 is linear in c and in r^2 - |c|^2.
    A = np.column_stack([2 * level, np.ones(len(level))])
    c, d, k = np.linalg.lstsq(A, (level**2).sum(axis=1), rcond=None)[0]
    radius = np.sqrt(max(k + c * c + d * d, 0.0))
    if np.abs(np.hypot(level[:, 0] - c, level[:, 1] - d) - radius).max() > STRAYS or radius > WIDEST:
        return None
    angle = np.unwrap(np.arctan2(level[:, 1] - d, level[:, 0] - c))
    turn = angle - angle[0]
    sign = 1.0 if abs(turn.max()) > abs(turn.min()) else -1.0
    pivot = way[0] + np.array([c, d, 0.0])
    return {
        "joint": "hinge",
        "axis": np.array([0.0, 0, sign]),
        "pivot": pivot,
        "room": (0.0, float((sign * turn).max())),
    }


def _pixel(place: Float[np.ndarray, "3"], camera: Camera) -> tuple[float, float, float]:
    """Column, row and depth of a world point."""
    here = invert(camera.poses(1)[0])[:3] @ np.append(place, 1)
    u, v = project(camera.K, here)
    return float(u), float(v), float(here[2])
