"""LIBERO's HDF5 files: upright images, exact cameras from the model inside, commands on the clock of the frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinema4d.data.ingest import libero
from kinema4d.data.ingest.libero_model import body_pose, model_camera, parse_model
from kinema4d.geometry.camera import project
from kinema4d.geometry.se3 import apply, invert
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.zoo import load_robot

h5py = pytest.importorskip("h5py", reason="h5py is not installed; pip install 'kinema4d[libero]'")

_LINKS = (
    # pose of each Panda link in the one before, as robosuite writes them; every joint turns about its z
    'pos="0 0 0.333"',
    'quat="0.707107 -0.707107 0 0"',
    'pos="0 -0.316 0" quat="0.707107 0.707107 0 0"',
    'pos="0.0825 0 0" quat="0.707107 0.707107 0 0"',
    'pos="-0.0825 0.384 0" quat="0.707107 -0.707107 0 0"',
    'quat="0.707107 0.707107 0 0"',
    'pos="0.088 0 0" quat="0.707107 0.707107 0 0"',
)
_HAND = """<body name="robot0_right_hand" pos="0 0 0.1065" quat="0.923785 0 0 -0.382911"><geom size="0.01"/>
<camera name="robot0_eye_in_hand" pos="0.05 0 0" quat="0 0.707107 0.707107 0" fovy="75"/></body>"""


def model_xml() -> str:
    """The cameras and the robot of a LIBERO model, without what is to be seen."""
    arm = _HAND
    for i, pose in reversed(list(enumerate(_LINKS, start=1))):
        joint = f'<joint name="robot0_joint{i}" pos="0 0 0" axis="0 0 1"/><geom size="0.01"/>'
        arm = f'<body name="robot0_link{i}" {pose}>{joint}{arm}</body>'
    return f"""<mujoco model="base"><compiler angle="radian"/><worldbody>
    <camera name="agentview" pos="0.658613 0 1.61035" quat="0.638018 0.30485 0.30485 0.638018"/>
    <camera name="sideview" pos="0 1 1" xyaxes="-1 0 0 0 -1 2"/>
    <camera name="follow" mode="targetbody" target="robot0_base"/><camera name="tilted" euler="0 0 1"/>
    <body name="bowl_1_main"><joint type="free" name="bowl"/><geom size="0.01"/><camera name="on_bowl"/></body>
    <body name="robot0_base" pos="-0.66 0 0.912"><body name="robot0_link0">{arm}</body></body>
    </worldbody></mujoco>"""


HOME = np.array([0, -0.161, 0, -2.444, 0, 2.227, 0.785])
TEXT = "open the middle drawer of the cabinet"


def write(
    file: Path,
    replaced: dict[str, Any] | None = None,
    *,
    t: int = 6,
    after: bool = True,
    about: dict[str, Any] | None = None,
) -> Path:
    """A file as LIBERO's create_dataset.py writes it (``after``), or as OpenVLA's regenerate script does."""
    path = HOME + 0.01 * np.arange(t + 1)[:, None] * np.arange(7)
    states = np.hstack([np.arange(t)[:, None], path[:-1], np.zeros((t, 20))])
    rng = np.random.default_rng(0)
    image = np.zeros((t, 128, 128, 3), np.uint8)
    image[:, 100:] = 200  # the floor, which OpenGL stores last and shows at the top when not flipped
    demo = {
        "actions": rng.uniform(-1, 1, (t, 7)),
        "states": states,
        "rewards": np.eye(t, dtype=np.uint8)[-1],
        "dones": np.eye(t, dtype=np.uint8)[-1],
        "obs/agentview_rgb": image[:, ::-1],
        "obs/eye_in_hand_rgb": image[:, ::-1],
        "obs/joint_states": path[1:] if after else path[:-1],
        "obs/gripper_states": np.outer(np.linspace(0.04, 0, t), [1, -1]),
        **(replaced or {}),
    }
    attributes = {
        "problem_info": json.dumps({"problem_name": "libero", "language_instruction": TEXT}),
        "macros_image_convention": "opengl",
        "bddl_file_name": "libero_goal/open.bddl",
        "num_demos": 2,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(file, "w") as out:
        data = out.create_group("data")
        data.attrs.update(attributes if about is None else about)
        for n in range(2):
            group = data.create_group(f"demo_{n}")
            for name, value in demo.items():
                if value is not None:
                    group[name] = value
            if about is None:
                group.attrs["model_file"] = model_xml()
                group.attrs["num_samples"] = t
    return file.parent


@pytest.fixture(autouse=True)
def _robots(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))


def test_a_demonstration(tmp_path: Path):
    write(tmp_path / "libero_goal/open_the_middle_drawer_demo.hdf5")
    names = libero.recordings(tmp_path)
    assert names == [f"libero_goal/open_the_middle_drawer_demo/demo_{n}" for n in range(2)]
    front, hand = libero.read(tmp_path, names[0])
    assert [e.view for e in (front, hand)] == ["agentview", "robot0_eye_in_hand"]
    with h5py.File(tmp_path / "libero_goal/open_the_middle_drawer_demo.hdf5") as file:
        demo = file["data/demo_0"]
        actions, q = demo["actions"][()], demo["obs/joint_states"][()]
    for e in (front, hand):
        assert (len(e), e.clip.fps, e.camera_from, e.outcome, e.text) == (6, 20.0, "exact", "success", TEXT)
        assert e.source == e.group == f"libero/{names[0]}"
        assert e.task == "open_the_middle_drawer"
        assert e.clip.rgb[0, 127, 0, 0] == 200  # upright: the floor is below
        assert e.clip.rgb[0, 0, 0, 0] == 0
        assert e.commands is not None
        assert (e.commands.space, e.commands.convention, e.commands.fps) == ("ee_delta", "libero", 20.0)
        np.testing.assert_array_equal(e.commands.values, actions[1:])  # frame i is what action i led to
        (arm,) = e.arms
        np.testing.assert_array_equal(arm.trajectory.q[:, :7], q)
        np.testing.assert_allclose(arm.trajectory.q[:, 7], np.linspace(0.04, 0, 6), atol=1e-9)  # open to closed
        np.testing.assert_allclose(arm.trajectory.T_world_base[:3, 3], [-0.66, 0, 0.912])
    K = front.clip.camera.K
    assert K[0, 0] == K[1, 1] == pytest.approx(154.51, abs=0.01)  # fovy 45 degrees over 128 rows
    assert K[0, 2] == K[1, 2] == 63.5
    assert hand.clip.camera.K[0, 0] == pytest.approx(83.41, abs=0.01)
    assert not front.clip.camera.moving
    assert hand.clip.camera.moving


def test_the_cameras_see_the_robot_where_our_kinematics_has_it(tmp_path: Path):
    """robosuite's hand sits half a millimetre from Franka's; that is all that may differ."""
    write(tmp_path / "a_demo.hdf5")
    front, hand = libero.read(tmp_path, "a_demo/demo_0")
    robot, arm = load_robot("panda", visuals=False), front.arms[0]
    Ts = arm.trajectory.T_world_base @ forward_kinematics(robot, arm.trajectory.q)
    T_hand = Ts[:, robot.link_index("panda_hand")]
    T_hand_camera = invert(T_hand) @ hand.clip.camera.T_world_camera
    np.testing.assert_allclose(T_hand_camera, T_hand_camera[:1].repeat(6, 0), atol=1e-4)  # it is mounted
    np.testing.assert_allclose(np.linalg.norm(T_hand_camera[:, :3, 3], axis=1), 0.05, atol=1e-3)
    tool = apply(invert(front.clip.camera.T_world_camera) @ T_hand, np.zeros((6, 1, 3)))[:, 0]
    uv = project(front.clip.camera.K, tool)
    assert (tool[:, 2] > 0.5).all()
    assert ((uv[0] > 0) & (uv[0] < 128)).all()


def test_poses_are_those_of_mujoco():
    mujoco = pytest.importorskip("mujoco")
    xml = model_xml().replace('<camera name="tilted" euler="0 0 1"/>', "")
    model = mujoco.MjModel.from_xml_string(xml)
    state, rng = mujoco.MjData(model), np.random.default_rng(1)
    q = rng.uniform(-2, 2, (5, 7))
    ours = parse_model(xml)
    joints = dict(zip(libero.JOINTS, q.T, strict=True))
    for name in ("agentview", "sideview", "robot0_eye_in_hand"):
        poses = model_camera(ours, name, 100, 160, joints).poses(5)
        for t in range(5):
            state.qpos[7:] = q[t]
            mujoco.mj_forward(model, state)
            camera = state.camera(name)
            np.testing.assert_allclose(poses[t, :3, 3], camera.xpos, atol=1e-6)
            R = camera.xmat.reshape(3, 3) @ np.diag([1, -1, -1])
            np.testing.assert_allclose(poses[t, :3, :3], R, atol=1e-6)
    np.testing.assert_allclose(body_pose(ours, "robot0_link0")[:3, 3], [-0.66, 0, 0.912])


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nobody", "no camera 'nobody'; it has agentview"),
        ("follow", "'targetbody', not fixed"),
        ("tilted", "rotated by euler"),
        ("on_bowl", "moves by joint 'bowl', which is not recorded"),
    ],
)
def test_cameras_that_the_model_does_not_tell(name: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        model_camera(parse_model(model_xml()), name, 10, 10, {})


def test_regenerated_files(tmp_path: Path):
    """OpenVLA's files have no attributes, frames from before the action, and more pixels."""
    big = {"obs/agentview_rgb": np.zeros((6, 256, 256, 3), np.uint8)}
    root = write(tmp_path / "KITCHEN_SCENE10_close_the_drawer_demo.hdf5", big, after=False, about={})
    front, _ = libero.read(root, libero.recordings(root)[0])
    assert front.text == "close the drawer"
    assert front.camera_from == "guessed"
    assert front.facts["camera_missing"] == "the demonstration has no model_file"
    assert "the file does not say" in front.facts["image_convention"]
    assert front.clip.rgb.shape[1:3] == (256, 256)
    assert front.commands is not None
    assert len(front.commands.values) == 6
    assert front.facts["observed"] == "before the action"


def test_opencv_images_are_left_alone(tmp_path: Path):
    root = write(tmp_path / "a_demo.hdf5", about={"macros_image_convention": "opencv"})
    assert libero.read(root, "a_demo/demo_0")[0].clip.rgb[0, 0, 0, 0] == 200
    root = write(tmp_path / "a_demo.hdf5", about={"macros_image_convention": "sideways"})
    with pytest.raises(ValueError, match="macros_image_convention is 'sideways'; opengl and opencv are known"):
        libero.read(root, "a_demo/demo_0")


@pytest.mark.parametrize(
    ("rewards", "dones", "outcome"),
    [(1, 1, "success"), (0, 1, "success"), (0, 0, "failure"), (None, None, "unknown")],
)
def test_outcomes(tmp_path: Path, rewards: int | None, dones: int | None, outcome: str):
    flags = {k: None if v is None else np.full(6, v) for k, v in (("rewards", rewards), ("dones", dones))}
    root = write(tmp_path / "a_demo.hdf5", flags)
    assert libero.read(root, "a_demo/demo_1")[0].outcome == outcome


def test_a_cut_file_is_one_recording_that_fails(tmp_path: Path):
    write(tmp_path / "a_demo.hdf5")
    write(tmp_path / "b_demo.hdf5")
    file = tmp_path / "a_demo.hdf5"
    file.write_bytes(file.read_bytes()[:5000])
    assert libero.recordings(tmp_path) == ["a_demo", "b_demo/demo_0", "b_demo/demo_1"]
    with pytest.raises(ValueError, match=r"a_demo.hdf5 is not a readable HDF5 file: .*download it again"):
        libero.read(tmp_path, "a_demo")
    assert len(libero.read(tmp_path, "b_demo/demo_0")) == 2
    file.write_bytes(b"no HDF5")
    assert libero.recordings(tmp_path)[0] == "a_demo"


def test_damaged_files_fail_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Zeroed blocks, as cut downloads have them; one, in the heap of the attributes, makes libhdf5 spin for ever."""
    monkeypatch.setattr(libero, "PROBE_SECONDS", 4.0)
    write(tmp_path / "a_demo.hdf5", t=2)
    file = tmp_path / "a_demo.hdf5"
    good = file.read_bytes()
    heap = good.index(b"GCOL")
    reasons = []
    for start, size in ((0, 256), (96, 512), (800, 256), (heap + 16, 256)):
        file.write_bytes(good[:start] + bytes(size) + good[start + size :])
        (name, *_) = libero.recordings(tmp_path)
        with pytest.raises(ValueError, match=r"a_demo.hdf5.* download it again") as caught:
            libero.read(tmp_path, name)
        reasons.append(str(caught.value))
    assert "gets lost in it (no answer in 4 s)" in reasons[-1]


def test_a_missing_demonstration_is_missed(tmp_path: Path):
    root = write(tmp_path / "a_demo.hdf5", about={"num_demos": 3})
    assert libero.recordings(root) == [f"a_demo/demo_{n}" for n in range(3)]
    with pytest.raises(ValueError, match="no 'demo_2' of the 3 that it announces, only 2; download it again"):
        libero.read(root, "a_demo/demo_2")
    with pytest.raises(ValueError, match="has no recording 'c_demo/demo_0'"):
        libero.read(root, "c_demo/demo_0")


@pytest.mark.parametrize(
    ("replaced", "problem"),
    [
        ({"obs/joint_states": np.where(np.eye(6, 7), np.nan, 0.0)}, r"joint_states: row 0, column 0 \(robot0_joint1\) is nan"),
        ({"obs/joint_states": np.zeros((5, 7))}, "joint_states: expected 6 rows, got 5"),
        ({"obs/joint_states": np.zeros((6, 6))}, "joint_states: expected rows of 7 numbers"),
        ({"obs/agentview_rgb": np.zeros((5, 128, 128, 3), np.uint8)}, "agentview_rgb: 5 frames but 6 actions"),
        ({"obs/agentview_rgb": np.zeros((6, 128, 128, 3))}, "expected uint8"),
        ({"obs/gripper_states": None}, "unknown schema: it lacks obs/gripper_states"),
        ({"actions": np.zeros((0, 7))}, "has no steps"),
        ({"actions": np.full((6, 7), np.inf)}, r"actions: row 0, column 0 \(dx\) is inf"),
    ],
)  # fmt: skip
def test_bad_demonstrations(tmp_path: Path, replaced: dict[str, Any], problem: str):
    root = write(tmp_path / "a_demo.hdf5", replaced)
    with pytest.raises(ValueError, match=f"recording a_demo/demo_0 of .*{problem}"):
        libero.read(root, "a_demo/demo_0")


def test_folders_without_demonstrations(tmp_path: Path):
    with pytest.raises(ValueError, match="holds no .hdf5 file"):
        libero.recordings(tmp_path)
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["x"] = 1
    with pytest.raises(ValueError, match=r"other.hdf5 has no data/demo_0, only \['x'\]"):
        libero.read(tmp_path, "other")


def test_broken_models_leave_the_camera_guessed(tmp_path: Path):
    write(tmp_path / "a_demo.hdf5")
    for text, why in (
        ("<mujoco", "is not XML"),
        ("<mujoco/>", "has no worldbody"),
        ("<mujoco><worldbody/></mujoco>", "no body robot0_link0 or robot0_base"),
    ):
        with h5py.File(tmp_path / "a_demo.hdf5", "r+") as file:
            file["data/demo_0"].attrs["model_file"] = text
        e = libero.read(tmp_path, "a_demo/demo_0")[0]
        assert e.camera_from == "guessed"
        assert why in e.facts["camera_missing"]
