"""Pictures as they might have been: other crops, sizes, colours, patterns, sensors; things hidden by others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional as F

from kinema4d.train.see_pack import ROBOT, Picture
from kinema4d.types import Camera
from kinema4d.world.small.complete import Glimpse


def thinned(picture: Picture, factor: int, at: tuple[int, int] = (0, 0)) -> Picture:
    """Every ``factor``-th pixel: what a smaller picture would show."""
    if factor == 1:
        return picture
    r, c = at
    K = picture.camera.K.copy()
    K[0, 2], K[1, 2] = (K[0, 2] - c) / factor, (K[1, 2] - r) / factor
    K[0, :2], K[1, 1] = K[0, :2] / factor, K[1, 1] / factor
    rgb = picture.rgb[r::factor, c::factor]
    h, w = rgb.shape[:2]
    camera = Camera(K=K, T_world_camera=picture.camera.T_world_camera, height=h, width=w)
    inverse, ids = picture.inverse[r::factor, c::factor], picture.ids[r::factor, c::factor]
    return replace(picture, rgb=rgb, inverse=inverse, ids=ids, camera=camera)


def cropped(picture: Picture, rng: np.random.Generator) -> Picture:
    """A random two thirds of both sides: less surroundings to compute."""
    h, w = picture.rgb.shape[:2]
    rows, columns = h * 2 // 3, w * 2 // 3
    r, c = int(rng.integers(h - rows + 1)), int(rng.integers(w - columns + 1))
    K = picture.camera.K.copy()
    K[0, 2], K[1, 2] = K[0, 2] - c, K[1, 2] - r
    camera = Camera(K=K, T_world_camera=picture.camera.T_world_camera, height=rows, width=columns)
    cut = (slice(r, r + rows), slice(c, c + columns))
    return replace(picture, rgb=picture.rgb[cut], inverse=picture.inverse[cut], ids=picture.ids[cut], camera=camera)


def varied(picture: Picture, rng: np.random.Generator) -> Picture:
    """A crop, sometimes as coarse as a small picture."""
    picture = cropped(picture, rng)
    r, c = rng.integers(2, size=2).tolist()
    return enlarged(thinned(picture, 2, (r, c)), 2) if rng.random() < 0.3 else picture


def enlarged(picture: Picture, factor: int) -> Picture:
    """Every pixel ``factor`` times along both sides."""
    if factor == 1:
        return picture
    grow = lambda a: np.repeat(np.repeat(a, factor, 0), factor, 1)  # noqa: E731
    K = picture.camera.K.copy()
    K[:2, :2] *= factor
    K[0, 2], K[1, 2] = (K[0, 2] + 0.5) * factor - 0.5, (K[1, 2] + 0.5) * factor - 0.5
    h, w = picture.rgb.shape[:2]
    camera = Camera(K=K, T_world_camera=picture.camera.T_world_camera, height=h * factor, width=w * factor)
    return replace(picture, rgb=grow(picture.rgb), inverse=grow(picture.inverse), ids=grow(picture.ids), camera=camera)


def recoloured(rgb: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another white balance, exposure, contrast and noise."""
    x = rgb.astype(np.float32) / 255
    x = x ** np.float32(rng.uniform(0.7, 1.4)) * rng.uniform(0.8, 1.2, 3).astype(np.float32) * rng.uniform(0.7, 1.25)
    if rng.random() < 0.3:
        x = x[..., rng.permutation(3)]
    x += rng.normal(0, rng.uniform(0, 0.04), x.shape).astype(np.float32)
    return (255 * np.clip(x, 0, 1)).astype(np.uint8)


def repainted(rgb: np.ndarray, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Other colours and patterns on some of the surfaces, light and shade kept: the generator has few patterns, the
    world has many."""
    h, w = ids.shape
    x = rgb.astype(np.float32) / 255
    for i in np.unique(ids[::4, ::4]):
        if i == ROBOT or rng.random() < 0.5:
            continue
        own = ids == i
        shade = x[own].mean(axis=1, keepdims=True)
        paint = rng.uniform(0.1, 1.0, 3) * shade / max(float(np.percentile(shade, 90)), 0.05)
        keep = rng.uniform(0, 1)
        new = (keep * x[own] + (1 - keep) * paint).astype(np.float32)
        if rng.random() < 0.7:
            pattern = _pattern(h, w, rng)[own][:, None]
            new = new * (1 - pattern) + pattern * rng.uniform(0, 1, 3).astype(np.float32) * np.maximum(shade, 0.2)
        x[own] = new
    return (255 * np.clip(x, 0, 1)).astype(np.uint8)


def _pattern(h: int, w: int, rng: np.random.Generator) -> np.ndarray:
    """How much of a second colour is where: waves that may cross, or blotches."""
    strength = np.float32(rng.uniform(0.1, 0.8))
    if rng.random() < 0.5:
        v, u = np.mgrid[:h, :w].astype(np.float32)
        out = np.ones((h, w), np.float32)
        for _ in range(int(rng.integers(1, 3))):
            turn, length = rng.uniform(0, np.pi), rng.uniform(3, 40)
            wave = np.sin(2 * np.pi / length * (u * np.cos(turn) + v * np.sin(turn)) + rng.uniform(0, 6))
            out *= (wave > rng.uniform(-0.8, 0.8)) if rng.random() < 0.6 else 0.5 + 0.5 * wave
        return strength * out
    side = int(rng.integers(3, 24))
    coarse = torch.from_numpy(rng.random((1, 1, max(h // side, 2), max(w // side, 2))).astype(np.float32))
    blotch = F.interpolate(coarse, size=(h, w), mode="bilinear", align_corners=False)[0, 0].numpy()
    return strength * (blotch > rng.uniform(0.3, 0.7)) if rng.random() < 0.5 else strength * blotch


def worn(depth: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Depth as sensors and guesses have it: noise, slow errors, holes; and where it is known."""
    h, w = depth.shape
    valid = depth > 0
    kind = rng.random()
    if kind < 0.4:
        return depth, valid
    z = depth * (1 + rng.normal(0, rng.uniform(0, 0.003), depth.shape)).astype(np.float32)
    if kind > 0.7:  # as a network guesses: smooth, off by up to two percent
        coarse = torch.from_numpy(rng.normal(0, rng.uniform(0, 0.012), (1, 1, 5, 7)).astype(np.float32))
        z = z * (1 + F.interpolate(coarse, size=(h, w), mode="bicubic", align_corners=False)[0, 0].numpy())
    if rng.random() < 0.3:
        holes = torch.from_numpy(rng.random((1, 1, h // 12, w // 12)).astype(np.float32))
        holes = F.interpolate(holes, size=(h, w), mode="bilinear", align_corners=False)[0, 0].numpy()
        valid = valid & (holes < rng.uniform(0.75, 1.0))
    return z.astype(np.float32), valid


def covered(g: Glimpse, rng: np.random.Generator) -> Glimpse:
    """A glimpse in which something nearer hides one side of the part, up to two thirds of it."""
    rows, columns = np.nonzero(g.own)
    if len(rows) < 20:
        return g
    turn = rng.uniform(0, 2 * np.pi)
    along = rows * np.sin(turn) + columns * np.cos(turn)
    v, u = np.indices(g.own.shape)
    over = (v * np.sin(turn) + u * np.cos(turn) > np.quantile(along, rng.uniform(0.35, 0.95))) & (g.depth > 0)
    nearest = float(g.depth[rows, columns].min())
    depth = np.where(over, np.minimum(g.depth, nearest - rng.uniform(0.01, 0.15)), g.depth).astype(np.float32)
    return replace(g, own=g.own & ~over, depth=depth)


def frayed(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A mask as a network gives it: a pixel more or less at its border."""
    from scipy.ndimage import binary_dilation, binary_erosion

    return np.asarray((binary_dilation if rng.random() < 0.4 else binary_erosion)(mask), bool)
