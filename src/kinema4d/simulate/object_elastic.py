"""What is elastic about the motion of one object: its material, and the steps that its fastest vibration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from kinema4d.objects.body import Body, at_rest, jacobian
from kinema4d.objects.elastic import Elastic, Material, density_of, elastic
from kinema4d.objects.fit import Fitted
from kinema4d.objects.solid import parts

FINE, PARTS = 1.4, 50
"""Of the fastest vibration a step of what is elastic has so many radians at most, which takes so many parts of a frame at most; what is stiffer
takes its elastic forces at the end of each step, which is stable and damps."""
ENDS = 8
"""Coordinates up to which vibrations are looked at at the ends of each one's range; the end of one of many alone is no shape that it ever has."""
SLOWER = 1.5
"""Times the steps that vibration asks for, beyond which damping is not followed by steps."""
NEAR = 1e-5
"""Of a coordinate, by which the slope of forces is found."""
SOME = 256
"""Shapes at a time."""


def solid_of(fitted: Fitted, material: Material | None, flags: list[str]) -> Elastic | None:
    """What bends as something elastic, if its material was said."""
    if material is None:
        return None
    stiff = keeps_form(fitted)
    if stiff.all():
        flags.append("every part of it keeps its form: --young does nothing")
        return None
    return elastic(fitted.mesh, material, density=density_of(fitted.mesh, fitted.weighed), stiff=stiff)


def keeps_form(fitted: Fitted) -> Bool[np.ndarray, " v"]:
    """Vertices of parts that are one piece."""
    label = parts(fitted.mesh)
    return np.array([len(np.unique(fitted.piece[label == part])) == 1 for part in range(label.max() + 1)])[label]


def joints_of(fitted: Fitted) -> int:
    """Up to which coordinate something moves what keeps its form; all after it only bend."""
    moves = (fitted.twists[np.unique(fitted.piece[keeps_form(fitted)])] != 0).any((0, 2))
    return int(np.flatnonzero(moves).max()) + 1 if moves.any() else 0


def stressed(body: Body, shown: Callable[[Tensor], tuple[Tensor, Tensor]], solid: Elastic, *, walls: int, damped: bool = True) -> Body:  # fmt: skip
    """With the elasticity of a mesh whose vertices, and how they change with the coordinates [b,v,3,k], are ``shown``. Only the first ``walls``
    coordinates have walls at the ends of their range: elasticity holds the others."""

    def stress(q: Tensor, speed: Tensor) -> Tensor:
        x, ways = shown(q)
        fast = (ways @ speed[:, None, :, None])[..., 0] if damped else torch.zeros_like(x)
        return torch.einsum("bvik,bvi->bk", ways, solid.force(x, fast))

    reach = body.reach
    if reach is not None:
        reach = reach.clone()
        reach[walls:] = torch.tensor([-torch.inf, torch.inf], dtype=reach.dtype)
    return replace(body, energy=lambda q: solid.energy(shown(q)[0]), stress=stress, reach=reach)


def fine_steps(body: Body, start: np.ndarray, step: float, damping: float) -> tuple[int, bool, Tensor | None]:
    """Into how many steps a frame is cut so that the fastest vibration of a :func:`stressed` body is followed, at the start, at rest and, where
    coordinates are few, at the ends of their range; whether that is not enough, so that elastic forces have to be implicit; and the drag to take instead of
    ``damping`` (seconds), if that alone would need much smaller steps: stiffness at rest times it, as Rayleigh has it."""
    assert body.stress is not None
    k = len(start)
    ends = [np.zeros(k), start]
    if body.reach is not None and k <= ENDS:
        ends += [side[i] * np.eye(k)[i] for side in body.reach.numpy().T for i in range(k) if np.isfinite(side[i])]
    q = torch.from_numpy(np.stack(ends))
    slopes = jacobian(replace(body, free=False), at_rest(replace(body, free=False), q))[1]
    inertia = torch.einsum("n,bnid,bnie->bde", body.mass, slopes, slopes)
    unit = inertia.diagonal(dim1=1, dim2=2).clamp(min=1e-300).rsqrt()
    ways = NEAR * torch.eye(k, dtype=q.dtype)
    both = torch.stack([q[:, None] + ways, q[:, None] - ways]).flatten(0, 2)
    force = torch.cat([body.stress(v, torch.zeros_like(v)) for v in both.split(SOME)]).unflatten(0, (2, len(q), k))
    found = (force[0] - force[1]) / (2 * NEAR)
    stiff, heavy = (unit[:, :, None] * m * unit[:, None] for m in ((found + found.mT) / 2, inertia))
    half = torch.linalg.inv(torch.linalg.cholesky(heavy + 1e-9 * torch.eye(k, dtype=q.dtype)))
    squared = float(torch.linalg.eigvalsh(half @ stiff @ half.mT).max())  # radians per second, squared
    if squared <= 0:
        return 1, False, None
    # An explicit step h is stable while squared h^2 / 4 + damping squared h / 2 < 1.
    alone = max(1, int(np.ceil(step * squared**0.5 / FINE)))
    cut = max(1, int(np.ceil(step / ((damping**2 + FINE**2 / squared) ** 0.5 - damping))))
    if alone > PARTS:
        return PARTS, True, None
    if cut > SLOWER * alone:
        values, axes = torch.linalg.eigh((found[0] + found[0].mT) / 2)
        return alone, False, damping * (axes * values.clamp(min=0)) @ axes.mT
    return min(cut, PARTS), False, None
