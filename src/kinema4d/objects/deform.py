"""Deformations of points as unit dual quaternions, and how points are told to a network (NeuROK, section 4.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def turned(q: Tensor, x: Tensor) -> Tensor:
    """Points [...,3] turned by unit quaternions [...,4] (w first)."""
    w, u = q[..., :1], q[..., 1:]
    side = torch.linalg.cross(u.expand_as(x), x)
    return x + 2 * (w * side + torch.linalg.cross(u.expand_as(x), side))


def deformed(x: Tensor, raw: Tensor) -> Tensor:
    """Points [...,3] by what a network says of each [...,7]: a turn (about the origin) and a shift. All zero is no deformation."""
    one = torch.zeros(4, dtype=raw.dtype, device=raw.device)
    one[0] = 1
    return turned(F.normalize(raw[..., :4] + one, dim=-1), x) + raw[..., 4:]


def embedded(x: Tensor, octaves: int) -> Tensor:
    """[...,3] to [...,3 + 6 octaves]: positions, and their sines and cosines, each twice as fast."""
    fast = math.pi * 2.0 ** torch.arange(octaves, dtype=x.dtype, device=x.device)
    angle = (x[..., None] * fast).flatten(-2)
    return torch.cat([x, angle.sin(), angle.cos()], -1)
