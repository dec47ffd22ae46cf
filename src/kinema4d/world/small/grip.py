"""Grip: what the fingers hold, and when, read from how they move.

A picture shows things a few millimetres off, too much to hold them by friction alone. But the robot's motion tells more
than the picture: fingers that close and are stopped with a gap between them hold what is there, and a hand that pulls
on a handle goes around the very axis that the handle turns about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import invert
from kinema4d.types import Solid
from kinema4d.world.small.parts import Part
from kinema4d.world.small.pieces import dense

HANDLE = 0.025
"""Fingers that close this near to a jointed part hold it, metres."""
GRASP = 0.012
"""How far from between the finger tips a thing may be that they hold, metres."""
GAP, STOPPED = 0.004, 0.001
"""Fingers with at least this gap that change it by less than this per frame were stopped by something, metres."""
YIELD, SLIP = 0.008, 0.003
"""Fingers hold on while their gap is within this of what it was, and changes by less than this per frame, metres. Stiff
hands keep it to a tenth of a millimetre, a WidowX gives way by 6 mm when it lifts."""
ARC, SEEN = 0.002, 0.02
"""How far a hand strays from its arc, and a pivot from where it was seen, metres."""
CLOSED, OPENED = 0.003, 0.003
"""Fingers that came together by this much press; that went apart again by this much let go, metres."""


def palm_of(solids: Sequence[Solid]) -> Solid | None:
    """What the fingers hang on; where that link has no surface, the solid against which they move least."""
    fingers = [s for s in solids if s.role == "finger"]
    if not fingers:
        return None
    palm = next((s for s in solids if s.role == "palm"), None)
    arms = [s for s in solids if s.role == "arm"]
    if palm is not None or not arms:
        return palm

    def travel(arm: Solid) -> float:
        way = (invert(arm.Ts_world_link) @ fingers[0].Ts_world_link)[:, :3, 3]
        return float(np.linalg.norm(way - way[0], axis=1).max() + 0.01 * np.linalg.norm(way[0]))

    return min(arms, key=travel)


def closing(solids: Sequence[Solid], palm: Solid) -> dict[str, tuple[Float[np.ndarray, "3"], Float[np.ndarray, " t"]]]:
    """For fingers that close: the direction in which, in the palm's frame, and how much they press at each frame."""
    fingers = [s for s in solids if s.role == "finger"]
    T = invert(palm.Ts_world_link)
    ways = {s.name: (T @ s.Ts_world_link)[:, :3] @ np.append(s.vertices.mean(axis=0), 1) for s in fingers}
    if len(ways) < 2:
        return {}
    middle = np.mean(list(ways.values()), axis=0)
    out = {}
    for name, way in ways.items():
        wide = np.linalg.norm(way - middle, axis=1)
        a, b = int(wide.argmax()), int(wide.argmin())
        travel = way[b] - way[a]
        if np.linalg.norm(travel) > CLOSED:
            out[name] = (travel / np.linalg.norm(travel), _pressing(wide))
    return out


def _pressing(wide: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
    """1 from where fingers have come together until they go apart: a finger that is stopped by what it holds still
    presses, one that opens lets go at once."""
    on = np.zeros(len(wide))
    high, low = wide[0], None
    for t, w in enumerate(wide):
        if low is None:
            high = max(high, w)
            if w < high - CLOSED:
                low, on[t] = w, 1
            continue
        low, on[t] = min(low, w), 1
        if w > low + OPENED:
            k = t
            while k > 0 and wide[k - 1] < wide[k] - 1e-5 and on[k]:  # from where the opening began
                on[k] = 0
                k -= 1
            low, high = None, w
    return on


@dataclass(frozen=True, eq=False)
class Hold:
    """A part that goes with the hand for a while."""

    part: int
    """Which."""
    first: int
    """Frame from which on."""
    last: int
    """Frame until which."""
    way: Float[np.ndarray, " t"] | None
    """Where its joint would be at each frame, against ``first``; None for a free part, which goes with the palm."""


@dataclass(frozen=True, eq=False)
class Grip:
    """A time in which fingers were stopped by something between them."""

    first: int
    """Frame from which on."""
    last: int
    """Frame until which."""
    grasp: Float[np.ndarray, "3"]
    """Between the finger tips, in the palm's frame."""
    axis: Float[np.ndarray, "3"]
    """Along which the fingers close, in the palm's frame."""
    low: float
    """Where the one finger ends along ``axis``."""
    high: float
    """Where the other begins."""
    path: Float[np.ndarray, "t 3"]
    """World place of ``grasp`` at every frame."""


def grips(solids: Sequence[Solid]) -> list[Grip]:
    """When fingers closed and stopped with a gap, and how."""
    palm = palm_of(solids)
    press = closing(solids, palm) if palm is not None else {}
    if palm is None or not press:
        return []
    on = np.min([amount for _, amount in press.values()], axis=0) > 0
    axis, low, high = _jaws(solids, palm, press)
    gap = high - low
    out = []
    edges = np.flatnonzero(np.diff(np.concatenate([[0], on.astype(int), [0]])))
    for first, end in edges.reshape(-1, 2).tolist():
        start = next((t for t in range(first, end - 1) if abs(gap[t + 1] - gap[t]) < STOPPED and gap[t] > GAP), None)
        if start is None:
            continue
        last = start
        while last + 1 < end and abs(gap[last + 1] - gap[start]) < YIELD and abs(gap[last + 1] - gap[last]) < SLIP:
            last += 1
        if last - start >= 2:
            grasp = _grasp(solids, palm, press, start)
            path = palm.Ts_world_link[:, :3, :3] @ grasp + palm.Ts_world_link[:, :3, 3]
            out.append(Grip(start, last, grasp, axis, float(low[start]), float(high[start]), path))
    return out


def _jaws(
    solids: Sequence[Solid], palm: Solid, press: dict[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The direction in which fingers close, in the palm's frame, and where along it their inner sides are."""
    fingers = [s for s in solids if s.name in press]
    axis = press[fingers[0].name][0]
    T = invert(palm.Ts_world_link)
    low, high = np.full(len(T), -np.inf), np.full(len(T), np.inf)
    for s in fingers:
        along = (T @ s.Ts_world_link)[:, :3] @ np.append(s.vertices, np.ones((len(s.vertices), 1)), axis=1).T
        along = np.einsum("i,tiv->tv", axis, along)
        if press[s.name][0] @ axis > 0:
            low = np.maximum(low, along.max(axis=1))
        else:
            high = np.minimum(high, along.min(axis=1))
    return axis, low, high


def holds(parts: Sequence[Part], solids: Sequence[Solid]) -> list[Hold]:
    """Which parts the fingers hold, and when. Parts are looked for where they are at the start: what was moved before is
    left to physics."""
    found = grips(solids)
    palm = palm_of(solids)
    out = []
    for g in found:
        assert palm is not None
        T = invert(palm.Ts_world_link[g.first])
        away = [_off(p, g, T) for p in parts]
        far = [a if p.joint == "free" else a - HANDLE + GRASP for a, p in zip(away, parts, strict=True)]
        which = int(np.argmin(far)) if parts else -1
        if which >= 0 and far[which] < GRASP:
            part = parts[which]
            way = None if part.joint == "free" else _along(part, g.path, g.first)
            out.append(Hold(which, g.first, g.last, way))
    return out


def _off(part: Part, g: Grip, T_palm_world: Float[np.ndarray, "4 4"]) -> float:
    """How far a part is from between the finger tips, metres; across them, where it reaches in between."""
    if part.joint == "fixed":
        return np.inf
    local = dense(part.vertices, part.faces) @ T_palm_world[:3, :3].T + T_palm_world[:3, 3]
    if part.joint != "free":
        return float(np.linalg.norm(local - g.grasp, axis=1).min())
    along = local @ g.axis
    between = local[(along > g.low - 0.004) & (along < g.high + 0.004)]
    if not len(between):
        return np.inf
    away = between - g.grasp
    return float(np.linalg.norm(away - (away @ g.axis)[:, None] * g.axis, axis=1).min())


def pulled(parts: Sequence[Part], solids: Sequence[Solid]) -> list[Part]:
    """The parts, with the pivot of a hinge moved to the middle of the arc on which the hand leads its handle."""
    out = list(parts)
    found = {h.part: h for h in holds(parts, solids)}
    for g in grips(solids):
        for i, h in found.items():
            if h.first == g.first and parts[i].joint == "hinge":
                out[i] = replace(parts[i], pivot=_middle(parts[i], g.path[g.first : g.last + 1]))
    return out


def _middle(part: Part, path: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "3"]:
    """The pivot that is near to what was seen and from which ``path`` keeps its distance."""
    from scipy.optimize import least_squares

    assert part.axis is not None
    assert part.pivot is not None
    u = np.cross(part.axis, [1.0, 0, 0] if abs(part.axis[0]) < 0.7 else [0, 1.0, 0])
    u /= np.linalg.norm(u)
    basis = np.stack([u, np.cross(part.axis, u)])
    flat = (path - part.pivot) @ basis.T
    radius = float(np.linalg.norm(flat, axis=1).mean())

    def misfit(x: np.ndarray) -> np.ndarray:
        off = np.linalg.norm(flat - x[:2], axis=1) - radius - x[2]
        return np.concatenate([off / ARC, x[:2] / SEEN])

    found = least_squares(misfit, np.zeros(3), loss="soft_l1")
    return part.pivot + found.x[:2] @ basis


def _grasp(
    solids: Sequence[Solid], palm: Solid, press: dict[str, tuple[np.ndarray, np.ndarray]], frame: int
) -> Float[np.ndarray, "3"]:
    """Between the finger tips, in the palm's frame."""
    tips = []
    for s in solids:
        if s.name in press:
            T = invert(palm.Ts_world_link[frame]) @ s.Ts_world_link[frame]
            corners = s.vertices @ T[:3, :3].T + T[:3, 3]
            far = np.linalg.norm(corners - palm.vertices.mean(axis=0), axis=1)
            tips.append(corners[far > np.percentile(far, 70)].mean(axis=0))
    return np.mean(tips, axis=0)


def _along(part: Part, way: Float[np.ndarray, "t 3"], first: int) -> Float[np.ndarray, " t"]:
    """How far the joint goes when the held point follows ``way``."""
    assert part.axis is not None
    if part.joint == "slide":
        return (way - way[first]) @ part.axis
    assert part.pivot is not None
    arm = way - part.pivot
    arm = arm - (arm @ part.axis)[:, None] * part.axis
    start = arm[first]
    angle = np.arctan2(np.cross(start, arm) @ part.axis, arm @ start)
    return np.unwrap(angle) - angle[first]
