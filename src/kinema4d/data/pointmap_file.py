"""Geometry on disk: 16-bit depth where every point lies on the ray of its pixel, else all three coordinates."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data import video
from kinema4d.data.meta_file import AGAIN, entry, get, read_video
from kinema4d.geometry.camera import off_ray_px, rays
from kinema4d.types import Pointmap

OFF_RAY_PX = 1e-3
"""Points further than this from the ray of their pixel are stored with their own x and y."""
DEPTH_STEPS = 65533
"""Steps between the nearest and the farthest depth; code 0 means "nothing here"."""
POINT_STEPS = 65535
"""Steps per axis where validity has its own file."""
SMALLEST_STEP_M = 1e-9
"""Step of a clip whose depth is constant."""


def write_pointmap(K: np.ndarray, pointmap: Pointmap, folder: Path, fps: Fraction) -> dict[str, Any]:
    """Write the geometry of a clip; returns what ``meta.json`` says about it."""
    points, valid = pointmap.points, pointmap.valid
    if off_ray_px(K, pointmap) <= OFF_RAY_PX:
        offset, scale = _affine_of(points[..., 2], valid, DEPTH_STEPS)
        codes = (
            _quantise(z, seen, offset, scale, DEPTH_STEPS) + seen  # code 0 is kept for "nothing here"
            for z, seen in zip(points[..., 2], valid, strict=True)
        )
        video.write_ffv1(folder / "depth.mkv", codes, fps)
        form = {"pixel_format": "gray16le", "scale": scale, "offset": offset}
        return {"depth": {**entry(folder / "depth.mkv"), **form}}
    offsets, scales = np.transpose([_affine_of(points[..., axis], valid, POINT_STEPS) for axis in range(3)])
    codes = (
        _quantise(xyz, seen[..., None], offsets, scales, POINT_STEPS) for xyz, seen in zip(points, valid, strict=True)
    )
    video.write_ffv1(folder / "points.mkv", codes, fps)
    video.write_ffv1(folder / "valid.mkv", valid.view(np.uint8), fps)
    form = {"pixel_format": "gbrp16le", "scale": scales.tolist(), "offset": offsets.tolist()}
    return {
        "points": {**entry(folder / "points.mkv"), **form},
        "valid": {**entry(folder / "valid.mkv"), "pixel_format": "gray8"},
    }


def _affine_of(values: np.ndarray, valid: np.ndarray, steps: int) -> tuple[float, float]:
    """Offset and scale, metres, that spread the valid ``values`` [t,h,w] over ``steps`` steps."""
    low, high = np.inf, -np.inf
    for i, (image, seen) in enumerate(zip(values, valid, strict=True)):
        inside = image[seen]
        if inside.size:
            low, high = min(low, float(inside.min())), max(high, float(inside.max()))
            if not np.isfinite(inside.min() + inside.max()):
                raise ValueError(f"the pointmap has a non-finite point in frame {i}; mark such pixels as not valid")
    if low > high:
        low = high = 0.0
    return low, max((high - low) / steps, SMALLEST_STEP_M)


def _quantise(
    values: np.ndarray, seen: np.ndarray, offset: float | np.ndarray, scale: float | np.ndarray, steps: int
) -> np.ndarray:
    # What is not seen may be NaN, and compresses best as one constant: 0.
    above = np.subtract(np.where(seen, values, offset), offset, dtype=np.float64)
    return np.minimum(np.rint(above / scale), steps).astype(np.uint16)


def read_pointmap(folder: Path, meta: dict[str, Any], K: np.ndarray, window: slice | None = None) -> Pointmap:
    """The geometry that :func:`write_pointmap` wrote, or a window of its frames."""
    if "depth" in meta:
        scale, offset = _affine(folder, meta, "depth", ())
        codes = read_video(folder, meta, "depth", "depth.mkv", (np.uint16,), window)
        valid, directions = codes > 0, rays(K, *codes.shape[1:])
        points = np.empty((*codes.shape, 3), np.float32)
        for i, code in enumerate(codes):
            depth = np.where(valid[i], offset + (code - 1.0) * scale, 0)
            np.multiply(depth[..., None], directions, out=points[i], casting="same_kind")
        return Pointmap(points=points, valid=valid)
    if "points" in meta:
        scale, offset = _affine(folder, meta, "points", (3,))
        codes = read_video(folder, meta, "points", "points.mkv", (np.uint16, 3), window)
        valid = read_video(folder, meta, "valid", "valid.mkv", (np.uint8,), window).astype(bool)
        points = np.empty(codes.shape, np.float32)
        for i, code in enumerate(codes):
            points[i] = np.where(valid[i][..., None], offset + code * scale, 0)
        return Pointmap(points=points, valid=valid)
    raise ValueError(f"{folder / 'meta.json'} has neither 'depth' nor 'points'; {AGAIN}")


def _affine(folder: Path, meta: dict[str, Any], key: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Scale and offset of the geometry in ``key``, metres."""
    found = get(folder, meta, key, dict)
    try:
        scale, offset = np.array(found["scale"], np.float64), np.array(found["offset"], np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / 'meta.json'}: '{key}' needs numbers 'scale' and 'offset': {error!r}") from None
    if scale.shape != shape or offset.shape != shape or not (scale > 0).all() or not np.isfinite([scale, offset]).all():
        raise ValueError(
            f"{folder / 'meta.json'}: '{key}' needs a positive 'scale' and a finite 'offset' "
            f"{'per axis' if shape else 'each'}, got {found['scale']} and {found['offset']}"
        )
    return scale, offset
