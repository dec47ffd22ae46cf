"""Which pixels show the robot, by colour alone: the weaker witness, and the only one where there are no points.

The model is learned from the truth's first frame, which every world model is given, and from where the robot stands in
it. It may call a pixel robot anywhere near where the robot ever is during the episode, so it does not know the answer for
a single frame. Grey robots before grey walls, shadows and moved objects fool it; its score on the truth itself, which
comes with every result, says how much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, UInt8
from scipy import ndimage

BINS = 12
"""Colour bins per channel: coarse enough that 8/255 of noise moves few pixels out of theirs."""
NEAR_SHARE = 0.1
"""Pixels further from every place where the robot ever is than this share of the image's longer side are not looked at."""
CHANGED_LEVELS = 28.0
"""Largest channel difference to the first frame, in levels of 255, that noise and compression make."""
SAME, CHANGED = 2.5, 1.0
"""Evidence, in nats, that a pixel is still what it was in the first frame when its colour is the same, and that it is
something else when it is not. Less for change: shadows and objects change, too. Only before a camera that stands still."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ColourModel:
    """What the robot looks like."""

    ratio: Float32[np.ndarray, "b b b"]
    """Log-likelihood ratio, robot against surroundings, per colour bin."""
    first: Float32[np.ndarray, "h w 3"]
    """The first frame, smoothed."""
    robot: Bool[np.ndarray, "h w"]
    """The robot in the first frame."""
    near: Bool[np.ndarray, "h w"]
    """Where the robot may be at all."""
    still: bool
    """Whether the camera stands still, so that pixels can be compared with the first frame."""


def learn(first: UInt8[np.ndarray, "h w 3"], masks: Bool[np.ndarray, "t h w"], *, still: bool) -> ColourModel:
    """Learn the robot's colours from the first frame and the expected masks; only the first mask and the union count."""
    reach = NEAR_SHARE * max(masks.shape[1:])
    near = np.asarray(ndimage.distance_transform_edt(~masks.any(axis=0)) <= reach)
    smooth = _smooth(first[None])[0]
    counts = []
    for own in (masks[0], near & ~masks[0]):
        bins = _bins(smooth[own])
        count = np.bincount(bins, minlength=BINS**3).reshape(BINS, BINS, BINS).astype(np.float64)
        # Neighbouring bins lend each other support: noise and shading move a colour over a bin's border.
        count = ndimage.gaussian_filter(count, 0.8, mode="constant")
        counts.append((count + 0.02) / (count.sum() + 0.02 * BINS**3))
    ratio = np.clip(np.log(counts[0] / counts[1]), -4, 4).astype(np.float32)
    return ColourModel(ratio=ratio, first=smooth, robot=masks[0], near=near, still=still)


def find(model: ColourModel, rgb: UInt8[np.ndarray, "t h w 3"]) -> Bool[np.ndarray, "t h w"]:
    """Pixels that look like the robot."""
    smooth = _smooth(rgb)
    evidence = model.ratio.reshape(-1)[_bins(smooth.reshape(-1, 3))].reshape(rgb.shape[:3])
    if model.still:
        change = np.abs(smooth - model.first).max(axis=-1)
        was = np.where(model.robot, 1.0, -1.0).astype(np.float32)
        evidence = evidence + np.where(change < CHANGED_LEVELS, SAME * was, -CHANGED * was)
    # A pixel asks its neighbours: single ones are noise.
    evidence = _box(evidence)
    return np.asarray((evidence > 0) & model.near)


def _smooth(rgb: np.ndarray) -> Float32[np.ndarray, "t h w 3"]:
    return _box(rgb.astype(np.float32))


def _box(images: np.ndarray) -> np.ndarray:
    """Mean over 3x3 pixels."""
    across = ndimage.uniform_filter1d(images, 3, axis=1, mode="nearest")
    return np.asarray(ndimage.uniform_filter1d(across, 3, axis=2, mode="nearest"))


def _bins(colours: np.ndarray) -> np.ndarray:
    r, g, b = np.minimum((colours * (BINS / 256)).astype(np.int64), BINS - 1).T
    return (r * BINS + g) * BINS + b
