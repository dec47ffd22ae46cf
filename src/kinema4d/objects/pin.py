"""Points that are held, or that a hand leads somewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Pin:
    """Points that are held, or led by hand, for some time."""

    on: Tensor
    """Indices."""
    path: Callable[[float], Tensor] | None = None
    """Seconds to where they are [n,3] or [b,n,3]; None: where they were at the start, or on their way to ``goal``."""
    goal: Tensor | None = None
    """[n,3] where a hand has brought them by ``end``, smoothly from where they are and how they move at ``begin``."""
    begin: float = 0.0
    """Seconds."""
    end: float = float("inf")
    """Seconds; after it they are let go."""
    give: float = 0.0
    """0: they are there exactly, and a step in which that cannot be stops the run. More: a hand, which follows as far as the body can, and gives way
    to it by this share of how far its force would move the points freely."""
    strength: float = float("inf")
    """Of a hand, newton per point: it pulls no harder."""

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end:
            raise ValueError(f"a pin begins at 0 s or later and ends after that, got {self.begin:g}-{self.end:g} s")
        if self.goal is not None and (self.path is not None or self.end == float("inf")):
            raise ValueError("a hand that brings points somewhere needs an end, and no path")
        if not self.strength > 0 or (self.strength < float("inf") and self.give == 0):
            raise ValueError(f"strength is of a hand, which gives way, and positive; got {self.strength:g} N and give {self.give:g}")  # fmt: skip

    def begun(self, time: float, step: float) -> bool:
        """Whether it begins at ``time`` or did before."""
        return self.begin <= time + 1e-9 * step

    def holds(self, time: float, step: float) -> bool:
        """Whether it does at the end of the step that begins at ``time``."""
        return self.begun(time, step) and time + step <= self.end + 1e-9 * step


def way(start: Tensor, speed: Tensor, goal: Tensor, seconds: float, after: float) -> Tensor:
    """Where a hand is ``after`` so much of its ``seconds``: from where and how fast points are to where they stand still, with no jerk at either end
    (the polynomial of fifth degree without acceleration there)."""
    s, lead, far = min(after / seconds, 1.0), speed * seconds, goal - start
    return start + s * lead + s**3 * (
        (10 * far - 6 * lead) + s * ((8 * lead - 15 * far) + s * (6 * far - 3 * lead))
    )  # fmt: skip
