"""Numba kernels of moving shadows: a map of heights as the sun sees them, and what of a picture lies below it.

A point (x, y, z) throws its shadow along the sun onto (x, y) - z * shift of the plane z = 0. The map keeps for every
cell of that plane the highest caster; what is lower, in the same cell, has no sun.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NOTHING = -1e9
"""Height of a cell that no caster shades."""


@njit(cache=True, nogil=True)
def fill_map(vertices, faces, shift, low, cell, heights):
    """Draw the casters into ``heights`` (which is raised, not cleared). Triangles are drawn from both sides: real meshes
    are not always wound outward."""
    rows, columns = heights.shape
    for f in range(faces.shape[0]):
        i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
        za, zb, zc = vertices[i, 2], vertices[j, 2], vertices[k, 2]
        xa, ya = (vertices[i, 0] - za * shift[0] - low[0]) / cell, (vertices[i, 1] - za * shift[1] - low[1]) / cell
        xb, yb = (vertices[j, 0] - zb * shift[0] - low[0]) / cell, (vertices[j, 1] - zb * shift[1] - low[1]) / cell
        xc, yc = (vertices[k, 0] - zc * shift[0] - low[0]) / cell, (vertices[k, 1] - zc * shift[1] - low[1]) / cell
        area = (xb - xa) * (yc - ya) - (xc - xa) * (yb - ya)
        if abs(area) <= 1e-12:
            continue
        if area < 0.0:
            xb, yb, zb, xc, yc, zc = xc, yc, zc, xb, yb, zb
            area = -area
        # Height is linear over the triangle, so that each row is one run of cells.
        gx = ((zb - za) * (yc - ya) - (zc - za) * (yb - ya)) / area
        gy = ((zc - za) * (xb - xa) - (zb - za) * (xc - xa)) / area
        first, last = max(int(np.ceil(min(ya, yb, yc))), 0), min(int(np.floor(max(ya, yb, yc))), rows - 1)
        for y in range(first, last + 1):
            left, right = -np.inf, np.inf
            for e in range(3):
                if e == 0:
                    px, py, qx, qy = xa, ya, xb, yb
                elif e == 1:
                    px, py, qx, qy = xb, yb, xc, yc
                else:
                    px, py, qx, qy = xc, yc, xa, ya
                rise = qy - py
                if rise > 0.0:  # inside is to the left of every edge
                    right = min(right, px + (y - py) * (qx - px) / rise)
                elif rise < 0.0:
                    left = max(left, px + (y - py) * (qx - px) / rise)
            for x in range(max(int(np.ceil(left)), 0), min(int(np.floor(right)), columns - 1) + 1):
                z = za + gx * (x - xa) + gy * (y - ya)
                if z > heights[y, x]:
                    heights[y, x] = z


@njit(cache=True, nogil=True, inline="always")
def _shade(heights, u, v, z):
    """Share of the sun that a point in cell (u, v) at height z lacks, 0..1. Read from 3x3 cells with the weights of a
    parabola, so that edges are soft and smooth."""
    rows, columns = heights.shape
    i, j = int(u + 0.5), int(v + 0.5)
    if i < 1 or j < 1 or i > columns - 2 or j > rows - 2:
        return 0.0
    a, b = u - i, v - j  # -0.5..0.5
    left, right = 0.5 * (0.5 - a) ** 2, 0.5 * (0.5 + a) ** 2
    middle = 1.0 - left - right
    low, high = 0.5 * (0.5 - b) ** 2, 0.5 * (0.5 + b) ** 2
    total = low * (
        left * (heights[j - 1, i - 1] > z) + middle * (heights[j - 1, i] > z) + right * (heights[j - 1, i + 1] > z)
    )
    total += (1.0 - low - high) * (
        left * (heights[j, i - 1] > z) + middle * (heights[j, i] > z) + right * (heights[j, i + 1] > z)
    )
    total += high * (
        left * (heights[j + 1, i - 1] > z) + middle * (heights[j + 1, i] > z) + right * (heights[j + 1, i + 1] > z)
    )
    return total


@njit(cache=True, nogil=True)
def explained(vertices, faces, shift, cell, bias, spots, tiles, counts, brightness, dim):
    """Share of the variance of ``brightness`` (without the mean of each tile) at world ``spots`` that shadows explain by
    darkness; ``dim`` receives the share of the sun that each spot lacks. Also how many spots are in shadow."""
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    for i in range(vertices.shape[0]):
        for k in range(2):
            flat = vertices[i, k] - vertices[i, 2] * shift[k]
            low[k], high[k] = min(low[k], flat), max(high[k], flat)
    low -= 4 * cell
    heights = np.full((int((high[1] - low[1]) / cell) + 6, int((high[0] - low[0]) / cell) + 6), NOTHING)
    fill_map(vertices, faces, shift, low, cell, heights)
    sums = np.zeros(counts.shape[0])
    both = dims = bright = shaded = 0.0
    for n in range(spots.shape[0]):
        z = spots[n, 2]
        u, v = (spots[n, 0] - z * shift[0] - low[0]) / cell, (spots[n, 1] - z * shift[1] - low[1]) / cell
        dim[n] = _shade(heights, u, v, z + bias)
        sums[tiles[n]] += dim[n]
        both += dim[n] * brightness[n]
        dims += dim[n] ** 2
        bright += brightness[n] ** 2
        shaded += dim[n] > 0.5
    for i in range(counts.shape[0]):
        dims -= sums[i] ** 2 / counts[i]
    return (both**2 / max(dims * bright, 1e-12) if both < 0.0 else 0.0), shaded


@njit(cache=True, nogil=True)
def below(heights, spots):
    """For spots (u, v, z): the share of the sun that each lacks."""
    out = np.zeros(spots.shape[0])
    for n in range(spots.shape[0]):
        out[n] = _shade(heights, spots[n, 0], spots[n, 1], spots[n, 2])
    return out


@njit(cache=True, nogil=True)
def on_things(ids, points, boxes, T, vertices, faces, shift, low, cell, size, bias, first, stride, dim):
    """Frames first, first + stride, ... : the share of the sun that drawn pixels (``ids`` > 0, ``points`` seen from a camera
    at ``T``) lack, into ``dim``."""
    heights = np.full((size[0], size[1]), NOTHING)
    for t in range(first, ids.shape[0], stride):
        heights[:] = NOTHING
        fill_map(vertices[t], faces, shift, low, cell, heights)
        for r in range(boxes[t, 2], boxes[t, 3] + 1):
            for c in range(boxes[t, 0], boxes[t, 1] + 1):
                if ids[t, r, c] == 0:
                    continue
                a, b, d = points[t, r, c, 0], points[t, r, c, 1], points[t, r, c, 2]
                x = T[0, 0] * a + T[0, 1] * b + T[0, 2] * d + T[0, 3]
                y = T[1, 0] * a + T[1, 1] * b + T[1, 2] * d + T[1, 3]
                z = T[2, 0] * a + T[2, 1] * b + T[2, 2] * d + T[2, 3]
                u, v = (x - z * shift[0] - low[0]) / cell, (y - z * shift[1] - low[1]) / cell
                dim[t, r, c] = _shade(heights, u, v, z + bias)


@njit(cache=True, nogil=True)
def reached(points, shift, low, cell, bias, heights):
    """Pixels of a picture of world points that lie below the map."""
    height, width = points.shape[:2]
    out = np.zeros((height, width), np.bool_)
    for y in range(height):
        for x in range(width):
            z = points[y, x, 2]
            u = (points[y, x, 0] - z * shift[0] - low[0]) / cell
            v = (points[y, x, 1] - z * shift[1] - low[1]) / cell
            out[y, x] = _shade(heights, u, v, z + bias) > 0.0
    return out


@njit(cache=True, nogil=True)
def facing(points, rows, columns, eye, sun):
    """Cosine between the sun and the surface at the listed pixels of a picture of world points, as the camera at
    ``eye`` sees it."""
    height, width = points.shape[:2]
    out = np.zeros(rows.shape[0])
    n, view = np.zeros(3), np.zeros(3)
    for i in range(rows.shape[0]):
        y, x = rows[i], columns[i]
        a = points[y, min(x + 1, width - 1)] - points[y, max(x - 1, 0)]
        b = points[min(y + 1, height - 1), x] - points[max(y - 1, 0), x]
        n[0], n[1], n[2] = a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]
        length = np.sqrt(n[0] ** 2 + n[1] ** 2 + n[2] ** 2)
        cosine, towards = 0.0, 0.0
        for k in range(3):
            view[k] = eye[k] - points[y, x, k]
            cosine += n[k] * sun[k]
            towards += n[k] * view[k]
        if length > 0.0:
            out[i] = (cosine if towards > 0.0 else -cosine) / length
    return out


@njit(cache=True, nogil=True)
def shade(
    vertices, faces, shift, low, cell, size, rows, columns, spots, dims, start, hole, bare, first, stride, known, rgb
):  # fmt: skip
    """Frames first, first + stride, ... of ``rgb``, which show the first picture where ``known`` and sunlit fillings
    elsewhere: take the shadows of the first frame out and put those of the frame in. ``dims`` is the share of its light
    that a spot loses in full shadow, ``start`` how far it looks shadowed in the first picture, ``bare`` the colour that it
    has in the sun; a ``hole`` is touched only when it is filled."""
    heights = np.full((size[0], size[1]), NOTHING)
    fill_map(vertices[0], faces, shift, low, cell, heights)
    cast = below(heights, spots)
    for t in range(first, vertices.shape[0], stride):
        heights[:] = NOTHING
        fill_map(vertices[t], faces, shift, low, cell, heights)
        for i in range(rows.shape[0]):
            y, x = rows[i], columns[i]
            if hole[i] and known[t, y, x]:
                continue
            before, now = 0.0, _shade(heights, spots[i, 0], spots[i, 1], spots[i, 2])
            changed = 1.0
            if not hole[i]:
                # What the picture knows better than geometry stays as it is while the shadow does.
                before, changed = start[i], min(2.0 * abs(now - cast[i]), 1.0)
                now += (before - cast[i]) * (1.0 - abs(now - cast[i]))
            if now != before:
                for k in range(3):
                    left = 1.0 - dims[i, k] * now
                    kept = rgb[t, y, x, k] * left / (1.0 - dims[i, k] * before)
                    value = kept if hole[i] else (1.0 - changed) * kept + changed * bare[i, k] * left
                    rgb[t, y, x, k] = np.uint8(min(value + 0.5, 255.0))
