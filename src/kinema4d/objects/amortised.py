"""The network that foretells how an object moves that was never seen before, from its mesh alone (NeuROK's feed-forward model, sections 4.1 and 4.2).

It looks at points of every piece (:mod:`kinema4d.objects.look`), pieces look at each other, and each says how every coordinate moves it: a screw. So
what is rigid stays so, as with dual quaternions, and the mean and slopes of the decoder are known in closed form. It also says how many coordinates
there are, and which parts bend. The posterior of a pose is not guessed by a second network but solved for: the nearest coordinates. How it is taught is in
train/objects.py, what is made of its answers in :mod:`kinema4d.objects.foretell`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FORMAT = "kinema4d objects 2"
"""What a file of weights says it is."""
AGAIN = "train one with kinema4d objects train"
THIN = 1e-3
"""Of the size: what is thinner is as good as flat."""


@dataclass(frozen=True, kw_only=True)
class AmortisedConfig:
    """Of the network."""

    points: int = 12
    """Of every piece that are looked at."""
    pieces: int = 24
    """Parts at most; of what bends patches."""
    coordinates: int = 8
    """At most."""
    width: int = 96
    """Channels."""
    layers: int = 4
    """Blocks."""
    heads: int = 4
    """Of attention."""
    octaves: int = 5
    """Of the embedding of places."""


PRESETS = {
    "small": AmortisedConfig(),
    "large": AmortisedConfig(points=32, pieces=64, coordinates=16, width=512, layers=12, heads=8, octaves=8),
}
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


class ScrewNet(nn.Module):
    """From points of an object's pieces in its unit box to the screws of every piece."""

    def __init__(self, config: AmortisedConfig) -> None:
        super().__init__()
        self.config, w = config, config.width
        self.enter = nn.Linear(3 + 6 * config.octaves + 23, w)
        self.blocks = nn.ModuleList(Block(w, config.heads) for _ in range(config.layers))
        self.leave = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 2 * w), nn.GELU(), nn.Linear(2 * w, 6 * config.coordinates))  # fmt: skip
        self.count = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.GELU(), nn.Linear(w, config.coordinates))
        self.bend = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.GELU(), nn.Linear(w, 1))

    def matrices(self) -> list[nn.Parameter]:
        """Hidden matrices of the blocks, for optimisers that treat those in their own way."""
        return [p for p in self.blocks.parameters() if p.ndim == 2]

    def forward(self, x: Tensor, normal: Tensor, box: Tensor, patch: Tensor, there: Tensor) -> Said:
        """For points and normals [b,c,m,3] of pieces that are ``there`` [b,c], with boxes [b,c,6], some of them patches [b,c]."""
        low, high = (v[:, :, None].expand_as(x) for v in box.split(3, -1))
        soft = patch[:, :, None, None].expand(*x.shape[:3], 1).to(x.dtype)
        # Also without its size: that a link is flat says about what it turns, however small it is beside the whole.
        side = high - low
        long = side.amax(-1, keepdim=True).clamp(min=THIN)
        form = [side / long, 2 * (x - low) / side.clamp(min=THIN) - 1, long.log()]
        y = self.enter(
            torch.cat([embedded(x, self.config.octaves), normal, x - low, high - x, low, high, soft, *form], -1)
        )
        for block in self.blocks:
            y = block(y, there)
        piece = y.mean(2) * there[:, :, None]
        counted = self.count(
            piece.sum(1) / there.sum(1)[:, None].clamp(min=1) + piece.masked_fill(~there[:, :, None], -1e4).amax(1)
        )
        raw = self.leave(piece).unflatten(-1, (self.config.coordinates, 6))
        w, u = 0.5 * raw[..., :3], 0.3 * raw[..., 3:]  # u: how the middle of the piece's box moves
        middle = ((low + high) / 2)[:, :, :1]
        v = u - torch.linalg.cross(w, middle.expand_as(w))
        return Said(twists=torch.cat([w, v], -1) * there[:, :, None, None], counted=counted, bends=self.bend(piece)[..., 0])  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Said:
    """What the network answers."""

    twists: Tensor
    """[b,c,k,6] of pieces and coordinates."""
    counted: Tensor
    """[b,k] logarithms of how likely it is that there are one, two, ... coordinates."""
    bends: Tensor
    """[b,c] logarithms of the odds that a part bends; said of parts that are looked at whole."""


def told(twists: Tensor, x: Tensor, there: Tensor) -> Tensor:
    """[b,3n,k] how fast all points [b,c,m,3] move with each coordinate of twists [b,c,k,6]."""
    w, v = (t[:, :, None] for t in twists.split(3, -1))  # b c 1 k 3
    many = (*x.shape[:3], *w.shape[3:])
    way = torch.linalg.cross(w.expand(many), x[:, :, :, None].expand(many)) + v
    return (way * there[:, :, None, None, None]).movedim(3, -1).flatten(1, 3)
