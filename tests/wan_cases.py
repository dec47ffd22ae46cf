"""What the tests of the full-scale world share: inputs and latents of the size of ``kinema4d.world.wan.tiny``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from kinema4d.world.condition import Normalisation
from kinema4d.world.wan import cache
from kinema4d.world.wan.tiny import TOKENS


def an_input(variant: str = "act", seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    width = 12 if variant == "act" else 6
    return draw(2, 36, 3, 6, 12), torch.tensor([900.0, 37.0]), draw(2, 20, 3, 6, width), draw(2, TOKENS, 20)


def some_latents(folder: Path, count: int, seed: int = 0) -> None:
    """Files of latents as large as ``an_input``."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    box = Normalisation(minimum=np.zeros(3), maximum=np.ones(3))
    for i in range(count):
        latents = cache.Latents(
            colour=draw(16, 3, 6, 6), points=draw(16, 3, 6, 6), robot_colour=draw(16, 3, 6, 6), robot_points=draw(16, 3, 6, 6),
            mask=(draw(3, 6, 6) > 0).to(torch.uint8), first=draw(16, 3, 6, 12), image=draw(TOKENS, 20),
        )  # fmt: skip
        cache.write(folder / f"{i:03d}.safetensors", latents, scale=box, world=box, source=f"made {i}")
