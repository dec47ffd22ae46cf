"""Action spaces and source conventions, each against what the source's own controller does."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from kinema4d.geometry.se3 import difference, euler_to_matrix, matrix_to_euler, rotvec_to_matrix, transform
from kinema4d.robot.action_files import load_actions
from kinema4d.robot.actions import CONVENTIONS, SPACES, Actions, drive
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Gripper
from kinema4d.robot.zoo import load_robot

ARM = load_robot("k4arm", visuals=False)


def panda():
    return load_robot("panda", visuals=False)


def tool(robot, q, link=None):
    return forward_kinematics(robot, np.atleast_2d(q))[:, robot.link_index(link or robot.tool_link)]


def make(space, values, **extra):
    return Actions(space=space, values=np.array(values, np.float64), fps=10.0, **extra)


def test_joint_positions_are_taken_as_they_are():
    q = ARM.home[:6] + np.linspace(0, 0.3, 5)[:, None]
    arm = drive(ARM, make("joint_position", q))
    np.testing.assert_array_equal(arm.trajectory.q[:, :6], q)
    np.testing.assert_array_equal(arm.trajectory.q[:, 6], ARM.home[6])
    assert arm.converged.all()
    numbers = np.array([0, 0.5, 1, 2, -1])
    with_gripper = drive(ARM, make("joint_position", q, gripper=numbers))
    np.testing.assert_allclose(with_gripper.trajectory.q[:, 6], [0.045, 0.0225, 0, 0, 0.045])  # clipped to 0..1
    # as many columns as joints: ours means joints, a data set's convention means the gripper
    everything = np.hstack([q, np.full((5, 1), 0.01)])
    np.testing.assert_array_equal(drive(ARM, make("joint_position", everything)).trajectory.q, everything)
    from_droid = drive(ARM, make("joint_position", everything, convention="droid"))
    np.testing.assert_allclose(from_droid.trajectory.q[:, 6], 0.045 * 0.99)
    named = drive(ARM, make("joint_position", [[0.01, 0.2]], joint_names=("finger_joint", "joint1")))
    np.testing.assert_array_equal(named.trajectory.q[0], [0.2, *ARM.home[1:6], 0.01])


def test_joint_positions_beyond_limits_are_flagged_not_bent():
    q = np.tile(ARM.home[:6], (3, 1))
    q[1, 1] = 2.5
    arm = drive(ARM, make("joint_position", q))
    assert arm.trajectory.q[1, 1] == 2.5
    np.testing.assert_array_equal(arm.converged, [True, False, True])


def test_joint_velocity_is_integrated_from_the_start():
    v = np.full((4, 6), 0.5)
    arm = drive(ARM, make("joint_velocity", v))
    np.testing.assert_allclose(arm.trajectory.q[:, 0], ARM.home[0] + 0.05 * np.arange(5))  # 0.5 rad/s at 10 Hz
    assert len(arm.trajectory.q) == 5


def test_droid_joint_velocity_scaling():
    """DROID: 0.2 rad per unit; the whole vector shrinks when its largest entry exceeds 1."""
    robot = panda()
    v = np.zeros((2, 7))
    v[0, 0], v[0, 3] = 0.5, -0.25
    v[1, 0], v[1, 3] = 2.0, -1.0
    arm = drive(robot, make("joint_velocity", v, convention="droid"))
    steps = np.diff(arm.trajectory.q[:, :7], axis=0)
    np.testing.assert_allclose(steps[0, [0, 3]], [0.1, -0.05])
    np.testing.assert_allclose(steps[1, [0, 3]], [0.2, -0.1])


def test_droid_cartesian_delta():
    """DROID: 0.075 m and 0.15 rad per unit, each vector shrunk to norm 1, rotation applied on the left (base axes)."""
    robot = panda()
    d = np.array([[0.6, 0.8, 0, 0, 0, 2.0], [3.0, 0, 0, 0.5, 0, 0]])
    arm = drive(robot, make("ee_delta", d, convention="droid", q_start=robot.home))
    T = tool(robot, arm.trajectory.q, "panda_link8")
    np.testing.assert_allclose(T[1, :3, 3] - T[0, :3, 3], [0.045, 0.06, 0], atol=1e-5)
    np.testing.assert_allclose(T[2, :3, 3] - T[1, :3, 3], [0.075, 0, 0], atol=1e-5)
    np.testing.assert_allclose(T[1, :3, :3] @ T[0, :3, :3].T, rotvec_to_matrix(np.array([0, 0, 0.15])), atol=1e-5)
    np.testing.assert_allclose(T[2, :3, :3] @ T[1, :3, :3].T, rotvec_to_matrix(np.array([0.075, 0, 0])), atol=1e-5)


def test_droid_poses_are_link8_with_extrinsic_euler(data):
    record = json.loads((data / "droid" / "annotation" / "train" / "4.json").read_text())
    pose = np.array(record["observation.state.cartesian_position"])[::3]
    q = np.array(record["observation.state.joint_position"])[::3]
    robot = load_robot("panda_robotiq", assets=data / "robots", visuals=False)
    arm = drive(robot, make("ee_pose", pose, convention="droid", q_start=q[0]))
    assert arm.converged.all()
    metres, radians = difference(
        tool(robot, arm.trajectory.q, "panda_link8"), transform(pose[:, :3], euler_to_matrix(pose[:, 3:]))
    )
    assert metres.max() <= 1e-5
    assert radians.max() <= 1e-5
    # a redundant arm may hold its elbow elsewhere than the recorded one did, but not by far
    assert np.abs(arm.trajectory.q[:, :7] - q).max() < 0.6


def test_bridge_states_are_reachable_and_point_down(data):
    """Zero angles mean a gripper that points down (Bridge's default rotation): with it real states are reachable."""
    robot = load_robot("wx250s", assets=data / "robots", visuals=False)
    state = np.array([[0.234, 0.112, 0.175, 0.1, -0.214, 0.213, 1.0], [0.234, 0.109, 0.169, 0.1, -0.199, 0.1, 1.0]])
    arm = drive(robot, make("ee_pose", state, convention="bridge"))
    assert arm.converged.all()
    level = drive(robot, make("ee_pose", [[0.25, 0, 0.15, 0, 0, 0, 0.0]], convention="bridge"))
    np.testing.assert_allclose(tool(robot, level.trajectory.q)[0, :3, 0], [0, 0, -1], atol=1e-4)
    assert arm.trajectory.q[0, -1] == pytest.approx(0.037)  # gripper 1 is open
    assert level.trajectory.q[0, -1] == pytest.approx(0.015)  # gripper 0 is closed


def start_of(robot, convention, pose):
    return drive(robot, make("ee_pose", [pose], convention=convention)).trajectory.q[0]


def test_bridge_delta_turns_about_the_tool_in_base_axes(data):
    robot = load_robot("wx250s", assets=data / "robots", visuals=False)
    q = start_of(robot, "bridge", [0.25, 0.05, 0.15, 0.1, -0.2, 0.2])
    d = np.array([0.01, -0.02, 0.005, 0.05, 0.1, -0.2])
    T = tool(robot, drive(robot, make("ee_delta", [d], convention="bridge", q_start=q)).trajectory.q)
    np.testing.assert_allclose(T[1, :3, 3] - T[0, :3, 3], d[:3], atol=1e-5)
    np.testing.assert_allclose(T[1, :3, :3] @ T[0, :3, :3].T, euler_to_matrix(d[3:]), atol=1e-5)


def test_bridge_relabelled_adds_euler_angles(data):
    robot = load_robot("wx250s", assets=data / "robots", visuals=False)
    states = np.array(
        [[0.25, 0.05, 0.15, 0.3, -0.4, 0.5], [0.26, 0.03, 0.16, 0.35, -0.3, 0.3], [0.27, 0.0, 0.15, 0.3, -0.2, 0.1]]
    )
    q = start_of(robot, "bridge", states[0])
    arm = drive(robot, make("ee_delta", np.diff(states, axis=0), convention="bridge_relabelled", q_start=q))
    T = tool(robot, arm.trajectory.q)
    R_zero = np.array(CONVENTIONS["bridge"].R_zero)
    np.testing.assert_allclose(T[:, :3, 3], states[:, :3], atol=1e-4)
    np.testing.assert_allclose(matrix_to_euler(T[:, :3, :3] @ R_zero.T), states[:, 3:], atol=1e-3)


def test_bridge_local_moves_along_the_gripper(data):
    robot = load_robot("wx250s", assets=data / "robots", visuals=False)
    pose = np.array([0.25, 0.05, 0.15, 0.1, -0.2, 0.4])
    q = start_of(robot, "bridge", pose)
    d = np.array([0.01, 0.02, -0.01, 0.1, 0.05, -0.1])
    T = tool(robot, drive(robot, make("ee_delta", [d], convention="bridge_local", q_start=q)).trajectory.q)
    R = euler_to_matrix(pose[3:])
    np.testing.assert_allclose(T[1, :3, 3], pose[:3] + R @ d[:3], atol=1e-4)
    np.testing.assert_allclose(
        T[1, :3, :3] @ np.array(CONVENTIONS["bridge"].R_zero).T, R @ euler_to_matrix(d[3:]), atol=1e-4
    )


def test_libero_osc_scaling_clip_and_gripper():
    """+-1 is 5 cm and 0.5 rad about the grip site, clipped; the gripper's sign drives it, eight steps end to end."""
    robot = panda()
    d = np.array([[1.0, 0, 0, 0, 0, 0.4, 1], [0, -0.5, 0, 0, 0, 0, 1], [4.0, 0, 0, 0, 0, 0, -1]])
    arm = drive(robot, make("ee_delta", d, convention="libero", q_start=robot.home))
    site = transform(np.array([0, 0, 0.097]), np.eye(3))
    T = tool(robot, arm.trajectory.q, "panda_hand") @ site
    np.testing.assert_allclose(np.diff(T[:, :3, 3], axis=0), [[0.05, 0, 0], [0, -0.025, 0], [0.05, 0, 0]], atol=1e-5)
    np.testing.assert_allclose(T[1, :3, :3] @ T[0, :3, :3].T, rotvec_to_matrix(np.array([0, 0, 0.2])), atol=1e-5)
    np.testing.assert_allclose(arm.trajectory.q[:, 7], 0.04 * (1 - np.array([0, 0.125, 0.25, 0.125])), atol=1e-9)
    lagged = drive(
        robot, make("ee_delta", np.tile([0.5, 0, 0, 0, 0, 0], (10, 1)), convention="libero_tracked", q_start=robot.home)
    )
    moved = tool(robot, lagged.trajectory.q)
    assert 0.05 <= np.linalg.norm(moved[-1, :3, 3] - moved[0, :3, 3]) <= 0.06  # measured on the real controller


def test_rt1_gripper_is_relative_and_rotation_a_vector(data):
    robot = load_robot("google_robot", assets=data / "robots", visuals=False)
    d = np.array([[0.02, 0, 0, 0, 0.1, 0, 0.5], [0, 0, -0.02, 0, 0, 0, 1.0], [0, 0, 0, 0, 0, 0, -0.25]])
    arm = drive(robot, make("ee_delta", d, convention="rt1"))
    T = tool(robot, arm.trajectory.q)
    np.testing.assert_allclose(T[1, :3, 3] - T[0, :3, 3], [0.02, 0, 0], atol=1e-5)
    np.testing.assert_allclose(T[1, :3, :3] @ T[0, :3, :3].T, rotvec_to_matrix(np.array([0, 0.1, 0])), atol=1e-5)
    fingers = arm.trajectory.q[:, robot.joint_indices(["joint_finger_right", "joint_finger_left"])]
    np.testing.assert_allclose(fingers / 1.3, np.array([[0, 0.5, 1, 0.75]] * 2).T, atol=1e-9)


@pytest.mark.parametrize("rotation", ["quaternion", "quaternion_xyzw", "euler", "rotvec"])
def test_pose_rotations(rotation):
    from scipy.spatial.transform import Rotation

    T = tool(ARM, ARM.home)[0]
    R = Rotation.from_matrix(T[:3, :3])
    columns = {
        "quaternion": R.as_quat(scalar_first=True),
        "quaternion_xyzw": R.as_quat(),
        "euler": R.as_euler("xyz"),
        "rotvec": R.as_rotvec(),
    }[rotation]
    arm = drive(ARM, make("ee_pose", [[*T[:3, 3], *columns]], rotation=rotation))
    assert arm.converged.all()
    np.testing.assert_allclose(tool(ARM, arm.trajectory.q)[0], T, atol=1e-5)


def test_tool_frame_deltas():
    T0 = tool(ARM, ARM.home)[0]
    arm = drive(ARM, make("ee_delta", [[0, 0, -0.03, 0, 0, 0.2]], frame="tool"))
    T1 = tool(ARM, arm.trajectory.q)[1]
    np.testing.assert_allclose(
        T1, T0 @ transform(np.array([0, 0, -0.03]), rotvec_to_matrix(np.array([0, 0, 0.2]))), atol=1e-5
    )


def test_poses_without_a_start_take_the_solution_next_to_home():
    q = ARM.home.copy()
    q[0] += 0.3
    pose = tool(ARM, q)[0]
    from scipy.spatial.transform import Rotation

    values = [[*pose[:3, 3], *Rotation.from_matrix(pose[:3, :3]).as_quat(scalar_first=True)]]
    arm = drive(ARM, make("ee_pose", values))
    assert arm.converged.all()
    np.testing.assert_allclose(arm.trajectory.q[0], q, atol=1e-4)


def test_start_forms():
    for start in (ARM.home, ARM.home[:6]):
        assert drive(ARM, make("joint_velocity", np.zeros((1, 6)), q_start=start)).trajectory.q.shape == (2, 7)
    with pytest.raises(ValueError, match="needs 7 .all joints. or 6 .the arm. numbers, got 3"):
        drive(ARM, make("joint_velocity", np.zeros((1, 6)), q_start=np.zeros(3)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "teleport"}, "unknown action space 'teleport'; known are joint_position"),
        ({"convention": "acme"}, "unknown action convention 'acme'"),
        ({"rotation": "axis"}, "unknown rotation 'axis'"),
        ({"values": np.array([[0.0, np.nan]])}, "row 0, column 1 is nan"),
        ({"values": np.zeros((0, 6))}, "at least one step"),
        ({"fps": 0.0}, "fps must be positive"),
        ({"gripper": np.array([0.0, np.inf])}, "gripper must be 2 finite numbers"),
        ({"T_world_base": 3 * np.eye(4)}, "not orthonormal"),
    ],
)
def test_bad_actions_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        replace(make("joint_position", np.zeros((2, 6))), **change)


def test_wrong_widths_and_missing_grippers_are_named():
    with pytest.raises(ValueError, match=r"need 6 .the arm. or 7 .all joints. columns, got 4"):
        drive(ARM, make("joint_position", np.zeros((2, 4))))
    with pytest.raises(ValueError, match=r"ee_delta actions for 'k4arm' need 6 .* columns, got 3"):
        drive(ARM, make("ee_delta", np.zeros((2, 3))))
    ur5 = load_robot("ur5", visuals=False)
    with pytest.raises(ValueError, match="'ur5' has no known gripper"):
        drive(ur5, make("joint_position", np.zeros((2, 7))))
    with pytest.raises(ValueError, match="given twice"):
        drive(ARM, make("ee_delta", np.zeros((2, 7)), gripper=np.zeros(2)))
    with pytest.raises(ValueError, match="no actuated joint 'elbow'"):
        drive(ARM, make("joint_position", np.zeros((2, 1)), joint_names=("elbow",)))


def test_the_tool_link_can_be_chosen():
    """An explicit tool wins over the convention's, which wins over the robot's."""
    robot = panda()
    d = np.array([[0, 0, 0, 0, 0, 1.0]])
    for chosen, still in (("panda_hand_tcp", "panda_hand_tcp"), (None, "panda_link8")):
        arm = drive(robot, make("ee_delta", d, convention="droid", tool_link=chosen, q_start=robot.home))
        T = tool(robot, arm.trajectory.q, still)
        np.testing.assert_allclose(T[1, :3, 3], T[0, :3, 3], atol=1e-5)  # it turns about its own origin
    with pytest.raises(ValueError, match="no link 'nose'"):
        drive(robot, make("ee_delta", d, tool_link="nose"))


def test_grippers_that_cannot_be_are_named():
    with pytest.raises(ValueError, match="must differ"):
        Gripper(joints=("a",), open=(1.0,), closed=(1.0,))
    with pytest.raises(ValueError, match="each finger joint"):
        Gripper(joints=("a", "b"), open=(1.0,), closed=(0.0,))
    with pytest.raises(ValueError, match="no actuated joint 'thumb'"):
        load_robot("k4arm", gripper=Gripper(joints=("thumb",), open=(1.0,), closed=(0.0,)))


def test_every_convention_says_where_it_comes_from():
    assert set(SPACES) == {"joint_position", "joint_velocity", "ee_pose", "ee_delta"}
    for convention in CONVENTIONS.values():
        assert convention.about


class TestFiles:
    Q = np.random.default_rng(0).uniform(-0.5, 0.5, (5, 6))

    def check(self, path, **options):
        actions = load_actions(path, **options)
        np.testing.assert_allclose(actions.values[:, :6], self.Q, atol=1e-12)
        assert actions.space == "joint_position"
        assert actions.fps == 10
        return actions

    def test_npz(self, tmp_path):
        np.savez(tmp_path / "a.npz", joint_position=self.Q, gripper=np.arange(5) / 4, fps=10.0, q_start=self.Q[0])
        actions = self.check(tmp_path / "a.npz")
        np.testing.assert_array_equal(actions.gripper, np.arange(5) / 4)
        assert actions.q_start is not None
        np.savez(tmp_path / "b.npz", actions=self.Q, space="joint_position", convention="droid")
        assert load_actions(tmp_path / "b.npz").fps == 15  # the rate of the source
        assert load_actions(tmp_path / "b.npz", fps=10, convention="kinema4d").fps == 10

    def test_json(self, tmp_path):
        (tmp_path / "a.json").write_text(
            json.dumps(
                {"joint_position": self.Q.tolist(), "fps": 10, "joint_names": [f"joint{i}" for i in range(1, 7)]}
            )
        )
        assert self.check(tmp_path / "a.json").joint_names[5] == "joint6"

    def test_csv(self, tmp_path):
        header = ",".join(["timestamp", *(f"joint_position_{i}" for i in range(6)), "gripper"])
        rows = "\n".join(",".join(map(repr, [t / 10, *map(float, q), 0.5])) for t, q in enumerate(self.Q))
        (tmp_path / "a.csv").write_text(header + "\n" + rows)
        gripper = self.check(tmp_path / "a.csv").gripper
        assert gripper is not None
        assert gripper[0] == 0.5

    def test_parquet(self, tmp_path):
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(
            pa.table({"action": self.Q.tolist(), "timestamp": (np.arange(5) / 10).tolist()}), tmp_path / "a.parquet"
        )
        self.check(tmp_path / "a.parquet", space="joint_position")
        columns = {f"joint_position_{i}": self.Q[:, i] for i in range(6)}
        pq.write_table(pa.table(columns), tmp_path / "b.parquet")
        self.check(tmp_path / "b.parquet", fps=10)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.txt", "1 2 3", "supported are .npz, .json, .csv, .parquet"),
            ("a.npz", "not a zip", "a.npz"),
            ("a.json", "{", "a.json"),
            ("a.json", "[]", "JSON object"),
            ("a.json", '{"fps": 3}', "none of joint_position"),
            ("a.json", '{"actions": [[1, 2]], "fps": 3}', "does not say its space"),
            ("a.json", '{"joint_position": [[1, 2], [3]], "fps": 3}', "regular array"),
            ("a.json", '{"joint_position": [1, 2], "fps": 3}', "2 dimensions"),
            ("a.json", '{"joint_position": [[1, "x"]], "fps": 3}', "must be numbers"),
            ("a.json", '{"joint_position": [[1, 2]]}', "does not say its rate"),
            ("a.json", '{"joint_position": [[1]], "ee_pose": [[1]], "fps": 3}', "several spaces"),
            ("a.json", '{"joint_position": [[1, NaN]], "fps": 3}', "row 0, column 1 is nan"),
            ("a.json", '{"joint_position": [[1]], "gripper": [1, 2], "fps": 3}', "gripper has 2 rows"),
            ("a.csv", "joint_position_0", "at least one row"),
            ("a.csv", "joint_position_0,joint_position_2\n1,2", "have a gap"),
            ("a.csv", "joint_position_0,joint_position_1\n1", "line 2 has 1 cells"),
            ("a.csv", "timestamp,joint_position_0\n0,1\n0.1,1\n0.9,1\n1.0,1", "rise evenly"),
            ("a.parquet", "PAR1", "a.parquet"),
        ],
    )
    def test_bad_files_are_named(self, tmp_path, name, content, message):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            load_actions(tmp_path / name)

    def test_pickles_are_refused(self, tmp_path):
        np.savez(tmp_path / "a.npz", joint_position=np.array([{"x": 1}], dtype=object), fps=3)
        with pytest.raises(ValueError, match="a.npz"):
            load_actions(tmp_path / "a.npz")
        with pytest.raises(ValueError, match="unknown action option 'speed'"):
            load_actions(tmp_path / "a.npz", speed=3)
        with pytest.raises(ValueError, match="does not exist"):
            load_actions(tmp_path / "none.npz")
