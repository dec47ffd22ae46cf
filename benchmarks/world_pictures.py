"""Pictures of ``benchmarks/world.py``: contact sheets of the best, middling and worst episodes, and reliability."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw
from world_scores import Work, the_data, the_world

from kinema4d.data.pool import spread
from kinema4d.evaluate.foretell import foretell
from kinema4d.files import whole_file

EACH = 3
"""Episodes of one sheet."""
COLUMNS = 5
"""Frames of each episode, evenly spaced from first to last."""
LINE = 20
"""Height of a line of text, pixels."""
LARGEST = 300_000
"""Of a sheet's file, bytes."""
INK, DIM, BLUE, PAPER = (30, 34, 42), (150, 155, 165), (0, 114, 178), (255, 255, 255)


@dataclass(frozen=True, eq=False)
class Strip:
    """One episode on a sheet."""

    text: str
    pictures: Mapping[str, UInt8[np.ndarray, "n h w 3"]]


def chosen(rows: Sequence[Mapping[str, Any]], *, each: int = EACH) -> dict[str, list[Mapping[str, Any]]]:
    """Best, middling and worst of the episodes that moved something, by what the world says; by what is found in its
    pixels where it says nothing. Few episodes stand on several sheets."""
    key = "object_error_m_said" if any(r.get("object_error_m_said") is not None for r in rows) else "object_error_m"
    order = sorted((r for r in rows if r.get(key) is not None), key=lambda r: r[key])
    if not order:
        return {}
    middle = max(0, (len(order) - each) // 2)
    return {"best": order[:each], "median": order[middle : middle + each], "worst": order[-each:]}


def sheets(folder: Path, split: str, rows: Sequence[Mapping[str, Any]], works: Sequence[Work], *, workers: int) -> None:
    """Write ``<split>_<best|median|worst>.jpg``. The episodes on them are foretold once more."""
    picked = chosen(rows)
    wanted = {r["id"] for several in picked.values() for r in several}
    needed = [w for w in works if w.id in wanted]
    strips = dict(zip((w.id for w in needed), spread(frames, needed, workers=workers), strict=True))
    for name, several in picked.items():
        made = [Strip(_text(r), dict(zip(("truth", "foretold"), strips[r["id"]], strict=True))) for r in several]
        with whole_file(folder / f"{split}_{name}.jpg", overwrite=True) as file:
            file.write_bytes(jpeg(contact_sheet(made)))


def frames(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Some frames of an episode, true and foretold."""
    truth = the_data(work.root).load(work.id)
    made = foretell(the_world(work.world), truth, use_depth=work.depth)
    at = np.linspace(0, len(truth) - 1, min(COLUMNS, len(truth))).round().astype(int)
    return truth.clip.rgb[at], made.clip.rgb[at]


def _text(row: Mapping[str, Any]) -> str:
    said, found = row.get("object_error_m_said"), row.get("object_error_m")
    errors = [f"{100 * v:.1f} cm {how}" for v, how in ((said, "said"), (found, "in pixels")) if v is not None]
    right = row.get("outcome_right_said")
    verdict = "" if right is None else ", outcome right" if right else ", outcome wrong"
    return f"{row['task']}, {row['robot']}, truly a {row['outcome']}: {', '.join(errors)}{verdict}   ({row['id']})"


def contact_sheet(strips: Sequence[Strip]) -> Image.Image:
    """Episodes below each other: a line of text, then the frames of each kind."""
    rows = []
    for strip in strips:
        wide = max(several.shape[0] * several.shape[2] for several in strip.pictures.values())
        heading = Image.new("RGB", (wide, LINE), PAPER)
        ImageDraw.Draw(heading).text((6, 3), strip.text, fill=INK, font_size=13)
        pictures = [Image.fromarray(np.concatenate(list(several), axis=1)) for several in strip.pictures.values()]
        for picture, name in zip(pictures, strip.pictures, strict=True):
            ImageDraw.Draw(picture).text((4, 3), name, fill=PAPER, font_size=12, stroke_width=2, stroke_fill=INK)
        rows += [heading, *pictures]
    sheet = Image.new("RGB", (max(r.width for r in rows), sum(r.height for r in rows)), PAPER)
    top = 0
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height
    return sheet


def jpeg(picture: Image.Image, *, largest: int = LARGEST) -> bytes:
    """As a file of at most ``largest`` bytes: of less quality, then smaller, until it fits."""
    while True:
        for quality in (88, 80, 70, 60):
            out = io.BytesIO()
            picture.save(out, "JPEG", quality=quality)
            if out.tell() <= largest:
                return out.getvalue()
        picture = picture.resize((round(picture.width * 0.8), round(picture.height * 0.8)), Image.Resampling.LANCZOS)


def reliability_plot(tables: Mapping[str, tuple[float, Sequence[Sequence[float]]]]) -> Image.Image:
    """One panel per set, of its calibration error and its bins (mean prediction, share observed, count): dots against
    the diagonal, each with its count, and the counts as bars below."""
    size, left, top, bars, foot = 300, 56, 60, 60, 52
    panel = left + size + 24
    out = Image.new("RGB", (panel * max(1, len(tables)), top + size + 14 + bars + foot), PAPER)
    pen = ImageDraw.Draw(out)
    for k, (name, (error, table)) in enumerate(tables.items()):
        x0, y0 = k * panel + left, top + size
        total, most = sum(row[2] for row in table), max((row[2] for row in table), default=1)
        pen.text((x0, 8), f"{name}: calibration error {error:.3f}, n {total:.0f}", fill=INK, font_size=14)
        for step in range(5):
            at = step * size / 4
            pen.line((x0, y0 - at, x0 + size, y0 - at), fill=(228, 230, 234))
            pen.line((x0 + at, y0 - size, x0 + at, y0), fill=(228, 230, 234))
            pen.text((x0 - 6, y0 - at), f"{step / 4:g}", fill=INK, font_size=11, anchor="rm")
            pen.text((x0 + at, y0 + 14 + bars + 4), f"{step / 4:g}", fill=INK, font_size=11, anchor="ma")
        for dash in range(0, size, 10):
            pen.line((x0 + dash, y0 - dash, x0 + dash + 5, y0 - dash - 5), fill=DIM, width=2)
        dots = [(x0 + p * size, y0 - o * size, n) for p, o, n in table]
        if len(dots) > 1:
            pen.line([(x, y) for x, y, _ in dots], fill=BLUE, width=2)
        for x, y, n in dots:
            radius = 3 + 6 * (n / most) ** 0.5
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=BLUE)
            below = y - radius - 4 < top
            pen.text((x, y + radius + 2 if below else y - radius - 3), f"{n:.0f}", fill=INK, font_size=11,
                     anchor="ma" if below else "md")  # fmt: skip
            tall = bars * n / most
            pen.rectangle((x - 8, y0 + 14 + bars - tall, x + 8, y0 + 14 + bars), fill=DIM)
        pen.line((x0, y0 + 14 + bars, x0 + size, y0 + 14 + bars), fill=INK)
        pen.text((x0, 28), "share that truly succeeds", fill=INK, font_size=11)
        pen.text(
            (x0 + size / 2, y0 + 14 + bars + 22), "share of draws that succeed (bars: episodes)", fill=INK,
            font_size=11, anchor="ma",
        )  # fmt: skip
    return out
