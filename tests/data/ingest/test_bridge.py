"""Bridge episodes: real ones, and small ones with every damage that a download can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniature import dataset, flags, flat, flip_bit, group, image, jpeg, record_starts, shard_file, steps, tensor, text

from kinema4d.data.dataset import open_dataset
from kinema4d.data.ingest import bridge
from kinema4d.data.ingest.rlds import rlds_episodes
from kinema4d.data.ingest.tfrecord import Values, index_records, read_record, records

SCHEMA = group(
    episode_metadata=group(file_path=text(), episode_id=tensor("int32"), has_image_1=tensor("bool")),
    steps=steps(
        action=tensor("float32", 7),
        language_instruction=text(),
        observation=group(
            image_0=image(16, 16, 3), image_1=image(16, 16, 3), image_3=image(16, 16, 3), state=tensor("float32", 7)
        ),
    ),
)
STATE = (0.25, 0.02, 0.15, 0.05, -0.2, 0.1, 1.0)


def episode(t: int = 4, brightness: int = 100, replaced: dict[str, Values] | None = None) -> dict[str, Values]:
    action = np.tile([0.01, 0, 0, 0, 0, 0, 1], (t, 1)) * np.arange(t)[:, None]
    return {
        "episode_metadata/file_path": [b"/nfs/bridge_data_v2/toykitchen/put_pot_in_sink/19/train/out.npy"],
        "episode_metadata/episode_id": np.array([7]),
        "episode_metadata/has_image_1": np.array([0]),  # wrong, as in files that circulate
        "steps/action": flat(action),
        "steps/language_instruction": [b"put the pot in the sink"] * t,
        "steps/observation/image_0": [jpeg(brightness + i, 16, 16) for i in range(t)],
        "steps/observation/image_1": [jpeg(50, 16, 16)] * t,
        "steps/observation/image_3": [jpeg(0, 16, 16)] * t,
        "steps/observation/state": flat(np.array(STATE) + 0.01 * np.arange(t)[:, None] * np.eye(7)[0]),
        **flags(t),
        **(replaced or {}),
    }


@pytest.fixture(autouse=True)
def _robots(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))


def reads(root: Path) -> dict[str, str]:
    """Every recording and how reading it went."""
    out = {}
    for name in bridge.recordings(root):
        try:
            out[name] = str(int(bridge.read(root, name)[0].clip.rgb[0].mean()))
        except ValueError as error:
            out[name] = str(error)
    return out


def test_all_real_episodes(data: Path):
    root = data / "bridge_rlds"
    names = bridge.recordings(root)
    assert names == [f"train/{i:05d}" for i in range(19)]
    raw = list(rlds_episodes(root / "bridge_dataset/1.0.0"))
    for name, recorded in zip(names, raw, strict=True):
        views = bridge.read(root, name)
        assert [e.view for e in views] == ["image_0", "image_1", "image_2"]  # the fourth is black
        for e in views:
            assert e.group == e.source == f"bridge/{name}"
            assert (len(e), e.clip.fps, e.camera_from, e.outcome) == (9, 5.0, "guessed", "unknown")
            assert not e.clip.pointmap.valid.any()
            assert e.arms[0].robot == "wx250s"
            assert e.arms[0].converged.all()
            assert e.commands is not None
            np.testing.assert_array_equal(e.commands.values, np.asarray(recorded.steps["action"], np.float64)[1:])
        assert views[0].text == recorded.steps["language_instruction"][0]
        assert views[0].task.startswith(("put_", "flip_"))


def test_a_command_goes_with_the_frame_at_which_it_was_given(data: Path):
    """Row i moves the tool after frame i, with a lag of half a step. Measured: 0.89 with the motion from i to i + 1 and
    with the next, 0.62 with the motion before, which would be the command's with the first row alone left out."""
    root, told, moved = data / "bridge_rlds", [], []
    for raw in rlds_episodes(root / "bridge_dataset/1.0.0"):
        commands = bridge.read(root, f"train/{raw.number:05d}")[0].commands
        assert commands is not None
        told.append(commands.values[2:7, :3])
        motion = np.diff(np.asarray(raw.steps["observation/state"], np.float64)[1:, :3], axis=0)
        moved.append([motion[2 + lag : 7 + lag] for lag in (-1, 0, 1)])
    before, here, after = (np.corrcoef(np.ravel(told), np.ravel(m))[0, 1] for m in zip(*moved, strict=True))
    assert here > 0.8
    assert after > 0.8
    assert before < 0.75


def test_an_episode_enters_a_data_set(data: Path, tmp_path: Path):
    e = bridge.read(data / "bridge_rlds", "train/00003")[1]
    stored = open_dataset(tmp_path / "set", create=True)
    stored.add("one", e)
    back = open_dataset(tmp_path / "set").load("one")
    np.testing.assert_array_equal(back.arms[0].trajectory.q, e.arms[0].trajectory.q)
    assert not back.clip.pointmap.valid.any()
    assert (back.camera_from, back.view, back.text) == ("guessed", "image_1", e.text)


def test_padding_black_cameras_and_names(tmp_path: Path):
    root = dataset(tmp_path / "1.0.0", SCHEMA, [[episode(4)]])
    (only,) = bridge.recordings(tmp_path)  # the version folder is found from the one above it
    views = bridge.read(root, only)
    assert [e.view for e in views] == ["image_0", "image_1"]
    assert [int(f.mean()) for f in views[0].clip.rgb] == [101, 102, 103]
    assert views[0].commands is not None
    np.testing.assert_allclose(views[0].commands.values[:, 0], [0.01, 0.02, 0.03], atol=1e-7)
    assert views[0].task == "put_pot_in_sink"
    assert views[0].facts["episode_id"] == 7


def test_random_access_reads_what_reading_in_order_does(tmp_path: Path):
    root = dataset(tmp_path, SCHEMA, [[episode(3), episode(5)], [], [episode(2), episode(4)]])
    for shard in range(3):
        file = shard_file(root, shard, 3)
        index = index_records(file)
        assert list(index.offsets) == record_starts(file)
        assert [read_record(index, i) for i in range(len(index.offsets))] == list(records(file))
    assert [len(bridge.read(root, n)[0]) for n in bridge.recordings(root)] == [2, 4, 1, 3]


def test_a_damaged_payload_loses_one_recording(tmp_path: Path):
    root = dataset(tmp_path, SCHEMA, [[episode(2, v) for v in (50, 100, 150)]])
    file = shard_file(root, 0, 1)
    flip_bit(file, record_starts(file)[1] + 200)
    got = reads(root)
    assert (got["train/00000"], got["train/00002"]) == ("51", "151")
    assert f"recording train/00001: {file}, record 1 at byte" in got["train/00001"]
    assert "wrong CRC of its" in got["train/00001"]
    assert "download the file again" in got["train/00001"]


@pytest.mark.parametrize("damage", ["length", "head cut", "payload cut"])
def test_a_damaged_head_loses_the_rest_of_the_shard(tmp_path: Path, damage: str):
    root = dataset(tmp_path, SCHEMA, [[episode(2, v) for v in (50, 100, 150)], [episode(2, 200)]])
    file = shard_file(root, 0, 2)
    start = record_starts(file)[1]
    if damage == "length":
        flip_bit(file, start)
    else:
        file.write_bytes(file.read_bytes()[: start + (5 if damage == "head cut" else 300)])
    got = reads(root)
    assert (got["train/00000"], got["train/00003"]) == ("51", "201")
    for name in ("train/00001", "train/00002"):
        assert f"{file}, record 1 at byte {start}" in got[name]
        assert "the rest of the file are lost" in got[name]


def test_a_missing_shard_is_missed_recording_by_recording(tmp_path: Path):
    root = dataset(tmp_path, SCHEMA, [[episode(2, 50)], [episode(2), episode(2)], [episode(2, 150)]])
    shard_file(root, 1, 3).unlink()
    got = reads(root)
    assert (got["train/00000"], got["train/00003"]) == ("51", "151")
    for name in ("train/00001", "train/00002"):
        assert got[name] == f"recording {name}: its shard {shard_file(root, 1, 3)} is missing; download it"


def test_shards_that_hold_more_or_less_than_promised(tmp_path: Path):
    root = dataset(tmp_path, SCHEMA, [[episode(2)] * 2], shardLengths=["3"])
    assert "holds only 2 records, no record 2" in reads(root)["train/00002"]
    root = dataset(tmp_path, SCHEMA, [[episode(2)] * 2], shardLengths=["1"])
    assert "holds 2 records, but dataset_info.json says 1" in reads(root)["train/00000"]


def test_shards_of_unknown_length(tmp_path: Path):
    root = dataset(tmp_path, SCHEMA, [[episode(2, 50), episode(2, 100)], [episode(2, 150)]], shardLengths=None)
    assert reads(root) == {"train/00000.00000": "51", "train/00000.00001": "101", "train/00001.00000": "151"}
    file = shard_file(root, 0, 2)
    file.write_bytes(file.read_bytes()[:-5])
    shard_file(root, 1, 2).unlink()
    got = reads(root)
    assert got["train/00000.00000"] == "51"
    assert "the rest of the file are lost" in got["train/00000.00001"]
    assert "is missing; download it" in got["train/00001.00000"]


def test_a_state_that_is_no_number_is_named(tmp_path: Path):
    state = np.tile(np.array(STATE, np.float32), (4, 1))
    state[2, 4] = np.nan
    root = dataset(tmp_path, SCHEMA, [[episode(4, replaced={"steps/observation/state": flat(state)})]])
    with pytest.raises(
        ValueError, match=r"recording train/00000 .*observation/state: row 2, column 4 \(pitch\) is nan"
    ):
        bridge.read(root, "train/00000")


@pytest.mark.parametrize(
    ("replaced", "problem"),
    [
        ({"steps/observation/image_0": [b"no image"] * 4}, "image_0, frame 0: cannot decode"),
        (
            {"steps/observation/image_0": [jpeg(9, 16, 16)] * 3 + [jpeg(9, 8, 16)]},
            r"frame 3 is \[8, 16\], the first is",
        ),
        (
            {"steps/observation/image_0": [jpeg(0, 16, 16)] * 4, "steps/observation/image_1": [jpeg(0, 16, 16)] * 4},
            "black",
        ),
        ({"steps/action": flat(np.zeros(27))}, "record 0: steps/action: expected 4 x"),
    ],
)
def test_bad_episodes(tmp_path: Path, replaced: dict[str, Any], problem: str):
    root = dataset(tmp_path, SCHEMA, [[episode(4, replaced=replaced)]])
    with pytest.raises(ValueError, match=f"recording train/00000.*{problem}"):
        bridge.read(root, "train/00000")


def test_data_sets_that_are_not_bridge(tmp_path: Path):
    other = group(steps=steps(observation=group(image=image(16, 16, 3))))
    root = dataset(tmp_path / "a", other, [[]])
    for function in (bridge.recordings, lambda r: bridge.read(r, "train/00000")):
        with pytest.raises(ValueError, match=r"not a Bridge data set of a known schema: .*lacks .*observation/state"):
            function(root)
    with pytest.raises(ValueError, match="expected one RLDS data set .* found none"):
        bridge.recordings(tmp_path / "nowhere")
    root = dataset(tmp_path / "b", SCHEMA, [[episode(2)]])
    with pytest.raises(ValueError, match="several: give one of"):
        bridge.recordings(tmp_path)
    for name in ("train/00001", "val/00000", "train/x", "00000", "train/00000.00000", "train/-1"):
        with pytest.raises(ValueError, match="has no recording"):
            bridge.read(root, name)


def test_one_step_is_padding_alone(tmp_path: Path):
    empty = {name: v[:0] if name.startswith("steps/") else v for name, v in episode(1).items()}
    root = dataset(tmp_path, SCHEMA, [[episode(1), empty]])
    with pytest.raises(ValueError, match="recording train/00001, .*record 1: it has no steps"):
        bridge.read(root, "train/00001")
    with pytest.raises(ValueError, match="has 1 steps, of which the first is padding"):
        bridge.read(root, "train/00000")
