"""What is near: for every point of every part at every frame the nearest point of the robot, and of other parts."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, fastmath=True)
def nearest(points, others, barred, index, distance, far):
    """For points [t,k,3] the index [t,k] of the nearest of others [t,3,m] (coordinates apart, so that the inner loop
    runs in vector registers) that is not barred [m], and its distance; ``far`` where all are barred."""
    frames, count, _ = points.shape
    many = others.shape[2]
    squares = np.empty(many, np.float32)
    wall = np.empty(many, np.float32)
    for m in range(many):
        wall[m] = np.float32(1e9) if barred[m] else np.float32(0)
    for t in range(frames):
        ox, oy, oz = others[t, 0], others[t, 1], others[t, 2]
        for k in range(count):
            x, y, z = points[t, k, 0], points[t, k, 1], points[t, k, 2]
            least = np.float32(1e30)
            for m in range(many):
                a, b, c = ox[m] - x, oy[m] - y, oz[m] - z
                d = a * a + b * b + c * c + wall[m]
                squares[m] = d
                least = min(least, d)
            found = 0
            for m in range(many):
                if squares[m] == least:
                    found = m
                    break
            index[t, k] = found
            distance[t, k] = np.sqrt(least) if least < np.float32(1e8) else far
