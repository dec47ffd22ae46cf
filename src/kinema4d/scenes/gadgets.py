"""Jointed things of no kind: a plate with one to three mechanisms on it, put together by chance, so that a model learns what joints look like and
not what a door looks like.

A mechanism is a knob on its stem, a flap on an edge, a tray between rails, a slider on a rod, a bar on the flat side of a post, two bars that
cross, something on an axle, a housing with leaves or drawers, a pane in a frame, or a button in a block; a bar may carry another, a leaf a latch. What is one body
may be of several solids in line, with something at an end, or welded into one surface that is hollow or bent. They are made on a plate that lies flat, which is then
turned any way up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kinema4d.scenes.jointed import RODS, Jointed, Part, Vector

Solid = tuple[str, Vector, Vector]
WELDED = 0.6
"""How often boxes of a part are one surface."""
Made = tuple[list[Solid], list[Part]]
"""What is added to the plate, and what moves: a part without ``on`` hangs on the plate, others on one of this list, by its number."""


def gadget(rng: np.random.Generator) -> Jointed:
    """One of them."""
    many = int(rng.choice(3, p=(0.5, 0.3, 0.2))) + 1
    wide, deep, t = 0.3, rng.uniform(0.15, 0.3), rng.uniform(0.006, 0.03)
    plate: list[Solid] = [("box", (many * wide / 2, deep / 2, t / 2), (0.0, 0.0, -t / 2))]
    moving: list[Part] = []
    for i in range(many):
        x = (i - (many - 1) / 2) * wide
        make = MECHANISMS[int(rng.integers(len(MECHANISMS)))]
        fixed, parts = make(rng, wide, deep, t)
        plate += [(kind, size, _plus(middle, (x, 0, 0))) for kind, size, middle in fixed]
        first = len(moving) + 1
        for part in parts:
            at = _plus(part.at, (x, 0, 0)) if part.on is None else part.at
            moving.append(replace(part, at=at, on=0 if part.on is None else first + part.on))
    if rng.random() < 0.25:  # the plate was only a help; what stands still is what was put on it
        plate = plate[1:] if len(plate) > 1 else plate
    moving = [_adorned(rng, part) for part in moving]
    if rng.random() < 0.5:
        plate = list(_adorned(rng, Part(solids=tuple(plate))).solids)
    still, *moving = (
        replace(part, welded=bool(rng.random() < WELDED)) for part in (Part(solids=tuple(plate)), *moving)
    )
    way = np.eye(3) if rng.random() < 0.4 else _ways()[int(rng.integers(24))]
    scale = float(np.exp(rng.uniform(np.log(0.5), np.log(2.0))))
    return Jointed(name="gadget", parts=tuple(_turned(p, way, scale) for p in (still, *moving)))


def _plus(a: Vector, b: Vector) -> Vector:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _knob(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """A stem that turns about itself, with something on it that shows how it is turned."""
    r, h = rng.uniform(0.008, 0.035), rng.uniform(0.008, 0.05)
    at = (rng.uniform(-0.2, 0.2) * wide, rng.uniform(-0.25, 0.25) * deep, 0.0)
    long, w = rng.uniform(0.03, 0.4 * wide), rng.uniform(0.004, 0.012)
    z = rng.uniform(h, 2 * h) + w
    wing = rng.random()
    a, side = rng.uniform(-0.1, 0.1) * long, float(rng.choice((-1.0, 1.0)))
    middle = side * long / 2 if wing < 0.6 else a
    size = (long / 2, w, rng.uniform(0.5, 1.5) * w)
    arm: Solid = ("box", size, (middle, 0.0, z)) if rng.random() < 0.5 else ("box", (w, long / 2, size[2]), (0.0, middle, z))  # fmt: skip
    solids: list[Solid] = [("rod", (r, h, 0), (0.0, 0.0, h)), arm]
    if rng.random() < 0.3:
        x, y, _ = arm[2]
        solids.append(("box", (1.5 * w, 1.5 * w, 2.5 * w), (1.9 * x, 1.9 * y, z + w)))
    fixed: list[Solid] = [("rod", (1.4 * r, h / 3, 0), _plus(at, (0, 0, h / 3)))] if rng.random() < 0.3 else []
    return fixed, [Part(solids=tuple(solids), joint="hinge", axis=(0, 0, 1), at=at, limits=_limits(rng))]


def _flap(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """A board on an edge of the plate, or of a block on it."""
    w, long, thin = rng.uniform(0.5, 0.95) * deep, rng.uniform(0.08, 0.3), rng.uniform(0.003, 0.012)
    up = rng.uniform(0.03, 0.2) if rng.random() < 0.6 else 0.0
    half = rng.uniform(0.15, 0.4) * wide
    fixed: list[Solid] = [("box", (half, deep / 2, up / 2), (0.0, 0.0, up / 2))] if up else []
    edge = half if up else 0.45 * wide
    way = int(rng.integers(3))  # onwards, upwards, or folded back
    gap = rng.uniform(0.0, 0.006)
    board: Solid = (
        ("box", (long / 2, w / 2, thin), (long / 2 + gap, 0.0, thin)),
        ("box", (thin, w / 2, long / 2), (thin, 0.0, long / 2 + gap)),
        ("box", (long / 2, w / 2, thin), (-long / 2 - gap, 0.0, thin + gap)),
    )[way]
    solids = [board]
    if rng.random() < 0.5:
        x, _, z = board[2]
        solids.append(("box", (0.008, rng.uniform(0.01, 0.05), 0.008), (1.8 * x, 0.0, 1.8 * z + 0.01)))
    sign = float(rng.choice((-1.0, 1.0)))
    low, high = ((-1.3, 0.3), (-1.0, 1.0), (-0.1, 1.7))[way]
    axis = (0.0, -sign, 0.0)
    mirrored = tuple((kind, size, (sign * x, y, z)) for kind, size, (x, y, z) in solids)
    return fixed, [Part(solids=mirrored, joint="hinge", axis=axis, at=(sign * edge, 0.0, up), limits=(low, high))]


def _tray(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """A box or a board that slides between two rails."""
    w, long, h = rng.uniform(0.1, 0.35) * wide, rng.uniform(0.3, 0.5) * deep, rng.uniform(0.008, 0.06)
    rail, gap = rng.uniform(0.004, 0.012), rng.uniform(0.001, 0.008)
    fixed: list[Solid] = [("box", (rail, long, h), (s * (w + rail + gap), 0.0, h)) for s in (-1, 1)]
    if rng.random() < 0.4:
        fixed.append(("box", (w + 2 * rail + gap, rail, h), (0.0, long + rail, h)))
    solids: list[Solid] = [("box", (w, 0.95 * long, rng.uniform(0.3, 0.9) * h), (0.0, -0.03 * long, h))]
    if rng.random() < 0.6:
        solids.append(("box", (rng.uniform(0.2, 0.6) * w, 0.012, 0.4 * h), (0.0, -long - 0.012, h)))
    return fixed, [Part(solids=tuple(solids), joint="slide", axis=(0, -1, 0), limits=(0.0, rng.uniform(0.6, 1.5) * long))]  # fmt: skip


def _slider(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """A block on a rod or bar that is held at both ends."""
    long, r, up = rng.uniform(0.5, 0.9) * deep / 2, rng.uniform(0.005, 0.012), rng.uniform(0.03, 0.1)
    rod: Solid = (
        ("rod-y", (r, long, 0), (0.0, 0.0, up)) if rng.random() < 0.5 else ("box", (r, long, r), (0.0, 0.0, up))
    )
    ends: list[Solid] = [("box", (1.5 * r, r, up / 2), (0.0, s * long, up / 2)) for s in (-1, 1)]
    b = rng.uniform(0.012, 0.04)
    y = rng.uniform(-0.5, 0.5) * long
    block: list[Solid] = [("box", (b, rng.uniform(0.5, 1.0) * b, b), (0.0, 0.0, 0.0))]
    if rng.random() < 0.5:
        block.append(("box", (0.4 * b, 0.4 * b, b), (0.0, 0.0, 1.8 * b)))
    far = 0.9 * long
    return [rod, *ends], [Part(solids=tuple(block), joint="slide", axis=(0, 1, 0), at=(0.0, y, up), limits=(-far - y, far - y))]  # fmt: skip


def _arm(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """Bars beside the flat side of a post, one on the other, on pins that are seen or not."""
    tall, w, thin = rng.uniform(0.06, 0.25), rng.uniform(0.01, 0.022), rng.uniform(0.003, 0.007)
    fixed: list[Solid] = [("box", (w, thin, tall / 2), (0.0, 0.0, tall / 2))]
    pin, out, at, on, beside = (
        rng.random() < 0.6,
        list[Part](),
        (0.0, 0.0, tall - w * rng.uniform(0, 1)),
        None,
        2 * thin,
    )
    for _ in range(int(rng.choice(3, p=(0.6, 0.25, 0.15))) + 1):
        long = rng.uniform(0.08, 0.28)
        way = np.array([(0, 0, 1), (1, 0, 0), (-1, 0, 0)][int(rng.integers(3))], float)
        over = w * rng.uniform(0, 1)
        half = np.where(way != 0, long / 2, np.array([w, 0, w])) + np.array([0, thin, 0])
        middle = way * (long / 2 - over) + np.array([0, beside, 0])
        solids: list[Solid] = [("box", (half[0], half[1], half[2]), (middle[0], middle[1], middle[2]))]
        if pin:
            solids.append(("rod-y", (0.4 * w, 3 * thin, 0), (0.0, beside / 2, 0.0)))
        out.append(Part(solids=tuple(solids), joint="hinge", axis=(0, 1, 0), at=at, on=on, limits=_limits(rng)))
        end = way * (long - over - w * rng.uniform(0, 1)) + np.array([0, beside, 0])
        at, on = (end[0], end[1], end[2]), len(out) - 1
    return fixed, out


def _cross(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """Two bars that cross, flat side by flat side, and turn about where they do; or two alike, mirrored, with something at their ends."""
    w, thin, up = rng.uniform(0.008, 0.02), rng.uniform(0.003, 0.007), rng.uniform(0.1, 0.2)
    parts: list[list[Solid]] = []
    alike = rng.random() < 0.35
    seed = int(rng.integers(2**31))
    for k in range(2):
        own = np.random.default_rng(seed if alike else seed + k)
        a, b = own.uniform(0.04, 0.18, 2)
        y, side = (2 * k - 1) * thin, 2 * k - 1
        cut, narrow = (
            own.random() < 0.4,
            own.uniform(0.6, 1.0),
        )  # of two solids that meet where it turns, as blade and handle do
        solids: list[Solid] = []
        for low, high, half in ((-b, 0.0, w), (0.0, a, w * narrow)) if cut else ((-b, a, w),):
            solids.append(("box", (half, thin, (high - low) / 2), (0.0, y, (low + high) / 2)))
        if alike and own.random() < 0.7:
            r, flat, out = own.uniform(1.2, 3.0) * w, own.uniform(0.5, 1.0) * thin, side * own.uniform(0.0, 2.0) * w
            end: Vector = (out, y, -b - own.uniform(-0.5, 0.5) * r)
            solids.append(("rod-y", (r, flat, 0.0), end) if own.random() < 0.6 else ("box", (r, flat, r), end))
        if k == 1 and not alike and own.random() < 0.6:
            solids = [(kind, (size[2], size[1], size[0]), (at[2], at[1], at[0])) for kind, size, at in solids]
        parts.append(solids)
    pin: list[Solid] = [("rod-y", (rng.uniform(0.3, 0.9) * w, 3 * thin, 0), (0.0, 0.0, 0.0))]
    fixed = [(kind, size, _plus(middle, (0, 0, up))) for kind, size, middle in parts[0]]
    seen = rng.random()
    if seen < 0.4:
        fixed += [(kind, size, _plus(middle, (0, 0, up))) for kind, size, middle in pin]
    return fixed, [Part(solids=(*parts[1], *(pin if 0.4 <= seen < 0.8 else [])), joint="hinge", axis=(0, 1, 0), at=(0.0, 0.0, up), limits=_limits(rng))]  # fmt: skip


def _axle(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """Something on an axle between two posts."""
    w, up = rng.uniform(0.2, 0.4) * deep, rng.uniform(0.06, 0.2)
    r = rng.uniform(0.005, 0.015)
    fixed: list[Solid] = [("box", (1.5 * r, 0.008, up / 2 + r), (0.0, s * (w + 0.012), up / 2)) for s in (-1, 1)]
    solids: list[Solid] = [("rod-y", (r, w + 0.01, 0), (0.0, 0.0, 0.0))]
    for way in rng.permutation(4)[: int(rng.integers(1, 4))]:
        long, thin = rng.uniform(0.04, 0.9 * up), rng.uniform(0.003, 0.02)
        s = 1.0 if way % 2 else -1.0
        solids.append(("box", (long / 2, 0.8 * w, thin), (s * long / 2, 0, 0)) if way < 2 else ("box", (thin, 0.8 * w, long / 2), (0, 0, s * long / 2)))  # fmt: skip
    return fixed, [Part(solids=tuple(solids), joint="hinge", axis=(0, 1, 0), at=(0.0, 0.0, up), limits=_limits(rng))]


def _housing(
    rng: np.random.Generator, wide: float, deep: float
) -> tuple[list[Solid], tuple[float, float, float, float]]:
    """Walls around a space that is open towards -y; its width, depth and height outside, and how thick the walls are."""
    w, d, h = rng.uniform(0.4, 0.95) * wide, rng.uniform(0.3, 0.9) * deep, rng.uniform(0.08, 0.3)
    t = rng.uniform(0.004, 0.02)
    walls: list[Solid] = [("box", (t / 2, d / 2, h / 2), (s * (w - t) / 2, 0.0, h / 2)) for s in (-1, 1)]
    walls += [("box", (w / 2, t / 2, h / 2), (0.0, (d - t) / 2, h / 2)), ("box", (w / 2, d / 2, t / 2), (0.0, 0.0, h - t / 2))]  # fmt: skip
    if rng.random() < 0.7:
        walls.append(("box", (w / 2, d / 2, t / 2), (0.0, 0.0, t / 2)))
    if rng.random() < 0.2:  # solid after all
        walls = [("box", (w / 2, d / 2, h / 2), (0.0, 0.0, h / 2))]
    return walls, (w, d, h, t)


def _handle(rng: np.random.Generator, at: Vector, long: int, size: float) -> list[Solid]:
    """On a face that looks towards -y: a bow along axis ``long``, a bar, or a lump."""
    r, out = rng.uniform(0.003, 0.008), rng.uniform(0.01, 0.03)
    half = np.full(3, r)
    half[long] = size
    bar: Solid = ("box", (half[0], half[1], half[2]), _plus(at, (0, -out - r, 0)))
    if rng.random() < 0.4:
        return [bar]
    if rng.random() < 0.3:
        return [("box", (2 * r, out, 2 * r), _plus(at, (0, -out, 0)))]
    feet = [at[i] for i in range(3)], [at[i] for i in range(3)]
    feet[0][long] -= 0.9 * size
    feet[1][long] += 0.9 * size
    return [bar, *(("box", (r, (out + r) / 2, r), (f[0], f[1] - (out + r) / 2, f[2])) for f in feet)]


def _closet(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """A housing with one leaf or two, on it or in it, on hinges at an upright or a level edge; perhaps with a latch that turns."""
    fixed, (w, d, h, wall) = _housing(rng, wide, deep)
    q, gap, inset = rng.uniform(0.004, 0.016), rng.uniform(0.0, 0.004), rng.random() < 0.4
    room = (w - 2 * wall - 2 * gap, h - 2 * wall - 2 * gap) if inset else (w, h)
    y = -d / 2 + q / 2 if inset else -d / 2 - q / 2 - gap
    plane = float(rng.choice((-0.5, 0.0, 0.5))) * q  # of the hinge, in the leaf
    level, moving = rng.random() < 0.25, list[Part]()
    several = 2 if not level and rng.random() < 0.3 else 1
    for i in range(several):
        s = float(rng.choice((-1.0, 1.0))) if several == 1 else 2.0 * i - 1
        lw, lh = room[0] / several, room[1]
        end = s * (lh if level else room[0]) / 2
        at = (0.0, y - plane, h / 2 + end) if level else (end, y - plane, h / 2)
        middle: Vector = (0.0, plane, -s * lh / 2) if level else (-s * lw / 2, plane, 0.0)
        solids: list[Solid] = [("box", (lw / 2, q / 2, lh / 2), middle)]
        if rng.random() < 0.25:  # a frame around a thinner pane
            b = rng.uniform(0.1, 0.2) * min(lw, lh)
            solids = [("box", (b / 2, q / 2, lh / 2), _plus(middle, (k * (lw - b) / 2, 0, 0))) for k in (-1, 1)]
            solids += [("box", (lw / 2, q / 2, b / 2), _plus(middle, (0, 0, k * (lh - b) / 2))) for k in (-1, 1)]
            solids.append(("box", (lw / 2 - 0.9 * b, q / 6, lh / 2 - 0.9 * b), middle))
        far = 0.8 * (lh if level else lw)
        front: Vector = (0.0, plane - q / 2, -s * far) if level else (-s * far, plane - q / 2, 0.0)
        latch = rng.random()
        if latch < 0.6:
            solids += _handle(rng, front, 0 if level else 2, rng.uniform(0.1, 0.3) * (lw if level else lh))
        moving.append(Part(
            solids=tuple(solids), joint="hinge", axis=(s, 0, 0) if level else (0, 0, s), at=at, limits=(-0.05, rng.uniform(1.2, 1.9)),
        ))  # fmt: skip
        if latch > 0.8:
            r = rng.uniform(0.006, 0.012)
            lever = rng.uniform(0.03, 0.07)
            grip: list[Solid] = [("rod-y", (r, 0.012, 0), (0.0, -0.012, 0.0)), ("box", (lever / 2, 0.6 * r, 0.8 * r), (s * lever / 2, -0.024, 0.0))]  # fmt: skip
            moving.append(Part(solids=tuple(grip), on=len(moving) - 1, joint="hinge", axis=(0, 1, 0), at=front, limits=_limits(rng)))  # fmt: skip
    return fixed, moving


def _drawer(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """A housing with one or two trays that come out of it."""
    fixed, (w, d, h, wall) = _housing(rng, wide, deep)
    many, gap, moving = int(rng.integers(1, 3)), rng.uniform(0.001, 0.004), list[Part]()
    for i in range(many):
        high = (h - 2 * wall) / many - gap
        half, up = (w - 2 * wall - 2 * gap) / 2, wall + (h - 2 * wall) * (i + 0.5) / many
        q, tall = rng.uniform(0.003, 0.008), rng.uniform(0.4, 1.0) * high
        long = rng.uniform(0.7, 0.98) * (d - wall)
        back = -d / 2 + long  # where it ends
        solids: list[Solid] = [("box", (half, long / 2, q / 2), (0.0, back - long / 2, (q - tall) / 2))]
        solids += [("box", (q / 2, long / 2, tall / 2), (s * (half - q / 2), back - long / 2, 0.0)) for s in (-1, 1)]
        solids.append(("box", (half, q / 2, tall / 2), (0.0, back - q / 2, 0.0)))
        over = rng.random() < 0.5
        face = (w / 2 if over else half, q / 2, h / many / 2 - gap if over else high / 2)
        y = -d / 2 - q / 2 if over else -d / 2 + q / 2
        solids.append(("box", face, (0.0, y, 0.0)))
        if rng.random() < 0.7:
            solids += _handle(rng, (0.0, y - q / 2, 0.0), 0, rng.uniform(0.1, 0.3) * w)
        moving.append(Part(solids=tuple(solids), joint="slide", axis=(0, -1, 0), at=(0.0, 0.0, up), limits=(0.0, 0.8 * d)))  # fmt: skip
    return fixed, moving


def _pane(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """A frame that stands on the plate, and a pane that slides along it, upwards or aside."""
    w, h, b, q = (
        rng.uniform(0.4, 0.95) * wide,
        rng.uniform(0.15, 0.35),
        rng.uniform(0.006, 0.02),
        rng.uniform(0.004, 0.014),
    )
    bars: list[Solid] = [("box", (b / 2, b / 2, h / 2), (s * (w - b) / 2, 0.0, h / 2)) for s in (-1, 1)]
    bars += [("box", (w / 2, b / 2, b / 2), (0.0, 0.0, z)) for z in (b / 2, h - b / 2)]
    up, y = rng.random() < 0.5, float(rng.choice((0.0, -1.0))) * (b + q) / 2
    side = float(rng.choice((-1.0, 1.0)))
    inner = (w - 2 * b) / 2 if y == 0 else w / 2, (h - 2 * b) / 2 if y == 0 else h / 2
    half = (inner[0], inner[1] * rng.uniform(0.4, 0.6)) if up else (inner[0] * rng.uniform(0.4, 0.6), inner[1])
    free = 2 * (inner[1] - half[1] if up else inner[0] - half[0])
    at = (0.0, y, h / 2 + side * (inner[1] - half[1])) if up else (side * (inner[0] - half[0]), y, h / 2)
    if rng.random() < 0.5:  # the other half is closed
        bars.append(("box", (half[0], q / 6, half[1]), (0.0 if up else -at[0], 0.0, h - at[2] if up else h / 2)))
    rim = rng.uniform(0.1, 0.25) * min(half)
    solids: list[Solid] = [("box", (half[0], q / 2, half[1]), (0.0, 0.0, 0.0))]
    if rng.random() < 0.6:
        solids = [("box", (rim, q / 2, half[1]), (s * (half[0] - rim), 0.0, 0.0)) for s in (-1, 1)]
        solids += [("box", (half[0], q / 2, rim), (0.0, 0.0, s * (half[1] - rim))) for s in (-1, 1)]
        solids.append(("box", (half[0] - rim, q / 6, half[1] - rim), (0.0, 0.0, 0.0)))
    if rng.random() < 0.5:
        solids += _handle(rng, (0.0, -q / 2, -0.8 * half[1]), 0, 0.3 * half[0])
    return bars, [Part(solids=tuple(solids), joint="slide", axis=(0, 0, -side) if up else (-side, 0, 0), at=at, limits=(0.0, free))]  # fmt: skip


def _button(rng: np.random.Generator, wide: float, deep: float, t: float) -> Made:
    """Something short that goes into a block, or turns in it as a dial does."""
    w, d, h = rng.uniform(0.15, 0.4) * wide, rng.uniform(0.15, 0.4) * deep, rng.uniform(0.04, 0.12)
    fixed: list[Solid] = [("box", (w, d, h), (0.0, 0.0, h))]
    r, out, buried = rng.uniform(0.15, 0.6) * min(w, h), rng.uniform(0.006, 0.03), rng.uniform(0.0, 0.03)
    if rng.random() < 0.3:  # in a collar
        fixed.append(("rod-y", (1.25 * r, 0.3 * out, 0.0), (0.0, -d - 0.3 * out, h)))
    half = (out + buried) / 2
    stem: Solid = ("rod-y", (r, half, 0.0), (0.0, 0.0, 0.0)) if rng.random() < 0.7 else ("box", (r, half, r), (0.0, 0.0, 0.0))  # fmt: skip
    at = (rng.uniform(-0.3, 0.3) * w, -d + half - out, h)
    if rng.random() < 0.4:
        mark: Solid = ("box", (0.15 * r, 0.006, 0.5 * r), (0.0, -half - 0.004, 0.4 * r))
        return fixed, [Part(solids=(stem, mark), joint="hinge", axis=(0, 1, 0), at=at, limits=_limits(rng))]
    solids = [stem] if rng.random() < 0.6 else [stem, ("rod-y", (0.6 * r, 0.3 * out, 0.0), (0.0, -half - 0.3 * out, 0.0))]  # fmt: skip
    return fixed, [Part(solids=tuple(solids), joint="slide", axis=(0, 1, 0), at=at, limits=(0.0, rng.uniform(0.5, 1.0) * out))]  # fmt: skip


def _adorned(rng: np.random.Generator, part: Part) -> Part:
    """Of more solids than it needs: a box cut in two, and something at the end of one."""
    solids = list(part.solids)
    boxes = [i for i, (kind, _, _) in enumerate(solids) if kind == "box"]
    if boxes and rng.random() < 0.5:
        kind, size, middle = solids.pop(int(rng.choice(boxes)))
        long, share, thin = int(np.argmax(size)), rng.uniform(0.25, 0.75), rng.uniform(0.7, 1.0)
        for side, of, narrow in ((-1, share, 1.0), (1, 1 - share, thin)):
            half = [narrow * s for s in size]
            half[long] = of * size[long]
            shift = [0.0, 0.0, 0.0]
            shift[long] = side * (1 - of) * size[long]
            solids.append((kind, (half[0], half[1], half[2]), _plus(middle, (shift[0], shift[1], shift[2]))))
    boxes = [i for i, (kind, _, _) in enumerate(solids) if kind == "box"]
    if boxes and rng.random() < 0.5:
        _, size, middle = solids[int(rng.choice(boxes))]
        thin, across, long = (int(i) for i in np.argsort(size))
        shift = [0.0, 0.0, 0.0]
        shift[long] = float(rng.choice((-1.0, 1.0))) * size[long] * rng.uniform(0.8, 1.1)
        shift[across] = rng.uniform(-1.5, 1.5) * size[across]
        at, r = _plus(middle, (shift[0], shift[1], shift[2])), rng.uniform(0.8, 2.5) * size[across]
        half = [r, r, r]
        half[thin] = size[thin] * rng.uniform(0.6, 1.2)
        if rng.random() < 0.6:
            solids.append((RODS[thin], (r, half[thin], 0.0), at))
        else:
            solids.append(("box", (half[0], half[1], half[2]), at))
    return replace(part, solids=tuple(solids))


def _limits(rng: np.random.Generator) -> tuple[float, float]:
    low, high = rng.uniform(0.3, 1.6, 2)
    return -low, high


MECHANISMS: tuple[Callable[[np.random.Generator, float, float, float], Made], ...] = (
    _knob, _knob, _flap, _flap, _tray, _slider, _arm, _arm, _cross, _cross, _axle, _closet, _closet, _closet, _drawer, _pane, _button,
)  # fmt: skip
"""As often as they are drawn: what turns says more about where its axis is than what slides."""


def _ways() -> list[np.ndarray]:
    """The 24 turns of a cube."""
    from itertools import permutations, product

    out = []
    for order in permutations(range(3)):
        for signs in product((-1.0, 1.0), repeat=3):
            turn = np.zeros((3, 3))
            turn[np.arange(3), order] = signs
            if np.linalg.det(turn) > 0:
                out.append(turn)
    return out


def _turned(part: Part, way: np.ndarray, scale: float) -> Part:
    """Any way up, and larger or smaller."""
    vector = lambda v: tuple(float(x) for x in way @ np.array(v, float))  # noqa: E731
    solids = []
    for kind, size, middle in part.solids:
        if kind == "box":
            half = np.abs(way) @ np.array(size)
        else:
            kind, half = RODS[int(np.abs(way @ np.eye(3)[RODS.index(kind)]).argmax())], np.array(size)  # fmt: skip
        solids.append((kind, tuple(float(scale * s) for s in half), tuple(scale * x for x in vector(middle))))
    limits = part.limits if part.joint != "slide" else (scale * part.limits[0], scale * part.limits[1])
    at = tuple(scale * x for x in vector(part.at))
    return replace(part, solids=tuple(solids), at=at, axis=vector(part.axis), limits=limits)
