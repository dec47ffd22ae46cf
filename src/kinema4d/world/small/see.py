"""See: from the first picture to metric depth and to parts that could move.

Two small networks on a picture of about ``ROWS`` rows. ``SegmentNet`` takes colour and a sensor's geometry and says for
every pixel whether it belongs to a thing, how that thing can move, about which axis, and where its middle is; pixels that
vote for the same middle are one part. ``BlindNet`` says the same, and how far everything is, where there is no sensor:
from colour, the rays of the known camera, where they meet the support, and the robot, whose depth is exact and fixes the
scale.

Directions are given in a frame that is level and turned to the camera, so that nothing depends on how the world is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.geometry.camera import rays
from kinema4d.types import Camera
from kinema4d.world.small.unet import UNet

ROWS = 192
"""Rows of the picture that the networks see, about."""
FARTHEST = 4.0
"""Support farther than this tells nothing, metres."""
BACKDROP = 2.5
"""Depth that is guessed for rays which miss the support, metres."""
VOTE_UNIT = 0.05
"""Votes are in units of 5 cm."""
ROOM_UNIT = 0.1
"""Room of a slide is in units of 10 cm; that of a hinge in radians."""
BLIND_CHANNELS, SEGMENT_CHANNELS, SEGMENT_OUTPUTS = 9, 10, 16
"""What the networks take and give per pixel."""


@dataclass(frozen=True)
class SeeConfig:
    """Size of the networks."""

    widths: tuple[int, ...] = (24, 48, 96, 128)
    """Channels by level; the first level has half the rows of the picture."""


class PatchNet(nn.Module):
    """A U-Net on 2x2 patches: a quarter of the work, and nearly the same borders."""

    def __init__(self, inputs: int, outputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.net = UNet(4 * inputs, 4 * outputs, widths)

    def forward(self, x: Tensor) -> Tensor:
        """[b,inputs,h,w] to [b,outputs,h,w]; odd sides are continued by their last row or column."""
        h, w = x.shape[-2:]
        x = F.pad(x, (0, w % 2, 0, h % 2), mode="replicate")
        return F.pixel_shuffle(self.net(F.pixel_unshuffle(x, 2)), 2)[..., :h, :w]


@dataclass(frozen=True, eq=False)
class Said:
    """What the segmenter says of every pixel."""

    kind: Tensor
    """[b,5,h,w] logits: nothing, then the ``JOINTS`` of :mod:`kinema4d.world.small.parts`."""
    vote: Tensor
    """[b,3,h,w] metres from the pixel's own point to the middle of its thing."""
    axis: Tensor
    """[b,3,h,w] direction of its joint, not of unit length."""
    pivot: Tensor
    """[b,3,h,w] metres from the pixel's own point to the point of the joint's axis nearest to the middle."""
    room: Tensor
    """[b,2,h,w] how far the joint can go back and forth, in units of ``ROOM_UNIT`` or radians."""


def said_of(channels: Tensor) -> Said:
    """What the channels of a network mean."""
    kind, vote, axis, pivot, room = channels.split([5, 3, 3, 3, 2], 1)
    return Said(kind, vote * VOTE_UNIT, axis, pivot * VOTE_UNIT, room)


class SegmentNet(nn.Module):
    """Says what could move, how, and which middle each pixel belongs to."""

    def __init__(self, config: SeeConfig) -> None:
        super().__init__()
        self.net = PatchNet(SEGMENT_CHANNELS, SEGMENT_OUTPUTS, config.widths)

    def forward(self, x: Tensor) -> Said:
        """[b,10,h,w] of :func:`segment_input`."""
        return said_of(self.net(x))


class BlindNet(nn.Module):
    """The same without a sensor, and the logarithm of inverse depth against the support's."""

    def __init__(self, config: SeeConfig) -> None:
        super().__init__()
        self.net = PatchNet(BLIND_CHANNELS, 1 + SEGMENT_OUTPUTS, config.widths)

    def forward(self, x: Tensor, reference: Tensor) -> tuple[Tensor, Said]:
        """[b,9,h,w] and reference inverse depth [b,h,w] of :func:`blind_input` to inverse depth [b,h,w] and parts."""
        y = self.net(x)
        return reference * torch.exp(y[:, 0].clamp(-4, 4)), said_of(y[:, 1:])


def level_frame(camera: Camera) -> Float[np.ndarray, "3 3"]:
    """R_level_world: z up, x where the camera looks along the ground."""
    forward = camera.poses(1)[0][:3, 2]
    x, y = forward[:2]
    if np.hypot(x, y) < 1e-3:  # straight down: where the top of the image points
        x, y = -camera.poses(1)[0][:2, 1]
    length = np.hypot(x, y)
    c, s = x / length, y / length
    return np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])


def world_rays(camera: Camera) -> tuple[Float32[np.ndarray, "h w 3"], Float[np.ndarray, "3"]]:
    """Directions with unit depth in the world frame, and where the camera is."""
    T = camera.poses(1)[0]
    return (rays(camera.K, camera.height, camera.width) @ T[:3, :3].T).astype(np.float32), T[:3, 3]


def reference_inverse(camera: Camera, support: float = 0.0) -> Float32[np.ndarray, "h w"]:
    """Inverse depth of the support, or of a backdrop where a ray misses it."""
    direction, origin = world_rays(camera)
    down, height = -direction[..., 2], origin[2] - support
    inverse = np.where(down > 1e-3, down / max(height, 1e-3), 0.0)
    return np.maximum(inverse, 1 / FARTHEST if height <= 0 else 1 / BACKDROP).astype(np.float32)


def blind_input(
    rgb: UInt8[np.ndarray, "h w 3"],
    robot: Bool[np.ndarray, "h w"],
    robot_depth: Float[np.ndarray, "h w"],
    camera: Camera,
    support: float = 0.0,
) -> tuple[Float32[np.ndarray, "9 h w"], Float32[np.ndarray, "h w"]]:
    """Channels for :class:`BlindNet`, and its reference."""
    reference = reference_inverse(camera, support)
    direction, _ = world_rays(camera)
    unit = direction @ level_frame(camera).T.astype(np.float32)
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
    inverse = np.where(robot, 1 / np.where(robot, robot_depth, 1.0), 0.0)
    planes = [rgb / np.float32(127.5) - 1, robot[..., None], inverse[..., None], reference[..., None], unit]
    return np.concatenate(planes, axis=-1, dtype=np.float32).transpose(2, 0, 1), reference


def level_points(depth: Float[np.ndarray, "h w"], camera: Camera, support: float = 0.0) -> Float32[np.ndarray, "h w 3"]:
    """Every pixel's point in the level frame, with the camera over its origin and the support at 0."""
    direction, origin = world_rays(camera)
    X = (direction @ level_frame(camera).T.astype(np.float32)) * depth[..., None].astype(np.float32)
    X[..., 2] += np.float32(origin[2] - support)
    return X


def segment_input(
    rgb: UInt8[np.ndarray, "h w 3"],
    depth: Float[np.ndarray, "h w"],
    valid: Bool[np.ndarray, "h w"],
    robot: Bool[np.ndarray, "h w"],
    camera: Camera,
    support: float = 0.0,
) -> tuple[Float32[np.ndarray, "10 h w"], Float32[np.ndarray, "h w 3"]]:
    """Channels for :class:`SegmentNet` (colour, height, normals, size of a pixel, robot, what is known), and
    :func:`level_points`."""
    X = level_points(np.where(valid, depth, 0), camera, support)
    du, dv = np.zeros_like(X), np.zeros_like(X)
    du[:, 1:-1], dv[1:-1] = X[:, 2:] - X[:, :-2], X[2:] - X[:-2]
    normal = np.cross(dv, du)
    normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-9)
    height = np.where(valid, np.clip(X[..., 2] * 10, -3, 3), 0)
    size = np.where(valid, depth, 0) / camera.K[1, 1] * 200
    planes = [
        rgb / np.float32(127.5) - 1,
        height[..., None],
        normal,
        size[..., None],
        robot[..., None],
        valid[..., None],
    ]
    return np.concatenate(planes, axis=-1, dtype=np.float32).transpose(2, 0, 1), X
