"""An object that moves and bends: its mesh over time, what was measured on the way, and what each coordinate does to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int64

SAMPLES = 17
"""Shapes along each coordinate, ends included."""
TURNED = 1e-4
"""Largest accepted |R R^T - 1| of a turn: float32 passes, a scale does not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ObjectMotion:
    """What a simulation of one object gives: t frames of v vertices, in k coordinates, under m pushes and hands."""

    vertices: Float32[np.ndarray, "t v 3"]
    """In the world, metres."""
    faces: Int64[np.ndarray, "f 3"]
    """Vertex indices, counter-clockwise seen from outside."""
    step: float
    """Seconds between frames."""
    q: Float[np.ndarray, "t k"]
    """Coordinates, in whatever unit they have; a rigid object has none."""
    place: Float[np.ndarray, "t 3"]
    """Origin of the object's frame in the world, metres."""
    turn: Float[np.ndarray, "t 3 3"]
    """Axes of the object's frame in the world."""
    kinetic: Float[np.ndarray, " t"]
    """Joule."""
    potential: Float[np.ndarray, " t"]
    """Of gravity and of elasticity, joule; its zero is arbitrary."""
    work: Float[np.ndarray, " t"]
    """Done by the pushes and hands since the start, joule."""
    momentum: Float[np.ndarray, "t 3"]
    """In the world, kg m/s."""
    penetration: Float[np.ndarray, " t"]
    """How deep the deepest point is in an obstacle, metres; 0 outside."""
    force_at: Float[np.ndarray, "t m 3"]
    """Where each push or hand acts, in the world, metres."""
    force: Float[np.ndarray, "t m 3"]
    """Each push or hand in the world, newton; 0 while it is off."""
    rest: Float32[np.ndarray, "v 3"]
    """Vertices at ``rest_q``, in the object's frame, metres."""
    rest_q: Float[np.ndarray, " k"]
    """Coordinates of ``rest``."""
    reach: Float[np.ndarray, "k 2"]
    """Lowest and highest value of each coordinate."""
    sliders: Float32[np.ndarray, "k s v 3"]
    """Vertices along each coordinate, evenly over ``reach``, the others at ``rest_q``, in the object's frame, metres."""
    obstacle: Float32[np.ndarray, "o 3"] = field(default_factory=lambda: np.zeros((0, 3), np.float32))
    """Vertices of all that stands in its way, in the world, metres."""
    obstacle_faces: Int64[np.ndarray, "g 3"] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """Of ``obstacle``."""
    stopped: str | None = None
    """Why it ended early."""
    flags: tuple[str, ...] = ()
    """What was strange about the input."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: command, seed, version, checkpoint hash."""

    def __post_init__(self) -> None:
        if self.vertices.ndim != 3 or self.sliders.ndim != 4 or self.q.ndim != 2 or self.force.ndim != 3:
            found = {n: list(getattr(self, n).shape) for n in ("vertices", "q", "force", "sliders")}
            raise ValueError(f"vertices are [t,v,3], q [t,k], force [t,m,3] and sliders [k,s,v,3]; got {found}")
        (t, v), k, m, s = self.vertices.shape[:2], self.q.shape[1], self.force.shape[1], self.sliders.shape[1]
        if t < 1 or len(self.faces) < 1:
            raise ValueError(f"a motion needs at least one frame and one triangle, got {t} and {len(self.faces)}")
        sizes: dict[str, tuple[int, ...]] = {
            "vertices": (t, v, 3), "faces": (len(self.faces), 3), "q": (t, k), "place": (t, 3), "turn": (t, 3, 3), "kinetic": (t,),
            "potential": (t,), "work": (t,), "momentum": (t, 3), "penetration": (t,), "force_at": (t, m, 3), "force": (t, m, 3),
            "rest": (v, 3), "rest_q": (k,), "reach": (k, 2), "sliders": (k, s, v, 3),
            "obstacle": (len(self.obstacle), 3), "obstacle_faces": (len(self.obstacle_faces), 3),
        }  # fmt: skip
        single = {
            "vertices": np.float32,
            "rest": np.float32,
            "sliders": np.float32,
            "faces": np.int64,
            "obstacle": np.float32,
            "obstacle_faces": np.int64,
        }
        for name, size in sizes.items():
            array = np.asarray(getattr(self, name), single.get(name, np.float64)).view()
            if array.shape != size:
                raise ValueError(
                    f"{name} must be {list(size)} beside {t} frames of {v} vertices and {k} coordinates, got {list(array.shape)}"
                )
            if len(wrong := np.argwhere(~np.isfinite(array))):
                raise ValueError(f"{name} has a value that is no number, the first at {wrong[0].tolist()} of {list(array.shape)}")  # fmt: skip
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        self._check_values(s)

    def _check_values(self, samples: int) -> None:
        v = self.vertices.shape[1]
        if self.faces.min() < 0 or self.faces.max() >= v:
            raise ValueError(f"triangles are of vertices {self.faces.min()} to {self.faces.max()}, allowed are 0 to {v - 1}")  # fmt: skip
        if len(g := self.obstacle_faces) and (g.min() < 0 or g.max() >= len(self.obstacle)):
            raise ValueError(f"obstacle_faces are of vertices {g.min()} to {g.max()}, allowed are 0 to {len(self.obstacle) - 1}")  # fmt: skip
        if not (np.isfinite(self.step) and self.step > 0):
            raise ValueError(f"step must be positive seconds, got {self.step}")
        error = np.abs(self.turn @ self.turn.swapaxes(1, 2) - np.eye(3)).max()
        if error > TURNED or (np.linalg.det(self.turn) < 0).any():
            raise ValueError(f"turn must be rotations: |R R^T - 1| is {error:.2g}, allowed {TURNED:g}, and no mirror")
        if len(self.reach) and (samples < 2 or not (self.reach[:, 0] < self.reach[:, 1]).all()):
            raise ValueError(f"each coordinate needs two shapes or more and a range that rises, got {samples} over {self.reach.tolist()}")  # fmt: skip
        if (self.penetration < 0).any():
            raise ValueError(f"penetration is a depth and never negative, got {self.penetration.min():g} m")
        try:
            json.dumps(dict(self.about), allow_nan=False)
        except (TypeError, ValueError) as wrong:
            raise ValueError(f"about must be what JSON can say: {wrong}") from None

    def __len__(self) -> int:
        return len(self.vertices)

    @property
    def seconds(self) -> Float[np.ndarray, " t"]:
        """When each frame is."""
        return np.arange(len(self)) * self.step

    @property
    def energy(self) -> Float[np.ndarray, " t"]:
        """Kinetic and potential, joule."""
        return self.kinetic + self.potential


def sweep(rest_q: Float[np.ndarray, " k"], reach: Float[np.ndarray, "k 2"], samples: int = SAMPLES) -> Float[np.ndarray, "k s k"]:  # fmt: skip
    """The coordinates whose shapes are ``ObjectMotion.sliders``: each over its range, the others at rest."""
    k = len(rest_q)
    out = np.broadcast_to(rest_q, (k, samples, k)).astype(np.float64)
    for i in range(k):
        out[i, :, i] = np.linspace(reach[i, 0], reach[i, 1], samples)
    return out


def knots(motion: ObjectMotion) -> tuple[Float[np.ndarray, "k n"], Float32[np.ndarray, "k n v 3"]]:
    """Values of each coordinate, rising, and the shapes there: the samples, and the rest shape between them."""
    k, s, v = motion.sliders.shape[:3]
    at, shapes = np.zeros((k, s + 1)), np.zeros((k, s + 1, v, 3), np.float32)
    for i in range(k):
        own = np.linspace(motion.reach[i, 0], motion.reach[i, 1], s)
        here = int(np.searchsorted(own, motion.rest_q[i]))
        at[i] = np.insert(own, here, motion.rest_q[i])
        shapes[i] = np.insert(motion.sliders[i], here, motion.rest, axis=0)
    return at, shapes


def posed(motion: ObjectMotion, q: Float[np.ndarray, " k"]) -> Float32[np.ndarray, "v 3"]:
    """The mesh at coordinates, in the object's frame: between samples along each, and the displacements of several added up, which is
    exact only where they do not depend on each other."""
    out = motion.rest.copy()
    for value, at, shapes in zip(q, *knots(motion), strict=True):
        out += between(float(value), at, shapes) - motion.rest
    return out


def between(value: float, at: Float[np.ndarray, " n"], shapes: Float32[np.ndarray, "n v 3"]) -> Float32[np.ndarray, "v 3"]:  # fmt: skip
    """The shape at a value of one coordinate; values outside stop at the ends."""
    value = float(np.clip(value, at[0], at[-1]))
    high = int(np.clip(np.searchsorted(at, value), 1, len(at) - 1))
    wide = at[high] - at[high - 1]
    part = np.float32((value - at[high - 1]) / wide if wide > 0 else 0.0)
    return shapes[high - 1] * (1 - part) + shapes[high] * part
