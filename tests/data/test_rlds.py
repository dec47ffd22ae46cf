"""RLDS data sets read without TensorFlow: real Bridge episodes, and small ones made from published schemas."""

from __future__ import annotations

import io
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kinema4d.data.ingest.rlds import RldsEpisode, dataset_info, decode_image, features, rlds_episodes
from kinema4d.data.ingest.tfrecord import Values, encode_example, write_records

BRIDGE = "bridge_rlds/bridge_dataset/1.0.0"
CLASSES = "tensorflow_datasets.core.features."


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    dimensions = {"dimensions": [str(n) for n in shape]} if shape else {}
    content = {"shape": dimensions, "dtype": dtype, "encoding": encoding}
    return {"pythonClassName": CLASSES + "tensor_feature.Tensor", "tensor": content}


def image(*shape: int) -> dict[str, Any]:
    content = {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": "uint8", "encodingFormat": "jpeg"}
    return {"pythonClassName": CLASSES + "image_feature.Image", "image": content}


def text() -> dict[str, Any]:
    return {"pythonClassName": CLASSES + "text_feature.Text", "text": {}}


def group(**children: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": CLASSES + "features_dict.FeaturesDict", "featuresDict": {"features": children}}


def sequence(feature: dict[str, Any]) -> dict[str, Any]:
    content = {"feature": feature, "length": "-1"}
    return {"pythonClassName": CLASSES + "dataset_feature.Dataset", "sequence": content}


BOOL = tensor("bool")
FLAGS = {"is_first": BOOL, "is_last": BOOL, "is_terminal": BOOL}

RT1 = group(
    aspects=group(success=BOOL, undesirable=BOOL),
    attributes=group(task_family=tensor("int64"), task_family_name=tensor("string")),
    steps=sequence(
        group(
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
                workspace_bounds=tensor("float32", 3, 3),
            ),
            reward=tensor("float32"),
            **FLAGS,
        )
    ),
)
"""fractal20220817_data, without some observations of the same kinds."""

DROID = group(
    episode_metadata=group(file_path=text(), recording_folderpath=text()),
    steps=sequence(
        group(
            action=tensor("float64", 7),
            action_dict=group(
                gripper_position=tensor("float64", 1),
                joint_position=tensor("float64", 7),
                joint_velocity=tensor("float64", 7),
            ),
            discount=tensor("float32"),
            language_instruction=text(),
            language_instruction_2=text(),
            observation=group(
                cartesian_position=tensor("float64", 6),
                exterior_image_1_left=image(180, 320, 3),
                gripper_position=tensor("float64", 1),
                joint_position=tensor("float64", 7),
                wrist_image_left=image(180, 320, 3),
            ),
            **FLAGS,
        )
    ),
)
"""droid 1.0.1, without some actions of the same kinds."""


def encoded(value: int, height: int = 180, width: int = 320, mode: str = "RGB", form: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (width, height), (value,) * len(mode) if len(mode) > 1 and mode != "I;16" else value).save(
        out, form
    )
    return out.getvalue()


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def flags(t: int) -> dict[str, Values]:
    ends = [np.eye(t, dtype=np.int64)[k] for k in (0, -1, -1)]
    return dict(zip([f"steps/{n}" for n in FLAGS], ends, strict=True))


def rt1_episode(t: int) -> dict[str, Values]:
    action, observation = "steps/action/", "steps/observation/"
    sizes = {
        action + "base_displacement_vector": 2,
        action + "base_displacement_vertical_rotation": 1,
        action + "gripper_closedness_action": 1,
        action + "rotation_delta": 3,
        action + "world_vector": 3,
        observation + "base_pose_tool_reached": 7,
        observation + "gripper_closed": 1,
        observation + "natural_language_embedding": 512,
        observation + "workspace_bounds": 9,
        "steps/reward": 1,
    }
    return {
        "aspects/success": np.array([1]),
        "aspects/undesirable": np.array([0]),
        "attributes/task_family": np.array([-3]),
        "attributes/task_family_name": [b"pick"],
        **{name: floats(t * size) for name, size in sizes.items()},
        action + "terminate_episode": np.tile([0, 1, 0], t),
        observation + "image": [encoded(10 * k, 256, 320) for k in range(t)],
        observation + "natural_language_instruction": ["pick the café can".encode()] * t,
        **flags(t),
    }


def droid_episode(t: int) -> dict[str, Values]:
    sizes = {
        "action": 7,
        "action_dict/gripper_position": 1,
        "action_dict/joint_position": 7,
        "action_dict/joint_velocity": 7,
        "discount": 1,
        "observation/cartesian_position": 6,
        "observation/gripper_position": 1,
        "observation/joint_position": 7,
    }
    return {
        "episode_metadata/file_path": [b"gs://somewhere/trajectory.h5"],
        "episode_metadata/recording_folderpath": [b""],
        **{f"steps/{name}": floats(t * size) for name, size in sizes.items()},
        "steps/language_instruction": [b"close the drawer"] * t,
        "steps/language_instruction_2": [b""] * t,
        "steps/observation/exterior_image_1_left": [encoded(50)] * t,
        "steps/observation/wrist_image_left": [encoded(90)] * t,
        **flags(t),
    }


def dataset(folder: Path, schema: dict[str, Any], shards: list[list[dict[str, Values]]], **split: Any) -> Path:
    """Write a data set as TFDS lays it out."""
    folder.mkdir(exist_ok=True)
    entry = {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": "train",
        "numBytes": "1",
        "shardLengths": [str(len(s)) for s in shards],
        **split,
    }
    info = {
        "fileFormat": "tfrecord",
        "name": "mini",
        "splits": [{k: v for k, v in entry.items() if v}],
        "version": "0.1.0",
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(schema))
    for i, shard in enumerate(shards):
        name = f"mini-train.tfrecord-{i:05d}-of-{len(shards):05d}"
        write_records(folder / name, [encode_example(e) for e in shard], overwrite=True)
    return folder


def only_episode(folder: Path, **options: Any) -> RldsEpisode:
    (episode,) = rlds_episodes(folder, **options)
    return episode


# ---- Bridge, as recorded ----


@pytest.fixture(scope="module")
def bridge(data: Path) -> list[RldsEpisode]:
    return list(rlds_episodes(data / BRIDGE))


def test_bridge_says_what_it_holds(data: Path):
    info = dataset_info(data / BRIDGE)
    assert (info.name, info.version, list(info.splits)) == ("bridge_dataset", "1.0.0", ["train"])
    assert info.splits["train"].shards == ("bridge_dataset-train.tfrecord-00000-of-00001",)
    assert info.splits["train"].lengths == (19,)
    declared = features(data / BRIDGE)
    state, picture = declared["steps/observation/state"], declared["steps/observation/image_0"]
    assert (state.kind, state.shape, state.dtype, state.sequences) == ("tensor", (7,), "float32", 1)
    assert (picture.kind, picture.shape) == ("image", (64, 64, 3))
    assert declared["episode_metadata/episode_id"].sequences == 0


def test_bridge_episodes(bridge: list[RldsEpisode]):
    assert [e.number for e in bridge] == list(range(19))
    for e in bridge:
        assert e.length == 10
        assert all(len(v) == 10 for v in e.steps.values())
        state, action = e.steps["observation/state"], e.steps["action"]
        assert isinstance(state, np.ndarray)
        assert isinstance(action, np.ndarray)
        assert state.shape == action.shape == (10, 7)
        assert state.dtype == action.dtype == np.float32
        # Metres in front of a WidowX, radians, and a gripper between closed and open.
        assert (state[:, :3] > [0.1, -0.3, 0.0]).all()
        assert (state[:, :3] < [0.5, 0.3, 0.4]).all()
        assert np.abs(state[:, 3:6]).max() < np.pi
        assert (state[:, 6] > 0).all()
        assert (state[:, 6] < 1.1).all()
        # The first action does not move: it is no command, so users drop it. Its gripper is open, not zero.
        assert np.abs(action[0, :6]).max() < 1e-6
        assert action[0, 6] == 1
        assert np.abs(action[1:, :6]).max() > 1e-3
        first = e.steps["is_first"]
        assert isinstance(first, np.ndarray)
        assert first.dtype == np.bool_
        assert first.tolist() == [True] + [False] * 9
        instruction = e.steps["language_instruction"]
        assert len(set(instruction)) == 1
        assert isinstance(instruction[0], str)
        assert len(instruction[0]) > 10
        assert isinstance(e.metadata["episode_metadata/episode_id"], int)
        assert e.metadata["episode_metadata/file_path"].endswith("/out.npy")
        assert e.file.endswith("-00000-of-00001")
    names = {(e.metadata["episode_metadata/file_path"], e.metadata["episode_metadata/episode_id"]) for e in bridge}
    assert len(names) == 19


def test_bridge_images(bridge: list[RldsEpisode]):
    for e in bridge[::6]:
        for k in range(4):
            pixels = np.stack([decode_image(b) for b in e.steps[f"observation/image_{k}"]])
            assert pixels.shape == (10, 64, 64, 3)
            assert pixels.dtype == np.uint8
            assert (pixels.std() > 20) == (k < 3)  # the fourth camera was not there


def test_a_damaged_byte_in_bridge_names_the_record(data: Path, tmp_path: Path):
    for file in (data / BRIDGE).iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    (shard,) = tmp_path.glob("*tfrecord*")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    good: list[RldsEpisode] = []
    with pytest.raises(ValueError, match=rf"{shard.name}, record \d+ at byte \d+: wrong CRC") as caught:
        good.extend(rlds_episodes(tmp_path))  # keeps what came before the damage
    assert 5 < len(good) < 14
    assert f"record {len(good)} " in str(caught.value)


# ---- RT-1 and DROID in small ----


def test_rt1(tmp_path: Path):
    one, two, three = rt1_episode(3), rt1_episode(4), rt1_episode(1)
    folder = dataset(tmp_path, RT1, [[one, two], [three]])
    episodes = list(rlds_episodes(folder))
    assert [e.length for e in episodes] == [3, 4, 1]
    assert [e.number for e in episodes] == [0, 1, 2]
    assert [Path(e.file).name[-14:] for e in episodes] == ["00000-of-00002"] * 2 + ["00001-of-00002"]
    steps = episodes[1].steps
    shapes = {n: (str(v.dtype), v.shape) for n, v in steps.items() if isinstance(v, np.ndarray)}
    assert shapes == {
        "action/base_displacement_vector": ("float32", (4, 2)),
        "action/base_displacement_vertical_rotation": ("float32", (4, 1)),
        "action/gripper_closedness_action": ("float32", (4, 1)),
        "action/rotation_delta": ("float32", (4, 3)),
        "action/terminate_episode": ("int32", (4, 3)),
        "action/world_vector": ("float32", (4, 3)),
        "observation/base_pose_tool_reached": ("float32", (4, 7)),
        "observation/gripper_closed": ("float32", (4, 1)),
        "observation/natural_language_embedding": ("float32", (4, 512)),
        "observation/workspace_bounds": ("float32", (4, 3, 3)),
        "reward": ("float32", (4,)),
        "is_first": ("bool", (4,)),
        "is_last": ("bool", (4,)),
        "is_terminal": ("bool", (4,)),
    }
    poses = two["steps/observation/base_pose_tool_reached"]
    assert np.array_equal(np.ravel(steps["observation/base_pose_tool_reached"]), poses)
    assert np.array_equal(np.ravel(steps["observation/workspace_bounds"]), two["steps/observation/workspace_bounds"])
    assert steps["observation/natural_language_instruction"] == ["pick the café can"] * 4
    assert [int(decode_image(b).mean()) for b in steps["observation/image"]] == [0, 10, 20, 30]
    assert decode_image(steps["observation/image"][0]).shape == (256, 320, 3)
    assert episodes[0].metadata == {
        "aspects/success": True,
        "aspects/undesirable": False,
        "attributes/task_family": -3,
        "attributes/task_family_name": "pick",
    }


def test_droid(tmp_path: Path):
    written = droid_episode(5)
    episode = only_episode(dataset(tmp_path, DROID, [[written]]))
    joints = episode.steps["observation/joint_position"]
    assert isinstance(joints, np.ndarray)
    # Declared float64, kept as float32: the type is the declared one, the value is what is left.
    assert (joints.dtype, joints.shape) == (np.float64, (5, 7))
    assert np.array_equal(joints.ravel(), np.asarray(written["steps/observation/joint_position"], np.float64))
    assert np.shape(episode.steps["action_dict/joint_velocity"]) == (5, 7)
    assert episode.steps["language_instruction"] == ["close the drawer"] * 5
    assert episode.steps["language_instruction_2"] == [""] * 5
    assert decode_image(episode.steps["observation/wrist_image_left"][4]).shape == (180, 320, 3)
    assert episode.metadata["episode_metadata/recording_folderpath"] == ""


def test_only_some_features(tmp_path: Path):
    folder = dataset(tmp_path, DROID, [[droid_episode(2)]])
    episode = only_episode(folder, only=["steps/action", "episode_metadata/file_path"])
    assert list(episode.steps) == ["action"]
    assert list(episode.metadata) == ["episode_metadata/file_path"]
    with pytest.raises(ValueError, match=r"no feature \['action'\]; there are .*steps/action"):
        rlds_episodes(folder, only=["action"])


# ---- what else TFDS can store ----


def test_other_kinds_of_features(tmp_path: Path):
    label = {"pythonClassName": CLASSES + "class_label_feature.ClassLabel", "classLabel": {"numClasses": "3"}}
    schema = group(
        names=sequence(text()),
        track=tensor("int64", -1, 2),
        steps=sequence(
            group(
                depth=tensor("uint16", 2, 3, encoding="zlib"),
                label=label,
                pair=tensor("string", 2),
                raw=tensor("float64", 2, encoding="bytes"),
                said=sequence(text()),
                touched=sequence(tensor("float32", 2)),
                bits=tensor("uint64"),
                byte=tensor("uint8", 2),
            )
        ),
    )
    depth = np.arange(18, dtype="<u2").reshape(3, 2, 3)
    raw = np.array([[0.1, 0.2]] * 3, "<f8")
    episode = only_episode(
        dataset(
            tmp_path,
            schema,
            [
                [
                    {
                        "names": [b"a", b"b"],
                        "track": np.arange(6),
                        "steps/depth": [zlib.compress(d.tobytes()) for d in depth],
                        "steps/label": np.array([0, 2, 1]),
                        "steps/pair": [b"a", b"b", b"c", b"d", b"e", b"f"],
                        "steps/raw": [r.tobytes() for r in raw],
                        "steps/said/ragged_flat_values": [b"x", b"y", b"z"],
                        "steps/said/ragged_row_lengths_0": np.array([2, 0, 1]),
                        "steps/touched/ragged_flat_values": np.arange(4, dtype=np.float32),
                        "steps/touched/ragged_row_lengths_0": np.array([0, 1, 1]),
                        "steps/bits": np.array([-1, 0, 1]),
                        "steps/byte": np.array([255, 0, 1, 2, 3, 4]),
                        "something/undeclared": [b"TFDS ignores it too"],
                    }
                ]
            ],
        )
    )
    assert episode.length == 3
    assert np.array_equal(episode.steps["depth"], depth)
    assert np.array_equal(episode.steps["raw"], raw)
    assert np.asarray(episode.steps["label"]).tolist() == [0, 2, 1]
    assert episode.steps["pair"] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert episode.steps["said"] == [["x", "y"], [], ["z"]]
    assert [t.tolist() for t in episode.steps["touched"]] == [[], [[0, 1]], [[2, 3]]]
    assert episode.steps["bits"][0] == 2**64 - 1
    assert np.asarray(episode.steps["byte"]).tolist() == [[255, 0], [1, 2], [3, 4]]
    assert episode.metadata["names"] == ["a", "b"]
    assert episode.metadata["track"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_an_episode_without_steps(tmp_path: Path):
    empty = {n: v[:0] if n.startswith("steps/") else v for n, v in droid_episode(1).items()}
    episode = only_episode(dataset(tmp_path, DROID, [[empty]]))
    assert episode.length == 0
    assert np.shape(episode.steps["action"]) == (0, 7)
    assert episode.steps["language_instruction"] == []


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "steps/action",
            floats(34),
            r"steps/action: expected 5 x \[7\] = 35 values, got 34 .*5 steps, as steps/is_first",
        ),
        ("steps/action", floats(28), r"steps/action: expected 5 x \[7\] = 35 values, got 28"),
        ("steps/action", np.zeros(35, np.int64), "steps/action: expected float64, got int64"),
        ("steps/action", [b"x"] * 35, "steps/action: expected float64, got bytes"),
        ("steps/action", None, "steps/action is declared in features.json but not in the record"),
        ("steps/is_last", np.array([0, 0, 0, 0, 2]), "steps/is_last: expected bool, got values from 0 to 2"),
        ("steps/is_first", np.array([1, 0]), r"expected 2 x \[7\] = 14 values, got 35 .*2 steps, as steps/is_first"),
        ("steps/language_instruction", [b"\xff\xd8"] * 5, "steps/language_instruction: expected UTF-8"),
        ("steps/observation/wrist_image_left", [b""] * 4, r"wrist_image_left: expected 5 x \[\] = 5 values, got 4"),
        ("episode_metadata/file_path", [b"a", b"b"], r"file_path: expected 1 x \[\] = 1 values, got 2"),
    ],
)
def test_a_record_that_differs_from_its_schema(tmp_path: Path, name: str, value: Values | None, problem: str):
    bad = {n: v for n, v in {**droid_episode(5), name: value}.items() if v is not None}
    episodes = rlds_episodes(dataset(tmp_path, DROID, [[droid_episode(5)], [bad]]))
    next(episodes)
    with pytest.raises(ValueError, match=rf"-00001-of-00002, record 0 \(episode 1 of 'train'\): .*{problem}"):
        next(episodes)


@pytest.mark.parametrize(
    ("feature", "stored", "problem"),
    [
        (tensor("uint8"), np.array([1, 300]), "expected uint8, got values from 1 to 300"),
        (tensor("bfloat16"), floats(2), "dtype 'bfloat16' cannot be read"),
        (tensor("float32", -1), floats(2), r"shape \[None\] varies"),
        (tensor("uint8", 2, encoding="bytes"), [b"ab", b"abc"], "value 1: expected 2 bytes .*got more"),
        (tensor("uint8", 2, encoding="zlib"), [b"ab", b"ab"], "value 0 does not decompress"),
        (
            tensor("uint8", 2, encoding="zlib"),
            [zlib.compress(bytes(10**6))] * 2,
            "value 0: expected 2 bytes .*got more",
        ),
        (tensor("uint8", 2, encoding="lz4"), [b"ab", b"ab"], "encoding 'lz4'"),
        ({"pythonClassName": "x", "video": {"shape": {}}}, [b"", b""], "video cannot be read, only tensor, text"),
        (sequence(sequence(text())), [b""], "3 nested sequences cannot be read"),
    ],
)
def test_features_that_are_not_read(tmp_path: Path, feature: dict[str, Any], stored: Values, problem: str):
    schema = group(steps=sequence(group(x=feature, **FLAGS)))
    folder = dataset(tmp_path, schema, [[{"steps/x": stored, **flags(2)}]])
    with pytest.raises(ValueError, match=f"steps/x: {problem}"):
        list(rlds_episodes(folder))
    assert only_episode(folder, only=["steps/is_first"]).length == 2


def test_row_lengths_must_add_up(tmp_path: Path):
    schema = group(steps=sequence(group(x=sequence(text()), **FLAGS)))
    for rows in ([1, 1], [4, -1], [2**62, 2**62], [3, 0, 0]):
        stored = {"steps/x/ragged_flat_values": [b""] * 3, "steps/x/ragged_row_lengths_0": np.array(rows)}
        folder = dataset(tmp_path, schema, [[{**stored, **flags(2)}]])
        with pytest.raises(
            ValueError, match="steps/x: (the row lengths .* do not add up|expected 2 row lengths, got 3)"
        ):
            list(rlds_episodes(folder))


def test_missing_shards_are_named_at_once(tmp_path: Path):
    folder = dataset(tmp_path, DROID, [[droid_episode(1)]] * 3)
    (folder / "mini-train.tfrecord-00001-of-00003").unlink()
    with pytest.raises(
        ValueError, match=r"lacks 1 of the 3 shards of split 'train': mini-train.tfrecord-00001-of-00003"
    ):
        rlds_episodes(folder)


@pytest.mark.parametrize("said", ["1", "3"])
def test_a_shard_with_another_number_of_episodes(tmp_path: Path, said: str):
    folder = dataset(tmp_path, DROID, [[droid_episode(1)] * 2], shardLengths=[said])
    with pytest.raises(ValueError, match=f"00000-of-00001 holds 2 episodes, but dataset_info.json says {said}"):
        list(rlds_episodes(folder))


def test_shards_without_declared_lengths(tmp_path: Path):
    folder = dataset(
        tmp_path, DROID, [[droid_episode(1)], [droid_episode(2)]], shardLengths=None, filepathTemplate=None
    )
    assert [e.length for e in rlds_episodes(folder)] == [1, 2]
    (folder / "mini-train.tfrecord-00001-of-00002").unlink()
    with pytest.raises(ValueError, match="lacks 1 of the 2 shards"):
        rlds_episodes(folder)
    (folder / "mini-train.tfrecord-00000-of-00002").unlink()
    with pytest.raises(ValueError, match="has no shard of split 'train'"):
        rlds_episodes(folder)


def test_folders_that_are_not_a_data_set(tmp_path: Path):
    folder = dataset(tmp_path / "1.0.0", DROID, [[droid_episode(1)]])
    with pytest.raises(ValueError, match=r"no split 'test'; there are \['train'\]"):
        rlds_episodes(folder, "test")
    with pytest.raises(ValueError, match=r"there is no .*dataset_info.json; give one of .*1\.0\.0"):
        rlds_episodes(tmp_path)
    with pytest.raises(ValueError, match="version folder"):
        rlds_episodes(tmp_path / "nowhere")
    dataset(folder, group(image=image(4, 4, 3)), [])
    with pytest.raises(ValueError, match=r"not an RLDS data set: .*\['image'\]"):
        rlds_episodes(folder)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("dataset_info.json", "{", "is not JSON"),
        ("dataset_info.json", "[]", "must hold a JSON object, got list"),
        ("dataset_info.json", '{"name": "a", "fileFormat": "array_record"}', "only 'tfrecord' is read"),
        ("dataset_info.json", '{"splits": []}', "not as TFDS writes it .*'name'"),
        (
            "dataset_info.json",
            '{"name": "a", "splits": [{"name": "b", "shardLengths": ["x"]}]}',
            "not as TFDS writes it",
        ),
        (
            "dataset_info.json",
            '{"name": "../a", "splits": [{"name": "b", "shardLengths": ["1"]}]}',
            "not the name of a file",
        ),
        ("features.json", "\xff", "is not JSON"),
        ("features.json", "[" * 100_000, "is not JSON"),
        ("features.json", '{"type": "old", "content": 5}', "not as TFDS writes it"),
        ("features.json", '{"pythonClassName": "x"}', "not as TFDS writes it"),
        ("features.json", '{"tensor": {"shape": {"dimensions": ["seven"]}}}', "not as TFDS writes it .*'seven'"),
    ],
)
def test_damaged_descriptions(tmp_path: Path, file: str, content: str, problem: str):
    folder = dataset(tmp_path, DROID, [[droid_episode(1)]])
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{file}.*{problem}"):
        rlds_episodes(folder)


def test_images_that_are_not_colour_are_refused():
    assert (decode_image(encoded(7, mode="L", form="PNG")) == 7).all()
    assert (decode_image(encoded(7, form="PNG")) == 7).all()
    for mode in ("RGBA", "I;16"):
        with pytest.raises(ValueError, match=f"pixels are '{mode}'"):
            decode_image(encoded(7, mode=mode, form="PNG"))
    for data in (b"", b"not an image", encoded(7)[:200], encoded(7, form="BMP")):
        with pytest.raises(ValueError, match=f"cannot decode an image of {len(data)} bytes"):
            decode_image(data)


def test_mutated_images_decode_or_raise_value_error():
    rng = np.random.default_rng(0)
    for good in (encoded(100, 16, 16), encoded(100, 16, 16, form="PNG")):
        for _ in range(300):
            data = bytearray(good)
            data[rng.integers(len(data))] = rng.integers(256)
            del data[rng.integers(len(data)) :: int(rng.integers(50, 900))]
            try:
                decode_image(bytes(data))
            except ValueError:
                continue
