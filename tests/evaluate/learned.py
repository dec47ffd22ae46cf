"""What the tests of learned metrics share: images anyone can make again, a generated episode, weights or a skip."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, shift

from kinema4d.evaluate import weights
from kinema4d.evaluate.score import Pair
from kinema4d.geometry.camera import from_depth
from kinema4d.types import Camera, Clip, Episode


def one_thread() -> None:
    """Tests share the machine with other tests, and torch's threads wait for each other by spinning."""
    pytest.importorskip("torch").set_num_threads(1)


def need(name: str) -> None:
    """Skip where the weights are absent."""
    one_thread()
    pytest.importorskip("safetensors")
    if weights.find(name) is None:
        pytest.skip(f"the weights of {name} are absent; {weights.remedy(name)}")


def noise(height: int, width: int, seed: int, count: int = 2) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 256, (count, height, width, 3)).astype(np.uint8)


def smooth(height: int, width: int, seed: int, count: int = 2) -> np.ndarray:
    """Images bilinear between 8x12 random colours."""
    small = noise(8, 12, seed, count).astype(np.float64)
    y, x = np.linspace(0, 7, height), np.linspace(0, 11, width)
    y0, x0 = np.minimum(y.astype(int), 6), np.minimum(x.astype(int), 10)
    fy, fx = (y - y0)[None, :, None, None], (x - x0)[None, None, :, None]
    top = small[:, y0][:, :, x0] * (1 - fx) + small[:, y0][:, :, x0 + 1] * fx
    bottom = small[:, y0 + 1][:, :, x0] * (1 - fx) + small[:, y0 + 1][:, :, x0 + 1] * fx
    return np.rint(top * (1 - fy) + bottom * fy).astype(np.uint8)


def clip_of(rgb: np.ndarray) -> Clip:
    """A clip whose geometry nobody asks for."""
    frames, height, width, _ = rgb.shape
    K = np.array([[width, 0, (width - 1) / 2], [0, width, (height - 1) / 2], [0, 0, 1.0]])
    depth = np.ones((frames, height, width))
    camera = Camera(K=K, T_world_camera=np.eye(4), height=height, width=width)
    return Clip(camera=camera, rgb=rgb, pointmap=from_depth(K, depth, depth > 0), fps=10.0)


def pair_of(predicted: np.ndarray, truth: np.ndarray) -> Pair:
    return Pair(predicted=clip_of(predicted), truth=Episode(clip=clip_of(truth)))


@lru_cache(maxsize=2)
def generated(seed: int = 3) -> np.ndarray:
    """Frames of a generated episode: a small arm pushes something, 49 frames of 96x144."""
    pytest.importorskip("mujoco")
    from kinema4d.robot.zoo import load_robot
    from kinema4d.scenes.episode import Wish, perform, record, set_stage

    stage = set_stage(load_robot("k4arm"), Wish(task="push", seed=seed))
    return record(stage, perform(stage), source="", facts={}).clip.rgb


KINDS = ("blur", "noise", "shift", "delay")
"""Ways to spoil a clip."""


def degraded(rgb: np.ndarray, kind: str, amount: float) -> np.ndarray:
    """The clip spoiled more with a larger amount, which is in pixels, in 10 grey levels, in pixels, in frames."""
    if kind == "blur":
        return gaussian_filter(rgb.astype(np.float64), (0, amount, amount, 0)).round().astype(np.uint8)
    if kind == "noise":
        grain = np.random.default_rng(0).normal(0, 10, rgb.shape)
        return np.clip(rgb + amount * grain, 0, 255).round().astype(np.uint8)
    if kind == "shift":
        return shift(rgb, (0, 0, amount, 0), order=0, mode="nearest")
    return rgb[np.maximum(np.arange(len(rgb)) - round(amount), 0)]
