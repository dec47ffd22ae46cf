"""NeuROK's own model and its ablations beside screws per part and nothing at all: inverse kinematics of meshes that
were never seen, in one table.

    kinema4d objects train --model field --data objects4d/ --out runs/full
    kinema4d objects train --model field --no-nested --data objects4d/ --out runs/nonest
    python benchmarks/objects_field.py --data objects4d/ --full runs/full/field.safetensors --json
        --others nonest=runs/nonest/field.safetensors

The task is that of the paper's Table 1: from the mesh at rest and the vertices of another pose, find the coordinates;
Chamfer distance (L1, mean of both ways, all vertices) in per cent of the size. ``fewest``: with two coordinates, the
same for every field, beside as many as are chosen by the eigenvalues. ``--full`` is also measured without reduction.
What the screws refuse counts as standing still. ``distortion`` is the mean relative change of edge lengths of samples
of the prior."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from scipy.sparse import csr_matrix, identity
from scipy.spatial import KDTree

from kinema4d.data.objects4d import Object4D, read_objects
from kinema4d.objects import inverse
from kinema4d.objects.field_object import FieldObject, edge_distortion, field_object
from kinema4d.objects.fit import screw_body
from kinema4d.objects.foretell import kinematics, shipped
from kinema4d.objects.solid import Mesh, Weighed

inverse.ROUNDS, inverse.ENOUGH = 12, 1e-4  # per cent are asked for, and the encoder has guessed already
FEWEST = 2
SAMPLES = 16


def chamfer(made: np.ndarray, truth: np.ndarray) -> float:
    return float(KDTree(made).query(truth)[0].mean() + KDTree(truth).query(made)[0].mean()) / 2


def static(mesh: Mesh, poses: np.ndarray) -> dict[str, float]:
    return {"chamfer": float(np.mean([chamfer(mesh.vertices, x) for x in poses])) / mesh.size}


def screws(mesh: Mesh, poses: np.ndarray, weights: Path) -> dict[str, float]:
    try:
        got = kinematics(mesh, weights)
    except ValueError:
        return {**static(mesh, poses), "refused": 1.0}
    v = len(mesh.vertices)
    body = screw_body(mesh, Weighed(rows=csr_matrix(identity(v)), mass=np.ones(v)), got.piece, got.twists, got.reach)
    made = [got.vertices(inverse.reach_points(body, torch.from_numpy(x), free=False).q[None])[0].numpy() for x in poses]
    far = float(np.mean([chamfer(a, b) for a, b in zip(made, poses, strict=True)])) / mesh.size
    return {"chamfer": far, "refused": 0.0, "coordinates": got.twists.shape[1]}


def field(
    mesh: Mesh, poses: np.ndarray, weights: Path, *, reduced: bool = True, fewest: bool = True, many: int | None = None
) -> dict[str, float]:
    got = field_object(mesh, weights, reduced=reduced, coordinates=many)
    began = time.perf_counter()
    made = nearest(got, poses)
    spent = time.perf_counter() - began
    out = {
        "chamfer": float(np.mean([chamfer(a, b) for a, b in zip(made, poses, strict=True)])) / mesh.size,
        "coordinates": float(got.count),
        "points": float(np.mean([np.linalg.norm(a - b, axis=-1).mean() for a, b in zip(made, poses, strict=True)]))
        / mesh.size,
        "distortion": float(edge_distortion(mesh, got.sampled(SAMPLES, reduced=reduced)).mean()),
        "minimal": float(got.freedom.count is not None),
        "seconds": spent / len(poses),
    }
    if fewest and reduced:
        few = min(FEWEST, got.count)
        less = replace(got, directions=got.directions[:, :few])
        made = nearest(less, poses)
        out["fewest"] = float(np.mean([chamfer(a, b) for a, b in zip(made, poses, strict=True)])) / mesh.size
    return out


def nearest(got: FieldObject, poses: np.ndarray) -> list[np.ndarray]:
    """Vertices at the coordinates that come nearest, from where the encoder guesses them."""
    return [got.vertices(got.reached(x, start=got.coordinates(x[None]))[None])[0].numpy() for x in poses]


def chosen(every: list[Object4D], per_kind: int) -> list[Object4D]:
    """The first so many of every kind."""
    out: dict[str, list[Object4D]] = {}
    for one in every:
        out.setdefault(one.kind, []).append(one)
    return [o for kind in sorted(out) for o in out[kind][:per_kind]]


def measured(
    every: list[Object4D], poses: int, members: dict[str, Callable[[Mesh, np.ndarray], dict[str, float]]]
) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in members}
    for one in every:
        rest, faces = one.shape()
        mesh, goals = Mesh(vertices=rest, faces=faces), one.poses()[:poses].astype(np.float64)
        for name, run in members.items():
            rows[name].append({"kind": one.kind, **run(mesh, goals)})
        print(
            json_module.dumps({"object": one.id, **{n: round(100 * r[-1]["chamfer"], 3) for n, r in rows.items()}}),
            flush=True,
        )
    return {name: {"objects": len(r), **_means(r), "by_kind": _by_kind(r)} for name, r in rows.items()}


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
    keys = [k for k in rows[0] if k != "kind"] if rows else []
    return {k: float(np.mean([r[k] for r in rows if k in r])) for k in keys}


def _by_kind(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        k: float(np.mean([r["chamfer"] for r in rows if r["kind"] == k])) for k in sorted({r["kind"] for r in rows})
    }


def main(
    data: Path,
    full: Path,
    others: tuple[str, ...] = (),
    weights: Path | None = None,
    instances: int = 2,
    categories: int = 8,
    poses: int = 3,
    unreduced: bool = True,
    threads: int = 1,
    json: bool = False,
) -> None:
    """Measure.

    Args:
        data: Data set; its splits test-instance and test-category are measured.
        full: Weights of the field.
        others: Of its ablations, NAME=FILE.
        weights: Of the screws; those of the package without.
        instances: Of every kind of unseen instances.
        categories: Of every kind that was held out.
        poses: Of each object.
        unreduced: Measure the field with all its latents too, which is slow.
        threads: Of torch.
        json: Print the figures as one JSON object at the end, instead of a table.
    """
    torch.set_num_threads(threads)
    members: dict[str, Callable[[Mesh, np.ndarray], dict[str, float]]] = {"static": static}
    own = weights or shipped()
    if own is not None:
        members["screws"] = lambda m, x: screws(m, x, own)
    members["full"] = lambda m, x: field(m, x, full)
    if unreduced:
        members["without reduction"] = lambda m, x: field(m, x, full, reduced=False)
    for name, _, file in (o.partition("=") for o in others):
        if not file:
            raise ValueError(f"--others are NAME=FILE, got {name!r}")
        members[name] = lambda m, x, file=Path(file): field(m, x, file)
    splits = {"test-instance": instances, "test-category": categories}
    out = {s: measured(chosen(read_objects(data, s), many), poses, members) for s, many in splits.items()}
    out = {s: found for s, found in out.items() if found["static"]["objects"]}
    if json:
        print(json_module.dumps(out))
        return
    for split, found in out.items():
        print(f"\n{split}: {found['static']['objects']} objects of {poses} poses; Chamfer, % of the size")
        for name, row in found.items():
            print(
                f"  {name:20s}"
                + "  ".join(
                    f"{k} {100 * v if k in ('chamfer', 'points', 'fewest', 'distortion') else v:.3g}"
                    for k, v in row.items()
                    if isinstance(v, float)
                )
            )


if __name__ == "__main__":
    tyro.cli(main)
