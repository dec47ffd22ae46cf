"""From a generated pointmap in 0..1 to metres: its robot is known exactly, so scale and shift follow from it.

The model's coordinates are affine-invariant on purpose (appendix B.1), and the release leaves them so. But every clip shows a
robot whose points are given by its kinematics: for each axis a scale and a shift that bring the generated robot onto it bring
the whole scene into metres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32

from kinema4d.types import Pointmap
from kinema4d.world.condition import Normalisation

LEAST_PIXELS = 50
"""Fewer robot pixels of a clip fix no scale."""
PAIRS = 20_000
"""Of pixels, whose slopes are compared."""
ROUNDS, TRIM = 5, 2.5
"""Of the fit: so often it is repeated without pixels that are off by so many deviations (edges, things before the robot)."""
STEEP = (0.2, 20.0)
"""A scale outside of this range of the robot's own extent is not believed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """Metres = value * scale + shift, for each axis of the camera frame."""

    scale: Float[np.ndarray, "3"]
    """Metres per unit."""
    shift: Float[np.ndarray, "3"]
    """Metres."""
    residual_m: float
    """Median distance of the generated robot from the kinematic one after it; NaN where it was not fitted."""
    fitted: tuple[bool, bool, bool]
    """Axes that the robot fixed; others have the extent of the robot's own signal."""

    def apply(self, values: Float[np.ndarray, "*b 3"]) -> Float32[np.ndarray, "*b 3"]:
        """Model units to metres."""
        return (np.asarray(values, np.float64) * self.scale + self.shift).astype(np.float32)


def metric(values: Float[np.ndarray, "t h w 3"], robot: Pointmap, signal: Normalisation, shows: Bool[np.ndarray, "t h w"] | None = None) -> Metric:  # fmt: skip
    """Fit what was generated where the robot is to where its kinematics say it is. ``signal`` is how the robot's own signal was
    brought into 0..1, which stands where the robot tells nothing: too few pixels, or none of the depth it would need."""
    there = robot.valid if shows is None else robot.valid & shows
    size = signal.maximum - signal.minimum
    scale, shift, fitted = size.copy(), signal.minimum.copy(), [False] * 3
    x, y = values[there].astype(np.float64), robot.points[there].astype(np.float64)
    if len(x) < LEAST_PIXELS:
        return Metric(scale=scale, shift=shift, residual_m=float("nan"), fitted=(False, False, False))
    for axis in range(3):
        line = _line(x[:, axis], y[:, axis])
        if line is not None and STEEP[0] < line[0] / size[axis] < STEEP[1]:
            scale[axis], shift[axis] = line
            fitted[axis] = True
    off = np.linalg.norm(x * scale + shift - y, axis=1)
    return Metric(scale=scale, shift=shift, residual_m=float(np.median(off)), fitted=(fitted[0], fitted[1], fitted[2]))


def _line(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> tuple[float, float] | None:
    """Slope and offset of y over x along most of the points; None where they do not spread. Kinematics (y) are exact and
    pixels (x) are not, so it is x that is fitted over y; from the median slope of pairs (Theil-Sen), because a thing before the robot
    would tilt a line of least squares so far that it never finds back."""
    low, high = np.quantile(y, (0.1, 0.9))
    first, second = np.random.default_rng(0).integers(len(y), size=(2, PAIRS))
    apart = np.abs(y[first] - y[second]) > max(0.3 * (high - low), 1e-4)
    first, second = first[apart], second[apart]
    if len(first) < LEAST_PIXELS:
        return None
    slope = float(np.median((x[first] - x[second]) / (y[first] - y[second])))
    offset = float(np.median(x - slope * y))
    for _ in range(ROUNDS):
        off = np.abs(slope * y + offset - x)
        keep = off <= max(TRIM * float(np.median(off)) * 1.4826, 1e-6)
        a, b = y[keep], x[keep]
        if len(a) < LEAST_PIXELS or a.var() < 1e-10:
            return None
        slope = float(((a - a.mean()) * (b - b.mean())).mean() / a.var())
        offset = float(b.mean() - slope * a.mean())
    return None if abs(slope) < 1e-3 else (1 / slope, -offset / slope)
