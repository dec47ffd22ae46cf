"""Complete: the unseen sides of a part from the sides that are seen.

A small network gives the signed distance of any point to the part's solid. It knows the part as a whole (a pooled code of
its visible points) and every point's own place in the picture: before or behind the measured surface, on the part, on
something behind it (then the point is free) or hidden by something before it. So seen sides follow the measurement, and
only thickness and hollows are guessed. Directions are in the level frame (:mod:`kinema4d.world.small.see`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int32
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.world.small import reading_kernels

UNIT = 0.05
"""Lengths are in units of 5 cm."""
BAND = 0.03
"""Depth differences are cut off here, metres."""
POINTS = 160
"""Visible points that are read."""
POINT_FEATURES, QUERY_FEATURES = 7, 28
"""Per visible point and per query."""
DISTANCE_UNIT = 0.01
"""The network speaks in centimetres."""
FINEST, COARSEST = 0.003, 0.006
"""Side of a cell of the surface's grid, metres."""
MOST_CELLS = 36
"""Cells along the longest side."""
WIDER = 0.0007
"""Solids are taken this much wider than the network says: it is not sure of thin walls, metres."""
LOST = 0.003
"""Seen points this far outside of the solid are missing from it, metres."""


@dataclass(frozen=True)
class CompleteConfig:
    """Size of the network."""

    width: int = 128
    """Hidden channels."""
    code: int = 128
    """Channels of a part's code."""


class CompleteNet(nn.Module):
    """See the module's text."""

    def __init__(self, config: CompleteConfig) -> None:
        super().__init__()
        w, c = config.width, config.code
        self.point = nn.Sequential(nn.Linear(POINT_FEATURES, w), nn.GELU(), nn.Linear(w, w), nn.GELU(), nn.Linear(w, c))
        self.code = nn.Sequential(nn.Linear(2 * c, w), nn.GELU(), nn.Linear(w, w))
        self.query = nn.Linear(QUERY_FEATURES, w)
        self.layers = nn.ModuleList([nn.Linear(w, w) for _ in range(3)])
        self.out = nn.Linear(w, 1)

    def encode(self, points: Tensor, present: Tensor) -> Tensor:
        """[n,k,7] and which of them are there [n,k] to codes [n,w]."""
        x = self.point(points)
        most = x.masked_fill(~present[..., None], -1e4).amax(1)
        mean = (x * present[..., None]).sum(1) / present.sum(1, keepdim=True).clamp(min=1)
        return self.code(torch.cat([most, mean], -1))

    def decode(self, code: Tensor, queries: Tensor) -> Tensor:
        """Codes [n,w] and features [n,q,28] to signed distances [n,q] in centimetres."""
        x = F.gelu(self.query(queries) + code[:, None])
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return self.out(x)[..., 0]


@dataclass(frozen=True, eq=False)
class Glimpse:
    """What one picture shows of one part, in the level frame with the camera over the origin and the support at 0."""

    own: Bool[np.ndarray, "h w"]
    """Pixels of the part."""
    depth: Float[np.ndarray, "h w"]
    """Metres along the optical axis; 0 where unknown."""
    points: Float32[np.ndarray, "h w 3"]
    """Every pixel's point."""
    normals: Float32[np.ndarray, "h w 3"]
    """And its normal."""
    P: Float[np.ndarray, "3 4"]
    """Projection of points in this frame to pixels: K [R | t]."""


def seen_points(glimpse: Glimpse, rng: np.random.Generator, count: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Visible points and normals [k,3] of a part, at most ``count``, chosen evenly."""
    rows, columns = np.nonzero(glimpse.own & (glimpse.depth > 0))
    if len(rows) > count:
        keep = rng.permutation(len(rows))[:count]
        rows, columns = rows[keep], columns[keep]
    return glimpse.points[rows, columns], glimpse.normals[rows, columns]


def middle_of(points: Float[np.ndarray, "k 3"]) -> Float32[np.ndarray, "3"]:
    """Origin of a part's own coordinates: above the middle of what is seen of it, on the support."""
    low, high = np.percentile(points[:, :2], [3, 97], axis=0)
    return np.array([*(low + high) / 2, 0.0], np.float32)


def point_features(
    points: Float[np.ndarray, "k 3"], normals: Float[np.ndarray, "k 3"], origin: Float[np.ndarray, "3"]
) -> Float32[np.ndarray, "k 7"]:
    """What the encoder takes."""
    away = np.linalg.norm(origin[:2])
    return np.concatenate(
        [(points - origin) / UNIT, normals, np.full((len(points), 1), away)], axis=1, dtype=np.float32
    )


def query_features(
    glimpse: Glimpse,
    queries: Float32[np.ndarray, "q 3"],
    points: Float[np.ndarray, "k 3"],
    normals: Float[np.ndarray, "k 3"],
    origin: Float[np.ndarray, "3"],
) -> Float32[np.ndarray, "q 28"]:
    """What the decoder takes."""
    height, width = glimpse.own.shape
    uvz = queries @ glimpse.P[:, :3].T + glimpse.P[:, 3]
    z = np.maximum(uvz[:, 2], 1e-3)
    u, v = np.rint(uvz[:, 0] / z).astype(int), np.rint(uvz[:, 1] / z).astype(int)
    inside = (u >= 0) & (u < width) & (v >= 0) & (v < height)
    u, v = np.clip(u, 0, width - 1), np.clip(v, 0, height - 1)
    seen = np.where(inside, glimpse.depth[v, u], 0.0)
    own, known = glimpse.own[v, u] & inside, seen > 0
    before = np.where(known, np.clip((seen - z) / BAND, -1, 1), 0.0)  # positive where the query is in free space
    free = known & ~own & (before > 0)
    hidden = known & ~own & (before <= 0)
    index, distance = np.zeros((1, len(queries)), np.int64), np.zeros((1, len(queries)), np.float32)
    cloud = np.ascontiguousarray(points.T[None], np.float32)
    reading_kernels.nearest(
        np.ascontiguousarray(queries[None], np.float32),
        cloud,
        np.zeros(len(points), bool),
        index,
        distance,
        np.float32(1),
    )
    near = index[0]
    x = (queries - origin) / UNIT
    planes = [
        x, np.sin(3 * x), np.cos(3 * x), np.sin(8 * x), np.cos(8 * x), before[:, None], own[:, None], free[:, None],
        hidden[:, None], (~inside)[:, None], ((points[near] - queries) / UNIT), (distance[0] / UNIT)[:, None],
        ((points[near] - queries) * normals[near]).sum(axis=1, keepdims=True) / UNIT, normals[near],
    ]  # fmt: skip
    return np.concatenate(planes, axis=1, dtype=np.float32)


@torch.no_grad()
def complete(
    net: CompleteNet, glimpse: Glimpse, *, handles: bool = False, seed: int = 0
) -> tuple[Float32[np.ndarray, "v 3"], Int32[np.ndarray, "f 3"]] | None:
    """The part's closed surface in the level frame, or None where too little of it is seen. ``handles`` keeps whatever
    is seen of thin things that stick out."""
    from scipy.ndimage import binary_erosion
    from skimage.measure import marching_cubes

    rng = np.random.default_rng(seed)
    points, normals = seen_points(glimpse, rng)
    if len(points) < 6:
        return None
    origin = middle_of(points)
    features = torch.from_numpy(point_features(points, normals, origin))[None]
    code = net.encode(features, torch.ones(features.shape[:2], dtype=torch.bool))
    cloud = glimpse.points[glimpse.own & (glimpse.depth > 0)].astype(np.float64)
    cut = 0.3 if handles else 1.0
    low, high = np.percentile(cloud, cut, axis=0), np.percentile(cloud, 100 - cut, axis=0)
    # The camera looks along x: what it does not see lies behind; to the sides only what others hide.
    size = float((high - low).max())
    behind, aside = max(0.03, 0.9 * size), 0.01 + 0.2 * size
    low, high = low - np.array([0.01, aside, aside]), high + np.array([behind, aside, 0.015])
    low[2] = max(low[2], -0.006)
    cell = float(np.clip((high - low).max() / MOST_CELLS, FINEST, COARSEST))
    counts = np.ceil((high - low) / (2 * cell)).astype(int) * 2 + 1
    axes = [low[i] + cell * np.arange(counts[i]) for i in range(3)]

    def ask(at: np.ndarray) -> np.ndarray:
        f = query_features(glimpse, at.astype(np.float32), points, normals, origin)
        return net.decode(code, torch.from_numpy(f)[None])[0].numpy() * DISTANCE_UNIT - WIDER

    # Every second point of the grid first; the others only where the surface may be.
    coarse = np.stack(np.meshgrid(*(a[::2] for a in axes), indexing="ij"), axis=-1)
    values = ask(coarse.reshape(-1, 3)).reshape(coarse.shape[:3])
    field = _doubled(values)
    near = _doubled((np.abs(values) < 2.5 * cell).astype(np.float32)) > 0
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    if near.any():
        field[near] = ask(grid[near])
    sure = (
        glimpse.own if handles else np.asarray(binary_erosion(glimpse.own, np.ones((3, 3))), bool)
    )  # pixels of borders may be others'
    eye = -np.linalg.solve(glimpse.P[:, :3], glimpse.P[:, 3])
    _include(field, glimpse.points[sure & (glimpse.depth > 0)].astype(np.float64), low, cell, eye)
    field[0] = field[-1] = cell
    field[:, 0] = field[:, -1] = cell
    field[:, :, 0] = field[:, :, -1] = cell
    if not (field < 0).any():
        return None
    vertices, faces, _, _ = marching_cubes(field, 0.0, spacing=(cell, cell, cell))
    return _largest((vertices + low).astype(np.float32), faces[:, ::-1].astype(np.int32), 0.03 if handles else 0.2)


def _include(field: np.ndarray, cloud: np.ndarray, low: np.ndarray, cell: float, eye: Float[np.ndarray, "3"]) -> None:
    """Nothing that is seen is lost: seen points ``cloud`` that have no solid around them, as those of thin handles, walls
    and floors, become the near side of balls of it."""
    from scipy.ndimage import map_coordinates, minimum_filter
    from scipy.spatial import KDTree

    inside = ((cloud > low + cell) & (cloud < low + cell * (np.array(field.shape) - 2))).all(axis=1)
    cloud = cloud[inside]
    if not len(cloud):
        return
    at = (cloud - low) / cell
    empty = minimum_filter(field, 3)[tuple(np.rint(at).astype(int).T)] > 0
    lost = cloud[empty | (map_coordinates(field, at.T, order=1) > LOST)]
    if len(lost) < 3:
        return
    radius = max(0.9 * cell, 0.0035)
    away = lost - eye
    lost = lost + radius * away / np.linalg.norm(away, axis=1, keepdims=True)
    first = np.clip(np.floor((lost.min(axis=0) - low - 2 * radius) / cell).astype(int), 0, np.array(field.shape) - 1)
    last = np.ceil((lost.max(axis=0) - low + 2 * radius) / cell).astype(int) + 1
    cut = tuple(slice(int(a), int(b)) for a, b in zip(first, last, strict=True))
    part = field[cut]
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in part.shape), indexing="ij"), axis=-1) + first
    distance, _ = KDTree(lost).query(low + cell * grid, distance_upper_bound=3 * radius)
    field[cut] = np.minimum(part, np.where(np.isfinite(distance), distance - radius, part))


def _doubled(a: np.ndarray) -> np.ndarray:
    """Linear in between, along every axis: n points become 2n - 1."""
    for axis in range(3):
        a = np.moveaxis(a, axis, 0)
        out = np.empty((2 * len(a) - 1, *a.shape[1:]), np.float32)
        out[::2], out[1::2] = a, (a[1:] + a[:-1]) / 2
        a = np.moveaxis(out, 0, axis)
    return a


def _largest(vertices: np.ndarray, faces: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Without crumbs: the connected piece with most faces, and others at least ``least`` times as large."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    a, b = faces[:, [0, 1, 2]].ravel(), faces[:, [1, 2, 0]].ravel()
    n = len(vertices)
    _, label = connected_components(coo_matrix((np.ones(len(a), np.int8), (a, b)), shape=(n, n)), directed=False)
    of_face = label[faces[:, 0]]
    sizes = np.bincount(of_face)
    faces = faces[sizes[of_face] >= least * sizes.max()]
    used, back = np.unique(faces, return_inverse=True)
    return vertices[used], back.reshape(-1, 3).astype(np.int32)
