"""Members of an ablation, judged on the same episodes: a table with intervals, a plot, and how it agrees with the paper's.

Networks are judged as they are: neither the robot's kinematics nor a sensor mends their points (``DirectWorld.exact``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.data.dataset import open_dataset
from kinema4d.data.pool import Progress, spread
from kinema4d.data.ways import away_of
from kinema4d.evaluate import perceptual
from kinema4d.evaluate.foretell import control_of, foretell
from kinema4d.evaluate.geometry import scores as geometry_scores
from kinema4d.evaluate.interaction import interact
from kinema4d.evaluate.plots import bars
from kinema4d.evaluate.score import NA, Pair
from kinema4d.evaluate.statistics import bootstrap_interval, paired
from kinema4d.evaluate.video import scores as video_scores
from kinema4d.files import whole_file
from kinema4d.geometry.camera import picks
from kinema4d.types import Episode
from kinema4d.world.condition import disturb
from kinema4d.world.protocol import first_depth
from kinema4d.world.small.machine import guard

FORMAT = 3
"""Of kept scores."""
PAPER_ROWS = 480
"""Rows of the paper's pictures, in which its disturbances are pixels."""
COLUMNS: dict[str, tuple[str, str, float, str]] = {
    "psnr": ("PSNR", "dB", 1, "higher"),
    "changed_psnr_db": ("changed", "dB", 1, "higher"),
    "covered_psnr_db": ("moved things", "dB", 1, "higher"),
    "ssim": ("SSIM", "", 1, "higher"),
    "lpips_alex": ("LPIPS", "", 1, "lower"),
    "cd_l1": ("CD-L1", "cm", 100, "lower"),
    "changed_depth_mae_m": ("depth changed", "cm", 100, "lower"),
    "covered_iou": ("IoU covered", "%", 100, "higher"),
    "said_error_m": ("object error, said", "cm", 100, "lower"),
    "object_error_m": ("object error, seen", "cm", 100, "lower"),
    "object_found": ("found", "%", 100, "higher"),
}
"""Scores by name: label, unit, factor, and what is better. The object error that is seen counts a moved thing that is not found in the
picture as one that stood still, so that no model gains by losing it. The one that is said is that of the motion with which a model begins, before it draws it."""
MOVED_M, THROWN_M = 0.02, 1.0
"""A thing that went further has moved; one that went as far as that was thrown off the table by the truth's engine, and no mean should hang on it."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A member to be judged."""

    name: str
    """As in the table."""
    weights: str
    """Its file."""
    disturb: str | None = None
    """How its signal is disturbed."""
    paper: tuple[float, float] | None = None
    """PSNR in dB and Chamfer L1 in metres that the paper reports."""


@dataclass(frozen=True)
class _Work:
    root: str
    id: str
    entry: Entry
    keep: str
    number: int


def judge(
    entries: Sequence[Entry],
    root: str | Path,
    out: str | Path,
    *,
    episodes: int,
    workers: int = 2,
    progress: Progress | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Scores of every member on the same episodes, spread over the whole set; those that are kept in ``out`` are not made
    again."""
    ids = open_dataset(root).ids
    if not episodes >= 2:
        raise ValueError(f"an ablation is judged on at least 2 episodes, got {episodes}")
    picks = np.unique(np.linspace(0, len(ids) - 1, min(episodes, len(ids))).round().astype(int))
    works = []
    for entry in entries:
        digest = hashlib.sha256(Path(entry.weights).read_bytes()).hexdigest()[:12]
        keep = Path(out) / f"{digest}-{entry.disturb or 'plain'}"
        works += [_Work(str(root), ids[i], entry, str(keep), int(i)) for i in picks]
    rows = spread(_one, works, workers=workers, progress=progress)
    return {e.name: rows[n * len(picks) : (n + 1) * len(picks)] for n, e in enumerate(entries)}


@lru_cache(maxsize=2)
def _world(weights: str) -> Any:
    guard()
    import torch

    from kinema4d.world.small.direct import load_direct

    torch.set_num_threads(1)
    return replace(load_direct(weights), exact=False)


@lru_cache(maxsize=1)
def _data(root: str) -> Any:
    return open_dataset(root)


def _one(work: _Work) -> dict[str, Any]:
    file = Path(work.keep) / f"{work.id}.json"
    if file.is_file() and (found := json.loads(file.read_text())).get("format") == FORMAT:
        return found
    truth = _data(work.root).load(work.id)
    control = control_of(truth)
    if work.entry.disturb is not None:
        pixels = max(1, round(5 * truth.clip.camera.height / PAPER_ROWS))
        signal = disturb(control.pointmap, work.entry.disturb, seed=work.number, pixels=pixels)
        control = replace(control, pointmap=signal)
    world = _world(work.entry.weights)
    made = foretell(world, truth, control=control, text=truth.text)
    said = world.said(truth.clip.rgb[0], control, depth=first_depth(truth.clip), text=truth.text)
    found = {
        "format": FORMAT,
        "group": truth.group,
        "task": truth.task,
        **scored(Pair(predicted=made.clip, truth=truth)),
        "said_error_m": None if said is None else said_error(said[0], said[1], truth),
    }
    with whole_file(file, overwrite=True) as temporary:
        temporary.write_text(json.dumps(found))
    return found


def scored(pair: Pair) -> dict[str, float | None]:
    """The ``COLUMNS`` of one pair; None where there is no score."""
    acted = interact(pair)
    scores = dict(acted.scores) | video_scores(pair) | geometry_scores(pair, aligned=False)
    scores |= perceptual.scores(pair, networks=("alex",))
    out: dict[str, float | None] = {}
    for name in COLUMNS:
        value = scores.get(name)  # what a model says itself is none of them
        out[name] = None if value is None or isinstance(value, NA) else float(value)
    rows = [r for r in acted.details.get("objects", {}).values() if r["moved"] and r["visible_at_end"]]
    errors = [r["true_displacement_m"] if r["error_m"] is None else r["error_m"] for r in rows]
    return out | {"object_error_m": float(np.mean(errors)) if errors else None}


def said_error(away: Float[np.ndarray, "h w 3"], sure: Float[np.ndarray, "h w"], truth: Episode) -> float | None:
    """How far the pixels of the first frame that truly moved are from where a model says that they are at the end, metres, the mean over things; what it does not think has
    gone stands still. None where nothing moved that is seen."""
    rows, columns = picks(truth.clip.rgb.shape[1:3], sure.shape)
    true = away_of(truth, rows, columns)
    if true is None or truth.labels is None:
        return None
    labels, true = truth.labels[0][rows][:, columns], true[-1].astype(np.float64)
    far = np.linalg.norm(true, axis=-1)
    off = np.linalg.norm(np.where(sure[..., None] > 0.5, away, 0) - true, axis=-1)
    things = [labels == n for n in np.unique(labels[(far > MOVED_M) & (far < THROWN_M)])]
    return float(np.mean([off[t].mean() for t in things])) if things else None


# ---------------------------------------------------------------------- the table


def table_of(rows: Mapping[str, Sequence[Mapping[str, Any]]], ours: str) -> dict[str, dict[str, Any]]:
    """Means with intervals over whole scenes, and the difference from ``ours`` with the interval of pairs."""
    return {name: {c: _cell(found, rows[ours], c) for c in COLUMNS} for name, found in rows.items()}


def _cell(mine: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]], column: str) -> dict[str, Any] | None:
    have = [(r[column], r["group"]) for r in mine if r[column] is not None]
    if not have:
        return None
    interval = bootstrap_interval([v for v, _ in have], groups=[g for _, g in have])
    out: dict[str, Any] = {"mean": float(np.mean([v for v, _ in have])), "n": len(have), "interval": _plain(interval)}
    both = [
        (a[column], b[column], a["group"])
        for a, b in zip(ours, mine, strict=True)
        if None not in (a[column], b[column])
    ]
    if both:
        pairs = paired([a for a, _, _ in both], [b for _, b, _ in both], groups=[g for _, _, g in both])
        if not isinstance(pairs, NA):
            out |= {"difference": pairs.difference, "difference_interval": list(pairs.interval)}
            worse = pairs.difference * (1 if COLUMNS[column][3] == "lower" else -1)
            out["against_ours"] = "tie" if not pairs.excludes_zero else "worse" if worse > 0 else "better"
    return out


def _plain(interval: Any) -> list[float] | None:
    return None if isinstance(interval, NA) else [float(x) for x in interval]


def agreement(table: Mapping[str, Mapping[str, Any]], entries: Sequence[Entry], ours: str) -> list[dict[str, Any]]:
    """For each member that the paper has: is it better or worse than ours there, and here?"""
    paper = {e.name: e.paper for e in entries if e.paper is not None}
    out = []
    if ours not in paper:
        return out
    for name, figures in paper.items():
        if name == ours:
            continue
        for at, column in enumerate(("psnr", "cd_l1")):
            gap = figures[at] - paper[ours][at]
            there = "tie" if gap == 0 else "worse" if (gap > 0) == (column == "cd_l1") else "better"
            cell = table[name][column]
            here = None if cell is None else cell.get("against_ours")
            out.append({"member": name, "column": column, "paper": there, "here": here, "agrees": here == there})
    return out


def write(
    out: Path, table: Mapping[str, Mapping[str, Any]], entries: Sequence[Entry], ours: str, about: Mapping[str, Any]
) -> str:
    """``table.json``, ``table.md`` and a plot of each column, whole or absent; returns the text of the table."""
    agrees = agreement(table, entries, ours)
    text = _markdown(table, entries, agrees, about)
    whole = {"about": dict(about), "table": table, "agreement": agrees}
    with whole_file(out / "table.json", overwrite=True) as file:
        file.write_text(json.dumps(whole, indent=1))
    with whole_file(out / "table.md", overwrite=True) as file:
        file.write_text(text)
    for column, (label, unit, factor, _) in COLUMNS.items():
        cells = {n: row[column] for n, row in table.items()}
        if any(cells.values()):
            items = [
                (n, c and factor * c["mean"], c and c["interval"] and tuple(factor * x for x in c["interval"]))
                for n, c in cells.items()
            ]
            with whole_file(out / f"{column}.svg", overwrite=True) as file:
                file.write_text(bars(items, title=label, unit=unit))  # type: ignore[arg-type]
    return text


def _markdown(
    table: Mapping[str, Mapping[str, Any]],
    entries: Sequence[Entry],
    agrees: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
) -> str:
    paper = {e.name: e.paper for e in entries}
    shown = [c for c in COLUMNS if any(row[c] for row in table.values())]
    heads = [f"{COLUMNS[c][0]} {COLUMNS[c][1]}".strip() for c in shown]
    lines = [", ".join(f"{k}: {v}" for k, v in about.items()), ""]
    lines += ["| | " + " | ".join([*heads, "paper PSNR", "paper CD-L1"]) + " |", "|---" * (len(heads) + 3) + "|"]
    for name, row in table.items():
        figures = paper.get(name)
        cells = [_shown(row[c], COLUMNS[c][2]) for c in shown] + (
            [f"{figures[0]:.2f}", f"{figures[1]:.4f}"] if figures else ["", ""]
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Brackets: 95 % over scenes. + better, - worse than ours beyond the interval of pairs.", ""]
    if agrees:
        lines.append(
            f"Ordering against ours as in the paper: {sum(a['agrees'] for a in agrees)} of {len(agrees)}. Not so:"
        )
        lines += [
            f"- {a['member']}, {COLUMNS[a['column']][0]}: paper {a['paper']}, here {a['here']}"
            for a in agrees
            if not a["agrees"]
        ]
    return "\n".join(lines) + "\n"


def _shown(cell: Mapping[str, Any] | None, factor: float) -> str:
    if cell is None:
        return "n/a"
    digits = 2 if abs(factor * cell["mean"]) < 100 and factor != 100 else 1
    low_high = (
        "" if cell["interval"] is None else " [" + ", ".join(f"{factor * x:.{digits}f}" for x in cell["interval"]) + "]"
    )
    mark = {"better": " +", "worse": " -"}.get(cell.get("against_ours", ""), "")
    return f"{factor * cell['mean']:.{digits}f}{low_high}{mark}"
