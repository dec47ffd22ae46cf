"""Objects that bend: elastic bodies, cloth, ropes, rigid ones and mixtures. MuJoCo moves them, one surface mesh shows them.

Every mesh vertex follows MuJoCo's bodies or a node of its flex, so every pose has the same topology. Nothing collides. What each kind
looks like is in :mod:`kinema4d.scenes.soft_kinds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from kinema4d.scenes.physics import mujoco_module

EARTH = (0.0, 0.0, -9.81)
"""Gravity, metres per second squared."""
CATEGORIES = ("elastic", "cloth", "rope", "rigid", "mixed")
"""What an object can be made of; ``articulated`` ones are in :mod:`kinema4d.scenes.jointed`."""
TRIES = 40
"""Runs per wanted run before poses are given up."""
Vector = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """Some vertices of the mesh, and what they follow."""

    faces: Int64[np.ndarray, "f 3"]
    """Of these vertices, counted from 0, counter-clockwise from outside."""
    nodes: Int64[np.ndarray, " v"] | None = None
    """Flex nodes that the vertices are; None: they follow bodies."""
    bodies: tuple[tuple[str, str], ...] = ()
    """Two bodies per vertex; it is halfway between where each would carry it."""
    local: Float64[np.ndarray, "v 2 3"] | None = None
    """Metres in the frames of the two bodies."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Soft:
    """An object."""

    name: str
    """Of its kind."""
    category: str
    """One of ``CATEGORIES``."""
    xml: str
    """For MuJoCo."""
    pieces: tuple[Piece, ...]
    """Of its mesh, one after the other."""
    pinned: Int64[np.ndarray, " k"]
    """Vertices that never move."""
    limits: dict[str, tuple[float, float]]
    """Joints that have an end, radians; MuJoCo knows nothing of them."""
    material: dict[str, float]
    """Young's modulus in Pa, density in kg per cubic metre and the like: for judges only."""
    vertices: Float64[np.ndarray, "v 3"] = field(init=False)
    """At rest, metres in the world."""
    faces: Int64[np.ndarray, "f 3"] = field(init=False)
    """Of all pieces."""
    freedom: int = field(init=False)
    """MuJoCo's degrees of freedom."""
    _model: Any = field(init=False, repr=False)
    _skin: _Skin = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"unknown category {self.category!r} of {self.name}; known are {', '.join(CATEGORIES)}")
        mujoco = mujoco_module()
        model = mujoco.MjModel.from_xml_string(self.xml)
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "_skin", _skin(model, self.pieces))
        sizes = [len(p.bodies) if p.nodes is None else len(p.nodes) for p in self.pieces]
        starts = np.cumsum([0, *sizes[:-1]])
        faces = np.concatenate([p.faces + s for p, s in zip(self.pieces, starts, strict=True)])
        object.__setattr__(self, "faces", faces.astype(np.int64))
        object.__setattr__(self, "freedom", int(model.nv))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        object.__setattr__(self, "vertices", self.seen(data))

    @property
    def rigid(self) -> Int64[np.ndarray, " v"]:
        """Body that carries each vertex alone; -1 where it is soft."""
        one = (self._skin.nodes < 0) & (self._skin.bodies[:, 0] == self._skin.bodies[:, 1])
        return np.where(one, self._skin.bodies[:, 0], -1)

    @property
    def size(self) -> float:
        """Diagonal of its box at rest, metres."""
        return float(np.linalg.norm(np.ptp(self.vertices, axis=0)))

    def seen(self, data: Any) -> Float64[np.ndarray, "v 3"]:
        """Vertices in a state of MuJoCo's."""
        skin = self._skin
        turned = np.einsum("vkij,vkj->vki", data.xmat.reshape(-1, 3, 3)[skin.bodies], skin.local)
        out = (turned + data.xpos[skin.bodies]).mean(axis=1)
        soft = skin.nodes >= 0
        out[soft] = data.flexvert_xpos[skin.nodes[soft]]
        return out


@dataclass(frozen=True, kw_only=True, eq=False)
class _Skin:
    """All pieces, in MuJoCo's numbers."""

    bodies: Int64[np.ndarray, "v 2"]
    local: Float64[np.ndarray, "v 2 3"]
    nodes: Int64[np.ndarray, " v"]


def _skin(model: Any, pieces: tuple[Piece, ...]) -> _Skin:
    bodies, local, nodes = [], [], []
    for piece in pieces:
        if piece.nodes is not None:
            count = len(piece.nodes)
            bodies.append(np.zeros((count, 2), np.int64))
            local.append(np.zeros((count, 2, 3)))
            nodes.append(piece.nodes)
        else:
            assert piece.local is not None
            assert len(piece.local) == len(piece.bodies)
            bodies.append(np.array([[model.body(name).id for name in pair] for pair in piece.bodies], np.int64))
            local.append(piece.local)
            nodes.append(np.full(len(piece.bodies), -1, np.int64))
    return _Skin(bodies=np.concatenate(bodies), local=np.concatenate(local), nodes=np.concatenate(nodes))


@dataclass(frozen=True, kw_only=True)
class Start:
    """What sets an object going. The same start gives the same run."""

    seed: int = 0
    """Of the directions."""
    stir: float = 1.0
    """Starting speed, about so many metres (or three radians) per second."""
    push: float = 0.0
    """Acceleration of a push somewhere, over the first half of a run, metres per second squared."""
    gravity: Vector = EARTH
    """Metres per second squared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """An object in motion."""

    vertices: Float64[np.ndarray, "t v 3"]
    """Metres in the world. Shorter than asked where a joint came to its end."""
    q: Float64[np.ndarray, " q"]
    """MuJoCo's positions at the start."""
    speed: Float64[np.ndarray, " d"]
    """MuJoCo's speeds at the start."""


def run(thing: Soft, start: Start, *, seconds: float, every: float = 0.01) -> Run:
    """Let it move from rest shape and random speeds, and look at it from time to time."""
    mujoco, model = mujoco_module(), thing._model
    if seconds <= 0 or every < model.opt.timestep:
        raise ValueError(
            f"seconds must be above 0 and every at least {model.opt.timestep:g}, got {seconds} and {every}"
        )
    rng = np.random.default_rng([start.seed, 17])
    data = mujoco.MjData(model)
    model.opt.gravity[:] = start.gravity
    mujoco.mj_forward(model, data)
    data.qvel[:] = _stirred(thing, data, start.stir, rng)
    q, speed = data.qpos.copy(), data.qvel.copy()
    at, toward = thing.vertices[rng.integers(len(thing.vertices))], rng.normal(size=3)
    near = np.exp(-(((data.xipos - at) / (0.4 * thing.size)) ** 2).sum(axis=1) / 2)
    force = start.push * (near * model.body_mass)[:, None] * toward / np.linalg.norm(toward)
    frames, count = [thing.seen(data)], round(seconds / every)
    for frame in range(count):
        data.xfrc_applied[:, :3] = force if frame < count / 2 else 0.0
        mujoco.mj_step(model, data, round(every / model.opt.timestep))
        # MuJoCo only warns of a blow-up and starts again from rest.
        if not np.isfinite(data.qpos).all() or any(data.warning[i].number for i in _blown(mujoco)):
            raise ValueError(f"MuJoCo lost {thing.name} within {(frame + 1) * every:.2f} s: it blew up")
        if any(not low <= data.joint(name).qpos[0] <= high for name, (low, high) in thing.limits.items()):
            break
        mujoco.mj_kinematics(model, data)
        mujoco.mj_flex(model, data)
        frames.append(thing.seen(data))
    return Run(vertices=np.stack(frames), q=q, speed=speed)


def _blown(mujoco: Any) -> tuple[int, ...]:
    kinds = mujoco.mjtWarning
    return int(kinds.mjWARN_BADQPOS), int(kinds.mjWARN_BADQVEL), int(kinds.mjWARN_BADQACC)


def _stirred(thing: Soft, data: Any, stir: float, rng: np.random.Generator) -> Float64[np.ndarray, " d"]:
    """Starting speeds: a smooth field for the nodes of a flex, by chance for joints, a throw for what is free."""
    model = thing._model
    out = (
        rng.normal(size=model.nv) * 3.0 * stir / max(1, model.njnt / 4 if model.nflex == 0 else 1) ** 0.5
    )  # those of a chain add up
    shift, shear = rng.normal(size=3) * 0.6, rng.normal(size=(3, 3)) * 0.6
    if thing.category == "rigid":  # thrown up, so that it stays around for a second
        out[:3] = stir * rng.uniform([-0.5, -0.5, 3.0], [0.5, 0.5, 5.0])
    if model.nflex == 0:
        return out
    x = data.flexvert_xpos
    still = model.body_dofnum[model.flex_vertbodyid] == 0
    far = (
        np.linalg.norm(x[:, None] - x[None, still], axis=2).min(axis=1) if still.any() else np.full(len(x), thing.size)
    )
    way = stir * np.minimum(1.0, 2 * far / thing.size)[:, None] * (shift + (x - x.mean(axis=0)) / thing.size @ shear)
    for node in np.flatnonzero(~still & (model.body_dofnum[model.flex_vertbodyid] == 3)):
        first = model.body_dofadr[model.flex_vertbodyid[node]]
        out[first : first + 3] = way[node]
    return out


def some_poses(thing: Soft, count: int, seed: int = 0, *, each: int = 8, apart: float = 0.08) -> Float64[np.ndarray, "p v 3"]:  # fmt: skip
    """Poses from several runs with different speeds, pushes and directions of gravity: ``each`` per run, ``apart`` seconds apart."""
    if count < 1 or each < 1:
        raise ValueError(f"count and each must be at least 1, got {count} and {each}")
    if thing.category == "rigid":
        return _thrown_about(thing, count, seed)
    found: list[np.ndarray] = []
    rng = np.random.default_rng([seed, 23])
    for number in range(TRIES * -(-count // each)):
        down = rng.normal(size=3)
        down *= 9.81 / np.linalg.norm(down)
        start = Start(
            seed=seed * 1_000_003 + number, stir=rng.uniform(0.0, 1.2), push=rng.uniform(0.0, 15.0),
            gravity=(float(down[0]), float(down[1]), float(down[2])),
        )  # fmt: skip
        found += list(run(thing, start, seconds=each * apart, every=apart).vertices[1:])
        if len(found) >= count:
            return np.stack(found[:count])
    raise ValueError(f"{thing.name}: only {len(found)} of {count} poses within the limits of its joints")


def _thrown_about(thing: Soft, count: int, seed: int) -> Float64[np.ndarray, "p v 3"]:
    """A rigid body, turned and moved evenly."""
    mujoco, rng = mujoco_module(), np.random.default_rng([seed, 29])
    data, out = mujoco.MjData(thing._model), []
    for _ in range(count):
        data.qpos[:3], data.qpos[3:] = rng.uniform(-0.3, 0.3, 3), rng.normal(size=4)
        mujoco.mj_kinematics(thing._model, data)  # makes the quaternion one
        out.append(thing.seen(data))
    return np.stack(out)
