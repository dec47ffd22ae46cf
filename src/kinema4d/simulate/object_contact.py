"""What one object may touch, and how deep it went into it: a floor, and meshes that stand still."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.sparse import csr_matrix, vstack

from kinema4d.objects.bounds import Distance
from kinema4d.objects.fit import Fitted
from kinema4d.objects.lagrange import ground
from kinema4d.objects.obstacle import Obstacle, around, least
from kinema4d.simulate.object_places import corners, rows_of, samples

EXACT = 0.1
"""Distance from an obstacle, of the object's size, within which it is exact."""
INSIDE = 0.01
"""Depth, of the size, that is flagged."""
COARSE = 0.03
"""Spacing of the points that may touch, of the size, that is flagged."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Touch:
    """What it may touch, and with which points."""

    rows: csr_matrix
    """Points of the surface as means of vertices."""
    distance: Distance | None
    """To the nearest of all; None for nothing."""
    each: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...]
    """What it is called, and how deep points are in it, if they are."""
    flags: tuple[str, ...] = ()
    """What is odd."""

    @property
    def count(self) -> int:
        """Of points."""
        return len(self.rows.indptr) - 1


def touch(fitted: Fitted, moves: Bool[np.ndarray, " v"], height: float | None, obstacles: Sequence[Obstacle]) -> Touch:
    """A floor is touched by corners; between those an edge of a mesh fits, so that it is touched by points all over the surface."""
    count, size = len(fitted.mesh.vertices), fitted.mesh.size
    rows, flags = csr_matrix((0, count)), []
    if (height is None and not obstacles) or not moves.any():
        return Touch(rows=rows, distance=None, each=())
    own = corners(fitted, moves)
    rows = rows_of(own, count)
    if obstacles:
        spread, apart = samples(fitted.mesh, moves)
        alone = np.diff(spread.indptr) == 1
        new = ~np.isin(spread.indices[spread.indptr[:-1]], own) | ~alone  # the corners are there already
        rows = csr_matrix(vstack([rows, spread[new]]))
        if apart > COARSE * size:
            flags.append(f"its surface is so large that points that may touch are {apart:.2g} m apart: what is sharper may go in between")  # fmt: skip
    parts: list[tuple[str, Distance]] = [] if height is None else [("the ground", ground(height))]
    parts += [(f"the obstacle {o.name}", around(o.mesh, limit=EXACT * size)) for o in obstacles]
    every: list[tuple[str, Distance]] = [] if height is None else [parts[0]]
    every += [(f"the obstacle {o.name}", around(o.mesh, limit=0.0)) for o in obstacles]  # exact only inside: fast
    deep = [(name, lambda x, d=d: (-d(x)[0]).clamp(min=0)) for name, d in every]
    return Touch(rows=rows, distance=least([d for _, d in parts]), each=tuple(deep), flags=tuple(flags))


def depths(
    touched: Touch, points: Sequence[Float[np.ndarray, "t _ 3"]], size: float
) -> tuple[Float[np.ndarray, " t"], list[str]]:
    """How deep the deepest of points was in each frame, metres, and in words what begins or comes too deep in what."""
    frames = len(points[0])
    out, said = np.zeros(frames), []
    for name, depth in touched.each:
        own = np.zeros(frames)
        for x in points:
            for t in range(frames if x.shape[1] else 0):
                own[t] = max(own[t], float(depth(torch.from_numpy(np.asarray(x[t], np.float64))).max()))
        if own[0] > INSIDE * size:
            said.append(f"it begins {own[0]:.3g} m deep in {name}, and is not pushed out: move one of them")
        elif own.max() > INSIDE * size:
            said.append(f"it went {own.max():.3g} m deep into {name}, {100 * own.max() / size:.2g} % of its size; try a smaller --step")  # fmt: skip
        out = np.maximum(out, own)
    return out, said
