"""How well worlds foretell: fixed validation sets, every world beside the static one, with 95 % intervals.

    python benchmarks/world.py                              # tables; hours on two cores for all sets
    python benchmarks/world.py --json --episodes 24         # quick
    python benchmarks/world.py --splits iid --depth predicted
    python benchmarks/world.py --libero robo4d_libero/      # live LIBERO, recorded and ingested before

Sets are generated once into --data and kept; scores are kept by episode, world and weights, so a run that was
interrupted goes on. ``iid`` are fresh scenes of the generator that training used, ``unseen_layout`` packs ten things
around the target, ``unseen_look`` has textures and cameras that no training picture has, ``unseen_robot`` is the WidowX.
Objects are judged from the generated pixels and geometry alone (``object_error_m`` and the like); ``..._said`` are the
world's own tracks. ``moved_5cm`` repeats the error for things that truly went further than 5 cm.
"""

from __future__ import annotations

import hashlib
import importlib
import json as json_module
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate
from kinema4d.data.pool import spread
from kinema4d.evaluate.foretell import control_of, foretell
from kinema4d.evaluate.geometry import scores as geometry_scores
from kinema4d.evaluate.interaction import interact
from kinema4d.evaluate.outcome import judge
from kinema4d.evaluate.score import NA, Pair
from kinema4d.evaluate.statistics import bootstrap_interval, rate_interval
from kinema4d.evaluate.video import scores as video_scores
from kinema4d.types import Episode, Rollout
from kinema4d.world.load import load_world
from kinema4d.world.protocol import World
from kinema4d.world.small.checkpoint import SHIPPED

TRAIN = ("panda", "xarm7", "ur5")
SPLITS: dict[str, dict[str, Any]] = {
    "iid": {"seed": 7001, "robots": TRAIN},
    "unseen_layout": {"seed": 7002, "robots": TRAIN, "scenarios": ("packed",)},
    "unseen_look": {"seed": 7003, "robots": TRAIN, "look": "unseen"},
    "unseen_robot": {"seed": 7004, "robots": ("wx250s",)},
}
"""Recipes of the generated sets."""
RATES = ("outcome_accuracy", "near_miss_accuracy", "outcome_accuracy_said", "near_miss_accuracy_said")
MEDIANS = (
    "object_error_m",
    "object_error_m_said",
    "object_angle_deg",
    "moved_5cm_m",
    "fallen_angle_deg",
    "fallen_angle_deg_said",
)
KEYS = {
    "object_error_m": "object_error_m", "object_error_m_said": "object_error_m_said", "false_motion_m": "false_motion_m",
    "outcome_accuracy": "outcome_right", "outcome_accuracy_said": "outcome_right_said", "near_miss_accuracy": "near_miss_right",
    "near_miss_accuracy_said": "near_miss_right_said", "object_angle_deg": "object_angle_deg", "object_found": "object_found",
    "changed_psnr_db": "changed_psnr_db", "psnr_db": "psnr", "ssim": "ssim", "chamfer_l1": "cd_l1", "f_score": "f_score",
    "robot_error_mm": "robot_error_mm", "moved_5cm_m": "moved_5cm_m", "fallen_angle_deg": "fallen_angle_deg",
    "fallen_angle_deg_said": "fallen_angle_deg_said",
    "covered_iou": "covered_iou",
}  # fmt: skip
"""Ours by the names of the judge's scores."""


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
def _world(name: str) -> World:
    from kinema4d.world.small.machine import guard

    guard()
    import torch

    torch.set_num_threads(1)
    return load_world(name)


@lru_cache(maxsize=4)
def _data(root: str) -> Any:
    return open_dataset(root)


def one(work: Work) -> dict[str, Any]:
    """Scores of one episode, or those that were kept."""
    file = Path(work.keep) / f"{work.id}.json"
    if file.is_file():
        return json_module.loads(file.read_text())
    truth = _data(work.root).load(work.id)
    world = _world(work.world)
    control = control_of(truth)
    began = time.process_time()
    made = foretell(world, truth, use_depth=work.depth, control=control)
    seconds = time.process_time() - began
    found = {**scored(made, truth, pixels=work.pixels), "seconds": seconds}
    mask = (
        control.mask & made.clip.pointmap.valid & (truth.robot_mask if truth.robot_mask is not None else control.mask)
    )
    error = np.linalg.norm(made.clip.pointmap.points[mask] - truth.clip.pointmap.points[mask], axis=-1)
    found["robot_error_mm"] = float(1000 * error.mean()) if len(error) else None
    found |= {"task": truth.task, "group": truth.group, "outcome": truth.outcome, "provenance": dict(made.provenance)}
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".part")
    temporary.write_text(json_module.dumps(found))
    temporary.rename(file)
    return found


def scored(made: Rollout, truth: Episode, *, pixels: bool) -> dict[str, Any]:
    """Everything that the judge says of a rollout."""
    pair = Pair(predicted=made.clip, truth=truth, tracks=made.tracks)
    acted = interact(pair)
    scores = dict(acted.scores)
    if pixels:
        scores |= video_scores(pair) | geometry_scores(pair, aligned=False)
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
    out["objects"] = rows
    return out


def _tilt(Ts: np.ndarray) -> float:
    """How far a thing's upright axis leans at the end, degrees."""
    return float(np.degrees(np.arccos(np.clip((Ts[0, :3, 2] * Ts[-1, :3, 2]).sum(), -1, 1))))


def measure(
    root: Path, split: str, world: str, *, depth: bool, pixels: bool, episodes: int, workers: int
) -> list[dict[str, Any]]:
    """Scores of all episodes of a set."""
    rows = open_dataset(root).rows[:episodes]
    weights = SHIPPED.with_suffix(".sha256").read_text().strip()[:12] if world == "small" else ""
    if world.endswith(".safetensors"):
        weights = hashlib.sha256(Path(world).read_bytes()).hexdigest()[:12]
    keep = (
        root.parent
        / "scores"
        / f"{split}-{Path(world).stem}-{weights}-{'given' if depth else 'predicted'}-{int(pixels)}"
    )
    return spread(one, [Work(str(root), r.id, world, depth, pixels, str(keep)) for r in rows], workers=workers)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures with intervals over whole scenes."""
    out: dict[str, Any] = {"episodes": len(rows)}
    for name, key in KEYS.items():
        have = [(r[key], r["group"]) for r in rows if r.get(key) is not None]
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
    if "object_error_m" in out:
        for name in ("object_error_m", "object_error_m_said"):
            values = [r[name] for r in rows if r.get(name) is not None]
            if values:
                out[name.replace("error_m", "error_mean_m")] = float(np.mean(values))
    by: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        for key in ("object_error_m", "object_error_m_said", "outcome_right", "outcome_right_said", "false_motion_m"):
            if r.get(key) is not None:
                by[r["task"]][key].append(r[key])
    out["tasks"] = {t: {k: round(float(np.mean(v)), 4) for k, v in d.items()} for t, d in sorted(by.items())}
    out["cpu_seconds"] = float(np.mean([r["seconds"] for r in rows]))
    return out


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
    own = json_module.loads(done.stdout.splitlines()[-1])
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


def calibration(root: Path, world: str, *, episodes: int, draws: int, workers: int) -> dict[str, Any]:
    """Sampled outcomes: how often the share of successes among draws is the chance of success."""
    rows = open_dataset(root).rows[:episodes]
    pairs = spread(sampled, [(str(root), r.id, world, draws) for r in rows], workers=workers)
    have = [p for p in pairs if p is not None]
    if not have:
        return {}
    chance, true = np.array([p for p, _ in have]), np.array([t for _, t in have], float)
    bins = np.clip((chance * 5).astype(int), 0, 4)
    table, error = [], 0.0
    for b in range(5):
        own = bins == b
        if own.any():
            gap = abs(chance[own].mean() - true[own].mean())
            error += own.mean() * gap
            table.append([round(float(chance[own].mean()), 3), round(float(true[own].mean()), 3), int(own.sum())])
    return {
        "calibration_error": error,
        "reliability": table,
        "brier": float(((chance - true) ** 2).mean()),
        "draws": draws,
    }


def sampled(work: tuple[str, str, str, int]) -> tuple[float, bool] | None:
    """Share of successes among draws of one episode by the world's own tracks, and whether it truly succeeded."""
    from kinema4d.evaluate.foretell import named_like
    from kinema4d.world.protocol import first_depth
    from kinema4d.world.small.rigid import answer, draw
    from kinema4d.world.small.world import SmallWorld, tracks_of

    root, id, name, draws = work
    truth, world = _data(root).load(id), _world(name)
    assert isinstance(world, SmallWorld)
    control = control_of(truth)
    seen = world.see(truth.clip.rgb[0], control, depth=first_depth(truth.clip))
    verdicts = []
    for seed in range(draws):
        physics = draw(np.random.default_rng(seed))
        motions = answer(seen.parts, control.solids, fps=control.fps, support=seen.view.support, physics=physics)
        tracks = named_like(tracks_of(seen.parts, motions), truth)
        Ts = {t.name: t.Ts_world_object for t in truth.tracks}
        Ts = {n: np.broadcast_to(T[:1], T.shape) for n, T in Ts.items()} | {
            t.name: t.Ts_world_object for t in tracks if t.name in Ts
        }
        verdict = judge(truth, Ts, slack=0.004)
        if isinstance(verdict, NA):
            return None
        verdicts.append(verdict == "success")
    return float(np.mean(verdicts)), truth.outcome == "success"


def main(
    *,
    data: Path = Path("out/world"),
    episodes: int = 200,
    splits: tuple[str, ...] = tuple(SPLITS),
    worlds: tuple[str, ...] = ("small", "static"),
    libero: Path | None = None,
    depth: str = "given",
    pixels: bool = True,
    draws: int = 0,
    timing: bool = True,
    workers: int = 2,
    json: bool = False,
) -> None:
    """See the top of this file.

    Args:
        data: Where the sets and scores are kept.
        episodes: Of each set.
        splits: Sets to judge.
        worlds: Worlds to judge: small, static, or a .safetensors file.
        libero: Data set of live LIBERO episodes.
        depth: given or predicted: whether worlds get the first frame's depth.
        pixels: Also whole-frame video and geometry scores.
        draws: Sampled futures per episode for calibration on iid; 0 leaves it out.
        timing: Also real-time factor and memory at 480x720.
        workers: Processes.
        json: Print one JSON object.
    """
    out: dict[str, Any] = {"depth": depth, "splits": {}}
    roots: dict[str, Path] = {}
    for split in splits:
        if split not in SPLITS:
            raise SystemExit(f"unknown split {split!r}; known are {', '.join(SPLITS)} (libero by --libero)")
        roots[split] = data / split
        recipe = dict(SPLITS[split])
        from kinema4d.data.generate import doable

        tasks, _ = doable(recipe["robots"])
        generate(roots[split], Recipe(episodes=episodes, failures=3, tasks=tasks, **recipe), workers=workers)
    if libero is not None:
        roots["libero"] = libero
    for split, root in roots.items():
        out["splits"][split] = {}
        for world in worlds:
            rows = measure(
                root, split, world, depth=depth == "given", pixels=pixels, episodes=episodes, workers=workers
            )
            out["splits"][split][world] = summary(rows)
            if not json:
                show(split, world, out["splits"][split][world])
    if draws and "iid" in roots:
        out |= calibration(roots["iid"], worlds[0], episodes=episodes, draws=draws, workers=workers)
    if timing:
        out |= speed(data)
    if json:
        print(json_module.dumps(out, indent=1))
    else:
        print({k: v for k, v in out.items() if k != "splits"})


def show(split: str, world: str, found: dict[str, Any]) -> None:
    """A few lines for people."""
    print(f"\n{split}, {world}: {found['episodes']} episodes, {found['cpu_seconds']:.2f} CPU-s each")
    for name in (*KEYS, "object_error_mean_m", "object_error_mean_m_said"):
        if name in found:
            print(f"  {name:26s} {found[name]:.4f}  {found.get(f'{name}_interval', '')}")
    for task, values in found["tasks"].items():
        print(f"    {task:14s} " + "  ".join(f"{k} {v}" for k, v in values.items()))


if __name__ == "__main__":
    tyro.cli(main)
