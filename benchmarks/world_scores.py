"""Scores of one foretold episode, kept in a file, and figures of a set of them. Used by ``benchmarks/world.py``."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data.dataset import open_dataset
from kinema4d.evaluate import perceptual
from kinema4d.evaluate.foretell import control_of, foretell
from kinema4d.evaluate.geometry import scores as geometry_scores
from kinema4d.evaluate.interaction import interact
from kinema4d.evaluate.score import NA, Pair
from kinema4d.evaluate.statistics import bootstrap_interval, rate_interval
from kinema4d.evaluate.video import scores as video_scores
from kinema4d.files import whole_file
from kinema4d.types import Episode, Rollout
from kinema4d.world.protocol import World
from kinema4d.world.small.direct import DirectWorld

FORMAT = 3
"""Of kept scores; those of another format are made again."""
TRUTH = "truth"
"""Not a world: the truth itself as a prediction, the best that any can score."""
FAR_M = 1.0
"""A thing that truly went further was thrown by the truth's engine, metres; no mean should hang on it."""
KEYS = {
    "object_error_m": "object_error_m", "object_error_m_said": "object_error_m_said",
    "object_error_shown_m": "object_error_shown_m", "object_error_said_shown_m": "object_error_said_shown_m",
    "object_error_near_mean_m": "object_error_near_m", "object_error_near_mean_m_said": "object_error_near_m_said",
    "displacement_near_mean_m": "displacement_near_m", "false_motion_m": "false_motion_m",
    "outcome_accuracy": "outcome_right", "outcome_accuracy_said": "outcome_right_said",
    "outcome_accuracy_shown": "outcome_right_shown", "outcome_accuracy_said_shown": "outcome_right_said_shown",
    "near_miss_accuracy": "near_miss_right", "near_miss_accuracy_said": "near_miss_right_said",
    "object_angle_deg": "object_angle_deg", "object_found": "object_found",
    "changed_psnr_db": "changed_psnr_db", "psnr_db": "psnr", "ssim": "ssim", "chamfer_l1": "cd_l1", "f_score": "f_score",
    "robot_error_mm": "robot_error_mm", "moved_5cm_m": "moved_5cm_m", "fallen_angle_deg": "fallen_angle_deg",
    "fallen_angle_deg_said": "fallen_angle_deg_said", "covered_iou": "covered_iou",
    "lpips": "lpips_alex", "disocclusion_psnr_db": "disoccluded_psnr_db", "covered_psnr_db": "covered_psnr_db",
    "psnr_temp_db": "psnr_temp", "chamfer_l1_temp": "cd_l1_temp", "flicker": "flicker", "steps": "steps",
}  # fmt: skip
"""Ours by the names of the judge's scores."""
RATES = tuple(name for name in KEYS if "_accuracy" in name)
MEDIANS = (
    "object_error_m",
    "object_error_m_said",
    "object_error_shown_m",
    "object_error_said_shown_m",
    "object_angle_deg",
    "moved_5cm_m",
    "fallen_angle_deg",
    "fallen_angle_deg_said",
)
ALSO_MEAN = {
    "object_error_m": "object_error_mean_m",
    "object_error_m_said": "object_error_mean_m_said",
    "object_error_shown_m": "object_error_shown_mean_m",
    "object_error_said_shown_m": "object_error_said_shown_mean_m",
}
"""Medians that are also reported as means, and under which name."""


@dataclass(frozen=True)
class Work:
    """One episode of one world."""

    root: str
    id: str
    world: str
    depth: bool
    pixels: bool
    keep: str


@lru_cache(maxsize=4)
def the_world(name: str) -> World:
    """A world, on one thread."""
    from kinema4d.world.small.machine import guard

    guard()
    import torch

    from kinema4d.world.load import load_world

    torch.set_num_threads(1)
    return load_world(name)


@lru_cache(maxsize=4)
def the_data(root: str) -> Any:
    """A data set, open."""
    return open_dataset(root)


def weights_of(world: str) -> str:
    """The first digits of the hash of a world's weights."""
    if world.endswith(".safetensors"):
        return hashlib.sha256(Path(world).read_bytes()).hexdigest()[:12]
    from kinema4d.world.small.checkpoint import SHIPPED
    from kinema4d.world.small.direct import SHIPPED as DIRECT

    file = {"small": SHIPPED, "small-motion": SHIPPED, "small-direct": DIRECT}.get(world)
    return "" if file is None else file.with_suffix(".sha256").read_text().strip()[:12]


def keep_folder(root: Path, split: str, world: str, *, depth: bool, what: str) -> str:
    """Where what is found about a set is kept."""
    given = "given" if depth else "predicted"
    return str(root.parent / "scores" / f"{split}-{Path(world).stem}-{weights_of(world)}-{given}-{what}")


def kept(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``file`` holds; where it is missing or of another format, what ``make`` gives, which is written."""
    if file.is_file():
        found = json.loads(file.read_text())
        if found.get("format") == FORMAT:
            return found
    found = {"format": FORMAT, **make()}
    with whole_file(file, overwrite=True) as temporary:
        temporary.write_text(json.dumps(found))
    return found


def one(work: Work) -> dict[str, Any]:
    """Scores of one episode, or those that were kept."""
    return kept(Path(work.keep) / f"{work.id}.json", lambda: _one(work))


def _one(work: Work) -> dict[str, Any]:
    truth = the_data(work.root).load(work.id)
    control = control_of(truth)
    began = time.process_time()
    if work.world == TRUTH:
        made = Rollout(clip=truth.clip, provenance={"world": TRUTH}, tracks=truth.tracks)
    else:
        options = {"text": truth.text} if isinstance(world := the_world(work.world), DirectWorld) else {}
        made = foretell(world, truth, use_depth=work.depth, control=control, **options)
    seconds = time.process_time() - began
    found = {**scored(made, truth, pixels=work.pixels), "seconds": seconds, "steps": made.provenance.get("steps")}
    if work.pixels:
        found["flicker"] = flicker(made, truth)
    mask = (
        control.mask & made.clip.pointmap.valid & (truth.robot_mask if truth.robot_mask is not None else control.mask)
    )
    error = np.linalg.norm(made.clip.pointmap.points[mask] - truth.clip.pointmap.points[mask], axis=-1)
    found["robot_error_mm"] = float(1000 * error.mean()) if len(error) else None
    found |= {"id": work.id, "robot": "+".join(a.robot for a in truth.arms), "provenance": dict(made.provenance)}
    return found | {"task": truth.task, "group": truth.group, "outcome": truth.outcome}


def flicker(made: Rollout, truth: Episode) -> float | None:
    """Share of pixels that differ from the frame before, of those that never change in the truth and never show the robot."""
    rgb, robot = truth.clip.rgb, truth.robot_mask
    if robot is None or truth.clip.camera.moving:
        return None
    still = (rgb == rgb[:1]).all(axis=(0, 3)) & ~robot.any(axis=0)
    differs = (made.clip.rgb[1:] != made.clip.rgb[:-1]).any(axis=-1)
    return float(differs[:, still].mean()) if still.any() else None


def scored(made: Rollout, truth: Episode, *, pixels: bool) -> dict[str, Any]:
    """Everything that the judge says of a rollout."""
    pair = Pair(predicted=made.clip, truth=truth, tracks=made.tracks)
    acted = interact(pair)
    scores = dict(acted.scores)
    if pixels:
        scores |= video_scores(pair) | geometry_scores(pair, aligned=False)
        scores |= perceptual.scores(pair, networks=("alex",))
    out: dict[str, Any] = {k: None if isinstance(v, NA) else float(v) for k, v in scores.items()}
    rows, said = acted.details.get("objects", {}), acted.details.get("said") or {}
    far = [
        r["error_m"]
        for r in rows.values()
        if r["moved"] and r["error_m"] is not None and r["true_displacement_m"] > 0.05
    ]
    out["moved_5cm_m"] = float(np.mean(far)) if far else None
    fell = {t.name for t in truth.tracks if _tilt(t.Ts_world_object) > 45}
    for key, table in {"fallen_angle_deg": rows, "fallen_angle_deg_said": said}.items():
        angles = [table[n]["angle_deg"] for n in fell if n in table and table[n].get("angle_deg") is not None]
        out[key] = float(np.mean(angles)) if angles else None
    return out | {"objects": rows, "said": said, "shown": shown_pixels(truth), "named": sorted(named_things(truth))}


def _tilt(Ts: np.ndarray) -> float:
    """How far a thing's upright axis leans at the end, degrees."""
    return float(np.degrees(np.arccos(np.clip((Ts[0, :3, 2] * Ts[-1, :3, 2]).sum(), -1, 1))))


# ---------------------------------------------------------------------- what the first frame shows


def shown_pixels(truth: Episode) -> dict[str, int]:
    """How many pixels of the first frame show each thing that has a track; empty where nothing is labelled."""
    if truth.labels is None:
        return {}
    counts = np.bincount(truth.labels[0].astype(np.int64).ravel(), minlength=len(truth.label_names) + 1)
    at = {name: i + 1 for i, name in enumerate(truth.label_names)}
    return {t.name: int(counts[at[t.name]]) if t.name in at else 0 for t in truth.tracks}


def named_things(truth: Episode) -> set[str]:
    """The things that a task speaks of: target (and the part of it that moves), goal and extra; LIBERO's thing and
    place. Empty where the episode does not say."""
    facts = truth.facts
    if "roles" in facts:
        roles = facts["roles"]
        every = [roles["target"], *([roles["goal"]] if roles["goal"] else []), *roles["extra"]]
        joint = roles["target"]["joint"]
        return {r["body"] for r in every} | ({joint["body"]} if joint else set())
    if {"thing", "place"} <= facts.keys():
        place = str(facts["place"])
        whole = [t.name for t in truth.tracks if place == t.name or place.startswith(t.name + "_")]
        return {str(facts["thing"]), *whole}
    return set()


def all_shown(named: Collection[str], shown: Mapping[str, int]) -> bool:
    """Whether each thing that is named is shown by at least one pixel of the first frame. Of nothing named: yes."""
    return all(shown.get(name, 0) > 0 for name in named)


def derived(row: Mapping[str, Any]) -> dict[str, Any]:
    """An episode's scores with those that only count what the first frame shows, or what was not thrown."""
    things, said, shown = row.get("objects") or {}, row.get("said") or {}, row.get("shown") or {}
    moved = [name for name, thing in things.items() if thing["moved"]]
    near = [name for name in moved if things[name]["true_displacement_m"] < FAR_M]
    seen = [name for name in moved if shown.get(name, 0) > 0]
    named = all_shown(row.get("named") or (), shown)
    return dict(row) | {
        "outcome_right_shown": row.get("outcome_right") if named else None,
        "outcome_right_said_shown": row.get("outcome_right_said") if named else None,
        "object_error_shown_m": _mean(things, seen, "error_m"),
        "object_error_said_shown_m": _mean(said, seen, "error_m"),
        "object_error_near_m": _mean(things, near, "error_m"),
        "object_error_near_m_said": _mean(said, near, "error_m"),
        "displacement_near_m": _mean(things, near, "true_displacement_m"),
        "moved_things": len(moved),
        "shown_things": len(seen),
        "thrown_things": len(moved) - len(near),
    }


def _mean(table: Mapping[str, Mapping[str, Any]], names: Sequence[str], key: str) -> float | None:
    values = [table[n][key] for n in names if n in table and table[n].get(key) is not None]
    return float(np.mean(values)) if values else None


# ---------------------------------------------------------------------- a whole set


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures with intervals over whole scenes."""
    full = [derived(row) for row in rows]
    out: dict[str, Any] = {"episodes": len(full)}
    for name, key in KEYS.items():
        have = [(r[key], r["group"]) for r in full if r.get(key) is not None]
        if not have:
            continue
        values, groups = [v for v, _ in have], [g for _, g in have]
        if name in RATES:
            interval = rate_interval(values, groups=groups)
            out[name] = float(np.mean(values))
        else:
            statistic = "median" if name in MEDIANS else "mean"
            interval = bootstrap_interval(values, groups=groups, statistic=statistic)
            out[name] = float(np.median(values) if statistic == "median" else np.mean(values))
        out[f"{name}_interval"] = None if isinstance(interval, NA) else [round(float(x), 5) for x in interval]
        out[f"{name}_n"] = len(values)
        if name in ALSO_MEAN:
            out[ALSO_MEAN[name]] = float(np.mean(values))
    for name in ("moved_things", "shown_things", "thrown_things"):
        out[name] = sum(r[name] for r in full)
    by: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in full:
        for key in ("object_error_m", "object_error_m_said", "outcome_right", "outcome_right_said", "false_motion_m"):
            if r.get(key) is not None:
                by[r["task"]][key].append(r[key])
    out["tasks"] = {t: {k: round(float(np.mean(v)), 4) for k, v in d.items()} for t, d in sorted(by.items())}
    out["cpu_seconds"] = float(np.mean([r["seconds"] for r in full]))
    return out
