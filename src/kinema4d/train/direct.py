"""Train the 4D diffusion transformer alone: episodes at its size, and what it is taught.

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
import torch
from jaxtyping import Bool, Float16, Float32, UInt8
from torch import Tensor, nn

from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.pool import Progress, spread
from kinema4d.files import whole_file
from kinema4d.robot.recorded import control_of
from kinema4d.types import Episode, Pointmap
from kinema4d.world.protocol import first_depth
from kinema4d.world.small.diffusion import DiffusionConfig, DiffusionNet
from kinema4d.world.small.direct import picks, scene_of, small
from kinema4d.world.small.patches import (
    Scene,
    clip_of,
    cut,
    domains,
    flow_loss,
    known_of,
    sample,
    scale_of,
    target_of,
)

PER_SHARD = 8
"""Episodes per shard."""
CHANGED = 8.0
"""So much more counts what changed and is not the robot: most of a clip stands still."""
ROBOT = 2.0
"""So much more counts the robot."""


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

    @property
    def scene(self) -> Scene:
        """What a model may know of it."""
        everywhere = np.ones((1, *self.there.shape[1:]), bool)
        return Scene(
            image=self.rgb[0], robot=Pointmap(points=self.robot.astype(np.float32), valid=self.there),
            robot_rgb=self.robot_rgb, actions=self.actions, text=self.text,
            environment=Pointmap(points=self.points[:1].astype(np.float32), valid=everywhere),
        )  # fmt: skip


def take_of(episode: Episode, config: DiffusionConfig) -> Take:
    """An episode at the size of a model; refused without geometry or with another number of frames."""
    clip = episode.clip
    if len(clip) != config.frames:
        raise ValueError(
            f"the model learns from {config.frames} frames, {episode.source or 'this episode'} has {len(clip)}"
        )
    if not clip.pointmap.valid.any():
        raise ValueError(f"{episode.source or 'this episode'} has no geometry: there is nothing to learn points from")
    scene = scene_of(clip.rgb[0], control_of(episode), config, depth=first_depth(clip), text=episode.text)
    rows, columns = picks(clip.rgb.shape[1:3], config)
    rgb = np.stack([small(frame, config.height, config.width) for frame in clip.rgb])
    points = clip.pointmap.points[:, rows][:, :, columns]
    other = (np.abs(rgb.astype(np.int16) - rgb[:1]).max(axis=-1) > 12) | (
        np.abs(points[..., 2] - points[:1, ..., 2]) > 0.01
    )
    return Take(
        rgb=rgb, points=points.astype(np.float16), robot=scene.robot.points.astype(np.float16), there=scene.robot.valid,
        robot_rgb=scene.robot_rgb, changed=other & ~scene.robot.valid, actions=scene.actions, text=episode.text,
        group=episode.group or episode.source, robot_name="+".join(a.robot for a in episode.arms),
    )  # fmt: skip


# ---------------------------------------------------------------------- packs


def make_pack(
    folder: str | Path,
    data: str | Path,
    config: DiffusionConfig,
    *,
    workers: int = 2,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Shrink the episodes of ``data`` into shards; those that are there already are kept."""
    folder, dataset = Path(folder), open_dataset(Path(data))
    size = {"frames": config.frames, "height": config.height, "width": config.width}
    about = folder / "about.json"
    if about.exists() and (found := json.loads(about.read_text())) != size:
        raise ValueError(f"{folder} holds a pack made for {found}, now {size}; use another folder")
    with whole_file(about, overwrite=True) as temporary:
        temporary.write_text(json.dumps(size))
    parts = [dataset.ids[i : i + PER_SHARD] for i in range(0, len(dataset.ids), PER_SHARD)]
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
            take = take_of(_dataset(root).load(id), DiffusionConfig(**{**config, "patch": tuple(config["patch"])}))
        except ValueError as error:  # one bad episode is no reason to stop; a pack without any is
            warnings.warn(f"left out {id}: {error}", stacklevel=2)
            continue
        rows |= {f"{count}.{f.name}": np.asarray(getattr(take, f.name)) for f in fields(Take)}
        count += 1
    with whole_file(path, overwrite=True) as temporary:
        np.savez_compressed(temporary, count=np.array(count), **rows)


def read_pack(paths: Sequence[Path]) -> list[Take]:
    """Every episode of the shards."""
    takes: list[Take] = []
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            for i in range(int(file["count"])):
                row: dict[str, Any] = {f.name: file[f"{i}.{f.name}"] for f in fields(Take)}
                row |= {k: str(v) for k, v in row.items() if v.dtype.kind == "U"}
                takes.append(Take(**row))
    if not takes:
        raise ValueError("no episode of this data set has the frames and geometry that the model learns from")
    return takes


# ---------------------------------------------------------------------- what is taught


def weights_of(take: Take, config: DiffusionConfig) -> Tensor:
    """How much each value of the clip counts, as tokens."""
    weight = 1 + (CHANGED - 1) * take.changed + (ROBOT - 1) * take.there
    weight[0] = 0.2  # the first frame is given
    frames = torch.from_numpy(np.repeat(weight[..., None], 3, axis=-1).astype(np.float32))[None]
    tokens = cut(frames, config)
    return domains(tokens, tokens, config)


def mirrored(take: Take) -> Take:
    """Left for right: picture, points and hand."""
    flip = lambda a: a[:, :, ::-1]  # noqa: E731
    side = np.array([-1, 1, 1], np.float16)
    names = ("rgb", "there", "robot_rgb", "changed")
    own = {f.name: getattr(take, f.name) for f in fields(Take)}
    own |= {n: flip(own[n]) for n in names} | {n: flip(own[n]) * side for n in ("points", "robot")}
    return Take(**own)


@dataclass(eq=False)
class DirectTask:
    """Teach :class:`DiffusionNet`."""

    model: DiffusionNet
    """What is trained."""
    takes: Sequence[Take]
    """To learn from."""
    held_out: Sequence[Take]
    """To validate on."""
    size: int = 4
    """Clips per batch."""
    seed: int = 0
    """Of the batches."""

    def loss(self, step: int) -> Tensor:
        """Of one batch. Where the hand is told in the world's frame, nothing is mirrored: its turn would not be."""
        rng = np.random.default_rng([self.seed, step])
        takes = [self.takes[i] for i in rng.integers(len(self.takes), size=self.size)]
        if self.model.config.control not in ("embedding", "text"):
            takes = [mirrored(t) if rng.random() < 0.5 else t for t in takes]
        return flow_loss(self.model, *self._batch(takes, step))

    def _batch(self, takes: Sequence[Take], seed: int) -> tuple:
        config, scenes = self.model.config, [t.scene for t in takes]
        target = [
            target_of(t.rgb, t.points.astype(np.float32), scale_of(s), config)
            for t, s in zip(takes, scenes, strict=True)
        ]
        weight = [weights_of(t, config) for t in takes]
        return known_of(scenes, config, seed=seed), torch.cat(target), torch.cat(weight)

    @torch.no_grad()
    def validate(self, model: nn.Module, most: int = 24) -> dict[str, float]:
        """Of one sample each: PSNR of all, of what changed and of the robot, and error of points, centimetres; beside the
        first frame repeated."""
        assert isinstance(model, DiffusionNet)
        config = model.config
        found: dict[str, list[float]] = {}
        for take in self.held_out[:most]:
            scene = take.scene
            rgb, points = clip_of(sample(model, known_of([scene], config)), scale_of(scene), config)
            for name, made in {"": rgb, "first_": np.broadcast_to(take.rgb[:1], rgb.shape)}.items():
                error = (made.astype(np.float32) - take.rgb) ** 2
                for where, mask in {
                    "psnr": take.there | ~take.there,
                    "changed_psnr": take.changed,
                    "robot_psnr": take.there,
                }.items():
                    mask = mask.copy()
                    mask[0] = False
                    if mask.any():
                        mse = max(float(error[mask].mean()), 1e-2)
                        found.setdefault(name + where, []).append(10 * np.log10(255**2 / mse))
            if points is not None:
                off = np.linalg.norm(points[1:] - take.points[1:].astype(np.float32), axis=-1)
                found.setdefault("points_cm", []).append(100 * float(np.median(off)))
        return {k: float(np.mean(v)) for k, v in found.items()}
