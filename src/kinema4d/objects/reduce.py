"""How many degrees of freedom an object has, by what its decoder does (NeuROK, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

SLACK = 1.2
"""Error of few coordinates, of that of the most, that is as good."""
SHARE = 0.99
"""Of the motion (mean squared speed by mass) that coordinates must have, where no poses are known."""
FALL = 100.0
"""Ratio of neighbouring eigenvalues at which what follows is nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subspace:
    """Directions of latents by how much they move points."""

    values: Tensor
    """[k] eigenvalues, largest first."""
    directions: Tensor
    """[k,k] in columns."""


def active_subspace(decode: Callable[[Tensor], Tensor], draws: Tensor, mass: Tensor, *, scalar: bool = False) -> Subspace:  # fmt: skip
    """Of latents ``draws`` [n,k]: the mean of J' m J, which knows every point; or with ``scalar`` of the outer
    product of the gradient of the length of the deformation, as in the paper, which knows only whether they move at
    all."""
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
    bends: bool = False
    """Whether something bends: there is no number of coordinates then that is the right one, and it may be simulated in those that there are."""


def by_errors(errors: Sequence[float], subspace: Subspace) -> tuple[int, Freedom]:
    """The fewest coordinates that reconstruct known poses about as well as the most that were tried do; ``errors``
    with the first, the first two, ... They are all there is only where the eigenvalues fall there too."""
    count = next(k for k, e in enumerate(errors, 1) if e <= SLACK * errors[-1])
    ratios = _ratios(subspace)
    why = f"{count} coordinates reconstruct to {100 * errors[count - 1]:.2g} % of the size, {len(errors)} to {100 * errors[-1]:.2g} %"
    return count, _agreed(count, ratios, why, tuple(errors))


def by_values(subspace: Subspace) -> tuple[int, Freedom]:
    """Where no poses are known: the fewest that have nearly all of the motion."""
    share = subspace.values.cumsum(0) / subspace.values.sum().clamp(min=1e-300)
    count = min(int((share < SHARE).sum()) + 1, len(share))
    why = f"{count} coordinates have {100 * float(share[count - 1]):.3g} % of the motion"
    return count, _agreed(count, _ratios(subspace), why, ())


def _ratios(subspace: Subspace) -> tuple[float, ...]:
    return tuple(float(a / b.clamp(min=1e-300)) for a, b in pairwise(subspace.values))


def _agreed(count: int, ratios: tuple[float, ...], why: str, errors: tuple[float, ...]) -> Freedom:
    fall = ratios[count - 1] if count <= len(ratios) else float("inf")
    if fall >= FALL:
        return Freedom(count=count, errors=errors, ratios=ratios, why=f"{why}; eigenvalues fall {fall:.3g}-fold there")
    why = f"not minimal: {why}, but eigenvalues fall only {fall:.3g}-fold there (wanted {FALL:g})"
    return Freedom(count=None, errors=errors, ratios=ratios, why=why)
