"""What bends, fitted from its own poses and moved given its material, beside MuJoCo's flexes and ropes, and beside PCA and nothing at all.

    python benchmarks/objects_bending.py --json
    python benchmarks/objects_bending.py --count 7 --picture docs/images/objects_bending.jpg

Every object is learned from 128 poses of its mesh, and judged by 24 poses of other runs at equal numbers of coordinates. Then it is given its material (Young's
modulus, Poisson's ratio, thickness, density, damping of strain; all vertices weigh the same, as in MuJoCo's flexes) and a state of MuJoCo's (positions and
velocities of the vertices), and moves for a second. PCA has the same material, the same mechanics and as many coordinates. ``mujoco_1s`` is how far
MuJoCo is off itself if it begins 1 % faster: what is chaotic cannot be foretold any better. Errors are mean distances of vertices, of the size.
"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image, ImageDraw

from kinema4d.geometry.deforming import ObjectMotion
from kinema4d.geometry.film import film
from kinema4d.objects.body import Body, at_rest
from kinema4d.objects.elastic import Elastic, Inside, Material, elastic, volume
from kinema4d.objects.fit import FitPlan, Fitted, fit
from kinema4d.objects.lagrange import Conditions, Motion, simulate
from kinema4d.objects.peers import pca_body
from kinema4d.objects.solid import Mesh, quadrature
from kinema4d.scenes.soft import EARTH, Soft, Start, run, some_poses
from kinema4d.scenes.soft_kinds import draw
from kinema4d.simulate.object_elastic import fine_steps, joints_of, keeps_form, solid_of, stressed

KINDS = ("bar", "plate", "blob", "cloth", "rope", "door-rope", "box-cloth")
STEP, FINE, BEGIN = 0.01, 0.001, 0.1
"""Seconds: between frames, between those that velocities are taken from, and when ours begins."""
POSES = 128
"""That each object is learned from."""
ERROR = 2e-4
"""Reconstruction, of the size, at which coordinates are enough to move by."""
PICTURED = {"bar": 50, "plate": 50, "blob": 50, "cloth": 51, "rope": 0, "door-rope": 0, "box-cloth": 50}
"""Objects of the film strip."""
PER_FRAME = (
    "vertices",
    "q",
    "place",
    "turn",
    "kinetic",
    "potential",
    "work",
    "momentum",
    "penetration",
    "force_at",
    "force",
)
Shown = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """A motion of MuJoCo's, from the state in which ours begins."""

    vertices: np.ndarray
    """[t,v,3] every ``STEP`` seconds."""
    speed: np.ndarray
    """[v,3] of its first frame, metres per second."""
    ms: float
    """That MuJoCo takes for ``STEP`` seconds."""
    apart: float
    """From itself begun 1 % faster, after a second, of the size."""


def truth_of(thing: Soft, seconds: float = 1.0) -> Truth:
    """The first start whose joints stay within their ends for so long."""
    for seed in range(100, 130):
        start = Start(seed=seed, stir=1.0)
        began = time.perf_counter()
        coarse = run(thing, start, seconds=BEGIN + seconds, every=STEP).vertices
        ms = 1000 * (time.perf_counter() - began) * STEP / (BEGIN + seconds)
        other = run(thing, replace(start, stir=1.01), seconds=BEGIN + seconds, every=STEP).vertices
        first = round(BEGIN / STEP)
        if min(len(coarse), len(other)) <= round((BEGIN + seconds) / STEP):
            continue
        fine = run(thing, start, seconds=BEGIN + 2 * FINE, every=FINE).vertices
        at = round(BEGIN / FINE)
        speed = (fine[at + 1] - fine[at - 1]) / (2 * FINE)
        return Truth(vertices=coarse[first:], speed=speed, ms=ms, apart=float(off(coarse, other, thing)[-1]))
    raise ValueError(f"{thing.name}: a joint comes to its end in every motion")


def off(a: np.ndarray, b: np.ndarray, thing: Soft) -> np.ndarray:
    return np.linalg.norm(a - b, axis=-1).mean(axis=-1) / thing.size


def material_of(thing: Soft, mesh: Mesh) -> tuple[Material, float]:
    """As MuJoCo has it, and a density for all of the mesh: only ratios of stiffness and weight count. A rope's joints are springs: a rod whose E I is their
    stiffness times the length of a rod bends as they do."""
    m = thing.material
    if "stiffness" not in m:
        thick = m.get("thickness", 0.002)
        soft = Material(young=m["young"], poisson=m["poisson"], thickness=thick, damping=m["damping"], even=True)
        return soft, m.get("cloth_density", m["density"])
    rope = thing.pieces[-1]
    first = len(mesh.vertices) - len(rope.bodies)
    own = mesh.faces[(mesh.faces >= first).all(axis=1)]
    true = np.pi * m["thick"] ** 2 * (m["long"] + 4 / 3 * m["thick"]) * m["count"]  # capsules overlap at the joints
    young = m["stiffness"] * m["long"] / (np.pi * m["thick"] ** 4 / 4) * volume(mesh, own) / true
    return Material(young=young, poisson=0.0, damping=m["damping"] / m["stiffness"]), m["density"]


def inside_of(thing: Soft) -> Inside:
    """MuJoCo's tetrahedra."""
    nodes, model = thing.pieces[0].nodes, thing._model
    assert nodes is not None
    x = np.array(model.flex_vert0).reshape(-1, 3)  # of the box of all nodes, from 0 to 1
    skin = thing.vertices[: len(nodes)]
    low, wide = skin.min(axis=0), np.ptp(skin, axis=0)
    inner = np.setdiff1d(np.arange(len(x)), nodes)
    order = np.empty(len(x), np.int64)
    order[np.concatenate([nodes, inner])] = np.arange(len(x))
    every = low + x * wide
    assert np.allclose(every[nodes], skin, atol=1e-6)
    cells = order[np.array(model.flex_elem).reshape(-1, 4)]
    corner = np.concatenate([skin, every[inner]])[cells]
    flip = np.linalg.det(corner[:, 1:] - corner[:, :1]) < 0
    return Inside(nodes=every[inner], cells=np.where(flip[:, None], cells[:, [0, 2, 1, 3]], cells))


def moved(body: Body, shown: Shown, solid: Elastic, q: torch.Tensor, speed: np.ndarray, damping: float, *, walls: int = 0, seconds: float = 1.0) -> tuple[Motion, np.ndarray, float]:  # fmt: skip
    """Vertices every ``STEP`` seconds, and what that took, milliseconds."""
    held = stressed(body, shown, solid, walls=walls)
    parts, implicit, drag = fine_steps(held, q[0].numpy(), STEP, damping)
    body = replace(stressed(body, shown, solid, walls=walls, damped=not implicit and drag is None), drag=drag)
    ways = shown(q)[1][0].flatten(0, 1)
    fast = torch.linalg.lstsq(ways, torch.from_numpy(speed).flatten()[:, None]).solution.T
    began = time.perf_counter()
    made = simulate(body, at_rest(body, q), Conditions(gravity=EARTH), seconds=seconds, step=STEP / parts, velocity=fast, implicit=implicit)  # fmt: skip
    states = torch.cat([s.q for s in made.states[::parts]])
    vertices = shown(states)[0].numpy()
    return made, vertices, 1000 * (time.perf_counter() - began) * STEP / seconds


def linear(vertices: Callable[[torch.Tensor], torch.Tensor], k: int) -> Shown:
    rest, unit = vertices(torch.zeros(1, k, dtype=torch.float64)), vertices(torch.eye(k, dtype=torch.float64))
    ways = (unit - rest).movedim(0, -1)[None]
    return lambda q: (rest + (ways @ q[:, None, :, None])[..., 0], ways.expand(len(q), -1, -1, -1))


def one(kind: str, seed: int) -> tuple[dict[str, Any], ObjectMotion, ObjectMotion]:
    """Figures, and the motions of MuJoCo and ours."""
    thing = draw(kind, seed)
    mesh = Mesh(vertices=thing.vertices, faces=thing.faces)
    train, test = some_poses(thing, POSES, 1), some_poses(thing, 24, 2)
    material, density = material_of(thing, mesh)
    began = time.perf_counter()
    got = fit(mesh, train, FitPlan(error=ERROR), density=density)
    fitting = time.perf_counter() - began
    k = got.twists.shape[1]
    solid = solid_of(got, material, [])
    assert solid is not None
    peer = pca_body(mesh, train, solid.weighed, k)
    told = linear(peer.vertices, k)
    basis, middle = (v[0].numpy() for v in (told(torch.zeros(1, k).double())[1], told(torch.zeros(1, k).double())[0]))
    nearest = lambda x: np.linalg.lstsq(basis.reshape(-1, k), (x - middle).reshape(len(x), -1).T, rcond=None)[0].T  # noqa: E731
    ours = float(off(got.vertices(got.coordinates(test)).numpy(), test, thing).mean())
    pca = float(off(told(torch.from_numpy(nearest(test)))[0].numpy(), test, thing).mean())
    truth = truth_of(thing)
    last = len(truth.vertices) - 1
    weighed = replace(got, weighed=solid.weighed)
    q, walls = got.coordinates(truth.vertices[:1]), joints_of(got)
    made, vertices, ms = moved(
        weighed.body(), got.vertices_and_slopes, solid, q, truth.speed, material.damping, walls=walls
    )
    errors = off(vertices, truth.vertices[: len(vertices)], thing)
    calm = solid_of(got, replace(material, damping=0.0), [])
    assert calm is not None
    free, _, _ = moved(weighed.body(), got.vertices_and_slopes, calm, q, truth.speed, 0.0, walls=walls)
    energy = free.energy[:, 0]
    same = None  # with MuJoCo's own tetrahedra
    if thing.category == "elastic":
        known = elastic(mesh, material, density=density, stiff=keeps_form(got), inside=inside_of(thing))
        same = moved(replace(got, weighed=known.weighed).body(), got.vertices_and_slopes, known, q, truth.speed, material.damping, walls=walls)[1]  # fmt: skip
    other, peers, _ = moved(peer.body, told, solid, torch.from_numpy(nearest(truth.vertices[:1])), truth.speed, material.damping)  # fmt: skip
    row: dict[str, Any] = {
        "kind": kind, "seed": seed, "vertices": len(mesh.vertices), "mujoco_freedom": thing.freedom, "coordinates": k, "found": got.freedom.count,
        "reconstruction": ours, "pca_reconstruction": pca, "ratio": ours / pca, "fit_s": fitting,
        "error_1s": float(errors[last]) if len(errors) > last else None, "error_half_s": float(errors[last // 2]) if len(errors) > last // 2 else None,
        "same_cells_1s": None if same is None or len(same) <= last else float(off(same[last], truth.vertices[last], thing)),
        "still_1s": float(off(truth.vertices[0], truth.vertices[last], thing)), "mujoco_1s": truth.apart,
        "pca_error_1s": float(off(peers[last], truth.vertices[last], thing)) if len(peers) > last else None,
        "energy_drift": float((energy - energy[0]).abs().max()) / float(torch.stack(free.kinetic).max()),
        "ms_per_step": ms, "mujoco_ms": truth.ms, "stopped": made.stopped, "pca_stopped": other.stopped, "drift_stopped": free.stopped,
    }  # fmt: skip
    return row, shapes(mesh, truth.vertices), shapes(mesh, vertices)


def swung(kind: str, seed: int, got: Fitted) -> dict[str, Any]:
    """How an object that was foretold, of which only the mesh was seen, moves given its material and a state of MuJoCo's."""
    thing = draw(kind, seed)
    material, density = material_of(thing, got.mesh)
    got = replace(got, weighed=quadrature(got.mesh, density=density))
    solid = solid_of(got, material, [])
    if solid is None:
        return {}
    truth = truth_of(thing)
    last = len(truth.vertices) - 1
    q, walls = got.coordinates(truth.vertices[:1]), joints_of(got)
    made, vertices, ms = moved(replace(got, weighed=solid.weighed).body(), got.vertices_and_slopes, solid, q, truth.speed, material.damping, walls=walls)  # fmt: skip
    errors = off(vertices, truth.vertices[: len(vertices)], thing)
    same = None  # with MuJoCo's own tetrahedra
    if thing.category == "elastic":
        known = elastic(got.mesh, material, density=density, stiff=keeps_form(got), inside=inside_of(thing))
        same = moved(replace(got, weighed=known.weighed).body(), got.vertices_and_slopes, known, q, truth.speed, material.damping, walls=walls)[1]  # fmt: skip
    return {
        "same_cells_1s": None if same is None or len(same) <= last else float(off(same[last], truth.vertices[last], thing)),
        "error_1s": float(errors[last]) if len(errors) > last else None, "still_1s": float(off(truth.vertices[0], truth.vertices[last], thing)),
        "diverged": float(made.stopped is not None), "ms_per_step": ms, "last": float(errors[-1]),
    }  # fmt: skip


def bending(count: int = 14) -> list[dict[str, Any]]:
    """One row per object, kind by kind in turn."""
    rows = []
    for i in range(count):
        rows.append(one(KINDS[i % len(KINDS)], 50 + i // len(KINDS))[0])
        print(json_module.dumps(rows[-1]), flush=True)
    return rows


# ---------------------------------------------------------------------- pictures


def shapes(mesh: Mesh, vertices: np.ndarray) -> ObjectMotion:
    """A motion of which only the shapes are known."""
    t = len(vertices)
    none, flat = np.zeros((t, 0)), np.zeros((t, 0, 3))
    return ObjectMotion(
        vertices=vertices.astype(np.float32), faces=mesh.faces, step=STEP, q=none, place=np.zeros((t, 3)), turn=np.tile(np.eye(3), (t, 1, 1)),
        kinetic=np.zeros(t), potential=np.zeros(t), work=np.zeros(t), momentum=np.zeros((t, 3)), penetration=np.zeros(t), force_at=flat, force=flat,
        rest=mesh.vertices.astype(np.float32), rest_q=np.zeros(0), reach=np.zeros((0, 2)),
        sliders=np.zeros((0, 2, len(mesh.vertices), 3), np.float32), stopped=None, about={},
    )  # fmt: skip


def drawn(found: list[tuple[dict[str, Any], ObjectMotion, ObjectMotion]], path: Path, side: int = 150) -> None:
    """Per object MuJoCo's motion, and ours below; both by the camera that sees MuJoCo's."""
    rows = []
    for row, truth, ours in found:
        for name, motion in (("MuJoCo", truth), (f"ours ({row['coordinates']})", ours)):
            long = len(truth)
            both = replace(
                truth, **{key: np.concatenate([getattr(motion, key)[:long], getattr(truth, key)]) for key in PER_FRAME}
            )
            frames = np.linspace(0, long - 1, 6).round().astype(int).clip(max=len(motion) - 1)
            strip = Image.fromarray(np.concatenate(list(film(both, frames.tolist(), height=side, width=side)), axis=1))
            ImageDraw.Draw(strip).text((4, 2), f"{row['kind']} {name}", fill=(0, 0, 0))
            rows.append(np.asarray(strip))
    half = 2 * ((len(found) + 1) // 2)  # two columns, and pairs stay together
    rows += [np.full_like(rows[0], 255)] * (2 * half - len(rows))
    every = np.concatenate([np.concatenate(rows[:half]), np.concatenate(rows[half:])], axis=1)
    Image.fromarray(every).save(path, quality=85)


def mean(rows: list[dict[str, Any]], key: str) -> float | None:
    values = [r[key] for r in rows if r[key] is not None]
    return float(np.mean(values)) if values else None


def main(count: int = 14, picture: Path | None = None, threads: int = 1, json: bool = False) -> None:
    """Measure, or draw.

    Args:
        count: How many objects, of seven kinds in turn.
        picture: Film strip to write instead.
        threads: Of torch.
        json: Print the figures as one JSON object at the end.
    """
    torch.set_num_threads(threads)
    if picture is not None:
        drawn([one(kind, seed) for kind, seed in PICTURED.items()], picture)
        print(picture)
        return
    rows = bending(count)
    keys = ("reconstruction", "pca_reconstruction", "ratio", "error_1s", "same_cells_1s", "still_1s", "mujoco_1s", "pca_error_1s", "energy_drift", "ms_per_step", "mujoco_ms")  # fmt: skip
    out = {kind: {k: mean([r for r in rows if r["kind"] == kind], k) for k in keys} for kind in KINDS}
    print(json_module.dumps({"kinds": out, "rows": rows}, indent=None if json else 1))


if __name__ == "__main__":
    tyro.cli(main)
