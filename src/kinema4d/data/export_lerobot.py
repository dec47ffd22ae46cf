"""A data set for LeRobot, version 3.0: its parquet tables and videos, and beside them what it has no place for.

``observation.state`` is the joint positions at each frame (of all arms, one after another). ``action`` is the command
in force at each frame: commands may run faster than frames, and of these the others are left out; displacements are
not added up. ``kinema4d/episode_<n>/<view>/`` keeps the camera, 16-bit depth, labels, robots, all commands and tracks
(:mod:`kinema4d.data.extras`), and ``meta/kinema4d.json`` the ids; LeRobot looks at neither, our reader at both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.data.dataset import Dataset, Row
from kinema4d.data.extras import write_extras
from kinema4d.data.lerobot_files import (
    CHUNK,
    DATA_MB,
    DATA_PATH,
    FILE,
    VIDEO_MB,
    VIDEO_PATH,
    Movie,
    Tables,
    pyarrow,
    table_of,
)
from kinema4d.data.lerobot_stats import Stats, combine, image_stats, vector_stats
from kinema4d.data.meta_file import version
from kinema4d.data.video import h264_pixels
from kinema4d.files import whole_folder
from kinema4d.types import Episode

VERSION = "v3.0"
"""The ``codebase_version`` that is written."""
_DEFAULTS = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64"}
_DEFAULTS["task_index"] = "int64"


def export_lerobot(
    dataset: Dataset, out: str | Path, *, ids: Sequence[str] | None = None, overwrite: bool = False
) -> Path:
    """Write the episodes ``ids`` (all, where none are given) as a LeRobot data set; returns its folder.

    Views of one recording (same source and group) become the cameras of one LeRobot episode. All must share one size,
    frame rate, robot and list of commands. Bytes are the same for the same input.
    """
    pyarrow()
    rows = dataset.rows if ids is None else tuple(dataset.row(id) for id in ids)
    plan = _plan(rows)
    known = all(row.outcome != "unknown" for row in rows)
    with whole_folder(out, overwrite=overwrite, ours=_is_ours) as folder, ExitStack() as stack:
        data = stack.enter_context(Tables(folder, DATA_PATH))
        listed = stack.enter_context(Tables(folder, f"meta/episodes/{FILE}.parquet"))
        movies = {key: stack.enter_context(Movie(folder, key, plan.fps)) for key in plan.keys}
        tasks: dict[str, int] = {}
        shape: _Shape | None = None
        collected: dict[str, list[Stats]] = {}
        index = 0
        for number, recording in enumerate(plan.recordings):
            episodes = [dataset.load(row.id) for row in recording]
            shape = _same_shape(shape, _shape(episodes[0]), recording[0].id)
            task = tasks.setdefault(episodes[0].text, len(tasks))
            columns = _columns(episodes[0], shape, number, index, task, known)
            stats = {key: vector_stats(values.reshape(len(values), -1)) for key, values in columns.items()}
            entry = {"episode_index": number, "tasks": [episodes[0].text], "length": len(episodes[0])}
            entry |= dict(zip(("data/chunk_index", "data/file_index"), data.write(table_of(columns)), strict=True))
            entry |= {"dataset_from_index": index, "dataset_to_index": index + len(episodes[0])}
            for key, episode in zip(plan.keys, episodes, strict=True):
                entry |= movies[key].append(episode.clip.rgb)
                stats[key] = image_stats(episode.clip.rgb)
                extras = folder / "kinema4d" / f"episode_{number:06d}" / _view(key)
                extras.parent.mkdir(parents=True, exist_ok=True)
                write_extras(episode, extras)
            for key, found in stats.items():
                collected.setdefault(key, []).append(found)
                entry |= {f"stats/{key}/{name}": value.tolist() for name, value in found.items()}
            listed.write_row(entry)
            index += len(episodes[0])
        assert shape is not None
        features = _features(plan, shape, known)
        _write_tasks(folder / "meta" / "tasks.parquet", tasks)
        _write_json(folder / "meta" / "info.json", _info(plan, features, shape, index, len(tasks)))
        whole = {key: combine(collected[key]) for key in features}
        _write_json(
            folder / "meta" / "stats.json",
            {key: {name: value.tolist() for name, value in found.items()} for key, found in whole.items()},
        )
        _write_json(folder / "meta" / "kinema4d.json", _ours(plan))
    return Path(out)


# ---------------------------------------------------------------------- what goes where


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Which episodes become the cameras of which LeRobot episode."""

    keys: tuple[str, ...]
    """LeRobot's names of the cameras."""
    recordings: tuple[tuple[Row, ...], ...]
    """Per LeRobot episode, a row for each camera."""
    height: int
    width: int
    fps: float


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What all episodes must have in common beyond what the manifest says."""

    robots: tuple[str, ...]
    states: tuple[str, ...]
    actions: tuple[str, ...]


def _plan(rows: Sequence[Row]) -> _Plan:
    if not rows:
        raise ValueError("there is no episode to export")
    _one(rows, "size", lambda row: f"{row.height}x{row.width}")
    _one(rows, "frame rate", lambda row: f"{row.fps:.6g} fps")
    _one(rows, "robot", lambda row: "+".join(row.robots) or "none")
    views = sorted({row.view for row in rows})
    keys = tuple(f"observation.images.{view.replace('/', '_') or 'main'}" for view in views)
    if len(set(keys)) < len(views):
        raise ValueError(
            f"the views {', '.join(views)} have the same name in LeRobot; rename one, or export one of them"
        )
    if len(views) == 1:
        recordings = [(row,) for row in rows]
    else:
        found: dict[tuple[str, str, int], list[Row]] = {}
        for row in rows:
            found.setdefault((row.source, row.group, row.frames), []).append(row)
        recordings = []
        for group in found.values():
            seen = sorted(row.view for row in group)
            if seen != views:
                raise ValueError(
                    f"LeRobot needs every camera in every episode: {group[0].id} comes with the views "
                    f"{', '.join(map(repr, seen))}, all together have {', '.join(map(repr, views))}; "
                    "export one view at a time (pass its ids)"
                )
            recordings.append(tuple(sorted(group, key=lambda row: row.view)))
    return _Plan(keys=keys, recordings=tuple(recordings), height=rows[0].height, width=rows[0].width, fps=rows[0].fps)


def _one(rows: Sequence[Row], what: str, value: Any) -> None:
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(value(row), []).append(row.id)
    if len(found) > 1:
        several = "; ".join(
            f"{key}: {', '.join(ids[:3])}{f' and {len(ids) - 3} more' if len(ids) > 3 else ''}"
            for key, ids in found.items()
        )
        raise ValueError(f"a LeRobot data set has one {what}, these have several ({several}); pass the ids of one kind")


def _shape(episode: Episode) -> _Shape:
    several = len(episode.arms) > 1
    joints = [
        f"{number}.{joint}" if several else joint
        for number, arm in enumerate(episode.arms)
        for joint in arm.trajectory.joint_names
    ]
    commands = episode.commands
    return _Shape(
        robots=tuple(arm.robot for arm in episode.arms),
        states=tuple(joints),
        actions=() if commands is None else commands.names,
    )


def _same_shape(first: _Shape | None, this: _Shape, id: str) -> _Shape:
    if first is None or first == this:
        return this
    for what in ("robots", "states", "actions"):
        a, b = getattr(first, what), getattr(this, what)
        if a != b:
            raise ValueError(
                f"a LeRobot data set has one list of {what}: the first episode has {', '.join(a) or 'none'}, {id} has "
                f"{', '.join(b) or 'none'}; pass the ids of one kind"
            )
    return this


def _columns(episode: Episode, shape: _Shape, number: int, index: int, task: int, known: bool) -> dict[str, np.ndarray]:
    count = len(episode)
    columns: dict[str, np.ndarray] = {}
    if shape.states:
        columns["observation.state"] = np.concatenate(
            [at_frames(arm.trajectory.q, arm.trajectory.fps, count, episode.clip.fps) for arm in episode.arms], axis=1
        ).astype(np.float32)
    if episode.commands is not None:
        commands = episode.commands
        columns["action"] = at_frames(commands.values, commands.fps, count, episode.clip.fps).astype(np.float32)
    if known:
        columns["next.success"] = (np.arange(count) == count - 1) & (episode.outcome == "success")
    columns["timestamp"] = (np.arange(count) / episode.clip.fps).astype(np.float32)
    columns["frame_index"] = np.arange(count)
    columns["episode_index"] = np.full(count, number)
    columns["index"] = np.arange(index, index + count)
    return columns | {"task_index": np.full(count, task)}


def at_frames(values: Float[np.ndarray, "n d"], rate: float, count: int, fps: float) -> Float[np.ndarray, "t d"]:
    """The row in force at each of ``count`` frames: the last one that began, none of them mixed."""
    rows = np.floor(np.arange(count) / fps * rate + 1e-6).astype(int)
    return values[np.minimum(rows, len(values) - 1)]


# ---------------------------------------------------------------------- meta/


def _features(plan: _Plan, shape: _Shape, known: bool) -> dict[str, dict[str, Any]]:
    features: dict[str, dict[str, Any]] = {}
    for key, names in {"observation.state": shape.states, "action": shape.actions}.items():
        if names:
            features[key] = {"dtype": "float32", "shape": [len(names)], "names": list(names)}
    for key in plan.keys:
        features[key] = {
            "dtype": "video",
            "shape": [plan.height, plan.width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": plan.height,
                "video.width": plan.width,
                "video.codec": "h264",
                "video.pix_fmt": h264_pixels(plan.height, plan.width),
                "video.is_depth_map": False,
                "video.fps": _rate(plan.fps),
                "video.channels": 3,
                "has_audio": False,
            },
        }
    if known:
        features["next.success"] = {"dtype": "bool", "shape": [1], "names": None}
    return features | {key: {"dtype": kind, "shape": [1], "names": None} for key, kind in _DEFAULTS.items()}


def _info(plan: _Plan, features: Mapping[str, Any], shape: _Shape, frames: int, tasks: int) -> dict[str, Any]:
    return {
        "codebase_version": VERSION,
        "robot_type": "+".join(shape.robots) or None,
        "total_episodes": len(plan.recordings),
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": CHUNK,
        "data_files_size_in_mb": DATA_MB,
        "video_files_size_in_mb": VIDEO_MB,
        "fps": _rate(plan.fps),
        "splits": {"train": f"0:{len(plan.recordings)}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH,
        "features": features,
    }


def _ours(plan: _Plan) -> dict[str, Any]:
    return {
        "format": "kinema4d lerobot export",
        "kinema4d_version": version(),
        "action": "the command in force at each frame; kinema4d/episode_*/*/commands.npz has all at their own rate",
        "extras": "kinema4d/episode_<episode_index>/<view>: camera, 16-bit depth, labels, robots, commands, tracks",
        "episodes": {
            str(number): {_view(key): row.id for key, row in zip(plan.keys, recording, strict=True)}
            for number, recording in enumerate(plan.recordings)
        },
    }


def _write_tasks(file: Path, tasks: Mapping[str, int]) -> None:
    """Instructions, with the note that makes pandas take them as the index, which LeRobot relies on."""
    pa, pq = pyarrow()
    table = pa.table({"task_index": pa.array(list(tasks.values()), pa.int64()), "task": pa.array(list(tasks))})
    column = {"metadata": None}
    note = {
        "index_columns": ["task"],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", **column}
        ],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64", **column},
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", **column},
        ],
        "creator": {"library": "kinema4d", "version": version()},
        "pandas_version": "2.2.0",
    }
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(note)}), file)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=4, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _rate(fps: float) -> int | float:
    return int(fps) if fps == int(fps) else fps


def _view(key: str) -> str:
    return key.removeprefix("observation.images.")


def _is_ours(folder: Path) -> bool:
    return (folder / "meta" / "kinema4d.json").is_file() and (folder / "meta" / "info.json").is_file()
