"""The ledgers of a moving object as one SVG drawing: energy, momentum and penetration over time. The same numbers give the same bytes."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.deforming import ObjectMotion

WIDTH, HEIGHT = 640, 420
"""Of the drawing, in its own units."""
COLORS = {"kinetic": "#D55E00", "potential": "#0072B2", "total": "#222222", "work of pushes": "#CC79A7"}
"""Of Okabe and Ito, which colour-blind readers can tell apart."""
SHOWN = 600
"""Most points of a line; past it, every n-th frame and the last are drawn."""


def ledger_svg(motion: ObjectMotion, *, mark: float | None = None) -> str:
    """The drawing; ``mark`` adds a line of class ``mark`` at a time in every panel, seconds. Each panel says in ``data-x0`` and ``data-x1``
    where its first and last frame are, so that a page can move the line."""
    energy = {"kinetic": motion.kinetic, "potential": motion.potential, "total": motion.energy}
    if motion.work.any():
        energy["work of pushes"] = motion.work
    speed = np.linalg.norm(motion.momentum, axis=1)
    deep = 1000 * motion.penetration
    parts = [
        _panel(motion, energy, "Energy, J", (58, 42, WIDTH - 14, 242), mark),
        _panel(motion, {"": speed}, "Size of the momentum, kg m/s", (58, 292, 322, 380), mark),
        _panel(motion, {"": deep}, f"Penetration, mm (largest {deep.max():.3g})", (378, 292, WIDTH - 14, 380), mark),
    ]
    gain = motion.energy[-1] - motion.energy[0]
    said = f"total changed by {gain:+.3g} J in {motion.seconds[-1]:.3g} s"
    if motion.work.any():
        said += f"; pushes did {motion.work[-1]:+.3g} J"
    parts.append(_text(WIDTH - 14, 18, said, "end", dim=True))
    if motion.stopped is not None:
        parts.append(_text(58, HEIGHT - 6, f"stopped: {motion.stopped}"[:110], color="#C02020"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ledger" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="11" role="img" '
        f'aria-label="energy, momentum and penetration" font-family="system-ui, sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers around a range: from at or below it to at or above it."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-6):
        pad = 0.1 * abs(low)
        low, high = (low - pad, high + pad) if low else (0.0, 1.0)
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _panel(
    motion: ObjectMotion,
    series: Mapping[str, Float[np.ndarray, " t"]],
    title: str,
    box: tuple[float, float, float, float],
    mark: float | None,
) -> str:
    left, top, right, bottom = box
    time, end = motion.seconds, max(float(motion.seconds[-1]), motion.step)
    at = ticks(
        float(min(v.min() for v in series.values())), float(max(v.max() for v in series.values())), 7 if len(series) > 1 else 3
    )  # fmt: skip
    y = {t: bottom - (t - at[0]) / (at[-1] - at[0]) * (bottom - top) for t in at}
    parts = [_text(left, top - 24 if len(series) > 1 else top - 8, title, bold=True)]
    for t, here in y.items():
        parts.append(_line(left, here, right, here, "#e2e4e8"))
        parts.append(_text(left - 5, here + 4, _label(t, at), "end", dim=True))
    for t in [t for t in ticks(0.0, end, 6 if len(series) > 1 else 4) if t <= end * (1 + 1e-9)]:
        x = left + t / end * (right - left)
        parts.append(_line(x, bottom, x, bottom + 4, "#888888"))
        parts.append(_text(x, bottom + 15, f"{t:g} s", "middle", dim=True))
    shown = np.unique(np.append(np.arange(0, len(time), -(-len(time) // SHOWN)), len(time) - 1))
    place = left + 4
    for name, values in series.items():
        xs, ys = left + time[shown] / end * (right - left), bottom - (values[shown] - at[0]) / (at[-1] - at[0]) * (bottom - top)  # fmt: skip
        points = " ".join(f"{a:.2f},{b:.2f}" for a, b in zip(xs, ys, strict=True))
        color = COLORS.get(name, "#0072B2")
        dash = ' stroke-dasharray="6 3"' if name == "total" else ""
        parts.append(f'<polyline data-name="{name}" points="{points}" fill="none" stroke="{color}" stroke-width="1.7"{dash}/>')  # fmt: skip
        if name:
            parts.append(
                f'<line x1="{place}" x2="{place + 16}" y1="{top - 7}" y2="{top - 7}" stroke="{color}" stroke-width="2.5"{dash}/>'
            )
            parts.append(_text(place + 20, top - 3, name))
            place += 34 + 6.0 * len(name)
    if mark is not None:
        x = left + min(max(mark / end, 0.0), 1.0) * (right - left)
        parts.append(f'<line class="mark" x1="{x:.2f}" x2="{x:.2f}" y1="{top}" y2="{bottom}" stroke="#C02020" stroke-width="1.5"/>')  # fmt: skip
    return f'<g class="panel" data-x0="{left}" data-x1="{right}" data-y0="{bottom}" data-y1="{top}" data-low="{at[0]:.9g}" data-high="{at[-1]:.9g}">{"".join(parts)}</g>'  # fmt: skip


def _label(value: float, among: list[float]) -> str:
    """A tick with as many decimals as its neighbours need."""
    step = among[1] - among[0]
    if max(abs(t) for t in among) >= 1e5 or step < 1e-4:
        return f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value + 0.0:.{decimals + (abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6)}f}"


def _text(
    x: float, y: float, text: str, anchor: str = "start", *, dim: bool = False, bold: bool = False, color: str = "#222222"
) -> str:  # fmt: skip
    fill, weight = "#5c6168" if dim else color, ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"{weight}>{html.escape(text)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, color: str) -> str:
    return f'<line x1="{x0:.2f}" y1="{y0:.2f}" x2="{x1:.2f}" y2="{y1:.2f}" stroke="{color}"/>'
