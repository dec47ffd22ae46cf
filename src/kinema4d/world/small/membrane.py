"""Holes continued from around them: a membrane stretched over what is not known, coarse to fine."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from kinema4d.world.small import prior_kernels

ROUNDS = 60
"""Of relaxation at each size of the picture."""


def membrane(values: Shaped[np.ndarray, "h w c"], known: Bool[np.ndarray, "h w"]) -> Float64[np.ndarray, "h w c"]:
    """As :func:`kinema4d.world.fill.fill`, in compiled code."""
    out = values.astype(np.float64)
    if known.all():
        return out
    rows, columns = np.nonzero(~known)
    if min(known.shape) == 1:
        out[rows, columns] = out[known].mean(axis=0)
        return out
    half, some = prior_kernels.halve(out, known)
    prior_kernels.double(membrane(half, some), out, rows, columns)
    order = np.argsort((rows + columns) % 2, kind="stable")
    prior_kernels.relax(out, rows[order], columns[order], ROUNDS)
    return out
