"""Nearest points of a closed surface of triangles, compiled: a tree of boxes, so that a point meets some tens of thousands of triangles, and the
side it is on by the pseudo-normal of the vertex, edge or face that is nearest (Baerentzen and Aanaes, 2005)."""

from __future__ import annotations

import numpy as np
from numba import njit

LEAF = 4
"""Triangles of a leaf at most."""
DEPTH = 64
"""Of the tree at most; halves of 2^60 triangles do not fit anywhere."""


def tree(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes [n,2,3] of nodes, which are [n,3] first child (the second follows it; -1 for a leaf) and range of the order [t] of triangles with
    boxes ``low`` and ``high`` [t,3]: halves of equal number along the longest side."""
    middle, order = (low + high) / 2, np.arange(len(low))
    boxes, nodes, open_ = [np.zeros((2, 3))], [[-1, 0, len(low)]], [0]
    while open_:
        here = open_.pop()
        _, a, b = nodes[here]
        mine = order[a:b]
        boxes[here] = np.stack([low[mine].min(axis=0), high[mine].max(axis=0)])
        if b - a > LEAF:
            side = int(np.ptp(middle[mine], axis=0).argmax())
            half = (b - a) // 2
            order[a:b] = mine[np.argpartition(middle[mine, side], half)]
            nodes[here][0] = len(nodes)
            for child in ([-1, a, a + half], [-1, a + half, b]):
                open_.append(len(nodes))
                nodes.append(child)
                boxes.append(np.zeros((2, 3)))
    return np.stack(boxes), np.array(nodes, np.int64), order


@njit(cache=True)
def _dot(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@njit(cache=True)
def _nearest(px: float, py: float, pz: float, t: np.ndarray) -> tuple[float, float, float, int]:
    """The point of a triangle [3,3] nearest to another, and what it is on: 0 to 2 a corner, 3 to 5 the edge that begins there, 6 the face
    (Ericson, Real-Time Collision Detection, 5.1.5). In single numbers: arrays would be made on the way, which takes ten times as long."""
    a = (t[0, 0], t[0, 1], t[0, 2])
    ab = (t[1, 0] - a[0], t[1, 1] - a[1], t[1, 2] - a[2])
    ac = (t[2, 0] - a[0], t[2, 1] - a[1], t[2, 2] - a[2])
    ap = (px - a[0], py - a[1], pz - a[2])
    d1, d2 = _dot(ab, ap), _dot(ac, ap)
    if d1 <= 0 and d2 <= 0:
        return a[0], a[1], a[2], 0
    bp = (px - t[1, 0], py - t[1, 1], pz - t[1, 2])
    d3, d4 = _dot(ab, bp), _dot(ac, bp)
    if d3 >= 0 and d4 <= d3:
        return t[1, 0], t[1, 1], t[1, 2], 1
    vc = d1 * d4 - d3 * d2
    if vc <= 0 and d1 >= 0 and d3 <= 0:
        s = d1 / (d1 - d3)
        return a[0] + s * ab[0], a[1] + s * ab[1], a[2] + s * ab[2], 3
    cp = (px - t[2, 0], py - t[2, 1], pz - t[2, 2])
    d5, d6 = _dot(ab, cp), _dot(ac, cp)
    if d6 >= 0 and d5 <= d6:
        return t[2, 0], t[2, 1], t[2, 2], 2
    vb = d5 * d2 - d1 * d6
    if vb <= 0 and d2 >= 0 and d6 <= 0:
        s = d2 / (d2 - d6)
        return a[0] + s * ac[0], a[1] + s * ac[1], a[2] + s * ac[2], 5
    va = d3 * d6 - d5 * d4
    if va <= 0 and d4 >= d3 and d5 >= d6:
        s = (d4 - d3) / ((d4 - d3) + (d5 - d6))
        return t[1, 0] + s * (ac[0] - ab[0]), t[1, 1] + s * (ac[1] - ab[1]), t[1, 2] + s * (ac[2] - ab[2]), 4
    v, w = vb / (va + vb + vc), vc / (va + vb + vc)
    return a[0] + v * ab[0] + w * ac[0], a[1] + v * ab[1] + w * ac[1], a[2] + v * ab[2] + w * ac[2], 6


@njit(cache=True)
def _to_box(px: float, py: float, pz: float, box: np.ndarray) -> float:
    """Squared distance."""
    x = max(box[0, 0] - px, px - box[1, 0], 0.0)
    y = max(box[0, 1] - py, py - box[1, 1], 0.0)
    z = max(box[0, 2] - pz, pz - box[1, 2], 0.0)
    return x * x + y * y + z * z


@njit(cache=True)
def nearest_of(
    px: float, py: float, pz: float, corners: np.ndarray, normals: np.ndarray, boxes: np.ndarray, nodes: np.ndarray, root: int, stack: np.ndarray
) -> tuple[float, float, float, float, int, int]:  # fmt: skip
    """Signed distance of a place to the part with this root, the place on it that is nearest, its triangle, and what of that it is on. ``stack`` [DEPTH] is
    room to work in."""
    nearest, which, kind, bx, by, bz = np.inf, -1, 6, 0.0, 0.0, 0.0
    stack[0], top = root, 1
    while top:
        top -= 1
        node = stack[top]
        if _to_box(px, py, pz, boxes[node]) >= nearest:
            continue
        child = nodes[node, 0]
        if child < 0:
            for t in range(nodes[node, 1], nodes[node, 2]):
                x, y, z, found = _nearest(px, py, pz, corners[t])
                away = (px - x) ** 2 + (py - y) ** 2 + (pz - z) ** 2
                if away < nearest:
                    nearest, which, kind, bx, by, bz = away, t, found, x, y, z
            continue
        swap = _to_box(px, py, pz, boxes[child]) < _to_box(px, py, pz, boxes[child + 1])
        stack[top] = child + 1 if swap else child
        stack[top + 1] = child if swap else child + 1  # the nearer is looked at first
        top += 2
    n = normals[which, kind]
    side = 1.0 if (px - bx) * n[0] + (py - by) * n[1] + (pz - bz) * n[2] >= 0 else -1.0
    return side * np.sqrt(nearest), bx, by, bz, which, kind


@njit(cache=True)
def signed(
    points: np.ndarray, corners: np.ndarray, normals: np.ndarray, boxes: np.ndarray, nodes: np.ndarray, roots: np.ndarray, limit: float, near: float
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Signed distance [m] of points [m,3] to the union of closed parts, each a tree with a root, and its gradient. Exact where it is less than
    ``limit``; beyond, it may be less than the truth but not than the limit. ``corners`` [t,3,3] and ``normals`` [t,7,3] (of corners, edges and
    face) are in the order of the trees. Nearer to the surface than ``near`` the gradient is its normal: the way to it is rounding there."""
    far, way = np.empty(len(points)), np.zeros((len(points), 3))
    stack = np.empty(DEPTH, np.int64)
    for i in range(len(points)):
        px, py, pz = points[i, 0], points[i, 1], points[i, 2]
        least = np.inf
        for root in roots:
            outside = np.sqrt(_to_box(px, py, pz, boxes[root]))
            if outside > 0 and outside >= min(limit, least):  # too far to matter, or farther than another part
                if outside < least:
                    least = outside
                    for j in range(3):
                        inner = min(max(points[i, j], boxes[root, 0, j]), boxes[root, 1, j])
                        way[i, j] = (points[i, j] - inner) / outside
                continue
            found, bx, by, bz, which, kind = nearest_of(px, py, pz, corners, normals, boxes, nodes, root, stack)
            if found < least:
                least = found
                if abs(found) > near:
                    way[i, 0], way[i, 1], way[i, 2] = (px - bx) / found, (py - by) / found, (pz - bz) / found
                else:
                    way[i] = normals[which, kind]
        far[i] = least
    return far, way
