"""Fill what a picture does not show from what surrounds it.

Colour and inverse depth are continued as a membrane (Laplace's equation). Inverse depth is linear in the pixel over a
plane, so a hole in a table is filled with the table.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Shaped


def fill(
    values: Shaped[np.ndarray, "h w c"], known: Bool[np.ndarray, "h w"], *, rounds: int = 60
) -> Float64[np.ndarray, "h w c"]:
    """``values`` where ``known``, a membrane elsewhere. Coarse to fine: each level starts from the one above, so few
    rounds are enough."""
    if not known.any():
        raise ValueError("nothing is known of the picture: it cannot be continued")
    values = np.where(known[..., None], values, 0).astype(np.float64)
    return values if known.all() else _fill(values, known, rounds)


def _fill(values: np.ndarray, known: np.ndarray, rounds: int) -> np.ndarray:
    height, width = known.shape
    if min(height, width) == 1 or known.all():
        mean = values[known].mean(axis=0)
        return np.where(known[..., None], values, mean)
    weight = _halve(known[..., None].astype(np.float64))
    coarse = _halve(values * known[..., None]) / np.maximum(weight, 1e-9)
    above = _fill(coarse, weight[..., 0] > 0, rounds)
    out = np.where(known[..., None], values, _double(above, height, width))
    rows, columns = np.nonzero(~known)
    up, down = np.maximum(rows - 1, 0), np.minimum(rows + 1, height - 1)
    left, right = np.maximum(columns - 1, 0), np.minimum(columns + 1, width - 1)
    # Checkerboard order, over-relaxed: neighbours of one colour only have the other colour.
    halves = [((rows + columns) % 2 == parity).nonzero()[0] for parity in (0, 1)]
    for _ in range(rounds):
        for i in halves:
            around = out[up[i], columns[i]] + out[down[i], columns[i]] + out[rows[i], left[i]] + out[rows[i], right[i]]
            out[rows[i], columns[i]] += 1.6 * (around / 4 - out[rows[i], columns[i]])
    return out


def _halve(a: np.ndarray) -> np.ndarray:
    """Sums over 2x2 blocks; the last row and column stand in for what an odd size lacks."""
    h, w = a.shape[:2]
    a = np.pad(a, ((0, h % 2), (0, w % 2), (0, 0)))
    return a[::2, ::2] + a[1::2, ::2] + a[::2, 1::2] + a[1::2, 1::2]


def _double(a: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear, so that a slope stays a slope."""
    rows = np.clip((np.arange(height) - 0.5) / 2, 0, a.shape[0] - 1)
    columns = np.clip((np.arange(width) - 0.5) / 2, 0, a.shape[1] - 1)
    r, c = np.minimum(rows.astype(int), a.shape[0] - 2), np.minimum(columns.astype(int), a.shape[1] - 2)
    r, c = np.maximum(r, 0), np.maximum(c, 0)
    fr, fc = (rows - r)[:, None, None], (columns - c)[None, :, None]
    r2, c2 = np.minimum(r + 1, a.shape[0] - 1), np.minimum(c + 1, a.shape[1] - 1)
    top = a[r][:, c] * (1 - fc) + a[r][:, c2] * fc
    return top * (1 - fr) + (a[r2][:, c] * (1 - fc) + a[r2][:, c2] * fc) * fr
