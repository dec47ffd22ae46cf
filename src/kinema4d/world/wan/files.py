"""Weights as files, looked at without loading them: what is in a folder, whether it is whole, and what does not belong there."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SAFE = ".safetensors"
INDEX = "diffusion_pytorch_model.safetensors.index.json"
UNSAFE = (".bin", ".pkl", ".ckpt")
"""Files that run code when they are read: refused."""
WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1}  # fmt: skip
"""Bytes of a number."""


@dataclass(frozen=True)
class Tensor:
    """What a header says of a tensor."""

    file: Path
    """Where it is."""
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    """Its size."""

    @property
    def bytes(self) -> int:
        """That it takes."""
        count = 1
        for n in self.shape:
            count *= n
        return count * WIDTHS.get(self.dtype, 4)


def header(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Names, sizes and metadata of a safetensors file, out of its first kilobytes; one that ends too early is refused."""
    if path.suffix in UNSAFE:
        raise ValueError(f"{path} is a pickle, which may run any code when it is read: convert it to safetensors")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size, 100_000_000):
            raise ValueError(f"{path} is no safetensors file, or the start of one: {size} bytes")
        try:
            found = json.loads(file.read(length))
        except (UnicodeDecodeError, json.JSONDecodeError):
            raise ValueError(f"{path} is no safetensors file: its header cannot be read") from None
    about = found.pop("__metadata__", {})
    end = 8 + length + max((t["data_offsets"][1] for t in found.values()), default=0)
    if size != end:
        raise ValueError(f"{path} has {size:,} bytes of {end:,}: it was downloaded only in part, get it again")
    return {n: Tensor(path, t["dtype"], tuple(t["shape"])) for n, t in found.items()}, about


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model's folder, in one file or in shards with an index; missing shards are named."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder of weights at {folder}")
    index = folder / INDEX
    where: Mapping[str, str] = {}
    if index.is_file():
        where = json.loads(index.read_text())["weight_map"]
        names = sorted(set(where.values()))
        if missing := [n for n in names if not (folder / n).is_file()]:
            raise ValueError(f"{folder} lacks {len(missing)} of {len(names)} shards, first {missing[0]}: download them")
    else:
        names = sorted(p.name for p in folder.glob(f"*{SAFE}"))
        if not names:
            unsafe = sorted(p.name for p in folder.iterdir() if p.suffix in UNSAFE)
            more = f"; {unsafe[0]} is a pickle and is not read" if unsafe else ""
            raise ValueError(f"{folder} holds no {SAFE} file{more}")
    out: dict[str, Tensor] = {}
    for name in names:
        out |= header(folder / name)[0]
    if lost := sorted(where.keys() - out.keys()):
        raise ValueError(f"{folder}: the index names {len(lost)} tensors that no shard has, first {lost[0]!r}")
    return out


def compare(found: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]], where: str | Path) -> None:
    """Refuse what is missing, strange or of another size, by name."""
    missing, strange = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or strange:
        what = (
            [f"lacks {missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")] if missing else []
        )
        what += [f"has {strange[0]!r}" + (f" and {len(strange) - 1} more" if len(strange) > 1 else "") + ", which do not belong there"] if strange else []  # fmt: skip
        raise ValueError(f"{where} {' and '.join(what)}")
    for name, tensor in found.items():
        if tensor.shape != tuple(wanted[name]):
            raise ValueError(f"{where}: {name!r} is {list(tensor.shape)}, expected {list(wanted[name])}")
