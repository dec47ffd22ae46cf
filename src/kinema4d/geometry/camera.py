"""Pinhole projection and camera files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from kinema4d.geometry.se3 import invert
from kinema4d.types import Camera, Pointmap


def T_camera_world(camera: Camera, frames: int) -> Float[np.ndarray, "t 4 4"]:
    """World-to-camera transforms, one per frame."""
    return invert(camera.poses(frames))


def project(K: Float[np.ndarray, "3 3"], points: Float[np.ndarray, "*b 3"]) -> Float[np.ndarray, "*b 2"]:
    """Pixel coordinates of camera-frame points (z must be positive)."""
    uvz = np.asarray(points, np.float64) @ K.T
    return uvz[..., :2] / uvz[..., 2:]


def unproject(K: Float[np.ndarray, "3 3"], depth: Float[np.ndarray, "*t h w"]) -> Float[np.ndarray, "*t h w 3"]:
    """Camera-frame points of a depth image: ``z K^-1 [u, v, 1]``, float32."""
    return (depth[..., None] * rays(K, depth.shape[-2], depth.shape[-1])).astype(np.float32)


def picks(size: tuple[int, ...], other: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a picture of this size that one of another size sees of its geometry: the middles of its pixels."""
    rows, columns = (((np.arange(n) + 0.5) * whole / n).astype(int) for n, whole in zip(other, size, strict=True))
    return rows, columns


def rays(K: Float[np.ndarray, "3 3"], height: int, width: int) -> Float[np.ndarray, "h w 3"]:
    """``K^-1 [u, v, 1]`` at every pixel centre: z is 1."""
    u, v = np.meshgrid(np.arange(width, dtype=np.float64), np.arange(height, dtype=np.float64))
    y = (v - K[1, 2]) / K[1, 1]
    x = (u - K[0, 2] - K[0, 1] * y) / K[0, 0]
    return np.stack([x, y, np.ones_like(x)], axis=-1)


def from_depth(K: np.ndarray, depth: Float[np.ndarray, "t h w"], valid: Bool[np.ndarray, "t h w"]) -> Pointmap:
    """A pointmap from metric depth."""
    return Pointmap(points=unproject(K, np.where(valid, depth, 0)), valid=valid)


def off_ray_px(K: Float[np.ndarray, "3 3"], pointmap: Pointmap) -> float:
    """How far, in pixels, the worst point lies from the ray of its own pixel centre; infinite where a point is
    not finite or not in front of the camera."""
    from kinema4d.geometry import camera_kernels  # compiled code loads late: cameras alone do without

    K = np.asarray(K, np.float64)
    return camera_kernels.off_ray(
        np.ascontiguousarray(pointmap.points), np.ascontiguousarray(pointmap.valid), K[0, 0], K[0, 1], K[0, 2], K[1, 1], K[1, 2]
    )  # fmt: skip


def load_camera(path: str | Path) -> Camera:
    """Read a camera from JSON.

    Keys: ``K`` (3x3) or ``fx, fy, cx, cy``; ``height`` and ``width`` (or ``image_size_wh``); and one of
    ``T_world_camera`` ([4,4] or [t,4,4]), ``T_camera_world``, or, where the robot's base is the world,
    ``T_base_camera`` / ``T_cam_base``.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read camera file {path}: {error}") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"camera file {path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"camera file {path} must hold a JSON object, got {type(data).__name__}")
    try:
        return camera_from_dict(data)
    except ValueError as error:
        raise ValueError(f"camera file {path}: {error}") from None


def camera_from_dict(data: dict[str, Any]) -> Camera:
    """The content of a camera file as a :class:`Camera`."""
    width, height = data.get("image_size_wh", (data.get("width"), data.get("height")))
    if not isinstance(width, int) or not isinstance(height, int):
        raise ValueError("needs integer 'height' and 'width' (or 'image_size_wh')")
    if "K" in data:
        K = _matrix(data["K"], "K")
        if K.shape != (3, 3):
            raise ValueError(f"'K' must be a finite 3x3 matrix, got shape {list(K.shape)}")
    elif {"fx", "fy", "cx", "cy"} <= data.keys():
        K = _matrix([[data["fx"], 0, data["cx"]], [0, data["fy"], data["cy"]], [0, 0, 1]], "fx, fy, cx, cy")
    else:
        raise ValueError("needs 'K' (3x3), or 'fx', 'fy', 'cx', 'cy'")
    for key, inverse in _POSE_KEYS.items():
        if key in data:
            T = _matrix(data[key], key)
            if T.ndim not in (2, 3) or T.shape[-2:] != (4, 4):
                raise ValueError(f"'{key}' must be [4,4] or [t,4,4], got {list(T.shape)}")
            return Camera(K=K, T_world_camera=invert(T) if inverse else T, height=height, width=width)
    raise ValueError(f"needs one of {', '.join(_POSE_KEYS)}")


_POSE_KEYS = {"T_world_camera": False, "T_camera_world": True, "T_base_camera": False, "T_cam_base": True}


def camera_to_dict(camera: Camera) -> dict[str, Any]:
    """The content of a camera file."""
    return {
        "K": camera.K.tolist(),
        "T_world_camera": camera.T_world_camera.tolist(),
        "height": camera.height,
        "width": camera.width,
    }


def _matrix(value: object, name: str) -> np.ndarray:
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"'{name}' must be a numeric matrix, got {value!r:.80}") from None
