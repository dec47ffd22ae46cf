"""What the motion model is trained to do, and how well it does it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kinema4d.train.motion_batches import Target
from kinema4d.world.small.motion import Estimate, MotionModel, Scene, detached, meet, stay, turned
from kinema4d.world.small.rotation import angle_between

UNIT = 0.05
"""Errors are counted in units of 5 cm."""
SHIFT_NOISE, TURN_NOISE = 0.06, 0.7
"""Scale of the noise that the flow starts from: metres and radians at the end of a clip."""
CONTACT_FREE = 0.05
"""A part that the robot never comes this near to gets no noise, metres."""


def norm(x: Tensor) -> Tensor:
    """Length, smooth at zero."""
    return x.square().sum(-1).add(1e-3).sqrt()


def estimate_loss(scene: Scene, e: Estimate, target: Target) -> Tensor:
    """Distance of a motion from the truth, over parts that are there."""
    shape = scene.shape[:, :12]
    Y = torch.einsum("ntij,nkj->ntki", target.R, shape) + target.shift[:, :, None]
    X = torch.einsum("ntij,nkj->ntki", e.R, shape) + e.shift[:, :, None]
    surface = norm((X - Y) / UNIT).mean(-1)
    middle = norm((e.shift - target.shift) / UNIT)
    dp, dt = torch.diff(e.shift, dim=1), torch.diff(target.shift, dim=1)
    speed = norm((dp - dt) / UNIT)
    wp, wt = torch.diff(e.turn, dim=1), torch.diff(target.turn, dim=1)
    spin = norm((wp - wt) * 2)
    tilt = norm(e.R[..., 2] - target.R[..., 2])
    moves = ((dt.norm(dim=-1) > 0.0012) | (wt.norm(dim=-1) > 0.012)).float()
    gate = F.binary_cross_entropy_with_logits(e.gates[:, 1:, 1], moves, reduction="none")
    each = (
        surface.mean(-1)
        + 0.5 * middle.mean(-1)
        + 2 * speed.mean(-1)
        + 2 * spin.mean(-1)
        + 0.7 * tilt.mean(-1)
        + gate.mean(-1)
    )
    return each.mean()


def noise_like(scene: Scene, gap: Tensor, start: Tensor, generator: torch.Generator | None = None) -> Estimate:
    """A smooth random motion of every part that the robot comes near, from shortly before they meet."""
    n, t = gap.shape
    count = 6
    k = torch.arange(1, count + 1)
    after = ((torch.arange(t) - start[..., None] + 3).clamp(min=0) / t)[..., None]  # 0 before, then rising
    basis = torch.sin(0.5 * torch.pi * k * after) / k  # [n,t,count]
    draw = torch.randn(n, count, 6, generator=generator)
    wave = torch.einsum("ntk,nkc->ntc", basis, draw)
    near = (gap.amin(-1) < CONTACT_FREE).float()[:, None, None]
    shift, turn = wave[..., :3] * SHIFT_NOISE * near, wave[..., 3:] * TURN_NOISE * near
    empty = stay(scene)
    return Estimate(shift, turn, turned(turn), empty.gates, empty.twist)


def loss(model: MotionModel, scene: Scene, target: Target, *, flow: float = 0.4) -> Tensor:
    """Mean passes, each against the truth, and one pass from a noisy motion."""
    contact = meet(scene, model.config.points)
    total, weight = torch.zeros(()), 0.0
    estimate = stay(scene)
    zero = torch.zeros(len(scene.center))
    for i in range(model.config.passes):
        estimate = model(scene, contact, detached(estimate), zero)
        share = 0.6 ** (model.config.passes - 1 - i)
        total = total + share * estimate_loss(scene, estimate, target)
        weight += share
    if flow > 0:
        level = torch.rand(len(scene.center)) * 0.98 + 0.001
        start = noise_like(scene, contact.gap, contact.start)
        m = level[:, None, None]
        shift, turn = start.shift * (1 - m) + target.shift * m, start.turn * (1 - m) + target.turn * m
        noisy = Estimate(shift, turn, turned(turn), start.gates, start.twist)
        found = model(scene, contact, noisy, level)
        total, weight = total + flow * estimate_loss(scene, found, target), weight + flow
    return total / weight


@torch.no_grad()
def errors(scene: Scene, e: Estimate, target: Target) -> dict[str, Tensor]:
    """Per part [n]: final error and truth's own displacement (m), tilt error (deg), farthest motion."""
    final = (e.shift[:, -1] - target.shift[:, -1]).norm(dim=-1)
    return {
        "error": final,
        "path": (e.shift - target.shift).norm(dim=-1).mean(-1),
        "static": target.shift[:, -1].norm(dim=-1),
        "moved": torch.maximum(target.shift.norm(dim=-1).amax(-1), 0.03 * target.turn.norm(dim=-1).amax(-1)),
        "said": e.shift.norm(dim=-1).amax(-1),
        "tilt_true": torch.rad2deg(torch.acos(target.R[:, -1, 2, 2].clamp(-1, 1))),
        "tilt_error": torch.rad2deg(torch.acos((target.R[:, -1, :, 2] * e.R[:, -1, :, 2]).sum(-1).clamp(-1, 1))),
        "turn_error": torch.rad2deg(angle_between(e.R[:, -1], target.R[:, -1])),
    }
