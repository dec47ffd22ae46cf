"""Foretold pieces on joints that hold: which of them are one link, what hangs on what, and one screw per joint.

A network says of every piece how each coordinate moves it, a little wrong for each by itself, so that what hangs together comes apart. Here the
nearest motions are found that a tree of hinges and slides between things that meet can make: as many joints as coordinates, each link moved by those on its way to what
stands still. It is :mod:`.joints` at rest: between two links that a joint connects, all coordinates do the same thing, some more and some less, which is a
matrix of rank one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from kinema4d.objects.body import cross

DEEPER = 0.03
"""Of all motion, by which a link must fit better to be hung on one that moves itself: two drawers fit on each other as well."""
NEAR = 1.0
"""The same, per size by which the boxes of two links are away from each other: joints are where things meet."""
TURN, PITCH = 0.12, 0.3
"""Shares of a joint's motion below which what turns in a slide, or goes along the axis of a hinge, is taken for an error."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Hung:
    """What was found."""

    twists: Tensor
    """[c,k,6] of pieces; each coordinate is a joint, those nearer to what stands still come first."""
    loose: float
    """Share (root) of the motion that was asked for that these joints do not make."""


def hung(twists: Tensor, points: Tensor) -> Hung | None:
    """For twists [c,k,6] of pieces with points [c,m,3]; None of fewer pieces than joints need."""
    c, k = twists.shape[:2]
    if c < k + 1:
        return None
    metric = _metric(points)
    total = _length(twists, metric).square().mean().sqrt().clamp(min=1e-12)
    link = _links(twists, metric, k + 1)
    whole = torch.stack([metric[link == i].mean(0) for i in range(k + 1)])
    mean = torch.stack([torch.einsum("cij,ckj->ki", metric[link == i], twists[link == i]) / int((link == i).sum()) for i in range(k + 1)])  # fmt: skip
    own = torch.linalg.solve(whole, mean.transpose(1, 2)).transpose(1, 2)  # [l,k,6]
    root = int(_length(own, whole).argmin())
    gap = _gaps(points, link, k + 1)
    way: dict[int, list[tuple[Tensor, Tensor]]] = {
        root: []
    }  # of each link, joints: how much of each coordinate, and the screw
    left = set(range(k + 1)) - {root}
    order: list[tuple[int, int]] = []
    while left:
        tries = []
        for p in way:
            for child in left:
                amount, screw, rest = _joint(own[child] - own[p], whole[child])
                cost = rest / float(total) + DEEPER * len(way[p]) + NEAR * float(gap[p, child])
                tries.append((cost, p, child, amount, screw))
        _, p, child, amount, screw = min(tries, key=lambda t: t[:3])
        way[child] = [*way[p], (amount, screw)]
        left.remove(child)
        order.append((p, child))
    number = {child: i for i, (_, child) in enumerate(order)}
    above = {child: p for p, child in order}
    out, made = torch.zeros_like(twists), torch.zeros_like(twists)
    for i in range(k + 1):
        joints, at = list[int](), i
        while at != root:
            joints.insert(0, number[at])
            at = above[at]
        for (amount, screw), joint in zip(way[i], joints, strict=True):
            out[link == i, joint] = screw
            made[link == i] += amount[:, None] * screw
    loose = _length(made - (twists - own[root]), metric).square().mean().sqrt() / total
    return Hung(twists=out, loose=float(loose))


def _metric(points: Tensor) -> Tensor:
    """[c,6,6] the mean square of what a twist does to points [c,m,3] of a piece."""
    unit = torch.eye(3, dtype=points.dtype).expand(*points.shape[:2], 3, 3)
    ways = torch.cat([-cross(points), unit], -1)
    size = (points - points.mean((0, 1))).square().sum(-1).mean()
    thin = torch.diag(
        torch.cat([torch.full((3,), 1e-4, dtype=points.dtype) * size, torch.full((3,), 1e-6, dtype=points.dtype)])
    )
    return torch.einsum("cmia,cmib->cab", ways, ways) / points.shape[1] + thin


def _length(twists: Tensor, metric: Tensor) -> Tensor:
    """[c] of all coordinates together."""
    return torch.einsum("cka,cab,ckb->c", twists, metric, twists).clamp(min=0).sqrt()


def _gaps(points: Tensor, link: Tensor, many: int) -> Tensor:
    """[l,l] least distance between boxes of two links' pieces, in the unit of the points."""
    low, high = points.amin(1), points.amax(1)
    apart = torch.maximum(low[:, None] - high, low - high[:, None]).clamp(min=0).norm(dim=-1)
    out = torch.zeros(many, many, dtype=points.dtype)
    for i in range(many):
        for j in range(many):
            out[i, j] = apart[link == i][:, link == j].min()
    return out


def _links(twists: Tensor, metric: Tensor, many: int) -> Tensor:
    """[c] which link a piece is of: those that move most alike are one."""
    off = twists[:, None] - twists
    both = (metric[:, None] + metric) / 2
    far = torch.einsum("xyka,xyab,xykb->xy", off, both, off).clamp(min=0).sqrt().numpy()
    if len(far) == 1:
        return torch.zeros(1, dtype=torch.long)
    tree = linkage(squareform((far + far.T) / 2, checks=False), "average")
    found = fcluster(tree, many, "maxclust") - 1
    if len(np.unique(found)) < many:  # ties: cut by number all the same
        found = np.arange(len(far))
        for a, b, *_ in tree[: len(far) - many]:
            found = np.where(np.isin(found, (a, b)), found.max() + 1, found)
        found = np.unique(found, return_inverse=True)[1]
    return torch.from_numpy(found.astype(np.int64))


def _joint(relative: Tensor, metric: Tensor) -> tuple[Tensor, Tensor, float]:
    """How much of each coordinate [k] one hinge or slide [6] has, and how much motion it leaves over, for relative twists [k,6]."""
    root = torch.linalg.cholesky(metric)
    u, s, vt = torch.linalg.svd(relative @ root, full_matrices=False)
    screw = torch.linalg.solve(root.T, s[0] * vt[0])
    return u[:, 0], _hinge_or_slide(screw, metric), float(s[1:].square().sum().sqrt())


def _hinge_or_slide(screw: Tensor, metric: Tensor) -> Tensor:
    """A screw that does nearly one of both does only that; one that does both stays."""
    w, v = screw[:3], screw[3:]
    size = lambda t: float((t @ metric @ t).clamp(min=0).sqrt())  # noqa: E731
    slide = torch.cat([torch.zeros_like(w), (metric @ screw)[3:] / metric[3, 3]])  # its mean motion
    if size(screw - slide) < TURN * size(screw):
        return slide
    axis = w / w.norm().clamp(min=1e-12)
    hinge = torch.cat([w, v - (v @ axis) * axis])
    return hinge if size(screw - hinge) < PITCH * size(screw) else screw
