"""The network that sees which parts of an object bend, from its mesh alone.

It looks at points of every connected part (:mod:`kinema4d.objects.look`), and all of them look at each other: a slender thing in a clamp bends, the arm of a box does not. How
it is taught is in train/limp.py, how what bends moves in :mod:`kinema4d.objects.foretell_bends`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.objects.look import Look

THIN = 1e-3
"""Of the size: what is thinner is as good as flat."""


@dataclass(frozen=True, kw_only=True)
class LimpConfig:
    """Of the network."""

    points: int = 12
    """Of every part that are looked at."""
    width: int = 64
    """Channels."""
    layers: int = 3
    """Blocks."""
    heads: int = 4
    """Of attention."""
    octaves: int = 5
    """Of the embedding of places."""


PRESETS = {"small": LimpConfig(), "large": LimpConfig(points=32, width=256, layers=8, heads=8, octaves=8)}
"""For a CPU, and for a GPU."""


def embedded(x: Tensor, octaves: int) -> Tensor:
    """[...,3] to [...,3 + 6 octaves]: positions, and their sines and cosines, each twice as fast."""
    fast = math.pi * 2.0 ** torch.arange(octaves, dtype=x.dtype, device=x.device)
    angle = (x[..., None] * fast).flatten(-2)
    return torch.cat([x, angle.sin(), angle.cos()], -1)


class Block(nn.Module):
    """Self-attention among all points, then a word from every part to its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.part = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """[b,c,m,width] with parts ``there`` [b,c]."""
        b, c, m = x.shape[:3]
        flat = x.flatten(1, 2)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norms[0](flat)).chunk(3, -1))  # fmt: skip
        mask = there[:, :, None].expand(b, c, m).flatten(1)[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        flat = flat + self.out(y.transpose(1, 2).flatten(2))
        x = (flat + self.mlp(self.norms[1](flat))).unflatten(1, (c, m))
        return x + self.part(torch.cat([x.mean(2), x.amax(2)], -1))[:, :, None]


class LimpNet(nn.Module):
    """From points of an object's parts in its unit box to which of them bend."""

    def __init__(self, config: LimpConfig) -> None:
        super().__init__()
        self.config, w = config, config.width
        self.enter = nn.Linear(3 + 6 * config.octaves + 22, w)
        self.blocks = nn.ModuleList(Block(w, config.heads) for _ in range(config.layers))
        self.leave = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.GELU(), nn.Linear(w, 1))

    def forward(self, x: Tensor, normal: Tensor, box: Tensor, there: Tensor) -> Tensor:
        """[b,c] logarithms of odds, for points and normals [b,c,m,3] of parts that are ``there`` [b,c], with boxes [b,c,6]."""
        low, high = (v[:, :, None].expand_as(x) for v in box.split(3, -1))
        # Also without its size: that a part is flat says much, however small it is beside the whole.
        side = high - low
        long = side.amax(-1, keepdim=True).clamp(min=THIN)
        form = [side / long, 2 * (x - low) / side.clamp(min=THIN) - 1, long.log()]
        y = self.enter(torch.cat([embedded(x, self.config.octaves), normal, x - low, high - x, low, high, *form], -1))
        for block in self.blocks:
            y = block(y, there)
        return self.leave(y.mean(2))[..., 0]


def shown(looks: Sequence[Look]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points, normals, boxes of objects side by side, and which parts there are."""
    most = max(len(k.points) for k in looks)
    padded = lambda x: np.pad(x, [(0, most - len(x))] + [(0, 0)] * (x.ndim - 1))  # noqa: E731
    x, normals, boxes = (torch.from_numpy(np.stack([padded(v) for v in every])) for every in zip(*[(k.points, k.normals, k.boxes) for k in looks], strict=True))  # fmt: skip
    return x, normals, boxes, torch.arange(most) < torch.tensor([len(k.points) for k in looks])[:, None]
