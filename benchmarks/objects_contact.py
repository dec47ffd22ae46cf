"""What contact of objects with a floor and with meshes costs: how deep they go in, and energy that comes from nowhere.

    python benchmarks/objects_contact.py --json

Each scene is passive: nothing pushes. ``penetration`` is of all vertices and all points that may touch, in all frames, of the object's size;
``penetration_back`` is of points all over the obstacle in the moving mesh, which the simulation does not look at: its edges pass between the points of
the object. ``gained`` is the most energy that came from nowhere, of the largest that went to and fro. Times are per step on one thread.
"""

from __future__ import annotations

import json as json_module
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import trimesh
import tyro

from kinema4d.geometry.deforming import ObjectMotion
from kinema4d.objects.fit import Fitted
from kinema4d.objects.obstacle import Obstacle, around
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.solid import Mesh, parts, quadrature
from kinema4d.simulate.object_wish import Wish
from kinema4d.simulate.objects import simulate_object

EVERY = 5
"""Frames between those in which obstacles are looked for inside the object."""
POINTS = 20_000
"""Of an obstacle's surface for that."""


def contact() -> dict[str, dict[str, float]]:
    """Scene to what was measured."""
    tilted = _moved(trimesh.creation.box([0.2, 0.1, 0.05]), 0.4, (0, 0, 0.3), about=(1, 0.4, 0.2))
    fall = Wish(free=True, seconds=1.0, friction=0.3)
    scenes: dict[str, Callable[[], tuple[Fitted, Wish, list[trimesh.Trimesh]]]] = {
        "box on floor": lambda: (_rigid(tilted), Wish(free=True, seconds=1.0, friction=0.3, ground=0.0), []),
        "box on slope mesh": lambda: (_rigid(tilted), fall, [_moved(trimesh.creation.box([2, 2, 0.1]), 0.5, (0, 0, -0.05))]),
        "box on sphere mesh": lambda: (_rigid(tilted), fall, [_moved(trimesh.creation.icosphere(3, 0.2), 0, (0.02, 0.01, -0.05))]),
        "box on ridge mesh": lambda: (_rigid(tilted), fall, [_moved(trimesh.creation.box([0.3, 0.3, 0.3]), math.pi / 4, (0, 0, 0))]),
        "ball on stairs mesh": lambda: (
            _rigid(_moved(trimesh.creation.icosphere(2, 0.08), 0, (0.05, 0.02, 0.45))), fall,
            [_moved(trimesh.creation.box([0.2, 1, 0.1 * (3 - i)]), 0, (0.2 * i, 0, 0.05 * (3 - i))) for i in range(3)],
        ),
        "door into a post mesh": lambda: (
            _door(), Wish(gravity=(0, 0, 0), speed=(3.0,), seconds=1.0), [_moved(trimesh.creation.box([0.06, 0.06, 1.2]), 0.3, (0.3, 0.3, 0))],
        ),
    }  # fmt: skip
    simulate_object(_rigid(tilted), Wish(free=True, seconds=0.02), obstacles=_obstacles([tilted]))  # compiles
    return {name: _measured(*made()) for name, made in scenes.items()}


def _measured(fitted: Fitted, wish: Wish, things: list[trimesh.Trimesh]) -> dict[str, float]:
    obstacles = _obstacles(things)
    began = time.perf_counter()
    motion = simulate_object(fitted, wish, obstacles=obstacles)
    spent = time.perf_counter() - began
    change = motion.energy - motion.energy[0] - motion.work
    went = max(float(np.ptp(v)) for v in (motion.kinetic, motion.potential, motion.work))
    size = fitted.mesh.size
    out = {
        "penetration": float(motion.penetration.max()) / size,
        "gained": float(change.max()) / went,
        "lost": float(-change[-1]) / went,
        "milliseconds_per_step": 1000 * spent / len(motion),
        "stopped": float(motion.stopped is not None),
    }
    if things:
        out["penetration_back"] = _back(motion, things) / size
    return out


def _back(motion: ObjectMotion, things: list[trimesh.Trimesh]) -> float:
    """How deep obstacles are in the moving mesh at most, metres."""
    points = torch.from_numpy(np.concatenate([np.concatenate([t.vertices, trimesh.sample.sample_surface(t, POINTS, seed=0)[0], trimesh.sample.sample_surface(_edges(t), POINTS, seed=0)[0]]) for t in things]))  # fmt: skip
    whole, most = Mesh(vertices=motion.rest.astype(np.float64), faces=motion.faces), 0.0
    whose = parts(whole)[whole.faces[:, 0]]
    moves = np.linalg.norm(motion.vertices - motion.vertices[0], axis=-1).max(axis=0) > 1e-6
    mine = [p for p in range(whose.max() + 1) if moves[whole.faces[whose == p]].all()]
    faces = whole.faces[np.isin(whose, mine)]
    used, flat = np.unique(faces, return_inverse=True)
    for frame in range(0, len(motion), EVERY):
        body = Mesh(vertices=motion.vertices[frame][used].astype(np.float64), faces=flat.reshape(-1, 3))
        most = max(most, float(-around(body, limit=0.0)(points)[0].min()))
    return max(most, 0.0)


def _edges(made: trimesh.Trimesh) -> trimesh.Trimesh:
    """Sharp edges as triangles next to no wide, so that points of them are drawn as of a surface."""
    sharp = made.face_adjacency_edges[made.face_adjacency_angles > 0.3]
    if not len(sharp):
        return made
    a, b = made.vertices[sharp].swapaxes(0, 1)
    v = np.concatenate([a, b, b + 1e-9])
    n = len(a)
    return trimesh.Trimesh(vertices=v, faces=np.stack([np.arange(n), np.arange(n) + n, np.arange(n) + 2 * n], 1), process=False)  # fmt: skip


def _obstacles(things: Sequence[trimesh.Trimesh]) -> list[Obstacle]:
    return [Obstacle(name=f"thing {i}", mesh=_mesh(t)) for i, t in enumerate(things)]


def _mesh(made: Any) -> Mesh:
    return Mesh(vertices=np.asarray(made.vertices, np.float64), faces=np.asarray(made.faces, np.int64))


def _moved(made: trimesh.Trimesh, angle: float, shift: Sequence[float], about: Sequence[float] = (1, 0, 0)) -> trimesh.Trimesh:  # fmt: skip
    out = made.copy()
    out.apply_transform(trimesh.transformations.rotation_matrix(angle, about))
    out.apply_translation(shift)
    return out


def _rigid(made: trimesh.Trimesh) -> Fitted:
    own = _mesh(made)
    return Fitted(
        mesh=own, weighed=quadrature(own), piece=np.zeros(len(own.vertices), np.int64), twists=np.zeros((1, 0, 6)), reach=np.zeros((0, 2)),
        freedom=Freedom(count=0, errors=(0.0,), ratios=(), why="rigid"), errors=np.zeros(0),
    )  # fmt: skip


def _door() -> Fitted:
    """A leaf on a post, on a hinge about z."""
    leaf = _moved(trimesh.creation.box([0.5, 0.04, 0.9]), 0, (0.3, 0, 0))
    own = _mesh(trimesh.util.concatenate([trimesh.creation.box([0.1, 0.1, 1.0]), leaf]))
    twists = np.zeros((2, 1, 6))
    twists[1, 0, 2] = 1.0
    return Fitted(
        mesh=own, weighed=quadrature(own), piece=np.repeat([0, 1], 8), twists=twists, reach=np.array([[-1.5, 1.5]]),
        freedom=Freedom(count=1, errors=(1e-5,), ratios=(), why="one hinge"), errors=np.array([1e-5]),
    )  # fmt: skip


def main(*, json: bool = False) -> None:
    """Measure.

    Args:
        json: Print one JSON object instead of text.
    """
    torch.set_num_threads(1)
    found = contact()
    if json:
        print(json_module.dumps(found, indent=1))
        return
    for name, values in found.items():
        print(f"{name:24s} " + ", ".join(f"{k} {v:.3g}" for k, v in values.items()))


if __name__ == "__main__":
    tyro.cli(main)
