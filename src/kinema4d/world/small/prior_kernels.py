"""Numba kernels of the moved prior: a membrane over holes, the colour of a moved surface, and all layers by depth.

The same in NumPy (:mod:`kinema4d.world.compose`) takes 3.6 s at 49x480x720, these take 0.2 s: whole-clip temporaries
cost more than the work.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def relax(values, rows, columns, rounds):
    """Over-relaxed rounds of Laplace's equation at the listed pixels, in place; edges of the picture reflect. Listed
    pixels of one colour of a checkerboard come first, as neighbours of one colour only have the other."""
    height, width, channels = values.shape
    for _ in range(rounds):
        for i in range(rows.shape[0]):
            r, c = rows[i], columns[i]
            up, down, left, right = max(r - 1, 0), min(r + 1, height - 1), max(c - 1, 0), min(c + 1, width - 1)
            for k in range(channels):
                around = values[up, c, k] + values[down, c, k] + values[r, left, k] + values[r, right, k]
                values[r, c, k] += 1.6 * (around / 4 - values[r, c, k])


@njit(cache=True, nogil=True)
def halve(values, known):
    """Means over what is known of each 2x2 block, and whether anything is."""
    height, width, channels = values.shape
    half = np.zeros(((height + 1) // 2, (width + 1) // 2, channels))
    some = np.zeros(half.shape[:2], np.bool_)
    for r in range(half.shape[0]):
        for c in range(half.shape[1]):
            count = 0
            for y in range(2 * r, min(2 * r + 2, height)):
                for x in range(2 * c, min(2 * c + 2, width)):
                    if known[y, x]:
                        count += 1
                        for k in range(channels):
                            half[r, c, k] += values[y, x, k]
            if count:
                some[r, c] = True
                for k in range(channels):
                    half[r, c, k] /= count
    return half, some


@njit(cache=True, nogil=True)
def double(half, values, rows, columns):
    """The coarser picture, bilinear, into the listed pixels of the finer one: a slope stays a slope."""
    height, width, channels = half.shape
    for i in range(rows.shape[0]):
        y = min(max((rows[i] - 0.5) / 2, 0.0), height - 1.0)
        x = min(max((columns[i] - 0.5) / 2, 0.0), width - 1.0)
        r, c = int(y), int(x)
        r1, c1 = min(r + 1, height - 1), min(c + 1, width - 1)
        b, a = y - r, x - c
        for k in range(channels):
            top = half[r, c, k] * (1 - a) + half[r, c1, k] * a
            low = half[r1, c, k] * (1 - a) + half[r1, c1, k] * a
            values[rows[i], columns[i], k] = top * (1 - b) + low * b


@njit(cache=True, nogil=True, inline="always")
def _seen(u, v, z, texture, trust, depth, slack, out):
    """Colour of the first picture at (u, v) of a cut-out into ``out``, from those of the four pixels around whose
    surface is the one at depth z; returns how far it is to be trusted, 0..1."""
    height, width = depth.shape
    # Where a motion is a whole number of pixels, rounding must not mix in a neighbour.
    u0, v0 = int(np.floor(u + 1e-3)), int(np.floor(v + 1e-3))
    fu, fv = max(u - u0, 0.0), max(v - v0, 0.0)
    same = sure = red = green = blue = 0.0
    for n in range(4):
        x, y = u0 + (n & 1), v0 + (n >> 1)
        w = (fu if n & 1 else 1.0 - fu) * (fv if n >> 1 else 1.0 - fv)
        if w > 0.0 and 0 <= x < width and 0 <= y < height and abs(z - depth[y, x]) <= slack[y, x]:
            same += w
            w *= trust[y, x]
            sure += w
            red += w * texture[y, x, 0]
            green += w * texture[y, x, 1]
            blue += w * texture[y, x, 2]
    if sure <= 0.0:
        return 0.0
    out[0], out[1], out[2] = red / sure, green / sure, blue / sure
    return sure / same * min(4.0 * same, 1.0)  # beside an edge, fewer than four are enough


@njit(cache=True, nogil=True, inline="always")
def _guess(x, y, z, low, cell, volume, out):
    """Colour of the volume at a point, trilinear, into ``out``."""
    nz, ny, nx = volume.shape[:3]
    x = min(max((x - low[0]) / cell - 0.5, 0.0), nx - 1.001)
    y = min(max((y - low[1]) / cell - 0.5, 0.0), ny - 1.001)
    z = min(max((z - low[2]) / cell - 0.5, 0.0), nz - 1.001)
    i, j, k = int(x), int(y), int(z)
    out[0] = out[1] = out[2] = 0.0
    for n in range(8):
        di, dj, dk = n & 1, (n >> 1) & 1, n >> 2
        w = (x - i if di else 1 - x + i) * (y - j if dj else 1 - y + j) * (z - k if dk else 1 - z + k)
        for c in range(3):
            out[c] += w * volume[k + dk, j + dj, i + di, c]


@njit(cache=True, nogil=True)
def colour(ids, points, boxes, own, Ts, K, left, top, texture, trust, depth, slack, low, cell, volume, rgb, known):
    """Colour of every pixel that shows part ``own``: carried back to the first frame by ``Ts`` (camera to camera), it
    has the colour of the first picture as far as it is seen there, else that of the volume. ``rgb`` comes with the
    normal at the first frame (:func:`kinema4d.world.small.skin.normal_colours`) and leaves with the colour."""
    seen, guess = np.zeros(3), np.zeros(3)
    for t in range(ids.shape[0]):
        T = Ts[t]
        for y in range(boxes[t, 2], boxes[t, 3] + 1):
            for x in range(boxes[t, 0], boxes[t, 1] + 1):
                if ids[t, y, x] != own:
                    continue
                a, b, c = points[t, y, x, 0], points[t, y, x, 1], points[t, y, x, 2]
                px = T[0, 0] * a + T[0, 1] * b + T[0, 2] * c + T[0, 3]
                py = T[1, 0] * a + T[1, 1] * b + T[1, 2] * c + T[1, 3]
                pz = T[2, 0] * a + T[2, 1] * b + T[2, 2] * c + T[2, 3]
                facing = 0.0
                for k in range(3):
                    facing -= (rgb[t, y, x, k] - 127.5) * (px if k == 0 else py if k == 1 else pz)
                sure = 0.0
                if pz > 0.0 and facing > 0.0:
                    u = (K[0, 0] * px + K[0, 1] * py) / pz + K[0, 2] - left
                    v = K[1, 1] * py / pz + K[1, 2] - top
                    sure = _seen(u, v, pz, texture, trust, depth, slack, seen)
                if sure < 1.0:
                    _guess(px, py, pz, low, cell, volume, guess)
                for k in range(3):
                    rgb[t, y, x, k] = np.uint8(sure * seen[k] + (1.0 - sure) * guess[k] + 0.5)
                known[t, y, x] = sure > 0.5


@njit(cache=True, nogil=True)
def uncover(rows, columns, gone, away, fill_rgb, fill_points, first, stride, rgb, points, valid, known):
    """Frames first, first + stride, ... , which hold the first picture: its filling where what stood there is away
    (``gone`` has a bit for each thing that covers the listed pixels, ``away`` those that have left by each frame)."""
    for t in range(first, rgb.shape[0], stride):
        for i in range(rows.shape[0]):
            if gone[i] & away[t]:
                y, x = rows[i], columns[i]
                for k in range(3):
                    rgb[t, y, x, k] = fill_rgb[y, x, k]
                    points[t, y, x, k] = fill_points[y, x, k]
                valid[t, y, x] = True
                known[t, y, x] = False


@njit(cache=True, nogil=True)
def layers(
    part_ids, part_points, part_rgb, part_known, part_boxes, part_away, labels, slack, robot, robot_points, robot_rgb,
    link_ids, looks, first, stride, rgb, points, valid, known, ids,
):  # fmt: skip
    """Frames first, first + stride, ... , which hold the background: the parts, then the robot, pixel by pixel by depth.
    The background has points everywhere, so that parts do not show through where its sensor is blind; ``valid`` tells
    where they are measured."""
    frames, height, width = robot.shape
    for t in range(first, frames, stride):
        for y in range(part_boxes[t, 2], part_boxes[t, 3] + 1):
            for x in range(part_boxes[t, 0], part_boxes[t, 1] + 1):
                part = part_ids[t, y, x]
                # A part that has not moved yet is in the picture already: it is drawn only where the picture lacks it.
                if part == 0 or (known[t, y, x] and not part_away[part - 1, t]):
                    continue
                if part_points[t, y, x, 2] <= points[t, y, x, 2] + slack:
                    for k in range(3):
                        rgb[t, y, x, k] = part_rgb[t, y, x, k]
                        points[t, y, x, k] = part_points[t, y, x, k]
                    valid[t, y, x] = True
                    known[t, y, x] = part_known[t, y, x]
                    ids[t, y, x] = labels[part]
        for y in range(height):
            for x in range(width):
                if robot[t, y, x] and (not valid[t, y, x] or robot_points[t, y, x, 2] <= points[t, y, x, 2]):
                    for k in range(3):
                        rgb[t, y, x, k] = looks[link_ids[t, y, x], robot_rgb[t, y, x, k], k]
                        points[t, y, x, k] = robot_points[t, y, x, k]
                    valid[t, y, x] = True
                    known[t, y, x] = True
                    ids[t, y, x] = 0


@njit(cache=True, nogil=True)
def relight(ids, boxes, label, normals, towards, gain, dim, rgb):
    """Light the pixels of one part, which have the colours of full light, by their normals (as colours, at the first
    frame); ``towards`` [t,3] is where the light is, seen from the part as it is turned, ``gain`` [3] the sun's light
    against that of all around, ``dim`` [t,h,w] the share of it that a pixel lacks."""
    for t in range(ids.shape[0]):
        for r in range(boxes[t, 2], boxes[t, 3] + 1):
            for c in range(boxes[t, 0], boxes[t, 1] + 1):
                if ids[t, r, c] != label:
                    continue
                cosine = 0.0
                for k in range(3):
                    cosine += (normals[t, r, c, k] / 127.5 - 1.0) * towards[t, k]
                cosine = max(cosine, 0.0) * (1.0 - dim[t, r, c])
                for k in range(3):
                    share = (1.0 + gain[k] * cosine) / (1.0 + gain[k])
                    rgb[t, r, c, k] = np.uint8(min(255.0, rgb[t, r, c, k] * share + 0.5))
