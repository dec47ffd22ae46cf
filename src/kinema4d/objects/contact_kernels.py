"""Impulses of contacts by projected Gauss-Seidel, compiled: a loop over loops that tensors are slow at (a hundredth of the time)."""

from __future__ import annotations

import numpy as np
from numba import njit

NONE, ALONG = 1e-12, 1e-8
"""Effect of an impulse, of the largest of all, and of the largest of the same contact, below which it is rounding: what stands
where no impulse can move it, such as on a hinge, would be pushed at with any force."""


@njit(cache=True)
def impulses(works: np.ndarray, miss: np.ndarray, friction: float, sweeps: int) -> np.ndarray:
    """[b,3c] of contacts, each along its normal and two directions of its surface, after which none closes further than allowed: they push
    only outwards, and resist sliding within Coulomb's cone. ``works`` [b,3c,3c] is what impulses do, ``miss`` [b,3c] where contacts are
    without them."""
    many, rows = miss.shape
    out = np.zeros_like(miss)
    for b in range(many):
        w, m, f = works[b], miss[b], out[b]
        biggest = 0.0
        for i in range(rows):
            biggest = max(biggest, w[i, i])
        for _ in range(sweeps):
            most, largest = 0.0, 0.0
            for i in range(0, rows, 3):
                if w[i, i] <= max(NONE * biggest, ALONG * max(w[i + 1, i + 1], w[i + 2, i + 2])):
                    continue
                before = f[i]
                f[i] = max(before - (m[i] + w[i] @ f) / w[i, i], 0.0)
                most, largest = max(most, abs(f[i] - before)), max(largest, f[i])
                stiff = max(w[i + 1, i + 1], w[i + 2, i + 2], 1e-300)
                s = f[i + 1] - (m[i + 1] + w[i + 1] @ f) / stiff
                t = f[i + 2] - (m[i + 2] + w[i + 2] @ f) / stiff
                length, limit = np.sqrt(s * s + t * t), friction * f[i]
                if length > limit:
                    s, t = s * limit / length, t * limit / length
                most = max(most, abs(s - f[i + 1]), abs(t - f[i + 2]))
                f[i + 1], f[i + 2] = s, t
            if most <= 1e-10 * largest:
                break
    return out
