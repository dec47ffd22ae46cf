"""Objects whose motion is known by formula: what the integrator is measured on, without anything learned."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from torch import Tensor

from kinema4d.objects.body import Body

DENSITY = 1000.0
"""kg per cubic metre."""
_GAUSS = np.array([-1.0, 1.0]) / (2 * np.sqrt(3))


def bar(length: float, width: float, cells: int = 4) -> tuple[Tensor, Tensor]:
    """Points and masses of a bar that hangs from the origin: Gauss's rule in cells along it, which has its mass, centre and inertia exactly."""
    along = np.concatenate([(i + 0.5 + _GAUSS) / cells for i in range(cells)])
    every = [(x * width, y * width, -z * length) for x, y, z in product(_GAUSS, _GAUSS, along)]
    x = torch.tensor(every, dtype=torch.float64)
    return x, torch.full((len(x),), DENSITY * length * width**2 / len(x), dtype=torch.float64)


def pendulum(lengths: tuple[float, ...] = (0.5,), width: float = 0.06) -> Body:
    """Bars that hang from each other by hinges about y; coordinates are the angles of each against the one before."""
    bars = [bar(length, width) for length in lengths]

    def shape(q: Tensor) -> Tensor:
        place, angle, out = torch.zeros(len(q), 1, 3, dtype=q.dtype), torch.zeros_like(q[:, :1]), []
        for i, (x, _) in enumerate(bars):
            angle = angle + q[:, i : i + 1]
            c, s = angle.cos(), angle.sin()
            own = x.to(q.dtype)
            turned = torch.stack([c * own[:, 0] + s * own[:, 2], own[:, 1] + 0 * c, -s * own[:, 0] + c * own[:, 2]], -1)
            out.append(turned + place)
            place = place + lengths[i] * torch.stack([-s, 0 * s, -c], -1)
        return torch.cat(out, 1)

    return Body(shape=shape, mass=torch.cat([m for _, m in bars]), coordinates=len(lengths))


def box(sides: tuple[float, float, float] = (0.2, 0.1, 0.05)) -> Body:
    """A rigid box that is free: corners share in Gauss's points, so that what touches the floor is its real outline."""
    inner = torch.tensor(list(product(*[_GAUSS * s for s in sides])), dtype=torch.float64)
    corners = torch.tensor(list(product(*[(-s / 2, s / 2) for s in sides])), dtype=torch.float64)
    mass = DENSITY * float(np.prod(sides)) / 8
    x = torch.cat([inner, corners])
    weights = torch.cat([torch.full((8,), mass), torch.full((8,), 1e-9 * mass)]).double()
    return Body(shape=lambda q: x.to(q.dtype).expand(len(q), -1, -1), mass=weights, coordinates=0, free=True)


def beam(length: float = 0.5, width: float = 0.02, young: float = 1e7, modes: int = 3) -> tuple[Body, Tensor]:
    """A cantilever along x that bends in z, by its analytic modes (Euler and Bernoulli), and their frequencies, rad/s."""
    roots = torch.tensor([1.87510407, 4.69409113, 7.85475744, 10.99554073], dtype=torch.float64)[:modes]
    nodes, weights = np.polynomial.legendre.leggauss(24)
    s = torch.tensor((nodes + 1) / 2, dtype=torch.float64)
    k = roots[:, None] * s
    share = (roots.cosh() + roots.cos()) / (roots.sinh() + roots.sin())
    form = k.cosh() - k.cos() - share[:, None] * (k.sinh() - k.sin())  # [modes,n], unit mass norm over 0..1
    mass = torch.tensor(weights / 2, dtype=torch.float64) * DENSITY * length * width**2
    form = form / (mass * form**2).sum(1, keepdim=True).sqrt()
    line = DENSITY * width**2
    frequency = (roots / length) ** 2 * (young * width**4 / 12 / line) ** 0.5
    rest = torch.stack([s * length, 0 * s, 0 * s], -1)

    def shape(q: Tensor) -> Tensor:
        return rest.to(q.dtype) + torch.stack([torch.zeros(len(q), len(s), dtype=q.dtype)] * 2 + [q @ form.to(q.dtype)], -1)  # fmt: skip

    return Body(
        shape=shape, mass=mass, coordinates=modes, energy=lambda q: 0.5 * (frequency.to(q.dtype) * q).square().sum(1)
    ), frequency
