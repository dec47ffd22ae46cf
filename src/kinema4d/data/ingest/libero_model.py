"""Cameras and the robot's base from the MuJoCo model (XML) that a LIBERO demonstration carries.

MuJoCo itself could not load it: its meshes are elsewhere. Poses need only the tree of bodies, so it is walked here.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import quaternion_to_matrix, rotvec_to_matrix, transform
from kinema4d.types import Camera

FOVY = 45.0
"""MuJoCo's vertical field of view where a camera states none, degrees."""
_OTHER_ROTATIONS = ("axisangle", "euler", "zaxis")
_IDENTITY = {"quat": np.array([1.0, 0, 0, 0]), "pos": np.zeros(3), "axis": np.array([0.0, 0, 1])}


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """The bodies of a MuJoCo model."""

    parents: Mapping[ET.Element, ET.Element]
    """The element that each element is in."""
    bodies: Mapping[str, ET.Element]
    """By name."""
    cameras: Mapping[str, ET.Element]
    """By name."""


def parse_model(text: str) -> Model:
    """A model from its XML; ``ValueError`` where that is none."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise ValueError(f"model_file is not XML: {error}") from None
    world = root.find("worldbody")
    if world is None:
        raise ValueError(f"model_file has no worldbody; its root is {root.tag!r}")
    parents = {child: parent for parent in world.iter() for child in parent}
    bodies, cameras = ({str(e.get("name")): e for e in world.iter(tag) if e.get("name")} for tag in ("body", "camera"))
    return Model(parents=parents, bodies=bodies, cameras=cameras)


def body_pose(model: Model, name: str) -> Float[np.ndarray, "4 4"]:
    """``T_world_body`` of a body that no joint moves."""
    return _pose(model, model.bodies[name], {}, 1)[0]


def model_camera(
    model: Model, name: str, height: int, width: int, joints: Mapping[str, Float[np.ndarray, " t"]]
) -> Camera:
    """A camera of the model, with one pose per frame where ``joints`` (positions by name) move it."""
    if name not in model.cameras:
        raise ValueError(f"model_file has no camera {name!r}; it has {', '.join(sorted(model.cameras)) or 'none'}")
    element = model.cameras[name]
    if element.get("mode", "fixed") != "fixed":
        raise ValueError(f"camera {name!r} of model_file is {element.get('mode')!r}, not fixed to its body")
    frames = len(next(iter(joints.values()))) if joints else 1
    # MuJoCo's cameras look along -z with y up.
    Ts = _pose(model, element, joints, frames) @ np.diag([1.0, -1, -1, 1])
    focal = height / 2 / np.tan(np.radians(float(element.get("fovy", FOVY))) / 2)
    K = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])
    moves = (Ts != Ts[:1]).any()
    return Camera(K=K, T_world_camera=Ts if moves else Ts[0], height=height, width=width)


def _pose(model: Model, element: ET.Element, joints: Mapping[str, np.ndarray], frames: int) -> np.ndarray:
    """``T_world_element`` per frame: the product of the bodies above it, each turned by its joints."""
    Ts = np.tile(_frame(element), (frames, 1, 1))
    if element.tag == "body":
        Ts = Ts @ _motion(element, joints, frames)
    while (element := model.parents[element]).tag == "body":
        Ts = _frame(element) @ _motion(element, joints, frames) @ Ts
    return Ts


def _frame(element: ET.Element) -> np.ndarray:
    other = [key for key in _OTHER_ROTATIONS if element.get(key)]
    if other:
        raise ValueError(f"{element.tag} {element.get('name')!r} of model_file is rotated by {other[0]}, not quat")
    if element.get("xyaxes"):
        x, y = np.array([float(v) for v in element.get("xyaxes", "").split()]).reshape(2, 3)
        x = x / np.linalg.norm(x)
        y = y - (x @ y) * x
        y = y / np.linalg.norm(y)
        return transform(_vector(element, "pos"), np.stack([x, y, np.cross(x, y)], axis=1))
    return transform(_vector(element, "pos"), quaternion_to_matrix(_vector(element, "quat")))


def _motion(body: ET.Element, joints: Mapping[str, np.ndarray], frames: int) -> np.ndarray:
    Ts = np.tile(np.eye(4), (frames, 1, 1))
    for joint in body:
        if joint.tag not in ("joint", "freejoint"):
            continue
        name, kind = joint.get("name", ""), joint.get("type", "hinge")
        if name not in joints or kind not in ("hinge", "slide"):
            raise ValueError(f"body {body.get('name')!r} of model_file moves by joint {name!r}, which is not recorded")
        axis, anchor = _vector(joint, "axis"), _vector(joint, "pos")
        travel = (joints[name] - float(joint.get("ref", 0)))[:, None] * axis / np.linalg.norm(axis)
        if kind == "slide":
            Ts = Ts @ transform(travel, np.broadcast_to(np.eye(3), (frames, 3, 3)))
        else:
            R = rotvec_to_matrix(travel)
            Ts = Ts @ transform(anchor - R @ anchor, R)
    return Ts


def _vector(element: ET.Element, key: str) -> np.ndarray:
    text, default = element.get(key), _IDENTITY[key]
    try:
        value = default if text is None else np.array([float(v) for v in text.split()])
    except ValueError:
        value = np.zeros(0)
    if value.shape != default.shape or not np.isfinite(value).all():
        raise ValueError(f"{element.tag} {element.get('name')!r} of model_file has {key}={text!r}")
    return value
