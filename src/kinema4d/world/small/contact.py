"""What a 4D control can tell of contact: where the robot touches what the first frame shows, and where that would be if the hand carried it.

Both pointmaps and the hand's path are known, so this is kinematics and no guess of what happens: whether a thing really moves with
the hand is for the model to say. Only controls that have geometry can tell it (``DiffusionConfig.contact``).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float32, UInt8
from scipy.spatial import KDTree

from kinema4d.types import Pointmap
from kinema4d.world.small.diffusion_config import STRIDE

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
    actions: Float[np.ndarray, "t 10"], reach: UInt8[np.ndarray, "t r c 2"], environment: Pointmap
) -> tuple[Float32[np.ndarray, "t r c 2"], UInt8[np.ndarray, "t r c 3"]]:
    """Where each place of the first frame would be seen (row and column of ``reach``) had it moved with the hand since the robot was nearest
    to it; and ``reach`` with what would thus be carried to each place beside it."""
    rows, columns = reach.shape[1:3]
    places = environment.points[0, ::STRIDE, ::STRIDE].reshape(-1, 3).astype(np.float64)
    near, touched = (reach[..., i].reshape(len(reach), -1) for i in range(2))
    p, first, second = (actions[:, i : i + 3].astype(np.float64) for i in (0, 3, 6))
    R = np.stack([first, second, np.cross(first, second)], axis=-1)  # columns
    own = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1).reshape(-1, 2)
    fx, cx, fy, cy = _lens(environment)
    since = np.zeros(len(places), int)
    where = np.empty((len(reach), len(places), 2), np.float32)
    brought = np.zeros((len(reach), rows * columns), np.uint8)
    for t in range(len(reach)):
        since = np.where((near[t] >= touched[t]) & (near[t] > 0), t, since)
        held = np.einsum("kji,kj->ki", R[since], places - p[since])
        now = held @ R[t].T + p[t]
        z = np.maximum(now[:, 2], 1e-3)
        seen = np.stack([fy * now[:, 1] / z + cy, fx * now[:, 0] / z + cx], axis=-1) / STRIDE
        where[t] = np.where((touched[t] > 0)[:, None], seen, own)
        at = np.round(where[t]).astype(int)
        inside = (at >= 0).all(axis=1) & (at < (rows, columns)).all(axis=1) & (touched[t] > 0)
        np.maximum.at(brought[t], at[inside, 0] * columns + at[inside, 1], touched[t][inside])
    shape = (len(reach), rows, columns)
    return where.reshape(*shape, 2), np.concatenate([reach, brought.reshape(*shape, 1)], axis=-1)


def _lens(environment: Pointmap) -> tuple[float, float, float, float]:
    """Focal lengths and middle in pixels, out of a pointmap; a mirrored one has a negative length."""
    valid, points = environment.valid[0], environment.points[0].astype(np.float64)
    row, column = np.nonzero(valid)
    x, y, z = points[valid].T
    fx, cx = np.polyfit(x / z, column, 1)
    fy, cy = np.polyfit(y / z, row, 1)
    return float(fx), float(cx), float(fy), float(cy)
