"""Chamfer distance and F-score at 480x720: how much faster than a SciPy k-d tree loop, and are the numbers the same?

    python benchmarks/chamfer.py              # a table; all 49 frames, several minutes of SciPy
    python benchmarks/chamfer.py --frames 8   # both sides on 8 frames, spread over the clip
    python benchmarks/chamfer.py --json       # one object

Two pairs. "noise": a simulated tabletop clip against itself with 5 mm of depth noise everywhere and its moving parts two
pixels off, as a good generator has it. "outcome": the same scene where another thing happened, as a generator has it that
is right about the world and wrong about the action. The loop that we compare with builds a ``cKDTree`` per frame and side
and queries it both ways, once with ``workers=1`` and once with all cores; ours uses all cores (``--threads 1`` for one).
Sides take turns every few frames, so that a busy moment hits all. Times are sums over frames, of wall seconds (CPU seconds
in brackets: what a busy machine does not change). Ours is also measured on all frames in one call, with its peak of memory
beyond the two clips.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import tracemalloc
from importlib import metadata
from typing import Any

import numpy as np
from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]

from kinema4d.evaluate.geometry import TAU, Chamfer, chamfer
from kinema4d.geometry.raster import default_threads
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.episode import Wish, disturb, perform, record, set_stage
from kinema4d.types import Pointmap

NUMBERS = ("l1", "l2", "f_score", "accuracy", "completeness", "precision", "recall")
"""Fields of the result that both sides compute."""
NOISE_M, SHIFT_PX = 0.005, 2
"""Damage of the first pair."""


def clips(height: int, width: int, seed: int = 3) -> tuple[Pointmap, dict[str, Pointmap]]:
    """The truth, and what it is compared with."""
    stage = set_stage(load_robot("panda"), Wish(task="pick_place", seed=seed, height=height, width=width))
    truth = record(stage, perform(stage), source="benchmark", facts={})
    other = record(stage, perform(stage, disturb(stage, 1, 1.2)), source="benchmark", facts={}).clip.pointmap
    seen, labels = truth.clip.pointmap, truth.labels
    assert labels is not None
    rng = np.random.default_rng(seed)
    points = np.where((labels > 0)[..., None], np.roll(seen.points, SHIFT_PX, axis=2), seen.points)
    for frame in points:  # noise along the ray, as depth has it
        frame *= 1 + (rng.normal(0, NOISE_M, frame.shape[:2]) / frame[..., 2]).astype(np.float32)[..., None]
    return seen, {"noise": Pointmap(points=points, valid=seen.valid), "outcome": other}


def one_frame(pointmap: Pointmap, frame: int) -> Pointmap:
    return Pointmap(points=pointmap.points[frame : frame + 1], valid=pointmap.valid[frame : frame + 1])


def with_scipy(a: Pointmap, b: Pointmap, tau: float, workers: int) -> dict[str, float]:
    """The straightforward way, for one frame."""
    p = a.points[0][a.valid[0]].astype(np.float64)
    q = b.points[0][b.valid[0]].astype(np.float64)
    ab, ba = cKDTree(q).query(p, workers=workers)[0], cKDTree(p).query(q, workers=workers)[0]
    precision, recall = float((ab < tau).mean()), float((ba < tau).mean())
    return {
        "l1": float(ab.mean() + ba.mean()) / 2,
        "l2": float((ab**2).mean() + (ba**2).mean()) / 2,
        "f_score": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
        "accuracy": float(ab.mean()),
        "completeness": float(ba.mean()),
        "precision": precision,
        "recall": recall,
    }


def chosen(pointmap: Pointmap, frames: list[int]) -> Pointmap:
    return Pointmap(points=pointmap.points[frames], valid=pointmap.valid[frames])


def clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def measure(a: Pointmap, b: Pointmap, frames: list[int], threads: int) -> dict[str, Any]:
    """One pair. Ours works on as many frames at once as it has threads; SciPy on one at a time, all it can do."""
    chamfer(one_frame(a, frames[0]), one_frame(b, frames[0]))  # compile
    spent = {"ours": np.zeros(2), "scipy, 1 worker": np.zeros(2), "scipy, all cores": np.zeros(2)}
    theirs: list[dict[str, float]] = []
    for start in range(0, len(frames), threads):
        some = frames[start : start + threads]
        parts = chosen(a, some), chosen(b, some)
        before = clocks()
        chamfer(*parts, TAU, threads=threads)
        spent["ours"] += clocks() - before
        for frame in some:
            pair = one_frame(a, frame), one_frame(b, frame)
            before = clocks()
            theirs.append(with_scipy(*pair, TAU, 1))
            between = clocks()
            with_scipy(*pair, TAU, -1)
            spent["scipy, 1 worker"] += between - before
            spent["scipy, all cores"] += clocks() - between
    parts = chosen(a, frames), chosen(b, frames)
    before = clocks()
    ours = chamfer(*parts, TAU, threads=threads)
    spent["ours, one call"] = clocks() - before
    tracemalloc.start()
    chamfer(*parts, TAU, threads=threads)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    expected = {name: float(np.mean([t[name] for t in theirs])) for name in NUMBERS}
    return {
        "seconds_wall_cpu": {name: both.round(3).tolist() for name, both in spent.items()},
        "speedup": spent["scipy, 1 worker"][0] / spent["ours"][0],
        "speedup_all_cores": spent["scipy, all cores"][0] / spent["ours"][0],
        "speedup_cpu": spent["scipy, 1 worker"][1] / spent["ours"][1],
        "max_abs_diff": max(abs(getattr(ours, name) - expected[name]) for name in NUMBERS),
        "peak_mb": peak,
        "numbers": _numbers(ours),
    }


def _numbers(found: Chamfer) -> dict[str, float]:
    return {name: getattr(found, name) for name in NUMBERS}


def compare(frames: int, *, height: int = 480, width: int = 720, threads: int | None = None) -> dict[str, Any]:
    """Everything, on ``frames`` frames spread over the clip (0 for all). The speed-up is the smaller of both pairs."""
    truth, others = clips(height, width)
    count = len(truth.valid)
    which = np.unique(np.linspace(0, count - 1, frames or count).round().astype(int)).tolist()
    pairs = {
        name: measure(other, truth, which, max(1, min(threads or default_threads(), len(which))))
        for name, other in others.items()
    }
    return {
        "chamfer_speedup": min(p["speedup"] for p in pairs.values()),
        "chamfer_speedup_all_cores": min(p["speedup_all_cores"] for p in pairs.values()),
        "chamfer_speedup_cpu": min(p["speedup_cpu"] for p in pairs.values()),
        "chamfer_max_abs_diff": max(p["max_abs_diff"] for p in pairs.values()),
        "chamfer_peak_mb": max(p["peak_mb"] for p in pairs.values()),
        "frames": len(which),
        "size": [height, width],
        "threads": threads or default_threads(),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=0, help="frames to compare on both sides; 0 for all 49")
    parser.add_argument("--height", type=int, default=480, help="image rows")
    parser.add_argument("--width", type=int, default=720, help="image columns")
    parser.add_argument("--threads", type=int, default=None, help="threads of our side; all cores by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args()
    if given.frames < 0:
        parser.error(f"--frames must be 0 (all) or more, got {given.frames}")
    found = compare(given.frames, height=given.height, width=given.width, threads=given.threads)
    versions = {name: metadata.version(name) for name in ("numpy", "scipy", "numba")}
    found["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), **versions}
    if given.json:
        print(json.dumps(found))
        return
    print(f"{found['frames']} frames of {'x'.join(map(str, found['size']))}, our side with {found['threads']} threads")
    for name, pair in found["pairs"].items():
        print(f"{name}:")
        for side, (wall, cpu) in pair["seconds_wall_cpu"].items():
            print(f"  {side:20}{wall:9.2f} s ({cpu:.2f} CPU) {1e3 * wall / found['frames']:9.1f} ms per frame")
        print(
            f"  {pair['speedup']:.1f}x faster than SciPy with 1 worker, {pair['speedup_all_cores']:.1f}x than with all "
            f"cores; {pair['speedup_cpu']:.1f}x fewer CPU seconds"
        )
        print(f"  largest difference {pair['max_abs_diff']:.2g}, peak {pair['peak_mb']:.0f} MB beyond the clips")
        print("  " + ", ".join(f"{k} {v:.6g}" for k, v in pair["numbers"].items()))
    print(found["machine"])


if __name__ == "__main__":
    main()
