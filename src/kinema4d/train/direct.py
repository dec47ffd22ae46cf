"""Train diffusion transformers: the one that is alone, and the painter that corrects what the small world draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from kinema4d.train.direct_pack import Kept, Take
from kinema4d.world.small import painter
from kinema4d.world.small.contact import carry_of
from kinema4d.world.small.diffusion import DiffusionNet, Known
from kinema4d.world.small.diffusion_config import MIXED, DiffusionConfig
from kinema4d.world.small.patches import (
    Scene,
    at_groups,
    clip_of,
    cut,
    domains,
    flow_loss,
    known_of,
    sample,
    scale_of,
    some,
    target_of,
)

MOVED, CHANGED = 4.0, 1.5
"""So much more counts what is nearer or further than before, and what only looks different; both without the robot. Much more,
and what might change is washed out everywhere (docs/experiments.md)."""
MOVED_M = 0.01
"""By how much nearer or further, metres."""
ROBOT = 2.0
"""So much more counts the robot."""
EXPOSURE, BALANCE = (0.75, 1.15), (0.9, 1.1)
"""Of clips while they are learned from: factors of all colours, and of each."""
GROUPS = 5
"""Of the groups of frames of a clip, so many are learned from at a time, drawn anew for every batch: the first and some
others. A step costs a third of one with all of them, and places stay the same."""
ALONG = (
    "rgb",
    "points",
    "robot",
    "there",
    "robot_rgb",
    "changed",
    "actions",
    "prior_rgb",
    "prior_points",
    "prior_known",
    "away",
    "reach",
    "carry",
)
"""Fields of a take that have frames."""
PAINTED = 320
"""Places near change of a clip that a painter learns from at a time."""


def weights_of(take: Take, config: DiffusionConfig) -> Tensor:
    """How much each value of the clip counts, as tokens. Points count by how far they are off for their distance: the walls
    of a room are many times further away than what happens in it."""
    far = take.points[..., 2].astype(np.float32)
    moved = take.changed & (np.abs(far - far[:1]) > MOVED_M)
    weight = np.select([moved, take.changed, take.there], [MOVED, CHANGED, ROBOT], 1.0).astype(np.float32)
    weight[0] = 0.2  # the first frame is given
    near = np.median(far[take.there]) if take.there.any() else np.float32(1)
    tokens = [
        cut(torch.from_numpy(w[..., None]).expand(*w.shape, 3)[None], config)
        for w in (weight, weight * np.minimum(1, near / np.maximum(far, 1e-3)) ** 2)
    ]
    return domains(tokens[0], tokens[1], config)


def some_groups(take: Take, groups: Sequence[int], config: DiffusionConfig) -> tuple[Take, DiffusionConfig]:
    """These groups of frames of a clip, of which the first is 0, and the model for so few of them."""
    p = config.patch[0]
    frames = [0, *(f for g in groups[1:] for f in range(1 + (g - 1) * p, 1 + g * p))]
    some = {n: getattr(take, n)[frames] for n in ALONG if getattr(take, n) is not None}
    part = replace(take, scale=scale_of(take.scene), **some)
    return part, replace(config, frames=len(frames))


def mirrored(take: Take) -> Take:
    """Left for right: picture, points and hand (whose own left and right change places too)."""
    flip = lambda a: a[:, :, ::-1]  # noqa: E731
    side = np.array([-1, 1, 1], np.float16)
    own = {f.name: getattr(take, f.name) for f in fields(Take)}
    for name in ALONG:
        if own[name] is not None and name != "actions":
            spatial = "points" in name or name in ("robot", "away")
            own[name] = flip(own[name]) * side if spatial else flip(own[name])
    own["actions"] = take.actions * np.array([-1, 1, 1, 1, -1, -1, -1, 1, 1, 1], np.float32)
    return Take(**own)


def tinted(take: Take, rng: np.random.Generator) -> Take:
    """Another exposure and white balance, the same for all frames; colours keep their names."""
    gain = rng.uniform(*EXPOSURE) * rng.uniform(*BALANCE, 3)
    tone = np.clip(np.arange(256)[:, None] * gain, 0, 255).round().astype(np.uint8)
    own = {f.name: getattr(take, f.name) for f in fields(Take)}
    for name in ("rgb", "robot_rgb", "prior_rgb"):
        if own[name] is not None:
            own[name] = np.stack([tone[own[name][..., c], c] for c in range(3)], axis=-1)
    return Take(**own)


def with_contact(take: Take) -> Take:
    """With where things would be carried, which a pack does not keep."""
    if take.reach is None:
        return take
    carry, reach = carry_of(take.actions, take.reach, take.environment, take.there[0])
    return replace(take, reach=reach, carry=carry)


def taken(one: Take | Kept) -> Take:
    """Read where it is not yet."""
    return one.take() if isinstance(one, Kept) else one


@dataclass(eq=False)
class DirectTask:
    """Teach :class:`DiffusionNet`."""

    model: DiffusionNet
    """What is trained."""
    takes: Sequence[Take | Kept]
    """To learn from."""
    held_out: Sequence[Take | Kept]
    """To validate on."""
    size: int = 4
    """Clips per batch."""
    seed: int = 0
    """Of the batches."""
    groups: int | None = GROUPS
    """Of frames, learned from at a time; None for all."""

    def loss(self, step: int) -> Tensor:
        """Of one batch."""
        rng = np.random.default_rng([self.seed, step])
        takes = [taken(self.takes[i]) for i in rng.integers(len(self.takes), size=self.size)]
        takes = [mirrored(t) if rng.random() < 0.5 else t for t in takes]
        if self.model.config.touches:  # before some frames are left out: what is carried depends on all
            takes = [with_contact(t) for t in takes]
        times = self.model.config.grid[0]
        rest = rng.permutation(times - 1)[: (self.groups or times) - 1].tolist()
        config = self.model.config
        if config.control == "mixed":
            config = replace(config, control=str(rng.choice(MIXED)))
        return flow_loss(self.model, *self._batch(takes, config, [0, *sorted(1 + r for r in rest)], step))

    def _batch(self, takes: Sequence[Take], config: DiffusionConfig, groups: Sequence[int], seed: int) -> tuple:
        parts = [some_groups(t, groups, config) for t in takes]
        rng = np.random.default_rng([seed, 2])
        parts = [(tinted(t, rng), c) for t, c in parts]
        takes, config = [t for t, _ in parts], parts[0][1]
        scenes = [t.scene for t in takes]
        target = [
            target_of(t.rgb, t.points.astype(np.float32), scale_of(s), config)
            for t, s in zip(takes, scenes, strict=True)
        ]
        weight = [weights_of(t, config) for t in takes]
        known = at_groups(known_of(scenes, config, seed=seed), groups)
        whole = known, torch.cat(target), torch.cat(weight)
        return _near(*whole, scenes, config, seed) if config.prior else whole

    @torch.no_grad()
    def validate(self, model: nn.Module, most: int = 24) -> dict[str, float]:
        """Of one sample each: PSNR of all, of what changed, of what was newly covered and of the robot, and mean error of
        points, of all and of what was newly covered, centimetres; beside the first frame repeated, or the prior that a painter corrects."""
        assert isinstance(model, DiffusionNet)
        found: dict[str, list[float]] = {}
        for take in map(with_contact, map(taken, self.held_out[:most])):
            made, points, other = self._sampled(model, take)
            z = take.points[..., 2].astype(np.float32)
            masks = {
                "psnr": np.ones(take.there.shape, bool), "changed_psnr": take.changed, "robot_psnr": take.there,
                "covered_psnr": ~take.there & (z < z[:1] - 0.01),
            }  # fmt: skip
            for name, picture in {"": made, "first_" if take.prior_rgb is None else "prior_": other}.items():
                error = (picture.astype(np.float32) - take.rgb)[1:] ** 2
                for where, mask in masks.items():
                    if mask[1:].any():
                        mse = max(float(error[mask[1:]].mean()), 1e-2)
                        found.setdefault(name + where, []).append(10 * np.log10(255**2 / mse))
            if points is not None:
                off = np.linalg.norm(points - take.points.astype(np.float32), axis=-1)
                for name, mask in {"points_cm": masks["psnr"], "covered_points_cm": masks["covered_psnr"]}.items():
                    if mask[1:].any():
                        found.setdefault(name, []).append(100 * float(off[1:][mask[1:]].mean()))
        return {k: float(np.mean(v)) for k, v in found.items()}

    def _sampled(self, model: DiffusionNet, take: Take) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Pictures and points of a model, and what it is to be better than."""
        config, scene = model.config, take.scene
        config = replace(config, control=MIXED[0]) if config.control == "mixed" else config
        if take.prior_rgb is None:
            rgb, points = clip_of(sample(model, known_of([scene], config)), scale_of(scene), config)
            return rgb, points, np.broadcast_to(take.rgb[:1], rgb.shape)
        more, _ = painter.corrected(model, scene)
        return np.clip(take.prior_rgb + more, 0, 255), None, take.prior_rgb


def _near(
    known: Known, target: Tensor, weight: Tensor, scenes: Sequence[Scene], config: DiffusionConfig, seed: int
) -> tuple[Known, Tensor, Tensor]:
    """Only what a painter works on: so many places near change, in both domains."""
    rng, picks = np.random.default_rng([seed, 1]), []
    places = int(np.prod(config.grid))
    for scene in scenes:
        every = painter.near(painter.changing(scene), config)
        own = every[every < places]
        own = own if len(own) else np.arange(places)
        chosen = rng.choice(own, PAINTED, replace=len(own) < PAINTED)
        picks.append(np.concatenate([chosen + d * places for d in range(target.shape[1] // places)]))
    pick = torch.from_numpy(np.stack(picks))
    at = lambda x: x.gather(1, pick[..., None].expand(-1, -1, x.shape[-1]))  # noqa: E731
    return some(known, pick), at(target), at(weight)
