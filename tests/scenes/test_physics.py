"""Robots in MuJoCo: they stand where kinematics says, hold still, and lift things by friction alone."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d.geometry.se3 import place
from kinema4d.robot.ik import inverse_kinematics
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.physics import ROBOT, THING, add_robot, configuration, set_configuration, set_targets

mujoco = pytest.importorskip("mujoco")


def build(robot, T_world_base=None, box=None, copies=1):
    spec = mujoco.MjSpec()
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10
    for n in range(copies):
        T = place(0.0, 0.8 * n, 0.0) @ (np.eye(4) if T_world_base is None else T_world_base)
        add_robot(spec, robot, T, prefix=f"r{n}/")
    if box is not None:
        thing = {"contype": THING, "conaffinity": ROBOT | THING, "friction": [1.0, 0.02, 0.001]}
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.6, 0.6, 0.05], pos=[0.4, 0, -0.05], **thing)
        body = spec.worldbody.add_body(name="box", pos=box)
        body.add_freejoint()
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.02, 0.02, 0.025], density=400, condim=4, **thing)
    model = spec.compile()
    data = mujoco.MjData(model)
    for n in range(copies):
        set_configuration(model, data, robot, robot.home, prefix=f"r{n}/")
    return model, data


@pytest.mark.parametrize("name", ["k4arm", "panda", "wx250s", "xarm7", "ur5", "so101"])
def test_physics_and_kinematics_agree_and_the_arm_holds_still(name):
    robot = load_robot(name)
    T = place(0.1, -0.2, 0.3, yaw=0.7)
    model, data = build(robot, T)
    mujoco.mj_kinematics(model, data)
    Ts = T @ forward_kinematics(robot, robot.home[None])[0]
    for i, link in enumerate(robot.link_names):
        np.testing.assert_allclose(data.body(f"r0/{link}").xpos, Ts[i, :3, 3], atol=1e-9)
    for _ in range(500):
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(configuration(model, data, robot, prefix="r0/"), robot.home, atol=1e-4)


def test_servos_follow_and_mimics_are_tied():
    robot = load_robot("k4arm")
    model, data = build(robot, copies=2)
    target = robot.home.copy()
    target[0] += 0.6
    target[-1] = 0.01
    set_targets(model, data, robot, target, prefix="r1/")
    for _ in range(1500):
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(configuration(model, data, robot, prefix="r1/"), target, atol=2e-3)
    np.testing.assert_allclose(configuration(model, data, robot, prefix="r0/"), robot.home, atol=2e-3)
    right = data.qpos[model.joint("r1/finger_joint:right_finger").qposadr[0]]
    assert right == pytest.approx(-0.01, abs=1e-3)


@pytest.mark.parametrize(("name", "box"), [("panda", (0.45, 0.1, 0.025)), ("wx250s", (0.25, 0.05, 0.025))])
@pytest.mark.parametrize("close", [True, False], ids=["grip", "no grip"])
def test_a_box_is_lifted_by_friction_or_stays(name, box, close):
    robot = load_robot(name)
    assert robot.gripper is not None
    model, data = build(robot, box=box)
    down = forward_kinematics(robot, robot.home[None])[0, robot.link_index(robot.tool_link)]
    way = [
        (down[:3, 3], 0, 1),
        (np.add(box, [0, 0, 0.15]), 0, 60),
        (box, 0, 60),
        (box, 1, 40),
        (np.add(box, [0, 0, 0.2]), 1, 80),
    ]
    poses, closed, at, grip = [], [], down[:3, 3], 0.0
    for point, squeeze, steps in way:
        for s in np.linspace(0, 1, steps):
            T = down.copy()
            T[:3, 3] = at + s * (np.asarray(point) - at)
            poses.append(T)
            closed.append(grip + s * (squeeze - grip) if close else 0.0)
        at, grip = np.asarray(point, float), squeeze
    solved = inverse_kinematics(robot, np.array(poses), robot.home)
    assert solved.converged.all()
    q, fingers = solved.q.copy(), robot.joint_indices(robot.gripper.joints)
    opened, shut = np.array(robot.gripper.open), np.array(robot.gripper.closed)
    q[:, fingers] = opened + np.array(closed)[:, None] * (shut - opened)
    for row in q:
        set_targets(model, data, robot, row, prefix="r0/")
        for _ in range(10):
            mujoco.mj_step(model, data)
    height = data.body("box").xpos[2]
    assert height > 0.18 if close else height < 0.03


def test_flat_links_are_named():
    robot = load_robot("k4arm")
    from dataclasses import replace

    mesh = robot.visuals[0].mesh
    flat = replace(robot.visuals[0], mesh=replace(mesh, vertices=mesh.vertices * [1.0, 1.0, 0.0]))
    with pytest.raises(ValueError, match="surface of link 'base' is flat"):
        add_robot(mujoco.MjSpec(), replace(robot, visuals=(flat,)), np.eye(4))
