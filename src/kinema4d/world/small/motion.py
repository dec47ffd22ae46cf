"""Move: where the parts of a scene go when a robot acts on them.

Tokens are part x frame. Every pass reads the robot's surface, the other parts and the support where the parts are
estimated to be, and gives a step per frame: two gates (does it move, does it go with the hand) and a free twist in a
contact frame, whose first axis is the direction in which the robot comes. Passes repeat, so that a part that was
carried is read where it was carried to.

The same network samples: under flow matching its input is a noisy motion and its output the motion without noise.
``mean`` is its answer to no motion at all, refined.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.world.small import reading_kernels
from kinema4d.world.small.rotation import matrix_to_rotvec, rotvec_to_matrix

FAR = 0.3
"""Distances are cut off here, metres."""
SPEED, TURN = 0.03, 0.45
"""Unit of the free twist: metres and radians per frame."""
CONTACT_SLACK = 0.004
"""The first frame this close to the closest approach is when contact begins, metres."""


@dataclass(frozen=True)
class Config:
    """Size of the network."""

    width: int = 192
    """Channels of a token."""
    blocks: int = 4
    """Transformer blocks per pass."""
    heads: int = 4
    """Attention heads."""
    passes: int = 3
    """Passes of the mean."""
    points: int = 24
    """Surface points per part that are read."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Parts of a batch of scenes before anything moved, and what the robots do. World frame, support at z = 0.

    Parts of all scenes are in one row, ``n``; robots and still things are per scene, ``b``.
    """

    owner: Tensor
    """[n] which scene a part belongs to."""
    center: Tensor
    """[n,3] middle of its surface, metres."""
    shape: Tensor
    """[n,k,3] surface points relative to it."""
    normals: Tensor
    """[n,k,3] outward."""
    still: Tensor
    """[b,m,3] points of things that are taken to stay."""
    still_present: Tensor
    """[b,m] bool."""
    shell: Tensor
    """[b,t,q,3] surface points of the hand."""
    shell_normals: Tensor
    """[b,t,q,3] outward."""
    hand: Tensor
    """[b,t,4,4] frame of the palm."""
    seconds: Tensor
    """[b] between frames."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """A motion of all parts."""

    shift: Tensor
    """[n,t,3] of the middle."""
    turn: Tensor
    """[n,t,3] summed rotation steps: a vector space, unlike rotations."""
    R: Tensor
    """[n,t,3,3] rotation."""
    gates: Tensor
    """[n,t,2] logits: attached, moving."""
    twist: Tensor
    """[n,t,6] free steps in the contact frame, in units of SPEED and TURN."""


@dataclass(frozen=True, eq=False)
class Contact:
    """Where and when each part is met if it stays."""

    frame: Tensor
    """[n,3,3] rows: direction of the push, across it, up."""
    start: Tensor
    """[n] frame index of first contact."""
    gap: Tensor
    """[n,t] distance to the robot."""


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


POINT_FEATURES, TOKEN_FEATURES = 30, 50
"""What :func:`read` gives per point and per token."""


class MotionModel(nn.Module):
    """See the module's text."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, w = config, config.width
        self.point = nn.Sequential(nn.Linear(POINT_FEATURES, 64), nn.GELU(), nn.Linear(64, w // 2))
        self.enter = nn.Sequential(nn.Linear(w // 2 + TOKEN_FEATURES, w), nn.GELU(), nn.Linear(w, w))
        self.time = nn.Linear(24, w)
        self.level = nn.Sequential(nn.Linear(8, w), nn.GELU(), nn.Linear(w, w))
        self.blocks = nn.ModuleList([Block(w, config.heads) for _ in range(config.blocks)])
        self.norm, self.head = nn.LayerNorm(w), nn.Linear(w, 8)
        nn.init.normal_(self.head.weight, std=0.002)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor([0.0] * 6 + [0.0, -2.0]))

    def mean(self, scene: Scene) -> list[Estimate]:
        """The estimates of all passes; the last is the answer."""
        contact = meet(scene, self.config.points)
        estimate, out = stay(scene), []
        for _ in range(self.config.passes):
            estimate = self(scene, contact, detached(estimate), torch.zeros(len(scene.center)))
            out.append(estimate)
        return out

    def sample(self, scene: Scene, noise: Estimate, *, steps: int = 6) -> Estimate:
        """Flow from ``noise`` to a motion: Euler steps on the straight path."""
        contact = meet(scene, self.config.points)
        estimate = noise
        for i in range(steps):
            level = i / steps
            found = self(scene, contact, estimate, torch.full((len(scene.center),), max(level, 1e-3)))
            estimate = found if i == steps - 1 else between(estimate, found, 1 / (steps - i))
        return estimate

    def forward(self, scene: Scene, contact: Contact, estimate: Estimate, level: Tensor) -> Estimate:
        """One pass. ``level`` [n] is how far along the flow the estimate is; 0 where it is a guess of the mean."""
        points, tokens = read(scene, contact, estimate, self.config.points)
        x = self.enter(torch.cat([self.point(points).amax(2), tokens], -1))
        x = x + self.time(waves(torch.linspace(0, 1, x.shape[1]), 12)) + self.level(waves(level, 4))[:, None]
        for block in self.blocks:
            x = block(x, scene.owner, len(scene.hand))
        out = self.head(self.norm(x))
        return integrate(scene, contact, out[..., :6], out[..., 6:] * 3)


# ---------------------------------------------------------------------- geometry of a pass


def waves(x: Tensor, count: int) -> Tensor:
    """Sines and cosines of 0..1."""
    angles = x[..., None] * torch.pi * 2.0 ** (torch.arange(count) / 2 - 1)
    return torch.cat([angles.sin(), angles.cos()], -1)


def stay(scene: Scene) -> Estimate:
    """Nothing moves."""
    n, t = len(scene.center), scene.hand.shape[1]
    zero = torch.zeros(n, t, 3)
    return Estimate(zero, zero, torch.eye(3).expand(n, t, 3, 3), torch.zeros(n, t, 2), torch.zeros(n, t, 6))


def detached(e: Estimate) -> Estimate:
    """Without its past."""
    return Estimate(e.shift.detach(), e.turn.detach(), e.R.detach(), e.gates.detach(), e.twist.detach())


def turned(turn: Tensor) -> Tensor:
    """Rotations [n,t,3,3] from summed rotation steps [n,t,3]."""
    return composed(rotvec_to_matrix(torch.diff(turn, dim=1, prepend=turn[:, :1])))


def composed(steps: Tensor) -> Tensor:
    """Running products [n,t,3,3] of rotation steps, the latest on the left, in a logarithmic number of rounds."""
    R, reach, t = steps, 1, steps.shape[1]
    while reach < t:
        R = torch.cat([R[:, :reach], R[:, reach:] @ R[:, :-reach]], 1)
        reach *= 2
    return R


def between(a: Estimate, b: Estimate, share: float) -> Estimate:
    """On the straight line from ``a`` to ``b``."""
    shift, turn = a.shift + share * (b.shift - a.shift), a.turn + share * (b.turn - a.turn)
    return Estimate(shift, turn, turned(turn), b.gates, b.twist)


def steps_of(hand: Tensor) -> tuple[Tensor, Tensor]:
    """Rotation [b,t,3,3] and rotation vector [b,t,3] of the hand since the frame before; none at the first."""
    R = hand[..., :3, :3]
    dR = R @ torch.cat([R[:, :1], R[:, :-1]], 1).transpose(-1, -2)
    return dR, matrix_to_rotvec(dR)


def integrate(scene: Scene, contact: Contact, twist: Tensor, gates: Tensor) -> Estimate:
    """Sum up the steps: with the hand by the first gate, freely by the twist, both only as far as the second says.

    A step is affine in the middle of the part, c' = A c + b, so all frames are composed in a logarithmic number of
    rounds, like the rotations.
    """
    o, g = scene.owner, scene.hand[..., :3, 3]
    before = torch.cat([g[:, :1], g[:, :-1]], 1)
    dR, dw = steps_of(scene.hand)
    keep = torch.ones(twist.shape[1], 1)
    keep[0] = 0  # the first frame is given
    attached, moving = torch.sigmoid(gates[..., :1]), torch.sigmoid(gates[..., 1:]) * keep
    v = torch.einsum("nji,ntj->nti", contact.frame, twist[..., :3]) * SPEED
    w = torch.einsum("nji,ntj->nti", contact.frame, twist[..., 3:]) * TURN
    dw = moving * (attached * dw[o] + w)
    swing = (dR - torch.eye(3))[o]  # about where the hand was
    carry = moving * attached
    A = torch.eye(3) + carry[..., None] * swing
    b = carry * ((g - before)[o] - torch.einsum("ntij,ntj->nti", swing, before[o])) + moving * v
    c = _affine(A, b, scene.center)
    return Estimate(c - scene.center[:, None], dw.cumsum(1), composed(rotvec_to_matrix(dw)), gates, twist)


def _affine(A: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """[n,t,3] of c, A_0 c + b_0, A_1 (..) + b_1, ... by doubling."""
    reach, t = 1, A.shape[1]
    while reach < t:
        late, early = A[:, reach:], A[:, :-reach]
        b = torch.cat([b[:, :reach], torch.einsum("ntij,ntj->nti", late, b[:, :-reach]) + b[:, reach:]], 1)
        A = torch.cat([A[:, :reach], late @ early], 1)
        reach *= 2
    return torch.einsum("ntij,nj->nti", A, c) + b


def placed(scene: Scene, e: Estimate, count: int) -> Tensor:
    """[n,t,k,3] surface points where the estimate has them."""
    X = torch.einsum("ntij,nkj->ntki", e.R, scene.shape[:, :count])
    return X + (scene.center[:, None] + e.shift)[:, :, None]


def near_robot(scene: Scene, X: Tensor) -> tuple[Tensor, Tensor]:
    """Index and distance [n,t,k] of the nearest robot point."""
    points, shell = X.numpy(), np.ascontiguousarray(scene.shell.transpose(-1, -2).numpy())
    free, owner = np.zeros(shell.shape[-1], bool), scene.owner.tolist()
    index, distance = np.zeros(points.shape[:-1], np.int64), np.zeros(points.shape[:-1], np.float32)

    def work(n: int) -> None:
        reading_kernels.nearest(points[n], shell[owner[n]], free, index[n], distance[n], np.float32(FAR))

    list(_POOL.map(work, range(len(points))))
    return torch.from_numpy(index), torch.from_numpy(distance)


def near_others(scene: Scene, X: Tensor) -> tuple[Tensor, Tensor]:
    """Vector [n,t,k,3] to the nearest point of another part or still thing of the scene, and its distance."""
    points, still = X.numpy(), scene.still.numpy()
    owner, has_still = scene.owner.numpy(), scene.still_present.numpy()
    frames, count = points.shape[1:3]
    vector, distance = np.zeros_like(points), np.full(points.shape[:-1], FAR, np.float32)

    def work(b: int) -> None:
        mine = np.flatnonzero(owner == b)
        fixed = still[b][has_still[b]]
        if len(mine) == 0 or len(mine) + len(fixed) < 2:
            return
        moving = points[mine].transpose(1, 0, 2, 3).reshape(frames, -1, 3)
        everything = np.concatenate([moving, np.broadcast_to(fixed, (frames, *fixed.shape))], axis=1)
        flat = np.ascontiguousarray(everything.transpose(0, 2, 1))
        index = np.zeros((frames, count), np.int64)
        for i, n in enumerate(mine):
            barred = np.zeros(flat.shape[-1], bool)
            barred[i * count : (i + 1) * count] = True
            reading_kernels.nearest(points[n], flat, barred, index, distance[n], np.float32(FAR))
            vector[n] = np.take_along_axis(everything, index[..., None], axis=1) - points[n]

    list(_POOL.map(work, range(len(still))))
    gap = torch.from_numpy(distance)
    return torch.from_numpy(vector) * (gap < FAR)[..., None], gap.clamp(max=FAR)


_POOL = ThreadPoolExecutor(2)


@torch.no_grad()
def meet(scene: Scene, count: int) -> Contact:
    """When and from where the robot comes to each part, if the part stays."""
    o, n = scene.owner, torch.arange(len(scene.owner))
    index, distance = near_robot(scene, placed(scene, stay(scene), count))
    gap, where = distance.min(-1)
    start = (gap < gap.amin(-1, keepdim=True) + CONTACT_SLACK).float().argmax(-1)
    point = index[n, start, where[n, start]]  # the robot point that comes nearest
    last = gap.shape[1] - 1
    push = scene.shell[o, (start + 2).clamp(max=last), point] - scene.shell[o, (start - 2).clamp(min=0), point]
    flat = torch.tensor([1.0, 1.0, 0.0])
    across = scene.hand[o, start][..., :3, 0] * flat  # where the hand comes straight down, its own x axis
    e1 = push * flat + 0.004 * across
    e1 = e1 / e1.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    ez = torch.tensor([0.0, 0.0, 1.0]).expand_as(e1)
    return Contact(torch.stack([e1, torch.cross(ez, e1, dim=-1), ez], -2), start, gap.clamp(max=FAR))


@torch.no_grad()
def read(scene: Scene, contact: Contact, e: Estimate, count: int) -> tuple[Tensor, Tensor]:
    """Features of points [n,t,k,f] and of tokens [n,t,f] at the estimate."""
    o, t = scene.owner, e.shift.shape[1]
    X = placed(scene, e, count)
    index, distance = near_robot(scene, X)
    at, frames = o[:, None, None], torch.arange(t)[None, :, None]
    nearest = scene.shell[at, frames, index]
    ahead = scene.shell[at, (frames + 1).clamp(max=t - 1), index] - nearest  # where that point of the robot goes next
    near = (nearest - X) * (FAR / distance.clamp(min=FAR))[..., None]
    facing = scene.shell_normals[at, frames, index]
    normals = torch.einsum("ntij,nkj->ntki", e.R, scene.normals[:, :count])
    other, gap = near_others(scene, X)
    Rh, g = scene.hand[o][..., :3, :3], scene.hand[o][..., :3, 3]
    c = scene.center[:, None] + e.shift
    close = distance.clamp(max=FAR)
    in_contact = torch.cat([near * 20, ahead * 30, facing, normals, other * 20, (X - c[:, :, None]) * 20], -1)
    in_contact = torch.einsum("nij,ntkcj->ntkci", contact.frame, in_contact.unflatten(-1, (6, 3))).flatten(-2)
    in_hand = torch.stack([(X - g[:, :, None]) * 10, near * 20], -2)
    in_hand = torch.einsum("ntji,ntkcj->ntkci", Rh, in_hand).flatten(-2)
    points = torch.cat(
        [
            in_hand, in_contact, (close * 20)[..., None], torch.exp(-close * 60)[..., None], torch.exp(-close * 250)[..., None],
            (gap * 20)[..., None], torch.exp(-gap * 150)[..., None], X[..., 2:] * 10,
        ], -1,
    )  # fmt: skip

    def local(x: Tensor) -> Tensor:
        return torch.einsum("nij,ntj->nti", contact.frame, x)

    arm = c - g
    _, dw = steps_of(scene.hand)
    dg = torch.diff(g, dim=1, prepend=g[:, :1])
    dv, dt = (torch.diff(x, dim=1, prepend=x[:, :1]) for x in (e.shift, e.turn))
    shape = torch.einsum("nij,nkj->nki", contact.frame, scene.shape)
    size = torch.cat([shape.amin(1), shape.amax(1)], -1)
    when = (torch.arange(t) - contact.start[:, None])[..., None] / 12
    tokens = torch.cat(
        [
            local(arm) * 5, torch.einsum("ntji,ntj->nti", Rh, arm) * 10, (distance.amin(-1).clamp(max=FAR) * 20)[..., None],
            (gap.amin(-1) * 20)[..., None], (contact.gap * 20)[..., None], local(e.shift) * 5, local(dv) * 30, local(dt) * 3,
            torch.einsum("nij,ntjk,nlk->ntil", contact.frame, e.R, contact.frame)[..., :2].flatten(-2), c[..., 2:] * 10,
            local(dg) * 30, local(dw[o]) * 5, size[:, None].expand(-1, t, -1) * 20,
            torch.einsum("nij,ntjk->ntik", contact.frame, Rh)[..., :2].flatten(-2), when, torch.exp(-when.abs() * 4),
            when.clamp(min=0), torch.sigmoid(e.gates), scene.seconds[o][:, None, None].expand(-1, t, 1) * 10,
            X[..., 2].amin(-1, keepdim=True) * 20,
        ], -1,
    )  # fmt: skip
    return points, tokens
