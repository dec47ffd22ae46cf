"""LPIPS v0.1 (Zhang et al. 2018): how differently AlexNet or VGG16 sees two images.

Images are RGB in [-1, 1] (``uint8 / 127.5 - 1``), float32 ``[n, 3, h, w]``, at their own size. A scaling layer turns
them into what the backbones were trained on; five layers are normalised to unit length per pixel; their squared
differences are weighted per channel by heads fitted to people's judgement, averaged over the image, and added up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"""The scaling layer: ImageNet's mean and deviation, for images in [-1, 1]."""
EPSILON = 1e-10
"""Added to the length of a feature before dividing by it."""


class Conv(NamedTuple):
    """One convolution of a backbone."""

    channels: int
    kernel: int
    stride: int
    padding: int
    pool: int
    """Side of the max pool (stride 2) before it, or 0."""
    tap: bool
    """Whether its ReLU is one of the five layers that are compared."""


def _vgg(*blocks: tuple[int, int]) -> tuple[Conv, ...]:
    return tuple(
        Conv(channels, 3, 1, 1, 2 if i == 0 and b > 0 else 0, i == count - 1)
        for b, (channels, count) in enumerate(blocks)
        for i in range(count)
    )


BACKBONES = {
    "alex": (
        Conv(64, 11, 4, 2, 0, True),
        Conv(192, 5, 1, 2, 3, True),
        Conv(384, 3, 1, 1, 3, True),
        Conv(256, 3, 1, 1, 0, True),
        Conv(256, 3, 1, 1, 0, True),
    ),
    "vgg": _vgg((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)),
}
"""Convolutions by backbone; each is followed by a ReLU."""
SMALLEST = {"alex": 31, "vgg": 16}
"""Least image side in pixels: below, a pool has nothing to pool."""


class Lpips(nn.Module):
    """Backbone and heads; state as :func:`kinema4d.evaluate.weights.load` gives it."""

    def __init__(self, backbone: str) -> None:
        super().__init__()
        if backbone not in BACKBONES:
            raise ValueError(f"LPIPS backbones are {', '.join(BACKBONES)}, got {backbone!r}")
        self.backbone = backbone
        self.layers = BACKBONES[backbone]
        inputs = (3, *(layer.channels for layer in self.layers))
        self.convs = nn.ModuleList(
            nn.Conv2d(c, layer.channels, layer.kernel, layer.stride, layer.padding)
            for c, layer in zip(inputs, self.layers, strict=False)
        )
        self.heads = nn.ParameterList(torch.zeros(layer.channels) for layer in self.layers if layer.tap)

    def taps(self, images: Tensor) -> list[Tensor]:
        """The five ReLU outputs."""
        least = SMALLEST[self.backbone]
        if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < least:
            raise ValueError(
                f"LPIPS with {self.backbone} takes images [n, 3, h, w] of at least {least}x{least} pixels, "
                f"got {list(images.shape)}"
            )
        shift, scale = (images.new_tensor(v).reshape(1, 3, 1, 1) for v in (SHIFT, SCALE))
        x = ((images - shift) / scale).contiguous(memory_format=torch.channels_last)
        found = []
        for conv, layer in zip(self.convs, self.layers, strict=True):
            if layer.pool:
                x = max_pool2d(x, layer.pool, 2)
            x = relu(conv(x))
            if layer.tap:
                found.append(x)
        return found

    def features(self, images: Tensor) -> list[Tensor]:
        """The five layers, of unit length in every pixel."""
        return [tap / (tap.square().sum(1, keepdim=True).sqrt() + EPSILON) for tap in self.taps(images)]

    def distance(self, a: list[Tensor], b: list[Tensor]) -> Tensor:
        """Distance ``[n]`` between images whose ``features`` these are."""
        parts = [
            torch.einsum("nchw,c->n", (x - y).square(), head) / (x.shape[2] * x.shape[3])
            for x, y, head in zip(a, b, self.heads, strict=True)
        ]
        return torch.stack(parts).sum(0)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Distance ``[n]`` between images in [-1, 1]."""
        if a.shape != b.shape:
            raise ValueError(f"LPIPS compares images of one size, got {list(a.shape)} and {list(b.shape)}")
        return self.distance(self.features(a), self.features(b))
