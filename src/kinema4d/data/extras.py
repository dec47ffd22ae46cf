"""What an episode has and other formats have no place for, as a folder beside them: all but the colour.

The folder is a clip folder without colour (camera, 16-bit geometry, labels, robots; :mod:`kinema4d.data.store`), with
``episode.json``, ``commands.npz`` and ``tracks.npz`` for the rest. Readers of the other format do not look at it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from kinema4d.data.meta_file import AGAIN, get, plain, refuse_constant
from kinema4d.data.motion_file import read_commands, read_tracks, write_commands, write_tracks
from kinema4d.data.store import load, save
from kinema4d.types import Clip, Control, Episode

TEXTS = ("text", "outcome", "source", "task", "group", "view", "camera_from")
"""Fields of an episode that are text."""


def describe(episode: Episode) -> dict[str, Any]:
    """The texts and facts of an episode, as JSON has them."""
    meta: dict[str, Any] = {key: getattr(episode, key) for key in TEXTS}
    return meta | {"metric": episode.metric, "facts": plain(episode.facts, "Episode.facts")}


def write_extras(episode: Episode, folder: Path) -> None:
    """Write everything of ``episode`` but its colour into the new folder ``folder``."""
    clip, labels = episode.clip, episode.labels
    signal = Control(
        camera=clip.camera,
        pointmap=clip.pointmap,
        link_ids=np.zeros(clip.rgb.shape[:3], np.uint16) if labels is None else labels.astype(np.uint16),
        link_names=episode.label_names,
        arms=episode.arms,
        fps=clip.fps,
    )
    save(signal, folder)
    meta = describe(episode) | {"labels": None if labels is None else labels.dtype.name}
    if episode.commands is not None:
        meta["commands"] = write_commands(episode.commands, folder)
    if episode.tracks:
        meta["tracks"] = write_tracks(episode.tracks, folder)
    (folder / "episode.json").write_text(json.dumps(meta, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_extras(folder: Path, rgb: UInt8[np.ndarray, "t h w 3"]) -> Episode:
    """The episode that :func:`write_extras` wrote, with its colour from elsewhere."""
    signal, file = load(folder), folder / "episode.json"
    if not isinstance(signal, Control):
        raise ValueError(f"{folder} holds a {type(signal).__name__}, expected geometry without colour; {AGAIN}")
    try:
        meta = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}; {AGAIN}") from None
    if not isinstance(meta, dict):
        raise ValueError(f"{file} must hold an object, got {type(meta).__name__}; {AGAIN}")
    dtype = meta.get("labels")
    try:
        return Episode(
            clip=Clip(camera=signal.camera, rgb=rgb, pointmap=signal.pointmap, fps=signal.fps),
            arms=signal.arms,
            labels=None if dtype is None else signal.link_ids.astype(dtype),
            label_names=signal.link_names,
            metric=bool(meta.get("metric", True)),
            commands=read_commands(folder, get(folder, meta, "commands", dict)) if "commands" in meta else None,
            tracks=read_tracks(folder, get(folder, meta, "tracks", dict), len(rgb)) if "tracks" in meta else (),
            facts=get(folder, meta, "facts", dict),
            **{key: get(folder, meta, key, str) for key in TEXTS},
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None
