"""I3D of Carreira and Zisserman 2017 on RGB, trained on Kinetics-400: what FVD looks through.

The output is what Unterthiner et al. 2018 use for FVD: the 400 logits, averaged over the remaining time steps, before
any softmax. In: frames in [-1, 1] at 224x224, resized with :func:`~kinema4d.evaluate.networks.resize_tf1`.

Padding is TensorFlow's ``SAME``, which puts the odd pixel after the image and not before it. Batch norms are folded
into their convolutions when the weights are fetched. A clip
is ``[t, c, h, w]`` throughout and all work is 2D over its frames, with a kernel's temporal taps stacked as channels:
on a CPU, 3D pools and small 3D convolutions are several times slower.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, pad

SIDE = 224
"""Height and width that the network takes."""
LEAST_FRAMES = 9
"""Three halvings of time must leave the two steps that the last pool spans."""
LOGITS = 400
"""Classes of Kinetics-400."""

STEM = (("Conv3d_1a_7x7", 3, 64, 7, 2), ("Conv3d_2b_1x1", 64, 64, 1, 1), ("Conv3d_2c_3x3", 64, 192, 3, 1))
"""First convolutions: name, channels in and out, kernel, stride."""
MIXED = {
    "Mixed_3b": (192, (64, 96, 128, 16, 32, 32)),
    "Mixed_3c": (256, (128, 128, 192, 32, 96, 64)),
    "Mixed_4b": (480, (192, 96, 208, 16, 48, 64)),
    "Mixed_4c": (512, (160, 112, 224, 24, 64, 64)),
    "Mixed_4d": (512, (128, 128, 256, 24, 64, 64)),
    "Mixed_4e": (512, (112, 144, 288, 32, 64, 64)),
    "Mixed_4f": (528, (256, 160, 320, 32, 128, 128)),
    "Mixed_5b": (832, (256, 160, 320, 32, 128, 128)),
    "Mixed_5c": (832, (384, 192, 384, 48, 128, 128)),
}
"""Inception blocks: channels in, and of its six convolutions."""


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding before and after an axis, so that the result has ``size / stride`` entries, rounded up."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _padded(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """A clip with zeros around it in time and space; kernel and stride are (time, space)."""
    t, h, w = x.shape[0], *x.shape[2:]
    space = (*_same(w, kernel[1], stride[1]), *_same(h, kernel[1], stride[1]))
    sides = (*space, 0, 0, *_same(t, kernel[0], stride[0]))
    return pad(x, sides) if any(sides) else x


def _taps(x: Tensor, kernel: int, stride: int) -> list[Tensor]:
    """The frames that each tap of a temporal kernel sees, of a clip that is padded already."""
    count = (len(x) - kernel) // stride + 1
    return [x[k : k + (count - 1) * stride + 1 : stride] for k in range(kernel)]


def max_pool(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Max pool of a clip; kernel and stride are (time, space).

    The padding is 0 and not minus infinity, which is the same here: all inputs went through a ReLU.
    """
    x = max_pool2d(_padded(x, kernel, stride), kernel[1], stride[1])
    first, *others = _taps(x, kernel[0], stride[0])
    for tap in others:
        first = torch.maximum(first, tap)
    return first


class Unit(nn.Module):
    """A 3D convolution of a clip, with ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, kernel, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the convolution, padded as TensorFlow's SAME."""
        x = _padded(x, (self.kernel, self.kernel), (self.stride, self.stride))
        stacked = torch.cat(_taps(x, self.kernel, self.stride), dim=1)
        # [out, in, time, y, x] to [out, time and in, y, x]
        weight = self.weight.transpose(1, 2).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        return conv2d(stacked, weight, self.bias, self.stride).relu_()


class Mixed(nn.Module):
    """Inception block: four branches side by side."""

    def __init__(self, inputs: int, c: tuple[int, ...]) -> None:
        super().__init__()
        self.units = nn.ModuleDict(
            {
                "b0_1x1": Unit(inputs, c[0], 1),
                "b1_1x1": Unit(inputs, c[1], 1),
                "b1_3x3": Unit(c[1], c[2], 3),
                "b2_1x1": Unit(inputs, c[3], 1),
                "b2_3x3": Unit(c[3], c[4], 3),
                "b3_1x1": Unit(inputs, c[5], 1),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        """The branches' channels, in order."""
        u = self.units
        return torch.cat(
            [
                u["b0_1x1"](x),
                u["b1_3x3"](u["b1_1x1"](x)),
                u["b2_3x3"](u["b2_1x1"](x)),
                u["b3_1x1"](max_pool(x, (3, 3), (1, 1))),
            ],
            dim=1,
        )


class I3D(nn.Module):
    """The network; state as :func:`kinema4d.evaluate.weights.load` gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.ModuleDict({name: Unit(*shape) for name, *shape in STEM})
        self.mixed = nn.ModuleDict({name: Mixed(inputs, channels) for name, (inputs, channels) in MIXED.items()})
        self.logits = nn.Linear(1024, LOGITS)

    def forward(self, clip: Tensor) -> Tensor:
        """Logits ``[400]`` of one clip ``[t, 3, 224, 224]`` in [-1, 1]."""
        if clip.ndim != 4 or clip.shape[1:] != (3, SIDE, SIDE) or len(clip) < LEAST_FRAMES:
            raise ValueError(
                f"I3D takes a clip [t, 3, {SIDE}, {SIDE}] of at least {LEAST_FRAMES} frames, got {list(clip.shape)}"
            )
        x = clip.contiguous(memory_format=torch.channels_last)
        x = max_pool(self.stem["Conv3d_1a_7x7"](x), (1, 3), (1, 2))
        x = self.stem["Conv3d_2c_3x3"](self.stem["Conv3d_2b_1x1"](x))
        x = max_pool(x, (1, 3), (1, 2))
        for name, block in self.mixed.items():
            if name == "Mixed_4b":
                x = max_pool(x, (3, 3), (2, 2))
            elif name == "Mixed_5b":
                x = max_pool(x, (2, 2), (2, 2))
            x = block(x)
        steps = x.mean((2, 3))  # [t, 1024]; 7x7 pixels are left, and the last pool spans them all
        # That pool (over two steps), the 1x1x1 convolution and the mean over steps are linear: the mean may come first.
        return self.logits((steps[:-1] + steps[1:]).mean(0) / 2)
