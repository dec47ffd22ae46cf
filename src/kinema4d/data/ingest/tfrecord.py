"""TFRecord files and the ``tf.train.Example`` messages inside them, without TensorFlow.

A record is its length (u64, little endian), a masked CRC32C of those eight bytes, the payload, and a
masked CRC32C of the payload. An Example is a protobuf map from names to one list each: of bytes, of
float32 or of int64. That format has not changed since 2015, so a field that it does not have is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from kinema4d.data.ingest import tfrecord_kernels as kernels
from kinema4d.files import whole_file

Values = list[bytes] | np.ndarray
"""What a feature of an Example holds: byte strings, or a float32 or int64 [n] array."""

_AGAIN = "copy or download the file again"
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_LISTS = {_BYTES_LIST: _BYTES, _FLOAT_LIST: _FIXED32, _INT64_LIST: _VARINT}
"""The wire type of a single value, by the field number of the list."""


def crc32c(data: bytes) -> int:
    """CRC32C (Castagnoli) of ``data``."""
    return int(kernels.crc32c(np.frombuffer(data, np.uint8)))


def masked_crc32c(data: bytes) -> int:
    """The CRC as TFRecord stores it: rotated and shifted, because a CRC over data with CRCs in it is weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path: str | Path) -> Iterator[bytes]:
    """The payloads of a TFRecord file in order; ``ValueError`` at the first one that is damaged."""
    path = Path(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    with file:
        size, offset, number = path.stat().st_size, 0, 0
        while offset < size:
            where = f"{path}, record {number} at byte {offset}"
            length = _payload_length(file.read(12), size - offset, where)
            payload, tail = file.read(length), file.read(4)
            _check_payload(payload, tail, length, where)
            yield payload
            offset += 16 + length
            number += 1


@dataclass(frozen=True, kw_only=True)
class RecordIndex:
    """Where the records of one TFRecord file are, found by hopping over their heads."""

    path: Path
    """The file."""
    offsets: tuple[int, ...]
    """Byte at which the head of each record begins."""
    lengths: tuple[int, ...]
    """Bytes of each payload."""
    damage: str = ""
    """Why the records end before the file does; empty where they do not."""


def index_records(path: str | Path) -> RecordIndex:
    """Find every record without reading the payloads; damaged heads end the index, for nothing tells what follows."""
    path = Path(path)
    offsets, lengths, offset = [], [], 0
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            while offset < size:
                file.seek(offset)
                where = f"{path}, record {len(offsets)} at byte {offset}"
                try:
                    length = _payload_length(file.read(12), size - offset, where)
                except ValueError as error:
                    damage = f"{error}; this record and the rest of the file are lost"
                    return RecordIndex(path=path, offsets=tuple(offsets), lengths=tuple(lengths), damage=damage)
                offsets.append(offset)
                lengths.append(length)
                offset += 16 + length
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; {_AGAIN}") from None
    return RecordIndex(path=path, offsets=tuple(offsets), lengths=tuple(lengths))


def read_record(index: RecordIndex, number: int) -> bytes:
    """The payload of one record; ``ValueError`` where it is damaged or not there."""
    if number >= len(index.offsets):
        reason = index.damage or f"{index.path} holds only {len(index.offsets)} records, no record {number}; {_AGAIN}"
        raise ValueError(reason)
    where = f"{index.path}, record {number} at byte {index.offsets[number]}"
    try:
        with index.path.open("rb") as file:
            file.seek(index.offsets[number] + 12)
            payload, tail = file.read(index.lengths[number]), file.read(4)
    except OSError as error:
        raise ValueError(f"cannot read {where}: {error.strerror}; {_AGAIN}") from None
    _check_payload(payload, tail, index.lengths[number], where)
    return payload


def write_records(path: str | Path, payloads: Iterable[bytes], *, overwrite: bool = False) -> int:
    """Write a TFRecord file, whole or not at all; returns how many records."""
    count = 0
    with whole_file(Path(path), overwrite=overwrite) as temporary, temporary.open("wb") as file:
        for payload in payloads:
            head = struct.pack("<Q", len(payload))
            file.write(head + struct.pack("<I", masked_crc32c(head)))
            file.write(payload)
            file.write(struct.pack("<I", masked_crc32c(payload)))
            count += 1
    return count


def parse_example(data: bytes) -> dict[str, Values]:
    """The features of a serialised ``tf.train.Example``; ``ValueError`` when the bytes are not one."""
    features: dict[str, Values] = {}
    for _, message in _fields(memoryview(data), "the Example", strings=(1,)):
        for _, entry in _fields(message, "its feature map", strings=(1,)):
            name, values = _entry(entry)
            if name in features:
                raise ValueError(f"not a tf.train.Example: feature {name!r} is there twice")
            features[name] = values
    return features


def encode_example(features: Mapping[str, Values]) -> bytes:
    """Serialise what :func:`parse_example` gives, byte for byte as TensorFlow does for features in this order."""
    entries = (_tagged(1, n.encode()) + _tagged(2, _encode_values(n, v)) for n, v in features.items())
    return _tagged(1, b"".join(_tagged(1, entry) for entry in entries))


def _payload_length(head: bytes, left: int, where: str) -> int:
    """Length of a record from its head, which has ``left`` bytes of the file from its first byte on."""
    if len(head) < 12:
        raise ValueError(f"{where}: the file ends inside the record's 12-byte head; {_AGAIN}")
    if masked_crc32c(head[:8]) != struct.unpack("<I", head[8:])[0]:
        raise ValueError(f"{where}: wrong CRC of the length, so this is damage or not a TFRecord file; {_AGAIN}")
    length = struct.unpack("<Q", head[:8])[0]
    # Asked before reading, so that an absurd length allocates nothing.
    if length + 4 > left - 12:
        raise ValueError(f"{where}: it needs {length + 4} bytes, but only {left - 12} are left; {_AGAIN}")
    return length


def _check_payload(payload: bytes, tail: bytes, length: int, where: str) -> None:
    if len(tail) < 4:
        raise ValueError(f"{where}: the file became shorter while it was read; {_AGAIN}")
    if masked_crc32c(payload) != struct.unpack("<I", tail)[0]:
        raise ValueError(f"{where}: wrong CRC of its {length} bytes; {_AGAIN}")


def _encode_values(name: str, values: Values) -> bytes:
    if isinstance(values, list):
        if not all(isinstance(v, bytes) for v in values):
            raise ValueError(f"feature {name!r}: a list must hold bytes, got {[type(v).__name__ for v in values]}")
        return _tagged(_BYTES_LIST, b"".join(_tagged(1, v) for v in values))
    if values.ndim != 1 or values.dtype not in (np.float32, np.int64):
        raise ValueError(
            f"feature {name!r}: an array must be float32 [n] or int64 [n], got {values.dtype} {list(values.shape)}; "
            "convert and ravel it first"
        )
    if values.dtype == np.float32:
        kind, packed = _FLOAT_LIST, values.astype("<f4").tobytes()
    else:
        kind, packed = _INT64_LIST, b"".join(_varint(int(v) & (2**64 - 1)) for v in values)
    return _tagged(kind, _tagged(1, packed) if len(values) else b"")


def _entry(data: memoryview) -> tuple[str, Values]:
    """One entry of the map: a name and a list. Protobuf leaves out what is empty."""
    fields = list(_fields(data, "an entry of the feature map", strings=(1, 2)))
    if len({number for number, _ in fields}) < len(fields):
        raise ValueError("not a tf.train.Example: an entry of the feature map has two names or two values")
    parts = dict(fields)
    try:
        name = bytes(parts.get(1, b"")).decode()
    except UnicodeDecodeError:
        raise ValueError(f"not a tf.train.Example: a feature is named {bytes(parts[1])!r}, not UTF-8") from None
    what = f"feature {name!r}"
    lists = list(_fields(parts.get(2, memoryview(b"")), what, strings=tuple(_LISTS)))
    if len(lists) > 1:
        raise ValueError(f"not a tf.train.Example: {what} has {len(lists)} lists, expected one")
    if not lists:
        return name, []
    kind, message = lists[0]
    if kind == _BYTES_LIST:
        return name, [bytes(value) for _, value in _fields(message, what, strings=(1,))]
    return name, _numbers(message, what, kind)


def _numbers(message: memoryview, what: str, kind: int) -> Shaped[np.ndarray, " n"]:
    """A float or int64 list. A number on its own has the bytes of a packed run of one, so runs are joined first."""
    runs = [run for _, run in _fields(message, what, strings=(1,), scalar=_LISTS[kind])]
    packed = np.frombuffer(b"".join(runs), np.uint8)
    if kind == _FLOAT_LIST:
        if any(len(run) % 4 for run in runs):
            raise ValueError(f"not a tf.train.Example: {what} has packed floats that end early")
        return packed.view("<f4").astype(np.float32, copy=False)
    out = np.empty(np.count_nonzero(packed < 0x80), np.int64)
    if any(len(run) and run[-1] >= 0x80 for run in runs) or not kernels.varints(packed, out):
        raise ValueError(f"not a tf.train.Example: {what} has integers that end early or exceed 64 bits")
    return out


def _fields(
    data: memoryview, what: str, *, strings: tuple[int, ...], scalar: int | None = None
) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field: those numbered in ``strings``, or field 1 with the wire type ``scalar``."""
    at = 0
    while at < len(data):
        start = at
        tag, at = _read_varint(data, at, what)
        number, wire = tag >> 3, tag & 7
        if not (wire == _BYTES and number in strings) and not (wire == scalar and number == 1):
            raise ValueError(f"not a tf.train.Example: {what} has field {number} of wire type {wire} at byte {start}")
        if wire == _BYTES:
            size, at = _read_varint(data, at, what)
        elif wire == _VARINT:
            size = _read_varint(data, at, what)[1] - at
        else:
            size = 4
        if size > len(data) - at:
            raise ValueError(f"not a tf.train.Example: {what} needs {size} bytes, but {len(data) - at} are left")
        yield number, data[at : at + size]
        at += size


def _read_varint(data: memoryview, at: int, what: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at == len(data):
            raise ValueError(f"not a tf.train.Example: {what} ends inside a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(f"not a tf.train.Example: {what} has a number longer than 10 bytes")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tagged(number: int, message: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(message)) + message
