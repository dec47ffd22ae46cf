"""Numba kernels of the z-buffer. Everything is float64; one frame per thread; no ordering races.

Hand-written because measured: on a 135k-triangle Panda this is 2-3x faster than Embree with one BVH
per link and 6-7x faster than MuJoCo's depth renderer (benchmarks/control.py), and needs no GL.
The depth key is w = 1/z, which is linear on the screen, so one fill serves every triangle.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

EDGE = 1e-9
"""Slack of the inside test in pixel^2: shared edges never crack, silhouettes move by less than 1e-9 px."""


@njit(cache=True, nogil=True, inline="always")
def _fill(u0, v0, w0, u1, v1, w1, u2, v2, w2, triangle, height, width, w_buffer, triangle_buffer):
    """Draw one triangle, double-sided, at pixel centres; the nearest wins, ties go to the earlier one."""
    x_first = max(int(np.ceil(min(u0, u1, u2))), 0)
    x_last = min(int(np.floor(max(u0, u1, u2))), width - 1)
    y_first = max(int(np.ceil(min(v0, v1, v2))), 0)
    y_last = min(int(np.floor(max(v0, v1, v2))), height - 1)
    if x_first > x_last or y_first > y_last:
        return
    area = (u1 - u0) * (v2 - v0) - (u2 - u0) * (v1 - v0)
    if area == 0.0:
        return
    s = 1.0 if area > 0 else -1.0
    dx0, dy0 = s * (v1 - v2), s * (u2 - u1)
    dx1, dy1 = s * (v2 - v0), s * (u0 - u2)
    dx2, dy2 = s * (v0 - v1), s * (u1 - u0)
    inverse_area = s / area
    for y in range(y_first, y_last + 1):
        e0_row = dy0 * (y - v1) - dx0 * u1
        e1_row = dy1 * (y - v2) - dx1 * u2
        e2_row = dy2 * (y - v0) - dx2 * u0
        for x in range(x_first, x_last + 1):
            e0 = e0_row + dx0 * x
            e1 = e1_row + dx1 * x
            e2 = e2_row + dx2 * x
            if e0 >= -EDGE and e1 >= -EDGE and e2 >= -EDGE:
                w = (e0 * w0 + e1 * w1 + e2 * w2) * inverse_area
                if w > w_buffer[y, x]:
                    w_buffer[y, x] = w
                    triangle_buffer[y, x] = triangle


@njit(cache=True, nogil=True)
def _fill_clipped(p, near, K, triangle, height, width, w_buffer, triangle_buffer):
    """Cut a camera-space triangle at z = near (one plane: at most four corners) and draw the rest."""
    u = np.empty(4)
    v = np.empty(4)
    w = np.empty(4)
    n = 0
    for i in range(3):
        j = (i + 1) % 3
        zi, zj = p[i, 2], p[j, 2]
        if zi >= near:
            u[n] = (K[0, 0] * p[i, 0] + K[0, 1] * p[i, 1]) / zi + K[0, 2]
            v[n] = K[1, 1] * p[i, 1] / zi + K[1, 2]
            w[n] = 1.0 / zi
            n += 1
        if (zi >= near) != (zj >= near):
            a = (near - zi) / (zj - zi)
            x = p[i, 0] + a * (p[j, 0] - p[i, 0])
            y = p[i, 1] + a * (p[j, 1] - p[i, 1])
            u[n] = (K[0, 0] * x + K[0, 1] * y) / near + K[0, 2]
            v[n] = K[1, 1] * y / near + K[1, 2]
            w[n] = 1.0 / near
            n += 1
    for k in range(2, n):
        _fill(
            u[0], v[0], w[0], u[k - 1], v[k - 1], w[k - 1], u[k], v[k], w[k],
            triangle, height, width, w_buffer, triangle_buffer,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _draw(vertices, vertex_body, faces, Ts, K, near, height, width, camera_xyz, screen, w_buffer, triangle_buffer):
    """All triangles of one frame into the buffers."""
    for i in range(vertices.shape[0]):
        T = Ts[vertex_body[i]]
        a, b, c = vertices[i, 0], vertices[i, 1], vertices[i, 2]
        x = T[0, 0] * a + T[0, 1] * b + T[0, 2] * c + T[0, 3]
        y = T[1, 0] * a + T[1, 1] * b + T[1, 2] * c + T[1, 3]
        z = T[2, 0] * a + T[2, 1] * b + T[2, 2] * c + T[2, 3]
        camera_xyz[i, 0] = x
        camera_xyz[i, 1] = y
        camera_xyz[i, 2] = z
        w = 1.0 / z if z >= near else 0.0  # 0 marks "behind the near plane"
        screen[i, 0] = (K[0, 0] * x + K[0, 1] * y) * w + K[0, 2]
        screen[i, 1] = K[1, 1] * y * w + K[1, 2]
        screen[i, 2] = w
    corners = np.empty((3, 3))
    for f in range(faces.shape[0]):
        i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
        w0, w1, w2 = screen[i, 2], screen[j, 2], screen[k, 2]
        if w0 > 0.0 and w1 > 0.0 and w2 > 0.0:
            u0, u1, u2 = screen[i, 0], screen[j, 0], screen[k, 0]
            # Most triangles of a robot are smaller than a pixel: leave before any set-up.
            if np.ceil(min(u0, u1, u2)) > np.floor(max(u0, u1, u2)):
                continue
            _fill(
                u0, screen[i, 1], w0, u1, screen[j, 1], w1, u2, screen[k, 1], w2,
                f, height, width, w_buffer, triangle_buffer,
            )  # fmt: skip
        elif w0 > 0.0 or w1 > 0.0 or w2 > 0.0:
            corners[0] = camera_xyz[i]
            corners[1] = camera_xyz[j]
            corners[2] = camera_xyz[k]
            _fill_clipped(corners, near, K, f, height, width, w_buffer, triangle_buffer)


@njit(cache=True, nogil=True)
def _shade(p, f, faces, camera_xyz, normals, face_body, Ts, colors, uvs, face_texture, textures, light, ambient, out):
    """Colour of the surface point p of triangle f: texture or flat colour, one directional light, two-sided."""
    i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
    ax = camera_xyz[j, 0] - camera_xyz[i, 0]
    ay = camera_xyz[j, 1] - camera_xyz[i, 1]
    az = camera_xyz[j, 2] - camera_xyz[i, 2]
    bx = camera_xyz[k, 0] - camera_xyz[i, 0]
    by = camera_xyz[k, 1] - camera_xyz[i, 1]
    bz = camera_xyz[k, 2] - camera_xyz[i, 2]
    px = p[0] - camera_xyz[i, 0]
    py = p[1] - camera_xyz[i, 1]
    pz = p[2] - camera_xyz[i, 2]
    aa = ax * ax + ay * ay + az * az
    ab = ax * bx + ay * by + az * bz
    bb = bx * bx + by * by + bz * bz
    pa = px * ax + py * ay + pz * az
    pb = px * bx + py * by + pz * bz
    determinant = aa * bb - ab * ab
    b1 = 0.0
    b2 = 0.0
    if determinant > 0.0:
        b1 = min(max((bb * pa - ab * pb) / determinant, 0.0), 1.0)
        b2 = min(max((aa * pb - ab * pa) / determinant, 0.0), 1.0 - b1)
    b0 = 1.0 - b1 - b2
    R = Ts[face_body[f]]
    nx = b0 * normals[f, 0, 0] + b1 * normals[f, 1, 0] + b2 * normals[f, 2, 0]
    ny = b0 * normals[f, 0, 1] + b1 * normals[f, 1, 1] + b2 * normals[f, 2, 1]
    nz = b0 * normals[f, 0, 2] + b1 * normals[f, 1, 2] + b2 * normals[f, 2, 2]
    cx = R[0, 0] * nx + R[0, 1] * ny + R[0, 2] * nz
    cy = R[1, 0] * nx + R[1, 1] * ny + R[1, 2] * nz
    cz = R[2, 0] * nx + R[2, 1] * ny + R[2, 2] * nz
    length = np.sqrt(cx * cx + cy * cy + cz * cz)
    lambert = 0.0
    if length > 0.0:
        facing = cx * p[0] + cy * p[1] + cz * p[2]
        lambert = (cx * light[0] + cy * light[1] + cz * light[2]) / length
        if facing > 0.0:  # the normal points away from the camera: we look at the back side
            lambert = -lambert
    brightness = ambient + (1.0 - ambient) * max(lambert, 0.0)
    texture = face_texture[f]
    if texture >= 0:
        image = textures[texture]
        h, w = image.shape[0], image.shape[1]
        u = b0 * uvs[f, 0, 0] + b1 * uvs[f, 1, 0] + b2 * uvs[f, 2, 0]
        v = b0 * uvs[f, 0, 1] + b1 * uvs[f, 1, 1] + b2 * uvs[f, 2, 1]
        # Bilinear with wrap; v points up in texture space.
        x = u * w - 0.5
        y = (1.0 - v) * h - 0.5
        x0 = int(np.floor(x))
        y0 = int(np.floor(y))
        fx = x - x0
        fy = y - y0
        for c in range(3):
            top = (1 - fx) * image[y0 % h, x0 % w, c] + fx * image[y0 % h, (x0 + 1) % w, c]
            bottom = (1 - fx) * image[(y0 + 1) % h, x0 % w, c] + fx * image[(y0 + 1) % h, (x0 + 1) % w, c]
            out[c] = np.uint8(min(brightness * ((1 - fy) * top + fy * bottom) + 0.5, 255.0))
    else:
        for c in range(3):
            out[c] = np.uint8(min(brightness * colors[f, c] + 0.5, 255.0))


@njit(cache=True, nogil=True, parallel=True)
def render(
    vertices, vertex_body, faces, face_body, labels, colors, normals, uvs, face_texture, textures,
    Ts_camera_body, K, near, light_camera, ambient, chunks,
    points, valid, ids, rgb, shaded,
):  # fmt: skip
    """Every frame of a sequence. ``points``, ``valid``, ``ids`` and ``rgb`` are written in place; pixels that
    a reused buffer holds from an earlier call are cleared, untouched pages of a fresh one stay untouched."""
    frames, height, width = valid.shape
    for chunk in prange(chunks):
        camera_xyz = np.empty((vertices.shape[0], 3))
        screen = np.empty((vertices.shape[0], 3))
        w_buffer = np.zeros((height, width))
        triangle_buffer = np.empty((height, width), np.int32)
        p = np.empty(3)
        for t in range(chunk, frames, chunks):
            Ts = Ts_camera_body[t]
            _draw(
                vertices, vertex_body, faces, Ts, K, near, height, width, camera_xyz, screen, w_buffer, triangle_buffer
            )
            for y in range(height):
                ray_y = (y - K[1, 2]) / K[1, 1]
                for x in range(width):
                    w = w_buffer[y, x]
                    if w > 0.0:
                        f = triangle_buffer[y, x]
                        p[2] = 1.0 / w
                        p[1] = ray_y * p[2]
                        p[0] = (x - K[0, 2] - K[0, 1] * ray_y) / K[0, 0] * p[2]
                        points[t, y, x, 0] = p[0]
                        points[t, y, x, 1] = p[1]
                        points[t, y, x, 2] = p[2]
                        valid[t, y, x] = True
                        ids[t, y, x] = labels[face_body[f]]
                        if shaded:
                            _shade(
                                p, f, faces, camera_xyz, normals, face_body, Ts, colors, uvs, face_texture,
                                textures, light_camera[t], ambient, rgb[t, y, x],
                            )  # fmt: skip
                        w_buffer[y, x] = 0.0
                    elif valid[t, y, x]:
                        valid[t, y, x] = False
                        ids[t, y, x] = 0
                        for c in range(3):
                            points[t, y, x, c] = 0.0
                            if shaded:
                                rgb[t, y, x, c] = 0
