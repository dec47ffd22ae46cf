"""Teach the network that sees what bends (:mod:`kinema4d.objects.limp`) from data sets of deforming meshes: a part bends if no rigid motion brings it into all of its poses.

Objects are shown in any of their poses, those with something that bends as often as all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.data.objects4d import Object4D, read_objects
from kinema4d.objects.fit import RIGID, rigid
from kinema4d.objects.limp import LimpConfig, LimpNet, shown
from kinema4d.objects.look import look_at
from kinema4d.objects.solid import Mesh, parts
from kinema4d.train.evenly import odds
from kinema4d.train.loop import Plan, train

OBJECTS = 32
"""Of a batch."""
AT_REST = 0.4
"""Share of objects that are seen at rest; others in any pose."""
POSES = 8
"""Of each object that are kept."""
PARTS = 40
"""Of an object at most."""
PLAN = Plan(steps=3000, rate=1e-3, warmup=100, ema=0.998, validate_every=500, log_every=50, save_every=120)
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
    faces: Int64[np.ndarray, "f 3"]
    """Triangles."""
    label: Int64[np.ndarray, " v"]
    """Connected parts."""
    bends: Bool[np.ndarray, " c"]
    """Which of them do."""


def bending(poses: Float64[np.ndarray, "p v 3"], label: Int64[np.ndarray, " v"], size: float) -> Bool[np.ndarray, " c"]:
    """Which parts of an object of a size are moved by no rigid motion into its poses, the first of which is at rest."""
    count = int(label.max()) + 1
    return np.array([rigid(poses[0][label == c], poses[:, label == c]) > RIGID * size for c in range(count)])


def read_seen(every: Sequence[Object4D], tell: Callable[[int, int], None] | None = None) -> list[Seen]:
    """Objects of few enough parts."""
    out = []
    for n, one in enumerate(every):
        if tell is not None:
            tell(n, len(every))
        rest, faces = one.shape()
        mesh = Mesh(vertices=rest, faces=faces)
        label, poses = parts(mesh), np.concatenate([rest[None], one.poses()]).astype(np.float64)
        if label.max() < PARTS:
            bends = bending(poses, label, mesh.size)
            out.append(
                Seen(name=one.id, kind=one.kind, poses=poses[: POSES + 1], faces=faces, label=label, bends=bends)
            )
    return out


class LimpTask:
    """Batches by the number of the step."""

    def __init__(self, net: LimpNet, seen: Sequence[Seen], held_out: Sequence[Seen]) -> None:
        soft, stiff = ([o for o in seen if bool(o.bends.any()) == wanted] for wanted in (True, False))
        if not soft or not any(o.bends.any() for o in held_out):
            raise ValueError(f"{len(soft)} objects that bend to learn from and {sum(bool(o.bends.any()) for o in held_out)} to judge by: a data set needs both")  # fmt: skip
        self.model: nn.Module = net
        self.net, self.soft, self.stiff, self.held_out = net, soft, stiff, held_out
        self.odds = [odds([o.kind for o in some]) for some in (soft, stiff)]

    def loss(self, step: int) -> Tensor:
        """Of objects by chance, every object counting the same."""
        rng = np.random.default_rng([11, step])
        many = OBJECTS // 2 if self.stiff else OBJECTS
        some = [self.soft[i] for i in rng.choice(len(self.soft), many, p=self.odds[0])]
        some += [self.stiff[i] for i in rng.choice(len(self.stiff), OBJECTS - many, p=self.odds[1])] if self.stiff else []  # fmt: skip
        said, bends, there = self._asked(self.net, some, rng, AT_REST)
        each = F.binary_cross_entropy_with_logits(said, bends, reduction="none") * there
        return (each.sum(1) / there.sum(1)).mean()

    def _asked(self, net: LimpNet, some: Sequence[Seen], rng: np.random.Generator, at_rest: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """What the network says [b,c], what is true, and which parts there are."""
        looks = [look_at(o.poses[0 if rng.random() < at_rest else int(rng.integers(len(o.poses)))], o.faces, o.label, rng, points=net.config.points) for o in some]  # fmt: skip
        x, normals, boxes, there = shown(looks)
        bends = torch.zeros(there.shape)
        for row, one in zip(bends, some, strict=True):
            row[: len(one.bends)] = torch.from_numpy(one.bends)
        return net(x, normals, boxes, there), bends, there

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """How often it is known of all parts of an object at rest whether they bend: mean of kinds, and of the worst kind."""
        assert isinstance(model, LimpNet)
        said, bends, there = self._asked(model, self.held_out, np.random.default_rng(5), 1.0)
        right = (((said > 0) == (bends > 0.5)) | ~there).all(1).tolist()
        kinds = defaultdict(list)
        for one, known in zip(self.held_out, right, strict=True):
            kinds[one.kind].append(known)
        each = {kind: float(np.mean(rows)) for kind, rows in kinds.items()}
        return {"right": float(np.mean(list(each.values()))), "worst": min(each.values())}


def run_limp(
    data: Sequence[Path], out: Path, config: LimpConfig, *, steps: int | None = None, tell: Callable[[int, dict[str, float]], None] | None = None
) -> LimpNet:  # fmt: skip
    """Train on the split ``train`` of data sets, judged on ``val``; goes on where an earlier run in ``out`` stopped."""
    plan = PLAN if steps is None else replace(PLAN, steps=steps, warmup=min(PLAN.warmup, steps // 10 + 1))
    hear = None if tell is None else lambda n, total: tell(0, {"read": n, "of": total}) if n % 500 == 0 else None
    seen, held_out = (read_seen([o for d in data for o in read_objects(d, split)], hear) for split in ("train", "val"))
    torch.manual_seed(plan.seed)
    task = LimpTask(LimpNet(config), seen, held_out)
    net = train(task, plan, out, config={"preset": "limp", "config": asdict(config), "objects": [s.name for s in seen]}, tell=tell)  # fmt: skip
    assert isinstance(net, LimpNet)
    return net
