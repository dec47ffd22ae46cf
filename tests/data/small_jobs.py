"""Tiny episodes, and what worker processes do in the tests of data sets and jobs; importable, so that it can be sent."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data import video
from kinema4d.data.dataset import write_episode
from kinema4d.data.manifest import Row
from kinema4d.geometry.camera import from_depth
from kinema4d.types import Arm, Camera, Clip, Commands, Episode, Track, Trajectory

T, H, W = 4, 16, 24


def tiny(seed: int = 0, frames: int = T, **changes: Any) -> Episode:
    """Everything an episode can have, in four small frames."""
    rng = np.random.default_rng(seed)
    K = np.array([[20, 0, 11.5], [0, 20, 7.5], [0, 0, 1.0]])
    camera = Camera(K=K, T_world_camera=np.eye(4), height=H, width=W)
    depth = np.broadcast_to(1 + rng.random((1, H, W)), (frames, H, W))
    Ts = np.tile(np.eye(4), (frames, 1, 1))
    Ts[:, 0, 3] = np.arange(frames) / 10
    arm = Arm(
        robot="k4arm",
        trajectory=Trajectory(q=rng.normal(size=(frames, 2)), joint_names=("a", "b"), fps=10.0),
        link_names=("base", "tip"),
        converged=np.ones(frames, bool),
        residual_m=np.zeros(frames),
        residual_rad=np.zeros(frames),
    )
    values: dict[str, Any] = {
        "clip": Clip(
            camera=camera,
            rgb=rng.integers(0, 255, (frames, H, W, 3)).astype(np.uint8),
            pointmap=from_depth(K, depth, np.ones((frames, H, W), bool)),
            fps=10.0,
        ),
        "arms": (arm,),
        "labels": rng.integers(0, 3, (frames, H, W)).astype(np.uint8),
        "label_names": ("robot", "cup"),
        "text": f"lift cup {seed}",
        "outcome": "success",
        "source": f"test/{seed}",
        "task": "lift",
        "group": f"scene{seed // 2}",
        "view": "main",
        "commands": Commands(values=rng.normal(size=(3 * frames, 2)), names=("x", "y"), fps=30.0),
        "tracks": (
            Track(
                name="cup",
                Ts_world_object=Ts,
                vertices=rng.random((3, 3)).astype(np.float32),
                faces=np.array([[0, 1, 2]], np.int32),
            ),
            Track(name="lid", Ts_world_object=Ts),
        ),
        "facts": {"seed": seed, "light": [0.5, 1.0]},
    }
    return Episode(**values | changes)


def contents(root: Path) -> dict[str, str]:
    """Hashes of all files of a data set, and the lines of its manifest in the order of ids; nothing else is left out."""
    files = {str(f.relative_to(root)): f for f in root.rglob("*") if f.is_file() and f != root / "manifest.jsonl"}
    found = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    return found | {"manifest.jsonl": "\n".join(sorted((root / "manifest.jsonl").read_text().splitlines()))}


# ------------------------------------------------------------------ what workers do


def write(root: str, work: tuple[str, float]) -> list[Row]:
    """An episode, after some seconds; every call is counted."""
    id, seconds = work
    with (Path(root) / "calls.log").open("a") as log:
        log.write(f"{id} {os.getpid()}\n")
    time.sleep(seconds)
    return [write_episode(Path(root), id, tiny(sum(id.encode())))]


def mixed(root: str, work: tuple[str, float]) -> list[Row]:
    """By its name: a bad file, a bug, a worker that is killed in the middle of writing once or always, or an episode."""
    id, _ = work
    if id.startswith("bad"):
        raise ValueError(f"{id} is broken: restore it")
    if id.startswith("bug"):
        raise KeyError(id)
    first = not (Path(root) / f"{id}.died").exists()
    if id.startswith("dies") or (id.startswith("once") and first):
        (Path(root) / f"{id}.died").touch()
        video.write_ffv1 = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    return write(root, work)


def enter_many(root: str, first: int, count: int) -> None:
    """List episodes that have no folder, one after the other."""
    from dataclasses import replace

    from kinema4d.data.dataset import Dataset

    dataset = Dataset(root)
    row = dataset.rows[0]
    for number in range(first, first + count):
        dataset.enter(replace(row, id=f"n{number:05d}", text="x" * 3000))
