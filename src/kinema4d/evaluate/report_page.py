"""The page of an evaluation: one file without scripts or a network, that opens from a disk and prints.

Everything that came from data is escaped: names of tasks and episodes are other people's text.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import numpy as np

from kinema4d.evaluate import report_plots
from kinema4d.evaluate.report_summary import (
    FIELDS,
    STATIC,
    Report,
    Row,
    cell,
    heading,
    numbers,
    shown,
    shown_interval,
    shown_p,
)
from kinema4d.evaluate.score import About

SHOWN = 6
"""Episodes on each of the best, middle and worst sheets."""
COLUMNS = 12
"""Most values of a field side by side; ``report.json`` has all."""
PREFERRED = ("interaction", "following", "geometry", "video")
"""Where the metric that chooses the sheets is looked for."""
_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_e = html.escape


def page(
    report: Report, summary: Mapping[str, Any], *, pictures: Callable[[str], bytes | None], sheet: str = ""
) -> str:
    """The whole page."""
    chosen = choose_sheet(report, sheet)
    rows = summary["rows"][report.prediction]
    sections = {
        "summary": ("Summary", _summary(report, summary)),
        "plots": ("Distributions", report_plots.distributions(report, summary)),
        "tasks": ("By task", report_plots.by_task(report, summary, chosen)),
        "along": ("Along the way", report_plots.along(report)),
        "links": ("By link", report_plots.by_link(report)),
        "reliability": ("Reliability", report_plots.reliability(report)),
        "breakdown": ("Breakdown", _breakdowns(report, summary)),
        "sheets": ("Best, middle and worst", _sheets(report, chosen, pictures)),
        "missing": ("Missing scores", _missing(report, summary)),
        "meaning": ("What the numbers mean", _meaning(report)),
        "config": (
            "Configuration",
            f"<pre>{_e(json.dumps(report.config, indent=1, sort_keys=True, ensure_ascii=False))}</pre>",
        ),
    }
    filled = {k: v for k, v in sections.items() if v[1]}
    links = "".join(f'<a href="#{key}">{_e(title)}</a>' for key, (title, _) in filled.items())
    title = "Evaluation" if report.prediction == "prediction" else f"Evaluation of {report.prediction}"
    body = (
        f"<h1>{_e(title)}</h1>"
        f'<p class="dim">{rows} rollouts of {summary["episodes"]} episodes in {summary["groups"]} independent groups. '
        "Numbers are means; below them stand 95 % intervals (bootstrap over whole groups; Wilson for rates of yes and no). "
        "↑ higher is better, ↓ lower is better.</p>"
        f"<nav>{links}</nav>"
    )
    body += "".join(f'<h2 id="{key}">{_e(t)}</h2>{content}' for key, (t, content) in filled.items())
    return filled_template(title, body)


def filled_template(title: str, body: str) -> str:
    """A page with our style around a body that is already escaped."""
    template = (resources.files("kinema4d.evaluate") / "report_page.html").read_text(encoding="utf-8")
    head, tail = template.replace("__TITLE__", _e(title), 1).split("__BODY__")
    return head + body + tail


def choose_sheet(report: Report, sheet: str = "") -> str:
    """The metric that chooses best and worst episodes; empty where none has a direction and values."""
    rows = report.of(report.prediction)
    fit = [n for n, a in report.about.items() if a.better != "none" and numbers(rows, n)]
    if sheet:
        if sheet not in fit:
            raise ValueError(f"sheet must be a metric with a direction and values: {', '.join(fit)}; got {sheet!r}")
        return sheet
    order = {group: i for i, group in enumerate(PREFERRED)}
    return min(fit, key=lambda n: order.get(report.about[n].group, len(order)), default="")


def ranked(report: Report, name: str) -> list[tuple[str, float]]:
    """Episodes and their score (mean over seeds), worst first."""
    found: dict[str, list[float]] = {}
    for row in report.of(report.prediction):
        value = row.scores.get(name)
        if isinstance(value, float | int):
            found.setdefault(row.episode, []).append(float(value))
    sign = 1 if report.about[name].better == "higher" else -1
    means = [(episode, float(np.mean(values))) for episode, values in found.items()]
    return sorted(means, key=lambda item: (sign * item[1], item[0]))


def _summary(report: Report, summary: Mapping[str, Any]) -> str:
    worlds, against = summary["worlds"], summary["against_static"]
    names = [
        n for n in report.about if any(n in summary[p].get(w, {}) for p in ("summary", "set_scores") for w in worlds)
    ]
    head = "".join(f"<th>{report_plots.key(report, w)}{_e(report_plots.called(w))}</th>" for w in worlds)
    head += f"<th>{_e(report.prediction)} − static</th>" if against else ""
    lines = []
    for i, name in enumerate(names):
        about = report.about[name]
        if i == 0 or about.group != report.about[names[i - 1]].group:
            lines.append(
                f'<tr class="group"><th colspan="{1 + len(worlds) + bool(against)}">{_e(about.group)}</th></tr>'
            )
        cells = "".join(_cell(*cell(summary, w, name)) for w in worlds)
        cells += _against(against.get(name), about) if against else ""
        lines.append(f'<tr><th title="{_e(about.text)}">{_e(heading(about))}</th>{cells}</tr>')
    note = (
        '<p class="dim">The static world is what the robot in front of an unmoved first frame would get; the truth as its own '
        "prediction is the ceiling. Differences are paired by episode; p is of a sign-flip test over whole groups, after Holm's "
        "correction for the number of metrics. Coloured differences are shown by both p and interval.</p>"
    )
    return note + _scroll(f"<thead><tr><th>metric</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>")


def _cell(value: str, under: str) -> str:
    if value == "n/a":
        return f'<td class="na">n/a<small>{_e(under)}</small></td>'
    even = ' class="even"' if len(under) < 40 else ""
    return f"<td><b>{_e(value)}</b><small{even}>{_e(under)}</small></td>"


def _against(entry: Mapping[str, Any] | None, about: About) -> str:
    if entry is None:
        return "<td></td>"
    if "missing" in entry:
        return _cell("n/a", entry["missing"])
    verdict = entry["verdict"] if entry["verdict"] in ("better", "worse") else ""
    word = f" {entry['verdict']}" if verdict else ""
    number = shown(entry["difference"], about, signed=True)
    interval = shown_interval(entry["interval"], about, signed=True)
    return (
        f'<td><b class="{verdict}">{_e(number + word)}</b><small class="even">{_e(interval)}</small>'
        f'<small class="even">{_e(shown_p(entry["p_holm"]))}, n {entry["n"]}</small></td>'
    )


def _breakdowns(report: Report, summary: Mapping[str, Any]) -> str:
    out = []
    for field in FIELDS:
        parts = summary["breakdown"][field]
        if len(parts) > 1:
            table = _breakdown(report, parts)
            left = f", the first {COLUMNS} (report.json has all)" if len(parts) > COLUMNS else ""
            opened = "" if out else " open"
            out.append(f"<details{opened}><summary>by {field}: {len(parts)} values{left}</summary>{table}</details>")
    lead = f'<p class="dim">Means of {_e(report.prediction)}, their intervals, and below them the static world\'s means.</p>'
    return lead + "".join(out) if out else ""


def _breakdown(report: Report, parts: Mapping[str, Any]) -> str:
    values = list(parts)[:COLUMNS]
    names = [n for n in report.about if any(n in parts[v].get(report.prediction, {}) for v in values)]
    lines = []
    for name in names:
        about, cells = report.about[name], []
        for value in values:
            entry = parts[value].get(report.prediction, {}).get(name)
            if entry is None or not entry["n"]:
                reasons = entry["missing"] if entry else {"not measured": 1}
                cells.append(_cell("n/a", min(reasons, key=lambda r: (-reasons[r], r))))
                continue
            static = parts[value].get(STATIC, {}).get(name, {}).get("mean")
            under = shown_interval(entry["mean_interval"], about) or "no interval"
            beside = f'<small class="even">static {_e(shown(static, about))}</small>' if static is not None else ""
            cells.append(
                f'<td><b>{_e(shown(entry["mean"], about))}</b><small class="even">{_e(under)}; n {entry["n"]}</small>{beside}</td>'
            )
        lines.append(f"<tr><th>{_e(heading(about))}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{_e(v)}</th>" for v in values)
    return _scroll(f"<thead><tr><th>metric</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>")


def _sheets(report: Report, name: str, pictures: Callable[[str], bytes | None]) -> str:
    if not name:
        return ""
    about, order = report.about[name], ranked(report, name)
    count = min(SHOWN, -(-len(order) // 3))
    middle = max(0, (len(order) - count) // 2)
    kinds = {"Worst": order[:count], "Middle": order[middle : middle + count], "Best": order[::-1][:count]}
    rows = {row.episode: row for row in reversed(report.of(report.prediction))}
    static = {row.episode: row for row in report.of(STATIC)}
    used: set[str] = set()
    out = [f'<p class="dim">By {_e(heading(about))}: {_e(about.text)}</p>']
    for title, chosen in kinds.items():
        cards = [_card(rows[e], v, about, name, static.get(e), pictures(e)) for e, v in chosen if e not in used]
        used |= {e for e, _ in chosen}
        if cards:
            out.append(f'<h3>{title}</h3><div class="cards">{"".join(cards)}</div>')
    return "".join(out)


def _card(row: Row, value: float, about: About, name: str, static: Row | None, picture: bytes | None) -> str:
    other = static.scores.get(name) if static is not None else None
    beside = f", static {shown(float(other), about)}" if isinstance(other, float | int) else ""
    facts = " · ".join(x for x in (row.task, row.outcome, row.scenario, row.robot, row.source) if x)
    if picture is None:
        shown_picture = '<div class="nopicture">no picture</div>'
    else:
        shown_picture = f'<img src="{_data_uri(picture)}" alt="{_e(row.episode)}">'
    return (
        f"<figure>{shown_picture}<figcaption><b>{_e(row.episode)}</b> {_e(shown(value, about))}"
        f'{_e(" " + about.unit if about.unit else "")}<span class="dim">{_e(beside)}<br>{_e(facts)}</span></figcaption></figure>'
    )


def _data_uri(picture: bytes) -> str:
    for start, kind in _KINDS.items():
        if picture.startswith(start):
            return f"data:{kind};base64,{base64.b64encode(picture).decode()}"
    raise ValueError(f"pictures must be PNG or JPEG, got bytes that start with {picture[:8]!r}")


def _missing(report: Report, summary: Mapping[str, Any]) -> str:
    lines = []
    for name in report.about:
        for world in summary["worlds"]:
            reasons = dict(summary["summary"].get(world, {}).get(name, {}).get("missing", {}))
            alone = summary["set_scores"].get(world, {}).get(name)
            if isinstance(alone, dict):
                reasons[alone["missing"]] = summary["rows"][world]
            for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
                of = f"{count} of {summary['rows'][world]}"
                lines.append(
                    f'<tr><th>{_e(report.about[name].label)}</th><td class="text">{_e(world)}</td>'
                    f'<td>{of}</td><td class="text">{_e(reason)}</td></tr>'
                )
    if not lines:
        return ""
    head = '<thead><tr><th>metric</th><th style="text-align:left">world</th><th>rollouts</th><th style="text-align:left">reason</th></tr></thead>'
    table = _scroll(f"{head}<tbody>{''.join(lines)}</tbody>")
    return f"<details{' open' if len(lines) <= 12 else ''}><summary>{len(lines)} kinds</summary>{table}</details>"


def _meaning(report: Report) -> str:
    lines = [
        f'<tr><th>{_e(heading(a))}<small>{_e(name)}</small></th><td class="text">{_e(a.text)}</td></tr>'
        for name, a in report.about.items()
    ]
    return (
        f"<details><summary>{len(lines)} metrics</summary>{_scroll('<tbody>' + ''.join(lines) + '</tbody>')}</details>"
    )


def _scroll(inner: str) -> str:
    return f'<div class="wide"><table>{inner}</table></div>'
