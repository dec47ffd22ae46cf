"""Live LIBERO: demonstrations and perturbed replays that its own environment records, and episodes from them.

LIBERO needs an old simulator that cannot live beside ours, so :func:`record` starts ``libero_worker.py`` with the
Python of LIBERO's environment, one process per task. It leaves one ``.npz`` per episode, which :func:`read` reads:
no package of LIBERO is needed for that (docs/libero.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kinema4d.data.ingest import libero_worker
from kinema4d.data.ingest.parts import arms_of, numbers
from kinema4d.geometry.camera import from_depth
from kinema4d.robot.actions import Actions, drive
from kinema4d.types import OUTCOMES, Arm, Camera, Clip, Commands, Episode, Track, check_transforms

ROBOT = "panda"
"""Zoo robot. LIBERO's is robosuite's model of it, whose links have the same frames."""
FINGER_M = 0.04
"""Travel of a finger when fully open, metres."""
ACTION = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")
"""Columns of the commands, -1 to 1; gripper -1 opens."""
JOINTS = (*(f"joint{i}" for i in range(1, 8)), "finger_joint1", "finger_joint2")
"""Columns of the recorded joint positions, rad and m; the second finger counts backwards."""
_AGAIN = "delete the file and record it again"
_META: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("suite", "task_name", "language", "thing", "place", "camera", "outcome", "kind"), (str,)),
    **dict.fromkeys(("demonstration", "noise_unit", "assets_remark"), (str,)),
    **dict.fromkeys(("task", "init"), (int,)),
    **dict.fromkeys(("fps", "min_gap_m", "min_gap_s", "sigma"), (int, float)),
    **dict.fromkeys(("segment", "noise_seed", "success_step"), (int, type(None))),
    **dict.fromkeys(("label_names", "object_names"), (list,)),
    "versions": (dict,),
}
"""Every entry of a recording's description that is read."""
_ARRAYS: Mapping[str, tuple[str, tuple[int | str, ...]]] = {
    "rgb": ("u", ("t", "h", "w", 3)),
    "depth": ("f", ("t", "h", "w")),
    "labels": ("u", ("t", "h", "w")),
    "q": ("f", ("t", len(JOINTS))),
    "K": ("f", (3, 3)),
    "T_world_camera": ("f", ("t", 4, 4)),
    "T_world_base": ("f", (4, 4)),
    "Ts_world_object": ("f", ("t", "objects", 4, 4)),
    "actions": ("f", ("n", len(ACTION))),
    "frame_steps": ("i", ("t",)),
}
"""Kind and shape of every array that is read; equal letters are equal numbers."""
_NOTHING = np.array("")


# --------------------------------------------------------------------- reading


def recordings(root: Path) -> Sequence[str]:
    """Names of all recordings in a folder that the worker wrote."""
    names = sorted(f.stem for f in Path(root).glob("*.npz") if not f.name.startswith("."))
    if not names:
        raise ValueError(f"{root} holds no recording (.npz); record some first, see docs/libero.md")
    return names


def read(root: Path, recording: str) -> list[Episode]:
    """The episode of one recording: what LIBERO's fixed camera saw, with the simulator's truth."""
    file = Path(root) / f"{recording}.npz"
    arrays, meta = _load(file)
    rgb, depth, frames = arrays["rgb"], arrays["depth"], len(arrays["rgb"])
    poses = arrays["T_world_camera"].astype(np.float64)
    steps = _steps(arrays["frame_steps"], len(arrays["actions"]), file)
    fps = meta["fps"] * (frames - 1) / steps[-1]
    try:
        # A camera that never moves is one pose.
        camera = Camera(
            K=arrays["K"].astype(np.float64),
            T_world_camera=poses[0] if (poses == poses[0]).all() else poses,
            height=rgb.shape[1],
            width=rgb.shape[2],
        )
        check_transforms(arrays["T_world_base"], "T_world_base")
        objects = arrays["Ts_world_object"].astype(np.float64)
        tracks = tuple(
            Track(name=name, Ts_world_object=Ts)
            for name, Ts in zip(meta["object_names"], np.swapaxes(objects, 0, 1), strict=True)
        )
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {_AGAIN}") from None
    q = numbers(arrays["q"], f"{file}, q", JOINTS, frames)
    actions = Actions(
        space="joint_position",
        values=q[:, :7],
        # The zoo's Panda has one finger joint and a mirrored finger.
        gripper=1 - (q[:, 7] - q[:, 8]) / 2 / FINGER_M,
        fps=fps,
        T_world_base=arrays["T_world_base"].astype(np.float64),
    )
    arms, found = arms_of(ROBOT, lambda robot: _measured(drive(robot, actions)))
    values = numbers(arrays["actions"], f"{file}, actions", ACTION)
    return [
        Episode(
            clip=Clip(camera=camera, rgb=rgb, pointmap=from_depth(camera.K, depth, depth > 0), fps=fps),
            arms=arms,
            labels=arrays["labels"],
            label_names=tuple(meta["label_names"]),
            text=meta["language"],
            outcome=meta["outcome"],
            source=f"libero_live/{recording}",
            task="pick_place",
            group=f"{meta['suite']}/{meta['task']}/{meta['init']}",
            view=meta["camera"],
            camera_from="exact",
            commands=Commands(values=values, names=ACTION, fps=meta["fps"], space="ee_delta", convention="libero"),
            tracks=tracks,
            facts=_facts(meta, steps) | found,
        )
    ]


def _measured(arm: Arm) -> Arm:
    """These positions were not asked for but taken up: MuJoCo's limits give way by some milliradians."""
    return replace(arm, converged=np.ones(len(arm.trajectory.q), bool))


def _facts(meta: Mapping[str, Any], steps: np.ndarray) -> dict[str, Any]:
    kept = ("suite", "task_name", "init", "kind", "demonstration", "segment", "sigma", "noise_unit", "noise_seed")
    kept += ("thing", "place", "min_gap_m", "min_gap_s", "success_step", "versions")
    facts = {key: meta[key] for key in kept}
    facts |= {"seed": meta["noise_seed"], "task_number": meta["task"], "frame_steps": steps.tolist()}
    return facts | ({"assets": meta["assets_remark"]} if meta["assets_remark"] else {})


def _load(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the description in a recording, checked for everything that :func:`read` relies on."""
    if not file.is_file():
        raise ValueError(f"there is no recording {file}")
    try:
        with zipfile.ZipFile(file), np.load(file, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is damaged: {error}; {_AGAIN}") from None
    try:
        meta = json.loads(str(content.pop("meta")))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{file} has no description 'meta' in JSON ({error}); {_AGAIN}") from None
    expected = (libero_worker.FORMAT, libero_worker.VERSION)
    if not isinstance(meta, dict) or meta.get("format") != expected[0]:
        raise ValueError(f"{file} is not a LIBERO recording of kinema4d: 'format' must be {expected[0]!r}")
    if meta.get("version") != expected[1]:
        raise ValueError(
            f"{file} has version {meta.get('version')!r}, this kinema4d reads {expected[1]}; record it again, or use "
            "the kinema4d that wrote it"
        )
    _check_meta(meta, file)
    _check_arrays(content, meta, file)
    return content, meta


def _check_meta(meta: dict[str, Any], file: Path) -> None:
    for key, kind in _META.items():
        if key not in meta or not isinstance(meta[key], kind):
            raise ValueError(f"{file}: 'meta' has {key} = {meta.get(key)!r:.60}; {_AGAIN}")
    if meta["outcome"] not in OUTCOMES:
        raise ValueError(f"{file}: the outcome must be one of {', '.join(OUTCOMES)}, got {meta['outcome']!r}; {_AGAIN}")
    if not (np.isfinite([meta["fps"], meta["min_gap_m"], meta["min_gap_s"]]).all() and meta["fps"] > 0):
        raise ValueError(f"{file}: 'meta' has a rate or a gap that is not a number; {_AGAIN}")


def _check_arrays(content: dict[str, np.ndarray], meta: dict[str, Any], file: Path) -> None:
    sizes: dict[str, int] = {"objects": len(meta["object_names"])}
    for name, (kind, shape) in _ARRAYS.items():
        array = content.get(name, _NOTHING)
        for n, s in zip(array.shape, shape, strict=False):
            if isinstance(s, str):
                sizes.setdefault(s, n)
        wanted = tuple(sizes[s] if isinstance(s, str) and s in sizes else s for s in shape)
        if array.dtype.kind != kind or array.shape != wanted:
            found = f"{array.dtype} {list(array.shape)}" if name in content else "nothing"
            raise ValueError(
                f"{file}: {name} must be of kind {kind!r} and shape {list(wanted)}, found {found}; {_AGAIN}"
            )
        if kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise ValueError(f"{file}: {name} has a value that is not a number, first in row {row}; {_AGAIN}")
    if content["rgb"].dtype != np.uint8:
        raise ValueError(f"{file}: rgb must be uint8, found {content['rgb'].dtype}; {_AGAIN}")
    if content["labels"].max(initial=0) > len(meta["label_names"]):
        raise ValueError(
            f"{file}: labels reach {content['labels'].max()} but only {len(meta['label_names'])} are named; {_AGAIN}"
        )


def _steps(steps: np.ndarray, commands: int, file: Path) -> np.ndarray:
    if len(steps) < 2 or steps[0] != 0 or steps[-1] != commands or (np.diff(steps) < 1).any():
        raise ValueError(f"{file}: frame_steps must rise from 0 to the {commands} commands, got {steps}; {_AGAIN}")
    return steps


# -------------------------------------------------------------------- recording


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What became of one recording, or of a whole task."""

    status: Literal["written", "there", "skipped", "failed"]
    """``there``: from an earlier run. ``skipped``: nothing to perturb. ``failed``: the task's process died."""
    suite: str
    """Suite of LIBERO."""
    task: int
    """Number of the task in it."""
    recording: str = ""
    """Name of the recording; empty where the whole task failed."""
    outcome: str = ""
    """How a newly written episode ended."""
    message: str = ""
    """Why it was skipped or failed."""


def record(
    out: Path,
    *,
    python: Path,
    assets: Path,
    suites: Sequence[str] = ("libero_object", "libero_spatial"),
    tasks: Sequence[int] = tuple(range(10)),
    inits: Sequence[int] = (0,),
    failures: bool = True,
    seed: int = 0,
    size: tuple[int, int] = (240, 360),
    workers: int = 1,
    report: Callable[[Progress], None] = lambda progress: None,
) -> list[Progress]:
    """Record every task of every suite from every initial state into ``out``; recordings that are there are kept.

    ``python`` is the interpreter of LIBERO's environment, ``assets`` its asset folder. Each demonstration that
    succeeds is followed by its nine perturbed replays (``failures``). A task whose process dies is reported and the
    others go on. ``report`` is called as things happen, from several threads where there are several ``workers``.
    """
    python, assets, out = Path(python), Path(assets), Path(out)
    if not python.is_file():
        raise ValueError(
            f"{python} is not a Python interpreter; give bin/python of LIBERO's environment (docs/libero.md)"
        )
    if not assets.is_dir():
        raise ValueError(f"{assets} is not a folder; give LIBERO's assets (docs/libero.md)")
    if not suites or not tasks or not inits or workers < 1 or min(size) < 1:
        raise ValueError("needs at least one suite, task, initial state, worker and pixel")
    out.mkdir(parents=True, exist_ok=True)
    options = ["--assets", str(assets.resolve()), "--out", str(out.resolve()), "--seed", str(seed)]
    options += ["--height", str(size[0]), "--width", str(size[1]), "--init", *map(str, inits)]
    options += ["--failures"] if failures else []

    def one(job: tuple[str, int]) -> list[Progress]:
        suite, task = job
        command = [str(python), libero_worker.__file__, "--suite", suite, "--task", str(task), *options]
        done = []
        for progress in _run(command, suite, task, out / "logs" / f"{suite}_t{task:02d}.log"):
            report(progress)
            done.append(progress)
        return done

    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(one, job) for job in product(suites, tasks)]
        try:
            return [progress for job in jobs for progress in job.result()]
        finally:
            for job in jobs:
                job.cancel()


def _run(command: list[str], suite: str, task: int, log: Path) -> Iterator[Progress]:
    """The progress of one worker process; its other output goes to ``log``."""
    environment = {"MUJOCO_GL": "egl", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | dict(os.environ)
    # Our own packages must not be seen by the other environment.
    environment = {k: v for k, v in environment.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    log.parent.mkdir(parents=True, exist_ok=True)
    last: deque[str] = deque(maxlen=200)
    with (
        log.open("w", encoding="utf-8") as written,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(libero_worker.MARK):
                    yield Progress(suite=suite, task=task, **json.loads(line.removeprefix(libero_worker.MARK)))
                else:
                    written.write(line)
                    last.append(line.strip())
        except BaseException:  # also when the reader of this progress stops early
            process.terminate()
            raise
    if process.returncode:
        errors = [line for line in last if line.startswith("error: ")] or [line for line in last if line]
        why = errors[-1].removeprefix("error: ") if errors else "it said nothing"
        message = f"the worker ended with code {process.returncode}: {why} (all it said: {log})"
        yield Progress(status="failed", suite=suite, task=task, message=message)
