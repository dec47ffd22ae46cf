"""Outline: depth of things where no sensor gives it, from where they stand.

A network's depth of a thing is a centimetre off, and its edges are smeared. But the camera is known, and things stand on the
support: an upright box, can or ball there is given by its outline alone. Where one fits the pixels of a part, its depth
takes the place of the network's; other parts are moved along their rays until their feet are on the support.

Coordinates are those of :mod:`kinema4d.world.small.shape_fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize

from kinema4d.world.small.shape import Shape
from kinema4d.world.small.shape_fit import Sight, drawn

FITS = 0.12
"""Share of a part's pixels that an outline may lack or have too many of."""
RELIEF = 0.02
"""Depth of the network is trusted to this inside a thing: it decides between outlines that are alike, metres."""
PAD = 5
"""Pixels around a part that its outline is compared in."""
TRIES = 100
"""Outlines that are drawn per kind of solid."""
MOST_PIXELS = 1200
"""Larger parts are compared in every second, third, ... pixel."""


def grounded(sight: Sight, free: Bool[np.ndarray, "h w"], *, whole: bool) -> Float[np.ndarray, "h w"] | None:
    """Depth of a part that stands on the support, at its pixels, or None where its feet are hidden. ``sight`` has the
    network's depth; ``free`` are pixels that show neither robot nor another part, where the part would be seen if it
    were there. With ``whole`` the part may be a box, can or ball of its own."""
    if sight.own.sum() < 12:
        return None
    if whole:
        found = by_outline(sight, free)
        if found is not None:
            return found
    return _on_its_feet(sight, free)


def by_outline(sight: Sight, free: Bool[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"] | None:
    """Depth by the upright box, can or ball with the part's outline; None where none has it."""
    near = _Window(sight, free)
    best, least = None, FITS
    for make, start, step in _starts(sight):

        def cost(x: np.ndarray, make: Callable[[np.ndarray], Shape] = make) -> float:
            return near.cost(make(x))

        simplex = np.vstack([start, start + np.diag(step)])
        found = minimize(
            cost,
            start,
            method="Nelder-Mead",
            options={"initial_simplex": simplex, "maxfev": TRIES, "xatol": 1e-4, "fatol": 1e-4},
        )
        if found.fun < least:
            best, least = make(found.x), float(found.fun)
    if best is None:
        return None
    made, hit = drawn(best, sight.camera)
    own = sight.own & hit
    if not own.any():
        return None
    shift = float(np.median(made[own] / sight.depth[own]))
    return np.where(own, made, sight.depth * shift)


class _Window:
    """The pixels around a part, thinned where they are many."""

    def __init__(self, sight: Sight, free: Bool[np.ndarray, "h w"]) -> None:
        rows, columns = np.nonzero(sight.own)
        step = max(1, int(np.sqrt(len(rows) / MOST_PIXELS)))
        pad = PAD * step
        top, left = max(int(rows.min()) - pad, 0), max(int(columns.min()) - pad, 0)
        cut = (slice(top, int(rows.max()) + pad + 1, step), slice(left, int(columns.max()) + pad + 1, step))
        self.own, self.free, self.depth = sight.own[cut], free[cut], sight.depth[cut]
        K = np.array(sight.camera.K)
        K[0, 2], K[1, 2] = (K[0, 2] - left) / step, (K[1, 2] - top) / step
        K[0, :2], K[1, 1] = K[0, :2] / step, K[1, 1] / step
        height, width = self.own.shape
        self.camera = replace(sight.camera, K=K, height=height, width=width)
        self.count = max(1, int(self.own.sum()))

    def cost(self, shape: Shape) -> float:
        """Share of pixels that disagree, and a little for another relief than the network's."""
        made, hit = drawn(shape, self.camera)
        wrong = (self.own & ~hit).sum() + (self.free & ~self.own & hit).sum()
        both = self.own & hit
        relief = 0.0
        if both.any():
            off = made[both] - self.depth[both]
            relief = float(np.abs(off - np.median(off)).mean()) / RELIEF
        return float(wrong) / self.count + 0.1 * min(relief, 1.0)


def _starts(sight: Sight) -> list[tuple[Callable[[np.ndarray], Shape], np.ndarray, np.ndarray]]:
    """A box, a can and a ball as the network's depth has the part: how to make it, numbers to start from, steps."""
    depth = _on_its_feet(sight, np.ones(sight.own.shape, bool))
    scale = 1.0 if depth is None else float(np.median(depth[sight.own] / sight.depth[sight.own]))
    eye = sight.camera.poses(1)[0][:3, 3]
    cloud = eye + (sight.points[sight.own] - eye) * scale
    low, high = np.percentile(cloud, [3, 97], axis=0)
    tall = max(float(np.percentile(cloud[:, 2], 98)), 0.015)
    # The camera looks along x: across it the outline says how wide a thing is, along it only the network does.
    wide = max(float(high[1] - low[1]) / 2, 0.006)
    x, y = float(low[0]) + wide, float(low[1] + high[1]) / 2

    def box(p: np.ndarray) -> Shape:
        half = np.clip(p[3:5], 0.004, 0.2)
        return Shape(centre=p[:2].copy(), low=0.0, high=max(float(p[5]), 0.005), yaw=float(p[2]), half=half)

    def can(p: np.ndarray) -> Shape:
        r, h = float(np.clip(p[2], 0.004, 0.2)), max(float(p[3]), 0.005)
        return Shape(centre=p[:2].copy(), low=0.0, high=h, profile=np.array([[r, 0.0], [r, h]]))

    def bottle(p: np.ndarray) -> Shape:
        r, h, neck = float(np.clip(p[2], 0.004, 0.2)), max(float(p[3]), 0.005), float(np.clip(p[4], 0.002, 0.2))
        a, b = sorted((float(np.clip(p[5], 0.05, 0.9)) * h, float(np.clip(p[6], 0.1, 0.95)) * h))
        line = np.array([[r, 0.0], [r, a], [neck, max(b, a + 0.002)], [neck, max(h, b + 0.004)]])
        return Shape(centre=p[:2].copy(), low=0.0, high=float(line[-1, 1]), profile=line)

    def ball(p: np.ndarray) -> Shape:
        r = float(np.clip(p[2], 0.004, 0.2))
        return Shape(centre=p[:2].copy(), low=0.0, high=2 * r, ball=r)

    m = 0.004
    out = [
        (can, np.array([x, y, wide, tall]), np.full(4, m)),
        (ball, np.array([x, y, wide]), np.full(3, m)),
        (box, np.array([x, y, 0.3, 0.85 * wide, 0.85 * wide, tall]), np.array([m, m, 0.25, m, m, m])),
        (box, np.array([x, y, 0.9, 0.85 * wide, 0.85 * wide, tall]), np.array([m, m, 0.25, m, m, m])),
    ]
    if tall > 3 * wide:
        out.append((bottle, np.array([x, y, wide, tall, 0.5 * wide, 0.6, 0.75]), np.array([m, m, m, m, m, 0.1, 0.1])))
    return out


def _on_its_feet(sight: Sight, free: Bool[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"] | None:
    """The network's depth, nearer or farther as a whole, so that the lowest pixels of the part are on the support; None
    where something may hide its feet."""
    T = sight.camera.poses(1)[0]
    K = sight.camera.K
    below = np.zeros(sight.own.shape, bool)
    below[:-1] = sight.own[:-1] & ~sight.own[1:] & free[1:]
    rows, columns = np.nonzero(below)
    if len(rows) < 3:
        return None
    least = np.percentile(rows, 60)
    rows, columns = rows[rows >= least], columns[rows >= least]
    rays = (
        np.stack([(columns - K[0, 2]) / K[0, 0], (rows + 0.5 - K[1, 2]) / K[1, 1], np.ones(len(rows))], axis=1)
        @ T[:3, :3].T
    )
    falls = rays[:, 2] < -0.05
    if falls.sum() < 2:
        return None
    ground = -T[2, 3] / rays[falls, 2]
    scale = float(np.median(ground / sight.depth[rows[falls], columns[falls]]))
    return sight.depth * scale if 0.7 < scale < 1.4 else None
