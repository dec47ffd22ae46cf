"""The official layout is read as it is, ours comes back metric, and what the official files lose is measured."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinema4d.data import video
from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.export import export
from kinema4d.data.export_robo4d import cover, export_robo4d, official_rmse
from kinema4d.data.ingest.robo4d import FRAMES, read, recordings
from kinema4d.data.store import load, save
from kinema4d.geometry.camera import from_depth, off_ray_px, project
from kinema4d.geometry.se3 import look_at
from kinema4d.types import Arm, Camera, Clip, Commands, Episode, Track, Trajectory

H, W = 64, 96


def an_episode(seed: int = 0, *, count: int = FRAMES, size: tuple[int, int] = (H, W), holes: bool = False) -> Episode:
    """A tilted table with a bright "robot" disc moving over it."""
    height, width = size
    v, u = np.mgrid[:height, :width].astype(np.float64)
    t = np.arange(count)[:, None, None] / count
    K = np.array([[width * 0.9, 0, width / 2], [0, width * 0.9, height / 2], [0, 0, 1]])
    robot = (u - width * (0.3 + 0.3 * t)) ** 2 + (v - height * 0.5) ** 2 < (height * 0.22) ** 2
    depth = np.where(robot, 0.7 + 0.05 * np.sin(u / 7), 1.6 - 0.6 * v / height)
    colour = np.stack(np.broadcast_arrays(60 + 60 * u / width, 90 + 50 * v / height, 80.0 + 0 * t), axis=-1)
    rgb = np.where(robot[..., None], [200.0, 120 + seed, 60.0], colour).astype(np.uint8)
    camera = Camera(K=K, T_world_camera=look_at(np.array([1.0, 0, 1]), np.zeros(3)), height=height, width=width)
    q = np.linspace(0, 1, count)[:, None] * [1.0, 0.5]
    arm = Arm(
        robot="k4arm",
        trajectory=Trajectory(q=q, joint_names=("a", "b"), fps=12.0),
        link_names=("base",),
        converged=np.ones(count, bool),
        residual_m=np.zeros(count),
        residual_rad=np.zeros(count),
    )
    valid = np.ones((count, height, width), bool)
    if holes:
        valid[:, : height // 4] = False
    return Episode(
        clip=Clip(camera=camera, rgb=rgb, pointmap=from_depth(K, depth, valid), fps=12.0),
        arms=(arm,),
        labels=(robot * 2).astype(np.uint8),
        label_names=("table", "robot:hand"),
        text="push it",
        outcome="success",
        source=f"made/{seed}",
        task="push",
        group="scene",
        view="front",
        commands=Commands(values=q * 2, names=("a", "b"), fps=12.0, space="joint_position"),
        tracks=(Track(name="disc", Ts_world_object=np.tile(np.eye(4), (count, 1, 1))),),
        facts={"seed": seed},
    )


def a_dataset(root: Path, *episodes: Episode) -> Dataset:
    dataset = open_dataset(root, create=True)
    for number, episode in enumerate(episodes):
        dataset.add(f"e{number}", episode)
    return dataset


def exported(tmp_path: Path, *episodes: Episode, height: int = H, width: int = W) -> Path:
    return export_robo4d(a_dataset(tmp_path / "set", *episodes), tmp_path / "out", height=height, width=width)


def iou(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / (a | b).sum())


def test_the_layout_is_the_official_one(tmp_path: Path):
    out = exported(tmp_path, an_episode(0), an_episode(1), an_episode(2))
    assert sorted(p.name for p in out.iterdir()) == [
        "first_frames",
        "kinema4d_masks",
        "kinema4d_meta.jsonl",
        "mask_pointmap",
        "mask_videos",
        "pointmap",
        "train_img_shuffled.txt",
        "train_shuffled.txt",
        "videos",
    ]
    for folder, suffix in {"first_frames": "png", "videos": "mp4", "pointmap": "mp4", "mask_videos": "mp4"}.items():
        assert sorted(p.name for p in (out / folder).iterdir()) == [f"{n:06d}.{suffix}" for n in range(3)]
    videos = (out / "train_shuffled.txt").read_text().split()
    images = (out / "train_img_shuffled.txt").read_text().split()
    assert sorted(videos) == [f"videos/{n:06d}.mp4" for n in range(3)]
    assert [Path(v).stem for v in videos] == [Path(i).stem for i in images]
    first = np.asarray(Image.open(out / "first_frames" / "000000.png"))
    stored = open_dataset(tmp_path / "set").load("e0").clip.rgb[0]
    np.testing.assert_array_equal(first, stored)
    robot = an_episode(0).robot_mask
    assert robot is not None
    inside = video.read(out / "mask_videos" / "000000.mp4", count=FRAMES)
    assert inside[~robot].mean() < 2 < 100 < inside[robot].mean()


def test_the_pointmap_video_is_that_of_the_clip_export(tmp_path: Path):
    out = exported(tmp_path, an_episode(0))
    clip = open_dataset(tmp_path / "set").load("e0").clip
    export(replace(clip, fps=24.0), "pointmap-mp4", tmp_path / "p.mp4")
    assert (out / "pointmap" / "000000.mp4").read_bytes() == (tmp_path / "p.mp4").read_bytes()
    whole = video.read(out / "pointmap" / "000000.mp4", count=FRAMES).astype(int)
    robot = video.read(out / "mask_pointmap" / "000000.mp4", count=FRAMES).astype(int)
    mask = an_episode(0).robot_mask
    assert mask is not None
    assert np.abs(whole - robot)[mask].mean() < 4  # one normalisation for both


@pytest.mark.parametrize("holes", [False, True])
def test_what_is_exported_comes_back_in_metres(tmp_path: Path, holes: bool):
    was = an_episode(3, holes=holes)
    out = exported(tmp_path, was)
    assert list(recordings(out)) == ["000000"]
    (now,) = read(out, "000000")
    assert now.metric
    assert np.abs(now.clip.rgb.astype(int) - was.clip.rgb).mean() < 3
    seen = was.clip.pointmap.valid
    assert iou(now.clip.pointmap.valid, seen) > (0.97 if holes else 0.9999)
    both = seen & now.clip.pointmap.valid
    error = np.linalg.norm(now.clip.pointmap.points - was.clip.pointmap.points, axis=-1)[both]
    assert np.sqrt((error**2).mean()) < 0.06
    assert now.robot_mask is not None
    assert was.robot_mask is not None
    np.testing.assert_array_equal(now.robot_mask, was.robot_mask)
    np.testing.assert_array_equal(now.clip.camera.K, was.clip.camera.K)
    np.testing.assert_array_equal(now.arms[0].trajectory.q, was.arms[0].trajectory.q)
    assert now.commands is not None
    assert was.commands is not None
    np.testing.assert_array_equal(now.commands.values, was.commands.values)
    for key in ("text", "outcome", "source", "task", "group", "view", "camera_from"):
        assert getattr(now, key) == getattr(was, key)
    assert (now.clip.fps, dict(now.facts), now.tracks[0].name) == (12.0, {"seed": 3}, "disc")


def official(tmp_path: Path, *episodes: Episode) -> Path:
    """A folder as the release has it: nothing of ours in it."""
    out = exported(tmp_path, *episodes)
    (out / "kinema4d_meta.jsonl").unlink()
    shutil.rmtree(out / "kinema4d_masks")
    return out


def test_official_folders_have_no_metres_and_a_mask_by_brightness(tmp_path: Path):
    was = an_episode(0)
    out = official(tmp_path, was)
    (now,) = read(out, "000000")
    assert not now.metric
    assert now.camera_from == "guessed"
    assert (now.clip.fps, now.source, now.group) == (24.0, "robo4d/000000", "000000")
    assert now.label_names == ("robot",)
    points = now.clip.pointmap.points
    assert points.dtype == np.float32
    assert 0 <= points.min() < 0.05 < 0.95 < points.max() <= 1
    assert now.robot_mask is not None
    assert was.robot_mask is not None
    assert iou(now.robot_mask, was.robot_mask) > 0.995
    images = video.read(out / "mask_videos" / "000000.mp4", count=FRAMES)
    assert iou((images != 0).any(axis=-1), was.robot_mask) < 0.9


def test_official_mask_arrays_win(tmp_path: Path):
    out = official(tmp_path, an_episode(0))
    (out / "arm_masks_npy").mkdir()
    mask = np.zeros((FRAMES, H, W, 1), np.uint8)
    mask[:, 3:9, 5:8] = 255
    np.save(out / "arm_masks_npy" / "000000.npy", mask)
    (now,) = read(out, "000000")
    assert now.robot_mask is not None
    np.testing.assert_array_equal(now.robot_mask, mask[..., 0] > 0)
    np.save(out / "arm_masks_npy" / "000000.npy", mask[:, ::2])
    with pytest.raises(ValueError, match=r"000000.npy .*make the masks again"):
        read(out, "000000")


def test_lists_folders_and_samples_are_found(tmp_path: Path):
    out = official(tmp_path, an_episode(0), an_episode(1))
    (out / "train_shuffled.txt").write_text("/videos/000001.mp4\n\n")
    assert list(recordings(out)) == ["000001"]
    (out / "train_shuffled.txt").unlink()
    assert list(recordings(out)) == ["000000", "000001"]
    shutil.move(out, tmp_path / "release" / "sample_test")
    (tmp_path / "release" / "sample_test" / "val_sample.txt").write_text("videos/000000.mp4\n")
    assert list(recordings(tmp_path / "release")) == ["sample_test/000000"]
    (episode,) = read(tmp_path / "release", "sample_test/000000")
    assert len(episode) == FRAMES
    with pytest.raises(ValueError, match="not in the Robo4D-200k layout"):
        recordings(tmp_path)


def test_bad_folders_are_named(tmp_path: Path):
    out = official(tmp_path, an_episode(0))
    pointmap = out / "pointmap" / "000000.mp4"
    kept = pointmap.read_bytes()
    pointmap.unlink()
    with pytest.raises(ValueError, match=r"pointmap.000000.mp4 of recording 000000 .* is missing; download it again"):
        read(out, "000000")
    pointmap.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(ValueError, match=r"pointmap.000000.mp4 .*(not a readable video|damaged)"):
        read(out, "000000")
    video.write_h264(pointmap, np.zeros((FRAMES, H, W + 2, 3), np.uint8), Fraction(24))
    with pytest.raises(ValueError, match=r"has 49 frames of 64x98, but .*videos.000000.mp4 49 of 64x96"):
        read(out, "000000")
    video.write_h264(pointmap, np.zeros((FRAMES - 1, H, W, 3), np.uint8), Fraction(24))
    with pytest.raises(ValueError, match=r"has 48 frames"):
        read(out, "000000")
    video.write_h264(out / "videos" / "000000.mp4", np.zeros((20, H, W, 3), np.uint8), Fraction(24))
    with pytest.raises(ValueError, match=r"videos.000000.mp4 has 20 frames, an episode needs at least 49"):
        read(out, "000000")


def test_a_damaged_side_file_is_named(tmp_path: Path):
    out = exported(tmp_path, an_episode(0))
    line = json.loads((out / "kinema4d_meta.jsonl").read_text())
    del line["camera"]
    (out / "kinema4d_meta.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=r"kinema4d_meta.jsonl, 000000: KeyError 'camera'"):
        read(out, "000000")
    (out / "kinema4d_meta.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no line for 000000"):
        read(out, "000000")


def test_what_the_layout_cannot_hold_is_refused_by_name(tmp_path: Path):
    episode = an_episode(0)
    none = np.zeros(episode.clip.rgb.shape[:3], bool)
    blind = replace(episode, clip=replace(episode.clip, pointmap=from_depth(episode.clip.camera.K, none * 1.0, none)))
    cases = {"no robot mask": replace(episode, labels=None, label_names=()), "no pointmap": blind}
    for what, bad in cases.items():
        dataset = a_dataset(tmp_path / what, episode, bad)
        with pytest.raises(ValueError, match=rf"episode e1 has {what}.*annotate it first"):
            export_robo4d(dataset, tmp_path / "out", height=H, width=W)
        assert not (tmp_path / "out").exists()
    dataset = a_dataset(tmp_path / "short", an_episode(0, count=20))
    with pytest.raises(ValueError, match=r"1 episodes have fewer than 49 frames \(e0\)"):
        export_robo4d(dataset, tmp_path / "out", height=H, width=W)


def test_long_and_large_episodes_are_brought_to_size(tmp_path: Path):
    was = an_episode(0, count=60, size=(100, 200))
    out = exported(tmp_path, was)
    (now,) = read(out, "000000")
    assert now.clip.rgb.shape == (FRAMES, H, W, 3)
    assert len(now.arms[0].trajectory.q) == FRAMES


def test_covering_keeps_the_camera_true(tmp_path: Path):
    """Points still project to the pixels that hold them, to half a pixel of the source, and colours stay with them."""
    was = an_episode(0, count=2, size=(100, 200))
    now = cover(was, 80, 120)
    camera = now.clip.camera
    assert (camera.height, camera.width) == now.clip.rgb.shape[1:3] == (80, 120)
    uv = project(camera.K, now.clip.pointmap.points[0].astype(np.float64))
    v, u = np.mgrid[:80, :120]
    assert np.abs(uv - np.stack([u, v], axis=-1)).max() <= 0.5 * 0.8 + 1e-4
    assert camera.K[0, 0] == pytest.approx(was.clip.camera.K[0, 0] * 0.8)
    assert now.robot_mask is not None
    red = now.clip.rgb[..., 0] > 160
    assert iou(red, now.robot_mask) > 0.9
    assert cover(was, 100, 200) is was
    assert off_ray_px(was.clip.camera.K, was.clip.pointmap) < 1e-3


def test_the_same_input_gives_the_same_bytes(tmp_path: Path):
    dataset = a_dataset(tmp_path / "set", an_episode(0), an_episode(1))
    a, b = (export_robo4d(dataset, tmp_path / name, height=H, width=W) for name in "ab")
    files = sorted(f.relative_to(a) for f in a.rglob("*") if f.is_file())
    assert [str(f) for f in files if (a / f).read_bytes() != (b / f).read_bytes()] == []
    with pytest.raises(ValueError, match="exists"):
        export_robo4d(dataset, a, height=H, width=W)
    export_robo4d(dataset, a, height=H, width=W, overwrite=True)


def test_the_official_video_loses_millimetres_our_store_micrometres(tmp_path: Path):
    episode = an_episode(0)
    assert official_rmse(episode) > official_rmse(episode, crf=5) > 1
    back = load(save(episode, tmp_path / "clip"))
    assert isinstance(back, Episode)
    error = np.linalg.norm(back.clip.pointmap.points - episode.clip.pointmap.points, axis=-1)
    assert np.sqrt((error**2).mean()) * 1000 < 0.1
