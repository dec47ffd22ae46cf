"""Move: a learned correction of the rigid-body engine's answer.

Tokens are part x frame. A pass reads the robot's surface, the other parts and the support where the parts are
estimated to be, and says how each frame's step differs from the engine's: the part goes with the hand instead, it stays
instead, or another twist in its contact frame. Summed up, that is a residual ``z``: a shift of the part's middle and a
turn on top of the engine's pose. Parts on a joint keep to its one degree of freedom. A network that has learned nothing
says zero, and the engine's answer comes back bit for bit.

``mean`` is one pass. ``sample`` is flow matching whose start is not noise but an engine draw, a little blurred: every
pass says where the flow ends, the estimate goes part of the way, and is read again there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.types import Solid
from kinema4d.world.small.move_reading import (
    POINT_FEATURES,
    TOKEN_FEATURES,
    Contact,
    Pose,
    change,
    meet,
    read,
    turn_steps,
)
from kinema4d.world.small.move_scene import HINGE, SLIDE, Scene, case_of, stack
from kinema4d.world.small.parts import Part
from kinema4d.world.small.rigid import stays
from kinema4d.world.small.rotation import rotvec_to_matrix

SPEED, TURN = 0.01, 0.15
"""Unit of the free twist: metres and radians per frame."""
BLUR_M, BLUR_RAD = 0.01, 0.15
"""How far a sample starts from the engine's draw, at the end of a clip."""
LEVER = 0.02
"""A hinged part whose middle is this near to its axis turns by its twist, others by where their middle goes, metres."""
SPAN = 8.0
"""Seconds around contact within which frames know their time."""


@dataclass(frozen=True, kw_only=True)
class MoveConfig:
    """Size of the network."""

    width: int = 128
    """Channels of a token."""
    blocks: int = 3
    """Transformer blocks."""
    heads: int = 4
    """Attention heads."""
    points: int = 24
    """Surface points per part that are read."""


class Attention(nn.Module):
    """Plain multi-head attention; explicit products train faster than fused ones at this length on CPUs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n,t,w] attends along t."""
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        weights = ((q * (w // self.heads) ** -0.5) @ k.transpose(-1, -2)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, w))


class Block(nn.Module):
    """Along time, then between parts, then alone."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.time = Attention(width, heads)
        self.give, self.take = nn.Linear(width, width), nn.Linear(width, width)
        self.alone = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor, owner: Tensor, scenes: int) -> Tensor:
        """[n,t,w] of parts, each of which belongs to one of ``scenes``."""
        x = x + self.time(self.norms[0](x))
        given = F.gelu(self.give(self.norms[1](x)))
        around = torch.zeros(scenes, *x.shape[1:]).index_add(0, owner, given)
        x = x + self.take(around[owner] - given)
        return x + self.alone(self.norms[2](x))


class MoveNet(nn.Module):
    """See the module's text."""

    def __init__(self, config: MoveConfig) -> None:
        super().__init__()
        self.config, w = config, config.width
        self.point = nn.Sequential(nn.Linear(POINT_FEATURES, 64), nn.GELU(), nn.Linear(64, w // 2))
        self.enter = nn.Sequential(nn.Linear(w // 2 + TOKEN_FEATURES, w), nn.GELU(), nn.Linear(w, w))
        self.time = nn.Linear(24, w)
        self.level = nn.Sequential(nn.Linear(9, w), nn.GELU(), nn.Linear(w, w))
        self.blocks = nn.ModuleList([Block(w, config.heads) for _ in range(config.blocks)])
        self.norm, self.head = nn.LayerNorm(w), nn.Linear(w, 8)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def mean(self, scene: Scene) -> Tensor:
        """The residual [n,t,6] that is expected."""
        zero = torch.zeros(*scene.middle.shape[:2], 6)
        return self(scene, meet(scene, self.config.points), zero, None)

    def sample(self, scene: Scene, generator: torch.Generator | None = None, *, steps: int = 4) -> Tensor:
        """A residual [n,t,6], by Euler steps from the blurred draw of the engine."""
        if steps < 1:
            raise ValueError(f"a flow needs at least 1 step, got {steps}")
        contact = meet(scene, self.config.points)
        z = blur(scene, contact, generator)
        for i in range(steps):
            end = self(scene, contact, z, torch.full((len(z),), i / steps))
            z = z + (end - z) / (steps - i) if i < steps - 1 else end
        return z

    def forward(self, scene: Scene, contact: Contact, z: Tensor, level: Tensor | None) -> Tensor:
        """Where the flow that is at ``z`` [n,t,6] ends. ``level`` [n] is how far it has come, 0..1; None asks for the
        mean."""
        pose = pose_of(scene, z)
        points, tokens = read(scene, contact, z, pose, self.config.points)
        mean = torch.full((len(z), 1), float(level is None))
        level = torch.zeros(len(z)) if level is None else level
        since = (torch.arange(z.shape[1]) - contact.start[:, None]) * scene.seconds[scene.owner][:, None]
        x = self.enter(torch.cat([self.point(points).amax(2), tokens], -1))
        x = x + self.time(waves((since / SPAN + 0.5).clamp(0, 1), 12))
        x = x + self.level(torch.cat([waves(level, 4), mean], -1))[:, None]
        for block in self.blocks:
            x = block(x, scene.owner, len(scene.hand))
        return summed(scene, contact, pose, self.head(self.norm(x)))


# ---------------------------------------------------------------------- geometry


def waves(x: Tensor, count: int) -> Tensor:
    """Sines and cosines of 0..1."""
    angles = x[..., None] * torch.pi * 2.0 ** (torch.arange(count) / 2 - 1)
    return torch.cat([angles.sin(), angles.cos()], -1)


def composed(turns: Tensor) -> Tensor:
    """Running products [n,t,3,3] of rotation steps, the latest on the left, in a logarithmic number of rounds."""
    R, reach, t = turns, 1, turns.shape[1]
    while reach < t:
        R = torch.cat([R[:, :reach], R[:, reach:] @ R[:, :-reach]], 1)
        reach *= 2
    return R


def pose_of(scene: Scene, z: Tensor) -> Pose:
    """Parts where a residual has them: the middle shifted, or taken around the hinge; turned by its summed steps."""
    D = composed(rotvec_to_matrix(change(z[..., 3:])))
    around = scene.pivot[:, None] + torch.einsum("ntij,ntj->nti", D, scene.middle - scene.pivot[:, None])
    c = torch.where((scene.joint == HINGE)[:, None, None], around, scene.middle + z[..., :3])
    return Pose(D, D @ scene.R, c)


def summed(scene: Scene, contact: Contact, pose: Pose, out: Tensor) -> Tensor:
    """The residual [n,t,6] of what the network says per frame: six of a twist, with the hand, stay."""
    o, c, D = scene.owner, pose.c.detach(), pose.D.detach()
    before, turned = torch.cat([c[:, :1], c[:, :-1]], 1), torch.cat([D[:, :1], D[:, :-1]], 1)
    g, Rh = scene.hand[..., :3, 3], scene.hand[..., :3, :3]
    palm = torch.cat([g[:, :1], g[:, :-1]], 1)[o]
    dRh = (Rh @ torch.cat([Rh[:, :1], Rh[:, :-1]], 1).transpose(-1, -2))[o]
    carried = torch.einsum("ntij,ntj->nti", dRh, before - palm) + g[o] - before  # the hand's step, where the part is
    own, spin = change(scene.middle), torch.einsum("ntij,ntj->nti", turned, turn_steps(scene.R))
    hand, stay = torch.tanh(out[..., 6:7]), torch.tanh(out[..., 7:])
    v = torch.einsum("nji,ntj->nti", contact.frame, out[..., :3]) * SPEED + hand * (carried - own) - stay * own
    w = torch.einsum("nji,ntj->nti", contact.frame, out[..., 3:6]) * TURN
    w = w + hand * (turn_steps(scene.hand[..., :3, :3])[o] - spin) - stay * spin
    later = torch.ones(v.shape[1], 1)
    later[0] = 0  # the first frame is given
    return (on_joint(scene, v, w, c) * later).cumsum(1)


def on_joint(scene: Scene, v: Tensor, w: Tensor, c: Tensor) -> Tensor:
    """Steps [n,t,6] of parts at ``c``, as far as their joints let them."""
    a = scene.axis[:, None].expand_as(v)
    r = c - scene.pivot[:, None]
    way = torch.cross(a, r, dim=-1)  # of the middle, per radian
    reach = way.square().sum(-1, keepdim=True)
    angle = torch.where(
        reach > LEVER**2, (v * way).sum(-1, keepdim=True) / reach.clamp(min=LEVER**2), (w * a).sum(-1, keepdim=True)
    )
    joint, none = scene.joint[:, None, None], torch.zeros_like(v)
    shift = torch.where(joint == HINGE, none, torch.where(joint == SLIDE, a * (v * a).sum(-1, keepdim=True), v))
    return torch.cat([shift, torch.where(joint == HINGE, a * angle, torch.where(joint == SLIDE, none, w))], -1)


def kept_on_joint(scene: Scene, z: Tensor) -> Tensor:
    """A residual without what joints do not allow: turns about a hinge, shifts along a slide."""
    a, joint, none = scene.axis[:, None], scene.joint[:, None, None], torch.zeros_like(z[..., :3])
    shift, turn = z[..., :3], z[..., 3:]
    along, about = (a * (x * a).sum(-1, keepdim=True) for x in (shift, turn))
    shift = torch.where(joint == HINGE, none, torch.where(joint == SLIDE, along, shift))
    return torch.cat([shift, torch.where(joint == HINGE, about, torch.where(joint == SLIDE, none, turn))], -1)


def blur(scene: Scene, contact: Contact, generator: torch.Generator | None = None) -> Tensor:
    """A smooth random residual [n,t,6] from shortly before something happens to a part."""
    n, t = contact.gap.shape
    k = torch.arange(1, 7)
    after = ((torch.arange(t) - contact.start[:, None] + 3).clamp(min=0) / t)[..., None]  # 0 before, then rising
    basis = torch.sin(0.5 * torch.pi * k * after) / k
    wave = torch.einsum("ntk,nkc->ntc", basis, torch.randn(n, 6, 6, generator=generator))
    wave = wave - wave[:, :1]
    local = torch.einsum("nji,ntcj->ntci", contact.frame, wave.unflatten(-1, (2, 3))).flatten(-2)
    return kept_on_joint(scene, local * torch.tensor([BLUR_M] * 3 + [BLUR_RAD] * 3))


# ---------------------------------------------------------------------- use


@torch.no_grad()
def corrected(
    net: MoveNet,
    parts: Sequence[Part],
    solids: Sequence[Solid],
    motions: Float[np.ndarray, "p t 4 4"],
    *,
    fps: float,
    support: float = 0.0,
    seed: int | None = None,
    steps: int = 4,
) -> Float[np.ndarray, "p t 4 4"]:
    """The engine's ``motions`` with the learned correction: the mean, or with ``seed`` a sample of the flow."""
    if not len(parts):
        return motions
    case = case_of(parts, solids, motions[None], fps=fps, support=support)
    if not case.active().any():
        return motions
    scene = stack([case])
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    z = net.mean(scene) if generator is None else net.sample(scene, generator, steps=steps)
    # In double precision, so that no correction leaves the engine's bits.
    z, out = z.double(), motions.copy()
    D = composed(rotvec_to_matrix(change(z[..., 3:]))).numpy()
    down = np.array([0.0, 0.0, support])
    for n, i in enumerate(scene.part.tolist()):
        hinge = case.joint[i] == HINGE
        about = scene.pivot[n].numpy() if hinge else scene.middle[n].numpy()
        about = about.astype(np.float64) + down
        C = np.tile(np.eye(4), (len(D[n]), 1, 1))
        C[:, :3, :3] = D[n]
        C[:, :3, 3] = about - (D[n] @ np.broadcast_to(about, (len(D[n]), 3))[..., None])[..., 0]
        if not hinge:
            C[:, :3, 3] += z[n, :, :3].numpy()
        moved = C @ motions[i]
        out[i] = np.eye(4) if stays(moved, parts[i]) else moved
    return out
