"""The report of an evaluation as files: a table per rollout, a summary for machines, a page for people.

The same inputs give the same bytes: rows are sorted, nothing knows the time or the machine. ``report.json`` is written last
and holds the hash of the table, so a folder that was written half is noticed when it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinema4d.evaluate.report_summary import (
    KEYS,
    Report,
    Row,
    cell,
    heading,
    shown,
    shown_interval,
    summary_to_dict,
)
from kinema4d.evaluate.score import NA, About, Scores
from kinema4d.files import whole_file

__all__ = ["Report", "Row", "read", "ready", "summary_table", "summary_to_dict", "write"]

FORMAT = 1
"""Of ``report.json``; raised when old readers would misread it."""
TABLE, SUMMARY, PAGE = "episodes.parquet", "report.json", "report.html"
"""What a report folder holds."""


def write(
    report: Report,
    folder: str | Path,
    *,
    pictures: Callable[[str], bytes | None] | None = None,
    sheet: str = "",
) -> Path:
    """Write table, summary and page to ``folder``, over an earlier report; other files there stay.

    Args:
        report: What was found.
        folder: Where to.
        pictures: Gives a PNG or JPEG of an episode, or None, for the best, middle and worst ones.
        sheet: Metric that chooses them; by default the first with a direction, of interaction if there is one.
    """
    from kinema4d.evaluate.report_page import page

    folder = Path(folder)
    ready(folder)
    summary = summary_to_dict(report)
    table = _table(report)
    text = page(report, summary, pictures=pictures or (lambda _: None), sheet=sheet)
    summary |= {"format": FORMAT, "table_sha256": hashlib.sha256(table).hexdigest()}
    for name, content in ((TABLE, table), (PAGE, text.encode()), (SUMMARY, dumped(summary))):
        with whole_file(folder / name, overwrite=True) as temporary:
            temporary.write_bytes(content)
    return folder


def ready(folder: str | Path) -> None:
    """Raise now what ``write`` would raise after hours of work: a file in the folder's place, no pyarrow."""
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ValueError(f"{folder} is a file; a report needs a folder")
    _pyarrow()


def read(folder: str | Path) -> Report:
    """The report that ``write`` wrote to ``folder``."""
    folder = Path(folder)
    if not (folder / SUMMARY).is_file() or not (folder / TABLE).is_file():
        raise ValueError(
            f"{folder} holds no report: expected {SUMMARY} and {TABLE}, which 'kinema4d evaluate --report' writes"
        )
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder / SUMMARY} is not JSON: {error}; evaluate again") from None
    if summary.get("format") != FORMAT:
        raise ValueError(
            f"{folder} is a report of format {summary.get('format')}, and this version reads {FORMAT}; evaluate again"
        )
    table = (folder / TABLE).read_bytes()
    if hashlib.sha256(table).hexdigest() != summary["table_sha256"]:
        raise ValueError(
            f"{TABLE} and {SUMMARY} in {folder} are not of one report: it was written half; evaluate again"
        )
    _, pq = _pyarrow()
    about = {name: About(**summary["metrics"][name]) for name in summary["metric_order"]}
    return Report(
        rows=tuple(_row(line, about) for line in pq.read_table(io.BytesIO(table)).to_pylist()),
        set_scores={
            world: {k: NA(v["missing"]) if isinstance(v, dict) else float(v) for k, v in scores.items()}
            for world, scores in summary["set_scores"].items()
        },
        about=about,
        config=summary["config"],
    )


def summary_table(report: Report) -> Any:
    """The summary for a terminal: a ``rich`` table with a section per group of metrics and a column per world."""
    from rich.table import Table
    from rich.text import Text

    summary = summary_to_dict(report)
    table = Table(caption_justify="left")
    table.add_column("metric")
    for world in summary["worlds"]:
        table.add_column(Text(world), justify="right", overflow="fold")
    if summary["against_static"]:
        table.add_column(Text(f"{report.prediction} - static"), justify="right")
    order = [name for name in report.about if _has(summary, name)]
    missing: dict[str, list[str]] = {}
    for name in order:  # what the prediction has no number for is listed below, by reason
        value, why = cell(summary, report.prediction, name)
        if value == "n/a":
            missing.setdefault(why, []).append(report.about[name].label)
    order = [n for n in order if not any(report.about[n].label in labels for labels in missing.values())]
    for number, name in enumerate(order):
        about = report.about[name]
        if number == 0 or about.group != report.about[order[number - 1]].group:
            table.add_section()
            table.add_row(Text(about.group, style="bold"))
        cells: list[Text] = [Text(f"  {heading(about)}")]
        for world in summary["worlds"]:
            value, under = cell(summary, world, name)
            cells.append(Text(f"n/a ({under})", style="dim") if value == "n/a" else _two(value, under))
        if summary["against_static"]:
            cells.append(_against(summary["against_static"].get(name), about))
        table.add_row(*cells)
    lines = [_caption(summary), *(f"n/a: {', '.join(labels)} ({why})" for why, labels in missing.items())]
    table.caption = Text("\n".join(lines), style="dim")
    return table


def dumped(value: Any) -> bytes:
    """JSON in one form: sorted, indented, no NaN."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _caption(summary: dict[str, Any]) -> str:
    rows = summary["rows"][summary["prediction"]]
    return (
        f"{rows} rollouts of {summary['episodes']} episodes in {summary['groups']} independent groups; mean (95 % interval); "
        "↑ higher is better, ↓ lower is better; * difference shown after Holm's correction"
    )


def _has(summary: dict[str, Any], name: str) -> bool:
    return any(name in summary[part].get(w, {}) for part in ("summary", "set_scores") for w in summary["worlds"])


def _two(value: str, under: str) -> Any:
    from rich.text import Text

    return Text.assemble(value, (f"\n{under}", "dim"))


def _against(entry: dict[str, Any] | None, about: About) -> Any:
    from rich.text import Text

    if entry is None:
        return Text("")
    if "missing" in entry:
        return Text(f"n/a ({entry['missing']})", style="dim")
    style = {"better": "green", "worse": "red"}.get(entry["verdict"], "")
    star = "" if entry["verdict"] == "not shown" else " *"
    text = Text(f"{shown(entry['difference'], about, signed=True)}{star}", style=style)
    return text.append(f"\n{shown_interval(entry['interval'], about, signed=True)}", "dim")


def _table(report: Report) -> bytes:
    pa, pq = _pyarrow()
    rows = [row for world in report.worlds for row in report.of(world)]
    columns: dict[str, Any] = {}
    for key in KEYS:
        kind = pa.int64() if key == "seed" else pa.string()
        columns[key] = pa.array([getattr(row, key) for row in rows], kind)
    for name in [n for n in report.about if any(n in row.scores for row in rows)]:
        values = [row.scores.get(name) for row in rows]
        columns[name] = pa.array([None if isinstance(v, NA) or v is None else float(v) for v in values], pa.float64())
    missing = [{n: v.reason for n, v in row.scores.items() if isinstance(v, NA)} for row in rows]
    columns["missing"] = pa.array([_line(m) for m in missing], pa.string())
    columns["details"] = pa.array([_line(row.details) for row in rows], pa.string())
    buffer = io.BytesIO()
    pq.write_table(
        pa.table(columns), buffer, compression="zstd", compression_level=6, version="2.6", row_group_size=65_536
    )
    return buffer.getvalue()


def _line(value: dict[str, Any]) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"details of a row must be plain JSON without NaN: {error}") from None


def _row(line: dict[str, Any], about: dict[str, About]) -> Row:
    missing = json.loads(line["missing"])
    scores: Scores = {}
    for name in about:
        if line.get(name) is not None:
            scores[name] = float(line[name])
        elif name in missing:
            scores[name] = NA(missing[name])
    return Row(**{key: line[key] for key in KEYS}, scores=scores, details=json.loads(line["details"]))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("a report's table needs pyarrow: pip install 'kinema4d[parquet]'") from None
    return pyarrow, pyarrow.parquet
