"""Small data sets as TFDS writes them, byte for byte, from the schemas that the sources publish."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kinema4d.data.ingest.tfrecord import Values, encode_example, write_records

_CLASSES = "tensorflow_datasets.core.features."


def tensor(dtype: str, *shape: int) -> dict[str, Any]:
    dimensions = {"dimensions": [str(n) for n in shape]} if shape else {}
    content = {"shape": dimensions, "dtype": dtype, "encoding": "none"}
    return {"pythonClassName": _CLASSES + "tensor_feature.Tensor", "tensor": content}


def image(*shape: int) -> dict[str, Any]:
    content = {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": "uint8", "encodingFormat": "jpeg"}
    return {"pythonClassName": _CLASSES + "image_feature.Image", "image": content}


def text() -> dict[str, Any]:
    return {"pythonClassName": _CLASSES + "text_feature.Text", "text": {}}


def group(**children: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": _CLASSES + "features_dict.FeaturesDict", "featuresDict": {"features": children}}


def steps(**children: dict[str, Any]) -> dict[str, Any]:
    flags = {name: tensor("bool") for name in ("is_first", "is_last", "is_terminal")}
    content = {"feature": group(**children, **flags), "length": "-1"}
    return {"pythonClassName": _CLASSES + "dataset_feature.Dataset", "sequence": content}


def flags(t: int) -> dict[str, Values]:
    ends = [np.eye(t, dtype=np.int64)[k] for k in (0, -1, -1)]
    return dict(zip(["steps/is_first", "steps/is_last", "steps/is_terminal"], ends, strict=True))


def flat(values: Any) -> np.ndarray:
    """Numbers as a record holds them."""
    return np.asarray(values, np.float32).ravel()


def jpeg(value: int, height: int, width: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (value,) * 3).save(out, "JPEG")
    return out.getvalue()


def dataset(folder: Path, schema: dict[str, Any], shards: list[list[dict[str, Values]]], **split: Any) -> Path:
    """Write a data set; keywords replace entries of the split (None leaves them out)."""
    folder.mkdir(exist_ok=True)
    entry = {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": "train",
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
        write_records(shard_file(folder, i, len(shards)), [encode_example(e) for e in shard], overwrite=True)
    return folder


def shard_file(folder: Path, number: int, count: int) -> Path:
    return folder / f"mini-train.tfrecord-{number:05d}-of-{count:05d}"


def flip_bit(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def record_starts(file: Path) -> list[int]:
    """Where the records of a sound file begin, found independently of the reader."""
    content, starts, at = file.read_bytes(), [], 0
    while at < len(content):
        starts.append(at)
        at += 16 + struct.unpack_from("<Q", content, at)[0]
    return starts
