"""How many degrees of freedom an object has, by what its decoder does (NeuROK, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GAP = 100.0
"""Between the last eigenvalue that counts and the next."""
ENOUGH = 1.2
"""Reconstruction with so few latents, of that with all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subspace:
    """Directions of latents by how much they move points."""

    values: Tensor
    """[k] eigenvalues, largest first."""
    directions: Tensor
    """[k,k] in columns."""

    @property
    def gap(self) -> int:
        """After how many the largest gap is."""
        ratio = self.values[:-1] / self.values[1:].clamp(min=1e-14 * float(self.values[0]))
        return int(ratio.argmax()) + 1


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


def freedom(errors: Sequence[float], values: Tensor) -> Freedom:
    """The fewest latents that reconstruct nearly as well as all, if the eigenvalues fall off right after them; otherwise the coordinates are
    not minimal, and are not simulated."""
    enough = next(j + 1 for j, e in enumerate(errors) if e <= ENOUGH * errors[-1])
    floor = 1e-14 * float(values[0])
    ratios = tuple(float(values[j]) / max(float(values[j + 1]), floor) for j in range(len(values) - 1))
    falls = next((j + 1 for j in reversed(range(len(ratios))) if ratios[j] >= GAP), None)
    if falls == enough:
        why = f"{enough} latents reconstruct as well as {len(errors)}, and eigenvalues fall {ratios[enough - 1]:.0f}-fold after them"
        return Freedom(count=enough, errors=tuple(errors), ratios=ratios, why=why)
    where = "nowhere" if falls is None else f"after {falls}"
    why = f"not minimal: {enough} latents reconstruct as well as {len(errors)}, but eigenvalues fall {GAP:.0f}-fold {where}"
    return Freedom(count=None, errors=tuple(errors), ratios=ratios, why=why)
