"""Jointed objects, drawn by chance: doors, drawers, lamps, wheels, ... MuJoCo moves them, a mesh shows them. Where their joints are can be seen.

Each is a tree of solid parts on hinges and slides that stands on something fixed. The mesh is that of the parts, vertex by vertex, so that
every pose has the same topology.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trimesh
from jaxtyping import Float64, Int64

from kinema4d.scenes.physics import mujoco_module
from kinema4d.scenes.weld import connect

DENSITY = 1000.0
"""kg per cubic metre, of every part."""
Vector = tuple[float, float, float]
RODS = ("rod-x", "rod-y", "rod")
"""Kinds of rods by the axis that they lie along."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A body of boxes and rods."""

    solids: tuple[tuple[str, Vector, Vector], ...]
    """Kind (``box`` with half sides; ``rod`` along z, ``rod-x``, ``rod-y`` with radius and half length), size, and middle in the part's frame,
    metres."""
    at: Vector = (0.0, 0.0, 0.0)
    """Its frame in that of the part it hangs on."""
    on: int | None = None
    """Which part that is; None: it is fixed."""
    joint: str | None = None
    """``hinge`` or ``slide``; None for what is fixed."""
    axis: Vector = (0.0, 0.0, 1.0)
    """Of the joint, through the part's origin."""
    limits: tuple[float, float] = (-1.0, 1.0)
    """Radians or metres from where it is drawn."""
    welded: bool = False
    """Whether its boxes are one surface where they touch, which then comes first, as real things are made; otherwise each is one by itself."""

    @property
    def apart(self) -> tuple[tuple[str, Vector, Vector], ...]:
        """Solids that do not overlap where it is welded, for MuJoCo to weigh."""
        one = connect(self.solids) if self.welded else None
        if one is None:
            return self.solids
        cells = [("box", (h[0], h[1], h[2]), (m[0], m[1], m[2])) for h, m in zip(one.half.tolist(), one.middle.tolist(), strict=True)]  # fmt: skip
        return (*cells, *self._others())

    def _others(self) -> list[tuple[str, Vector, Vector]]:
        """Solids that are not of the one surface."""
        return [solid for solid in self.solids if solid[0] != "box"]

    def shapes(self) -> list[tuple[Float64[np.ndarray, "v 3"], Int64[np.ndarray, "f 3"]]]:
        """Vertices in its frame, and triangles, of each surface."""
        one = connect(self.solids) if self.welded else None
        out = [] if one is None else [(one.vertices, one.faces)]
        for kind, size, middle in self.solids if one is None else self._others():
            shape = trimesh.creation.box([2 * s for s in size]) if kind == "box" else trimesh.creation.cylinder(size[0], 2 * size[1], sections=10)  # fmt: skip
            own = np.asarray(shape.vertices)
            if kind in RODS:
                own = np.roll(own, RODS.index(kind) + 1, axis=1)  # along z it is made
            out.append((own + middle, np.asarray(shape.faces, np.int64)))
        return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Jointed:
    """An object."""

    name: str
    """Of its kind."""
    parts: tuple[Part, ...]
    """Those that others hang on come first."""
    vertices: Float64[np.ndarray, "v 3"] = field(init=False)
    """Each in the frame of its part."""
    faces: Int64[np.ndarray, "f 3"] = field(init=False)
    """Of all parts."""
    part_of: Int64[np.ndarray, " v"] = field(init=False)
    """Whose a vertex is."""

    def __post_init__(self) -> None:
        every, faces, whose, count = [], [], [], 0
        for i, part in enumerate(self.parts):
            for own, triangles in part.shapes():
                every.append(own)
                faces.append(triangles + count)
                whose.append(np.full(len(own), i))
                count += len(own)
        object.__setattr__(self, "vertices", np.concatenate(every).astype(np.float64))
        object.__setattr__(self, "faces", np.concatenate(faces).astype(np.int64))
        object.__setattr__(self, "part_of", np.concatenate(whose).astype(np.int64))

    @property
    def freedom(self) -> int:
        """Joints."""
        return sum(p.joint is not None for p in self.parts)

    @property
    def limits(self) -> Float64[np.ndarray, "j 2"]:
        """Of the joints."""
        return np.array([p.limits for p in self.parts if p.joint is not None])

    def posed(self, q: Float64[np.ndarray, "*b j"]) -> Float64[np.ndarray, "*b v 3"]:
        """Vertices for joint positions."""
        flat = q.reshape(-1, self.freedom)
        out = np.zeros((len(flat), *self.vertices.shape))
        Ts: list[np.ndarray] = []
        n = 0
        for i, part in enumerate(self.parts):
            T = np.tile(np.eye(4), (len(flat), 1, 1))
            T[:, :3, 3] = part.at
            if part.joint is not None:
                T = T @ _moved(part, flat[:, n])
                n += 1
            Ts.append(T if part.on is None else Ts[part.on] @ T)
            mine = self.part_of == i
            out[:, mine] = self.vertices[mine] @ np.swapaxes(Ts[-1][:, :3, :3], 1, 2) + Ts[-1][:, None, :3, 3]
        return out.reshape(*q.shape[:-1], *self.vertices.shape)

    def xml(self, *, step: float = 0.001) -> str:
        """For MuJoCo: no contacts, no damping, the same masses."""

        def body(i: int) -> str:
            part = self.parts[i]
            solids = "".join(
                f'<geom type="{"box" if kind == "box" else "cylinder"}" size="{_text(size if kind == "box" else size[:2])}" pos="{_text(middle)}" density="{DENSITY}"{_along(kind)}/>'
                for kind, size, middle in part.apart
            )
            joint = "" if part.joint is None else f'<joint type="{part.joint}" axis="{_text(part.axis)}"/>'
            inner = "".join(body(j) for j, p in enumerate(self.parts) if p.on == i)
            return f'<body pos="{_text(part.at)}">{joint}{solids}{inner}</body>'

        roots = "".join(body(i) for i, p in enumerate(self.parts) if p.on is None)
        return (
            f'<mujoco><option timestep="{step}" integrator="RK4"><flag contact="disable" energy="enable"/></option>'
            f"<worldbody>{roots}</worldbody></mujoco>"
        )


def _along(kind: str) -> str:
    """Of a rod, for MuJoCo."""
    return f' zaxis="{_text(np.eye(3)[RODS.index(kind)])}"' if kind in RODS else ""


def _text(values: Any) -> str:
    return " ".join(f"{v:.9g}" for v in values)


def _moved(part: Part, q: Float64[np.ndarray, " b"]) -> Float64[np.ndarray, "b 4 4"]:
    """Of its joint."""
    axis = np.array(part.axis) / np.linalg.norm(part.axis)
    T = np.tile(np.eye(4), (len(q), 1, 1))
    if part.joint == "slide":
        T[:, :3, 3] = q[:, None] * axis
        return T
    x, y, z = axis
    K = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    T[:, :3, :3] += np.sin(q)[:, None, None] * K + (1 - np.cos(q))[:, None, None] * (K @ K)
    return T


def swing(
    thing: Jointed, q: np.ndarray, speed: np.ndarray, *, seconds: float, every: float = 0.01, gravity: Vector = (0.0, 0.0, -9.81)
) -> Float64[np.ndarray, "t j"]:  # fmt: skip
    """Joint positions while it moves freely under gravity (m/s^2), by MuJoCo."""
    mujoco = mujoco_module()
    model = mujoco.MjModel.from_xml_string(thing.xml())
    model.opt.gravity[:] = gravity
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = q, speed
    out = [data.qpos.copy()]
    for _ in range(round(seconds / every)):
        mujoco.mj_step(model, data, round(every / model.opt.timestep))
        if not np.isfinite(data.qpos).all():
            raise ValueError(f"MuJoCo lost {thing.name}: positions are no numbers any more")
        out.append(data.qpos.copy())
    return np.array(out)


# ---------------------------------------------------------------------- kinds


def door(rng: np.random.Generator) -> Jointed:
    """A leaf in a frame, with a handle."""
    w, h, d = rng.uniform(0.3, 0.5), rng.uniform(0.5, 0.9), rng.uniform(0.015, 0.03)
    post = 0.03
    frame = Part(solids=(("box", (post, post, h / 2 + post), (-post, 0, h / 2)), ("box", (post, post, h / 2 + post), (w + post + 0.01, 0, h / 2)), ("box", (w / 2, post, post), (w / 2, 0, h + post))))  # fmt: skip
    grip = rng.uniform(0.03, 0.06)
    leaf = Part(
        on=0, joint="hinge", axis=(0, 0, 1), at=(0.005, 0, 0), limits=(-1.6, 1.6),
        solids=(("box", (w / 2, d / 2, h / 2 - 0.01), (w / 2, 0, h / 2)), ("rod", (0.01, grip, 0), (0.85 * w, -d, h / 2))),
    )  # fmt: skip
    return Jointed(name="door", parts=(frame, leaf))


def drawers(rng: np.random.Generator) -> Jointed:
    """A chest of one to three drawers."""
    w, d, h, many = rng.uniform(0.3, 0.5), rng.uniform(0.3, 0.4), rng.uniform(0.12, 0.2), int(rng.integers(1, 4))
    t = 0.012
    walls = [("box", (t, d / 2, many * h / 2 + t), (side * (w / 2 + t), 0.0, many * h / 2)) for side in (-1, 1)]
    walls.append(("box", (w / 2, t, many * h / 2), (0, d / 2, many * h / 2)))
    out = [Part(solids=tuple(walls))]
    for i in range(many):
        tray = (("box", (w / 2 - 0.01, d / 2 - 0.02, t / 2), (0, 0, t)), ("box", (w / 2 - 0.005, t / 2, h / 2 - 0.01), (0, -d / 2, h / 2)), ("rod", (0.008, 0.02, 0), (0, -d / 2 - 0.02, h / 2)))  # fmt: skip
        out.append(Part(solids=tray, on=0, joint="slide", axis=(0, -1, 0), at=(0, 0, i * h), limits=(0, 0.8 * d)))
    return Jointed(name="drawers", parts=tuple(out))


def laptop(rng: np.random.Generator) -> Jointed:
    """A lid on a base."""
    w, d, t = rng.uniform(0.25, 0.4), rng.uniform(0.18, 0.28), rng.uniform(0.008, 0.02)
    base = Part(solids=(("box", (w / 2, d / 2, t / 2), (0, 0, t / 2)),))
    lid = Part(
        on=0, joint="hinge", axis=(1, 0, 0), at=(0, d / 2, t), limits=(-1.5, 1.2),
        solids=(("box", (w / 2, t / 4, d / 2 - 0.005), (0, 0, d / 2)),),
    )  # fmt: skip
    return Jointed(name="laptop", parts=(base, lid))


def scissors(rng: np.random.Generator) -> Jointed:
    """Two blades on one pin, of which one is held; their handles end in discs beside each other."""
    a, b, t = rng.uniform(0.1, 0.16), rng.uniform(0.06, 0.1), rng.uniform(0.006, 0.012)
    blade = lambda sign: (("box", (t, t / 2, a / 2), (0, sign * t / 2, a / 2)), ("rod-y", (0.02, t / 2, 0), (sign * 0.022, sign * t / 2, -b)), ("box", (t, t / 2, b / 2), (0, sign * t / 2, -b / 2)))  # fmt: skip  # noqa: E731
    held = Part(solids=blade(1))
    free = Part(solids=blade(-1), on=0, joint="hinge", axis=(0, 1, 0), limits=(-0.2, 1.4))
    return Jointed(name="scissors", parts=(held, free))


def lamp(rng: np.random.Generator) -> Jointed:
    """A foot, flat arms and a head, all on hinges through the flat sides."""
    many, w = int(rng.integers(2, 4)), rng.uniform(0.01, 0.018)
    parts = [Part(solids=(("rod", (0.08, 0.01, 0), (0, 0, 0.01)), ("box", (w, w / 3, 0.05), (0, 0, 0.06))))]
    height = 0.11
    for i in range(many):
        last = i == many - 1
        long = rng.uniform(0.06, 0.1) if last else rng.uniform(0.15, 0.3)
        solid = (
            ("box", (0.04, w, long / 2), (0, 0, long / 2)) if last else ("box", (w, w / 3, long / 2), (0, 0, long / 2))
        )
        limits = (-1.0, 1.0) if i == 0 else (-1.3, 1.3)
        parts.append(Part(solids=(solid,), on=i, joint="hinge", axis=(0, 1, 0), at=(0, 0, height), limits=limits))
        height = long
    return Jointed(name="lamp", parts=tuple(parts))


def faucet(rng: np.random.Generator) -> Jointed:
    """A spout with one or two handles on posts."""
    many, r = int(rng.integers(1, 3)), rng.uniform(0.015, 0.025)
    tall, out = rng.uniform(0.15, 0.25), rng.uniform(0.1, 0.18)
    body = (("rod", (r, tall / 2, 0), (0, 0, tall / 2)), ("box", (r * 0.8, out / 2, r * 0.8), (0, -out / 2, tall)), ("box", (0.12, 0.02, 0.01), (0, 0, 0.01)))  # fmt: skip
    parts = [Part(solids=body)]
    for i in range(many):
        side = (1, -1)[i] if many == 2 else 1
        long = rng.uniform(0.05, 0.09)
        handle = (("box", (long / 2, 0.008, 0.006), (side * long / 2, 0, 0.02)), ("rod", (0.012, 0.02, 0), (0, 0, 0.01)))  # fmt: skip
        parts.append(
            Part(solids=handle, on=0, joint="hinge", axis=(0.0, 0.0, 1.0), at=(side * 0.09, 0, 0.03), limits=(-1.2, 1.2))
        )  # fmt: skip
    return Jointed(name="faucet", parts=tuple(parts))


def chain(rng: np.random.Generator) -> Jointed:
    """Two or three flat links that hang from a hook and turn about the flat sides."""
    many, w = int(rng.integers(2, 4)), rng.uniform(0.02, 0.04)
    parts = [Part(solids=(("box", (0.05, 0.05, 0.01), (0, 0, 0.01)),))]
    down = 0.0
    for i in range(many):
        long = rng.uniform(0.15, 0.35)
        parts.append(
            Part(solids=(("box", (w / 2, w / 6, long / 2), (0, 0, -long / 2)),), on=i, joint="hinge", axis=(0, 1, 0), at=(0, 0, down), limits=(-1.4, 1.4))
        )  # fmt: skip
        down = -long
    return Jointed(name="chain", parts=tuple(parts))


def cabinet(rng: np.random.Generator) -> Jointed:
    """A box with two leaves that open to both sides."""
    w, d, h, t = rng.uniform(0.25, 0.4), rng.uniform(0.12, 0.25), rng.uniform(0.3, 0.6), 0.01
    walls = [("box", (t, d / 2, h / 2), (side * w, 0.0, h / 2)) for side in (-1, 1)]
    walls += [("box", (w, d / 2, t), (0, 0, z)) for z in (0.0, h)] + [("box", (w, t, h / 2), (0, d / 2, h / 2))]
    parts = [Part(solids=tuple(walls))]
    for side in (-1, 1):
        leaf = (("box", (w / 2 - 0.005, t, h / 2 - 0.01), (-side * w / 2, 0, h / 2)), ("rod", (0.01, 0.05, 0), (-side * 0.85 * w, -0.025, h / 2)))  # fmt: skip
        limits = (-1.6, 0.0) if side < 0 else (0.0, 1.6)
        parts.append(Part(solids=leaf, on=0, joint="hinge", at=(side * w, -d / 2 - 0.015, 0), limits=limits))
    return Jointed(name="cabinet", parts=tuple(parts))


def chest(rng: np.random.Generator) -> Jointed:
    """An open box with a lid on its back edge."""
    w, d, h, t = rng.uniform(0.12, 0.3), rng.uniform(0.1, 0.2), rng.uniform(0.08, 0.2), 0.008
    walls = [("box", (w, d, t), (0.0, 0.0, 0.0))]
    walls += [("box", (t, d, h / 2), (side * w, 0.0, h / 2)) for side in (-1, 1)]
    walls += [("box", (w, t, h / 2), (0.0, side * d, h / 2)) for side in (-1, 1)]
    lid = (("box", (w, d, t), (0, -d, t)), ("box", (0.03, 0.01, 0.01), (0, -2 * d - 0.01, t)))
    parts = (Part(solids=tuple(walls)), Part(solids=lid, on=0, joint="hinge", axis=(-1, 0, 0), at=(0, d, h), limits=(0.0, 1.9)))  # fmt: skip
    return Jointed(name="chest", parts=parts)


def window(rng: np.random.Generator) -> Jointed:
    """A frame with one or two sashes that slide up or aside."""
    w, h, t, many = rng.uniform(0.3, 0.5), rng.uniform(0.4, 0.7), 0.02, int(rng.integers(1, 3))
    frame = [("box", (t, t, h / 2 + t), (side * w / 2, 0.0, h / 2)) for side in (-1, 1)]
    frame += [("box", (w / 2, t, t), (0.0, 0.0, z)) for z in (0.0, h)]
    up = bool(rng.random() < 0.5)
    parts = [Part(solids=tuple(frame))]
    for i in range(many):
        half = (w / 2 - t, 0.006, h / 4) if up else (w / 4, 0.006, h / 2 - t)
        at = (0.0, 0.015 * i, h / 4 + 0.5 * i * h) if up else (-w / 4 + 0.5 * i * w, 0.015 * i, h / 2)
        way, far = ((0, 0, 1), h / 2) if up else ((1, 0, 0), w / 2)
        limits = (-0.9 * far, 0.0) if i else (0.0, 0.9 * far)
        sash = (("box", half, (0, 0, 0)), ("box", (0.03, 0.012, 0.006) if up else (0.006, 0.012, 0.03), (0, -0.015, 0)))
        parts.append(Part(solids=sash, on=0, joint="slide", axis=way, at=at, limits=limits))
    return Jointed(name="window", parts=tuple(parts))


def lever(rng: np.random.Generator) -> Jointed:
    """A flat arm with a knob, on a post, that tilts about the post's flat side."""
    tall, long, w = rng.uniform(0.1, 0.25), rng.uniform(0.12, 0.3), rng.uniform(0.012, 0.02)
    post = (("box", (0.07, 0.05, 0.01), (0, 0, 0)), ("box", (w, w / 3, tall / 2), (0, 0, tall / 2)))
    arm = (("box", (w, w / 3, long / 2), (0, -0.8 * w, long / 2)), ("box", (1.6 * w, w, 1.6 * w), (0, -0.8 * w, long)))
    limits = (-1.0, 1.0)
    return Jointed(name="lever", parts=(Part(solids=post), Part(solids=arm, on=0, joint="hinge", axis=(0, 1, 0), at=(0, 0, tall), limits=limits)))  # fmt: skip


def dial(rng: np.random.Generator) -> Jointed:
    """A panel with one to three knobs, each with a pointer."""
    many, r = int(rng.integers(1, 4)), rng.uniform(0.02, 0.04)
    wide = 3 * r * many
    parts = [Part(solids=(("box", (wide / 2 + r, 2 * r, 0.01), (0, 0, 0)),))]
    for i in range(many):
        knob = (("rod", (r, 0.012, 0), (0, 0, 0.012)), ("box", (r * 0.9, 0.004, 0.008), (r * 0.4, 0, 0.032)))
        at = (3 * r * (i - (many - 1) / 2), 0.0, 0.01)
        parts.append(Part(solids=knob, on=0, joint="hinge", at=at, limits=(-1.5, 1.5)))
    return Jointed(name="dial", parts=tuple(parts))


def wheel(rng: np.random.Generator) -> Jointed:
    """Two to four paddles and a hub between two posts: a mill."""
    long, w, arms = rng.uniform(0.08, 0.2), rng.uniform(0.03, 0.08), int(rng.integers(2, 5))
    up = 1.4 * long
    posts = [("box", (0.015, 0.01, up / 2 + 0.01), (0.0, side * (w + 0.02), up / 2)) for side in (-1, 1)]
    posts.append(("box", (0.05, w + 0.03, 0.01), (0, 0, 0)))
    solids: list[tuple[str, Vector, Vector]] = [("box", (0.012, w, 0.012), (0, 0, 0))]
    for way in ((0, 0, 1), (0, 0, -1), (1, 0, 0), (-1, 0, 0))[:arms]:
        half = (0.006, 0.8 * w, long / 2) if way[2] else (long / 2, 0.8 * w, 0.006)
        solids.append(("box", half, (way[0] * long / 2, 0.0, way[2] * long / 2)))
    turning = Part(solids=tuple(solids), on=0, joint="hinge", axis=(0, 1, 0), at=(0, 0, up), limits=(-1.5, 1.5))
    return Jointed(name="wheel", parts=(Part(solids=tuple(posts)), turning))


def gate(rng: np.random.Generator) -> Jointed:
    """A bar with a counterweight that is lifted off its rest."""
    long, tall = rng.uniform(0.3, 0.6), rng.uniform(0.1, 0.25)
    stand = (("box", (0.02, 0.015, tall / 2), (0, 0, tall / 2)), ("box", (0.015, 0.015, tall / 2), (long, 0, tall / 2)), ("box", (long / 2 + 0.03, 0.03, 0.008), (long / 2, 0, 0)))  # fmt: skip
    bar = (("box", (long / 2 + 0.03, 0.01, 0.012), (long / 2 - 0.03, -0.03, 0.012)), ("box", (0.03, 0.02, 0.03), (-0.07, -0.03, 0.012)))  # fmt: skip
    return Jointed(name="gate", parts=(Part(solids=stand), Part(solids=bar, on=0, joint="hinge", axis=(0, -1, 0), at=(0, 0, tall), limits=(0.0, 1.4))))  # fmt: skip


KINDS: dict[str, Callable[[np.random.Generator], Jointed]] = {
    "door": door, "drawers": drawers, "laptop": laptop, "scissors": scissors, "lamp": lamp, "faucet": faucet, "chain": chain,
    "cabinet": cabinet, "chest": chest, "window": window, "lever": lever, "dial": dial, "wheel": wheel, "gate": gate,
}  # fmt: skip
"""Every kind by name."""
GADGET = "gadget"
"""Put together by chance (:mod:`kinema4d.scenes.gadgets`)."""


def draw(kind: str, seed: int) -> Jointed:
    """One of a kind; ``gadget`` is of none."""
    if kind == GADGET:
        from kinema4d.scenes.gadgets import gadget

        return gadget(np.random.default_rng([seed, zlib.crc32(kind.encode())]))
    if kind not in KINDS:
        raise ValueError(f"unknown kind of object {kind!r}; known are {', '.join(KINDS)}")
    return KINDS[kind](np.random.default_rng([seed, zlib.crc32(kind.encode())]))


def some_poses(thing: Jointed, count: int, seed: int = 0) -> Float64[np.ndarray, "t j"]:
    """Joint positions, even within their limits."""
    low, high = thing.limits.T
    return np.random.default_rng(seed).uniform(low, high, (count, thing.freedom))
