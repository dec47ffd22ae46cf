"""Rigid: what the parts of a scene do when the robot's solids move through them, answered by MuJoCo.

The robot is where its kinematics says, whatever it meets: each solid is a very heavy free body whose position and
velocity are set at every step, so that contacts feel its motion and cannot stop it. Fingers that close press a little
beyond where kinematics has them, as servos do. Parts are free bodies, or turn or slide about the joint that was seen.

What a picture does not tell (weight, friction, exact size) is one draw of :class:`Physics`. A simulation that diverges
keeps the last finite pose of every part.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.interpolate import PchipInterpolator
from scipy.spatial.transform import Rotation, Slerp

from kinema4d.geometry.se3 import invert, matrix_to_quaternion, matrix_to_rotvec, quaternion_to_matrix
from kinema4d.types import Solid
from kinema4d.world.small.grip import closing, holds, palm_of, pulled
from kinema4d.world.small.parts import Part
from kinema4d.world.small.pieces import Piece, decompose, dense, shape_pieces, shifted
from kinema4d.world.small.shape import moved, scaled

STEP = 0.004
"""Seconds per step."""
SETTLE = 0.2
"""Seconds that parts get to come to rest before the first frame."""
REACH = 0.12
"""Solids that never come this near to a part that moves are left out, metres."""
TOGETHER = 0.03
"""A jointed part hangs on fixed parts this near to it, and does not collide with them, metres."""
STILL_M, STILL_RAD = 0.002, 0.03
"""A part that never gets further than this from its first pose has not moved."""
ROBOT, THING = 1, 2
"""Collision classes."""
HARD = (0.999, 0.999, 0.001, 0.5, 2.0)
"""Impedance of the dry friction of joints."""
SLACK_RAD = 0.3
"""How far a hinge may go beyond the room that was seen, radians."""


@dataclass(frozen=True, kw_only=True)
class Physics:
    """What a picture does not tell."""

    density: float = 450.0
    """Of free parts, kg per cubic metre."""
    friction: float = 0.95
    """Of parts."""
    table_friction: float = 0.8
    """Of the support."""
    squeeze: float = 0.002
    """How far fingers press beyond where kinematics has them, metres."""
    scale: float = 1.0
    """Size of free parts against what was perceived; they keep standing where they stand."""


def draw(rng: np.random.Generator) -> Physics:
    """One guess at the unknown."""
    return Physics(
        density=float(rng.uniform(250, 700)),
        friction=float(rng.uniform(0.7, 1.2)),
        squeeze=float(rng.uniform(0.001, 0.003)),
        scale=float(1 + 0.02 * rng.standard_normal()),
    )


def answer(
    parts: Sequence[Part],
    solids: Sequence[Solid],
    *,
    fps: float,
    support: float = 0.0,
    physics: Physics | None = None,
) -> Float[np.ndarray, "p t 4 4"]:
    """Each part's motion against the first frame, in world coordinates; the identity for what never moves."""
    if not solids:
        raise ValueError("there is no robot: give its solids")
    physics, frames = physics or Physics(), len(solids[0].Ts_world_link)
    motions = np.tile(np.eye(4), (len(parts), frames, 1, 1))
    parts = pulled(parts, solids)
    moving = [i for i, p in enumerate(parts) if p.joint != "fixed"]
    near = _near(solids, [parts[i] for i in moving])
    if not moving or not near or frames < 2:
        return motions
    found = _Run(parts, near, solids, fps, support, physics).run()
    for i in moving:
        M = found[:, i] @ invert(found[0, i])
        if not stays(M, parts[i]):
            M[0] = np.eye(4)
            motions[i] = M
    return motions


def stays(M: Float[np.ndarray, "t 4 4"], part: Part) -> bool:
    """Whether a motion is so small that the part has not moved."""
    corners = np.stack([part.vertices.min(axis=0), part.vertices.max(axis=0), part.vertices.mean(axis=0)])
    gone = M[:, None, :3, :3] @ corners[None, :, :, None] + M[:, None, :3, 3:] - corners[None, :, :, None]
    cosine = (np.trace(M[:, :3, :3], axis1=1, axis2=2) - 1) / 2
    away = float(np.linalg.norm(gone[:, 2, :, 0], axis=-1).max())
    return away < STILL_M and float(np.arccos(np.clip(cosine, -1, 1)).max()) < STILL_RAD


def _near(solids: Sequence[Solid], parts: Sequence[Part]) -> list[Solid]:
    """Solids that come near to a part: others only cost time."""
    balls = []
    for p in parts:
        low, high = p.vertices.min(axis=0), p.vertices.max(axis=0)
        balls.append(((low + high) / 2, float(np.linalg.norm(high - low)) / 2))
    out = []
    for s in solids:
        centre = (s.vertices.min(axis=0) + s.vertices.max(axis=0)) / 2
        radius = float(np.linalg.norm(s.vertices - centre, axis=1).max())
        way = s.Ts_world_link[:, :3, :3] @ centre + s.Ts_world_link[:, :3, 3]
        if any(np.linalg.norm(way - c, axis=1).min() < radius + r + REACH for c, r in balls):
            out.append(s)
    return out


def _mujoco() -> Any:
    try:
        return importlib.import_module("mujoco")
    except ImportError:
        raise ValueError("the small world needs MuJoCo: pip install 'kinema4d[world]'") from None


class _Run:
    """One simulation."""

    def __init__(
        self,
        parts: Sequence[Part],
        near: Sequence[Solid],
        solids: Sequence[Solid],
        fps: float,
        support: float,
        physics: Physics,
    ) -> None:
        self.mj, self.parts, self.solids, self.fps, self.physics = _mujoco(), parts, list(near), fps, physics
        self.frames = len(near[0].Ts_world_link)
        self.steps = round((self.frames - 1) / fps / STEP)
        self.support = support
        self.origins = [(p.vertices.min(axis=0) + p.vertices.max(axis=0)) / 2 for p in parts]
        self.paths = self._paths(solids)
        self.holds = holds(parts, solids)
        self.gripped: dict[int, np.ndarray] = {}
        self.model = self._spec().compile()
        self.data = self.mj.MjData(self.model)

    # ------------------------------------------------------------------ the robot

    def _paths(self, solids: Sequence[Solid]) -> list[Float[np.ndarray, "n 4 4"]]:
        """Poses of the near solids at every step. Fingers are interpolated in the palm's frame, so that what they hold
        is not shaken by the two moving out of step."""
        palm = palm_of(solids)
        press = closing(solids, palm) if palm is not None else {}
        at = np.arange(self.steps + 1) * STEP
        base = self.palm = None if palm is None else self._between(palm.Ts_world_link)
        out = []
        for s in self.solids:
            if s.role != "finger" or palm is None or base is None:
                out.append(base if s is palm and base is not None else self._between(s.Ts_world_link))
                continue
            local = self._between(invert(palm.Ts_world_link) @ s.Ts_world_link)
            if s.name in press:
                direction, on = press[s.name]
                more = np.interp(at, np.arange(self.frames) / self.fps, on)
                local[:, :3, 3] += self.physics.squeeze * more[:, None] * direction
            out.append(base @ local)
        return out

    def _between(self, Ts: Float[np.ndarray, "t 4 4"]) -> Float[np.ndarray, "n 4 4"]:
        times = np.arange(self.frames) / self.fps
        at = np.minimum(np.arange(self.steps + 1) * STEP, times[-1])
        out = np.tile(np.eye(4), (len(at), 1, 1))
        out[:, :3, 3] = PchipInterpolator(times, Ts[:, :3, 3])(at)
        out[:, :3, :3] = Slerp(times, Rotation.from_matrix(Ts[:, :3, :3]))(at).as_matrix()
        return out

    # ------------------------------------------------------------------ the scene

    def _spec(self) -> Any:
        mj = self.mj
        spec = mj.MjSpec()
        spec.compiler.degree = False
        spec.option.timestep = STEP
        spec.option.integrator = mj.mjtIntegrator.mjINT_IMPLICITFAST
        spec.option.cone = mj.mjtCone.mjCONE_ELLIPTIC
        spec.option.impratio = 10
        spec.option.enableflags |= int(mj.mjtEnableBit.mjENBL_SLEEP)  # what nobody touches costs nothing
        spec.worldbody.add_geom(
            type=mj.mjtGeom.mjGEOM_PLANE, size=[3, 3, 0.1], pos=[0, 0, self.support], contype=THING, conaffinity=ROBOT | THING,
            friction=[self.physics.table_friction, 0.005, 0.0002],
        )  # fmt: skip
        for i, (solid, path) in enumerate(zip(self.solids, self.paths, strict=True)):
            self._add_solid(spec, f"s{i}", solid, path[0])
        for i, part in enumerate(self.parts):
            self._add_part(spec, i, part)
        for i, j in self._hangs():
            spec.add_exclude(bodyname1=f"p{i}", bodyname2=f"p{j}")
        return spec

    def _add_solid(self, spec: Any, name: str, solid: Solid, T: np.ndarray) -> None:
        body = spec.worldbody.add_body(name=name, pos=T[:3, 3], quat=matrix_to_quaternion(T[:3, :3]), gravcomp=1.0)
        body.sleep = self.mj.mjtSleepPolicy.mjSLEEP_NEVER
        body.add_freejoint(name=name)
        body.mass, body.inertia, body.explicitinertial, body.ipos = 1e3, [1e2, 1e2, 1e2], True, [0, 0, 0]
        mesh = spec.add_mesh(name=name)
        mesh.uservert, mesh.userface = solid.vertices.astype(np.float32).ravel(), solid.faces.astype(np.int32).ravel()
        body.add_geom(
            type=self.mj.mjtGeom.mjGEOM_MESH, meshname=name, contype=ROBOT, conaffinity=THING, friction=[1.2, 0.02, 0.001],
            condim=4, mass=0.0,
        )  # fmt: skip

    def _add_part(self, spec: Any, i: int, part: Part) -> None:
        name, origin = f"p{i}", self.origins[i]
        body = spec.worldbody.add_body(name=name, pos=origin)
        vertices = part.vertices - origin
        if part.joint == "free":
            body.add_freejoint(name=name)
            low = vertices[:, 2].min()
            vertices = vertices * self.physics.scale
            vertices[:, 2] += low - vertices[:, 2].min()  # it stays on its feet
        elif part.joint != "fixed":
            self._add_joint(body, name, part, origin)
        if part.shape is not None:
            pieces = shape_pieces(scaled(moved(part.shape, np.eye(3), -origin), self.physics.scale))
        elif part.pieces:
            pieces = [shifted(p, -origin) for p in part.pieces]
        else:
            pieces = decompose(vertices, part.faces, part.joint, part.axis)
        for n, piece in enumerate(pieces):
            self._add_piece(spec, body, f"{name}:{n}", piece, free=part.joint == "free")

    def _add_joint(self, body: Any, name: str, part: Part, origin: np.ndarray) -> None:
        mj, slide = self.mj, part.joint == "slide"
        assert part.axis is not None
        pivot = np.zeros(3) if part.pivot is None or slide else part.pivot - origin
        joint = body.add_joint(
            name=name, type=mj.mjtJoint.mjJNT_SLIDE if slide else mj.mjtJoint.mjJNT_HINGE, axis=part.axis, pos=pivot,
            frictionloss=1.0 if slide else 0.04, damping=2.0 if slide else 0.01, solimp_friction=HARD,
        )  # fmt: skip
        body.gravcomp = 1.0  # lids, doors and levers stay where they are left
        back, forth = part.room or ((-0.2, 0.2) if slide else (-1.6, 1.6))
        slack = 0.0 if slide else SLACK_RAD
        joint.limited, joint.range = mj.mjtLimited.mjLIMITED_TRUE, [min(back, -1e-3) - slack, max(forth, 1e-3) + slack]

    def _add_piece(self, spec: Any, body: Any, name: str, piece: Piece, *, free: bool) -> None:
        mj, friction = self.mj, self.physics.friction
        mass = max(piece.volume * self.physics.density, 5e-4) if free else max(piece.volume * 600, 0.01)
        common = {"contype": THING, "conaffinity": ROBOT | THING, "mass": mass}
        if piece.radius is not None:
            body.add_geom(
                type=mj.mjtGeom.mjGEOM_SPHERE, size=[piece.radius, 0, 0], pos=piece.vertices[0], condim=6,
                friction=[friction, 0.005, 0.0005], solref=[2 * STEP, 1.0], solmix=1e3, **common,
            )  # fmt: skip
            return
        if piece.plain is not None:
            assert piece.T is not None
            kind, size = piece.plain
            body.add_geom(
                type=mj.mjtGeom.mjGEOM_BOX if kind == "box" else mj.mjtGeom.mjGEOM_CYLINDER,
                size=[*size, *[0.0] * (3 - len(size))], pos=piece.T[:3, 3], quat=matrix_to_quaternion(piece.T[:3, :3]),
                condim=4, friction=[friction, 0.005, 0.0001], solref=[0.02, 1.0], **common,
            )  # fmt: skip
            return
        mesh = spec.add_mesh(name=name)
        mesh.uservert, mesh.userface = piece.vertices.astype(np.float32).ravel(), piece.faces.ravel()
        mesh.inertia = mj.mjtMeshInertia.mjMESH_INERTIA_CONVEX
        body.add_geom(
            type=mj.mjtGeom.mjGEOM_MESH, meshname=name, condim=4, friction=[friction, 0.005, 0.0001], solref=[0.02, 1.0],
            **common,
        )  # fmt: skip

    def _hangs(self) -> list[tuple[int, int]]:
        """Pairs of a jointed part and another piece of its furniture: they do not collide."""
        from scipy.spatial import KDTree

        out = []
        trees = [(j, KDTree(dense(p.vertices, p.faces))) for j, p in enumerate(self.parts) if p.joint != "free"]
        for i, part in enumerate(self.parts):
            if part.joint in ("slide", "hinge"):
                out += [(j, i) for j, tree in trees if j != i and tree.query(part.vertices)[0].min() < TOGETHER]
        return out

    # ------------------------------------------------------------------ time

    def run(self) -> Float[np.ndarray, "t p 4 4"]:
        """Poses of all parts at every frame."""
        mj, model, data = self.mj, self.model, self.data
        joints = [model.joint(f"s{i}") for i in range(len(self.solids))]
        q_at = np.concatenate([np.arange(7) + j.qposadr[0] for j in joints])
        v_at = np.concatenate([np.arange(6) + j.dofadr[0] for j in joints])
        Q, V = (np.concatenate(x, axis=1) for x in zip(*(_states(path) for path in self.paths), strict=True))
        for _ in range(round(SETTLE / STEP)):
            data.qpos[q_at], data.qvel[v_at] = Q[0], 0.0
            mj.mj_step(model, data)
        ids = np.array([model.body(f"p{i}").id for i in range(len(self.parts))])
        out = np.tile(np.eye(4), (self.frames, len(self.parts), 1, 1))
        due = np.minimum(np.round(np.arange(self.frames) / self.fps / STEP).astype(int), self.steps)
        frame, began = 0, {}
        limited = [model.joint(f"p{i}") for i, p in enumerate(self.parts) if p.joint in ("slide", "hinge")]
        ends, speeds = (
            np.array([int(a[0]) for a in x], int) for x in ([j.qposadr for j in limited], [j.dofadr for j in limited])
        )
        low, high = (np.array([j.range[k] for j in limited]) for k in (0, 1))
        for n in range(self.steps + 1):
            while frame < self.frames and due[frame] <= n:
                mj.mj_kinematics(model, data)
                bad = sum(
                    data.warning[w].number
                    for w in (mj.mjtWarning.mjWARN_BADQPOS, mj.mjtWarning.mjWARN_BADQVEL, mj.mjtWarning.mjWARN_BADQACC)
                )
                if bad or not np.isfinite(data.xpos[ids]).all():  # MuJoCo would go on from the start
                    out[frame:] = out[max(frame - 1, 0)]
                    return out
                out[frame, :, :3, :3], out[frame, :, :3, 3] = data.xmat[ids].reshape(-1, 3, 3), data.xpos[ids]
                frame += 1
            if n < self.steps:
                data.qpos[q_at], data.qvel[v_at] = Q[n], V[n]
                self._hold(n, began)
                mj.mj_step(model, data)
                # The robot is stronger than any soft limit.
                stop = np.clip(data.qpos[ends], low, high)
                data.qvel[speeds] *= stop == data.qpos[ends]
                data.qpos[ends] = stop
        return out

    def _carry(self, n: int, k: int, at: int, dof: int) -> None:
        """A free part, as it was in the palm when it was gripped."""
        assert self.palm is not None
        if k not in self.gripped:
            T = np.eye(4)
            T[:3, 3] = self.data.qpos[at : at + 3]
            T[:3, :3] = quaternion_to_matrix(self.data.qpos[at + 3 : at + 7])
            self.gripped[k] = invert(self.palm[n]) @ T
        now, then = (self.palm[min(i, self.steps)] @ self.gripped[k] for i in (n, n + 1))
        self.data.qpos[at : at + 3], self.data.qpos[at + 3 : at + 7] = now[:3, 3], matrix_to_quaternion(now[:3, :3])
        self.data.qvel[dof : dof + 3] = (then - now)[:3, 3] / STEP
        self.data.qvel[dof + 3 : dof + 6] = matrix_to_rotvec(now[:3, :3].T @ then[:3, :3]) / STEP

    def _hold(self, n: int, began: dict[int, float]) -> None:
        """Put what is held where the hand has it."""
        t = n * STEP * self.fps
        for k, hold in enumerate(self.holds):
            if not hold.first <= t <= hold.last:
                continue
            joint = self.model.joint(f"p{hold.part}")
            at, dof = int(joint.qposadr[0]), int(joint.dofadr[0])
            if hold.way is None:
                self._carry(n, k, at, dof)
                continue
            start = began.setdefault(k, float(self.data.qpos[at]))
            low, high = joint.range
            i = min(int(t), self.frames - 2)
            now = hold.way[i] + (t - i) * (hold.way[i + 1] - hold.way[i])
            place = start + now
            self.data.qpos[at] = np.clip(place, low, high)
            inside = low < place < high
            self.data.qvel[dof] = (hold.way[i + 1] - hold.way[i]) * self.fps if inside else 0.0


def _states(path: Float[np.ndarray, "n 4 4"]) -> tuple[Float[np.ndarray, "n 7"], Float[np.ndarray, "n 6"]]:
    """Position and quaternion, and the velocity that leads to the next step (turning in the body's own frame)."""
    R = Rotation.from_matrix(path[:, :3, :3])
    V = np.zeros((len(path), 6))
    V[:-1, :3] = np.diff(path[:, :3, 3], axis=0) / STEP
    V[:-1, 3:] = (R[:-1].inv() * R[1:]).as_rotvec() / STEP
    return np.concatenate([path[:, :3, 3], R.as_quat()[:, [3, 0, 1, 2]]], axis=1), V
