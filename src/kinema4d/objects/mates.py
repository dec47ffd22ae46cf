"""Which pieces of a mesh meet, and the joints that could be between two that do.

Things are made so that their joints are where their form has an axis: a hinge turns about an axis of one of the boxes around two pieces that meet, through its
middle, an edge or the middle of a side, through where they meet, or through the middle of the other; a slide goes along one. Among these
candidates are all joints of all kinds that we generate, most of them exactly (docs/experiments.md). So nothing has to be guessed but which: what each would do is
measured on the surfaces themselves, which may be hollow or bent, such as how much those that touch would go into each other. Nothing here depends on how an object is turned about the vertical, nor on its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import trimesh
from jaxtyping import Float16, Float32, Float64, Int64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import minimum_spanning_tree

from kinema4d.objects.look import surface
from kinema4d.objects.mate_kernels import gaps, inside, measure
from kinema4d.objects.obstacle import Skins, skins

POINTS = 48
"""Of every piece's surface."""
MEET = 0.04
"""Gap, of the size, up to which two pieces may have a joint; what meets nothing meets what is next."""
TOUCH = 0.01
"""Gap, of the size, over which touching fades."""
ANGLE, SHARE = 0.35, 0.5
"""How far a candidate is tried: radians, and of how long a piece is along a slide."""
FLAT = 1e-3
"""Half sides are at least so much of the size."""
CORNERS = 64
"""Vertices of a piece at most that are looked at to see how near it is to others."""
FARTHEST = 3.0
"""Half sides from a box beyond which it does not matter how far."""
PLACES = 11
"""Of a hinge along one axis: nine of the box, where the pieces meet, the middle of the other."""
CANDIDATES = 6 * PLACES + 6
"""Of two pieces: hinges of the larger, of the smaller, and slides of both."""
PIECE, PAIR, MATE = 18, 43, 53
"""Numbers that are known of a piece, of two, and of a candidate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """The least box around each piece."""

    middle: Float64[np.ndarray, "c 3"]
    """In the unit of the points."""
    axes: Float64[np.ndarray, "c 3 3"]
    """Rows: directions of its sides, the longest first."""
    half: Float64[np.ndarray, "c 3"]
    """Half sides, the longest first."""

    def moved(self, turn: Float64[np.ndarray, "c 3 3"], shift: Float64[np.ndarray, "c 3"]) -> Boxes:
        """Each with its piece."""
        middle = np.einsum("cij,cj->ci", turn, self.middle) + shift
        return Boxes(middle=middle, axes=np.einsum("cij,ckj->cki", turn, self.axes), half=self.half)

    def scaled(self, middle: Float64[np.ndarray, "3"], size: float) -> Boxes:
        """In another unit."""
        return Boxes(middle=(self.middle - middle) / size, axes=self.axes, half=self.half / size)


def boxes(vertices: Float64[np.ndarray, "v 3"], label: Int64[np.ndarray, " v"]) -> Boxes:
    """Around every piece ``label`` [v]."""
    every = [_box(vertices[label == c]) for c in range(int(label.max()) + 1)]
    middle, axes, half = (np.stack(v) for v in zip(*every, strict=True))
    return Boxes(middle=middle, axes=axes, half=half)


def _box(x: Float64[np.ndarray, "n 3"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    center = x.mean(axis=0)
    _, size, axes = np.linalg.svd(x - center, full_matrices=False)
    if len(x) > 3 and size[2] > 1e-6 * size[0]:  # what is flat has no hull
        to, _ = trimesh.bounds.oriented_bounds(x - center)
        axes = np.asarray(to)[:3, :3]
    at = (x - center) @ axes.T
    low, high = at.min(axis=0), at.max(axis=0)
    order = np.argsort(low - high, kind="stable")
    return center + (low + high) / 2 @ axes, axes[order], ((high - low) / 2)[order]


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """An object as it is looked at, in a unit in which its box has a diagonal of one."""

    points: Float64[np.ndarray, "c m 3"]
    """On the surface of every piece."""
    normals: Float64[np.ndarray, "c m 3"]
    """There."""
    corners: tuple[Float64[np.ndarray, "_ 3"], ...]
    """Vertices of every piece, ``CORNERS`` at most."""
    skins: Skins
    """The surfaces."""
    thick: Float64[np.ndarray, " c"]
    """Half the thickness of each piece's walls: volume by area."""
    around: Boxes
    """The least box around each."""


def survey(vertices: Float64[np.ndarray, "v 3"], faces: Int64[np.ndarray, "f 3"], label: Int64[np.ndarray, " v"], rng: np.random.Generator, *, around: Boxes | None = None, many: int = POINTS) -> Survey:  # fmt: skip
    """Pieces ``label`` [v] of an object, looked at in ``many`` places each; boxes that are known need not be found."""
    points, normals = surface(vertices, faces, label, many, rng)
    around = boxes(vertices, label) if around is None else around
    whose, corner = label[faces[:, 0]], vertices[faces]
    up = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    area = np.bincount(whose, np.linalg.norm(up, axis=1) / 2)
    volume = np.bincount(whose, np.einsum("fi,fi->f", up, corner[:, 0] - around.middle[whose]) / 6)
    thick = np.clip(np.abs(volume) / area, FLAT, np.maximum(around.half[:, 2], FLAT))
    every = [np.flatnonzero(label == c) for c in range(len(points))]
    return Survey(
        points=points, normals=normals, corners=tuple(vertices[own[:: -(-len(own) // CORNERS)]] for own in every),
        skins=skins(vertices, faces, label), thick=thick, around=around,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Mates:
    """What is known of an object's pieces, of every two of them, and of the joints that could be between those that meet."""

    piece: Float32[np.ndarray, "c f"]
    """Of pieces."""
    pairs: Int64[np.ndarray, "e 2"]
    """Every two, that with the larger box first."""
    pair: Float32[np.ndarray, "e g"]
    """What is known of them."""
    meet: Int64[np.ndarray, " n"]
    """Which of the pairs meet."""
    screws: Float64[np.ndarray, "n m 6"]
    """Candidates, in the unit of the points: hinges turn by a radian, slides go one size."""
    mate: Float32[np.ndarray, "n m h"] | Float16[np.ndarray, "n m h"]
    """What is known of candidates."""


def mates(o: Survey) -> Mates:
    """Of an object."""
    c, around = len(o.points), o.around
    i, j = np.triu_indices(c, 1)
    volume = np.prod(np.maximum(around.half, FLAT), axis=1)
    swap = volume[j] > volume[i]
    pairs = np.stack([np.where(swap, j, i), np.where(swap, i, j)], 1)
    skin = (o.skins.corners, o.skins.normals, o.skins.boxes, o.skins.nodes)
    signed = (
        gaps(o.points.reshape(-1, 3), *skin, o.skins.roots).reshape(c, -1, c).swapaxes(1, 2)
    )  # [c,c,m] of points of the first from the second
    off = np.maximum(signed, 0)
    corners = np.stack([np.maximum(gaps(x, *skin, o.skins.roots), 0).min(axis=0) for x in o.corners])
    gap = np.minimum(off.min(axis=2), corners)
    gap = np.minimum(gap, gap.T)
    meet = _meeting(gap, pairs)
    a, b = pairs.T
    share = [np.exp(-(off[s, t] - np.minimum(off[a, b].min(1), off[b, a].min(1))[:, None]) / TOUCH) for s, t in ((a, b), (b, a))]  # fmt: skip
    total = (share[0].sum(1) + share[1].sum(1))[:, None]
    where = (np.einsum("em,emi->ei", share[0], o.points[a]) + np.einsum("em,emi->ei", share[1], o.points[b])) / total
    deep = [inside(signed[a, b], o.thick[b]), inside(signed[b, a], o.thick[a])]
    return Mates(
        piece=_of_pieces(o, gap).astype(np.float32), pairs=pairs,
        pair=_of_pairs(o, pairs, gap, where, [np.exp(-off[a, b] / TOUCH), np.exp(-off[b, a] / TOUCH)], deep).astype(np.float32), meet=meet,
        **_candidates(o, pairs[meet], where[meet], [s[meet] for s in share], [d[meet] for d in deep]),
    )  # fmt: skip


_GRID = np.array([(a, b) for a in (-1.0, 0.0, 1.0) for b in (-1.0, 0.0, 1.0)])


def _meeting(gap: Float64[np.ndarray, "c c"], pairs: Int64[np.ndarray, "e 2"]) -> Int64[np.ndarray, " n"]:
    """Pairs that are near each other, and as many more, the nearest, as connect all pieces."""
    near = gap < MEET
    tree = coo_matrix(minimum_spanning_tree(np.where(near, 1e-9, gap) + 1e-12))
    near[tree.row, tree.col] = near[tree.col, tree.row] = True
    return np.flatnonzero(near[pairs[:, 0], pairs[:, 1]])


def _of_pieces(o: Survey, gap: np.ndarray) -> np.ndarray:
    points, normals, around, low = o.points, o.normals, o.around, o.points[..., 2].min()
    half = np.maximum(around.half, FLAT)
    volume = np.prod(half, axis=1)
    lean = np.abs(np.einsum("cmi,cki->cmk", normals, around.axes))
    foot = points[..., 2].min(axis=1) - low
    return np.concatenate([
        np.log(half), np.abs(around.axes[..., 2]), (around.middle[:, 2] - low)[:, None], foot[:, None], np.exp(-foot / TOUCH)[:, None],
        np.linalg.norm(around.middle[:, :2] - points[..., :2].mean((0, 1)), axis=1)[:, None], np.log(volume / volume.sum())[:, None], lean.mean(axis=1),
        lean.max(axis=2).mean(axis=1)[:, None], (gap < MEET).sum(axis=1)[:, None] / 4 - 1,
        np.log(o.thick)[:, None], np.log(o.thick / half[:, 2])[:, None],
    ], axis=1)  # fmt: skip


def _of_pairs(o: Survey, pairs: np.ndarray, gap: np.ndarray, where: np.ndarray, touch: list[np.ndarray], deep: list[np.ndarray]) -> np.ndarray:  # fmt: skip
    around = o.around
    half, out = np.maximum(around.half, FLAT), list[np.ndarray]()
    for s, near, own in zip((0, 1), touch, deep, strict=True):
        one, other = pairs[:, s], pairs[:, 1 - s]
        for x in (where, around.middle[other]):
            out.append(np.abs(np.einsum("ei,eki->ek", x - around.middle[one], around.axes[one]) / half[one]).clip(max=FARTHEST))  # fmt: skip
        out += [near.mean(axis=1)[:, None], np.log(half[one]), np.log(o.thick[one])[:, None], own]  # fmt: skip
    a, b = pairs.T
    up = around.middle[a, 2] - around.middle[b, 2]
    volume = np.log(np.prod(half[a], axis=1) / np.prod(half[b], axis=1))
    align = np.abs(np.einsum("eki,eli->ekl", around.axes[a], around.axes[b])).reshape(len(pairs), 9)
    return np.concatenate([*out, align, np.exp(-gap[a, b] / TOUCH)[:, None], gap[a, b][:, None].clip(max=0.3), up[:, None], volume[:, None] / 4], axis=1)  # fmt: skip


def _candidates(o: Survey, pairs: np.ndarray, where: np.ndarray, share: list[np.ndarray], before: list[np.ndarray]) -> dict[str, np.ndarray]:  # fmt: skip
    """Screws [n,m,6] and what is known of them [n,m,h], for pairs that meet at places ``where``."""
    around = o.around
    n, half = len(pairs), np.maximum(around.half, FLAT)
    axis, place, kind = np.zeros((n, CANDIDATES, 3)), np.zeros((n, CANDIDATES, 3)), np.zeros((CANDIDATES, 10))
    at = 0
    for s in (0, 1):
        one, other = pairs[:, s], pairs[:, 1 - s]
        R, h, m = around.axes[one], around.half[one], around.middle[one]
        for k in range(3):
            u, v = (k + 1) % 3, (k + 2) % 3
            rows = slice(at, at + PLACES)
            axis[:, rows] = R[:, None, k]
            grid = m[:, None] + _GRID[:, :1] * (h[:, u, None] * R[:, u])[:, None] + _GRID[:, 1:] * (h[:, v, None] * R[:, v])[:, None]  # fmt: skip
            place[:, rows] = np.concatenate([grid, where[:, None], around.middle[other][:, None]], axis=1)
            kind[rows, s] = kind[rows, 4 + k] = 1
            kind[rows, 7] = [*np.abs(_GRID).sum(axis=1), 0, 0]
            kind[at + 9, 8] = kind[at + 10, 9] = 1
            at += PLACES
    for s in (0, 1):
        for k in range(3):
            axis[:, at] = around.axes[pairs[:, s], k]
            place[:, at] = where
            kind[at, 2 + s] = kind[at, 4 + k] = 1
            at += 1
    slide = kind[:, 2:4].sum(axis=1) > 0
    screws = np.concatenate([np.where(slide[:, None], 0, axis), np.where(slide[:, None], axis, np.cross(place, axis))], axis=2)  # fmt: skip
    facts = [np.tile(kind, (n, 1, 1)), np.abs(axis[..., 2:])]
    for s in (0, 1):
        one, other = pairs[:, s], pairs[:, 1 - s]
        x, normal, w = o.points[one], o.normals[one], share[s]
        R = around.axes[one]
        # Where the axis passes the box.
        r = place - around.middle[one][:, None]
        r = r - (r * axis).sum(2, keepdims=True) * axis
        own = np.abs(np.einsum("nmi,nki->nmk", r, R) / half[one][:, None]).clip(max=FARTHEST)
        far = SHARE * np.einsum("nmk,nk->nm", np.abs(np.einsum("nmi,nki->nmk", axis, R)), around.half[one])
        told = measure(
            axis, place, slide, x, normal, w, before[s], o.skins.roots[other], o.thick[other], o.skins.corners, o.skins.normals, o.skins.boxes,
            o.skins.nodes, far, ANGLE,
        )  # fmt: skip
        facts += [np.abs(np.einsum("nmi,nki->nmk", axis, R)), own, np.linalg.norm(r, axis=-1, keepdims=True), told]
    return {"screws": screws, "mate": np.concatenate(facts, axis=2).astype(np.float32)}
