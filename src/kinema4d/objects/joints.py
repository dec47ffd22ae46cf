"""Pieces on joints, in closed form: which pieces move as one, what hangs on what, and the screw of every joint.

Between two links that a joint connects, the logarithm of their relative motion is the joint's screw times its coordinate, in all poses: a matrix of
rank one. From what stands still outwards, every link is hung on the first for which that is so. The screws of the joints on the way to a piece,
one after the other, are its product of exponentials, so coordinates are joints. Where there is no such tree (things bend, or slide and turn at
once) least squares do it (:mod:`.least`).
"""

from __future__ import annotations

import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from kinema4d.objects.body import cross
from kinema4d.objects.least import EXACT, Task
from kinema4d.objects.screws import waves

SAME = 2e-5
"""Relative motion (rad, sizes) below which two pieces are one link."""
ONE = 1e-3
"""Second singular value of a joint's logarithms, of the first, at most."""


def joints(task: Task, most: int) -> tuple[Tensor, Tensor] | None:
    """Twists [g,k,6] and coordinates [p,k] of unit mean square with at most so many coordinates, if joints explain the poses exactly."""
    moved = motions(task)
    if moved is None:
        return None
    links = _links(moved)
    still = [i for i, link in enumerate(links) if _length(_log(*_between(None, _of(moved, link)))) < SAME]
    if len(still) != 1 or len(links) - 1 > most or len(links) < 2:
        return None
    hung: dict[int, list[Tensor]] = {still[0]: []}
    q: list[Tensor] = []
    on: dict[int, list[int]] = {still[0]: []}
    ready = [still[0]]
    while ready:  # breadth first: as near to what stands still as can be
        parent = ready.pop(0)
        for i in range(len(links)):
            if i in hung:
                continue
            logs = _log(*_between(_of(moved, links[parent]), _of(moved, links[i])))
            u, s, vt = torch.linalg.svd(logs, full_matrices=False)
            if float(s[1]) > ONE * float(s[0]):
                continue
            size = float(s[0]) / len(logs) ** 0.5
            hung[i], on[i] = [*hung[parent], size * vt[0]], [*on[parent], len(q)]
            q.append(u[:, 0] * len(logs) ** 0.5)
            ready.append(i)
    if len(hung) < len(links):
        return None
    twists = torch.zeros(task.count, len(q), 6, dtype=task.rest.dtype)
    for i, link in enumerate(links):
        for j, twist in zip(on[i], hung[i], strict=True):
            twists[link, j] = twist
    found = twists, torch.stack(q, 1)
    return found if task.error(*found) < EXACT / 10 else None


def with_world(task: Task) -> Task:
    """The same with one more piece, the first, that stands still: so that a joint may be between a piece and what is not in the mesh."""
    world = torch.cat([torch.zeros(1, 3), torch.eye(3)]).to(task.rest.dtype)
    return Task(
        rest=torch.cat([world, task.rest]), goals=torch.cat([world.expand(len(task.goals), 4, 3), task.goals], 1),
        piece=torch.cat([torch.zeros(4, dtype=torch.long), task.piece + 1]), count=task.count + 1,
    )  # fmt: skip


def motions(task: Task) -> tuple[Tensor, Tensor] | None:
    """Turns [p,g,3,3] and shifts [p,g,3] of every piece in every pose; None where a piece is too thin to tell, or bends."""
    turns = torch.zeros(len(task.goals), task.count, 3, 3, dtype=task.rest.dtype)
    shifts = torch.zeros(len(task.goals), task.count, 3, dtype=task.rest.dtype)
    for g in range(task.count):
        mine = task.piece == g
        a, b = task.rest[mine], task.goals[:, mine]
        if len(a) < 3:
            return None
        middle, to = a.mean(0), b.mean(1)
        u, s, vt = torch.linalg.svd(torch.einsum("ni,pnj->pij", a - middle, b - to[:, None]))
        if bool((s[:, 1] < 1e-9 * s[:, 0].clamp(min=1e-12)).any()):
            return None
        side = torch.ones_like(s)
        side[:, 2] = torch.linalg.det(u @ vt)
        turn = vt.transpose(1, 2) * side[:, None] @ u.transpose(1, 2)  # Kabsch
        if float(((a - middle) @ turn.transpose(1, 2) + to[:, None] - b).norm(dim=-1).max()) > EXACT:
            return None
        turns[:, g], shifts[:, g] = turn, to - turn @ middle
    return turns, shifts


def _of(moved: tuple[Tensor, Tensor], link: Tensor) -> tuple[Tensor, Tensor]:
    """Of a link, by its first piece."""
    return moved[0][:, link[0]], moved[1][:, link[0]]


def _between(a: tuple[Tensor, Tensor] | None, b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Motion of b as a sees it, which moves too."""
    if a is None:
        return b
    back = a[0].transpose(-1, -2)
    return back @ b[0], (back @ (b[1] - a[1])[..., None])[..., 0]


def _log(turn: Tensor, shift: Tensor) -> Tensor:
    """[p,6] the twist whose exponential it is."""
    w = torch.from_numpy(Rotation.from_matrix(turn.numpy()).as_rotvec()).to(turn.dtype)
    wave, lag = waves((w * w).sum(-1)[:, None, None])
    W = cross(w)
    V = torch.eye(3, dtype=w.dtype) + wave * W + lag * W @ W
    return torch.cat([w, torch.linalg.solve(V, shift[..., None])[..., 0]], 1)


def _length(logs: Tensor) -> float:
    return float(logs.abs().max())


def _links(moved: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Pieces that move as one."""
    left, out = list(range(moved[0].shape[1])), []
    while left:
        first = (moved[0][:, left[0]], moved[1][:, left[0]])
        mine = [g for g in left if _length(_log(*_between(first, (moved[0][:, g], moved[1][:, g])))) < SAME]
        out.append(torch.tensor(mine))
        left = [g for g in left if g not in mine]
    return out
