"""Which episodes show the same thing: by the hash of their video, or by a first frame that is the same to the eye.

Two first frames count as the same when their 48 x 32 grey thumbnails differ by no more than ``SAME_LEVELS`` anywhere and
by ``SAME_RMS`` in the mean square: another encoding of one recording passes, an object that stands a few pixels elsewhere
does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kinema4d.data import video
from kinema4d.data.store import read_meta

THUMBNAIL = (48, 32)
"""Columns and rows."""
SAME_LEVELS = 10
"""Grey levels (of 255), at the worst pixel."""
SAME_RMS = 3.0
"""Grey levels (of 255), root of the mean square."""
_BLOCK, _REACH = 1024, 8192


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """What an episode looks like, in short."""

    video: str
    """Hash of its colour video."""
    thumbnail: UInt8[np.ndarray, "32 48"]
    """Its first frame, small and grey."""


def looks_of(root: Path, id: str) -> Look:
    """Read what is needed of one episode."""
    folder = root / "episodes" / id
    try:
        meta = read_meta(folder)
        first = video.read(folder / "rgb.mp4", count=meta["frames"], frames=slice(0, 1))[0]
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}; 'kinema4d data curate {root}' leaves damaged episodes out") from None
    small = Image.fromarray(first).convert("L").resize(THUMBNAIL, Image.Resampling.BOX)
    return Look(video=str(meta.get("rgb", {}).get("sha256", "")), thumbnail=np.asarray(small, np.uint8))


def same_content(looks: Sequence[Look]) -> list[tuple[int, int]]:
    """Pairs that show the same thing: as many as it takes to connect all that do, directly or through others."""
    parent = list(range(len(looks)))
    pairs: list[tuple[int, int]] = []

    def top(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def join(i: int, j: int) -> None:
        a, b = sorted((top(i), top(j)))
        if a != b:
            parent[b] = a
            pairs.append((min(i, j), max(i, j)))

    first: dict[bytes | str, int] = {}
    different = []
    for i, look in enumerate(looks):
        picture = look.thumbnail.tobytes()
        if picture not in first:
            different.append(i)
        for key in (picture, look.video):
            if key:
                join(first.setdefault(key, i), i)
    if len(different) > 1:
        for i, j in _near(np.stack([looks[i].thumbnail for i in different]).reshape(len(different), -1)):
            join(different[i], different[j])
    return sorted(pairs)


def _near(pictures: UInt8[np.ndarray, "n p"]) -> Iterator[tuple[int, int]]:
    """Pairs of rows that are the same to the eye."""
    # Means differ no more than pictures do in the mean square, so sorted by mean only neighbours need comparing.
    means = pictures.mean(axis=1)
    order = np.argsort(means, kind="stable")
    means, center = means[order], pictures.mean(axis=0, dtype=np.float32)
    limit = SAME_RMS**2 * pictures.shape[1]
    for start in range(0, len(order), _BLOCK):
        rows = order[start : start + _BLOCK]
        a = pictures[rows].astype(np.float32) - center
        end = int(np.searchsorted(means, means[start + len(rows) - 1] + SAME_RMS, side="right"))
        for left in range(start, end, _REACH):
            columns = order[left : min(left + _REACH, end)]
            b = pictures[columns].astype(np.float32) - center
            distance = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * (a @ b.T)
            for i, j in np.argwhere(distance <= limit + 1):
                x, y = int(rows[i]), int(columns[j])
                if start + i < left + j and np.abs(pictures[x].astype(np.int16) - pictures[y]).max() <= SAME_LEVELS:
                    yield x, y
