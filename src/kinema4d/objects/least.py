"""Coordinates and screws that explain poses, by least squares: of the poses alone for given screws, or of both together.

Levenberg's and Marquardt's method. A pose knows only its own coordinates and a piece only its own screws, so that the screws are eliminated piece by
piece, and what is left has a few unknowns per pose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinema4d.objects.quick import moved_points_and_slopes, turning
from kinema4d.objects.screws import product

EXACT = 2e-4
"""Mean error of reconstruction, of the size, at which nothing is left to explain."""
ROUNDS = 40
"""Of Levenberg's and Marquardt's method at most."""
TRIES = 3
"""Motions of what is left over that a new coordinate may begin with."""
FEW = 8
"""Coordinates up to which poses are solved for from both sides of each; more are solved for from what acts last inwards, three at a time."""
PRIOR = 1e-6
"""Weight of coordinates and twists themselves, which keeps both finite where only their product matters."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Poses to explain, in a unit in which the object's size is about one."""

    rest: Tensor
    """[n,3] points before they move."""
    goals: Tensor
    """[p,n,3] where they are in every pose."""
    piece: Tensor
    """[n] whose twists they have."""
    count: int
    """Pieces."""

    def made(self, twists: Tensor, q: Tensor) -> Tensor:
        """[p,n,3] for twists [g,k,6] and coordinates [p,k]."""
        return product(self.rest, twists[self.piece], q)

    def error(self, twists: Tensor, q: Tensor) -> float:
        """Mean distance."""
        return float((self.made(twists, q) - self.goals).norm(dim=-1).mean())

    def cost(self, twists: Tensor, q: Tensor) -> float:
        """What is made small."""
        return float((self.made(twists, q) - self.goals).square().sum() + PRIOR * (q.square().sum() + twists.square().sum()))  # fmt: skip

    def by_q(self, twists: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Points, and how they change with the coordinates [p,n,3,k]."""
        return moved_points_and_slopes(self.rest, self.piece, twists, q)

    def by_twists(self, twists: Tensor, q: Tensor) -> Tensor:
        """[p,n,3,6k]: every point has its own piece's."""
        k = q.shape[1]
        ways = torch.eye(6 * k, dtype=q.dtype).unflatten(1, (k, 6))
        slope = lambda way: torch.func.jvp(lambda t: self.made(t, q), (twists,), (way.expand_as(twists),))[1]  # noqa: E731
        return torch.stack([slope(w) for w in ways], -1)

    def solved(self, twists: Tensor, q: Tensor | None = None) -> Tensor:
        """Coordinates of every pose for these twists, each pose by itself; from rest and from those of ``q``."""
        k = twists.shape[1]
        if q is None and k > FEW:
            return self._inwards(twists)
        starts = [torch.zeros(len(self.goals), k, dtype=twists.dtype)] if q is None else [q]
        if q is None:
            starts += [s * w for w in torch.eye(k, dtype=twists.dtype) for s in (-1.5 * torch.ones_like(starts[0]), 1.5 * torch.ones_like(starts[0]))]  # fmt: skip
        best, least = starts[0], torch.full((len(self.goals),), torch.inf, dtype=twists.dtype)
        for start in starts:
            now, cost = self._descend(twists, start)
            better = cost < least
            best, least = torch.where(better[:, None], now, best), torch.where(better, cost, least)
        return best

    def _inwards(self, twists: Tensor) -> Tensor:
        """Of many coordinates: the first that turn something from both sides of each, then three more at a time, as every rod of a rope hangs on
        those before; what only shifts comes last, and is linear."""
        many, k, turns = len(self.goals), twists.shape[1], turning(twists)
        q = torch.zeros(many, 0, dtype=twists.dtype)
        for known in [*range(3, turns, 3), *([turns] if turns else []), *([k] if k > turns else [])]:
            start = torch.cat([q, q.new_zeros(many, known - q.shape[1])], 1)
            q, least = self._descend(twists[:, :known], start)
            if known <= 3:
                for way in torch.eye(known, dtype=q.dtype):
                    for side in (-1.5, 1.5):
                        other, cost = self._descend(twists[:, :known], start + side * way)
                        q, least = torch.where((cost < least)[:, None], other, q), torch.minimum(cost, least)
        return q

    def _descend(self, twists: Tensor, q: Tensor, rounds: int = 12) -> tuple[Tensor, Tensor]:
        damp = torch.full((len(q),), 1e-3, dtype=q.dtype)
        made, slopes = self.by_q(twists, q)
        cost = (made - self.goals).square().sum((1, 2))
        for _ in range(rounds):
            H = torch.einsum("pnik,pnil->pkl", slopes, slopes)
            g = torch.einsum("pnik,pni->pk", slopes, made - self.goals)
            H = H + torch.diag_embed(damp[:, None] * H.diagonal(dim1=1, dim2=2) + 1e-12)
            after = q - torch.linalg.solve(H, g)
            made2, slopes2 = self.by_q(twists, after)
            cost2 = (made2 - self.goals).square().sum((1, 2))
            better = (cost2 < cost) & after.isfinite().all(1)
            damp = torch.where(better, damp / 5, damp * 5).clamp(1e-9, 1e6)
            q = torch.where(better[:, None], after, q)
            made = torch.where(better[:, None, None], made2, made)
            slopes = torch.where(better[:, None, None, None], slopes2, slopes)
            cost = torch.where(better, cost2, cost)
        return q, cost


def one_more(task: Task, twists: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """With another coordinate, which begins with one of the motions that are left over, whichever ends best."""
    best: tuple[Tensor, Tensor] | None = None
    for more, size in _left_over(task, twists, q):
        found = _together(task, torch.cat([twists, more[:, None]], 1), torch.cat([q, size[:, None]], 1))
        if best is None or task.cost(*found) < task.cost(*best):
            best = found
        if task.error(*best) < EXACT:
            break
    assert best is not None
    return best


def _left_over(task: Task, twists: Tensor, q: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Twists of every piece, and how far every pose goes along them: the largest ways (principal components) in which the goals, seen from the rest,
    still differ from it."""
    seen = task.goals
    for j in range(q.shape[1]):  # undone from the outside in
        seen = product(seen, twists[task.piece][:, j : j + 1], -q[:, j : j + 1])
    away = (seen - task.rest).flatten(1)
    u, s, vt = torch.linalg.svd(away, full_matrices=False)
    out = []
    for i in range(min(TRIES, len(s))):
        size = u[:, i] * len(u) ** 0.5
        way = (vt[i] * s[i] / len(u) ** 0.5).unflatten(0, (-1, 3))
        out.append((_twists_of(task, way), size))
    return out


def _twists_of(task: Task, way: Tensor) -> Tensor:
    """[g,6] that move the points of each piece as ``way`` [n,3] as well as they can; a piece of one point is shifted."""
    x = task.rest
    o, (a, b, c) = torch.zeros(len(x), dtype=x.dtype), x.unbind(1)
    turn = torch.stack([o, c, -b, -c, o, a, b, -a, o], 1).unflatten(1, (3, 3))  # w cross x = turn w
    J = torch.cat([turn, torch.eye(3, dtype=x.dtype).expand(len(x), 3, 3)], 2)
    H = torch.zeros(task.count, 6, 6, dtype=x.dtype).index_add(0, task.piece, J.transpose(1, 2) @ J)
    g = torch.zeros(task.count, 6, dtype=x.dtype).index_add(0, task.piece, torch.einsum("nij,ni->nj", J, way))
    ridge = torch.diag(torch.tensor([1e-4] * 3 + [1e-9] * 3, dtype=x.dtype))
    return torch.linalg.solve(H + ridge, g)


def _together(task: Task, twists: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Twists and coordinates at once, by damped Gauss-Newton steps; twists are eliminated piece by piece."""
    damp, cost = 1e-3, task.cost(twists, q)
    p, k = q.shape
    eye = torch.eye(6 * k, dtype=q.dtype)
    add = lambda v: torch.zeros(task.count, *v.shape[1:], dtype=v.dtype).index_add(0, task.piece, v)  # noqa: E731
    calm = 0
    for _ in range(ROUNDS):
        made, by_q = task.by_q(twists, q)
        by_t = task.by_twists(twists, q)
        off = made - task.goals
        H_q = torch.einsum("pnik,pnil->pkl", by_q, by_q)
        g_q = torch.einsum("pnik,pni->pk", by_q, off) + PRIOR * q
        H_t = add(torch.einsum("pnia,pnib->nab", by_t, by_t))
        g_t = add(torch.einsum("pnia,pni->na", by_t, off)) + PRIOR * twists.flatten(1)
        cross = add(torch.einsum("pnia,pnik->napk", by_t, by_q)).flatten(2)  # [g,6k,p*k]
        for _ in range(8):
            own = H_t + torch.diag_embed(damp * H_t.diagonal(dim1=1, dim2=2) + PRIOR)
            factor = torch.linalg.cholesky(own + 1e-12 * eye)
            solved = torch.cholesky_solve(cross, factor)
            S = torch.block_diag(*(H_q + torch.diag_embed(damp * H_q.diagonal(dim1=1, dim2=2) + PRIOR)))
            S = S - torch.einsum("gaq,gar->qr", cross, solved)
            rhs = g_q.flatten() - torch.einsum("gaq,ga->q", solved, g_t)
            step_q = -torch.linalg.solve(S, rhs)
            step_t = -torch.cholesky_solve((g_t + cross @ step_q)[..., None], factor)[..., 0]
            new = twists + step_t.unflatten(1, (k, 6)), q + step_q.unflatten(0, (p, k))
            after = task.cost(*new)
            if after < cost:
                break
            damp = min(damp * 6, 1e8)
        else:
            break
        gain = (cost - after) / max(cost, 1e-300)
        (twists, q), cost, damp = new, after, max(damp / 4, 1e-10)
        calm = calm + 1 if gain < 1e-3 else 0
        if calm >= 3 or task.error(twists, q) < EXACT / 100:
            break
    return twists, q
