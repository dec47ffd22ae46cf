"""Numba kernels of the search for things: draw a mesh at a pose, compare it with a clip's pixels, move it to fit.

A pose is compared only at the pixels that the mesh covers: some hundreds of triangles and pixels, some ten
microseconds. Everything is in the camera's frame. One file: Numba's cache does not notice changes in other files.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NEAR = 1e-3
"""Triangles with a corner nearer than this to the camera's plane are left out, metres."""

SAME_COLOR = 12
"""Neighbouring pixels that differ by less than this, of 255, show the same surface."""


@njit(cache=True, nogil=True)
def _draw(T, vertices, faces, K, corners, screen, w_buffer, face_buffer):
    """Z-buffer of a mesh; returns the box that it covers: first and last column and row."""
    height, width = w_buffer.shape
    x0, x1, y0, y1 = width, -1, height, -1
    for i in range(len(vertices)):
        for k in range(3):
            corners[i, k] = T[k, 0] * vertices[i, 0] + T[k, 1] * vertices[i, 1] + T[k, 2] * vertices[i, 2] + T[k, 3]
        z = corners[i, 2]
        if z > NEAR:
            u = (K[0, 0] * corners[i, 0] + K[0, 1] * corners[i, 1]) / z + K[0, 2]
            v = K[1, 1] * corners[i, 1] / z + K[1, 2]
            screen[i, 0], screen[i, 1], screen[i, 2] = u, v, 1.0 / z
            x0, x1 = min(x0, int(np.ceil(max(u, 0.0)))), max(x1, int(np.floor(min(u, width - 1.0))))
            y0, y1 = min(y0, int(np.ceil(max(v, 0.0)))), max(y1, int(np.floor(min(v, height - 1.0))))
        else:
            screen[i, 2] = 0.0
    x0, y0 = max(x0, 0), max(y0, 0)
    for y in range(y0, y1 + 1):
        for x in range(x0, x1 + 1):
            w_buffer[y, x] = 0.0
            face_buffer[y, x] = -1
    for f in range(len(faces)):
        a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
        w0, w1, w2 = screen[a, 2], screen[b, 2], screen[c, 2]
        if w0 == 0.0 or w1 == 0.0 or w2 == 0.0:
            continue
        u0, v0, u1, v1, u2, v2 = screen[a, 0], screen[a, 1], screen[b, 0], screen[b, 1], screen[c, 0], screen[c, 1]
        area = (u1 - u0) * (v2 - v0) - (u2 - u0) * (v1 - v0)
        if area == 0.0:
            continue
        left, right = max(x0, int(np.ceil(min(u0, u1, u2) - 1e-9))), min(x1, int(np.floor(max(u0, u1, u2) + 1e-9)))
        top, low = max(y0, int(np.ceil(min(v0, v1, v2) - 1e-9))), min(y1, int(np.floor(max(v0, v1, v2) + 1e-9)))
        for y in range(top, low + 1):
            for x in range(left, right + 1):
                e0 = ((u2 - u1) * (y - v1) - (v2 - v1) * (x - u1)) / area
                e1 = ((u0 - u2) * (y - v2) - (v0 - v2) * (x - u2)) / area
                e2 = 1.0 - e0 - e1
                if e0 >= -1e-9 and e1 >= -1e-9 and e2 >= -1e-9:
                    w = e0 * w0 + e1 * w1 + e2 * w2
                    if w > w_buffer[y, x]:
                        w_buffer[y, x] = w
                        face_buffer[y, x] = f
    return x0, x1, y0, y1


@njit(cache=True, nogil=True)
def compare(T, vertices, faces, K, points, valid, rgb, like, solid, tolerance, gate, centre, radius, work, H, g, out):
    """How well the pixels agree with the mesh at ``T``. ``out``: agreement, contradiction, hidden pixels, drawn pixels.

    Where ``gate`` is positive, ``H`` and ``g`` get the normal equations of point-to-plane distances within it.
    """
    corners, screen, w_buffer, face_buffer = work
    height, width = w_buffer.shape
    x0, x1, y0, y1 = _draw(T, vertices, faces, K, corners, screen, w_buffer, face_buffer)
    out[:] = 0.0
    if gate > 0:
        H[:] = 0.0
        g[:] = 0.0
    cx = T[0, 0] * centre[0] + T[0, 1] * centre[1] + T[0, 2] * centre[2] + T[0, 3]
    cy = T[1, 0] * centre[0] + T[1, 1] * centre[1] + T[1, 2] * centre[2] + T[1, 3]
    cz = T[2, 0] * centre[0] + T[2, 1] * centre[1] + T[2, 2] * centre[2] + T[2, 3]
    J = np.empty(6)
    for y in range(y0, y1 + 1):
        for x in range(x0, x1 + 1):
            f = face_buffer[y, x]
            if f < 0:
                continue
            out[3] += 1.0
            if not valid[y, x]:
                out[2] += 1.0
                continue
            z = 1.0 / w_buffer[y, x]
            d = points[y, x, 2] - z
            color = min(1.0, max(0.0, (like[y, x] - 0.2) / 0.6))  # a colour that nobody has shown speaks by half
            if d < -tolerance:  # something is before it; not the table, and its own colour would be itself, elsewhere
                if solid[y, x]:
                    out[1] += 1.0
                elif like[y, x] > 0.8:
                    out[1] += 0.5
                else:
                    out[2] += 1.0
            elif d < tolerance:
                out[0] += (1.0 - (d / tolerance) ** 2) * color
                out[1] += max(0.0, 1.0 - 2.0 * like[y, x])
            else:
                out[1] += min(1.0, d / tolerance - 1.0)
            # Outside the outline the same surface in the same colour must not go on.
            if abs(d) < tolerance:
                for side in range(4):
                    v, u = y + (side == 0) - (side == 1), x + (side == 2) - (side == 3)
                    if v < 0 or v >= height or u < 0 or u >= width or not valid[v, u]:
                        continue
                    if y0 <= v <= y1 and x0 <= u <= x1 and face_buffer[v, u] >= 0:
                        continue
                    if abs(points[v, u, 2] - points[y, x, 2]) < tolerance:
                        differs = 0
                        for k in range(3):
                            differs = max(differs, abs(int(rgb[v, u, k]) - int(rgb[y, x, k])))
                        if differs < SAME_COLOR:
                            out[1] += 0.5
            if gate > 0 and abs(d) < gate and like[y, x] > 0.3:
                a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
                ax, ay, az = corners[b, 0] - corners[a, 0], corners[b, 1] - corners[a, 1], corners[b, 2] - corners[a, 2]
                bx, by, bz = corners[c, 0] - corners[a, 0], corners[c, 1] - corners[a, 1], corners[c, 2] - corners[a, 2]
                nx, ny, nz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
                length = np.sqrt(nx * nx + ny * ny + nz * nz)
                if length == 0.0:
                    continue
                nx, ny, nz = nx / length, ny / length, nz / length
                my = z * (y - K[1, 2]) / K[1, 1]
                mx = z * (x - K[0, 2] - K[0, 1] * (y - K[1, 2]) / K[1, 1]) / K[0, 0]
                r = nx * (points[y, x, 0] - mx) + ny * (points[y, x, 1] - my) + nz * d
                if abs(r) >= gate:
                    continue
                weight = (1.0 - (r / gate) ** 2) ** 2 * color
                px, py, pz = mx - cx, my - cy, z - cz
                J[0], J[1], J[2] = nx, ny, nz
                J[3] = (py * nz - pz * ny) / radius
                J[4] = (pz * nx - px * nz) / radius
                J[5] = (px * ny - py * nx) / radius
                for i in range(6):
                    g[i] += weight * J[i] * r
                    for j in range(6):
                        H[i, j] += weight * J[i] * J[j]


@njit(cache=True, nogil=True)
def cover(T, vertices, faces, K, points, tolerance, work, out):
    """Mark the pixels at which the mesh at ``T`` is seen."""
    corners, screen, w_buffer, face_buffer = work
    x0, x1, y0, y1 = _draw(T, vertices, faces, K, corners, screen, w_buffer, face_buffer)
    for y in range(y0, y1 + 1):
        for x in range(x0, x1 + 1):
            if face_buffer[y, x] >= 0 and abs(points[y, x, 2] - 1.0 / w_buffer[y, x]) < tolerance:
                out[y, x] = True


@njit(cache=True, nogil=True)
def _moved(T, step, centre, radius):
    """``T`` moved by a small step: metres along the camera's axes, then turns about the thing's centre in metres at
    its radius."""
    angle = np.sqrt(step[3] ** 2 + step[4] ** 2 + step[5] ** 2) / radius
    R = np.eye(3)
    if angle > 1e-12:
        a = step[3:] / (radius * angle)
        s, c = np.sin(angle), np.cos(angle)
        for i in range(3):
            for j in range(3):
                R[i, j] = (1 - c) * a[i] * a[j] + (c if i == j else 0.0)
        R[0, 1] -= s * a[2]
        R[0, 2] += s * a[1]
        R[1, 0] += s * a[2]
        R[1, 2] -= s * a[0]
        R[2, 0] -= s * a[1]
        R[2, 1] += s * a[0]
    out = np.zeros((4, 4))
    out[3, 3] = 1.0
    middle = np.zeros(3)
    for i in range(3):
        middle[i] = T[i, 0] * centre[0] + T[i, 1] * centre[1] + T[i, 2] * centre[2] + T[i, 3]
        for j in range(3):
            for k in range(3):
                out[i, j] += R[i, k] * T[k, j]
    for i in range(3):
        away = 0.0
        for j in range(3):
            away += out[i, j] * centre[j]
        out[i, 3] = middle[i] + step[i] - away
    return out


@njit(cache=True, nogil=True)
def refine(
    T, vertices, faces, K, points, valid, rgb, like, solid, tolerance, gates, centre, radius, damping, work, best
):
    """Gauss-Newton steps to the points at the pixels that the mesh covers, one per gate; keeps the pose with the best
    score. ``best`` gets what :func:`compare` says about it."""
    H, g, out = np.empty((6, 6)), np.empty(6), np.empty(4)
    T_best, score = T.copy(), -np.inf
    for n in range(len(gates) + 1):
        gate = gates[n] if n < len(gates) else 0.0
        compare(
            T, vertices, faces, K, points, valid, rgb, like, solid, tolerance, gate, centre, radius, work, H, g, out
        )
        if out[0] - out[1] > score:
            score = out[0] - out[1]
            T_best[:] = T
            best[:] = out
        if n == len(gates) or H[0, 0] + H[1, 1] + H[2, 2] < 2.0:
            break
        for i in range(6):
            H[i, i] += damping
        step = np.linalg.solve(H, g)
        size = np.sqrt((step**2).sum())
        if size > 0.04:
            step *= 0.04 / size
        T = _moved(T, step, centre, radius)
    return T_best


@njit(cache=True, nogil=True)
def search(T, vertices, faces, K, points, valid, rgb, like, solid, tolerance, steps, turns, centre, radius, work, best):
    """Pattern search of the score in all six directions: what outlines say and planes do not. ``steps`` in metres from
    coarse to fine; ``turns`` is False for a thing whose orientation cannot be seen."""
    H, g, out = np.empty((6, 6)), np.empty(6), np.empty(4)
    T_best = T.copy()
    compare(
        T_best, vertices, faces, K, points, valid, rgb, like, solid, tolerance, 0.0, centre, radius, work, H, g, best
    )
    score = best[0] - best[1]
    step = np.zeros(6)
    for size in steps:
        for _ in range(6):
            better = False
            for axis in range(6 if turns else 3):
                for sign in (-1.0, 1.0):
                    step[:] = 0.0
                    step[axis] = sign * size
                    T_try = _moved(T_best, step, centre, radius)
                    compare(
                        T_try,
                        vertices,
                        faces,
                        K,
                        points,
                        valid,
                        rgb,
                        like,
                        solid,
                        tolerance,
                        0.0,
                        centre,
                        radius,
                        work,
                        H,
                        g,
                        out,
                    )
                    if out[0] - out[1] > score + 1e-6:
                        score = out[0] - out[1]
                        T_best = T_try
                        best[:] = out
                        better = True
                        break
            if not better:
                break
    return T_best
