"""Batches for the motion model: a few active parts per scene, the others as obstacles, and augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinema4d.robot.zoo import load_robot
from kinema4d.train.motion_pack import Motion, shell_of
from kinema4d.world.small import reading_kernels
from kinema4d.world.small.motion import Scene
from kinema4d.world.small.rotation import matrix_to_rotvec

ACTIVE, STILL, STILL_POINTS, PART_POINTS = 4, 6, 24, 64
"""Parts with tokens, things around them, and points of each."""
NEAR = 0.08
"""A part that the robot never comes this near to stands around, metres."""
FRAMES = 49
"""Frames of a sample."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One motion, cut to size."""

    points: np.ndarray
    """[ACTIVE, n, 3] surface at the first frame, world frame."""
    normals: np.ndarray
    """[ACTIVE, n, 3]."""
    present: np.ndarray
    """[ACTIVE] bool."""
    still: np.ndarray
    """[STILL * STILL_POINTS, 3]."""
    still_present: np.ndarray
    """[STILL * STILL_POINTS] bool."""
    Ts: np.ndarray
    """[ACTIVE, t, 4, 4] motion against the first frame: T_t @ inverse(T_0)."""
    links: np.ndarray
    """[t, l, 4, 4]."""
    robot: str
    """Whose shell it is."""
    seconds: float
    """Between frames."""
    task: str
    """Of the episode."""
    index: np.ndarray
    """[ACTIVE] which part of the motion each is; -1 for none."""


def shell_points(robot: str, links: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """World points and normals [t, q, 3] of a robot's hand."""
    shell = shell_of(_robot(robot))
    Ts = links[:, shell.link]
    points = np.einsum("tqij,qj->tqi", Ts[..., :3, :3], shell.points) + Ts[..., :3, 3]
    return points.astype(np.float32), np.einsum("tqij,qj->tqi", Ts[..., :3, :3], shell.normals).astype(np.float32)


_ROBOTS: dict = {}


def _robot(name: str):
    if name not in _ROBOTS:
        _ROBOTS[name] = load_robot(name)
    return _ROBOTS[name]


def gaps(points: np.ndarray, shell: np.ndarray) -> np.ndarray:
    """[p] least distance between each part, at rest, and the robot over all frames."""
    flat, free = np.ascontiguousarray(shell.transpose(0, 2, 1)), np.zeros(shell.shape[1], bool)
    out = np.empty(len(points), np.float32)
    for p, own in enumerate(points):
        X = np.ascontiguousarray(np.broadcast_to(own, (len(shell), *own.shape)), np.float32)
        index, distance = np.zeros(X.shape[:-1], np.int64), np.zeros(X.shape[:-1], np.float32)
        reading_kernels.nearest(X, flat, free, index, distance, np.float32(1.0))
        out[p] = distance.min()
    return out


def cut(motion: Motion, *, always: Sequence[int] = ()) -> Sample:
    """The parts that the robot comes nearest to get tokens, after those in ``always``; the next ones stand around."""
    frames = len(motion.Ts_world_part)
    at = np.linspace(0, frames - 1, FRAMES).round().astype(int) if frames != FRAMES else np.arange(FRAMES)
    Ts = motion.Ts_world_part[at]
    links = motion.Ts_world_link[at]
    shell, _ = shell_points(motion.robot, links)
    world = np.einsum("pij,pnj->pni", Ts[0, :, :3, :3], motion.points[:, :PART_POINTS]) + Ts[0, :, None, :3, 3]
    turned = np.einsum("pij,pnj->pni", Ts[0, :, :3, :3], motion.normals[:, :PART_POINTS])
    near = gaps(world[:, :16].astype(np.float32), shell)
    near[list(always)] -= 10
    order = np.argsort(near, kind="stable")
    n = max(1, min(ACTIVE, int((near < NEAR).sum())))
    active, rest = order[:n], order[n : n + STILL]
    points = np.zeros((ACTIVE, PART_POINTS, 3), np.float32)
    normals = np.zeros_like(points)
    moved = np.tile(np.eye(4, dtype=np.float32), (ACTIVE, FRAMES, 1, 1))
    points[:n], normals[:n] = world[active], turned[active]
    inverse = np.linalg.inv(Ts[0, active].astype(np.float64))
    moved[:n] = (Ts[:, active].astype(np.float64) @ inverse).transpose(1, 0, 2, 3)
    still = np.zeros((STILL, STILL_POINTS, 3), np.float32)
    still_present = np.zeros((STILL, STILL_POINTS), bool)
    still[: len(rest)] = world[rest, :STILL_POINTS]
    still_present[: len(rest)] = True
    index = np.full(ACTIVE, -1)
    index[:n] = active
    return Sample(
        points=points, normals=normals, present=np.arange(ACTIVE) < n, still=still.reshape(-1, 3),
        still_present=still_present.reshape(-1), Ts=moved, links=links, robot=motion.robot,
        seconds=float((frames - 1) / (FRAMES - 1) / motion.fps), task=motion.task, index=index,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Target:
    """What really happened."""

    shift: Tensor
    """[n,t,3] of the middle."""
    turn: Tensor
    """[n,t,3] summed rotation steps."""
    R: Tensor
    """[n,t,3,3]."""


def batch(samples: Sequence[Sample], rng: np.random.Generator | None) -> tuple[Scene, Target]:
    """Stack samples; with ``rng`` turned, mirrored, and with other points and noise."""
    stacked = {
        k: np.stack([getattr(s, k) for s in samples])
        for k in ("points", "normals", "present", "still", "still_present", "Ts")
    }
    shells = [shell_points(s.robot, s.links) for s in samples]
    shell, shell_normals = (np.stack([s[i] for s in shells]) for i in (0, 1))
    hand = np.stack([s.links[:, 0] for s in samples]).astype(np.float32)
    b = len(samples)
    points, normals, Ts = stacked["points"], stacked["normals"], stacked["Ts"]
    still = stacked["still"]
    if rng is not None:
        M = np.tile(np.eye(3), (b, 1, 1))
        M[rng.random(b) < 0.5, 1, 1] = -1
        M = (yaws(rng.uniform(-np.pi, np.pi, b)) @ M).astype(np.float32)
        pick = rng.permuted(np.tile(np.arange(points.shape[2]), (b, 1)), axis=1)
        points = np.take_along_axis(points, pick[:, None, :, None], axis=2)
        normals = np.take_along_axis(normals, pick[:, None, :, None], axis=2)
        noise = rng.normal(0, 1, points.shape) * rng.uniform(0, 0.0015, (b, 1, 1, 1))
        points = (points + noise).astype(np.float32)
        # A reflection keeps rotations rotations when it acts from both sides.
        turn = lambda x, s: np.einsum(f"bij,b{s}j->b{s}i", M, x)  # noqa: E731
        points, normals, still = turn(points, "pn"), turn(normals, "pn"), turn(still, "n")
        shell, shell_normals = turn(shell, "tq"), turn(shell_normals, "tq")
        both = lambda T: np.einsum("bij,b...jk,blk->b...il", M, T, M)  # noqa: E731
        hand = _with(hand, both(hand[..., :3, :3]), turn(hand[..., :3, 3], "t"))
        Ts = _with(Ts, both(Ts[..., :3, :3]), turn(Ts[..., :3, 3], "pt"))
        shell_pick = rng.permutation(shell.shape[2])
        shell, shell_normals = shell[:, :, shell_pick], shell_normals[:, :, shell_pick]
    here = stacked["present"]
    points, normals, Ts = points[here], normals[here], Ts[here]
    center = points.mean(axis=1)
    to = lambda x: torch.from_numpy(np.ascontiguousarray(x, np.float32))  # noqa: E731
    scene = Scene(
        owner=torch.from_numpy(np.nonzero(here)[0]), center=to(center), shape=to(points - center[:, None]), normals=to(normals),
        still=to(still), still_present=torch.from_numpy(stacked["still_present"]), shell=to(shell),
        shell_normals=to(shell_normals), hand=to(hand), seconds=to(np.array([s.seconds for s in samples])),
    )  # fmt: skip
    R, x = to(Ts[..., :3, :3]), to(Ts[..., :3, 3])
    shift = torch.einsum("ntij,nj->nti", R, scene.center) + x - scene.center[:, None]
    before = torch.cat([R[:, :1], R[:, :-1]], 1)
    return scene, Target(shift, matrix_to_rotvec(R @ before.transpose(-1, -2)).cumsum(1), R)


def _with(T: np.ndarray, R: np.ndarray, x: np.ndarray) -> np.ndarray:
    out = T.copy()
    out[..., :3, :3], out[..., :3, 3] = R, x
    return out


def yaws(angles: np.ndarray) -> np.ndarray:
    """Rotations about the vertical."""
    R = np.zeros((len(angles), 3, 3))
    R[:, 0, 0] = R[:, 1, 1] = np.cos(angles)
    R[:, 1, 0], R[:, 0, 1], R[:, 2, 2] = np.sin(angles), -np.sin(angles), 1
    return R
