"""Metres for pointmaps of unknown scale: the robot is a ruler that is in the picture.

On the robot's pixels the kinematics give the true depth ``k``. The predicted depth ``z`` is taken as the noisy side of
the fit, because ``k`` is exact; each row is divided so that errors are relative to the depth:

- ``scale``:     ``z = k / scale``
- ``affine``:    ``z = (k - shift) / scale``, for depth that is known up to scale and shift
- ``disparity``: ``1/z = (1/k - shift) / scale``, for models that predict inverse depth up to scale and shift

A least-median start from random pairs survives half the pixels being wrong (occluders, mask errors, mixed edges);
Tukey-weighted least squares then uses all good pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage

from kinema4d.data.annotate.kinematic_mask import project_robot
from kinema4d.types import Episode, Pointmap

METHODS = ("scale", "affine", "disparity")
"""Ways to align."""
ERODE_PX = 2
"""Rim of the robot that is left out: its pixels mix robot and background."""
MIN_PIXELS = 200
"""Fewest robot pixels for a fit."""
TOLERANCE = 0.1
"""Relative depth error up to which a pixel counts as an inlier."""
MIN_INLIERS = 0.5
"""Smallest share of inliers for a fit to be believed."""
MIN_SPREAD = 0.03
"""Smallest spread of the robot's depth (5th to 95th percentile, relative to the median) that tells scale from shift."""
MOST_PIXELS = 100_000
"""More pixels say nothing new; a fit takes every n-th."""
_PAIRS, _JUDGES = 300, 4000
"""Random pairs tried, and pixels that judge them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment:
    """How a predicted pointmap becomes metric, and how well that fits the robot."""

    method: str
    """One of ``METHODS``."""
    scale: Float[np.ndarray, " n"]
    """One per sequence, or one per frame."""
    shift: Float[np.ndarray, " n"]
    """The same; metres, or 1/metres for ``disparity``; 0 for ``scale``."""
    inliers: float
    """Share of the robot's pixels within ``TOLERANCE`` of their known depth."""
    residual_m: float
    """Median absolute depth error of the inliers, metres."""
    pixels: int
    """Robot pixels that were compared."""


def align_to_robot(
    episode: Episode, pointmap: Pointmap, *, method: str, per_frame: bool = False
) -> tuple[Pointmap, Alignment]:
    """The pointmap in metres by the episode's robot, and the fit. Where the episode has a robot mask, only robot
    pixels inside it count: this leaves out what stands in front of the robot."""
    robot = project_robot(episode)
    mask = robot.mask if episode.robot_mask is None else robot.mask & episode.robot_mask
    alignment = fit(pointmap, robot.pointmap.depth, mask, method=method, per_frame=per_frame)
    return apply(pointmap, alignment), alignment


def fit(
    pointmap: Pointmap,
    known: Float[np.ndarray, "t h w"],
    mask: Bool[np.ndarray, "t h w"],
    *,
    method: str,
    per_frame: bool = False,
    erode_px: int = ERODE_PX,
) -> Alignment:
    """Fit predicted to ``known`` depth on the pixels of ``mask``; ``ValueError`` where that cannot be trusted."""
    if method not in METHODS:
        raise ValueError(f"alignment must be one of {', '.join(METHODS)}, got {method!r}")
    inner = mask
    if erode_px > 0:
        inner = ndimage.binary_erosion(mask, np.ones((1, 3, 3), bool), iterations=erode_px, border_value=1)
    use = inner & pointmap.valid
    groups = [use[i : i + 1] for i in range(len(use))] if per_frame else [use]
    parts = []
    for i, group in enumerate(groups):
        frames = slice(i, i + 1) if per_frame else slice(None)
        where = f"frame {i}" if per_frame else "the clip"
        z = pointmap.depth[frames][group].astype(np.float64)
        k = known[frames][group].astype(np.float64)
        parts.append(_fit_one(z, k, method, where))
    scale, shift, good, count, residual = (np.array(x) for x in zip(*parts, strict=True))
    return Alignment(
        method=method,
        scale=scale.astype(np.float64),
        shift=shift.astype(np.float64),
        inliers=float(good.sum() / count.sum()),
        residual_m=float(np.median(residual)),
        pixels=int(count.sum()),
    )


def apply(pointmap: Pointmap, alignment: Alignment) -> Pointmap:
    """The pointmap in metres. Points that would fall behind the camera or to infinity are no longer valid."""
    z = pointmap.depth.astype(np.float64)
    scale, shift = alignment.scale[:, None, None], alignment.shift[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        metric = 1 / (scale / z + shift) if alignment.method == "disparity" else scale * z + shift
        factor = metric / z
    valid = pointmap.valid & np.isfinite(factor) & (metric > 0)
    points = pointmap.points * np.where(valid, factor, 0)[..., None]
    return Pointmap(points=points.astype(np.float32), valid=valid)


def _fit_one(
    z: Float[np.ndarray, " n"], k: Float[np.ndarray, " n"], method: str, where: str
) -> tuple[float, float, int, int, float]:
    """Scale, shift, inliers, pixels, and the inliers' median error in metres."""
    if len(z) < MIN_PIXELS:
        raise ValueError(
            f"{where} shows the robot's known depth on {len(z)} pixels, alignment needs {MIN_PIXELS}; fit one scale per "
            "clip instead of per frame, use a view with more of the robot, or --align none"
        )
    step = -(-len(z) // MOST_PIXELS)
    z, k = z[::step], k[::step]
    low, middle, high = np.percentile(k, (5, 50, 95))
    if method != "scale" and high - low < MIN_SPREAD * middle:
        raise ValueError(
            f"the robot of {where} spans depths from {low:.3f} to {high:.3f} m only, too little to tell scale from "
            "shift; use --align scale"
        )
    y, X = _rows(z, k, method)
    a = _weighted(y, X, _start(y, X))
    if not a[0] > 0:
        raise ValueError(f"the best {method} fit to {where} has a negative scale; is this depth or inverse depth?")
    scale, shift = 1 / a[0], (-a[1] / a[0] if len(a) > 1 else 0.0)
    with np.errstate(divide="ignore"):
        metric = 1 / (scale / z + shift) if method == "disparity" else scale * z + shift
    error = np.abs(metric - k)
    good = error < TOLERANCE * k
    if good.mean() < MIN_INLIERS:
        raise ValueError(
            f"only {100 * good.mean():.0f} % of the robot's pixels in {where} come within {100 * TOLERANCE:.0f} % of their "
            f"known depth after a {method} fit, {100 * MIN_INLIERS:.0f} % are needed; check the camera (kinema4d "
            "calibrate), try another --align, or --align none"
        )
    return float(scale), float(shift), int(good.sum()), len(good), float(np.median(error[good]))


def _rows(z: np.ndarray, k: np.ndarray, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Response and regressors such that the noise of a row is about the relative noise of its depth."""
    if method == "scale":
        return z / k, np.ones((len(z), 1))
    if method == "affine":
        return z / k, np.stack([np.ones_like(k), 1 / k], axis=1)
    return k / z, np.stack([np.ones_like(k), k], axis=1)


def _start(y: np.ndarray, X: np.ndarray) -> np.ndarray:
    """The parameters with the least median error among those of random pairs of pixels (seeded: runs repeat)."""
    if X.shape[1] == 1:
        return np.array([np.median(y)])
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, len(y), (2, _PAIRS))
    gap = X[j, 1] - X[i, 1]
    i, j, gap = (v[np.abs(gap) > 0.1 * np.abs(gap).max()] for v in (i, j, gap))
    slope = (y[j] - y[i]) / gap
    tried = np.stack([y[i] - slope * X[i, 1], slope], axis=1)
    judges = rng.integers(0, len(y), min(len(y), _JUDGES))
    error = np.median(np.abs(y[judges] - tried @ X[judges].T), axis=1)
    return tried[error.argmin()]


def _weighted(y: np.ndarray, X: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Iterated least squares with Tukey's weights; the cut-off follows the median error."""
    for _ in range(30):
        r = y - X @ a
        cut = max(4.685 * 1.4826 * float(np.median(np.abs(r))), 1e-9 * float(np.abs(y).max()))
        w = np.where(np.abs(r) < cut, (1 - (r / cut) ** 2) ** 2, 0.0)
        Xw = X * w[:, None]
        new = np.linalg.lstsq(Xw.T @ X, Xw.T @ y, rcond=None)[0]
        if np.allclose(new, a, rtol=1e-9, atol=0):
            return new
        a = new
    return a
