"""Numba kernel of distances between points and convex bodies."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def hull_distance(points, planes, most):
    """Smallest of ``most`` and the points' signed distances to a convex body: the largest over its planes, negative
    inside. Outside, beside an edge, a little less than the true distance."""
    best = most
    for i in range(len(points)):
        far = -np.inf
        for k in range(len(planes)):
            d = planes[k, 0] * points[i, 0] + planes[k, 1] * points[i, 1] + planes[k, 2] * points[i, 2] + planes[k, 3]
            if d > far:
                far = d
                if far >= best:
                    break
        if far < best:
            best = far
    return best
