"""The kinematics of one object, learned from its own deforming mesh: latents in order of importance, and a decoder (NeuROK for one instance).

Nested dropout orders the latents: what the first few can say, they have to say, so an object with two degrees of freedom uses two. Every
vertex has features of its own beside its place: parts that touch may move apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kinema4d.objects.deform import deformed, embedded


@dataclass(frozen=True, kw_only=True)
class OneConfig:
    """Of the network."""

    points: int
    """That are decoded."""
    seen: int
    """That are encoded, of those."""
    latents: int = 8
    """At most so many degrees of freedom are found."""
    width: int = 128
    """Channels."""
    octaves: int = 4
    """Of the embedding of places."""
    features: int = 8
    """Of every point, learned."""


class OneNet(nn.Module):
    """Encoder and decoder of one object in its unit box."""

    rest: Tensor
    seen: Tensor

    def __init__(self, config: OneConfig) -> None:
        super().__init__()
        self.config = config
        w, k = config.width, config.latents
        self.register_buffer("rest", torch.zeros(config.points, 3))
        self.register_buffer("seen", torch.zeros(config.seen, dtype=torch.long))
        self.own = nn.Parameter(0.1 * torch.randn(config.points, config.features))
        self.encoder = nn.Sequential(nn.Linear(3 * config.seen, w), nn.SiLU(), nn.Linear(w, w), nn.SiLU(), nn.Linear(w, 2 * k))  # fmt: skip
        self.state = nn.Sequential(nn.Linear(k, w), nn.SiLU(), nn.Linear(w, w))
        self.place = nn.Sequential(nn.Linear(3 + 6 * config.octaves + config.features, w), nn.SiLU(), nn.Linear(w, w))
        self.answer = nn.Sequential(nn.SiLU(), nn.Linear(w, w), nn.SiLU(), nn.Linear(w, 7))

    def encode(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log deviation [b,k] of deformed points [b,n,3]."""
        mean, spread = self.encoder(3 * (points[:, self.seen] - self.rest[self.seen]).flatten(1)).chunk(2, -1)
        return mean, spread - 2

    def decode(self, z: Tensor, which: Tensor | None = None) -> Tensor:
        """Points [b,n,3], all or some, for latents [b,k]."""
        rest, own = (self.rest, self.own) if which is None else (self.rest[which], self.own[which])
        where = self.place(torch.cat([embedded(rest, self.config.octaves), own], -1))
        raw = self.answer(self.state(z)[:, None] * (1 + where) + where)
        return deformed(rest.expand(len(z), -1, -1), raw)
