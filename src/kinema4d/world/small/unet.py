"""A small U-Net for pictures: what the seeing networks are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)])
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[b,c,h,w] with other channels."""
        y = F.silu(self.norms[0](self.first(x)))
        return F.silu(self.norms[1](self.second(y)) + self.skip(x))


class UNet(nn.Module):
    """Down by halves and up again; sides need not be multiples of anything."""

    def __init__(self, inputs: int, outputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList(Layer(a, b) for a, b in zip((inputs, *widths[:-1]), widths, strict=True))
        pairs = zip(reversed(widths[1:]), reversed(widths[:-1]), strict=True)
        self.up = nn.ModuleList(Layer(a + b, b) for a, b in pairs)
        self.out = nn.Conv2d(widths[0], outputs, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, x: Tensor) -> Tensor:
        """[b,inputs,h,w] to [b,outputs,h,w]."""
        kept = []
        for i, layer in enumerate(self.down):
            x = layer(F.avg_pool2d(x, 2, ceil_mode=True) if i else x)
            kept.append(x)
        kept.pop()
        for layer in self.up:
            other = kept.pop()
            x = F.interpolate(x, size=other.shape[-2:], mode="bilinear", align_corners=False)
            x = layer(torch.cat([x, other], 1))
        return self.out(x)
