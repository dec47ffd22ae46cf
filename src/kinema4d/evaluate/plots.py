"""Small plots as SVG elements for a page, written by hand: no plotting package, the same numbers give the same bytes.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart, and they come through CSS variables
(``--s0`` ...) so that a page can lighten them on a dark ground; alone, a plot uses the printed ones. A colour is never the
only sign: what it means also stands as text. Plots are about 320 units wide, so that text stays readable on a phone.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, without black and yellow."""
WIDTH = 320
"""Of every plot, in its own units."""
DOTS = 200
"""Most dots in one row of a strip plot; past it, every n-th of the sorted values is drawn."""
_RIGHT, _TOP, _BOTTOM = 16, 22, 34
_LETTER = 5.6
"""Width of a letter of 10.5 units, about."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A linear scale from values to units of the drawing."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    start: float
    """Where the smallest value is drawn."""
    end: float
    """Where the largest value is drawn."""

    def __call__(self, value: float) -> float:
        """Where a value is drawn; values outside stop at the ends."""
        part = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, part)) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from below ``low`` to above ``high``, at least two."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"an axis needs finite ends, got {low} to {high}")
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def strips(series: Mapping[str, Sequence[float]], *, title: str, unit: str, aside: str = "") -> str:
    """One row of dots per series, with its quartiles as a bar and its median as a line.

    The series called ``aside`` may fall off the axis where it would more than double it; its row then tells its range.
    """
    return _rows(list(series.items()), title, unit, dots=True, aside=aside)


def boxes(series: Sequence[tuple[str, Sequence[float]]], *, title: str, unit: str, colors: Sequence[int] = ()) -> str:
    """One box per series: quartiles, median, whiskers to the 5 % and 95 % points."""
    return _rows(series, title, unit, dots=False, colors=colors)


def bars(
    items: Sequence[tuple[str, float | None, tuple[float, float] | None]],
    *,
    title: str,
    unit: str,
    colors: Sequence[int] = (),
) -> str:
    """Horizontal bars from zero of (name, value, interval), where they have them."""
    if not items:
        return _empty(title)
    ends = [0.0] + [v for _, v, _ in items if v is not None] + [x for _, _, i in items if i is not None for x in i]
    axis, left, height, parts = _frame([name for name, _, _ in items], min(ends), max(ends), title, unit)
    zero = axis(0.0)
    for row, (_, value, interval) in enumerate(items):
        y, color = _TOP + 18 * row + 9, _color(colors, row)
        if value is None:
            parts.append(_text(left + 6, y + 3.5, "n/a", "dim"))
            continue
        x = axis(value)
        parts.append(_rect(min(x, zero), y - 5, abs(x - zero), 10, color, opacity=0.75))
        if interval is not None:
            parts += _whisker(axis(interval[0]), axis(interval[1]), y)
    return _svg(title, height, parts)


def histogram(series: Mapping[str, Sequence[float]], *, title: str, unit: str, bins: int = 20) -> str:
    """Outlined histograms over shared bins, as shares of each series."""
    full = {k: np.asarray(v, float) for k, v in series.items() if len(v)}
    if not full:
        return _empty(title)
    everything = np.concatenate(list(full.values()))
    edge = ticks(float(everything.min()), float(everything.max()))
    edges = np.linspace(edge[0], edge[-1], bins + 1)
    shares = {k: np.histogram(v, edges)[0] / len(v) for k, v in full.items()}
    return _lines(
        {k: (np.repeat(edges, 2)[1:-1].tolist(), np.repeat(s, 2).tolist(), None) for k, s in shares.items()},
        title=title,
        x_label=unit,
        y_label="share",
        y_from_zero=True,
        names=list(series),
    )


def reliability(bins: Sequence[tuple[float, float, float]], *, title: str) -> str:
    """How often what was predicted with some probability happened; bins of (count, predicted, observed), both as means."""
    filled = [(n, p, o) for n, p, o in bins if n > 0]
    if not filled:
        return _empty(title)
    height, left = 200, 40
    x = Axis(low=0, high=1, start=left, end=WIDTH - _RIGHT)
    y = Axis(low=0, high=1, start=height - _BOTTOM, end=_TOP)
    parts = _grid(x, y, [0, 0.25, 0.5, 0.75, 1], [0, 0.25, 0.5, 0.75, 1], "predicted probability", "observed")
    parts.append(_line(x(0), y(0), x(1), y(1), "axis", dash=True))
    most = max(n for n, _, _ in filled)
    path = " ".join(f"{_n(x(p))},{_n(y(o))}" for _, p, o in filled)
    parts.append(f'<polyline points="{path}" fill="none" stroke-width="1.5" style="stroke:{_color((), 0)}"/>')
    for n, p, o in filled:
        radius = 2 + 4 * math.sqrt(n / most)
        tip = f"predicted {p:.2f}, observed {o:.2f}, n {n:.0f}"
        parts.append(_dot(x(p), y(o), radius, _color((), 0), 0.85, tip))
    return _svg(title, height, parts)


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[tuple[float, float]] | None]],
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> str:
    """Lines of (x, y, band), the band being low and high at each x."""
    return _lines(series, title=title, x_label=x_label, y_label=y_label, y_from_zero=False, names=list(series))


def _lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[tuple[float, float]] | None]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_from_zero: bool,
    names: Sequence[str],
) -> str:
    full = {k: v for k, v in series.items() if len(v[0])}
    if not full:
        return _empty(title)
    xs = [x for v in full.values() for x in v[0]]
    ys = [y for v in full.values() for y in v[1]] + [e for v in full.values() for b in (v[2] or ()) for e in b]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(0.0 if y_from_zero else min(ys), max(ys))
    left = 14 + _LETTER * max(len(_label(t, y_ticks)) for t in y_ticks) + 8
    height = 190
    x = Axis(low=min(xs), high=max(max(xs), min(xs) + 1e-12), start=left, end=WIDTH - _RIGHT)
    y = Axis(low=y_ticks[0], high=y_ticks[-1], start=height - _BOTTOM - 14, end=_TOP)
    inside = [t for t in x_ticks if x.low - 1e-9 <= t <= x.high + 1e-9]
    parts = _grid(x, y, inside, y_ticks, x_label, y_label)
    at = left
    for name, (px, py, band) in full.items():
        color = _color((), list(names).index(name))
        if band is not None:
            ring = [(a, high) for a, (_, high) in zip(px, band, strict=True)]
            ring += [(a, low) for a, (low, _) in zip(reversed(px), reversed(band), strict=True)]
            points = " ".join(f"{_n(x(a))},{_n(y(b))}" for a, b in ring)
            parts.append(f'<polygon points="{points}" fill-opacity="0.18" style="fill:{color}"/>')
        points = " ".join(f"{_n(x(a))},{_n(y(b))}" for a, b in zip(px, py, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke-width="1.6" style="stroke:{color}"/>')
        parts.append(_rect(at, height - 11, 10, 4, color))
        short = cut(name, 16)
        parts.append(_text(at + 14, height - 5, short))
        at += 24 + _LETTER * len(short)
    return _svg(title, height, parts)


def _rows(
    series: Sequence[tuple[str, Sequence[float]]],
    title: str,
    unit: str,
    *,
    dots: bool,
    colors: Sequence[int] = (),
    aside: str = "",
) -> str:
    if not any(len(values) for _, values in series):
        return _empty(title)
    low, high = _span([values for name, values in series if name != aside], [v for n, v in series if n == aside])
    names = [f"{cut(name, 16)} ({len(values)})" for name, values in series]
    axis, left, height, parts = _frame(names, low, high, title, unit)
    for row, (_, values) in enumerate(series):
        y, color = _TOP + 18 * row + 9, _color(colors, row)
        if not len(values):
            parts.append(_text(left + 6, y + 3.5, "n/a", "dim"))
            continue
        if min(values) > axis.high or max(values) < axis.low:
            where = f"{min(values):.4g}" if min(values) == max(values) else f"{min(values):.4g} to {max(values):.4g}"
            right = min(values) > axis.high
            text, at = (f"{where} →", axis.end) if right else (f"← {where}", axis.start)
            parts.append(_text(at, y + 3.5, text, "", "end" if right else "start"))
            continue
        x = np.sort(np.asarray(values, float))
        p5, q1, middle, q3, p95 = (float(q) for q in np.quantile(x, [0.05, 0.25, 0.5, 0.75, 0.95]))
        tip = f"median {middle:.4g}, quartiles {q1:.4g} to {q3:.4g}, n {len(x)}"
        if dots:
            shown = x[np.linspace(0, len(x) - 1, min(len(x), DOTS)).round().astype(int)]
            parts += [_dot(axis(float(v)), y + _jitter(i), 1.7, color, 0.4) for i, v in enumerate(shown)]
        else:
            parts += _whisker(axis(p5), axis(p95), y)
        parts.append(_rect(axis(q1), y - 5, axis(q3) - axis(q1), 10, color, opacity=0.3 if dots else 0.75, tip=tip))
        parts.append(_line(axis(middle), y - 6, axis(middle), y + 6, "ink"))
    return _svg(title, height, parts)


def _span(main: Sequence[Sequence[float]], aside: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Ends of an axis: of the main series, and of the others unless that would more than double it."""
    inside = [v for values in main for v in values]
    outside = [v for values in aside for v in values]
    if not inside or not outside:
        return min(inside or outside), max(inside or outside)
    low, high = min(inside), max(inside)
    wide = min(low, *outside), max(high, *outside)
    return wide if wide[1] - wide[0] <= 2 * (high - low) else (low, high)


def _frame(
    names: Sequence[str], low: float, high: float, title: str, unit: str
) -> tuple[Axis, float, float, list[str]]:
    """Rows with names at the left and a value axis below."""
    names = [cut(n, 22) for n in names]
    left = min(140.0, 8 + _LETTER * max(len(n) for n in names))
    height = _TOP + 18 * len(names) + _BOTTOM
    # as many ticks as have room for their labels
    tried = [ticks(low, high, most) for most in (5, 4, 3, 2)]
    room = [sum(_LETTER * len(_label(t, at)) + 8 for t in at) <= WIDTH - left - _RIGHT + 30 for at in tried]
    at = next((at for at, fits in zip(tried, room, strict=True) if fits), tried[-1])
    axis = Axis(low=at[0], high=at[-1], start=left + 4, end=WIDTH - _RIGHT)
    parts = []
    bottom = height - _BOTTOM + 2
    for t in at:
        parts.append(_line(axis(t), _TOP, axis(t), bottom, "grid"))
        parts.append(_text(axis(t), bottom + 12, _label(t, at), "dim", "middle"))
    parts.append(_text((axis.start + axis.end) / 2, bottom + 25, unit, "dim", "middle"))
    for row, name in enumerate(names):
        parts.append(_text(left, _TOP + 18 * row + 12.5, name, "", "end"))
    return axis, left, height, parts


def _grid(x: Axis, y: Axis, at_x: Sequence[float], at_y: Sequence[float], x_label: str, y_label: str) -> list[str]:
    parts = []
    for t in at_y:
        parts.append(_line(x.start, y(t), x.end, y(t), "grid"))
        parts.append(_text(x.start - 4, y(t) + 3.5, _label(t, at_y), "dim", "end"))
    for t in at_x:
        parts.append(_line(x(t), y.start, x(t), y.start + 3, "axis"))
        parts.append(_text(x(t), y.start + 13, _label(t, at_x), "dim", "middle"))
    parts.append(_text((x.start + x.end) / 2, y.start + 25, x_label, "dim", "middle"))
    middle = (y.start + y.end) / 2
    turned = f'transform="rotate(-90 9 {_n(middle)})"'
    parts.append(_text(9, middle, y_label, "dim", "middle", turned))
    return parts


def _whisker(x0: float, x1: float, y: float) -> list[str]:
    return [
        _line(x0, y, x1, y, "ink"),
        _line(x0, y - 3, x0, y + 3, "ink"),
        _line(x1, y - 3, x1, y + 3, "ink"),
    ]


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    safe = html.escape(title)
    heading = _text(0, 12, cut(title, 56), "title")
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {_n(height)}" role="img" aria-label="{safe}" '
        f'font-size="10.5" font-family="system-ui, sans-serif">'
        f"{heading}{''.join(parts)}</svg>"
    )


def _empty(title: str) -> str:
    return _svg(title, 44, [_text(0, 32, "n/a: no values", "dim")])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "", more: str = "") -> str:
    weight = ' font-weight="600"' if kind == "title" else ""
    opacity = ' fill-opacity="0.72"' if kind == "dim" else ""
    at = f' text-anchor="{anchor}"' if anchor else ""
    more = f" {more}" if more else ""
    return f'<text x="{_n(x)}" y="{_n(y)}" fill="currentColor"{weight}{opacity}{at}{more}>{html.escape(text)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, kind: str, *, dash: bool = False) -> str:
    opacity = {"grid": 0.14, "axis": 0.5, "ink": 1}[kind]
    dashed = ' stroke-dasharray="4 3"' if dash else ""
    return (
        f'<line x1="{_n(x0)}" y1="{_n(y0)}" x2="{_n(x1)}" y2="{_n(y1)}" stroke="currentColor" '
        f'stroke-width="{1.4 if kind == "ink" else 1}" stroke-opacity="{opacity}"{dashed}/>'
    )


def _rect(x: float, y: float, w: float, h: float, color: str, *, opacity: float = 1, tip: str = "") -> str:
    size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}"'
    return f'<rect {size} fill-opacity="{_n(opacity)}" style="fill:{color}">{_tip(tip)}</rect>'


def _dot(x: float, y: float, radius: float, color: str, opacity: float, tip: str = "") -> str:
    at = f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"'
    return f'<circle {at} fill-opacity="{_n(opacity)}" style="fill:{color}">{_tip(tip)}</circle>'


def _tip(text: str) -> str:
    return f"<title>{html.escape(text)}</title>" if text else ""


def _color(colors: Sequence[int], row: int) -> str:
    i = (colors[row] if colors else row) % len(COLORS)
    return f"var(--s{i},{COLORS[i]})"


def _jitter(i: int) -> float:
    """Spread dots of a row evenly and without order: multiples of the golden ratio."""
    return 9 * ((i * 0.6180339887498949) % 1.0 - 0.5)


def _label(value: float, among: Sequence[float]) -> str:
    """A tick with as many decimals as its neighbours need."""
    step = min((abs(b - a) for a, b in pairwise(among)), default=abs(value) or 1.0)
    if max(abs(t) for t in among) >= 1e5 or step < 1e-4:
        return f"{value:.4g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step, decimals) != round(step, decimals + 1):
        decimals += 1  # a step such as 2.5 or 0.25
    return f"{value + 0.0:.{decimals}f}"


def cut(text: str, most: int) -> str:
    """Text of at most so many letters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _n(value: float) -> str:
    """A coordinate: two decimals are finer than a pixel, and never differ by rounding noise."""
    text = f"{value + 0.0:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
