"""One object under gravity, pushes, pins, hands, a floor and obstacles: what was wished in words becomes forces on points of its surface, and its motion a mesh
over time with the books of energy beside it.

Places of pushes, pins and hands are points of the surface that have next to no mass and follow their triangle, so that a force acts where it is
said and not at the nearest point that happens to have a mass. So are those that may touch something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from scipy.sparse import csr_matrix, vstack

from kinema4d.geometry.deforming import ObjectMotion, sweep
from kinema4d.objects.body import Body, State, at_rest, jacobian
from kinema4d.objects.elastic import Material
from kinema4d.objects.fit import Fitted, screw_body
from kinema4d.objects.lagrange import Conditions, Motion, Push, simulate
from kinema4d.objects.meshes import wound_both_ways
from kinema4d.objects.obstacle import Obstacle
from kinema4d.objects.pin import Pin
from kinema4d.objects.solid import Weighed, checked
from kinema4d.simulate.object_contact import depths, touch
from kinema4d.simulate.object_elastic import fine_steps, joints_of, keeps_form, solid_of, stressed
from kinema4d.simulate.object_hands import begun, hands, off_the_way
from kinema4d.simulate.object_places import Marks
from kinema4d.simulate.object_wish import Vector, Wish

LIGHT = 1e-9
"""Mass of all points together that only mark a place, of the object's."""
STILL = 1e-3
"""A point that moves by less, of the size, over the whole range of all coordinates stands still."""
LEAP = 0.5
"""Of a coordinate's range in one step, or beyond its end: more is no motion any more, though a point that turns may seem to stay near."""
LITTLE = 0.3
"""Radians, or sizes, that any coordinate may go in one step."""
DRIFT = 0.05
"""Energy that came from nowhere, of the largest that went to and fro, which is flagged."""
FOAM = Material(young=1e5)
"""Of what bends, where nothing else is said: without any resistance it would fold up."""
MOST = 2 * 10**8
"""Vertices of all frames together."""


# ---------------------------------------------------------------------- simulation


def simulate_object(
    fitted: Fitted, wish: Wish | None = None, *, obstacles: Sequence[Obstacle] = (), material: Material | None = None, about: Mapping[str, Any] | None = None
) -> ObjectMotion:  # fmt: skip
    """Let it move, among ``obstacles`` that stand still. A simulation that is lost keeps the frames until then and says why in ``stopped``. What is elastic is simulated in parts of a
    frame; ``material`` says more of it than the wish does."""
    wish = wish or Wish()
    made_of = material or wish.material or (None if keeps_form(fitted).all() else FOAM)
    flags = [*checked(fitted.mesh), *_doubts(fitted, wish, made_of)]
    solid = solid_of(fitted, made_of, flags)
    if solid is not None:
        fitted = replace(fitted, weighed=solid.weighed)
    k, mesh = fitted.twists.shape[1], fitted.mesh
    if not k and not wish.free:
        raise ValueError("the object has no coordinates of its own: let it move as a whole with --free")
    frames = round(wish.seconds / wish.step) + 1
    if frames * len(mesh.vertices) > MOST:
        raise ValueError(f"{frames} frames of {len(mesh.vertices)} vertices are too many: simulate for less time or in larger steps")  # fmt: skip
    start, speed = _coordinates(wish.start, k, "start"), _coordinates(wish.speed, k, "speed")
    reach = np.stack([np.minimum(fitted.reach[:, 0], np.minimum(start, 0)), np.maximum(fitted.reach[:, 1], np.maximum(start, 0))], 1)  # fmt: skip
    if len(over := np.flatnonzero((start < fitted.reach[:, 0]) | (start > fitted.reach[:, 1]))):
        flags.append(f"it begins outside the range that was learned from in coordinate {', '.join(str(i + 1) for i in over)}")  # fmt: skip
    samples = sweep(np.zeros(k), reach)
    sliders = decoded(fitted, samples.reshape(k * samples.shape[1], k)).reshape(
        *samples.shape[:2], len(mesh.vertices), 3
    )
    moves = np.full(len(mesh.vertices), wish.free)
    if k:
        moves |= np.linalg.norm(sliders - mesh.vertices.astype(np.float32), axis=-1).max((0, 1)) > STILL * mesh.size
    marks, touched = Marks(mesh, moves), touch(fitted, moves, wish.ground, obstacles)
    inner = 0.0 if solid is None or made_of is None else made_of.damping
    parts, implicit, drag, walls = 1, False, None, joints_of(fitted)
    if solid is not None:
        held = stressed(
            replace(fitted.body(), reach=torch.from_numpy(reach)), fitted.vertices_and_slopes, solid, walls=walls
        )
        parts, implicit, drag = fine_steps(held, start, wish.step, inner)
    if implicit and inner:
        flags.append("it is so stiff that its steps damp more than its material, whose damping is left out")
    if frames * parts * (len(fitted.weighed.mass) + touched.count) > MOST:
        raise ValueError(f"{frames} frames of {parts} steps each are too many: simulate for less time, or in larger steps")  # fmt: skip
    fine = replace(wish, step=wish.step / parts)
    pushes = [p for i in range(len(wish.pushes)) for p in _scheduled(i, fine, marks)]
    pinned = [at for p in wish.pins if (at := marks.put(p, "the pin", moving=True)) is not None]
    first = len(fitted.weighed.mass)
    led, leads, led_marks = hands(wish.leads, marks, first, float(fitted.weighed.mass.sum()), wish.gravity)
    sped = [marks.put(v.place, "the velocity", moving=True) for v in wish.velocities]
    body = _marked(fitted, marks, touched.rows, reach, free=wish.free)
    if solid is not None:
        explicit = not implicit and drag is None
        body = replace(stressed(body, fitted.vertices_and_slopes, solid, walls=walls, damped=explicit), drag=drag)
    contacts = first + marks.count
    on = lambda i: torch.tensor([first + i])  # noqa: E731
    conditions = Conditions(
        gravity=wish.gravity, damping=wish.damping, friction=wish.friction,
        pushes=[Push(on=on(p.mark), force=torch.tensor(p.force, dtype=torch.float64), begin=p.begin, end=p.end) for p in pushes],
        pins=[*([Pin(on=first + torch.tensor(pinned))] if pinned else []), *led],
        obstacle=touched.distance, touching=torch.arange(contacts, contacts + touched.count),
    )  # fmt: skip
    begin = at_rest(body, torch.from_numpy(start)[None])
    velocity = torch.from_numpy(np.concatenate([np.zeros(body.unknowns - k), speed]))[None]
    if wish.velocities:
        velocity, unmet = begun(body, begin, wish.velocities, sped, first)
        flags += unmet
    try:
        run = simulate(body, begin, conditions, seconds=wish.seconds, step=fine.step, velocity=velocity, implicit=implicit)  # fmt: skip
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        if not implicit:
            raise
        raise ValueError(f"it buckles, and is too stiff for steps of {fine.step:g} s: take a smaller --step or --young") from None  # fmt: skip
    _cut(run, reach, fitted)
    if not len(run):
        _only_start(run, body, begin, velocity, conditions)
    q, place, turn = (np.stack([getattr(s, n)[0].numpy() for s in run.states[::parts]]) for n in ("q", "place", "turn"))
    vertices = (decoded(fitted, q) @ turn.swapaxes(1, 2) + place[:, None]).astype(np.float32)
    spots = np.stack([x[0, contacts:].numpy() for x in run.points[::parts]])
    deep, inside = depths(touched, [vertices[:, moves], spots], mesh.size)
    flags += [*touched.flags, *inside, *off_the_way(run, leads, len(pinned), mesh.size)]
    at = np.stack([x[0, first:contacts].numpy() for x in run.points])
    force, force_at = _forces(pushes, fine, at, len(run))
    pulled = np.stack([f[0, len(pinned) :].numpy() for f in run.hold])
    force, force_at = np.concatenate([force, pulled], 1), np.concatenate([force_at, at[:, led_marks]], 1)
    work = np.concatenate([[0.0], ((force[1:] + force[:-1]) / 2 * np.diff(force_at, axis=0)).sum((1, 2)).cumsum()])
    seen = lambda every: np.stack([x[0].numpy() for x in every[::parts]])  # noqa: E731
    stands, stand_faces = _together(obstacles)
    motion = ObjectMotion(
        vertices=vertices, faces=mesh.faces, step=wish.step, q=q, place=place, turn=turn,
        kinetic=seen(run.kinetic), potential=seen(run.potential), work=work[::parts],
        momentum=seen(run.momentum), penetration=deep, force_at=force_at[::parts], force=force[::parts],
        rest=mesh.vertices.astype(np.float32), rest_q=np.zeros(k), reach=reach, sliders=sliders.astype(np.float32),
        stopped=run.stopped, about={**(about or {}), "wish": _plain(wish)}, obstacle=stands, obstacle_faces=stand_faces,
    )  # fmt: skip
    least = 1e-6 * float(fitted.weighed.mass.sum()) * mesh.size  # joule: of a fall by a ten-millionth of the size
    if solid is not None and (motion.q[:, walls:] != motion.q[:, walls:].clip(*reach[walls:].T)).any():
        flags.append("it bends further than in the poses that it was learned from")
    ends = reach if body.reach is None else body.reach.numpy()
    wrong, strange = _books(motion, ends, wish, least, damped=implicit or inner > 0 or bool(obstacles))
    return replace(motion, flags=(*flags, *marks.flags, *strange), about={**motion.about, "energy_drift": wrong})


def decoded(fitted: Fitted, q: Float64[np.ndarray, "b k"]) -> Float64[np.ndarray, "b v 3"]:
    """Vertices for coordinates, in the object's frame, some at a time."""
    many = max(1, 10**6 // len(fitted.mesh.vertices))
    parts = [fitted.vertices(torch.from_numpy(q[i : i + many])).numpy() for i in range(0, len(q), many)]
    return np.concatenate(parts) if parts else np.zeros((0, len(fitted.mesh.vertices), 3))


def _doubts(fitted: Fitted, wish: Wish, material: Material | None) -> list[str]:
    found, out = fitted.freedom, []
    if material is FOAM:
        out.append(f"it bends, its elasticity was not said, and is taken for a soft foam's (--young {FOAM.young:g})")
    if found.bends:
        out.append(found.why)
    elif found.count is None:
        if not wish.anyway:
            raise ValueError(f"its coordinates are not fit to be simulated ({found.why}); --anyway does it all the same")  # fmt: skip
        out.append(f"simulated all the same: {found.why}")
    if odd := wound_both_ways(fitted.mesh):
        out.append(f"{odd} triangles look the other way than their neighbours: masses are wrong there")
    return out


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


def _scheduled(number: int, wish: Wish, marks: Marks) -> list[_Force]:
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


def _marked(fitted: Fitted, marks: Marks, touching: csr_matrix, reach: np.ndarray, *, free: bool) -> Body:
    """The body with points that have next to no mass after its own: marks, then those that may touch something."""
    mesh = fitted.mesh
    rows = csr_matrix(vstack([fitted.weighed.rows, *marks.rows, touching]))
    more = marks.count + len(touching.indptr) - 1
    light = np.full(more, LIGHT * fitted.weighed.mass.sum() / max(1, more))
    weighed = Weighed(rows=rows, mass=np.concatenate([fitted.weighed.mass, light]))
    if not len(reach):  # a rigid thing
        x = torch.from_numpy(np.asarray(rows @ mesh.vertices))
        return Body(shape=lambda q: x.to(q.dtype).expand(len(q), -1, -1), mass=torch.from_numpy(weighed.mass), coordinates=0, free=free)  # fmt: skip
    body = screw_body(mesh, weighed, fitted.piece, fitted.twists)
    return replace(body, free=free, reach=torch.from_numpy(reach))


def _together(obstacles: Sequence[Obstacle]) -> tuple[Float32[np.ndarray, "o 3"], Int64[np.ndarray, "g 3"]]:
    """Obstacles as one mesh."""
    vertices, faces, count = [np.zeros((0, 3))], [np.zeros((0, 3), np.int64)], 0
    for one in obstacles:
        vertices.append(one.mesh.vertices)
        faces.append(one.mesh.faces + count)
        count += len(one.mesh.vertices)
    return np.concatenate(vertices).astype(np.float32), np.concatenate(faces)


def _cut(run: Motion, reach: np.ndarray, fitted: Fitted) -> None:
    """End it where a coordinate leaps; and one frame before, whose velocity is of the frames around it. One whose whole range is little may."""
    if not len(run) or not len(reach):
        return
    turn, shift = (np.linalg.norm(t, axis=-1).max(axis=0) for t in np.split(fitted.twists, 2, axis=-1))
    least = LITTLE / np.maximum(np.where(turn > 0, turn, shift / fitted.mesh.size), 1e-300)
    q, wide = np.stack([s.q[0].numpy() for s in run.states]), np.maximum(reach[:, 1] - reach[:, 0], least / LEAP)
    far = np.maximum(np.abs(np.diff(q, axis=0, prepend=q[:1])), np.maximum(reach[:, 0] - q, q - reach[:, 1])) / wide
    if (far <= LEAP).all():
        return
    frame = int((far > LEAP).any(axis=1).argmax())
    which = int(far[frame].argmax()) + 1
    run.stopped = f"coordinate {which} leapt by {100 * far[frame].max():.3g} % of its range in one step, or out of it, at {frame * run.step:.3f} s"  # fmt: skip
    for name in ("points", "states", "kinetic", "potential", "momentum", "penetration", "hold", "miss"):
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
    held = sum(len(p.on) for p in conditions.pins)
    run.hold.append(x.new_zeros(len(x), held, 3))
    run.miss.append(x.new_zeros(len(x), held))


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
    loses = (
        damped or wish.damping > 0 or wish.ground is not None or bool(wish.pins) or bool(wish.leads)
    )  # may take energy, not give it
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
