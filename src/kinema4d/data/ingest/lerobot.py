"""LeRobot data sets, versions 2.0, 2.1 and 3.0: one episode per camera, from parquet tables and videos.

LeRobot knows no cameras and no depth, so the camera is guessed and no pixel has a point, unless
:mod:`kinema4d.data.export_lerobot` wrote the data set: then all that it kept in ``kinema4d/`` comes back. Joints are
read only where both their names and their units are certain (``ROBOTS``).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, UnidentifiedImageError

from kinema4d.data.extras import read_extras
from kinema4d.data.ingest.guessed import guessed_camera
from kinema4d.data.ingest.lerobot_layout import (
    AGAIN,
    Info,
    Place,
    episode_numbers,
    find_episode,
    is_depth,
    read_frames,
    read_info,
    read_rows,
    read_tasks,
    recording_name,
)
from kinema4d.data.ingest.parts import without_depth
from kinema4d.robot.actions import Actions, drive
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Arm, Commands, Episode

STATE, ACTION = "observation.state", "action"
"""LeRobot's names of what the robot measured and what it was told."""
SUCCESS = ("next.success", "is_episode_successful")
"""Flags that say how an episode ended: true in any row means success."""

INSIDE = 0.9
"""Share of rows that must be within the joint limits for the units to be believed."""


@dataclass(frozen=True, kw_only=True)
class RobotRule:
    """When ``observation.state`` is joint positions of a robot of the zoo."""

    robot: str
    """Name in the zoo."""
    states: tuple[str, ...] = ()
    """Names that its columns must have, in order; without any: joints of the zoo's robot by their own names."""
    convention: str = "kinema4d"
    """Convention of the gripper column."""
    needs: tuple[str, ...] = ()
    """Other features that tell this source from others with the same names."""
    unclear: str = ""
    """Why its joints cannot be told; the robot is then only named."""


_UNITS = "LeRobot writes its joints in degrees or as -100 to 100 of a calibrated range, and does not say which"
_DROID_STATES = (*(f"joint_{i}" for i in range(7)), "gripper")
_DROID_MARKS = ("observation.state.cartesian_position", "observation.state.joint_position")
ROBOTS: dict[str, RobotRule] = {
    **{name: RobotRule(robot=name) for name in ("k4arm", "panda", "panda_robotiq", "wx250s", "xarm7", "ur5", "yam")},
    "franka": RobotRule(
        robot="panda_robotiq", states=_DROID_STATES, convention="droid", needs=_DROID_MARKS
    ),  # DROID, as LeRobot ports it
    **{
        name: RobotRule(robot="so101", unclear=_UNITS)
        for name in ("so100", "so101", "so100_follower", "so101_follower", "so_follower")
    },
}
"""Robots by LeRobot's ``robot_type`` in lower case. Add one only where names and units are certain."""


def recordings(root: Path) -> Sequence[str]:
    """Names of all episodes, from the episode list alone."""
    return [recording_name(number) for number in episode_numbers(read_info(root))]


def read(root: Path, recording: str) -> list[Episode]:
    """One episode per camera of a recording, such as ``episode_000012``."""
    info = read_info(root)
    if not info.cameras:
        raise ValueError(f"{root / 'meta' / 'info.json'} lists no colour video or image; there is nothing to look at")
    number = recording.removeprefix("episode_")
    if not number.isdigit():
        raise ValueError(f"recordings of {root} are called episode_000000 and so on, got {recording!r}")
    place = find_episode(info, int(number))
    images = [key for key in info.cameras if info.features[key]["dtype"] == "image"]
    vectors = [key for key in (STATE, ACTION, "task_index", *SUCCESS) if key in info.features]
    rows = read_rows(info, place, [*images, *vectors])
    told = _told(info, place, rows, recording)
    return [_view(info, place, rows, key, told) for key in info.cameras]


def _told(info: Info, place: Place, rows: Mapping[str, list[Any]], recording: str) -> dict[str, Any]:
    """What all cameras share."""
    facts: dict[str, Any] = {"dataset": info.root.resolve().name, "version": info.version}
    depth = [key for key, feature in info.features.items() if is_depth(feature)]
    if depth:
        facts["depth_not_read"] = depth
    arms, commands = (), None
    if STATE in rows:
        state = _vectors(info, place, rows, STATE)
        facts["state_names"] = list(info.names(STATE))
        arm, found = _arm(info, state)
        arms = () if arm is None else (arm,)
        facts |= found
    elif info.robot_type:
        facts["robot_type"] = info.robot_type
    if ACTION in rows:
        commands = Commands(values=_vectors(info, place, rows, ACTION), names=info.names(ACTION), fps=info.fps)
    flag = next((key for key in SUCCESS if key in rows), None)
    return {
        "arms": arms,
        "commands": commands,
        "text": _text(info, place, rows),
        "outcome": "unknown" if flag is None else "success" if np.any(rows[flag]) else "failure",
        "source": f"lerobot/{recording}",
        "group": recording,
        "facts": facts,
    }


def _view(info: Info, place: Place, rows: Mapping[str, list[Any]], key: str, told: Mapping[str, Any]) -> Episode:
    if info.features[key]["dtype"] == "video":
        rgb = read_frames(info, place, key)
    else:
        rgb = _images(place, key, rows[key])
    view = key.removeprefix("observation.images.")
    extras = info.root / "kinema4d" / recording_name(place.number) / view
    if extras.is_dir():
        episode = read_extras(extras, rgb)
        if episode.text != told["text"]:  # LeRobot's tools renumber episodes without knowing of this folder
            raise ValueError(
                f"{extras} is of another episode: its text is {episode.text!r}, the table says {told['text']!r}; export "
                "the data set again, or delete its folder kinema4d/ to read it as a plain LeRobot data set"
            )
        return episode
    clip = without_depth(guessed_camera(*rgb.shape[1:3]), rgb, info.fps)
    return Episode(clip=clip, view=view, camera_from="guessed", metric=True, **told)


def _text(info: Info, place: Place, rows: Mapping[str, list[Any]]) -> str:
    """The instruction; several, in order, where the episode has several."""
    if "task_index" not in rows:
        return "; ".join(place.tasks)
    tasks = read_tasks(info)
    numbers = dict.fromkeys(int(np.squeeze(i)) for i in rows["task_index"])
    unknown = [i for i in numbers if i not in tasks]
    if unknown:
        raise ValueError(
            f"{place.data}, {recording_name(place.number)}: task_index {unknown[0]} is not in meta/tasks "
            f"(0 to {len(tasks) - 1}); {AGAIN}"
        )
    return "; ".join(tasks[i] for i in numbers)


def _vectors(info: Info, place: Place, rows: Mapping[str, list[Any]], key: str) -> Float[np.ndarray, "n d"]:
    who = f"{place.data}, {recording_name(place.number)}"
    names = info.names(key)
    try:
        values = np.array(rows[key], np.float64).reshape(place.length, -1)
    except (TypeError, ValueError):
        raise ValueError(f"{who}: {key} must be {len(names)} numbers in every row; {AGAIN}") from None
    if values.shape[1] != len(names):
        raise ValueError(f"{who}: {key} has {values.shape[1]} numbers, meta/info.json says {len(names)}; {AGAIN}")
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"{who}: {key} is {values[row, column]} in row {row}, {names[column]}; leave the episode out or repair it"
        )
    return values


def _arm(info: Info, state: np.ndarray) -> tuple[Arm | None, dict[str, Any]]:
    """The robot's motion where it is certain, else why it is not."""
    rule = ROBOTS.get(info.robot_type.lower())
    facts: dict[str, Any] = {"robot_type": info.robot_type} if info.robot_type else {}
    if rule is None or not set(rule.needs) <= info.features.keys():
        return None, facts
    facts["robot"], names = rule.robot, info.names(STATE)
    if rule.unclear:
        return None, facts | {"robot_missing": rule.unclear}
    if rule.states and names != rule.states:
        return None, facts | {"robot_missing": f"the columns of {STATE} are not {', '.join(rule.states)}"}
    try:
        robot = load_robot(rule.robot, visuals=False)
    except ValueError as error:
        return None, facts | {"robot_missing": str(error)}
    joints = () if rule.states else names
    if not set(joints) <= set(robot.joint_names):
        return None, facts | {"robot_missing": f"the columns of {STATE} are not joints of {rule.robot}"}
    actions = Actions(
        space="joint_position", values=state, fps=info.fps, convention=rule.convention, joint_names=tuple(joints)
    )
    arm = drive(robot, actions)
    inside = float(arm.converged.mean())
    if inside < INSIDE:
        why = f"{STATE} is within the joint limits of {rule.robot} in {inside:.0%} of the rows: not rad and m"
        return None, facts | {"robot_missing": why}
    return arm, facts


def _images(place: Place, key: str, cells: Sequence[Any]) -> UInt8[np.ndarray, "t h w 3"]:
    """Images that lie in the table itself, as ``{bytes, path}``."""
    images = []
    for row, cell in enumerate(cells):
        content = cell.get("bytes") if isinstance(cell, Mapping) else None
        who = f"{place.data}, {recording_name(place.number)}: {key} in row {row}"
        if not isinstance(content, bytes):
            raise ValueError(f"{who} holds no image bytes; embed the images in the table, or {AGAIN}")
        try:
            with Image.open(io.BytesIO(content)) as image:
                images.append(np.asarray(image.convert("RGB"), np.uint8))
        except (UnidentifiedImageError, OSError) as error:
            raise ValueError(f"{who} is not a readable image: {error}; {AGAIN}") from None
    if len({image.shape for image in images}) != 1:
        raise ValueError(
            f"{place.data}, {recording_name(place.number)}: the images of {key} have several sizes; {AGAIN}"
        )
    return np.stack(images)
