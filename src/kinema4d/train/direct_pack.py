"""What diffusion transformers learn from: episodes at their size; for painters, beside what the small world draws of them.

A pack is a folder of shards (``.npz``), each whole or absent, so an interrupted run goes on. One pack serves every
configuration of one size: which control a model is told by is chosen when it trains.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float16, Float32, UInt8

from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.pool import Progress, spread
from kinema4d.data.ways import away_of
from kinema4d.files import whole_file
from kinema4d.geometry.camera import picks
from kinema4d.robot.recorded import control_of
from kinema4d.train.move_pack import the_small_world
from kinema4d.types import Episode, Pointmap
from kinema4d.world.condition import Normalisation
from kinema4d.world.protocol import first_depth
from kinema4d.world.small import painter
from kinema4d.world.small.contact import reach_of
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.direct import config_of, scene_of, small
from kinema4d.world.small.patches import Scene

PER_SHARD = 8
"""Episodes per shard."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Take:
    """One episode at the size of a model."""

    rgb: UInt8[np.ndarray, "t h w 3"]
    """The true clip."""
    points: Float16[np.ndarray, "t h w 3"]
    """Its points, camera frame, metres."""
    robot: Float16[np.ndarray, "t h w 3"]
    """The robot's."""
    there: Bool[np.ndarray, "t h w"]
    """Where the robot is."""
    robot_rgb: UInt8[np.ndarray, "t h w 3"]
    """Its colour."""
    changed: Bool[np.ndarray, "t h w"]
    """Pixels without robot that are not as in the first frame."""
    actions: Float32[np.ndarray, "t 10"]
    """Of the hand."""
    text: str
    """The instruction."""
    group: str
    """Episodes of one scene."""
    robot_name: str
    """Who moves."""
    away: Float16[np.ndarray, "t h w 3"] | None = None
    """How far the pixels of the first frame have gone, by the tracks, metres. Only to teach with, where episodes
    have tracks."""
    reach: UInt8[np.ndarray, "t _ _ _"] | None = None
    """:func:`kinema4d.world.small.contact.reach_of` it, or with what is carried beside it."""
    carry: Float32[np.ndarray, "t _ _ 6"] | None = None
    """:func:`kinema4d.world.small.contact.carry_of` it: made when it is needed, not kept."""
    scale: Normalisation | None = None
    """Unit of length, where these frames are some of a longer clip."""
    prior_rgb: UInt8[np.ndarray, "t h w 3"] | None = None
    """For painters, what the small world draws of it from its first frame."""
    prior_points: Float16[np.ndarray, "t h w 3"] | None = None
    """Its points."""
    prior_known: Bool[np.ndarray, "t h w"] | None = None
    """What of it is no guess."""

    @property
    def environment(self) -> Pointmap:
        """Of the first frame."""
        return Pointmap(points=self.points[:1].astype(np.float32), valid=np.ones_like(self.there[:1]))

    @property
    def scene(self) -> Scene:
        """What a model may know of it."""
        everywhere = np.ones(self.there.shape, bool)
        prior = self.prior_points
        return Scene(
            scale=self.scale, reach=self.reach if self.carry is not None else None, carry=self.carry,
            image=self.rgb[0], robot=Pointmap(points=self.robot.astype(np.float32), valid=self.there),
            robot_rgb=self.robot_rgb, actions=self.actions, text=self.text,
            environment=self.environment,
            prior_rgb=self.prior_rgb, prior_known=self.prior_known,
            prior_points=None if prior is None else Pointmap(points=prior.astype(np.float32), valid=everywhere),
        )  # fmt: skip


def take_of(episode: Episode, config: DiffusionConfig) -> Take:
    """An episode at the size of a model; refused without geometry or with another number of frames. For a painter the small
    world foretells it from its first frame."""
    clip = episode.clip
    if len(clip) != config.frames:
        raise ValueError(
            f"the model learns from {config.frames} frames, {episode.source or 'this episode'} has {len(clip)}"
        )
    if not clip.pointmap.valid.any():
        raise ValueError(f"{episode.source or 'this episode'} has no geometry: there is nothing to learn points from")
    control, depth = control_of(episode), first_depth(clip)
    if config.prior:
        prior = the_small_world("small").prior(clip.rgb[0], control, depth=depth)
        scene = painter.scene_of(clip.rgb[0], control, prior, config)
    else:
        scene = scene_of(clip.rgb[0], control, config, depth=depth, text=episode.text)
    before = scene.prior_points
    rows, columns = picks(clip.rgb.shape[1:3], (config.height, config.width))
    rgb = np.stack([small(frame, config.height, config.width) for frame in clip.rgb])
    points = clip.pointmap.points[:, rows][:, :, columns]
    other = (np.abs(rgb.astype(np.int16) - rgb[:1]).max(axis=-1) > 12) | (
        np.abs(points[..., 2] - points[:1, ..., 2]) > 0.01
    )
    return Take(
        rgb=rgb, points=points.astype(np.float16), robot=scene.robot.points.astype(np.float16), there=scene.robot.valid,
        robot_rgb=scene.robot_rgb, changed=other & ~scene.robot.valid, actions=scene.actions, text=episode.text,
        group=episode.group or episode.source, robot_name="+".join(a.robot for a in episode.arms),
        prior_rgb=scene.prior_rgb, prior_points=None if before is None else before.points.astype(np.float16),
        prior_known=scene.prior_known, away=None if config.prior else away_of(episode, rows, columns),
        reach=None if config.prior else reach_of(scene.robot, Pointmap(points=points[:1], valid=np.ones_like(scene.robot.valid[:1]))),
    )  # fmt: skip


# ---------------------------------------------------------------------- packs

_KEPT = tuple(f.name for f in fields(Take) if f.name not in ("scale", "carry"))


def make_pack(
    folder: str | Path,
    data: str | Path,
    config: DiffusionConfig,
    *,
    most: int | None = None,
    workers: int = 2,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Shrink the episodes of ``data`` (at most so many, spread over all) into shards; those that are there already are kept."""
    folder, ids = Path(folder), open_dataset(Path(data)).ids
    if most is not None and most < len(ids):
        ids = [ids[i * len(ids) // most] for i in range(most)]
    size = {"frames": config.frames, "height": config.height, "width": config.width}
    size |= {"prior": True} if config.prior else {}
    about = folder / "about.json"
    if about.exists() and (found := json.loads(about.read_text())) != size:
        raise ValueError(f"{folder} holds a pack made for {found}, now {size}; use another folder")
    with whole_file(about, overwrite=True) as temporary:
        temporary.write_text(json.dumps(size))
    parts = [ids[i : i + PER_SHARD] for i in range(0, len(ids), PER_SHARD)]
    paths = [folder / f"take-{i:05d}-{zlib.crc32(' '.join(p).encode()):08x}.npz" for i, p in enumerate(parts)]
    missing = [(p, str(data), x, asdict(config)) for p, x in zip(paths, parts, strict=True) if not p.exists()]
    spread(_make_shard, missing, workers=workers, progress=progress)
    return tuple(paths)


@lru_cache(maxsize=1)
def _dataset(root: str) -> Dataset:
    return open_dataset(root)


def _make_shard(content: tuple[Path, str, list[str], dict]) -> None:
    path, root, ids, config = content
    rows: dict[str, Any] = {}
    count = 0
    for id in ids:
        try:
            take = take_of(_dataset(root).load(id), config_of(config))
        except ValueError as error:  # one bad episode is no reason to stop; a pack without any is
            warnings.warn(f"left out {id}: {error}", stacklevel=2)
            continue
        have = {n: getattr(take, n) for n in _KEPT}
        rows |= {f"{count}.{n}": np.asarray(v) for n, v in have.items() if v is not None}
        count += 1
    with whole_file(path, overwrite=True) as temporary:
        np.savez_compressed(temporary, count=np.array(count), **rows)


@dataclass(frozen=True)
class Kept:
    """An episode of a pack that is read when it is needed: thousands would not fit into memory."""

    path: Path
    """Its shard."""
    number: int
    """In there."""
    group: str
    """Episodes of one scene."""
    robot_name: str
    """Who moves."""

    def take(self) -> Take:
        """All of it; about 15 ms."""
        with np.load(self.path, allow_pickle=False) as file:
            row: dict[str, Any] = {n: file[f"{self.number}.{n}"] for n in _KEPT if f"{self.number}.{n}" in file}
        row |= {k: str(v) for k, v in row.items() if v.dtype.kind == "U"}
        return Take(**row)


def index_pack(paths: Sequence[Path]) -> list[Kept]:
    """Every episode of the shards."""
    kept: list[Kept] = []
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            for i in range(int(file["count"])):
                kept.append(Kept(path, i, str(file[f"{i}.group"]), str(file[f"{i}.robot_name"])))
    if not kept:
        raise ValueError("no episode of this data set has the frames and geometry that the model learns from")
    return kept


def read_pack(paths: Sequence[Path]) -> list[Take]:
    """The same, all of them at once."""
    return [kept.take() for kept in index_pack(paths)]
