"""Deformation of points by screws, one after the other: what a coordinate does to a point is a turn about an axis and a shift along it.

Every point has one twist per coordinate (angular and linear velocity, as in the product of exponentials of a robot arm), and the coordinate says
how far it goes along it. Joints are exact in this form, with as many coordinates as they have degrees of freedom; what bends does so by twists that
differ from point to point. A unit dual quaternion is the same thing with one screw (NeuROK, section 4.1): the exponential of a twist is one.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEAR = 1e-2
"""Squared angles (rad) below which series are used."""


def waves(squared: Tensor) -> tuple[Tensor, Tensor]:
    """(1 - cos a)/a^2 and (a - sin a)/a^3 of squared angles, smooth at zero so that derivatives are numbers."""
    near = squared < NEAR
    safe = torch.where(near, torch.ones_like(squared), squared)
    a = safe.sqrt()
    turn = 0.5 - squared / 24 * (1 - squared / 30 * (1 - squared / 56))
    lag = 1 / 6 - squared / 120 * (1 - squared / 42 * (1 - squared / 72))
    return torch.where(near, turn, (1 - a.cos()) / safe), torch.where(near, lag, (a - a.sin()) / (a * safe))


def exponential(twist: Tensor) -> tuple[Tensor, Tensor]:
    """Turns [...,3,3] and shifts [...,3] of twists [...,6]."""
    w, v = twist[..., :3], twist[..., 3:]
    squared = (w * w).sum(-1, keepdim=True)
    b, c = waves(squared)
    o = torch.zeros_like(w[..., 0])
    x, y, z = w.unbind(-1)
    W = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).unflatten(-1, (3, 3))
    turn = (1 - c * squared)[..., None] * W + b[..., None] * (W @ W) + torch.eye(3, dtype=w.dtype)
    wv = torch.linalg.cross(w, v)
    return turn, v + b * wv + c * torch.linalg.cross(w, wv)


def in_metres(twists: Tensor, middle: Tensor, size: float) -> Tensor:
    """Twists [...,6] from a unit box, in which ``middle`` [3] is the origin and ``size`` one, to the frame of the mesh."""
    w = twists[..., :3]
    return torch.cat([w, size * twists[..., 3:] + torch.linalg.cross(middle.expand_as(w), w)], -1)


def screwed(x: Tensor, twist: Tensor) -> Tensor:
    """Points [...,3] after the exponential of twists [...,6]: angular velocity, then the velocity of what is at the origin."""
    w, v = twist[..., :3], twist[..., 3:]
    b, c = waves((w * w).sum(-1, keepdim=True))
    w = w.expand_as(x)
    u = torch.linalg.cross(w, x) + v
    wu = torch.linalg.cross(w, u)
    return x + u + b * wu + c * torch.linalg.cross(w, wu)


def product(x: Tensor, twists: Tensor, q: Tensor) -> Tensor:
    """Points [b,n,3] for rest [n,3] or [b,n,3], twists [n,k,6] or [b,n,k,6] and coordinates [b,k]: the last screw acts first, as the last joint
    of an arm does not move those before it."""
    y = x.expand(len(q), *x.shape[-2:])
    for j in reversed(range(q.shape[1])):
        y = screwed(y, q[:, j, None, None] * twists[..., j, :])
    return y


def product_and_slopes(x: Tensor, twists: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and how it changes with every coordinate [b,n,3,k]: what a screw does to a point where it is, carried on by the screws that act after it. Twenty
    times faster than torch's forward derivatives."""
    y = x.expand(len(q), *x.shape[-2:])
    ways: list[Tensor] = []
    for j in reversed(range(q.shape[1])):
        own = twists[..., j, :]
        step = q[:, j, None, None] * own
        turn = torch.cat([step[..., :3], torch.zeros_like(step[..., 3:])], -1)
        y, ways = screwed(y, step), [screwed(way, turn) for way in ways]
        ways.append(torch.linalg.cross(own[..., :3].expand_as(y), y) + own[..., 3:])
    return y, torch.stack(ways[::-1], -1) if ways else y.new_zeros(*y.shape, 0)
