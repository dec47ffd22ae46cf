"""How the diffusion transformer's tokens become pixels: what a VAE's decoder is to the paper.

A token cannot hold the outline of a robot in hundreds of pixels, and need not: each pixel knows whether it shows the robot, and what
of the first frame has moved there. That was worth more than any patience in training (docs/experiments.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kinema4d.world.small.diffusion_config import STRIDE, TELLS, DiffusionConfig


def touches(reach: Tensor, config: DiffusionConfig) -> Tensor:
    """[b,times,frames,k,4] of all places to tokens [b,times*places,4*frames*...] of those in their own patches."""
    (_, h, w), (_, rows, columns) = config.patch, config.grid
    x = reach.unflatten(3, (rows, h // STRIDE, columns, w // STRIDE))  # b times frames rows h columns w 4
    return x.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(4).flatten(1, 3)


def touched_pixels(touched: Tensor | None, mask: Tensor, config: DiffusionConfig) -> Tensor:
    """The same for every pixel of every token: [b,n,4*pixels] beside ``mask`` [b,n,pixels]; zero where it is not known."""
    p, h, w = config.patch
    if touched is None:
        return mask.new_zeros(*mask.shape[:2], len(TELLS) * config.pixels)
    x = touched.unflatten(-1, (len(TELLS), p, h // STRIDE, w // STRIDE))
    x = x.repeat_interleave(STRIDE, -1).repeat_interleave(STRIDE, -2).flatten(2)
    return x.repeat(1, mask.shape[1] // x.shape[1], 1)


class PixelHead(nn.Module):
    """From a token and what is known of each of its pixels to their values: one hidden layer whose output weights the token says."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.shape = (1 + 3 * config.stacked, config.detail)
        inputs = len(self.inputs(config))
        self.weight = nn.Parameter(torch.randn(config.detail, inputs) * inputs**-0.5)
        self.place = nn.Parameter(0.1 * torch.randn(config.detail, config.pixels))
        self.shift = nn.Linear(config.channels, config.detail)
        self.mix = nn.Linear(config.channels, self.shape[0] * self.shape[1])
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    @staticmethod
    def inputs(config: DiffusionConfig) -> list[str]:
        """What is known of a pixel, by name, in this order."""
        kinds = ("colour", "points")[: config.domains]
        told = (
            kinds if config.domains > 1 else ("points",)
        )  # where only colour is made, the robot is told by its points all the same
        planes = [("noisy", kinds), ("first", kinds), ("robot", told)]
        planes += [("base", kinds)] if config.prior or config.moving else []
        names = [f"{name} {kind} {i}" for name, every in planes for kind in every for i in range(3)]
        names += [
            "mask",
            *(["known"] if config.prior else []),
            *(TELLS if config.touches else []),
            *(["left", "cover"] if config.moving else []),
        ]
        return names

    def forward(self, y: Tensor, planes: list[Tensor], coarse: Tensor) -> Tensor:
        """Tokens [b,n,c], what is known of their pixels, [b,n,channels*pixels] each, and the token's own answer: how much of that
        each pixel leaves out (the ground behind a robot), and what it adds."""
        pixels = self.place.shape[1]
        x = torch.cat([p.unflatten(-1, (-1, pixels)) for p in planes], 2)
        x, shape = x.flatten(0, 1), (-1, *self.shape)
        shift, mix = self.shift(y).flatten(0, 1)[..., None], self.mix(y).reshape(shape)
        hidden = torch.bmm(self.weight.expand(len(x), -1, -1), x).add_(self.place).add_(shift).relu_()
        out = torch.bmm(mix, hidden).unflatten(0, y.shape[:2])
        return (coarse.unflatten(-1, (-1, pixels)) * (1 - out[:, :, :1]) + out[:, :, 1:]).flatten(2)
