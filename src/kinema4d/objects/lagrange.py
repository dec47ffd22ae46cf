"""Motion of a body by Lagrangian mechanics, in whatever coordinates it has (NeuROK, section 5).

One step is the discrete Euler-Lagrange equation of the points, projected on what the coordinates allow:

    J_t' m (x_{t+1} - 2 x_t + x_{t-1}) = h^2 J_t' (f - dV/dx) - damping,

solved for x_{t+1} = x(q_{t+1}) by Newton's method with the mass matrix of x_t. It needs no Christoffel symbols, is symplectic and of second
order, and does not depend on which coordinates describe the same motions. Pins are equations and contacts inequalities of the same step,
with impulses by projected Gauss-Seidel in the few unknowns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kinema4d.objects.body import Body, State, jacobian, moved, points
from kinema4d.objects.bounds import Bounds, Distance, Held
from kinema4d.objects.pin import Pin, way

ROUNDS, ENOUGH = 30, 1e-10
"""Of Newton's method at most, and the change relative to the body's size at which it ends."""
HALVES, SEARCHED = 12, 1e-8
"""Times that a step of Newton's method with the right slopes is halved at most, and the change, of the size, at which that ends."""
ASTRAY = 1e-4
"""A change relative to the size that is left after those rounds at which the step was not solved."""
TORN = 1e-3
"""A pinned point that is further off, of the size, is not held any more."""
LEASH = 0.1
"""A hand that is further away, of the size, pulls as from there."""
LOST = 1.0
"""A point that moves by more than so many sizes in one step was not simulated any more."""
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
    touching: Tensor | None = None
    """Indices of points that may touch it; None: all."""
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
    hold: list[Tensor] = field(default_factory=list)
    """[b,p,3] force on the points of all pins, one after the other, newton; 0 where they are not held."""
    miss: list[Tensor] = field(default_factory=list)
    """[b,p] how far these points are, at the end of the step from this frame, from where they should be, metres; 0 where they are not held."""
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
    out, state, before, last, hands = Motion(step=step), start, None, step * speed, _Hands()
    for frame in range(round(seconds / step) + 1):
        now, first = run.look(state, last / step), speed if frame == 0 else None
        slow = torch.einsum("bnid,bd->bni", now.slopes, speed) if before is None else (now.x - before) / step
        bounds = run.bounds(now, frame * step, hands, slow)
        answer = run.solve(state, now, before, last, frame * step, bounds, first=first)
        if isinstance(answer, str):
            out.stopped = f"{answer} at {frame * step:.3f} s"
            break
        change, after = answer
        fast = slow if before is None else (after - before) / (2 * step)
        run.record(out, state, now, fast)
        run.record_hold(out, bounds, after, part=0.5 if frame == 0 else 1.0)
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
    gap: Tensor | None
    """[b,m] distance of points that may touch from the obstacle, and its gradient ``up``."""
    up: Tensor | None


@dataclass(frozen=True, eq=False)
class _Hands:
    """Which hands have begun: when, where, and how fast their points were."""

    begun: dict[int, tuple[float, Tensor, Tensor]] = field(default_factory=dict)


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

    def look(self, state: State, speed: Tensor) -> _Look:
        """Points, how they change, and the mass matrix in the unknowns, whose speeds are known too."""
        x, slopes = jacobian(self.body, state)
        heavy = self.body.mass[:, None, None] * slopes
        inertia = torch.einsum("bnid,bnie->bde", heavy, slopes)
        gap = up = None
        if self.conditions.obstacle is not None:
            near = x[:, self.touching]
            gap, up = (v.unflatten(0, near.shape[:2]) for v in self.conditions.obstacle(near.flatten(0, 1)))
        return _Look(x, slopes, heavy, inertia, self.stress(state.q, speed), gap, up)

    @property
    def touching(self) -> Tensor:
        """Indices of points that may touch the obstacle."""
        own = self.conditions.touching
        return torch.arange(len(self.body.mass)) if own is None else own

    def bounds(self, now: _Look, time: float, hands: _Hands, speed: Tensor) -> Bounds | None:
        """What holds and what stops in the step from ``time``."""
        said, many = self.conditions, len(now.x)
        held = []
        for number, pin in enumerate(said.pins):
            if not pin.holds(time, self.h):
                continue
            if pin.goal is not None:
                at, x, v = hands.begun.setdefault(number, (time, now.x[:, pin.on], speed[:, pin.on]))
                where = way(x, v, pin.goal.to(x.dtype), pin.end - at, time + self.h - at)
            else:
                where = self.begin[:, pin.on] if pin.path is None else pin.path(time + self.h).to(now.x.dtype)
            aim = where = where.expand(many, len(pin.on), 3)
            if (
                pin.give > 0
            ):  # on a leash: far from what turns, the way to it along the tangent would lead beyond the nearest point
                far = where - now.x[:, pin.on]
                where = now.x[:, pin.on] + far * (
                    LEASH * self.size / far.norm(dim=-1, keepdim=True).clamp(min=1e-300)
                ).clamp(max=1)
            held.append((number, Held(on=pin.on, where=where, aim=aim, give=pin.give, most=(0.5 if time == 0 else 1.0) * self.h**2 * pin.strength)))  # fmt: skip
        if not held and now.gap is None:
            return None
        held.sort(key=lambda pair: pair[1].give > 0)  # stable: exact ones first
        gap, up = (now.gap, now.up) if now.gap is not None and now.up is not None else (now.x.new_zeros(many, 0), now.x.new_zeros(many, 0, 3))  # fmt: skip
        return Bounds(
            held=[h for _, h in held], pins=[n for n, _ in held], obstacle=said.obstacle, touching=self.touching, begin=now.x,
            slopes=now.slopes, gap=gap, up=up, friction=said.friction, size=self.size,
        )  # fmt: skip

    def stress(self, q: Tensor, speed: Tensor) -> Tensor | None:
        """[b,k] gradient of the elastic energy, and what damping inside adds to it at speeds of the unknowns."""
        if self.body.energy is None:
            return None
        if self.body.stress is not None:
            return self.body.stress(q, speed[:, self.body.unknowns - self.body.coordinates :])
        energy = self.body.energy
        return torch.func.grad(lambda v: energy(v).sum())(q)

    def stiffness(self, q: Tensor) -> Tensor:
        """[b,unknowns,unknowns] of elastic energy times h^2, where it is taken at the end of a step: what is stiff needs its slope."""
        d, k = self.body.unknowns, self.body.coordinates
        out = torch.zeros(len(q), d, d, dtype=q.dtype)
        if self.implicit and (energy := self.body.energy) is not None:
            out[:, d - k :, d - k :] = self.h**2 * torch.func.vmap(torch.func.hessian(lambda v: energy(v[None])[0]))(q)
        if self.body.drag is not None:
            out[:, d - k :, d - k :] += self.h * self.body.drag
        return out

    def forces(self, x: Tensor, time: float) -> Tensor:
        """[b,n,3] of gravity and pushes."""
        g = torch.tensor(self.conditions.gravity, dtype=x.dtype)
        f = self.body.mass[:, None] * g + torch.zeros_like(x)
        for push in self.conditions.pushes:
            if push.begin <= time < push.end:
                f[:, push.on] += push.force.to(x.dtype) / len(push.on)
        return f

    def solve(self, state: State, now: _Look, before: Tensor | None, last: Tensor, time: float, bounds: Bounds | None, *, first: Tensor | None) -> tuple[Tensor, Tensor] | str:  # fmt: skip
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
                if bounds is not None or (found := self.searched(state, now, last, goal, drag, part)) is None:
                    return "a coordinate is no number any more"
                change = found
                break
            went = float(torch.einsum("bnid,bd->bni", now.slopes, more).abs().max())
            if went < ENOUGH * size:
                break
        else:
            if bounds is None and went > ASTRAY * size:  # contacts that open and close may go on a little
                if (found := self.searched(state, now, last, goal, drag, part)) is not None:
                    change = found
                else:
                    return f"the step has no answer: Newton's method still moves points by {went / size:.2g} of the size after {ROUNDS} rounds"
        x = points(self.body, moved(self.body, state, change))
        if not bool(torch.isfinite(x).all()) or float((x - now.x).norm(dim=-1).max()) > LOST * size:
            return "a point moved by more than the body's size in one step"
        if bounds is not None and (off := bounds.torn(x)) > TORN * size:
            return f"a pinned point is {off:.3g} m off where it is held: the object cannot be there"
        return change, x

    def searched(self, state: State, now: _Look, last: Tensor, goal: Tensor, drag: float, part: float) -> Tensor | None:
        """The change of a step for which the mass matrix of its start is too wrong, such as of the light end of a whipping rope: Newton's method with the
        slopes of its end, as far along each way as that is nearer; None if that does not end either."""
        d, k, steady = self.body.unknowns, self.body.coordinates, part * self.stiffness(state.q)
        spread = torch.linalg.cholesky(now.inertia)

        def missed(change: Tensor) -> tuple[Tensor, Tensor]:
            after = moved(self.body, state, change)
            rest = torch.einsum("bnid,bni->bd", now.heavy, drag * points(self.body, after) - goal) + part * self.bend(state, now, after)  # fmt: skip
            long = torch.linalg.solve_triangular(spread, rest[..., None], upper=False)[..., 0].norm(dim=1)
            return rest, torch.where(long.isfinite(), long, torch.inf)

        for change in (last, torch.zeros_like(last)):
            rest, long = missed(change)
            for _ in range(ROUNDS):
                _, slopes = jacobian(self.body, moved(self.body, state, change))
                matrix = drag * torch.einsum("bnid,bnie->bde", now.heavy, slopes) + steady
                if self.body.reach is not None:
                    matrix[:, d - k :, d - k :] += torch.diag_embed(part * WALL * now.inertia.diagonal(dim1=1, dim2=2)[:, d - k :] * self.over(state, change))  # fmt: skip
                more = -torch.linalg.lstsq(matrix, rest[..., None]).solution[..., 0]
                share = torch.ones_like(long)
                trial = change + more
                new_rest, new_long = missed(trial)
                for _ in range(HALVES):
                    if not bool((worse := ~(new_long < long)).any()):
                        break
                    share = torch.where(worse, share / 2, share)
                    trial = change + share[:, None] * more
                    new_rest, new_long = missed(trial)
                worse = ~(new_long < long)
                went = float(torch.einsum("bnid,bd->bni", now.slopes, trial - change).abs().max())
                change, rest, long = torch.where(worse[:, None], change, trial), torch.where(worse[:, None], rest, new_rest), torch.where(worse, long, new_long)  # fmt: skip
                if went < SEARCHED * self.size:
                    return change
        return None

    def over(self, state: State, change: Tensor) -> Tensor:
        """[b,k] 1 where a coordinate is beyond its range after a change."""
        assert self.body.reach is not None
        low, high = self.body.reach.to(state.q.dtype).unbind(1)
        q = moved(self.body, state, change).q
        return ((q > high) | (q < low)).to(q.dtype)

    def bend(self, state: State, now: _Look, after: State) -> Tensor:
        """[b,unknowns] of elastic energy and of the walls of the coordinates' range, times h^2."""
        k = self.body.coordinates
        out = torch.zeros(len(state.q), self.body.unknowns, dtype=state.q.dtype)
        if now.stress is not None:
            bent = self.stress(after.q, (after.q - state.q) / self.h) if self.implicit else now.stress
            assert bent is not None
            out[:, -k:] += self.h**2 * bent
        if self.body.drag is not None:
            out[:, -k:] += self.h * (after.q - state.q) @ self.body.drag
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
        if now.gap is not None and now.gap.shape[1]:
            deep = (-now.gap).clamp(min=0).amax(1)
        out.points.append(now.x)
        out.states.append(state)
        out.kinetic.append(0.5 * (pull * speed).sum(1))
        out.potential.append(energy)
        out.momentum.append((mass * own).sum(1))
        out.penetration.append(deep)

    def record_hold(self, out: Motion, bounds: Bounds | None, after: Tensor, *, part: float) -> None:
        """The forces of pins in the step that ended, and what they could not reach; the first step is half a step of forces."""
        many, pins = len(after), self.conditions.pins
        force = [after.new_zeros(many, len(p.on), 3) for p in pins]
        miss = [after.new_zeros(many, len(p.on)) for p in pins]
        if bounds is not None and bounds.force is not None:
            split = bounds.force.split([len(h.on) for h in bounds.held], 1)
            for number, held, own in zip(bounds.pins, bounds.held, split, strict=True):
                force[number] = own / (part * self.h**2)
                miss[number] = (after[:, held.on] - held.aim).norm(dim=-1)
        out.hold.append(torch.cat([after.new_zeros(many, 0, 3), *force], 1))
        out.miss.append(torch.cat([after.new_zeros(many, 0), *miss], 1))
