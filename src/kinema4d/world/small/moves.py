"""What the first frame shows, moved in space and drawn anew: where the diffusion transformer begins instead of with the first frame itself.

Every token says of each pixel of the first frame where in space it has gone by its own frames, and whether it has gone at all. What has gone is
drawn where it would be seen, colour and points alike, so a moved thing keeps its picture and its geometry agrees with it. Where episodes have
tracks these moves are taught. Copies of patches by attention, which this replaces, found the right place with a tenth of their weight and
faded things instead of moving them (docs/experiments.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kinema4d.world.small.diffusion_config import STRIDE, DiffusionConfig

if TYPE_CHECKING:
    from kinema4d.world.small.diffusion import Known

WIDTH = 32
"""Of the hidden layer for each pixel."""
START = (0.0, 0.0, 0.0, 2.0, -4.0)
"""To begin with: no way of its own, most of the way of the hand for what is carried, and odds that a pixel has gone (logarithm): most stay."""
TOUCHED = 8.0
"""So much better are the odds of what was touched and would have been carried, to begin with."""
LEAST = 0.02
"""What has less probably gone is not drawn."""
INPUTS, NEAR = 13, 0.02
"""Numbers known of a pixel at a frame: colour, point, contact (two), how far it would be carried, whether it was touched and would have been carried
(full from so far on, in the model's unit), one."""


@dataclass(frozen=True, eq=False)
class Moved:
    """Pixels of the first frame, by groups of frames."""

    away: Tensor
    """[b,times,frames,k,3] how far each has gone, in the model's unit."""
    gone: Tensor
    """[b,times,frames,k] logarithm of the odds that it has."""
    base: Tensor
    """Tokens of the first frame with what has gone drawn where it went, as those of :class:`Known`."""
    planes: Tensor
    """[b,n,2*pixels] of each pixel: whether it has left, and how much of something else came."""


class Moves(nn.Module):
    """From tokens of colour to where the first frame's pixels have gone: a hidden layer for each pixel, whose output weights the token says."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.randn(WIDTH, INPUTS) * INPUTS**-0.5)
        self.place = nn.Parameter(0.1 * torch.randn(WIDTH, config.patch[0], config.patch[1] * config.patch[2]))
        self.shift, self.mix = nn.Linear(config.channels, WIDTH), nn.Linear(config.channels, 5 * WIDTH)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)
        self.start, self.lean = nn.Parameter(torch.tensor(START)), nn.Parameter(torch.tensor(TOUCHED))

    def forward(self, y: Tensor, first: Tensor, known: Known) -> Moved:
        """Tokens of colour [b,n,c]; tokens of the first frame; what is known."""
        assert known.places is not None
        assert known.lens is not None
        (p, h, w), (_, rows, columns) = self.config.patch, self.config.grid
        b, times = len(y), y.shape[1] // (rows * columns)
        size = (rows * h, columns * w)
        image = frames_of(first[:, : rows * columns], self.config)[:, 0, 0, :3]  # [b,c,h,w]
        own = known.places.transpose(1, 2).unflatten(2, size)
        if self.config.domains > 1:
            image = torch.cat([image, own[:, :3]], 1)
        about = torch.cat([image[:, :3], own[:, :3] * own[:, 3:]], 1).flatten(2)
        about = about.transpose(1, 2)[:, None, None].expand(b, times, p, -1, -1)
        carry = about.new_zeros(*about.shape[:4], 6)
        if known.carry is not None and known.reach is not None:
            far = (known.carry.norm(dim=-1, keepdim=True) / NEAR).clamp(max=1)
            carry = torch.cat([known.reach[..., :2], known.carry, known.reach[..., 1:2] * far], -1)
            carry = carry.unflatten(3, (size[0] // STRIDE, size[1] // STRIDE))
            carry = carry.repeat_interleave(STRIDE, 3).repeat_interleave(STRIDE, 4).flatten(3, 4)
        x = torch.cat([about, carry, torch.ones_like(about[..., :1])], -1)
        x = self._patches(x)  # b n frames cells inputs
        hidden = torch.einsum("bnfki,wi->bnwfk", x, self.weight) + self.place + self.shift(y)[..., None, None]
        mix = self.mix(y).unflatten(-1, (5, WIDTH))
        out = torch.einsum("bnow,bnwfk->bnfko", mix, hidden.relu()) + self.start
        out = self._places(out, times)  # b times frames k 5
        away = out[..., :3] + torch.sigmoid(out[..., 3:4]) * carry[..., 2:5]
        gone = out[..., 4] + self.lean * carry[..., 5]
        return Moved(away, gone, *self._drawn(away, gone, image, known))

    def _patches(self, x: Tensor) -> Tensor:
        """[b,times,frames,k,c] of all pixels to [b,n,frames,cells,c] by patches."""
        (_, h, w), (_, rows, columns) = self.config.patch, self.config.grid
        x = x.unflatten(3, (rows, h, columns, w))
        return x.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(5, 6).flatten(1, 3)

    def _places(self, x: Tensor, times: int) -> Tensor:
        """The inverse."""
        (_, h, w), (_, rows, columns) = self.config.patch, self.config.grid
        x = x.unflatten(1, (times, rows, columns)).unflatten(5, (h, w))
        return x.permute(0, 1, 4, 2, 5, 3, 6, 7).flatten(3, 6)

    def _drawn(self, away: Tensor, gone: Tensor, image: Tensor, known: Known) -> tuple[Tensor, Tensor]:
        """Pixels near to where a moved one is seen have their share of it."""
        assert known.places is not None
        assert known.lens is not None
        b, times, p = gone.shape[:3]
        height, width = image.shape[-2:]
        many = height * width
        left = torch.sigmoid(gone) * known.places[:, None, None, :, 3]
        at = (left > LEAST).nonzero()  # clip, time, frame, pixel
        before = known.places[at[:, 0], at[:, 3], :3]
        points = before + away[at[:, 0], at[:, 1], at[:, 2], at[:, 3]]
        # Where it is drawn is taught by tracks, not by the picture, whose slope is no more than two pixels wide.
        pad = partial(nn.functional.pad, pad=(0, 1), value=1.0)
        ray = torch.einsum("nij,nj->ni", known.lens[at[:, 0]], pad(points)).detach()
        deep = torch.einsum("nj,nj->n", known.lens[at[:, 0], 2], pad(before))
        seen = ray[:, :2] / ray[:, 2:].clamp(min=1e-4)
        low = seen.floor()
        values = torch.cat([image.flatten(2).transpose(1, 2)[at[:, 0], at[:, 3]], torch.ones_like(points[:, :1])], 1)
        values[:, 3:-1] = points if values.shape[1] > 4 else values[:, 3:-1]
        grows = (deep / ray[:, 2].clamp(min=1e-4)).square().clamp(1, 4)  # what comes nearer covers more
        weight = left[at[:, 0], at[:, 1], at[:, 2], at[:, 3]] * grows
        total = values.new_zeros(b * times * p * many, values.shape[1])
        frame = (at[:, 0] * times + at[:, 1]) * p + at[:, 2]
        for right, down in ((0, 0), (1, 0), (0, 1), (1, 1)):
            to = low + torch.tensor([right, down])
            share = (1 - (seen - to).abs()).clamp(min=0).prod(1) * weight
            inside = (to >= 0).all(1) & (to[:, 0] < width) & (to[:, 1] < height) & (ray[:, 2] > 1e-4)
            to = to[inside].long()
            into = frame[inside] * many + to[:, 1] * width + to[:, 0]
            total = total.index_add(0, into, values[inside] * share[inside, None])
        total = total.unflatten(0, (b, times, p, height, width)).movedim(-1, 3)
        cover, still = total[:, :, :, -1:].clamp(max=1), image[:, None, None]
        base = still + cover * (total[:, :, :, :-1] / total[:, :, :, -1:].clamp(min=1e-4) - still)
        planes = torch.cat([left.unflatten(3, (1, height, width)), cover], 3)
        return tokens_of(base, self.config), tokens_of(planes, self.config, aside=False)


def frames_of(tokens: Tensor, config: DiffusionConfig) -> Tensor:
    """Tokens [b,n,c*pixels] to frames by groups [b,times,frames,c,h,w]."""
    (p, h, w), (_, rows, columns) = config.patch, config.grid
    x = tokens.unflatten(1, (-1, rows, columns)).unflatten(-1, (-1, p, h, w))
    return x.permute(0, 1, 5, 4, 2, 6, 3, 7).flatten(6).flatten(4, 5)


def tokens_of(frames: Tensor, config: DiffusionConfig, *, aside: bool = True) -> Tensor:
    """The inverse; ``aside`` with points beside the colours where a model has them as tokens of their own."""
    (_, h, w), (_, rows, columns) = config.patch, config.grid
    x = frames.unflatten(5, (columns, w)).unflatten(4, (rows, h))  # b times frames c rows h columns w
    x = x.permute(0, 1, 4, 6, 3, 2, 5, 7).flatten(1, 3)  # b n c frames h w
    if aside and config.domains > config.stacked:
        x = torch.cat([x[:, :, :3], x[:, :, 3:]], 1)
    return x.flatten(2)
