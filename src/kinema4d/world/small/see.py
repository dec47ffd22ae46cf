"""See: from the first picture to metric depth and to parts that could move.

Two small networks on a reduced picture. ``depth`` guesses how far everything is, from colour, the rays of the known
camera, where they meet the support (z = 0), and the robot, whose depth is exact and fixes the scale. ``segment`` takes
colour and geometry and says for every pixel whether it belongs to something that could be moved, and where the middle of
that thing is; pixels that vote for the same middle are one part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int32, UInt8
from torch import Tensor, nn

from kinema4d.geometry.camera import rays
from kinema4d.types import Camera
from kinema4d.world.small.unet import UNet

ROWS = 96
"""Rows of the picture that the networks see."""
FARTHEST = 4.0
"""Support farther than this tells nothing, metres."""
BACKDROP = 2.5
"""Depth that is guessed for rays which miss the support, metres."""
VOTE_UNIT = 0.05
"""Votes are in units of 5 cm."""
BANDWIDTH = 0.02
"""Votes this near to each other are for one thing, metres."""
LEAST_PIXELS = 6
"""Smaller parts are noise."""

DEPTH_CHANNELS, SEGMENT_CHANNELS = 9, 11
"""What the networks take per pixel."""


@dataclass(frozen=True)
class SeeConfig:
    """Sizes of the networks."""

    depth: tuple[int, ...] = (24, 48, 64, 96, 96)
    """Channels of the depth network by level."""
    segment: tuple[int, ...] = (24, 48, 64, 96, 96)
    """Channels of the segmenter by level."""


class DepthNet(nn.Module):
    """Guesses the logarithm of inverse depth against the support's."""

    def __init__(self, config: SeeConfig) -> None:
        super().__init__()
        self.net = UNet(DEPTH_CHANNELS, 1, config.depth)

    def forward(self, x: Tensor, reference: Tensor) -> Tensor:
        """[b,9,h,w] and reference inverse depth [b,h,w] to inverse depth [b,h,w]."""
        return reference * torch.exp(self.net(x)[:, 0].clamp(-4, 4))


class SegmentNet(nn.Module):
    """Says what could move, and which middle each pixel belongs to."""

    def __init__(self, config: SeeConfig) -> None:
        super().__init__()
        self.net = UNet(SEGMENT_CHANNELS, 4, config.segment)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[b,11,h,w] to a logit [b,h,w] and a vote [b,3,h,w] in metres from the pixel's own point."""
        out = self.net(x)
        return out[:, 0], out[:, 1:] * VOTE_UNIT


def world_rays(camera: Camera) -> tuple[Float32[np.ndarray, "h w 3"], Float[np.ndarray, "3"]]:
    """Directions with unit depth in the world frame, and where the camera is."""
    T = camera.T_world_camera if camera.T_world_camera.ndim == 2 else camera.T_world_camera[0]
    return (rays(camera.K, camera.height, camera.width) @ T[:3, :3].T).astype(np.float32), T[:3, 3]


def reference_inverse(camera: Camera) -> Float32[np.ndarray, "h w"]:
    """Inverse depth of the support, or of a backdrop where a ray misses it."""
    direction, origin = world_rays(camera)
    down = -direction[..., 2]
    inverse = np.where(down > 1e-3, down / max(origin[2], 1e-3), 0.0)
    return np.maximum(inverse, 1 / FARTHEST if origin[2] <= 0 else 1 / BACKDROP).astype(np.float32)


def depth_input(
    rgb: UInt8[np.ndarray, "h w 3"],
    robot: Bool[np.ndarray, "h w"],
    robot_depth: Float[np.ndarray, "h w"],
    camera: Camera,
) -> tuple[Float32[np.ndarray, "9 h w"], Float32[np.ndarray, "h w"]]:
    """Channels for :class:`DepthNet`, and its reference."""
    reference = reference_inverse(camera)
    direction, _ = world_rays(camera)
    unit = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    inverse = np.where(robot, 1 / np.where(robot, robot_depth, 1.0), 0.0)
    planes = [rgb / 127.5 - 1, robot[..., None], inverse[..., None], reference[..., None], unit]
    return np.concatenate(planes, axis=-1).transpose(2, 0, 1).astype(np.float32), reference


def segment_input(
    rgb: UInt8[np.ndarray, "h w 3"],
    points_world: Float[np.ndarray, "h w 3"],
    valid: Bool[np.ndarray, "h w"],
    robot: Bool[np.ndarray, "h w"],
) -> Float32[np.ndarray, "11 h w"]:
    """Channels for :class:`SegmentNet`: colour, place, normals, robot, what is known."""
    X = np.where(valid[..., None], points_world, 0.0)
    du, dv = np.zeros_like(X), np.zeros_like(X)
    du[:, 1:-1], dv[1:-1] = X[:, 2:] - X[:, :-2], X[2:] - X[:-2]
    normal = np.cross(du, dv)
    normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-9)
    height = np.clip(X[..., 2:] * 10, -3, 3)
    planes = [rgb / 127.5 - 1, np.clip(X[..., :2], -1.5, 1.5), height, normal, robot[..., None], valid[..., None]]
    return np.concatenate(planes, axis=-1).transpose(2, 0, 1).astype(np.float32)


def gather(
    movable: Bool[np.ndarray, "h w"], votes: Float[np.ndarray, "h w 3"]
) -> tuple[Int32[np.ndarray, "h w"], Float[np.ndarray, "k 3"]]:
    """Pixels by the middle that they vote for: labels (0 = none) and middles, the part with most votes first."""
    labels = np.zeros(movable.shape, np.int32)
    rows, columns = np.nonzero(movable)
    points = votes[rows, columns].astype(np.float64)
    left = np.ones(len(points), bool)
    middles: list[np.ndarray] = []
    while left.sum() >= LEAST_PIXELS:
        open_ = points[left]
        # The densest vote of a thinned set, then a few steps of mean shift.
        seeds = open_[:: max(1, len(open_) // 200)]
        crowd = (np.linalg.norm(open_[None] - seeds[:, None], axis=-1) < BANDWIDTH).sum(axis=1)
        middle = seeds[int(crowd.argmax())]
        for _ in range(5):
            near = open_[np.linalg.norm(open_ - middle, axis=-1) < BANDWIDTH]
            middle = near.mean(axis=0)
        mine = left & (np.linalg.norm(points - middle, axis=-1) < 1.5 * BANDWIDTH)
        if mine.sum() < LEAST_PIXELS:
            break
        middles.append(middle)
        labels[rows[mine], columns[mine]] = len(middles)
        left &= ~mine
    if middles and left.any():  # stragglers go to the nearest middle, if any is near
        gap = np.linalg.norm(points[:, None] - np.array(middles)[None], axis=-1)
        nearest = gap.argmin(axis=1)
        take = left & (gap.min(axis=1) < 3 * BANDWIDTH)
        labels[rows[take], columns[take]] = 1 + nearest[take]
    return labels, np.array(middles).reshape(-1, 3)
