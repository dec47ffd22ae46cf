"""Numba kernels of mesh clean-up: loading a robot should not cost more than drawing it."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def weld(keys):
    """Give equal rows of an int64 [n, 3] array one number, in order of appearance. Open hashing: 20 times faster
    than np.unique over rows. Returns the first row of each number, and the number of each row."""
    n = keys.shape[0]
    size = 1
    while size < 2 * n + 1:
        size *= 2
    table = np.full(size, -1, np.int64)
    first = np.empty(n, np.int64)
    number = np.empty(n, np.int64)
    count = 0
    for i in range(n):
        h = np.uint64(14695981039346656037)
        for c in range(3):
            h = (h ^ np.uint64(keys[i, c])) * np.uint64(1099511628211)
            h ^= h >> np.uint64(29)
        slot = np.int64(h & np.uint64(size - 1))
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = count
                first[count] = i
                number[i] = count
                count += 1
                break
            j = first[other]
            if keys[j, 0] == keys[i, 0] and keys[j, 1] == keys[i, 1] and keys[j, 2] == keys[i, 2]:
                number[i] = other
                break
            slot = (slot + 1) & (size - 1)
    return first[:count].copy(), number


@njit(cache=True)
def corner_normals(cross, welded, count, crease):
    """Average the face normals (``cross``, weighted by area) around each welded vertex, within the crease angle
    of each face."""
    faces = cross.shape[0]
    starts = np.zeros(count + 1, np.int64)
    for f in range(faces):
        for c in range(3):
            starts[welded[f, c] + 1] += 1
    for i in range(count):
        starts[i + 1] += starts[i]
    filled = starts[:-1].copy()
    corners = np.empty(3 * faces, np.int64)
    for f in range(faces):
        for c in range(3):
            v = welded[f, c]
            corners[filled[v]] = 3 * f + c
            filled[v] += 1
    lengths = np.sqrt(cross[:, 0] ** 2 + cross[:, 1] ** 2 + cross[:, 2] ** 2)
    out = np.zeros((faces, 3, 3), np.float32)
    for v in range(count):
        for i in range(starts[v], starts[v + 1]):
            f = corners[i] // 3
            x = y = z = 0.0
            for j in range(starts[v], starts[v + 1]):
                g = corners[j] // 3
                dot = cross[f, 0] * cross[g, 0] + cross[f, 1] * cross[g, 1] + cross[f, 2] * cross[g, 2]
                if g == f or dot > crease * lengths[f] * lengths[g]:
                    x += cross[g, 0]
                    y += cross[g, 1]
                    z += cross[g, 2]
            length = np.sqrt(x * x + y * y + z * z)
            if length > 0:
                c = corners[i] % 3
                out[f, c, 0] = x / length
                out[f, c, 1] = y / length
                out[f, c, 2] = z / length
    return out
