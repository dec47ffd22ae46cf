"""What a joint that could be would do to points of a piece, compiled; and how far points are from other pieces' surfaces, exactly."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from kinema4d.objects.obstacle_kernels import DEPTH, nearest_of

NUMBERS = 14
"""That are measured of a candidate and a piece."""
SMALL = 1e-6
CLEAR = 0.2
"""Of the thickness of the other's wall: less deep is on the surface, not inside."""
DEEPEST = 3.0
"""Thicknesses beyond which it does not matter how deep."""
FAR = 0.2
"""A gap, of the size, beyond which it does not matter how far."""


@njit(cache=True)
def _gap(
    x: float, y: float, z: float, corners: np.ndarray, normals: np.ndarray, boxes: np.ndarray, nodes: np.ndarray, root: int, stack: np.ndarray, limit: float
) -> float:  # fmt: skip
    """Signed distance to a piece, where it is less than ``limit``. Outside of its box nothing is inside, even if the piece is open."""
    box = boxes[root]
    a = max(box[0, 0] - x, x - box[1, 0], 0.0)
    b = max(box[0, 1] - y, y - box[1, 1], 0.0)
    c = max(box[0, 2] - z, z - box[1, 2], 0.0)
    out = a * a + b * b + c * c
    if out >= limit * limit:
        return limit
    found = nearest_of(x, y, z, corners, normals, boxes, nodes, root, stack)[0]
    return min(abs(found) if out > 0 else found, limit)


@njit(cache=True)
def gaps(
    x: np.ndarray, corners: np.ndarray, normals: np.ndarray, boxes: np.ndarray, nodes: np.ndarray, roots: np.ndarray
) -> np.ndarray:  # fmt: skip
    """[n,c] signed distances of points [n,3] to every piece."""
    out, stack = np.empty((len(x), len(roots))), np.empty(DEPTH, np.int64)
    for i in range(len(x)):
        for c in range(len(roots)):
            out[i, c] = _gap(x[i, 0], x[i, 1], x[i, 2], corners, normals, boxes, nodes, roots[c], stack, np.inf)
    return out


@njit(cache=True)
def _add(gap: float, thick: float, out: np.ndarray, at: int) -> None:
    """Adds a point: whether inside, how deep, the least gap, the most deep."""
    if gap < 0:
        deep = min(-gap / thick, DEEPEST)
        out[at + 1] += deep
        out[at + 3] = max(out[at + 3], deep)
        out[at + 2] = 0.0
        if deep > CLEAR:
            out[at] += 1
    else:
        out[at + 2] = min(out[at + 2], gap)


@njit(cache=True)
def inside(gap: np.ndarray, thick: np.ndarray) -> np.ndarray:
    """[n,4] of points with these gaps [n,p] to pieces of these thicknesses [n]: how many are inside, how deep, how far the nearest is, how deep the
    deepest."""
    n, many = gap.shape
    out = np.zeros((n, 4))
    out[:, 2] = FAR
    for i in range(n):
        for p in range(many):
            _add(gap[i, p], thick[i], out[i], 0)
        out[i, 0] /= many
        out[i, 1] /= many
    return out


@njit(cache=True)
def measure(
    axis: np.ndarray, place: np.ndarray, slide: np.ndarray, x: np.ndarray, normal: np.ndarray, share: np.ndarray, before: np.ndarray, other: np.ndarray,
    thick: np.ndarray, corners: np.ndarray, normals: np.ndarray, boxes: np.ndarray, nodes: np.ndarray, far: np.ndarray, angle: float,
) -> np.ndarray:  # fmt: skip
    """[n,m,NUMBERS] of candidates along ``axis`` [n,m,3] through ``place`` [n,m,3], some of them a ``slide`` [m], for points [n,p,3] of the piece that
    moves, their normals and how near they are to the other piece [n,p], whose tree begins at ``other`` [n] and whose wall is so ``thick`` [n]: how fast
    points go into what they touch, of how fast they go there, and of how fast they go everywhere; how fast they go there; how much of all motion goes along
    normals; how fast all go (logarithm, 1 of slides); how evenly they go. And after the piece has turned by ``angle`` or gone as ``far`` [n,m] one way or
    the other: how many of its points are inside the other more than ``before`` [n,4], how deep, how much further the nearest is, how deep the deepest; the
    smaller of both ways first."""
    n, m = axis.shape[0], axis.shape[1]
    many = x.shape[1]
    out = np.zeros((n, m, NUMBERS))
    seen, stack = np.zeros(8), np.empty(DEPTH, np.int64)
    cos, sin = math.cos(angle), math.sin(angle)
    for i in range(n):
        total = share[i].sum()
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
                    gap = _gap(yx, yy, yz, corners, normals, boxes, nodes, other[i], stack, FAR)
                    _add(gap, thick[i], seen, 4 * way)
            root = math.sqrt(squared / many) + SMALL
            near, into, every, first = near / total, into / total, every / many, first / many
            o = out[i, c]
            o[0], o[1], o[2], o[3] = into / (near + 1e-4), into / root, min(near / root, 3.0), every / root
            o[4] = 1.0 if slide[c] else math.log(root)
            o[5] = math.sqrt(max(squared / many - first * first, 0.0)) / (first + SMALL)
            for k in range(4):
                a, b = seen[k], seen[4 + k]
                if k < 2:
                    a, b = a / many, b / many
                o[6 + k], o[10 + k] = min(a, b) - before[i, k], max(a, b) - before[i, k]
    return out
