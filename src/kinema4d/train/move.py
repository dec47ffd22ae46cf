"""Train the correction of motions: from the engine's answer to the truth, at once and as a flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.train.move_pack import Sample
from kinema4d.world.small.move import MoveNet, blur, kept_on_joint, pose_of
from kinema4d.world.small.move_reading import change, meet, placed, turn_steps
from kinema4d.world.small.move_scene import HINGE, Scene, stack, to_tensor

JUDGED = 16
"""Surface points per part by which a motion is judged."""
CM = 100.0
"""Errors are counted in centimetres."""
SMALL = 0.3
"""Errors below this count by their square, centimetres: most answers of the engine are right, and are left alone."""
NOISE = 0.001
"""Largest deviation of the noise on surface points, metres."""


@dataclass(frozen=True, eq=False)
class Target:
    """What really happened to the parts of a scene."""

    R: Tensor
    """[n,t,3,3] rotation."""
    c: Tensor
    """[n,t,3] middle, metres."""
    z: Tensor
    """[n,t,6] residual that leads there from the engine's answer, as far as joints allow."""
    known: Tensor
    """[n] bool."""


def moved(sample: Sample, M: Float[np.ndarray, "3 3"], shift: Float[np.ndarray, "3"]) -> Sample:
    """The same scene turned or mirrored by ``M`` and shifted, robot, proposals and truth with it."""
    M, shift = M.astype(np.float32), shift.astype(np.float32)
    case = sample.case

    def motion(T: np.ndarray) -> np.ndarray:
        # A reflection keeps rotations rotations when it acts from both sides.
        out = T.copy()
        out[..., :3, :3] = M @ T[..., :3, :3] @ M.T
        out[..., :3, 3] = T[..., :3, 3] @ M.T + shift - out[..., :3, :3] @ shift
        return out

    side = np.sign(np.linalg.det(M)).astype(np.float32)
    own = np.diag([1, side, 1]).astype(np.float32)  # links are mirrored in their own frame as well
    links = case.Ts_world_link.copy()
    links[..., :3, :3] = M @ links[..., :3, :3] @ own
    links[..., :3, 3] = links[..., :3, 3] @ M.T + shift
    sign = np.where(case.joint == HINGE, side, np.float32(1))[:, None]  # an axis of turning, mirrored, turns back
    return replace(
        sample,
        truth=motion(sample.truth),
        case=replace(
            case, points=case.points @ M.T + shift, normals=case.normals @ M.T, axis=sign * (case.axis @ M.T),
            pivot=case.pivot @ M.T + shift, proposals=motion(case.proposals), shell=case.shell @ own,
            shell_normals=case.shell_normals @ own, Ts_world_link=links,
        ),
    )  # fmt: skip


def yaw(angle: float) -> Float[np.ndarray, "3 3"]:
    """Rotation about the vertical."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def augmented(sample: Sample, rng: np.random.Generator) -> Sample:
    """Turned, mirrored, shifted, with other points and a little noise on them."""
    mirror = np.diag([1.0, rng.choice([-1.0, 1.0]), 1.0])
    sample = moved(sample, yaw(rng.uniform(-np.pi, np.pi)) @ mirror, np.array([*rng.uniform(-0.3, 0.3, 2), 0.0]))
    case, pick = sample.case, rng.permutation(sample.case.points.shape[1])
    noise = rng.normal(0, rng.uniform(0, NOISE), case.points.shape).astype(np.float32)
    return replace(sample, case=replace(case, points=(case.points + noise)[:, pick], normals=case.normals[:, pick]))


def batch(samples: Sequence[Sample], draws: Sequence[int] | None = None) -> tuple[Scene, Target]:
    """Scenes and what happened in them."""
    scene = stack([s.case for s in samples], draws)
    frames = scene.hand.shape[1]
    pairs = list(zip(scene.owner.tolist(), scene.part.tolist(), strict=True))
    rows = [samples[b].truth[p] for b, p in pairs]
    long = [np.concatenate([T, np.repeat(T[-1:], frames - len(T), axis=0)]) for T in rows]
    T = to_tensor(np.stack(long)) if long else torch.zeros(0, frames, 4, 4)
    R = T[..., :3, :3]
    c = torch.einsum("ntij,nj->nti", R, scene.center) + T[..., :3, 3]
    turn = turn_steps(R @ scene.R.transpose(-1, -2)).cumsum(1)
    z = kept_on_joint(scene, torch.cat([c - scene.middle, turn], -1))
    known = torch.tensor([bool(samples[b].known[p]) for b, p in pairs], dtype=torch.bool)
    return scene, Target(R, c, z, known)


def distance(scene: Scene, z: Tensor, target: Target) -> Tensor:
    """How far a residual is from the truth: surface points in centimetres, later frames more, and speed."""
    pose = pose_of(scene, z)
    t = torch.arange(z.shape[1])
    frames = scene.frames[scene.owner][:, None]
    weight = (t < frames) * (0.5 + 1.5 * (t / (frames - 1).clamp(min=1)).square()) * target.known[:, None]
    X = placed(scene, pose, JUDGED)
    Y = torch.einsum("ntij,nkj->ntki", target.R, scene.shape[:, :JUDGED]) + target.c[:, :, None]
    surface = F.smooth_l1_loss(X * CM, Y * CM, beta=SMALL, reduction="none").mean((-1, -2))
    speed = F.smooth_l1_loss(change(pose.c) * CM, change(target.c) * CM, beta=SMALL, reduction="none").mean(-1)
    return ((surface + speed) * weight).sum() / weight.sum().clamp(min=1.0)


def losses(net: MoveNet, scene: Scene, target: Target) -> tuple[Tensor, Tensor]:
    """Of the mean, and of the flow: from a blurred draw of the engine on a straight line to the truth, where does it
    end?"""
    contact = meet(scene, net.config.points)
    mean = distance(scene, net(scene, contact, torch.zeros_like(target.z), None), target)
    level = torch.rand(len(target.z))
    start = blur(scene, contact)
    z = start + level[:, None, None] * (target.z - start)
    return mean, distance(scene, net(scene, contact, z, level), target)


def happens(sample: Sample) -> bool:
    """Whether there is a part that could be corrected."""
    return any(sample.case.active(d).any() for d in range(len(sample.case.proposals)))


@dataclass(eq=False)
class MoveTask:
    """Batches of episodes, those in which something moves more often."""

    model: MoveNet
    """What is trained."""
    samples: Sequence[Sample]
    """To learn from."""
    held_out: Sequence[Sample]
    """To validate on."""
    size: int = 16
    """Episodes per batch."""
    seed: int = 0
    """Of the batches."""
    flow: float = 0.5
    """Weight of the flow's loss."""

    def __post_init__(self) -> None:
        self.samples, self.held_out = ([s for s in x if happens(s)] for x in (self.samples, self.held_out))
        if not self.samples:
            raise ValueError("in no episode the robot comes near to a part that could move: nothing to learn")
        weight = np.array([1.0 + 2.0 * (np.abs(s.truth - np.eye(4)).max() > 0.01) for s in self.samples])
        self.chance = weight / weight.sum()

    def loss(self, step: int) -> Tensor:
        """Of one batch."""
        rng = np.random.default_rng([self.seed, step])
        chosen = [self.samples[i] for i in rng.choice(len(self.samples), self.size, p=self.chance)]
        draws = [int(rng.integers(len(s.case.proposals))) for s in chosen]
        mean, flow = losses(self.model, *batch([augmented(s, rng) for s in chosen], draws))
        return mean + self.flow * flow

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Final error of the middles of parts that moved, and false motion of those that did not: of the engine, of the
        mean, and of one sample of the flow."""
        assert isinstance(model, MoveNet)
        found: dict[str, list[Tensor]] = {}
        for i in range(0, len(self.held_out), 32):
            scene, target = batch(self.held_out[i : i + 32])
            generator = torch.Generator().manual_seed(0)
            said = {"mean": model.mean(scene), "flow": model.sample(scene, generator)}
            ends = {"engine": scene.middle} | {k: pose_of(scene, z).c for k, z in said.items()}
            went = (target.c - scene.center[:, None]).norm(dim=-1).amax(-1)
            for name, c in ends.items():
                error = (c[:, -1] - target.c[:, -1]).norm(dim=-1) * CM
                found.setdefault(f"{name}_cm", []).append(error[target.known & (went > 0.01)])
                found.setdefault(f"{name}_false_cm", []).append(error[target.known & (went < 0.003)])
        out = {}
        for name, values in found.items():
            each = torch.cat(values)
            if len(each):
                out |= {name: float(each.mean())} | (
                    {} if "false" in name else {f"{name}_median": float(each.median())}
                )
        return out
