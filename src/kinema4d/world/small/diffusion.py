"""The paper's 4D diffusion transformer (section 3.2, figure 2), small: colour and pointmap of the future at once.

A clip is cut into patches of pixels (no VAE: docs/experiments.md), the first frame alone and then groups of frames, as a
causal video VAE would. Colour and pointmap are two domains side by side that share their rotary positions and are told apart
by learned embeddings. Known to every token: the first image, the robot's pointmap through a projection that starts at zero, a
soft mask. Robot tokens stand where a text model has its words. The network says where the flow ends (x-prediction).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTROLS = ("pointmap", "pointmap+rgb", "rgb", "mask", "depth", "embedding", "text", "none")
"""What may tell the model of the robot (Tables 4 and VI)."""
ACTION = 10
"""Numbers of an action embedding per frame: hand position, the first two columns of its rotation, opening."""
WORDS, LONGEST = 1024, 16
"""Of the text: hashed words, and how many of an instruction are read."""


@dataclass(frozen=True, kw_only=True)
class DiffusionConfig:
    """One model. Every ablation of the paper is one of these fields."""

    frames: int = 49
    """Of a clip, 1 + a multiple of ``patch[0]``."""
    height: int = 48
    """Rows."""
    width: int = 72
    """Columns."""
    patch: tuple[int, int, int] = (4, 8, 8)
    """Frames (after the first), rows and columns of a token."""
    channels: int = 192
    """Width of the network."""
    layers: int = 6
    """Blocks."""
    heads: int = 6
    """Of attention."""
    control: str = "pointmap"
    """What tells of the robot, one of ``CONTROLS``."""
    output: Literal["4d", "2d"] = "4d"
    """Colour and pointmap, or colour alone."""
    layout: Literal["width", "channel"] = "width"
    """Domains as tokens side by side (the paper's), or stacked in the channels of one token."""
    mask: Literal["none", "hard", "soft"] = "soft"
    """Of the robot."""
    soft_ratio: float = 0.1
    """Share of the robot's positions at which a soft mask says 0.5."""
    environment: bool = False
    """Also the first frame's pointmap of the whole scene (Table VI, ``add env. pm``)."""
    prior: bool = False
    """Painter: also the moved prior, which the answer is a correction of."""

    def __post_init__(self) -> None:
        t, h, w = self.patch
        if (self.frames - 1) % t or self.height % h or self.width % w:
            size = f"{self.frames}x{self.height}x{self.width} cannot be cut into patches of {t}x{h}x{w}"
            raise ValueError(f"{size}: frames must be 1 + a multiple of {t}, rows of {h}, columns of {w}")
        if self.control not in CONTROLS:
            raise ValueError(f"unknown control {self.control!r}; known are {', '.join(CONTROLS)}")
        if self.channels % self.heads or (self.channels // self.heads) % 2:
            raise ValueError(f"{self.channels} channels cannot be shared by {self.heads} heads in pairs")
        if not 0 <= self.soft_ratio <= 1:
            raise ValueError(f"soft_ratio must be between 0 and 1, got {self.soft_ratio}")

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tokens of one domain along time, rows and columns."""
        t, h, w = self.patch
        return 1 + (self.frames - 1) // t, self.height // h, self.width // w

    @property
    def domains(self) -> int:
        """1 where only colour is made."""
        return 2 if self.output == "4d" else 1

    @property
    def stacked(self) -> int:
        """Domains in one token."""
        return self.domains if self.layout == "channel" else 1

    @property
    def pixels(self) -> int:
        """Of a patch."""
        t, h, w = self.patch
        return t * h * w


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


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain attention: on two cores it trains faster than the fused one up to some thousand tokens."""
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


class Block(nn.Module):
    """Self-attention over the clip, cross-attention to the hints, and an MLP; the time of the flow scales them."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(channels, elementwise_affine=False) for _ in range(3))
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.ask, self.hints, self.told = (nn.Linear(channels, n * channels) for n in (1, 2, 1))
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU("tanh"), nn.Linear(4 * channels, channels))
        self.scales = nn.Linear(channels, 6 * channels)
        for layer in (self.scales, self.told):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, hints: Tensor, around: tuple[Tensor, Tensor], time: Tensor) -> Tensor:
        """Tokens [b,n,c], hints [b,k,c], time of the flow [b,c]."""
        a1, b1, g1, a2, b2, g2 = self.scales(F.silu(time))[:, None].chunk(6, -1)
        q, k, v = (self._split(y) for y in self.qkv(self.norms[0](x) * (1 + a1) + b1).chunk(3, -1))
        x = x + g1 * self.out(attend(turned(q, around), turned(k, around), v).transpose(1, 2).flatten(2))
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
        inputs = {"embedding": ACTION * config.patch[0], "none": 1}.get(config.control, 3 * pixels)
        self.hint = nn.Embedding(WORDS, c) if config.control == "text" else nn.Linear(inputs, c)
        self.time = nn.Sequential(nn.Linear(64, c), nn.SiLU(), nn.Linear(c, c))
        self.blocks = nn.ModuleList(Block(c, config.heads) for _ in range(config.layers))
        self.norm, self.out = nn.LayerNorm(c), nn.Linear(c, 3 * pixels * s)
        for layer in (self.robot, self.out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, known: Known, time: Tensor) -> Tensor:
        """Noisy tokens [b,n,3*pixels] at ``time`` [b] of the flow, 0 noise to 1 clip: the tokens of the clip, as what is
        added to the prior, else to the first frame."""
        angle = 1000.0 * time[:, None] * torch.exp(-9.2 * torch.arange(32) / 32)
        t = self.time(torch.cat([angle.cos(), angle.sin()], -1))
        y = self.noisy(x) + self.first(known.first) + self.robot(known.robot) + self.mask(known.mask)
        if self.prior is not None:
            assert known.prior is not None
            y = y + self.prior(known.prior)
        y = y + self.domain[known.where[..., 3]]
        hints, around = self.hint(known.hints), rotary(known.where, self.config.channels // self.config.heads)
        for block in self.blocks:
            y = block(y, hints, around, t)
        base = known.first if known.prior is None else known.prior[..., : x.shape[-1]]
        return base + self.out(self.norm(y))
