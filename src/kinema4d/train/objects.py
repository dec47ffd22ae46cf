"""Teach the model of unseen objects (:mod:`kinema4d.objects.amortised`) from a data set of deforming meshes, and from nothing else about them.

Every object is explained by itself first: screws of its parts and coordinates of its poses (:mod:`kinema4d.objects.fit`). The network is then asked for
the screws of an object in one of its poses. Which coordinates it uses for the same motions is its own affair: what counts is the space that its first
coordinates span, as many as the object has, so a latent that does not need to be there is not. Later its poses count too, at the nearest coordinates
there are (variable projection): joints that hang on joints need their screws apart. An auto-encoder with nested dropout and projection alone, which
this replaces, stood still (docs/experiments.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.data.objects4d import Object4D, read_objects
from kinema4d.objects.amortised import AmortisedConfig, Look, ScrewNet, box_of, load_model, look_at, told
from kinema4d.objects.fit import RIGID, rigid
from kinema4d.objects.joints import joints
from kinema4d.objects.least import EXACT, Task, one_more
from kinema4d.objects.pieces import advanced, carried, nearest
from kinema4d.objects.solid import Mesh, parts
from kinema4d.train.loop import Plan, train

OBJECTS, POSES = 24, 6
"""Of a batch, and poses of each."""
AT_REST = 0.4
"""Share of objects that are seen at rest; others in any pose."""
POINTS = 6
"""Of each part, by which an object is explained where that is not done in closed form."""
LATER = (0.4, 0.6)
"""Shares of the training between which poses begin to count, beside screws."""
FLOOR, LEAST = 1e-6, 1e-4
"""Mean squared error, in squared sizes, and share of motion that is left over, below which little is gained."""
FAR, SCALE, COUNT = 10.0, 0.02, 0.1
"""How much it counts how far poses are missed (in sizes), how long the screws are, and how many, beside the share of motion that is left over."""
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
    label: np.ndarray
    """[v] which connected part a vertex is of."""
    twists: Float64[np.ndarray, "c k 6"]
    """Screws of its parts, in the unit box of the pose at rest."""
    q: Float64[np.ndarray, "p k"]
    """Coordinates of its poses."""


def read_jointed(
    every: Sequence[Object4D], config: AmortisedConfig, tell: Callable[[int, int], None] | None = None
) -> list[Seen]:
    """Objects whose parts keep their form, are not too many, and are explained exactly; others are left out."""
    out = []
    for n, one in enumerate(every):
        if tell is not None:
            tell(n, len(every))
        rest, faces = one.shape()
        mesh = Mesh(vertices=rest, faces=faces)
        label, poses = parts(mesh), np.concatenate([rest[None], one.poses()]).astype(np.float64)
        count = int(label.max()) + 1
        if not (1 < count <= config.pieces and all(rigid(rest[label == c], poses[:, label == c]) < RIGID * mesh.size for c in range(count))):  # fmt: skip
            continue
        found = explained(poses, label, config.coordinates)
        if found is not None:
            out.append(
                Seen(name=one.id, kind=one.kind, poses=poses, faces=faces, label=label, twists=found[0], q=found[1])
            )
    return out


def explained(
    poses: Float64[np.ndarray, "p v 3"], label: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Screws of parts, in the unit box of the first pose, and coordinates of all; None where so many coordinates are too few."""
    middle, size = box_of(poses[0])
    unit = torch.from_numpy((poses - middle) / size)
    piece = torch.from_numpy(label)
    task = Task(rest=unit[0], goals=unit, piece=piece, count=int(label.max()) + 1)
    found = joints(task, most)
    if found is None:
        rng = np.random.default_rng(0)
        some = np.sort(
            np.concatenate([rng.permutation(np.flatnonzero(label == c))[:POINTS] for c in range(task.count)])
        )
        task = Task(rest=unit[0, some], goals=unit[:, some], piece=piece[some], count=task.count)
        found = torch.zeros(task.count, 0, 6, dtype=unit.dtype), torch.zeros(len(unit), 0, dtype=unit.dtype)
        while found[1].shape[1] < most:
            found = one_more(task, *found)
            if task.error(*found) < EXACT:
                break
        else:
            return None
    twists, q = found
    spread = q.square().mean(0).sqrt()
    return (twists * spread[:, None]).numpy(), (q / spread).numpy()


class ObjectsTask:
    """Batches by the number of the step."""

    def __init__(self, net: ScrewNet, seen: Sequence[Seen], held_out: Sequence[Seen], *, steps: int, counted: bool = True, turned: bool = True) -> None:  # fmt: skip
        if not seen or not held_out:
            raise ValueError(f"{len(seen)} objects to learn from and {len(held_out)} to judge by: a data set needs both, with parts that keep their form")  # fmt: skip
        self.model: nn.Module = net
        self.net, self.seen, self.held_out, self.steps, self.counted, self.turned = net, seen, held_out, steps, counted, turned  # fmt: skip

    def batch(self, some: Sequence[Seen], poses: int, rng: np.random.Generator) -> Batch:
        """Objects in one pose each, and where their points are in others."""
        looks, screws = [], []
        for one in some:
            pick = rng.permutation(len(one.poses))[: poses + 1]
            if not self.turned or rng.random() < AT_REST:  # the ablation: always
                pick = np.concatenate([[0], pick[pick > 0]])[: poses + 1]
            looks.append(look_at(one.poses[pick], one.faces, one.label, self.net.config, rng))
            screws.append(_at(one, int(pick[0]), looks[-1], self.net.config))
        most = max(int(k.there.sum()) for k in looks)  # parts that no object of the batch has cost time for nothing
        stacked = lambda name: torch.from_numpy(np.stack([getattr(k, name) for k in looks]))  # noqa: E731
        every = stacked("points")[:, :, :most]
        return Batch(
            x=every[:, 0], normals=stacked("normals")[:, :most], there=stacked("there")[:, :most], goals=every[:, 1:],
            twists=torch.from_numpy(np.stack(screws))[:, :most].float(), count=torch.tensor([one.q.shape[1] for one in some]),
        )  # fmt: skip

    def loss(self, step: int) -> Tensor:
        """Roots of what is left over. Logarithms made what is learned already count a thousand times as much as what is not: kinds whose joints stand upright
        were never learned."""
        rng = np.random.default_rng([11, step])
        b = self.batch([self.seen[i] for i in rng.integers(0, len(self.seen), OBJECTS)], POSES, rng)
        twists, counted = self.net(b.x, b.normals, b.there)
        k = self.net.config.coordinates
        use = torch.arange(k) < (b.count[:, None] if self.counted else k)
        left, long = left_over(told(twists, b.x, b.there), told(b.twists, b.x, b.there), use)
        out = (left + LEAST).sqrt().mean() + SCALE * long.mean() + COUNT * F.cross_entropy(counted, b.count - 1)
        late = min(1.0, max(0.0, (step / self.steps - LATER[0]) / (LATER[1] - LATER[0])))
        if late:
            q, _, _ = nearest(b.x, twists.detach(), b.goals, b.there, use)
            out = out + late * FAR * (self._off(b, twists, q).mean(1) + FLOOR).sqrt().mean()
        return out

    @staticmethod
    def _off(b: Batch, twists: Tensor, q: Tensor) -> Tensor:
        """[b,p] mean squared distance of points from their goals."""
        off = ((carried(b.x, twists, q)[0] - b.goals) * b.there[:, None, :, None, None]).square().sum((2, 3, 4))
        return off / (b.there.sum(1)[:, None] * b.x.shape[2])

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Mean error in per cent of the size, with as many coordinates as the model says, and with as many as there are; how far the same points go; how
        often the number is right; and the share of motion by screws that is left over (root)."""
        assert isinstance(model, ScrewNet)
        b = self.batch(self.held_out[:192], 6, np.random.default_rng(5))
        twists, counted = model(b.x, b.normals, b.there)
        every, count = torch.arange(model.config.coordinates), (b.there.sum(1) * b.x.shape[2])[:, None]
        mean = lambda made: ((made - b.goals) * b.there[:, None, :, None, None]).norm(dim=-1).sum((2, 3)) / count  # noqa: E731
        out = {}
        for name, many in {"percent": counted.argmax(1) + 1, "percent_given": b.count}.items():
            q, _, _ = nearest(b.x, twists, b.goals, b.there, every < many[:, None], rounds=12)
            off = mean(carried(b.x, twists, q)[0])
            out |= {name: 100 * float(off.mean()), f"{name}_median": 100 * float(off.mean(1).median())}
        left, _ = left_over(told(twists, b.x, b.there), told(b.twists, b.x, b.there), every < b.count[:, None])
        right = float((counted.argmax(1) + 1 == b.count).float().mean())
        return {
            **out,
            "still": 100 * float(mean(b.x[:, None]).mean()),
            "counted": right,
            "left": float(left.sqrt().mean()),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Objects side by side, each in its own unit box."""

    x: Tensor
    """[b,c,m,3] points of parts in the pose that is seen."""
    normals: Tensor
    """[b,c,m,3]."""
    there: Tensor
    """[b,c] which parts there are."""
    goals: Tensor
    """[b,p,c,m,3] the same points in other poses."""
    twists: Tensor
    """[b,c,k,6] how its coordinates move each part in the pose that is seen; zero beyond their number."""
    count: Tensor
    """[b] coordinates."""


def _at(one: Seen, pose: int, look: Look, config: AmortisedConfig) -> np.ndarray:
    """[pieces,coordinates,6] screws in a pose as it is looked at."""
    own = advanced(torch.from_numpy(one.twists)[None], torch.from_numpy(one.q[pose])[None, None])[0][0, 0].numpy()
    (m0, s0), (m1, s1) = box_of(one.poses[0]), box_of(one.poses[pose])
    a, shift = s0 / s1, look.turn @ (m0 - m1) / s1  # from one unit box into the other
    w = own[..., :3] @ look.turn.T
    v = a * own[..., 3:] @ look.turn.T - np.cross(w, shift)
    out = np.zeros((config.pieces, config.coordinates, 6))
    out[: own.shape[0], : own.shape[1]] = np.concatenate([w, v], axis=-1)
    return out


def left_over(mine: Tensor, true: Tensor, use: Tensor) -> tuple[Tensor, Tensor]:
    """Share [b] of the true motions [b,n,k] that those of mine that are used [b,k] do not span; and how much longer or shorter mine are, squared logarithm."""
    mine = mine * use[:, None]
    total = true.square().sum((1, 2)).clamp(min=1e-9)
    G = mine.transpose(1, 2) @ mine / total[:, None, None]
    G = G + torch.diag_embed(1e-5 + (~use).float())
    solved = torch.linalg.solve(G, mine.transpose(1, 2) @ true / total[:, None, None])
    left = (true - mine @ solved).square().sum((1, 2)) / total
    return left, torch.log((mine.square().sum((1, 2)) + 1e-9) / total).square()


def run_objects(
    data: Path,
    out: Path,
    config: AmortisedConfig,
    *,
    steps: int | None = None,
    counted: bool = True,
    turned: bool = True,
    start: Path | None = None,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> ScrewNet:
    """Train on the split ``train`` of a data set, judged on ``val``, from nothing or from the weights ``start``; goes on where an earlier run in ``out`` stopped."""
    plan = PLAN if steps is None else replace(PLAN, steps=steps, warmup=min(PLAN.warmup, steps // 10 + 1))
    hear = None if tell is None else lambda n, total: tell(0, {"explained": n, "of": total}) if n % 100 == 0 else None
    seen, held_out = (read_jointed(read_objects(data, split), config, hear) for split in ("train", "val"))
    torch.manual_seed(plan.seed)
    net = ScrewNet(config)
    if start is not None:
        first, _ = load_model(start)
        if first.config != config:
            raise ValueError(
                f"{start} is a model of {first.config}, wanted is {config}: start from one of the same preset"
            )
        net.load_state_dict(first.state_dict())
    task = ObjectsTask(net, seen, held_out, steps=plan.steps, counted=counted, turned=turned)
    about = {"preset": "objects", "config": json.loads(json.dumps(asdict(config))), "objects": [s.name for s in seen], "counted": counted, "turned": turned, "start": None if start is None else start.name}  # fmt: skip
    net = train(task, plan, out, config=about, tell=tell)
    assert isinstance(net, ScrewNet)
    return net
