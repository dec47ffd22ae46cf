"""DROID as LeRobot ports it: what lerobot's port_droid.py writes, in both layouts."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from kinema4d.data import video
from kinema4d.data.ingest import droid
from kinema4d.geometry.se3 import euler_to_matrix

HOME = (0, -0.5, 0, -2.2, 0, 1.8, 0.785)
EXTRINSICS = (0.3, -0.5, 0.6, -2.1, 0.1, -0.6)
VIDEOS = ("exterior_1_left", "exterior_2_left", "wrist_left")


@pytest.fixture(autouse=True)
def _robots(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))


def lerobot_droid(root: Path, version: str, t: int = 4) -> Path:
    """Two episodes as lerobot's port_droid.py writes them (at a tenth of the pixels)."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    vectors = {
        "observation.state.gripper_position": np.linspace(0, 1, t)[:, None],
        "observation.state.cartesian_position": np.zeros((t, 6)),
        "observation.state.joint_position": np.array(HOME) + 0.01 * np.arange(t)[:, None],
        "action.joint_velocity": np.arange(7.0 * t).reshape(t, 7),
        "action.gripper_position": np.ones((t, 1)),
        "camera_extrinsics.exterior_1_left": np.tile(EXTRINSICS, (t, 1)),
        "camera_extrinsics.exterior_2_left": np.full((t, 6), np.nan),
        "camera_extrinsics.wrist_left": np.tile(EXTRINSICS, (t, 1)) + 0.01 * np.arange(t)[:, None],
    }
    vectors["observation.state"] = np.hstack([vectors[f"observation.state.{k}_position"] for k in ("joint", "gripper")])
    vectors["action"] = vectors["observation.state"] + 0.1
    features = {k: {"dtype": "float32", "shape": [v.shape[1]], "names": None} for k, v in vectors.items()}
    features |= {f"observation.images.{v}": {"dtype": "video", "shape": [36, 64, 3], "names": None} for v in VIDEOS}
    features |= {k: {"dtype": "int64", "shape": [1], "names": None} for k in ("frame_index", "episode_index", "index")}
    features |= {k: {"dtype": "float32", "shape": [1], "names": None} for k in ("timestamp", "task_index")}
    features |= {"is_episode_successful": {"dtype": "bool", "shape": [1], "names": None}}
    features |= {"language_instruction_2": {"dtype": "string", "shape": [1], "names": None}}
    tables, old = [], version == "v2.1"
    for n in range(2):
        columns = {
            k: pa.FixedSizeListArray.from_arrays(pa.array(v.astype(np.float32).ravel()), v.shape[1])
            for k, v in vectors.items()
            if v.shape[1] > 1
        } | {k: pa.array(v.astype(np.float32).ravel()) for k, v in vectors.items() if v.shape[1] == 1}
        columns |= {
            "timestamp": pa.array((np.arange(t) / 15).astype(np.float32)),
            "frame_index": pa.array(np.arange(t)),
            "episode_index": pa.array(np.full(t, n)),
            "index": pa.array(np.arange(t) + n * t),
            "task_index": pa.array(np.zeros(t, np.int64)),
            "is_episode_successful": pa.array([n == 0] * t),
            "language_instruction_2": pa.array(["shut it"] * t),
        }
        tables.append(pa.table(columns))
    pictures = {
        (n, v): np.full((t, 36, 64, 3), 40 + 40 * n + 10 * i, np.uint8) for n in range(2) for i, v in enumerate(VIDEOS)
    }
    folder = (root / "meta" / "episodes" / "chunk-000") if not old else root / "meta"
    folder.mkdir(parents=True)
    paths = (
        ("data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet", "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4")
        if old
        else ("data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4")
    )  # fmt: skip
    info = {"codebase_version": version, "robot_type": "Franka", "fps": 15, "chunks_size": 1000, "features": features}
    (root / "meta/info.json").write_text(json.dumps(info | {"data_path": paths[0], "video_path": paths[1]}))
    (root / "data/chunk-000").mkdir(parents=True)
    for v in VIDEOS:
        (root / "videos" / (f"chunk-000/observation.images.{v}" if old else f"observation.images.{v}/chunk-000")).mkdir(
            parents=True
        )
    if old:
        rows = [{"episode_index": n, "tasks": ["close the drawer"], "length": t} for n in range(2)]
        (root / "meta/episodes.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
        (root / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "close the drawer"}))
        for n in range(2):
            pq.write_table(tables[n], root / f"data/chunk-000/episode_{n:06d}.parquet")
            for v in VIDEOS:
                file = root / f"videos/chunk-000/observation.images.{v}/episode_{n:06d}.mp4"
                video.write_h264(file, pictures[n, v], Fraction(15))
        return root
    rows = []
    for n in range(2):
        row = {"episode_index": n, "tasks": ["close the drawer"], "length": t}
        row |= {"dataset_from_index": n * t, "dataset_to_index": n * t + t, "data/chunk_index": 0, "data/file_index": 0}
        for v in VIDEOS:
            key = f"videos/observation.images.{v}"
            row |= {f"{key}/chunk_index": 0, f"{key}/file_index": 0}
            row |= {f"{key}/from_timestamp": n * t / 15, f"{key}/to_timestamp": (n + 1) * t / 15}
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows), folder / "file-000.parquet")
    pq.write_table(pa.table({"task_index": [0], "task": ["close the drawer"]}), root / "meta/tasks.parquet")
    pq.write_table(pa.concat_tables(tables), root / "data/chunk-000/file-000.parquet")
    for v in VIDEOS:
        file = root / f"videos/observation.images.{v}/chunk-000/file-000.mp4"
        video.write_h264(file, np.concatenate([pictures[0, v], pictures[1, v]]), Fraction(15))
    return root


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot(tmp_path: Path, version: str):
    root = lerobot_droid(tmp_path / "droid", version)
    names = droid.recordings(root)
    assert len(names) == 2
    for n, name in enumerate(names):
        views = {e.view: e for e in droid.read(root, name)}
        assert set(views) == set(VIDEOS)
        e = views["exterior_1_left"]
        assert (len(e), e.clip.fps, e.text) == (4, 15.0, "close the drawer")
        assert e.outcome == ("success", "failure")[n]
        assert abs(int(e.clip.rgb.mean()) - (40 + 40 * n)) <= 2
        assert e.source == e.group == f"droid/{name}"
        assert e.arms[0].robot == "panda_robotiq"
        np.testing.assert_allclose(e.arms[0].trajectory.q[:, 7], 0.725 * np.linspace(0, 1, 4), atol=1e-6)
        assert e.commands is not None
        assert (e.commands.space, e.commands.convention) == ("joint_velocity", "droid")
        np.testing.assert_array_equal(e.commands.values[1], [7, 8, 9, 10, 11, 12, 13, 1])
        assert e.facts["instructions"] == ["shut it"]
        assert e.camera_from == "estimated"
        T = e.clip.camera.T_world_camera
        np.testing.assert_allclose(T[:3, 3], EXTRINSICS[:3], atol=1e-6)
        np.testing.assert_allclose(T[:3, :3], euler_to_matrix(np.array(EXTRINSICS[3:])), atol=1e-6)
        assert views["exterior_2_left"].camera_from == "guessed"  # NaN: not known
        assert views["wrist_left"].camera_from == "estimated"
        assert views["wrist_left"].clip.camera.moving


def test_lerobot_that_is_not_droid(tmp_path: Path):
    root = lerobot_droid(tmp_path / "droid", "v2.1")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] = {k: f for k, f in info["features"].items() if not k.startswith("observation.state")}
    (root / "meta/info.json").write_text(json.dumps(info))
    for function in (droid.recordings, lambda r: droid.read(r, "episode_000000")):
        with pytest.raises(ValueError, match="LeRobot data set but not DROID: .*ingest it as 'lerobot'"):
            function(root)
