"""Exports are whole, readable by others, and keep the metric scale."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import numpy as np
import pytest
import trimesh

from kinema4d.data import video
from kinema4d.data.export import EXPORTERS, export
from kinema4d.geometry.camera import from_depth
from kinema4d.geometry.se3 import apply, look_at
from kinema4d.types import Camera, Clip, Rollout

T, H, W = 3, 48, 64


@pytest.fixture
def clip() -> Clip:
    K = np.array([[60, 0, 31.5], [0, 60, 23.5], [0, 0, 1.0]])
    eyes = [np.array([1, 0.2 * i, 0.5]) for i in range(T)]
    Ts = np.stack([look_at(eye, np.zeros(3)) for eye in eyes])
    v, u = np.mgrid[:H, :W]
    depth = 1 + u / W + v / H / 2 + np.arange(T)[:, None, None] / 10
    valid = np.broadcast_to((u > 6) & (v < 40), depth.shape).copy()
    rgb = np.stack(np.broadcast_arrays(u * 4, v * 5, 40 * np.arange(T)[:, None, None]), -1).astype(np.uint8)
    camera = Camera(K=K, T_world_camera=Ts, height=H, width=W)
    return Clip(camera=camera, rgb=rgb, pointmap=from_depth(K, depth, valid), fps=15.0)


def listing(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_pointmap_video_decodes_to_metres(clip: Clip, tmp_path: Path) -> None:
    assert export(clip, "pointmap-mp4", tmp_path / "p.mp4") == [tmp_path / "p.mp4", tmp_path / "p.json"]
    scale = json.loads((tmp_path / "p.json").read_text())
    low, high = np.array(scale["min"]), np.array(scale["max"])
    valid = clip.pointmap.valid
    assert np.array_equal(low, clip.pointmap.points[valid].min(0))
    assert np.array_equal(high, clip.pointmap.points[valid].max(0))
    images = video.read(tmp_path / "p.mp4", count=T)
    metres = low + images / 255 * (high - low)
    # The codec is lossy, most at the border to black, so the bound is on the mean: 4 of 255 steps.
    assert (np.abs(metres - clip.pointmap.points)[valid].mean(0) < 4 / 255 * (high - low)).all()
    assert images[~valid].mean() < 30 < images[valid].mean()
    assert listing(tmp_path) == ["p.json", "p.mp4"]


def test_pointmap_video_of_nothing_is_black(clip: Clip, tmp_path: Path) -> None:
    K, none = clip.camera.K, np.zeros((T, H, W), bool)
    empty = Clip(camera=clip.camera, rgb=clip.rgb, pointmap=from_depth(K, np.ones((T, H, W)), none), fps=15.0)
    export(empty, "pointmap-mp4", tmp_path / "p.mp4")
    assert video.read(tmp_path / "p.mp4", count=T).max() == 0


@pytest.mark.parametrize("frame", ["world", "camera"])
def test_ply_is_read_by_trimesh(clip: Clip, tmp_path: Path, frame: str) -> None:
    files = export(clip, "ply", tmp_path / "cloud", frame=frame)
    assert [file.name for file in files] == ["frame_0000.ply", "frame_0001.ply", "frame_0002.ply"]
    for i, file in enumerate(files):
        cloud = trimesh.load(file)
        assert isinstance(cloud, trimesh.PointCloud)
        seen = clip.pointmap.valid[i]
        points = clip.pointmap.points[i][seen]
        if frame == "world":
            points = apply(clip.camera.T_world_camera[i], points)
        assert np.allclose(cloud.vertices, points, atol=1e-6)
        assert np.array_equal(np.asarray(cloud.colors)[:, :3], clip.rgb[i][seen])


def test_ply_defaults_to_the_world_frame(clip: Clip, tmp_path: Path) -> None:
    default, world = (export(clip, "ply", tmp_path / "d"), export(clip, "ply", tmp_path / "w", frame="world"))
    assert default[1].read_bytes() == world[1].read_bytes()


def test_rrd_holds_camera_image_and_points(clip: Clip, tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    assert export(clip, "rrd", tmp_path / "r.rrd") == [tmp_path / "r.rrd"]
    data = (tmp_path / "r.rrd").read_bytes()
    assert data[:3] == b"RRF"
    for entity in (b"world/points", b"world/camera/image", b"Pinhole"):
        assert entity in data
    assert listing(tmp_path) == ["r.rrd"]
    export(clip, "rrd", tmp_path / "small.rrd", stride=4)
    assert (tmp_path / "small.rrd").stat().st_size < len(data)


def test_rrd_without_rerun_names_the_extra(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without_rerun(name: str, *args, **kwargs):
        if name == "rerun":
            raise ImportError(name)
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_rerun)
    with pytest.raises(ValueError, match=r"pip install 'kinema4d\[rerun\]'"):
        export(clip, "rrd", tmp_path / "r.rrd")
    assert listing(tmp_path) == []


@pytest.mark.parametrize(("format", "name"), [("pointmap-mp4", "p.mp4"), ("ply", "cloud")])
def test_existing_output_needs_overwrite(clip: Clip, tmp_path: Path, format: str, name: str) -> None:
    files = export(clip, format, tmp_path / name)
    before = [file.read_bytes() for file in files]
    with pytest.raises(ValueError, match="--overwrite"):
        export(clip, format, tmp_path / name)
    files[0].write_bytes(b"old")
    export(clip, format, tmp_path / name, overwrite=True)
    assert [file.read_bytes() for file in files] == before


def test_ply_spares_a_folder_with_other_files(clip: Clip, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="did not write it"):
        export(clip, "ply", tmp_path / "work", overwrite=True)
    assert listing(tmp_path / "work") == ["notes.txt"]


def test_a_failure_leaves_nothing_behind(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path | Clip, *_: object, **__: object) -> int:
        if isinstance(path, Path):
            path.write_bytes(b"half")
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(video, "write_h264", fails)
    with pytest.raises(RuntimeError, match="disk on fire"):
        export(clip, "pointmap-mp4", tmp_path / "p.mp4")
    monkeypatch.setattr("kinema4d.data.export._cloud", fails)
    with pytest.raises(RuntimeError, match="disk on fire"):
        export(clip, "ply", tmp_path / "cloud")
    assert listing(tmp_path) == []


def test_what_export_refuses(clip: Clip, tmp_path: Path) -> None:
    for thing, format, out, options, message in [
        (clip, "gif", "a.gif", {}, "cannot export to 'gif'; the formats are pointmap-mp4, ply, rrd"),
        (clip, "ply", "a", {"frame": "moon"}, "frame must be 'world' or 'camera', got 'moon'"),
        (clip, "ply", "a", {"stride": 2}, "ply takes no option stride; its options are frame, overwrite"),
        (clip, "pointmap-mp4", "a.avi", {}, r"ends in \.mp4, got .*a\.avi"),
        (Rollout(clip=clip), "ply", "a", {}, "takes a Clip .* got Rollout"),
    ]:
        with pytest.raises(ValueError, match=message):
            export(thing, format, tmp_path / out, **options)  # type: ignore[arg-type]
    assert listing(tmp_path) == []
    assert list(EXPORTERS) == ["pointmap-mp4", "ply", "rrd"]
