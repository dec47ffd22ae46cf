"""One HTML file of a moving object that opens by double click, without Python and without a network: time, forces, ledgers, coordinates."""

from __future__ import annotations

import base64
import html
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.files import whole_file
from kinema4d.geometry.deforming import ObjectMotion, knots
from kinema4d.geometry.deforming_look import (
    RED,
    STONE,
    arrow,
    arrows,
    box,
    creased,
    creases,
    face_colors,
    floor,
    obstacle_mesh,
    towards_eye,
)
from kinema4d.geometry.ledger import ledger_svg
from kinema4d.viewer.object_view import SUM, facts

BUDGET = 32_000_000
"""Bytes for the vertices of all frames, about; past it a page has every n-th frame, and says so."""


def export_motion_html(motion: ObjectMotion, path: str | Path, *, budget: int = BUDGET) -> Path:
    """Write a self-contained page and return its path. Six bytes per vertex and frame, exact to 1/65535 of the scene."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"the page must be named .html, got {path}")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: " + ("it is a folder" if path.is_dir() else f"no folder {path.parent}"))
    every = max(1, -(-motion.vertices.size * 2 // max(budget, 1)))
    frames = np.unique(np.append(np.arange(0, len(motion), every), len(motion) - 1))
    words = facts(motion) + (f"<br>Of the frames, one in {every} is on this page." if every > 1 else "")
    page = resources.files("kinema4d.viewer").joinpath("object_page.html").read_text(encoding="utf-8")
    parts = {
        "FACTS": words,
        "LEDGER": ledger_svg(motion, mark=0.0),
        "SUM": html.escape(SUM),
        "DATA": _script(_data(motion, frames)),
    }
    for key, text in parts.items():
        page = page.replace(f"<!--{key}-->", text)
    with whole_file(path, overwrite=True) as part:
        part.write_text(page, encoding="utf-8")
    return path


def _data(motion: ObjectMotion, frames: np.ndarray) -> dict[str, Any]:
    source, faces = creased(motion)
    colors = np.zeros((len(source), 3), np.uint8)
    colors[faces] = face_colors(motion)[:, None]
    at, shapes = knots(motion)
    tip, sides = arrow()
    (low, high), ground = box(motion), floor(motion)
    return {
        "count": motion.vertices.shape[1],
        "seconds": motion.seconds[frames].tolist(),
        "end": max(float(motion.seconds[-1]), motion.step),
        "vertices": _short(motion.vertices[frames]),
        "source": _packed(source.astype(np.uint32)),
        "faces": _packed(faces.astype(np.uint32)),
        "colors": _packed(colors),
        "rest": _short(motion.rest[None]),
        "restQ": motion.rest_q.tolist(),
        "q": motion.q[frames].tolist(),
        "knots": at.tolist(),
        "shapes": _short(shapes.reshape(-1, *motion.rest.shape)),
        "place": motion.place[frames].tolist(),
        "turn": motion.turn[frames].reshape(len(frames), 9).tolist(),
        "arrows": [arrows(motion, int(i)).tolist() for i in frames],
        "arrow": {"vertices": tip.ravel().tolist(), "faces": sides.ravel().tolist(), "color": RED},
        "obstacle": _obstacle(motion),
        "floor": {"middle": ground.middle, "half": ground.half, "cell": ground.cell},
        "low": low.tolist(),
        "high": high.tolist(),
        "eye": towards_eye(motion).tolist(),
    }


def _obstacle(motion: ObjectMotion) -> dict[str, Any] | None:
    if (stands := obstacle_mesh(motion)) is None:
        return None
    source, faces = creases(stands)
    return {"vertices": _short(stands.vertices[source]), "faces": _packed(faces.astype(np.uint32)), "color": STONE}


def _short(points: np.ndarray) -> dict[str, Any]:
    """Points in 16 bits each, with the box they are in."""
    flat = points.reshape(-1, 3).astype(np.float64)
    low = flat.min(axis=0) if len(flat) else np.zeros(3)
    wide = np.maximum(flat.max(axis=0) - low, 1e-12) if len(flat) else np.ones(3)
    return {
        "low": low.tolist(),
        "wide": wide.tolist(),
        "data": _packed(np.round((flat - low) / wide * 65535).astype("<u2")),
    }


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _script(data: dict[str, Any]) -> str:
    # "</script" in other people's words would end the element
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
