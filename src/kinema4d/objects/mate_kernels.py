"""What a joint that could be would do to points of a piece, compiled: an object is looked at in an eighth of the time that NumPy takes."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

NUMBERS = 14
"""That are measured of a candidate and a piece."""
SMALL = 1e-6
CLEAR = 0.1
"""Of the thinnest half side: less deep is on the surface, not inside."""
FAR = 0.2
"""A gap, of the size, beyond which it does not matter how far."""


@njit(cache=True)
def _to_box(x: np.ndarray, half: np.ndarray, out: np.ndarray, at: int) -> None:
    """Adds a point in the frame of a box: whether inside, how deep, the least gap, the most deep."""
    a, b, c = half[0] - abs(x[0]), half[1] - abs(x[1]), half[2] - abs(x[2])
    deep = min(a, b, c)
    if deep > 0:
        out[at + 1] += deep / half[2]
        out[at + 3] = max(out[at + 3], deep / half[2])
        out[at + 2] = 0.0
        if deep > CLEAR * half[2]:
            out[at] += 1
    else:
        a, b, c = min(a, 0.0), min(b, 0.0), min(c, 0.0)
        out[at + 2] = min(out[at + 2], math.sqrt(a * a + b * b + c * c))


@njit(cache=True)
def inside(x: np.ndarray, middle: np.ndarray, turn: np.ndarray, half: np.ndarray) -> np.ndarray:
    """[n,4] of points [n,p,3] as they are: how many are inside the other's box, how deep, how far the nearest is, how deep the deepest."""
    n, many = x.shape[0], x.shape[1]
    out, local = np.zeros((n, 4)), np.zeros(3)
    out[:, 2] = FAR
    for i in range(n):
        for p in range(many):
            for k in range(3):
                local[k] = 0.0
                for d in range(3):
                    local[k] += (x[i, p, d] - middle[i, d]) * turn[i, k, d]
            _to_box(local, half[i], out[i], 0)
        out[i, 0] /= many
        out[i, 1] /= many
    return out


@njit(cache=True)
def measure(
    axis: np.ndarray, place: np.ndarray, slide: np.ndarray, x: np.ndarray, normal: np.ndarray, share: np.ndarray,
    middle: np.ndarray, turn: np.ndarray, half: np.ndarray, far: np.ndarray, angle: float,
) -> np.ndarray:  # fmt: skip
    """[n,m,NUMBERS] of candidates along ``axis`` [n,m,3] through ``place`` [n,m,3], some of them a ``slide`` [m], for points [n,p,3] of the piece that
    moves, their normals and how near they are to the other piece [n,p], whose box is at ``middle`` [n,3] with axes ``turn`` [n,3,3] and sides ``half``
    [n,3]: how fast points go into what they touch, of how fast they go there, and of how fast they go everywhere; how fast they go there; how much of
    all motion goes along normals; how fast all go (logarithm, 1 of slides); how evenly they go. And after the piece has turned by ``angle`` or gone
    as ``far`` [n,m] one way or the other: how many of its points are inside the other's box more than before, how deep, how much further the nearest is,
    how deep the deepest; the smaller of both ways first."""
    n, m = axis.shape[0], axis.shape[1]
    many = x.shape[1]
    out = np.zeros((n, m, NUMBERS))
    local, seen = np.zeros(3), np.zeros(8)
    cos, sin = math.cos(angle), math.sin(angle)
    at_first = inside(x, middle, turn, half)
    for i in range(n):
        total = share[i].sum()
        before = at_first[i]
        for c in range(m):
            w = axis[i, c]
            near = into = every = squared = first = 0.0
            seen[:] = 0.0
            seen[2] = seen[6] = FAR
            for p in range(many):
                rx, ry, rz = x[i, p, 0] - place[i, c, 0], x[i, p, 1] - place[i, c, 1], x[i, p, 2] - place[i, c, 2]
                # Across the axis, which is how fast a hinge moves it.
                sx, sy, sz = w[1] * rz - w[2] * ry, w[2] * rx - w[0] * rz, w[0] * ry - w[1] * rx
                vx, vy, vz = (w[0], w[1], w[2]) if slide[c] else (sx, sy, sz)
                speed = math.sqrt(vx * vx + vy * vy + vz * vz)
                along = abs(vx * normal[i, p, 0] + vy * normal[i, p, 1] + vz * normal[i, p, 2])
                near += share[i, p] * speed
                into += share[i, p] * along
                every += along
                squared += speed * speed
                first += speed
                lift = w[0] * rx + w[1] * ry + w[2] * rz
                for way in range(2):
                    sign = 1.0 - 2.0 * way
                    if slide[c]:
                        f = sign * far[i, c]
                        yx, yy, yz = x[i, p, 0] + f * w[0], x[i, p, 1] + f * w[1], x[i, p, 2] + f * w[2]
                    else:
                        s = sign * sin
                        yx = place[i, c, 0] + lift * w[0] + cos * (rx - lift * w[0]) + s * sx
                        yy = place[i, c, 1] + lift * w[1] + cos * (ry - lift * w[1]) + s * sy
                        yz = place[i, c, 2] + lift * w[2] + cos * (rz - lift * w[2]) + s * sz
                    for k in range(3):
                        local[k] = (yx - middle[i, 0]) * turn[i, k, 0] + (yy - middle[i, 1]) * turn[i, k, 1] + (yz - middle[i, 2]) * turn[i, k, 2]  # fmt: skip
                    _to_box(local, half[i], seen, 4 * way)
            root = math.sqrt(squared / many) + SMALL
            near, into, every, first = near / total, into / total, every / many, first / many
            o = out[i, c]
            o[0], o[1], o[2], o[3] = into / (near + 1e-4), into / root, min(near / root, 3.0), every / root
            o[4] = 1.0 if slide[c] else math.log(root)
            o[5] = math.sqrt(max(squared / many - first * first, 0.0)) / (first + SMALL)
            for k in range(4):
                a, b = seen[k], seen[4 + k]
                base = before[k]
                if k < 2:
                    a, b = a / many, b / many
                o[6 + k], o[10 + k] = min(a, b) - base, max(a, b) - base
    return out
