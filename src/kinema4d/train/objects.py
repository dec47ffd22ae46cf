"""Teach the model of unseen objects (:mod:`kinema4d.objects.amortised`) from a data set of deforming meshes, and from nothing else about them.

A batch is some objects, each in one pose that is seen and a few that are to be reached. Screws are the network's, coordinates the nearest there are;
at those the error does not change with the coordinates, so its gradient goes to the screws alone (variable projection). First it learns to
reconstruct. Then, slowly, latents are dropped from the end (nested dropout) and coordinates get the noise that their slopes leave them (Laplace): what a
latent does not need to say it must not move.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kinema4d.data.objects4d import Object4D, read_objects
from kinema4d.objects.amortised import AmortisedConfig, ScrewNet, look_at
from kinema4d.objects.fit import RIGID, rigid
from kinema4d.objects.pieces import carried, nearest
from kinema4d.objects.solid import Mesh, parts
from kinema4d.train.loop import Plan, train

OBJECTS, POSES = 24, 6
"""Of a batch, and poses of each."""
ORDER = (0.15, 0.35)
"""Shares of the training between which the order of latents comes in."""
NESTED = 0.7
"""Share of objects whose latents are then cut."""
FLOOR = 1e-6
"""Mean squared error, in squared sizes, below which nothing is gained."""
PLAN = Plan(steps=6000, rate=1e-3, muon=20.0, warmup=200, ema=0.998, validate_every=500, log_every=50, save_every=120)
"""How long."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One object to learn from."""

    name: str
    """Its id."""
    kind: str
    """Such as ``door``."""
    poses: np.ndarray
    """[p,v,3] metres, that at rest among them."""
    faces: np.ndarray
    """[f,3]."""
    label: np.ndarray
    """[v] which connected part a vertex is of."""


def read_jointed(every: Sequence[Object4D], config: AmortisedConfig) -> list[Seen]:
    """Objects whose parts keep their form and are not too many; others are left out."""
    out = []
    for one in every:
        rest, faces = one.shape()
        mesh = Mesh(vertices=rest, faces=faces)
        label, poses = parts(mesh), np.concatenate([rest[None], one.poses()]).astype(np.float64)
        count = int(label.max()) + 1
        if 1 < count <= config.pieces and all(rigid(rest[label == c], poses[:, label == c]) < RIGID * mesh.size for c in range(count)):  # fmt: skip
            out.append(Seen(name=one.id, kind=one.kind, poses=poses, faces=faces, label=label))
    return out


class ObjectsTask:
    """Batches by the number of the step."""

    def __init__(self, net: ScrewNet, seen: Sequence[Seen], held_out: Sequence[Seen], *, steps: int, nested: bool = True, turned: bool = True) -> None:  # fmt: skip
        if not seen or not held_out:
            raise ValueError(f"{len(seen)} objects to learn from and {len(held_out)} to judge by: a data set needs both, with parts that keep their form")  # fmt: skip
        self.model: nn.Module = net
        self.net, self.seen, self.held_out, self.steps, self.nested, self.turned = net, seen, held_out, steps, nested, turned  # fmt: skip

    def batch(self, some: Sequence[Seen], poses: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Points [b,c,m,3], normals, which parts there are [b,c], and goals [b,p,c,m,3]."""
        looks = []
        for one in some:
            pick = rng.permutation(len(one.poses))[: poses + 1]
            if not self.turned:  # the ablation: always the pose at rest
                pick = np.concatenate([[0], pick[pick > 0]])[: poses + 1]
            looks.append(look_at(one.poses[pick], one.faces, one.label, self.net.config, rng))
        most = max(int(k.there.sum()) for k in looks)  # parts that no object of the batch has cost time for nothing
        stacked = lambda name: torch.from_numpy(np.stack([getattr(k, name) for k in looks]))  # noqa: E731
        every = stacked("points")[:, :, :most]
        return every[:, 0], stacked("normals")[:, :most], stacked("there")[:, :most], every[:, 1:]

    def loss(self, step: int) -> Tensor:
        """Logarithm of the squared error, which treats small and large objects alike."""
        rng = np.random.default_rng([11, step])
        x, normals, there, goals = self.batch([self.seen[i] for i in rng.integers(0, len(self.seen), OBJECTS)], POSES, rng)  # fmt: skip
        twists = self.net(x, normals, there)
        k = self.net.config.coordinates
        late = min(1.0, max(0.0, (step / self.steps - ORDER[0]) / (ORDER[1] - ORDER[0]))) if self.nested else 0.0
        cut = torch.rand(len(x)) < NESTED * late
        keep = torch.where(cut, torch.randint(1, k + 1, (len(x),)), torch.full((len(x),), k))
        use = torch.arange(k) < keep[:, None]
        q, error, H = nearest(x, twists.detach(), goals, there, use)
        if late:
            many = (3 * there.sum(1) * x.shape[2])[:, None, None, None]
            sure = many * H / (3 * error + 1e-7)[..., None, None] + torch.eye(k)
            spread = torch.linalg.cholesky(torch.linalg.inv(sure) + 1e-9 * torch.eye(k))
            q = q + late * use[:, None] * torch.einsum("bpkl,bpl->bpk", spread, torch.randn_like(q))
        made = carried(x, twists, q)[0]
        off = ((made - goals) * there[:, None, :, None, None]).square().sum((2, 3, 4))
        return torch.log(off / (there.sum(1)[:, None] * x.shape[2]) + FLOOR).mean()

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Mean error in per cent of the size with all coordinates, and with fewer; and how far the same points go."""
        assert isinstance(model, ScrewNet)
        rng = np.random.default_rng(5)
        x, normals, there, goals = self.batch(self.held_out[:96], 6, rng)
        twists = model(x, normals, there)
        count = (there.sum(1) * x.shape[2])[:, None]
        out = {}
        for j in range(1, model.config.coordinates + 1):
            use = (torch.arange(model.config.coordinates) < j).expand(len(x), -1)
            q, _, _ = nearest(x, twists, goals, there, use, rounds=12)
            off = ((carried(x, twists, q)[0] - goals) * there[:, None, :, None, None]).norm(dim=-1).sum((2, 3)) / count
            out[f"percent_{j}"] = 100 * float(off.mean())
            out["median"] = 100 * float(off.mean(1).median())
        went = ((x[:, None] - goals) * there[:, None, :, None, None]).norm(dim=-1).sum((2, 3)) / count
        return {**out, "still": 100 * float(went.mean())}


def run_objects(
    data: Path,
    out: Path,
    config: AmortisedConfig,
    *,
    steps: int | None = None,
    nested: bool = True,
    turned: bool = True,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> ScrewNet:
    """Train on the split ``train`` of a data set, judged on ``val``; goes on where an earlier run in ``out`` stopped."""
    plan = PLAN if steps is None else replace(PLAN, steps=steps, warmup=min(PLAN.warmup, steps // 10 + 1))
    seen, held_out = (read_jointed(read_objects(data, split), config) for split in ("train", "val"))
    torch.manual_seed(plan.seed)
    task = ObjectsTask(ScrewNet(config), seen, held_out, steps=plan.steps, nested=nested, turned=turned)
    about = {"preset": "objects", "config": json.loads(json.dumps(asdict(config))), "objects": [s.name for s in seen], "nested": nested, "turned": turned}  # fmt: skip
    net = train(task, plan, out, config=about, tell=tell)
    assert isinstance(net, ScrewNet)
    return net
