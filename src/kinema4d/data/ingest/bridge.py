"""Bridge (bridge_dataset 1.0.0 and its relatives, RLDS, 5 Hz, WidowX 250 S).

There are no joint angles: ``state`` is the pose of the gripper (whatever its description says), so joints come from
inverse kinematics. Step 0 is padding: its action is zero and moves nothing. Dropping that action alone would shift
the others against the frames (action t is given at state t: on the sample it correlates 0.89 with the motion to state
t + 1 and as much with the next, for the arm lags, but 0.62 with the motion before), so the whole step goes, as in Octo
and OpenVLA.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from kinema4d.data.ingest.guessed import guessed_camera
from kinema4d.data.ingest.parts import arms_of, decode_frames, numbers, without_depth
from kinema4d.data.ingest.rlds_recordings import read_recording, rlds_recordings
from kinema4d.robot.actions import Actions, drive
from kinema4d.types import Commands, Episode

FPS = 5.0
"""Steps per second."""
ROBOT = "wx250s"
"""Zoo robot."""
VIEWS = ("image_0", "image_1", "image_2", "image_3")
"""Cameras; the first is over the shoulder and always there, others are black where there was none."""
BLACK = 8
"""Brightest value of a frame that shows nothing; JPEG may add a little to zero."""
STATE = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
"""Columns of the state and, as displacements, of the action; gripper 1 is open."""
NEEDS = ("steps/observation/image_0", "steps/observation/state", "steps/action", "steps/is_first")
"""Features without which a data set is not Bridge."""
_WANTS = (
    *(f"steps/observation/{view}" for view in VIEWS),
    "steps/language_instruction",
    "steps/observation/natural_language_instruction",
    "episode_metadata/file_path",
    "episode_metadata/episode_id",
)


def recordings(root: Path) -> Sequence[str]:
    """Names of all recordings, as ``dataset_info.json`` promises them."""
    return rlds_recordings(root, source="Bridge", needs=NEEDS)


def read(root: Path, recording: str) -> list[Episode]:
    """One episode for each camera that saw something."""
    found = read_recording(root, recording, source="Bridge", needs=NEEDS, wants=_WANTS)
    where = f"recording {recording} of {found.file}"
    if found.length < 2:
        raise ValueError(f"{where} has {found.length} steps, of which the first is padding; leave it out")
    state = numbers(found.steps["observation/state"], f"{where}, observation/state", STATE)[1:]
    action = numbers(found.steps["action"], f"{where}, action", STATE)[1:]
    arms, facts = arms_of(
        ROBOT,
        lambda robot: drive(robot, Actions(space="ee_pose", values=state, fps=FPS, convention="bridge")),
    )
    file = found.metadata.get("episode_metadata/file_path", "")
    facts |= {"file_path": file, "padding_steps_dropped": 1}
    if "episode_metadata/episode_id" in found.metadata:
        facts["episode_id"] = found.metadata["episode_metadata/episode_id"]
    # Flags such as has_image_1 are wrong in files that circulate: what a camera saw is in its frames.
    views = {}
    for view in VIEWS:
        if f"observation/{view}" in found.steps:
            frames = decode_frames(found.steps[f"observation/{view}"], f"{where}, {view}")[1:]
            if frames.max() > BLACK:
                views[view] = frames
    if not views:
        raise ValueError(f"{where}: every frame of every camera is black; leave it out, or download its file again")
    commands = Commands(values=action, names=STATE, fps=FPS, space="ee_delta", convention="bridge")
    return [
        Episode(
            clip=without_depth(guessed_camera(*frames.shape[1:3]), frames, FPS),
            arms=arms,
            text=_text(found.steps),
            source=f"bridge/{recording}",
            task=_task(file),
            group=f"bridge/{recording}",
            view=view,
            camera_from="guessed",
            commands=commands,
            facts=facts,
        )
        for view, frames in views.items()
    ]


def _text(steps: dict[str, np.ndarray | list]) -> str:
    texts: Any = steps.get("language_instruction") or steps.get("observation/natural_language_instruction") or [""]
    return next((t.strip() for t in texts if t.strip()), "")


def _task(file: str) -> str:
    """The folder that names the task: ``.../toysink2_bww/put_carrot_on_plate/19/train/out.npy``."""
    folders = PurePosixPath(file).parts[:-1]
    return next((f for f in reversed(folders) if f not in ("train", "val") and not f.isdigit()), "")
