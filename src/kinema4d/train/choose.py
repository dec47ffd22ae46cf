"""Teach the network that chooses joints (:mod:`kinema4d.objects.choose`) from data sets of deforming meshes, and from nothing else about them.

Every object on joints is explained by itself first, in closed form (:mod:`kinema4d.objects.joints`): which pieces are one body, what hangs on what, the screw of every joint. The
network is then asked which of the joints that could be there are those, of the object at rest or in any of its poses.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.data.objects4d import Object4D, read_objects
from kinema4d.data.pool import spread
from kinema4d.objects.choose import APART, JOINT, ONE, ChooseConfig, ChooseNet, Shown, shown, tree
from kinema4d.objects.foretell_bends import only
from kinema4d.objects.foretell_joints import MOST
from kinema4d.objects.joints import joints
from kinema4d.objects.least import EXACT, Task
from kinema4d.objects.look import box_of
from kinema4d.objects.mates import Boxes, Mates, boxes, mates, survey
from kinema4d.objects.pieces import advanced, carried
from kinema4d.objects.solid import Mesh, parts
from kinema4d.train.evenly import odds
from kinema4d.train.limp import bending
from kinema4d.train.loop import Plan, train

OBJECTS = 24
"""Of a batch."""
LOOKS, JUDGED = 3, 6
"""Poses in which each object is looked at, and poses that it is judged by."""
COORDINATES = 12
"""Joints at most of what is learned from."""
PLAN = Plan(steps=8000, rate=2e-3, warmup=100, ema=0.998, validate_every=500, log_every=50, save_every=120)
"""How long."""
GOOD, BEST = 0.02, 0.05
"""Share of a joint's motion that a candidate may leave over to be that joint; and the best of them, where none does."""
STILL, FAR = 0.5, 0.05
"""How much it counts what stands still, and how far joints go."""


class Known(NamedTuple):
    """One look at an object, and what is true of it."""

    mates: Mates
    """As it is shown."""
    bond: np.ndarray
    """[e] what two pieces are to each other."""
    still: np.ndarray
    """[c] which pieces stand still."""
    joint: np.ndarray
    """[n] between which links two pieces that meet are, by the joint's number; -1 for none."""
    good: np.ndarray
    """[n,m] which candidates are that joint."""
    far: np.ndarray
    """[k] logarithm of how far each joint goes, radians or sizes."""
    points: np.ndarray
    """[c,m,3] of pieces."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Jointed:
    """An object on joints, explained."""

    twists: Tensor
    """[c,k,6] in the unit box of the pose at rest; each coordinate is a joint of unit mean square."""
    q: Tensor
    """[p,k] of its poses, the first at rest."""
    poses: Float64[np.ndarray, "p v 3"]
    """Metres."""
    faces: np.ndarray
    """[f,3]."""
    label: np.ndarray
    """[v] connected parts."""
    around: Boxes
    """Of those, in the unit box at rest."""


def explained_on_joints(poses: Float64[np.ndarray, "p v 3"], faces: np.ndarray, label: np.ndarray, most: int, *, still: bool = False) -> Jointed | None:  # fmt: skip
    """None of what is no tree of joints; of what does not move either, unless it may be ``still``."""
    middle, size = box_of(poses[0])
    unit = torch.from_numpy((poses - middle) / size)
    task = Task(rest=unit[0], goals=unit, piece=torch.from_numpy(label), count=int(label.max()) + 1)
    nothing = torch.zeros(task.count, 0, 6, dtype=unit.dtype), torch.zeros(len(unit), 0, dtype=unit.dtype)
    rests = float((unit - unit[0]).abs().max()) < EXACT
    found = (nothing if still else None) if rests else joints(task, most)
    if found is None:
        return None
    twists, q = found
    spread = q.square().mean(0).sqrt()
    around = boxes(unit[0].numpy(), label)
    return Jointed(twists=twists * spread[:, None], q=q / spread, poses=poses, faces=faces, label=label, around=around)


def known(one: Jointed, pose: int, rng: np.random.Generator) -> Known:
    """As it is in a pose."""
    (m0, s0), (m1, s1) = box_of(one.poses[0]), box_of(one.poses[pose])
    own, turns, shifts = (v[0, 0].numpy() for v in advanced(one.twists[None], one.q[pose][None, None]))
    own = own.copy()  # from the unit box at rest to that of this pose
    around = one.around.moved(turns, shifts).scaled((m1 - m0) / s0, s1 / s0)
    own[..., 3:] = (own[..., 3:] + np.cross(own[..., :3], (m1 - m0) / s0)) * s0 / s1
    look = survey((one.poses[pose] - m1) / s1, one.faces, one.label, rng, around=around)
    m, points = mates(look), look.points
    moves = (np.abs(one.twists.numpy()).max(axis=2) > 1e-9).astype(int)  # [c,k]
    a, b = m.pairs.T
    differ = np.abs(moves[a] - moves[b])
    bond = np.where(differ.sum(axis=1) == 0, ONE, np.where(differ.sum(axis=1) == 1, JOINT, APART))
    joint = np.where(
        bond[m.meet] == JOINT, (differ[m.meet] * np.arange(own.shape[1])).sum(axis=1), -1
    )  # by its one difference
    good = np.zeros(m.screws.shape[:2], bool)
    for k in range(own.shape[1]):
        rows = np.flatnonzero(joint == k)
        if not len(rows):
            continue
        on = moves[:, k] > 0
        outer = on & (moves.sum(axis=1) == moves[on].sum(axis=1).min())
        x = points[outer].reshape(-1, 3)
        left = left_over(m.screws[rows], own[outer][0, k], x)
        good[rows] = left < (GOOD if left.min() < GOOD else min(1.2 * left.min(), BEST))
    w, v = own[..., :3], own[..., 3:]
    size = np.where(np.linalg.norm(w, axis=2) > 1e-6, np.linalg.norm(w, axis=2), np.linalg.norm(v, axis=2)).max(axis=0)
    return Known(m, bond, moves.sum(axis=1) == 0, joint, good, np.log(np.maximum(size, 1e-4)), points)


def left_over(screws: Float64[np.ndarray, "n m 6"], true: Float64[np.ndarray, "6"], x: Float64[np.ndarray, "p 3"]) -> Float64[np.ndarray, "n m"]:  # fmt: skip
    """Share (root) of a screw's motion of points that others, however long, do not make."""
    fast = np.cross(true[:3], x) + true[3:]
    way = np.cross(screws[..., None, :3], x) + screws[..., None, 3:]
    along = np.einsum("nmpi,pi->nm", way, fast)
    return np.sqrt(np.maximum(0, 1 - along**2 / (np.square(way).sum((2, 3)) + 1e-12) / np.square(fast).sum()))


class Asked(NamedTuple):
    """A batch."""

    shown: Shown
    bond: Tensor
    still: Tensor
    joint: Tensor
    """[n] numbers of joints, of all objects one after the other."""
    good: Tensor
    far: Tensor
    """[k]."""
    of: Tensor
    """[k] object of each joint."""


def asked(some: Sequence[Known]) -> Asked:
    """Side by side."""
    joint, at = [], 0
    for one in some:
        joint.append(np.where(one.joint >= 0, one.joint + at, -1))
        at += len(one.far)
    joined = lambda every: torch.from_numpy(np.concatenate(every))  # noqa: E731
    return Asked(
        shown([k.mates for k in some]), joined([k.bond for k in some]), joined([k.still for k in some]).float(), joined(joint),
        joined([k.good for k in some]), joined([k.far for k in some]).float(), torch.repeat_interleave(torch.tensor([len(k.far) for k in some])),
    )  # fmt: skip


def _per(x: Tensor, whose: Tensor, many: int) -> Tensor:
    """[many] means of what is whose."""
    return torch.zeros(many).index_add(0, whose, x) / torch.bincount(whose, minlength=many).clamp(min=1)


def loss_of(net: ChooseNet, b: Asked) -> tuple[Tensor, dict[str, float]]:
    """What is missed, every object counting the same."""
    said = net(b.shown)
    s = b.shown
    bond = _per(F.cross_entropy(said.bond, b.bond, reduction="none"), s.whose[s.pairs[:, 0]], s.many).mean()
    still = _per(F.binary_cross_entropy_with_logits(said.still, b.still, reduction="none"), s.whose, s.many).mean()
    rows = b.joint >= 0
    odds, good, number, far = said.odds[rows], b.good[rows], b.joint[rows], said.far[rows]
    at = number[:, None].expand_as(odds).flatten()
    total = _log_sum(odds.flatten(), at, len(b.far))
    mine = _log_sum(odds.masked_fill(~good, -1e4).flatten(), at, len(b.far))
    there = torch.zeros(len(b.far), dtype=torch.bool).index_put((number,), good.any(1), accumulate=True)
    joint = _per((total - mine) * there, b.of, s.many).mean()
    off = (far - b.far[number][:, None]).square() * good
    long = off.sum() / good.sum().clamp(min=1)
    return bond + STILL * still + joint + FAR * long, {"bond": float(bond.detach()), "stands": float(still.detach()), "joint": float(joint.detach()), "far": float(long.detach())}  # fmt: skip


def _log_sum(x: Tensor, at: Tensor, many: int) -> Tensor:
    most = torch.full((many,), -1e4).scatter_reduce(0, at, x.detach(), "amax")
    return most + (torch.zeros(many).index_add(0, at, (x - most[at]).exp()) + 1e-30).log()


class Looked(NamedTuple):
    """An object as it is learned from, or judged by."""

    name: str
    """Its id."""
    kind: str
    """Such as ``door``."""
    looks: tuple[Known, ...]
    """At rest first, then in other poses."""
    q: np.ndarray
    """[p,k] coordinates of some of its poses, to be judged by."""
    twists: np.ndarray
    """[c,k,6] as the first look has it."""
    moving: bool
    """Whether nothing else moves: then something has to be on a joint."""


def looked(one: Object4D) -> Looked | None:
    """An object, without what of it bends, looked at in some of its poses; None of what is not of several parts on joints, or held by several that stand still."""
    rest, faces = one.shape()
    mesh = Mesh(vertices=rest, faces=faces)
    label, poses = parts(mesh), np.concatenate([rest[None], one.poses()]).astype(np.float64)
    bends = bending(poses, label, mesh.size)
    if bends.any():
        there = ~bends[label]
        stiff, label = only(mesh, label, np.flatnonzero(~bends))
        poses, faces = poses[:, there], stiff.faces
    if not len(label) or not 1 <= label.max() < MOST:
        return None
    found = explained_on_joints(poses, faces, label, COORDINATES, still=bool(bends.any()))
    if found is None:
        return None
    rng = np.random.default_rng(zlib.crc32(one.id.encode()))
    other = rng.permutation(np.arange(1, len(poses)))
    looks = []
    for pose in (0, *other[: LOOKS - 1].tolist()):
        look = known(found, pose, rng)
        small = replace(look.mates, mate=look.mates.mate.astype(np.float16))  # of thousands of objects it fills memory
        looks.append(look._replace(mates=small))
    some = np.concatenate([[0], other[-JUDGED:]])
    return Looked(
        one.id, one.kind, tuple(looks), found.q[torch.from_numpy(some)].numpy(), found.twists.numpy(), not bends.any()
    )


class ChooseTask:
    """Batches by the number of the step."""

    def __init__(self, net: ChooseNet, seen: Sequence[Looked], held_out: Sequence[Looked]) -> None:
        if not seen or not held_out:
            raise ValueError(f"{len(seen)} objects on joints to learn from and {len(held_out)} to judge by: a data set needs both")  # fmt: skip
        self.model: nn.Module = net
        self.net, self.seen, self.held_out = net, seen, held_out
        self.odds = odds([one.kind for one in seen])

    def loss(self, step: int) -> Tensor:
        """Of objects by chance, each in one of its looks."""
        rng = np.random.default_rng([17, step])
        some = [self.seen[i] for i in rng.choice(len(self.seen), OBJECTS, p=self.odds)]
        return loss_of(self.net, asked([one.looks[int(rng.integers(len(one.looks)))] for one in some]))[0]

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Of objects at rest: how far points go and how far the nearest of what was chosen is from them (per cent of the size, mean and median); how often the number
        of joints is right; and what is missed."""
        assert isinstance(model, ChooseNet)
        found = judged(model, self.held_out)
        kinds = defaultdict(list)
        for one, row in zip(self.held_out, found, strict=True):
            kinds[one.kind].append(row)
        mean = lambda i: float(np.mean([np.mean([r[i] for r in rows]) for rows in kinds.values()]))  # noqa: E731
        lost = loss_of(model, asked([one.looks[0] for one in self.held_out]))[1]
        return {"percent": 100 * mean(0), "percent_median": 100 * float(np.median([r[0] for r in found])), "still": 100 * mean(1), "counted": mean(2), **lost}  # fmt: skip


@torch.no_grad()
def judged(net: ChooseNet, some: Sequence[Looked]) -> list[tuple[float, float, float, float]]:
    """Of each object at rest the error at the nearest coordinates and how far points go, of the size; whether the number of joints is right; how likely the choice is
    said to be."""
    out = []
    for one in some:
        look = one.looks[0]
        got = tree(look.mates, net(shown([look.mates])), look.points, moving=one.moving)
        x, twists = torch.from_numpy(look.points), torch.from_numpy(one.twists)
        goals = carried(x[None], twists[None], torch.from_numpy(one.q)[None])[0][0]
        piece = torch.arange(len(x)).repeat_interleave(x.shape[1])
        task = Task(rest=x.flatten(0, 1), goals=goals.flatten(1, 2), piece=piece, count=len(x))
        mine, went = torch.from_numpy(got.twists), float((goals - x).norm(dim=-1).mean())
        off = task.error(mine, task.solved(mine)) if mine.shape[1] else went
        out.append((off, went, float(mine.shape[1] == one.q.shape[1]), float(got.sure.min(initial=1.0)) * got.bonds))
    return out


def run_joints(
    data: Sequence[Path],
    out: Path,
    config: ChooseConfig,
    *,
    steps: int | None = None,
    start: ChooseNet | None = None,
    workers: int = 2,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> ChooseNet:
    """Train on the split ``train`` of data sets, judged on ``val``, from nothing or from what was learned before (``start``); goes on where an earlier run in ``out`` stopped."""
    plan = PLAN if steps is None else replace(PLAN, steps=steps, warmup=min(PLAN.warmup, steps // 10 + 1))
    hear = None if tell is None else lambda n, total: tell(0, {"explained": n, "of": total}) if n % 500 == 0 else None
    seen, held_out = (
        [one for one in spread(looked, [o for d in data for o in read_objects(d, split)], workers=workers, progress=hear) if one is not None]
        for split in ("train", "val")
    )  # fmt: skip
    torch.manual_seed(plan.seed)
    net = ChooseNet(config)
    if start is not None:
        if start.config != config:
            raise ValueError(f"what was learned before is of {start.config}, wanted is {config}: start from one of the same preset")  # fmt: skip
        net.load_state_dict(start.state_dict())
    about = {
        "preset": "joints",
        "config": asdict(config),
        "objects": [s.name for s in seen],
        "start": start is not None,
    }
    net = train(ChooseTask(net, seen, held_out), plan, out, config=about, tell=tell)
    assert isinstance(net, ChooseNet)
    return net
