"""Train diffusion transformers: the one that is alone, and the painter that corrects what the small world draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn

from kinema4d.train.direct_pack import Take
from kinema4d.world.small import painter
from kinema4d.world.small.diffusion import DiffusionNet, Known
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.patches import (
    Scene,
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

CHANGED = 8.0
"""So much more counts what changed and is not the robot: most of a clip stands still."""
ROBOT = 2.0
"""So much more counts the robot."""
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
)
"""Fields of a take that have frames."""
PAINTED = 320
"""Places near change of a clip that a painter learns from at a time."""


def weights_of(take: Take, config: DiffusionConfig) -> Tensor:
    """How much each value of the clip counts, as tokens. Points count by how far they are off for their distance: the walls
    of a room are many times further away than what happens in it."""
    weight = (1 + (CHANGED - 1) * take.changed + (ROBOT - 1) * take.there).astype(np.float32)
    weight[0] = 0.2  # the first frame is given
    far = take.points[..., 2].astype(np.float32)
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
    """Left for right: picture, points and hand."""
    flip = lambda a: a[:, :, ::-1]  # noqa: E731
    side = np.array([-1, 1, 1], np.float16)
    own = {f.name: getattr(take, f.name) for f in fields(Take)}
    for name in ALONG:
        if own[name] is not None and name != "actions":
            spatial = "points" in name or name == "robot"
            own[name] = flip(own[name]) * side if spatial else flip(own[name])
    return Take(**own)


@dataclass(eq=False)
class DirectTask:
    """Teach :class:`DiffusionNet`."""

    model: DiffusionNet
    """What is trained."""
    takes: Sequence[Take]
    """To learn from."""
    held_out: Sequence[Take]
    """To validate on."""
    size: int = 4
    """Clips per batch."""
    seed: int = 0
    """Of the batches."""
    groups: int | None = GROUPS
    """Of frames, learned from at a time; None for all."""

    def loss(self, step: int) -> Tensor:
        """Of one batch. Where the hand is told in the world's frame, nothing is mirrored: its turn would not be."""
        rng = np.random.default_rng([self.seed, step])
        takes = [self.takes[i] for i in rng.integers(len(self.takes), size=self.size)]
        if self.model.config.control not in ("embedding", "text"):
            takes = [mirrored(t) if rng.random() < 0.5 else t for t in takes]
        times = self.model.config.grid[0]
        rest = rng.permutation(times - 1)[: (self.groups or times) - 1].tolist()
        return flow_loss(self.model, *self._batch(takes, [0, *sorted(1 + r for r in rest)], step))

    def _batch(self, takes: Sequence[Take], groups: Sequence[int], seed: int) -> tuple:
        parts = [some_groups(t, groups, self.model.config) for t in takes]
        takes, config = [t for t, _ in parts], parts[0][1]
        scenes = [t.scene for t in takes]
        target = [
            target_of(t.rgb, t.points.astype(np.float32), scale_of(s), config)
            for t, s in zip(takes, scenes, strict=True)
        ]
        weight = [weights_of(t, config) for t in takes]
        known = known_of(scenes, config, seed=seed)
        known.where[..., 0] = torch.tensor(groups)[known.where[..., 0]]  # where they are in the whole clip
        whole = known, torch.cat(target), torch.cat(weight)
        return whole if not config.prior else _near(*whole, scenes, config, seed)

    @torch.no_grad()
    def validate(self, model: nn.Module, most: int = 24) -> dict[str, float]:
        """Of one sample each: PSNR of all, of what changed, of what was newly covered and of the robot, and error of points,
        centimetres; beside the first frame repeated, or the prior that a painter corrects."""
        assert isinstance(model, DiffusionNet)
        found: dict[str, list[float]] = {}
        for take in self.held_out[:most]:
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
                off = np.linalg.norm(points[1:] - take.points[1:].astype(np.float32), axis=-1)
                found.setdefault("points_cm", []).append(100 * float(np.median(off)))
        return {k: float(np.mean(v)) for k, v in found.items()}

    def _sampled(self, model: DiffusionNet, take: Take) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Pictures and points of a model, and what it is to be better than."""
        config, scene = model.config, take.scene
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
