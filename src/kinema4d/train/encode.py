"""Data sets as latents for the full-scale model: each episode once, whole or absent, by any number of processes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from kinema4d.data.dataset import open_dataset
from kinema4d.data.pool import Progress
from kinema4d.geometry.camera import picks
from kinema4d.robot.recorded import control_of
from kinema4d.types import Episode
from kinema4d.world.condition import Normalisation
from kinema4d.world.frames import at_size, window
from kinema4d.world.wan import cache, files
from kinema4d.world.wan.condition import first_latents, robot_latents, robot_mask
from kinema4d.world.wan.latents import PointStats, as_video, encode, latent_shape, measured
from kinema4d.world.wan.options import processes
from kinema4d.world.wan.world import looked

PLAIN = PointStats(mean=0.0, std=1.0)
"""Latents are kept without the scaling of pointmaps, which may be measured anew."""
CLIPPED = (0.5, 99.5)
"""Percentiles of a scene's points that map to 0 and 1: a far wall would take all of the range."""


def encode_dataset(
    root: str | Path,
    out: str | Path,
    *,
    vae: Any,
    clip: Any,
    eye: Any,
    frames: int = 49,
    height: int = 480,
    width: int = 720,
    ids: Sequence[str] | None = None,
    release: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Encode the episodes of a data set that are not there yet; with ``torchrun`` each process takes its share. A folder of the official
    release (``video_latents/`` and what goes with it) is taken over instead. ``release`` also writes the official layout under
    ``out/release``. Returns how many were encoded, kept and left out."""
    root, out = Path(root), Path(out)
    rank, many = processes()
    shape = latent_shape(frames, height, width)
    if (root / cache.RELEASE[0]).is_dir():
        every = cache.release_names(root)
        made = lambda id: latents_of_release(root, id, vae, frames=frames, height=height, width=width)  # noqa: E731
    else:
        dataset = open_dataset(root)
        every = dataset.ids
        made = lambda id: latents_of(dataset.load(id), vae, clip, eye, frames=frames, height=height, width=width)  # noqa: E731
    mine = list(ids if ids is not None else every)[rank::many]
    out.mkdir(parents=True, exist_ok=True)
    count = {"encoded": 0, "kept": 0, "left_out": 0}
    for n, id in enumerate(mine):
        path = out / f"{id}.safetensors"
        if path.is_file():
            if (found := files.header(path)[0]["colour"].shape[1:]) != shape:
                raise ValueError(
                    f"{path} holds latents of {found} (times, rows, columns), now {shape}; use another --out"
                )
            count["kept"] += 1
        else:
            try:
                latents, robot, world = made(id)
            except ValueError as error:  # one bad episode is no reason to stop; a data set without any is
                warnings.warn(f"left out {id}: {error}", stacklevel=2)
                count["left_out"] += 1
                continue
            cache.write(path, latents, scale=robot, world=world, source=id)
            if release:
                cache.write_release(out / "release", id, latents)
            count["encoded"] += 1
        if progress is not None:
            progress(n + 1, len(mine))
    if mine and not count["encoded"] + count["kept"]:
        raise ValueError(f"no episode of {root} could be encoded: see the warnings above")
    return count


@torch.no_grad()
def latents_of(episode: Episode, vae: Any, clip: Any, eye: Any, *, frames: int, height: int, width: int) -> tuple[cache.Latents, Normalisation, Normalisation]:  # fmt: skip
    """One episode; refused without geometry or with too few frames. Longer ones begin at their start."""
    shot = episode.clip
    if len(shot) < frames:
        raise ValueError(f"{episode.source or 'the episode'} has {len(shot)} frames, the model learns from {frames}")
    if not shot.pointmap.valid.any():
        raise ValueError(f"{episode.source or 'the episode'} has no geometry: there is no pointmap to learn")
    control = at_size(window(control_of(episode), slice(0, frames)), height, width)
    rgb = np.stack([_picture(f, height, width) for f in shot.rgb[:frames]]) / np.float32(255)
    rows, columns = picks(shot.rgb.shape[1:3], (height, width))
    points, valid = (a[:frames][:, rows][:, :, columns] for a in (shot.pointmap.points, shot.pointmap.valid))
    world = _extent(points, valid)
    values = np.where(valid[..., None], world.apply(points).clip(0, 1), 0).astype(np.float32)
    colour, robot, scale = robot_latents(vae, control, PLAIN, "act")
    assert colour is not None
    latents = cache.Latents(
        colour=encode(vae, as_video(rgb))[0].cpu(), points=encode(vae, as_video(values))[0].cpu(), robot_colour=colour[0].cpu(),
        robot_points=robot[0].cpu(), mask=cache.as_mask(robot_mask(control.mask) > 0),
        first=first_latents(vae, _picture(shot.rgb[0], height, width), frames)[0].cpu(), image=looked(clip, eye, shot.rgb[0])[0].cpu(),
    )  # fmt: skip
    return latents, scale, world


UNIT = Normalisation(minimum=np.zeros(3), maximum=np.ones(3))
"""The release does not keep how its points were scaled: errors of points are in its own unit."""


@torch.no_grad()
def latents_of_release(root: Path, name: str, vae: Any, *, frames: int, height: int, width: int) -> tuple[cache.Latents, Normalisation, Normalisation]:  # fmt: skip
    """One episode of the official release: its latents as they are, its mask at the rate of latents, and its condition encoded."""
    found = cache.read_release(root, name)
    mask, picture = root / "arm_masks_npy" / f"{name}.npy", root / "first_frames" / f"{name}.png"
    if missing := [k for k in cache.RELEASE_PARTS if k not in found]:
        raise ValueError(f"{root} has no latents of {', '.join(missing)} for {name!r}")
    if absent := [p for p in (mask, picture) if not p.is_file()]:
        raise ValueError(f"{absent[0]} is missing: {name!r} cannot be learned from without it")
    there = np.load(mask)[:frames, ..., 0] > 0
    if there.shape != (frames, height, width):
        raise ValueError(
            f"{mask} holds a mask of {list(there.shape)}, expected {[frames, height, width]} and one channel"
        )
    first = _picture(np.asarray(Image.open(picture).convert("RGB")), height, width)
    times = latent_shape(frames, height, width)[0]
    own = {k: v[:, :times] if v.ndim == 4 else v for k, v in found.items()}  # the release's pointmaps may be longer
    latents = cache.Latents(
        **own, mask=cache.as_mask(robot_mask(there) > 0), first=first_latents(vae, first, frames)[0].cpu()
    )
    return latents, UNIT, UNIT


def _extent(points: np.ndarray, valid: np.ndarray) -> Normalisation:
    """Of a scene, for each axis, without its furthest points."""
    low, high = np.percentile(points[valid].astype(np.float64), CLIPPED, axis=0)
    return Normalisation(minimum=low, maximum=np.maximum(high, low + 1e-6))


def _picture(image: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def measure(folder: str | Path) -> PointStats:
    """Statistics of the pointmaps of a folder of latents, for training on new data (the release's are -0.17 and 1.36)."""
    return measured(cache.read(path).points for path in cache.listed(folder))
