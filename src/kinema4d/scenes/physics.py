"""Any robot of ours as a body that MuJoCo moves: position servos on every actuated joint, gravity compensated.

Built from the :class:`~kinema4d.robot.model.Robot` itself, so that every URDF of the zoo works, whatever its mesh
format, and kinematics, physics and pictures cannot disagree. Each link collides as the convex hull of its surface.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import matrix_to_quaternion
from kinema4d.robot.model import PRISMATIC, REVOLUTE, Robot
from kinema4d.robot.solids import link_hulls

LEVER_M = 0.055
"""Length of a swinging finger: turns its force into a torque."""
ROBOT, THING = 1, 2
"""Collision classes: robots do not collide with themselves or each other's neighbours, things collide with all."""


@dataclass(frozen=True, kw_only=True)
class Servo:
    """How stiffly joints follow their targets."""

    stiffness: float = 4000.0
    """N m per rad, or N per m for sliding joints."""
    damping: float = 200.0
    """N m s per rad, or N s per m."""
    force: float = 400.0
    """Largest torque or force of an arm joint."""
    finger_force: float = 40.0
    """Largest force of a finger: what squeezes an object, N."""
    armature: float = 0.2
    """Inertia of the drives, which keeps light links calm."""


def mujoco_module() -> Any:
    """MuJoCo, or a ``ValueError`` that says how to get it."""
    try:
        return importlib.import_module("mujoco")
    except ImportError:
        raise ValueError("physics needs MuJoCo: pip install 'kinema4d[mjcf]'") from None


def add_robot(
    spec: Any, robot: Robot, T_world_base: Float[np.ndarray, "4 4"], *, prefix: str = "", servo: Servo | None = None
) -> None:
    """Add ``robot`` to a MuJoCo spec. Bodies, joints and actuators carry its link and joint names, with ``prefix``."""
    mj, servo = mujoco_module(), servo or Servo()
    bodies: list[Any] = []
    fingers = set(robot.gripper.joints) if robot.gripper else set()
    leaders: set[int] = set()
    for i, name in enumerate(robot.link_names):
        parent = spec.worldbody if robot.parent[i] < 0 else bodies[robot.parent[i]]
        T = T_world_base if robot.parent[i] < 0 else robot.T_parent_joint[i]
        body = parent.add_body(name=prefix + name, pos=T[:3, 3], quat=matrix_to_quaternion(T[:3, :3]), gravcomp=1.0)
        bodies.append(body)
        if robot.column[i] >= 0:
            _add_joint(mj, spec, body, robot, i, prefix, servo, fingers, leaders)
        _add_hull(mj, spec, body, robot, i, prefix)


def set_configuration(model: Any, data: Any, robot: Robot, q: Float[np.ndarray, " dof"], *, prefix: str = "") -> None:
    """Put the robot at ``q`` at rest, mimics and servo targets included."""
    seen: set[int] = set()
    for i in range(len(robot.link_names)):
        column = int(robot.column[i])
        if column < 0:
            continue
        name = robot.joint_names[column]
        joint = model.joint(prefix + (f"{name}:{robot.link_names[i]}" if column in seen else name))
        seen.add(column)
        data.qpos[joint.qposadr[0]] = robot.multiplier[i] * q[column] + robot.offset[i]
        data.qvel[joint.dofadr[0]] = 0.0
    set_targets(model, data, robot, q, prefix=prefix)


def set_targets(model: Any, data: Any, robot: Robot, q: Float[np.ndarray, " dof"], *, prefix: str = "") -> None:
    """Tell the servos where to go."""
    for name, value in zip(robot.joint_names, q, strict=True):
        data.ctrl[model.actuator(prefix + name).id] = value


def configuration(model: Any, data: Any, robot: Robot, *, prefix: str = "") -> Float[np.ndarray, " dof"]:
    """Where the joints really are."""
    return np.array([data.qpos[model.joint(prefix + name).qposadr[0]] for name in robot.joint_names])


def _add_joint(
    mj: Any, spec: Any, body: Any, robot: Robot, i: int, prefix: str, servo: Servo, fingers: set[str], leaders: set[int]
) -> None:
    column, kind = int(robot.column[i]), int(robot.kind[i])
    name = robot.joint_names[column]
    follows = column in leaders  # the first link of a column carries the servo, mimics are tied to it
    lower, upper = robot.lower[column], robot.upper[column]
    limited = bool(np.isfinite(lower) and np.isfinite(upper)) and not follows
    inertia = LEVER_M**2 * 5 if name in fingers else 1.0  # a swinging finger is light: as 1 kg at the end of its lever
    joint = body.add_joint(
        name=prefix + (f"{name}:{robot.link_names[i]}" if follows else name),
        type=mj.mjtJoint.mjJNT_HINGE if kind == REVOLUTE else mj.mjtJoint.mjJNT_SLIDE,
        axis=robot.axis[i],
        armature=inertia * servo.armature if kind == REVOLUTE else 1.0,
        damping=inertia if kind == REVOLUTE else 10.0,
    )
    assert kind in (REVOLUTE, PRISMATIC)
    if limited:
        # A spec reads hinge ranges in degrees unless it is told otherwise.
        unit = np.degrees(1.0) if kind == REVOLUTE and spec.compiler.degree else 1.0
        joint.limited, joint.range = mj.mjtLimited.mjLIMITED_TRUE, [lower * unit, upper * unit]
    if follows or robot.multiplier[i] != 1 or robot.offset[i] != 0:
        if not follows:
            raise ValueError(f"joint {name!r} of robot {robot.name!r} stands before the joint it mimics in the tree")
        tie = spec.add_equality(
            type=mj.mjtEq.mjEQ_JOINT, objtype=mj.mjtObj.mjOBJ_JOINT, name1=joint.name, name2=prefix + name
        )
        tie.data = [robot.offset[i], robot.multiplier[i], *[0.0] * (len(tie.data) - 2)]
        return
    leaders.add(column)
    lever = LEVER_M if kind == REVOLUTE else 1.0
    force = servo.finger_force * lever if name in fingers else servo.force
    soft = 0.25 * lever**2 if name in fingers else 1.0
    actuator = spec.add_actuator(name=prefix + name, target=joint.name, trntype=mj.mjtTrn.mjTRN_JOINT)
    actuator.gaintype, actuator.biastype = mj.mjtGain.mjGAIN_FIXED, mj.mjtBias.mjBIAS_AFFINE
    gain, bias = np.zeros(len(actuator.gainprm)), np.zeros(len(actuator.biasprm))
    gain[0], bias[1], bias[2] = soft * servo.stiffness, -soft * servo.stiffness, -soft * servo.damping
    actuator.gainprm, actuator.biasprm = gain, bias
    actuator.forcelimited, actuator.forcerange = mj.mjtLimited.mjLIMITED_TRUE, [-force, force]


def _add_hull(mj: Any, spec: Any, body: Any, robot: Robot, i: int, prefix: str) -> None:
    points = link_hulls(robot)[i]
    if points is None:  # a link without a surface still needs some mass to be simulated
        body.mass, body.inertia, body.explicitinertial = 0.01, [1e-5, 1e-5, 1e-5], True
        return
    cloud, faces = points
    asset = spec.add_mesh(name=f"{prefix}{robot.link_names[i]}")
    asset.uservert, asset.userface = cloud.ravel(), faces.ravel()
    body.add_geom(
        name=f"{prefix}{robot.link_names[i]}",
        type=mj.mjtGeom.mjGEOM_MESH,
        meshname=asset.name,
        contype=ROBOT,
        conaffinity=THING,
        friction=[1.2, 0.02, 0.001],
        condim=4,
        density=800.0,
        group=3,
    )
