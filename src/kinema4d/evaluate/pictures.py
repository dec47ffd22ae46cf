"""A contact sheet of a rollout: truth above, prediction below, and where they differ."""

from __future__ import annotations

import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kinema4d.types import Clip

COLUMNS = 6
"""Frames shown, evenly spaced from first to last."""
WIDTH = 180
"""Of one picture, pixels."""


def sheet(predicted: Clip, truth: Clip) -> UInt8[np.ndarray, "h w 3"]:
    """Three rows: truth, prediction, brightness of their difference."""
    at = np.linspace(0, len(truth) - 1, min(COLUMNS, len(truth))).round().astype(int)
    difference = np.abs(predicted.rgb[at].astype(np.int16) - truth.rgb[at]).max(axis=-1, keepdims=True)
    shown = np.clip(3 * difference, 0, 255).astype(np.uint8).repeat(3, axis=-1)
    return np.concatenate([np.concatenate(list(row), axis=1) for row in (truth.rgb[at], predicted.rgb[at], shown)])


def jpeg(image: UInt8[np.ndarray, "h w 3"], *, columns: int = COLUMNS) -> bytes:
    """The sheet as a file, each picture ``WIDTH`` wide at most."""
    picture = Image.fromarray(image)
    width = min(picture.width, columns * WIDTH)
    picture = picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.BILINEAR)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=88)
    return out.getvalue()
