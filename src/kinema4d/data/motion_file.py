"""Motion on disk: robots (``trajectory.npz``), what they were told (``commands.npz``) and things (``tracks.npz``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data.meta_file import AGAIN, check_hash, checked, entry, get, names, read_arrays
from kinema4d.types import Arm, Commands, Track, Trajectory

_PER_FRAME = ("converged", "residual_m", "residual_rad")


def write_arms(arms: Sequence[Arm], folder: Path) -> dict[str, Any]:
    """Write the robots' motion; returns what ``meta.json`` says about it."""
    meta: dict[str, Any] = {}
    if arms:
        arrays = {}
        for number, arm in enumerate(arms):
            arrays |= {f"arm{number}_{key}": getattr(arm.trajectory, key) for key in ("q", "T_world_base")}
            arrays |= {f"arm{number}_{key}": getattr(arm, key) for key in _PER_FRAME}
        np.savez(folder / "trajectory.npz", **arrays)
        meta["trajectory"] = entry(folder / "trajectory.npz")
    meta["arms"] = [
        {
            "robot": arm.robot,
            "joint_names": list(arm.trajectory.joint_names),
            "link_names": list(arm.link_names),
            "fps": float(arm.trajectory.fps),
            "frames": len(arm.trajectory.q),
        }
        for arm in arms
    ]
    return meta


def read_arms(folder: Path, meta: dict[str, Any]) -> tuple[Arm, ...]:
    """The robots that :func:`write_arms` wrote."""
    entries = get(folder, meta, "arms", list)
    if not entries:
        return ()
    arrays = read_arrays(folder, "trajectory.npz", f"the motion of {len(entries)} arms")
    arms = tuple(_read_arm(folder, found, number, arrays) for number, found in enumerate(entries))
    if "trajectory" in meta:
        check_hash(folder / "trajectory.npz", get(folder, meta, "trajectory", dict))
    return arms


def write_commands(commands: Commands, folder: Path) -> dict[str, Any]:
    """Write recorded actions; returns what ``meta.json`` says about them."""
    np.savez(folder / "commands.npz", values=np.asarray(commands.values, np.float64))
    said = {key: getattr(commands, key) for key in ("space", "convention")}
    return {**entry(folder / "commands.npz"), "names": list(commands.names), "fps": float(commands.fps), **said}


def read_commands(folder: Path, found: Mapping[str, Any]) -> Commands:
    """The actions that :func:`write_commands` wrote."""
    columns = names(folder, found, "names")
    arrays = read_arrays(folder, "commands.npz", "the recorded actions")
    values = checked(folder / "commands.npz", arrays, "values", (None, len(columns)), "f")
    check_hash(folder / "commands.npz", found)
    said = {key: get(folder, found, key, str) for key in ("space", "convention")}
    try:
        return Commands(values=values, names=columns, fps=float(get(folder, found, "fps", float)), **said)
    except ValueError as error:
        raise ValueError(f"{folder / 'meta.json'}: {error}; {AGAIN}") from None


def write_tracks(tracks: Sequence[Track], folder: Path) -> dict[str, Any]:
    """Write the motion and surfaces of things; returns what ``meta.json`` says about them."""
    arrays: dict[str, Any] = {"Ts_world_object": np.stack([t.Ts_world_object for t in tracks])}
    for number, track in enumerate(tracks):
        if track.vertices is not None and track.faces is not None:
            arrays |= {f"vertices{number}": track.vertices.astype(np.float32), f"faces{number}": track.faces}
    np.savez(folder / "tracks.npz", **arrays)
    surfaces = [track.vertices is not None for track in tracks]
    return {**entry(folder / "tracks.npz"), "names": [track.name for track in tracks], "surfaces": surfaces}


def read_tracks(folder: Path, found: Mapping[str, Any], frames: int) -> tuple[Track, ...]:
    """The things that :func:`write_tracks` wrote."""
    labels, surfaces = names(folder, found, "names"), get(folder, found, "surfaces", list)
    if len(labels) != len(surfaces):
        raise ValueError(
            f"{folder / 'meta.json'}: 'tracks' has {len(labels)} names but {len(surfaces)} surfaces; {AGAIN}"
        )
    file, arrays = folder / "tracks.npz", read_arrays(folder, "tracks.npz", f"the motion of {', '.join(labels)}")
    Ts = checked(file, arrays, "Ts_world_object", (len(labels), frames, 4, 4), "f")
    tracks = []
    for number, (name, solid) in enumerate(zip(labels, surfaces, strict=True)):
        surface: dict[str, Any] = {}
        if solid:
            surface["vertices"] = checked(file, arrays, f"vertices{number}", (None, 3), "f")
            surface["faces"] = checked(file, arrays, f"faces{number}", (None, 3), "i")
        try:
            tracks.append(Track(name=name, Ts_world_object=Ts[number], **surface))
        except ValueError as error:
            raise ValueError(f"{file}: {error}; {AGAIN}") from None
    check_hash(file, found)
    return tuple(tracks)


def _read_arm(folder: Path, found: Any, number: int, arrays: dict[str, np.ndarray]) -> Arm:
    file, prefix = folder / "trajectory.npz", f"arm{number}_"
    if not isinstance(found, dict):
        raise ValueError(f"{folder / 'meta.json'}: each of 'arms' must be an object, got {found!r:.60}")
    joints, count = names(folder, found, "joint_names"), get(folder, found, "frames", int)
    kinds = dict(zip(_PER_FRAME, "bff", strict=True))
    per_frame = {key: checked(file, arrays, prefix + key, (count,), kind) for key, kind in kinds.items()}
    q = checked(file, arrays, prefix + "q", (count, len(joints)), "f")
    T_world_base = checked(file, arrays, prefix + "T_world_base", (4, 4), "f")
    try:
        fps = float(get(folder, found, "fps", float))
        trajectory = Trajectory(q=q, joint_names=joints, fps=fps, T_world_base=T_world_base)
    except ValueError as error:
        raise ValueError(f"{file}, arm {number}: {error}") from None
    robot, links = get(folder, found, "robot", str), names(folder, found, "link_names")
    return Arm(robot=robot, trajectory=trajectory, link_names=links, **per_frame)
