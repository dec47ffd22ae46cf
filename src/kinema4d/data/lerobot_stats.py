"""The statistics LeRobot keeps per episode and over all: extrema, mean, deviation, count and five quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped, UInt8

Stats = dict[str, np.ndarray]
"""By LeRobot's names: min, max, mean, std, count, q01, q10, q50, q90, q99."""
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
"""Quantiles that LeRobot has kept since 0.4."""
_THUMBNAIL, _LARGE = 150, 300
_FEWEST, _MOST, _POWER = 100, 10_000, 0.75


def vector_stats(values: Shaped[np.ndarray, "t d"]) -> Stats:
    """Per column. Extrema of whole numbers and flags stay what they are, as LeRobot has them."""
    return _stats(values, len(values))


def image_stats(rgb: UInt8[np.ndarray, "t h w 3"]) -> Stats:
    """Per channel in 0 to 1, shape [3,1,1], from the frames and pixels that LeRobot itself samples."""
    count, height, width = rgb.shape[:3]
    samples = max(min(count, _FEWEST), min(int(count**_POWER), _MOST))
    frames = np.round(np.linspace(0, count - 1, samples)).astype(int)
    step = 1 if max(height, width) < _LARGE else max(height, width) // _THUMBNAIL
    pixels = rgb[frames, ::step, ::step].reshape(-1, 3)
    stats = _stats(pixels, samples)
    return {key: value if key == "count" else value.reshape(3, 1, 1) / 255 for key, value in stats.items()}


def combine(parts: Sequence[Stats]) -> Stats:
    """Statistics of the whole from those of its episodes; quantiles are averaged by count, as LeRobot does."""
    counts = np.array([part["count"][0] for part in parts], np.float64)
    stacked = {key: np.stack([part[key] for part in parts]) for key in parts[0]}
    weights = (counts / counts.sum()).reshape(-1, *[1] * (stacked["mean"].ndim - 1))
    mean = (stacked["mean"] * weights).sum(axis=0)
    variance = ((stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2) * weights).sum(axis=0)
    whole = {"min": stacked["min"].min(axis=0), "max": stacked["max"].max(axis=0), "mean": mean}
    whole |= {"std": np.sqrt(variance), "count": stacked["count"].sum(axis=0)}
    return whole | {key: (stacked[key] * weights).sum(axis=0) for key in QUANTILES}


def _stats(values: np.ndarray, count: int) -> Stats:
    levels = np.quantile(values.astype(np.float64), list(QUANTILES.values()), axis=0)
    return {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0, dtype=np.float64),
        "std": values.std(axis=0, dtype=np.float64),
        "count": np.array([count]),
        **dict(zip(QUANTILES, levels, strict=True)),
    }
