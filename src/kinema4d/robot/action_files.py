"""Action files: npz, json, csv and parquet to :class:`Actions`."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.robot.actions import CONVENTIONS, SPACES, Actions

OPTIONS = ("space", "fps", "convention", "joint_names", "rotation", "frame", "tool_link", "q_start", "T_world_base")
"""What a file may say about its actions, beside the numbers."""


def load_actions(path: str | Path, **options: Any) -> Actions:
    """Read actions. ``options`` (see ``OPTIONS``) override what the file says.

    npz and json hold the numbers under ``actions``, or under the name of their space (``joint_position``, ...)
    with an optional ``gripper``; everything in ``OPTIONS`` may stand beside them. csv and parquet have a column
    per number, ``joint_position_0``, ``joint_position_1``, ... (or one list column ``action`` in parquet), an
    optional ``gripper`` and an optional ``timestamp`` in seconds, from which the rate is read.
    """
    path = Path(path)
    unknown = set(options) - set(OPTIONS)
    if unknown:
        raise ValueError(f"unknown action option {sorted(unknown)[0]!r}; known are {', '.join(OPTIONS)}")
    if path.suffix not in READERS:
        raise ValueError(f"cannot read actions from {path}: supported are {', '.join(READERS)}")
    if not path.is_file():
        raise ValueError(f"action file {path} does not exist")
    try:
        content = READERS[path.suffix](path)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, zipfile.BadZipFile, EOFError, csv.Error) as error:
        raise ValueError(f"cannot read action file {path}: {error}") from None
    except ValueError as error:
        raise ValueError(f"action file {path}: {error}") from None
    try:
        return _actions(content, {k: v for k, v in options.items() if v is not None})
    except ValueError as error:
        raise ValueError(f"action file {path}: {error}") from None


def _actions(content: Mapping[str, Any], options: Mapping[str, Any]) -> Actions:
    settings = {k: content[k] for k in OPTIONS if k in content} | dict(options)
    named = [s for s in SPACES if s in content]
    if "actions" in content or "action" in content:
        values = _array(content.get("actions", content.get("action")), "actions", 2)
        if "space" not in settings:
            raise ValueError(f"it does not say its space; pass --space, one of {', '.join(SPACES)}")
    elif "space" in settings and settings["space"] in named:
        values = _array(content[settings["space"]], settings["space"], 2)
    elif len(named) == 1 and "space" not in settings:
        settings["space"] = named[0]
        values = _array(content[named[0]], named[0], 2)
    elif len(named) > 1:
        raise ValueError(f"it holds several spaces ({', '.join(named)}); choose one with --space")
    else:
        raise ValueError(
            f"it has no 'actions' and none of {', '.join(SPACES)}; it has {', '.join(sorted(content)) or 'nothing'}"
        )
    gripper = content.get("gripper", content.get("gripper_position"))
    if gripper is not None:
        gripper = _array(gripper, "gripper", None).reshape(-1)
        if len(gripper) != len(values):
            raise ValueError(f"gripper has {len(gripper)} rows, {settings['space']} has {len(values)}")
    convention = str(settings.get("convention", "kinema4d"))
    fps = settings.get("fps")
    if fps is None and convention in CONVENTIONS:
        fps = CONVENTIONS[convention].fps
    if fps is None:
        raise ValueError("it does not say its rate; add 'fps' to the file or pass --fps")
    names = settings.get("joint_names", ())
    return Actions(
        space=str(settings["space"]),
        values=values,
        fps=float(_array(fps, "fps", 0)),
        convention=convention,
        gripper=gripper,
        joint_names=tuple(str(n) for n in np.asarray(names).reshape(-1)),
        rotation=None if settings.get("rotation") is None else str(settings["rotation"]),
        frame=None if settings.get("frame") is None else str(settings["frame"]),  # type: ignore[arg-type]
        tool_link=None if settings.get("tool_link") is None else str(settings["tool_link"]),
        q_start=None if settings.get("q_start") is None else _array(settings["q_start"], "q_start", 1),
        T_world_base=_array(settings.get("T_world_base", np.eye(4)), "T_world_base", 2),
    )


def _array(value: object, name: str, dimensions: int | None) -> np.ndarray:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name!r} must be numbers in a regular array, got {value!r:.60}") from None
    if dimensions is not None and array.ndim != dimensions:
        raise ValueError(f"{name!r} must have {dimensions} dimensions, got shape {list(array.shape)}")
    return array


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as data:
        if not hasattr(data, "files"):
            raise ValueError("it is a single array, not an npz archive")
        content = {k: data[k] for k in data.files}
    return {k: v.item() if v.ndim == 0 else v for k, v in content.items()}


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"must hold a JSON object, got {type(content).__name__}")
    return content


def _read_csv(path: Path) -> dict[str, Any]:
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    if len(rows) < 2:
        raise ValueError("needs a header row and at least one row of numbers")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]):
            raise ValueError(f"line {number} has {len(row)} cells, the header has {len(rows[0])}")
    return _columns({name.strip(): [r[i] for r in rows[1:]] for i, name in enumerate(rows[0])})


def _read_parquet(path: Path) -> dict[str, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("reading parquet needs pyarrow: pip install 'kinema4d[parquet]'") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"not a readable parquet file: {error}") from None
    return _columns({name: table.column(name).to_pylist() for name in table.column_names})


def _columns(table: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Columns ``space_0``, ``space_1``, ... gathered into arrays; a timestamp column gives the rate."""
    content: dict[str, Any] = {k: v for k, v in table.items() if k in ("action", "actions", "gripper", *SPACES)}
    for space in (*SPACES, "action", "actions"):
        indices = sorted(
            int(k[len(space) + 1 :]) for k in table if k.startswith(f"{space}_") and k[len(space) + 1 :].isdigit()
        )
        if indices:
            if indices != list(range(len(indices))):
                raise ValueError(f"columns {space}_0, {space}_1, ... have a gap: found {indices}")
            content[space] = _array([table[f"{space}_{i}"] for i in indices], space, 2).T
    if "timestamp" in table:
        times = _array(table["timestamp"], "timestamp", 1)
        if len(times) > 1:
            steps = np.diff(times)
            if not (steps > 0).all() or steps.max() > 1.5 * np.median(steps):
                raise ValueError("timestamps must rise evenly; resample the actions to a constant rate")
            content["fps"] = float(round(1 / np.median(steps), 3))
    return content


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": _read_npz,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
"""A reader per suffix."""
