"""From a control signal to what a generative world is conditioned on, and back.

The normalised frame of the model exists only in this file, and its inverse is kept, so outputs are metric.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32

from kinema4d.types import Pointmap

SOFT_RATIO, SOFT_VALUE = 0.1, 0.5
"""The paper's soft mask: this share of the occupied positions gets this value (section 3.2)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Normalisation:
    """An affine map between metres in the camera frame and the model's [0, 1]."""

    minimum: Float[np.ndarray, "3"]
    """What maps to 0, metres."""
    maximum: Float[np.ndarray, "3"]
    """What maps to 1, metres."""

    def apply(self, points: Float[np.ndarray, "*b 3"]) -> Float32[np.ndarray, "*b 3"]:
        """Metres to model units."""
        low, size = self.minimum.astype(np.float32), (self.maximum - self.minimum).astype(np.float32)
        return (np.asarray(points, np.float32) - low) / size

    def invert(self, values: Float[np.ndarray, "*b 3"]) -> Float32[np.ndarray, "*b 3"]:
        """Model units to metres."""
        return (np.asarray(values, np.float64) * (self.maximum - self.minimum) + self.minimum).astype(np.float32)


def normalisation(pointmap: Pointmap, *, per_axis: bool = True) -> Normalisation:
    """The extrema of a whole sequence (appendix B.1). ``per_axis`` spreads each coordinate over [0, 1], as a
    pseudo-RGB video does; otherwise one pair of extrema keeps the shape's proportions."""
    points = pointmap.points[pointmap.valid].astype(np.float64)
    if len(points) == 0:
        raise ValueError("cannot normalise a pointmap without a valid point: the camera sees no robot")
    low, high = points.min(axis=0), points.max(axis=0)
    if not per_axis:
        low, high = np.full(3, low.min()), np.full(3, high.max())
    # A flat sequence (one plane facing the camera) still needs an invertible map.
    return Normalisation(minimum=low, maximum=np.maximum(high, low + 1e-6))


def normalise(pointmap: Pointmap, *, per_axis: bool = True) -> tuple[Float32[np.ndarray, "t h w 3"], Normalisation]:
    """The sequence in [0, 1], 0 where there is no robot, and the map that undoes it."""
    scale = normalisation(pointmap, per_axis=per_axis)
    return np.where(pointmap.valid[..., None], scale.apply(pointmap.points), np.float32(0)), scale


def denormalise(
    values: Float[np.ndarray, "t h w 3"], valid: Bool[np.ndarray, "t h w"], scale: Normalisation
) -> Pointmap:
    """Model units back to a metric pointmap."""
    return Pointmap(points=np.where(valid[..., None], scale.invert(values), np.float32(0)), valid=valid)


def soft_mask(
    mask: Bool[np.ndarray, "*b"], *, seed: int, ratio: float = SOFT_RATIO, value: float = SOFT_VALUE
) -> Float32[np.ndarray, "*b"]:
    """1 where the robot is, except ``ratio`` of those positions, drawn by ``seed``, which get ``value``."""
    if not 0 <= ratio <= 1:
        raise ValueError(f"the soft-mask ratio must be between 0 and 1, got {ratio}")
    soft = mask.astype(np.float32)
    occupied = np.flatnonzero(mask)
    chosen = np.random.default_rng(seed).choice(occupied, size=round(ratio * len(occupied)), replace=False)
    soft.reshape(-1)[chosen] = value
    return soft


def latent_mask(mask: Bool[np.ndarray, "t h w"], *, stride: int = 8, group: int = 4) -> Bool[np.ndarray, "l y x"]:
    """The mask at the rate of a causal video VAE: every ``stride``-th pixel; frame 0 alone, then the maximum over
    groups of ``group`` frames (49 frames become 13)."""
    frames, height, width = mask.shape
    if (frames - 1) % group or height % stride or width % stride:
        raise ValueError(
            f"a latent mask needs 1 + {group}k frames and sides divisible by {stride}, got {frames}x{height}x{width}; "
            f"use {1 + group * ((frames - 1) // group)} frames"
        )
    small = mask[:, ::stride, ::stride]  # nearest neighbour as torch does it: floor of the scaled index
    groups = small[1:].reshape(-1, group, *small.shape[1:]).any(axis=1)
    return np.concatenate([small[:1], groups])


def disturb(
    pointmap: Pointmap,
    kind: str,
    *,
    seed: int,
    share: float = 0.05,
    sigma_m: float = 0.01,
    pixels: int = 5,
    degrees: float = 5.0,
) -> Pointmap:
    """The paper's four disturbances of the control signal (Table 4): a share of the points removed, Gaussian
    noise on the coordinates, the map shifted by up to ``pixels`` or turned in the image by up to ``degrees``
    about the robot's centre. One shift or turn per sequence; the coordinates keep their values, so the signal
    disagrees with the image, as after a bad calibration. The paper does not state sigma: 1 cm is ours."""
    if kind not in DISTURBANCES:
        raise ValueError(f"unknown disturbance {kind!r}; known are {', '.join(DISTURBANCES)}")
    rng = np.random.default_rng(seed)
    return DISTURBANCES[kind](pointmap, rng, share, sigma_m, pixels, degrees)


def _remove(p: Pointmap, rng: np.random.Generator, share: float, *_: float) -> Pointmap:
    occupied = np.flatnonzero(p.valid)
    valid = p.valid.copy()
    valid.reshape(-1)[rng.choice(occupied, size=round(share * len(occupied)), replace=False)] = False
    return Pointmap(points=np.where(valid[..., None], p.points, np.float32(0)), valid=valid)


def _gaussian(p: Pointmap, rng: np.random.Generator, share: float, sigma: float, *_: float) -> Pointmap:
    points = p.points.copy()
    noise = rng.normal(0, sigma, (int(p.valid.sum()), 3))
    points[p.valid] += noise.astype(np.float32)
    return Pointmap(points=points, valid=p.valid)


def _translate(p: Pointmap, rng: np.random.Generator, share: float, sigma: float, pixels: float, *_: float) -> Pointmap:
    du, dv = rng.integers(-int(pixels), int(pixels) + 1, size=2)
    return _resample(p, lambda u, v: (u - du, v - dv))


def _rotate(
    p: Pointmap, rng: np.random.Generator, share: float, sigma: float, pixels: float, degrees: float
) -> Pointmap:
    angle = np.radians(rng.uniform(-degrees, degrees))
    _, rows, columns = np.nonzero(p.valid)
    cv, cu = (rows.mean(), columns.mean()) if len(rows) else (0.0, 0.0)
    c, s = np.cos(angle), np.sin(angle)
    return _resample(p, lambda u, v: (c * (u - cu) + s * (v - cv) + cu, -s * (u - cu) + c * (v - cv) + cv))


def _resample(p: Pointmap, source: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Pointmap:
    """Each pixel takes the value of the pixel nearest to where it came from."""
    _, height, width = p.valid.shape
    v, u = np.mgrid[:height, :width]
    su, sv = (np.rint(x).astype(int) for x in source(u, v))
    inside = (su >= 0) & (su < width) & (sv >= 0) & (sv < height)
    su, sv = np.clip(su, 0, width - 1), np.clip(sv, 0, height - 1)
    valid = p.valid[:, sv, su] & inside
    return Pointmap(points=np.where(valid[..., None], p.points[:, sv, su], np.float32(0)), valid=valid)


DISTURBANCES: dict[str, Callable[..., Pointmap]] = {
    "remove": _remove,
    "gaussian": _gaussian,
    "translate": _translate,
    "rotate": _rotate,
}
"""Every disturbance by name."""
