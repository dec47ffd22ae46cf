"""kinema4d: an open 4D robot world simulator. Names load on first use, so importing the package is cheap."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Camera": "kinema4d.types",
    "Trajectory": "kinema4d.types",
    "Pointmap": "kinema4d.types",
    "Clip": "kinema4d.types",
    "Control": "kinema4d.types",
    "Episode": "kinema4d.types",
    "Rollout": "kinema4d.types",
    "Arm": "kinema4d.types",
    "Actions": "kinema4d.robot.actions",
    "Gripper": "kinema4d.robot.model",
    "Robot": "kinema4d.robot.model",
    "calibrate": "kinema4d.robot.calibrate",
    "control": "kinema4d.robot.control",
    "drive": "kinema4d.robot.actions",
    "export": "kinema4d.data.export",
    "forward_kinematics": "kinema4d.robot.kinematics",
    "inverse_kinematics": "kinema4d.robot.ik",
    "load": "kinema4d.data.store",
    "load_actions": "kinema4d.robot.action_files",
    "load_camera": "kinema4d.geometry.camera",
    "load_robot": "kinema4d.robot.zoo",
    "load_world": "kinema4d.world.load",
    "look_at": "kinema4d.geometry.se3",
    "place": "kinema4d.geometry.se3",
    "save": "kinema4d.data.store",
    "view": "kinema4d.viewer.view",
}

__all__ = ["__version__", *_PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from kinema4d.data.export import export as export
    from kinema4d.data.store import load as load
    from kinema4d.data.store import save as save
    from kinema4d.geometry.camera import load_camera as load_camera
    from kinema4d.geometry.se3 import look_at as look_at
    from kinema4d.geometry.se3 import place as place
    from kinema4d.robot.action_files import load_actions as load_actions
    from kinema4d.robot.actions import Actions as Actions
    from kinema4d.robot.actions import drive as drive
    from kinema4d.robot.calibrate import calibrate as calibrate
    from kinema4d.robot.control import control as control
    from kinema4d.robot.ik import inverse_kinematics as inverse_kinematics
    from kinema4d.robot.kinematics import forward_kinematics as forward_kinematics
    from kinema4d.robot.model import Gripper as Gripper
    from kinema4d.robot.model import Robot as Robot
    from kinema4d.robot.zoo import load_robot as load_robot
    from kinema4d.types import Arm as Arm
    from kinema4d.types import Camera as Camera
    from kinema4d.types import Clip as Clip
    from kinema4d.types import Control as Control
    from kinema4d.types import Episode as Episode
    from kinema4d.types import Pointmap as Pointmap
    from kinema4d.types import Rollout as Rollout
    from kinema4d.types import Trajectory as Trajectory
    from kinema4d.viewer.view import view as view
    from kinema4d.world.load import load_world as load_world


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kinema4d' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
