"""Pictures to learn to see from, out of recorded episodes: your own data sets, or live LIBERO.

Labels say which pixels are one thing. Things with tracks are free to move; a thing that others are parts of by name
(``cabinet`` and ``cabinet_top``) is furniture, and those parts stand still like it as far as anybody knows; others are
surroundings. What such episodes do not say (joints, true solids) is not learned from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from kinema4d.data.dataset import open_dataset
from kinema4d.data.pool import Progress, spread
from kinema4d.geometry.camera import unproject
from kinema4d.train.see_pack import INVERSE_UNIT, ROBOT, UNKNOWN_SOLID, Picture, write_shard
from kinema4d.types import Camera, Episode
from kinema4d.world.small.look import View, support_height
from kinema4d.world.small.parts import JOINTS

SIZE = (192, 288)
"""Rows and columns of training pictures."""
PER_SHARD = 8
"""Episodes per shard."""
LEAST = 12
"""Things with fewer pixels are left out."""


def pictures_from(episode: Episode, *, count: int = 4) -> list[Picture]:
    """``count`` frames of an episode with labels and geometry, its support moved to height 0."""
    if episode.labels is None or not episode.clip.pointmap.valid.any():
        raise ValueError(
            f"episode {episode.source or '?'} has no labels or no geometry: there is nothing to learn from"
        )
    if episode.clip.camera.moving:
        raise ValueError(f"episode {episode.source or '?'} has a moving camera")
    robot = episode.robot_mask
    if robot is None:
        raise ValueError(f"episode {episode.source or '?'} does not say which pixels show the robot")
    depth, camera = episode.clip.pointmap.depth, episode.clip.camera
    shown = np.where(episode.clip.pointmap.valid[0], depth[0], 0).astype(np.float32)
    support = support_height(View(rgb=episode.clip.rgb[0], depth=shown, robot=robot[0], camera=camera))
    tracked, furniture = {t.name for t in episode.tracks}, furniture_of(episode)
    things = [n for n in episode.label_names if n in tracked or n in furniture]
    joints = [JOINTS.index("fixed" if n in furniture else "free") for n in things]
    out = []
    for t in np.unique(np.linspace(0, len(episode.clip) - 1, count).round().astype(int)):
        valid = episode.clip.pointmap.valid[t]
        ids = np.zeros(valid.shape, np.uint8)
        for i, name in enumerate(things):
            ids[episode.labels[t] == episode.label_names.index(name) + 1] = i + 1
        ids[robot[t]] = ROBOT
        out.append(_picture(episode.clip.rgb[t], np.where(valid, depth[t], 0), ids, camera, support, joints))
    return [p for p in out if len(p.joint)]


def furniture_of(episode: Episode) -> set[str]:
    """Labels that others are parts of by name, and those parts."""
    names = [n for n in episode.label_names if n != "robot"]
    parts = {a: [b for b in names if b.startswith(f"{a}_")] for a in names}
    return {n for a, own in parts.items() if own for n in (a, *own)}


def _picture(
    rgb: np.ndarray, depth: np.ndarray, ids: np.ndarray, camera: Camera, support: float, joints: Sequence[int]
) -> Picture:
    """One frame at the size of training pictures, cut to their shape about its middle."""
    h, w = ids.shape
    rows, columns = min(h, w * SIZE[0] // SIZE[1]), min(w, h * SIZE[1] // SIZE[0])
    top, left, scale = (h - rows) // 2, (w - columns) // 2, SIZE[0] / rows
    v = np.minimum(((np.arange(SIZE[0]) + 0.5) / scale).astype(int), rows - 1) + top
    u = np.minimum(((np.arange(SIZE[1]) + 0.5) / scale).astype(int), columns - 1) + left
    small = Image.fromarray(rgb[top : top + rows, left : left + columns]).resize(
        (SIZE[1], SIZE[0]), Image.Resampling.BOX
    )
    K, T = np.array(camera.K), camera.poses(1)[0].copy()
    K[0, 2], K[1, 2] = (K[0, 2] - left + 0.5) * scale - 0.5, (K[1, 2] - top + 0.5) * scale - 0.5
    K[0, :2], K[1, 1] = K[0, :2] * [scale, scale], K[1, 1] * scale
    T[2, 3] -= support
    z, seen = depth[v][:, u].astype(np.float32), ids[v][:, u]
    world = unproject(K, z) @ T[:3, :3].T + T[:3, 3]
    kept, middles, own_joints = np.zeros_like(seen), [], []
    kept[seen == ROBOT] = ROBOT
    for i, joint in enumerate(joints):
        own = (seen == i + 1) & (z > 0)
        if own.sum() >= LEAST:
            kept[seen == i + 1] = len(middles) + 1
            low, high = np.percentile(world[own], [1, 99], axis=0)
            middles.append((low + high) / 2)
            own_joints.append(joint)
    n = len(middles)
    solids = np.zeros((n, 17), np.float32)
    solids[:, 0], solids[:, 1] = np.arange(n), UNKNOWN_SOLID
    return Picture(
        rgb=np.asarray(small),
        inverse=np.round(np.where(z > 0, 1 / np.maximum(z, 0.21), 0) / INVERSE_UNIT).clip(0, 65535).astype(np.uint16),
        ids=kept,
        camera=Camera(K=K, T_world_camera=T, height=SIZE[0], width=SIZE[1]),
        joint=np.array(own_joints, np.int32),
        Ts_world_part=np.tile(np.eye(4, dtype=np.float32), (n, 1, 1)),
        axis=np.zeros((n, 3), np.float32),
        pivot=np.zeros((n, 3), np.float32),
        room=np.zeros((n, 2), np.float32),
        middle=np.array(middles, np.float32).reshape(-1, 3),
        primitives=solids,
    )


def add_episodes(
    folder: Path, data: Path, *, count: int = 4, workers: int = 2, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Shards of the pictures of a data set, beside those that are in ``folder``; those that are there are kept."""
    ids = [row.id for row in open_dataset(data).rows]
    if not ids:
        raise ValueError(f"{data} has no episodes")
    parts = [ids[i : i + PER_SHARD] for i in range(0, len(ids), PER_SHARD)]
    paths = [folder / f"see-{data.name}-{i:05d}.npz" for i in range(len(parts))]
    missing = [(p, str(data), own, count) for p, own in zip(paths, parts, strict=True) if not p.exists()]
    spread(_make_shard, missing, workers=workers, progress=progress)
    return tuple(p for p in paths if p.exists())


def _make_shard(content: tuple[Path, str, list[str], int]) -> None:
    path, data, ids, count = content
    dataset = open_dataset(data)
    pictures = [p for id in ids for p in pictures_from(dataset.load(id), count=count)]
    if pictures:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_shard(path, pictures)
