"""Motion of a body by Lagrangian mechanics, in whatever coordinates it has (NeuROK, section 5).

One step is the discrete Euler-Lagrange equation of the points, projected on what the coordinates allow:

    J_t' m (x_{t+1} - 2 x_t + x_{t-1}) = h^2 J_t' (f - dV/dx) - damping,

solved for x_{t+1} = x(q_{t+1}) by Newton's method with the mass matrix of x_t. It needs no Christoffel symbols, is symplectic and of second
order, and does not depend on which coordinates describe the same motions. Pins are equations and contacts inequalities of the same step,
with impulses by projected Gauss-Seidel in the few unknowns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kinema4d.objects.body import Body, State, jacobian, moved, points
from kinema4d.objects.contact_kernels import impulses

ROUNDS, ENOUGH = 30, 1e-10
"""Of Newton's method at most, and the change relative to the body's size at which it ends."""
ASTRAY = 1e-4
"""A change relative to the size that is left after those rounds at which the step was not solved."""
LOST = 1.0
"""A point that moves by more than so many sizes in one step was not simulated any more."""
SWEEPS = 60
"""Of Gauss-Seidel over the contacts."""
NEAR = 24
"""Contacts at a time: the deepest."""
SAME = 1e-9
"""Smallest eigenvalue of the mass matrix, each coordinate by its own, at which two of them say the same."""
WALL = 0.1
"""Stiffness of the wall at the end of a coordinate's range, in masses per squared step."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Push:
    """A force on some points for some time."""

    on: Tensor
    """Indices of points, which share it evenly."""
    force: Tensor
    """[3] in the world, newton."""
    begin: float = 0.0
    """Seconds."""
    end: float = float("inf")
    """Seconds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pin:
    """Points that are held, or led by hand."""

    on: Tensor
    """Indices."""
    path: Callable[[float], Tensor] | None = None
    """Seconds to where they are [n,3] or [b,n,3]; None: where they were at the start."""


Distance = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points [m,3] to signed distance [m], positive outside, and its gradient [m,3]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditions:
    """What acts on a body."""

    gravity: tuple[float, float, float] = (0.0, 0.0, -9.81)
    """Metres per squared second."""
    pushes: Sequence[Push] = ()
    """Forces over time."""
    pins: Sequence[Pin] = ()
    """What is held."""
    damping: float = 0.0
    """Of all motion, per second (Rayleigh's, by mass)."""
    obstacle: Distance | None = None
    """What stands in the way; :func:`ground` for a floor."""
    friction: float = 0.5
    """Coulomb's coefficient at the obstacle."""


def ground(height: float = 0.0) -> Distance:
    """A floor."""

    def distance(x: Tensor) -> tuple[Tensor, Tensor]:
        up = torch.zeros_like(x)
        up[..., 2] = 1
        return x[..., 2] - height, up

    return distance


@dataclass(kw_only=True, eq=False)
class Motion:
    """What happened, frame by frame; a run that was stopped has the frames until then."""

    step: float
    """Seconds between frames."""
    points: list[Tensor] = field(default_factory=list)
    """[b,n,3] in the world."""
    states: list[State] = field(default_factory=list)
    """Where it was."""
    kinetic: list[Tensor] = field(default_factory=list)
    """[b] joule."""
    potential: list[Tensor] = field(default_factory=list)
    """[b] joule, of gravity and of elasticity."""
    momentum: list[Tensor] = field(default_factory=list)
    """[b,3] of all points together, kg m/s."""
    penetration: list[Tensor] = field(default_factory=list)
    """[b] deepest point inside the obstacle, metres."""
    stopped: str | None = None
    """Why it ended early."""

    @property
    def energy(self) -> Tensor:
        """[t,b] joule."""
        return torch.stack(self.kinetic) + torch.stack(self.potential)

    def __len__(self) -> int:
        return len(self.points)


def simulate(
    body: Body,
    start: State,
    conditions: Conditions,
    *,
    seconds: float,
    step: float = 0.01,
    velocity: Tensor | None = None,
    implicit: bool = False,
) -> Motion:
    """Let it move, from ``velocity`` [b,unknowns] (at rest without). ``implicit`` takes elastic forces at the end of each step: stable
    when they are stiff, at the price of damping."""
    if not (step > 0 and seconds > 0):
        raise ValueError(f"seconds and step must be positive, got {seconds} and {step}")
    many = len(start.q)
    speed = torch.zeros(many, body.unknowns, dtype=start.q.dtype) if velocity is None else velocity
    if speed.shape != (many, body.unknowns):
        raise ValueError(f"the body has {body.unknowns} velocities, got {list(speed.shape)}")
    run = _Run(body, conditions, step, implicit, points(body, start))
    out, state, before, last = Motion(step=step), start, None, step * speed
    for frame in range(round(seconds / step) + 1):
        now = run.look(state)
        answer = run.solve(state, now, before, last, frame * step, first=speed if frame == 0 else None)
        if isinstance(answer, str):
            out.stopped = f"{answer} at {frame * step:.3f} s"
            break
        change, after = answer
        fast = torch.einsum("bnid,bd->bni", now.slopes, speed) if before is None else (after - before) / (2 * step)
        run.record(out, state, now, fast)
        before, last = now.x, change
        state = moved(body, state, change)
    return out


# ---------------------------------------------------------------------- one step


@dataclass(frozen=True, eq=False)
class _Look:
    x: Tensor
    slopes: Tensor
    heavy: Tensor
    inertia: Tensor
    stress: Tensor | None


@dataclass(frozen=True, eq=False)
class _Run:
    body: Body
    conditions: Conditions
    h: float
    implicit: bool
    begin: Tensor

    @property
    def size(self) -> float:
        low, high = self.begin.amin(1), self.begin.amax(1)
        return float((high - low).norm(dim=-1).max())

    def look(self, state: State) -> _Look:
        """Points, how they change, and the mass matrix in the unknowns."""
        x, slopes = jacobian(self.body, state)
        heavy = self.body.mass[:, None, None] * slopes
        inertia = torch.einsum("bnid,bnie->bde", heavy, slopes)
        return _Look(x, slopes, heavy, inertia, self.stress(state.q))

    def stress(self, q: Tensor) -> Tensor | None:
        """[b,k] gradient of the elastic energy."""
        if self.body.energy is None:
            return None
        energy = self.body.energy
        return torch.func.grad(lambda v: energy(v).sum())(q)

    def stiffness(self, q: Tensor) -> Tensor:
        """[b,unknowns,unknowns] of elastic energy times h^2, where it is taken at the end of a step: what is stiff needs its slope."""
        d, k = self.body.unknowns, self.body.coordinates
        out = torch.zeros(len(q), d, d, dtype=q.dtype)
        if self.implicit and (energy := self.body.energy) is not None:
            out[:, d - k :, d - k :] = self.h**2 * torch.func.vmap(torch.func.hessian(lambda v: energy(v[None])[0]))(q)
        return out

    def forces(self, x: Tensor, time: float) -> Tensor:
        """[b,n,3] of gravity and pushes."""
        g = torch.tensor(self.conditions.gravity, dtype=x.dtype)
        f = self.body.mass[:, None] * g + torch.zeros_like(x)
        for push in self.conditions.pushes:
            if push.begin <= time < push.end:
                f[:, push.on] += push.force.to(x.dtype) / len(push.on)
        return f

    def solve(self, state: State, now: _Look, before: Tensor | None, last: Tensor, time: float, *, first: Tensor | None) -> tuple[Tensor, Tensor] | str:  # fmt: skip
        """The change of this step and the points after it, or why there are none. The first step has a velocity instead of a past."""
        h, mass = self.h, self.body.mass[:, None]
        drag = 1 + h * self.conditions.damping / 2
        push = h * h * self.forces(now.x, time) / mass
        if first is not None:
            goal, drag = now.x + h * torch.einsum("bnid,bd->bni", now.slopes, first) + push / 2, 1.0
            part = 0.5
        else:
            assert before is not None
            goal, part = 2 * now.x - (2 - drag) * before + push, 1.0
        if not bool(torch.isfinite(now.inertia).all()):
            return "a coordinate is no number any more"
        unit = now.inertia.diagonal(dim1=1, dim2=2).clamp(min=1e-300).rsqrt()
        if float(torch.linalg.eigvalsh(unit[:, :, None] * now.inertia * unit[:, None]).min()) < SAME:
            return "the coordinates are not independent (the mass matrix is singular)"
        factor = torch.linalg.cholesky(drag * now.inertia + part * self.stiffness(state.q))
        bounds = _bounds(self, now, time)
        change, size, went = last.clone(), self.size, 0.0
        for _ in range(ROUNDS):
            after = moved(self.body, state, change)
            x = points(self.body, after)
            rest = torch.einsum("bnid,bni->bd", now.heavy, drag * x - goal) + part * self.bend(state, now, after)
            more = -torch.cholesky_solve(rest[..., None], factor)[..., 0]
            if bounds is not None:
                more = bounds.corrected(x, more, factor)
            change = change + more
            if not bool(torch.isfinite(change).all()):
                return "a coordinate is no number any more"
            went = float(torch.einsum("bnid,bd->bni", now.slopes, more).abs().max())
            if went < ENOUGH * size:
                break
        else:
            if bounds is None and went > ASTRAY * size:  # contacts that open and close may go on a little
                return f"the step has no answer: Newton's method still moves points by {went / size:.2g} of the size after {ROUNDS} rounds"
        x = points(self.body, moved(self.body, state, change))
        if not bool(torch.isfinite(x).all()) or float((x - now.x).norm(dim=-1).max()) > LOST * size:
            return "a point moved by more than the body's size in one step"
        return change, x

    def bend(self, state: State, now: _Look, after: State) -> Tensor:
        """[b,unknowns] of elastic energy and of the walls of the coordinates' range, times h^2."""
        k = self.body.coordinates
        out = torch.zeros(len(state.q), self.body.unknowns, dtype=state.q.dtype)
        if now.stress is not None:
            bent = self.stress(after.q) if self.implicit else now.stress
            assert bent is not None
            out[:, -k:] += self.h**2 * bent
        if self.body.reach is not None:
            low, high = self.body.reach.to(state.q.dtype).unbind(1)
            over = (after.q - high).clamp(min=0) - (low - after.q).clamp(min=0)
            out[:, -k:] += WALL * now.inertia.diagonal(dim1=1, dim2=2)[:, -k:] * over
        return out

    def record(self, out: Motion, state: State, now: _Look, fast: Tensor) -> None:
        """One frame, with the velocity of the points as far as the coordinates allow it."""
        body, mass = self.body, self.body.mass[:, None]
        pull = torch.einsum("bnid,bni->bd", now.heavy, fast)
        speed = torch.linalg.solve(now.inertia, pull)
        own = torch.einsum("bnid,bd->bni", now.slopes, speed)
        g = torch.tensor(self.conditions.gravity, dtype=now.x.dtype)
        energy = -(mass * now.x * g).sum((1, 2))
        if body.energy is not None:
            energy = energy + body.energy(state.q)
        deep = torch.zeros(len(state.q), dtype=now.x.dtype)
        if self.conditions.obstacle is not None:
            gap, _ = self.conditions.obstacle(now.x.flatten(0, 1))
            deep = (-gap).clamp(min=0).unflatten(0, now.x.shape[:2]).amax(1)
        out.points.append(now.x)
        out.states.append(state)
        out.kinetic.append(0.5 * (pull * speed).sum(1))
        out.potential.append(energy)
        out.momentum.append((mass * own).sum(1))
        out.penetration.append(deep)


# ---------------------------------------------------------------------- pins and contacts


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Equations and inequalities of one step, linear in its change at the slopes of its start."""

    pinned: Tensor
    """Indices of points that are held."""
    where: Tensor
    """[b,p,3] where they have to be."""
    touching: Tensor
    """[b,c] indices of points that may touch."""
    normal: Tensor
    """[b,c,3] away from the obstacle."""
    floor: Tensor
    """[b,c] least distance that is allowed: none, or most of what a point is inside already."""
    gap: Tensor
    """[b,c] distance at the start of the step."""
    begin: Tensor
    """[b,n,3] points at the start of the step."""
    slopes: Tensor
    """Of the points."""
    friction: float
    """Coulomb's coefficient."""

    def corrected(self, x: Tensor, more: Tensor, factor: Tensor) -> Tensor:
        """A Newton step ``more`` with what holds and what stops added to it."""
        rows, off, kind = self._rows(x)
        reply = torch.cholesky_solve(rows.transpose(1, 2), factor)  # [b,d,r]
        works = rows @ reply
        miss = off + torch.einsum("brd,bd->br", rows, more)
        impulse = _impulses(works, miss, kind, self.friction)
        return more + torch.einsum("bdr,br->bd", reply, impulse)

    def _rows(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """How the constraints change with the unknowns [b,r,d], how far they are from zero [b,r], and how many are equations; of the others
        each contact has three: along its normal, and two along the surface."""
        many, d = len(x), self.slopes.shape[-1]
        held = self.slopes[:, self.pinned].flatten(1, 2)
        off = (x[:, self.pinned] - self.where).flatten(1)
        pick = self.touching[..., None]
        own = self.slopes.gather(1, pick[..., None].expand(-1, -1, 3, d))
        here, there = (v.gather(1, pick.expand(-1, -1, 3)) for v in (x, self.begin))
        axes = _frame(self.normal)  # [b,c,3 axes,3]
        along = torch.einsum("bcai,bcid->bcad", axes, own)
        shift = torch.einsum("bcai,bci->bca", axes, here - there)
        gap = torch.cat([self.gap[..., None] - self.floor[..., None] + shift[..., :1], shift[..., 1:]], -1)
        rows = torch.cat([held, along.flatten(1, 2)], 1)
        return rows, torch.cat([off, gap.flatten(1)], 1).reshape(many, -1), held.shape[1]


def _bounds(run: _Run, now: _Look, time: float) -> _Bounds | None:
    said = run.conditions
    if not said.pins and said.obstacle is None:
        return None
    many, count = now.x.shape[:2]
    pinned = [p.on for p in said.pins]
    where = []
    for p in said.pins:
        goal = run.begin[:, p.on] if p.path is None else p.path(time + run.h).to(now.x.dtype)
        where.append(goal.expand(many, len(p.on), 3))
    empty = torch.zeros(many, 0, dtype=torch.long)
    touching, normal, gap = empty, now.x.new_zeros(many, 0, 3), now.x.new_zeros(many, 0)
    if said.obstacle is not None:
        far, up = said.obstacle(now.x.flatten(0, 1))
        far, up = far.unflatten(0, (many, count)), up.unflatten(0, (many, count))
        gap, touching = far.topk(min(NEAR, count), dim=1, largest=False)
        normal = up.gather(1, touching[..., None].expand(-1, -1, 3))
    return _Bounds(
        torch.cat(pinned) if pinned else torch.zeros(0, dtype=torch.long),
        torch.cat(where, 1) if where else now.x.new_zeros(many, 0, 3),
        touching, normal, (0.8 * gap).clamp(max=0), gap, now.x, now.slopes, said.friction,
    )  # fmt: skip


def _frame(normal: Tensor) -> Tensor:
    """[...,3,3]: the normal and two directions along the surface, as rows."""
    other = torch.where(normal[..., :1].abs() < 0.9, normal.new_tensor([1.0, 0, 0]), normal.new_tensor([0, 1.0, 0]))
    first = torch.nn.functional.normalize(torch.linalg.cross(normal, other.expand_as(normal)), dim=-1)
    return torch.stack([normal, first, torch.linalg.cross(normal, first)], -2)


def _impulses(works: Tensor, miss: Tensor, equations: int, friction: float) -> Tensor:
    """Impulses [b,r] after which equations are zero and contacts do not close further than allowed. ``works`` [b,r,r] is what impulses do to
    the constraints, ``miss`` [b,r] where they are without. Equations are solved exactly, contacts in what they leave."""
    e = equations
    held, cross, free = works[:, :e, :e], works[:, :e, e:], works[:, e:, e:]
    if e:
        soft = 1e-12 * held.diagonal(dim1=1, dim2=2).amax(1)[:, None, None] * torch.eye(e, dtype=works.dtype)
        inverse = torch.linalg.inv(held + soft)
        free = free - cross.transpose(1, 2) @ inverse @ cross
        left = miss[:, e:] - torch.einsum("bec,bef,bf->bc", cross, inverse, miss[:, :e])
    else:
        inverse, left = held, miss
    push = torch.zeros_like(left)
    if left.shape[1] and bool((left[:, ::3] < 0).any()):
        found = impulses(free.contiguous().numpy(), left.contiguous().numpy(), friction, SWEEPS)
        push = torch.from_numpy(found).to(left.dtype)
    hold = -torch.einsum("bef,bf->be", inverse, miss[:, :e] + torch.einsum("bec,bc->be", cross, push))
    return torch.cat([hold, push], 1)
