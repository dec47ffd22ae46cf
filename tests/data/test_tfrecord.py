"""Records and Examples come back as they were written, and damage is always noticed."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kinema4d.data.ingest.tfrecord import crc32c, encode_example, masked_crc32c, parse_example, records, write_records

SHARD = "bridge_rlds/bridge_dataset/1.0.0/bridge_dataset-train.tfrecord-00000-of-00001"

BITS = st.binary(max_size=40)
FEATURES = st.dictionaries(
    st.text(max_size=8),
    st.lists(BITS, max_size=4)
    | hnp.arrays(np.float32, st.integers(0, 9), elements=st.floats(width=32))
    | hnp.arrays(np.int64, st.integers(0, 9)),
    max_size=5,
)


def same(a: dict, b: dict) -> bool:
    return list(a) == list(b) and all(
        x == y
        if isinstance(x, list) or isinstance(y, list)
        else x.dtype == y.dtype and x.tobytes() == y.tobytes()  # bit for bit: NaN and -0.0 too
        for x, y in zip(a.values(), b.values(), strict=True)
    )


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def example(name: bytes, feature: bytes) -> bytes:
    return field(1, field(1, field(1, name) + field(2, feature)))


def refusal(data: bytes) -> str | None:
    """How these bytes are refused, if they are; nothing but a ValueError may come out."""
    try:
        parse_example(data)
    except ValueError as error:
        message = str(error)
    else:
        return None
    assert message.startswith("not a tf.train.Example: ")
    return message


def slow_crc32c(data: bytes) -> int:
    """One bit at a time, as RFC 3720 defines it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4, whose bytes are in the order they are sent.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (
            bytes.fromhex("01c00000000000000000000000000000140000000000040000000014000000182800000000000000")
            + bytes.fromhex("0200000000000000"),
            0xD9963A56,
        ),
    ],
)
def test_crc32c_has_the_published_values(data: bytes, crc: int):
    assert crc32c(data) == crc == slow_crc32c(data)


@given(st.binary(max_size=100))
def test_crc32c_is_the_slow_one(data: bytes):
    assert crc32c(data) == slow_crc32c(data)


@settings(max_examples=30)
@given(payloads=st.lists(st.binary(max_size=300), max_size=5))
def test_records_come_back(tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]):
    path = tmp_path_factory.mktemp("records") / "a.tfrecord"
    assert write_records(path, payloads) == len(payloads)
    assert list(records(path)) == payloads
    assert path.stat().st_size == sum(16 + len(p) for p in payloads)


def test_the_file_is_what_tensorflow_writes(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    write_records(path, [b"abc"])
    mask = lambda crc: ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF  # noqa: E731
    head = b"\x03\0\0\0\0\0\0\0"
    expected = head + struct.pack("<I", mask(slow_crc32c(head))) + b"abc" + struct.pack("<I", mask(slow_crc32c(b"abc")))
    assert path.read_bytes() == expected
    with pytest.raises(ValueError, match="overwrite"):
        write_records(path, [])
    assert write_records(path, [], overwrite=True) == 0
    assert list(records(path)) == []


def test_a_failed_write_leaves_nothing(tmp_path: Path):
    def payloads():
        yield b"first"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_records(tmp_path / "a.tfrecord", payloads())
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    write_records(path, [b"first", b"second payload"])
    good = path.read_bytes()
    second = 16 + len(b"first")
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        number, offset = (0, 0) if at < second else (1, second)
        with pytest.raises(ValueError, match=rf"a\.tfrecord, record {number} at byte {offset}: .*again"):
            list(records(path))
    for size in range(1, len(good)):
        path.write_bytes(good[:size])
        if size == second:
            continue  # a cut between records leaves a whole file; the data set's count notices it
        with pytest.raises(ValueError, match=rf"record {int(size > second)} at byte .*again"):
            list(records(path))


def test_an_absurd_length_with_a_right_crc_is_refused(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    head = struct.pack("<Q", 2**63)
    path.write_bytes(head + struct.pack("<I", masked_crc32c(head)) + b"short")
    with pytest.raises(
        ValueError, match=r"record 0 at byte 0: it needs 9223372036854775812 bytes, but only 5 are left"
    ):
        list(records(path))


def test_what_is_not_a_file_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="cannot read .*nothing"):
        list(records(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="cannot read"):
        list(records(tmp_path))


@given(FEATURES)
def test_examples_come_back(features: dict):
    assert same(parse_example(encode_example(features)), features)


def test_both_ways_to_write_numbers():
    minus_two = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    one, half = struct.pack("<f", 1.0), struct.pack("<f", 0.5)
    packed = {"f": field(2, field(1, one + half)), "i": field(3, field(1, b"\x96\x01" + minus_two))}
    single = {
        "f": field(2, b"\x0d" + one + b"\x0d" + half),
        "i": field(3, b"\x08\x96\x01" + b"\x08" + minus_two),
    }
    mixed = {"f": field(2, b"\x0d" + one + field(1, half)), "i": field(3, field(1, b"\x96\x01") + b"\x08" + minus_two)}
    expected = {"f": np.array([1, 0.5], np.float32), "i": np.array([150, -2])}
    for way in (packed, single, mixed):
        for name, feature in way.items():
            assert same(parse_example(example(name.encode(), feature)), {name: expected[name]})
    assert b"".join(example(n.encode(), f)[2:] for n, f in packed.items()) == encode_example(expected)[2:]


def test_the_extremes_of_int64():
    values = np.array([0, 1, -1, 127, 128, 2**63 - 1, -(2**63)])
    assert same(parse_example(encode_example({"i": values})), {"i": values})


def test_empty_parts():
    assert parse_example(b"") == {}
    assert parse_example(field(1, b"")) == {}
    assert parse_example(field(1, field(1, b""))) == {"": []}
    assert parse_example(example(b"a", b"")) == {"a": []}
    assert same(parse_example(example(b"a", field(2, b""))), {"a": np.empty(0, np.float32)})
    assert same(parse_example(example(b"a", field(3, field(1, b"")))), {"a": np.empty(0, np.int64)})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0a", "ends inside a number"),
        (b"\x0a\x05a", "needs 5 bytes, but 1 are left"),
        (b"\x80" * 11, "longer than 10 bytes"),
        (b"\x00", "field 0 of wire type 0"),
        (field(2, b""), "field 2"),
        (b"\x08\x01", "field 1 of wire type 0"),
        (example(b"\xff", b""), "not UTF-8"),
        (example(b"a", field(4, b"")), "'a' has field 4"),
        (example(b"a", field(1, b"") + field(2, b"")), "'a' has 2 lists"),
        (field(1, 2 * field(1, field(1, b"a"))), "'a' is there twice"),
        (field(1, field(1, 2 * field(1, b"a"))), "two names"),
        (example(b"a", field(2, field(1, b"123"))), "floats that end early"),
        (example(b"a", field(2, field(1, b"123") + field(1, b"4"))), "floats that end early"),
        (example(b"a", field(2, b"\x08\x01")), "field 1 of wire type 0"),
        (example(b"a", field(3, field(1, b"\x80"))), "integers that end early"),
        (example(b"a", field(3, field(1, b"\x80") + field(1, b"\x01"))), "integers that end early"),
        (example(b"a", field(3, field(1, b"\xff" * 9 + b"\x02"))), "exceed 64 bits"),
        (example(b"a", field(3, b"\x08" + b"\xff" * 9 + b"\x02")), "exceed 64 bits"),
        (example(b"a", field(3, field(1, b"\xff" * 10 + b"\x01"))), "exceed 64 bits"),
    ],
)
def test_malformed_examples_are_refused(data: bytes, problem: str):
    with pytest.raises(ValueError, match=f"not a tf.train.Example: .*{problem}"):
        parse_example(data)


@pytest.mark.parametrize("values", [np.zeros(2), np.zeros((2, 2), np.float32), np.zeros(2, np.int32)])
def test_only_what_an_example_can_hold_is_encoded(values: np.ndarray):
    with pytest.raises(ValueError, match=rf"feature 'a': .*float32 \[n\] or int64 \[n\], got {values.dtype}"):
        encode_example({"a": values})


def test_mutated_bytes_parse_or_raise_value_error():
    good = encode_example(
        {
            "steps/action": np.linspace(-1, 1, 14, dtype=np.float32),
            "steps/is_first": np.array([1, 0, -5, 2**40]),
            "steps/image": [b"\xff\xd8\xff", b"", b"x" * 200],
        }
    )
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(4000):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(len(data))
            match rng.integers(3):
                case 0:
                    data[at] = rng.integers(256)
                case 1:
                    del data[at : at + rng.integers(1, 9)]
                case _:
                    data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        refused += refusal(bytes(data)) is not None
    assert 1000 < refused < 4000


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_raise_value_error(data: bytes):
    refusal(data)


def test_real_records_encode_to_the_same_bytes(data: Path):
    payloads = list(records(data / SHARD))
    assert len(payloads) == 19
    assert [encode_example(parse_example(p)) for p in payloads] == payloads


def test_a_flipped_bit_in_a_real_file_names_the_record(data: Path, tmp_path: Path):
    content = bytearray((data / SHARD).read_bytes())
    first = 16 + struct.unpack("<Q", content[:8])[0]
    content[first + 5000] ^= 4
    path = tmp_path / "damaged.tfrecord"
    path.write_bytes(content)
    reader = records(path)
    next(reader)
    with pytest.raises(ValueError, match=rf"damaged\.tfrecord, record 1 at byte {first}: wrong CRC of its \d+ bytes"):
        next(reader)
