"""The camera of footage about whose camera nothing is known: a plausible pinhole, nothing more."""

from __future__ import annotations

import numpy as np

from kinema4d.geometry.se3 import look_at
from kinema4d.types import Camera

FOV_DEGREES = 60.0
"""Horizontal field of view of the guess."""


def guessed_camera(height: int, width: int) -> Camera:
    """A pinhole behind and above a robot at the origin, looking along +x and half a metre down over two."""
    focal = width / 2 / np.tan(np.radians(FOV_DEGREES / 2))
    K = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])
    T_world_camera = look_at(np.array([-1.0, 0.0, 0.8]), np.array([1.0, 0.0, 0.3]))
    return Camera(K=K, T_world_camera=T_world_camera, height=height, width=width)
