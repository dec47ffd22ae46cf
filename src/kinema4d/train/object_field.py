"""Teach NeuROK's own model (:mod:`kinema4d.objects.field`) from pairs of poses of deforming meshes, as its section
4.2 does, and nothing else about them.

Two departures, both because the plain thing stood still (docs/experiments.md). The squared error weighs itself: a
root or a logarithm of each sample's, beside its KL, instead of a sum with a weight. And nested dropout of the
residual latents orders them, but only after there is something to order: KL and ordering are turned up while the
training goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor, nn

from kinema4d.data.objects4d import Object4D, read_objects
from kinema4d.objects import dual
from kinema4d.objects.field import FieldConfig, FieldNet, Points, divergence, ordered
from kinema4d.objects.field_object import drawn, parts_of
from kinema4d.objects.look import box_of
from kinema4d.objects.solid import Mesh, parts
from kinema4d.train.loop import Plan, train

OBJECTS, PAIRS, ASKED = 12, 2, 128
"""Of a batch, poses that each is taken to, and points of each that are asked about."""
TURN = 0.2
"""How much the numbers of a dual quaternion count, beside where it takes a point: they say how neighbours of the
point move."""
SLIGHT = 1e-6
"""Squared error, in squared sizes, below which little is gained."""
ROOT, LOGARITHM = 1000.0, 48.0
"""Of the error of a sample beside its KL: nats per size, and nats per e-fold of its square (32 to 64 do as well)."""
SCALES = (0.85, 1.15)
"""Range of the random scale."""
TO_JUDGE = 96
"""Objects of a validation."""
FIRST = (1, 2, 4, 8, 16)
"""Numbers of latents, the others left out, with which a validation also reconstructs."""
PLAN = Plan(steps=20_000, rate=1e-3, muon=20.0, warmup=200, ema=0.998, validate_every=500, log_every=50, save_every=120)
"""How long."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is done to learn; the paper's ablations are fields of this, and ``dual`` of the network's configuration."""

    turned: bool = True
    """Every pair is turned at random, all ways (SO(3))."""
    scaled: bool = True
    """And scaled."""
    swapped: bool = True
    """Any pose may be the one that is seen; without, always that at rest."""
    nested: bool = True
    """Latents are ordered by nested dropout."""
    ordering: tuple[float, float] = (0.3, 0.6)
    """Shares of the training between which ordering is turned up, to half of the samples."""
    compressing: tuple[float, float] = (0.3, 0.7)
    """Shares between which the KL comes to its full weight, by factors: nothing at first lets latents run away, all
    at first lets nothing through."""
    kl: tuple[float, float] = (0.01, 0.3)
    """Its weight before and after."""
    error: Literal["root", "log"] = "root"
    """What of the squared error counts."""

    @staticmethod
    def plain() -> Recipe:
        """Without augmentation."""
        return Recipe(turned=False, scaled=False, swapped=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Deforming:
    """One object to learn from."""

    name: str
    """Its id."""
    kind: str
    """Such as ``cloth``."""
    poses: Float32[np.ndarray, "p v 3"]
    """Metres, that at rest first."""
    turns: Float32[np.ndarray, "p v 4"]
    """From rest, as quaternions."""
    part: Float32[np.ndarray, "p v 4"]
    """Middle and radius of the connected part of each vertex, metres."""
    faces: np.ndarray
    """[f,3]."""
    box: Float64[np.ndarray, "p 4"]
    """Middle and diagonal of the box of every pose, metres."""


def deforming(
    name: str, kind: str, rest: Float64[np.ndarray, "v 3"], poses: np.ndarray, faces: np.ndarray
) -> Deforming:
    """What is needed of its poses."""
    every = np.concatenate([rest[None], poses]).astype(np.float64)
    label = parts(Mesh(vertices=rest, faces=faces))
    return Deforming(
        name=name,
        kind=kind,
        poses=every.astype(np.float32),
        turns=dual.turns_of(rest, every, faces).astype(np.float32),
        part=np.stack([parts_of(x, label) for x in every]).astype(np.float32),
        faces=faces,
        box=np.stack([np.append(*box_of(x)) for x in every]),
    )


def read_deforming(every: Sequence[Object4D], tell: Callable[[int, int], None] | None = None) -> list[Deforming]:
    """All objects, whatever they are made of."""
    out = []
    for n, one in enumerate(every):
        if tell is not None:
            tell(n, len(every))
        rest, faces = one.shape()
        out.append(deforming(one.id, one.kind, rest, one.poses(), faces))
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Objects side by side, each in the unit box of the pose that is seen."""

    points: Points
    """[b,n,3] that are seen, then those that are asked about."""
    goals: Tensor
    """[b,p,n,3] where they are in other poses."""
    deformation: Tensor
    """[b,p,n,8] how they came there: what is learned; displacements [b,p,n,3] for a model of those."""


class FieldTask:
    """Batches by the number of the step."""

    def __init__(
        self, net: FieldNet, seen: Sequence[Deforming], held_out: Sequence[Deforming], *, steps: int, recipe: Recipe
    ) -> None:
        if not seen or not held_out:
            raise ValueError(
                f"{len(seen)} objects to learn from and {len(held_out)} to judge by: a data set needs both"
            )
        self.model: nn.Module = net
        self.net, self.seen, self.held_out, self.steps, self.recipe = net, seen, held_out, steps, recipe

    def batch(self, some: Sequence[Deforming], pairs: int, rng: np.random.Generator, recipe: Recipe) -> Batch:
        """Points of objects in one pose each, and where they go."""
        count = self.net.config.points + ASKED
        rows = []
        for one in some:
            first = int(rng.integers(len(one.poses))) if recipe.swapped else 0
            then = rng.integers(len(one.poses), size=pairs)
            at, share = drawn(one.poses[0], one.faces, count, rng)
            rows.append(
                (
                    one.poses[first][at],
                    one.poses[then][:, at],
                    one.turns[first][at],
                    one.turns[then][:, at],
                    one.part[first][at[:, 0]],
                    share,
                    one.box[first],
                )
            )
        x, y, r0, r1, part, share, box = (torch.from_numpy(np.stack(v)).float() for v in zip(*rows, strict=True))
        many = len(some)
        if recipe.turned:
            turn = torch.from_numpy(rng.normal(size=(many, 4))).float()
            turn = turn / turn.norm(dim=1, keepdim=True)  # even over all rotations
        else:
            turn = torch.tensor([[1.0, 0, 0, 0]]).expand(many, 4)
        size = torch.from_numpy(rng.uniform(*SCALES, many)).float() if recipe.scaled else torch.ones(many)
        size = (size / box[:, 3])[:, None, None]
        unit = lambda v, q, s, m: dual.turned(q, (v - m) * s)  # noqa: E731
        x = unit((share[..., None] * x).sum(2), turn[:, None], size, box[:, None, :3])
        y = unit((share[:, None, ..., None] * y).sum(3), turn[:, None, None], size[:, None], box[:, None, None, :3])
        part = torch.cat([unit(part[..., :3], turn[:, None], size, box[:, None, :3]), part[..., 3:] * size], -1)
        points = Points(x=x, part=part if self.net.config.parts else None)
        if not self.net.config.dual:
            return Batch(points=points, goals=y, deformation=y - x[:, None])
        r = dual.blended(
            dual.times(r1, dual.conjugate(r0)[:, None]), share[:, None]
        )  # barycentric, as in the paper: section 4.1
        r = dual.times(dual.times(turn[:, None, None], r), dual.conjugate(turn)[:, None, None])
        return Batch(points=points, goals=y, deformation=dual.dual(r, y - dual.turned(r, x[:, None])))

    def loss(self, step: int) -> Tensor:
        """Error of what is asked about, and KL in nats per sample."""
        rng = np.random.default_rng([13, step])
        config, recipe = self.net.config, self.recipe
        b = self.batch([self.seen[i] for i in rng.integers(0, len(self.seen), OBJECTS)], PAIRS, rng, recipe)
        n, share = config.points, step / self.steps
        look, ask = b.points[:n], b.points[n:]
        seen, prior = self.net.conditioned(look)
        mean, log = self.net.encoded(look.repeated(PAIRS), b.deformation[:, :, :n].flatten(0, 1))
        seen, prior, ask = seen.repeat_interleave(PAIRS, 0), prior.repeat_interleave(PAIRS, 0), ask.repeated(PAIRS)
        z = mean + log.exp() * torch.randn_like(mean)
        if recipe.nested:
            often = 0.5 * risen(share, recipe.ordering)
            keep = torch.from_numpy(
                np.where(rng.random(len(z)) < often, rng.integers(0, config.latents, len(z)), config.latents)
            )
            z = ordered(z, prior, keep)
        got = self.net.decoded(seen, z, ask)
        off = (self.net.moved(got, ask.x) - b.goals[:, :, n:].flatten(0, 1)).square().sum(-1).mean(1)
        if config.dual:
            off = off + TURN * (got - b.deformation[:, :, n:].flatten(0, 1)).square().sum(-1).mean(1)
        error = ROOT * (off + SLIGHT).sqrt() if recipe.error == "root" else LOGARITHM * (off + SLIGHT).log()
        nats = divergence(mean, log, prior).sum(1)
        low, high = recipe.kl
        weight = low * (high / low) ** risen(share, recipe.compressing)
        return (error + weight * nats).mean() / LOGARITHM

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Of objects at rest, upright: mean error in per cent of the size with the posterior's mean, with its first
        latents only, and with none; how far points go; and the KL."""
        assert isinstance(model, FieldNet)
        some = self.held_out[:: max(1, len(self.held_out) // TO_JUDGE)]
        b, n = self.batch(some, 4, np.random.default_rng(5), Recipe.plain()), model.config.points
        look, ask = b.points[:n], b.points[n:].repeated(4)
        seen, prior = (v.repeat_interleave(4, 0) for v in model.conditioned(look))
        mean, log = model.encoded(look.repeated(4), b.deformation[:, :, :n].flatten(0, 1))
        goals, d = b.goals[:, :, n:].flatten(0, 1), model.config.latents

        def off(keep: int) -> Tensor:
            z = ordered(mean, prior, torch.full((len(mean),), keep))
            return (model.moved(model.decoded(seen, z, ask), ask.x) - goals).norm(dim=-1).mean(1)

        every = off(d)
        out = {"percent": 100 * float(every.mean()), "percent_median": 100 * float(every.median())}
        out |= {f"percent_{k}": 100 * float(off(k).mean()) for k in (0, *FIRST) if k < d}
        still = (ask.x - goals).norm(dim=-1).mean(1)
        return {**out, "still": 100 * float(still.mean()), "kl": float(divergence(mean, log, prior).sum(1).mean())}


def risen(share: float, between: tuple[float, float]) -> float:
    """From 0 to 1 between two shares of the training."""
    low, high = between
    return min(1.0, max(0.0, (share - low) / max(high - low, 1e-9)))


def run_field(
    data: Sequence[Path],
    out: Path,
    config: FieldConfig,
    recipe: Recipe | None = None,
    *,
    steps: int | None = None,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> FieldNet:
    """Train on the splits ``train`` of data sets, judged on ``val``; goes on where an earlier run in ``out``
    stopped."""
    recipe = recipe or Recipe()
    plan = PLAN if steps is None else replace(PLAN, steps=steps, warmup=min(PLAN.warmup, steps // 10 + 1))
    hear = None if tell is None else lambda n, total: tell(0, {"read": n, "of": total}) if n % 100 == 0 else None
    seen, held_out = (
        [o for root in data for o in read_deforming(read_objects(root, split), hear)] for split in ("train", "val")
    )
    torch.manual_seed(plan.seed)
    net = FieldNet(config)
    task = FieldTask(net, seen, held_out, steps=plan.steps, recipe=recipe)
    about = {
        "preset": "object field",
        "config": _plain(asdict(config)),
        "recipe": _plain(asdict(recipe)),
        "objects": [s.name for s in seen],
        "steps": plan.steps,
    }
    net = train(task, plan, out, config=about, tell=tell)
    assert isinstance(net, FieldNet)
    return net


def _plain(said: dict[str, object]) -> dict[str, object]:
    """As JSON has it, which knows no tuples."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in said.items()}
