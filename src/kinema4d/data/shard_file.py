"""One shard: many episodes in one file, in pieces small enough to read a few frames of any of them.

Images are cut into blocks of ``BLOCK`` frames. A block lies row by row, the same row of all its frames side by side
([h,t,w] for [t,h,w]), because LZ4 looks back 64 KB only: so the row of the frame before is in reach whatever the image
size. On our simulator's episodes this compresses about as well as differences of frames, and is read several times faster, since
undoing it is part of the one copy that has to be made anyway (docs/shards.md has the figures).

    header   magic, version
    episode  blocks of images, arrays, and a JSON head that says where they are, counted from the episode's start
    ...
    index    JSON: how it was packed, and where each episode lies
    trailer  where the index is, SHA-256 of all before, magic

Every piece has a CRC-32 that is checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np

from kinema4d.files import whole_file

MAGIC = b"K4SHARD\0"
"""First bytes of a shard, and its last."""
VERSION = 1
"""Layout version this module writes and reads."""
BLOCK = 7
"""Frames that are compressed together. Twice as many are 12 % smaller, but a random window then decodes more."""
LEVEL = 4
"""Effort of LZ4's high-compression mode. Level 9 is 1 % smaller and twice as slow to write."""
PACK_AGAIN = "pack again (kinema4d data shards): whole shards are kept"
"""What to do about a damaged shard."""
_HEADER = struct.Struct("<8sII")
_TRAILER = struct.Struct("<QQ32s8s")


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One episode as bytes."""

    id: str
    """Its id in the data set."""
    sha256: str
    """Of its ``meta.json``: which version of it was packed."""
    frames: int
    """Frames kept."""
    content: bytes
    """Its pieces."""
    head: tuple[int, int, int]
    """Which of them is the head: offset, length, CRC-32."""


def pack_episode(
    head: Mapping[str, Any],
    images: Mapping[str, np.ndarray],
    groups: Mapping[str, Mapping[str, np.ndarray]],
    *,
    id: str,
    sha256: str,
) -> Packed:
    """An episode as bytes: ``images`` [t,h,w,...] in blocks, each of ``groups`` of small arrays in one piece, ``head``
    beside them."""
    content = bytearray()

    def piece(raw: bytes | np.ndarray) -> tuple[int, int, int]:
        data = lz4.block.compress(raw, mode="high_compression", compression=LEVEL, store_size=False)
        content.extend(data)
        return len(content) - len(data), len(data), zlib.crc32(data)

    where: dict[str, Any] = {"images": {}, "groups": {}}
    for name, stack in images.items():
        blocks = [piece(np.ascontiguousarray(stack[i : i + BLOCK].swapaxes(0, 1))) for i in range(0, len(stack), BLOCK)]
        where["images"][name] = {
            "dtype": stack.dtype.str,
            "shape": list(stack.shape),
            "block": BLOCK,
            "blocks": blocks,
        }
    for name, arrays in groups.items():
        raw, table = bytearray(), {}
        for key, array in arrays.items():
            table[key] = [array.dtype.str, list(array.shape), len(raw)]
            raw += array.tobytes() + bytes(-array.nbytes % 8)  # so that each begins where a float may
        raw += bytes(0 if raw else 8)  # LZ4 does not take nothing
        where["groups"][name] = {"bytes": len(raw), "arrays": table, "piece": piece(bytes(raw))}
    text = json.dumps({**head, **where}, allow_nan=False, separators=(",", ":")).encode()
    last = lz4.block.compress(text, mode="high_compression", compression=LEVEL, store_size=True)
    content += last
    place = (len(content) - len(last), len(last), zlib.crc32(last))
    return Packed(id=id, sha256=sha256, frames=head["frames"], content=bytes(content), head=place)


def write_shard(path: Path, config: Mapping[str, Any], episodes: Iterable[Packed]) -> None:
    """Write a shard, whole or not at all; what is there is replaced."""
    with whole_file(path, overwrite=True) as temporary, temporary.open("wb") as stream:
        digest, at, table = hashlib.sha256(), 0, []

        def put(data: bytes) -> None:
            nonlocal at
            stream.write(data)
            digest.update(data)
            at += len(data)

        put(_HEADER.pack(MAGIC, VERSION, 0))
        for one in episodes:
            offset, length, crc = one.head
            place = {"at": at, "bytes": len(one.content), "head": [at + offset, length, crc]}
            table.append({"id": one.id, "sha256": one.sha256, "frames": one.frames, **place})
            put(one.content)
        start = at
        put(json.dumps({"config": dict(config), "episodes": table}, allow_nan=False, separators=(",", ":")).encode())
        stream.write(_TRAILER.pack(start, at - start, digest.digest(), MAGIC))


class Shard:
    """A shard that is open to read. Safe in several threads; the file is mapped, not loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ValueError(f"{path} is missing; {PACK_AGAIN}")
        with path.open("rb") as stream:
            size = path.stat().st_size
            if size < _HEADER.size + _TRAILER.size:
                raise ValueError(f"{path} is no whole shard: it has {size} bytes; {PACK_AGAIN}")
            self.bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self.view = memoryview(self.bytes)
        magic, version, _ = _HEADER.unpack_from(self.view)
        if magic != MAGIC:
            raise ValueError(f"{path} is not a kinema4d shard: it begins with {magic!r}, expected {MAGIC!r}")
        if version != VERSION:
            raise ValueError(
                f"{path} has shard version {version}, this kinema4d reads {VERSION}; pack the data set again"
            )
        start, length, self.digest, magic = _TRAILER.unpack_from(self.view, size - _TRAILER.size)
        if magic != MAGIC or start + length != size - _TRAILER.size:
            raise ValueError(f"{path} is truncated: its trailer is missing ({size} bytes); {PACK_AGAIN}")
        try:
            index = json.loads(bytes(self.view[start : start + length]))
            self.config: dict[str, Any] = index["config"]
            self.episodes: list[dict[str, Any]] = index["episodes"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} has a damaged index ({error!r}); {PACK_AGAIN}") from None

    def whole(self) -> bool:
        """Whether all bytes are those that were written."""
        return hashlib.sha256(self.view[: -_TRAILER.size]).digest() == self.digest

    def head(self, number: int) -> dict[str, Any]:
        """What the shard says about one of its episodes."""
        raw = lz4.block.decompress(self._piece(number, self.episodes[number]["head"], 0))
        return json.loads(raw)

    def images(
        self, number: int, head: Mapping[str, Any], name: str, frames: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Some frames, increasing, of one stack of images: only their blocks are read. Into ``out`` where given."""
        found = head["images"][name]
        dtype, (count, height, *rest), block = np.dtype(found["dtype"]), found["shape"], found["block"]
        if out is None:
            out = np.empty((len(frames), height, *rest), dtype)
        cuts = np.searchsorted(frames, np.arange(0, count + block, block))
        for i, place in enumerate(found["blocks"]):
            a, b = cuts[i], cuts[i + 1]
            if a == b:
                continue
            inside = min(block, count - i * block)
            size = inside * height * int(np.prod(rest)) * dtype.itemsize
            raw = lz4.block.decompress(self._piece(number, place), uncompressed_size=size)
            rows = np.frombuffer(raw, dtype).reshape(height, inside, *rest).swapaxes(0, 1)
            wanted = frames[a:b] - i * block
            out[a:b] = rows[wanted[0] : wanted[-1] + 1] if wanted[-1] - wanted[0] == b - a - 1 else rows[wanted]
        return out

    def arrays(self, number: int, head: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
        """One group of small arrays, read-only."""
        found = head["groups"][name]
        raw = lz4.block.decompress(self._piece(number, found["piece"]), uncompressed_size=found["bytes"])
        return {key: np.ndarray(shape, dtype, raw, offset) for key, (dtype, shape, offset) in found["arrays"].items()}

    def _piece(self, number: int, place: Iterable[int], start: int | None = None) -> memoryview:
        """Compressed bytes, from the episode's start unless another is given."""
        offset, length, crc = place
        begin = (self.episodes[number]["at"] if start is None else start) + offset
        data = self.view[begin : begin + length]
        if zlib.crc32(data) != crc:
            raise ValueError(
                f"{self.path}: episode {self.episodes[number]['id']!r} is damaged (a CRC-32 differs); {PACK_AGAIN}"
            )
        return data
