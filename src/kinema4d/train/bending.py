"""Teach the network of what bends (:mod:`kinema4d.objects.amortised`) from data sets of deforming meshes, and from nothing else about them.

Every object that bends is explained by itself first, by the principal ways in which its patches turn and shift. The network is then asked for the screws of an object in
one of its poses. Which coordinates it uses for the same motions is its own affair: what counts is the space that its first coordinates span, as many as the
object has, so a latent that does not need to be there is not. Later its poses count too, at the nearest coordinates there are (variable projection). An
auto-encoder with nested dropout and projection alone, which this replaces, stood still (docs/experiments.md). Objects that do not bend are shown, too, so that it learns
which parts do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from scipy.spatial.transform import Rotation
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.data.objects4d import Object4D, read_objects
from kinema4d.objects.amortised import AmortisedConfig, Said, ScrewNet, told
from kinema4d.objects.body import cross
from kinema4d.objects.fit import RIGID, rigid
from kinema4d.objects.look import Cut, Look, cut, look_at
from kinema4d.objects.pieces import carried, nearest
from kinema4d.objects.solid import Mesh, parts
from kinema4d.train.loop import Plan, train

OBJECTS, POSES = 24, 6
"""Of a batch, and poses of each."""
SOFT = 0.75
"""Share of those that bend."""
AT_REST = 0.4
"""Share of objects that are seen at rest; others in any pose."""
LATER = (0.4, 0.6)
"""Shares of the training between which poses begin to count, beside screws."""
FLOOR, LEAST = 1e-6, 1e-4
"""Mean squared error, in squared sizes, and share of motion that is left over, below which little is gained."""
FAR, SCALE, COUNT, BEND = 10.0, 0.02, 0.1, 0.05
"""How much it counts how far poses are missed (in sizes), how long the screws are, how many, and what bends, beside the share of motion that is left over."""
WITHIN = 1.0
"""How much it counts what is left over of the motions within an object, whatever stands still: of two blades on a pin nothing says which is held."""
ENOUGH = 2e-3
"""Share of the motion of what bends that may be left over by its principal ways."""
EVEN = 0.75
"""A kind is learned from as often as its number of objects to this power."""
PLAN = Plan(steps=6000, rate=1e-3, muon=20.0, warmup=200, ema=0.998, validate_every=500, log_every=50, save_every=120)
"""How long."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One object to learn from."""

    name: str
    """Its id."""
    kind: str
    """Such as ``door``."""
    poses: Float64[np.ndarray, "p v 3"]
    """Metres, that at rest first."""
    faces: np.ndarray
    """[f,3]."""
    pieces: Cut
    """As it is looked at."""
    whole: Cut
    """As it is looked at when nothing is known yet of what bends: by connected parts."""
    bends: np.ndarray
    """[parts] which do."""


def read_seen(
    every: Sequence[Object4D], config: AmortisedConfig, tell: Callable[[int, int], None] | None = None
) -> list[Seen]:
    """Objects with few enough parts, in which something bends or moves by itself."""
    out = []
    for n, one in enumerate(every):
        if tell is not None:
            tell(n, len(every))
        rest, faces = one.shape()
        mesh = Mesh(vertices=rest, faces=faces)
        label, poses = parts(mesh), np.concatenate([rest[None], one.poses()]).astype(np.float64)
        count = int(label.max()) + 1
        bends = np.array([rigid(rest[label == c], poses[:, label == c]) > RIGID * mesh.size for c in range(count)])
        if (count < 2 and not bends.any()) or count + bends.sum() > config.pieces:
            continue
        whole = cut(rest, faces, label, np.zeros(count, bool), config.pieces)
        own = cut(rest, faces, label, bends, config.pieces) if bends.any() else whole
        kept = poses if bends.any() else poses[:9]  # of what keeps its form only looks are needed
        out.append(Seen(name=one.id, kind=one.kind, poses=kept, faces=faces, pieces=own, whole=whole, bends=bends))
    return out


class BendingTask:
    """Batches by the number of the step."""

    def __init__(self, net: ScrewNet, seen: Sequence[Seen], held_out: Sequence[Seen], *, steps: int, counted: bool = True, turned: bool = True) -> None:  # fmt: skip
        soft = [[o for o in some if o.bends.any()] for some in (seen, held_out)]
        if not all(soft):
            raise ValueError(f"{len(soft[0])} objects that bend to learn from and {len(soft[1])} to judge by: a data set needs both")  # fmt: skip
        self.model: nn.Module = net
        self.net, self.steps, self.counted, self.turned = net, steps, counted, turned
        self.soft, self.held_out = soft
        self.stiff, self.stiff_held_out = ([o for o in some if not o.bends.any()] for some in (seen, held_out))
        self.odds = [_odds(self.soft), _odds(self.stiff)]

    def batch(self, some: Sequence[Seen], poses: int, rng: np.random.Generator) -> Batch:
        """Objects that bend, in one pose each, and where their points are in others."""
        looks, moves, counts = [], [], []
        config = self.net.config
        for one in some:
            look = self._look(one, one.pieces, rng)
            way = _ways(look, config.coordinates)
            looks.append(replace(look, points=look.points[: poses + 1]))
            moves.append(np.pad(way, ((0, 0), (0, 0), (0, 0), (0, config.coordinates - way.shape[-1]))))
            counts.append(way.shape[-1])
        seen = _shown(looks)
        most = seen.x.shape[1]  # pieces that no object of the batch has cost time for nothing
        points = torch.from_numpy(np.stack([k.points for k in looks]))[:, :, :most]
        return Batch(shown=seen, goals=points[:, 1:], moves=torch.from_numpy(np.stack(moves))[:, :most].float(), count=torch.tensor(counts))  # fmt: skip

    def _look(self, one: Seen, pieces: Cut, rng: np.random.Generator, poses: int | None = None) -> Look:
        pick = rng.permutation(len(one.poses))
        if not self.turned or rng.random() < AT_REST:  # the ablation: always
            pick = np.concatenate([[0], pick[pick > 0]])
        return look_at(one.poses[pick[:poses]], one.faces, pieces, rng, points=self.net.config.points, most=self.net.config.pieces)  # fmt: skip

    def loss(self, step: int) -> Tensor:
        """Roots of what is left over. Logarithms made what is learned already count a thousand times as much as what is not."""
        rng = np.random.default_rng([11, step])
        late = min(1.0, max(0.0, (step / self.steps - LATER[0]) / (LATER[1] - LATER[0])))
        many = round(SOFT * OBJECTS) if self.stiff else OBJECTS
        soft = [self.soft[i] for i in rng.choice(len(self.soft), many, p=self.odds[0])]
        stiff = [self.stiff[i] for i in rng.choice(len(self.stiff), OBJECTS - many, p=self.odds[1])] if self.stiff else []  # fmt: skip
        out = self._lost(self.batch(soft, POSES, rng), late)
        whole, bends = self.parts(soft + stiff, rng)
        return out + BEND * F.binary_cross_entropy_with_logits(whole.asked(self.net).bends[whole.there], bends)

    def parts(self, some: Sequence[Seen], rng: np.random.Generator) -> tuple[Shown, Tensor]:
        """Objects by their connected parts, and which of those bend."""
        looks = [self._look(one, one.whole, rng, poses=1) for one in some]
        return _shown(looks), torch.from_numpy(np.concatenate([one.bends for one in some])).float()

    def _lost(self, b: Batch, late: float) -> Tensor:
        said = b.shown.asked(self.net)
        x, there, k = b.shown.x, b.shown.there, self.net.config.coordinates
        use = torch.arange(k) < (b.count[:, None] if self.counted else k)
        mine, true = told(said.twists, x, there), b.flat()
        left, long = left_over(mine, true, use)
        within, _ = left_over(mine, true, use, whole=_whole(x, there))
        out = (left + LEAST).sqrt().mean() + WITHIN * (within + LEAST).sqrt().mean() + SCALE * long.mean()
        out = out + COUNT * F.cross_entropy(said.counted, b.count - 1)
        if late:
            q, _, _ = nearest(x, said.twists.detach(), b.goals, there, use)
            out = out + late * FAR * (self._off(b, said.twists, q).mean(1) + FLOOR).sqrt().mean()
        return out

    @staticmethod
    def _off(b: Batch, twists: Tensor, q: Tensor) -> Tensor:
        """[b,p] mean squared distance of points from their goals."""
        x, there = b.shown.x, b.shown.there
        off = ((carried(x, twists, q)[0] - b.goals) * there[:, None, :, None, None]).square().sum((2, 3, 4))
        return off / (there.sum(1)[:, None] * x.shape[2])

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Mean error in per cent of the size, with as many coordinates as the model says, and with as many as there are; how far the same points go; how
        often the number is right; the share of motion by screws that is left over (root); and how often it is known of a part whether it bends."""
        assert isinstance(model, ScrewNet)
        rng = np.random.default_rng(5)
        some = [self.held_out[i] for i in np.unique(np.linspace(0, len(self.held_out) - 1, 160).round().astype(int))]
        b = self.batch(some, 6, rng)
        said = b.shown.asked(model)
        x, there = b.shown.x, b.shown.there
        every, count = torch.arange(model.config.coordinates), (there.sum(1) * x.shape[2])[:, None]
        mean = lambda made: ((made - b.goals) * there[:, None, :, None, None]).norm(dim=-1).sum((2, 3)) / count  # noqa: E731
        out = {}
        for kind, many in {"percent": said.counted.argmax(1) + 1, "percent_given": b.count}.items():
            q, _, _ = nearest(x, said.twists, b.goals, there, every < many[:, None], rounds=12)
            off = mean(carried(x, said.twists, q)[0])
            out |= {kind: 100 * float(off.mean()), f"{kind}_median": 100 * float(off.mean(1).median())}
        left, _ = left_over(told(said.twists, x, there), b.flat(), every < b.count[:, None])
        whole, bends = self.parts(some + self.stiff_held_out[:160], rng)
        known = (whole.asked(model).bends[whole.there] > 0) == (bends > 0.5)
        return out | {
            "still": 100 * float(mean(x[:, None]).mean()), "counted": float((said.counted.argmax(1) + 1 == b.count).float().mean()),
            "left": float(left.sqrt().mean()), "bends": float(known.float().mean()),
        }  # fmt: skip


def _odds(some: Sequence[Seen]) -> Float64[np.ndarray, " n"]:
    """How often each is learned from."""
    many = Counter(s.kind for s in some)
    odds = np.array([many[s.kind] ** (EVEN - 1) for s in some])
    return odds / odds.sum()


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """What the network is given of objects side by side."""

    x: Tensor
    """[b,c,m,3] points of pieces in the pose that is seen, each object in its own unit box."""
    normals: Tensor
    """[b,c,m,3]."""
    boxes: Tensor
    """[b,c,6]."""
    patch: Tensor
    """[b,c] pieces that are patches."""
    there: Tensor
    """[b,c] which pieces there are."""

    def asked(self, net: ScrewNet) -> Said:
        """What the network answers."""
        said = net(self.x, self.normals, self.boxes, self.patch, self.there)
        assert isinstance(said, Said)
        return said


def _shown(looks: Sequence[Look]) -> Shown:
    most = max(int(k.there.sum()) for k in looks)
    stacked = lambda every: torch.from_numpy(np.stack(every))[:, :most]  # noqa: E731
    return Shown(
        x=stacked([k.points[0] for k in looks]), normals=stacked([k.normals for k in looks]), boxes=stacked([k.boxes for k in looks]),
        patch=stacked([k.patch for k in looks]), there=stacked([k.there for k in looks]),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Objects side by side."""

    shown: Shown
    """In the pose that is seen."""
    goals: Tensor
    """[b,p,c,m,3] the same points in other poses."""
    moves: Tensor
    """[b,c,m,3,k] how fast points move with each of its coordinates in the pose that is seen; zero beyond their number."""
    count: Tensor
    """[b] coordinates."""

    def flat(self) -> Tensor:
        """[b,3n,k] of all points."""
        return self.moves.flatten(1, 3)


def _ways(look: Look, most: int) -> np.ndarray:
    """[c,m,3,k] the principal ways in which pieces turn and shift from the pose that is seen to the others, largest first, as many as matter."""
    x, y = look.points[0].astype(np.float64), look.points[1:].astype(np.float64)
    a, b = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=2, keepdims=True)
    u, _, vt = np.linalg.svd(np.einsum("cmi,pcmj->pcij", a, b))
    u[..., 2] *= np.linalg.det(u @ vt)[..., None]
    turn = np.swapaxes(u @ vt, -1, -2)  # Kabsch
    w = Rotation.from_matrix(turn.reshape(-1, 3, 3)).as_rotvec().reshape(*turn.shape[:2], 3)
    angle = np.linalg.norm(w, axis=-1)[..., None, None]
    K = np.cross(np.eye(3), w[..., None, :])
    near = angle < 1e-4
    safe = np.where(near, 1.0, angle)
    half = np.where(near, 1 / 12, (1 - safe / 2 / np.tan(safe / 2)) / safe**2)
    back = np.eye(3) - K / 2 + half * K @ K  # of the exponential: what shifts the middle
    go = (back @ (y.mean(axis=2) - x.mean(axis=1))[..., None])[..., 0]
    fast = np.cross(w[:, :, None], a) + go[:, :, None]  # of points, by the logarithm about the middle of each piece
    flat = (fast * look.there[:, None, None]).reshape(len(y), -1)
    size, own = np.linalg.eigh(flat @ flat.T)
    size, own = np.maximum(size[::-1], 0), own[:, ::-1]
    rest = 1 - np.cumsum(size) / max(size.sum(), 1e-300)
    k = min(most, int((rest > ENOUGH).sum()) + 1, len(y))
    return (own[:, :k].T @ flat / len(y) ** 0.5).T.reshape(*x.shape, k)


def _whole(x: Tensor, there: Tensor) -> Tensor:
    """[b,3n,6] how points [b,c,m,3] move when all of the object does."""
    unit = torch.eye(3, dtype=x.dtype).expand(*x.shape[:3], 3, 3)
    ways = torch.cat([unit, -cross(x)], -1)  # [b,c,m,3,6]
    return (ways * there[:, :, None, None, None]).flatten(1, 3)


def left_over(mine: Tensor, true: Tensor, use: Tensor, whole: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Share [b] of the true motions [b,n,k] that those of mine that are used [b,k] do not span, nor the object as a ``whole`` [b,n,6], if it is given; and how
    much longer or shorter mine are, squared logarithm."""
    mine = mine * use[:, None]
    total = true.square().sum((1, 2)).clamp(min=1e-9)
    every, idle = mine, ~use
    if whole is not None:
        # all of the same length as what is looked for, so that one ridge suits all
        every = torch.cat([mine, whole * (total[:, None, None] / whole.square().sum(1, keepdim=True)).sqrt()], 2)
        idle = torch.cat([idle, idle.new_zeros(len(idle), whole.shape[2])], 1)
    G = every.transpose(1, 2) @ every / total[:, None, None]
    G = G + torch.diag_embed(1e-5 + idle.float())
    solved = torch.linalg.solve(G, every.transpose(1, 2) @ true / total[:, None, None])
    rest = (true - every @ solved).square().sum((1, 2)) / total
    return rest, torch.log((mine.square().sum((1, 2)) + 1e-9) / total).square()


def run_bending(
    data: Sequence[Path],
    out: Path,
    config: AmortisedConfig,
    *,
    steps: int | None = None,
    counted: bool = True,
    turned: bool = True,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> ScrewNet:
    """Train on the split ``train`` of data sets, judged on ``val``; goes on where an earlier run in ``out`` stopped."""
    plan = PLAN if steps is None else replace(PLAN, steps=steps, warmup=min(PLAN.warmup, steps // 10 + 1))
    hear = None if tell is None else lambda n, total: tell(0, {"read": n, "of": total}) if n % 500 == 0 else None
    seen, held_out = (
        read_seen([o for d in data for o in read_objects(d, split)], config, hear) for split in ("train", "val")
    )
    torch.manual_seed(plan.seed)
    net = ScrewNet(config)
    task = BendingTask(net, seen, held_out, steps=plan.steps, counted=counted, turned=turned)
    about = {"preset": "bending", "config": json.loads(json.dumps(asdict(config))), "objects": [s.name for s in seen], "counted": counted, "turned": turned}  # fmt: skip
    net = train(task, plan, out, config=about, tell=tell)
    assert isinstance(net, ScrewNet)
    return net
