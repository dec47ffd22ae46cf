"""Robo4D, measured: generation against MuJoCo's renderer, agreement with it, storage against the official layout, experts.

    python benchmarks/data.py            # a table
    python benchmarks/data.py --json     # one JSON object with the same figures

Everything is compared side by side in one run and in CPU time, so that a busy machine changes both sides alike. MuJoCo
needs GL (libegl1 or libosmesa6); without it those lines are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")

import numpy as np

from kinema4d.data.dataset import open_dataset, write_episode
from kinema4d.data.export_robo4d import export_robo4d, official_rmse
from kinema4d.data.generate import with_hand
from kinema4d.data.store import load
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.clutter import SCENARIOS
from kinema4d.scenes.episode import TASKS, Outcome, Stage, Wish, compose, disturb, perform, set_stage
from kinema4d.scenes.picture import draw
from kinema4d.scenes.reach import measure_reach
from kinema4d.scenes.world import World
from kinema4d.types import Episode

ROBOTS = ("panda", "xarm7", "ur5")
FRAMES = 49
SPEED_TASKS = ("pick_place", "push", "open_drawer", "stack")
MUJOCO_SHADOWS = 2048
"""Texels along a side of MuJoCo's shadow map: what dm_control sets for its own scenes; MuJoCo's default is 4096. Half of
it is measured too."""


class MujocoEyes:
    """The same scene drawn by MuJoCo: colour with shadows, depth and segmentation, without multisampling."""

    def __init__(self, stage: Stage, shadows: int = MUJOCO_SHADOWS) -> None:
        mujoco: Any = importlib.import_module("mujoco")
        self.mj, self.world = mujoco, World(stage.scene, visuals=True)
        camera, model = stage.scene.camera, self.world.model
        model.vis.quality.offsamples, model.vis.quality.shadowsize = 0, shadows
        model.vis.global_.offwidth, model.vis.global_.offheight = camera.width, camera.height
        self.renderer = mujoco.Renderer(model, camera.height, camera.width)
        self.option = mujoco.MjvOption()
        self.option.geomgroup[:] = 0
        self.option.geomgroup[0] = 1

    def frame(self, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Colour, depth in metres and the body of every pixel."""
        data, renderer = self.world.data, self.renderer
        data.qpos[:] = qpos
        self.mj.mj_kinematics(self.world.model, data)
        self.mj.mj_camlight(self.world.model, data)
        renderer.update_scene(data, camera="main", scene_option=self.option)
        rgb = renderer.render().copy()
        renderer.enable_depth_rendering()
        depth = renderer.render().copy()
        renderer.disable_depth_rendering()
        renderer.enable_segmentation_rendering()
        seen = renderer.render().copy()
        renderer.disable_segmentation_rendering()
        return rgb, depth, self.world.model.geom_bodyid[np.maximum(seen[..., 0], 0)]

    def close(self) -> None:
        self.renderer.close()


def timed(function: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
    start = time.process_time()
    result = function(*arguments, **options)
    return result, time.process_time() - start


def speed(scenes: int) -> dict[str, Any]:
    """Episodes per CPU-second at 96x144 and 49 frames, ours and with MuJoCo's pictures, scene by scene in turns.

    A scene is a demonstration and three disturbed ones, as ``data generate`` makes them by default. MuJoCo's model with
    the meshes that are seen is built once per scene and not held against it."""
    parts: dict[str, list[float]] = {key: [] for key in ("physics", "render", "encode", "mujoco")}
    ratios, cheaper = [], []
    robots = {name: load_robot(with_hand(name)) for name in ROBOTS}
    wishes = [
        (ROBOTS[n % len(ROBOTS)], Wish(task=SPEED_TASKS[n % len(SPEED_TASKS)], scenario=list(SCENARIOS)[n % 3], seed=n))
        for n in range(scenes)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for n, (name, wish) in enumerate([*((name, wishes[0][1]) for name in ROBOTS), *wishes]):
            stage, staging = timed(set_stage, robots[name], wish)
            ways = [None, *(disturb(stage, segment, sigma) for segment, sigma in ((0, 0.5), (1, 0.8), (2, 1.2)))]
            eyes = MujocoEyes(stage)
            eyes.frame(eyes.world.data.qpos.copy())
            spent = np.zeros(4)
            for k, way in enumerate(ways):
                outcome, physics = timed(perform, stage, way)
                seen, render = timed(draw, stage.scene, outcome.Ts_world_body, threads=1)
                episode = compose(stage, outcome, seen, source="benchmark", facts={})
                _, encode = timed(write_episode, Path(folder), f"e{n}-{k}", episode)
                _, drawn = timed(lambda e=eyes, o=outcome: [e.frame(row) for row in o.qpos])
                spent += (physics + staging / len(ways), render, encode, drawn)
            eyes.close()
            eyes = MujocoEyes(stage, MUJOCO_SHADOWS // 2)
            rest = eyes.world.data.qpos.copy()
            eyes.frame(rest)
            _, half = timed(lambda e=eyes, q=rest: [e.frame(q) for _ in range(FRAMES)])
            eyes.close()
            if n < len(ROBOTS):  # every robot's first scene loads and measures things once and for all
                continue
            for key, value in zip(parts, spent / len(ways), strict=True):
                parts[key].append(value)
            cheaper.append(half)
            physics, render, encode, drawn = spent
            ratios.append((physics + drawn + encode) / (physics + render + encode))
    means = {key: statistics.mean(values) for key, values in parts.items()}
    ours = means["physics"] + means["render"] + means["encode"]
    theirs = means["physics"] + means["mujoco"] + means["encode"]
    hours = 200_000 * ours / 3600
    return {
        "generate_speedup": theirs / ours,
        "generate_speedup_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "generate_speedup_half_shadows": (theirs - means["mujoco"] + statistics.mean(cheaper)) / ours,
        "render_speedup": means["mujoco"] / means["render"],
        "cpu_seconds_per_episode": {**means, "ours": ours, "with_mujoco": theirs},
        "episodes_per_cpu_hour": 3600 / ours,
        "cost_200k": {"cpu_hours": hours, "days_on_2_cores": hours / 48, "hours_on_64_cores": hours / 64},
    }


def _simulate(robot: Any, wish: Wish) -> tuple[Stage, Outcome]:
    stage = set_stage(robot, wish)
    return stage, perform(stage)


def agreement(scenes: int) -> dict[str, float]:
    """Share of pixels at which our depth and ids are those of MuJoCo's renderer, 240x360, three frames a scene."""
    depth, ids, worst = [], [], 0.0
    for n in range(scenes):
        robot = load_robot(with_hand(ROBOTS[n % len(ROBOTS)]))
        wish = Wish(task=list(TASKS)[n % len(TASKS)], scenario="cluttered" if n % 2 else "canonical", seed=n, height=240, width=360)  # fmt: skip
        stage, outcome = _simulate(robot, wish)
        eyes = MujocoEyes(stage)
        world = eyes.world
        names = np.zeros(world.model.nbody, int)
        names[np.concatenate([world.link_ids, world.body_ids])] = np.arange(1, len(world.link_ids) + len(world.body_ids) + 1)  # fmt: skip
        for t in (0, 24, 48):
            seen = draw(stage.scene, outcome.Ts_world_body[t : t + 1])
            _, z, bodies = eyes.frame(outcome.qpos[t])
            error = np.abs(seen.points[0, ..., 2] - z)
            depth.append(float((error < 1e-3 * np.maximum(z, 1.0)).mean()))
            ids.append(float((names[bodies] == seen.ids[0]).mean()))
            worst = max(worst, float(np.median(error)))
        eyes.close()
    return {"depth_agreement": statistics.mean(depth), "id_agreement": statistics.mean(ids), "depth_agreement_worst": min(depth), "id_agreement_worst": min(ids), "median_error_m": worst}  # fmt: skip


def storage(scenes: int) -> dict[str, float]:
    """Size and error of a 49-frame 480x720 episode, in our store and in the official layout."""
    ours, theirs, ours_rmse, theirs_rmse = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_dataset(Path(folder) / "set", create=True)
        for n in range(scenes):
            robot = load_robot(with_hand(ROBOTS[n % len(ROBOTS)]))
            stage, outcome = _simulate(
                robot, Wish(task=SPEED_TASKS[n % len(SPEED_TASKS)], seed=n, height=480, width=720)
            )
            episode = compose(stage, outcome, draw(stage.scene, outcome.Ts_world_body), source="benchmark", facts={})
            row = dataset.add(f"e{n}", episode)
            ours.append(row.bytes / 1e6)
            ours_rmse.append(_rmse_mm(episode, dataset.root / "episodes" / row.id))
            theirs_rmse.append(official_rmse(episode))
        export_robo4d(dataset, Path(folder) / "official")
        files = [f for f in (Path(folder) / "official").rglob("*") if f.is_file() and "kinema4d" not in f.as_posix().replace(folder, "")]  # fmt: skip
        theirs.append(sum(f.stat().st_size for f in files) / 1e6 / scenes)
    return {
        "mb_per_episode": statistics.mean(ours),
        "official_mb_per_episode": statistics.mean(theirs),
        "official_mb_per_episode_with_masks_npy": statistics.mean(theirs) + FRAMES * 480 * 720 / 1e6,
        "pointmap_rmse_mm": statistics.mean(ours_rmse),
        "official_rmse_mm": statistics.mean(theirs_rmse),
    }


def _rmse_mm(episode: Episode, folder: Path) -> float:
    back = load(folder)
    assert isinstance(back, Episode)
    valid = episode.clip.pointmap.valid
    error = (back.clip.pointmap.points - episode.clip.pointmap.points)[valid]
    return 1000 * float(np.sqrt((error.astype(np.float64) ** 2).sum(axis=1).mean()))


def experts(seeds: int) -> dict[str, Any]:
    """How often the expert succeeds, by task over robots and scenarios, without a second try."""
    by_task: dict[str, list[bool]] = {task: [] for task in TASKS}
    by_scenario: dict[str, list[bool]] = {}
    no_scene = 0
    for name in ROBOTS:
        robot = load_robot(with_hand(name))
        for task in (t for t in TASKS if TASKS[t].possible(measure_reach(robot))):
            for n in range(seeds):
                scenario = ("canonical", "cluttered", "dynamic")[n % 3]
                try:
                    _, outcome = _simulate(robot, Wish(task=task, scenario=scenario, seed=5000 + n))
                except ValueError:
                    no_scene += 1
                    continue
                by_task[task].append(outcome.success)
                by_scenario.setdefault(scenario, []).append(outcome.success)
    return {
        "expert_success": {task: round(sum(v) / max(len(v), 1), 3) for task, v in by_task.items()},
        "expert_success_by_scenario": {key: round(sum(v) / len(v), 3) for key, v in by_scenario.items()},
        "expert_episodes": sum(len(v) for v in by_task.values()),
        "no_scene": no_scene,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a few of everything, to see that it runs")
    arguments = parser.parse_args()
    few = arguments.quick
    try:
        importlib.import_module("mujoco").GLContext(16, 16).free()
        gl = True
    except (ImportError, AttributeError, RuntimeError) as error:
        print(f"no GL, so no comparison with MuJoCo's renderer: {error}", file=sys.stderr)
        gl = False
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    }
    if gl:
        results |= speed(2 if few else 6)
        results |= agreement(2 if few else 9)
    results |= storage(1 if few else 2)
    results |= experts(3 if few else 9)
    if arguments.json:
        print(json.dumps(results))
        return
    for key, value in results.items():
        if isinstance(value, dict):
            print(key)
            for name, number in value.items():
                print(f"    {name:24} {number:.4g}" if isinstance(number, float) else f"    {name:24} {number}")
        else:
            print(f"{key:40} {value:.5g}" if isinstance(value, float) else f"{key:40} {value}")


if __name__ == "__main__":
    main()
