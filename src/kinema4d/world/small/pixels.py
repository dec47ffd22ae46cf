"""How the diffusion transformer's tokens become pixels: what a VAE's decoder is to the paper.

A token cannot hold the outline of a robot or the picture on a box in hundreds of pixels, and need not. Each pixel knows
whether it shows the robot (:class:`PixelHead`), and what is carried along was in the first frame already (:class:`Copies`).
Both were worth more than any patience in training (docs/experiments.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.world.small.diffusion_config import STRIDE, DiffusionConfig

KEY = 32
"""Numbers of a key."""
LEANS, WIDE = 4, 1.0
"""Ways in which contact says where to look, and how exactly what is carried has to meet a patch, in places."""


class Copies(nn.Module):
    """Attention of every frame of a token to all patches of the first frame, whose values are their pixels."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.config = config
        self.ask = nn.Linear(config.channels, config.patch[0] * config.copies * KEY)
        self.look = nn.Linear(3 * config.patch[1] * config.patch[2], KEY)
        self.about = nn.Linear(config.channels, KEY)
        self.lean = nn.Linear(config.channels, config.patch[0] * config.copies * LEANS) if config.touches else None
        if self.lean is not None:  # what the hand would have brought here is looked at first
            nn.init.zeros_(self.lean.weight)
            with torch.no_grad():
                self.lean.bias.view(config.patch[0], config.copies, LEANS)[:] = torch.tensor([0.0, 0.0, 2.0, 4.0])

    def near(
        self, y: Tensor, first: Tensor, reach: Tensor | None = None, carry: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens of colour [b,n,c] with the first frame's before all others, and that frame in their patches,
        [b,places,3*pixels]: how much each frame of each token has of each patch of it [b,n*frames*copies,k], and those [b,k,...].
        ``reach`` and ``carry`` are what is known of contacts."""
        p, h, w = self.config.patch
        _, rows, columns = self.config.grid
        image = first.unflatten(-1, (3, p, h, w))[:, :, :, 0].unflatten(1, (rows, columns))
        image = image.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
        wide = F.pad(image, (w // 2, w // 2 - STRIDE, h // 2, h // 2 - STRIDE), mode="replicate")
        values = F.unfold(wide, (h, w), stride=STRIDE).transpose(1, 2)
        size = (rows * h // STRIDE, columns * w // STRIDE)
        context = self.about(y[:, : rows * columns]).transpose(1, 2).unflatten(2, (rows, columns))
        keys = self.look(values) + F.interpolate(context, size).flatten(2).transpose(1, 2)
        keys = _placed(keys, _grid(*size, 1, 1, 0, 0))
        asked = self.ask(y).unflatten(-1, (-1, KEY)).unflatten(1, (-1, rows * columns))
        asked = _placed(asked, self.places(self.config)[:, None]).flatten(1, 3)
        likes = asked @ keys.transpose(1, 2) * KEY**-0.5
        if self.lean is not None and reach is not None and carry is not None:
            # What is touched, what has been, and what the hand would have brought here: anything, or touched things.
            leans = self.lean(y).unflatten(-1, (p, -1, LEANS)).unflatten(1, (-1, rows * columns))
            leans = leans.permute(0, 1, 3, 2, 4, 5)  # b times frames places copies leans
            more = leans[..., :2].flatten(3, 4) @ reach[..., :2].transpose(-1, -2)
            own = self.places(self.config)
            away = (carry[:, :, :, None] - own[:, None]).square().sum(-1)  # b times frames places k
            here = torch.exp(-away / (2 * WIDE**2))
            brought = torch.stack([here, here * reach[:, :, :, None, :, 1]], -2)
            more = more.unflatten(3, (rows * columns, -1)) + leans[..., 2:] @ brought
            likes = likes + more.permute(0, 1, 3, 2, 4, 5).flatten(1, 4)
        return torch.softmax(likes, -1), values

    @staticmethod
    def places(config: DiffusionConfig) -> Tensor:
        """[places,2] where each patch of the picture is among those that may be copied."""
        (_, h, w), (_, rows, columns) = config.patch, config.grid
        return _grid(rows, columns, h // STRIDE, w // STRIDE, h // 2 // STRIDE, w // 2 // STRIDE)

    def forward(self, near: Tensor, values: Tensor) -> Tensor:
        """What each token of colour copies [b,n,copies*3*pixels], out of what :meth:`near` gave."""
        p, h, w = self.config.patch
        out = (near @ values).unflatten(1, (-1, p, self.config.copies)).unflatten(-1, (-1, h * w))
        return out.permute(0, 1, 3, 4, 2, 5).flatten(2)  # copies, channels, frames, pixels


def touches(reach: Tensor, config: DiffusionConfig) -> Tensor:
    """[b,times,frames,k,3] of all places to tokens [b,times*places,3*frames*...] of those in their own patches."""
    (_, h, w), (_, rows, columns) = config.patch, config.grid
    x = reach.unflatten(3, (rows, h // STRIDE, columns, w // STRIDE))  # b times frames rows h columns w 3
    return x.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(4).flatten(1, 3)


def touched_pixels(touched: Tensor | None, mask: Tensor, config: DiffusionConfig) -> Tensor:
    """The same for every pixel of every token: [b,n,3*pixels] beside ``mask`` [b,n,pixels]; zero where it is not known."""
    p, h, w = config.patch
    if touched is None:
        return mask.new_zeros(*mask.shape[:2], 3 * config.pixels)
    x = touched.unflatten(-1, (3, p, h // STRIDE, w // STRIDE))
    x = x.repeat_interleave(STRIDE, -1).repeat_interleave(STRIDE, -2).flatten(2)
    return x.repeat(1, mask.shape[1] // x.shape[1], 1)


def _grid(rows: int, columns: int, step: int, across: int, top: int, left: int) -> Tensor:
    """[n,2] places of a grid."""
    every = torch.meshgrid(top + step * torch.arange(rows), left + across * torch.arange(columns), indexing="ij")
    return torch.stack(every, -1).reshape(-1, 2).float()


def _placed(x: Tensor, where: Tensor) -> Tensor:
    """Keys or questions [..., n, KEY] turned by their places [n,2] (rotary): what is asked for may be so far away."""
    rate = 1.5 / 40.0 ** (torch.arange(KEY // 4) / (KEY // 4))
    angle = torch.cat([where[..., :1] * rate, where[..., 1:] * rate], -1)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class PixelHead(nn.Module):
    """From a token and what is known of each of its pixels to their values: one hidden layer whose output weights the token says."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.copies = config.copies
        self.shape = (1 + config.copies + 3 * config.stacked, config.detail)
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
        planes = [("noisy", kinds), ("first", kinds), ("robot", told), *([("prior", kinds)] if config.prior else [])]
        names = [f"{name} {kind} {i}" for name, every in planes for kind in every for i in range(3)]
        names += [
            "mask",
            *(["known"] if config.prior else []),
            *(["near", "touched", "brought"] if config.touches else []),
        ]
        return names + [f"copy {i}" for i in range(3 * config.copies)]

    def forward(self, y: Tensor, planes: list[Tensor], coarse: Tensor, copied: Tensor | None) -> Tensor:
        """Tokens [b,n,c], what is known of their pixels, [b,n,channels*pixels] each, the token's own answer, and what it copied
        [b,m,copies*3*pixels] in the first m tokens, those of colour: how much of its answer each pixel leaves out (the ground
        behind a robot), how much of each copy it takes instead, and what it adds. Points are not copied: they would be where the
        thing was."""
        pixels = self.place.shape[1]
        if copied is not None:
            planes = [*planes, copied.repeat(1, y.shape[1] // copied.shape[1], 1)]
        x = torch.cat([p.unflatten(-1, (-1, pixels)) for p in planes], 2)
        x, shape = x.flatten(0, 1), (-1, *self.shape)
        shift, mix = self.shift(y).flatten(0, 1)[..., None], self.mix(y).reshape(shape)
        hidden = torch.bmm(self.weight.expand(len(x), -1, -1), x).add_(self.place).add_(shift).relu_()
        out = torch.bmm(mix, hidden).unflatten(0, y.shape[:2])
        coarse = coarse.unflatten(-1, (-1, pixels))
        made = coarse * (1 - out[:, :, :1]) + out[:, :, 1 + self.copies :]
        if copied is None:
            return made.flatten(2)
        many = copied.shape[1]
        own = copied.unflatten(-1, (self.copies, 3, pixels)) - coarse[:, :many, None, :3]
        carried = (out[:, :many, 1 : 1 + self.copies, None] * own).sum(2)
        return (made + F.pad(carried, (0, 0, 0, made.shape[2] - 3, 0, made.shape[1] - many))).flatten(2)
