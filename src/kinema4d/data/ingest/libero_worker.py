"""Record LIBERO: scripted demonstrations and nine perturbed replays of each, as raw ``.npz`` files.

LIBERO pins an old simulator, so it lives in its own environment. This file runs there as a script, with its neighbour
``libero_expert.py``: it imports nothing of kinema4d, and only NumPy and the standard library until it starts to work.
``kinema4d.data.ingest.libero_live`` starts it and reads what it wrote.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import os
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FORMAT, VERSION = "kinema4d libero recording", 1
SIGMAS = (0.5, 0.8, 1.2)
"""Standard deviations of the noise, as in the paper, in normalised action units."""
SEGMENTS = 3
"""Every demonstration is cut into this many parts; noise falls on one of them."""
NOISE_UNIT = "normalised OSC_POSE action: 1 = 0.05 m (columns 0-2) or 0.5 rad (columns 3-5) of goal offset per command"
FPS = 20.0
"""Commands per second."""
SETTLE = 10
"""Idle commands before an episode, in which objects come to rest and the gripper opens."""
CAMERA = "agentview"
MARK = "@kinema4d "
"""Our lines on standard output start with this; LIBERO prints others."""


# ------------------------------------------------------------------ pure parts


def segment_bounds(steps: int, segments: int = SEGMENTS) -> list[tuple[int, int]]:
    """First and past-the-last command of each part; the parts cover everything and differ by at most one."""
    edges = [steps * i // segments for i in range(segments + 1)]
    return list(itertools.pairwise(edges))


def perturb(actions: np.ndarray, segment: int, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """``actions`` [n,7] with Gaussian noise on the six pose columns of one segment, clipped to [-1, 1]."""
    start, stop = segment_bounds(len(actions))[segment]
    noisy = np.array(actions, np.float64)
    noisy[start:stop, :6] = np.clip(noisy[start:stop, :6] + rng.normal(0, sigma, (stop - start, 6)), -1, 1)
    return noisy


def noise(suite: str, task: int, init: int, segment: int, sigma: float, seed: int) -> np.random.Generator:
    """The random numbers of one failure candidate, which depend on nothing else."""
    return np.random.default_rng([seed, zlib.crc32(suite.encode()), task, init, segment, round(sigma * 1000)])


def frame_steps(steps: int, frames: int) -> np.ndarray:
    """Which of the states 0..``steps`` are shown: uniform in time, first and last included."""
    if steps + 1 <= frames:
        return np.arange(steps + 1)
    return np.rint(np.linspace(0, steps, frames)).astype(np.int64)


def recording_name(
    suite: str, task: int, init: int, segment: int | None = None, sigma: float = 0, seed: int = 0
) -> str:
    """File name without suffix; a demonstration has no segment."""
    stem = f"{suite}_t{task:02d}_i{init:02d}"
    return f"{stem}_demo" if segment is None else f"{stem}_seg{segment}_s{sigma:g}_r{seed}".replace(".", "p")


def intrinsics(fovy_deg: float, height: int, width: int) -> np.ndarray:
    """K of a MuJoCo camera. Pixel centres are integers here, so the image's middle is (width - 1) / 2."""
    f = 0.5 * height / np.tan(np.deg2rad(fovy_deg) / 2)
    return np.array([[f, 0, (width - 1) / 2], [0, f, (height - 1) / 2], [0, 0, 1.0]])


def opencv_pose(position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """T_world_camera with OpenCV axes (y down, z forward) from MuJoCo's (y up, z backward)."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = rotation.reshape(3, 3) * [1, -1, -1], position
    return T


def write(path: Path, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """One recording, which appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.tmp-{os.getpid()}.npz")
    try:
        np.savez_compressed(temporary, meta=np.array(json.dumps(meta)), **arrays)  # pyright: ignore[reportArgumentType]
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def whole(path: Path) -> bool:
    """Whether a recording is there and can be opened."""
    return path.is_file() and zipfile.is_zipfile(path)


# ------------------------------------------------------------------- simulator


class World:
    """One task of LIBERO, from given initial states, with the simulator's own truth at hand."""

    def __init__(self, assets: Path, suite: str, task: int) -> None:
        _configure(assets)
        import libero.libero as libero_root  # pyright: ignore[reportMissingImports]

        libero_root._assets_path_cache = str(_assets_folder(assets))  # the "assets" of config.yaml is never read
        import mujoco
        from libero.libero import benchmark  # pyright: ignore[reportMissingImports]
        from libero.libero.envs.env_wrapper import ControlEnv  # pyright: ignore[reportMissingImports]

        suites = benchmark.get_benchmark_dict()
        if suite not in suites:
            raise ValueError(f"LIBERO has no suite {suite!r}; there are {', '.join(suites)}")
        tasks = suites[suite]()
        if not 0 <= task < tasks.get_num_tasks():
            raise ValueError(f"{suite} has tasks 0 to {tasks.get_num_tasks() - 1}, got {task}")
        self.mujoco, self.suite, self.number, self.task = mujoco, suite, task, tasks.get_task(task)
        self.init_states = np.asarray(tasks.get_task_init_states(task))
        # States are rendered afterwards: physics alone is several times faster, and no GL context is rebuilt.
        self.env: Any = ControlEnv(
            tasks.get_task_bddl_file_path(task), has_offscreen_renderer=False, use_camera_obs=False, horizon=10**6
        )
        self.actions: list[np.ndarray] = []
        self.states: list[np.ndarray] = []
        self.gaps: list[float] = []
        self.success_step: int | None = None

    @property
    def m(self) -> Any:
        """The MjModel."""
        return self.env.sim.model._model

    @property
    def d(self) -> Any:
        """The MjData."""
        return self.env.sim.data._data

    def start(self, init: int) -> None:
        """A fresh episode. Fixtures are placed at random by every reset, so its seed is part of the initial state."""
        if not 0 <= init < len(self.init_states):
            raise ValueError(f"{self.task.name} has initial states 0 to {len(self.init_states) - 1}, got {init}")
        self.env.seed(0)
        self.env.env.reset()  # the wrapper's own reset repeats for ever on any error
        self.env.set_init_state(self.init_states[init])
        for _ in range(SETTLE):
            self.env.step(np.array([0, 0, 0, 0, 0, 0, -1.0]))
        goal = self.env.env.parsed_problem["goal_state"]
        if len(goal) != 1 or goal[0][0] not in ("on", "in") or len(goal[0]) != 3:
            raise ValueError(f"the scripted expert can only put one thing on or in another, not {goal}")
        self.thing, self.place = goal[0][1], goal[0][2]
        self.hand_geoms = self._geoms(lambda name: name.startswith("gripper0_"))
        self.thing_geoms = self._geoms(lambda name: name == f"{self.thing}_main")
        self.actions, self.states, self.gaps, self.success_step = [], [self.state()], [self.gap()], None

    def step(self, action: np.ndarray) -> None:
        """One command, a twentieth of a second."""
        self.env.step(action)
        self.actions.append(np.asarray(action, np.float64))
        self.states.append(self.state())
        self.gaps.append(self.gap())
        if self.success_step is None and self.success():
            self.success_step = len(self.actions)

    def success(self) -> bool:
        """LIBERO's own verdict on the present state."""
        return bool(self.env.check_success())

    def state(self) -> np.ndarray:
        """Time, positions and velocities of everything."""
        return np.array(self.env.sim.get_state().flatten())

    def gap(self) -> float:
        """Distance between the gripper's and the thing's collision shapes, metres; 0 where they touch."""
        hand, thing = self.hand_geoms, self.thing_geoms
        touching = self.d.contact.geom[: self.d.ncon]
        if (np.isin(touching, hand).any(axis=1) & np.isin(touching, thing).any(axis=1)).any():
            return 0.0
        apart = np.linalg.norm(self.d.geom_xpos[hand][:, None] - self.d.geom_xpos[thing], axis=-1)
        bounds = apart - self.m.geom_rbound[hand][:, None] - self.m.geom_rbound[thing]
        nearest = np.inf
        for pair in np.argsort(bounds, axis=None):
            i, j = np.unravel_index(pair, bounds.shape)
            if bounds[i, j] >= nearest:
                break
            distance = self.mujoco.mj_geomDistance(self.m, self.d, int(hand[i]), int(thing[j]), 5.0, None)
            # MuJoCo 3.8 answers 0 for some pairs of mesh and box that are far apart; true ones touch, see above.
            if distance > 0:
                nearest = min(nearest, distance)
        if not np.isfinite(nearest):
            raise RuntimeError("MuJoCo gives no distance between the gripper and the thing")
        return float(nearest)

    def surface(self, body: str) -> np.ndarray:
        """World coordinates of the vertices that make up a body's visible meshes."""
        m, d, points = self.m, self.d, []
        for geom in np.flatnonzero((m.geom_bodyid == m.body(body).id) & (m.geom_group == 1) & (m.geom_dataid >= 0)):
            first = m.mesh_vertadr[m.geom_dataid[geom]]
            vertices = m.mesh_vert[first : first + m.mesh_vertnum[m.geom_dataid[geom]]]
            points.append(vertices @ d.geom_xmat[geom].reshape(3, 3).T + d.geom_xpos[geom])
        return np.concatenate(points) if points else np.zeros((0, 3))

    def tool(self) -> tuple[np.ndarray, np.ndarray]:
        """Position and rotation of the point between the fingers; they close along its x axis."""
        site = self.m.site("gripper0_grip_site").id
        return self.d.site_xpos[site].copy(), self.d.site_xmat[site].reshape(3, 3).copy()

    def parts(self) -> dict[int, str]:
        """Name behind each body that has one: the robot, its mount, every thing and every moving part of a fixture."""
        owned = {
            o.root_body: name for d in (self.env.env.objects_dict, self.env.env.fixtures_dict) for name, o in d.items()
        }
        names: dict[int, str] = {}
        for body in range(1, self.m.nbody):  # parents come first
            name, parent = self.m.body(body).name, int(self.m.body_parentid[body])
            if name.startswith(("robot0_", "gripper0_")):
                names[body] = "robot"
            elif name.startswith("mount0_"):
                names[body] = "mount"
            elif name in owned:
                names[body] = owned[name]
            elif self.m.body_jntnum[body]:
                names[body] = name
            elif parent in names:
                names[body] = names[parent]
        return names

    def _geoms(self, chosen: Any) -> np.ndarray:
        names = [self.m.body(body).name for body in self.m.geom_bodyid]
        return np.array([g for g, n in enumerate(names) if chosen(n) and self.m.geom_group[g] == 0], np.int64)


def _assets_folder(assets: Path) -> Path:
    return assets / "assets" if (assets / "assets").is_dir() else assets


def _configure(assets: Path) -> None:
    """What LIBERO wants before its first import, or it asks questions on the terminal or downloads."""
    # A script's own folder comes first on the path, and ours has a libero.py.
    here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != here]
    found = importlib.util.find_spec("libero")
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"{sys.executable} has no LIBERO; in that environment: pip install hf-libero==0.1.4")
    if not (_assets_folder(assets) / "scenes").is_dir():
        raise ValueError(f"{assets} is not a folder of LIBERO assets: neither it nor its 'assets' has 'scenes'")
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = Path(os.environ.setdefault("LIBERO_CONFIG_PATH", tempfile.mkdtemp(prefix="kinema4d-libero-")))
    if not (folder / "config.yaml").exists():
        root = Path(found.submodule_search_locations[0]) / "libero"
        entries = {"benchmark_root": root, "bddl_files": root / "bddl_files", "init_states": root / "init_files"}
        entries |= {"datasets": folder / "datasets", "assets": _assets_folder(assets)}
        folder.mkdir(parents=True, exist_ok=True)
        # JSON strings are YAML strings.
        (folder / "config.yaml").write_text("".join(f"{k}: {json.dumps(str(v))}\n" for k, v in entries.items()))


# -------------------------------------------------------------------- recording


def render(world: World, shown: np.ndarray, height: int, width: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Images, depth, labels and poses at the states in ``shown``. MuJoCo's own renderer gives upright images."""
    m, d, mujoco = world.m, world.d, world.mujoco
    camera, parts = m.camera(CAMERA).id, world.parts()
    labels = sorted(set(parts.values()), key=lambda n: (n != "robot", n != "mount", n))
    codes = np.zeros(m.ngeom + 1, np.uint8)  # the last is "no geom"
    codes[:-1] = [labels.index(parts[b]) + 1 if b in parts else 0 for b in m.geom_bodyid]
    moving = [b for b in parts if m.body_jntnum[b] and parts[b] not in ("robot", "mount")]
    joints = [m.joint(f"robot0_joint{i}").qposadr[0] for i in range(1, 8)]
    joints += [m.joint(f"gripper0_finger_joint{i}").qposadr[0] for i in (1, 2)]
    option = mujoco.MjvOption()
    option.geomgroup[:], option.sitegroup[:] = [0, 1, 0, 0, 0, 0], 0
    m.vis.global_.offheight, m.vis.global_.offwidth = max(height, 480), max(width, 640)
    m.vis.quality.offsamples = 4
    colour = mujoco.Renderer(m, height, width)
    # Depth and labels are those of pixel centres: smoothing would mix a pixel's front and back.
    m.vis.quality.offsamples = 0
    exact = mujoco.Renderer(m, height, width)
    shape = (len(shown), height, width)
    out: dict[str, np.ndarray] = {
        "rgb": np.empty((*shape, 3), np.uint8),
        "depth": np.empty(shape, np.float32),
        "labels": np.empty(shape, np.uint8),
        "q": np.empty((len(shown), len(joints))),
        "T_world_camera": np.empty((len(shown), 4, 4)),
        "Ts_world_object": np.tile(np.eye(4), (len(shown), len(moving), 1, 1)),
    }
    try:
        for i, step in enumerate(shown):
            world.env.sim.set_state_from_flattened(world.states[step])
            world.env.sim.forward()
            colour.update_scene(d, CAMERA, option)
            out["rgb"][i] = colour.render()
            exact.update_scene(d, CAMERA, option)
            exact.enable_depth_rendering()
            out["depth"][i] = exact.render()
            exact.disable_depth_rendering()
            exact.enable_segmentation_rendering()
            seen = exact.render()
            exact.disable_segmentation_rendering()
            geom = np.where(seen[..., 1] == int(mujoco.mjtObj.mjOBJ_GEOM), seen[..., 0], -1)
            out["depth"][i][geom < 0] = 0
            out["labels"][i] = codes[geom]
            out["q"][i] = d.qpos[joints]
            out["T_world_camera"][i] = opencv_pose(d.cam_xpos[camera], d.cam_xmat[camera])
            out["Ts_world_object"][i, :, :3, :3] = d.xmat[moving].reshape(-1, 3, 3)
            out["Ts_world_object"][i, :, :3, 3] = d.xpos[moving]
    finally:
        colour.close()
        exact.close()
    base = m.body("robot0_link0").id
    out["K"] = intrinsics(float(m.cam_fovy[camera]), height, width)
    out["T_world_base"] = np.eye(4)
    out["T_world_base"][:3, :3], out["T_world_base"][:3, 3] = d.xmat[base].reshape(3, 3), d.xpos[base]
    return out, {"label_names": labels, "object_names": [parts[b] for b in moving]}


def save(world: World, path: Path, options: argparse.Namespace, known: dict[str, Any]) -> str:
    """Render and write the episode that ``world`` has just lived through; its outcome."""
    outcome = "success" if world.success() else "failure"
    nearest = int(np.argmin(world.gaps))
    shown = frame_steps(len(world.actions), options.frames)
    arrays, names = render(world, shown, options.height, options.width)
    arrays |= {"actions": np.stack(world.actions), "frame_steps": shown, "gaps": np.array(world.gaps)}
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "suite": world.suite,
        "task": world.number,
        "task_name": world.task.name,
        "language": world.task.language,
        "thing": world.thing,
        "place": world.place,
        "camera": CAMERA,
        "fps": FPS,
        "outcome": outcome,
        "success_step": world.success_step,
        "min_gap_m": world.gaps[nearest],
        "min_gap_s": nearest / FPS,
        "assets_remark": _remark(options.assets),
        "versions": {name: importlib.metadata.version(name) for name in ("hf-libero", "robosuite", "mujoco", "numpy")},
        **names,
        **known,
    }
    write(path, arrays, meta)
    return outcome


def _remark(assets: Path) -> str:
    """Whether the assets say that some of them are not the originals."""
    readme = assets / "README.md"
    if readme.is_file() and "substitute" in readme.read_text(encoding="utf-8", errors="replace").lower():
        return "substitute assets: the README of the asset folder lists files that are not LIBERO's originals"
    return ""


def run(options: argparse.Namespace) -> None:
    """Everything that was asked for and is not there yet."""
    from libero_expert import demonstrate  # pyright: ignore[reportMissingImports]  # beside this script

    candidates = [(k, sigma) for k in range(SEGMENTS) for sigma in SIGMAS] if options.failures else []
    world: World | None = None
    for init in options.init:
        key = (options.suite, options.task, init)
        demo = recording_name(*key)
        paths = {c: options.out / f"{recording_name(*key, *c, options.seed)}.npz" for c in candidates}
        demo_path = options.out / f"{demo}.npz"
        if not whole(demo_path):
            world = world or World(options.assets, options.suite, options.task)
            world.start(init)
            demonstrate(world)
            known = {"init": init, "kind": "demonstration", "demonstration": demo, "segment": None, "sigma": 0.0}
            _say(demo, "written", save(world, demo_path, options, {**known, "noise_seed": None, "noise_unit": ""}))
        else:
            _say(demo, "there")
        with np.load(demo_path, allow_pickle=False) as archive:
            actions, outcome = archive["actions"], json.loads(str(archive["meta"]))["outcome"]
        if outcome != "success":
            for path in paths.values():
                _say(
                    path.stem, "skipped", message="the scripted expert did not succeed, so there is nothing to perturb"
                )
            continue
        for (segment, sigma), path in paths.items():
            if whole(path):
                _say(path.stem, "there")
                continue
            world = world or World(options.assets, options.suite, options.task)
            world.start(init)
            for action in perturb(actions, segment, sigma, noise(*key, segment, sigma, options.seed)):
                world.step(action)
            known = {"init": init, "kind": "perturbed", "demonstration": demo, "segment": segment, "sigma": sigma}
            known |= {"noise_seed": options.seed, "noise_unit": NOISE_UNIT}
            _say(path.stem, "written", save(world, path, options, known))


def _say(recording: str, status: str, outcome: str = "", message: str = "") -> None:
    line = {"recording": recording, "status": status, "outcome": outcome, "message": message}
    print(MARK + json.dumps(line), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--assets", type=Path, required=True, help="LIBERO's asset folder, or one with it in 'assets'")
    parser.add_argument("--suite", required=True, help="libero_object, libero_spatial, libero_goal, ...")
    parser.add_argument("--task", type=int, required=True, help="number of the task in the suite")
    parser.add_argument("--init", type=int, nargs="+", default=[0], help="numbers of initial states")
    parser.add_argument("--out", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--failures", action="store_true", help="also the nine perturbed replays of each success")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise")
    parser.add_argument("--frames", type=int, default=49, help="frames per recording")
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--width", type=int, default=360)
    options = parser.parse_args(arguments)
    try:
        run(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    # Interpreter exit frees EGL contexts in an order that prints errors; everything is on disk by now.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
