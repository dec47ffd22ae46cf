"""Kinematic control, claim by claim: accuracy against oracles, speed beside peers in the same run.

    python benchmarks/control.py            # a table
    python benchmarks/control.py --json     # one object

Needs the dev extra (Pinocchio, Embree, MuJoCo) and, for the GL comparison, libegl1 or libosmesa6. Times on shared
machines are noise, so speeds are ratios of medians measured alternately in one process. Robots come from
``KINEMA4D_DATA`` (default ../shared/data) where it exists, else from the pip packages.
"""

from __future__ import annotations

import importlib
import json as json_module
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import kinema4d as k4d
from kinema4d.geometry.camera import off_ray_px, rays
from kinema4d.geometry.raster import Surfaces, rasterize
from kinema4d.geometry.se3 import difference, euler_to_matrix, invert, matrix_to_quaternion, matrix_to_rotvec, transform
from kinema4d.robot.actions import drive
from kinema4d.robot.control import project, robot_surfaces
from kinema4d.robot.zoo import find

DATA = Path(os.environ.get("KINEMA4D_DATA", Path(__file__).parents[2] / "shared" / "data"))
SIZE = (480, 720)


def load(name: str, *, visuals: bool = True) -> k4d.Robot:
    return k4d.load_robot(name, assets=DATA / "robots" if DATA.is_dir() else None, visuals=visuals)


def limits(robot: k4d.Robot) -> tuple[np.ndarray, np.ndarray]:
    return np.maximum(robot.lower, -np.pi), np.minimum(robot.upper, np.pi)


# ------------------------------------------------------------------ forward kinematics


def fk_error() -> tuple[float, list[str]]:
    """Largest distance to Pinocchio over every robot file at hand, 1,000 random configurations each."""
    pin: Any = importlib.import_module("pinocchio")

    files = sorted((DATA / "robots").glob("*/*.urdf")) if DATA.is_dir() else []
    files += [find(n)[0] for n in ("k4arm", "panda", "xarm7", "ur5", "so101")]
    worst = 0.0
    for file in files:
        robot = k4d.load_robot(file, visuals=False)
        text = file.read_text().replace('"-inf"', '"-1e9"').replace('"inf"', '"1e9"')
        model = pin.buildModelFromXML(text, mimic=True)
        data = model.createData()
        q = np.random.default_rng(0).uniform(*limits(robot), (1000, robot.dof))
        Ts = k4d.forward_kinematics(robot, q)
        frames = [model.getFrameId(n) for n in robot.link_names]
        joints = [model.joints[model.getJointId(n)] for n in robot.joint_names]
        for t in range(len(q)):
            full = pin.neutral(model)
            for j, value in zip(joints, q[t], strict=True):
                full[j.idx_q : j.idx_q + j.nq] = value if j.nq == 1 else (np.cos(value), np.sin(value))
            pin.framesForwardKinematics(model, data, full)
            expected = np.stack([data.oMf[f].homogeneous for f in frames])
            worst = max(worst, float(np.abs(Ts[t] - expected).max()))
    return worst, [f"{f.parent.name}/{f.name}" for f in files]


def droid_error() -> float | None:
    """Largest distance of panda_link8 to the poses that DROID recorded."""
    if not (DATA / "droid").is_dir():
        return None
    robot, worst = load("panda_robotiq", visuals=False), 0.0
    for file in sorted((DATA / "droid" / "annotation").rglob("*.json")):
        record = json_module.loads(file.read_text())
        q = np.array(record["observation.state.joint_position"])
        pose = np.array(record["observation.state.cartesian_position"])
        got = k4d.forward_kinematics(robot, np.hstack([q, np.zeros((len(q), 1))]))[:, robot.link_index("panda_link8")]
        worst = max(worst, float(difference(got, transform(pose[:, :3], euler_to_matrix(pose[:, 3:])))[0].max()))
    return worst


# ------------------------------------------------------------------ inverse kinematics


def smooth_path(robot: k4d.Robot, rng: np.random.Generator, frames: int = 49, share: float = 0.5) -> np.ndarray:
    """A smooth joint path inside the limits that covers about ``share`` of them."""
    lower, upper = limits(robot)
    a, b = rng.uniform(lower, upper, (2, robot.dof))
    t = np.linspace(0, 1, frames)[:, None]
    phase = rng.uniform(0.5, 1.5, robot.dof) * t + rng.uniform(0, 1, robot.dof)
    wave = 0.1 * (upper - lower) * np.sin(2 * np.pi * phase)
    return np.clip(a + share * ((b - a) * (1 - np.cos(np.pi * t)) / 2 + wave), lower, upper)


def least_motion(robot: k4d.Robot, q: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Per step, the shortest joint motion that moves the tool as asked from where the arm is: |J^+ dx|, the largest of
    before, midway and after. J by finite differences of FK, a radian counted as 0.3 m."""
    tool, arm, h = robot.link_index(robot.tool_link), robot.arm_columns, 1e-6
    weight = np.array([1, 1, 1, 0.3, 0.3, 0.3])
    turns = matrix_to_rotvec(goals[1:, :3, :3] @ np.swapaxes(goals[:-1, :3, :3], 1, 2))
    dx = np.hstack([np.diff(goals[:, :3, 3], axis=0), turns]) * weight
    needed = np.zeros(len(dx))
    for at in (q[:-1], (q[:-1] + q[1:]) / 2, q[1:]):
        J = np.empty((len(at), 6, len(arm)))
        for n, column in enumerate(arm):
            ahead, behind = at.copy(), at.copy()
            ahead[:, column] += h
            behind[:, column] -= h
            a, b = (k4d.forward_kinematics(robot, x)[:, tool] for x in (ahead, behind))
            J[:, :3, n] = (a[:, :3, 3] - b[:, :3, 3]) / (2 * h)
            J[:, 3:, n] = matrix_to_rotvec(a[:, :3, :3] @ np.swapaxes(b[:, :3, :3], 1, 2)) / (2 * h)
        least = np.linalg.norm(np.linalg.pinv(J * weight[:, None]) @ dx[..., None], axis=1)[:, 0]
        needed = np.maximum(needed, least)
    return needed


def ik_quality(paths: int) -> dict[str, dict[str, float]]:
    """Share of poses reached; the largest joint step beside the largest one of the path that made the poses; and how
    far steps exceed the least joint motion that the tool's motion needs."""
    out = {}
    for name in ("panda", "xarm7", "ur5", "wx250s"):
        robot, rng = load(name, visuals=False), np.random.default_rng(0)
        tool, arm = robot.link_index(robot.tool_link), robot.arm_columns
        reached, jumps, excess, seconds = [], [], [], 0.0
        for _ in range(paths):
            q = smooth_path(robot, rng)
            goals = k4d.forward_kinematics(robot, q)[:, tool]
            start = time.perf_counter()
            solved = k4d.inverse_kinematics(robot, goals, q[0])
            seconds += time.perf_counter() - start
            metres, radians = difference(k4d.forward_kinematics(robot, solved.q)[:, tool], goals)
            reached.append(((metres <= 1e-4) & (radians <= 1e-4)).mean())
            steps = [np.abs(np.diff(p[:, arm], axis=0)).max() for p in (solved.q, q)]
            jumps.append(steps[0] / max(steps[1], 0.02))
            if len(excess) < 300:
                moved = np.linalg.norm(np.diff(solved.q[:, arm], axis=0), axis=1)
                both = solved.converged[1:] & solved.converged[:-1]
                excess.append((moved - least_motion(robot, solved.q, goals))[both])
        out[name] = {
            "success": float(np.mean(reached)),
            "jump_p50": float(np.median(jumps)),
            "jump_p99": float(np.percentile(jumps, 99)),
            "excess_p99_rad": float(np.percentile(np.concatenate(excess), 99)),
            "excess_max_rad": float(np.concatenate(excess).max()),
            "us_per_pose": 1e6 * seconds / (49 * paths),
        }
    return out


def pinocchio_ik(robot: k4d.Robot) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The peer: damped least squares in Python on Pinocchio, same tolerance (1e-6), same seeding."""
    pin: Any = importlib.import_module("pinocchio")

    file, meshes = find(robot.name, assets=DATA / "robots" if DATA.is_dir() else None)
    assert not meshes
    model = pin.buildModelFromUrdf(str(file))
    arm = [model.getJointId(robot.joint_names[c]) for c in robot.arm_columns]
    model = pin.buildReducedModel(model, [i for i in range(1, model.njoints) if i not in arm], pin.neutral(model))
    data, frame = model.createData(), model.getFrameId(robot.tool_link)

    def solve(goals: np.ndarray, q: np.ndarray) -> np.ndarray:
        out = np.empty((len(goals), model.nq))
        q = q.copy()
        for t, goal in enumerate(goals):
            T_goal = pin.SE3(goal)
            for _ in range(100):
                pin.framesForwardKinematics(model, data, q)
                error = pin.log6(data.oMf[frame].actInv(T_goal)).vector
                if np.linalg.norm(error[:3]) <= 1e-6 and np.linalg.norm(error[3:]) <= 1e-6:
                    break
                J = pin.computeFrameJacobian(model, data, q, frame, pin.LOCAL)
                step = J.T @ np.linalg.solve(J @ J.T + 1e-8 * np.eye(6), error)
                q = np.clip(pin.integrate(model, q, step), model.lowerPositionLimit, model.upperPositionLimit)
            out[t] = q
        return out

    return solve


def ik_speedup(rounds: int = 40) -> float:
    robot, rng = load("panda", visuals=False), np.random.default_rng(1)
    tool, arm = robot.link_index(robot.tool_link), robot.arm_columns
    peer = pinocchio_ik(robot)
    ours, theirs = [], []
    for i in range(rounds):
        q = smooth_path(robot, rng, share=0.2)  # gentle paths, which the plain peer also follows
        goals = k4d.forward_kinematics(robot, q)[:, tool]
        a = timed(lambda goals=goals, q=q: k4d.inverse_kinematics(robot, goals, q[0]))
        b = timed(lambda goals=goals, q=q: peer(goals, q[0, arm]))
        if i:  # the first call loads the compiled kernels
            ours.append(a)
            theirs.append(b)
    return float(np.median(theirs) / np.median(ours))


# ------------------------------------------------------------------ rasteriser


def view(eye: tuple[float, float, float], target: tuple[float, float, float], focal: float = 600.0) -> k4d.Camera:
    K = np.array([[focal, 0, (SIZE[1] - 1) / 2], [0, focal, (SIZE[0] - 1) / 2], [0, 0, 1]])
    T = k4d.look_at(np.array(eye), np.array(target))
    return k4d.Camera(K=K, T_world_camera=T, height=SIZE[0], width=SIZE[1])


VIEWS = {
    "front": view((1.4, -0.6, 0.9), (0.2, 0.0, 0.4)),
    "side": view((0.3, 1.5, 0.5), (0.25, 0.0, 0.35)),
    "inside the arm's reach": view((0.25, -0.25, 0.55), (0.2, 0.0, 0.4), focal=350.0),
    "between the links": view((0.02, 0.06, 0.42), (0.3, 0.0, 0.5), focal=300.0),
}


def motion(robot: k4d.Robot, frames: int) -> np.ndarray:
    q = np.tile(robot.home, (frames, 1))
    s = np.linspace(0, 2 * np.pi, frames)
    q[:, 0] += 0.5 * np.sin(s)
    q[:, 1] += 0.3 * np.sin(2 * s)
    q[:, 3] += 0.3 * np.cos(s)
    return np.clip(q, robot.lower, robot.upper)


def embree(surfaces: Surfaces, Ts: np.ndarray, camera: k4d.Camera) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Link ids, and depth in float64 and as Embree itself gives it."""
    from embreex.mesh_construction import TriangleMesh
    from embreex.rtcore_scene import EmbreeScene

    T = Ts[surfaces.vertex_body]
    xyz = np.einsum("vij,vj->vi", T[:, :3, :3], surfaces.vertices) + T[:, :3, 3]
    scene = EmbreeScene(robust=True)
    TriangleMesh(scene, xyz.astype(np.float32), surfaces.faces)
    directions = rays(camera.K, camera.height, camera.width).reshape(-1, 3).astype(np.float32)
    hits = scene.run(np.zeros_like(directions), directions, output=True)
    triangle = hits["primID"]
    # Embree finds the triangle in float32; where on it the ray lands is worked out in float64, because at grazing
    # angles its own distance is off by more than we want to measure (reported beside).
    a, b, c = (xyz[surfaces.faces[triangle, n]] for n in range(3))
    normal = np.cross(b - a, c - a)
    with np.errstate(divide="ignore", invalid="ignore"):
        depth = (normal * a).sum(axis=1) / (normal * rays(camera.K, camera.height, camera.width).reshape(-1, 3)).sum(
            axis=1
        )
    ids = np.where(triangle >= 0, surfaces.face_body[triangle] + 1, 0)
    return ids.reshape(SIZE), depth.reshape(SIZE), hits["tfar"].reshape(SIZE)


def raster_accuracy(frames: int = 7) -> dict[str, float]:
    wrong = total = seen = beyond = 0
    dz = raw = off = 0.0
    for name in ("panda", "wx250s"):
        robot = load(name)
        surfaces = robot_surfaces([robot])
        for camera in VIEWS.values():
            Ts = invert(camera.T_world_camera) @ k4d.forward_kinematics(robot, motion(robot, frames))
            render = rasterize(surfaces, Ts, camera)
            off = max(off, off_ray_px(camera.K, k4d.Pointmap(points=render.points, valid=render.valid)))
            for t in range(frames):
                ids, depth, float32 = embree(surfaces, Ts[t], camera)
                same = ids == render.ids[t]
                both = same & (ids > 0)
                wrong, total, seen = wrong + int((~same).sum()), total + same.size, seen + int(both.sum())
                dz = max(dz, float(np.abs(depth - render.points[t, ..., 2])[both].max(initial=0)))
                gap = np.abs(float32 - render.points[t, ..., 2])[both]
                raw, beyond = max(raw, float(gap.max(initial=0))), beyond + int((gap > 1e-5).sum())
    return {
        "mismatch": wrong / total,
        "max_dz_m": dz,
        "max_dz_to_float32_embree_m": raw,
        "share_beyond_1e-5_of_float32_embree": beyond / max(seen, 1),
        "reproject_max_px": off,
        "pixels": total,
        "robot_pixels": seen,
    }


def mujoco_renderer(
    robot: k4d.Robot, camera: k4d.Camera, samples: int
) -> tuple[Any, Callable[[np.ndarray], np.ndarray]]:
    """The peer: the same triangles as mocap bodies in MuJoCo, drawn by its depth renderer without shadows.
    ``samples`` = 4 is its default, 0 its cheapest setting."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    import mujoco

    mj: Any = mujoco
    spec = mj.MjSpec()
    visible = sorted({v.link for v in robot.visuals})
    for n, v in enumerate(robot.visuals):
        asset = spec.add_mesh(name=f"m{n}", inertia=mj.mjtMeshInertia.mjMESH_INERTIA_SHELL)
        asset.uservert, asset.userface = v.mesh.vertices.astype(np.float32).ravel(), v.mesh.faces.ravel()
    bodies = {link: spec.worldbody.add_body(name=f"b{link}", mocap=True) for link in visible}
    for n, v in enumerate(robot.visuals):
        bodies[v.link].add_geom(type=mj.mjtGeom.mjGEOM_MESH, meshname=f"m{n}", contype=0, conaffinity=0)
    T = camera.T_world_camera @ np.diag([1.0, -1, -1, 1])  # OpenCV axes to OpenGL's
    quaternion = np.empty(4)
    mj.mju_mat2Quat(quaternion, T[:3, :3].ravel())
    fovy = 2 * np.degrees(np.arctan(camera.height / 2 / camera.K[1, 1]))
    spec.worldbody.add_camera(name="view", pos=T[:3, 3], quat=quaternion, fovy=fovy)
    spec.visual.global_.offheight, spec.visual.global_.offwidth = SIZE
    spec.visual.quality.offsamples = samples
    spec.visual.map.znear = 0.01
    model = spec.compile()
    data = mj.MjData(model)
    renderer = mj.Renderer(model, *SIZE)
    renderer.enable_depth_rendering()
    renderer.scene.flags[mj.mjtRndFlag.mjRND_SHADOW] = 0
    renderer.scene.flags[mj.mjtRndFlag.mjRND_REFLECTION] = 0
    order = [model.body(f"b{link}").mocapid[0] for link in visible]

    def draw(Ts_world_link: np.ndarray) -> np.ndarray:
        for slot, link in zip(order, visible, strict=True):
            data.mocap_pos[slot] = Ts_world_link[link, :3, 3]
            mj.mju_mat2Quat(data.mocap_quat[slot], Ts_world_link[link, :3, :3].ravel())
        mj.mj_forward(model, data)
        renderer.update_scene(data, "view")
        return renderer.render()

    return renderer, draw


def raster_speed(frames: int = 24, rounds: int = 7) -> dict[str, Any]:
    """Depth of a moving Panda at 480x720, ours and MuJoCo's turn by turn. Ours uses all cores, as it does by default,
    and again one; MuJoCo is a single GL context, whose software driver may use several threads of its own."""
    robot, camera = load("panda"), VIEWS["front"]
    surfaces = robot_surfaces([robot])
    Ts_world_link = k4d.forward_kinematics(robot, motion(robot, frames))
    Ts = invert(camera.T_world_camera) @ Ts_world_link
    out = rasterize(surfaces, Ts, camera)
    try:
        peers = {n: mujoco_renderer(robot, camera, samples) for n, samples in (("default", 4), ("cheapest", 0))}
        depth = peers["cheapest"][1](Ts_world_link[0])
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        return {"speedup": None, "why": f"MuJoCo cannot render here ({error}); apt-get install libegl1 libosmesa6"}
    both = out.valid[0] & (depth < 5)
    agreement = float((out.valid[0] == (depth < 5)).mean())
    dz = float(np.median(np.abs(depth - out.points[0, ..., 2])[both]))
    times: dict[str, list[tuple[float, float]]] = {k: [] for k in ("ours", "ours, one thread", *peers)}
    for _ in range(rounds):  # turn by turn, so that a busy moment hits all
        times["ours"].append(both_clocks(lambda: rasterize(surfaces, Ts, camera, out=out)))
        times["ours, one thread"].append(both_clocks(lambda: rasterize(surfaces, Ts, camera, out=out, threads=1)))
        for name, (_, draw) in peers.items():
            times[name].append(both_clocks(lambda draw=draw: [draw(T) for T in Ts_world_link]))
    for renderer, _ in peers.values():
        renderer.close()
    ms = {k: (1e3 * np.median(v, axis=0) / frames).round(2).tolist() for k, v in times.items()}
    return {
        "speedup": ms["default"][0] / ms["ours"][0],
        "speedup_over_cheapest": ms["cheapest"][0] / ms["ours"][0],
        "speedup_cpu_one_thread": ms["default"][1] / ms["ours, one thread"][1],
        "speedup_cpu_one_thread_over_cheapest": ms["cheapest"][1] / ms["ours, one thread"][1],
        "ms_per_frame_wall_cpu": ms,
        "mujoco_mask_agreement": agreement,
        "mujoco_median_dz_m": dz,
        "triangles": len(surfaces.faces),
    }


# ------------------------------------------------------------------ end to end


def end_to_end(folder: Path) -> dict[str, float]:
    """``kinema4d control`` for 49 frames at 480x720 in a fresh process, twice: the second has warm caches."""
    import subprocess
    import sys

    robot = load("panda", visuals=False)
    q = motion(robot, 49)
    T = k4d.forward_kinematics(robot, q)[:, robot.link_index(robot.tool_link)]
    poses = np.hstack([T[:, :3, 3], matrix_to_quaternion(T[:, :3, :3])])
    np.savez(folder / "actions.npz", ee_pose=poses, fps=10.0, q_start=q[0])
    from kinema4d.geometry.camera import camera_to_dict

    (folder / "camera.json").write_text(json_module.dumps(camera_to_dict(VIEWS["front"])))
    command = [sys.executable, "-m", "kinema4d.cli", "control", "--robot", "panda", "--json", "--overwrite"]
    command += [
        "--actions",
        str(folder / "actions.npz"),
        "--camera",
        str(folder / "camera.json"),
        "--out",
        str(folder / "clip"),
    ]
    subprocess.run(command, capture_output=True, text=True, check=True)
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall = time.perf_counter() - start
    seconds = json_module.loads(done.stdout)["seconds"]
    return {**seconds, "start-up and imports": round(wall - sum(seconds.values()), 3), "total": round(wall, 3)}


def warm_split() -> dict[str, float]:
    """The same work in a running process, as a data pipeline does it."""
    import tempfile

    robot, camera = load("panda"), VIEWS["front"]
    surfaces = robot_surfaces([robot])
    q = motion(robot, 49)
    T = k4d.forward_kinematics(robot, q)[:, robot.link_index(robot.tool_link)]
    poses = np.hstack([T[:, :3, 3], matrix_to_quaternion(T[:, :3, :3])])
    actions = k4d.Actions(space="ee_pose", values=poses, fps=10.0, q_start=q[0])
    out: dict[str, list[float]] = {"kinematics": [], "raster": [], "encode and write": []}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(3):
            a = time.perf_counter()
            arm = drive(robot, actions)
            b = time.perf_counter()
            control = project([robot], [arm], camera, surfaces=surfaces)
            c = time.perf_counter()
            k4d.save(control, Path(folder) / str(i))
            d = time.perf_counter()
            for key, value in zip(out, (b - a, c - b, d - c), strict=True):
                out[key].append(value)
    return {k: round(float(np.median(v)), 4) for k, v in out.items()}


# ------------------------------------------------------------------ report


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def both_clocks(work: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def main(json: bool = False, paths: int = 1000) -> None:
    """Run every claim.

    Args:
        json: Print one JSON object instead of a table.
        paths: IK trajectories per robot.
    """
    import tempfile

    fk, files = fk_error()
    droid = droid_error()
    ik = ik_quality(paths)
    speed = ik_speedup()
    accuracy = raster_accuracy()
    raster = raster_speed()
    warm = warm_split()
    with tempfile.TemporaryDirectory() as folder:
        split = end_to_end(Path(folder))
    result = {
        "fk_max_error_m": fk,
        "droid_fk_max_error_m": droid,
        "ik_success": min(v["success"] for v in ik.values()),
        "ik_speedup": speed,
        "raster_mismatch": accuracy["mismatch"],
        "raster_max_dz_m": accuracy["max_dz_m"],
        "raster_speedup": raster["speedup"],
        "reproject_max_px": accuracy["reproject_max_px"],
        "details": {
            "fk_files": files,
            "ik": ik,
            "raster_accuracy": accuracy,
            "raster_speed": raster,
            "control_seconds": split,
            "control_seconds_warm": warm,
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        },
    }
    if json:
        print(json_module.dumps(result))
        return
    rows = [
        ("FK against Pinocchio, worst entry", f"{fk:.1e} m", "<= 1e-9", fk <= 1e-9),
        ("FK against recorded DROID poses", "no data" if droid is None else f"{droid:.1e} m", "<= 1e-6", (droid or 0) <= 1e-6),
        *((f"IK reached, {n}", f"{100 * v['success']:.2f} %, {v['us_per_pose']:.0f} us/pose; joint steps beyond what the tool needs: "
           f"p99 {v['excess_p99_rad']:.3f}, max {v['excess_max_rad']:.2f} rad", ">= 99.5 %", v["success"] >= 0.995) for n, v in ik.items()),
        ("IK beside damped least squares in Python on Pinocchio", f"{speed:.1f}x", ">= 3x", speed >= 3),
        ("raster against Embree, wrong mask or link", f"{accuracy['mismatch']:.1e} of {accuracy['pixels']} pixels", "<= 1e-5", accuracy["mismatch"] <= 1e-5),
        ("raster against Embree, depth", f"{accuracy['max_dz_m']:.1e} m", "<= 1e-5", accuracy["max_dz_m"] <= 1e-5),
        ("points reproject to their pixel", f"{accuracy['reproject_max_px']:.1e} px", "<= 1e-3", accuracy["reproject_max_px"] <= 1e-3),
        ("raster beside MuJoCo depth, 480x720, wall clock", raster.get("why") or f"{raster['speedup']:.1f}x its default, "
         f"{raster['speedup_over_cheapest']:.1f}x without multisampling", ">= 5x", (raster["speedup"] or 0) >= 5),
        ("  the same in CPU time, ours on one thread", raster.get("why") or f"{raster['speedup_cpu_one_thread']:.1f}x its default, "
         f"{raster['speedup_cpu_one_thread_over_cheapest']:.1f}x without multisampling", "", True),
        ("control, 49 frames, in a running process", ", ".join(f"{k} {v:.2f} s" for k, v in warm.items()), "", True),
        ("control, 49 frames, whole command", ", ".join(f"{k} {v:.2f} s" for k, v in split.items()), "", True),
    ]  # fmt: skip
    width = max(len(r[0]) for r in rows)
    for name, value, wanted, ok in rows:
        print(f"{'ok ' if ok else 'NOT'} {name:<{width}}  {value}{f'   ({wanted})' if wanted else ''}")
    print(f"    {result['details']['machine']}")


if __name__ == "__main__":
    tyro.cli(main)
