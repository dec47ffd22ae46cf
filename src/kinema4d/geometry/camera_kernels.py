"""Compiled loops over pixels."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def off_ray(points, valid, fx, skew, cx, fy, cy):
    """Largest distance in pixels between a point's projection and its own pixel; infinite where it has none."""
    worst = 0.0
    frames, height, width = valid.shape
    for t in range(frames):
        for v in range(height):
            for u in range(width):
                if valid[t, v, u]:
                    x, y, z = float(points[t, v, u, 0]), float(points[t, v, u, 1]), float(points[t, v, u, 2])
                    if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z) and z > 0.0):
                        return np.inf
                    worst = max(worst, abs((fx * x + skew * y) / z + cx - u), abs(fy * y / z + cy - v))
    return worst
