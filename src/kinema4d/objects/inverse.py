"""The state of a body from where its points were seen: the inverse kinematics of NeuROK's Table 1, and the start of a motion.

Known correspondences are least squares; for a cloud without them every point goes to the closest of the other side, found anew before each
step (Fitzgibbon's LM-ICP). Both are one Levenberg-Marquardt in the body's own unknowns, from several starts side by side, within its reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from scipy.spatial import KDTree
from torch import Tensor

from kinema4d.objects.body import Body, Shape, State, at_rest, jacobian, moved, points

ROUNDS = 200
"""Of Levenberg-Marquardt at most."""
ENOUGH = 1e-11
"""Movement of a point, of the body's size, at which it has converged."""
STUCK = 1e10
"""Damping at which no shorter step is tried: nothing near is better."""
OPEN = 2.0
"""Starts of a coordinate without a range are drawn within this much of zero."""
BEST, TRIED = 4, 12
"""Starts that are followed to the end on a cloud, and rounds after which they are chosen."""
SHAKES = (0.2, 0.05)
"""Shares of the range by which the best is then shaken, to begin once more: closest points hold on to each other where they are wrong."""
FAR = 3.0
"""Sizes of the body beyond which a target's place or size is said to be strange."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reached:
    """What was found."""

    q: Float[Tensor, " k"]
    """Coordinates."""
    place: Float[Tensor, "3"]
    """Origin of the body's frame in the world, metres."""
    turn: Float[Tensor, "3 3"]
    """Its axes in the world."""
    error: float
    """Mean distance of the targets from their points, metres; of a cloud, from the closest."""
    chamfer: float
    """Mean distance to the closest of the other side, the mean of both ways, metres (L1)."""
    rounds: int
    """That were needed."""
    converged: bool
    """Whether it ended because nothing moved any more; the error may be large all the same, where a target is out of reach."""
    strange: tuple[str, ...] = ()
    """What is odd about the target, in words."""

    @property
    def state(self) -> State:
        """As a batch of one, to simulate from."""
        return State(place=self.place[None], turn=self.turn[None], q=self.q[None])


def reach_points(
    body: Body,
    targets: Float[Tensor, "m 3"],
    *,
    on: Int64[Tensor, " p"] | None = None,
    weights: Float[Tensor, " w"] | None = None,
    start: Float[Tensor, "s k"] | None = None,
    free: bool | None = None,
    starts: int = 8,
    seed: int = 0,
) -> Reached:
    """Bring points ``on`` (all without) to ``targets`` in the world, one for one. ``free`` also looks for the place of the whole, as a free
    body has it; ``start`` are coordinates to begin from, instead of rest and random ones."""
    body = replace(body, free=body.free if free is None else free) if body.coordinates else body
    still = free is False and body.coordinates == 0  # a rigid thing that may not move: nothing to solve
    q = _starts(body, start, starts, seed)
    own = body.shape(q)
    count = own.shape[1]
    on = torch.arange(count) if on is None else on
    share = _checked_points(targets, on, weights, count)
    targets = targets.to(q.dtype)
    weight, goal = own.new_zeros(count).index_put((on,), share, accumulate=True), own.new_zeros(count, 3)
    goal = goal.index_put((on,), share[:, None] * targets, accumulate=True) / weight.clamp(min=1e-300)[:, None]

    def aim(x: Tensor) -> _Aim:
        cost = (share * (x[:, on] - targets).square().sum(-1)).sum(1)
        return _Aim(cost, goal.expand_as(x), weight.expand(len(x), -1))

    begin = at_rest(body, q)
    if body.free and not still:
        place, turn = _aligned(own[:, on], targets.expand(len(q), -1, -1), share)
        begin = State(place=place, turn=turn, q=q)
    run = _Run(begin, aim(points(body, begin)).cost, torch.ones(len(q), dtype=torch.bool), 0)
    if not still:
        run = _descend(body, begin, aim, size=_size(own), rounds=ROUNDS, enough=ENOUGH)
    best = int(run.cost.argmin())
    x = points(body, run.state)[best]
    error = float((share * (x[on] - targets).norm(dim=-1)).sum())
    strange = _odd(targets, x[on], moves=body.free) if len(on) == count else ()
    return _reached(run, best, error, _chamfer(x[on].numpy(), targets.numpy()), strange)


def reach_cloud(
    body: Body,
    cloud: Float[Tensor, "m 3"],
    surface: Shape | None = None,
    *,
    seen: float = 1.0,
    clean: float = 1.0,
    start: Float[Tensor, "s k"] | None = None,
    free: bool | None = None,
    starts: int = 12,
    seed: int = 0,
) -> Reached:
    """Bring the body to a cloud in the world of which it is not known which point is which. ``surface`` has the points that would be seen, in
    the body's frame, if they are not those with masses, which lie inside. Of a partial cloud say which share of the surface was ``seen``;
    where it is not all of this body, which share is ``clean``: the rest, the farthest, is left out."""
    if body.coordinates == 0 and not (body.free if free is None else free):
        raise ValueError("a body without coordinates that is not free cannot be brought anywhere")
    for name, share in (("seen", seen), ("clean", clean)):
        if not 0 < share <= 1:
            raise ValueError(f"{name} is a share in (0, 1], got {share}")
    q = _starts(body, start, starts, seed)
    show = surface or body.shape
    own = show(q)
    body = replace(body, shape=show, mass=q.new_ones(own.shape[1]), free=body.free if free is None else free)
    _checked_vectors(cloud, "the cloud")
    cloud = cloud.to(q.dtype)
    size, there = _size(own), cloud.numpy()
    tree = KDTree(there)

    def aim(x: Tensor) -> _Aim:
        parts = [_closest(one, there, tree, seen, clean) for one in x.numpy()]
        cost, goal, weight = (torch.as_tensor(np.stack(v)) for v in zip(*parts, strict=True))
        return _Aim(cost.to(x.dtype), goal.to(x.dtype), weight.to(x.dtype))

    begin = _poses(own, cloud, q) if body.free else at_rest(body, q)
    run, used, g = _followed(body, begin, aim, size), 0, torch.Generator().manual_seed(seed)
    for share in SHAKES:
        used += run.rounds
        run = _followed(
            body, _shaken(body, _picked(run.state, run.cost.argmin()[None]), share, size, starts, g), aim, size
        )
    run = replace(run, rounds=used + run.rounds)
    best = int(run.cost.argmin())
    x = points(body, run.state)[best]
    away, _ = KDTree(x.numpy()).query(there)
    kept = np.sort(away)[: max(1, round(clean * len(away)))]
    strange = _odd(cloud, x, moves=body.free)
    return _reached(run, best, float(kept.mean()), _chamfer(x.numpy(), there), strange)


def initial_velocity(
    body: Body, state: State, velocity: Float[Tensor, "*b n 3"], on: Int64[Tensor, " p"] | None = None
) -> Tensor:
    """Velocities of the unknowns [b,unknowns] that come closest to those of points ``on`` (all without), metres per second: least squares,
    and the shortest of what is left open."""
    _checked_vectors(velocity.reshape(-1, 3), "the velocities")
    _, slopes = jacobian(body, state)
    count = slopes.shape[1]
    on = torch.arange(count) if on is None else on
    _checked_on(on, count)
    if velocity.shape[-2] != len(on):
        raise ValueError(f"there are velocities of {velocity.shape[-2]} points and {len(on)} points to have them")
    want = velocity.to(slopes.dtype).expand(len(slopes), -1, -1).flatten(1)[..., None]
    return torch.linalg.lstsq(slopes[:, on].flatten(1, 2), want, driver="gelsd").solution[..., 0]


# ---------------------------------------------------------------------- Levenberg-Marquardt


@dataclass(frozen=True, eq=False)
class _Aim:
    cost: Tensor
    """[b] weighted mean squared distance, with the pairs as they are."""
    goal: Tensor
    """[b,n,3] where each point should go."""
    weight: Tensor
    """[b,n] how much it counts."""


@dataclass(frozen=True, eq=False)
class _Run:
    state: State
    cost: Tensor
    done: Bool[Tensor, " b"]
    rounds: int


def _descend(body: Body, state: State, aim: Callable[[Tensor], _Aim], *, size: float, rounds: int, enough: float) -> _Run:  # fmt: skip
    """Every start for itself, until it stands still."""
    many = len(state.q)
    reach = None if body.reach is None else body.reach.to(state.q.dtype)
    damp = torch.full((many,), 1e-3, dtype=state.q.dtype)
    done, used = torch.zeros(many, dtype=torch.bool), 0
    x, slopes = jacobian(body, state)
    now = aim(x)
    while used < rounds and not bool(done.all()):
        used += 1
        heavy = now.weight[..., None, None] * slopes
        pull = torch.einsum("bnid,bni->bd", heavy, x - now.goal)
        curve = torch.einsum("bnid,bnie->bde", heavy, slopes)
        trial = moved(body, state, torch.where(done[:, None], 0.0, _step(pull, curve, damp, state.q, reach)))
        if reach is not None:
            trial = replace(trial, q=trial.q.clamp(reach[:, 0], reach[:, 1]))
        there = points(body, trial)
        after = aim(there)
        better = (after.cost <= now.cost) & ~done
        small = (there - x).norm(dim=-1).amax(1) < enough * size
        damp = torch.where(better, (damp / 10).clamp(min=1e-12), damp * 5)
        done = done | small | (damp > STUCK)
        state = _where(better, trial, state)
        now = _Aim(*(torch.where(better.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in ((after.cost, now.cost), (after.goal, now.goal), (after.weight, now.weight))))  # fmt: skip
        if bool(better.any()):
            x, slopes = jacobian(body, state)
    return _Run(state, now.cost, done, used)


def _step(pull: Tensor, curve: Tensor, damp: Tensor, q: Tensor, reach: Tensor | None) -> Tensor:
    """[b,d] of Levenberg and Marquardt. Coordinates that would leave their range stop at its end, and the others are solved for again."""
    own, k = curve.diagonal(dim1=1, dim2=2), q.shape[1]
    floor = 1e-12 * own.amax(1, keepdim=True).clamp(min=1e-300)
    fixed, value = torch.zeros_like(pull, dtype=torch.bool), torch.zeros_like(pull)
    if reach is not None and k:  # what stands at the end already and is pulled further stays
        fixed[:, -k:] = ((q <= reach[:, 0]) & (pull[:, -k:] > 0)) | ((q >= reach[:, 1]) & (pull[:, -k:] < 0))
    while True:
        both = ~(fixed[:, :, None] | fixed[:, None])
        matrix = torch.where(both, curve, 0.0) + torch.diag_embed(torch.where(fixed, 1.0, damp[:, None] * own + floor))
        known = torch.einsum("bde,be->bd", curve, value)
        step = torch.linalg.solve(matrix, torch.where(fixed, value, -pull - known))
        if reach is None or not k:
            return step
        inner = (q + step[:, -k:]).clamp(reach[:, 0], reach[:, 1]) - q
        over = (
            (inner != step[:, -k:])
            & ~fixed[:, -k:]
            & ((inner - step[:, -k:]).abs() > 1e-12 * (reach[:, 1] - reach[:, 0]))
        )
        if not bool(over.any()):
            return step
        fixed[:, -k:] |= over
        value[:, -k:] = torch.where(over, inner, value[:, -k:])


def _followed(body: Body, begin: State, aim: Callable[[Tensor], _Aim], size: float) -> _Run:
    """All starts for some rounds, the best of them to the end."""
    run = _descend(body, begin, aim, size=size, rounds=TRIED, enough=1e-7)
    last = _descend(body, _picked(run.state, run.cost.argsort()[:BEST]), aim, size=size, rounds=ROUNDS, enough=1e-7)
    return replace(last, rounds=run.rounds + last.rounds)


def _picked(state: State, pick: Tensor) -> State:
    return State(place=state.place[pick], turn=state.turn[pick], q=state.q[pick])


def _where(pick: Tensor, a: State, b: State) -> State:
    return State(
        place=torch.where(pick[:, None], a.place, b.place),
        turn=torch.where(pick[:, None, None], a.turn, b.turn),
        q=torch.where(pick[:, None], a.q, b.q),
    )


def _closest(x: np.ndarray, cloud: np.ndarray, tree: KDTree, seen: float, clean: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Pairs of both ways, those that count, as one goal and weight for each point; and their mean squared distance."""
    out, to = tree.query(x)
    back, of = KDTree(x).query(cloud)
    to, of = np.asarray(to), np.asarray(of)
    a, b = (np.argsort(v)[: max(1, round(share * len(v)))] for v, share in ((out, seen), (back, clean)))
    weight, goal = np.zeros(len(x)), np.zeros_like(x)
    weight[a] = 0.5 / len(a)
    goal[a] = 0.5 / len(a) * cloud[to[a]]
    np.add.at(weight, of[b], 0.5 / len(b))
    np.add.at(goal, of[b], 0.5 / len(b) * cloud[b])
    cost = 0.5 * (np.square(out[a]).mean() + np.square(back[b]).mean())
    return np.asarray(cost), goal / np.maximum(weight, 1e-300)[:, None], weight


# ---------------------------------------------------------------------- where to begin


def _range(body: Body) -> Tensor:
    """[k,2] to draw coordinates from."""
    k = body.coordinates
    return torch.tensor([[-OPEN, OPEN]] * k).reshape(k, 2).double() if body.reach is None else body.reach.double()


def _starts(body: Body, start: Tensor | None, count: int, seed: int) -> Tensor:
    """[s,k]: what was given, or rest and random coordinates within reach."""
    k = body.coordinates
    low, high = _range(body).unbind(1)
    if start is not None:
        if start.ndim != 2 or start.shape[1] != k or len(start) == 0:
            raise ValueError(f"starts are [s,{k}], at least one, got {list(start.shape)}")
        return start.double().clamp(low, high) if body.reach is not None else start.double()
    if count < 1:
        raise ValueError(f"at least one start is needed, got {count}")
    g = torch.Generator().manual_seed(seed)
    q = low + (high - low) * torch.rand(count if k else 1, k, generator=g, dtype=torch.float64)
    q[0] = torch.zeros(k, dtype=torch.float64).clamp(low, high)
    return q


def _aligned(x: Tensor, y: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Place [b,3] and turn [b,3,3] that bring points [b,n,3] closest to others one for one (Kabsch)."""
    a, b = (torch.einsum("n,bni->bi", share, v) for v in (x, y))
    u, _, v = torch.linalg.svd(torch.einsum("n,bni,bnj->bij", share, y - b[:, None], x - a[:, None]))
    flip = torch.ones(len(x), 3, dtype=x.dtype)
    flip[:, 2] = torch.linalg.det(u @ v)
    turn = u * flip[:, None] @ v
    return b - torch.einsum("bij,bj->bi", turn, a), turn


def _poses(own: Tensor, cloud: Tensor, q: Tensor) -> State:
    """Starts of the whole on a cloud: middles together, as it is and with its main axes along the cloud's, four ways round."""
    axes = lambda v: torch.linalg.eigh((v - v.mean(-2, keepdim=True)).mT @ (v - v.mean(-2, keepdim=True)))[1]  # noqa: E731
    a, b = axes(own), axes(cloud)
    turns = [torch.eye(3, dtype=q.dtype).expand(len(q), 3, 3)]
    for signs in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)):
        way = b * torch.tensor([*signs, 1.0], dtype=q.dtype)
        turn = way @ a.mT
        last = torch.linalg.det(turn).sign()  # mirrored: turn the third axis round
        turns.append((way * torch.stack([torch.ones_like(last), torch.ones_like(last), last], -1)[:, None]) @ a.mT)
    turn = torch.cat(turns)
    place = cloud.mean(0) - torch.einsum("bij,bj->bi", turn, own.mean(1).repeat(5, 1))
    return State(place=place, turn=turn, q=q.repeat(5, 1))


def _shaken(body: Body, state: State, share: float, size: float, count: int, g: torch.Generator) -> State:
    """One state, and so many near it."""
    reach = _range(body)
    wide = (reach[:, 1] - reach[:, 0]).to(state.q.dtype)
    if body.free:
        wide = torch.cat([wide.new_full((3,), size), wide.new_full((3,), 3.0), wide])  # radians
    change = share * wide * torch.randn(count + 1, body.unknowns, generator=g, dtype=state.q.dtype)
    change[0] = 0
    near = moved(body, _picked(state, torch.zeros(count + 1, dtype=torch.long)), change)
    return near if body.reach is None else replace(near, q=near.q.clamp(*reach.to(near.q.dtype).unbind(1)))


# ---------------------------------------------------------------------- what is given, what is told


def _checked_vectors(x: Tensor, name: str) -> None:
    if x.ndim != 2 or x.shape[1] != 3 or len(x) == 0:
        raise ValueError(f"{name} must be [n,3] with at least one point, got {list(x.shape)}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(
            f"{name} with {len(x)} points: {int((~torch.isfinite(x)).any(1).sum())} of them are no numbers"
        )


def _checked_on(on: Tensor, count: int) -> None:
    if len(on) == 0 or int(on.min()) < 0 or int(on.max()) >= count:
        given = f"{int(on.min())} to {int(on.max())}" if len(on) else "none"
        raise ValueError(f"the body has points 0 to {count - 1}, got indices {given}")


def _checked_points(targets: Tensor, on: Tensor, weights: Tensor | None, count: int) -> Tensor:
    """[m] weights of sum one."""
    _checked_vectors(targets, "the targets")
    _checked_on(on, count)
    if len(targets) != len(on):
        raise ValueError(f"there are {len(targets)} targets for {len(on)} points")
    share = torch.ones(len(on), dtype=torch.float64) if weights is None else weights.double()
    if share.shape != (len(on),) or not bool((share >= 0).all()) or not float(share.sum()) > 0:
        raise ValueError(
            f"weights must be {len(on)} numbers that are not negative nor all zero, got {list(share.shape)}"
        )
    return share / share.sum()


def _size(x: Tensor) -> float:
    """Diagonal of the box of points [b,n,3], the largest."""
    return max(float((x.amax(1) - x.amin(1)).norm(dim=-1).max()), 1e-9)


def _odd(targets: Tensor, x: Tensor, *, moves: bool) -> tuple[str, ...]:
    size, other = _size(x[None]), _size(targets[None])
    said = []
    if other > FAR * size:
        said.append(f"the target is {other:.3g} m large, the body {size:.3g} m: another unit?")
    away = float((targets.mean(0) - x.mean(0)).norm())
    if not moves and away > FAR * size:
        said.append(f"the target is {away:.3g} m away from a body of {size:.3g} m that stands still: another frame?")
    return tuple(said)


def _chamfer(x: np.ndarray, y: np.ndarray) -> float:
    return float(KDTree(x).query(y)[0].mean() + KDTree(y).query(x)[0].mean()) / 2


def _reached(run: _Run, best: int, error: float, chamfer: float, strange: tuple[str, ...]) -> Reached:
    s = run.state
    return Reached(
        q=s.q[best], place=s.place[best], turn=s.turn[best], error=error, chamfer=chamfer,
        rounds=run.rounds, converged=bool(run.done[best]), strange=strange,
    )  # fmt: skip
