"""Rigid boxes and a door, and meshes to throw them at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import trimesh

from kinema4d.geometry.deforming import ObjectMotion
from kinema4d.objects.fit import Fitted
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.solid import Mesh, quadrature


def mesh(made: Any) -> Mesh:
    return Mesh(vertices=np.asarray(made.vertices, np.float64), faces=np.asarray(made.faces, np.int64))


def box(x: float, y: float, z: float) -> trimesh.Trimesh:
    return trimesh.creation.box([x, y, z])


def turned(made: trimesh.Trimesh, angle: float, shift: Sequence[float] | np.ndarray, about: Sequence[float] = (1, 0, 0)) -> trimesh.Trimesh:  # fmt: skip
    """Turned about an axis through the origin, and then moved."""
    out = made.copy()
    out.apply_transform(trimesh.transformations.rotation_matrix(angle, about))
    out.apply_translation(shift)
    return out


def rigid(made: trimesh.Trimesh) -> Fitted:
    """A thing without coordinates of its own."""
    own = mesh(made)
    return Fitted(
        mesh=own, weighed=quadrature(own), piece=np.zeros(len(own.vertices), np.int64), twists=np.zeros((1, 0, 6)), reach=np.zeros((0, 2)),
        freedom=Freedom(count=0, errors=(0.0,), ratios=(), why="rigid"), errors=np.zeros(0),
    )  # fmt: skip


def door() -> Fitted:
    """A leaf on a post, on a hinge about z at the origin."""
    own = mesh(trimesh.util.concatenate([box(0.1, 0.1, 1.0), turned(box(0.5, 0.04, 0.9), 0.0, (0.3, 0, 0))]))
    twists = np.zeros((2, 1, 6))
    twists[1, 0, 2] = 1.0
    return Fitted(
        mesh=own, weighed=quadrature(own), piece=np.repeat([0, 1], 8), twists=twists, reach=np.array([[-1.5, 1.5]]),
        freedom=Freedom(count=1, errors=(1e-5,), ratios=(), why="one hinge"), errors=np.array([1e-5]),
    )  # fmt: skip


def gained(motion: ObjectMotion) -> float:
    """Energy that came from nowhere, of the largest that went to and fro."""
    change = motion.energy - motion.energy[0] - motion.work
    went = max(float(np.ptp(v)) for v in (motion.kinetic, motion.potential, motion.work))
    return float(change.max()) / max(went, 1e-9)
