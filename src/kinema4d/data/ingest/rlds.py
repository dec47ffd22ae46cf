"""RLDS data sets as TFDS stores them (Bridge, RT-1, DROID and the rest of Open X-Embodiment), without TensorFlow.

A data set is a folder with ``dataset_info.json`` (splits and their shards), ``features.json`` (names,
shapes and types) and the shards. A record is one episode, with all steps of a feature in one flat list.
"""

from __future__ import annotations

import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kinema4d.data.ingest.tfrecord import Values, parse_example, records

READABLE = ("tensor", "text", "image", "classLabel")
"""Kinds of feature that are read; others can be left out with ``only``."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What ``features.json`` says about one array of numbers, text or image."""

    kind: str
    """One of :data:`READABLE`, or the name of a TFDS kind that is not read."""
    shape: tuple[int | None, ...]
    """Of one value, without the steps; None where it varies. Images: of the decoded image."""
    dtype: str
    """NumPy's name, or ``string``. TFDS keeps float64 with the precision of float32."""
    encoding: str = "none"
    """``none``, or how one value is kept as bytes: ``bytes`` or ``zlib``."""
    sequences: int = 0
    """How many lists it is nested in; the steps are one."""

    @property
    def is_string(self) -> bool:
        """Whether the value itself is text or bytes."""
        return self.kind == "image" or self.dtype == "string"


@dataclass(frozen=True, kw_only=True)
class Split:
    """One part of a data set, such as ``train``."""

    name: str
    """Its name."""
    shards: tuple[str, ...]
    """File names in order."""
    lengths: tuple[int, ...] | None
    """Episodes in each shard; None where the data set does not say."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What ``dataset_info.json`` says."""

    name: str
    """Name of the data set, which its files begin with."""
    version: str
    """Version, such as ``1.0.0``."""
    splits: dict[str, Split]
    """By name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RldsEpisode:
    """One episode as recorded."""

    steps: dict[str, np.ndarray | list]
    """By name, such as ``observation/state``: an array [t,...], or a list of t texts or encoded images."""
    metadata: dict[str, Any]
    """Everything outside the steps by its full name, such as ``episode_metadata/file_path``."""
    number: int
    """Position in the split."""
    file: str
    """The shard it is in."""
    length: int
    """How many steps."""


def dataset_info(folder: str | Path) -> DatasetInfo:
    """Name, version, splits and shards of the data set in ``folder``."""
    path = Path(folder) / "dataset_info.json"
    content = _json(path)
    if content.get("fileFormat", "tfrecord") != "tfrecord":
        raise ValueError(f"{path}: the shards are {content['fileFormat']!r}; only 'tfrecord' is read")
    try:
        name, version = str(content["name"]), str(content.get("version", ""))
        splits = [_split(Path(folder), name, entry) for entry in content.get("splits", [])]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not as TFDS writes it ({type(error).__name__}: {error})") from None
    return DatasetInfo(name=name, version=version, splits={s.name: s for s in splits})


def features(folder: str | Path) -> dict[str, Feature]:
    """The features of the data set in ``folder`` by their full name, such as ``steps/observation/state``."""
    path = Path(folder) / "features.json"
    content = _json(path)
    try:
        return dict(_walk(content, "", 0))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not as TFDS writes it ({type(error).__name__}: {error})") from None


def rlds_episodes(
    folder: str | Path, split: str = "train", *, only: Sequence[str] | None = None
) -> Iterator[RldsEpisode]:
    """The episodes of a split, in the order of its shards.

    ``only`` names the features to read (see :func:`features`); by default all are. Missing shards are
    noticed at once, damaged records and shards with another number of episodes when they are reached.
    """
    folder = Path(folder)
    info, declared = dataset_info(folder), features(folder)
    steps = [f for name, f in declared.items() if name.startswith("steps/")]
    if not steps or not all(f.sequences for f in steps):
        raise ValueError(f"{folder} is not an RLDS data set: it has no sequence of steps, only {sorted(declared)}")
    if split not in info.splits:
        raise ValueError(f"{folder} has no split {split!r}; there are {sorted(info.splits)}")
    strangers = set(only or ()) - set(declared)
    if strangers:
        raise ValueError(f"{folder} has no feature {sorted(strangers)}; there are {sorted(declared)}")
    shards = info.splits[split].shards
    if not shards:
        raise ValueError(f"{folder} has no shard of split {split!r}, or those of several data sets; download it again")
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"{folder} lacks {len(missing)} of the {len(shards)} shards of split {split!r}: "
            f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}; download them"
        )
    wanted = {name: f for name, f in declared.items() if only is None or name in only}
    return _episodes(folder, info.splits[split], declared, wanted)


def decode_image(data: bytes) -> UInt8[np.ndarray, "h w 3"]:
    """The RGB pixels of an encoded image of an episode (JPEG or PNG); grey is repeated three times."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            # Depth is kept as 16-bit grey, or as floats disguised as RGBA: neither is a colour.
            if image.mode not in ("RGB", "L", "P"):
                raise ValueError(f"its pixels are {image.mode!r}, expected 'RGB', 'L' or 'P'")
            return np.array(image.convert("RGB"), np.uint8)
    except (ValueError, OSError, EOFError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"cannot decode an image of {len(data)} bytes ({data[:4]!r}...): {error}") from None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        near = sorted(str(p.parent) for p in path.parent.glob(f"*/{path.name}"))
        hint = f"give one of {near}" if near else "give the version folder of a TFDS data set, such as bridge/1.0.0"
        raise ValueError(f"there is no {path}; {hint}")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _split(folder: Path, dataset: str, entry: dict[str, Any]) -> Split:
    name = str(entry["name"])
    template = entry.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    values = {"DATASET": dataset, "SPLIT": name, "FILEFORMAT": "tfrecord"}
    lengths = tuple(int(n) for n in entry["shardLengths"]) if "shardLengths" in entry else None
    if lengths is None:
        # Old data sets do not list their shards, but each name tells how many there are.
        first = _shard_name(
            template, {**values, "SHARD_X_OF_Y": "00000-of-*", "SHARD_INDEX": "00000", "NUM_SHARDS": "*"}
        )
        found = [re.search(r"-of-(\d{5})", p.name) for p in sorted(folder.glob(first))]
        count = int(found[0].group(1)) if len(found) == 1 and found[0] else 0
    else:
        count = len(lengths)
    shards = []
    for i in range(count):
        index, total = f"{i:05d}", f"{count:05d}"
        shard = {"SHARD_X_OF_Y": f"{index}-of-{total}", "SHARD_INDEX": index, "NUM_SHARDS": total}
        shards.append(_shard_name(template, {**values, **shard}))
    return Split(name=name, shards=tuple(shards), lengths=lengths)


def _shard_name(template: str, values: dict[str, str]) -> str:
    name = re.sub(r"\{(\w+)\}", lambda match: values[match.group(1)], template)
    if Path(name).name != name:
        raise ValueError(f"filepathTemplate {template!r} gives {name!r}, which is not the name of a file in the folder")
    return name


def _walk(node: dict[str, Any], name: str, sequences: int) -> Iterator[tuple[str, Feature]]:
    """The leaves of TFDS's tree of features."""
    if "featuresDict" in node:
        for key, child in node["featuresDict"].get("features", {}).items():
            yield from _walk(child, f"{name}/{key}" if name else key, sequences)
    elif "sequence" in node:
        yield from _walk(node["sequence"]["feature"], name, sequences + 1)
    else:
        kind = next((k for k in node if k not in ("pythonClassName", "description")), None)
        if kind is None:
            raise TypeError(f"feature {name!r} has no content")
        content = node[kind]
        sizes = [int(n) for n in content.get("shape", {}).get("dimensions", [])]
        default = {"text": "string", "classLabel": "int64", "image": "uint8"}.get(kind, "")
        dtype = content.get("dtype") or default
        yield (
            name,
            Feature(
                kind=kind,
                shape=tuple(None if n < 0 else n for n in sizes),
                dtype="string" if dtype == "object" else dtype,
                encoding=content.get("encoding") or "none",
                sequences=sequences,
            ),
        )


def _episodes(
    folder: Path, split: Split, declared: dict[str, Feature], wanted: dict[str, Feature]
) -> Iterator[RldsEpisode]:
    number = 0
    for shard, file in enumerate(split.shards):
        path, count = folder / file, 0
        for count, payload in enumerate(records(path), start=1):
            try:
                episode = parse_episode(parse_example(payload), declared, wanted, number, str(path))
            except ValueError as error:
                raise ValueError(f"{path}, record {count - 1} (episode {number} of {split.name!r}): {error}") from None
            yield episode
            number += 1
        if split.lengths is not None and count != split.lengths[shard]:
            raise ValueError(
                f"{path} holds {count} episodes, but dataset_info.json says {split.lengths[shard]}; download it again"
            )


def parse_episode(
    example: dict[str, Values], declared: dict[str, Feature], wanted: dict[str, Feature], number: int, file: str
) -> RldsEpisode:
    """The episode in a record: the ``wanted`` ones of the ``declared`` features (see :func:`features`)."""
    length, reference = _length(example, declared)
    steps, metadata = {}, {}
    for name, feature in wanted.items():
        if not name.startswith("steps/"):
            metadata[name] = _read(example, name, feature, None)
            continue
        try:
            steps[name.removeprefix("steps/")] = _read(example, name, feature, length)
        except ValueError as error:
            raise ValueError(f"{error} (there are {length} steps, as {reference} says)") from None
    return RldsEpisode(steps=steps, metadata=metadata, number=number, file=file, length=length)


def _length(example: dict[str, Values], declared: dict[str, Feature]) -> tuple[int, str]:
    """Number of steps, and the feature that tells: one with a single value per step, if possible ``is_first``."""
    single = {n: f for n, f in declared.items() if n.startswith("steps/") and f.sequences == 1 and n in example}
    names = sorted(single, key=lambda n: (n != "steps/is_first", _stored(single[n]) != 1))
    names = [n for n in names if _stored(single[n]) > 0]
    if not names:
        raise ValueError(f"no feature tells the number of steps; the record holds {sorted(example)}")
    return len(example[names[0]]) // _stored(single[names[0]]), names[0]


def _stored(feature: Feature) -> int:
    """How many entries of the record's list one step takes; 0 where that varies."""
    return math.prod(n or 0 for n in feature.shape) if _is_flat(feature) else 1


def _read(example: dict[str, Values], name: str, feature: Feature, count: int | None) -> Any:
    """The value of a feature: a number, text or array; below sequences an array or list, of ``count`` items if known."""
    if feature.kind not in READABLE or feature.sequences > 2:
        what = feature.kind if feature.sequences <= 2 else f"{feature.sequences} nested sequences"
        raise ValueError(f"{name}: {what} cannot be read, only {', '.join(READABLE)}; leave it out with only=")
    if feature.sequences == 2:
        # TFDS keeps a sequence in every step as one flat list and the length in each step.
        flat = _items(_get(example, f"{name}/ragged_flat_values"), name, feature, None)
        rows = np.asarray(_get(example, f"{name}/ragged_row_lengths_0"), np.int64)
        if ((rows < 0) | (rows > len(flat))).any() or rows.sum() != len(flat):
            raise ValueError(f"{name}: the row lengths {rows.tolist()} do not add up to the {len(flat)} values")
        if count is not None and len(rows) != count:
            raise ValueError(f"{name}: expected {count} row lengths, got {len(rows)}")
        return [flat[end - row : end] for end, row in zip(np.cumsum(rows), rows, strict=True)]
    if feature.sequences == 1:
        return _items(_get(example, name), name, feature, count)
    items = _items(_get(example, name), name, feature, 1)
    return items[0].item() if isinstance(items, np.ndarray) and items.ndim == 1 else items[0]


def _get(example: dict[str, Values], name: str) -> Values:
    if name not in example:
        raise ValueError(f"{name} is declared in features.json but not in the record, which has {sorted(example)}")
    return example[name]


def _items(values: Values, name: str, feature: Feature, count: int | None) -> np.ndarray | list:
    """Values by item: an array [n, *shape], or a list of n texts, images or nested lists of texts."""
    as_bytes = feature.is_string or feature.encoding != "none"
    if len(values) and isinstance(values, list) != as_bytes:
        got = "bytes" if isinstance(values, list) else values.dtype
        raise ValueError(f"{name}: expected {'bytes' if as_bytes else feature.dtype}, got {got}")
    shape = _full_shape(name, feature, len(values)) if _is_flat(feature) else ()
    size = math.prod(shape)
    n = len(values) // max(size, 1) if count is None else count
    if len(values) != n * size:
        raise ValueError(f"{name}: expected {n} x {list(shape)} = {n * size} values, got {len(values)}")
    if feature.kind == "image":
        return list(values)
    if feature.encoding != "none":
        return _decoded(values, name, feature)
    if not as_bytes:
        return _cast(np.asarray(values), name, feature.dtype).reshape(n, *shape)
    try:
        texts = [v.decode() for v in values]
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: expected UTF-8 text, got {error.object[:20]!r}; leave it out with only=") from None
    return np.array(texts, object).reshape(n, *shape).tolist() if shape else texts


def _is_flat(feature: Feature) -> bool:
    """Whether one value takes as many entries of the record's list as its shape says; otherwise it takes one."""
    return feature.kind == "tensor" and feature.encoding == "none"


def _full_shape(name: str, feature: Feature, stored: int) -> tuple[int, ...]:
    if None not in feature.shape:
        return tuple(n for n in feature.shape if n is not None)
    known = math.prod(n for n in feature.shape if n is not None)
    if feature.shape.count(None) > 1 or feature.sequences or not known:
        raise ValueError(
            f"{name}: shape {list(feature.shape)} varies, and the record does not tell; leave it out with only="
        )
    # Alone in its record, the one size that varies follows from the number of values.
    return tuple(stored // known if n is None else n for n in feature.shape)


def _cast(values: np.ndarray, name: str, dtype: str) -> np.ndarray:
    """From float32 or int64, which is all that a record can hold, to what was declared."""
    kind = _dtype(dtype, name)
    if len(values) and (values.dtype == np.float32) != (kind.kind == "f"):
        raise ValueError(f"{name}: expected {dtype}, got {values.dtype} values")
    out = values.astype(kind)
    # uint64 wraps on purpose: TFDS keeps its bits in an int64.
    if kind.kind in "biu" and kind != np.uint64 and not np.array_equal(out, values):
        raise ValueError(f"{name}: expected {dtype}, got values from {values.min()} to {values.max()}")
    return out


def _dtype(dtype: str, name: str) -> np.dtype:
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        kind = None
    if kind is None or kind.kind not in "biuf":
        raise ValueError(f"{name}: dtype {dtype!r} cannot be read; leave it out with only=")
    return kind


def _decoded(values: Values, name: str, feature: Feature) -> np.ndarray:
    """Arrays that are kept as raw or compressed bytes, one string each."""
    if None in feature.shape or feature.encoding not in ("bytes", "zlib"):
        raise ValueError(
            f"{name}: encoding {feature.encoding!r} of shape {list(feature.shape)} cannot be read, only 'bytes' and "
            "'zlib' of a fixed shape; leave it out with only="
        )
    kind = _dtype(feature.dtype, name).newbyteorder("<")
    size = math.prod(n or 0 for n in feature.shape) * kind.itemsize
    shape = tuple(n for n in feature.shape if n is not None)
    out = []
    for i, value in enumerate(values):
        try:
            # One byte more than expected is enough to notice, however far it would expand.
            raw = value if feature.encoding == "bytes" else zlib.decompressobj().decompress(value, size + 1)
        except zlib.error as error:
            raise ValueError(f"{name}: value {i} does not decompress: {error}") from None
        if len(raw) != size:
            got = "more" if len(raw) > size else len(raw)
            raise ValueError(f"{name}: value {i}: expected {size} bytes for {list(feature.shape)}, got {got}")
        out.append(np.frombuffer(raw, kind).reshape(shape))
    return np.array(out, feature.dtype).reshape(len(out), *shape)
