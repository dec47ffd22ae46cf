"""Procedural colours and textures: wood, cloth, tiles, noise, stripes. Drawn, so that nothing needs a download."""

from __future__ import annotations

import colorsys

import numpy as np
from jaxtyping import Float, UInt8

from kinema4d.scenes.shapes import Color

SIDE = 128
"""Texels along a side of a texture."""
NAMED: dict[str, tuple[float, float, float]] = {
    "red": (0.0, 0.85, 0.8),
    "orange": (0.07, 0.9, 0.92),
    "yellow": (0.14, 0.85, 0.92),
    "green": (0.35, 0.7, 0.6),
    "teal": (0.49, 0.75, 0.62),
    "blue": (0.6, 0.75, 0.8),
    "purple": (0.77, 0.55, 0.65),
    "pink": (0.92, 0.5, 0.9),
    "white": (0.1, 0.03, 0.95),
    "brown": (0.07, 0.6, 0.45),
}
"""Hue, saturation and value of colours that have a name, so that an instruction can say which thing it means."""


def named_color(rng: np.random.Generator, name: str) -> Color:
    """A shade of a named colour."""
    h, s, v = NAMED[name]
    shade = colorsys.hsv_to_rgb(
        (h + rng.normal(0, 0.01)) % 1, np.clip(s + rng.normal(0, 0.05), 0, 1), np.clip(v + rng.normal(0, 0.05), 0, 1)
    )
    return _color(np.array(shade))


def muted_color(rng: np.random.Generator) -> Color:
    """A colour for walls and tables."""
    return _color(np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.0, 0.3), rng.uniform(0.35, 0.9))))


def texture(rng: np.random.Generator, kind: str, color: Color) -> UInt8[np.ndarray, "h w 3"]:
    """A texture of one of :data:`KINDS` that can be laid side by side without a seam."""
    if kind not in _PATTERNS:
        raise ValueError(f"unknown texture {kind!r}; known are {', '.join(_PATTERNS)}")
    value = _PATTERNS[kind](rng)
    tint = np.array(color) / 255 * (1 + (value - 0.5)[..., None] * np.array([1.0, 0.95, 0.9]))
    return (255 * np.clip(tint, 0, 1)).astype(np.uint8)


def _noise(rng: np.random.Generator, cells: int) -> Float[np.ndarray, "h w"]:
    """Smooth periodic noise, 0..1."""
    grid = rng.random((cells, cells))
    at = np.arange(SIDE) * cells / SIDE
    i, f = at.astype(int), at - at.astype(int)
    f = f * f * (3 - 2 * f)
    rows = grid[i] * (1 - f)[:, None] + grid[(i + 1) % cells] * f[:, None]
    return rows[:, i] * (1 - f) + rows[:, (i + 1) % cells] * f


def _wood(rng: np.random.Generator) -> Float[np.ndarray, "h w"]:
    x = np.arange(SIDE) / SIDE
    rings = np.sin(2 * np.pi * (rng.integers(3, 7) * x[None, :] + 0.8 * _noise(rng, 4)))
    return 0.5 + 0.12 * rings + 0.15 * (_noise(rng, 32) - 0.5)


def _cloth(rng: np.random.Generator) -> Float[np.ndarray, "h w"]:
    n = int(rng.integers(12, 24))
    x = np.sin(2 * np.pi * n * np.arange(SIDE) / SIDE)
    return 0.5 + 0.1 * np.maximum(x[None, :], x[:, None]) + 0.08 * (_noise(rng, 8) - 0.5)


def _tiles(rng: np.random.Generator) -> Float[np.ndarray, "h w"]:
    n = int(rng.integers(2, 5))
    at = np.arange(SIDE) * n / SIDE
    board = (
        (at.astype(int)[:, None] + at.astype(int)[None, :]) % 2
        if n % 2 == 0
        else rng.random((n, n))[at.astype(int)][:, at.astype(int)]
    )
    gap = ((at % 1) < 0.05)[:, None] | ((at % 1) < 0.05)[None, :]
    return np.where(gap, 0.2, 0.5 + rng.uniform(0.05, 0.25) * (board - 0.5))


def _speckle(rng: np.random.Generator) -> Float[np.ndarray, "h w"]:
    return 0.5 + 0.3 * (_noise(rng, 8) - 0.5) + 0.25 * (_noise(rng, 40) - 0.5)


def _stripes(rng: np.random.Generator) -> Float[np.ndarray, "h w"]:
    n = int(rng.integers(3, 7))
    band = (np.arange(SIDE) * 2 * n // SIDE) % 2
    return np.broadcast_to(0.5 + 0.3 * (band[:, None] - 0.5), (SIDE, SIDE))


def _dots(rng: np.random.Generator) -> Float[np.ndarray, "h w"]:
    n = int(rng.integers(3, 7))
    at = (np.arange(SIDE) * n / SIDE) % 1 - 0.5
    return np.where(at[:, None] ** 2 + at[None, :] ** 2 < rng.uniform(0.04, 0.12), 0.85, 0.45)


def _diagonal(rng: np.random.Generator) -> Float[np.ndarray, "h w"]:
    n, at = int(rng.integers(2, 6)), np.arange(SIDE) / SIDE
    wave = np.sin(2 * np.pi * n * (at[:, None] + at[None, :]))
    return 0.5 + 0.25 * np.sign(wave) * np.abs(wave) ** 0.3


def _patches(rng: np.random.Generator) -> Float[np.ndarray, "h w"]:
    return 0.3 + 0.45 * (_noise(rng, 6) > 0.5) + 0.1 * (_noise(rng, 24) - 0.5)


_SEEN = {"wood": _wood, "cloth": _cloth, "tiles": _tiles, "speckle": _speckle, "stripes": _stripes}
_UNSEEN = {"dots": _dots, "diagonal": _diagonal, "patches": _patches}
_PATTERNS = {**_SEEN, **_UNSEEN}
KINDS = tuple(_SEEN)
"""Textures that worlds may learn from."""
UNSEEN_KINDS = tuple(_UNSEEN)
"""Textures kept for judging them."""
LOOKS = {"train": KINDS, "unseen": UNSEEN_KINDS}
"""Textures by look."""


def _color(rgb: np.ndarray) -> Color:
    r, g, b = (round(255 * float(np.clip(c, 0, 1))) for c in rgb)
    return r, g, b
