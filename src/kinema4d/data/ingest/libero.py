"""LIBERO demonstrations as HDF5 (20 Hz, Panda, OSC_POSE): ``data/demo_0`` and so on in ``*.hdf5``.

Cameras and the robot's base are exact where the demonstration carries its MuJoCo model (``model_file``). Images are
stored bottom row first (``macros_image_convention`` is ``opengl``) and only a vertical flip sets them upright; turning
them by 180 degrees, as policies do, would mirror left and right against the camera (openvla #295).

LIBERO's own files keep what was observed *after* each action, OpenVLA's regenerated ones what was observed before it.
The simulator states, which are always those before the action, tell which; commands are shifted so that row i is what
the robot was told at frame i.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from kinema4d.data.ingest.guessed import guessed_camera
from kinema4d.data.ingest.libero_model import Model, body_pose, model_camera, parse_model
from kinema4d.data.ingest.parts import arms_of, numbers, without_depth
from kinema4d.robot.actions import Actions, drive
from kinema4d.types import Camera, Commands, Episode

FPS = 20.0
"""Steps per second."""
ROBOT = "panda"
"""Zoo robot."""
JOINTS = tuple(f"robot0_joint{i}" for i in range(1, 8))
"""Joints in the model, the columns of ``joint_states``."""
FINGERS = ("finger_joint1", "finger_joint2")
"""Columns of ``gripper_states``: metres, the first positive, the second negative; 0 is closed."""
OPEN = 0.04
"""Travel of a finger when fully open, metres."""
ACTION = ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")
"""Columns of the action, -1 to 1; gripper -1 opens."""
VIEWS = {"agentview_rgb": "agentview", "eye_in_hand_rgb": "robot0_eye_in_hand"}
"""Camera in the model by the name of its images."""
MOST_DEMOS = 100_000
"""More than any file announces; damaged ones may say anything."""
PROBE_SECONDS = 120.0
"""How long another process may take to walk through a file. Damaged files can keep the HDF5 library busy for ever or
crash it, which no exception tells."""
_PROBE = """
import sys, h5py
with h5py.File(sys.argv[1], "r") as file:
    dict(file.attrs)
    file.visititems(lambda name, item: dict(item.attrs) and None)
"""
_ARRAYS = (
    *("actions", "states", "rewards", "dones", "obs/joint_states", "obs/gripper_states"),
    *(f"obs/{view}" for view in VIEWS),
)
BASES = ("robot0_link0", "robot0_base")
"""Bodies of the model that are the root of the robot, the best first."""


def recordings(root: Path) -> Sequence[str]:
    """Names such as ``libero_goal/open_the_middle_drawer_demo/demo_0``; a file that cannot be read is one name."""
    _h5py()
    names = []
    for name, file in _files(Path(root)).items():
        try:
            with _open(file) as data:
                promised = min(int(data.attrs.get("num_demos", 0)), MOST_DEMOS)
                demos = {str(key) for key in data} | {f"demo_{i}" for i in range(promised)}
        except ValueError:
            names.append(name)
            continue
        names += [f"{name}/{demo}" for demo in sorted(demos, key=lambda d: (d.rpartition("_")[2].zfill(9), d))]
    return names


def read(root: Path, recording: str) -> list[Episode]:
    """One episode per camera of a demonstration."""
    h5py = _h5py()
    files = _files(Path(root))
    name, _, key = recording.rpartition("/")
    if recording in files:
        name, key = recording, ""
    if name not in files:
        raise ValueError(f"{root} has no recording {recording!r}; there are files {', '.join(sorted(files)[:5])}")
    where = f"recording {recording} of {files[name]}"
    with _open(files[name]) as data:
        if not key:
            raise ValueError(f"{where}: name one of its demonstrations, such as {recording}/demo_0")
        if not isinstance(data.get(key), h5py.Group):
            promised = f" of the {data.attrs['num_demos']} that it announces" if "num_demos" in data.attrs else ""
            raise ValueError(f"{where}: the file has no {key!r}{promised}, only {len(data)}; download it again")
        about = {k: _string(v) for k, v in data.attrs.items() if k in ("problem_info", "macros_image_convention")}
        about["model_file"] = _string(data[key].attrs.get("model_file", ""))
        demo = {k: v[()] for k in _ARRAYS if isinstance(v := data[key].get(k), h5py.Dataset)}
    return _episodes(demo, about, where, recording, name)


def _episodes(
    demo: dict[str, np.ndarray], about: dict[str, str], where: str, recording: str, name: str
) -> list[Episode]:
    lacking = [k for k in ("actions", "obs/agentview_rgb", "obs/joint_states", "obs/gripper_states") if k not in demo]
    if lacking:
        raise ValueError(f"{where} is of an unknown schema: it lacks {', '.join(lacking)}; it has {', '.join(demo)}")
    length = len(np.atleast_1d(demo["actions"]))
    if length == 0:
        raise ValueError(f"{where} has no steps; leave it out")
    q = numbers(demo["obs/joint_states"], f"{where}, joint_states", JOINTS, length)
    fingers = numbers(demo["obs/gripper_states"], f"{where}, gripper_states", FINGERS, length)
    action = numbers(demo["actions"], f"{where}, actions", ACTION, length)
    after, facts = _observed_after(demo, q)
    model, T_world_base, trouble = _model(about["model_file"])
    actions = Actions(
        space="joint_position",
        values=q,
        gripper=1 - (fingers[:, 0] - fingers[:, 1]) / 2 / OPEN,
        fps=FPS,
        T_world_base=T_world_base,
    )
    robots, found = arms_of(ROBOT, lambda robot: drive(robot, actions))
    told = action[1:] if after else action
    flip, said = _convention(about, where)
    facts |= {"file": f"{name}.hdf5", "image_convention": said} | found
    shared = {
        "arms": robots,
        "text": _text(about, name),
        "outcome": _outcome(demo),
        "source": f"libero/{recording}",
        "task": Path(name).name.removesuffix("_demo"),
        "group": f"libero/{recording}",
    }
    if len(told):
        shared["commands"] = Commands(values=told, names=ACTION, fps=FPS, space="ee_delta", convention="libero")
    episodes = []
    for view, camera_name in VIEWS.items():
        if f"obs/{view}" not in demo:
            continue
        rgb = _images(demo[f"obs/{view}"], length, flip, f"{where}, {view}")
        camera, why = _camera(model, trouble, camera_name, rgb, q)
        episodes.append(
            Episode(
                clip=without_depth(camera, rgb, FPS),
                view=camera_name,
                camera_from="guessed" if why else "exact",
                facts=facts | ({"camera_missing": why} if why else {}),
                **shared,
            )
        )
    return episodes


def _camera(model: Model | None, trouble: str, name: str, rgb: np.ndarray, q: np.ndarray) -> tuple[Camera, str]:
    """The camera, and why it is only guessed; empty where it is exact."""
    height, width = rgb.shape[1:3]
    if model is None:
        return guessed_camera(height, width), trouble
    try:
        return model_camera(model, name, height, width, dict(zip(JOINTS, q.T, strict=True))), ""
    except ValueError as error:
        return guessed_camera(height, width), str(error)


def _model(text: str) -> tuple[Model | None, Float[np.ndarray, "4 4"], str]:
    """The model and the robot's base in its world; or no model, and why: without both, robot and camera share no world."""
    if not text:
        return None, np.eye(4), "the demonstration has no model_file"
    try:
        model = parse_model(text)
        base = next((name for name in BASES if name in model.bodies), None)
        if base is None:
            raise ValueError(f"model_file has no body {' or '.join(BASES)}")
        return model, body_pose(model, base), ""
    except ValueError as error:
        return None, np.eye(4), str(error)


def _observed_after(demo: dict[str, np.ndarray], q: np.ndarray) -> tuple[bool, dict[str, Any]]:
    """Whether frame i was seen after action i; told by the states (time, then positions, the robot's first)."""
    states = demo.get("states", np.zeros((0, 0)))
    if states.ndim == 2 and len(states) == len(q) and states.shape[1] > 8 and len(q) > 1:
        before = np.abs(states[:, 1:8] - q).max()
        shifted = np.abs(states[1:, 1:8] - q[:-1]).max()
        return bool(shifted < before), {"observed": "after the action" if shifted < before else "before the action"}
    return True, {"observed": "after the action, as LIBERO's own files do; no states tell"}


def _convention(about: dict[str, str], where: str) -> tuple[bool, str]:
    """Whether images are bottom row first, and how that is known."""
    said = about.get("macros_image_convention", "")
    if said not in ("", "opengl", "opencv"):
        raise ValueError(f"{where}: macros_image_convention is {said!r}; opengl and opencv are known")
    return said != "opencv", said or "opengl, robosuite's default: the file does not say"


def _images(images: np.ndarray, length: int, flip: bool, where: str) -> UInt8[np.ndarray, "t h w 3"]:
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise ValueError(f"{where}: expected uint8 [t,h,w,3], got {images.dtype} {list(images.shape)}")
    if len(images) != length:
        raise ValueError(
            f"{where}: {len(images)} frames but {length} actions; the file is incomplete, download it again"
        )
    return np.ascontiguousarray(images[:, ::-1]) if flip else images


def _outcome(demo: dict[str, np.ndarray]) -> str:
    # LIBERO marks the end of every demonstration that it keeps, and keeps only successes.
    flags = [demo[key] for key in ("rewards", "dones") if key in demo]
    if not flags:
        return "unknown"
    return "success" if any((f > 0).any() for f in flags) else "failure"


def _text(about: dict[str, str], name: str) -> str:
    try:
        text = json.loads(about.get("problem_info", "{}")).get("language_instruction", "")
    except (ValueError, AttributeError):
        text = ""
    text = " ".join(text) if isinstance(text, list) else str(text)
    # Files without attributes are named after their instruction, some with the scene in capitals before it.
    words = Path(name).name.removesuffix("_demo").split("_")
    return text.strip() or " ".join(w for w in words if not w.isupper() and not w.isdigit())


def _string(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _files(root: Path) -> dict[str, Path]:
    """Files by the name that recordings begin with."""
    if root.is_file():
        return {root.stem: root}
    files = {f.relative_to(root).with_suffix("").as_posix(): f for f in sorted(root.rglob("*.hdf5"))}
    if not files:
        raise ValueError(f"{root} holds no .hdf5 file; give a folder of LIBERO demonstrations such as libero_goal/")
    return files


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise ValueError("reading LIBERO's HDF5 files needs h5py: pip install 'kinema4d[libero]'") from None
    return h5py


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    """The group ``data`` of a file, in which only reading may happen: its damage is told from here."""
    try:
        about = file.stat()
        trouble = _trouble(file, about.st_size, about.st_mtime_ns)
        if trouble:
            raise OSError(trouble)
        with _h5py().File(file, "r") as content:
            if not isinstance(content.get("data"), _h5py().Group) or not len(content["data"]):
                raise ValueError(f"{file} has no data/demo_0, only {list(content)}: it holds no LIBERO demonstrations")
            yield content["data"]
    except (OSError, RuntimeError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not a readable HDF5 file: {error}; download it again") from None


@lru_cache(maxsize=4096)
def _trouble(file: Path, size: int, changed: int) -> str:
    """What is wrong with a file; empty where nothing is. ``size`` and ``changed`` make a new file a new question."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _PROBE, str(file)],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the HDF5 library gets lost in it (no answer in {PROBE_SECONDS:g} s)"
    if tried.returncode < 0:
        return f"the HDF5 library crashes on it (signal {-tried.returncode})"
    return (tried.stderr.strip().splitlines() or ["it cannot be opened"])[-1] if tried.returncode else ""
