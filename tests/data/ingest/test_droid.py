"""DROID in its three layouts: the real sample, and small data sets of the published schemas."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniature import dataset, flags, flat, flip_bit, group, image, jpeg, shard_file, steps, tensor, text

from kinema4d.data.ingest import droid
from kinema4d.data.ingest.tfrecord import Values
from kinema4d.geometry.camera import T_camera_world, load_camera, project
from kinema4d.geometry.raster import rasterize
from kinema4d.geometry.se3 import euler_to_matrix
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.silhouette import contour_error, find_edges, robot_scene
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Episode

HOME = (0, -0.5, 0, -2.2, 0, 1.8, 0.785)
EXTRINSICS = (0.3, -0.5, 0.6, -2.1, 0.1, -0.6)


@pytest.fixture(autouse=True)
def _robots(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))


# ---- JSON and mp4: the real sample ----


def test_all_real_episodes(data: Path):
    root = data / "droid"
    names = droid.recordings(root)
    assert names == ["train/0", "train/1", "train/2", "train/4", "train/5", "val/199"]
    estimated = set()
    for name in names:
        rows = json.loads((root / f"annotation/{name}.json").read_text())
        views = droid.read(root, name)
        assert [e.view for e in views] == ["exterior_1_left", "exterior_2_left", "wrist_left"]
        for view, e in enumerate(views):
            assert (len(e), e.clip.fps, e.group) == (rows["video_length"], 5.0, f"droid/{name}")
            assert e.outcome == ("failure", "success")[rows["success"]]
            assert e.text == rows["texts"][0].strip()
            (arm,) = e.arms
            assert arm.converged.all()
            assert len(arm.converged) == len(e)
            q = np.array(rows["observation.state.joint_position"])[::3]
            np.testing.assert_array_equal(arm.trajectory.q[:, :7], q)
            assert e.commands is not None
            assert (len(e.commands.values), e.commands.fps, e.commands.space) == (
                rows["raw_length"],
                15.0,
                "joint_velocity",
            )
            np.testing.assert_array_equal(e.commands.values[:, :7], rows["action.joint_velocity"])
            K = e.clip.camera.K
            assert K[1, 1] / K[0, 0] == pytest.approx(192 / 180)
            if e.camera_from == "estimated":
                estimated.add((name, view))
            else:
                assert e.camera_from == "guessed"
    assert estimated == {("train/4", 1), ("train/5", 0), ("train/5", 1)}


@pytest.mark.parametrize(("name", "view"), [("train/4", 1), ("train/5", 0), ("train/5", 1)])
def test_the_robot_of_an_episode_lies_on_the_robot_of_its_video(data: Path, name: str, view: int):
    """Contour error measured 1.4, 1.2, 1.2 px; with frames and states one frame apart it is worse."""
    e = droid.read(data / "droid", name)[view]
    published = load_camera(data / f"droid/calib/{name.replace('/', '_')}_view{view}.json")
    np.testing.assert_array_equal(e.clip.camera.T_world_camera, published.T_world_camera)
    robot = load_robot("panda_robotiq")
    frames = np.linspace(1, len(e) - 2, 9).astype(int)
    q = e.arms[0].trajectory.q
    edges = find_edges(e.clip.rgb[frames])
    error = contour_error(edges, robot_scene(robot, q[frames]), e.clip.camera)
    assert error.mean_px < 1.6
    for shift in (-1, 1):
        assert contour_error(edges, robot_scene(robot, q[frames + shift]), e.clip.camera).mean_px > error.mean_px
    scene = robot_scene(robot, q[frames])
    T = T_camera_world(e.clip.camera, len(frames))
    mask = rasterize(scene.surfaces, T[:, None] @ scene.Ts_world_link, e.clip.camera).valid
    hand = (T @ forward_kinematics(robot, q[frames])[:, robot.link_index("panda_link8")])[:, :3, 3]
    uv = np.round(project(e.clip.camera.K, hand)).astype(int)
    inside = ((uv >= 0) & (uv < [320, 192])).all(axis=1) & (hand[:, 2] > 0)
    assert inside.sum() >= 4
    assert np.mean([mask[i, v, u] for i, (u, v) in enumerate(uv) if inside[i]]) > 0.8


@pytest.fixture
def sample(data: Path, tmp_path: Path) -> Path:
    """A copy of one recording, to be damaged."""
    for kind in ("annotation/train/5.json", "videos/train/5/0.mp4", "videos/train/5/1.mp4", "videos/train/5/2.mp4"):
        target = tmp_path / kind
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data / "droid" / kind, target)
    return tmp_path


def rewrite(root: Path, **changes: Any) -> None:
    file = root / "annotation/train/5.json"
    rows = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in rows.items() if v is not None}))


def test_a_cut_video_is_named(sample: Path):
    file = sample / "videos/train/5/1.mp4"
    whole = file.read_bytes()
    for share in (0.3, 0.6, 0.95):
        file.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=rf"recording train/5: {file} is .*download the video again"):
            droid.read(sample, "train/5")
    file.unlink()
    with pytest.raises(ValueError, match=rf"recording train/5: {file} is missing"):
        droid.read(sample, "train/5")


def test_a_damaged_video_is_named(sample: Path):
    file = sample / "videos/train/5/0.mp4"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"recording train/5: {file}"):
        droid.read(sample, "train/5")


def test_rows_and_frames_must_agree(sample: Path):
    rewrite(sample, video_length=61)
    with pytest.raises(ValueError, match=r"recording train/5, .*184 rows need 62 frames .* video_length is 61"):
        droid.read(sample, "train/5")
    rewrite(sample, video_length=61, raw_length=183)
    with pytest.raises(ValueError, match=r"joint_position: expected 183 rows, got 184"):
        droid.read(sample, "train/5")
    rows = json.loads((sample / "annotation/train/5.json").read_text())
    keys = [k for k in rows if k.startswith(("observation.", "action."))]
    rewrite(sample, **{k: rows[k][:183] for k in keys})
    with pytest.raises(ValueError, match=r"0.mp4.*expected 61 frames, found 62"):
        droid.read(sample, "train/5")


def test_bad_annotations(sample: Path):
    file = sample / "annotation/train/5.json"
    good = file.read_text()
    rows = json.loads(good)["observation.state.joint_position"]
    rows[7][3] = float("nan")
    rewrite(sample, **{"observation.state.joint_position": rows})
    with pytest.raises(ValueError, match=r"recording train/5, .*joint_position: row 7, column 3 \(joint_4\) is nan"):
        droid.read(sample, "train/5")
    rows[7] = rows[7][:6]
    rewrite(sample, **{"observation.state.joint_position": rows})
    with pytest.raises(ValueError, match="joint_position: expected rows of 7 numbers"):
        droid.read(sample, "train/5")
    for damage, problem in (
        (good[:1000], "is not JSON"),
        ("[]", "unknown schema: it lacks observation.state.joint_position"),
        (json.dumps({"episode_id": 5, "states": []}), "unknown schema: it lacks"),
        (good.replace("videos/train/5/0.mp4", "../../secret.mp4"), "does not lie in"),
        (good.replace('"raw_length": 184', '"raw_length": "184"'), "raw_length must be a positive number"),
    ):
        file.write_text(damage)
        with pytest.raises(ValueError, match=f"recording train/5.*{problem}"):
            droid.read(sample, "train/5")
    for name in ("train/6", "../train/5", "/etc/passwd"):
        with pytest.raises(ValueError, match=f"recording {name}"):
            droid.read(sample, name)


def test_folders_that_are_not_droid(tmp_path: Path):
    with pytest.raises(ValueError, match="not DROID in a known layout: expected dataset_info.json"):
        droid.recordings(tmp_path)
    for folder in ("annotation", "videos"):
        (tmp_path / folder).mkdir()
    with pytest.raises(ValueError, match="holds no .json file"):
        droid.recordings(tmp_path)


# ---- RLDS ----

METADATA = {"file_path": text(), "recording_folderpath": text()}
CAMERAS = {name: image(180, 320, 3) for name in droid.VIEWS}
ACTIONS = {"gripper_position": tensor("float64", 1), "joint_velocity": tensor("float64", 7)}


def schema(metadata: dict[str, Any] | None = None, actions: dict[str, Any] | None = None) -> dict[str, Any]:
    return group(
        episode_metadata=group(**METADATA, **(metadata or {})),
        steps=steps(
            action=tensor("float64", 7),
            **({"action_dict": group(**(ACTIONS if actions is None else actions))} if actions != {} else {}),
            **{f"language_instruction{k}": text() for k in ("", "_2", "_3")},
            observation=group(
                cartesian_position=tensor("float64", 6),
                gripper_position=tensor("float64", 1),
                joint_position=tensor("float64", 7),
                **CAMERAS,
            ),
        ),
    )


def episode(
    t: int = 3, replaced: dict[str, Values] | None = None, path: str = "gs://r2d2/TRI/success/2023/trajectory.h5"
) -> dict[str, Values]:
    return {
        "episode_metadata/file_path": [path.encode()],
        "episode_metadata/recording_folderpath": [b""],
        "steps/action": flat(np.arange(7 * t)),
        "steps/action_dict/gripper_position": flat(np.ones(t)),
        "steps/action_dict/joint_velocity": flat(np.arange(7 * t)),
        "steps/language_instruction": [b""] * t,
        "steps/language_instruction_2": [b"close the drawer"] * t,
        "steps/language_instruction_3": [b"shut it"] * t,
        "steps/observation/cartesian_position": flat(np.zeros(6 * t)),
        "steps/observation/gripper_position": flat(np.linspace(0, 1, t)),
        "steps/observation/joint_position": flat(np.array(HOME) + 0.01 * np.arange(t)[:, None]),
        **{f"steps/observation/{name}": [jpeg(40 + i, 180, 320)] * t for i, name in enumerate(CAMERAS)},
        **flags(t),
        **(replaced or {}),
    }


def test_rlds(tmp_path: Path):
    root = dataset(tmp_path, schema(), [[episode(3), episode(2, path="/x/failure/y/t.h5")], [episode(2, path="")]])
    assert droid.recordings(root) == ["train/00000", "train/00001", "train/00002"]
    views = droid.read(root, "train/00000")
    assert [(e.view, int(e.clip.rgb.mean())) for e in views] == [(name, 40 + i) for i, name in enumerate(CAMERAS)]
    e = views[0]
    assert (len(e), e.clip.fps, e.camera_from, e.text) == (3, 15.0, "guessed", "close the drawer")
    assert e.facts["instructions"] == ["close the drawer", "shut it"]
    np.testing.assert_allclose(e.arms[0].trajectory.q[:, 7], 0.725 * np.array([0, 0.5, 1]))
    assert e.commands is not None
    assert (e.commands.space, e.commands.convention) == ("joint_velocity", "droid")
    np.testing.assert_array_equal(e.commands.values[1], [7, 8, 9, 10, 11, 12, 13, 1])
    assert e.clip.camera.K[0, 0] == e.clip.camera.K[1, 1] == pytest.approx(131)
    assert [droid.read(root, n)[0].outcome for n in droid.recordings(root)] == ["success", "failure", "unknown"]


def test_rlds_extrinsics_are_estimates(tmp_path: Path):
    names = ("extrinsics_exterior_cam_1", "extrinsics_exterior_cam_2", "extrinsics_wrist_cam")
    poses = dict(zip(names, (EXTRINSICS, np.zeros(6), EXTRINSICS), strict=True))
    record = episode(2, {f"episode_metadata/{name}": flat(pose) for name, pose in poses.items()})
    root = dataset(tmp_path, schema({name: tensor("float64", 6) for name in names}), [[record]])
    first, second, wrist = droid.read(root, "train/00000")
    assert [e.camera_from for e in (first, second, wrist)] == ["estimated", "guessed", "guessed"]
    check_pose(first)


def check_pose(e: Episode) -> None:
    T = e.clip.camera.T_world_camera
    np.testing.assert_allclose(T[:3, 3], EXTRINSICS[:3], atol=1e-6)
    np.testing.assert_allclose(T[:3, :3], euler_to_matrix(np.array(EXTRINSICS[3:])), atol=1e-6)


def test_rlds_action_of_unknown_meaning_is_kept_without_one(tmp_path: Path):
    root = dataset(tmp_path, schema(actions={}), [[episode(2)]])
    told = droid.read(root, "train/00000")[0].commands
    assert told is not None
    assert (told.space, told.convention, told.values.shape) == ("", "", (2, 7))


def test_rlds_damage(tmp_path: Path):
    joints = np.tile(np.array(HOME, np.float32), (3, 1))
    joints[2, 6] = np.nan
    bad = episode(3, {"steps/observation/joint_position": flat(joints)})
    root = dataset(tmp_path, schema(), [[episode(1), bad], [episode(1)]])
    with pytest.raises(ValueError, match=r"train/00001 .*joint_position: row 2, column 6 \(joint_7\) is nan"):
        droid.read(root, "train/00001")
    flip_bit(shard_file(root, 0, 2), 100)
    shard_file(root, 1, 2).unlink()
    assert len(droid.recordings(root)) == 3
    with pytest.raises(ValueError, match="recording train/00000: .*record 0 at byte 0: wrong CRC"):
        droid.read(root, "train/00000")
    with pytest.raises(ValueError, match="recording train/00002: its shard .*-00001-of-00002 is missing"):
        droid.read(root, "train/00002")
    other = dataset(tmp_path / "x", group(steps=steps(action=tensor("float32", 7))), [[]])
    with pytest.raises(ValueError, match="not a DROID data set of a known schema"):
        droid.recordings(other)


def test_without_the_robot_the_rest_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KINEMA4D_ASSETS")
    e = droid.read(dataset(tmp_path, schema(), [[episode(2)]]), "train/00000")[0]
    assert e.arms == ()
    assert e.facts["robot"] == "panda_robotiq"
    assert "git clone" in e.facts["robot_missing"]
