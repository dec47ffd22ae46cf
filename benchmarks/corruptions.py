"""Ways in which a generated clip can fail to follow its actions, and harmless ones: what a judge must catch, and must not.

Used by ``benchmarks/evaluate.py`` and the tests of action following. A clip's corruption takes the true clip and a
random generator; the episode's take the episode too, since they draw the robot anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy import ndimage

from kinema4d.geometry.camera import rays
from kinema4d.robot.control import project
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Clip, Episode, Pointmap

Corruption = Callable[[Clip, np.random.Generator], Clip]
"""Clip in, worse clip out."""


def corruptions() -> dict[str, Corruption]:
    """What following must catch. ``delayed_1`` only where the robot moves enough to tell."""
    return {
        "shuffled": shuffled,
        "mirrored": lambda clip, rng: mirrored(clip),
        "delayed": lambda clip, rng: delayed(clip, int(rng.integers(2, 7))),
        "delayed_2": lambda clip, rng: delayed(clip, 2),
        "frozen": lambda clip, rng: frozen(clip),
        "delayed_1": lambda clip, rng: delayed(clip, 1),
    }


def harmless() -> dict[str, Corruption]:
    """What following must not flag."""
    return {
        "truth": lambda clip, rng: clip,
        "noisy": lambda clip, rng: noisy(clip, rng),
        "blurred": lambda clip, rng: blurred(clip),
    }


def take(clip: Clip, frames: np.ndarray) -> Clip:
    """The clip with its frames in another order; the camera stays where it was at each time."""
    points = Pointmap(points=clip.pointmap.points[frames], valid=clip.pointmap.valid[frames])
    return replace(clip, rgb=clip.rgb[frames], pointmap=points)


def shuffled(clip: Clip, rng: np.random.Generator) -> Clip:
    """Every frame is right, at the wrong time; the first stays, as it is given."""
    return take(clip, np.concatenate([[0], 1 + rng.permutation(len(clip) - 1)]))


def delayed(clip: Clip, frames: int) -> Clip:
    """The world starts to move ``frames`` frames late."""
    return take(clip, np.maximum(np.arange(len(clip)) - frames, 0))


def frozen(clip: Clip) -> Clip:
    """Nothing ever moves."""
    return take(clip, np.zeros(len(clip), int))


def mirrored(clip: Clip) -> Clip:
    """Left and right are swapped in all frames; points stay on the rays of their pixels."""
    K = clip.camera.K
    depth = clip.pointmap.points[:, :, ::-1, 2:]
    points = (depth * rays(K, clip.camera.height, clip.camera.width)).astype(clip.pointmap.points.dtype)
    return replace(
        clip,
        rgb=np.ascontiguousarray(clip.rgb[:, :, ::-1]),
        pointmap=Pointmap(points=points, valid=np.ascontiguousarray(clip.pointmap.valid[:, :, ::-1])),
    )


def noisy(clip: Clip, rng: np.random.Generator, *, metres: float = 0.005, levels: float = 8.0) -> Clip:
    """Gaussian noise on depth (along the ray) and colour."""
    depth = clip.pointmap.points[..., 2:]
    noise = (metres * rng.standard_normal(depth.shape)).astype(np.float32)
    points = clip.pointmap.points * (1 + noise / np.where(depth > 0.05, depth, 1))
    rgb = clip.rgb + levels * rng.standard_normal(clip.rgb.shape, np.float32)
    return replace(
        clip,
        rgb=np.clip(np.rint(rgb), 0, 255).astype(np.uint8),
        pointmap=Pointmap(points=points.astype(clip.pointmap.points.dtype), valid=clip.pointmap.valid),
    )


def blurred(clip: Clip, *, pixels: float | None = None) -> Clip:
    """Colour and depth smeared over the edges; by default by 0.7 px per 96 rows."""
    sigma = 0.7 * clip.camera.height / 96 if pixels is None else pixels
    valid = clip.pointmap.valid
    depth = np.where(valid, clip.pointmap.points[..., 2], 0)
    weight = ndimage.gaussian_filter(valid.astype(np.float32), (0, sigma, sigma), mode="nearest")
    depth = ndimage.gaussian_filter(depth, (0, sigma, sigma), mode="nearest") / np.maximum(weight, 1e-6)
    points = depth[..., None] * rays(clip.camera.K, clip.camera.height, clip.camera.width)
    rgb = ndimage.gaussian_filter(clip.rgb.astype(np.float32), (0, sigma, sigma, 0), mode="nearest")
    return replace(
        clip,
        rgb=np.clip(np.rint(rgb), 0, 255).astype(np.uint8),
        pointmap=Pointmap(points=points.astype(clip.pointmap.points.dtype), valid=valid),
    )


def without_points(clip: Clip) -> Clip:
    """Colour only: what a 2D world model gives."""
    return replace(
        clip, pointmap=Pointmap(points=np.zeros_like(clip.pointmap.points), valid=np.zeros_like(clip.pointmap.valid))
    )


def redrawn(episode: Episode, q: list[np.ndarray]) -> Clip:
    """The episode's clip with its robots taken out and drawn again with joints ``q``; needs labels and depth. Objects
    stay as they were, so a hand may leave what it holds."""
    mask = episode.robot_mask
    if mask is None or not episode.clip.pointmap.valid.any():
        raise ValueError(f"episode {episode.source!r} has no robot labels or no depth: its robot cannot be taken out")
    clip, labels = episode.clip, episode.labels
    assert labels is not None
    rgb, depth = clip.rgb.copy(), clip.pointmap.points[..., 2].astype(np.float32)
    first = np.where(mask.all(axis=0), -1, (~mask).argmax(axis=0))
    h, w = mask.shape[1:]
    v, u = np.meshgrid(np.arange(h), np.arange(w), indexing="ij")
    empty_rgb, empty_depth = clip.rgb[np.maximum(first, 0), v, u], depth[np.maximum(first, 0), v, u]
    # Where the robot always stood, the nearest pixel that is free stands in.
    iv, iu = np.asarray(ndimage.distance_transform_edt(first < 0, return_distances=False, return_indices=True))
    empty_rgb, empty_depth = empty_rgb[iv, iu], empty_depth[iv, iu]
    rgb[mask] = np.broadcast_to(empty_rgb, rgb.shape)[mask]
    depth[mask] = np.broadcast_to(empty_depth, depth.shape)[mask]
    arms = [replace(a, trajectory=replace(a.trajectory, q=own)) for a, own in zip(episode.arms, q, strict=True)]
    drawn = project([load_robot(a.robot) for a in arms], arms, clip.camera, rgb=True)
    assert drawn.rgb is not None
    front = drawn.mask & (drawn.pointmap.depth < depth)
    rgb[front], depth[front] = drawn.rgb[front], drawn.pointmap.depth[front]
    points = (depth[..., None] * rays(clip.camera.K, h, w)).astype(np.float32)
    return replace(clip, rgb=rgb, pointmap=Pointmap(points=points, valid=clip.pointmap.valid | front))


def joint_offset(episode: Episode, rng: np.random.Generator, *, degrees: float = 3.0) -> Clip:
    """Every arm joint is off by ``degrees``, with random signs, in all frames."""
    q = []
    for arm in episode.arms:
        robot = load_robot(arm.robot)
        own = arm.trajectory.q.copy()
        columns = robot.arm_columns
        own[:, columns] += np.radians(degrees) * rng.choice([-1.0, 1.0], len(columns))
        q.append(np.clip(own, robot.lower, robot.upper))
    return redrawn(episode, q)
