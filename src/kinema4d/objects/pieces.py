"""Pieces that follow screws, many objects and poses at once: where they are, and how that changes.

All points of a piece share its screws, so turns and shifts are those of pieces, not of points.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kinema4d.objects.screws import exponential


def advanced(twists: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Twists [b,p,c,k,6] as they are once the body is at coordinates [b,p,k], each moved by those before it; and turns [b,p,c,3,3] and shifts [b,p,c,3] of
    pieces whose twists at rest are [b,c,k,6]."""
    many, pieces = q.shape[:2], twists.shape[1]
    turn = torch.eye(3, dtype=twists.dtype).expand(*many, pieces, 3, 3)
    shift = torch.zeros(*many, pieces, 3, dtype=twists.dtype)
    now = []
    for j in range(q.shape[-1]):
        w = (turn @ twists[:, None, :, j, :3, None])[..., 0]
        now.append(torch.cat([w, (turn @ twists[:, None, :, j, 3:, None])[..., 0] + torch.linalg.cross(shift, w)], -1))
        own, way = exponential(q[:, :, None, j, None] * twists[:, None, :, j])
        shift = (turn @ way[..., None])[..., 0] + shift
        turn = turn @ own
    return torch.stack(now, 3) if now else twists.new_zeros(*many, pieces, 0, 6), turn, shift


def carried(x: Tensor, twists: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Points [b,p,c,m,3] of pieces [b,c,m,3] for twists [b,c,k,6] and coordinates [b,p,k], and how they change [b,p,c,m,3,k]."""
    now, turn, shift = advanced(twists, q)
    y = torch.einsum("bpcij,bcmj->bpcmi", turn, x) + shift[..., None, :]
    ways = ((t[..., None, :3], t[..., None, 3:]) for t in now.unbind(3))
    slopes = [torch.linalg.cross(w.expand_as(y), y) + v for w, v in ways]
    return y, torch.stack(slopes, -1) if slopes else y.new_zeros(*y.shape, 0)
