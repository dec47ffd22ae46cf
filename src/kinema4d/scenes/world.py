"""A tabletop scene, the physics of it, and what it looks like. Physics decides everything that moves.

The world's origin is on the table top, z up; the robot stands at -x and looks along +x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import Light
from kinema4d.geometry.se3 import matrix_to_quaternion, place, quaternion_to_matrix
from kinema4d.robot.model import Robot
from kinema4d.scenes.hand import hand_links
from kinema4d.scenes.physics import ROBOT, THING, add_robot, mujoco_module, set_configuration
from kinema4d.scenes.shapes import joined
from kinema4d.scenes.things import Body, Thing
from kinema4d.types import Camera

TIMESTEP = 0.004
"""Seconds per physics step."""
HARD = (0.999, 0.999, 0.001, 0.5, 2.0)
"""Impedance of the dry friction of joints: MuJoCo's own is so soft that a leaning lever creeps."""
SETTLE = 0.3
"""Seconds that things get to come to rest before an episode begins."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Room:
    """What stands still: table, floor and walls, in world coordinates."""

    meshes: tuple[Mesh, ...]
    """Their surfaces."""
    table: tuple[float, float, float, float]
    """Table top: lowest x and y, highest x and y."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """Everything before the first frame."""

    robot: Robot
    """Who acts."""
    T_world_base: Float[np.ndarray, "4 4"]
    """Where it stands."""
    q_start: Float[np.ndarray, " dof"]
    """Its first configuration."""
    things: tuple[Thing, ...]
    """What lies around."""
    room: Room
    """What it stands in."""
    camera: Camera
    """Who looks."""
    light: Light
    """The sun."""


class World:
    """A scene under physics."""

    def __init__(self, scene: Scene, *, visuals: bool = False) -> None:
        """With ``visuals`` MuJoCo also gets the meshes that are seen, to render them itself (for comparison)."""
        self.mj: Any = mujoco_module()
        self.scene = scene
        self.names = [f"{thing.name}/{body.name}" for thing in scene.things for body in thing.bodies]
        spec = self._spec(visuals)
        self.model = spec.compile()
        self.data = self.mj.MjData(self.model)
        self._look = self.mj.MjData(self.model)  # to look at other states: what sleeps in it would not be moved
        self.body_ids = np.array([self.model.body(name).id for name in self.names], int)
        self.link_ids = np.array([self.model.body(f"robot/{name}").id for name in scene.robot.link_names], int)
        self.actuators = np.array([self.model.actuator(f"robot/{n}").id for n in scene.robot.joint_names], int)
        self.q_addresses = np.array([self.model.joint(f"robot/{n}").qposadr[0] for n in scene.robot.joint_names], int)
        self._rest: np.ndarray | None = None
        self.reset()

    def reset(self) -> None:
        """Back to the start, with everything at rest."""
        mj, model, data = self.mj, self.model, self.data
        whole = int(mj.mjtState.mjSTATE_INTEGRATION)
        mj.mj_resetData(model, data)
        if self._rest is None:
            set_configuration(model, data, self.scene.robot, self.scene.q_start, prefix="robot/")
            for thing in self.scene.things:
                for body in thing.bodies:
                    if body.joint in ("slide", "hinge"):
                        data.qpos[model.joint(f"{thing.name}/{body.name}").qposadr[0]] = body.start
            for _ in range(round(SETTLE / TIMESTEP)):
                mj.mj_step(model, data)
            data.time = 0.0
            self._rest = np.empty(mj.mj_stateSize(model, whole))
            mj.mj_getState(model, data, self._rest, whole)
            mj.mj_resetData(model, data)  # who sleeps is no part of the state: the first time must be as the others
        mj.mj_setState(model, data, self._rest, whole)
        mj.mj_forward(model, data)

    def run(self, q_path: Float[np.ndarray, "n dof"], every: int) -> Float[np.ndarray, "t p"]:
        """Drive the servos along ``q_path``, one row per physics step; returns qpos at the start and after every
        ``every`` steps."""
        model, data, step = self.model, self.data, self.mj.mj_step
        recorded = [data.qpos.copy()]
        ctrl = np.zeros((len(q_path), model.nu))
        ctrl[:, self.actuators] = q_path
        for n in range(len(q_path)):
            data.ctrl[:] = ctrl[n]
            step(model, data)
            if (n + 1) % every == 0:
                recorded.append(data.qpos.copy())
        return np.array(recorded)

    def transforms(self, qpos: Float[np.ndarray, "t p"]) -> Float[np.ndarray, "t b 4 4"]:
        """World poses of all links of the robot, then of all bodies of things, for each row of ``qpos``."""
        ids = np.concatenate([self.link_ids, self.body_ids])
        Ts = np.tile(np.eye(4), (len(qpos), len(ids), 1, 1))
        data = self._look
        for t, row in enumerate(qpos):
            data.qpos[:] = row
            self.mj.mj_kinematics(self.model, data)
            Ts[t, :, :3, :3] = data.xmat[ids].reshape(-1, 3, 3)
            Ts[t, :, :3, 3] = data.xpos[ids]
        return Ts

    def q_of(self, qpos: Float[np.ndarray, "t p"]) -> Float[np.ndarray, "t dof"]:
        """Joint positions of the robot."""
        return qpos[:, self.q_addresses]

    def joint_of(self, thing: Thing, qpos: Float[np.ndarray, "t p"]) -> Float[np.ndarray, " t"]:
        """Position of a thing's own joint: how far a drawer is open."""
        body = next(b for b in thing.bodies if b.joint in ("slide", "hinge"))
        return qpos[:, self.model.joint(f"{thing.name}/{body.name}").qposadr[0]]

    def gaps(self, qpos: Float[np.ndarray, "t p"], thing: Thing, *, most: float = 0.2) -> Float[np.ndarray, " t"]:
        """Distance between the robot's hand and a thing in each state, metres, at most ``most``; negative where they
        overlap."""
        mj, model, data = self.mj, self.model, self._look
        hand = {model.body(f"robot/{link}").id for link in hand_links(self.scene.robot)}
        robot = [g for g in range(model.ngeom) if model.geom_bodyid[g] in hand and model.geom_contype[g]]
        own = {model.body(f"{thing.name}/{body.name}").id for body in thing.bodies}
        parts = [g for g in range(model.ngeom) if model.geom_bodyid[g] in own and model.geom_contype[g]]
        found = np.full(len(qpos), most)
        line = np.zeros(6)
        for t, row in enumerate(qpos):
            data.qpos[:] = row
            mj.mj_kinematics(model, data)
            for a in robot:
                for b in parts:
                    bound = model.geom_rbound[a] + model.geom_rbound[b] + found[t]
                    apart = data.geom_xpos[a] - data.geom_xpos[b]
                    if apart @ apart < bound * bound and bound > 0:
                        found[t] = min(found[t], mj.mj_geomDistance(model, data, a, b, found[t], line))
        return found

    def _spec(self, visuals: bool) -> Any:
        mj, scene = self.mj, self.scene
        spec = mj.MjSpec()
        spec.compiler.degree = False
        spec.option.timestep = TIMESTEP
        spec.option.integrator = mj.mjtIntegrator.mjINT_IMPLICITFAST
        spec.option.cone = mj.mjtCone.mjCONE_ELLIPTIC
        spec.option.impratio = 10
        # Things at rest sleep until they are touched: a third of the time with a full table.
        spec.option.enableflags |= int(mj.mjtEnableBit.mjENBL_SLEEP)
        x0, y0, x1, y1 = scene.room.table
        spec.worldbody.add_geom(
            type=mj.mjtGeom.mjGEOM_BOX,
            size=[(x1 - x0) / 2, (y1 - y0) / 2, 0.05],
            pos=[(x0 + x1) / 2, (y0 + y1) / 2, -0.05],
            contype=THING,
            conaffinity=ROBOT | THING,
            friction=[0.8, 0.005, 0.0002],
            group=3,
        )
        add_robot(spec, scene.robot, scene.T_world_base, prefix="robot/")
        for thing in scene.things:
            self._add_thing(spec, thing, visuals)
        if visuals:
            self._add_meshes(spec, spec.worldbody, "room", scene.room.meshes)
            for i, link in enumerate(scene.robot.link_names):
                own = tuple(v.mesh for v in scene.robot.visuals if v.link == i)
                self._add_meshes(spec, spec.body(f"robot/{link}"), f"robot/{link}", own)
            self._add_eyes(spec)
        return spec

    def _add_eyes(self, spec: Any) -> None:
        """The scene's camera, as ``main``, and its sun, as MuJoCo has them."""
        scene, camera = self.scene, self.scene.camera
        T = camera.poses(1)[0] @ np.diag([1.0, -1.0, -1.0, 1.0])  # MuJoCo's cameras look along -z
        fovy = 2 * np.arctan2(camera.height / 2, camera.K[1, 1])
        spec.worldbody.add_camera(
            name="main", pos=T[:3, 3], quat=matrix_to_quaternion(T[:3, :3]), fovy=float(np.degrees(fovy))
        )
        sun = np.array(scene.light.direction_world)
        spec.worldbody.add_light(pos=3 * sun, dir=-sun, type=self.mj.mjtLightType.mjLIGHT_DIRECTIONAL, castshadow=True)
        spec.visual.map.znear, spec.visual.map.zfar, spec.stat.extent = 0.01, 20.0, 1.0

    def _add_thing(self, spec: Any, thing: Thing, visuals: bool) -> None:
        mj, made = self.mj, []
        for body in thing.bodies:
            parent = spec.worldbody if body.parent < 0 else made[body.parent]
            T = thing.T_world_thing if body.parent < 0 else body.T_parent_body
            name = f"{thing.name}/{body.name}"
            node = parent.add_body(name=name, pos=T[:3, 3], quat=matrix_to_quaternion(T[:3, :3]))
            made.append(node)
            self._add_joint(node, name, body)
            if body.parent >= 0:  # the joint keeps them together; MuJoCo would let a fixed parent and its child collide
                spec.add_exclude(bodyname1=made[body.parent].name, bodyname2=name)
            for geom in body.geoms:
                node.add_geom(
                    type={"box": mj.mjtGeom.mjGEOM_BOX, "cylinder": mj.mjtGeom.mjGEOM_CYLINDER, "sphere": mj.mjtGeom.mjGEOM_SPHERE}[geom.kind],
                    size=[*geom.size, *[0.0] * (3 - len(geom.size))],
                    pos=geom.T_body_geom[:3, 3],
                    quat=matrix_to_quaternion(geom.T_body_geom[:3, :3]),
                    mass=body.mass / len(body.geoms),
                    contype=THING,
                    conaffinity=ROBOT | THING,
                    friction=[thing.friction, 0.005, 0.0005 if geom.kind == "sphere" else 0.0001],
                    condim=6 if geom.kind == "sphere" else 4,
                    # A bead that falls must not go through the ground of a cup: its contacts are hard, and it decides.
                    solref=[2 * TIMESTEP if geom.kind == "sphere" else 0.02, 1.0],
                    solmix=1e3 if geom.kind == "sphere" else 1.0,
                    group=3,
                )  # fmt: skip
            if visuals:
                self._add_meshes(spec, node, name, body.meshes)

    def _add_joint(self, node: Any, name: str, body: Body) -> None:
        mj = self.mj
        if body.joint == "free":
            node.add_freejoint(name=name)
        elif body.joint in ("slide", "hinge"):
            kind = mj.mjtJoint.mjJNT_SLIDE if body.joint == "slide" else mj.mjtJoint.mjJNT_HINGE
            node.add_joint(
                name=name, type=kind, axis=body.axis, range=body.range, limited=mj.mjtLimited.mjLIMITED_TRUE,
                frictionloss=body.hold, damping=2.0 if body.joint == "slide" else 0.01,
                solimp_friction=HARD,
            )  # fmt: skip

    def _add_meshes(self, spec: Any, node: Any, name: str, meshes: tuple[Mesh, ...]) -> None:
        for n, mesh in enumerate(meshes):
            asset = spec.add_mesh(name=f"seen:{name}:{n}")
            asset.uservert = mesh.vertices.astype(np.float32).ravel()
            asset.userface = mesh.faces.ravel()
            asset.inertia = self.mj.mjtMeshInertia.mjMESH_INERTIA_SHELL
            node.add_geom(
                name=f"seen:{name}:{n}",
                type=self.mj.mjtGeom.mjGEOM_MESH,
                meshname=asset.name,
                contype=0,
                conaffinity=0,
                mass=0.0,
                rgba=[*(mesh.colors.mean(axis=0) / 255), 1.0],
                group=0,
            )


def surface_of(body: Body) -> tuple[Float[np.ndarray, "v 3"], np.ndarray]:
    """All triangles of a body in its frame."""
    return joined(body.meshes)


def pose_of(row: Float[np.ndarray, "7"]) -> Float[np.ndarray, "4 4"]:
    """A free joint's position and quaternion as a transform."""
    T = place(*row[:3])
    T[:3, :3] = quaternion_to_matrix(row[3:])
    return T
