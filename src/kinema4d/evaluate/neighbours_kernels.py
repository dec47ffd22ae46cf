"""Numba kernels of the exact nearest-neighbour search.

A set of points becomes a k-d tree whose leaves hold eight points each, with tight boxes around every eight leaves, every
eight such groups, and so on. Medians, not a grid, decide where it splits, so outliers, noise and repeated points cost no
more than any other. Queries go down eight at a time, the eight points of a leaf of the other tree: they share the way,
and their distances to the eight points of a leaf fill the vector units.

Distances are float64 whatever the points are. One file, because Numba's cache does not notice changes in others.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

LEAF = 8
"""Points of a leaf, and boxes of a block."""
SAMPLE = 33
"""Values from which a pivot is guessed."""
STACK = 160
"""Nodes that may wait: 8 per level, and 20 levels hold more points than any memory."""
EIGHT = ir.VectorType(ir.DoubleType(), LEAF)
"""Eight distances at once."""


@njit(cache=True, nogil=True)
def collect(points, valid, rows, tags):
    """Pack the valid points of one frame, each with its place among them. Returns how many there are, or minus one minus
    the place of the first that is not finite."""
    n = 0
    for v in range(valid.shape[0]):
        for u in range(valid.shape[1]):
            if valid[v, u]:
                x, y, z = points[v, u, 0], points[v, u, 1], points[v, u, 2]
                if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
                    return -1 - n
                rows[n, 0], rows[n, 1], rows[n, 2] = x, y, z
                tags[n, 3] = n
                n += 1
    return n


@njit(cache=True, nogil=True)
def pixel_bounds(points, valid, other, other_valid, bounds):
    """Squared distance of each valid point to that of the same pixel in another pointmap, infinite where it has none: no
    nearest neighbour is farther. Returns the largest. (The pixels around it give tighter bounds, but looking at them
    takes longer than the search then saves.)"""
    n = 0
    worst = 0.0
    for v in range(valid.shape[0]):
        for u in range(valid.shape[1]):
            if valid[v, u]:
                bound = np.inf
                if other_valid[v, u]:
                    dx = np.float64(points[v, u, 0]) - other[v, u, 0]
                    dy = np.float64(points[v, u, 1]) - other[v, u, 1]
                    dz = np.float64(points[v, u, 2]) - other[v, u, 2]
                    bound = dx * dx + dy * dy + dz * dz
                bounds[n] = bound
                worst = max(worst, bound)
                n += 1
    return worst


@njit(cache=True, nogil=True)
def index_bounds(points, others, hint, bounds):
    """The same for points in a list, each with the index of one that is probably near; -1 where nobody knows."""
    for i in range(len(points)):
        j = hint[i]
        bounds[i] = np.inf
        if j >= 0:
            dx = np.float64(points[i, 0]) - others[j, 0]
            dy = np.float64(points[i, 1]) - others[j, 1]
            dz = np.float64(points[i, 2]) - others[j, 2]
            bounds[i] = dx * dx + dy * dy + dz * dz


@njit(cache=True, nogil=True)
def summary(squares, n, tau):
    """Mean distance, mean squared distance, and the share of distances below ``tau``."""
    total = total_squares = 0.0
    near = 0
    for i in range(n):
        d = np.sqrt(squares[i])
        total += d
        total_squares += squares[i]
        near += d < tau
    return total / n, total_squares / n, near / n


@njit(cache=True, nogil=True)
def _pivot(rows, first, last, rank, axis, sample):
    """A guess at the value that ``rank`` would have were rows ``first..last`` sorted."""
    n = last - first + 1
    count = SAMPLE if n > 400 else (9 if n > 40 else 3)
    for i in range(count):
        value = rows[first + (i * (n - 1)) // (count - 1), axis]
        j = i
        while j > 0 and sample[j - 1] > value:
            sample[j] = sample[j - 1]
            j -= 1
        sample[j] = value
    return sample[((rank - first) * (count - 1) + n // 2) // n]


@njit(cache=True, nogil=True)
def _partition(rows, first, last, pivot, axis, equal):
    """Bring the rows below the pivot (or ``equal`` to it) to the front; returns where the others begin. Swaps always and
    counts without a branch: which row is below is a coin toss, and wrong guesses cost more than the swaps."""
    end = first
    for row in range(first, last + 1):
        a, b = np.uintp(end), np.uintp(row)
        a0, a1, a2, a3 = rows[a, 0], rows[a, 1], rows[a, 2], rows[a, 3]
        b0, b1, b2, b3 = rows[b, 0], rows[b, 1], rows[b, 2], rows[b, 3]
        value = rows[b, axis]
        rows[a, 0], rows[a, 1], rows[a, 2], rows[a, 3] = b0, b1, b2, b3
        rows[b, 0], rows[b, 1], rows[b, 2], rows[b, 3] = a0, a1, a2, a3
        end += np.int64(value < pivot) | (np.int64(value == pivot) & equal)
    return end


@njit(cache=True, nogil=True)
def _select(rows, first, last, rank, axis, sample):
    """Reorder rows ``first..last`` so that those before ``rank`` are not above, those after it not below it."""
    while last > first:
        pivot = _pivot(rows, first, last, rank, axis, sample)
        middle = _partition(rows, first, last, pivot, axis, 0)
        if rank < middle:
            last = middle - 1
        elif first < middle:
            first = middle
        else:  # the pivot is the smallest: set its equals aside
            first = _partition(rows, first, last, pivot, axis, 1)
            if rank < first:
                return


@njit(cache=True, nogil=True)
def _arrange(rows, n):
    """Sort rows into the order of the leaves of a k-d tree. Splits fall on multiples of powers of eight leaves, so that
    every block of eight boxes is a subtree of its own."""
    sample = np.empty(SAMPLE, rows.dtype)
    starts = np.empty(64, np.int64)
    ends = np.empty(64, np.int64)
    starts[0], ends[0] = 0, (n + LEAF - 1) // LEAF
    waiting = 1
    while waiting > 0:
        waiting -= 1
        start, end = starts[waiting], ends[waiting]
        while end - start > 1:
            first, last = start * LEAF, min(end * LEAF, n) - 1
            x0 = x1 = rows[first, 0]
            y0 = y1 = rows[first, 1]
            z0 = z1 = rows[first, 2]
            for row in range(first + 1, last + 1):
                i = np.uintp(row)
                x0, x1 = min(x0, rows[i, 0]), max(x1, rows[i, 0])
                y0, y1 = min(y0, rows[i, 1]), max(y1, rows[i, 1])
                z0, z1 = min(z0, rows[i, 2]), max(z1, rows[i, 2])
            dx, dy, dz = x1 - x0, y1 - y0, z1 - z0
            widest = max(dx, dy, dz)
            if widest == 0:
                break
            axis = np.uintp(0 if dx == widest else (1 if dy == widest else 2))
            unit = 1
            while unit * LEAF < end - start:
                unit *= LEAF
            half = start + max((end - start) // 2 // unit, 1) * unit
            _select(rows, first, last, half * LEAF, axis, sample)
            starts[waiting], ends[waiting] = half, end
            waiting += 1
            end = half


@njit(cache=True, nogil=True)
def build(rows, tags, n, leaves, places, boxes, offsets, levels):
    """Make a tree of ``n`` packed points: ``leaves [leaf, xyz, 8]`` and where each point was (``places``), then per level
    blocks of eight boxes ``[block, low xyz high xyz, 8]``. The last leaf is filled up by repeating the last point."""
    _arrange(rows, n)
    count = (n + LEAF - 1) // LEAF
    for leaf in range(count):
        for k in range(LEAF):
            i = min(leaf * LEAF + k, n - 1)
            for c in range(3):
                leaves[leaf, c, k] = rows[i, c]
            places[leaf, k] = tags[i, 3]
    for level in range(levels):
        for block in range((count + LEAF - 1) // LEAF):
            b = offsets[level] + block
            for k in range(LEAF):
                node = block * LEAF + k
                for c in range(3):
                    low, high = np.inf, -np.inf
                    if node < count:
                        if level == 0:
                            for i in range(LEAF):
                                low, high = min(low, leaves[node, c, i]), max(high, leaves[node, c, i])
                        else:
                            below = offsets[level - 1] + node
                            for i in range(LEAF):
                                low, high = min(low, boxes[below, c, i]), max(high, boxes[below, c + 3, i])
                    boxes[b, c, k], boxes[b, c + 3, k] = low, high
        count = (count + LEAF - 1) // LEAF


class _Lanes:
    """Writes eight-fold float64 arithmetic: LLVM leaves these loops scalar, which makes the search four times slower."""

    def __init__(self, context, builder, signature, arguments):
        self.context, self.builder = context, builder
        self.kinds, self.values = signature.args, arguments

    def pointer(self, array, offset):
        data = self.context.make_array(self.kinds[array])(self.context, self.builder, self.values[array]).data
        return self.builder.gep(data, [offset])

    def number(self, value):
        return ir.Constant(ir.IntType(64), value)

    def row(self, array, offset):
        """Eight neighbours in memory as float64."""
        kind = self.context.get_data_type(self.kinds[array].dtype)
        place = self.builder.bitcast(self.pointer(array, offset), ir.VectorType(kind, LEAF).as_pointer())
        found = self.builder.load(place, align=self.kinds[array].dtype.bitwidth // 8)
        return found if kind == ir.DoubleType() else self.builder.fpext(found, EIGHT)

    def spread(self, array, offset):
        """One number in all lanes."""
        found = self.builder.load(self.pointer(array, offset))
        if found.type != ir.DoubleType():
            found = self.builder.fpext(found, ir.DoubleType())
        empty = ir.Constant(EIGHT, ir.Undefined)
        first = self.builder.insert_element(empty, found, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(ir.IntType(32), LEAF), [0] * LEAF))

    def store(self, lanes, array, offset):
        place = self.builder.bitcast(self.pointer(array, offset), EIGHT.as_pointer())
        self.builder.store(lanes, place, align=8)

    def smaller(self, a, b):
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def larger(self, a, b):
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def of_all(self, choose, lanes):
        """The smallest or the largest lane."""
        empty = ir.Constant(EIGHT, ir.Undefined)
        for step in (4, 2, 1):
            order = [(i + step) % LEAF for i in range(LEAF)]
            turned = self.builder.shuffle_vector(lanes, empty, ir.Constant(ir.VectorType(ir.IntType(32), LEAF), order))
            lanes = choose(lanes, turned)
        return self.builder.extract_element(lanes, ir.Constant(ir.IntType(32), 0))

    def squares(self, parts):
        x, y, z = (self.builder.fmul(p, p) for p in parts)
        return self.builder.fadd(self.builder.fadd(x, y), z)

    def gap(self, low, high, other_low, other_high):
        """Squared distances between boxes."""
        zero = ir.Constant(EIGHT, [0.0] * LEAF)
        sides = zip(low, high, other_low, other_high, strict=True)
        minus = self.builder.fsub
        return self.squares([self.larger(self.larger(minus(a, d), minus(c, b)), zero) for a, b, c, d in sides])


@intrinsic
def _leaf_visit(typing, q, best, leaves, node):
    """Lower ``best [8]`` to the distances between queries ``q [3, 8]`` and the points of a leaf; returns the worst."""

    def write(context, builder, signature, arguments):
        lanes = _Lanes(context, builder, signature, arguments)
        start = builder.mul(arguments[3], lanes.number(3 * LEAF))
        queries = [lanes.row(0, lanes.number(c * LEAF)) for c in range(3)]
        nearest = lanes.row(1, lanes.number(0))
        for i in range(LEAF):
            target = [lanes.spread(2, builder.add(start, lanes.number(c * LEAF + i))) for c in range(3)]
            parts = [builder.fsub(a, b) for a, b in zip(queries, target, strict=True)]
            nearest = lanes.smaller(lanes.squares(parts), nearest)
        lanes.store(nearest, 1, lanes.number(0))
        return lanes.of_all(lanes.larger, nearest)

    return types.float64(q, best, leaves, node), write


@intrinsic
def _block_gaps(typing, around, boxes, block, gaps):
    """Squared distances ``gaps [8]`` between a box ``around [6]`` and the boxes of a block."""

    def write(context, builder, signature, arguments):
        lanes = _Lanes(context, builder, signature, arguments)
        start = builder.mul(arguments[2], lanes.number(6 * LEAF))
        rows = [lanes.row(1, builder.add(start, lanes.number(c * LEAF))) for c in range(6)]
        own = [lanes.spread(0, lanes.number(c)) for c in range(6)]
        lanes.store(lanes.gap(rows[:3], rows[3:], own[:3], own[3:]), 3, lanes.number(0))
        return context.get_dummy_value()

    return types.void(around, boxes, block, gaps), write


@intrinsic
def _box_gap(typing, q, best, boxes, block, lane):
    """Squared distance between one box of a block and the nearest of those queries that it might help, else infinite."""

    def write(context, builder, signature, arguments):
        lanes = _Lanes(context, builder, signature, arguments)
        start = builder.add(builder.mul(arguments[3], lanes.number(6 * LEAF)), arguments[4])
        box = [lanes.spread(2, builder.add(start, lanes.number(c * LEAF))) for c in range(6)]
        queries = [lanes.row(0, lanes.number(c * LEAF)) for c in range(3)]
        gaps = lanes.gap(box[:3], box[3:], queries, queries)
        helps = builder.fcmp_ordered("<", gaps, lanes.row(1, lanes.number(0)))
        endless = ir.Constant(EIGHT, [float("inf")] * LEAF)
        return lanes.of_all(lanes.smaller, builder.select(helps, gaps, endless))

    return types.float64(q, best, boxes, block, lane), write


@njit(cache=True, nogil=True)
def search(queries, query_places, packets, leaves, boxes, offsets, levels, nearest):
    """Lower ``nearest``, squared distances that no nearest neighbour exceeds, to the exact ones.

    Eight queries share one walk from the root, the nearest box first. A box is left out when it is farther from the box
    around the queries than the worst distance so far, or from each query than that query's own.
    """
    q = np.empty((3, LEAF))
    around = np.empty(6)
    best = np.empty(LEAF)
    gaps = np.empty(LEAF)
    level_of = np.empty(STACK, np.int64)
    node_of = np.empty(STACK, np.int64)
    gap_of = np.empty(STACK)
    for p in range(packets):
        worst = 0.0
        for k in range(LEAF):
            best[k] = nearest[np.uintp(query_places[p, k])]
            worst = max(worst, best[k])
        if worst == 0.0:
            continue
        for c in range(3):
            low = high = np.float64(queries[p, c, 0])
            for k in range(LEAF):
                value = np.float64(queries[p, c, k])
                q[c, k] = value
                low, high = min(low, value), max(high, value)
            around[c], around[c + 3] = low, high
        level_of[0], node_of[0], gap_of[0] = levels, 0, 0.0
        waiting = 1
        while waiting > 0:
            waiting -= 1
            top = np.uintp(waiting)
            if gap_of[top] >= worst:
                continue
            level, node = level_of[top], node_of[top]
            if level == 0:
                worst = _leaf_visit(q, best, leaves, node)  # pyright: ignore[reportCallIssue]
                continue
            block = offsets[np.uintp(level - 1)] + node
            _block_gaps(around, boxes, block, gaps)  # pyright: ignore[reportCallIssue]
            base = waiting
            for i in range(LEAF):
                if gaps[i] >= worst:
                    continue
                gap = _box_gap(q, best, boxes, block, i)
                if gap < worst:
                    j = waiting
                    while j > base and gap_of[np.uintp(j - 1)] < gap:
                        to, of = np.uintp(j), np.uintp(j - 1)
                        gap_of[to], node_of[to], level_of[to] = gap_of[of], node_of[of], level_of[of]
                        j -= 1
                    to = np.uintp(j)
                    gap_of[to], node_of[to], level_of[to] = gap, node * LEAF + i, level - 1
                    waiting += 1
        for k in range(LEAF):
            nearest[np.uintp(query_places[p, k])] = best[k]
