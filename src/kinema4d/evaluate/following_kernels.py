"""Numba kernels of action following: fit a robot to a pointmap, and compare every frame with every frame.

The fit is articulated ICP: small surface patches of the robot look for their nearest generated point around the pixel
where they would be seen, and damped Gauss-Newton steps move the joints. Hand-written because a robot has some thousand
patches, a fit takes a dozen steps, and every frame has two starts: in NumPy this is seconds per frame.
"""

from __future__ import annotations

import numpy as np
from numba import njit

REVOLUTE = 1
PRISMATIC = 2
_TANGENT = 0.15
"""Share of a residual along the surface that counts: enough to hold a link that could slide along itself, little
enough that the pixel grid, to which points are snapped, does not matter."""
_FACING = 0.15
"""Cosine to the line of sight from which on a patch is seen well enough to be matched."""
_ENOUGH = 0.9
"""Share of the robot that, once explained from a narrow search, makes the wide one needless."""
_BETTER = 0.02
"""How much more of the robot a later attempt must explain than an earlier one: patches are too few to tell less."""
_CELL = 3
"""Pixels per side of the cells in which a robot's patches hide each other."""
_THICK = 0.04
"""Metres behind the nearest patch of its cell from which on a patch is hidden: more than a slanted link's own depth."""
_NEAR = 0.05
"""Patches nearer to the camera than this, in metres, are not looked for."""


@njit(cache=True, nogil=True)
def _pose(parent, T_parent_joint, kind, axis, column, multiplier, offset, q, T_camera_base, Ts):
    """Poses of all links in the camera frame; parents come before children. The same law as
    ``kinematics_kernels.forward``, against which the tests hold it."""
    T = np.empty((3, 4))
    for i in range(parent.shape[0]):
        if parent[i] < 0:
            Ts[i] = T_camera_base
            continue
        P, L = Ts[parent[i]], T_parent_joint[i]
        for r in range(3):
            for c in range(4):
                T[r, c] = P[r, 0] * L[0, c] + P[r, 1] * L[1, c] + P[r, 2] * L[2, c]
            T[r, 3] += P[r, 3]
        value = multiplier[i] * q[column[i]] + offset[i] if column[i] >= 0 else 0.0
        x, y, z = axis[i]
        if kind[i] == REVOLUTE:
            s, c = np.sin(value), np.cos(value)
            k = 1.0 - c
            for r in range(3):
                a, b, d = T[r, 0], T[r, 1], T[r, 2]
                Ts[i, r, 0] = a * (c + x * x * k) + b * (y * x * k + z * s) + d * (z * x * k - y * s)
                Ts[i, r, 1] = a * (x * y * k - z * s) + b * (c + y * y * k) + d * (z * y * k + x * s)
                Ts[i, r, 2] = a * (x * z * k + y * s) + b * (y * z * k - x * s) + d * (c + z * z * k)
                Ts[i, r, 3] = T[r, 3]
        else:
            slide = value if kind[i] == PRISMATIC else 0.0
            for r in range(3):
                for n in range(4):
                    Ts[i, r, n] = T[r, n]
                Ts[i, r, 3] += slide * (T[r, 0] * x + T[r, 1] * y + T[r, 2] * z)


@njit(cache=True, nogil=True)
def _nearest(points, valid, K, x, y, z, radius, found):
    """Nearest generated point to (x, y, z) among the pixels around its projection. Returns the squared distance (inf
    where none is there), and the depth at the pixel itself (0 where it is not valid, -1 outside of the image)."""
    h, w = valid.shape
    u = int(np.floor((K[0, 0] * x + K[0, 1] * y) / z + K[0, 2] + 0.5))
    v = int(np.floor(K[1, 1] * y / z + K[1, 2] + 0.5))
    if u < 0 or v < 0 or u >= w or v >= h:
        return np.inf, -1.0
    here = points[v, u, 2] if valid[v, u] else 0.0
    best = np.inf
    stride = 2 if radius > 3 else 1
    for dv in range(-radius, radius + 1, stride):
        row = v + dv
        if row < 0 or row >= h:
            continue
        for du in range(-radius, radius + 1, stride):
            column = u + du
            if column < 0 or column >= w or not valid[row, column]:
                continue
            dx, dy, dz = points[row, column, 0] - x, points[row, column, 1] - y, points[row, column, 2] - z
            d = dx * dx + dy * dy + dz * dz
            if d < best:
                best = d
                found[0], found[1], found[2] = dx, dy, dz
    return best, here


@njit(cache=True, nogil=True)
def _seen(T, p, n, x, m):
    """A patch and its normal in the camera frame, and whether it looks at the camera."""
    for r in range(3):
        x[r] = T[r, 0] * p[0] + T[r, 1] * p[1] + T[r, 2] * p[2] + T[r, 3]
        m[r] = T[r, 0] * n[0] + T[r, 1] * n[1] + T[r, 2] * n[2]
    length = np.sqrt(x[0] * x[0] + x[1] * x[1] + x[2] * x[2])
    return x[2] > _NEAR and m[0] * x[0] + m[1] * x[1] + m[2] * x[2] < -_FACING * length


@njit(cache=True, nogil=True)
def _sight(Ts, patches, normals, links, first, last, K, h, w, closest, xs, ms, seen):
    """Which patches are seen: they look at the camera, lie in the image, and no patch of the robot itself stands before
    them. ``closest`` has one cell per ``_CELL`` x ``_CELL`` pixels: patches are that far apart."""
    closest[:] = np.inf
    for k in range(first, last):
        i = k - first
        seen[i] = _seen(Ts[links[k]], patches[k], normals[k], xs[i], ms[i])
        if xs[i, 2] <= _NEAR:
            continue
        x, y, z = xs[i]
        u = (K[0, 0] * x + K[0, 1] * y) / z + K[0, 2] + 0.5
        v = K[1, 1] * y / z + K[1, 2] + 0.5
        if u < 0 or v < 0 or u >= w or v >= h:
            seen[i] = False
        elif seen[i]:
            r, c = int(v) // _CELL, int(u) // _CELL
            closest[r, c] = min(closest[r, c], z)
    for k in range(last - first):
        if seen[k]:
            x, y, z = xs[k]
            u = (K[0, 0] * x + K[0, 1] * y) / z + K[0, 2] + 0.5
            v = K[1, 1] * y / z + K[1, 2] + 0.5
            seen[k] = z < closest[int(v) // _CELL, int(u) // _CELL] + _THICK


@njit(cache=True, nogil=True)
def _solve(A, b):
    """Solve A x = b in place by Cholesky; A is symmetric positive definite."""
    n = b.shape[0]
    for j in range(n):
        d = A[j, j]
        for k in range(j):
            d -= A[j, k] * A[j, k]
        d = np.sqrt(max(d, 1e-18))
        A[j, j] = d
        for i in range(j + 1, n):
            s = A[i, j]
            for k in range(j):
                s -= A[i, k] * A[j, k]
            A[i, j] = s / d
    for i in range(n):
        s = b[i]
        for k in range(i):
            s -= A[i, k] * b[k]
        b[i] = s / A[i, i]
    for i in range(n - 1, -1, -1):
        s = b[i]
        for k in range(i + 1, n):
            s -= A[k, i] * b[k]
        b[i] = s / A[i, i]


@njit(cache=True, nogil=True)
def _explained(points, valid, K, Ts, patches, normals, links, areas, first, last, reach, closest, xs, ms, seen):
    """How much of the picture the robot explains, and how much it covers, both in units of area over squared depth.
    Softly: a patch counts less the further its point is, and against it where one sees through it. Area, not patches:
    a hand that folds itself behind the wrist has nothing unexplained, but leaves the real hand's pixels unexplained."""
    found = np.empty(3)
    total, covered = 0.0, 1e-9
    _sight(Ts, patches, normals, links, first, last, K, valid.shape[0], valid.shape[1], closest, xs, ms, seen)
    for k in range(last - first):
        if not seen[k]:
            continue
        x, m = xs[k], ms[k]
        d, here = _nearest(points, valid, K, x[0], x[1], x[2], 1, found)
        size = areas[first + k] * -(m[0] * x[0] + m[1] * x[1] + m[2] * x[2]) / (x[2] * x[2] * x[2])
        covered += size
        across = abs(m[0] * found[0] + m[1] * found[1] + m[2] * found[2]) if np.isfinite(d) else np.inf
        if np.isfinite(d) and np.sqrt(d) < 2 * reach and across < reach:
            total += size * (1.0 - across / reach)
        elif here == 0 or here > x[2]:
            total -= 0.5 * size
    return total, covered


@njit(cache=True, nogil=True)
def _refine(
    parent, T_parent_joint, kind, axis, column, multiplier, offset, lower, upper, moves, patches, normals, links,
    first, last, points, valid, K, T_camera_base, radii, gates, damping, q, Ts,
    closest, xs, ms, seen,
):  # fmt: skip
    """Gauss-Newton steps from ``q``, in place; one step per entry of ``radii`` and ``gates``."""
    dof, count = q.shape[0], parent.shape[0]
    A, b = np.empty((dof, dof)), np.empty(dof)
    J = np.empty((3, dof))
    axes = np.zeros((count, 3))
    e = np.empty(3)
    for step in range(radii.shape[0]):
        _pose(parent, T_parent_joint, kind, axis, column, multiplier, offset, q, T_camera_base, Ts)
        for i in range(count):  # a link keeps its joint's axis: it turns about it, or slides along it
            for r in range(3):
                axes[i, r] = Ts[i, r, 0] * axis[i, 0] + Ts[i, r, 1] * axis[i, 1] + Ts[i, r, 2] * axis[i, 2]
        A[:] = 0.0
        b[:] = 0.0
        gate = gates[step]
        sigma2 = (0.5 * gate) * (0.5 * gate)
        _sight(Ts, patches, normals, links, first, last, K, valid.shape[0], valid.shape[1], closest, xs, ms, seen)
        for k in range(last - first):
            if not seen[k]:
                continue
            x, m, link = xs[k], ms[k], links[first + k]
            d, _ = _nearest(points, valid, K, x[0], x[1], x[2], radii[step], e)
            if not d < gate * gate:
                continue
            weight = sigma2 / (sigma2 + d)
            weight *= weight
            for r in range(3):
                for c in range(dof):
                    J[r, c] = 0.0
            for i in range(count):
                if not moves[link, i]:
                    continue
                c = column[i]
                if kind[i] == REVOLUTE:
                    dx, dy, dz = x[0] - Ts[i, 0, 3], x[1] - Ts[i, 1, 3], x[2] - Ts[i, 2, 3]
                    J[0, c] += multiplier[i] * (axes[i, 1] * dz - axes[i, 2] * dy)
                    J[1, c] += multiplier[i] * (axes[i, 2] * dx - axes[i, 0] * dz)
                    J[2, c] += multiplier[i] * (axes[i, 0] * dy - axes[i, 1] * dx)
                else:
                    for r in range(3):
                        J[r, c] += multiplier[i] * axes[i, r]
            # |e|^2 split into the part across the surface and the part along it: (n.e)^2 + tangent (|e|^2 - (n.e)^2).
            ne = m[0] * e[0] + m[1] * e[1] + m[2] * e[2]
            for c in range(dof):
                jc = m[0] * J[0, c] + m[1] * J[1, c] + m[2] * J[2, c]
                if J[0, c] == 0.0 and J[1, c] == 0.0 and J[2, c] == 0.0:
                    continue
                je = J[0, c] * e[0] + J[1, c] * e[1] + J[2, c] * e[2]
                b[c] += weight * ((1.0 - _TANGENT) * jc * ne + _TANGENT * je)
                for a in range(c + 1):
                    ja = m[0] * J[0, a] + m[1] * J[1, a] + m[2] * J[2, a]
                    dot = J[0, a] * J[0, c] + J[1, a] * J[1, c] + J[2, a] * J[2, c]
                    A[c, a] += weight * ((1.0 - _TANGENT) * ja * jc + _TANGENT * dot)
        for c in range(dof):
            A[c, c] += damping[c]
        _solve(A, b)
        longest = 0.0
        for c in range(dof):
            longest = max(longest, abs(b[c]))
        shrink = min(1.0, 0.2 / longest) if longest > 0 else 1.0
        for c in range(dof):
            q[c] = min(max(q[c] + shrink * b[c], lower[c]), upper[c])
    _pose(parent, T_parent_joint, kind, axis, column, multiplier, offset, q, T_camera_base, Ts)


@njit(cache=True, nogil=True)
def fit(
    parent, T_parent_joint, kind, axis, column, multiplier, offset, lower, upper, moves, patches, normals, links, areas, spans,
    points, valid, K, Ts_camera_base, radii, gates, damping, reach, starts, follow, q_out, explained,
):  # fmt: skip
    """Joints that explain each frame. With ``follow``, the fit starts from ``starts`` and from the fit of the frame
    before, searches near them and, where that explains too little, far from them, and keeps what explains most. ``spans`` are each frame's first and last patch."""
    dof, count = q_out.shape[1], parent.shape[0]
    Ts = np.empty((count, 4, 4))
    q, best = np.empty(dof), np.empty(dof)
    most = 1
    for t in range(spans.shape[0]):
        most = max(most, spans[t, 1] - spans[t, 0])
    closest = np.empty((valid.shape[1] // _CELL + 1, valid.shape[2] // _CELL + 1))
    xs, ms, seen = np.empty((most, 3)), np.empty((most, 3)), np.empty(most, np.bool_)
    steps = radii.shape[0]
    for t in range(q_out.shape[0]):
        explained[t], enough = -np.inf, False
        for attempt in range(4 if follow else 1):
            before = attempt % 2 == 1  # 0: near the start, 1: near the frame before, 2, 3: the same with a wide search
            if (before and t == 0) or (attempt == 2 and enough):
                continue
            if attempt == 3 and enough:
                break
            for c in range(dof):
                q[c] = q_out[t - 1, c] if before else starts[t, c]
            first = steps // 2 if follow and attempt < 2 else 0
            _refine(
                parent, T_parent_joint, kind, axis, column, multiplier, offset, lower, upper, moves, patches, normals,
                links, spans[t, 0], spans[t, 1], points[t], valid[t], K, Ts_camera_base[t], radii[first:], gates[first:],
                damping, q, Ts, closest, xs, ms, seen,
            )  # fmt: skip
            good, covered = _explained(
                points[t], valid[t], K, Ts, patches, normals, links, areas, spans[t, 0], spans[t, 1], reach, closest, xs, ms, seen
            )  # fmt: skip
            enough = enough or good > _ENOUGH * covered
            if good > explained[t] + (0.0 if attempt == 0 else _BETTER * covered):
                explained[t] = good
                best[:] = q
        q_out[t] = best


@njit(cache=True, nogil=True)
def disagreement(points, valid, robot, expected, mask, hidden, reach, out):
    """out[t, s]: how badly predicted frame t agrees with expected frame s, 0..1, over the pixels ``[t, n]`` where either
    shows a robot. On the expected robot it is the truncated distance of the points; where only the prediction has a
    robot it is 1. Pixels where something hides the expected robot are left out."""
    for t in range(points.shape[0]):
        for s in range(mask.shape[0]):
            total, count = 0.0, 0
            for n in range(mask.shape[1]):
                if mask[s, n]:
                    count += 1
                    if not valid[t, n]:
                        total += 1.0
                        continue
                    dx = points[t, n, 0] - expected[s, n, 0]
                    dy = points[t, n, 1] - expected[s, n, 1]
                    dz = points[t, n, 2] - expected[s, n, 2]
                    total += min(np.sqrt(dx * dx + dy * dy + dz * dz) / reach, 1.0)
                elif robot[t, n] and not hidden[s, n]:
                    count += 1
                    total += 1.0
            out[t, s] = total / count if count > 0 else 1.0
