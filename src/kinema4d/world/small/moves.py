"""What the first frame shows, moved in space and drawn anew: where the diffusion transformer begins instead of with the first frame itself.

A small network says of each pixel of the first frame, for every later frame, whether what it shows has gone, and how far in space. What has gone is
drawn where it would be seen, colour and points alike, so a moved thing keeps its picture and its geometry agrees with it. Where episodes have
tracks these moves are taught, by themselves and first: thousands of motions cost less than hundreds of clips. Copies of patches by attention, which
this replaces, found the right place with a tenth of their weight and faded things instead of moving them (docs/experiments.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.world.small.diffusion_config import STRIDE, DiffusionConfig
from kinema4d.world.small.hints import Hints

if TYPE_CHECKING:
    from kinema4d.world.small.diffusion import Known

WIDTHS = (24, 32, 48, 96)
"""Channels at the full size, at a half, a quarter and an eighth of it."""
START = (0.0, 0.0, 0.0, 1.0, 1.0, -1.0, -4.0)
"""To begin with: no way of its own; most of the hand's, as what is carried and as what is pushed alike; and odds that a pixel has gone (logarithm): most
stay."""
GRIPPED = 6.0
"""So much better are the odds that what the fingers closed on is carried, than pushed, to begin with; and the other way round for what they did not."""
TOUCHED = 8.0
"""So much better are the odds of what was touched and would have been carried, to begin with."""
LEAST = 0.02
"""What has less probably gone is not drawn."""
NEAR = 0.02
"""What would be carried so far, in the model's unit, would surely have gone."""
INPUTS = 23
"""Numbers known of a pixel at a frame: colour, point and whether that is known, robot at first and now, the robot's points now, contact (two), how far
the hand would have carried and pushed it, whether it was touched and would have gone, and whether the fingers closed on it; and the time."""
LENGTH = 49
"""Frames of a clip: the unit of time."""


@dataclass(frozen=True, eq=False)
class Moved:
    """Pixels of the first frame, by groups of frames."""

    away: Tensor
    """[b,times,frames,k,3] how far each has gone, in the model's unit."""
    gone: Tensor
    """[b,times,frames,k] logarithm of the odds that it has."""


class Moves(nn.Module):
    """From what is known of a clip to where the first frame's pixels have gone: a U-Net over the first frame for each later one, which reads at its
    coarsest what tells of the robot."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.config = config
        conv = partial(nn.Conv2d, kernel_size=3, padding=1)
        self.enter = conv(INPUTS, WIDTHS[0])
        self.down = nn.ModuleList(conv(a, b, stride=2) for a, b in pairwise(WIDTHS))
        self.up = nn.ModuleList(conv(a + b, a) for a, b in pairwise(WIDTHS))
        self.norms = nn.ModuleList(nn.GroupNorm(8, w) for w in (*WIDTHS, *WIDTHS[:-1]))
        wide = WIDTHS[-1]
        self.hints, self.ask = Hints(config, wide), nn.LayerNorm(wide)
        self.read = nn.MultiheadAttention(wide, 4, batch_first=True)
        self.think = conv(wide, wide)
        self.leave = nn.Conv2d(WIDTHS[0], len(START), 1)
        nn.init.zeros_(self.leave.weight)
        with torch.no_grad():
            assert self.leave.bias is not None
            self.leave.bias.copy_(torch.tensor(START))
        self.lean, self.grip = nn.Parameter(torch.tensor(TOUCHED)), nn.Parameter(torch.tensor(GRIPPED))

    def forward(self, known: Known) -> Moved:
        """Of all frames of what is known."""
        assert known.places is not None
        (p, h, w), (_, rows, columns) = self.config.patch, self.config.grid
        size = (rows * h, columns * w)
        of = lambda x, c: frames_of(x[:, : known.mask.shape[1] // self.sides], self.config)[:, :, :, :c]  # noqa: E731
        robot = known.robot if self.sides == 1 else known.robot[:, known.robot.shape[1] // 2 :]
        points = frames_of(robot, self.config)[:, 1:, :, -3:]  # stacked or alone, points are last
        b, times = points.shape[:2]
        mask, image = of(known.mask, 1), of(known.first, 3)[:, :1, :1]
        own = known.places.transpose(1, 2).unflatten(2, size)
        own = torch.cat([own[:, :3] * own[:, 3:], own[:, 3:]], 1)[:, None, None]
        carry = points.new_zeros(b, times, p, 10, *size)
        if known.carry is not None and known.reach is not None:
            far = (known.carry.unflatten(-1, (2, 3)).norm(dim=-1).amax(-1, keepdim=True) / NEAR).clamp(max=1)
            carry = torch.cat(
                [known.reach[..., :2], known.carry, known.reach[..., 1:2] * far, known.reach[..., 3:]], -1
            )[:, 1:]
            carry = carry.transpose(-1, -2).unflatten(-1, (size[0] // STRIDE, size[1] // STRIDE))
            carry = carry.repeat_interleave(STRIDE, -1).repeat_interleave(STRIDE, -2)
        when = (p * (known.when[:, 1:, None] - 1) + 1 + torch.arange(p)) / LENGTH  # b times frames
        every = (image, own, mask[:, :1, :1], mask[:, 1:], points, carry, when[..., None, None, None])
        x = torch.cat([e.expand(b, times, p, -1, *size) for e in every], 3).flatten(0, 2)
        out = self._seen(x, self.hints(known).repeat_interleave(times * p, 0)).unflatten(0, (b, times, p))
        gone = out[:, :, :, 6] + self.lean * carry[:, :, :, 8]
        grip = self.grip * (carry[:, :, :, 9:] - 0.5)
        with_hand = torch.cat([out[:, :, :, 3:4] + grip, out[:, :, :, 4:5] - grip, out[:, :, :, 5:6]], 3).softmax(
            3
        )  # carried, pushed, or neither
        away = (
            out[:, :, :, :3]
            + with_hand[:, :, :, :1] * carry[:, :, :, 2:5]
            + with_hand[:, :, :, 1:2] * carry[:, :, :, 5:8]
        )
        still = lambda v, value: F.pad(v, (0,) * (2 * v.ndim - 4) + (1, 0), value=value)  # noqa: E731  the first frame
        return Moved(still(away.flatten(4).transpose(3, 4), 0.0), still(gone.flatten(3), -20.0))

    @property
    def sides(self) -> int:
        """Tokens of how many domains stand side by side."""
        return self.config.domains // self.config.stacked

    def _seen(self, x: Tensor, hints: Tensor) -> Tensor:
        levels = [F.gelu(self.norms[0](self.enter(x)))]
        for down, norm in zip(self.down, self.norms[1:], strict=False):
            levels.append(F.gelu(norm(down(levels[-1]))))
        y = levels.pop()
        cells = y.flatten(2).transpose(1, 2)
        cells = cells + self.read(self.ask(cells), hints, hints, need_weights=False)[0]
        y = cells.transpose(1, 2).unflatten(2, y.shape[2:])
        y = y + F.gelu(self.think(y))
        for up, norm, level in zip(reversed(self.up), reversed(self.norms[4:]), reversed(levels), strict=True):
            y = F.interpolate(y, level.shape[2:])
            y = F.gelu(norm(up(torch.cat([level, y], 1))))
        return self.leave(y)


def drawn(moved: Moved, first: Tensor, known: Known, config: DiffusionConfig) -> tuple[Tensor, Tensor]:
    """Tokens of the first frame with what has gone drawn where it went, as those of :class:`Known`; and [b,n,2*pixels] of each pixel whether it has
    left, and how much of something else came. Pixels near to where a moved one is seen have their share of it."""
    assert known.places is not None
    assert known.lens is not None
    _, rows, columns = config.grid
    away, (b, times, p) = moved.away, moved.gone.shape[:3]
    height, width = config.height, config.width
    many = height * width
    image = frames_of(first[:, : rows * columns], config)[:, 0, 0, :3]
    if config.domains > 1:
        image = torch.cat([image, known.places[..., :3].transpose(1, 2).unflatten(2, (height, width))], 1)
    left = torch.sigmoid(moved.gone) * known.places[:, None, None, :, 3]
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
    return tokens_of(base, config), tokens_of(planes, config, aside=False)


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
