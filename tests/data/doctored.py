"""Small true episodes of our own arm before a textured table, to be damaged by the tests of doctor and curation."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

import kinema4d as k4d
from kinema4d.geometry.camera import from_depth, rays
from kinema4d.geometry.se3 import transform
from kinema4d.types import Arm, Camera, Clip, Commands, Control, Episode

FPS = 10.0


def view(height: int = 96, width: int = 144, eye: tuple[float, float, float] = (1.2, -0.75, 0.85)) -> Camera:
    focal = 0.9 * width
    K = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1.0]])
    T = k4d.look_at(np.array(eye), np.array([0.2, 0.05, 0.25]))
    return Camera(K=K, T_world_camera=T, height=height, width=width)


def motion(frames: int, seed: int = 0) -> np.ndarray:
    """A reach, a grasp, a carry and a release."""
    robot, rng = k4d.load_robot("k4arm"), np.random.default_rng(seed)
    q = np.tile(robot.home, (frames, 1))
    t = np.linspace(0, 1, frames)
    turn, reach = rng.uniform(0.6, 0.9), rng.uniform(0.25, 0.4)
    q[:, 0] += turn * np.sin(1.6 * np.pi * t - 0.8 + rng.uniform(-0.2, 0.2))
    q[:, 1] += reach * np.sin(2 * np.pi * t)
    q[:, 2] -= 0.3 * np.sin(2 * np.pi * t + 0.5)
    closed = np.clip((t - 0.3) / 0.08, 0, 1) * np.clip((0.8 - t) / 0.08, 0, 1)
    q[:, 6] = 0.045 * (1 - closed)
    return q


@lru_cache(maxsize=8)
def _signal(frames: int, seed: int, height: int, width: int) -> Control:
    robot = k4d.load_robot("k4arm")
    actions = k4d.Actions(space="joint_position", values=motion(frames, seed), fps=FPS)
    return k4d.control(robot, actions, view(height, width))


@lru_cache(maxsize=8)
def episode(frames: int = 49, seed: int = 0, height: int = 96, width: int = 144) -> Episode:
    """The truth: nothing about it is wrong."""
    signal = _signal(frames, seed, height, width)
    assert signal.rgb is not None
    camera = signal.camera
    directions = rays(camera.K, height, width) @ camera.T_world_camera[:3, :3].T
    eye = camera.T_world_camera[:3, 3]
    z = np.where(directions[..., 2] < -1e-3, -eye[2] / np.minimum(directions[..., 2], -1e-3), 4.0).clip(0.1, 4.0)
    ground = eye + z[..., None] * directions
    rng = np.random.default_rng(1000 + seed)
    tiles = rng.integers(40, 220, (64, 64, 3))
    at = np.floor(ground[..., :2] / 0.08).astype(int) % 64
    background = tiles[at[..., 0], at[..., 1]].astype(np.uint8)
    mask = signal.mask
    rgb = np.where(mask[..., None], signal.rgb, background)
    depth = np.where(mask, signal.pointmap.depth, z).astype(np.float32)
    q = signal.arms[0].trajectory.q
    told = np.concatenate([q[:, :6], 1 - q[:, 6:] / 0.045], axis=1)
    return Episode(
        clip=Clip(camera=camera, rgb=rgb, pointmap=from_depth(camera.K, depth, np.ones_like(mask)), fps=FPS),
        arms=signal.arms,
        labels=mask.astype(np.uint8),
        label_names=("robot",),
        text="reach and carry",
        outcome="success",
        source=f"synthetic/{seed}",
        task="carry",
        group=f"scene{seed}",
        view="front",
        commands=Commands(
            values=told,
            names=(*(f"joint{i}" for i in range(1, 7)), "gripper"),
            fps=FPS,
            space="joint_position",
            convention="droid",
        ),
        facts={"seed": seed, "min_gap_m": 0.01 * seed, "scenario": "canonical"},
    )


def with_clip(truth: Episode, **changes: Any) -> Episode:
    return replace(truth, clip=replace(truth.clip, **changes))


def with_states(truth: Episode, q: np.ndarray) -> Episode:
    arm = truth.arms[0]
    n = len(q)
    path = replace(arm.trajectory, q=q)
    moved = Arm(
        robot=arm.robot,
        trajectory=path,
        link_names=arm.link_names,
        converged=np.ones(n, bool),
        residual_m=np.zeros(n),
        residual_rad=np.zeros(n),
    )
    return replace(truth, arms=(moved,))


def flipped(truth: Episode, axes: tuple[int, ...], *, labels: bool = True) -> Episode:
    """Images, and with ``labels`` everything per pixel, turned as a careless reader does."""
    clip = truth.clip
    depth = np.flip(clip.pointmap.depth, axes) if labels else clip.pointmap.depth
    pointmap = from_depth(clip.camera.K, np.ascontiguousarray(depth), clip.pointmap.valid)
    turned = replace(clip, rgb=np.ascontiguousarray(np.flip(clip.rgb, axes)), pointmap=pointmap)
    seen = truth.labels
    return replace(truth, clip=turned, labels=np.flip(seen, axes) if labels and seen is not None else seen)


def unlabelled(truth: Episode) -> Episode:
    return replace(truth, labels=None, label_names=())


def moved_base(truth: Episode, x: float) -> Episode:
    arm = truth.arms[0]
    path = replace(arm.trajectory, T_world_base=transform(np.array([x, 0.0, 0.0]), np.eye(3)))
    return replace(truth, arms=(replace(arm, trajectory=path),))
