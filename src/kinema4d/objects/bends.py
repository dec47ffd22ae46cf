"""The kinematics of what bends, in closed form: joints where pieces keep their form, balls between the rods of a rope, principal components of the rest.

A part that bends rides on the link with which it moves most alike, as a cloth on the box that it covers. Seen from there, a slender tube is tried as a
chain of rods: every rod's turn is that of the rings around it, between two rods there is a ball joint, and its three angles are coordinates, so that
nothing stretches however far it swings. Of everything else the poses' principal components are shifts, which are screws without a turn: never worse than
principal components, because they are those. (Turns beside these shifts were tried, by least squares against the poses: they gained at most 9 % with eight
coordinates, nothing with sixteen.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial.transform import Rotation
from torch import Tensor

from kinema4d.objects.joints import joints, with_world
from kinema4d.objects.least import EXACT, Task, one_more
from kinema4d.objects.quick import moved_points
from kinema4d.objects.rings import on_rods, rings, rod_ends, rod_frame

STARTS = 8
"""Vertices that move least, from which rings are counted."""
POINTS = 12
"""Of each rigid piece, to find joints by."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bent:
    """What was found, in the unit of the poses."""

    piece: Int64[np.ndarray, " v"]
    """Whose twists a vertex has."""
    twists: Tensor
    """[g,k,6] joints, then angles of chains, then shifts."""
    q: Tensor
    """[p,k] of all poses."""
    errors: list[float]
    """Mean distance of vertices in held-out poses with the first coordinate, the first two, ..."""


def bent(
    rest: Float64[np.ndarray, "v 3"],
    poses: Float64[np.ndarray, "p v 3"],
    held: np.ndarray,
    faces: Int64[np.ndarray, "f 3"],
    piece: Int64[np.ndarray, " v"],
    *,
    most: int,
    shifts: int,
    error: float,
) -> Bent:
    """Joints (``most`` at most) of the pieces that have several vertices, chains, and as few shifts (``shifts`` at most) as reconstruct the poses
    ``held`` out to ``error``."""
    count = np.bincount(piece)
    soft = count[piece] == 1
    own, twists, q = _rigid(rest, poses, held, piece, soft, most)
    motions = [(twists[g], q) for g in range(len(twists))]
    still = torch.zeros(1, *twists.shape[1:], dtype=twists.dtype)
    rows = [still[0], *(t for t, _ in motions)]  # joints of each link; the first is the world
    label = _parts(faces, len(rest))
    of = np.zeros(len(rest), np.int64)
    of[~soft] = own[~soft] + 1
    seen = poses.copy()  # as the link on which a part rides sees it
    for part in np.unique(label[soft]):
        mine = np.flatnonzero(soft & (label == part))
        ways = [_undone(poses[:, mine], t, q) for t in rows]
        best = int(np.argmin([np.square(w - rest[mine]).sum() for w in ways]))
        of[mine], seen[:, mine] = best, ways[best]
    chains: list[_Chain] = []
    free = soft.copy()
    for part in np.unique(label[soft]):
        mine = np.flatnonzero(soft & (label == part))
        found = _chain(rest, seen, faces, mine)
        if found is not None and found.error(rest, seen, held) < _components_error(
            rest, seen, held, mine, len(found.q[0])
        ):
            chains.append(found)
            free[mine] = False
    return _together(rest, poses, held, of, rows, q, chains, np.flatnonzero(free), seen, shifts=shifts, error=error)


def _rigid(rest: np.ndarray, poses: np.ndarray, held: np.ndarray, piece: np.ndarray, soft: np.ndarray, most: int) -> tuple[np.ndarray, Tensor, Tensor]:  # fmt: skip
    """Twists [g,j,6] of what keeps its form, which of them a vertex has, and coordinates of all poses."""
    none = torch.zeros(0, 0, 6, dtype=torch.float64), torch.zeros(len(poses), 0, dtype=torch.float64)
    own = np.full(len(rest), -1)
    if soft.all():
        return own, *none
    own[~soft] = np.unique(piece[~soft], return_inverse=True)[1]
    few = np.concatenate([np.flatnonzero(own == g)[:: max(1, int((own == g).sum()) // POINTS)] for g in range(own.max() + 1)])  # fmt: skip
    x, goals, whose = (torch.from_numpy(v) for v in (rest[few], poses[:, few], own[few]))
    task = with_world(Task(rest=x, goals=goals, piece=whose, count=int(own.max()) + 1))
    if float((goals - x).norm(dim=-1).max()) < EXACT:
        return own, torch.zeros(task.count - 1, 0, 6, dtype=torch.float64), none[1]
    found = joints(task, most)
    if found is None:  # slides and turns at once, or flies
        learn = replace(task, goals=task.goals[torch.from_numpy(np.flatnonzero(~held))][:80])
        found = torch.zeros(task.count, 0, 6, dtype=torch.float64), torch.zeros(len(learn.goals), 0, dtype=torch.float64)  # fmt: skip
        while found[1].shape[1] < most and (not found[1].shape[1] or learn.error(*found) > EXACT):
            found = one_more(learn, *found)
        found = found[0], task.solved(found[0])
    return own, found[0][1:], found[1]


def _parts(faces: np.ndarray, count: int) -> np.ndarray:
    """Which connected part each vertex is of."""
    a, b = faces[:, [0, 1]].T.ravel(), faces[:, [1, 2]].T.ravel()
    return connected_components(coo_matrix((np.ones(len(a)), (a, b)), shape=(count, count)), directed=False)[1]


def _undone(goals: np.ndarray, twists: Tensor, q: Tensor) -> np.ndarray:
    """[p,n,3] as a link with twists [j,6] sees it."""
    one = torch.zeros(1, dtype=torch.long)
    corners = [moved_points(x, one, twists[None], q)[:, 0].numpy() for x in torch.cat([torch.zeros(1, 3), torch.eye(3)]).double()[:, None]]  # fmt: skip
    turn = np.stack([c - corners[0] for c in corners[1:]], axis=2)
    return (goals - corners[0][:, None]) @ turn


def _components(rest: np.ndarray, seen: np.ndarray, held: np.ndarray, mine: np.ndarray, most: int) -> np.ndarray:
    """[k,n,3] directions in which vertices differ most from the rest, by the poses that are learned from."""
    away = (seen[~held][:, mine] - rest[mine]).reshape(int((~held).sum()), -1)
    _, size, ways = np.linalg.svd(away, full_matrices=False)
    known = int((size > 1e-7 * max(float(size[0]), 1e-12)).sum()) if len(size) else 0
    return ways[: min(most, known)].reshape(-1, len(mine), 3)


def _components_error(rest: np.ndarray, seen: np.ndarray, held: np.ndarray, mine: np.ndarray, k: int) -> float:
    ways = _components(rest, seen, held, mine, k).reshape(-1, 3 * len(mine))
    away = (seen[held][:, mine] - rest[mine]).reshape(int(held.sum()), -1)
    return float(np.linalg.norm((away - away @ ways.T @ ways).reshape(len(away), -1, 3), axis=-1).mean())


# ---------------------------------------------------------------------- chains


@dataclass(frozen=True, kw_only=True, eq=False)
class _Chain:
    mine: Int64[np.ndarray, " n"]
    """Vertices."""
    ring: Int64[np.ndarray, " n"]
    """Whose twists each has."""
    twists: Float64[np.ndarray, "r k 6"]
    """Of the rings, from where it is held."""
    q: Float64[np.ndarray, "p k"]
    """Of all poses."""

    def error(self, rest: np.ndarray, seen: np.ndarray, held: np.ndarray) -> float:
        """Mean distance in poses held out, before coordinates are solved for."""
        made = moved_points(torch.from_numpy(rest[self.mine]), torch.from_numpy(self.ring), torch.from_numpy(self.twists), torch.from_numpy(self.q[held]))  # fmt: skip
        return float(np.linalg.norm(made.numpy() - seen[held][:, self.mine], axis=-1).mean())


def _chain(rest: np.ndarray, seen: np.ndarray, faces: np.ndarray, mine: np.ndarray) -> _Chain | None:
    """A tube as rods on ball joints, the first held where it moves least."""
    away = np.linalg.norm(seen[:, mine] - rest[mine], axis=2).mean(axis=0)
    ring = next((r for i in np.argsort(away)[:STARTS] if (r := rings(rest, faces, int(mine[i]), mine)) is not None), None)  # fmt: skip
    if ring is None:
        return None
    x, y, ends = rest[mine], seen[:, mine], rod_ends(ring)
    frame, before, places, q = rod_frame(x, ring), (np.tile(np.eye(3), (len(y), 1, 1)), np.zeros((len(y), 3))), [], []
    for a, b in pairwise(ends):
        on = (ring >= a) & (ring <= b)
        turn, shift = nearest_motion(x[on], y[:, on])
        places.append(_pivot(turn - before[0], shift - before[1], x[ring == a].mean(axis=0)))
        q.append(Rotation.from_matrix(frame.T @ before[0].swapaxes(1, 2) @ turn @ frame).as_euler("XYZ"))
        before = turn, shift
    return _Chain(mine=mine, ring=ring, twists=on_rods(ring, ends, np.stack(places), frame), q=np.concatenate(q, axis=1))  # fmt: skip


def nearest_motion(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turns [p,3,3] and shifts [p,3] that bring points [n,3] to [p,n,3] as well as they can (Kabsch)."""
    middle, to = a.mean(axis=0), b.mean(axis=1)
    u, _, vt = np.linalg.svd(np.einsum("ni,tnj->tij", a - middle, b - to[:, None]))
    u[:, :, 2] *= np.linalg.det(u @ vt)[:, None]
    turn = (u @ vt).swapaxes(1, 2)
    return turn, to - turn @ middle


def _pivot(turn: np.ndarray, shift: np.ndarray, near: np.ndarray) -> np.ndarray:
    """The place that two motions, which differ by so much, take to the same place, by least squares; ``near`` where they do not say."""
    H = np.einsum("pij,pik->jk", turn, turn)
    off = shift + turn @ near
    return near - np.linalg.solve(
        H + 1e-3 * np.trace(H) * np.eye(3) / 3 + 1e-12 * np.eye(3), np.einsum("pij,pi->j", turn, off)
    )


# ---------------------------------------------------------------------- all of it


def _together(
    rest: np.ndarray, poses: np.ndarray, held: np.ndarray, of: np.ndarray, rows: list[Tensor], q: Tensor, chains: list[_Chain], free: np.ndarray,
    seen: np.ndarray, *, shifts: int, error: float,
) -> Bent:  # fmt: skip
    """Pieces, twists and coordinates of joints, chains and shifts, these as few as are good enough."""
    ways = _components(rest, seen, held, free, shifts) if len(free) else np.zeros((0, 0, 3))
    j, c, k = q.shape[1], sum(chain.twists.shape[1] for chain in chains), len(ways)
    key = np.zeros((len(rest), 2), np.int64)  # link, and ring or vertex
    key[:, 0] = of
    twists: dict[tuple[int, int], np.ndarray] = {}
    first, coordinates = j, [q.numpy()]
    for number, chain in enumerate(chains):
        key[chain.mine, 1] = 1 + chain.ring + (number << 32)
        wide = chain.twists.shape[1]
        for r in range(len(chain.twists)):
            full = np.zeros((j + c + k, 6))
            full[first : first + wide] = chain.twists[r]
            twists[int(of[chain.mine[0]]), 1 + r + (number << 32)] = full
        first += wide
        coordinates.append(chain.q)
    key[free, 1] = -1 - np.arange(len(free))
    for i, v in enumerate(free):
        full = np.zeros((j + c + k, 6))
        full[j + c :, 3:] = ways[:, i]
        twists[int(of[v]), -1 - i] = full
    if len(free):
        coordinates.append((seen[:, free] - rest[free]).reshape(len(poses), -1) @ ways.reshape(k, -1).T)
    names, piece = np.unique(key, axis=0, return_inverse=True)
    every = torch.zeros(len(names), j + c + k, 6, dtype=torch.float64)
    for g, (link, what) in enumerate(names.tolist()):
        if what:
            every[g] = torch.from_numpy(twists[link, what])
        every[g, :j] = rows[link]
    q = torch.from_numpy(np.concatenate(coordinates, axis=1))
    at, x, goals = torch.from_numpy(piece.ravel()), torch.from_numpy(rest), torch.from_numpy(poses[held])
    own = q[torch.from_numpy(held)]
    errors = []
    for i in range(1, j + c + k + 1):
        made = moved_points(x, at, every[:, :i], own[:, :i])
        errors.append(float((made - goals).norm(dim=-1).mean()))
        if i >= j + c and errors[-1] < error:
            break
    many = len(errors)
    if c:  # rings between rods are not quite where the rods' angles have them
        task = Task(rest=x, goals=torch.from_numpy(poses), piece=at, count=len(every))
        q = task.solved(every[:, :many], q[:, :many])
        errors[-1] = float(
            (moved_points(x, at, every[:, :many], q[torch.from_numpy(held)]) - goals).norm(dim=-1).mean()
        )
    return Bent(piece=piece.ravel().astype(np.int64), twists=every[:, :many], q=q[:, :many], errors=errors)
