"""What ``benchmarks/world.py`` measures beside scores: calibration of draws, drift over chunks, and speed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from world_scores import Work, kept, the_data, the_world

from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate
from kinema4d.data.pool import spread
from kinema4d.evaluate.changed import LEAST_PIXELS, PSNR_CAP, find_changes
from kinema4d.evaluate.foretell import control_of, foretell, named_like
from kinema4d.evaluate.interaction import interact
from kinema4d.evaluate.outcome import judge
from kinema4d.evaluate.score import NA, Pair
from kinema4d.types import Clip, Episode
from kinema4d.world.protocol import first_depth

BINS = 5
"""Of predicted chances."""
CHUNKS = (1, 2, 4)
"""Into how many pieces an episode is cut to see drift."""

# ---------------------------------------------------------------------- calibration


def calibrated(chance: Sequence[float], true: Sequence[bool], *, bins: int = BINS) -> tuple[float, list[list[float]]]:
    """Expected calibration error, and the bins that are not empty: mean chance, share that came true, count."""
    p, t = np.asarray(chance, float), np.asarray(true, float)
    if len(p) != len(t) or not len(p) or p.min() < 0 or p.max() > 1:
        raise ValueError(f"calibration needs as many outcomes as chances from 0 to 1, got {len(t)} and {len(p)}")
    at = np.clip((p * bins).astype(int), 0, bins - 1)
    table, error = [], 0.0
    for b in range(bins):
        own = at == b
        if own.any():
            error += float(own.mean() * abs(p[own].mean() - t[own].mean()))
            table.append([round(float(p[own].mean()), 3), round(float(t[own].mean()), 3), int(own.sum())])
    return error, table


def calibration(works: Sequence[Work], *, draws: int, workers: int) -> dict[str, Any]:
    """Sampled outcomes: how often the share of successes among draws is the chance of success."""
    found = spread(sampled, [(work, draws) for work in works], workers=workers)
    have = [f for f in found if f["chance"] is not None]
    if not have:
        return {}
    chance, true = [f["chance"] for f in have], [f["success"] for f in have]
    error, table = calibrated(chance, true)
    brier = float(((np.array(chance) - np.array(true, float)) ** 2).mean())
    return {"calibration_error": error, "reliability": table, "brier": brier, "draws": draws, "n": len(have)}


def sampled(job: tuple[Work, int]) -> dict[str, Any]:
    """Share of successes among draws of one episode by the world's own tracks (None where nobody can say), and whether
    it truly succeeded; or what was kept of them."""
    work, draws = job
    return kept(Path(work.keep) / f"{work.id}.json", lambda: _sampled(work, draws))


def _sampled(work: Work, draws: int) -> dict[str, Any]:
    from kinema4d.world.small.rigid import answer, draw
    from kinema4d.world.small.world import SmallWorld, tracks_of

    truth, world = the_data(work.root).load(work.id), the_world(work.world)
    if not isinstance(world, SmallWorld):
        raise ValueError(f"--draws needs a world that draws, small or its weights; {work.world} has only one future")
    out: dict[str, Any] = {"chance": None, "success": truth.outcome == "success"}
    if truth.outcome == "unknown":
        return out
    control = control_of(truth)
    depth = first_depth(truth.clip) if work.depth else None
    seen = world.see(truth.clip.rgb[0], control, depth=depth)
    still = {t.name: np.broadcast_to(t.Ts_world_object[:1], t.Ts_world_object.shape) for t in truth.tracks}
    verdicts = []
    for seed in range(draws):
        physics = draw(np.random.default_rng(seed))
        motions = answer(seen.parts, control.solids, fps=control.fps, support=seen.view.support, physics=physics)
        tracks = named_like(tracks_of(seen.parts, motions), truth)
        Ts = still | {t.name: t.Ts_world_object for t in tracks if t.name in still}
        verdict = judge(truth, Ts, slack=0.004)
        if isinstance(verdict, NA):
            return out
        verdicts.append(verdict == "success")
    return out | {"chance": float(np.mean(verdicts))}


# ---------------------------------------------------------------------- drift


def drift(works: Sequence[Work], *, workers: int) -> dict[str, Any]:
    """Errors at the last frame by number of chunks. Things are found in the pixels (``object_error_m``), or said by
    the tracks that :mod:`kinema4d.simulate.long` joins over seams. ``..._common`` is over the episodes in which moved
    things are found whatever the number of chunks."""
    found = spread(drifted, works, workers=workers)
    common = [all(f[str(n)]["object_error_m"] is not None for n in CHUNKS) for f in found]
    out: dict[str, Any] = {"episodes": len(found), "common": sum(common), "chunks": {}}
    for n in CHUNKS:
        rows = [f[str(n)] for f in found]
        figures: dict[str, Any] = {}
        for key in ("object_error_m", "object_error_m_said", "object_found", "last_changed_psnr_db"):
            values = [r[key] for r in rows if r[key] is not None]
            figures[key] = float((np.median if "error" in key else np.mean)(values)) if values else None
            figures[f"{key}_n"] = len(values)
            if "error" in key and values:
                figures[key.replace("error_m", "error_mean_m")] = float(np.mean(values))
        both = [r["object_error_m"] for r, yes in zip(rows, common, strict=True) if yes]
        figures["object_error_m_common"] = float(np.median(both)) if both else None
        out["chunks"][str(n)] = figures
    return out


def drifted(work: Work) -> dict[str, Any]:
    """One episode in several numbers of chunks, or what was kept of it."""
    return kept(Path(work.keep) / f"{work.id}.json", lambda: {str(n): _chunked(work, n) for n in CHUNKS})


def _chunked(work: Work, chunks: int) -> dict[str, float | None]:
    truth = the_data(work.root).load(work.id)
    longest = None if chunks == 1 else -(-(len(truth) - 1) // chunks) + 1  # neighbours share a frame
    made = foretell(the_world(work.world), truth, use_depth=work.depth, longest=longest)
    scores = interact(Pair(predicted=made.clip, truth=truth, tracks=made.tracks)).scores
    keys = ("object_error_m", "object_error_m_said", "object_found")
    out = {k: None if isinstance(v := scores[k], NA) else float(v) for k in keys}
    return out | {"last_changed_psnr_db": last_changed_psnr(made.clip, truth)}


def last_changed_psnr(made: Clip, truth: Episode) -> float | None:
    """PSNR of the last frame where it shows no robot and differs from the truth's first; None where it does not."""
    changes = find_changes(truth, ())
    if isinstance(changes, NA) or changes.changed[-1].sum() < LEAST_PIXELS:
        return None
    own = changes.changed[-1]
    mse = float(((made.rgb[-1].astype(np.float64) - truth.clip.rgb[-1]) ** 2)[own].mean())
    return min(PSNR_CAP, float(10 * np.log10(255**2 / mse))) if mse > 0 else PSNR_CAP


# ---------------------------------------------------------------------- speed


SPEED = """
import json, resource, sys, time
from pathlib import Path
from kinema4d.world.small.machine import guard
guard()
from kinema4d.data.motion_file import read_arms
from kinema4d.data.store import load, read_meta
from kinema4d.robot.control import project
from kinema4d.robot.zoo import load_robot
from kinema4d.world.load import load_world
from kinema4d.world.protocol import first_depth
folder = Path(sys.argv[1])
episode, arms = load(folder, frames=slice(0, 1)), read_arms(folder, read_meta(folder))
world = load_world("small")
times = []
for n in range(3):  # the first compiles and warms up
    begin = time.perf_counter()
    robots = [load_robot(a.robot) for a in arms]
    signal = project(robots, arms, episode.clip.camera)
    made = world.simulate(episode.clip.rgb[0], signal, depth=first_depth(episode.clip), seed=n)
    times.append(time.perf_counter() - begin)
    del signal, made
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"seconds": min(times[1:]), "peak_gb": peak, "times": times}))
"""
"""One rollout at 480x720, from robot and first frame to clip, in a process of its own."""


def speed(data: Path) -> dict[str, Any]:
    """Real-time factor and memory at 480x720, beside MuJoCo stepping and rendering the same scene."""
    root = data / "speed"
    recipe = Recipe(
        episodes=1,
        robots=("panda",),
        tasks=("pick_place",),
        scenarios=("dynamic",),
        failures=0,
        seed=7100,
        height=480,
        width=720,
    )
    generate(root, recipe, workers=1)
    dataset = open_dataset(root)
    row = dataset.rows[0]
    folder = root / "episodes" / row.id
    done = subprocess.run([sys.executable, "-c", SPEED, str(folder)], capture_output=True, text=True, check=True)
    own = json.loads(done.stdout.splitlines()[-1])
    frames, fps = 49, 10.0
    out = {
        "realtime_factor": frames / fps / own["seconds"],
        "peak_memory_gb": own["peak_gb"],
        "rollout_seconds": own["seconds"],
        "mujoco_seconds": mujoco_seconds(recipe),
    }
    if out["mujoco_seconds"] is not None:
        out["mujoco_ratio"] = out["mujoco_seconds"] / own["seconds"]
    return out


def mujoco_seconds(recipe: Recipe) -> float | None:
    """Stepping the true scene and rendering colour and depth of 49 frames at 480x720 by MuJoCo; None without GL."""
    sys.path.insert(0, str(Path(__file__).parent))
    from data import MujocoEyes  # pyright: ignore[reportMissingImports]

    from kinema4d.data.generate import demonstrate, orders
    from kinema4d.scenes.episode import perform

    stage, outcome, _ = demonstrate(orders(recipe)[0])
    try:
        pictures = MujocoEyes(stage)
        begin = time.perf_counter()
        outcome = perform(stage)
        for row in outcome.qpos:
            pictures.frame(row)
        return time.perf_counter() - begin
    except (AttributeError, importlib.import_module("mujoco").FatalError) as error:
        print(f"no MuJoCo rendering here: {error}", file=sys.stderr)
        return None
