"""NeuROK's own model: a conditional variational auto-encoder whose decoder is a field over space (sections 4.1 to 4.3).

A Perceiver looks at points of a mesh and says the mean of a normal distribution of latents, of unit variance; a
second one looks at the same points and at how each is turned and shifted, as a dual quaternion, and says which
latents that was; a decoder takes latents and what the first has seen to a dual quaternion for any point that is asked
about. Points that are asked about do not see each other, so x = F(X; z) is a function of X: its slopes in z do not
depend on who else is asked. Nothing in it knows of parts, joints or screws, so whatever deforms can be learned:
jointed things, elastic ones, cloth, ropes. :mod:`.foretell` knows of rigid parts and is far more accurate on them
(docs/experiments.md); this one is for the others, and for the paper's ablations. It is taught in
train/object_field.py, and what becomes of one mesh is in :mod:`.field_object`. Attention is plain arithmetic:
derivatives of derivatives are needed, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kinema4d.objects import dual
from kinema4d.objects.limp import embedded
from kinema4d.weights_file import fill_in, read_weights, write_weights

FORMAT = "kinema4d object field 1"
"""What a file of weights says it is."""
COARSE = 3.0
"""Factor of weights on what is smooth, at first."""
SURE = -3.0
"""Logarithm of the deviation of the posterior at first."""
AGAIN = "train one with kinema4d objects train --model field"


@dataclass(frozen=True, kw_only=True)
class FieldConfig:
    """Of the network."""

    points: int = 256
    """That are looked at; more or fewer may be shown later."""
    width: int = 96
    """Channels inside."""
    tokens: int = 8
    """Latent tokens."""
    channels: int = 4
    """Latents of each token."""
    seen: int = 24
    """More tokens of the prior encoder, which have no latents but tell the decoder what was seen."""
    blocks: tuple[int, int, int] = (2, 2, 3)
    """Of self-attention in the prior encoder, the posterior encoder and the decoder."""
    looks: int = 2
    """Times that a point which is asked about looks at the tokens."""
    heads: int = 4
    """Of attention."""
    octaves: int = 8
    """Of the embedding of places (3DShape2VecSet)."""
    dual: bool = True
    """Deformations as dual quaternions; without, as displacements (the paper's ablation)."""
    parts: bool = False
    """Tell every point the middle and radius of the connected part of the mesh that it is on. Not in the paper."""

    @property
    def latents(self) -> int:
        """All."""
        return self.tokens * self.channels


PRESETS = {
    "small": FieldConfig(),
    "large": FieldConfig(points=2048, width=512, tokens=32, channels=8, seen=32, blocks=(8, 8, 12), heads=8),
}
"""For a CPU, and for a GPU."""


class Norm(nn.LayerNorm):
    """In plain arithmetic: of torch's own (2.13) a forward derivative of a forward derivative is wrong, and without
    an error."""

    def forward(self, input: Tensor) -> Tensor:
        """[...,width]."""
        away = input - input.mean(-1, keepdim=True)
        return away * (away.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


class Attention(nn.Module):
    """Of one set to another, without fused kernels."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """[b,n,width] looks at [b,m,width]."""
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q(x), *self.kv(other).chunk(2, -1)))
        share = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((share @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention to another set, or to its own, then a small network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(width) for _ in range(3))
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """[b,n,width]; ``other`` [b,m,width]."""
        own = self.norms[0](x)
        x = x + self.attention(own, own if other is None else self.norms[1](other))
        return x + self.mlp(self.norms[2](x))


def entrance(inputs: int, places: int, config: FieldConfig) -> nn.Sequential:
    """The small network after the embedding of ``places`` places and other numbers. The finer a wave, the less it
    counts at first: two points that are not the same are then no strangers."""
    first = nn.Linear(inputs, config.width)
    waves = (2.0 ** -torch.arange(config.octaves, dtype=torch.float32)).repeat(6)
    one = torch.cat([torch.full((3,), COARSE), COARSE * waves])
    with torch.no_grad():
        first.weight *= torch.cat([one.repeat(places), torch.full((inputs - places * len(one),), COARSE)])
    return nn.Sequential(first, nn.GELU(), nn.Linear(config.width, config.width))


class Perceiver(nn.Module):
    """However many points to a few tokens: learned ones look at the points, then at each other (Jaegle et al. 2021)."""

    def __init__(self, inputs: int, tokens: int, blocks: int, config: FieldConfig) -> None:
        super().__init__()
        w = config.width
        self.enter = entrance(inputs, 1 + config.parts, config)
        self.tokens = nn.Parameter(0.5 * torch.randn(tokens, w))
        self.look = Block(w, config.heads)
        self.blocks = nn.ModuleList(Block(w, config.heads) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """[b,n,inputs] to [b,tokens,width]."""
        y = self.look(self.tokens.expand(len(x), -1, -1), self.enter(x))
        for block in self.blocks:
            y = block(y)
        return y


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Places on a mesh, in its unit box."""

    x: Tensor
    """[b,n,3]."""
    part: Tensor | None = None
    """[b,n,4] middle and radius of the part that each is on; None where the model does not ask."""

    def __getitem__(self, pick: Any) -> Points:
        """Some of the points."""
        return Points(x=self.x[:, pick], part=None if self.part is None else self.part[:, pick])

    def repeated(self, times: int) -> Points:
        """Every object so many times, one after the other."""
        twice = lambda v: v.repeat_interleave(times, 0)  # noqa: E731
        return Points(x=twice(self.x), part=None if self.part is None else twice(self.part))


class FieldNet(nn.Module):
    """Prior encoder, variational encoder, decoder."""

    def __init__(self, config: FieldConfig) -> None:
        super().__init__()
        self.config, w = config, config.width
        place = 3 + 6 * config.octaves
        inputs = place * (1 + config.parts) + config.parts
        self.prior = Perceiver(inputs, config.tokens + config.seen, config.blocks[0], config)
        self.posterior = Perceiver(inputs + (8 if config.dual else 3), config.tokens, config.blocks[1], config)
        self.mean = nn.Sequential(Norm(w), nn.Linear(w, config.channels))
        self.said = nn.Sequential(Norm(w), nn.Linear(w, 2 * config.channels))
        with torch.no_grad():  # sure of itself at first: noise as wide as the prior would hide what there is to say
            list(self.said.parameters())[-1][config.channels :] = SURE
        self.latent = nn.Linear(config.channels, w)
        self.which = nn.Parameter(0.5 * torch.randn(config.tokens, w))
        self.blocks = nn.ModuleList(Block(w, config.heads) for _ in range(config.blocks[2]))
        self.ask = entrance(inputs, 1 + config.parts, config)
        self.looks = nn.ModuleList(Block(w, config.heads) for _ in range(config.looks))
        last = nn.Linear(w, 8 if config.dual else 3)
        nn.init.normal_(last.weight, std=1e-3)  # nothing moves at first
        nn.init.zeros_(last.bias)
        self.leave = nn.Sequential(Norm(w), last)

    def matrices(self) -> list[nn.Parameter]:
        """Hidden matrices of the blocks, for optimisers that treat those in their own way."""
        hold = [self.prior.look, self.prior.blocks, self.posterior.look, self.posterior.blocks, self.blocks, self.looks]
        return [p for part in hold for p in part.parameters() if p.ndim == 2]

    def embed(self, points: Points) -> Tensor:
        """[b,n,inputs]."""
        out = [embedded(points.x, self.config.octaves)]
        if self.config.parts:
            if points.part is None:
                raise ValueError("this model is told the part of the mesh that a point is on, and was not")
            out += [embedded(points.part[..., :3], self.config.octaves), points.part[..., 3:]]
        return torch.cat(out, -1)

    def conditioned(self, points: Points) -> tuple[Tensor, Tensor]:
        """What was seen [b,tokens + seen,width], and the mean [b,latents] of the prior."""
        seen = self.prior(self.embed(points))
        return seen, self.mean(seen[:, : self.config.tokens]).flatten(1)

    def encoded(self, points: Points, deformation: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the deviation [b,latents] of the latents of a deformation [b,n,8 or 3]."""
        y = self.said(self.posterior(torch.cat([self.embed(points), deformation], -1)))
        mean, log = y.chunk(2, -1)
        return mean.flatten(1), log.flatten(1).clamp(-8, 4)

    def decoded(self, seen: Tensor, z: Tensor, points: Points) -> Tensor:
        """Deformations [b,n,8 or 3] of points that are asked about, none of which sees another."""
        tokens = self.latent(z.unflatten(-1, (self.config.tokens, -1))) + self.which
        tokens = torch.cat([tokens, seen], 1)
        for block in self.blocks:
            tokens = block(tokens)
        y = self.ask(self.embed(points))
        for look in self.looks:
            y = look(y, tokens)
        raw = self.leave(y)
        if not self.config.dual:
            return raw
        # softplus keeps w above zero without a step: half turns are the limit; it is 1 where nothing is said
        w = nn.functional.softplus(raw[..., :1] + 0.541324854612918)
        return dual.unit(torch.cat([w, raw[..., 1:]], -1))

    def moved(self, deformation: Tensor, x: Tensor) -> Tensor:
        """Points [...,3] after deformations [...,8 or 3]."""
        return dual.moved(deformation, x) if self.config.dual else x + deformation


def divergence(mean: Tensor, log: Tensor, prior: Tensor) -> Tensor:
    """[b,latents] KL of N(mean, exp(log)^2) from N(prior, 1)."""
    return 0.5 * ((2 * log).exp() + (mean - prior).square() - 1) - log


def ordered(z: Tensor, prior: Tensor, keep: Tensor) -> Tensor:
    """Latents [b,d] of which only the first ``keep`` [b] differ from the prior's mean: nested dropout of the residual
    (Rippel et al. 2014)."""
    return prior + (z - prior) * (torch.arange(z.shape[1], device=z.device) < keep[:, None])


def save_field(path: str | Path, net: FieldNet, about: Mapping[str, Any]) -> str:
    """As float16, with the configuration; returns the hash."""
    return write_weights(path, net.state_dict(), FORMAT, asdict(net.config), dict(about))


def load_field(path: str | Path) -> tuple[FieldNet, dict[str, Any]]:
    """The network, and what is known about it; a file that is damaged or of another kind is refused."""
    state, config, about = read_weights(path, FORMAT, AGAIN)
    net = FieldNet(FieldConfig(**{**config, "blocks": tuple(config["blocks"])}))
    fill_in({"net": net}, {f"net.{n}": v for n, v in state.items()}, path, AGAIN)
    return net.eval().requires_grad_(False), about
