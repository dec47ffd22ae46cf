"""Held-out samples: whole scenes, so that nothing that is validated on was learned from."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable


@runtime_checkable
class Grouped(Protocol):
    """Something of a scene."""

    @property
    def group(self) -> str:
        """Which scene."""
        ...


S = TypeVar("S", bound=Grouped)


def split(samples: Sequence[S], share: float = 0.1) -> tuple[list[S], list[S]]:
    """To learn from and to validate on: whole groups, chosen by their names."""
    groups = sorted({s.group for s in samples}, key=lambda g: zlib.crc32(g.encode()))
    if len(groups) < 2:
        raise ValueError(f"all episodes show one scene ({groups}): at least 2 are needed, one to validate on")
    kept = set(groups[: max(1, round(share * len(groups)))])
    return [s for s in samples if s.group not in kept], [s for s in samples if s.group in kept]
