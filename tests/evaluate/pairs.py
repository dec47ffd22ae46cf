"""A small scene whose every pixel is known: a box that slides over a patterned floor."""

from __future__ import annotations

import numpy as np

from kinema4d.evaluate.score import Pair
from kinema4d.geometry.camera import from_depth
from kinema4d.types import Camera, Clip, Episode


def small_clip(*, frames: int = 6, height: int = 48, width: int = 64) -> Clip:
    K = np.array([[60.0, 0, (width - 1) / 2], [0, 60, (height - 1) / 2], [0, 0, 1]])
    camera = Camera(K=K, T_world_camera=np.eye(4), height=height, width=width)
    v, u = np.mgrid[:height, :width]
    rgb = np.empty((frames, height, width, 3), np.uint8)
    depth = np.empty((frames, height, width))
    for t in range(frames):
        rgb[t] = np.stack([100 + 40 * np.sin(u / 3.0), 120 + 40 * np.cos(v / 4.0), 60 + u + v], axis=-1).clip(0, 255)
        depth[t] = 1.0 + 0.002 * v
        left, top = 6 + 3 * t, height // 3
        box = (u >= left) & (u < left + 12) & (v >= top) & (v < top + 12)
        rgb[t][box] = (200, 40, 30)
        depth[t][box] = 0.9
    return Clip(camera=camera, rgb=rgb, pointmap=from_depth(K, depth, np.ones_like(depth, bool)), fps=10.0)


def small_pair(*, frames: int = 6, height: int = 48, width: int = 64) -> Pair:
    clip = small_clip(frames=frames, height=height, width=width)
    return Pair(predicted=clip, truth=Episode(clip=clip))
