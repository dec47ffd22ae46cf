"""Pieces that follow screws, many objects and poses at once: where they are, how that changes, and which coordinates come nearest to a pose.

All points of a piece share its screws, so turns and shifts are those of pieces, not of points.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kinema4d.objects.screws import exponential

PRIOR = 1e-4
"""Weight of the coordinates themselves, in squared sizes: what does not matter stays at rest."""


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
    return torch.stack(now, 3), turn, shift


def carried(x: Tensor, twists: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Points [b,p,c,m,3] of pieces [b,c,m,3] for twists [b,c,k,6] and coordinates [b,p,k], and how they change [b,p,c,m,3,k]."""
    now, turn, shift = advanced(twists, q)
    y = torch.einsum("bpcij,bcmj->bpcmi", turn, x) + shift[..., None, :]
    ways = ((t[..., None, :3], t[..., None, 3:]) for t in now.unbind(3))
    slopes = [torch.linalg.cross(w.expand_as(y), y) + v for w, v in ways]
    return y, torch.stack(slopes, -1)


@torch.no_grad()
def nearest(x: Tensor, twists: Tensor, goals: Tensor, there: Tensor, use: Tensor, *, rounds: int = 5) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Coordinates [b,p,k] that come nearest to poses ``goals`` [b,p,c,m,3] with the prior of being at rest (Levenberg and Marquardt); mean squared distance
    [b,p]; and the mean of J'J [b,p,k,k]. ``there`` [b,c]: which pieces exist; ``use`` [b,k]: which coordinates may be used."""
    k = twists.shape[2]
    mine, may = there[:, None, :, None, None].to(x.dtype), use[:, None].to(x.dtype)
    count = there.sum(1)[:, None] * x.shape[2]
    q = torch.zeros(*goals.shape[:2], k, dtype=x.dtype)
    damp = torch.full(goals.shape[:2], 1e-2, dtype=x.dtype)

    def look(q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y, slopes = carried(x, twists, q)
        off, slopes = (y - goals) * mine, slopes * mine[..., None] * may[:, :, None, None, None]
        error = off.square().sum((2, 3, 4)) / count
        H = torch.einsum("bpcmik,bpcmil->bpkl", slopes, slopes) / count[..., None, None]
        g = torch.einsum("bpcmik,bpcmi->bpk", slopes, off) / count[..., None] + PRIOR * q
        return error, error + PRIOR * q.square().sum(-1), H, g

    error, cost, H, g = look(q)
    for _ in range(rounds):
        firm = H + torch.diag_embed(damp[..., None] * H.diagonal(dim1=2, dim2=3) + PRIOR)
        after = (q - torch.linalg.solve(firm, g)) * may
        error2, cost2, H2, g2 = look(after)
        better = (cost2 < cost) & after.isfinite().all(-1)
        damp = torch.where(better, damp / 4, damp * 6).clamp(1e-8, 1e4)
        q, g = (torch.where(better[..., None], a, b) for a, b in ((after, q), (g2, g)))
        H = torch.where(better[..., None, None], H2, H)
        error, cost = torch.where(better, error2, error), torch.where(better, cost2, cost)
    return q, error, H
