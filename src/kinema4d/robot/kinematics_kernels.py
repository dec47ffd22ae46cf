"""Numba kernels of forward and inverse kinematics.

Hand-written because measured (benchmarks/control.py): the seeded solver is several times faster per pose
than damped least squares written in Python on Pinocchio, which stays the oracle in the tests.
"""

from __future__ import annotations

import numpy as np
from numba import njit

REVOLUTE = 1
PRISMATIC = 2


@njit(cache=True, nogil=True)
def _identity():
    """np.eye(4), which takes Numba a second to compile."""
    T = np.zeros((4, 4))
    for i in range(4):
        T[i, i] = 1.0
    return T


@njit(cache=True, nogil=True)
def _joint_motion(T, kind, axis, value, out):
    """out = T @ motion(kind, axis, value), for 4x4 rigid transforms."""
    if kind == REVOLUTE:
        s, c = np.sin(value), np.cos(value)
        k = 1.0 - c
        x, y, z = axis[0], axis[1], axis[2]
        m00, m01, m02 = c + x * x * k, x * y * k - z * s, x * z * k + y * s
        m10, m11, m12 = y * x * k + z * s, c + y * y * k, y * z * k - x * s
        m20, m21, m22 = z * x * k - y * s, z * y * k + x * s, c + z * z * k
        for i in range(3):
            a, b, d = T[i, 0], T[i, 1], T[i, 2]
            out[i, 0] = a * m00 + b * m10 + d * m20
            out[i, 1] = a * m01 + b * m11 + d * m21
            out[i, 2] = a * m02 + b * m12 + d * m22
            out[i, 3] = T[i, 3]
    else:
        for i in range(3):
            for j in range(4):
                out[i, j] = T[i, j]
        if kind == PRISMATIC:
            for i in range(3):
                out[i, 3] += value * (T[i, 0] * axis[0] + T[i, 1] * axis[1] + T[i, 2] * axis[2])


@njit(cache=True, nogil=True)
def _compose(A, B, out):
    """out = A @ B for 4x4 rigid transforms (rows 0..2)."""
    for i in range(3):
        a, b, c = A[i, 0], A[i, 1], A[i, 2]
        for j in range(4):
            out[i, j] = a * B[0, j] + b * B[1, j] + c * B[2, j]
        out[i, 3] += A[i, 3]


@njit(cache=True, nogil=True)
def forward(parent, T_parent_joint, kind, axis, column, multiplier, offset, q, out):
    """Poses of all links in the root's frame for every row of q; parents come before children."""
    T = _identity()
    for t in range(q.shape[0]):
        for i in range(parent.shape[0]):
            if parent[i] < 0:
                for r in range(4):
                    for c in range(4):
                        out[t, i, r, c] = 1.0 if r == c else 0.0
                continue
            _compose(out[t, parent[i]], T_parent_joint[i], T)
            value = 0.0
            if column[i] >= 0:
                value = multiplier[i] * q[t, column[i]] + offset[i]
            _joint_motion(T, kind[i], axis[i], value, out[t, i])
            out[t, i, 3, 0] = 0.0
            out[t, i, 3, 1] = 0.0
            out[t, i, 3, 2] = 0.0
            out[t, i, 3, 3] = 1.0


@njit(cache=True, nogil=True)
def _rotation_error(R_goal, R, out):
    """Rotation vector that takes R to R_goal, in the base frame; stable up to half a turn."""
    m = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            m[i, j] = R_goal[i, 0] * R[j, 0] + R_goal[i, 1] * R[j, 1] + R_goal[i, 2] * R[j, 2]
    x, y, z = m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]
    s = 0.5 * np.sqrt(x * x + y * y + z * z)
    c = 0.5 * (m[0, 0] + m[1, 1] + m[2, 2] - 1.0)
    angle = np.arctan2(s, c)
    if s > 1e-6 or c > 0:
        k = 0.5 if s < 1e-12 else 0.5 * angle / s
        out[0], out[1], out[2] = k * x, k * y, k * z
    else:  # half a turn: the axis is the largest column of m + 1
        best = 0
        for i in range(1, 3):
            if m[i, i] > m[best, best]:
                best = i
        n = 0.0
        for i in range(3):
            out[i] = m[i, best] + (1.0 if i == best else 0.0)
            n += out[i] * out[i]
        n = np.sqrt(n)
        for i in range(3):
            out[i] *= angle / n


@njit(cache=True, nogil=True)
def _chain(pre, kind, axis, column, multiplier, offset, last, q, J, T_tool):
    """Tool pose and geometric Jacobian (base frame) of a serial chain."""
    T = _identity()
    before = _identity()
    n = kind.shape[0]
    points = np.empty((n, 3))
    axes = np.empty((n, 3))
    for i in range(n):
        _compose(T, pre[i], before)
        for r in range(3):
            axes[i, r] = before[r, 0] * axis[i, 0] + before[r, 1] * axis[i, 1] + before[r, 2] * axis[i, 2]
            points[i, r] = before[r, 3]
        _joint_motion(before, kind[i], axis[i], multiplier[i] * q[column[i]] + offset[i], T)
    _compose(T, last, T_tool)
    for r in range(6):
        for c in range(J.shape[1]):
            J[r, c] = 0.0
    for i in range(n):
        c, m = column[i], multiplier[i]
        if kind[i] == REVOLUTE:
            dx, dy, dz = T_tool[0, 3] - points[i, 0], T_tool[1, 3] - points[i, 1], T_tool[2, 3] - points[i, 2]
            J[0, c] += m * (axes[i, 1] * dz - axes[i, 2] * dy)
            J[1, c] += m * (axes[i, 2] * dx - axes[i, 0] * dz)
            J[2, c] += m * (axes[i, 0] * dy - axes[i, 1] * dx)
            for r in range(3):
                J[3 + r, c] += m * axes[i, r]
        else:
            for r in range(3):
                J[r, c] += m * axes[i, r]


@njit(cache=True, nogil=True)
def _factor6(A):
    """Cholesky factor of a symmetric positive definite 6x6 matrix, in its lower triangle."""
    for j in range(6):
        d = A[j, j]
        for k in range(j):
            d -= A[j, k] * A[j, k]
        d = np.sqrt(max(d, 1e-30))
        A[j, j] = d
        for i in range(j + 1, 6):
            s = A[i, j]
            for k in range(j):
                s -= A[i, k] * A[j, k]
            A[i, j] = s / d


@njit(cache=True, nogil=True)
def _solve6(A, b):
    """Solve in place with the factor from ``_factor6``."""
    for i in range(6):
        s = b[i]
        for k in range(i):
            s -= A[i, k] * b[k]
        b[i] = s / A[i, i]
    for i in range(5, -1, -1):
        s = b[i]
        for k in range(i + 1, 6):
            s -= A[k, i] * b[k]
        b[i] = s / A[i, i]


@njit(cache=True, nogil=True)
def _solve_pose(
    pre, kind, axis, column, multiplier, offset, last, lower, upper, posture, pull, lean, goal, q, iterations,
    tol_m, tol_rad, radius, residual,
):  # fmt: skip
    """Move q, in place, to the pose nearest to ``goal``. Levenberg-Marquardt whose damping is the squared
    error (Sugihara 2011); joints that would leave their limits are held there for the step (active set);
    what freedom the tool leaves pulls the joints towards ``posture``, at most by ``lean`` per iteration. ``radius``
    turns radians into metres."""
    n = q.shape[0]
    J = np.empty((6, n))
    T = _identity()
    e = np.empty(6)
    A = np.empty((6, 6))
    y = np.empty(6)
    held = np.empty(n, np.bool_)
    step = np.empty(n)
    wish = np.empty(n)
    best = np.inf
    best_q = q.copy()
    stalled = 0
    for iteration in range(iterations + 1):
        _chain(pre, kind, axis, column, multiplier, offset, last, q, J, T)
        for r in range(3):
            e[r] = goal[r, 3] - T[r, 3]
        _rotation_error(goal, T, e[3:])
        metres = np.sqrt(e[0] * e[0] + e[1] * e[1] + e[2] * e[2])
        radians = np.sqrt(e[3] * e[3] + e[4] * e[4] + e[5] * e[5])
        cost = metres * metres + radius * radians * radius * radians
        if cost < best:
            stalled = stalled + 1 if cost > 0.98 * best else 0
            best = cost
            _set(best_q, q)
            residual[0], residual[1] = metres, radians
        else:
            stalled += 1
        if (metres <= tol_m and radians <= tol_rad) or iteration == iterations or stalled >= 12:
            break
        for r in range(3, 6):
            e[r] *= radius
            for c in range(n):
                J[r, c] *= radius
        damping = 0.5 * cost + 1e-12
        gain = pull if iteration < 2 else 0.0
        for c in range(n):
            wish[c] = min(max(gain * (posture[c] - q[c]), -lean), lean)
        for c in range(n):
            held[c] = False
        for _ in range(n + 1):
            for r in range(6):
                # The step is wish + J^T y with J step = e: towards the goal, and as close to the wish as it allows.
                y[r] = e[r]
                for c in range(n):
                    if not held[c]:
                        y[r] -= J[r, c] * wish[c]
                for s in range(r + 1):
                    total = 0.0
                    for c in range(n):
                        if not held[c]:
                            total += J[r, c] * J[s, c]
                    A[r, s] = total
                A[r, r] += damping
            _factor6(A)
            _solve6(A, y)
            again = False
            for c in range(n):
                step[c] = 0.0
                if not held[c]:
                    step[c] = wish[c]
                    for r in range(6):
                        step[c] += J[r, c] * y[r]
                    if (step[c] < 0 and q[c] <= lower[c]) or (step[c] > 0 and q[c] >= upper[c]):
                        held[c] = True
                        again = True
            if not again:
                break
        longest = 0.0
        for c in range(n):
            longest = max(longest, abs(step[c]))
        shrink = min(1.0, 0.5 / longest) if longest > 0 else 1.0
        for c in range(n):
            if not held[c]:
                q[c] = min(max(q[c] + shrink * step[c], lower[c]), upper[c])
    _set(q, best_q)


@njit(cache=True, nogil=True)
def _between(a, b, s, out):
    """Straight in position, shortest in rotation: out at fraction s of the way from a to b."""
    r = np.empty(3)
    _rotation_error(b, a, r)
    angle = np.sqrt(r[0] * r[0] + r[1] * r[1] + r[2] * r[2])
    turn = _identity()
    if angle > 0:
        for i in range(3):
            r[i] /= angle
        _joint_motion(_identity(), REVOLUTE, r, s * angle, turn)
    for i in range(3):
        out[i, 3] = (1 - s) * a[i, 3] + s * b[i, 3]
        for j in range(3):
            out[i, j] = turn[i, 0] * a[0, j] + turn[i, 1] * a[1, j] + turn[i, 2] * a[2, j]


@njit(cache=True, nogil=True)
def _set(a, b):
    """a[:] = b"""
    for i in range(a.shape[0]):
        a[i] = b[i]


@njit(cache=True, nogil=True)
def _largest_step(a, b):
    largest = 0.0
    for i in range(a.shape[0]):
        largest = max(largest, abs(a[i] - b[i]))
    return largest


@njit(cache=True, nogil=True)
def inverse(
    pre, kind, axis, column, multiplier, offset, last, lower, upper, posture, pull, lean, goals, q_seed,
    iterations, tol_m, tol_rad, radius, stride_m, stride_rad, q_out, residuals,
):  # fmt: skip
    """q_t = IK(goal_t, q_{t-1}) for a sequence of goals. A goal further from the reached tool pose than a
    stride is approached in equal strides, so that the arm follows its branch instead of jumping to another.
    Where the answer jumps or misses, the motion so far is continued as a second seed: it carries the arm
    through singular postures, where the branch is decided by momentum alone."""
    n = q_seed.shape[0]
    q = q_seed.copy()
    q_before = q_seed.copy()
    trial = q.copy()
    other = q.copy()
    J = np.empty((6, n))
    start = _identity()
    goal = _identity()
    error = np.empty(3)
    residual = np.empty(2)
    second = np.empty(2)
    for t in range(goals.shape[0]):
        _chain(pre, kind, axis, column, multiplier, offset, last, q, J, start)
        _rotation_error(goals[t], start, error)
        radians = np.sqrt(error[0] * error[0] + error[1] * error[1] + error[2] * error[2])
        metres = 0.0
        for i in range(3):
            metres += (goals[t, i, 3] - start[i, 3]) * (goals[t, i, 3] - start[i, 3])
        strides = 1 + int(max(np.sqrt(metres) / stride_m, radians / stride_rad))
        _set(trial, q)
        for k in range(1, strides):
            _between(start, goals[t], k / strides, goal)
            _solve_pose(
                pre, kind, axis, column, multiplier, offset, last, lower, upper, posture, pull / strides, lean, goal, trial,
                8, 1e-3, 1e-2, radius, residual,
            )  # fmt: skip
        _solve_pose(
            pre, kind, axis, column, multiplier, offset, last, lower, upper, posture, pull / strides, lean, goals[t], trial,
            iterations, tol_m, tol_rad, radius, residual,
        )  # fmt: skip
        jump = _largest_step(trial, q)
        last_step = _largest_step(q, q_before)
        missed = residual[0] > 10 * tol_m or residual[1] > 10 * tol_rad
        if t > 1 and (missed or jump > 2 * last_step + 0.02):
            for c in range(n):
                other[c] = min(max(2 * q[c] - q_before[c], lower[c]), upper[c])
            _solve_pose(
                pre, kind, axis, column, multiplier, offset, last, lower, upper, posture, pull, lean, goals[t], other,
                iterations, tol_m, tol_rad, radius, second,
            )  # fmt: skip
            second_missed = second[0] > 10 * tol_m or second[1] > 10 * tol_rad
            if (missed and not second_missed) or (missed == second_missed and _largest_step(other, q) < jump):
                _set(trial, other)
                _set(residual, second)
        _set(q_before, q)
        _set(q, trial)
        _set(q_out[t], q)
        _set(residuals[t], residual)
