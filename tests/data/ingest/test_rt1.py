"""RT-1 episodes from its published schema: poses that the robot can reach come back as joints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniature import dataset, flags, flat, flip_bit, group, image, jpeg, shard_file, steps, tensor

from kinema4d.data.ingest import rt1
from kinema4d.data.ingest.tfrecord import Values
from kinema4d.geometry.se3 import matrix_to_quaternion
from kinema4d.robot.actions import Actions, drive
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.zoo import load_robot

ASPECTS = ("already_success", "feasible", "has_aspects", "success", "undesirable")
SCHEMA = group(
    aspects=group(**{name: tensor("bool") for name in ASPECTS}),
    attributes=group(task_family=tensor("int64"), task_family_name=tensor("string")),
    steps=steps(
        action=group(
            base_displacement_vector=tensor("float32", 2),
            base_displacement_vertical_rotation=tensor("float32", 1),
            gripper_closedness_action=tensor("float32", 1),
            rotation_delta=tensor("float32", 3),
            terminate_episode=tensor("int32", 3),
            world_vector=tensor("float32", 3),
        ),
        observation=group(
            base_pose_tool_reached=tensor("float32", 7),
            gripper_closed=tensor("float32", 1),
            image=image(256, 320, 3),
            natural_language_embedding=tensor("float32", 512),
            natural_language_instruction=tensor("string"),
        ),
        reward=tensor("float32"),
    ),
)
"""fractal20220817_data, without observations that are not read."""
POSE = (0.6, 0.0, 0.9, 0.0, 0.0, 0.0, 1.0)


def episode(
    t: int = 4, replaced: dict[str, Values] | None = None, aspects: dict[str, int] | None = None
) -> dict[str, Values]:
    action, observation = "steps/action/", "steps/observation/"
    judged = dict.fromkeys(ASPECTS, 0) | (aspects or {})
    return {
        **{f"aspects/{name}": np.array([value]) for name, value in judged.items()},
        "attributes/task_family": np.array([-3]),
        "attributes/task_family_name": [b"pick"],
        action + "base_displacement_vector": flat(np.zeros(2 * t)),
        action + "base_displacement_vertical_rotation": flat(np.zeros(t)),
        action + "gripper_closedness_action": flat(np.arange(t)),
        action + "rotation_delta": flat(0.1 * np.ones(3 * t)),
        action + "terminate_episode": np.tile([0, 1, 0], t),
        action + "world_vector": flat(0.01 * np.arange(3 * t)),
        observation + "base_pose_tool_reached": flat([POSE] * t),
        observation + "gripper_closed": flat(np.linspace(0, 1, t)),
        observation + "image": [jpeg(10 * k, 256, 320) for k in range(t)],
        observation + "natural_language_embedding": flat(np.zeros(512 * t)),
        observation + "natural_language_instruction": ["pick the café can".encode()] * t,
        "steps/reward": flat(np.zeros(t)),
        **flags(t),
        **(replaced or {}),
    }


@pytest.fixture(autouse=True)
def _robots(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))


def only(folder: Path, record: dict[str, Values]) -> Any:
    (found,) = rt1.read(dataset(folder, SCHEMA, [[record]]), "train/00000")
    return found


def test_an_episode(tmp_path: Path):
    robot = load_robot("google_robot", visuals=False)
    tool = robot.link_index("link_gripper_tcp")
    wave = Actions(space="ee_delta", values=np.tile([0.01, 0.01, -0.01, 0, 0, 0.05], (5, 1)), fps=3.0, convention="rt1")
    q = drive(robot, wave).trajectory.q
    Ts = forward_kinematics(robot, q)[:, tool]
    poses = np.hstack([Ts[:, :3, 3], np.roll(matrix_to_quaternion(Ts[:, :3, :3]), -1, axis=1)])
    e = only(tmp_path, episode(6, {"steps/observation/base_pose_tool_reached": flat(poses)}))
    assert (len(e), e.clip.fps, e.clip.rgb.shape[1:3]) == (6, 3.0, (256, 320))
    assert (e.text, e.task, e.view, e.camera_from) == ("pick the café can", "pick", "image", "guessed")
    assert e.source == e.group == "rt1/train/00000"
    assert [int(f.mean()) for f in e.clip.rgb] == [0, 10, 20, 30, 40, 50]
    (arm,) = e.arms
    assert arm.converged.all()
    found = forward_kinematics(robot, arm.trajectory.q)[:, tool]
    np.testing.assert_allclose(found, Ts, atol=2e-3)
    closed = arm.trajectory.q[:, robot.joint_indices(["joint_finger_right"])[0]]
    np.testing.assert_allclose(closed, 1.3 * np.linspace(0, 1, 6), atol=1e-6)  # a position, not a change
    assert (e.commands.space, e.commands.convention, e.commands.fps) == ("ee_delta", "rt1", 3.0)
    np.testing.assert_allclose(e.commands.values[1], [0.03, 0.04, 0.05, 0.1, 0.1, 0.1, 1], atol=1e-6)
    assert e.facts["base_moves"] is False


@pytest.mark.parametrize(
    ("aspects", "reward", "outcome"),
    [
        ({"has_aspects": 1, "success": 1}, 0, "success"),
        ({"has_aspects": 1, "success": 0}, 1, "failure"),  # people looked: they overrule the reward
        ({}, 1, "success"),
        ({"success": 1}, 0, "success"),
        ({}, 0, "unknown"),  # nobody judged it
    ],
)
def test_outcomes(tmp_path: Path, aspects: dict[str, int], reward: float, outcome: str):
    e = only(tmp_path, episode(3, {"steps/reward": flat([0, 0, reward])}, aspects))
    assert e.outcome == outcome


def test_a_driving_base_is_told(tmp_path: Path):
    e = only(tmp_path, episode(2, {"steps/action/base_displacement_vector": flat([0, 0, 0.1, 0])}))
    assert e.facts["base_moves"] is True


def test_what_is_wrong_is_named(tmp_path: Path):
    pose = np.array([POSE] * 3, np.float32)
    pose[1, 2] = np.inf
    with pytest.raises(ValueError, match=r"train/00000 .*base_pose_tool_reached: row 1, column 2 \(z\) is inf"):
        only(tmp_path, episode(3, {"steps/observation/base_pose_tool_reached": flat(pose)}))
    pose[1] = 0
    with pytest.raises(ValueError, match=r"train/00000 .*has no rotation in row 1"):
        only(tmp_path, episode(3, {"steps/observation/base_pose_tool_reached": flat(pose)}))
    with pytest.raises(ValueError, match="record 0: steps/action/world_vector: expected 3 x"):
        only(tmp_path, episode(3, {"steps/action/world_vector": flat(np.zeros(8))}))
    root = dataset(tmp_path, SCHEMA, [[episode(2), episode(2)]])
    flip_bit(shard_file(root, 0, 1), -40)
    assert len(rt1.read(root, "train/00000")) == 1
    with pytest.raises(ValueError, match=r"recording train/00001: .*record 1 at byte \d+: wrong CRC"):
        rt1.read(root, "train/00001")
    other = dataset(tmp_path / "other", group(steps=steps(action=tensor("float32", 7))), [[]])
    with pytest.raises(ValueError, match="not a RT-1 data set of a known schema"):
        rt1.recordings(other)


def test_without_the_robot_the_rest_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KINEMA4D_ASSETS")
    e = only(tmp_path, episode(3))
    assert e.arms == ()
    assert e.facts["robot"] == "google_robot"
    assert "git clone" in e.facts["robot_missing"]
    assert len(e) == 3
