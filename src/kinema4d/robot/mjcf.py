"""MJCF files to robots, through MuJoCo's own parser (defaults, includes and mesh fitting are its business)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.se3 import apply, quaternion_to_matrix, transform
from kinema4d.robot.meshfile import primitive
from kinema4d.robot.model import FIXED, PRISMATIC, REVOLUTE, Gripper, Joint, Robot, build_robot

VISIBLE_GROUPS = (0, 1, 2)
"""Geom groups that MuJoCo draws by default; collision shapes live in 3 and above by convention."""


def load_mjcf(
    path: str | Path,
    *,
    source: str | None = None,
    name: str | None = None,
    tool_link: str | None = None,
    gripper: Gripper | None = None,
    visuals: bool = True,
) -> Robot:
    """Read an MJCF robot: bodies become links, hinges and slides joints, joint equalities mimics. A free joint
    at the root is the robot's base and is left out."""
    try:
        mujoco: Any = importlib.import_module("mujoco")
    except ImportError:
        raise ValueError(f"{path} is MJCF, which MuJoCo parses: pip install 'kinema4d[mjcf]'") from None
    if not Path(path).is_file():
        raise ValueError(f"MJCF file {path} does not exist")
    try:
        m = mujoco.MjModel.from_xml_path(str(path))
    except (ValueError, mujoco.FatalError) as error:
        raise ValueError(f"MJCF {path}: {error}") from None
    try:
        links, joints = _tree(mujoco, m)
        meshes = [
            (_body(mujoco, m, int(m.geom_bodyid[g])), mesh) for g in range(m.ngeom) for mesh in _geom(mujoco, m, g)
        ]
        return build_robot(
            name=name or Path(path).stem,
            source=source or str(path),
            links=links,
            joints=joints,
            visuals=meshes if visuals else [],
            tool_link=tool_link,
            gripper=gripper,
        )
    except ValueError as error:
        raise ValueError(f"MJCF {path}: {error}") from None


def _body(mujoco: Any, m: Any, i: int) -> str:
    return mujoco.mj_id2name(m, mujoco.mjtObj.mjOBJ_BODY, i) or f"body{i}"


def _tree(mujoco: Any, m: Any) -> tuple[list[str], list[Joint]]:
    links, joints = [_body(mujoco, m, 0)], []
    mimics = _mimics(mujoco, m)
    for b in range(1, m.nbody):
        name, at = _body(mujoco, m, b), _body(mujoco, m, int(m.body_parentid[b]))
        T = transform(m.body_pos[b], quaternion_to_matrix(m.body_quat[b]))
        for j in range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b]):
            kind = int(m.jnt_type[j])
            joint_name = mujoco.mj_id2name(m, mujoco.mjtObj.mjOBJ_JOINT, j) or f"joint{j}"
            if kind == mujoco.mjtJoint.mjJNT_FREE:
                continue
            if kind == mujoco.mjtJoint.mjJNT_BALL:
                raise ValueError(
                    f"joint {joint_name!r} is a ball joint; supported are hinge, slide and free at the root"
                )
            # A MuJoCo joint turns about an anchor inside the body, and reads qpos0 where the file was drawn.
            anchor = transform(m.jnt_pos[j], np.eye(3))
            middle = f"{name}:{joint_name}"
            links.append(middle)
            limited = bool(m.jnt_limited[j])
            mimic, multiplier, offset = mimics.get(j, (None, 1.0, 0.0))
            reference = float(m.qpos0[m.jnt_qposadr[j]])
            if reference != 0.0:
                raise ValueError(f"joint {joint_name!r} has ref={reference:g}; only ref=0 is supported")
            joints.append(
                Joint(
                    name=joint_name,
                    parent=at,
                    child=middle,
                    kind=REVOLUTE if kind == mujoco.mjtJoint.mjJNT_HINGE else PRISMATIC,
                    T_parent_joint=T @ anchor,
                    axis=np.array(m.jnt_axis[j], np.float64),
                    lower=float(m.jnt_range[j, 0]) if limited else -np.inf,
                    upper=float(m.jnt_range[j, 1]) if limited else np.inf,
                    mimic=mimic,
                    multiplier=multiplier,
                    offset=offset,
                )
            )
            at, T = middle, transform(-m.jnt_pos[j], np.eye(3))
        links.append(name)
        joints.append(
            Joint(name=f"{name}:fixed", parent=at, child=name, kind=FIXED, T_parent_joint=T, axis=np.array([0.0, 0, 1]))
        )
    return links, joints


def _mimics(mujoco: Any, m: Any) -> dict[int, tuple[str, float, float]]:
    """Joint equalities: joint1 = c0 + c1 * joint2 (higher coefficients are refused)."""
    out = {}
    for e in range(m.neq):
        if m.eq_type[e] != mujoco.mjtEq.mjEQ_JOINT or m.eq_obj2id[e] < 0:
            continue
        c = m.eq_data[e][:5]
        follower = int(m.eq_obj1id[e])
        leader = mujoco.mj_id2name(m, mujoco.mjtObj.mjOBJ_JOINT, int(m.eq_obj2id[e]))
        if np.any(c[2:] != 0):
            raise ValueError(f"a joint equality with {leader!r} is not linear (polycoef {c.tolist()})")
        out[follower] = (leader, float(c[1]), float(c[0]))
    return out


def _geom(mujoco: Any, m: Any, g: int) -> list[Mesh]:
    if m.geom_group[g] not in VISIBLE_GROUPS or m.geom_rgba[g, 3] == 0:
        return []
    material = int(m.geom_matid[g])
    rgba = m.mat_rgba[material] if material >= 0 else m.geom_rgba[g]
    r, green, b = (round(255 * float(x)) for x in np.clip(rgba[:3], 0, 1))
    size, kind, G = m.geom_size[g], int(m.geom_type[g]), mujoco.mjtGeom
    if kind == G.mjGEOM_MESH:
        mesh = _mesh_asset(m, int(m.geom_dataid[g]), (r, green, b))
    elif kind == G.mjGEOM_BOX:
        mesh = primitive("box", tuple(2 * size), (r, green, b))
    elif kind == G.mjGEOM_CYLINDER:
        mesh = primitive("cylinder", (size[0], 2 * size[1]), (r, green, b))
    elif kind == G.mjGEOM_CAPSULE:
        mesh = primitive("capsule", (size[0], 2 * size[1]), (r, green, b))
    elif kind == G.mjGEOM_SPHERE:
        mesh = primitive("sphere", (size[0],), (r, green, b))
    elif kind == G.mjGEOM_ELLIPSOID:
        ball = primitive("sphere", (1.0,), (r, green, b))
        mesh = Mesh(vertices=ball.vertices * size, faces=ball.faces, colors=ball.colors)
    else:  # planes and height fields are scenery, not robot
        return []
    T = transform(m.geom_pos[g], quaternion_to_matrix(m.geom_quat[g]))
    return [Mesh(vertices=apply(T, mesh.vertices), faces=mesh.faces, colors=mesh.colors)]


def _mesh_asset(m: Any, i: int, color: tuple[int, int, int]) -> Mesh:
    vertices = np.array(m.mesh_vert[m.mesh_vertadr[i] : m.mesh_vertadr[i] + m.mesh_vertnum[i]], np.float64)
    faces = np.array(m.mesh_face[m.mesh_faceadr[i] : m.mesh_faceadr[i] + m.mesh_facenum[i]], np.int32)
    return Mesh(vertices=vertices, faces=faces, colors=np.tile(np.array(color, np.uint8), (len(faces), 1)))
