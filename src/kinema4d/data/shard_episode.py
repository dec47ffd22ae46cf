"""One episode on its way into a shard: decoded, brought to size and number of frames, compressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kinema4d.data.dataset import Row
from kinema4d.data.meta_file import plain, read_video, sha256
from kinema4d.data.resample import downsample, uniform_indices
from kinema4d.data.shard_file import Packed, pack_episode
from kinema4d.data.shards import PER_FRAME, TEXTS
from kinema4d.data.store import load, read_meta
from kinema4d.types import Episode


def encode(root: Path, size: tuple[int, int], frames: int | None, row: Row) -> Packed:
    """Decode, shrink and compress one episode: what a worker does."""
    folder = root / "episodes" / row.id
    try:
        if sha256(folder / "meta.json") != row.sha256:
            raise ValueError(f"{folder / 'meta.json'} is not the one in the manifest (its SHA-256 differs)")
        episode = load(folder)
        if not isinstance(episode, Episode):
            raise ValueError(f"{folder} holds a {type(episode).__name__}, expected an Episode")
        geometry, images = _geometry(folder)
        count = len(episode)
        if frames is not None:
            episode = downsample(episode, frames)
            keep = uniform_indices(count, frames)
            images = {name: stack[keep] if len(keep) < count else stack for name, stack in images.items()}
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot pack episode {row.id!r}: {error}; see 'kinema4d data doctor', and pack without it"
        ) from None
    camera = episode.clip.camera.resized(*size)
    images["rgb"] = resized(episode.clip.rgb, size)
    if episode.labels is not None:
        images["labels"] = episode.labels.astype(np.uint8 if len(episode.label_names) <= 255 else np.uint16)
    images |= {name: _nearest(stack, size) for name, stack in images.items() if name != "rgb"}
    head = {
        "id": row.id,
        "frames": len(episode),
        "height": size[0],
        "width": size[1],
        "fps": float(episode.clip.fps),
        "words": {key: getattr(episode, key) for key in TEXTS},
        "metric": episode.metric,
        "facts": plain(episode.facts, "facts"),
        "has_depth": bool(episode.clip.pointmap.valid.any()),
        "geometry": geometry,
        "label_names": list(episode.label_names),
        "label_dtype": "uint8" if episode.labels is None else episode.labels.dtype.name,
        **_motion_head(episode),
    }
    groups = {"camera": {"K": camera.K, "T_world_camera": camera.T_world_camera}, **_motion(episode)}
    return pack_episode(head, images, groups, id=row.id, sha256=row.sha256)


def _geometry(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The stored codes as they are: through metres and back, some would be rounded the other way."""
    meta = read_meta(folder)
    if "depth" in meta:
        kind, images = "depth", {"depth": read_video(folder, meta, "depth", "depth.mkv", (np.uint16,))}
    else:
        kind, images = "points", {"points": read_video(folder, meta, "points", "points.mkv", (np.uint16, 3))}
        images["valid"] = read_video(folder, meta, "valid", "valid.mkv", (np.uint8,))
    return {"kind": kind, "scale": meta[kind]["scale"], "offset": meta[kind]["offset"]}, images


def resized(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bilinear, over all pixels that a smaller one covers."""
    if rgb.shape[1:3] == size:
        return rgb
    wanted = (size[1], size[0])
    return np.stack([np.asarray(Image.fromarray(image).resize(wanted, Image.Resampling.BILINEAR)) for image in rgb])


def _nearest(stack: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The nearest pixel: between two depths or labels there is nothing."""
    if stack.shape[1:3] == size:
        return stack
    v, u = (((np.arange(n) + 0.5) * m / n).astype(int) for n, m in zip(size, stack.shape[1:3], strict=True))
    return stack[:, v[:, None], u]


def _motion_head(episode: Episode) -> dict[str, Any]:
    arms = [
        {
            "robot": arm.robot,
            "joint_names": list(arm.trajectory.joint_names),
            "link_names": list(arm.link_names),
            "fps": float(arm.trajectory.fps),
        }
        for arm in episode.arms
    ]
    told = episode.commands
    commands = told and {
        "names": list(told.names),
        "fps": float(told.fps),
        "space": told.space,
        "convention": told.convention,
    }
    return {"arms": arms, "commands": commands, "tracks": [track.name for track in episode.tracks]}


def _motion(episode: Episode) -> dict[str, dict[str, np.ndarray]]:
    groups: dict[str, dict[str, np.ndarray]] = {}
    if episode.arms:
        groups["arms"] = {}
        for i, arm in enumerate(episode.arms):
            groups["arms"] |= {f"{key}{i}": getattr(arm.trajectory, key) for key in ("q", "T_world_base")}
            groups["arms"] |= {f"{key}{i}": getattr(arm, key) for key in PER_FRAME}
    if episode.commands is not None:
        groups["commands"] = {"values": episode.commands.values}
    if episode.tracks:
        groups["tracks"] = {"Ts_world_object": np.stack([track.Ts_world_object for track in episode.tracks])}
        for i, track in enumerate(episode.tracks):
            surface = {f"vertices{i}": track.vertices, f"faces{i}": track.faces}
            groups["tracks"] |= {key: array for key, array in surface.items() if array is not None}
    return groups
