"""Shards: what goes in comes out, whatever window is asked, whoever asks, and whenever packing was killed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d.cli.shards import shards as command
from kinema4d.data.batches import State, batches
from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.pack import pack
from kinema4d.data.shard_episode import resized
from kinema4d.data.shards import Shards, open_shards
from kinema4d.geometry.camera import from_depth, project
from kinema4d.types import Arm, Camera, Clip, Commands, Episode, Pointmap, Track, Trajectory

H, W, FPS = 16, 24, 10.0


def turned(angle: float, x: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0, x], [s, c, 0, 0.1], [0, 0, 1, 0.2], [0, 0, 0, 1]])


def an_episode(
    seed: int = 0, t: int = 20, h: int = H, w: int = W, *, moving: bool = False, off_rays: bool = False
) -> Episode:
    """A box that slides before a slope, seen by a fixed or a moving camera."""
    rng = np.random.default_rng(seed)
    K = np.array([[20.0 * w / 24, 0, (w - 1) / 2], [0, 20.0 * w / 24, (h - 1) / 2], [0, 0, 1]])
    Ts = np.stack([turned(0.01 * i, 0.02 * i) for i in range(t)])
    camera = Camera(K=K, T_world_camera=Ts if moving else Ts[3], height=h, width=w)
    rgb = np.broadcast_to(rng.integers(0, 255, (h // 4, w // 4, 3)).repeat(4, 0).repeat(4, 1), (t, h, w, 3)).copy()
    depth = np.broadcast_to(np.linspace(0.5, 2 + seed, h * w).reshape(h, w), (t, h, w)).copy()
    labels = np.zeros((t, h, w), np.uint16)
    for i in range(t):
        box = (slice(h // 4, h // 2), slice(i % (w - 6), i % (w - 6) + 6))
        rgb[i][box], depth[i][box], labels[i][box] = (200, 40, 3 * i), 0.4 + 0.01 * i, 2
    labels[:, -3:, :4] = 1
    valid = rng.random((t, h, w)) > 0.05
    pointmap = from_depth(K, depth.astype(np.float32), valid)
    if off_rays:
        pointmap = Pointmap(points=pointmap.points + rng.normal(0, 0.05, (t, h, w, 3)).astype(np.float32), valid=valid)
    q = rng.normal(size=(t, 3))
    arm = Arm(
        robot="k4arm",
        trajectory=Trajectory(q=q, joint_names=("a", "b", "c"), fps=FPS, T_world_base=turned(0.3, 1)),
        link_names=("base", "hand"),
        converged=rng.random(t) > 0.5,
        residual_m=rng.random(t),
        residual_rad=rng.random(t),
    )
    box = Track(
        name="box",
        Ts_world_object=Ts,
        vertices=rng.random((5, 3)).astype(np.float32),
        faces=np.array([[0, 1, 2], [2, 3, 4]], np.int32),
    )
    return Episode(
        clip=Clip(camera=camera, rgb=rgb.astype(np.uint8), pointmap=pointmap, fps=FPS),
        arms=(arm,),
        labels=labels,
        label_names=("robot", "box"),
        text="slide the box",
        outcome="success",
        source=f"made/{seed}",
        task="push",
        group=f"scene{seed}",
        view="front",
        camera_from="estimated",
        commands=Commands(values=rng.normal(size=(2 * t, 2)), names=("x", "y"), fps=2 * FPS, space="ee_delta"),
        tracks=(box, Track(name="lid", Ts_world_object=Ts[::-1].copy())),
        facts={"seed": seed, "deep": {"list": [1, 2.5, None]}},
    )


def without_depth(truth: Episode) -> Episode:
    nothing = Pointmap(points=np.zeros((len(truth), H, W, 3), np.float32), valid=np.zeros((len(truth), H, W), bool))
    bare = replace(truth, labels=None, label_names=(), arms=(), tracks=(), commands=None, facts={})
    return replace(bare, clip=replace(truth.clip, pointmap=nothing), metric=False)


EPISODES = {
    "a": an_episode(0),
    "b": an_episode(1, moving=True),
    "c": an_episode(2, off_rays=True),
    "d": without_depth(an_episode(3)),
    "e": an_episode(4, t=27),
    "f": replace(an_episode(5), label_names=("robot", "box", *(f"thing {i}" for i in range(300)))),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = open_dataset(tmp_path_factory.mktemp("set") / "set", create=True)
    for id, episode in EPISODES.items():
        made.add(id, episode)
    return made


@pytest.fixture(scope="module")
def packed(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    out = tmp_path_factory.mktemp("packed") / "all"
    pack(dataset, out, episodes_per_shard=4, workers=1)
    return open_shards(out)


def assert_same(a: Any, b: Any, at: str = "") -> None:
    """Bit for bit, down to dtypes."""
    assert type(a) is type(b), at
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, at
        np.testing.assert_array_equal(a, b, err_msg=at)
    elif is_dataclass(a):
        for field in fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name), f"{at}.{field.name}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{at}[{i}]")
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), at
        for key in a:
            assert_same(a[key], b[key], f"{at}[{key!r}]")
    else:
        assert a == b, at


# ------------------------------------------------------------------ reading


@pytest.mark.parametrize("id", EPISODES)
def test_an_episode_comes_back_as_the_store_has_it(dataset: Dataset, packed: Shards, id: str):
    assert_same(packed.read(id).episode(), dataset.load(id))


@pytest.mark.parametrize("id", EPISODES)
@pytest.mark.parametrize("frames", [slice(3, 12), slice(0, 20, 3), slice(6, 7), slice(5, None, 4), slice(-3, None)])
def test_a_window_comes_back_as_the_store_has_it(dataset: Dataset, packed: Shards, id: str, frames: slice):
    assert_same(packed.read(id, frames).episode(), dataset.load(id, frames))


@settings(max_examples=60, deadline=None)
@given(number=st.integers(0, 5), data=st.data())
def test_any_frames_are_those_of_the_whole(packed: Shards, number: int, data: st.DataObject):
    whole = packed.read(number)
    picked = data.draw(st.sets(st.integers(0, len(whole) - 1), min_size=1))
    chosen = np.array(sorted(picked))
    some = packed.read(number, chosen)
    for name in ("rgb", "codes", "valid", "labels"):
        all_of_it = getattr(whole, name)
        assert_same(getattr(some, name), None if all_of_it is None else all_of_it[chosen])
    np.testing.assert_array_equal(some.depth(), whole.depth()[chosen])
    np.testing.assert_array_equal(some.points(), whole.points()[chosen])
    np.testing.assert_array_equal(some.depth(), some.points()[..., 2])
    assert some.camera is not None
    assert whole.camera is not None
    np.testing.assert_array_equal(some.camera.poses(len(chosen)), whole.camera.poses(len(whole))[chosen])
    for a, b in zip(some.arms, whole.arms, strict=True):
        np.testing.assert_array_equal(a.trajectory.q, b.trajectory.q[chosen])
    for a, b in zip(some.tracks, whole.tracks, strict=True):
        np.testing.assert_array_equal(a.Ts_world_object, b.Ts_world_object[chosen])


def test_only_what_is_asked_for_is_read(packed: Shards):
    sample = packed.read("a", slice(0, 5), ("depth",))
    assert (sample.rgb, sample.labels, sample.camera, sample.commands) == (None, None, None, None)
    assert (sample.arms, sample.tracks) == ((), ())
    assert sample.depth().shape == (5, H, W)
    assert sample.words["text"] == "slide the box"
    with pytest.raises(ValueError, match="points need the camera"):
        sample.points()
    with pytest.raises(ValueError, match="rgb, labels, camera, arms, commands, tracks of 'a' were not read"):
        sample.episode()
    with pytest.raises(ValueError, match="ask for the part 'depth'"):
        packed.read("a", parts=("rgb",)).depth()


def test_labels_find_robot_and_tracks(packed: Shards):
    sample = packed.read("a")
    assert_same(sample.robot_mask, EPISODES["a"].robot_mask)
    assert sample.track_labels == (2, 0)
    assert sample.labels is not None
    assert sample.labels.dtype == np.uint8
    wide = packed.read("f").labels
    assert wide is not None
    assert wide.dtype == np.uint16
    assert packed.read("d").robot_mask is None
    assert [packed.read(id, slice(0, 1)).has_depth for id in "ad"] == [True, False]


def test_processes_and_threads_read_the_same(packed: Shards):
    again = pickle.loads(pickle.dumps(packed))
    assert len(pickle.dumps(packed)) < 1000
    jobs = [(id, slice(first, first + 9)) for id in packed.ids for first in (0, 4, 8)]
    with ThreadPoolExecutor(4) as pool:
        for (id, frames), sample in zip(jobs, pool.map(lambda job: again.read(*job), jobs), strict=True):
            assert_same(sample.episode(), packed.read(id, frames).episode())
    assert [sample.id for sample in packed] == list(EPISODES)  # pyright: ignore[reportGeneralTypeIssues]


def test_more_shards_than_may_be_open(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kinema4d.data.shards.OPEN", 2)
    pack(dataset, tmp_path / "s", episodes_per_shard=1, workers=1)
    shards = open_shards(tmp_path / "s")
    kept = [shards.read(i) for i in range(len(shards))]
    assert [sample.id for sample in kept] == list(EPISODES)
    assert_same(kept[0].episode(), shards.read(0).episode())


# ------------------------------------------------------------------ packing


def test_other_sizes_and_fewer_frames(dataset: Dataset, tmp_path: Path):
    pack(dataset, tmp_path / "s", height=8, width=12, frames=10, workers=1)
    shards = open_shards(tmp_path / "s")
    assert (shards.height, shards.width, set(shards.frames.tolist())) == (8, 12, {10})
    truth, small = dataset.load("a"), shards.read("a").episode()
    keep = np.rint(np.linspace(0, 19, 10)).astype(int)
    assert small.clip.rgb.shape == (10, 8, 12, 3)
    assert abs(small.clip.rgb.mean() - truth.clip.rgb[keep].mean()) < 1
    assert small.clip.fps == pytest.approx(FPS * 9 / 19)
    assert truth.labels is not None
    assert_same(small.labels, truth.labels[keep][:, 1::2, 1::2])
    depth = truth.clip.pointmap.depth[keep][:, 1::2, 1::2]
    np.testing.assert_array_equal(small.clip.pointmap.depth, depth)
    # The same point of the scene is seen at the same place of the image.
    point = np.array([[0.1, 0.05, 1.0]])
    a, b = project(truth.clip.camera.K, point), project(small.clip.camera.K, point)
    np.testing.assert_allclose((b + 0.5) * 2 - 0.5, a)
    assert small.arms[0].trajectory.q.shape == (10, 3)


def test_a_smaller_picture_is_an_average_not_a_sample():
    stripes = np.zeros((2, 48, 64, 3), np.uint8)
    stripes[:, :, ::2] = 255
    small = resized(stripes, (24, 16))
    assert small.shape == (2, 24, 16, 3)
    assert np.abs(small[:, :, 1:-1].astype(int) - 127).max() < 3
    assert resized(stripes, (48, 64)) is stripes


def test_bytes_do_not_depend_on_the_run_or_the_workers(dataset: Dataset, packed: Shards, tmp_path: Path):
    done = pack(dataset, tmp_path / "s", episodes_per_shard=4, workers=2)
    assert (done.shards, done.kept, done.episodes, done.frames) == (2, 0, 6, 127)
    names = ["index.json", "shard-00000.k4s", "shard-00001.k4s"]
    assert sorted(f.name for f in done.path.iterdir() if f.name != ".lock") == names
    for name in names:
        assert (done.path / name).read_bytes() == (packed.path / name).read_bytes(), name


def test_packing_goes_on_after_a_kill(dataset: Dataset, packed: Shards, tmp_path: Path):
    out = tmp_path / "s"
    pack(dataset, out, episodes_per_shard=2, workers=1)
    before = {f.name: f.read_bytes() for f in out.iterdir()}
    kept = out / "shard-00000.k4s"
    inode = kept.stat().st_ino
    # What a kill leaves: no index, a shard in the making; and a disk may have lost the end of a file, or turned a bit.
    (out / "index.json").unlink()
    (out / "shard-00001.k4s").write_bytes(before["shard-00001.k4s"][:-1000])
    (out / ".shard-00002.tmp-99999999.k4s").write_bytes(b"half")
    flipped = bytearray(before["shard-00002.k4s"])
    flipped[500] ^= 1
    (out / "shard-00002.k4s").write_bytes(flipped)
    with pytest.raises(ValueError, match="packing was not finished: run it again"):
        open_shards(out)
    calls: list[tuple[int, int]] = []
    done = pack(dataset, out, episodes_per_shard=2, workers=1, progress=lambda n, total: calls.append((n, total)))
    assert (done.kept, done.shards) == (1, 3)
    assert calls == [(3, 6), (4, 6), (5, 6), (6, 6)]
    assert kept.stat().st_ino == inode
    assert {f.name: f.read_bytes() for f in out.iterdir()} == before
    assert open_shards(out).verify() == []
    assert pack(dataset, out, episodes_per_shard=2, workers=1).kept == 3


def test_packing_survives_kill_9(dataset: Dataset, packed: Shards, tmp_path: Path):
    out = tmp_path / "s"
    code = (
        "import sys, time\nfrom kinema4d.data import pack as p\n"
        "if __name__ == '__main__':\n"
        "    p.pack(sys.argv[1], sys.argv[2], episodes_per_shard=4, workers=1,"
        " progress=lambda n, total: (print(n, flush=True), time.sleep(60 if n == 6 else 0)))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(dataset.root), str(out)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "6":
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    left = sorted(f.name for f in out.iterdir())
    assert left == [".lock", f".shard-00001.tmp-{process.pid}.k4s", "shard-00000.k4s"]
    assert pack(dataset, out, episodes_per_shard=4, workers=1).kept == 1
    for name in ("index.json", "shard-00000.k4s", "shard-00001.k4s"):
        assert (out / name).read_bytes() == (packed.path / name).read_bytes()


def test_a_set_that_grew_keeps_its_unchanged_shards(dataset: Dataset, tmp_path: Path):
    out = tmp_path / "s"
    pack(dataset, out, ids=["a", "b", "c"], episodes_per_shard=2, workers=1)
    with pytest.raises(ValueError, match=r"3 episodes, others than the 4 of now; pass overwrite"):
        pack(dataset, out, ids=["a", "b", "c", "d"], episodes_per_shard=2, workers=1)
    assert pack(dataset, out, ids=["a", "b", "c", "d"], episodes_per_shard=2, workers=1, overwrite=True).kept == 1
    assert open_shards(out).ids == ("a", "b", "c", "d")
    assert pack(dataset, out, ids=["a", "b"], episodes_per_shard=2, workers=1, overwrite=True).shards == 1
    assert open_shards(out).ids == ("a", "b")
    assert not (out / "shard-00001.k4s").exists()


def test_packing_refuses_what_it_cannot_do(dataset: Dataset, packed: Shards, tmp_path: Path):
    with pytest.raises(ValueError, match=r"no episode 'x', 'y', 'z' and 1 more; Dataset.ids lists all"):
        pack(dataset, tmp_path / "s", ids=["a", "x", "y", "z", "u"])
    with pytest.raises(ValueError, match="'a' is given 2 times"):
        pack(dataset, tmp_path / "s", ids=["a", "a"])
    with pytest.raises(ValueError, match="no episode to pack"):
        pack(dataset, tmp_path / "s", ids=[])
    with pytest.raises(ValueError, match="parts train, val, test, got 'training'"):
        pack(dataset, tmp_path / "s", ids="training")
    with pytest.raises(ValueError, match="run 'kinema4d data split"):
        pack(dataset, tmp_path / "s", ids="train")
    with pytest.raises(ValueError, match="give both height and width"):
        pack(dataset, tmp_path / "s", height=8)
    with pytest.raises(ValueError, match="frames must be at least 2"):
        pack(dataset, tmp_path / "s", frames=1)
    with pytest.raises(ValueError, match=r"packed with frames 49 \(now None\); pass overwrite"):
        pack(dataset, packed.path, episodes_per_shard=4, frames=None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not lose")
    with pytest.raises(ValueError, match="holds 'thesis.txt', which is no shard"):
        pack(dataset, tmp_path / "mine")
    assert not (tmp_path / "s").exists()


def test_mixed_sizes_are_refused_with_the_remedy(tmp_path: Path):
    mixed = open_dataset(tmp_path / "set", create=True)
    for id, (h, w) in {"a": (16, 24), "b": (16, 24), "c": (24, 36)}.items():
        mixed.add(id, an_episode(0, t=8, h=h, w=w))
    with pytest.raises(ValueError, match=r"16x24 \(2 episodes\), 24x36 \(1 episodes\).*--height 16 --width 24"):
        pack(mixed)
    done = pack(mixed, height=16, width=24)
    assert done.path == tmp_path / "set" / "shards" / "all-16x24"
    assert open_shards(done.path).read("c").episode().clip.rgb.shape == (8, 16, 24, 3)


def test_a_damaged_episode_stops_packing_by_name(tmp_path: Path):
    damaged = open_dataset(tmp_path / "set", create=True)
    for id in "ab":
        damaged.add(id, an_episode(0, t=8))
    file = damaged.folder("b") / "depth.mkv"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"cannot pack episode 'b': .*depth.mkv.*kinema4d data doctor"):
        pack(damaged, tmp_path / "s", workers=1)
    assert [f.name for f in (tmp_path / "s").iterdir()] == [".lock"]


# ------------------------------------------------------------------ damaged shards


@pytest.fixture
def copy(packed: Shards, tmp_path: Path) -> Path:
    for file in packed.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(file: Path, at: int, new: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[at : at + len(new)] = new
    file.write_bytes(content)


def test_damage_is_named(copy: Path):
    shard = copy / "shard-00000.k4s"
    content = shard.read_bytes()
    change(shard, 300, bytes([content[300] ^ 255]))
    with pytest.raises(ValueError, match=r"shard-00000.k4s: episode 'a' is damaged \(a CRC-32 differs\); pack again"):
        open_shards(copy).read("a")
    assert_same(open_shards(copy).read("b").id, "b")  # the others are whole
    assert [w.split(" was")[0] for w in open_shards(copy).verify()] == [str(shard)]
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="is truncated: its trailer is missing"):
        open_shards(copy).read("a")
    shard.write_bytes(content[:20])
    with pytest.raises(ValueError, match="no whole shard: it has 20 bytes"):
        open_shards(copy).read("a")
    shard.write_bytes(b"PK" + content[2:])
    with pytest.raises(ValueError, match="is not a kinema4d shard"):
        open_shards(copy).read("a")
    shard.write_bytes(content)
    change(shard, 8, b"\x09")
    with pytest.raises(ValueError, match="shard version 9, this kinema4d reads 1"):
        open_shards(copy).read("a")
    shard.write_bytes((copy / "shard-00001.k4s").read_bytes())
    with pytest.raises(ValueError, match="is not the shard that index.json lists"):
        open_shards(copy).read("a")
    shard.unlink()
    with pytest.raises(ValueError, match="is missing; pack again"):
        open_shards(copy).read("a")
    assert "is missing" in open_shards(copy).verify()[0]


def test_a_damaged_index_is_named_and_mended(dataset: Dataset, packed: Shards, copy: Path):
    index = copy / "index.json"
    good = index.read_text()
    for text, complaint in (
        (good[:50], "not readable as JSON"),
        (json.dumps({"format": "other"}), "is not of kinema4d shards"),
        (json.dumps({**json.loads(good), "version": 7}), "has version 7"),
    ):
        index.write_text(text)
        with pytest.raises(ValueError, match=complaint):
            open_shards(copy)
        with pytest.raises(ValueError, match="--overwrite"):
            pack(dataset, copy, episodes_per_shard=4, workers=1)
    assert pack(dataset, copy, episodes_per_shard=4, workers=1, overwrite=True).kept == 2
    assert index.read_text() == good


def test_bad_questions_are_answered(packed: Shards):
    for ask, complaint in (
        (lambda: packed.read("zzz"), "no episode 'zzz'; its first ids are a, b, c"),
        (lambda: packed.read(6), "has 6 episodes, 0 to 5; got 6"),
        (lambda: packed.read("a", parts=("rgb", "sound")), "unknown part 'sound'; there are rgb, depth"),
        (lambda: packed.read("a", slice(30, 40)), "at least one of the 20 frames"),
        (lambda: packed.read("a", slice(None, None, -1)), "forwards"),
        (lambda: packed.read("a", [3, 3]), "must increase"),
        (lambda: packed.read("a", [19, 20]), "within 0 to 19"),
        (lambda: packed.read("a", np.array([0.5])), "whole numbers"),
        (lambda: batches(packed, 2), "5 of 6 episodes have fewer than 27 frames, e.g. 'a' with 20; ask for at most 20"),
        (lambda: batches(packed, 7, 5), "a batch of 7 needs as many episodes"),
        (lambda: batches(packed, 2, 5, geometry="mesh"), "geometry must be one of depth, points, codes"),
        (lambda: batches(packed, 2, 5, parts=("sound",)), "unknown part"),
        (lambda: batches(packed, 0, 5), "must be positive"),
        (lambda: batches(packed, 2, 5, start=State(batch=3)), "an epoch has 3 batches"),
    ):
        with pytest.raises(ValueError, match=complaint):
            ask()


# ------------------------------------------------------------------ batches


def test_a_batch_holds_what_reading_gives(packed: Shards):
    with batches(packed, 3, 7, seed=3, epochs=1) as found:
        for batch in found:
            for i, id in enumerate(batch["id"]):
                sample = packed.read(id, batch["frames"][i])
                np.testing.assert_array_equal(batch["rgb"][i], sample.rgb)
                np.testing.assert_array_equal(batch["depth"][i], sample.depth())
                np.testing.assert_array_equal(batch["valid"][i], sample.valid)
                np.testing.assert_array_equal(batch["labels"][i], 0 if sample.labels is None else sample.labels)
                assert sample.camera is not None
                np.testing.assert_allclose(batch["K"][i], sample.camera.K, rtol=1e-6)
                np.testing.assert_allclose(batch["T_world_camera"][i], sample.camera.poses(7), atol=1e-6)
                assert_same(batch["tracks"][i], sample.tracks)
                assert batch["facts"][i] == sample.facts
                assert batch["labelled"][i] == (id != "d")
                assert batch["has_depth"][i] == (id != "d")
            assert batch["depth"].dtype == batch["K"].dtype == batch["T_world_camera"].dtype == np.float32


def test_points_and_codes(packed: Shards):
    for batch in batches(packed, 2, 7, epochs=1, geometry="points", parts=("depth",)):
        for i, id in enumerate(batch["id"]):
            np.testing.assert_array_equal(batch["points"][i], packed.read(id, batch["frames"][i]).points())
    batch = next(batches(packed, 2, 7, shuffle=False, geometry="codes", parts=("depth",)))
    metres = batch["offset"][:, None, None, None] + (batch["codes"] - 1.0) * batch["scale"][:, None, None, None]
    expected = np.stack([packed.read(id, slice(0, 7)).depth() for id in "ab"])
    np.testing.assert_array_equal(np.where(batch["valid"], metres, 0).astype(np.float32), expected)
    with pytest.raises(ValueError, match="'c' has points off the rays"):
        list(batches(packed, 3, 7, shuffle=False, epochs=1, geometry="codes"))


def signature(batch: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(batch["id"]), batch["frames"].tobytes(), batch["rgb"].tobytes()


def test_the_order_follows_from_the_seed_alone(packed: Shards):
    def run(**options: Any) -> list[tuple[Any, ...]]:
        return [signature(b) for b in batches(packed, 2, 5, parts=("rgb",), epochs=4, **options)]

    first = run(seed=1)
    assert len(first) == 12
    assert run(seed=1, threads=3, ahead=5) == first
    assert run(seed=2) != first
    epochs = [sorted(id for ids, *_ in first[3 * e : 3 * e + 3] for id in ids) for e in range(4)]
    assert epochs == [list(EPISODES)] * 4  # every episode once per epoch
    assert first[:3] != first[3:6]


@pytest.mark.parametrize("stop", range(7))
def test_going_on_is_exact(packed: Shards, stop: int):
    options: dict[str, Any] = {"seed": 5, "epochs": 2, "parts": ("rgb",), "threads": 2, "ahead": 3}
    whole = [signature(b) for b in batches(packed, 2, 5, **options)]
    begun = batches(packed, 2, 5, **options)
    head = [signature(next(begun)) for _ in range(stop)]
    state = State(**json.loads(json.dumps(vars(begun.state))))  # as a checkpoint keeps it
    begun.close()
    assert state == State(epoch=stop // 3, batch=stop % 3)
    assert head + [signature(b) for b in batches(packed, 2, 5, start=state, **options)] == whole


def test_short_episodes_are_skipped_on_request_only(packed: Shards):
    found = batches(packed, 1, 25, short="skip", epochs=2, parts=("rgb",))
    assert [b["id"] for b in found] == [["e"], ["e"]]
    ordered = batches(packed, 4, 20, shuffle=False, epochs=1, parts=())
    assert [b["id"] for b in ordered] == [["a", "b", "c", "d"]]


def test_an_error_while_reading_ahead_reaches_the_trainer(copy: Path):
    change(copy / "shard-00001.k4s", 200, b"\0" * 50)
    found = batches(open_shards(copy), 2, 5, shuffle=False, epochs=1, ahead=3)
    assert [next(found)["id"], next(found)["id"]] == [["a", "b"], ["c", "d"]]
    with pytest.raises(ValueError, match="episode 'e' is damaged"):
        next(found)
    assert found.state == State(batch=2)


# ------------------------------------------------------------------ the command


def test_the_command(dataset: Dataset, capsys: pytest.CaptureFixture[str]):
    command(dataset.root, name="mine", workers=1, json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["episodes"], said["shards"], said["kept"]) == (6, 1, 0)
    assert open_shards(said["path"]).ids == tuple(EPISODES)
    command(dataset.root, name="mine", workers=1)
    assert "packed 6 episodes, 127 frames, into 1 shards (1 were there already)" in capsys.readouterr().out
    with pytest.raises(ValueError, match="one plain folder name"):
        command(dataset.root, name="../mine")
    (dataset.root / "splits").mkdir()
    (dataset.root / "splits" / "val.txt").write_text("b\nc\n")
    command(dataset.root, split="val", height=8, width=12, workers=1)
    assert open_shards(dataset.root / "shards" / "val-8x12").ids == ("b", "c")
