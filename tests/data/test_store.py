"""What is saved comes back, and a folder is whole or not there."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_jobs import tiny

from kinema4d import files
from kinema4d.data import pointmap_file, video
from kinema4d.data.store import load, read_meta, save
from kinema4d.geometry.camera import from_depth, load_camera, off_ray_px
from kinema4d.types import Arm, Camera, Clip, Commands, Control, Episode, Pointmap, Rollout, Trajectory

T, H, W = 4, 24, 32


def camera(height: int = H, width: int = W, frames: int | None = None) -> Camera:
    K = np.array([[width * 0.9, 0.3, width / 2 - 0.7], [0, width * 0.95, height / 2 + 0.2], [0, 0, 1]])
    T_world_camera = np.eye(4) if frames is None else np.tile(np.eye(4), (frames, 1, 1))
    T_world_camera[..., 0, 3] = 0.1 if frames is None else np.arange(frames) / 7
    return Camera(K=K, T_world_camera=T_world_camera, height=height, width=width)


def clip(height: int = H, width: int = W, *, moving: bool = False, fps: float = 15.0) -> Clip:
    v, u = np.mgrid[:height, :width]
    t = np.arange(T)[:, None, None]
    depth = 0.5 + (u / width + v / height + np.sin(t + u / 5)) / 4 + 0.25
    valid = (u + v + t) % 5 > 0
    cam = camera(height, width, T if moving else None)
    rgb = np.stack(np.broadcast_arrays(u * 200 // width, v * 200 // height, 30 * t), axis=-1).astype(np.uint8)
    return Clip(camera=cam, rgb=rgb, pointmap=from_depth(cam.K, depth, valid), fps=fps)


def arm(robot: str, dof: int, seed: int) -> Arm:
    rng = np.random.default_rng(seed)
    T_world_base = np.eye(4)
    T_world_base[:3, 3] = rng.normal(size=3)
    return Arm(
        robot=robot,
        trajectory=Trajectory(
            q=rng.normal(size=(T, dof)),
            joint_names=tuple(f"j{i}" for i in range(dof)),
            fps=30000 / 1001,
            T_world_base=T_world_base,
        ),
        link_names=("base", "tip"),
        converged=rng.random(T) > 0.5,
        residual_m=rng.random(T),
        residual_rad=rng.random(T),
    )


def control(*, rgb: bool = True, labels: int = 4) -> Control:
    c = clip()
    ids = np.where(c.pointmap.valid, np.random.default_rng(3).integers(1, labels + 1, (T, H, W)), 0)
    return Control(
        camera=c.camera,
        pointmap=c.pointmap,
        link_ids=ids.astype(np.uint16),
        link_names=tuple(f"link{i}" for i in range(labels)),
        arms=(arm("panda", 7, 0), arm("ur5e", 6, 1)),
        fps=c.fps,
        rgb=c.rgb if rgb else None,
    )


def assert_same_geometry(a: Pointmap, b: Pointmap, tolerance_m: float) -> None:
    assert np.array_equal(a.valid, b.valid)
    assert b.points.dtype == np.float32
    assert np.abs(a.points - b.points)[a.valid].max() <= tolerance_m
    assert (b.points[~b.valid] == 0).all()


def assert_same_arms(a: tuple[Arm, ...], b: tuple[Arm, ...]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert (x.robot, x.link_names) == (y.robot, y.link_names)
        assert (x.trajectory.joint_names, x.trajectory.fps) == (y.trajectory.joint_names, y.trajectory.fps)
        assert np.array_equal(x.trajectory.q, y.trajectory.q)
        assert np.array_equal(x.trajectory.T_world_base, y.trajectory.T_world_base)
        for name in ("converged", "residual_m", "residual_rad"):
            assert np.array_equal(getattr(x, name), getattr(y, name))


def listing(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("size", [(H, W), (23, 32), (24, 31), (25, 37), (1, 1)])
@pytest.mark.parametrize("moving", [False, True])
def test_clip_round_trip(tmp_path: Path, size: tuple[int, int], moving: bool) -> None:
    a = clip(*size, moving=moving)
    save(a, tmp_path / "c")
    b = load(tmp_path / "c")
    assert isinstance(b, Clip)
    step = np.ptp(a.pointmap.depth[a.pointmap.valid]) / pointmap_file.DEPTH_STEPS if a.pointmap.valid.any() else 0
    furthest_ray = np.abs(a.pointmap.points[..., :2]).max() / 0.5 + 1
    assert_same_geometry(a.pointmap, b.pointmap, (0.5 * step + 1e-7) * furthest_ray)
    assert b.rgb.shape == a.rgb.shape
    assert np.abs(a.rgb.astype(int) - b.rgb).mean() < 6
    for name in ("K", "T_world_camera", "height", "width"):
        assert np.array_equal(getattr(a.camera, name), getattr(b.camera, name))
        assert np.array_equal(getattr(load_camera(tmp_path / "c" / "camera.json"), name), getattr(a.camera, name))


def test_one_metre_of_depth_comes_back_within_a_twentieth_of_a_millimetre(tmp_path: Path) -> None:
    cam = Camera(K=np.array([[40, 0, 31.5], [0, 40, 23.5], [0, 0, 1.0]]), T_world_camera=np.eye(4), height=48, width=64)
    depth = np.random.default_rng(0).uniform(0.5, 1.5, (3, 48, 64))
    pointmap = from_depth(cam.K, depth, np.ones_like(depth, bool))
    save(Clip(camera=cam, rgb=np.zeros((3, 48, 64, 3), np.uint8), pointmap=pointmap, fps=10.0), tmp_path / "c")
    b = load(tmp_path / "c")
    assert isinstance(b, Clip)
    assert_same_geometry(pointmap, b.pointmap, 0.05e-3)
    assert off_ray_px(cam.K, b.pointmap) < pointmap_file.OFF_RAY_PX
    # The step really is 1/65533 of the range, so the rounding is half of that.
    assert np.abs(b.pointmap.depth - pointmap.depth).max() == pytest.approx(0.5 / 65533, rel=0.05)


@pytest.mark.parametrize("fps", [15.0, 30000 / 1001, 7.3, 1 / 3])
def test_fps_is_exact(tmp_path: Path, fps: float) -> None:
    save(clip(fps=fps), tmp_path / "c")
    assert load(tmp_path / "c").fps == fps  # type: ignore[union-attr]


@pytest.mark.parametrize("labels", [4, 255, 256, 300])
@pytest.mark.parametrize("rgb", [True, False])
def test_control_round_trip(tmp_path: Path, labels: int, rgb: bool) -> None:
    a = control(labels=labels, rgb=rgb)
    save(a, tmp_path / "c")
    b = load(tmp_path / "c")
    assert isinstance(b, Control)
    assert b.link_ids.dtype == np.uint16
    assert np.array_equal(a.link_ids, b.link_ids)
    assert a.link_names == b.link_names
    assert_same_arms(a.arms, b.arms)
    assert_same_geometry(a.pointmap, b.pointmap, 1e-4)
    assert (b.rgb is None) == (not rgb)
    assert (tmp_path / "c" / "rgb.mp4").exists() == rgb
    assert read_meta(tmp_path / "c")["labels"]["pixel_format"] == ("gray8" if labels <= 255 else "gray16le")


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, None])
def test_episode_round_trip(tmp_path: Path, dtype: type | None) -> None:
    labels = None if dtype is None else control().link_ids.astype(dtype)
    a = Episode(
        clip=clip(moving=True),
        arms=(arm("so101", 6, 2),) if dtype is np.uint8 else (),
        labels=labels,
        label_names=("a", "b", "c", "d") if dtype is not None else (),
        text='put the "cup" on the Tisch über dir',
        outcome="failure",
        source="droid/0",
    )
    save(a, tmp_path / "e")
    b = load(tmp_path / "e")
    assert isinstance(b, Episode)
    assert (a.text, a.outcome, a.source, a.label_names) == (b.text, b.outcome, b.source, b.label_names)
    assert_same_arms(a.arms, b.arms)
    if labels is None:
        assert b.labels is None
    else:
        assert b.labels is not None
        assert b.labels.dtype == dtype
        assert np.array_equal(labels, b.labels)


def test_rollout_keeps_its_provenance_apart_from_that_of_the_file(tmp_path: Path) -> None:
    a = Rollout(clip=clip(), provenance={"seed": 3, "config": {"steps": [1, 2.5]}, "checkpoint": None})
    save(a, tmp_path / "r", provenance={"command": ("kinema4d", "simulate"), "size": np.int64(7), "at": tmp_path})
    b = load(tmp_path / "r")
    assert isinstance(b, Rollout)
    assert b.provenance == a.provenance
    written = read_meta(tmp_path / "r")["provenance"]
    assert written["command"] == ["kinema4d", "simulate"]
    assert written["size"] == 7
    assert written["at"] == str(tmp_path)
    assert written["kinema4d_version"]


def test_points_off_their_rays_keep_x_and_y(tmp_path: Path) -> None:
    a = clip()
    rng = np.random.default_rng(0)
    points = a.pointmap.points + rng.normal(0, 0.02, a.pointmap.points.shape).astype(np.float32)
    points[0, 0, 1, 2] = -0.3  # a generated point may even lie behind the camera
    points[~a.pointmap.valid] = np.nan
    a = replace(a, pointmap=Pointmap(points=points, valid=a.pointmap.valid))
    save(a, tmp_path / "c")
    b = load(tmp_path / "c")
    assert isinstance(b, Clip)
    span = np.ptp(points[a.pointmap.valid], axis=0).max()
    assert np.array_equal(a.pointmap.valid, b.pointmap.valid)
    assert np.abs(points - b.pointmap.points)[a.pointmap.valid].max() < 0.51 * span / pointmap_file.POINT_STEPS + 1e-7
    assert "depth.mkv" not in listing(tmp_path / "c")


@pytest.mark.parametrize(("shift_px", "file"), [(0.0005, "depth.mkv"), (0.05, "points.mkv")])
def test_a_twentieth_of_a_pixel_off_is_kept(tmp_path: Path, shift_px: float, file: str) -> None:
    a = clip()
    points = a.pointmap.points.copy()
    points[-1, 3, 5, 0] += shift_px * points[-1, 3, 5, 2] / a.camera.K[0, 0]
    a = replace(a, pointmap=Pointmap(points=points, valid=a.pointmap.valid))
    assert a.pointmap.valid[-1, 3, 5]
    save(a, tmp_path / "c")
    assert file in listing(tmp_path / "c")
    b = load(tmp_path / "c")
    assert isinstance(b, Clip)
    assert_same_geometry(a.pointmap, b.pointmap, 1e-4)


@pytest.mark.parametrize(("depth", "valid"), [(0.0, False), (1.25, True)])
def test_empty_and_flat_pointmaps(tmp_path: Path, depth: float, valid: bool) -> None:
    cam = camera()
    pointmap = from_depth(cam.K, np.full((T, H, W), depth), np.full((T, H, W), valid))
    a = replace(clip(), pointmap=pointmap)
    save(a, tmp_path / "c")
    b = load(tmp_path / "c")
    assert isinstance(b, Clip)
    assert np.array_equal(b.pointmap.valid, pointmap.valid)
    assert np.abs(b.pointmap.points - pointmap.points).max() < 1e-6


def test_equal_clips_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(control(), tmp_path / name)
    assert listing(tmp_path / "a") == listing(tmp_path / "b")
    for name in listing(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


# ---------------------------------------------------------------------- video files


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (17, 31), (64, 1)])
@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, ()), (np.uint16, ()), (np.uint16, (3,))])
def test_ffv1_is_lossless(tmp_path: Path, shape: tuple[int, int], dtype: type, channels: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, np.iinfo(dtype).max + 1, (3, *shape, *channels)).astype(dtype)
    assert video.write_ffv1(tmp_path / "v.mkv", images, Fraction(15)) == 3
    back = video.read(tmp_path / "v.mkv", count=3)
    assert back.dtype == dtype
    assert np.array_equal(images, back)


@pytest.mark.parametrize("size", [(32, 32), (33, 35)])
def test_h264_keeps_plain_colours(tmp_path: Path, size: tuple[int, int]) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (10, 1, 1, 3)).astype(np.uint8)
    images = np.tile(colours, (1, *size, 1))
    video.write_h264(tmp_path / "v.mp4", images, Fraction(30000, 1001))
    back = video.read(tmp_path / "v.mp4", count=10)
    assert back.shape == images.shape
    assert np.abs(back.astype(int) - images).max() <= 2


@pytest.mark.parametrize("window", [slice(2, 5), slice(None, None, 3), slice(-2, None), slice(0, 1)])
def test_a_window_of_frames(tmp_path: Path, window: slice) -> None:
    images = np.arange(9, dtype=np.uint16)[:, None, None] * np.ones((1, 4, 6), np.uint16)
    video.write_ffv1(tmp_path / "v.mkv", images, Fraction(15))
    assert np.array_equal(video.read(tmp_path / "v.mkv", count=9, frames=window), images[window])


def test_frame_rates() -> None:
    assert video.frame_rate(15.0) == 15
    assert video.frame_rate(30000 / 1001) == Fraction(30000, 1001)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="fps must be"):
            video.frame_rate(bad)


def test_what_a_video_refuses(tmp_path: Path) -> None:
    for images, message in [
        (np.zeros((2, 4, 4), np.float32), "float32"),
        (np.zeros((2, 4, 4, 2), np.uint16), r"\[4, 4, 2\]"),
        (np.zeros((0, 4, 4), np.uint16), "at least one frame"),
        ([np.zeros((4, 4), np.uint8), np.zeros((4, 6), np.uint8)], "frame 1 is"),
    ]:
        with pytest.raises(ValueError, match=message):
            video.write_ffv1(tmp_path / "v.mkv", images, Fraction(15))


# ---------------------------------------------------------------------- whole or not at all


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], existing: bool
) -> None:
    if existing:
        save(clip(fps=9.0), tmp_path / "c")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    encode = video.write_ffv1

    def fails(path: Path, images: object, fps: Fraction) -> int:
        if path.name != "labels.mkv":
            return encode(path, images, fps)  # type: ignore[arg-type]
        path.write_bytes(b"half")
        assert (path.parent / "depth.mkv").stat().st_size > 0
        raise error("disk on fire")

    monkeypatch.setattr(video, "write_ffv1", fails)
    with pytest.raises(error, match="disk on fire"):
        save(control(), tmp_path / "c", overwrite=existing)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert listing(tmp_path) == (["c"] if existing else [])


@pytest.mark.parametrize("can_exchange", [True, False])
def test_overwrite_replaces_a_clip_folder_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    save(control(), tmp_path / "c")
    with pytest.raises(ValueError, match="--overwrite"):
        save(clip(), tmp_path / "c")
    assert isinstance(load(tmp_path / "c"), Control)
    save(clip(), tmp_path / "c", overwrite=True)
    assert isinstance(load(tmp_path / "c"), Clip)
    assert listing(tmp_path) == ["c"]
    assert "labels.mkv" not in listing(tmp_path / "c")


@pytest.mark.skipif(sys.platform != "linux", reason="one-step exchange of folders is a Linux call")
def test_the_folder_never_vanishes_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(clip(), tmp_path / "c")
    moves = []
    monkeypatch.setattr(Path, "rename", lambda *a: moves.append(a))
    save(clip(), tmp_path / "c", overwrite=True)
    assert moves == []  # one exchange, no rename away
    assert isinstance(load(tmp_path / "c"), Clip)
    assert listing(tmp_path) == ["c"]


def test_overwrite_spares_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "meta.json").write_text('{"format": "something else"}')
    (tmp_path / "file").write_text("text")
    before = listing(tmp_path)
    for name in ("empty", "work", "other", "file"):
        with pytest.raises(ValueError, match="--overwrite"):
            save(clip(), tmp_path / name)
    for name in ("work", "other", "file"):
        with pytest.raises(ValueError, match="did not write it"):
            save(clip(), tmp_path / name, overwrite=True)
    assert (tmp_path / "work" / "thesis.tex").read_text() == "years"
    save(clip(), tmp_path / "empty", overwrite=True)
    assert isinstance(load(tmp_path / "empty"), Clip)
    assert listing(tmp_path) == before


def test_a_link_is_followed(tmp_path: Path) -> None:
    save(clip(fps=9.0), tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save(clip(), tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert read_meta(tmp_path / "real")["fps"] == 15.0


def test_parents_are_made_and_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    save(clip(), tmp_path / "a" / "b" / "c")
    assert listing(tmp_path / "a" / "b") == ["c"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write to .*file"):
        save(clip(), tmp_path / "file" / "c")


# ---------------------------------------------------------------------- refusals


def _labelled(ids: int) -> Control:
    return replace(control(), link_ids=np.full((T, H, W), ids, np.uint16))


def _with_point(value: float) -> Clip:
    points = clip().pointmap.points.copy()
    points[1] = value
    return replace(clip(), pointmap=Pointmap(points=points, valid=np.ones((T, H, W), bool)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _labelled(5), "range from 5 to 5, allowed are 0 to 4"),
        (lambda: _with_point(np.nan), "non-finite point in frame 1"),
        (lambda: _with_point(np.inf), "non-finite point in frame 1"),
        (lambda: replace(clip(), fps=0.0), "fps"),
        (lambda: replace(clip(), camera=camera(frames=T + 1)), "5 poses but the sequence has 4 frames"),
        (lambda: replace(control(), camera=camera(H, W + 1)), "camera is 24x33"),
        (lambda: Episode(clip=clip(), labels=np.zeros((T - 1, H, W), np.uint16)), r"labels is \[3, 24, 32\]"),
        (lambda: Rollout(clip=clip(), provenance={"a": {"loss": float("nan")}}), r"\['a'\]\['loss'\]"),
        (lambda: Rollout(clip=clip(), provenance={"f": object()}), r"\['f'\]"),
    ],
)
def test_what_cannot_be_loaded_is_not_saved(tmp_path: Path, make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        save(make(), tmp_path / "c")
    assert listing(tmp_path) == []


def _edit(folder: Path, **changes: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | changes))


def _arrays(folder: Path, **changes: np.ndarray | None) -> None:
    arrays = dict(np.load(folder / "trajectory.npz")) | changes
    kept: dict[str, Any] = {name: array for name, array in arrays.items() if array is not None}
    np.savez(folder / "trajectory.npz", **kept)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    file.write_bytes(data)


DAMAGE = {
    "no meta": (lambda f: (f / "meta.json").unlink(), "no meta.json"),
    "bad json": (lambda f: (f / "meta.json").write_text("{"), "meta.json is not readable as JSON"),
    "binary meta": (lambda f: (f / "meta.json").write_bytes(b"\xff\xfe\x00"), "meta.json is not readable as JSON"),
    "list meta": (lambda f: (f / "meta.json").write_text("[]"), "meta.json is not of a kinema4d clip"),
    "NaN fps": (lambda f: _edit(f, fps=float("nan")), "meta.json.*NaN"),
    "version": (lambda f: _edit(f, version=2), "format version 2, this kinema4d reads 1"),
    "kind": (lambda f: _edit(f, kind="film"), "'kind' must be one of control, clip, rollout, episode, got 'film'"),
    "text frames": (lambda f: _edit(f, frames="4"), "'frames' must be a int, got '4'"),
    "no frames": (lambda f: _edit(f, frames=0), "'frames' must be positive"),
    "more frames": (lambda f: _edit(f, frames=T + 1), "rgb.mp4.* expected 5 frames, found 4"),
    "fewer frames": (lambda f: _edit(f, frames=T - 1), "rgb.mp4.* expected 3 frames, found 4"),
    "width": (lambda f: _edit(f, width=W + 2), "camera.json is 24x32 but meta.json says 24x34"),
    "no geometry": (lambda f: _edit(f, depth=None), "'depth' must be a dict"),
    "bad scale": (lambda f: _edit(f, depth={"scale": -1, "offset": 0}), "positive 'scale'"),
    "no scale": (lambda f: _edit(f, depth={"offset": 0}), "needs numbers 'scale' and 'offset'"),
    "no labels": (lambda f: _edit(f, labels=None), "needs 'labels'"),
    "label names": (lambda f: _edit(f, labels={"names": ["a"], "pixel_format": "gray8"}), "labels.mkv"),
    "arms": (lambda f: _edit(f, arms=[3]), "each of 'arms' must be an object"),
    "rgb kind": (lambda f: _edit(f, kind="clip", rgb=None), "only a control signal may lack 'rgb'"),
    "no camera": (lambda f: (f / "camera.json").unlink(), "camera.json"),
    "bad camera": (lambda f: (f / "camera.json").write_text('{"K": 1}'), "camera.json"),
    **{
        f"{what} {name}": (lambda f, name=name, damage=damage: damage(f / name), f"{name}.*{message}")
        for name in ("rgb.mp4", "depth.mkv", "labels.mkv")
        for what, damage, message in [
            ("missing", Path.unlink, "missing: expected a video of 4 frames, found none"),
            ("truncated", _truncate, r"expected 4 frames, found \d"),
            ("empty", lambda p: p.write_bytes(b""), "expected 4 frames, found 0"),
            ("garbage", lambda p: p.write_bytes(b"garbage" * 99), "expected 4 frames, found 0"),
            ("flipped", _flip, ""),
        ]
    },
    "swapped videos": (lambda f: (f / "labels.mkv").replace(f / "depth.mkv"), "depth.mkv holds uint8|labels.mkv"),
    "no trajectory": (lambda f: (f / "trajectory.npz").unlink(), "trajectory.npz is missing.* 2 arms"),
    "truncated trajectory": (lambda f: _truncate(f / "trajectory.npz"), "trajectory.npz is damaged"),
    "flipped trajectory": (lambda f: _flip(f / "trajectory.npz"), "trajectory.npz"),
    "npy trajectory": (lambda f: np.save((f / "trajectory.npz").open("wb"), np.eye(3)), "trajectory.npz is damaged"),
    "pickle": (lambda f: _arrays(f, arm0_q=np.array([{}], object)), "trajectory.npz is damaged.*allow_pickle"),
    "NaN q": (lambda f: _arrays(f, arm1_q=np.full((T, 6), np.nan)), "arm1_q has a non-finite value"),
    "short q": (lambda f: _arrays(f, arm1_q=np.zeros((2, 6))), r"arm1_q must be floats \[4, 6\], found .*\[2, 6\]"),
    "lost q": (lambda f: _arrays(f, arm0_q=None), "arm0_q must be .*found nothing"),
    "sheared base": (lambda f: _arrays(f, arm0_T_world_base=np.ones((4, 4))), "trajectory.npz, arm 0.*orthonormal"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = save(control(), tmp_path_factory.mktemp("saved") / "c")
    return {name: (folder / name).read_bytes() for name in listing(folder)}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(tmp_path: Path, saved: dict[str, bytes], case: str) -> None:
    for name, content in saved.items():
        (tmp_path / name).write_bytes(content)
    load(tmp_path)
    damage, message = DAMAGE[case]
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_not_a_clip_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing is missing: expected a clip folder"):
        load(tmp_path / "missing")
    (tmp_path / "f").write_text("")
    with pytest.raises(ValueError, match="f is a file: expected a clip folder"):
        load(tmp_path / "f")
    with pytest.raises(ValueError, match="is not a kinema4d clip folder"):
        load(tmp_path)


# ---------------------------------------------------------------------- what only episodes have


def full_episode(frames: int = 12, rate: float = 3.0) -> Episode:
    return tiny(seed=3, frames=frames, commands=replace(_told(frames, rate), fps=10.0 * rate), metric=False)


def _told(frames: int, rate: float) -> Commands:
    """Command i says when it was given, in frames."""
    times = np.arange(round(frames * rate)) / rate
    return Commands(values=times[:, None], names=("t",), fps=1.0, space="joint_position", convention="droid")


def test_an_episode_keeps_everything(tmp_path: Path) -> None:
    a = replace(full_episode(), camera_from="estimated", facts={"seed": 3, "deep": {"list": (1, None, True, 0.1)}})
    save(a, tmp_path / "e")
    b = load(tmp_path / "e")
    assert isinstance(b, Episode)
    for name in ("text", "outcome", "source", "task", "group", "view", "camera_from", "metric", "label_names"):
        assert getattr(a, name) == getattr(b, name), name
    assert b.facts == {"seed": 3, "deep": {"list": [1, None, True, 0.1]}}
    assert a.commands is not None
    assert b.commands is not None
    for name in ("names", "fps", "space", "convention"):
        assert getattr(a.commands, name) == getattr(b.commands, name), name
    assert np.array_equal(a.commands.values, b.commands.values)
    assert [track.name for track in b.tracks] == ["cup", "lid"]
    for mine, theirs in zip(a.tracks, b.tracks, strict=True):
        assert np.array_equal(mine.Ts_world_object, theirs.Ts_world_object)
    assert a.tracks[0].vertices is not None
    assert b.tracks[0].vertices is not None
    assert np.array_equal(a.tracks[0].vertices, b.tracks[0].vertices)
    assert b.tracks[0].faces is not None
    assert np.array_equal(b.tracks[0].faces, [[0, 1, 2]])
    assert b.tracks[1].vertices is None


def test_an_episode_of_the_first_release_still_loads(tmp_path: Path) -> None:
    save(tiny(commands=None, tracks=(), facts={}), tmp_path / "e")
    meta = json.loads((tmp_path / "e" / "meta.json").read_text())
    for key in ("task", "group", "view", "camera_from", "metric", "facts", "camera", "trajectory"):
        del meta[key]
    (tmp_path / "e" / "meta.json").write_text(json.dumps(meta))
    b = load(tmp_path / "e")
    assert isinstance(b, Episode)
    assert (b.task, b.camera_from, b.metric, b.facts, b.commands, b.tracks) == ("", "exact", True, {}, None, ())


@pytest.mark.parametrize("facts", [{"x": float("nan")}, {"x": object()}, {"x": [1, {"y": float("inf")}]}])
def test_facts_that_json_cannot_hold_are_refused_by_name(tmp_path: Path, facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Episode.facts\['x'\]"):
        save(tiny(facts=facts), tmp_path / "e")
    assert listing(tmp_path) == []


@pytest.mark.parametrize("window", [slice(0, 1), slice(3, 7), slice(-2, None), slice(None, None, 3), slice(1, 12, 4)])
@pytest.mark.parametrize("moving", [False, True])
def test_a_window_of_an_episode_is_that_part_of_it(tmp_path: Path, window: slice, moving: bool) -> None:
    a = full_episode()
    if moving:
        a = replace(
            a, clip=replace(a.clip, camera=replace(a.clip.camera, T_world_camera=camera(frames=12).T_world_camera))
        )
    save(a, tmp_path / "e")
    b, part = load(tmp_path / "e"), load(tmp_path / "e", frames=window)
    assert isinstance(b, Episode)
    assert isinstance(part, Episode)
    assert np.array_equal(part.clip.rgb, b.clip.rgb[window])
    assert np.array_equal(part.clip.pointmap.points, b.clip.pointmap.points[window])
    assert np.array_equal(part.clip.pointmap.valid, b.clip.pointmap.valid[window])
    assert np.array_equal(part.clip.camera.poses(len(part)), b.clip.camera.poses(12)[window])
    assert b.labels is not None
    assert part.labels is not None
    assert np.array_equal(part.labels, b.labels[window])
    assert np.array_equal(part.tracks[0].Ts_world_object, b.tracks[0].Ts_world_object[window])
    assert np.array_equal(part.arms[0].trajectory.q, b.arms[0].trajectory.q[window])
    assert part.clip.fps == part.arms[0].trajectory.fps == b.clip.fps / (window.step or 1)


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0, 3.0, 10 / 3, 33.333333333333336 / 16.666666666666668])
@pytest.mark.parametrize("window", [slice(0, 1), slice(3, 7), slice(6, 7), slice(0, 12, 3), slice(1, 12, 4)])
def test_a_window_has_the_commands_that_were_given_during_it(tmp_path: Path, rate: float, window: slice) -> None:
    save(full_episode(rate=rate), tmp_path / "e")
    part = load(tmp_path / "e", frames=window)
    assert isinstance(part, Episode)
    assert part.commands is not None
    frames, times = np.arange(12)[window], part.commands.values[:, 0]
    assert frames[0] - 1 / rate < times[0] + 1e-6  # the one in force at the first frame, and none before it
    assert times[0] <= frames[0] + 1e-6
    assert times[-1] < frames[-1] + 1 / rate - 1e-6
    last = np.arange(round(12 * rate))[-1] / rate
    assert times[-1] >= min(frames[-1], last) - 1e-6
    assert np.allclose(np.diff(times), 1 / rate)


@pytest.mark.parametrize("window", [slice(12, 15), slice(5, 5), slice(7, 3), slice(None, None, -1)])
def test_an_empty_or_backward_window_is_refused(tmp_path: Path, window: slice) -> None:
    save(full_episode(), tmp_path / "e")
    with pytest.raises(ValueError, match="at least one of the 12 frames, forwards"):
        load(tmp_path / "e", frames=window)


def _npz(file: Path, **changes: np.ndarray) -> None:
    arrays: dict[str, Any] = dict(np.load(file)) | changes
    np.savez(file, **arrays)


def _told_otherwise(folder: Path, key: str, **changes: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    _edit(folder, **{key: meta[key] | changes})


EPISODE_DAMAGE = {
    **{f"no {name}": (lambda f, name=name: (f / name).unlink(), f"{name} is missing") for name in ("commands.npz", "tracks.npz")},
    **{
        f"{what} {name}": (lambda f, name=name, damage=damage: damage(f / name), name)
        for name in ("commands.npz", "tracks.npz", "trajectory.npz")
        for what, damage in {"truncated": _truncate, "flipped": _flip}.items()
    },
    "other camera": (
        lambda f: (f / "camera.json").write_text((f / "camera.json").read_text().replace("20.0", "21.0")),
        "camera.json was changed after it was saved",
    ),
    "other motion": (
        lambda f: _npz(f / "trajectory.npz", arm0_q=np.zeros((12, 2))), "trajectory.npz was changed after it was saved"
    ),
    "other commands": (lambda f: _npz(f / "commands.npz", values=np.zeros((36, 1))), "commands.npz was changed"),
    "NaN commands": (lambda f: _npz(f / "commands.npz", values=np.full((36, 1), np.nan)), "values has a non-finite"),
    "wide commands": (lambda f: _npz(f / "commands.npz", values=np.zeros((36, 2))), r"values must be floats \['any', 1\]"),
    "command rate": (lambda f: _told_otherwise(f, "commands", fps=0.0), "meta.json: commands' fps must be positive"),
    "short tracks": (
        lambda f: _npz(f / "tracks.npz", Ts_world_object=np.zeros((2, 5, 4, 4))),
        r"tracks.npz: Ts_world_object must be floats \[2, 12, 4, 4\], found .*\[2, 5, 4, 4\]",
    ),
    "sheared tracks": (
        lambda f: _npz(f / "tracks.npz", Ts_world_object=np.ones((2, 12, 4, 4))), "tracks.npz: track 'cup'.*orthonormal"
    ),
    "float faces": (lambda f: _npz(f / "tracks.npz", faces0=np.zeros((1, 3))), "faces0 must be whole numbers"),
    "track names": (lambda f: _told_otherwise(f, "tracks", names=["cup"]), "'tracks' has 1 names but 2 surfaces"),
    "facts": (lambda f: _edit(f, facts=[1]), "'facts' must be a dict"),
    "outcome": (lambda f: _edit(f, outcome="maybe"), "meta.json: episode outcome must be one of"),
    "task": (lambda f: _edit(f, task=7), "'task' must be a str"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved_episode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(full_episode(), tmp_path_factory.mktemp("saved") / "e")


@pytest.mark.parametrize("case", EPISODE_DAMAGE)
def test_damage_to_an_episode_is_named(tmp_path: Path, saved_episode: Path, case: str) -> None:
    folder = Path(shutil.copytree(saved_episode, tmp_path / "e"))
    damage, message = EPISODE_DAMAGE[case]
    damage(folder)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_every_file_has_its_hash(saved_episode: Path) -> None:
    meta = read_meta(saved_episode)
    hashed = {entry["file"] for entry in meta.values() if isinstance(entry, dict) and "sha256" in entry}
    assert hashed == set(listing(saved_episode)) - {"meta.json"}
