"""Learned kinematics of objects beside MuJoCo, and beside PCA, modal analysis, skinning eigenmodes and nothing at all, in one run.

    python benchmarks/objects.py --json
    python benchmarks/objects.py --fit-objects 20 --data objects4d/ --weights runs/o/objects.safetensors --assets wheels/

``exact_drift``: energy drift of decoders that are formulas, h = 10 ms over 3 s. ``contact``: see objects_contact.py. ``fit``: jointed objects of one, two and three degrees of freedom, learned from
their own poses; ``fit_bending``: see objects_bending.py. ``amortised``: jointed objects that the model never saw, from their mesh alone; in it ``categories`` (kinds that it never saw), ``gadgets``
(of no kind) and ``bending``. Without data sets they are made, of seeds that nothing was learned from. Errors are mean distances of vertices, of the size. Motions start within the joints' limits and are compared for as long as MuJoCo, whose joints here have no ends, stays within them. Gravity is
one of a few directions and strengths, the strongest for which that is at least 1 s.
"""

from __future__ import annotations

import json as json_module
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import tyro
from objects_bending import bending, swung
from objects_contact import contact

from kinema4d.data.objects4d import Object4D, read_objects
from kinema4d.data.objects_generate import Recipe, generate
from kinema4d.data.objects_make import SOFT
from kinema4d.objects.body import at_rest
from kinema4d.objects.exact import beam, pendulum
from kinema4d.objects.field_object import edge_distortion
from kinema4d.objects.fit import Fitted, fit
from kinema4d.objects.foretell import kinematics, shipped
from kinema4d.objects.inverse import reach_points
from kinema4d.objects.lagrange import Conditions, simulate
from kinema4d.objects.peers import modal_body, pca_body, skinning_modes_body
from kinema4d.objects.solid import Mesh, quadrature
from kinema4d.scenes.assets import available, load
from kinema4d.scenes.jointed import GADGET, KINDS, Jointed, draw, some_poses, swing
from kinema4d.simulate.object_elastic import solid_of
from kinema4d.simulate.objects import FOAM

GRAVITIES = [
    tuple(s * g * a for a in axis) for g in (9.81, 1.0, 0.1) for axis in np.eye(3).tolist() for s in (-1.0, 1.0)
]
STEP = 0.01
SEED = 77
"""Of data sets that are made here; training has other ones."""


def exact_drift() -> dict[str, float]:
    out = {}
    for name, body, q in (
        ("pendulum", pendulum((0.5,)), [1.2]),
        ("double pendulum", pendulum((0.45, 0.4)), [0.9, -0.6]),
        ("beam", beam()[0], [2e-3, 0.0, 0.0]),
    ):
        made = simulate(body, at_rest(body, torch.tensor([q], dtype=torch.float64)), Conditions(), seconds=3, step=STEP)
        most = float(torch.stack(made.kinetic).max())  # that ever went to and fro
        out[name] = float((made.energy - made.energy[0]).abs().max()) / most
    return out


def truth_of(thing: Jointed, seconds: float = 3.0) -> tuple[np.ndarray, tuple[float, ...]] | None:
    """Joint positions of a motion that stays within the limits for long, and its gravity; None of what no gravity moves, such as a balanced wheel."""
    low, high = thing.limits.T
    best: tuple[np.ndarray, tuple[float, ...]] | None = None
    rng = np.random.default_rng(3)
    starts = [low + (high - low) * rng.uniform(0.25, 0.75, thing.freedom) for _ in range(3)]
    for gravity, start in product(GRAVITIES, starts):
        q = swing(thing, start, np.zeros(thing.freedom), seconds=seconds, gravity=(gravity[0], gravity[1], gravity[2]))
        inside = ((q >= low) & (q <= high)).all(axis=1)
        long = len(q) if inside.all() else int(inside.argmin())
        moved = float(np.abs(q[:long] - q[0]).max())
        if moved > 0.02 and (best is None or long > len(best[0])):
            best = q[:long], gravity
        if best is not None and len(best[0]) == len(q):
            break
    return best


def motion_errors(thing: Jointed, got: Fitted, mesh: Mesh) -> dict[str, float | None]:
    found = truth_of(thing)
    if found is None:
        return {}
    q, gravity = found
    goals = thing.posed(q)
    start = got.coordinates(goals[:1])
    body = got.body()
    began = time.perf_counter()
    made = simulate(
        body,
        at_rest(body, start),
        Conditions(gravity=(gravity[0], gravity[1], gravity[2])),
        seconds=(len(q) - 1) * STEP,
        step=STEP,
    )
    spent = (time.perf_counter() - began) / max(len(made), 1)
    states = torch.cat([s.q for s in made.states])
    off = np.linalg.norm(got.vertices(states).numpy() - goals[: len(states)], axis=-1).mean(axis=1) / mesh.size
    energy = made.energy[:, 0]
    at = lambda t: float(off[round(t / STEP)]) if len(off) > round(t / STEP) else None  # noqa: E731
    return {
        "seconds": (len(q) - 1) * STEP, "error_1s": at(1.0), "error_3s": at(3.0), "last": float(off[-1]), "diverged": float(made.stopped is not None),
        "energy_drift": float((energy - energy[0]).abs().max()) / max(float(torch.stack(made.kinetic).max()), 1e-12), "ms_per_step": 1000 * spent,
    }  # fmt: skip


def ik(mesh: Mesh, poses: np.ndarray, learned: Fitted | int, train: np.ndarray, *, free: bool = False) -> dict[str, float]:  # fmt: skip
    """Chamfer (of the size) of the nearest pose, all vertices known, at equal numbers of coordinates (principal components: of as many as its poses have); ``free`` lets all of them move as a whole, too. An object that was
    refused has only a number, for the peers, and stands still."""
    soft = None if isinstance(learned, int) or learned.freedom.count is not None else solid_of(learned, FOAM, [])
    weighed = quadrature(mesh) if soft is None else soft.weighed
    k = learned if isinstance(learned, int) else learned.twists.shape[1]
    made = {"static": np.tile(mesh.vertices, (len(poses), 1, 1))}
    peers = {"pca": pca_body(mesh, train, weighed, min(k, len(train) - 1)), "modal": modal_body(mesh, weighed, k)}
    try:
        peers["skinning"] = skinning_modes_body(mesh, weighed, max(1, k))
    except ValueError as error:  # masses of what is rigid and what bends do not tell all of its handles apart
        print(json_module.dumps({"no skinning eigenmodes": str(error)}), flush=True)
    every = {name: (p.body, p.vertices) for name, p in peers.items()}
    if not isinstance(learned, int):
        every["ours"] = replace(learned, weighed=weighed).body(), learned.vertices
    for name, (body, vertices) in every.items():
        rows = []
        for pose in poses:
            got = reach_points(body, torch.from_numpy(weighed.points(pose)), free=free, starts=4)
            rows.append(vertices(got.q[None])[0].numpy() @ got.turn.numpy().T + got.place.numpy())
        made[name] = np.stack(rows)
    if free:
        weights = torch.full((len(mesh.vertices),), 1 / len(mesh.vertices), dtype=torch.float64)
        turn, place = _rigid(torch.from_numpy(mesh.vertices), torch.from_numpy(poses), weights)
        made["static"] = (torch.einsum("pij,vj->pvi", turn, torch.from_numpy(mesh.vertices)) + place[:, None]).numpy()
    made.setdefault("ours", made["static"])
    return {n: _chamfer(v, poses, mesh) for n, v in made.items()}


def _rigid(x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turns and shifts that bring points [n,3] closest to others [p,n,3] (Kabsch)."""
    from kinema4d.objects.inverse import _aligned

    place, turn = _aligned(x.expand(len(y), -1, -1), y, weights)
    return turn, place


def _chamfer(made: np.ndarray, truth: np.ndarray, mesh: Mesh) -> float:
    from scipy.spatial import KDTree

    both = [(KDTree(a).query(b)[0].mean() + KDTree(b).query(a)[0].mean()) / 2 for a, b in zip(made, truth, strict=True)]
    return float(np.mean(both)) / mesh.size


def mean(rows: list[dict[str, Any]], key: str) -> float | None:
    values = [r[key] for r in rows if r.get(key) is not None]
    return float(np.mean(values)) if values else None


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    keys = (
        "reconstruction",
        "went",
        "edges",
        "dof_exact",
        "error_1s",
        "error_3s",
        "energy_drift",
        "diverged",
        "same_cells_1s",
        "still_1s",
        "it_bends",
        "ms_per_step",
        "seconds",
        "last",
    )
    out: dict[str, Any] = {"objects": len(rows), **{k: mean(rows, k) for k in keys}}
    names = sorted({n for r in rows for n in r.get("ik_chamfer", {})})
    out["ik_chamfer"] = {n: mean([r["ik_chamfer"] for r in rows if "ik_chamfer" in r], n) for n in names}
    out["refused"] = float(np.mean(["refused" in r for r in rows])) if rows else None
    out["with_1s"], out["with_3s"] = (sum(r.get(k) is not None for r in rows) for k in ("error_1s", "error_3s"))
    return out


def fits(count: int) -> list[dict[str, Any]]:
    rows = []
    for i in range(count):
        kind = list(KINDS)[i % len(KINDS)]
        thing = draw(kind, 50 + i)
        mesh = Mesh(vertices=thing.posed(np.zeros(thing.freedom)), faces=thing.faces)
        train, test = thing.posed(some_poses(thing, 96, 1)), thing.posed(some_poses(thing, 6, 2))
        began = time.perf_counter()
        got = fit(mesh, train)
        row: dict[str, Any] = {
            "object": f"{kind}-{50 + i}", "freedom": thing.freedom, "found": got.freedom.count, "dof_exact": float(got.freedom.count == thing.freedom),
            "reconstruction": float(np.linalg.norm(got.vertices(got.coordinates(test)).numpy() - test, axis=-1).mean() / mesh.size), "fit_s": time.perf_counter() - began,
            **motion_errors(thing, got, mesh), "ik_chamfer": ik(mesh, test, got, train),
        }  # fmt: skip
        rows.append(row)
        print(json_module.dumps(row), flush=True)
    return rows


def real_fits(assets: Path) -> list[dict[str, Any]]:
    """Jointed objects out of the wheels of metaworld and gymnasium-robotics (:mod:`kinema4d.scenes.assets`)."""
    rows = []
    for kind in available(assets):
        thing = load(kind, assets)
        low, high = thing.limits.T
        mesh = Mesh(vertices=thing.posed(np.clip(np.zeros(thing.freedom), low, high)), faces=thing.faces)
        drawn = lambda n, seed: thing.posed(np.random.default_rng(seed).uniform(low, high, (n, thing.freedom)))  # noqa: B023, E731
        train, test = drawn(48, 1), drawn(6, 2)
        began = time.perf_counter()
        got = fit(mesh, train)
        rows.append({
            "object": kind, "freedom": thing.freedom, "found": got.freedom.count, "dof_exact": float(got.freedom.count == thing.freedom),
            "reconstruction": float(np.linalg.norm(got.vertices(got.coordinates(test)).numpy() - test, axis=-1).mean() / mesh.size),
            "fit_s": time.perf_counter() - began, "ik_chamfer": ik(mesh, test, got, train),
        })  # fmt: skip
        print(json_module.dumps(rows[-1]), flush=True)
    return rows


def bends(one: Object4D) -> bool:
    """Whether something of it does, by what it was made of."""
    return one.category not in ("articulated", "real", "rigid")


def spread(every: list[Object4D], most: int) -> list[Object4D]:
    """At most so many, evenly of all kinds."""
    return (
        [every[i] for i in np.unique(np.linspace(0, len(every) - 1, min(most, len(every))).round().astype(int))]
        if every
        else []
    )


def unseen(every: list[Object4D], weights: Path, *, free: bool = False) -> list[dict[str, Any]]:
    rows = []
    for one in every:
        rest, faces = one.shape()
        mesh, poses = Mesh(vertices=rest, faces=faces), one.poses().astype(np.float64)
        kind, seed = one.kind, int(one.id.rsplit("-", 1)[1])
        row: dict[str, Any] = (
            {"object": one.id} if bends(one) else {"object": one.id, "freedom": one.truth().get("freedom")}
        )
        try:
            got = kinematics(mesh, weights)
        except ValueError as error:
            if not bends(one):
                row |= {"dof_exact": 0.0, "ik_chamfer": ik(mesh, poses[:6], int(one.truth()["freedom"]), poses[6:], free=free)}  # fmt: skip
            rows.append({**row, "refused": str(error)[:90]})
            print(json_module.dumps(rows[-1]), flush=True)
            continue
        test, k = poses[:6], got.twists.shape[1]
        size = lambda off: float(np.linalg.norm(off, axis=-1).mean() / mesh.size)  # noqa: B023, E731
        draws = torch.randn(16, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        row |= {
            "found": k, "apart": got.error, "reconstruction": size(got.vertices(got.coordinates(test)).numpy() - test), "went": size(rest - test),
            "edges": float(edge_distortion(mesh, got.vertices(draws)).mean()), "ik_chamfer": ik(mesh, test, got, poses[6:], free=free),
        }  # fmt: skip
        if bends(one):
            row["it_bends"] = float(got.freedom.count is None)
            if got.freedom.count is None:
                row |= swung(kind, seed, got)
        else:
            row["dof_exact"] = float(got.freedom.count == row["freedom"])
        thing = draw(kind, seed) if one.category == "articulated" else None
        if thing is not None and np.array_equal(thing.posed(np.zeros(thing.freedom)), rest):
            row |= motion_errors(thing, got, mesh)
        rows.append(row)
        print(json_module.dumps(row), flush=True)
    return rows


def made(folder: Path) -> tuple[Path, ...]:
    """Data sets of objects that nothing was learned from; one object in ten is a test instance."""
    soft = tuple(k for k in SOFT if k != "rigid")
    for name, kinds, each in (("jointed", tuple(KINDS), 40), ("gadgets", (GADGET,), 400), ("soft", soft, 20)):
        generate(
            folder / name, Recipe(objects=each * len(kinds), kinds=kinds, poses=24, motions=0, seed=SEED), workers=2
        )
    return folder / "jointed", folder / "gadgets", folder / "soft"


def main(
    fit_objects: int = 14,
    data: tuple[Path, ...] = (),
    weights: Path | None = None,
    unseen_objects: int = 40,
    assets: Path | None = None,
    bending_objects: int = 8,
    threads: int = 2,
    json: bool = False,
) -> None:
    """Measure.

    Args:
        fit_objects: How many jointed ones are fitted.
        data: Data sets for the amortised model; without, they are made.
        weights: Of the amortised model; those of the package without.
        unseen_objects: Of every split at most, spread over its kinds.
        assets: Folder with metaworld/ and gymnasium_robotics/ out of their wheels: real objects, fitted.
        bending_objects: How many that bend are fitted.
        threads: Of torch.
        json: Print the figures as one JSON object at the end.
    """
    torch.set_num_threads(threads)
    out: dict[str, Any] = {
        "exact_drift": exact_drift(),
        "contact": contact(),
        "fit": summary(fits(fit_objects)),
        "fit_real": None,
        "amortised": None,
    }
    out["fit_bending"] = bending(bending_objects)
    if assets is not None:
        out["fit_real"] = summary(real_fits(assets))
    chosen = weights or shipped()
    if chosen is not None:
        with TemporaryDirectory() as folder:
            own = data or made(Path(folder))
            of = {
                split: [o for d in own for o in read_objects(d, split)] for split in ("test-instance", "test-category")
            }
            some = {
                "": [o for o in of["test-instance"] if not bends(o) and o.kind != GADGET], "categories": of["test-category"],
                "gadgets": [o for o in of["test-instance"] if o.kind == GADGET], "bending": [o for o in of["test-instance"] if bends(o)],
            }  # fmt: skip
            found = {name: summary(unseen(spread(every, unseen_objects), chosen, free=name == "categories")) for name, every in some.items() if every}  # fmt: skip
        out["amortised"] = {**found.pop("", {}), **found}
    print(json_module.dumps(out, indent=None if json else 1))


if __name__ == "__main__":
    tyro.cli(main)
