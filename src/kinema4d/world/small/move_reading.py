"""What the learned correction sees around the parts at an estimate of where they are: robot, other parts, support.

All of it is said in the part's contact frame (its first axis is the level direction in which the robot comes) or in the
hand's, so turning or shifting a scene on its table changes nothing.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kinema4d.world.small import reading_kernels
from kinema4d.world.small.move_scene import HINGE, SLIDE, Scene
from kinema4d.world.small.rotation import matrix_to_rotvec

FAR = 0.3
"""Distances are cut off here, metres."""
CONTACT_SLACK = 0.004
"""The first frame this close to the closest approach is when contact begins, metres."""
POINT_FEATURES, TOKEN_FEATURES = 30, 73
"""What :func:`read` gives per point and per token."""
_POOL = ThreadPoolExecutor(2)


@dataclass(frozen=True, eq=False)
class Pose:
    """Where the parts are estimated to be."""

    D: Tensor
    """[n,t,3,3] turned against the engine's answer."""
    R: Tensor
    """[n,t,3,3] turned against the first frame."""
    c: Tensor
    """[n,t,3] middle, metres."""


@dataclass(frozen=True, eq=False)
class Contact:
    """Where and when each part is met if it stays."""

    frame: Tensor
    """[n,3,3] rows: direction of the push, across it, up."""
    start: Tensor
    """[n] frame index of first contact, or where the engine first moves the part."""
    gap: Tensor
    """[n,t] distance to the robot."""


def placed(scene: Scene, pose: Pose, count: int) -> Tensor:
    """[n,t,k,3] surface points at a pose."""
    return torch.einsum("ntij,nkj->ntki", pose.R, scene.shape[:, :count]) + pose.c[:, :, None]


def near_robot(scene: Scene, X: Tensor) -> tuple[Tensor, Tensor]:
    """Index and distance [n,t,k] of the nearest robot point."""
    points, shell = X.contiguous().numpy(), np.ascontiguousarray(scene.shell.transpose(-1, -2).numpy())
    free, owner = np.zeros(shell.shape[-1], bool), scene.owner.tolist()
    index, distance = np.zeros(points.shape[:-1], np.int64), np.zeros(points.shape[:-1], np.float32)

    def work(n: int) -> None:
        reading_kernels.nearest(points[n], shell[owner[n]], free, index[n], distance[n], np.float32(FAR))

    list(_POOL.map(work, range(len(points))))
    return torch.from_numpy(index), torch.from_numpy(distance)


def near_others(scene: Scene, X: Tensor) -> tuple[Tensor, Tensor]:
    """Vector [n,t,k,3] to the nearest point of another part of the scene, and its distance."""
    points, still = X.contiguous().numpy(), scene.still.numpy()
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


@torch.no_grad()
def meet(scene: Scene, count: int) -> Contact:
    """When and from where the robot comes to each part, if the part stays."""
    o, n, t = scene.owner, torch.arange(len(scene.owner)), scene.hand.shape[1]
    eye = torch.eye(3).expand(len(o), t, 3, 3)
    index, distance = near_robot(scene, placed(scene, Pose(eye, eye, scene.center[:, None].expand(-1, t, -1)), count))
    gap, where = distance.min(-1)
    start = (gap < gap.amin(-1, keepdim=True) + CONTACT_SLACK).float().argmax(-1)
    point = index[n, start, where[n, start]]  # the robot point that comes nearest
    push = scene.shell[o, (start + 2).clamp(max=t - 1), point] - scene.shell[o, (start - 2).clamp(min=0), point]
    flat = torch.tensor([1.0, 1.0, 0.0])
    across = scene.hand[o, start][..., :3, 0] * flat  # where the hand comes straight down, its own x axis
    e1 = push * flat + 0.004 * across
    e1 = e1 / e1.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    ez = torch.tensor([0.0, 0.0, 1.0]).expand_as(e1)
    moves = (scene.middle - scene.center[:, None]).norm(dim=-1) > 0.002
    first = torch.where(moves.any(-1), moves.float().argmax(-1), t - 1)
    frame = torch.stack([e1, torch.cross(ez, e1, dim=-1), ez], -2)
    return Contact(frame, torch.minimum(start, first), gap.clamp(max=FAR))


def change(x: Tensor) -> Tensor:
    """Since the frame before; 0 at the first."""
    return torch.diff(x, dim=1, prepend=x[:, :1])


def turn_steps(R: Tensor) -> Tensor:
    """Rotation vectors [n,t,3] since the frame before."""
    return matrix_to_rotvec(R @ torch.cat([R[:, :1], R[:, :-1]], 1).transpose(-1, -2))


@torch.no_grad()
def read(scene: Scene, contact: Contact, z: Tensor, pose: Pose, count: int) -> tuple[Tensor, Tensor]:
    """Features of points [n,t,k,f] and of tokens [n,t,f] at the estimate ``z`` [n,t,6], which puts parts at ``pose``."""
    o, t = scene.owner, z.shape[1]
    X = placed(scene, pose, count)
    index, distance = near_robot(scene, X)
    at, frames = o[:, None, None], torch.arange(t)[None, :, None]
    nearest = scene.shell[at, frames, index]
    ahead = scene.shell[at, (frames + 1).clamp(max=t - 1), index] - nearest  # where that point of the robot goes next
    near = (nearest - X) * (FAR / distance.clamp(min=FAR))[..., None]
    facing = scene.shell_normals[at, frames, index]
    normals = torch.einsum("ntij,nkj->ntki", pose.R, scene.normals[:, :count])
    other, gap = near_others(scene, X)
    Rh, g = scene.hand[o][..., :3, :3], scene.hand[o][..., :3, 3]
    close = distance.clamp(max=FAR)
    in_contact = torch.cat([near * 20, ahead * 30, facing, normals, other * 20, (X - pose.c[:, :, None]) * 20], -1)
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

    def always(x: Tensor) -> Tensor:
        return x[:, None].expand(-1, t, -1)

    arm = pose.c - g
    shape = torch.einsum("nij,nkj->nki", contact.frame, scene.shape)
    size = torch.cat([shape.amin(1), shape.amax(1)], -1)
    when = ((torch.arange(t) - contact.start[:, None]) * scene.seconds[o][:, None])[..., None]
    jointed = (scene.joint == SLIDE) | (scene.joint == HINGE)
    lever = (pose.c - scene.pivot[:, None]) * (scene.joint == HINGE)[:, None, None]
    tokens = torch.cat(
        [
            local(arm) * 5, torch.einsum("ntji,ntj->nti", Rh, arm) * 10, (distance.amin(-1).clamp(max=FAR) * 20)[..., None],
            (gap.amin(-1) * 20)[..., None], (contact.gap * 20)[..., None], local(pose.c - scene.center[:, None]) * 5,
            local(change(pose.c)) * 30, local(turn_steps(pose.R)) * 3, local(scene.middle - scene.center[:, None]) * 5,
            local(change(scene.middle)) * 30, local(turn_steps(scene.R)) * 3, local(z[..., :3]) * 20, local(z[..., 3:]) * 3,
            torch.einsum("nij,ntjk,nlk->ntil", contact.frame, pose.R, contact.frame)[..., :2].flatten(-2),
            pose.c[..., 2:] * 10, local(change(scene.hand[..., :3, 3])[o]) * 30, local(turn_steps(scene.hand[..., :3, :3])[o]) * 5,
            always(size * 20), torch.einsum("nij,ntjk->ntik", contact.frame, Rh)[..., :2].flatten(-2), when * 2,
            torch.exp(-when.abs() * 4), when.clamp(min=0), always(F.one_hot(scene.joint, 4).float()),
            local(always(scene.axis * jointed[:, None])), local(lever) * 5, always(scene.seconds[o][:, None]) * 10,
            X[..., 2].amin(-1, keepdim=True) * 20,
        ], -1,
    )  # fmt: skip
    return points, tokens
