"""The paper's 4D diffusion transformer (section 3.2, figure 2), small: colour and pointmap of the future at once.

A clip is cut into patches of pixels (no VAE: docs/experiments.md), the first frame alone and then groups of frames, as a
causal video VAE would. Colour and pointmap are two domains side by side that share their rotary positions and are told apart
by learned embeddings. Known to every token: the first image, the robot's pointmap through a projection that starts at zero, a
soft mask. Robot tokens stand where a text model has its words. The network says where the flow ends (x-prediction).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.world.small.diffusion_config import STRIDE, TELLS, DiffusionConfig
from kinema4d.world.small.hints import Hints
from kinema4d.world.small.moves import Moves, drawn
from kinema4d.world.small.pixels import PixelHead, touched_pixels, touches


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a clip, as tokens [b,n,...] in the order of :func:`positions`; n may be some of all tokens."""

    first: Tensor
    """The first image in the tokens of colour, at every time; with an ``environment`` also its points in theirs."""
    robot: Tensor
    """The robot's signal, zero where there is none."""
    mask: Tensor
    """Where the robot is, 0..1."""
    prior: Tensor | None
    """The moved prior, and last whether it is known; None but in painters."""
    where: Tensor
    """[b,n,3] time, row and column of every token, [b,n] its domain in the last: [b,n,4] integers."""
    hints: Tensor
    """[b,k,...] what is read by cross-attention: robot patches, actions, or numbers of words."""
    told: str
    """Which of these."""
    when: Tensor
    """[b,times] which groups of frames these are."""
    reach: Tensor | None = None
    """[b,times,frames,k,3] of each place of the first frame: how near the robot is, how near it has come, and what the hand would have
    carried there; None where nobody knows."""
    carry: Tensor | None = None
    """[b,times,frames,k,6] how far the hand would have carried what was there, and pushed it."""
    places: Tensor | None = None
    """[b,h*w,4] points of the first frame's pixels, and last whether they are known; in models that move them."""
    lens: Tensor | None = None
    """[b,3,4] from points to the pixels (column, row) that show them, homogeneous."""


def rotary(where: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [b,1,n,size/2] of rotary positions over time, rows and columns; domains share them."""
    pairs = size // 2
    share = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    angles = []
    for axis, count in enumerate(share):
        rate = 1.0 / 100.0 ** (torch.arange(count) / max(count, 1))
        angles.append(where[..., axis, None].float() * rate)
    angle = torch.cat(angles, -1)[:, None]
    return angle.cos(), angle.sin()


def turned(x: Tensor, around: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys [b,heads,n,size], turned by their positions."""
    a, b = x.chunk(2, -1)
    cos, sin = around
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int] | None = None, axis: int = 3) -> Tensor:
    """Attention [b,heads,n,size] over all tokens, or on a ``grid`` of times and places among those of one time (axis 3) or
    of one place (axis 4), of both domains."""
    if grid is None:
        return F.scaled_dot_product_attention(q, k, v)
    q, k, v = (x.unflatten(2, (-1, *grid)).movedim(axis, 1).flatten(3, 4) for x in (q, k, v))
    x = F.scaled_dot_product_attention(q, k, v)
    return x.unflatten(3, (-1, grid[4 - axis])).movedim(1, axis).flatten(2, 4)


class Block(nn.Module):
    """Self-attention over the clip, cross-attention to the hints, and an MLP; the time of the flow scales them."""

    def __init__(self, channels: int, heads: int, axis: int) -> None:
        super().__init__()
        self.heads, self.axis = heads, axis
        self.norms = nn.ModuleList(nn.LayerNorm(channels, elementwise_affine=False) for _ in range(3))
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.ask, self.hints, self.told = (nn.Linear(channels, n * channels) for n in (1, 2, 1))
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU("tanh"), nn.Linear(4 * channels, channels))
        self.scales = nn.Linear(channels, 6 * channels)
        for layer in (self.scales, self.told):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():  # open from the start: the last layer of the network is zero already
            self.scales.bias.view(6, channels)[[2, 5]] = 1.0

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, hints: Tensor, around: tuple, time: Tensor, grid: tuple[int, int] | None) -> Tensor:
        """Tokens [b,n,c], hints [b,k,c], time of the flow [b,c]."""
        a1, b1, g1, a2, b2, g2 = self.scales(F.silu(time))[:, None].chunk(6, -1)
        q, k, v = (self._split(y) for y in self.qkv(self.norms[0](x) * (1 + a1) + b1).chunk(3, -1))
        y = attend(turned(q, around), turned(k, around), v, grid, self.axis)
        x = x + g1 * self.out(y.transpose(1, 2).flatten(2))
        k, v = (self._split(y) for y in self.hints(hints).chunk(2, -1))
        x = x + self.told(attend(self._split(self.ask(self.norms[1](x))), k, v).transpose(1, 2).flatten(2))
        return x + g2 * self.mlp(self.norms[2](x) * (1 + a2) + b2)


class DiffusionNet(nn.Module):
    """From a noisy clip and what is known of it to the clip."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.config = config
        c, pixels, s = config.channels, config.pixels, config.stacked
        self.noisy, self.first = nn.Linear(3 * pixels * s, c), nn.Linear(3 * pixels * s, c)
        self.robot = nn.Linear(3 * pixels * s, c)  # starts at zero, as ControlNet's (appendix B.1)
        self.mask = nn.Linear(pixels, c)
        self.prior = nn.Linear(3 * pixels * s + pixels, c) if config.prior else None
        self.domain = nn.Parameter(0.02 * torch.randn(config.domains, c))
        self.hints = Hints(config, c)
        self.time = nn.Sequential(nn.Linear(64, c), nn.SiLU(), nn.Linear(c, c))
        self.blocks = nn.ModuleList(Block(c, config.heads, 3 + i % 2) for i in range(config.layers))
        self.norm, self.out = nn.LayerNorm(c), nn.Linear(c, 3 * pixels * s)
        self.pixels = PixelHead(config) if config.detail else None
        self.moves = Moves(config) if config.moving else None
        self.touch = nn.Linear(len(TELLS) * pixels // STRIDE**2, c) if config.touches else None
        for layer in (self.robot, self.out, *([self.touch] if self.touch else [])):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def matrices(self) -> list[nn.Parameter]:
        """Hidden matrices of the blocks, for optimisers that treat those in their own way."""
        return [p for n, p in self.blocks.named_parameters() if p.ndim == 2 and "scales" not in n]

    def forward(self, x: Tensor, known: Known, time: Tensor) -> Tensor:
        """Noisy tokens [b,n,3*pixels] at ``time`` [b] of the flow, 0 noise to 1 clip: the tokens of the clip, as what is
        added to the prior, else to the first frame."""
        angle = 1000.0 * time[:, None] * torch.exp(-9.2 * torch.arange(32) / 32)
        t = self.time(torch.cat([angle.cos(), angle.sin()], -1))
        x = x * (4 * time).clamp(max=1)[:, None, None]  # nothing but noise is nothing to look at
        y = self.noisy(x) + self.first(known.first) + self.robot(known.robot) + self.mask(known.mask)
        if self.prior is not None:
            assert known.prior is not None
            y = y + self.prior(known.prior)
        y = y + self.domain[known.where[..., 3]]
        sides = len(self.domain) // self.config.stacked
        touched = None if known.reach is None or self.touch is None else touches(known.reach, self.config)
        if self.touch is not None and touched is not None:
            y = y + self.touch(touched).repeat(1, sides, 1)
        hints = self.hints(known)
        around = rotary(known.where, self.config.channels // self.config.heads)
        _, rows, columns = self.config.grid
        times = y.shape[1] // (sides * rows * columns)
        grid = (times, rows * columns) if self.config.attention == "split" else None
        for block in self.blocks:
            y = block(y, hints, around, t, grid)
        base, once = known.first, [known.mask]
        if known.prior is not None:
            base = known.prior[..., : x.shape[-1]]
            once.append(known.prior[..., x.shape[-1] :])
        y = self.norm(y)
        if self.touch is not None:
            once.append(touched_pixels(touched, known.mask, self.config))
        if self.moves is not None:
            base, came = drawn(self.moves(known), known.first, known, self.config)
            once.append(came.repeat(1, sides, 1))
        if self.pixels is None:
            return base + self.out(y)
        planes = [x, known.first, known.robot] + ([base] if base is not known.first else [])
        if self.config.domains > self.config.stacked:  # side by side: a pixel sees both of its halves
            planes = [torch.cat(p.chunk(2, 1), -1).repeat(1, 2, 1) for p in planes]
        return self.pixels(y, planes + once, base + self.out(y))
