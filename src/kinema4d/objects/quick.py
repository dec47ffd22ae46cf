"""Products of screws (:mod:`.screws`) for many coordinates at once: each piece's motion is made once and carried over to its points.

A screw without a turn is a shift. Those that act first, the last ones, add up, so that a point's way along them is one matrix product, as in
principal components; only what turns costs a product of motions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kinema4d.objects.screws import exponential


def turning(twists: Tensor) -> int:
    """Up to which coordinate something turns; all after it only shift."""
    turns = (twists[..., :3] != 0).any(-1).any(0)
    return int(turns.nonzero().max()) + 1 if bool(turns.any()) else 0


def _outwards(twists: Tensor, q: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Motions of every piece after the first 0, 1, ... screws: turns [b,g,3,3] and shifts [b,g,3]."""
    turn, shift = exponential(q[:, None, :, None] * twists)
    A, p = torch.eye(3, dtype=q.dtype).expand(*turn.shape[:2], 3, 3), torch.zeros_like(shift[:, :, 0])
    turns, shifts = [A], [p]
    for j in range(twists.shape[1]):
        p = p + (A @ shift[:, :, j, :, None])[..., 0]
        A = A @ turn[:, :, j]
        turns.append(A)
        shifts.append(p)
    return turns, shifts


def moved_points(x: Tensor, piece: Tensor, twists: Tensor, q: Tensor) -> Tensor:
    """Points [b,n,3] for rest [n,3] whose pieces [n] have twists [g,k,6], and coordinates [b,k]."""
    m = turning(twists)
    y = x + torch.einsum("bk,gkc->bgc", q[:, m:], twists[:, m:, 3:])[:, piece] if m < q.shape[1] else x.expand(len(q), *x.shape)  # fmt: skip
    if not m:
        return y
    turns, shifts = _outwards(twists[:, :m], q[:, :m])
    return (turns[-1][:, piece] @ y[..., None])[..., 0] + shifts[-1][:, piece]


def moved_points_and_slopes(x: Tensor, piece: Tensor, twists: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and how they change with every coordinate [b,n,3,k]."""
    m, k = turning(twists), q.shape[1]
    along = twists[:, m:, 3:].transpose(1, 2)[piece]  # [n,3,k-m]
    y = x + torch.einsum("bk,nck->bnc", q[:, m:], along) if m < k else x.expand(len(q), *x.shape)
    if not m:
        return y, along.expand(len(q), *along.shape)
    turns, shifts = _outwards(twists[:, :m], q[:, :m])
    y = (turns[-1][:, piece] @ y[..., None])[..., 0] + shifts[-1][:, piece]
    A, p = torch.stack(turns[:m], 2), torch.stack(shifts[:m], 2)  # of what acts after each screw
    w = (A @ twists[:, :m, :3, None])[..., 0]
    v = (A @ twists[:, :m, 3:, None])[..., 0] + torch.linalg.cross(p, w)
    slopes = (torch.linalg.cross(w[:, piece], y[:, :, None].expand(-1, -1, m, -1)) + v[:, piece]).transpose(2, 3)
    return y, torch.cat([slopes, turns[-1][:, piece] @ along], -1) if m < k else slopes
