"""One object under gravity, pushes, pins and a floor: what was wished in words becomes forces on points of its surface, and its motion a mesh
over time with the books of energy beside it.

Places of pushes and pins are points of the surface that have next to no mass and follow their triangle, so that a force acts where it is said
and not at the nearest point that happens to have a mass. Those of a floor are vertices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import csr_matrix, vstack
from scipy.spatial import ConvexHull, QhullError

from kinema4d.geometry.deforming import ObjectMotion, sweep
from kinema4d.objects.body import Body, State, at_rest, jacobian
from kinema4d.objects.elastic import Elastic, density_of, elastic
from kinema4d.objects.fit import Fitted, screw_body
from kinema4d.objects.lagrange import Conditions, Motion, Pin, Push, ground, simulate
from kinema4d.objects.meshes import wound_both_ways
from kinema4d.objects.solid import Mesh, Weighed, checked
from kinema4d.simulate.object_wish import Vector, Wish

OFF = 0.05
"""Distance from the surface, of the size, beyond which a place is not on the object."""
LIGHT = 1e-9
"""Mass of all points together that only mark a place, of the object's."""
STILL = 1e-3
"""A point that moves by less, of the size, over the whole range of all coordinates stands still."""
TOUCHING = 300
"""Vertices at most that may touch the floor."""
LEAP = 0.5
"""Of a coordinate's range in one step, or beyond its end: more is no motion any more, though a point that turns may seem to stay near."""
DRIFT = 0.05
"""Energy that came from nowhere, of the largest that went to and fro, which is flagged."""
MOST = 2 * 10**8
"""Vertices of all frames together."""
FINE, PARTS = 1.4, 50
"""Of the fastest vibration a step of what is elastic has so many radians at most, which takes so many parts of a frame at most; what is stiffer
takes its elastic forces at the end of each step, which is stable and damps."""


# ---------------------------------------------------------------------- simulation


def simulate_object(fitted: Fitted, wish: Wish | None = None, *, about: Mapping[str, Any] | None = None) -> ObjectMotion:  # fmt: skip
    """Let it move. A simulation that is lost keeps the frames until then and says why in ``stopped``. What is elastic is simulated in parts of a
    frame."""
    wish = wish or Wish()
    flags = [*checked(fitted.mesh), *_doubts(fitted, wish)]
    solid = _solid(fitted, wish, flags)
    if solid is not None:
        fitted = replace(fitted, weighed=solid.weighed)
    k, mesh = fitted.twists.shape[1], fitted.mesh
    frames = round(wish.seconds / wish.step) + 1
    if frames * len(mesh.vertices) > MOST:
        raise ValueError(f"{frames} frames of {len(mesh.vertices)} vertices are too many: simulate for less time or in larger steps")  # fmt: skip
    start, speed = _coordinates(wish.start, k, "start"), _coordinates(wish.speed, k, "speed")
    reach = np.stack([np.minimum(fitted.reach[:, 0], np.minimum(start, 0)), np.maximum(fitted.reach[:, 1], np.maximum(start, 0))], 1)  # fmt: skip
    if len(over := np.flatnonzero((start < fitted.reach[:, 0]) | (start > fitted.reach[:, 1]))):
        flags.append(f"it begins outside the range that was learned from in coordinate {', '.join(str(i + 1) for i in over)}")  # fmt: skip
    samples = sweep(np.zeros(k), reach)
    sliders = decoded(fitted, samples.reshape(-1, k)).reshape(*samples.shape[:2], -1, 3)
    moves = np.full(len(mesh.vertices), wish.free)
    if k:
        moves |= np.linalg.norm(sliders - mesh.vertices.astype(np.float32), axis=-1).max((0, 1)) > STILL * mesh.size
    marks = _Marks(mesh, moves)
    energy = None if solid is None else lambda q: solid.energy(fitted.vertices(q))
    parts, implicit = (1, False) if energy is None else _parts(fitted, energy, start, reach, wish.step)
    if frames * parts * len(fitted.weighed.mass) > MOST:
        raise ValueError(f"it vibrates so fast that {frames} frames need {parts} steps each, which is too many: simulate for less time")  # fmt: skip
    fine = replace(wish, step=wish.step / parts)
    pushes = [p for i in range(len(wish.pushes)) for p in _scheduled(i, fine, marks)]
    pinned = [at for p in wish.pins if (at := marks.put(p, "the pin", moving=True)) is not None]
    touching = np.zeros(0, np.int64) if wish.ground is None else _lowest(fitted, moves)
    body, first = _marked(fitted, marks, touching, reach, free=wish.free)
    body = replace(body, energy=energy)
    on = lambda i: torch.tensor([first + i])  # noqa: E731
    conditions = Conditions(
        gravity=wish.gravity, damping=wish.damping, friction=wish.friction,
        pushes=[Push(on=on(p.mark), force=torch.tensor(p.force, dtype=torch.float64), begin=p.begin, end=p.end) for p in pushes],
        pins=[Pin(on=first + torch.tensor(pinned))] if pinned else [],
        obstacle=None if wish.ground is None or not len(touching) else ground(wish.ground),
    )  # fmt: skip
    begin = at_rest(body, torch.from_numpy(start)[None])
    velocity = torch.from_numpy(np.concatenate([np.zeros(body.unknowns - k), speed]))[None]
    try:
        run = simulate(body, begin, conditions, seconds=wish.seconds, step=fine.step, velocity=velocity, implicit=implicit)  # fmt: skip
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        if not implicit:
            raise
        raise ValueError(f"it buckles, and is too stiff for steps of {fine.step:g} s: take a smaller --step, or --young below {wish.young:g}") from None  # fmt: skip
    _cut(run, reach)
    if not len(run):
        _only_start(run, body, begin, velocity, conditions)
    q, place, turn = (np.stack([getattr(s, n)[0].numpy() for s in run.states[::parts]]) for n in ("q", "place", "turn"))
    vertices = (decoded(fitted, q) @ turn.swapaxes(1, 2) + place[:, None]).astype(np.float32)
    deep = np.zeros(len(q))
    if wish.ground is not None and moves.any():
        deep = np.maximum(wish.ground - vertices[:, moves, 2].min(axis=1).astype(np.float64), 0.0)
        if deep[0] > 0.01 * mesh.size:
            flags.append(f"it begins {deep[0]:.3g} m deep in the ground")
    at = np.stack([x[0, first : first + marks.count].numpy() for x in run.points])
    force, force_at = _forces(pushes, fine, at, len(run))
    work = np.concatenate([[0.0], ((force[1:] + force[:-1]) / 2 * np.diff(force_at, axis=0)).sum((1, 2)).cumsum()])
    seen = lambda every: np.stack([x[0].numpy() for x in every[::parts]])  # noqa: E731
    motion = ObjectMotion(
        vertices=vertices, faces=mesh.faces, step=wish.step, q=q, place=place, turn=turn,
        kinetic=seen(run.kinetic), potential=seen(run.potential), work=work[::parts],
        momentum=seen(run.momentum), penetration=deep, force_at=force_at[::parts], force=force[::parts],
        rest=mesh.vertices.astype(np.float32), rest_q=np.zeros(k), reach=reach, sliders=sliders.astype(np.float32),
        stopped=run.stopped, about={**(about or {}), "wish": _plain(wish)},
    )  # fmt: skip
    least = 1e-6 * float(fitted.weighed.mass.sum()) * mesh.size  # joule: of a fall by a ten-millionth of the size
    wrong, strange = _books(motion, reach, wish, least, damped=implicit)
    return replace(motion, flags=(*flags, *marks.flags, *strange), about={**motion.about, "energy_drift": wrong})


def decoded(fitted: Fitted, q: Float64[np.ndarray, "b k"]) -> Float64[np.ndarray, "b v 3"]:
    """Vertices for coordinates, in the object's frame, some at a time."""
    many = max(1, 10**6 // len(fitted.mesh.vertices))
    parts = [fitted.vertices(torch.from_numpy(q[i : i + many])).numpy() for i in range(0, len(q), many)]
    return np.concatenate(parts) if parts else np.zeros((0, len(fitted.mesh.vertices), 3))


def _doubts(fitted: Fitted, wish: Wish) -> list[str]:
    found, out = fitted.freedom, []
    if found.count is None and "it bends" in found.why:
        out.append(found.why + "; nothing is known of its elasticity, and it bends without any" * (wish.young is None))
    elif found.count is None:
        if not wish.anyway:
            raise ValueError(f"its coordinates are not fit to be simulated ({found.why}); --anyway does it all the same")  # fmt: skip
        out.append(f"simulated all the same: {found.why}")
    if odd := wound_both_ways(fitted.mesh):
        out.append(f"{odd} triangles look the other way than their neighbours: masses are wrong there")
    return out


def _solid(fitted: Fitted, wish: Wish, flags: list[str]) -> Elastic | None:
    """What bends as something elastic, if its material was said."""
    if wish.material is None:
        return None
    whose, count = np.unique(fitted.piece, return_counts=True)
    stiff = np.isin(fitted.piece, whose[count > 1])  # a vertex that is a piece of its own bends
    if stiff.all():
        flags.append("every part of it keeps its form: --young does nothing")
        return None
    return elastic(fitted.mesh, wish.material, density=density_of(fitted.mesh, fitted.weighed), stiff=stiff)


def _parts(fitted: Fitted, energy: Callable[[torch.Tensor], torch.Tensor], start: np.ndarray, reach: np.ndarray, step: float) -> tuple[int, bool]:  # fmt: skip
    """Into how many steps a frame is cut so that the fastest vibration is followed, at rest and at the ends of each coordinate's range; and whether
    that is not enough, so that elastic forces have to be implicit."""
    ends = np.concatenate([start[None], np.zeros_like(start)[None], *(np.diag(r) for r in reach.T)])
    body = fitted.body()
    q = torch.from_numpy(ends)
    slopes = jacobian(body, at_rest(body, q))[1]
    inertia = torch.einsum("n,bnid,bnie->bde", body.mass, slopes, slopes)
    unit = inertia.diagonal(dim1=1, dim2=2).clamp(min=1e-300).rsqrt()
    stiff, heavy = (unit[:, :, None] * m * unit[:, None] for m in (torch.func.vmap(torch.func.hessian(lambda v: energy(v[None])[0]))(q), inertia))  # fmt: skip
    half = torch.linalg.inv(torch.linalg.cholesky(heavy + 1e-9 * torch.eye(len(start), dtype=q.dtype)))
    fastest = float(torch.linalg.eigvalsh(half @ stiff @ half.mT).max().clamp(min=0).sqrt())  # radians per second
    parts = max(1, int(np.ceil(step * fastest / FINE)))
    return min(parts, PARTS), parts > PARTS


def _coordinates(given: tuple[float, ...] | None, k: int, name: str) -> Float64[np.ndarray, " k"]:
    if given is not None and len(given) != k:
        raise ValueError(f"the object has {k} coordinates, --{name} gives {len(given)}")
    return np.zeros(k) if given is None else np.array(given, np.float64)


# ---------------------------------------------------------------------- places


@dataclass(frozen=True)
class _Force:
    """One push over whole frames."""

    mark: int
    push: int
    force: Vector
    begin: float
    end: float


class _Marks:
    """Points of the surface, by their triangle."""

    def __init__(self, mesh: Mesh, moves: np.ndarray) -> None:
        self.mesh, self.moves = mesh, moves
        self.rows: list[csr_matrix] = []
        self.flags: list[str] = []

    @property
    def count(self) -> int:
        return len(self.rows)

    def put(self, place: Vector, what: str, *, moving: bool = False) -> int | None:
        """Number of the mark there; one on what stands still is flagged, and None where it has to be ``moving``."""
        from trimesh.triangles import closest_point, points_to_barycentric

        mesh, at = self.mesh, np.array(place, np.float64)
        corners = mesh.vertices[mesh.faces]
        near = np.asarray(closest_point(corners, np.tile(at, (len(corners), 1))))
        away = np.linalg.norm(near - at, axis=1)
        away = np.where(np.isfinite(away), away, np.inf)  # triangles without area have no nearest point
        here = int(away.argmin())
        if away[here] > OFF * mesh.size:
            raise ValueError(
                f"{what} at {_text(place)} m is {away[here]:.3g} m off the surface, allowed are {OFF * mesh.size:.3g} m; "
                f"the nearest point on it is {_text(near[here])} (places are those of the mesh at rest)"
            )
        share = np.asarray(points_to_barycentric(corners[here][None], near[here][None]))[0]
        share = np.clip(np.nan_to_num(share, nan=1 / 3), 0, 1)
        share = np.where(share < 1e-9, 0, share) / share[share >= 1e-9].sum()
        corner = mesh.faces[here][share > 0]
        if not self.moves[corner].any():
            self.flags.append(f"{what} at {_text(place)} m is on what stands still: it does nothing")
            if moving:
                return None
        row = csr_matrix((share[share > 0], (np.zeros(len(corner), int), corner)), shape=(1, len(mesh.vertices)))
        self.rows.append(row)
        return len(self.rows) - 1


def _scheduled(number: int, wish: Wish, marks: _Marks) -> list[_Force]:
    """Over whole frames, with the same impulse. The first frame of a simulation counts half, so a push from the start ends by a half frame."""
    push, h = wish.pushes[number], wish.step
    mark = marks.put(push.place, "the push")
    assert mark is not None
    last = round(wish.seconds / h) + 1
    a = round(push.begin / h)
    b = last if push.end >= wish.seconds + h else max(round(push.end / h), a + 1)
    true = h * (b - a) if push.end >= wish.seconds + h else push.end - push.begin
    share = true / (h * (b - a))
    own = tuple(share * v for v in push.force)
    out = [_Force(mark, number, (own[0], own[1], own[2]), (a - 0.5) * h, (b - 0.5) * h)]
    if a == 0 and b < last:
        out.append(_Force(mark, number, (own[0] / 2, own[1] / 2, own[2] / 2), (b - 0.5) * h, (b + 0.5) * h))
    return out


def _forces(pushes: Sequence[_Force], wish: Wish, at: np.ndarray, frames: int) -> tuple[Float64[np.ndarray, "t m 3"], Float64[np.ndarray, "t m 3"]]:  # fmt: skip
    """Of each push and where, frame by frame."""
    force, where = np.zeros((2, frames, len(wish.pushes), 3))
    time = np.arange(frames) * wish.step
    for p in pushes:
        force[(p.begin <= time) & (time < p.end), p.push] += p.force
        where[:, p.push] = at[:, p.mark]
    return force, where


def _lowest(fitted: Fitted, moves: np.ndarray) -> Int64[np.ndarray, " n"]:
    """Vertices that can come to lie on a floor: of a piece that keeps its form its corners, of what bends all."""
    out, v = [], fitted.mesh.vertices
    whose, count = np.unique(fitted.piece, return_counts=True)
    for piece in whose[count > 3]:
        mine = np.flatnonzero((fitted.piece == piece) & moves)
        with suppress(QhullError):  # it is flat
            mine = mine[ConvexHull(v[mine]).vertices] if len(mine) else mine
        out.append(mine)
    out.append(np.flatnonzero(np.isin(fitted.piece, whose[count <= 3]) & moves))
    found = np.sort(np.concatenate(out)).astype(np.int64)
    return found[:: max(1, -(-len(found) // TOUCHING))]


def _marked(fitted: Fitted, marks: _Marks, touching: np.ndarray, reach: np.ndarray, *, free: bool) -> tuple[Body, int]:
    """The body with points that have next to no mass, and where they begin."""
    mesh, n = fitted.mesh, len(fitted.weighed.mass)
    corner = csr_matrix((np.ones(len(touching)), (np.arange(len(touching)), touching)), shape=(len(touching), len(mesh.vertices)))  # fmt: skip
    rows = csr_matrix(vstack([fitted.weighed.rows, *marks.rows, corner]))
    more = marks.count + len(touching)
    light = np.full(more, LIGHT * fitted.weighed.mass.sum() / max(1, more))
    weighed = Weighed(rows=rows, mass=np.concatenate([fitted.weighed.mass, light]))
    body = screw_body(mesh, weighed, fitted.piece, fitted.twists)
    return replace(body, free=free, reach=torch.from_numpy(reach)), n


def _cut(run: Motion, reach: np.ndarray) -> None:
    """End it where a coordinate leaps; and one frame before, whose velocity is of the frames around it."""
    if not len(run) or not len(reach):
        return
    q, wide = np.stack([s.q[0].numpy() for s in run.states]), reach[:, 1] - reach[:, 0]
    far = np.maximum(np.abs(np.diff(q, axis=0, prepend=q[:1])), np.maximum(reach[:, 0] - q, q - reach[:, 1])) / wide
    if (far <= LEAP).all():
        return
    frame = int((far > LEAP).any(axis=1).argmax())
    which = int(far[frame].argmax()) + 1
    run.stopped = f"coordinate {which} leapt by {100 * far[frame].max():.3g} % of its range in one step, or out of it, at {frame * run.step:.3f} s"  # fmt: skip
    for name in ("points", "states", "kinetic", "potential", "momentum", "penetration"):
        del getattr(run, name)[max(1, frame - 1) :]


def _only_start(run: Motion, body: Body, start: State, velocity: torch.Tensor, conditions: Conditions) -> None:
    """The first frame of a simulation that could not take one step."""
    x, slopes = jacobian(body, start)
    fast = torch.einsum("bnid,bd->bni", slopes, velocity)
    mass = body.mass[:, None]
    run.points.append(x)
    run.states.append(start)
    run.kinetic.append(0.5 * (mass * fast.square()).sum((1, 2)))
    bent = torch.zeros(len(x), dtype=x.dtype) if body.energy is None else body.energy(start.q)
    run.potential.append(bent - (mass * x * torch.tensor(conditions.gravity, dtype=x.dtype)).sum((1, 2)))
    run.momentum.append((mass * fast).sum(1))
    run.penetration.append(torch.zeros(len(x), dtype=x.dtype))


# ---------------------------------------------------------------------- books


def _books(motion: ObjectMotion, reach: np.ndarray, wish: Wish, least: float, *, damped: bool) -> tuple[float, list[str]]:  # fmt: skip
    """Energy that nothing explains, of the largest that went to and fro, until a coordinate came to its end (there a wall takes energy); and
    what is strange about the motion."""
    out = []
    beyond = (motion.q < reach[:, 0] - 1e-9) | (motion.q > reach[:, 1] + 1e-9)
    for i in np.flatnonzero(beyond.any(axis=0)):
        when = motion.step * int(beyond[:, i].argmax())
        out.append(f"coordinate {i + 1} came to the end of the range that was learned from at {when:.2f} s, and was stopped there")  # fmt: skip
    until = int(beyond.any(axis=1).argmax()) if beyond.any() else len(motion)
    until = max(1, until - (until < len(motion)))  # a velocity is of the frames before and after
    change = (motion.energy - motion.energy[0] - motion.work)[:until]
    loses = damped or wish.damping > 0 or wish.ground is not None or bool(wish.pins)  # may take energy, not give it
    scale = max(*(float(np.ptp(v[:until])) for v in (motion.kinetic, motion.potential, motion.work)), float(motion.kinetic[0]), least)  # fmt: skip
    wrong = float(change.max() if loses else np.abs(change).max()) / scale
    if wrong > DRIFT:
        out.append(f"energy that nothing explains: {100 * wrong:.3g} % of what went to and fro; try a smaller --step")
    return wrong, out


def _plain(wish: Wish) -> dict[str, Any]:
    """As JSON has it: what has no end is null."""
    out = asdict(wish)
    for push in out["pushes"]:
        push["end"] = None if push["end"] == float("inf") else push["end"]
    return out


def _text(x: Sequence[float] | np.ndarray) -> str:
    return ",".join(f"{v:.3g}" for v in x)
