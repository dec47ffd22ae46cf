"""AdamW, and Muon for the matrices of a transformer's blocks where a plan asks for it, as one optimiser.

Muon (torch's own) turns the momentum of a matrix into the nearest orthogonal one: the same loss in two thirds of the steps of
AdamW on our diffusion transformers, for a tenth more time per step (docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn


@runtime_checkable
class HasMatrices(Protocol):
    """A model that says which of its parameters Muon may have."""

    def matrices(self) -> Sequence[nn.Parameter]:
        """Hidden matrices: no embeddings, no first and no last layer."""
        ...


class Optimiser:
    """One or two optimisers that go together."""

    def __init__(self, model: nn.Module, *, decay: float, muon: float) -> None:
        """``muon`` is its rate as a multiple of AdamW's; 0 leaves it out."""
        if muon < 0:
            raise ValueError(f"the rate of Muon must not be negative, got {muon}")
        if muon and not isinstance(model, HasMatrices):
            raise ValueError(f"{type(model).__name__} does not say which of its matrices Muon may have (matrices())")
        mine = list(model.matrices()) if muon and isinstance(model, HasMatrices) else []
        taken = {id(p) for p in mine}
        rest = [p for p in model.parameters() if id(p) not in taken]
        groups = [
            {"params": [p for p in rest if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.muon = muon
        self.parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)]
        if mine:
            self.parts.append(torch.optim.Muon(mine, weight_decay=decay, momentum=0.95, ns_steps=4))

    def step(self, rate: float) -> None:
        """One step, AdamW at this rate."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate * (self.muon if isinstance(part, torch.optim.Muon) else 1.0)
            part.step()

    def zero_grad(self) -> None:
        """Forget gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """For checkpoints."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """What :meth:`state_dict` gave."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
