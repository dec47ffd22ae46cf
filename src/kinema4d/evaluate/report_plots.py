"""The plots of an evaluation's page: distributions, by task, along the way, by link, reliability."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinema4d.evaluate import plots
from kinema4d.evaluate.report_summary import STATIC, TRUTH, Report, Row, numbers
from kinema4d.evaluate.score import NA, About
from kinema4d.evaluate.statistics import bootstrap_interval

TASKS = 12
"""Most tasks in one plot; ``report.json`` has all."""


def distributions(report: Report, summary: Mapping[str, Any]) -> str:
    """A strip plot per metric with a row per world; bars with intervals where the metric is a rate of yes and no."""
    out = []
    for name, about in report.about.items():
        series = {w: scaled(numbers(report.of(w), name), about) for w in report.worlds}
        if not any(series.values()):
            continue
        if _is_rate(summary, name):
            bars = [_bar(w, summary["summary"].get(w, {}).get(name)) for w in report.worlds]
            out.append(plots.bars(bars, title=_titled(about), unit=about.unit))
        else:
            out.append(plots.strips(series, title=_titled(about), unit=about.unit, aside=TRUTH))
    return _grid(f"A dot is a rollout (at most {plots.DOTS} are drawn); bar and line are quartiles and median.", out)


def by_task(report: Report, summary: Mapping[str, Any], chosen: str) -> str:
    """Of the metrics about interaction, or of the one that chooses the sheets: boxes by task, bars for rates."""
    parts = summary["breakdown"]["task"]
    if len(parts) < 2:
        return ""
    names = [n for n, a in report.about.items() if a.group == "interaction" and a.better != "none"] or [chosen]
    worlds = [w for w in report.worlds if w != TRUTH]
    lines = [(task, world) for task in list(parts)[:TASKS] for world in worlds]
    colors = [report.worlds.index(world) for _, world in lines]
    out = []
    for name in [n for n in names if n]:
        about = report.about[name]
        labels = [task if world == worlds[0] else world for task, world in lines]
        if _is_rate(summary, name):
            found = [parts[task].get(world, {}).get(name) for task, world in lines]
            bars = [_bar(label, entry) for label, entry in zip(labels, found, strict=True)]
            out.append(plots.bars(bars, title=_titled(about), unit=about.unit, colors=colors))
            continue
        values = [
            scaled(numbers([r for r in report.of(world) if (r.task or "(none)") == task], name), about)
            for task, world in lines
        ]
        if any(values):
            boxes = list(zip(labels, values, strict=True))
            out.append(plots.boxes(boxes, title=_titled(about), unit=about.unit, colors=colors))
    grid = _grid("Boxes are quartiles and median, whiskers reach from the 5 % to the 95 % point.", out)
    return _legend(report, worlds) + grid if grid else ""


def along(report: Report) -> str:
    """Errors frame by frame: mean over rollouts, with its interval as a band."""
    out = []
    for name in sorted({n for row in report.rows for n in detail(row, "along")}):
        about = report.about.get(name)
        lengths = {len(v) for row in report.rows if (v := detail(row, "along").get(name))}
        same = len(lengths) == 1
        series = {}
        for world in report.worlds:
            found = [(row.unit, v) for row in report.of(world) if (v := detail(row, "along").get(name))]
            series[world] = _curve(found if same else [(g, _stretched(v)) for g, v in found], same, about)
        title = (about.label if about is not None else name) + " over time"
        unit = about.unit if about is not None else ""
        label = "frame" if same else "share of the clip"
        out.append(plots.curves(series, title=title, x_label=label, y_label=unit))
    return _grid("Means over rollouts, with 95 % intervals.", out)


def by_link(report: Report) -> str:
    """Error of each link of each robot."""
    found: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for row in report.of(report.prediction):
        for link, value in detail(row, "links").items():
            if isinstance(value, float | int):
                found.setdefault(row.robot, {}).setdefault(link, []).append((row.unit, float(value)))
    out = []
    for robot, links in sorted(found.items()):
        items = []
        for link, values in links.items():
            interval = bootstrap_interval([v for _, v in values], groups=[g for g, _ in values])
            mean = float(np.mean([v for _, v in values]))
            items.append((link, mean, None if isinstance(interval, NA) else interval))
        out.append(plots.bars(items, title=f"{robot}: error by link", unit="m", colors=[0] * len(items)))
    return _grid("Means over rollouts, with 95 % intervals.", out)


def reliability(report: Report) -> str:
    """Do things happen as often as they were said to?"""
    found: dict[str, np.ndarray] = {}
    for row in report.of(report.prediction):
        for name, bins in detail(row, "reliability").items():
            now = np.asarray(bins, float)
            if now.ndim != 2 or now.shape[1] != 3 or (name in found and found[name].shape != now.shape):
                raise ValueError(
                    f"reliability {name!r} of {row.episode} must be [count, predicted, observed] in the same bins for all rows, "
                    f"got shape {now.shape}"
                )
            found[name] = found[name] + now if name in found else now
    out = []
    for name, bins in sorted(found.items()):
        means = [(float(n), float(p / n), float(o / n)) for n, p, o in bins if n > 0]
        out.append(plots.reliability(means, title=name))
    return _grid("On the dashed line things happen as often as predicted; larger dots count more.", out)


def detail(row: Row, name: str) -> Mapping[str, Any]:
    """What details have under a name, at the top or one level down."""
    out: dict[str, Any] = {}
    for part in (row.details, *(v for v in row.details.values() if isinstance(v, dict))):
        found = part.get(name)
        if isinstance(found, dict):
            out |= found
    return out


def called(world: str) -> str:
    """A world's name for people."""
    return {STATIC: "static world", TRUTH: "truth (ceiling)"}.get(world, world)


def key(report: Report, world: str) -> str:
    """A patch of the world's colour."""
    i = report.worlds.index(world) % len(plots.COLORS)
    return f'<span class="key" style="background:var(--s{i})"></span>'


def scaled(values: Sequence[float], about: About | None) -> list[float]:
    """Shares in per cent, anything else as it is."""
    return [100 * v for v in values] if about is not None and about.unit == "%" else list(values)


def _curve(
    found: Sequence[tuple[str, Sequence[float | None]]], same: bool, about: About | None
) -> tuple[list[float], list[float], list[tuple[float, float]]]:
    x, y, band = [], [], []
    length = max((len(v) for _, v in found), default=0)
    for i in range(length):
        at = [(g, float(value)) for g, v in found if (value := v[i]) is not None]
        if not at:
            continue
        values = np.array(scaled([value for _, value in at], about))
        interval = bootstrap_interval(values, groups=[g for g, _ in at], resamples=500)
        mean = float(values.mean())
        x.append(float(i) if same else i / (length - 1))
        y.append(mean)
        band.append((mean, mean) if isinstance(interval, NA) else interval)
    return x, y, band


def _stretched(values: Sequence[float | None], points: int = 25) -> list[float | None]:
    """The nearest value at evenly spread times, so that clips of different length share an axis."""
    return [values[round(i * (len(values) - 1) / (points - 1))] for i in range(points)]


def _is_rate(summary: Mapping[str, Any], name: str) -> bool:
    return any(part.get(name, {}).get("interval_is") == "wilson" for part in summary["summary"].values())


def _bar(label: str, entry: Mapping[str, Any] | None) -> tuple[str, float | None, tuple[float, float] | None]:
    """A rate in per cent."""
    if entry is None or not entry["n"]:
        return f"{plots.cut(label, 16)} (0)", None, None
    low_high = entry["mean_interval"]
    interval = None if low_high is None else (100 * low_high[0], 100 * low_high[1])
    return f"{plots.cut(label, 16)} ({entry['n']})", 100 * entry["mean"], interval


def _titled(about: About) -> str:
    return f"{about.label} ({about.better} is better)" if about.better != "none" else about.label


def _legend(report: Report, worlds: Sequence[str]) -> str:
    return "<p>" + " &nbsp; ".join(f"{key(report, w)}{html.escape(called(w))}" for w in worlds) + "</p>"


def _grid(lead: str, drawn: Sequence[str]) -> str:
    if not drawn:
        return ""
    return f'<p class="dim">{lead}</p><div class="plots">{"".join(f"<div>{svg}</div>" for svg in drawn)}</div>'
