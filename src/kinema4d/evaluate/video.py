"""Pixels against pixels: PSNR and SSIM, against truth and from frame to frame.

SSIM is Wang et al. 2004 as scikit-image computes it with ``gaussian_weights=True, sigma=1.5,
use_sample_covariance=False, data_range=255``, per channel; that package is the test's oracle, not a dependency.
"""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Bool, Float64, UInt8

from kinema4d.evaluate.score import NA, About, Pair, Scores, Value

PSNR_CAP = 60.0
"""Value for identical images, and the most that is reported, dB: an error of a quarter of a grey level."""
SIGMA, TRUNCATE = 1.5, 3.5
"""Gaussian window of SSIM: 11 pixels wide."""
WINDOW = 2 * int(SIGMA * TRUNCATE + 0.5) + 1
"""Pixels that the window spans: smaller images have no SSIM."""

METRICS = {
    "psnr": About(label="PSNR", unit="dB", better="higher", group="video", digits=2,
                  text="Peak signal-to-noise ratio per frame after the first, mean over frames; capped at 60 dB."),
    "ssim": About(label="SSIM", unit="", better="higher", group="video",
                  text="Structural similarity (Gaussian window 1.5 px) per frame after the first, mean over frames."),
    "psnr_temp": About(label="PSNR (temp)", unit="dB", better="higher", group="video", digits=2,
                       text="PSNR of each frame of the prediction against its next; the truth row is the aim, not the cap."),
    "ssim_temp": About(label="SSIM (temp)", unit="", better="higher", group="video",
                       text="SSIM of each frame of the prediction against its next; the truth row is the aim."),
}  # fmt: skip


def scores(pair: Pair) -> Scores:
    """All of ``METRICS``. The first frame is given to every world, so it does not count."""
    a, b = pair.predicted.rgb, pair.truth.clip.rgb
    if len(a) < 2:
        alone = NA("the clip has one frame, and that is given")
        return dict.fromkeys(METRICS, alone)
    return {
        "psnr": float(np.mean([psnr(x, y) for x, y in zip(a[1:], b[1:], strict=True)])),
        "ssim": _mean_ssim(a[1:], b[1:]),
        "psnr_temp": float(np.mean([psnr(x, y) for x, y in itertools.pairwise(a)])),
        "ssim_temp": _mean_ssim(a[:-1], a[1:]),
    }


def psnr(a: UInt8[np.ndarray, "*n 3"], b: UInt8[np.ndarray, "*n 3"]) -> float:
    """10 log10(255² / mean squared error), at most ``PSNR_CAP``."""
    if a.size == 0:
        raise ValueError("PSNR of no pixels")
    difference = a.astype(np.int16) - b
    return psnr_of(float(np.square(difference, dtype=np.int32).mean()))


def psnr_of(squared_error: float) -> float:
    """PSNR from the mean squared error of 8-bit values."""
    return min(PSNR_CAP, 10 * np.log10(255.0**2 / squared_error)) if squared_error > 0 else PSNR_CAP


def masked_psnr(
    a: UInt8[np.ndarray, "t h w 3"], b: UInt8[np.ndarray, "t h w 3"], mask: Bool[np.ndarray, "t h w"], *, least: int = 1
) -> Value:
    """PSNR over the marked pixels of a whole clip; none where fewer than ``least`` are marked."""
    count = int(mask.sum())
    return NA(f"only {count} pixels of {least} needed") if count < least else psnr(a[mask], b[mask])


def ssim_map(a: UInt8[np.ndarray, "h w 3"], b: UInt8[np.ndarray, "h w 3"]) -> Float64[np.ndarray, "h w 3"]:
    """Structural similarity of every pixel and channel."""
    from scipy.ndimage import gaussian_filter

    x, y = a.astype(np.float64), b.astype(np.float64)

    def blur(image: np.ndarray) -> np.ndarray:
        return gaussian_filter(image, SIGMA, truncate=TRUNCATE, axes=(0, 1))

    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mx, my = blur(x), blur(y)
    vx, vy, cov = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    return ((2 * mx * my + c1) * (2 * cov + c2)) / ((mx * mx + my * my + c1) * (vx + vy + c2))


def ssim(a: UInt8[np.ndarray, "h w 3"], b: UInt8[np.ndarray, "h w 3"]) -> float:
    """Mean structural similarity without the border that the window does not fill."""
    if min(a.shape[:2]) < WINDOW:
        raise ValueError(f"SSIM needs images of at least {WINDOW}x{WINDOW} pixels, got {a.shape[0]}x{a.shape[1]}")
    edge = WINDOW // 2
    return float(ssim_map(a, b)[edge:-edge, edge:-edge].mean())


def _mean_ssim(a: UInt8[np.ndarray, "t h w 3"], b: UInt8[np.ndarray, "t h w 3"]) -> Value:
    if min(a.shape[1:3]) < WINDOW:
        return NA(f"the image is smaller than the {WINDOW}-pixel window of SSIM")
    return float(np.mean([ssim(x, y) for x, y in zip(a, b, strict=True)]))
