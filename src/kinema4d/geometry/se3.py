"""Rigid transforms as 4x4 arrays: inverse, exp/log, and the conversions allowed at the border."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float


def invert(Ts: Float[np.ndarray, "*b 4 4"]) -> Float[np.ndarray, "*b 4 4"]:
    """``T_b_a`` from ``T_a_b``."""
    Rt = np.swapaxes(Ts[..., :3, :3], -1, -2)
    out = np.zeros_like(Ts, dtype=np.float64)
    out[..., :3, :3] = Rt
    out[..., :3, 3] = -(Rt @ Ts[..., :3, 3:])[..., 0]
    out[..., 3, 3] = 1
    return out


def transform(position: Float[np.ndarray, "*b 3"], R: Float[np.ndarray, "*b 3 3"]) -> Float[np.ndarray, "*b 4 4"]:
    """4x4 transforms from positions and rotation matrices."""
    out = np.zeros((*np.shape(position)[:-1], 4, 4))
    out[..., :3, :3] = R
    out[..., :3, 3] = position
    out[..., 3, 3] = 1
    return out


def place(x: float, y: float, z: float, *, yaw: float = 0.0) -> Float[np.ndarray, "4 4"]:
    """Something that stands upright at a point, turned by ``yaw`` rad about the vertical: e.g. ``T_world_base``."""
    c, s = np.cos(yaw), np.sin(yaw)
    return np.array([[c, -s, 0.0, x], [s, c, 0.0, y], [0.0, 0.0, 1.0, z], [0.0, 0.0, 0.0, 1.0]])


def apply(Ts: Float[np.ndarray, "*b 4 4"], points: Float[np.ndarray, "*b n 3"]) -> Float[np.ndarray, "*b n 3"]:
    """Map points by transforms."""
    return points @ np.swapaxes(Ts[..., :3, :3], -1, -2) + Ts[..., None, :3, 3]


def rotvec_to_matrix(rotvec: Float[np.ndarray, "*b 3"]) -> Float[np.ndarray, "*b 3 3"]:
    """Exponential map of SO(3)."""
    rotvec = np.asarray(rotvec, np.float64)
    half = np.linalg.norm(rotvec, axis=-1, keepdims=True) / 2
    return quaternion_to_matrix(np.concatenate([np.cos(half), np.sinc(half / np.pi) * rotvec / 2], axis=-1))


def matrix_to_rotvec(R: Float[np.ndarray, "*b 3 3"]) -> Float[np.ndarray, "*b 3"]:
    """Logarithm of SO(3)."""
    shape = np.shape(R)[:-2]
    return _scipy_rotation(R).as_rotvec().reshape(*shape, 3)


def euler_to_matrix(euler: Float[np.ndarray, "*b 3"]) -> Float[np.ndarray, "*b 3 3"]:
    """Extrinsic x-y-z Euler angles (roll, pitch, yaw of URDF, DROID and Bridge): ``Rz @ Ry @ Rx``."""
    (cx, cy, cz), (sx, sy, sz) = (np.moveaxis(f(np.asarray(euler, np.float64)), -1, 0) for f in (np.cos, np.sin))
    rows = (
        (cz * cy, cz * sy * sx - sz * cx, cz * sy * cx + sz * sx),
        (sz * cy, sz * sy * sx + cz * cx, sz * sy * cx - cz * sx),
        (-sy, cy * sx, cy * cx),
    )
    return np.stack([np.stack(r, axis=-1) for r in rows], axis=-2)


def matrix_to_euler(R: Float[np.ndarray, "*b 3 3"]) -> Float[np.ndarray, "*b 3"]:
    """Inverse of :func:`euler_to_matrix`, pitch within a quarter turn."""
    shape = np.shape(R)[:-2]
    return _scipy_rotation(R).as_euler("xyz").reshape(*shape, 3)


def quaternion_to_matrix(wxyz: Float[np.ndarray, "*b 4"]) -> Float[np.ndarray, "*b 3 3"]:
    """Quaternions, scalar first, normalised here."""
    wxyz = np.asarray(wxyz, np.float64)
    norm = np.linalg.norm(wxyz, axis=-1, keepdims=True)
    if (norm < 1e-6).any():
        raise ValueError("a quaternion has zero length; expected unit quaternions in w, x, y, z order")
    w, x, y, z = np.moveaxis(wxyz / norm, -1, 0)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.stack([np.stack(r, axis=-1) for r in rows], axis=-2)


def matrix_to_quaternion(R: Float[np.ndarray, "*b 3 3"]) -> Float[np.ndarray, "*b 4"]:
    """Unit quaternions, scalar first and not negative."""
    shape = np.shape(R)[:-2]
    return _scipy_rotation(R).as_quat(canonical=True, scalar_first=True).reshape(*shape, 4)


def _scipy_rotation(R: np.ndarray) -> Any:
    # Imported here because it takes half a second, which loading and driving a robot need not pay.
    from scipy.spatial.transform import Rotation

    return Rotation.from_matrix(np.reshape(R, (-1, 3, 3)))


def difference(T_a: Float[np.ndarray, "*b 4 4"], T_b: Float[np.ndarray, "*b 4 4"]) -> tuple[np.ndarray, np.ndarray]:
    """Distance in metres and angle in radians between two sets of transforms."""
    metres = np.linalg.norm(T_a[..., :3, 3] - T_b[..., :3, 3], axis=-1)
    R = np.swapaxes(T_a[..., :3, :3], -1, -2) @ T_b[..., :3, :3]
    return np.asarray(metres), np.asarray(np.linalg.norm(matrix_to_rotvec(R), axis=-1))


def look_at(
    eye: Float[np.ndarray, "3"], target: Float[np.ndarray, "3"], up: tuple[float, float, float] = (0, 0, 1)
) -> Float[np.ndarray, "4 4"]:
    """``T_world_camera`` of a camera (OpenCV axes) at ``eye`` that looks at ``target``."""
    z = np.asarray(target, float) - np.asarray(eye, float)
    if np.linalg.norm(z) < 1e-9:
        raise ValueError(f"the camera sits on its target {np.asarray(target).tolist()}: no viewing direction")
    z /= np.linalg.norm(z)
    x = np.cross(z, up)
    if np.linalg.norm(x) < 1e-9:
        raise ValueError(f"the viewing direction {z.tolist()} is parallel to up {list(up)}: choose another up")
    x /= np.linalg.norm(x)
    return transform(np.asarray(eye, float), np.stack([x, np.cross(z, x), z], axis=1))
