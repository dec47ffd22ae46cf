"""The InceptionV3 of FID (Heusel et al. 2017): TensorFlow's of 2015-12-05, not the one of torchvision.

State as in ``pt_inception-2015-12-05-6726825d.pth``. Against torchvision's network its average pools do not count
their padding, and the last block pools by maximum. In: RGB 0..255, resized to 299x299 as TensorFlow 1 does, then
``(x - 128) / 128``. Out: the 2048 numbers of the last average pool ("pool3").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, relu

from kinema4d.evaluate.networks import resize_tf1

SIDE = 299
"""Height and width that the network takes."""
FEATURES = 2048
"""Numbers per image."""

_Path = tuple[tuple[str, int, tuple[int, int], int], ...]
"""Convolutions in a row: name, channels, kernel (y, x), stride; padded to keep the size where the stride is 1."""


class Conv(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int], stride: int, *, pad: bool) -> None:
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2) if pad else (0, 0)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """All three."""
        return relu(self.bn(self.conv(x)))


class Block(nn.Module):
    """Branches side by side; a branch that ends in several convolutions gives the channels of each."""

    def __init__(self, inputs: int, branches: Sequence[_Path], forks: Sequence[_Path], pool: tuple[str, int]) -> None:
        super().__init__()
        self.branches = [[name for name, *_ in branch] for branch in branches]
        self.forks = [[name for name, *_ in fork] for fork in forks]
        self.pool, pooled = pool
        for b, branch in enumerate(branches):
            channels = inputs
            for name, outputs, kernel, stride in branch:
                self.add_module(name, Conv(channels, outputs, kernel, stride, pad=stride == 1))
                channels = outputs
            for name, outputs, kernel, stride in forks[b] if forks else ():
                self.add_module(name, Conv(channels, outputs, kernel, stride, pad=True))
        if pooled:
            self.branch_pool = Conv(inputs, pooled, (1, 1), 1, pad=False)

    def forward(self, x: Tensor) -> Tensor:
        """The branches' channels, then the pooled ones."""
        out = []
        for b, names in enumerate(self.branches):
            y = x
            for name in names:
                y = self.get_submodule(name)(y)
            forks = self.forks[b] if self.forks else ()
            out += [self.get_submodule(name)(y) for name in forks] or [y]
        if self.pool == "half":
            out.append(max_pool2d(x, 3, 2))
        elif self.pool == "max":
            out.append(self.branch_pool(max_pool2d(x, 3, 1, 1)))
        else:
            out.append(self.branch_pool(avg_pool2d(x, 3, 1, 1, count_include_pad=False)))
        return torch.cat(out, 1)


def _chain(name: str, *steps: tuple[int, tuple[int, int]], last_stride: int = 1) -> _Path:
    n = len(steps)
    return tuple((f"{name}_{i + 1}", c, k, last_stride if i == n - 1 else 1) for i, (c, k) in enumerate(steps))


_ONE, _ROW, _COLUMN, _THREE = (1, 1), (1, 7), (7, 1), (3, 3)


def _a(inputs: int, pooled: int) -> Block:
    return Block(
        inputs,
        [
            (("branch1x1", 64, _ONE, 1),),
            _chain("branch5x5", (48, _ONE), (64, (5, 5))),
            _chain("branch3x3dbl", (64, _ONE), (96, _THREE), (96, _THREE)),
        ],
        (),
        ("average", pooled),
    )


def _b(inputs: int) -> Block:
    dbl = _chain("branch3x3dbl", (64, _ONE), (96, _THREE), (96, _THREE), last_stride=2)
    return Block(inputs, [(("branch3x3", 384, _THREE, 2),), dbl], (), ("half", 0))


def _c(inputs: int, c: int) -> Block:
    return Block(
        inputs,
        [
            (("branch1x1", 192, _ONE, 1),),
            _chain("branch7x7", (c, _ONE), (c, _ROW), (192, _COLUMN)),
            _chain("branch7x7dbl", (c, _ONE), (c, _COLUMN), (c, _ROW), (c, _COLUMN), (192, _ROW)),
        ],
        (),
        ("average", 192),
    )


def _d(inputs: int) -> Block:
    return Block(
        inputs,
        [
            _chain("branch3x3", (192, _ONE), (320, _THREE), last_stride=2),
            _chain("branch7x7x3", (192, _ONE), (192, _ROW), (192, _COLUMN), (192, _THREE), last_stride=2),
        ],
        (),
        ("half", 0),
    )


def _e(inputs: int, pool: str) -> Block:
    def fork(name: str) -> _Path:
        return ((f"{name}a", 384, (1, 3), 1), (f"{name}b", 384, (3, 1), 1))

    return Block(
        inputs,
        [
            (("branch1x1", 320, _ONE, 1),),
            _chain("branch3x3", (384, _ONE)),
            _chain("branch3x3dbl", (448, _ONE), (384, _THREE)),
        ],
        [(), fork("branch3x3_2"), fork("branch3x3dbl_3")],
        (pool, 192),
    )


class Inception(nn.Module):
    """The network without its classifier; state as :func:`kinema4d.evaluate.weights.load` gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Conv(3, 32, _THREE, 2, pad=False)
        self.Conv2d_2a_3x3 = Conv(32, 32, _THREE, 1, pad=False)
        self.Conv2d_2b_3x3 = Conv(32, 64, _THREE, 1, pad=True)
        self.Conv2d_3b_1x1 = Conv(64, 80, _ONE, 1, pad=False)
        self.Conv2d_4a_3x3 = Conv(80, 192, _THREE, 1, pad=False)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _a(192, 32), _a(256, 64), _a(288, 64)
        self.Mixed_6a = _b(288)
        self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e = (
            _c(768, 128),
            _c(768, 160),
            _c(768, 160),
            _c(768, 192),
        )
        self.Mixed_7a = _d(768)
        self.Mixed_7b, self.Mixed_7c = _e(1280, "average"), _e(FEATURES, "max")
        self.eval()  # the batch norms' statistics are part of the weights

    def forward(self, images: Tensor) -> Tensor:
        """Features ``[n, 2048]`` of images ``[n, 3, h, w]`` with values 0..255."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"Inception takes images [n, 3, h, w], got {list(images.shape)}")
        x = (resize_tf1(images.float(), SIDE, SIDE) - 128) / 128
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(max_pool2d(x, 3, 2)))
        x = max_pool2d(x, 3, 2)
        for name, block in self.named_children():
            if name.startswith("Mixed"):
                x = block(x)
        return x.mean((2, 3))
