"""Fit the kinematics of one object to its own deforming mesh, in minutes on a CPU (NeuROK for one instance)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from kinema4d.objects.body import Body
from kinema4d.objects.one import OneConfig, OneNet
from kinema4d.objects.reduce import Freedom, active_subspace, freedom
from kinema4d.objects.solid import Mesh, Weighed, checked, quadrature

MARGIN = 0.1
"""Beyond the range of coordinates that was seen, of that range, before the wall."""


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """How it is fitted."""

    steps: int = 6000
    """Of the optimiser."""
    batch: int = 64
    """Poses per step."""
    points: int = 64
    """Of each pose, drawn anew."""
    rate: float = 2e-3
    """Highest learning rate; it falls as a cosine."""
    latents: int = 8
    """At most so many degrees of freedom are found."""
    width: int = 128
    """Of the network."""
    nested: bool = True
    """Whether latents are ordered by nested dropout; without it they are not minimal."""
    seed: int = 0
    """Of everything random."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """One object: what is needed to move it."""

    mesh: Mesh
    """At rest, metres."""
    net: OneNet
    """Decodes the mesh's vertices, then points with masses, in the unit box."""
    weighed: Weighed
    """Those points."""
    centre: Float64[np.ndarray, "3"]
    """Of the unit box, metres."""
    scale: float
    """Metres per unit."""
    freedom: Freedom
    """What was found."""
    reach: Tensor
    """[k,2] range of the latents that count."""
    error: float
    """Mean distance of reconstructed vertices from the true ones on poses that were held out, of the size."""

    def body(self, *, count: int | None = None) -> Body:
        """For the mechanics: points with masses, in metres, by the latents that count."""
        k = self.freedom.count if count is None else count
        if k is None:
            raise ValueError(f"this object is not simulated: {self.freedom.why}")
        net = self.net.double()
        mine = torch.arange(len(self.mesh.vertices), net.config.points)
        centre = torch.from_numpy(self.centre)

        def shape(q: Tensor) -> Tensor:
            z = torch.cat([q, q.new_zeros(len(q), net.config.latents - k)], 1)
            return net.decode(z, mine) * self.scale + centre

        return Body(shape=shape, mass=torch.from_numpy(self.weighed.mass), coordinates=k, reach=self.reach[:k].double())

    def vertices(self, q: Tensor) -> Tensor:
        """[b,v,3] metres for coordinates [b,k]."""
        net = self.net.double()
        z = torch.cat([q, q.new_zeros(len(q), net.config.latents - q.shape[1])], 1)
        return net.decode(z, torch.arange(len(self.mesh.vertices))) * self.scale + torch.from_numpy(self.centre)


def fit(
    mesh: Mesh,
    poses: Float64[np.ndarray, "t v 3"],
    plan: FitPlan | None = None,
    *,
    density: float = 1000.0,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> Fitted:
    """Learn from poses of the mesh's vertices in any order; one in eight is held out to judge by."""
    plan = plan or FitPlan()
    checked(mesh)
    if poses.ndim != 3 or poses.shape[1:] != mesh.vertices.shape:
        raise ValueError(f"poses are [t,{len(mesh.vertices)},3] for this mesh, got {list(poses.shape)}: its topology must not change")  # fmt: skip
    if len(poses) < 16:
        raise ValueError(f"one object is learned from at least 16 poses, got {len(poses)}")
    if not np.isfinite(poses).all():
        raise ValueError("poses have vertices that are no numbers")
    weighed = quadrature(mesh, density=density)
    every = np.concatenate([poses, weighed.points(poses)], axis=1)
    rest = np.concatenate([mesh.vertices, weighed.points(mesh.vertices)])
    low, high = every.min(axis=(0, 1)), every.max(axis=(0, 1))
    centre, scale = (low + high) / 2, float((high - low).max()) / 2
    unit = lambda x: torch.from_numpy((x - centre) / scale).float()  # noqa: E731
    torch.manual_seed(plan.seed)
    seen = np.unique(np.linspace(0, len(rest) - 1, min(len(rest), 96)).round().astype(int))
    net = OneNet(OneConfig(points=len(rest), seen=len(seen), latents=plan.latents, width=plan.width))
    net.rest.copy_(unit(rest))
    net.seen.copy_(torch.from_numpy(seen))
    held = np.arange(len(poses)) % 8 == 7
    _learn(net, unit(every[~held]), plan, tell)
    net.double().requires_grad_(False)
    test = unit(every[held]).double()
    size = mesh.size / scale
    errors = _errors(net, test, len(mesh.vertices), size)
    g = torch.Generator().manual_seed(plan.seed)
    mean = net.encode(test)[0]
    draws = mean[torch.randperm(len(mean), generator=g)[:64]]
    own = torch.arange(len(mesh.vertices), len(rest))
    subspace = active_subspace(lambda z: net.decode(z, own), draws, torch.from_numpy(weighed.mass))
    found = freedom(errors, subspace.values)
    low_q, high_q = mean.amin(0), mean.amax(0)
    more = MARGIN * (high_q - low_q)
    best = errors[-1] if found.count is None else errors[found.count - 1]
    return Fitted(
        mesh=mesh, net=net, weighed=weighed, centre=centre, scale=scale, freedom=found,
        reach=torch.stack([low_q - more, high_q + more], 1), error=best,
    )  # fmt: skip


def _learn(net: OneNet, poses: Tensor, plan: FitPlan, tell: Callable[[int, dict[str, float]], None] | None) -> None:
    """A variational auto-encoder whose error counts by its logarithm, so that it balances itself against the prior."""
    g = torch.Generator().manual_seed(plan.seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=plan.rate)
    k, count = plan.latents, net.config.points
    for step in range(plan.steps):
        fall = 0.5 * (1 + math.cos(math.pi * step / plan.steps)) + 0.005
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * fall * min(1, (step + 1) / 100)
        batch = poses[torch.randint(len(poses), (plan.batch,), generator=g)]
        mean, spread = net.encode(batch)
        z = mean + spread.exp() * torch.randn(mean.shape, generator=g)
        if plan.nested:
            keep = torch.randint(1, k + 1, (plan.batch, 1), generator=g)
            z = z * (torch.arange(k) < keep)
        which = torch.randint(count, (min(plan.points, count),), generator=g)
        error = (net.decode(z, which) - batch[:, which]).square().sum(-1).mean(1)
        kl = 0.5 * ((2 * spread).exp() + mean**2 - 1 - 2 * spread).sum(1).mean()
        loss = 0.04 * (32 * torch.log(error + 1e-7).mean() + kl)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        if tell is not None and (step + 1) % 500 == 0:
            tell(step + 1, {"error": float(error.detach().mean().sqrt()), "kl": float(kl.detach())})


def _errors(net: OneNet, poses: Tensor, vertices: int, size: float) -> list[float]:
    """Mean distance of vertices with the first latent, the first two, ..., of the size."""
    mean, out = net.encode(poses)[0], []
    for j in range(1, net.config.latents + 1):
        made = net.decode(mean * (torch.arange(net.config.latents) < j), torch.arange(vertices))
        out.append(float((made - poses[:, :vertices]).norm(dim=-1).mean()) / size)
    return out
