"""What a check says, and the one place with all of its limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

Severity = Literal["ok", "warn", "bad"]
SEVERITIES: tuple[Severity, ...] = ("ok", "warn", "bad")
"""From best to worst."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found in one episode, or in the data set as a whole."""

    check: str
    """Name of the check."""
    severity: Severity
    """``warn``: look at it. ``bad``: do not train on it."""
    value: float | None = None
    """What was measured; None where the episode has nothing to measure it on."""
    limit: float | None = None
    """The limit that was crossed, or the nearest one that was not."""
    message: str
    """One sentence for people."""
    remedy: str = ""
    """What to do about it; empty when all is well."""
    score: float = 1.0
    """1 up to the ``warn`` limit, 0.5 at the ``bad`` limit, 0 as far again beyond it; straight lines between."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Every limit. Pairs are (warn, bad); where warn < bad more is worse, else less is worse."""

    frames: int = 2
    """Fewest frames of an episode."""
    focal_widths: tuple[float, float] = (0.3, 5.0)
    """Smallest and largest focal length, in image widths: fields of view of 118 and 11 degrees."""
    camera_jump_m: tuple[float, float] = (0.1, 0.3)
    """Largest step of a moving camera beyond five times its median step, metres."""
    polarity: tuple[float, float] = (0.3, -0.3)
    """Correlation of commanded and observed gripper closedness."""
    gripper_motion: float = 0.15
    """Closedness (0..1) that both must span before polarity is judged."""
    sync_frames: tuple[float, float] = (1.0, 2.0)
    """Frames by which images and states are out of step."""
    sync_gain: tuple[float, float] = (0.02, 0.05)
    """By how much a shift must improve the agreement before it is believed: mask overlap, image correlation."""
    sync_search: int = 5
    """Largest shift tried, frames."""
    flip_gain: float = 0.15
    """By how much a flip must improve the agreement before it is believed."""
    flip_floor: tuple[float, float] = (0.4, 0.25)
    """Agreement that a flip must reach to be believed: mask overlap, image correlation."""
    off_ray_px: tuple[float, float] = (1.0, 4.0)
    """95 % of the points lie this close to the ray of their pixel, pixels."""
    robot_depth_mm: tuple[float, float] = (10.0, 40.0)
    """Median difference of stored and kinematic depth on the robot, millimetres."""
    mask_overlap: tuple[float, float] = (0.75, 0.4)
    """Intersection over union of labelled and kinematic robot."""
    image_agreement: tuple[float, float] = (0.1, -0.1)
    """Correlation of image change and kinematic change, where there are no labels."""
    frozen_share: tuple[float, float] = (0.02, 0.1)
    """Share of the moments in which the robot moves but the picture does not."""
    frozen_levels: float = 10.0
    """Grey levels (of 255) by which a pixel must change to count as changed."""
    frozen_px: float = 1.0
    """Pixels per frame that the tool must move for a still picture to be suspicious."""
    jump_share: tuple[float, float] = (0.02, 0.1)
    """Share of the steps that are ``jump_ratio`` times as large as both neighbours."""
    jump_ratio: float = 2.5
    """See ``jump_share``. Down-sampling to whole frames makes steps that differ by 2, so less would be noise."""
    jitter: tuple[float, float] = (1.3, 1.55)
    """RMS of the change of velocity over RMS of velocity: 0.1 to 0.3 for smooth motion, up to 1 for DROID at two frames a
    second, 1.41 for independent steps, 1.73 for positions that are noise."""
    jitter_m: float = 0.002
    """Change of tool velocity, metres per frame squared, under which jitter does not matter."""
    depth_holes: tuple[float, float] = (0.4, 0.8)
    """Share of pixels without depth, in episodes that have depth."""
    command_m: tuple[float, float] = (0.05, 0.15)
    """Median distance of commanded and observed tool, metres; absolute action spaces."""
    command_agreement: tuple[float, float] = (0.4, 0.0)
    """Cosine between commanded and observed tool steps; relative action spaces."""
    command_lag: int = 10
    """Largest lag of the states behind the commands that is tried, frames."""
    keep_score: float = 0.25
    """Curation keeps episodes of at least this score, none of whose checks is bad."""


def grade(
    check: str, value: float, limits: tuple[float, float], message: str, remedy: str, *, worst: Severity = "bad"
) -> Finding:
    """Hold ``value`` against (warn, bad) limits; ``worst`` caps the severity."""
    value, (warn, bad) = float(value), limits
    beyond = (value - warn) / (bad - warn)
    severity: Severity = "ok" if beyond < 0 else "warn" if beyond < 1 or worst == "warn" else "bad"
    return Finding(
        check=check,
        severity=severity,
        value=value,
        limit=float(bad if severity == "bad" else warn),
        message=message,
        remedy="" if severity == "ok" else remedy,
        score=min(max(1 - beyond / 2, 0.5 if worst == "warn" else 0.0), 1.0),
    )


def worst_of(severities: Iterable[Severity]) -> Severity:
    """The worst of several; ``ok`` where there is none."""
    return SEVERITIES[max((SEVERITIES.index(s) for s in severities), default=0)]


def nothing(check: str, why: str) -> Finding:
    """A check that had nothing to measure."""
    return Finding(check=check, severity="ok", message=f"not measured: {why}")


def bad(check: str, message: str, remedy: str, value: float | None = None, limit: float | None = None) -> Finding:
    """A plain failure."""
    return Finding(check=check, severity="bad", value=value, limit=limit, message=message, remedy=remedy, score=0.0)


def load_thresholds(file: Path | None = None, limits: Sequence[str] = ()) -> Thresholds:
    """Defaults, changed by a JSON object in ``file`` and then by texts like ``jitter=1.0,1.5``."""
    changes: dict[str, Any] = {}
    if file is not None:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot read thresholds from {file}: {error}; it must be a JSON object") from None
        if not isinstance(content, Mapping):
            raise ValueError(f"{file} must hold a JSON object of thresholds, got {type(content).__name__}")
        changes |= content
    for text in limits:
        name, found, value = text.partition("=")
        if not found:
            raise ValueError(f'a limit reads "name=number" or "name=warn,bad", got {text!r}')
        try:
            numbers = [float(part) for part in value.split(",")]
        except ValueError:
            raise ValueError(f"limit {text!r} must be numbers, separated by a comma") from None
        changes[name.strip().replace("-", "_")] = numbers if len(numbers) > 1 else numbers[0]
    return replace(Thresholds(), **{name: _fit(name, value) for name, value in changes.items()})


def _fit(name: str, value: Any) -> Any:
    known = {f.name: getattr(Thresholds(), f.name) for f in fields(Thresholds)}
    if name not in known:
        raise ValueError(f"unknown threshold {name!r}; known are {', '.join(known)}")
    default = known[name]
    numbers = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        raise ValueError(f"threshold {name} must be numbers, got {value!r}")
    if isinstance(default, tuple):
        if len(numbers) != 2 or numbers[0] == numbers[1]:
            raise ValueError(f"threshold {name} needs two different numbers (default {default}), got {value!r}")
        return (float(numbers[0]), float(numbers[1]))
    if len(numbers) != 1:
        raise ValueError(f"threshold {name} is one number (default {default}), got {value!r}")
    return type(default)(numbers[0])


def thresholds_to_dict(thresholds: Thresholds) -> dict[str, Any]:
    """As JSON has it."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(thresholds).items()}
