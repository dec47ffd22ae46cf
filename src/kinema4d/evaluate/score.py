"""What a metric is: a pair goes in, named numbers come out, and where there is no number, the reason why.

A metric module has ``METRICS``, which says what each of its numbers means, and ``scores(pair, ...)``, which returns
one entry per name: a finite float, or :class:`NA`. Nothing that could be taken for a score stands in for a missing one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinema4d.types import Clip, Episode, Track

FIRST_CAMERA_TOLERANCE = 1e-4
"""Largest accepted difference between two cameras' numbers, relative to their size: files round."""


@dataclass(frozen=True)
class NA:
    """Not applicable, and why."""

    reason: str
    """One line for people, such as ``no object moved``."""

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("a missing score needs a reason")


Value = float | NA
"""A score, or why there is none."""
Scores = dict[str, Value]
"""Scores of one pair by name."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a number means."""

    label: str
    """For tables, such as ``CD-L1``."""
    unit: str
    """``m``, ``m²``, ``dB``, ``%`` (of a share between 0 and 1), ``deg``, ``frames``, or empty."""
    better: str
    """``higher``, ``lower``, or ``none`` where neither is better."""
    group: str
    """Table it belongs to: ``video``, ``geometry``, ``following``, ``interaction`` or ``policy``."""
    text: str
    """How it is computed, in one sentence."""
    digits: int = 3
    """Decimals shown; the files keep all."""
    yes_no: bool = False
    """Whether every value is 0 or 1: its mean is a rate, with Wilson's interval."""

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower", "none"):
            raise ValueError(f"better must be higher, lower or none, got {self.better!r}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """A prediction beside its truth, on the same pixels and the same clock."""

    predicted: Clip
    """What was generated."""
    truth: Episode
    """What happened."""
    tracks: tuple[Track, ...] = ()
    """Where the prediction says that things are, if it says so; named as the truth's."""

    def __post_init__(self) -> None:
        a, b = self.predicted, self.truth.clip
        if a.rgb.shape[1:3] != b.rgb.shape[1:3]:
            raise ValueError(
                f"the prediction is {a.rgb.shape[1]}x{a.rgb.shape[2]} pixels and its truth {b.rgb.shape[1]}x{b.rgb.shape[2]}: "
                "scores need the same pixels; generate at the truth's size"
            )
        if len(a) != len(b):
            raise ValueError(
                f"the prediction has {len(a)} frames and its truth {len(b)}: scores need the same clock; cut or generate again"
            )
        for name in ("K", "T_world_camera"):
            x, y = getattr(a.camera, name), getattr(b.camera, name)
            if name == "T_world_camera":
                x, y = a.camera.poses(len(a)), b.camera.poses(len(b))
            gap = float(np.abs(x - y).max())
            if gap > FIRST_CAMERA_TOLERANCE * max(1.0, float(np.abs(y).max())):
                raise ValueError(
                    f"prediction and truth were seen by different cameras: {name} differs by up to {gap:.3g}; "
                    "generate with the truth's camera"
                )


def finite(value: float, reason: str) -> Value:
    """The value, or why it is none when it is not finite."""
    return float(value) if np.isfinite(value) else NA(reason)


def value_or(scores: Scores, name: str, other: float) -> float:
    """A score as a number, or ``other`` where it is missing."""
    found = scores[name]
    return other if isinstance(found, NA) else found
