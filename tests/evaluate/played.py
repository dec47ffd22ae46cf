"""Small episodes that tests of interaction judge, and bad worlds made of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from kinema4d.geometry.camera import rays
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.episode import Wish, perform, record, set_stage
from kinema4d.types import Clip, Episode, Pointmap


@cache
def episode(task: str, seed: int = 0, robot: str = "panda", scenario: str = "canonical") -> Episode:
    """An expert's episode at 96x144."""
    stage = set_stage(load_robot(robot), Wish(task=task, seed=seed, scenario=scenario))
    return record(stage, perform(stage), source=f"test/{task}/{seed}", facts={}, threads=1)


def rebuilt(clip: Clip, rgb: np.ndarray, points: np.ndarray) -> Clip:
    """The clip with other pixels."""
    return replace(clip, rgb=rgb, pointmap=Pointmap(points=points.astype(np.float32), valid=clip.pointmap.valid))


def frozen(truth: Episode) -> Clip:
    """The first frame for ever, the robot pasted where it is nearer."""
    clip, robot = truth.clip, truth.robot_mask
    assert robot is not None
    rgb, points = (np.repeat(a[:1], len(clip), axis=0) for a in (clip.rgb, clip.pointmap.points))
    nearer = robot & (clip.pointmap.depth < points[..., 2] + 1e-4)
    rgb[nearer], points[nearer] = clip.rgb[nearer], clip.pointmap.points[nearer]
    return rebuilt(clip, rgb, points)


def erased(truth: Episode, name: str) -> Clip:
    """One thing replaced by the table that it stands on, in every frame."""
    clip = truth.clip
    assert truth.labels is not None
    own = truth.labels == truth.label_names.index(name) + 1
    T = clip.camera.poses(1)[0]
    directions = rays(clip.camera.K, clip.camera.height, clip.camera.width)
    falls = np.minimum((directions @ T[:3, :3].T)[..., 2], -1e-3)
    table = directions * np.clip(-T[2, 3] / falls, 0.1, 5.0)[..., None]
    rgb, points = clip.rgb.copy(), clip.pointmap.points.copy()
    color = np.median(clip.rgb[0][truth.labels[0] == 0], axis=0).astype(np.uint8)
    for t in range(len(clip)):
        rgb[t][own[t]], points[t][own[t]] = color, table[own[t]]
    return rebuilt(clip, rgb, points)


def noisy(clip: Clip, metres: float, color: float, seed: int = 0) -> Clip:
    """Noise along the rays and on the colours."""
    rng = np.random.default_rng(seed)
    far = rng.normal(0, 1, clip.rgb.shape[:3]) * metres / np.maximum(clip.pointmap.depth, 0.1)
    rgb = np.clip(clip.rgb + color * rng.normal(0, 1, clip.rgb.shape), 0, 255).astype(np.uint8)
    return rebuilt(clip, rgb, clip.pointmap.points * (1 + far)[..., None])


def delayed(clip: Clip, frames: int) -> Clip:
    """Everything later."""
    late = np.maximum(np.arange(len(clip)) - frames, 0)
    return rebuilt(clip, clip.rgb[late], clip.pointmap.points[late])


def blurred(clip: Clip, sigma: float) -> Clip:
    """Colours and depth blurred in space."""
    from scipy.ndimage import gaussian_filter

    if sigma == 0:
        return clip
    rgb = gaussian_filter(clip.rgb.astype(np.float32), (0, sigma, sigma, 0)).round().astype(np.uint8)
    points = gaussian_filter(clip.pointmap.points.astype(np.float64), (0, sigma, sigma, 0))
    return rebuilt(clip, rgb, points)


def shifted(clip: Clip, pixels: int) -> Clip:
    """The picture moved sideways, the first frame left alone."""
    rgb, depth = clip.rgb.copy(), clip.pointmap.depth.copy()
    if pixels:
        rgb[1:] = np.concatenate([np.repeat(rgb[1:, :, :1], pixels, axis=2), rgb[1:, :, :-pixels]], axis=2)
        depth[1:] = np.concatenate([np.repeat(depth[1:, :, :1], pixels, axis=2), depth[1:, :, :-pixels]], axis=2)
    return rebuilt(clip, rgb, depth[..., None] * rays(clip.camera.K, clip.camera.height, clip.camera.width))
