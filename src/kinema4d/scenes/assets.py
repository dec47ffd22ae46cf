"""Real jointed objects out of the wheels of metaworld and gymnasium-robotics: their bodies, joints and drawn meshes, and nothing else.

No file of theirs is kept here. They are found in a folder that an argument or a variable names, or in an installed package; ``pip
download metaworld gymnasium-robotics --no-deps`` and unzip makes such a folder. What the scene holds besides the object (robot, table)
is left out, and so are contacts, damping and springs: it moves freely under gravity.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import trimesh
from jaxtyping import Float64, Int64

from kinema4d.scenes.physics import mujoco_module
from kinema4d.scenes.simpler import simpler

VARIABLES = ("KINEMA4D_OBJECT_ASSETS", "KINEMA4D_ASSETS")
"""Environment variables that name folders with ``metaworld/`` and ``gymnasium_robotics/`` in them."""
MOST = 600
"""Vertices of an object."""
DRAWN = 2
"""The last group of geoms that MuJoCo draws; collision shapes are in later ones."""
_SAWYER = "metaworld/assets/sawyer_xyz/sawyer_"
_KITCHEN = "gymnasium_robotics/envs/assets/kitchen_franka/kitchen_assets/kitchen_env_model.xml"
ASSETS: dict[str, tuple[str, str]] = {
    "real-door": (f"{_SAWYER}door_pull.xml", "door"),
    "real-lock": (f"{_SAWYER}door_lock.xml", "door"),
    "real-drawer": (f"{_SAWYER}drawer.xml", "drawer"),
    "real-laptop": (f"{_SAWYER}laptop.xml", "laptop"),
    "real-faucet": (f"{_SAWYER}faucet.xml", "faucetBase"),
    "real-window": (f"{_SAWYER}window.xml", "window"),
    "real-dial": (f"{_SAWYER}dial.xml", "dial"),
    "real-lever": (f"{_SAWYER}lever_pull.xml", "lever"),
    "real-coffee": (f"{_SAWYER}coffee.xml", "coffee_machine"),
    "real-handle": (f"{_SAWYER}handle_press.xml", "box"),
    "real-button": (f"{_SAWYER}button_press.xml", "box"),
    "real-microwave": (_KITCHEN, "microwave"),
    "real-slide-cabinet": (_KITCHEN, "slidecabinet"),
    "real-hinge-cabinet": (_KITCHEN, "hingecabinet"),
    "real-oven": (_KITCHEN, "oven"),
    "real-latch-door": ("gymnasium_robotics/envs/assets/adroit_hand/adroit_door.xml", "frame"),
}
"""Every object: its scene file, and the body that it is. Metaworld's box is not here: its lid is loose, on no joint."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Real:
    """An object."""

    name: str
    """Of ``ASSETS``."""
    text: str
    """Its bodies and joints for MuJoCo, root at the origin."""
    vertices: Float64[np.ndarray, "v 3"]
    """Metres, each in the frame of its body."""
    faces: Int64[np.ndarray, "f 3"]
    """Of all bodies."""
    part_of: Int64[np.ndarray, " v"]
    """Whose a vertex is, in MuJoCo's numbers."""
    limits: Float64[np.ndarray, "j 2"]
    """Of the joints, radians or metres."""

    @property
    def freedom(self) -> int:
        """Joints."""
        return len(self.limits)

    def xml(self) -> str:
        """For MuJoCo: no contacts, no damping, the masses of the asset."""
        return self.text

    def posed(self, q: Float64[np.ndarray, "*b j"]) -> Float64[np.ndarray, "*b v 3"]:
        """Vertices for joint positions."""
        mujoco = mujoco_module()
        model = mujoco.MjModel.from_xml_string(self.text)
        data, out = mujoco.MjData(model), []
        for one in q.reshape(-1, self.freedom):
            data.qpos[:] = one
            mujoco.mj_kinematics(model, data)
            turned = np.einsum("vij,vj->vi", data.xmat.reshape(-1, 3, 3)[self.part_of], self.vertices)
            out.append(turned + data.xpos[self.part_of])
        return np.stack(out).reshape(*q.shape[:-1], *self.vertices.shape)


def find(name: str, folder: Path | None = None) -> Path:
    """The scene file of an object: under ``folder``, a folder of ``VARIABLES``, or an installed package."""
    if name not in ASSETS:
        raise ValueError(f"unknown real object {name!r}; known are {', '.join(ASSETS)}")
    file = Path(ASSETS[name][0])
    roots = [folder] if folder is not None else [Path(os.environ[v]) for v in VARIABLES if os.environ.get(v)]
    if folder is None and (spec := importlib.util.find_spec(file.parts[0])) is not None and spec.origin:
        roots.append(Path(spec.origin).parents[1])
    for root in roots:
        if (root / file).is_file():
            return root / file
    looked = ", ".join(map(str, roots)) or "no folder is named"
    raise ValueError(
        f"{name} needs {file} ({looked}): unzip the wheel of {file.parts[0]} somewhere and name that folder by --assets or {VARIABLES[0]}"
    )


def available(folder: Path | None = None) -> tuple[str, ...]:
    """Names of the objects whose files are there."""
    out = []
    for name in ASSETS:
        try:
            find(name, folder)
        except ValueError:
            continue  # absent is an answer here
        out.append(name)
    return tuple(out)


@lru_cache(maxsize=4)
def _scene(file: Path) -> Any:
    try:
        return mujoco_module().MjModel.from_xml_path(str(file))
    except ValueError as error:
        raise ValueError(f"MuJoCo cannot read {file}: {error}") from None


def load(name: str, folder: Path | None = None, *, most: int = MOST) -> Real:
    """An object, its mesh made simpler where it has more than ``most`` vertices."""
    mujoco, file = mujoco_module(), find(name, folder)
    model = _scene(file)
    root = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, ASSETS[name][1])
    if root < 0:
        raise ValueError(f"{file} has no body {ASSETS[name][1]!r}: another version of the package?")
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    inside = [
        b for b in range(model.nbody) if b == root or _above(model, b, root)
    ]  # parents first, as MuJoCo numbers them
    joints = [j for j in range(model.njnt) if model.jnt_bodyid[j] in inside]
    loose = [
        j
        for j in joints
        if int(model.jnt_type[j]) not in (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    ]
    if loose or not joints:
        raise ValueError(
            f"{name} has {len(joints)} joints of which {len(loose)} are neither hinge nor slide; want one or more, all of them"
        )
    drawn = [(i + 1, _drawn(mujoco, model, b)) for i, b in enumerate(inside)]
    vertices, faces, part_of = simpler([(i, mesh) for i, mesh in drawn if mesh is not None], most)
    return Real(
        name=name, text=_xml(mujoco, model, data, inside, root), vertices=vertices, faces=faces, part_of=part_of,
        limits=np.array([_range(model, j) for j in joints]),
    )  # fmt: skip


def _range(model: Any, joint: int) -> tuple[float, float]:
    """Its limits, or half a turn each way where it has none."""
    low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-np.pi, np.pi)
    return float(low), float(high)


def _above(model: Any, body: int, root: int) -> bool:
    while body > 0 and body != root:
        body = int(model.body_parentid[body])
    return body == root


def _drawn(mujoco: Any, model: Any, body: int) -> trimesh.Trimesh | None:
    """What is seen of a body, in its frame."""
    found = []
    first = model.body_geomadr[body]
    for geom in range(first, first + model.body_geomnum[body]):
        if model.geom_group[geom] > DRAWN or model.geom_rgba[geom, 3] == 0:
            continue
        shape, turn = _shape(mujoco, model, geom), np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = turn.reshape(3, 3), model.geom_pos[geom]
        found.append(shape.apply_transform(T))
    if not found:
        return None
    joined = trimesh.util.concatenate(found)
    assert isinstance(joined, trimesh.Trimesh)
    return joined


def _shape(mujoco: Any, model: Any, geom: int) -> trimesh.Trimesh:
    kinds, size = mujoco.mjtGeom, model.geom_size[geom]
    kind = kinds(int(model.geom_type[geom]))
    if kind == kinds.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        v, f = model.mesh_vertadr[mesh], model.mesh_faceadr[mesh]
        points = model.mesh_vert[v : v + model.mesh_vertnum[mesh]].astype(np.float64)
        return trimesh.Trimesh(points, model.mesh_face[f : f + model.mesh_facenum[mesh]], process=False)
    if kind == kinds.mjGEOM_BOX:
        return trimesh.creation.box(2 * size)
    if kind == kinds.mjGEOM_CYLINDER:
        return trimesh.creation.cylinder(size[0], 2 * size[1], sections=10)
    if kind == kinds.mjGEOM_CAPSULE:
        return trimesh.creation.capsule(2 * size[1], size[0], count=(8, 6))
    if kind in (kinds.mjGEOM_SPHERE, kinds.mjGEOM_ELLIPSOID):
        return trimesh.creation.icosphere(1).apply_scale(size if kind == kinds.mjGEOM_ELLIPSOID else size[0])
    raise ValueError(
        f"geom {geom} has type {int(kind)}, which has no mesh here; known are mesh, box, cylinder, capsule, sphere, ellipsoid"
    )


def _xml(mujoco: Any, model: Any, data: Any, inside: list[int], root: int) -> str:
    text = lambda values: " ".join(f"{v:.12g}" for v in values)  # noqa: E731

    def body(b: int) -> str:
        at, turn = ((0, 0, 0), data.xquat[b]) if b == root else (model.body_pos[b], model.body_quat[b])
        out = f'<body pos="{text(at)}" quat="{text(turn)}">'
        if model.body_mass[b] > 0:
            out += (
                f'<inertial pos="{text(model.body_ipos[b])}" quat="{text(model.body_iquat[b])}" '
                f'mass="{model.body_mass[b]:.12g}" diaginertia="{text(model.body_inertia[b])}"/>'
            )
        first = model.body_jntadr[b]
        for j in range(first, first + model.body_jntnum[b]):
            kind = "slide" if int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_SLIDE) else "hinge"
            start = model.qpos0[model.jnt_qposadr[j]]
            out += f'<joint type="{kind}" axis="{text(model.jnt_axis[j])}" pos="{text(model.jnt_pos[j])}" ref="{start:.12g}"/>'
        return out + "".join(body(c) for c in inside if model.body_parentid[c] == b and c != root) + "</body>"

    return (
        '<mujoco><compiler angle="radian" inertiafromgeom="false" boundmass="1e-6" boundinertia="1e-9" balanceinertia="true"/>'
        f'<option timestep="0.001" integrator="RK4"><flag contact="disable" energy="enable"/></option><worldbody>{body(root)}</worldbody></mujoco>'
    )
