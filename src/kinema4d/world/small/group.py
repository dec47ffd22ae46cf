"""Group: which pixels are one part, from what the segmenter says of each."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int32

BANDWIDTH = 0.018
"""Votes this near to each other are for one thing, metres."""
LINK = 0.016
"""Points of one piece of furniture are this near to each other, metres."""
SAME = 0.04
"""Pieces of furniture that vote for middles this near to each other are one part, metres."""
LEAST_PIXELS = 10
"""Smaller parts are noise, in pixels of the reduced picture."""
CRUMB, GROWS = 60, 0.2
"""Pieces of fewer pixels are no things of their own where they touch a larger one along this share of their border."""
BLOB_HEIGHT, BLOB_PIXELS, BLOB_SIZE = 0.012, 40, 0.3
"""What stands this high over the support and is no robot is a thing even if the network does not know it, where it is
at least so many pixels large and at most so many metres."""


def group(
    chance: Float[np.ndarray, "5 h w"],
    X: Float[np.ndarray, "h w 3"],
    votes: Float[np.ndarray, "h w 3"],
    usable: Bool[np.ndarray, "h w"],
    *,
    measured: bool = True,
) -> Int32[np.ndarray, "h w"]:
    """Labels (0 = none) by the middles that pixels vote for, each kind of thing for itself; then whatever else stands
    on the support, where ``X`` was measured: guessed hills are mostly shadows."""
    from scipy.ndimage import binary_opening
    from scipy.ndimage import label as connected

    labels = np.zeros(usable.shape, np.int32)
    kind = chance.argmax(axis=0)
    count = 0
    for kinds in ((2,), (3, 4), (1,)):
        mine = usable & np.isin(kind, kinds)
        # Large parts vote less precisely, and stand alone: what belongs to one drawer is found by touch.
        found, n = gather(mine, X + votes) if kinds == (2,) else touching(mine, X)
        if kinds == (3, 4):
            found, n = agreeing(found, n, X + votes)
        labels = np.where(found > 0, found + count, labels)
        count += n
    left = measured & usable & (labels == 0) & (X[..., 2] > BLOB_HEIGHT) & (chance[0] < 0.98)
    blobs = np.asarray(connected(binary_opening(left, np.ones((2, 2))), output=np.int32)[0])  # pyright: ignore[reportIndexIssue]
    for i in range(1, int(blobs.max(initial=0)) + 1):
        blob = blobs == i
        if blob.sum() < BLOB_PIXELS:
            continue
        points = X[blob]
        if np.ptp(points, axis=0).max() < BLOB_SIZE and points[:, 2].min() < BLOB_HEIGHT + 0.02:
            count += 1
            labels[blob] = count
    return without_crumbs(without_slivers(labels, X), X)


def without_crumbs(labels: Int32[np.ndarray, "h w"], X: Float[np.ndarray, "h w 3"]) -> Int32[np.ndarray, "h w"]:
    """Small pieces that grow out of a much larger part, as the neck of a bottle, belong to it; what they have elsewhere
    (the ground behind that neck) to nothing."""
    from scipy.spatial import KDTree

    out = labels.copy()
    area = np.bincount(labels.ravel())
    for i in range(1, len(area)):
        own = labels == i
        if not 0 < area[i] < CRUMB:
            continue
        touch, border = np.zeros(len(area), int), 0
        for axis, step in ((0, 1), (0, -1), (1, 1), (1, -1)):
            other = np.roll(labels, step, axis)
            edge = own & (other != i)
            border += int(edge.sum())
            near = edge & (np.linalg.norm(X - np.roll(X, step, axis), axis=-1) < BANDWIDTH)
            touch += np.bincount(other[near], minlength=len(area))
        touch[0] = 0
        best = int(touch.argmax())
        if touch[best] < max(3, GROWS * border) or area[best] < 5 * area[i]:
            continue
        gap, _ = KDTree(X[labels == best]).query(X[own])
        out[own] = np.where(gap < BANDWIDTH, best, 0)
    return _renumbered(out)


def _renumbered(labels: Int32[np.ndarray, "h w"]) -> Int32[np.ndarray, "h w"]:
    """Labels without gaps, in the same order."""
    kept = np.unique(labels[labels > 0])
    order = np.zeros(int(labels.max(initial=0)) + 1, np.int32)
    order[kept] = np.arange(1, len(kept) + 1)
    return order[labels]


def without_slivers(labels: Int32[np.ndarray, "h w"], X: Float[np.ndarray, "h w 3"]) -> Int32[np.ndarray, "h w"]:
    """Parts that are all border, as thin lines along the edge of another, belong to what is nearest to them."""
    from scipy.ndimage import binary_erosion, distance_transform_edt

    count = int(labels.max(initial=0))
    inner = np.zeros(labels.shape, bool)
    for i in range(1, count + 1):
        inner |= np.asarray(binary_erosion(labels == i, np.ones((3, 3))), bool)
    area, core = np.bincount(labels.ravel(), minlength=count + 1), np.bincount(labels[inner], minlength=count + 1)
    thin = core < 0.08 * area
    thin[0] = False
    if not thin.any():
        return labels
    loose = thin[labels]
    out = np.where(loose, 0, labels)
    if not (out > 0).any():
        return out
    index = distance_transform_edt(out == 0, return_distances=False, return_indices=True)
    assert isinstance(index, np.ndarray)
    r, c = index[0][loose], index[1][loose]
    near = np.linalg.norm(X[r, c] - X[loose], axis=-1) < BANDWIDTH
    out[loose] = np.where(near, out[r, c], 0)
    return _renumbered(out)


def touching(mine: Bool[np.ndarray, "h w"], X: Float[np.ndarray, "h w 3"]) -> tuple[Int32[np.ndarray, "h w"], int]:
    """Pixels by what is near in space: points in one chain of gaps below ``LINK`` are one part; labels (0 = none) and
    how many, the largest first."""
    from scipy.spatial import KDTree

    labels = np.zeros(mine.shape, np.int32)
    rows, columns = np.nonzero(mine)
    if len(rows) < LEAST_PIXELS:
        return labels, 0
    cells, owner = np.unique(np.floor(X[rows, columns] / (LINK / 2)).astype(int), axis=0, return_inverse=True)
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    pairs = KDTree(cells).query_pairs(2.3, output_type="ndarray")
    n = len(cells)
    _, piece = connected_components(
        coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n)), directed=False
    )
    piece = piece[owner.ravel()]
    sizes = np.bincount(piece)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] >= LEAST_PIXELS]
    number = np.zeros(len(sizes), np.int32)
    number[order] = np.arange(1, len(order) + 1)
    labels[rows, columns] = number[piece]
    return labels, len(order)


def agreeing(
    labels: Int32[np.ndarray, "h w"], count: int, votes: Float[np.ndarray, "h w 3"]
) -> tuple[Int32[np.ndarray, "h w"], int]:
    """Pieces that vote for the same middle are one part: what joins a handle to its drawer may be hidden or too thin."""
    middles: list[np.ndarray] = []
    number = np.zeros(count + 1, np.int32)
    for i in range(1, count + 1):
        middle = np.median(votes[labels == i], axis=0)
        near = [j for j, m in enumerate(middles) if np.linalg.norm(m - middle) < SAME]
        if near:
            number[i] = near[0] + 1
        else:
            middles.append(middle)
            number[i] = len(middles)
    return number[labels], len(middles)


def gather(movable: Bool[np.ndarray, "h w"], votes: Float[np.ndarray, "h w 3"]) -> tuple[Int32[np.ndarray, "h w"], int]:
    """Pixels by the middle that they vote for: labels (0 = none) and how many, the part with most votes first."""
    labels = np.zeros(movable.shape, np.int32)
    rows, columns = np.nonzero(movable)
    points = votes[rows, columns].astype(np.float64)
    left = np.ones(len(points), bool)
    middles: list[np.ndarray] = []
    while left.sum() >= LEAST_PIXELS:
        open_ = points[left]
        # The densest vote of a thinned set, then a few steps of mean shift.
        seeds = open_[:: max(1, len(open_) // 200)]
        crowd = (np.linalg.norm(open_[None] - seeds[:, None], axis=-1) < BANDWIDTH).sum(axis=1)
        middle = seeds[int(crowd.argmax())]
        for _ in range(5):
            near = open_[np.linalg.norm(open_ - middle, axis=-1) < BANDWIDTH]
            middle = near.mean(axis=0)
        mine = left & (np.linalg.norm(points - middle, axis=-1) < 1.5 * BANDWIDTH)
        if mine.sum() < LEAST_PIXELS:
            break
        middles.append(middle)
        labels[rows[mine], columns[mine]] = len(middles)
        left &= ~mine
    if middles and left.any():  # stragglers go to the nearest middle, if any is near
        gap = np.linalg.norm(points[:, None] - np.array(middles)[None], axis=-1)
        nearest = gap.argmin(axis=1)
        take = left & (gap.min(axis=1) < 4 * BANDWIDTH)
        labels[rows[take], columns[take]] = 1 + nearest[take]
    return labels, len(middles)
