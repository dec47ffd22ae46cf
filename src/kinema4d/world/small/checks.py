"""What the small world checks of its input before it believes it."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Bool, Float, UInt8

from kinema4d.types import Camera, Control

WRONG_UNITS = 20.0
"""A depth image whose robot is so many times too far or too near is in other units."""
STEEP, FOV = (12.0, 70.0), (30.0, 62.0)
"""Cameras that the networks know: degrees below level, and vertical angle of view in degrees."""
ELSEWHERE = 0.05
"""Depth of the robot that is off by more than this on most of its pixels means another pose or another robot, metres."""
OUTLINE = 1.05
"""The picture's edges must be so many times stronger along the robot's outline than along it when it is shifted. On 27
right poses the least was 1.17; later poses of the same robots have a median of 1.06 (simulated) and 0.86 (LIBERO)."""
SHIFT = 0.05
"""By this share of the picture's height, and by twice as much."""


class SmallWorldWarning(UserWarning):
    """Something about the input that makes the result doubtful."""


def check_depth(control: Control, depth: Float[np.ndarray, "h w"] | None, has_depth: Bool[np.ndarray, "h w"]) -> None:
    """Raise where depth is in other units than metres, warn where it does not show the robot at its pose: the robot's
    geometry is known exactly."""
    both = control.mask[0] & has_depth
    if depth is None or both.sum() < 30:
        return
    true = control.pointmap.depth[0][both]
    ratio = float(np.median(depth[both] / true))
    if ratio > WRONG_UNITS or ratio < 1 / WRONG_UNITS:
        unit = "millimetres" if 500 < ratio < 2000 else f"units of 1/{ratio:.3g} m"
        raise ValueError(
            f"depth is not in metres: where the robot must be {float(np.median(true)):.2f} m away it says "
            f"{float(np.median(depth[both])):.4g}, so it seems to be in {unit}"
        )
    off = np.abs(depth[both] - true)
    nearer = depth[both] < true - ELSEWHERE  # something before the robot is no contradiction
    if (off[~nearer] > ELSEWHERE).mean() > 0.5 if (~nearer).sum() > 30 else nearer.mean() > 0.9:
        warnings.warn(
            f"the depth image does not show the robot at its stated pose: {100 * float((off > ELSEWHERE).mean()):.0f} % of its "
            f"pixels are off by more than {100 * ELSEWHERE:.0f} cm; check robot, joint positions and camera",
            SmallWorldWarning,
            stacklevel=3,
        )


def check_camera(camera: Camera) -> None:
    """Warn of a view that the networks have not learned from."""
    forward = camera.poses(1)[0][:3, 2]
    steep = float(np.round(np.degrees(np.arcsin(np.clip(-forward[2], -1, 1))), 1)) + 0.0  # no "-0"
    fov = float(np.degrees(2 * np.arctan2(camera.height / 2, camera.K[1, 1])))
    wrong = []
    if not STEEP[0] <= steep <= STEEP[1]:
        wrong.append(f"it looks {steep:.0f} degrees down (learned: {STEEP[0]:.0f} to {STEEP[1]:.0f})")
    if not FOV[0] <= fov <= FOV[1]:
        wrong.append(f"its vertical angle of view is {fov:.0f} degrees (learned: {FOV[0]:.0f} to {FOV[1]:.0f})")
    if wrong:
        text = f"the camera is outside of what the small world has learned from: {'; '.join(wrong)}: look at its parts"
        warnings.warn(text, SmallWorldWarning, stacklevel=3)


def check_outline(image: UInt8[np.ndarray, "h w 3"], control: Control) -> None:
    """Warn where the picture has no edges at the robot's outline: without depth, only colour can tell that the robot is
    elsewhere."""
    from scipy.ndimage import maximum_filter

    edges = np.zeros(image.shape[:2])
    for channel in np.moveaxis(image.astype(np.float32), -1, 0):
        edges = np.maximum(edges, np.hypot(*np.gradient(channel)))
    edges = np.minimum(maximum_filter(edges, 3), 60.0)
    mask, step = control.mask[0], max(3, round(SHIFT * len(image)))
    own = _along(edges, mask)
    if own is None:
        return
    others = []
    for turn in np.arange(8) * np.pi / 4:
        for far in (step, 2 * step):
            down, right = round(far * np.sin(turn)), round(far * np.cos(turn))
            found = _along(edges, _shifted(mask, down, right))
            if found is not None:
                others.append(found)
    if others and own < OUTLINE * max(others):
        warnings.warn(
            "the image does not show the robot's outline where its joint positions and the camera put it: check robot, "
            "joint positions and camera",
            SmallWorldWarning,
            stacklevel=3,
        )


def _along(edges: Float[np.ndarray, "h w"], mask: Bool[np.ndarray, "h w"]) -> float | None:
    """Mean strength of the edges along a mask's outline; None where it has hardly any."""
    from scipy.ndimage import binary_erosion

    line = mask & ~np.asarray(binary_erosion(mask, border_value=1), bool)
    line[[0, -1]] = line[:, [0, -1]] = False
    return float(edges[line].mean()) if line.sum() > 20 else None


def _shifted(mask: Bool[np.ndarray, "h w"], down: int, right: int) -> Bool[np.ndarray, "h w"]:
    """The mask moved by whole pixels; nothing comes in from beyond."""
    h, w = mask.shape
    out = np.zeros_like(mask)
    out[max(down, 0) : h + min(down, 0), max(right, 0) : w + min(right, 0)] = mask[
        max(-down, 0) : h + min(-down, 0), max(-right, 0) : w + min(-right, 0)
    ]
    return out
