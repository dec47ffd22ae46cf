"""LeRobot data sets of both layouts are read as they were written, ours come back whole, and bad ones are named."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from kinema4d.data import video
from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.export_lerobot import at_frames, export_lerobot
from kinema4d.data.ingest.lerobot import read, recordings
from kinema4d.data.lerobot_stats import combine, image_stats, vector_stats
from kinema4d.geometry.camera import from_depth
from kinema4d.types import Arm, Camera, Clip, Commands, Episode, Track, Trajectory

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FPS, H, W = 10, 32, 48
LENGTHS = (6, 4, 5)
TASKS = ("pick the cup", "öffne die Lade")
KEYS = ("observation.images.front", "observation.images.wrist")
JOINTS = ("joint1", "joint2", "joint3", "joint4", "joint5", "joint6", "finger_joint")


def frames(episode: int, key: str, count: int) -> np.ndarray:
    """A gradient whose level tells episode, camera and frame."""
    level = 10 + 60 * episode + 6 * np.arange(count) + (30 if "wrist" in key else 0)
    ramp = np.linspace(0, 25, W)
    return np.broadcast_to((level[:, None, None] + ramp)[..., None], (count, H, W, 3)).astype(np.uint8)


def state(episode: int, count: int) -> np.ndarray:
    t = np.arange(count)[:, None] / 20
    q = 0.1 * episode + np.sin(t + np.arange(7)) * 0.2
    return np.column_stack([q[:, :6], 0.02 + 0.01 * np.sin(t[:, 0])]).astype(np.float32)


def features(*, images: str = "video", extra: dict[str, Any] | None = None) -> dict[str, Any]:
    single = {"shape": [1], "names": None}
    return {
        "observation.state": {"dtype": "float32", "shape": [7], "names": {"motors": list(JOINTS)}},
        "action": {"dtype": "float32", "shape": [7], "names": list(JOINTS)},
        **{k: {"dtype": images, "shape": [H, W, 3], "names": ["height", "width", "channel"]} for k in KEYS},
        "next.success": {"dtype": "bool", **single},
        "timestamp": {"dtype": "float32", **single},
        **{k: {"dtype": "int64", **single} for k in ("frame_index", "episode_index", "index", "task_index")},
        **(extra or {}),
    }


def table(episode: int, start: int, *, images: bool = False) -> Any:
    count, q = LENGTHS[episode], state(episode, LENGTHS[episode])
    columns = {
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(q.reshape(-1)), 7),
        "action": pa.FixedSizeListArray.from_arrays(pa.array((q + 1).reshape(-1)), 7),
        "next.success": pa.array([i == count - 1 and episode != 1 for i in range(count)]),
        "timestamp": pa.array((np.arange(count) / FPS).astype(np.float32)),
        "frame_index": pa.array(np.arange(count)),
        "episode_index": pa.array(np.full(count, episode)),
        "index": pa.array(np.arange(start, start + count)),
        "task_index": pa.array(np.full(count, episode % 2)),
    }
    if images:
        for key in KEYS:
            cells = [
                {"bytes": png(image), "path": f"frame_{i:06d}.png"}
                for i, image in enumerate(frames(episode, key, count))
            ]
            columns[key] = pa.array(cells)
    return pa.table(columns)


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def write_info(root: Path, version: str, robot: str, **changes: Any) -> None:
    legacy = version != "v3.0"
    info = {
        "codebase_version": version,
        "robot_type": robot,
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": len(TASKS),
        "chunks_size": 2 if legacy else 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        if legacy
        else "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
        if legacy
        else "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features(),
        **changes,
    }
    (root / "meta").mkdir(parents=True, exist_ok=True)
    (root / "meta" / "info.json").write_text(json.dumps(info, indent=4, ensure_ascii=False), encoding="utf-8")


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_v21(root: Path, *, robot: str = "k4arm", images: bool = False) -> Path:
    """What LeRobot 2.1 writes: an episode per file, two per folder here; lists as JSON lines."""
    write_info(root, "v2.1", robot, features=features(images="image" if images else "video"))
    start, listed = 0, []
    for episode, count in enumerate(LENGTHS):
        folder = f"chunk-{episode // 2:03d}"
        pq.write_table(
            table(episode, start, images=images), put(root / "data" / folder / f"episode_{episode:06d}.parquet")
        )
        for key in () if images else KEYS:
            file = put(root / "videos" / folder / key / f"episode_{episode:06d}.mp4")
            video.write_h264(file, frames(episode, key, count), Fraction(FPS))
        listed.append({"episode_index": episode, "tasks": [TASKS[episode % 2]], "length": count})
        start += count
    tasks = [{"task_index": i, "task": task} for i, task in enumerate(TASKS)]
    for name, lines in {"episodes": listed, "tasks": tasks}.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (root / "meta" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return root


def write_v3(root: Path, *, robot: str = "k4arm", index_name: str = "task", codec: str = "libx264") -> Path:
    """What LeRobot 3.0 writes: episodes share files. Tables: all in one; front: 0, 1 | 2; wrist: 0 | 1, 2."""
    write_info(root, "v3.0", robot)
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    parts = [table(episode, int(starts[episode])) for episode in range(len(LENGTHS))]
    pq.write_table(pa.concat_tables(parts), put(root / "data" / "chunk-000" / "file-000.parquet"))
    where = {KEYS[0]: (0, 0, 1), KEYS[1]: (0, 1, 1)}
    rows = []
    for episode, count in enumerate(LENGTHS):
        row = {"episode_index": episode, "tasks": [TASKS[episode % 2]], "length": count}
        row |= {"data/chunk_index": 0, "data/file_index": 0}
        row |= {"dataset_from_index": int(starts[episode]), "dataset_to_index": int(starts[episode + 1])}
        for key, files in where.items():
            before = sum(LENGTHS[e] for e in range(episode) if files[e] == files[episode])
            said = {"chunk_index": 0, "file_index": files[episode]}
            said |= {"from_timestamp": before / FPS, "to_timestamp": (before + count) / FPS}
            row |= {f"videos/{key}/{name}": value for name, value in said.items()}
        row |= {"stats/action/min": [0.0] * 7, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows), put(root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"))
    pq.write_table(pa.table({"task_index": [0, 1], index_name: list(TASKS)}), root / "meta" / "tasks.parquet")
    for key, files in where.items():
        for number in set(files):
            images = [f for e, n in enumerate(LENGTHS) if files[e] == number for f in frames(e, key, n)]
            encode(put(root / "videos" / key / "chunk-000" / f"file-{number:03d}.mp4"), images, codec)
    return root


def encode(file: Path, images: Sequence[np.ndarray], codec: str) -> None:
    if codec == "libx264":
        video.write_h264(file, images, Fraction(FPS))
        return
    with av.open(str(file), "w") as container:  # LeRobot's own default: AV1, a keyframe every second frame
        stream: Any = container.add_stream(codec, rate=FPS, options={"g": "2", "crf": "20", "preset": "12"})
        stream.width, stream.height, stream.pix_fmt = 2 * W, 2 * H, "yuv420p"
        for image in images:
            big = np.repeat(np.repeat(image, 2, axis=0), 2, axis=1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(big, format="rgb24")))
        container.mux(stream.encode(None))


@pytest.fixture(params=["v2.1", "v3.0"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return (write_v21 if request.param == "v2.1" else write_v3)(tmp_path / "set")


def test_both_layouts_are_read_as_written(root: Path):
    assert list(recordings(root)) == ["episode_000000", "episode_000001", "episode_000002"]
    for episode, count in enumerate(LENGTHS):
        views = read(root, f"episode_{episode:06d}")
        assert [e.view for e in views] == ["front", "wrist"]
        for e, key in zip(views, KEYS, strict=True):
            assert np.abs(e.clip.rgb.astype(int) - frames(episode, key, count)).max() <= 3
            assert (e.clip.fps, e.text, e.group) == (FPS, TASKS[episode % 2], f"episode_{episode:06d}")
            assert e.source == f"lerobot/episode_{episode:06d}"
            assert e.outcome == ("failure" if episode == 1 else "success")
            assert e.camera_from == "guessed"
            assert not e.clip.pointmap.valid.any()
            assert e.commands is not None
            assert e.commands.names == JOINTS
            np.testing.assert_array_equal(e.commands.values, (state(episode, count) + 1).astype(np.float64))
            assert [a.robot for a in e.arms] == ["k4arm"]
            np.testing.assert_allclose(e.arms[0].trajectory.q, state(episode, count), atol=1e-6)
            assert e.facts["state_names"] == list(JOINTS)


def test_the_tasks_index_may_have_pandas_own_name(tmp_path: Path):
    root = write_v3(tmp_path / "set", index_name="__index_level_0__")
    assert read(root, "episode_000001")[0].text == TASKS[1]


def test_av1_videos_are_read(tmp_path: Path):
    if "libsvtav1" not in av.codecs_available:
        pytest.skip("this PyAV has no AV1 encoder")
    root = write_v3(tmp_path / "set", codec="libsvtav1")
    info = json.loads((root / "meta" / "info.json").read_text())
    for key in KEYS:
        info["features"][key]["shape"] = [2 * H, 2 * W, 3]
    (root / "meta" / "info.json").write_text(json.dumps(info))
    rgb = read(root, "episode_000002")[1].clip.rgb[:, ::2, ::2]
    assert np.abs(rgb.astype(int) - frames(2, KEYS[1], LENGTHS[2])).mean() < 3


def test_images_in_the_table_are_exact(tmp_path: Path):
    views = read(write_v21(tmp_path / "set", images=True), "episode_000002")
    for e, key in zip(views, KEYS, strict=True):
        np.testing.assert_array_equal(e.clip.rgb, frames(2, key, LENGTHS[2]))


def test_only_the_window_is_decoded(tmp_path: Path):
    """An episode late in a long file is read from the keyframe before it: damage far before does not matter."""
    root = write_v3(tmp_path / "set")
    rgb = [np.full((H, W, 3), 40 + i % 100, np.uint8) for i in range(600)]
    movie = root / "videos" / KEYS[0] / "chunk-000" / "file-001.mp4"
    video.write_h264(movie, rgb, Fraction(FPS))  # a keyframe every 250 frames
    with av.open(str(movie)) as container:
        packet = next(p for p in container.demux(container.streams.video[0]) if p.pts and p.time_base and p.size > 30)
        place, size = packet.pos, packet.size
    content = bytearray(movie.read_bytes())
    assert place is not None
    content[place : place + size] = bytes(size)
    movie.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        video.read(movie, count=600)
    file = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    rows = pq.read_table(file).to_pylist()
    rows[2] |= {f"videos/{KEYS[0]}/from_timestamp": 50.5, f"videos/{KEYS[0]}/to_timestamp": 51.0}
    pq.write_table(pa.Table.from_pylist(rows), file)
    found = read(root, "episode_000002")[0].clip.rgb
    assert np.abs(found.astype(int) - np.array(rgb[505:510])).max() <= 3


def test_joints_are_not_invented(tmp_path: Path):
    so = read(write_v21(tmp_path / "so", robot="so101_follower"), "episode_000000")[0]
    assert so.arms == ()
    assert so.facts["robot"] == "so101"
    assert "does not say which" in so.facts["robot_missing"]
    unknown = read(write_v21(tmp_path / "aloha", robot="aloha"), "episode_000000")[0]
    assert unknown.arms == ()
    assert unknown.facts["robot_type"] == "aloha"
    other = read(write_v21(tmp_path / "panda", robot="panda"), "episode_000000")[0]
    assert other.arms == ()
    assert "are not joints of panda" in other.facts["robot_missing"]
    root = write_v21(tmp_path / "degrees")
    file = root / "data" / "chunk-000" / "episode_000000.parquet"
    degrees = pa.FixedSizeListArray.from_arrays(pa.array(np.rad2deg(5 * state(0, LENGTHS[0])).reshape(-1)), 7)
    pq.write_table(pq.read_table(file).set_column(0, "observation.state", degrees), file)
    assert "not rad" in read(root, "episode_000000")[0].facts["robot_missing"]


def test_droid_as_lerobot_ports_it_has_joints(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch):
    """robot_type Franka alone says neither which gripper nor which joints; DROID's own columns do."""
    root, count = write_v21(tmp_path / "set", robot="Franka"), LENGTHS[0]
    q = np.tile([0.0, -0.5, 0.0, -2.2, 0.0, 1.8, 0.785, 1.0], (count, 1)).astype(np.float32)
    file = root / "data" / "chunk-000" / "episode_000000.parquet"
    column = pa.FixedSizeListArray.from_arrays(pa.array(q.reshape(-1)), 8)
    pq.write_table(pq.read_table(file).set_column(0, "observation.state", column), file)
    names = [*(f"joint_{i}" for i in range(7)), "gripper"]
    droid = features() | {"observation.state": {"dtype": "float32", "shape": [8], "names": {"axes": names}}}
    edit_info(root, features=droid)
    assert read(root, "episode_000000")[0].arms == ()
    mark = {"dtype": "float32", "shape": [6], "names": None}
    droid |= {f"observation.state.{name}_position": mark for name in ("cartesian", "joint")}
    edit_info(root, features=droid)
    monkeypatch.setenv("KINEMA4D_ASSETS", str(tmp_path))
    assert "To get them" in read(root, "episode_000000")[0].facts["robot_missing"]
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))
    (arm,) = read(root, "episode_000000")[0].arms
    assert arm.robot == "panda_robotiq"
    joints = dict(zip(arm.trajectory.joint_names, arm.trajectory.q[0], strict=True))
    assert joints["panda_joint4"] == pytest.approx(-2.2)
    assert joints["finger_joint"] == pytest.approx(0.725)


def edit_info(root: Path, **changes: Any) -> None:
    file = root / "meta" / "info.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def videos(root: Path) -> Path:
    return sorted((root / "videos").rglob("*.mp4"))[0]


def tables(root: Path) -> Path:
    return sorted((root / "data").rglob("*.parquet"))[0]


def test_a_truncated_video_is_named(root: Path):
    content = videos(root).read_bytes()
    videos(root).write_bytes(content[: len(content) // 2])
    with pytest.raises(
        ValueError, match=r"\.mp4, episode_000000: the video is damaged or too short.*download it again"
    ):
        read(root, "episode_000000")


def test_a_video_with_too_few_frames_is_named(root: Path):
    video.write_h264(videos(root), frames(0, KEYS[0], 2), Fraction(FPS))
    with pytest.raises(ValueError, match=r"2 of 6 frames from 0 s on were found, frame 2 is missing"):
        read(root, "episode_000000")


def test_a_window_shorter_than_its_rows_is_named(tmp_path: Path):
    root = write_v3(tmp_path / "set")
    file = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    rows = pq.read_table(file).to_pylist()
    rows[1][f"videos/{KEYS[0]}/to_timestamp"] -= 2 / FPS
    pq.write_table(pa.Table.from_pylist(rows), file)
    with pytest.raises(
        ValueError, match=r"episode_000001: observation.images.front spans .* but the episode has 4 rows"
    ):
        read(root, "episode_000001")


def test_mixed_frame_rates_are_named(root: Path):
    video.write_h264(videos(root), np.repeat(frames(0, KEYS[0], 10), 3, axis=0), Fraction(3 * FPS))
    with pytest.raises(ValueError, match=r"the video runs at 30 fps but meta/info.json says 10"):
        read(root, "episode_000000")


def test_rows_at_another_rate_are_named(root: Path):
    edit_info(root, fps=30)
    with pytest.raises(ValueError, match=r"row 1 has timestamp 0.1.*at 30 fps"):
        read(root, "episode_000000")


def test_nan_states_are_named(root: Path):
    content = pq.read_table(tables(root))
    values = np.array(content.column("observation.state").to_pylist(), np.float32)
    values[2, 3] = np.nan
    bad = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 7)
    pq.write_table(content.set_column(0, "observation.state", bad), tables(root))
    with pytest.raises(ValueError, match=r"\.parquet, episode_000000: observation.state is nan in row 2, joint4"):
        read(root, "episode_000000")


def test_unknown_versions_are_named(root: Path):
    edit_info(root, codebase_version="v4.7")
    with pytest.raises(ValueError, match=r"codebase_version 'v4.7'; v2.0, v2.1, v3.0 are read"):
        recordings(root)


def test_missing_files_are_named(root: Path):
    tables(root).rename(root / "elsewhere")
    with pytest.raises(ValueError, match=r"\.parquet, the table of episode_000000, is missing"):
        read(root, "episode_000000")
    (root / "elsewhere").rename(tables(root) if list((root / "data").rglob("*.parquet")) else root / "gone")
    videos(root).unlink()
    with pytest.raises(ValueError, match="is missing"):
        read(root, "episode_000000")
    for file in [*root.glob("meta/episodes*"), *root.glob("meta/episodes/*/*")]:
        if file.is_file():
            file.unlink()
    with pytest.raises(ValueError, match=r"episodes"):
        recordings(root)
    (root / "meta" / "info.json").unlink()
    with pytest.raises(ValueError, match=r"is not a LeRobot data set: it has no meta/info.json"):
        recordings(root)


def test_a_damaged_table_and_an_unknown_recording_are_named(root: Path):
    with pytest.raises(ValueError, match=r"has no episode_000007"):
        read(root, "episode_000007")
    tables(root).write_bytes(b"PAR1nonsense")
    with pytest.raises(ValueError, match=r"is not a readable parquet file"):
        read(root, "episode_000000")


# ---------------------------------------------------------------------- writing


def an_episode(seed: int, *, view: str = "front", size: tuple[int, int] = (24, 32), robot: str = "k4arm") -> Episode:
    count, (height, width) = 5 + seed % 2, size
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[:height, :width]
    t = np.arange(count)[:, None, None]
    depth = 0.8 + 0.3 * np.sin(u / 9 + t / 3 + seed) + v / height / 4
    K = np.array([[width * 0.9, 0, width / 2], [0, width * 0.9, height / 2], [0, 0, 1]])
    T_world_camera = np.eye(4)
    T_world_camera[:3, 3] = rng.normal(size=3)
    camera = Camera(K=K, T_world_camera=T_world_camera, height=height, width=width)
    rgb = np.stack(np.broadcast_arrays(u * 3 + 9 * t, v * 4 + 20 * seed, 60 + 10 * t), axis=-1).astype(np.uint8)
    labels = (np.broadcast_to(u // 8, rgb.shape[:3]) % 3).astype(np.uint8)
    arm = Arm(
        robot=robot,
        trajectory=Trajectory(q=state(seed % 3, count).astype(float), joint_names=JOINTS, fps=10.0),
        link_names=("base", "tip"),
        converged=np.arange(count) > 0,
        residual_m=rng.random(count),
        residual_rad=rng.random(count),
    )
    return Episode(
        clip=Clip(camera=camera, rgb=rgb, pointmap=from_depth(K, depth, (u + v + t) % 7 > 0), fps=10.0),
        arms=(arm,),
        labels=labels,
        label_names=("robot:hand", "cup"),
        text=TASKS[seed % 2],
        outcome=("success", "failure")[seed % 2],
        source=f"made/{seed}",
        task="pick_place",
        group=f"scene{seed}",
        view=view,
        commands=Commands(values=rng.normal(size=(3 * count, 2)), names=("a", "b"), fps=30.0, space="joint_velocity"),
        tracks=(Track(name="cup", Ts_world_object=np.tile(np.eye(4), (count, 1, 1))),),
        facts={"seed": seed},
    )


def a_dataset(root: Path, episodes: Sequence[Episode]) -> Dataset:
    dataset = open_dataset(root, create=True)
    for number, episode in enumerate(episodes):
        dataset.add(f"e{number}", episode)
    return dataset


def test_what_is_exported_comes_back(tmp_path: Path):
    episodes = [an_episode(seed, view=view) for seed in (0, 1) for view in ("front", "wrist")]
    dataset = a_dataset(tmp_path / "set", episodes)
    out = export_lerobot(dataset, tmp_path / "lerobot")
    assert list(recordings(out)) == ["episode_000000", "episode_000001"]
    back = [e for name in recordings(out) for e in read(out, name)]
    assert len(back) == len(episodes)
    for number, (was, now) in enumerate(zip(episodes, back, strict=True)):
        stored = dataset.load(f"e{number}")
        assert np.abs(now.clip.rgb.astype(int) - stored.clip.rgb).max() <= 8
        np.testing.assert_array_equal(now.clip.pointmap.valid, was.clip.pointmap.valid)
        seen = was.clip.pointmap.valid
        assert np.abs(now.clip.pointmap.points - was.clip.pointmap.points)[seen].max() < 2e-5
        np.testing.assert_array_equal(now.clip.camera.T_world_camera, was.clip.camera.T_world_camera)
        np.testing.assert_array_equal(now.clip.camera.K, was.clip.camera.K)
        assert now.labels is not None
        assert was.labels is not None
        np.testing.assert_array_equal(now.labels, was.labels)
        assert now.labels.dtype == was.labels.dtype
        assert now.commands is not None
        assert was.commands is not None
        np.testing.assert_array_equal(now.commands.values, was.commands.values)
        np.testing.assert_array_equal(now.arms[0].trajectory.q, was.arms[0].trajectory.q)
        np.testing.assert_array_equal(now.arms[0].residual_m, was.arms[0].residual_m)
        for key in ("text", "outcome", "source", "task", "group", "view", "camera_from", "metric", "label_names"):
            assert getattr(now, key) == getattr(was, key)
        assert dict(now.facts) == dict(was.facts)
        assert now.tracks[0].name == "cup"


def test_extras_of_another_episode_are_noticed(tmp_path: Path):
    out = export_lerobot(a_dataset(tmp_path / "set", [an_episode(0), an_episode(1)]), tmp_path / "lerobot")
    (out / "kinema4d" / "episode_000000").rename(out / "kinema4d" / "old")
    (out / "kinema4d" / "episode_000001").rename(out / "kinema4d" / "episode_000000")
    with pytest.raises(ValueError, match=r"delete its folder kinema4d/|clip parts disagree"):
        read(out, "episode_000000")


def test_without_our_folder_an_export_is_a_plain_data_set(tmp_path: Path):
    """What LeRobot itself sees: state, the commands in force, success, tasks, the frames of each camera."""
    import shutil

    episodes = [an_episode(0), an_episode(1), an_episode(2)]
    out = export_lerobot(a_dataset(tmp_path / "set", episodes), tmp_path / "lerobot")
    shutil.rmtree(out / "kinema4d")
    for number, was in enumerate(episodes):
        (now,) = read(out, f"episode_{number:06d}")
        assert (now.text, now.outcome, now.view) == (was.text, was.outcome, "front")
        assert np.abs(now.clip.rgb.astype(int) - was.clip.rgb).mean() < 3
        np.testing.assert_allclose(now.arms[0].trajectory.q, was.arms[0].trajectory.q, atol=1e-6)
        assert was.commands is not None
        assert now.commands is not None
        np.testing.assert_allclose(now.commands.values, was.commands.values[::3], atol=1e-6)


def test_the_export_has_exactly_the_columns_of_lerobot(tmp_path: Path):
    out = export_lerobot(a_dataset(tmp_path / "set", [an_episode(0), an_episode(1)]), tmp_path / "lerobot")
    info = json.loads((out / "meta" / "info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"], info["fps"]) == (2, 11, 2, 10)
    assert isinstance(info["fps"], int)
    data = pq.read_table(out / "data" / "chunk-000" / "file-000.parquet")
    assert set(data.column_names) == {k for k, f in info["features"].items() if f["dtype"] != "video"}
    for name in data.column_names:
        feature, kind = info["features"][name], data.schema.field(name).type
        single = feature["shape"] == [1]
        assert kind == (pa.bool_() if feature["dtype"] == "bool" else pa.type_for_alias(feature["dtype"])) or not single
        assert single or kind == pa.list_(pa.float32(), feature["shape"][0])
    assert pq.ParquetFile(out / "data" / "chunk-000" / "file-000.parquet").num_row_groups == 2
    listed = pq.read_table(out / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    plain = {"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"}
    plain |= {f"{part}/{name}_index" for part in ("data", "meta/episodes") for name in ("chunk", "file")}
    key = "videos/observation.images.front"
    plain |= {f"{key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp")}
    kinds = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")
    plain |= {f"stats/{feature}/{kind}" for feature in info["features"] for kind in kinds}
    assert set(listed.column_names) == plain
    rows = listed.to_pylist()
    assert [row["tasks"] for row in rows] == [[TASKS[0]], [TASKS[1]]]
    assert [(row[f"{key}/from_timestamp"], row[f"{key}/to_timestamp"]) for row in rows] == [(0.0, 0.5), (0.5, 1.1)]
    stats = json.loads((out / "meta" / "stats.json").read_text())
    assert stats.keys() == info["features"].keys()
    assert np.shape(stats["observation.images.front"]["mean"]) == (3, 1, 1)
    values = np.array(data.column("observation.state").to_pylist())
    for name, reduce in {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}.items():
        np.testing.assert_allclose(stats["observation.state"][name], reduce(values, axis=0), atol=1e-6)
    assert stats["observation.state"]["count"] == [11]


def test_pandas_reads_the_tasks_as_lerobot_does(tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    out = export_lerobot(a_dataset(tmp_path / "set", [an_episode(0), an_episode(1)]), tmp_path / "lerobot")
    tasks = pandas.read_parquet(out / "meta" / "tasks.parquet")
    assert list(tasks.index) == list(TASKS)
    assert tasks.loc[TASKS[1]].task_index == 1


def test_joined_videos_hold_the_frames_of_their_parts(tmp_path: Path):
    episodes = [an_episode(seed) for seed in range(4)]
    out = export_lerobot(a_dataset(tmp_path / "set", episodes), tmp_path / "lerobot")
    file = out / "videos" / "observation.images.front" / "chunk-000" / "file-000.mp4"
    whole = video.read(file, count=sum(len(e) for e in episodes))
    start = 0
    for number, e in enumerate(episodes):
        rgb = open_dataset(tmp_path / "set").load(f"e{number}").clip.rgb
        video.write_h264(tmp_path / "part.mp4", rgb, Fraction(10))
        np.testing.assert_array_equal(whole[start : start + len(e)], video.read(tmp_path / "part.mp4", count=len(e)))
        start += len(e)
    with av.open(str(file)) as container:
        packets = [p for p in container.demux(container.streams.video[0]) if p.dts is not None]
    times = [p.dts for p in packets if p.dts is not None]
    assert times == sorted(set(times))
    assert sum(p.is_keyframe for p in packets) == len(episodes)


def test_large_exports_begin_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from kinema4d.data import lerobot_files

    monkeypatch.setattr(lerobot_files, "VIDEO_MB", 1e-6)
    monkeypatch.setattr(lerobot_files, "DATA_MB", 1e-6)
    episodes = [an_episode(seed) for seed in range(3)]
    out = export_lerobot(a_dataset(tmp_path / "set", episodes), tmp_path / "lerobot")
    for pattern in ("data/chunk-000/*.parquet", "meta/episodes/chunk-000/*.parquet", "videos/*/chunk-000/*.mp4"):
        assert sorted(f.stem for f in out.glob(pattern)) == ["file-000", "file-001", "file-002"]
    row = pq.read_table(out / "meta" / "episodes" / "chunk-000" / "file-002.parquet").to_pylist()[0]
    assert row["meta/episodes/file_index"] == row["data/file_index"] == 2
    for number, was in enumerate(episodes):
        (now,) = read(out, f"episode_{number:06d}")
        assert np.abs(now.clip.rgb.astype(int) - was.clip.rgb).mean() < 3


def test_the_same_input_gives_the_same_bytes(tmp_path: Path):
    dataset = a_dataset(tmp_path / "set", [an_episode(0), an_episode(1)])
    a, b = export_lerobot(dataset, tmp_path / "a"), export_lerobot(dataset, tmp_path / "b")
    files = sorted(f.relative_to(a) for f in a.rglob("*") if f.is_file())
    assert len(files) > 10
    assert files == sorted(f.relative_to(b) for f in b.rglob("*") if f.is_file())
    assert [str(f) for f in files if (a / f).read_bytes() != (b / f).read_bytes()] == []


def test_episodes_of_which_little_is_known_are_exported(tmp_path: Path):
    """No robot, no commands, no outcome, no depth: no such columns, and nothing is made up."""
    full = an_episode(0)
    none = np.zeros(full.clip.rgb.shape[:3], bool)
    bare = Episode(clip=replace(full.clip, pointmap=from_depth(full.clip.camera.K, none * 1.0, none)))
    out = export_lerobot(a_dataset(tmp_path / "set", [bare]), tmp_path / "lerobot")
    names = set(pq.read_schema(out / "data" / "chunk-000" / "file-000.parquet").names)
    assert names == {"timestamp", "frame_index", "episode_index", "index", "task_index"}
    (now,) = read(out, "episode_000000")
    assert (now.arms, now.commands, now.outcome, now.view, now.labels) == ((), None, "unknown", "", None)
    assert not now.clip.pointmap.valid.any()


def test_mixed_data_sets_are_refused_by_name(tmp_path: Path):
    other = an_episode(1)
    mixed = {
        "size": an_episode(1, size=(16, 32)),
        "frame rate": replace(other, clip=replace(other.clip, fps=12.0)),
        "robot": an_episode(1, robot="panda"),
        "list of actions": replace(other, commands=None),
    }
    for what, episode in mixed.items():
        dataset = a_dataset(tmp_path / what, [an_episode(0), episode])
        with pytest.raises(ValueError, match=rf"one {what}.*e1.*pass the ids of one kind"):
            export_lerobot(dataset, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        export_lerobot(dataset, tmp_path / f"{what} alone", ids=["e1"])
    dataset = a_dataset(tmp_path / "views", [an_episode(0), an_episode(0, view="wrist"), an_episode(1)])
    with pytest.raises(ValueError, match=r"every camera in every episode: e2 comes with the views 'front'"):
        export_lerobot(dataset, tmp_path / "out")


def test_foreign_folders_are_not_replaced(tmp_path: Path):
    dataset = a_dataset(tmp_path / "set", [an_episode(0)])
    write_v3(tmp_path / "theirs")
    with pytest.raises(ValueError, match="kinema4d did not write it"):
        export_lerobot(dataset, tmp_path / "theirs", overwrite=True)
    out = export_lerobot(dataset, tmp_path / "ours")
    with pytest.raises(ValueError, match="exists"):
        export_lerobot(dataset, out)
    export_lerobot(dataset, out, overwrite=True)


def test_the_command_in_force_is_the_last_that_began():
    values = np.arange(10.0)[:, None]
    np.testing.assert_array_equal(at_frames(values, 30.0, 4, 10.0)[:, 0], [0, 3, 6, 9])
    np.testing.assert_array_equal(at_frames(values, 10.0, 12, 10.0)[:, 0], [*range(10), 9, 9])
    np.testing.assert_array_equal(at_frames(values, 5.0, 5, 10.0)[:, 0], [0, 0, 1, 1, 2])


def test_statistics_of_parts_combine_to_those_of_the_whole():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(20, 3)), rng.normal(3, 2, size=(50, 3))
    whole, joined = vector_stats(np.concatenate([a, b])), combine([vector_stats(a), vector_stats(b)])
    for key in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(joined[key], whole[key], atol=1e-12)
    rgb = rng.integers(0, 256, (5, 20, 30, 3), dtype=np.uint8)
    np.testing.assert_allclose(image_stats(rgb)["mean"][:, 0, 0], rgb.mean(axis=(0, 1, 2)) / 255)
