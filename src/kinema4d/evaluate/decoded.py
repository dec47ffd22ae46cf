"""Generated pictures and points against those of what happened, pixel for pixel: what a training run watches."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, UInt8

from kinema4d.evaluate.geometry import chamfer
from kinema4d.evaluate.video import psnr, ssim
from kinema4d.types import Pointmap


def decoded_scores(
    rgb: UInt8[np.ndarray, "t h w 3"],
    truth_rgb: UInt8[np.ndarray, "t h w 3"],
    points: Float32[np.ndarray, "t h w 3"],
    truth_points: Float32[np.ndarray, "t h w 3"],
) -> dict[str, float]:
    """PSNR and mean SSIM of colour; mean distance of points, and Chamfer L1, in the unit of the points."""
    a, b = (Pointmap(points=p, valid=np.ones(p.shape[:3], bool)) for p in (points, truth_points))
    return {
        "psnr_db": psnr(rgb, truth_rgb),
        "ssim": float(np.mean([ssim(x, y) for x, y in zip(rgb, truth_rgb, strict=True)])),
        "points_m": float(np.linalg.norm(points - truth_points, axis=-1).mean()),
        "cd_l1_m": chamfer(a, b).l1,
    }
