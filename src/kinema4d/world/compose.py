"""A still background and a robot from its control signal, put together by depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, UInt8
from scipy.ndimage import binary_dilation

from kinema4d.geometry.camera import from_depth
from kinema4d.types import Clip, Control, Pointmap
from kinema4d.world.fill import fill

SAME_SURFACE = 0.02
"""Where a sensor's depth is this near to the robot's kinematic depth, the pixel shows the robot, metres."""
LEAST_PIXELS = 20
"""So many robot pixels at least tell how the light is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Background:
    """The first frame without its robot."""

    rgb: UInt8[np.ndarray, "h w 3"]
    """Colour, continued where the robot stood."""
    points: Float32[np.ndarray, "h w 3"]
    """Camera-frame metres, continued likewise."""
    valid: Bool[np.ndarray, "h w"]
    """Where there is a point."""
    known: Bool[np.ndarray, "h w"]
    """What the first image shows; elsewhere it is a guess."""


def robot_pixels(
    control: Control, depth: Float[np.ndarray, "h w"] | None, has_depth: Bool[np.ndarray, "h w"]
) -> Bool[np.ndarray, "h w"]:
    """Pixels of the first image that show the robot: where kinematics says so and no nearer depth contradicts."""
    mask = control.mask[0]
    if depth is None:
        return mask
    nearer = has_depth & (depth < control.pointmap.depth[0] - SAME_SURFACE)
    return mask & ~nearer


def background(
    image: UInt8[np.ndarray, "h w 3"],
    control: Control,
    depth: Float[np.ndarray, "h w"] | None,
    has_depth: Bool[np.ndarray, "h w"],
    *,
    hide: Bool[np.ndarray, "h w"] | None = None,
) -> Background:
    """The first image without its robot and without what ``hide`` marks."""
    gone = robot_pixels(control, depth, has_depth)
    if hide is not None:
        gone = gone | hide
    # Edge pixels are a mixture of both sides: one more pixel goes.
    gone = np.asarray(binary_dilation(gone, np.ones((3, 3), bool)), bool)
    known = ~gone
    if not known.any():
        raise ValueError("the robot covers the whole first image: there is no world to see")
    rgb = fill(image, known).round().clip(0, 255).astype(np.uint8)
    seen = known & has_depth
    shape = image.shape[:2]
    if depth is None or not seen.any():
        nothing = np.zeros(shape, bool)
        return Background(rgb=rgb, points=np.zeros((*shape, 3), np.float32), valid=nothing, known=known)
    inverse = fill(np.where(seen, 1 / np.where(seen, depth, 1), 0)[..., None], seen)[..., 0]
    valid = seen | gone  # a sensor's holes stay holes
    smooth = np.where(seen, depth, 1 / np.maximum(inverse, 1e-6))
    pointmap = from_depth(control.camera.K, smooth[None].astype(np.float32), valid[None])
    return Background(rgb=rgb, points=pointmap.points[0].astype(np.float32), valid=valid, known=known)


def lit_like(
    image: UInt8[np.ndarray, "h w 3"], control: Control, shows_robot: Bool[np.ndarray, "h w"]
) -> UInt8[np.ndarray, "t h w 3"]:
    """The robot's own shading, as bright as the image shows each link: one gain per link and channel, drawn towards
    the gain of the whole robot for links of which the first frame shows little. Too few robot pixels leave it as
    it is."""
    if control.rgb is None:
        raise ValueError("this control signal was made without colour; pass rgb=True to control()")
    if shows_robot.sum() < LEAST_PIXELS:
        return control.rgb
    drawn, seen = control.rgb[0][shows_robot].astype(np.float64), image[shows_robot].astype(np.float64)
    links = control.link_ids[0][shows_robot]
    whole = _gain(drawn, seen)
    gains = np.tile(whole, (len(control.link_names) + 1, 1))
    for link in np.unique(links):
        own = links == link
        trust = own.sum() / (own.sum() + LEAST_PIXELS)
        gains[link] = trust * _gain(drawn[own], seen[own]) + (1 - trust) * whole
    table = (np.arange(256)[None, :, None] * gains[:, None]).round().clip(0, 255).astype(np.uint8)
    return np.stack([table[control.link_ids, control.rgb[..., c], c] for c in range(3)], axis=-1)


def _gain(drawn: Float[np.ndarray, "n 3"], seen: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "3"]:
    return np.clip(seen.mean(axis=0) / np.maximum(drawn.mean(axis=0), 1.0), 0.2, 3.0)


def over(
    still: Background, control: Control, robot_rgb: UInt8[np.ndarray, "t h w 3"]
) -> tuple[UInt8[np.ndarray, "t h w 3"], Pointmap]:
    """The robot in front of the background, pixel by pixel by depth; where the background has none, the robot wins."""
    depth = control.pointmap.depth
    in_front = control.mask & (~still.valid | (depth <= still.points[..., 2]))
    rgb = np.where(in_front[..., None], robot_rgb, still.rgb)
    points = np.where(in_front[..., None], control.pointmap.points, still.points).astype(np.float32)
    return rgb, Pointmap(points=points, valid=in_front | still.valid)


def clip_from(
    image: UInt8[np.ndarray, "h w 3"],
    depth: Float[np.ndarray, "h w"] | None,
    has_depth: Bool[np.ndarray, "h w"],
    control: Control,
    rgb: UInt8[np.ndarray, "t h w 3"],
    pointmap: Pointmap,
) -> Clip:
    """The clip, with the first frame as it was given."""
    rgb, points, valid = rgb.copy(), pointmap.points.copy(), pointmap.valid.copy()
    rgb[0] = image
    if depth is not None:
        given = from_depth(control.camera.K, np.where(has_depth, depth, 0)[None].astype(np.float32), has_depth[None])
        points[0] = np.where(has_depth[..., None], given.points[0], points[0])
        valid[0] |= has_depth
    return Clip(camera=control.camera, rgb=rgb, pointmap=Pointmap(points=points, valid=valid), fps=control.fps)
