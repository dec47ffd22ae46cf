"""Is run B better than run A? Two reports of the same episodes, compared pair by pair.

Episodes differ far more than runs do, so means side by side say little; differences of the same episode say more. Whatever
would make such a difference mean something else (another truth, other settings) is refused by name.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinema4d.evaluate import plots
from kinema4d.evaluate.report import dumped, read
from kinema4d.evaluate.report_page import filled_template
from kinema4d.evaluate.report_summary import (
    ALPHA,
    Report,
    Row,
    differences,
    heading,
    plain,
    shown,
    shown_interval,
    shown_p,
)
from kinema4d.evaluate.score import NA, About, Value
from kinema4d.files import whole_file

MATTERS = ("truth", "settings", "weights")
"""Parts of a report's configuration that must agree: what is compared with, and how."""
FREE = ("settings.metrics",)
"""What may differ all the same: shared metrics are compared, whichever others were asked for."""
JSON, PAGE = "comparison.json", "comparison.html"
"""What ``write_comparison`` writes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """How the second of two runs differs from the first."""

    a: str
    """Name of the first run's report folder."""
    b: str
    """Name of the second's."""
    episodes: int
    """Shared episodes."""
    pairs: int
    """Shared rollouts: same episode, same seed."""
    groups: int
    """Independent groups among them."""
    about: dict[str, About]
    """Meaning of every shared metric."""
    metrics: dict[str, dict[str, Any]]
    """By metric: n, means, difference (b - a), interval, p, p after Holm's correction, verdict; or why there is none."""
    set_scores: dict[str, tuple[Value, Value]]
    """Numbers of all of a run's rollouts together, in a and b; they have no interval."""
    notes: tuple[str, ...]
    """What else differs and may matter."""

    def winner(self, name: str) -> str:
        """``a``, ``b``, or empty where no difference is shown or none is better."""
        return {"better": "b", "worse": "a"}.get(self.metrics[name].get("verdict", ""), "")


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare two report folders, episode by episode."""
    first, second = read(a), read(b)
    names = _names(Path(a), Path(b))
    rows = {row.key: row for row in first.of(first.prediction)}
    others = {row.key: row for row in second.of(second.prediction)}
    shared = [key for key in rows if key in others]
    episodes = {episode for episode, _ in shared}
    if len(episodes) < 2:
        raise ValueError(
            f"{a} and {b} share {len(episodes)} episodes (of {len(rows)} and {len(others)} rollouts); a comparison needs at "
            "least 2 with the same episode and seed: evaluate both runs on the same episodes and seeds"
        )
    _check_alike(first, second, episodes, a, b)
    pairs = [(rows[key], others[key]) for key in shared]
    about = {n: first.about[n] for n in first.about if n in second.about}
    single = {n: m for n, m in about.items() if any(n in row.scores for pair in pairs for row in pair)}
    return Comparison(
        a=names[0],
        b=names[1],
        episodes=len(episodes),
        pairs=len(pairs),
        groups=len({second_row.unit for _, second_row in pairs}),
        about=about,
        metrics=differences(pairs, single),
        set_scores=_sets(first, second, about),
        notes=tuple(_notes(first, second, rows, others, len(shared))),
    )


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "a": comparison.a,
        "b": comparison.b,
        "episodes": comparison.episodes,
        "pairs": comparison.pairs,
        "groups": comparison.groups,
        "difference_is": "b - a",
        "alpha": ALPHA,
        "correction": f"Holm, over {sum('p' in m for m in comparison.metrics.values())} metrics",
        "metrics": {n: m | {"winner": comparison.winner(n)} for n, m in comparison.metrics.items()},
        "metric_order": list(comparison.about),
        "set_scores": {n: {"a": plain(x), "b": plain(y)} for n, (x, y) in comparison.set_scores.items()},
        "notes": list(comparison.notes),
    }


def comparison_table(comparison: Comparison) -> Any:
    """For a terminal: a ``rich`` table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(_headline(comparison)), title_justify="left", caption=Text(_foot(comparison)), caption_justify="left"
    )
    for name in ("metric", *_titles(comparison), "b - a", "95 % interval", "p (Holm)", "n"):
        table.add_column(Text(name), justify="left" if name == "metric" else "right")
    table.add_column("better")
    group = ""
    for name, about in comparison.about.items():
        if about.group != group:
            group = about.group
            table.add_section()
            table.add_row(Text(group, style="bold"))
        table.add_row(Text(f"  {heading(about)}"), *(Text(c) for c in _cells(comparison, name)))
    return table


def write_comparison(comparison: Comparison, folder: str | Path) -> Path:
    """Write ``comparison.json`` and ``comparison.html``."""
    folder = Path(folder)
    page = filled_template(f"{comparison.b} against {comparison.a}", _page(comparison))
    for name, content in ((PAGE, page.encode()), (JSON, dumped(comparison_to_dict(comparison)))):
        with whole_file(folder / name, overwrite=True) as temporary:
            temporary.write_bytes(content)
    return folder


def _check_alike(a: Report, b: Report, episodes: set[str], path_a: str | Path, path_b: str | Path) -> None:
    """Refuse whatever would make differences mean something else, and say where it is."""
    for part in MATTERS:
        x, y = a.config.get(part), b.config.get(part)
        if part == "truth" and isinstance(x, dict) and isinstance(y, dict):
            x, y = ({k: v for k, v in t.items() if k in episodes} for t in (x, y))
        found = [d for d in _unlike(part, x, y) if d[0] not in FREE]
        if found:
            where, left, right = found[0]
            more = f" and {len(found) - 1} more differences" if len(found) > 1 else ""
            raise ValueError(
                f"{path_a} and {path_b} were not evaluated alike: {where} is {left!r} and {right!r}{more}; "
                "evaluate both against the same truth with the same settings"
            )
    for name in a.about:
        if name in b.about:
            for field in ("unit", "better", "text"):
                x, y = getattr(a.about[name], field), getattr(b.about[name], field)
                if x != y:
                    raise ValueError(
                        f"{name} means different things in {path_a} and {path_b}: {field} is {x!r} and {y!r}; evaluate again"
                    )


def _unlike(where: str, a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """Places where two JSON values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(set(a) | set(b))
        return [d for key in keys for d in _unlike(f"{where}.{key}", a.get(key), b.get(key))]
    return [] if a == b else [(where, a, b)]


def _notes(a: Report, b: Report, rows: Mapping[Any, Row], others: Mapping[Any, Row], shared: int) -> list[str]:
    notes = [
        f"{where}: {x} in a, {y} in b"
        for where, x, y in _unlike("versions", a.config.get("versions"), b.config.get("versions"))
    ]
    for name, mine in (("a", rows), ("b", others)):
        if len(mine) > shared:
            notes.append(f"{len(mine) - shared} of {len(mine)} rollouts are only in {name} and left out")
    if max(len(rows), len(others)) > shared and _sets(a, b, a.about):
        notes.append("numbers of all rollouts together are of each run's own rollouts, not only of the shared ones")
    only = {"a": [n for n in a.about if n not in b.about], "b": [n for n in b.about if n not in a.about]}
    notes += [f"only in {name}: {', '.join(names)}" for name, names in only.items() if names]
    return notes


def _sets(a: Report, b: Report, about: Mapping[str, About]) -> dict[str, tuple[Value, Value]]:
    x, y = a.set_scores.get(a.prediction, {}), b.set_scores.get(b.prediction, {})
    none = NA("not measured")
    return {n: (x.get(n, none), y.get(n, none)) for n in about if n in x or n in y}


def _names(a: Path, b: Path) -> tuple[str, str]:
    """Folder names, with as much of the path as tells them apart."""
    x, y = a.resolve().parts, b.resolve().parts
    for depth in range(1, max(len(x), len(y)) + 1):
        if x[-depth:] != y[-depth:]:
            return "/".join(x[-depth:]), "/".join(y[-depth:])
    raise ValueError(f"{a} and {b} are the same report; give two")


def _titles(comparison: Comparison) -> tuple[str, str]:
    return f"a: {comparison.a}", f"b: {comparison.b}"


def _headline(comparison: Comparison) -> str:
    wins = [comparison.winner(name) for name in comparison.metrics]
    tested = sum("p" in m for m in comparison.metrics.values())
    return (
        f"{comparison.b} is better in {wins.count('b')} and {comparison.a} in {wins.count('a')} of {tested} metrics; "
        f"{comparison.pairs} pairs of {comparison.episodes} episodes in {comparison.groups} independent groups"
    )


def _foot(comparison: Comparison) -> str:
    lines = [
        f"Better: p after Holm's correction below {ALPHA} and the interval excludes 0; ~ marks an interval that alone does"
    ]
    return "\n".join(lines + [f"note: {n}" for n in comparison.notes])


def _cells(comparison: Comparison, name: str) -> list[str]:
    """a, b, difference, interval, p, n, better."""
    about = comparison.about[name]
    if name in comparison.set_scores:
        x, y = comparison.set_scores[name]
        if isinstance(x, NA) or isinstance(y, NA):
            why = next(v.reason for v in (x, y) if isinstance(v, NA))
            return [*("n/a" if isinstance(v, NA) else shown(v, about) for v in (x, y)), "n/a", why, "", "", ""]
        return [shown(x, about), shown(y, about), shown(y - x, about, signed=True), "one number", "", "", ""]
    entry = comparison.metrics.get(name)
    if entry is None:
        return ["n/a", "n/a", "", "not measured", "", "0", ""]
    if "missing" in entry:
        return ["n/a", "n/a", "n/a", entry["missing"], "", str(entry["n"]), ""]
    winner = {"a": comparison.a, "b": comparison.b}.get(comparison.winner(name), "")
    if not winner and entry["verdict"] == "different":
        winner = "different"
    elif not winner:
        winner = "~" if entry["excludes_zero"] else ""
    return [
        shown(entry["first"], about),
        shown(entry["second"], about),
        shown(entry["difference"], about, signed=True),
        shown_interval(entry["interval"], about, signed=True),
        shown_p(entry["p_holm"]).removeprefix("p ").removeprefix("= "),
        str(entry["n"]),
        winner,
    ]


def _page(comparison: Comparison) -> str:
    e = html.escape
    head = "".join(
        f"<th>{e(t)}</th>"
        for t in ("metric", *_titles(comparison), "b − a", "95 % interval", "p (Holm)", "n", "better")
    )
    lines, group, drawn = [], "", []
    for name, about in comparison.about.items():
        if about.group != group:
            group = about.group
            lines.append(f'<tr class="group"><th colspan="8">{e(group)}</th></tr>')
        *cells, better = _cells(comparison, name)
        kind = {"b": "better", "a": "worse"}.get(comparison.winner(name) if name in comparison.metrics else "", "")
        row = "".join(f"<td>{e(c)}</td>" for c in cells)
        lines.append(
            f'<tr><th title="{e(about.text)}">{e(heading(about))}</th>{row}<td class="{kind}">{e(better)}</td></tr>'
        )
        entry = comparison.metrics.get(name, {})
        if "p" in entry:
            scale = 100 if about.unit == "%" else 1
            low, high = entry["interval"]
            drawn.append(
                plots.bars(
                    [("b - a", scale * entry["difference"], (scale * low, scale * high))],
                    title=heading(about),
                    unit=about.unit,
                )
            )
    notes = "".join(f"<li>{e(n)}</li>" for n in comparison.notes)
    return (
        f"<h1>{e(comparison.b)} against {e(comparison.a)}</h1><p>{e(_headline(comparison))}.</p>"
        f'<p class="dim">Differences are b − a of the same episode and seed, with bootstrap intervals over whole groups and a '
        f"sign-flip test. {e(_foot(comparison).splitlines()[0])}.</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
        f'<h2>Differences</h2><div class="plots">{"".join(f"<div>{d}</div>" for d in drawn)}</div>'
        + (f"<h2>Notes</h2><ul>{notes}</ul>" if notes else "")
    )
