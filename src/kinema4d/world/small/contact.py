"""What a 4D control can tell of contact: where the robot touches what the first frame shows, and where that would be if the hand carried it.

Both pointmaps and the hand's path are known, so this is kinematics and no guess of what happens: whether a thing really moves with
the hand is for the model to say. Only controls that have geometry can tell it (``DiffusionConfig.contact``).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8
from scipy.spatial import KDTree

from kinema4d.types import Pointmap
from kinema4d.world.small.diffusion_config import STRIDE

OPENS = 0.1
"""Fingers that are so much further apart than they were let go, in the unit of actions (decimetres)."""
CLOSED, BEFORE = 0.3, 8
"""Fingers that have come so much nearer to each other (decimetres) since so many frames before they were nearest to a place hold it; halfway, they may."""
PUSHED_M, ASIDE = 0.01, 0.5
"""A hand that has pushed further than this (metres) and then turns aside (cosine) leaves what it pushed."""
TOUCH_M, FAR_M = 0.03, 0.15
"""What is so far away feels a third, and from so far on nothing, metres."""


def reach_of(robot: Pointmap, environment: Pointmap) -> UInt8[np.ndarray, "t _ _ 2"]:
    """How near the robot's visible surface is to what every second pixel of the first frame shows, 255 where it touches, falling
    to a third in ``TOUCH_M``; and how near it has come until then."""
    places = environment.points[0, ::STRIDE, ::STRIDE]
    seen = environment.valid[0, ::STRIDE, ::STRIDE]
    near = np.zeros((len(robot.valid), *seen.shape), np.float32)
    for t, there in enumerate(robot.valid):
        if there.any() and seen.any():
            tree = KDTree(robot.points[t][there])
            near[t][seen] = np.exp(-tree.query(places[seen], distance_upper_bound=FAR_M)[0] / TOUCH_M)
    both = np.stack([near, np.maximum.accumulate(near, axis=0)], axis=-1)
    return (255 * both).round().astype(np.uint8)


def carry_of(
    actions: Float[np.ndarray, "t 10"],
    reach: UInt8[np.ndarray, "t r c 2"],
    environment: Pointmap,
    robot: Bool[np.ndarray, "h w"],
) -> tuple[Float32[np.ndarray, "t r c 6"], UInt8[np.ndarray, "t r c 4"]]:
    """How far (metres) each place of the first frame would be carried had it moved with the hand since the robot was nearest
    to it, until the fingers open again; how far it would be pushed had it moved with the hand until that turned aside; and ``reach`` with what would thus be
    carried to each place beside it, and whether the fingers closed on it: on what they only push they do not.
    What shows the ``robot`` in the first frame is no thing that it touches."""
    reach = np.where(robot[::STRIDE, ::STRIDE, None], 0, reach).astype(np.uint8)
    rows, columns = reach.shape[1:3]
    places = environment.points[0, ::STRIDE, ::STRIDE].reshape(-1, 3).astype(np.float64)
    near, touched = (reach[..., i].reshape(len(reach), -1) for i in range(2))
    p, first, second = (actions[:, i : i + 3].astype(np.float64) for i in (0, 3, 6))
    R = np.stack([first, second, np.cross(first, second)], axis=-1)  # columns
    fx, cx, fy, cy = lens_of(environment)
    since, until = np.zeros((2, len(places)), int)
    pushes = _pushes(p)
    least = np.full(len(places), np.inf)
    away = np.zeros((len(reach), len(places), 6), np.float32)
    brought, gripped = np.zeros((2, len(reach), rows * columns), np.uint8)
    wide = np.array([actions[max(0, t - BEFORE) : t + 1, 9].max() for t in range(len(reach))])
    close = np.array([actions[t : t + BEFORE + 1, 9].min() for t in range(len(reach))])
    for t in range(len(reach)):
        again = (near[t] >= touched[t]) & (near[t] > 0)
        since = np.where(again, t, since)
        least = np.where(again, actions[t, 9], np.minimum(least, actions[t, 9]))
        held = again | ((until == t - 1) & (actions[t, 9] - least < OPENS))
        until = np.where(held, t, until)
        closing = (wide[since] - np.minimum(close[since], least)) / CLOSED
        gripped[t] = np.where(touched[t] > 0, 255 * closing.clip(0, 1), 0).round()
        own = np.einsum("kji,kj->ki", R[since], places - p[since])
        now, left = (np.einsum("kij,kj->ki", R[end], own) + p[end] for end in (until, pushes[since, t]))
        away[t] = np.where((touched[t] > 0)[:, None], np.concatenate([now - places, left - places], axis=1), 0)
        z = np.maximum(now[:, 2], 1e-3)
        at = np.round(np.stack([fy * now[:, 1] / z + cy, fx * now[:, 0] / z + cx], axis=-1) / STRIDE).astype(int)
        inside = (at >= 0).all(axis=1) & (at < (rows, columns)).all(axis=1) & (touched[t] > 0)
        np.maximum.at(brought[t], at[inside, 0] * columns + at[inside, 1], touched[t][inside])
    shape = (len(reach), rows, columns)
    more = np.stack([brought, gripped], axis=-1).reshape(*shape, 2)
    return away.reshape(*shape, 6), np.concatenate([reach, more], axis=-1)


def _pushes(p: Float[np.ndarray, "t 3"]) -> Int[np.ndarray, "t t"]:
    """[since, now] the last frame at which the hand, at ``p``, still goes on in the direction in which it has gone since then."""
    out = np.tile(np.arange(len(p)), (len(p), 1))
    for since in range(len(p)):
        for now in range(since + 1, len(p)):
            way, step = p[now - 1] - p[since], p[now] - p[now - 1]
            if np.linalg.norm(way) > PUSHED_M and way @ step < ASIDE * np.linalg.norm(way) * np.linalg.norm(step):
                out[since, now:] = now - 1
                break
    return out


def lens_of(environment: Pointmap) -> tuple[float, float, float, float]:
    """Focal lengths and middle in pixels, out of a pointmap; a mirrored one has a negative length."""
    valid, points = environment.valid[0], environment.points[0].astype(np.float64)
    row, column = np.nonzero(valid)
    x, y, z = points[valid].T
    fx, cx = np.polyfit(x / z, column, 1)
    fy, cy = np.polyfit(y / z, row, 1)
    return float(fx), float(cx), float(fy), float(cy)
