"""A page to browse what curation decided: thumbnails, scores and reasons in one file, without a network.

All episodes count in its summary; the worst and a sample of the others are shown, so that the page stays small.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kinema4d.data.curate import Curation, Decision
from kinema4d.data.dataset import Row, open_dataset
from kinema4d.data.doctor import opened
from kinema4d.data.pool import Progress, spread
from kinema4d.data.thresholds import thresholds_to_dict
from kinema4d.files import whole_file
from kinema4d.types import Episode

WORST = 200
"""Episodes shown for their low score."""
SAMPLE = 100
"""Others shown, drawn by the hash of their id."""
THUMBNAIL = 144
"""Width of one picture, pixels."""
ROBOT_COLOR = np.array([255, 60, 60], np.float32)
"""What labelled robot pixels are tinted with."""
_STOPS = np.array(
    [[48, 18, 59], [70, 117, 237], [27, 207, 212], [97, 252, 108], [209, 232, 52], [254, 155, 45], [217, 56, 6]],
    np.float32,
)  # the turbo colour map, every sixth


def write_report(
    root: str | Path,
    curation: Curation,
    *,
    worst: int = WORST,
    sample: int = SAMPLE,
    workers: int = 2,
    progress: Progress | None = None,
) -> Path:
    """Write ``reports/curation.html`` and return its path."""
    dataset = open_dataset(root)
    shown = choose(curation, worst, sample)
    pictures = spread(partial(_picture, dataset.root), [d.id for d in shown], workers=workers, progress=progress)
    entries = [_entry(d, dataset.row(d.id), p) for d, p in zip(shown, pictures, strict=True)]
    summary = {
        "root": dataset.root.resolve().name,
        "episodes": len(curation.decisions),
        "kept": len(curation.kept),
        "shown": len(entries),
        "reasons": curation.reasons,
        "histogram": np.histogram([d.score for d in curation.decisions], bins=10, range=(0, 1))[0].tolist(),
        "keep_score": curation.thresholds.keep_score,
        "thresholds": thresholds_to_dict(curation.thresholds),
    }
    template = (resources.files("kinema4d.data") / "report.html").read_text(encoding="utf-8")
    page = template.replace("__TITLE__", html.escape(str(summary["root"])))
    page = page.replace("__DATA__", _script({"summary": summary, "episodes": entries}))
    path = dataset.root / "reports" / "curation.html"
    with whole_file(path, overwrite=True) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def choose(curation: Curation, worst: int, sample: int) -> list[Decision]:
    """The lowest scores, and of the rest the same sample every time; dropped before kept, low before high."""
    by_score = sorted(curation.decisions, key=lambda d: (d.keep, d.score, d.id))
    rest = sorted(by_score[worst:], key=lambda d: hashlib.sha256(d.id.encode()).digest())[:sample]
    return by_score[:worst] + sorted(rest, key=lambda d: (d.keep, d.score, d.id))


def strip(episode: Episode) -> UInt8[np.ndarray, "h w 3"]:
    """First, middle and last image, then depth and labelled robot of the middle one, side by side."""
    clip, middle = episode.clip, len(episode) // 2
    pictures = [clip.rgb[0], clip.rgb[middle], clip.rgb[-1], _depth(episode, middle), _overlay(episode, middle)]
    height = max(1, round(THUMBNAIL * clip.camera.height / clip.camera.width))
    small = [np.asarray(Image.fromarray(p).resize((THUMBNAIL, height), Image.Resampling.BOX)) for p in pictures]
    gap = np.full((height, 2, 3), 255, np.uint8)
    return np.concatenate([part for picture in small for part in (picture, gap)][:-1], axis=1)


def _picture(root: Path, id: str) -> str:
    """A strip as a data URI; empty where the episode cannot be read, which its reasons tell."""
    try:
        image = strip(opened(root).load(id))
    except (ValueError, OSError):
        return ""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=78)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _depth(episode: Episode, frame: int) -> np.ndarray:
    pointmap = episode.clip.pointmap
    depth, valid = pointmap.depth[frame], pointmap.valid[frame]
    out = np.full((*valid.shape, 3), 225, np.uint8)
    if valid.any():
        low, high = np.quantile(depth[valid], [0.02, 0.98])
        at = np.clip((depth[valid] - low) / max(high - low, 1e-6), 0, 1) * (len(_STOPS) - 1)
        i = np.minimum(at.astype(int), len(_STOPS) - 2)
        part = (at - i)[:, None]
        out[valid] = ((1 - part) * _STOPS[i] + part * _STOPS[i + 1]).astype(np.uint8)
    return out


def _overlay(episode: Episode, frame: int) -> np.ndarray:
    robot, image = episode.robot_mask, episode.clip.rgb[frame]
    if robot is None:
        return (image // 2 + 100).astype(np.uint8)
    out = (image * 0.55 + 60).astype(np.uint8)
    tinted = (0.45 * image + 0.55 * ROBOT_COLOR).astype(np.uint8)
    return np.where(robot[frame][..., None], tinted, out)


def _entry(decision: Decision, row: Row, picture: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "score": round(decision.score, 3),
        "keep": decision.keep,
        "source": row.dataset,
        "task": row.task,
        "outcome": row.outcome,
        "view": row.view,
        "robots": list(row.robots),
        "text": row.text,
        "size": f"{row.frames} frames, {row.width}x{row.height}, {row.fps:.3g} fps",
        "reasons": [
            {"check": f.check, "severity": f.severity, "message": f.message, "remedy": f.remedy}
            for f in decision.reasons
        ],
        "picture": picture,
    }


def _script(value: Any) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
