"""What the learned correction of motions works on: seen parts, the robot's surface, and what the engine answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from kinema4d.types import Solid
from kinema4d.world.small import reading_kernels
from kinema4d.world.small.grip import palm_of, pulled
from kinema4d.world.small.parts import JOINTS, Part

POINTS, STILL_POINTS = 48, 24
"""Surface points kept per part, and of those per part that stays."""
FINGER_POINTS, PALM_POINTS, ARM_POINTS = 112, 64, 48
"""Surface points of the fingers, the palm and the solids nearest to it."""
ARMS = 2
"""How many solids beside the hand have points."""
REACH = 0.03
"""A part that the engine leaves alone and the robot never comes this near to stays, metres."""
MOVED = 1e-4
"""Entries of a motion that differ less from the identity are rounding: what the engine moves goes 2 mm at least."""
DENSE = 400
"""Corners of a part by which its distance to the robot is measured."""
FIXED, SLIDE, HINGE = JOINTS.index("fixed"), JOINTS.index("slide"), JOINTS.index("hinge")


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One scene: world frame, the support at z = 0."""

    points: Float32[np.ndarray, "p k 3"]
    """Surface of each part at the first frame, metres."""
    normals: Float32[np.ndarray, "p k 3"]
    """Outward."""
    joint: Int64[np.ndarray, " p"]
    """Index into ``JOINTS``."""
    axis: Float32[np.ndarray, "p 3"]
    """Direction of a slide or hinge; 0 where there is none."""
    pivot: Float32[np.ndarray, "p 3"]
    """A point on the axis of a hinge."""
    gap: Float32[np.ndarray, " p"]
    """How near the robot comes to each part if that stays, metres."""
    proposals: Float32[np.ndarray, "d p t 4 4"]
    """Motions against the first frame, by one engine draw each; the first is of the usual physics."""
    shell: Float32[np.ndarray, "q 3"]
    """Points on the robot's solids, each in the frame of its own."""
    shell_normals: Float32[np.ndarray, "q 3"]
    """Outward."""
    shell_link: Int64[np.ndarray, " q"]
    """Which solid."""
    Ts_world_link: Float32[np.ndarray, "l t 4 4"]
    """The solids; the first is the palm."""
    seconds: float
    """Between frames."""

    def active(self, draw: int = 0) -> Bool[np.ndarray, " p"]:
        """Parts that may be corrected: those that the engine moves or the robot comes near, unless they are fixed."""
        moved = np.abs(self.proposals[draw] - np.eye(4, dtype=np.float32)).max(axis=(1, 2, 3), initial=0) > MOVED
        return (self.joint != FIXED) & (moved | (self.gap < REACH))


def case_of(
    parts: Sequence[Part],
    solids: Sequence[Solid],
    proposals: Float[np.ndarray, "d p t 4 4"],
    *,
    fps: float,
    support: float = 0.0,
) -> Case:
    """What was seen, the robot, and the engine's answers to both."""
    rng = np.random.default_rng(0)
    down = np.array([0.0, 0.0, -support])
    parts = pulled(parts, solids)  # joints as the engine took them
    shell, normals, link, used = shell_of(solids, rng)
    Ts = np.stack([s.Ts_world_link for s in used])
    Ts[..., :3, 3] += down
    surfaces = [sample_surface(p.vertices + down, p.faces, POINTS, rng) for p in parts]
    empty = np.zeros((0, POINTS, 3), np.float32)
    nowhere = np.zeros(3)
    corners = [(p.vertices[:: max(1, len(p.vertices) // DENSE)] + down).astype(np.float32) for p in parts]
    moving = shell_at(Ts, shell, link)
    return Case(
        points=np.stack([x for x, _ in surfaces]) if parts else empty,
        normals=np.stack([n for _, n in surfaces]) if parts else empty,
        joint=np.array([JOINTS.index(p.joint) for p in parts], np.int64),
        axis=np.array([nowhere if p.axis is None else p.axis for p in parts], np.float32).reshape(-1, 3),
        pivot=np.array([nowhere if p.pivot is None else p.pivot + down for p in parts], np.float32).reshape(-1, 3),
        gap=np.array([least_gap(x, moving) for x in corners], np.float32),
        proposals=lowered(proposals, support).astype(np.float32),
        shell=shell,
        shell_normals=normals,
        shell_link=link,
        Ts_world_link=Ts.astype(np.float32),
        seconds=1 / fps,
    )


def lowered(motions: Float[np.ndarray, "*b 4 4"], support: float) -> Float[np.ndarray, "*b 4 4"]:
    """Motions of a world whose support is at z = 0 instead of ``support``."""
    out = motions.copy()
    # M of the world is T M inverse(T) in a world that is shifted by T. Tilts alone make a difference.
    out[..., :3, 3] -= support * (np.array([0.0, 0.0, 1.0]) - motions[..., :3, 2])
    return out


def shell_of(
    solids: Sequence[Solid], rng: np.random.Generator
) -> tuple[Float32[np.ndarray, "q 3"], Float32[np.ndarray, "q 3"], Int64[np.ndarray, " q"], list[Solid]]:
    """Points and normals on fingers, palm and the solids nearest to it, which solid each is on, and those solids."""
    palm = palm_of(solids) or solids[-1]
    fingers = [s for s in solids if s.role == "finger"]
    middle = palm.Ts_world_link[0, :3, 3]
    others = [s for s in solids if s is not palm and s.role != "finger"]
    arms = sorted(others, key=lambda s: float(np.linalg.norm(s.Ts_world_link[0, :3, 3] - middle)))[:ARMS]
    counts = [PALM_POINTS, *_split(FINGER_POINTS, len(fingers)), *_split(ARM_POINTS, len(arms))]
    counts[0] += FINGER_POINTS + PALM_POINTS + ARM_POINTS - sum(counts)  # where there is no finger or no arm
    used = [palm, *fingers, *arms]
    found = [sample_surface(s.vertices, s.faces, n, rng) for s, n in zip(used, counts, strict=True)]
    link = np.repeat(np.arange(len(used)), counts)
    return np.concatenate([x for x, _ in found]), np.concatenate([n for _, n in found]), link, used


def _split(count: int, over: int) -> list[int]:
    return [count // over + (i < count % over) for i in range(over)]


def sample_surface(
    vertices: Float[np.ndarray, "v 3"], faces: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[Float32[np.ndarray, "n 3"], Float32[np.ndarray, "n 3"]]:
    """Points spread evenly by area, and their normals, in random order."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    cross = np.cross(b - a, c - a)
    area = np.linalg.norm(cross, axis=1)
    if not area.sum() > 0:
        raise ValueError("a surface without area cannot be sampled")
    # Systematic sampling: every share of the area gets its share of the points.
    at = rng.permutation(np.arange(count) + rng.random()) / count * area.sum()
    face = np.minimum(np.searchsorted(np.cumsum(area), at), len(faces) - 1)
    u, v = rng.random((2, count))
    flip = u + v > 1
    u, v = np.where(flip, 1 - u, u), np.where(flip, 1 - v, v)
    points = a[face] + u[:, None] * (b - a)[face] + v[:, None] * (c - a)[face]
    normals = cross[face] / np.maximum(area[face], 1e-12)[:, None]
    return points.astype(np.float32), normals.astype(np.float32)


def shell_at(Ts: Float[np.ndarray, "l t 4 4"], shell: np.ndarray, link: np.ndarray) -> Float32[np.ndarray, "t q 3"]:
    """The robot's points at every frame."""
    own = Ts[link].swapaxes(0, 1).astype(np.float32)
    return np.einsum("tqij,qj->tqi", own[..., :3, :3], shell) + own[..., :3, 3]


def least_gap(points: Float32[np.ndarray, "k 3"], shell: Float32[np.ndarray, "t q 3"]) -> float:
    """How near the robot comes to points that stay, metres."""
    flat, free = np.ascontiguousarray(shell.transpose(0, 2, 1)), np.zeros(shell.shape[1], bool)
    X = np.ascontiguousarray(np.broadcast_to(points, (len(shell), *points.shape)), np.float32)
    index, distance = np.zeros(X.shape[:-1], np.int64), np.zeros(X.shape[:-1], np.float32)
    reading_kernels.nearest(X, flat, free, index, distance, np.float32(1.0))
    return float(distance.min())


@dataclass(frozen=True, eq=False)
class Scene:
    """A batch of cases: active parts of all of them in one row, ``n``; robots and what stays per case, ``b``. Shorter
    cases stand still at their end."""

    owner: Tensor
    """[n] which case a part belongs to."""
    part: Tensor
    """[n] which part of its case it is."""
    center: Tensor
    """[n,3] middle of its surface, metres."""
    shape: Tensor
    """[n,k,3] surface points relative to it."""
    normals: Tensor
    """[n,k,3] outward."""
    joint: Tensor
    """[n] index into ``JOINTS``."""
    axis: Tensor
    """[n,3] of its joint."""
    pivot: Tensor
    """[n,3] of its hinge."""
    R: Tensor
    """[n,t,3,3] rotation by the engine."""
    middle: Tensor
    """[n,t,3] where the engine has its middle."""
    still: Tensor
    """[b,m,3] points of parts that stay."""
    still_present: Tensor
    """[b,m] bool."""
    shell: Tensor
    """[b,t,q,3] surface points of the robot."""
    shell_normals: Tensor
    """[b,t,q,3] outward."""
    hand: Tensor
    """[b,t,4,4] frame of the palm."""
    seconds: Tensor
    """[b] between frames."""
    frames: Tensor
    """[b] how many are real."""


def stack(cases: Sequence[Case], draws: Sequence[int] | None = None) -> Scene:
    """One batch; ``draws`` says which proposal of each."""
    draws = draws or [0] * len(cases)
    longest = max(c.Ts_world_link.shape[1] for c in cases)
    on = [c.active(d) for c, d in zip(cases, draws, strict=True)]
    most = max(1, STILL_POINTS * max(int((~a).sum()) for a in on))
    still, present = np.zeros((len(cases), most, 3), np.float32), np.zeros((len(cases), most), bool)
    links = [_longer(c.Ts_world_link, longest) for c in cases]
    shell, normals = [], []
    for b, (c, a, Ts) in enumerate(zip(cases, on, links, strict=True)):
        rest = c.points[~a, :STILL_POINTS].reshape(-1, 3)
        still[b, : len(rest)], present[b, : len(rest)] = rest, True
        shell.append(shell_at(Ts, c.shell, c.shell_link))
        turn = Ts.copy()
        turn[..., :3, 3] = 0
        normals.append(shell_at(turn, c.shell_normals, c.shell_link))
    row = lambda get: to_tensor(np.concatenate([get(c)[a] for c, a in zip(cases, on, strict=True)]))  # noqa: E731
    P = to_tensor(
        np.concatenate([_longer(c.proposals[d], longest)[a] for c, d, a in zip(cases, draws, on, strict=True)])
    )
    points = row(lambda c: c.points)
    center = points.mean(1)
    return Scene(
        owner=torch.from_numpy(np.concatenate([np.full(int(a.sum()), b) for b, a in enumerate(on)])),
        part=torch.from_numpy(np.concatenate([np.flatnonzero(a) for a in on])),
        center=center, shape=points - center[:, None], normals=row(lambda c: c.normals),
        joint=torch.from_numpy(np.concatenate([c.joint[a] for c, a in zip(cases, on, strict=True)])),
        axis=row(lambda c: c.axis), pivot=row(lambda c: c.pivot), R=P[..., :3, :3],
        middle=torch.einsum("ntij,nj->nti", P[..., :3, :3], center) + P[..., :3, 3],
        still=to_tensor(still), still_present=torch.from_numpy(present), shell=to_tensor(np.stack(shell)),
        shell_normals=to_tensor(np.stack(normals)), hand=to_tensor(np.stack([Ts[0] for Ts in links])),
        seconds=to_tensor(np.array([c.seconds for c in cases])),
        frames=torch.tensor([c.Ts_world_link.shape[1] for c in cases]),
    )  # fmt: skip


def to_tensor(x: np.ndarray) -> Tensor:
    """In single precision."""
    return torch.from_numpy(np.ascontiguousarray(x, np.float32))


def _longer(Ts: Float32[np.ndarray, "n t 4 4"], frames: int) -> Float32[np.ndarray, "n s 4 4"]:
    """Stays as it is after its last frame."""
    return np.concatenate([Ts, np.repeat(Ts[:, -1:], frames - Ts.shape[1], axis=1)], axis=1)
