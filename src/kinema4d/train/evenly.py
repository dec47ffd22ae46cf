"""How often each of some objects is learned from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

EVEN = 0.75
"""A kind is learned from as often as its number of objects to this power."""


def odds(kinds: Sequence[str]) -> Float64[np.ndarray, " n"]:
    """Of objects by their kinds."""
    many = Counter(kinds)
    out = np.array([many[kind] ** (EVEN - 1) for kind in kinds])
    return out / out.sum() if len(out) else out
