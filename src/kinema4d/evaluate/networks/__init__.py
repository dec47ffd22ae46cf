"""Fixed networks that the learned metrics look through. These files import torch: import them inside functions."""

from __future__ import annotations

import torch
from torch import Tensor


def resize_tf1(x: Tensor, height: int, width: int) -> Tensor:
    """Bilinear resize of ``[n, c, h, w]`` as TensorFlow 1 does it by default: FVD and FID were defined with it.

    Pixel i of the result reads from i * (old / new), without the half-pixel shift and without smoothing before
    shrinking, so no mode of ``torch.nn.functional.interpolate`` agrees with it.
    """
    for axis, size in ((2, height), (3, width)):
        old = x.shape[axis]
        if old == size:
            continue
        # float32 throughout, as the original kernel: rounding decides which pixel is read at the seams.
        at = torch.arange(size, dtype=torch.float32) * torch.tensor(old / size, dtype=torch.float32)
        low = at.long().clamp_max(old - 1)
        high = (low + 1).clamp_max(old - 1)
        share = (at - low).reshape([size if a == axis else 1 for a in range(4)])
        first = x.index_select(axis, low)
        x = first + (x.index_select(axis, high) - first) * share
    return x
