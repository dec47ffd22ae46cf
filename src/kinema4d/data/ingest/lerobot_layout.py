"""Where things are in a LeRobot data set: ``meta/``, parquet tables and videos of versions 2.0, 2.1 and 3.0.

Version 2 has a parquet and, per camera, an mp4 for each episode. Version 3 has several episodes in each file; rows are
found by ``dataset_from_index``, frames by ``videos/<key>/from_timestamp``, and each camera counts its own files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.codec.context import ThreadType
from av.error import FFmpegError
from av.video.reformatter import Interpolation
from jaxtyping import UInt8

VERSIONS = ("v2.0", "v2.1", "v3.0")
"""``codebase_version`` that is read. What is read of 2.0 and 2.1 is the same; they differ in their statistics."""
FPS_TOLERANCE = 0.01
"""A video's rate may differ from that of ``info.json`` by this share."""
AGAIN = "download it again or restore it"
"""What to do about a damaged or missing file."""


@dataclass(frozen=True, kw_only=True)
class Info:
    """What ``meta/info.json`` says."""

    root: Path
    """The data set's folder."""
    version: str
    """One of ``VERSIONS``."""
    fps: float
    """Rows and frames per second."""
    robot_type: str
    """What the data set calls its robot; empty where it does not."""
    features: Mapping[str, Mapping[str, Any]]
    """Columns and videos by name."""
    chunks_size: int
    """Version 2: episodes per folder."""
    data_path: str
    """Template of the tables' paths."""
    video_path: str
    """Template of the videos' paths; empty where there are none."""

    @property
    def cameras(self) -> list[str]:
        """Names of the colour videos and images."""
        return [k for k, f in self.features.items() if f["dtype"] in ("video", "image") and not is_depth(f)]

    def names(self, feature: str) -> tuple[str, ...]:
        """What the columns of a vector are called, numbered where the data set does not say."""
        names: Any = self.features[feature].get("names")
        if isinstance(names, Mapping):  # such as {"motors": [...]} or {"axes": [...]}
            names = [name for part in names.values() for name in (part if isinstance(part, list) else [part])]
        width = math.prod(self.features[feature]["shape"])
        if not isinstance(names, list) or len(names) != width:
            return tuple(f"{feature.rsplit('.', 1)[-1]}_{i}" for i in range(width))
        return tuple(str(name) for name in names)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one episode lies."""

    number: int
    """Its ``episode_index``."""
    length: int
    """Rows, and frames of each camera."""
    tasks: tuple[str, ...]
    """Instructions that the episode list gives it."""
    data: Path
    """Its table."""
    first_row: int | None
    """Version 3: its first ``index`` in the whole data set."""
    videos: Mapping[str, tuple[Path, float]]
    """Per camera: the video, and the second at which the episode starts in it."""


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Whether a video or image holds depth and not colour, by the marks that LeRobot has used over time."""
    said = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
    return bool(said.get("is_depth_map") or said.get("video.is_depth_map"))


def recording_name(number: int) -> str:
    """How a recording is called: ``episode_000012``."""
    return f"episode_{number:06d}"


def read_info(root: Path) -> Info:
    """``meta/info.json``, checked."""
    file = root / "meta" / "info.json"
    if not file.is_file():
        raise ValueError(
            f"{root} is not a LeRobot data set: it has no meta/info.json; pass the folder that holds meta/"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}; {AGAIN}") from None
    version = content.get("codebase_version") if isinstance(content, dict) else None
    if version not in VERSIONS:
        raise ValueError(
            f"{file} says codebase_version {version!r}; {', '.join(VERSIONS)} are read. Convert it with the converters "
            "of the lerobot package (lerobot.datasets.v21, .v30)"
        )
    fps, features = content.get("fps"), content.get("features")
    if not isinstance(fps, int | float) or isinstance(fps, bool) or not 0 < fps < math.inf:
        raise ValueError(f"{file}: 'fps' must be a positive number, got {fps!r}; {AGAIN}")
    if not isinstance(features, dict):
        raise ValueError(f"{file}: 'features' must be an object, got {features!r:.60}; {AGAIN}")
    for name, feature in features.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape) or "dtype" not in feature:
            raise ValueError(f"{file}: feature {name!r} needs 'dtype' and 'shape', got {feature!r:.60}; {AGAIN}")
    paths = {key: content.get(key) or "" for key in ("data_path", "video_path")}
    for key, path in paths.items():
        if not isinstance(path, str) or (key == "data_path" and not path):
            raise ValueError(f"{file}: '{key}' must be a path template, got {path!r:.60}; {AGAIN}")
    size = content.get("chunks_size", 1000)
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{file}: 'chunks_size' must be a positive whole number, got {size!r:.60}; {AGAIN}")
    return Info(
        root=root,
        version=version,
        fps=float(fps),
        robot_type=str(content.get("robot_type") or ""),
        features=features,
        chunks_size=size,
        **paths,
    )


def episode_numbers(info: Info) -> list[int]:
    """Every ``episode_index``, sorted."""
    if info.version == "v3.0":
        numbers = [int(row["episode_index"]) for row in _episode_rows(info, ["episode_index"], None)]
    else:
        numbers = [row["episode_index"] for row in _jsonl(info.root / "meta" / "episodes.jsonl", "episode_index")]
    return sorted(numbers)


def find_episode(info: Info, number: int) -> Place:
    """Where an episode's rows and frames are."""
    videos = [key for key in info.cameras if info.features[key]["dtype"] == "video"]
    if info.version != "v3.0":
        file = info.root / "meta" / "episodes.jsonl"
        row = next((row for row in _jsonl(file, "episode_index") if row["episode_index"] == number), None)
        if row is None:
            raise ValueError(f"{file} has no {recording_name(number)}")
        where = {"episode_chunk": number // info.chunks_size, "episode_index": number}
        return Place(
            number=number,
            length=_whole(file, row, "length"),
            tasks=_tasks(row),
            data=_path(info, info.data_path, where),
            first_row=None,
            videos={key: (_path(info, info.video_path, {**where, "video_key": key}), 0.0) for key in videos},
        )
    rows = _episode_rows(info, None, number)
    if not rows:
        raise ValueError(f"{info.root / 'meta' / 'episodes'} has no {recording_name(number)}")
    row, file = rows[0], info.root / "meta" / "episodes"
    start, stop = (_whole(file, row, f"dataset_{end}_index") for end in ("from", "to"))
    length = _whole(file, row, "length")
    if stop - start != length:
        raise ValueError(
            f"{file}, {recording_name(number)}: rows {start} to {stop} are not its length of {length}; {AGAIN}"
        )
    found = {}
    for key in videos:
        where = {"video_key": key} | _file_index(file, row, f"videos/{key}")
        begin, end = (_number(file, row, f"videos/{key}/{edge}_timestamp") for edge in ("from", "to"))
        if round((end - begin) * info.fps) < length:
            raise ValueError(
                f"{file}, {recording_name(number)}: {key} spans {begin:g} to {end:g} s, "
                f"{(end - begin) * info.fps:.1f} frames at {info.fps:g} fps, but the episode has {length} rows; {AGAIN}"
            )
        found[key] = (_path(info, info.video_path, where), begin)
    return Place(
        number=number,
        length=length,
        tasks=_tasks(row),
        data=_path(info, info.data_path, _file_index(file, row, "data")),
        first_row=start,
        videos=found,
    )


def read_tasks(info: Info) -> dict[int, str]:
    """Instructions by ``task_index``."""
    if info.version != "v3.0":
        return {
            row["task_index"]: str(row["task"])
            for row in _jsonl(info.root / "meta" / "tasks.jsonl", "task_index", "task")
        }
    file = info.root / "meta" / "tasks.parquet"
    table = _table(file)
    # pandas writes the instruction as an index, which has a name of its own only since LeRobot 0.4.
    column = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
    if column is None or "task_index" not in table.column_names:
        raise ValueError(f"{file} needs columns task_index and task, got {', '.join(table.column_names)}; {AGAIN}")
    texts = (str(text) for text in table.column(column).to_pylist())
    return dict(zip(table.column("task_index").to_pylist(), texts, strict=True))


def read_rows(info: Info, place: Place, columns: Sequence[str]) -> dict[str, list[Any]]:
    """The episode's rows, by column."""
    # Version 2 files hold one episode; the filter costs nothing there and is needed in version 3.
    wanted = list(dict.fromkeys([*columns, "episode_index", "timestamp", "index"]))
    table = _table(place.data, wanted, place.number)
    name = recording_name(place.number)
    if table.num_rows != place.length:
        raise ValueError(
            f"{place.data} has {table.num_rows} rows of {name}, the episode list says {place.length}; {AGAIN}"
        )
    rows = {column: table.column(column).to_pylist() for column in wanted}
    index = rows["index"]
    if place.first_row is not None and index != list(range(place.first_row, place.first_row + place.length)):
        raise ValueError(
            f"{place.data}, {name}: its rows have index {index[0]} to {index[-1]}, the episode list says "
            f"{place.first_row} to {place.first_row + place.length - 1}; {AGAIN}"
        )
    late = np.abs(np.array(rows["timestamp"], np.float64).reshape(-1) * info.fps - np.arange(place.length))
    if not late.max() < 0.5:  # NaN is late, too
        row = int(np.argmax(~(late < 0.5)))
        raise ValueError(
            f"{place.data}, {name}: row {row} has timestamp {rows['timestamp'][row]}, at {info.fps:g} fps it must be "
            f"{row / info.fps:g}; the fps of meta/info.json is not that of the rows"
        )
    return rows


def read_frames(info: Info, place: Place, key: str) -> UInt8[np.ndarray, "t h w 3"]:
    """The episode's frames in one video; what lies before and after is not decoded, but for the way to a keyframe."""
    file, start = place.videos[key]
    who = f"{file}, {recording_name(place.number)}"
    if not file.is_file():
        raise ValueError(f"{file}, the {key} of {recording_name(place.number)}, is missing; {AGAIN}")
    images: list[np.ndarray | None] = [None] * place.length
    trouble, fps = "", info.fps
    try:
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            rate, base = stream.average_rate, stream.time_base
            if rate is None or base is None or stream.codec_context is None:
                raise ValueError("it has no frame rate or an unknown codec")
            fps = float(rate)
            stream.codec_context.options = {"err_detect": "explode"}
            stream.codec_context.thread_type = ThreadType.AUTO
            if start > 0:
                container.seek(int(start / base), stream=stream)
            for frame in container.decode(stream):
                if frame.time is None or frame.is_corrupt:
                    raise ValueError("a frame is damaged")
                i = round((frame.time - start) * info.fps)
                if 0 <= i < place.length:
                    rgb = frame.reformat(format="rgb24", src_colorspace=frame.colorspace, interpolation=_TO_RGB)
                    images[i] = rgb.to_ndarray()
                if i >= place.length - 1:
                    break
    except (FFmpegError, ValueError, IndexError) as error:
        trouble = f" ({error})"
    if abs(fps / info.fps - 1) > FPS_TOLERANCE:
        raise ValueError(
            f"{who}: the video runs at {fps:g} fps but meta/info.json says {info.fps:g}; "
            "re-encode the video at that rate, or correct info.json"
        )
    missing = [i for i, image in enumerate(images) if image is None]
    if missing:
        raise ValueError(
            f"{who}: the video is damaged or too short{trouble}: {place.length - len(missing)} of {place.length} frames "
            f"from {start:g} s on were found, frame {missing[0]} is missing; {AGAIN}"
        )
    frames = np.stack([image for image in images if image is not None])
    if not {frames.shape[1], frames.shape[2]} <= set(info.features[key]["shape"]):
        raise ValueError(
            f"{who}: frames are {frames.shape[1]}x{frames.shape[2]}, meta/info.json says {info.features[key]['shape']} "
            f"for {key}; {AGAIN}"
        )
    return frames


_TO_RGB = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.BITEXACT


def _table(file: Path, columns: Sequence[str] | None = None, number: int | None = None) -> Any:
    """A parquet table, or some columns of one episode."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("reading LeRobot data sets needs pyarrow: pip install 'kinema4d[parquet]'") from None
    if not file.is_file():
        whose = "" if number is None else f", the table of {recording_name(number)},"
        raise ValueError(f"{file}{whose} is missing; {AGAIN}")
    try:
        known = pyarrow.parquet.read_schema(file).names
        absent = [column for column in columns or () if column not in known]
        if absent:
            raise ValueError(f"{file} has no column {absent[0]!r}; it has {', '.join(known)}")
        filters = None if number is None else [("episode_index", "=", number)]
        return pyarrow.parquet.read_table(file, columns=None if columns is None else list(columns), filters=filters)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} is not a readable parquet file: {error}; {AGAIN}") from None


def _episode_rows(info: Info, columns: Sequence[str] | None, number: int | None) -> list[dict[str, Any]]:
    """Rows of version 3's episode list, without its statistics."""
    files = sorted((info.root / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        raise ValueError(f"{info.root / 'meta' / 'episodes'} holds no chunk-*/file-*.parquet; {AGAIN}")
    rows = []
    for file in files:
        table = _table(file, columns, number)
        rows += table.select([name for name in table.column_names if not name.startswith("stats/")]).to_pylist()
    return rows


def _jsonl(file: Path, *keys: str) -> list[dict[str, Any]]:
    if not file.is_file():
        raise ValueError(f"{file} is missing; {AGAIN}")
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file}, line {number} is not JSON: {error}; {AGAIN}") from None
        if not isinstance(row, dict) or not set(keys) <= row.keys() or not isinstance(row[keys[0]], int):
            raise ValueError(f"{file}, line {number} needs {', '.join(keys)}, got {line:.60}; {AGAIN}")
        rows.append(row)
    return rows


def _tasks(row: Mapping[str, Any]) -> tuple[str, ...]:
    tasks = row.get("tasks")
    return tuple(str(task) for task in tasks) if isinstance(tasks, list) else (str(tasks or ""),)


def _file_index(file: Path, row: Mapping[str, Any], prefix: str) -> dict[str, int]:
    return {key: _whole(file, row, f"{prefix}/{key}") for key in ("chunk_index", "file_index")}


def _whole(file: Path, row: Mapping[str, Any], key: str) -> int:
    return int(_number(file, row, key))


def _number(file: Path, row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(
            f"{file}, episode {row.get('episode_index')}: {key!r} must be a number, got {value!r}; {AGAIN}"
        )
    return value


def _path(info: Info, template: str, where: Mapping[str, Any]) -> Path:
    try:
        return info.root / template.format(**where)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"{info.root / 'meta' / 'info.json'}: the path template {template!r} must use {', '.join(where)} only "
            f"({error!r})"
        ) from None
