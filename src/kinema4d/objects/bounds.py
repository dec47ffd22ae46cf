"""What holds and what stops, within one step: pins and hands as equations, contacts as planes that points may not cross.

Contacts are found as they are needed: the step is solved, points that would end inside an obstacle or go through one get a plane where they would
meet its surface, and it is solved again with all planes so far, until nothing is inside. So a thousand points of a face that lies on another
cost no more than its corners, nothing is stopped that only passes by, and nothing tunnels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kinema4d.objects.contact_kernels import impulses

SWEEPS = 60
"""Of Gauss-Seidel over the contacts."""
NEAR = 48
"""Planes at a time; past it, those that press on nothing go."""
NEW, TRIES = 8, 8
"""Planes that are added at a time, far from each other, and how often in one round of Newton's method."""
DEEP = 1e-5
"""Depth, of the size, below which a point is not inside."""
EACH = 3
"""Planes of one point at most: a corner."""
THIN = 2e-3
"""Way inwards from the surface, of the size, in one step, beyond which a point may have gone through something."""
MARCH = 16
"""Steps at most along the way of a point to where it meets a surface."""
RISE, SHALLOW = 0.2, 1e-3
"""Share of the depth by which a point that is inside already has to come out in a step, and depth, of the size, beyond which it is not more: what
begins deep inside stays about there and is not shot out."""
WEAK = 0.01
"""A point that the body can move by less than this share of the most that it can move any, such as one beside a hinge, does not have to come out."""
SAME = 1e-10
"""Effect of a combination of pins, of the largest, below which it says what the others say already."""

Distance = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points [m,3] to signed distance [m], positive outside, and its gradient [m,3]. Far away it may say less than the truth."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """Points that have to be somewhere at the end of a step."""

    on: Tensor
    """[p] indices."""
    where: Tensor
    """[b,p,3] in the world."""
    aim: Tensor
    """[b,p,3] where they should be all in all: a hand may be far off, and comes there by and by."""
    give: float
    """How far a hand gives way, of what its force would move the point freely, and so where it does not pull at all: along what the object
    cannot do. 0 for what is held exactly."""
    most: float
    """Impulse of a hand at most, kg m: the squared step times its strength."""


@dataclass(kw_only=True, eq=False)
class Bounds:
    """Equations and inequalities of one step, linear in its change at the slopes of its start. It has state: the planes that were found."""

    held: list[Held]
    """Exact ones first."""
    pins: list[int]
    """Which pin each of them is."""
    obstacle: Distance | None
    """What stands in the way."""
    touching: Tensor
    """[m] indices of points that may touch it."""
    begin: Tensor
    """[b,n,3] points at the start of the step."""
    slopes: Tensor
    """Of the points."""
    gap: Tensor
    """[b,m] distance of those that may touch, at the start."""
    up: Tensor
    """[b,m,3] its gradient."""
    friction: float
    """Coulomb's coefficient."""
    size: float
    """Of the body, metres."""
    force: Tensor | None = None
    """[b,p,3] impulses on all held points, as the last answer has them, kg m."""
    planes: _Planes = field(init=False)
    """Found so far."""
    spent: Tensor = field(init=False)
    """[b,p,3] impulses of hands that pull as hard as they can, and so are forces and no equations any more; 0 for the others."""

    def __post_init__(self) -> None:
        self.planes = _Planes.none(self.begin)
        self.spent = self.begin.new_zeros(len(self.begin), sum(len(h.on) for h in self.held), 3)

    def corrected(self, x: Tensor, more: Tensor, factor: Tensor) -> Tensor:
        """A Newton step ``more`` with what holds and what stops added to it."""
        many = len(x)
        pinned = torch.cat([h.on for h in self.held]) if self.held else torch.zeros(0, dtype=torch.long)
        where = torch.cat([h.where for h in self.held], 1) if self.held else x.new_zeros(many, 0, 3)
        rows_held, off_held = self.slopes[:, pinned].flatten(1, 2), (x[:, pinned] - where).flatten(1)
        pulls = rows_held.transpose(1, 2)
        firm = 3 * sum(len(h.on) for h in self.held if h.give == 0)
        give = max([h.give for h in self.held], default=0.0)
        out = more
        for attempt in range(TRIES):
            tired = self.spent.any(-1, keepdim=True).expand_as(self.spent).flatten(1)
            free = more + torch.cholesky_solve(pulls @ self.spent.flatten(1)[..., None], factor)[..., 0]
            rows, off = self._contacts(x)
            rows = torch.cat([rows_held.masked_fill(tired[..., None], 0), rows], 1)
            off = torch.cat([off_held.masked_fill(tired, 0), off], 1)
            reply = torch.cholesky_solve(rows.transpose(1, 2), factor)  # [b,d,r]
            miss = off + torch.einsum("brd,bd->br", rows, free)
            impulse = solved(rows @ reply, miss, rows_held.shape[1], firm, give, self.friction)
            out = free + torch.einsum("bdr,br->bd", reply, impulse)
            self.force = torch.where(tired, self.spent.flatten(1), impulse[:, : tired.shape[1]]).unflatten(1, (-1, 3))
            more_tired = self._tired(self.force)
            if attempt == TRIES - 1:
                break
            ahead = x + torch.einsum("bnid,bd->bni", self.slopes, out)
            if not (more_tired or (self.obstacle is not None and self._found(ahead, impulse[:, tired.shape[1] :: 3]))):
                break
        return out

    def _tired(self, force: Tensor) -> bool:
        """Whether hands turned out to pull harder than they can."""
        most = torch.cat(
            [torch.full((len(h.on),), h.most, dtype=force.dtype) for h in self.held] or [force.new_zeros(0)]
        )
        long = force.norm(dim=-1)
        over = (long > most * (1 + 1e-9)) & ~self.spent.any(-1)
        if not bool(over.any()):
            return False
        self.spent = torch.where(over[..., None], force * (most / long.clamp(min=1e-300))[..., None], self.spent)
        return True

    def torn(self, x: Tensor) -> float:
        """How far the worst of the points that are held exactly is from its place, metres."""
        return max([float((x[:, h.on] - h.where).norm(dim=-1).max()) for h in self.held if h.give == 0], default=0.0)

    def _contacts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Three rows per plane: along its normal, and two along the surface."""
        p, d = self.planes, self.slopes.shape[-1]
        pick = p.on[..., None]
        own = self.slopes.gather(1, pick[..., None].expand(-1, -1, 3, d))
        here, there = (v.gather(1, pick.expand(-1, -1, 3)) for v in (x, self.begin))
        axes = _frame(p.normal) * p.used[..., None, None]  # [b,c,3 axes,3]; what is no plane has no rows
        rows = torch.einsum("bcai,bcid->bcad", axes, own)
        along = torch.einsum("bcai,bci->bca", axes, here - there)
        off = torch.cat([(p.high(here) * p.used)[..., None], along[..., 1:]], -1)
        return rows.flatten(1, 2), off.flatten(1)

    def _found(self, ahead: Tensor, press: Tensor) -> bool:
        """Whether points that are inside at ``ahead``, or went through something on their way, got planes."""
        assert self.obstacle is not None
        goal, start = ahead[:, self.touching], self.begin[:, self.touching]
        way = (goal - start).norm(dim=-1)
        deep = DEEP * self.size
        near = self.gap < way + deep
        if not bool(near.any()):
            return False
        far, up = torch.full_like(self.gap, torch.inf), self.up.clone()
        far[near], up[near] = self.obstacle(goal[near])
        floor = self._floor()
        inside = far < floor - deep
        mine, broken = self.planes.of(len(self.touching), self.touching, ahead, deep)
        fast = ((goal - start) * self.up).sum(-1) < -THIN * self.size  # from the surface inwards, and already out again
        through = near & ~inside & (mine == 0) & (far < way) & ((self.gap > deep) | fast)
        maybe = (inside | through) & ~broken & (mine < EACH)
        if not bool(maybe.any()):
            return False
        base, normal, level = goal.clone(), up, far - floor
        first = maybe & (mine == 0)
        at, n, g, hit = self._met(start[first], goal[first], self.gap[first], self.up[first])
        base[first], normal[first], level[first] = at, n, g - floor[first]
        maybe[first] = hit | inside[first]
        if not bool(maybe.any()):
            return False
        return self._add(maybe, far, goal, base, normal, level, press)

    def _floor(self) -> Tensor:
        """[b,m] least distance that is allowed: none, or most of what a point is inside already."""
        inside = (-self.gap).clamp(min=0)
        most = self.slopes.abs().amax((1, 2)).clamp(min=1e-300)
        able = (self.slopes[:, self.touching] / most[:, None, None]).square().sum((2, 3)).sqrt() > WEAK
        return -inside + RISE * inside.clamp(max=SHALLOW * self.size) * able

    def _met(self, start: Tensor, goal: Tensor, gap: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where ways meet the surface: as far along each as nothing can be in between, again and again. Points, normals, distances, and whether
        they did before their end."""
        assert self.obstacle is not None
        way = goal - start
        long = way.norm(dim=-1).clamp(min=1e-300)
        close = torch.maximum(torch.full_like(long, DEEP * self.size), 1e-3 * long)
        share, at, normal, far = torch.zeros_like(long), start.clone(), up.clone(), gap.clone()
        for _ in range(MARCH):
            go = (far > close) & (share < 1)
            if not bool(go.any()):
                break
            share[go] = (share + far / long)[go].clamp(max=1)
            at[go] = start[go] + share[go, None] * way[go]
            far[go], normal[go] = self.obstacle(at[go])
        return at, normal, far, (far <= close) & (share < 1)

    def _add(self, maybe: Tensor, far: Tensor, goal: Tensor, base: Tensor, normal: Tensor, level: Tensor, press: Tensor) -> bool:  # fmt: skip
        """Planes for some of the points: the deepest, then those that are far from all before."""
        away = torch.where(maybe, 1e6 * self.size - far, -1.0)  # the deepest is first, whatever the distances are
        picks, used = [], []
        for _ in range(min(NEW, int(maybe.sum(1).max()))):
            best, which = away.max(1)
            picks.append(which)
            used.append(best > 0)
            spot = goal.gather(1, which[:, None, None].expand(-1, -1, 3))
            away = torch.minimum(away, (goal - spot).norm(dim=-1))
            away.scatter_(1, which[:, None], -1.0)
        pick, use = torch.stack(picks, 1), torch.stack(used, 1)
        wide = pick[..., None].expand(-1, -1, 3)
        more = _Planes(
            on=self.touching[pick], used=use, base=base.gather(1, wide), normal=normal.gather(1, wide), level=level.gather(1, pick)
        )  # fmt: skip
        old = self.planes
        if old.on.shape[1] + pick.shape[1] > NEAR:
            kept = ((press > 0) & old.used).to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : NEAR - pick.shape[1]]  # fmt: skip
            old = old.picked(kept)
        self.planes = old.joined(more)
        return True


@dataclass(frozen=True, kw_only=True, eq=False)
class _Planes:
    """Half-spaces for points, side by side for copies of the body: some have fewer."""

    on: Tensor
    """[b,c] indices of points."""
    used: Tensor
    """[b,c] whether it is one."""
    base: Tensor
    """[b,c,3] a place on it, or near."""
    normal: Tensor
    """[b,c,3] away from the obstacle."""
    level: Tensor
    """[b,c] distance at that place, less what is allowed."""

    @classmethod
    def none(cls, x: Tensor) -> _Planes:
        """Of copies of points."""
        b = len(x)
        return cls(
            on=torch.zeros(b, 0, dtype=torch.long), used=torch.zeros(b, 0, dtype=torch.bool), base=x.new_zeros(b, 0, 3),
            normal=x.new_zeros(b, 0, 3), level=x.new_zeros(b, 0),
        )  # fmt: skip

    def high(self, x: Tensor) -> Tensor:
        """[b,c] of their points [b,c,3] above them."""
        return self.level + ((x - self.base) * self.normal).sum(-1)

    def of(self, count: int, touching: Tensor, x: Tensor, deep: float) -> tuple[Tensor, Tensor]:
        """How many each point that may touch has [b,m], and whether it is below one of them (the answer was not exact)."""
        here = x.gather(1, self.on[..., None].expand(-1, -1, 3))
        below = self.used & (self.high(here) < -deep / 2)
        place = torch.full((int(touching.max()) + 1 if count else 1,), 0, dtype=torch.long)
        place[touching] = torch.arange(count)
        number = torch.zeros(len(x), count, dtype=torch.long).scatter_add_(1, place[self.on], self.used.long())
        broken = torch.zeros(len(x), count, dtype=torch.long).scatter_add_(1, place[self.on], below.long())
        return number, broken > 0

    def picked(self, which: Tensor) -> _Planes:
        """Some of them [b,c]."""
        wide = which[..., None].expand(-1, -1, 3)
        return _Planes(
            on=self.on.gather(1, which), used=self.used.gather(1, which), base=self.base.gather(1, wide),
            normal=self.normal.gather(1, wide), level=self.level.gather(1, which),
        )  # fmt: skip

    def joined(self, more: _Planes) -> _Planes:
        """And others."""
        return _Planes(**{n: torch.cat([getattr(self, n), getattr(more, n)], 1) for n in ("on", "used", "base", "normal", "level")})  # fmt: skip


def _frame(normal: Tensor) -> Tensor:
    """[...,3,3]: the normal and two directions along the surface, as rows."""
    other = torch.where(normal[..., :1].abs() < 0.9, normal.new_tensor([1.0, 0, 0]), normal.new_tensor([0, 1.0, 0]))
    first = torch.nn.functional.normalize(torch.linalg.cross(normal, other.expand_as(normal)), dim=-1)
    return torch.stack([normal, first, torch.linalg.cross(normal, first)], -2)


def solved(works: Tensor, miss: Tensor, equations: int, firm: int, give: float, friction: float) -> Tensor:
    """Impulses [b,r] after which equations are zero and contacts do not close further than allowed. ``works`` [b,r,r] is what impulses do to
    the constraints, ``miss`` [b,r] where they are without. Equations are solved exactly, those after the ``firm`` ones as far as the body can
    (a hand), contacts in what they leave."""
    e = equations
    held, cross, free = works[:, :e, :e], works[:, :e, e:], works[:, e:, e:]
    if e:
        inverse = _held(held, firm, give)
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


def _held(works: Tensor, firm: int, give: float) -> Tensor:
    """[b,e,e] impulses per miss. Of firm equations the inverse; of hands, in what those leave, w / (w^2 + give^2) instead of 1 / w of each
    direction in which an impulse has the effect w: next to the inverse where the body goes along, and nothing where it cannot, so that a hand
    does not tear at a hinge."""
    own, cross, led = works[:, :firm, :firm], works[:, :firm, firm:], works[:, firm:, firm:]
    most = works.diagonal(dim1=1, dim2=2).amax(1)[:, None, None].clamp(min=1e-100)  # not zero when squared
    inverse = torch.linalg.pinv(own, rtol=SAME, hermitian=True) if firm else own
    if firm == works.shape[1]:
        return inverse
    both = inverse @ cross
    rest = led - cross.transpose(1, 2) @ both
    rest = (rest + rest.transpose(1, 2)) / 2
    soft = (give * most) ** 2 * torch.eye(len(rest[0]), dtype=works.dtype)
    pull = torch.linalg.solve(rest @ rest + soft, rest)
    upper = torch.cat([inverse + both @ pull @ both.transpose(1, 2), -both @ pull], 2)
    return torch.cat([upper, torch.cat([-pull @ both.transpose(1, 2), pull], 2)], 1)
