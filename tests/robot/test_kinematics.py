"""Forward kinematics against Pinocchio, MuJoCo, finite differences, and recorded robots."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinema4d.geometry.se3 import difference, euler_to_matrix, transform
from kinema4d.robot.kinematics import forward_kinematics, integrate_velocity
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import ZOO, find, load_robot

REAL = [
    "panda_hand/panda_v2.urdf",
    "panda_robotiq_2f85/franka_panda_robotiq_2f85.urdf",
    "panda_robotiq_2f85/flying_robotiq_2f85.urdf",
    "widowx_250s/wx250s.urdf",
    "google_robot/google_robot_meta_sim_fix_wheel_fix_fingertip.urdf",
    "yam/yam.urdf",
]


def random_q(robot: Robot, n: int, seed: int = 0) -> np.ndarray:
    lower = np.where(np.isfinite(robot.lower), robot.lower, -np.pi)
    upper = np.where(np.isfinite(robot.upper), robot.upper, np.pi)
    return np.random.default_rng(seed).uniform(lower, upper, (n, robot.dof))


def pinocchio_poses(robot: Robot, text: str, q: np.ndarray) -> np.ndarray:
    pin = pytest.importorskip("pinocchio")
    # Its parser refuses infinite limits, which fixed wheels of the Google robot carry.
    model = pin.buildModelFromXML(text.replace('"-inf"', '"-1e9"').replace('"inf"', '"1e9"'), mimic=True)
    data = model.createData()
    out = np.empty((len(q), len(robot.link_names), 4, 4))
    frames = [model.getFrameId(n) for n in robot.link_names]
    for t, row in enumerate(q):
        full = pin.neutral(model)
        for name, value in zip(robot.joint_names, row, strict=True):
            j = model.joints[model.getJointId(name)]
            if j.nq == 2:  # continuous joints are (cos, sin)
                full[j.idx_q : j.idx_q + 2] = np.cos(value), np.sin(value)
            else:
                full[j.idx_q] = value
        pin.framesForwardKinematics(model, data, full)
        for i, f in enumerate(frames):
            out[t, i] = data.oMf[f].homogeneous
    return out


@pytest.mark.parametrize("name", REAL)
def test_agrees_with_pinocchio_on_real_robots(data, name):
    robot = load_robot(data / "robots" / name, visuals=False)
    q = random_q(robot, 1000)
    expected = pinocchio_poses(robot, (data / "robots" / name).read_text(), q)
    # Entries bound both the distance (m) and, to first order, the angle (rad).
    assert np.abs(forward_kinematics(robot, q) - expected).max() <= 1e-9


@pytest.mark.parametrize("name", ["k4arm", "panda", "wx250s", "xarm7", "ur5", "so101"])
def test_agrees_with_pinocchio_on_the_zoo(name):
    if name != "k4arm":
        pytest.importorskip("pinocchio")
    robot = load_robot(name, visuals=False)
    q = random_q(robot, 200)
    expected = pinocchio_poses(robot, find(name)[0].read_text(), q)
    np.testing.assert_allclose(forward_kinematics(robot, q), expected, atol=1e-9)


def test_recorded_droid_poses_to_a_micrometre(data):
    robot = load_robot("panda_robotiq", assets=data / "robots", visuals=False)
    files = sorted((data / "droid" / "annotation").rglob("*.json"))
    assert len(files) >= 5
    for file in files:
        record = json.loads(file.read_text())
        state = {k: np.array(record[f"observation.state.{k}"]) for k in ("joint_position", "cartesian_position")}
        q = np.hstack([state["joint_position"], np.zeros((len(state["joint_position"]), 1))])
        got = forward_kinematics(robot, q)[:, robot.link_index("panda_link8")]
        pose = state["cartesian_position"]
        metres, radians = difference(got, transform(pose[:, :3], euler_to_matrix(pose[:, 3:])))
        assert metres.max() <= 1e-6
        assert radians.max() <= 1e-6


def test_links_turn_as_finite_differences_say():
    robot = load_robot("k4arm", visuals=False)
    q, h = random_q(robot, 5), 1e-6
    tool = robot.link_index("tool")
    for column in range(robot.dof):
        ahead, behind = q.copy(), q.copy()
        ahead[:, column] += h
        behind[:, column] -= h
        velocity = (forward_kinematics(robot, ahead) - forward_kinematics(robot, behind))[:, tool, :3, 3] / (2 * h)
        link = int(np.flatnonzero(robot.column == column)[0])
        Ts = forward_kinematics(robot, q)
        axis = np.einsum("tij,j->ti", Ts[:, link, :3, :3], robot.axis[link])
        arm = Ts[:, tool, :3, 3] - Ts[:, link, :3, 3]
        expected = np.cross(axis, arm) if robot.kind[link] == 1 else 0 * arm  # fingers do not move the tool
        np.testing.assert_allclose(velocity, expected, atol=1e-8)


def test_mjcf_agrees_with_mujoco(tmp_path):
    mujoco = pytest.importorskip("mujoco")
    path = tmp_path / "arm.xml"
    path.write_text(
        """<mujoco><worldbody><body name="base"><freejoint/><geom type="box" size=".1 .1 .05"/>
        <body name="one" pos="0 0 .1" quat=".9 .1 .3 0"><joint name="a" axis="0 1 0" pos=".02 0 .01" range="-90 90" limited="true"/>
          <joint name="b" axis="0 0 1"/><geom type="capsule" fromto="0 0 0 0 0 .3" size=".03" rgba="1 0 0 1"/>
          <body name="two" pos="0 0 .3"><joint name="c" type="slide" axis="1 0 0" range="0 .1" limited="true"/>
            <geom type="cylinder" size=".02 .05"/><geom type="sphere" size=".2" group="3"/>
            <body name="three" pos=".1 0 0"><joint name="d" type="slide" axis="0 1 0"/><geom type="ellipsoid" size=".01 .02 .03"/></body>
          </body></body></body></worldbody>
        <equality><joint joint1="d" joint2="c" polycoef="0.01 -1 0 0 0"/></equality></mujoco>"""
    )
    robot = load_robot(path)
    assert robot.joint_names == ("a", "b", "c")
    np.testing.assert_allclose(robot.upper, [np.pi / 2, np.inf, 0.1])
    assert len(robot.visuals) == 4  # the collision sphere of group 3 is not drawn
    m = mujoco.MjModel.from_xml_path(str(path))
    d = mujoco.MjData(m)
    for q in random_q(robot, 20):
        d.qpos[:] = 0
        d.qpos[3] = 1
        for name, value in zip((*robot.joint_names, "d"), (*q, 0.01 - q[2]), strict=True):
            d.qpos[m.joint(name).qposadr[0]] = value
        mujoco.mj_kinematics(m, d)
        Ts = forward_kinematics(robot, q[None])[0]
        for body in ("base", "one", "two", "three"):
            T = Ts[robot.link_index(body)]
            np.testing.assert_allclose(T[:3, 3], d.body(body).xpos, atol=1e-12)
            np.testing.assert_allclose(T[:3, :3], d.body(body).xmat.reshape(3, 3), atol=1e-12)


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("<mujoco><worldbody><body><joint type='ball'/><geom size='.1'/></body></worldbody></mujoco>", "ball joint"),
        ("<mujoco><worldbody><body><joint ref='30'/><geom size='.1'/></body></worldbody></mujoco>", "ref="),
        ("<mujoco><nonsense/></mujoco>", "MJCF"),
    ],
)
def test_bad_mjcf_is_named(tmp_path, xml, message):
    pytest.importorskip("mujoco")
    path = tmp_path / "bad.xml"
    path.write_text(xml)
    with pytest.raises(ValueError, match=message) as error:
        load_robot(path)
    assert "bad.xml" in str(error.value)


def test_velocity_integration_stops_at_limits():
    robot = load_robot("k4arm", visuals=False)
    steps = np.zeros((40, robot.dof))
    steps[:, 1] = 0.1
    q, free = integrate_velocity(robot, robot.home, steps)
    np.testing.assert_allclose(q[:10, 1], robot.home[1] + 0.1 * np.arange(1, 11), atol=1e-12)
    assert q[:, 1].max() == robot.upper[1]
    assert free[:20].all()
    assert not free[-1]


def test_bad_configurations_are_named():
    robot = load_robot("k4arm", visuals=False)
    with pytest.raises(ValueError, match=r"q must be \[t, 7\]"):
        forward_kinematics(robot, np.zeros((2, 5)))
    with pytest.raises(ValueError, match="non-finite value in row 1"):
        forward_kinematics(robot, np.array([[0.0] * 7, [np.nan] * 7]))


def test_zoo_is_complete_and_says_how_to_get_what_is_missing(monkeypatch, data):
    assert set(ZOO) >= {"panda", "panda_robotiq", "wx250s", "google_robot", "xarm7", "ur5", "so101", "yam"}
    for name in ("panda", "panda_robotiq", "wx250s", "google_robot", "yam"):
        robot = load_robot(name, assets=data / "robots", visuals=False)
        assert robot.tool_link in ZOO[name].tool_links
        assert robot.gripper in ZOO[name].grippers
        assert (robot.home >= robot.lower - 1e-9).all()
        assert (robot.home <= robot.upper + 1e-9).all()
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))
    assert load_robot("google_robot", visuals=False).name == "google_robot"
    monkeypatch.delenv("KINEMA4D_ASSETS")
    with pytest.raises(ValueError, match=r"'google_robot' are not here.*To get them: git clone"):
        load_robot("google_robot")
    with pytest.raises(ValueError, match="unknown robot 'pnada'.*panda"):
        load_robot("pnada")
    with pytest.raises(ValueError, match="does not exist"):
        load_robot("nowhere/robot.urdf")
    with pytest.raises(ValueError, match="expand it first"):
        load_robot("robot.urdf.xacro")


def test_the_guessed_tool_is_the_hand_not_a_finger(data):
    guessed = {
        "panda_hand/panda_v2.urdf": "panda_hand",
        "panda_robotiq_2f85/franka_panda_robotiq_2f85.urdf": "robotiq_85_base_link",
        "widowx_250s/wx250s.urdf": "fingers_link",
        "google_robot/google_robot_meta_sim_fix_wheel_fix_fingertip.urdf": "link_gripper",
        "yam/yam.urdf": "gripper",
    }
    for name, link in guessed.items():
        assert load_robot(data / "robots" / name, visuals=False).tool_link == link
    assert load_robot(find("k4arm")[0], visuals=False).tool_link == "flange"
    assert load_robot(find("ur5")[0], visuals=False).tool_link == "wrist_3_link"  # no hand: the end of the chain


def test_our_widowx_is_the_real_one(data):
    """The description we ship (meshes from a wheel) has the kinematics and surface of the file Bridge users have."""
    ours = load_robot("wx250s")
    real = load_robot("wx250s", assets=data / "robots")
    assert ours.joint_names == real.joint_names
    np.testing.assert_allclose(ours.lower, real.lower)
    q = random_q(real, 50)
    a, b = forward_kinematics(ours, q), forward_kinematics(real, q)
    for name in real.link_names:
        np.testing.assert_allclose(a[:, ours.link_index(name)], b[:, real.link_index(name)], atol=1e-12)

    def bounds(robot: Robot, link: str) -> np.ndarray:
        v = np.concatenate([x.mesh.vertices for x in robot.visuals if robot.link_names[x.link] == link])
        return np.stack([v.min(axis=0), v.max(axis=0)])

    for name in {real.link_names[v.link] for v in real.visuals}:
        np.testing.assert_allclose(bounds(ours, name), bounds(real, name), atol=1e-3)
