"""How many degrees of freedom an object has, by what its decoder does (NeuROK, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Subspace:
    """Directions of latents by how much they move points."""

    values: Tensor
    """[k] eigenvalues, largest first."""
    directions: Tensor
    """[k,k] in columns."""


def active_subspace(decode: Callable[[Tensor], Tensor], draws: Tensor, mass: Tensor, *, scalar: bool = False) -> Subspace:  # fmt: skip
    """Of latents ``draws`` [n,k]: the mean of J' m J, which knows every point; or with ``scalar`` of the outer product of the gradient of the
    length of the deformation, as in the paper, which knows only whether they move at all."""
    k = draws.shape[1]
    rest = decode(torch.zeros_like(draws[:1]))
    total = torch.zeros(k, k, dtype=draws.dtype)
    for z in draws:
        slopes = torch.func.jacfwd(lambda v: decode(v[None])[0])(z)  # [n,3,k]
        if scalar:
            away = decode(z[None])[0] - rest[0]
            slope = torch.einsum("nik,ni->k", slopes, away) / away.norm().clamp(min=1e-12)
            total += torch.outer(slope, slope)
        else:
            total += torch.einsum("nik,n,nil->kl", slopes, mass, slopes)
    values, directions = torch.linalg.eigh(total / len(draws))
    return Subspace(values=values.flip(0).clamp(min=0), directions=directions.flip(1))


@dataclass(frozen=True, kw_only=True)
class Freedom:
    """What was found."""

    count: int | None
    """Degrees of freedom; None where the two signs disagree."""
    errors: tuple[float, ...]
    """Of reconstruction with the first latent, the first two, ..."""
    ratios: tuple[float, ...]
    """Of each eigenvalue to the next."""
    why: str
    """In words."""
