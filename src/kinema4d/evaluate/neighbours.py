"""Exact nearest neighbours between two sets of points, and between two pointmaps frame by frame.

"Exact" is meant: the distances are those of a brute-force comparison, up to the last bits of float64. The k-d trees of
:mod:`kinema4d.evaluate.neighbours_kernels` do it; here is what feeds them. Two pointmaps of one scene are mostly alike,
and that is used twice: the point at the same pixel bounds the search from above, and where it is the very same point,
there is nothing left to search. Both are only short cuts. A prediction that is far off costs more time, not accuracy.

Memory is bounded: each thread holds one frame of both sides at a time and reuses its arrays for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from kinema4d.evaluate import neighbours_kernels as kernels
from kinema4d.geometry.raster import default_threads

LEAF = kernels.LEAF
"""Points of a leaf of the tree."""
Frame = tuple[Float[np.ndarray, "h w 3"], Bool[np.ndarray, "h w"]]
"""Points of one frame and which of them count."""


@dataclass(frozen=True, kw_only=True)
class OneWay:
    """Distances from every point of one set to the nearest of the other, summed up."""

    mean: float
    """Metres."""
    mean_square: float
    """Square metres."""
    near: float
    """Share of points whose distance is below the threshold."""


class Side:
    """Room for one set of points and its tree, reused from frame to frame."""

    def __init__(self, capacity: int, dtype: np.dtype) -> None:
        leaves = -(-max(capacity, 1) // LEAF)
        blocks = int(_block_offsets(leaves)[-1])
        self.rows = np.empty((max(capacity, 1), 4), dtype)
        # A point travels with its place while rows are sorted: the bits of an integer in the fourth number.
        self.tags = self.rows.view(np.int32 if dtype.itemsize == 4 else np.int64)
        self.leaves = np.empty((leaves, 3, LEAF), dtype)
        self.places = np.empty((leaves, LEAF), np.int32)
        self.boxes = np.empty((blocks, 6, LEAF), dtype)
        self.squares = np.empty(max(capacity, 1))
        self.offsets = np.zeros(1, np.int64)
        self.count = 0

    def fill(self, points: Float[np.ndarray, "h w 3"], valid: Bool[np.ndarray, "h w"]) -> None:
        """Take the valid points of a frame."""
        self.count = kernels.collect(points, valid, self.rows, self.tags)
        if self.count < 0:
            bad = np.argwhere(valid)[-1 - self.count]
            raise ValueError(
                f"the point at row {bad[0]}, column {bad[1]} is not finite: {points[tuple(bad)].tolist()}; "
                "pixels without a point must be marked invalid"
            )

    def plant(self) -> None:
        """Build the tree."""
        self.offsets = _block_offsets(-(-self.count // LEAF))
        kernels.build(
            self.rows, self.tags, self.count, self.leaves, self.places, self.boxes, self.offsets, len(self.offsets) - 1
        )

    def search(self, other: Side) -> None:
        """Lower ``squares`` from bounds to the squared distances to the nearest of ``other``."""
        kernels.search(
            self.leaves, self.places, -(-self.count // LEAF),
            other.leaves, other.boxes, other.offsets, len(other.offsets) - 1, self.squares,
        )  # fmt: skip


def _block_offsets(leaves: int) -> np.ndarray:
    """Where the blocks of each level of boxes begin; the last entry is their number."""
    offsets = [0]
    while True:
        leaves = -(-leaves // LEAF)
        offsets.append(offsets[-1] + leaves)
        if leaves <= 1:
            return np.array(offsets, np.int64)


def nearest_distances(
    a: Float[np.ndarray, "n 3"], b: Float[np.ndarray, "m 3"], hint: Int[np.ndarray, " n"] | None = None
) -> Float64[np.ndarray, " n"]:
    """Distance of every point of ``a`` to its nearest neighbour in ``b``. ``hint`` may name a point of ``b`` that is
    probably near to each of ``a``, -1 where nobody knows: a bad one costs time, never accuracy."""
    if not len(b):
        raise ValueError("there is no nearest neighbour among no points; leave empty sets out before")
    if not len(a):
        return np.zeros(0)
    a, b = _same_dtype(a, b)
    sides = Side(len(a), a.dtype), Side(len(b), b.dtype)
    for side, points in zip(sides, (a, b), strict=True):
        side.fill(points[None], np.ones((1, len(points)), bool))
        side.plant()
    if hint is None:
        sides[0].squares.fill(np.inf)
    else:
        if hint.shape != (len(a),) or hint.min() < -1 or hint.max() >= len(b):
            raise ValueError(
                f"hint must hold {len(a)} indices from -1 to {len(b) - 1}, got {hint.shape} from {hint.min()} to {hint.max()}"
            )
        kernels.index_bounds(a, b, hint, sides[0].squares)
    sides[0].search(sides[1])
    return np.sqrt(sides[0].squares)


def pointmap_distances(
    a: Float[np.ndarray, "h w 3"],
    a_valid: Bool[np.ndarray, "h w"],
    b: Float[np.ndarray, "h w 3"],
    b_valid: Bool[np.ndarray, "h w"],
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " m"]]:
    """Distances from the valid points of one frame to the nearest valid point of the other, both ways, in the order in
    which the pixels are stored."""
    a, b = _same_dtype(a, b)
    sides = Side(a_valid.size, a.dtype), Side(b_valid.size, a.dtype)
    _both_ways(sides, (a, np.ascontiguousarray(a_valid)), (b, np.ascontiguousarray(b_valid)))
    one, other = (np.sqrt(side.squares[: side.count]) for side in sides)
    return one, other


def compare_frames(
    frames: Sequence[int],
    a: Callable[[int], Frame],
    b: Callable[[int], Frame],
    tau: float,
    *,
    threads: int | None = None,
) -> list[tuple[OneWay, OneWay]]:
    """For each of ``frames``, distances from ``a(frame)`` to ``b(frame)`` and back. Frames are shared out to ``threads``;
    their number changes nothing but the time."""
    workers = max(1, min(threads or default_threads(), len(frames)))
    found: dict[int, tuple[OneWay, OneWay]] = {}

    def work(first: int) -> None:
        sides: tuple[Side, Side] | None = None
        for frame in frames[first::workers]:
            (a_points, a_valid), (b_points, b_valid) = a(frame), b(frame)
            a_points, b_points = _same_dtype(a_points, b_points)
            if sides is None:
                sides = Side(a_valid.size, a_points.dtype), Side(b_valid.size, b_points.dtype)
            try:
                _both_ways(sides, (a_points, np.ascontiguousarray(a_valid)), (b_points, np.ascontiguousarray(b_valid)))
            except ValueError as error:
                raise ValueError(f"frame {frame}: {error}") from error
            found[frame] = _summed_up(sides[0], tau), _summed_up(sides[1], tau)

    if workers == 1:
        work(0)
    else:  # the kernels release the interpreter
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
    return [found[frame] for frame in frames]


def _both_ways(sides: tuple[Side, Side], a: Frame, b: Frame) -> None:
    """Squared distances between two frames, into both sides."""
    for side, frame in zip(sides, (a, b), strict=True):
        side.fill(*frame)
        if not side.count:
            raise ValueError("there is no nearest neighbour among no points; leave empty frames out before")
    worst = max(
        kernels.pixel_bounds(*a, *b, sides[0].squares),
        kernels.pixel_bounds(*b, *a, sides[1].squares),
    )
    if worst > 0:
        for side in sides:
            side.plant()
        sides[0].search(sides[1])
        sides[1].search(sides[0])


def _summed_up(side: Side, tau: float) -> OneWay:
    mean, mean_square, near = kernels.summary(side.squares, side.count, tau)
    return OneWay(mean=mean, mean_square=mean_square, near=near)


def _same_dtype(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float32, or as float64 where one of them is: the kernels are compiled for these two."""
    dtype = np.result_type(a.dtype, b.dtype, np.float32)
    return np.ascontiguousarray(a, dtype), np.ascontiguousarray(b, dtype)
