"""What an evaluation found, row by row, and what it comes to: means, intervals, breakdowns, the test against the baseline.

A mean never hides what it left out: next to it stand how many scores are missing and why.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from kinema4d.evaluate.score import NA, About, Scores, Value
from kinema4d.evaluate.statistics import bootstrap_interval, holm, paired, rate_interval

PREDICTION, STATIC, TRUTH = "prediction", "static", "truth"
"""The judged world, the baseline and the ceiling."""
FIELDS = ("source", "task", "outcome", "robot", "scenario")
"""What results are broken down by."""
KEYS = ("world", "episode", "seed", "source", "task", "outcome", "group", "robot", "scenario")
"""Columns before the scores."""
ALPHA = 0.05
"""A difference counts as shown where its p after Holm's correction is below this and its interval excludes zero."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One evaluated rollout of one world."""

    world: str
    """``prediction`` (or the run's name, if ``config["prediction"]`` says so), ``static`` or ``truth``."""
    episode: str
    """Id of its truth."""
    seed: int | None
    """Which sample of the episode it is, if there are several."""
    source: str
    """Data set it came from."""
    task: str
    """Kind of task."""
    outcome: str
    """How the truth ends."""
    group: str
    """What it is not independent of: the scene. Empty for the episode itself."""
    robot: str
    """Robots in it."""
    scenario: str
    """How the motion was made: demonstration, noisy, near miss ..."""
    scores: Scores
    """A number or a reason by metric."""
    details: dict[str, Any]
    """What explains the scores, as JSON has it. The page draws these keys, here or one level down: ``along``
    (``{metric: [value or null per frame]}``), ``links`` (``{link: metres}``) and ``reliability``
    (``{name: [[count, sum of predicted, sum of observed] per bin]}``)."""

    def __post_init__(self) -> None:
        for name, value in self.scores.items():
            if not isinstance(value, NA) and not math.isfinite(value):
                raise ValueError(f"{name} of {self.episode} is {value}: a score is finite, or NA with its reason")

    @property
    def unit(self) -> str:
        """What is resampled together with it: its group, or all seeds of its episode."""
        return self.group or self.episode

    @property
    def key(self) -> tuple[str, int | None]:
        """What pairs rows of different worlds and runs."""
        return self.episode, self.seed


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything an evaluation found."""

    rows: tuple[Row, ...]
    """One per rollout and world."""
    set_scores: dict[str, Scores]
    """Numbers of all rollouts together, such as FVD, by world."""
    about: dict[str, About]
    """What each number means, in the order of the tables."""
    config: dict[str, Any]
    """Settings, hashes of all inputs and versions, as JSON has them; no time and no path, which say nothing about scores."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("a report needs at least one evaluated rollout")
        seen = Counter((row.world, *row.key) for row in self.rows)
        twice = [k for k, n in seen.items() if n > 1]
        if twice:
            raise ValueError(f"world, episode and seed must be unique, but {twice[0]} comes {seen[twice[0]]} times")
        strangers = {n for row in self.rows for n in row.scores} | {n for s in self.set_scores.values() for n in s}
        if strangers - set(self.about):
            raise ValueError(
                f"scores without a meaning: {', '.join(sorted(strangers - set(self.about)))}; name them in about"
            )
        both = {n for row in self.rows for n in row.scores} & {n for s in self.set_scores.values() for n in s}
        if both:
            raise ValueError(f"{', '.join(sorted(both))} cannot be scores of a rollout and of all rollouts at once")
        clash = set(self.about) & {*KEYS, "missing", "details"}
        if clash:
            raise ValueError(f"metrics cannot be called {', '.join(sorted(clash))}: these are columns of the table")
        if self.prediction not in self.worlds:
            raise ValueError(f"no row is of the judged world {self.prediction!r}; worlds are {', '.join(self.worlds)}")

    @property
    def prediction(self) -> str:
        """Name of the judged world."""
        return str(self.config.get("prediction", PREDICTION))

    @property
    def worlds(self) -> tuple[str, ...]:
        """The judged world, then others, the truth last."""
        order = {self.prediction: 0, STATIC: 1, TRUTH: 3}
        return tuple(sorted({row.world for row in self.rows}, key=lambda w: (order.get(w, 2), w)))

    def of(self, world: str) -> tuple[Row, ...]:
        """A world's rows, in a fixed order."""
        rows = [row for row in self.rows if row.world == world]
        return tuple(sorted(rows, key=lambda r: (r.episode, -1 if r.seed is None else r.seed)))


def numbers(rows: Iterable[Row], name: str) -> list[float]:
    """A metric's values, without the missing ones."""
    return [float(v) for row in rows if not isinstance(v := row.scores.get(name, NA("not measured")), NA)]


def summary_to_dict(report: Report) -> dict[str, Any]:
    """The summary as JSON has it; missing numbers are null next to their reasons."""
    return json.loads(_summary(report))


@lru_cache(maxsize=2)
def _summary(report: Report) -> str:
    """As text, so that nobody changes what is kept; reports are compared by identity."""
    worlds = {world: report.of(world) for world in report.worlds}
    # A share that happens to be 1 for the truth is still a share: a rate of yes and no is one in all worlds.
    rates = {n for n, a in report.about.items() if a.yes_no}
    out = {
        "prediction": report.prediction,
        "worlds": list(worlds),
        "episodes": len({row.episode for row in report.rows}),
        "groups": len({row.unit for row in report.rows}),
        "rows": {world: len(rows) for world, rows in worlds.items()},
        "metrics": {name: asdict(about) for name, about in report.about.items()},
        "metric_order": list(report.about),
        "summary": {world: _metrics(report, rows, rates) for world, rows in worlds.items()},
        "set_scores": {w: {k: plain(v) for k, v in scores.items()} for w, scores in report.set_scores.items()},
        "breakdown": {field: _breakdown(report, worlds, field, rates) for field in FIELDS},
        "against_static": against(report, STATIC) if STATIC in worlds and report.prediction != STATIC else {},
        "config": report.config,
    }
    try:
        return json.dumps(out, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the configuration of a report must be plain JSON without NaN: {error}") from None


def against(report: Report, baseline: str) -> dict[str, Any]:
    """By metric, how the judged world differs from a baseline on the same episodes."""
    rows = report.of(report.prediction)
    others = {row.key: row for row in report.of(baseline)}
    matched = [(others.get(row.key) or others.get((row.episode, None)), row) for row in rows]
    pairs = [(a, b) for a, b in matched if a is not None]
    names = [n for n in report.about if any(n in row.scores for row in rows)]
    return differences(pairs, {n: report.about[n] for n in names})


def differences(pairs: Sequence[tuple[Row, Row]], about: Mapping[str, About]) -> dict[str, Any]:
    """By metric: mean of second minus first, interval, p, p after Holm's correction over all metrics, and the verdict."""
    out: dict[str, Any] = {}
    for name, meaning in about.items():
        kept, left_out = [], 0
        for a, b in pairs:
            x, y = a.scores.get(name), b.scores.get(name)
            if isinstance(x, float | int) and isinstance(y, float | int):
                kept.append((float(x), float(y), b.unit))
            else:
                left_out += 1
        found = paired([k[0] for k in kept], [k[1] for k in kept], groups=[k[2] for k in kept])
        entry: dict[str, Any] = {"n": len(kept), "n_missing": left_out, "better": meaning.better}
        if isinstance(found, NA):
            why = f"no pair has both scores; {_reason(pairs, name)}" if not kept and pairs else found.reason
            out[name] = entry | {"missing": why}
            continue
        means = {"first": float(np.mean([k[0] for k in kept])), "second": float(np.mean([k[1] for k in kept]))}
        out[name] = entry | means | asdict(found) | {"excludes_zero": found.excludes_zero}
    tested = [n for n in out if "p" in out[n]]
    for name, p in zip(tested, holm([out[n]["p"] for n in tested]), strict=True):
        out[name]["p_holm"] = p
        out[name]["verdict"] = _verdict(out[name])
    return out


def _verdict(entry: Mapping[str, Any]) -> str:
    """``better`` or ``worse`` of the second where the difference is shown."""
    if entry["p_holm"] >= ALPHA or not entry["excludes_zero"]:
        return "not shown"
    if entry["better"] == "none":
        return "different"
    return "better" if (entry["difference"] > 0) == (entry["better"] == "higher") else "worse"


def _reason(pairs: Sequence[tuple[Row, Row]], name: str) -> str:
    reasons = Counter(
        _why(row, name) for pair in pairs for row in pair if isinstance(row.scores.get(name, NA("-")), NA)
    )
    return min(reasons, key=lambda r: (-reasons[r], r))


def _why(row: Row, name: str) -> str:
    value = row.scores.get(name)
    return value.reason if isinstance(value, NA) else "not measured"


def _metrics(report: Report, rows: Sequence[Row], rates: set[str]) -> dict[str, Any]:
    names = [n for n in report.about if any(n in row.scores for row in rows)]
    return {name: _entry(rows, name, rate=name in rates, whole=True) for name in names}


def _breakdown(report: Report, worlds: Mapping[str, Sequence[Row]], field: str, rates: set[str]) -> dict[str, Any]:
    """By value of a field and world, the metrics' means with intervals."""
    values = sorted({getattr(row, field) for row in report.rows})
    out: dict[str, Any] = {}
    for value in values:
        out[value or "(none)"] = part = {}
        for world, rows in worlds.items():
            chosen = [row for row in rows if getattr(row, field) == value]
            names = [n for n in report.about if any(n in row.scores for row in chosen)]
            part[world] = {n: _entry(chosen, n, rate=n in rates, whole=False) for n in names}
    return out


def _entry(rows: Sequence[Row], name: str, *, rate: bool, whole: bool) -> dict[str, Any]:
    kept = [row for row in rows if not isinstance(row.scores.get(name, NA("-")), NA)]
    missing = Counter(_why(row, name) for row in rows if isinstance(row.scores.get(name, NA("-")), NA))
    values, groups = np.array(numbers(kept, name)), [row.unit for row in kept]
    out: dict[str, Any] = {"n": len(kept), "groups": len(set(groups)), "n_missing": len(rows) - len(kept)}
    out |= {"missing": dict(missing), "mean": None, "mean_interval": None, "median": None}
    if not kept:
        return out
    out |= {"mean": float(values.mean()), "median": float(np.median(values))}
    interval = rate_interval(values, groups=groups) if rate else bootstrap_interval(values, groups=groups)
    out["interval_is"] = "wilson" if rate else "bootstrap"
    _put(out, "mean_interval", interval)
    if whole:
        _put(out, "median_interval", bootstrap_interval(values, groups=groups, statistic="median"))
        out |= {"lowest": float(values.min()), "highest": float(values.max())}
    return out


def _put(entry: dict[str, Any], name: str, interval: tuple[float, float] | NA) -> None:
    if isinstance(interval, NA):
        entry[name], entry["interval_missing"] = None, interval.reason
    else:
        entry[name] = list(interval)


def plain(value: Value) -> float | dict[str, str]:
    """As JSON has it: a number, or an object that says why there is none."""
    return {"missing": value.reason} if isinstance(value, NA) else float(value)


# ---------------------------------------------------------------------- as text


def shown(value: float, about: About, *, signed: bool = False) -> str:
    """A number with its metric's decimals, shares in per cent; what would round to zero keeps a digit."""
    scaled = 100 * value if about.unit == "%" else value
    text = f"{scaled:{'+' if signed else ''}.{about.digits}f}"
    if scaled and not float(text):
        return f"{scaled:{'+' if signed else ''}.1e}"
    return text if float(text) else f"{0:.{about.digits}f}"


def shown_interval(interval: Sequence[float] | None, about: About, *, signed: bool = False) -> str:
    """``low to high``, or nothing."""
    if interval is None:
        return ""
    if interval[0] == interval[1]:
        return "all equal"
    return f"{shown(interval[0], about, signed=signed)} to {shown(interval[1], about, signed=signed)}"


def shown_p(p: float) -> str:
    """A p value as papers print it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def heading(about: About) -> str:
    """Label, direction and unit of a metric."""
    arrow = {"higher": " ↑", "lower": " ↓", "none": ""}[about.better]
    return f"{about.label}{arrow}" + (f", {about.unit}" if about.unit else "")


def cell(summary: Mapping[str, Any], world: str, name: str) -> tuple[str, str]:
    """A table cell: the number or ``n/a``, and under it the interval or the reason."""
    about = About(**summary["metrics"][name])
    alone = summary["set_scores"].get(world, {}).get(name)
    if alone is not None:
        return ("n/a", alone["missing"]) if isinstance(alone, dict) else (shown(alone, about), "all together")
    entry = summary["summary"].get(world, {}).get(name)
    if entry is None:
        return "n/a", "not measured"
    if not entry["n"]:
        reasons = entry["missing"]
        first = min(reasons, key=lambda r: (-reasons[r], r))
        more = f" and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        return "n/a", first + more
    under = shown_interval(entry["mean_interval"], about) or f"no interval: {entry['interval_missing']}"
    return shown(entry["mean"], about), under + (f"; n {entry['n']}" if entry["n_missing"] else "")
