"""The files of a LeRobot data set: parquet tables and joined videos that begin a new file where one grows too large."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np

from kinema4d.data import video

CHUNK = 1000
"""Files per folder, LeRobot's default."""
DATA_MB, VIDEO_MB = 100, 200
"""Sizes past which a new file is begun, LeRobot's defaults."""
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
"""Where a file lies below its kind."""
DATA_PATH, VIDEO_PATH = f"data/{FILE}.parquet", f"videos/{{video_key}}/{FILE}.mp4"
"""Path templates, as ``info.json`` has them."""


class Tables:
    """Parquet files of one schema, a row group per write, a new file where one grows too large."""

    def __init__(self, folder: Path, template: str) -> None:
        self._folder, self._template = folder, template
        self._file, self._bytes, self._writer = 0, 0, None

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, table: Any) -> tuple[int, int]:
        """Append a row group; returns the chunk and file it went to."""
        _, pq = pyarrow()
        if self._writer is not None and self._bytes + table.nbytes >= DATA_MB * 2**20:
            self._writer.close()
            self._writer, self._bytes, self._file = None, 0, self._file + 1
        chunk, file = divmod(self._file, CHUNK)
        if self._writer is None:
            path = self._folder / self._template.format(chunk_index=chunk, file_index=file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, table.schema, compression="snappy", use_dictionary=True)
        self._writer.write_table(table)
        self._bytes += table.nbytes
        return chunk, file

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Append one row of the episode list, which says where it is itself."""
        pa, _ = pyarrow()
        where = dict(zip(("chunk_index", "file_index"), divmod(self._file, CHUNK), strict=True))
        table = pa.table({key: [value] for key, value in row.items()})
        if self._bytes + table.nbytes >= DATA_MB * 2**20 and self._writer is not None:
            where = dict(zip(("chunk_index", "file_index"), divmod(self._file + 1, CHUNK), strict=True))
        for key, value in where.items():
            table = table.append_column(f"meta/episodes/{key}", pa.array([value], pa.int64()))
        self.write(table)


def table_of(columns: Mapping[str, np.ndarray]) -> Any:
    """A table from columns, in the types that LeRobot gives them."""
    pa, _ = pyarrow()
    arrays = {}
    for key, values in columns.items():
        flat = pa.array(values.reshape(-1))
        # LeRobot has a plain column where there is one number per row.
        single = values.ndim == 1 or values.shape[1] == 1
        arrays[key] = flat if single else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.table(arrays)


class Movie:
    """Videos of one camera: episodes encoded one by one, so that each begins with a keyframe, and joined."""

    def __init__(self, folder: Path, key: str, fps: float) -> None:
        self._folder, self._key, self._fps = folder, key, video.frame_rate(fps)
        self._file, self._bytes, self._frames = 0, 0, 0
        self._container: Any = None
        self._stream: Any = None

    def __enter__(self) -> Movie:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._container is not None:
            self._container.close()

    def append(self, rgb: np.ndarray) -> dict[str, Any]:
        """Add an episode; returns what the episode list says about it."""
        part = self._folder / "part.mp4"
        video.write_h264(part, rgb, self._fps)
        size = part.stat().st_size
        if self._container is not None and self._bytes + size >= VIDEO_MB * 2**20:
            self._container.close()
            self._container, self._bytes, self._frames, self._file = None, 0, 0, self._file + 1
        chunk, file = divmod(self._file, CHUNK)
        path = self._folder / VIDEO_PATH.format(video_key=self._key, chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(part)) as source:
            stream = source.streams.video[0]
            if self._container is None:
                self._container = av.open(str(path), "w", options={"fflags": "+bitexact"})
                self._stream = self._container.add_stream_from_template(stream)
                self._stream.time_base = stream.time_base
            for packet in source.demux(stream):
                if packet.dts is None or packet.pts is None:  # the end
                    continue
                later = round(self._frames / self._fps / packet.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts + later, packet.dts + later, self._stream
                self._container.mux(packet)
        part.unlink()
        begin, end = (float(frames / self._fps) for frames in (self._frames, self._frames + len(rgb)))
        self._bytes, self._frames = self._bytes + size, self._frames + len(rgb)
        said = {"chunk_index": chunk, "file_index": file, "from_timestamp": begin, "to_timestamp": end}
        return {f"videos/{self._key}/{name}": value for name, value in said.items()}


def pyarrow() -> tuple[Any, Any]:
    """The packages ``pyarrow`` and ``pyarrow.parquet``."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("writing LeRobot data sets needs pyarrow: pip install 'kinema4d[parquet]'") from None
    return arrow, parquet
