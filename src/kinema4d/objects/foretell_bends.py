"""How what bends is foretold: by what holds it, and by what its form allows it to do there.

What bends is held where it touches what keeps its form, and where the caller says. It rides on the link that holds it. A rope that is held by one end is a chain of rods on
ball joints; everything else deforms as something elastic would there (:mod:`.modes`), and turns about where it is held, if that is a point or a line. What keeps its form is on joints.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from kinema4d.objects.choose import ChooseNet
from kinema4d.objects.elastic import Material, closed, elastic
from kinema4d.objects.foretell_joints import on_joints
from kinema4d.objects.mate_kernels import gaps
from kinema4d.objects.modes import ways
from kinema4d.objects.obstacle import skins
from kinema4d.objects.rings import on_rods, rings, rod_ends, rod_frame
from kinema4d.objects.solid import Mesh

TOUCH = 4e-3
"""Of the size: what is nearer touches."""
SOLID, SHEET = 24, 64
"""Coordinates of a part that bends, beside its turns; a rope has three per rod."""
ANGLE, BENT = 0.6, 0.25
"""Radians (root of the mean square) that it turns about where it is held, and that a rod of a rope turns."""
FARTHER = 2.0
"""Times what is usual of a joint that what bends may go: it has no ends."""
STRETCHED = 0.02
"""Mean share by which its edges are stretched where it bends as far as is usual."""
SAMPLES = 16
"""Shapes by which that is measured."""


def on_modes(
    joints: ChooseNet | None, mesh: Mesh, label: np.ndarray, soft: np.ndarray, held: Sequence[tuple[float, float, float]], rng: np.random.Generator, *, free: bool
) -> tuple[Tensor, np.ndarray, np.ndarray, float, str]:  # fmt: skip
    """Twists [g,k,6] in metres, whose each vertex has, how far each coordinate may go beside what is usual [k], how far answers about joints are apart, and what was found in words."""
    stiff = np.flatnonzero(~soft)
    on, differ, why = torch.zeros(len(stiff), 0, 6, dtype=torch.float64), 0.0, "no joints"
    if len(stiff) > 1:
        if joints is None:
            raise ValueError("the weights know nothing of joints, and the object has parts that keep their form")
        on, _, differ, why = on_joints(joints, *only(mesh, label, stiff), rng, moving=False)
    touching = _touching(mesh, label, soft, stiff)
    whose = np.searchsorted(stiff, label).clip(max=max(len(stiff) - 1, 0))
    first, hung, ropes, spans = len(stiff), list[tuple[Tensor, Tensor]](), 0, [np.ones(on.shape[1])]
    for part in np.flatnonzero(soft):
        mine = np.flatnonzero(label == part)
        base, fixed = _held(mesh, mine, touching[mine], on, held)
        if not fixed.any() and not (free and len(soft) == 1):
            raise ValueError(f"nothing holds a part that bends, at {np.round(mesh.vertices[mine].mean(axis=0), 3).tolist()}: it touches nothing that keeps its form; say where it is held with --pin{', or let it fly with --free' * (len(soft) == 1)}")  # fmt: skip
        own, rows, span, rope = _own(mesh, mine, fixed)
        spans.append(span)
        whose[mine] = first + rows
        hung.append((base, own))
        first += len(own)
        ropes += rope
    count = int(soft.sum())
    words = [f"{n} {name}{'s' * (n > 1)}" for n, name in ((ropes, "rope"), (count - ropes, "part")) if n]
    return (
        _together(on, hung),
        whose,
        np.concatenate(spans),
        differ,
        f"{why}; {' and '.join(words)} that bend{'s' if count == 1 else ''}",
    )


def only(mesh: Mesh, label: np.ndarray, keep: Int64[np.ndarray, " n"]) -> tuple[Mesh, np.ndarray]:
    """Only some parts, and which each vertex is of."""
    there = np.isin(label, keep)
    number = np.cumsum(there) - 1
    faces = number[mesh.faces[there[mesh.faces[:, 0]]]]
    return Mesh(vertices=mesh.vertices[there], faces=faces), np.searchsorted(keep, label[there])


def _touching(mesh: Mesh, label: np.ndarray, soft: np.ndarray, stiff: np.ndarray) -> Bool[np.ndarray, "v c"]:
    """Which vertices of what bends touch which of the parts that keep their form."""
    out, mine = np.zeros((len(label), len(stiff)), bool), soft[label]
    if len(stiff):
        skin = skins(mesh.vertices, mesh.faces, label)
        away = gaps(mesh.vertices[mine], skin.corners, skin.normals, skin.boxes, skin.nodes, skin.roots[stiff])
        out[mine] = away < TOUCH * mesh.size
    return out


def _held(mesh: Mesh, mine: np.ndarray, touching: np.ndarray, on: Tensor, held: Sequence[tuple[float, float, float]]) -> tuple[Tensor, Bool[np.ndarray, " n"]]:  # fmt: skip
    """Twists [j,6] of the link that a part rides on, and which of its vertices are held."""
    parts = np.flatnonzero(touching.any(axis=0))
    base = on[int(parts[0])] if len(parts) else torch.zeros(on.shape[1], 6, dtype=on.dtype)
    fixed = np.asarray(touching.any(axis=1), bool)
    if any(float((on[int(p)] - base).abs().max()) > 1e-9 for p in parts if on.shape[1]):
        raise ValueError(f"a part that bends, at {np.round(mesh.vertices[mine].mean(axis=0), 3).tolist()}, is held by parts that move against each other: fit the object with `kinema4d objects fit`")  # fmt: skip
    for place in held:
        away = np.linalg.norm(mesh.vertices - place, axis=1)
        fixed = fixed | np.equal(mine, int(away.argmin())) | np.less(away[mine], TOUCH * mesh.size)
    return base, fixed


def _own(mesh: Mesh, mine: np.ndarray, fixed: Bool[np.ndarray, " n"]) -> tuple[Tensor, np.ndarray, np.ndarray, bool]:
    """Twists [r,k,6] of a part as what holds it sees it, which of them each vertex has, how far they may go, and whether it is a rope."""
    x = mesh.vertices[mine]
    if fixed.any() and (found := _rope(mesh, mine, fixed)) is not None:
        return *found, np.full(found[0].shape[1], FARTHER), True
    if fixed.all():  # nothing of it can bend
        return torch.zeros(1, 0, 6, dtype=torch.float64), np.zeros(len(mine), np.int64), np.zeros(0), False
    number = np.full(len(mesh.vertices), -1)
    number[mine] = np.arange(len(mine))
    part = Mesh(vertices=x, faces=number[mesh.faces[np.isin(mesh.faces[:, 0], mine)]])
    most = SOLID if closed(part, part.faces) else SHEET
    moves = ways(part, fixed, elastic(part, Material(young=1.0), rods=False), most)
    usual = _usual(part, moves.shifts)
    shifts = moves.shifts * usual
    out = np.zeros((len(mine), len(moves.turns) + len(shifts), 6))
    span = np.concatenate([np.full(len(moves.turns), FARTHER), np.full(len(shifts), max(FARTHER, 1 / usual))])
    out[:, : len(moves.turns)] = ANGLE * moves.turns
    out[:, len(moves.turns) :, 3:] = shifts.swapaxes(0, 1)
    return torch.from_numpy(out), np.arange(len(mine)), span, False


def _rope(mesh: Mesh, mine: np.ndarray, fixed: Bool[np.ndarray, " n"]) -> tuple[Tensor, np.ndarray] | None:
    """Of a slender tube that is held by one of its tips."""
    x = mesh.vertices[mine]
    along = (x - x.mean(axis=0)) @ np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][0]
    tips = int(along.argmin()), int(along.argmax())
    for tip in tips:
        ring = rings(mesh.vertices, mesh.faces, int(mine[tip]), mine)
        if ring is not None and ring[fixed].max() <= ring.max() / 4:
            cuts = rod_ends(ring)
            places = np.stack([x[ring == c].mean(axis=0) for c in cuts[:-1]])
            return BENT * torch.from_numpy(on_rods(ring, cuts, places, rod_frame(x, ring))), ring
    return None


def _usual(part: Mesh, shifts: Float64[np.ndarray, "k v 3"]) -> float:
    """Times which its edges are stretched by as much as is usual, if they are by more."""
    edges = np.unique(np.sort(part.faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1), axis=0)
    rest = part.vertices[edges[:, 0]] - part.vertices[edges[:, 1]]
    drawn = np.random.default_rng(0).normal(size=(SAMPLES, len(shifts)))
    way = np.einsum("sk,kei->sei", drawn, shifts[:, edges[:, 0]] - shifts[:, edges[:, 1]])
    long = np.linalg.norm(rest, axis=1)
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        stretched = np.abs(np.linalg.norm(rest + middle * way, axis=2) / long - 1).mean()
        low, high = (middle, high) if stretched < STRETCHED else (low, middle)
    return high


def _together(on: Tensor, hung: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Twists [g,k,6] of what keeps its form, and of pieces of what bends, in coordinates of joints and then of each part."""
    total, first = on.shape[1] + sum(own.shape[1] for _, own in hung), on.shape[1]
    out = [torch.cat([on, on.new_zeros(len(on), total - on.shape[1], 6)], 1)]
    for base, own in hung:
        rows = on.new_zeros(len(own), total, 6)
        rows[:, : len(base)] = base
        rows[:, first : first + own.shape[1]] = own
        out.append(rows)
        first += own.shape[1]
    return torch.cat(out)
