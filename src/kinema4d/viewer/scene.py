"""The 3D scene of a recording. The live page and the exported file build it here, and move it with ``show``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.se3 import look_at, matrix_to_quaternion
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.types import Arm
from kinema4d.viewer.meshes import pieces
from kinema4d.viewer.recording import Recording, focus, world_points

Server = Any
"""``viser.ViserServer``; not imported, so that the rest of kinema4d works without viser."""

FRUSTUM_IMAGE_WIDTH = 360
"""Pixels: the image in the frustum is small on screen and sent every frame."""

MESH_OPACITY = 0.5
"""A ghost: solid points are what was recorded, the glassy rest is the model."""


@dataclass(frozen=True, kw_only=True)
class SceneOptions:
    """How much to send to the browser."""

    point_budget: int = 60_000
    """Most points per frame."""
    max_triangles: int | None = 60_000
    """Most triangles per robot, so that a laptop without a GPU keeps up; ``None`` sends all."""
    precision: str = "float32"
    """``float16`` halves a file and is exact to a millimetre within 1 m of the middle of the scene."""

    def __post_init__(self) -> None:
        if self.point_budget < 1:
            raise ValueError(f"point_budget must be at least 1, got {self.point_budget}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """Handles to what moves. ``Any`` fields are viser scene nodes."""

    rec: Recording
    """What is shown."""
    options: SceneOptions
    """How it is shown."""
    middle: Float[np.ndarray, "3"]
    """World point the points are stored relative to, and the first view looks at."""
    robot_points: Any
    """Point cloud of the robot."""
    environment_points: Any
    """Point cloud of everything else."""
    mesh: Any
    """Parent of the robot meshes."""
    surfaces: tuple[Any, ...]
    """The pieces of the robot meshes."""
    links: tuple[tuple[Any, Float[np.ndarray, "t 4 4"]], ...]
    """Each visible link's node and its ``Ts_world_link``."""
    camera: Any
    """The frustum with the image."""
    grid: Any
    """Ground grid at z = 0."""
    point_size: float
    """Size at which the points just cover the surface, in metres."""

    def show(self, frame: int) -> None:
        """Move everything to one frame. Wrap in ``server.atomic()`` so that a browser never sees half of it."""
        points, colors, robot = world_points(self.rec, frame, self.options.point_budget)
        points = points - self.middle.astype(np.float32)
        for cloud, mine in ((self.robot_points, robot), (self.environment_points, ~robot)):
            cloud.points, cloud.colors = (points[mine], colors[mine]) if mine.any() else _NOTHING
        for node, Ts_world_link in self.links:
            move_node(node, Ts_world_link[frame])
        move_node(self.camera, self.rec.camera.poses(len(self.rec))[frame])
        self.camera.image = _small(self.rec.image(frame))


_NOTHING = (np.full((1, 3), 1e4, np.float32), np.zeros((1, 3), np.uint8))
"""A cloud without points: viser's client cannot draw zero points, so one waits out of sight."""


def build_scene(server: Server, rec: Recording, robots: Sequence[Robot], options: SceneOptions) -> Scene:
    """Put the first frame of a recording on a server."""
    motions = [link_motion(robot, arm, len(rec)) for robot, arm in _pairs(robots, rec)]
    middle = focus(rec)
    size = _covering_size(rec, options.point_budget)
    scene = server.scene
    scene.set_up_direction("+z")
    scene.configure_default_lights(cast_shadow=False)  # shadow maps cost several passes on a laptop without a GPU
    scene.world_axes.visible = True
    scene.world_axes.axes_length, scene.world_axes.axes_radius = 0.2, 0.004
    grid = scene.add_grid(
        "/ground grid (10 cm)", width=4, height=4, cell_size=0.1, section_size=1.0, cell_color=(222, 222, 226),
        section_color=(170, 170, 180), position=(float(round(middle[0])), float(round(middle[1])), 0.0),
        shadow_opacity=0.0,
    )  # fmt: skip
    clouds = [
        scene.add_point_cloud(
            name, *_NOTHING, point_size=size, point_shape="circle", point_shading="flat", precision=options.precision,
            position=middle,
        )
        for name in ("/robot points", "/environment points")
    ]  # fmt: skip
    mesh = scene.add_frame("/robot mesh", show_axes=False)
    links, surfaces = [], []
    for i, (robot, Ts_world_link) in enumerate(zip(robots, motions, strict=True)):
        nodes = {}
        for n, piece in enumerate(pieces(robot, max_triangles=options.max_triangles)):
            name = f"/robot mesh/{robot.name.replace('/', '_')} {i}/{robot.link_names[piece.link].replace('/', '_')}"
            if piece.link not in nodes:
                nodes[piece.link] = scene.add_frame(name, show_axes=False)
                links.append((nodes[piece.link], Ts_world_link[:, piece.link]))
            node = scene.add_mesh_simple(
                f"{name}/{n}", piece.vertices, piece.faces, color=piece.color, opacity=MESH_OPACITY, cast_shadow=False
            )
            surfaces.append(node)
    camera = rec.camera
    distance = float(np.linalg.norm(camera.poses(len(rec))[0, :3, 3] - middle))
    frustum = scene.add_camera_frustum(
        "/recording camera", fov=2 * float(np.arctan2(camera.height / 2, camera.K[1, 1])),
        aspect=camera.width / camera.height * float(camera.K[1, 1] / camera.K[0, 0]),
        scale=0.065 * max(distance, 0.2), thickness=2.0, thickness_units="screen", color=(40, 90, 200),
        image=_small(rec.image(0)), cast_shadow=False, receive_shadow=False,
    )  # fmt: skip
    eye = _first_eye(camera.poses(len(rec))[0], middle)
    server.initial_camera.position, server.initial_camera.look_at = eye, middle
    server.initial_camera.up, server.initial_camera.fov = (0.0, 0.0, 1.0), np.radians(40)
    built = Scene(
        rec=rec, options=options, middle=middle, robot_points=clouds[0], environment_points=clouds[1], mesh=mesh,
        surfaces=tuple(surfaces), links=tuple(links), camera=frustum, grid=grid, point_size=size,
    )  # fmt: skip
    built.show(0)
    return built


def link_motion(robot: Robot, arm: Arm, frames: int) -> Float[np.ndarray, "t link 4 4"]:
    """``Ts_world_link`` of a robot as its arm moved."""
    motion = arm.trajectory
    if set(motion.joint_names) != set(robot.joint_names):
        raise ValueError(
            f"robot {robot.name!r} has joints {robot.joint_names} but the recorded arm {arm.robot!r} moved "
            f"{motion.joint_names}; give the robots in the order of the recorded arms"
        )
    if len(motion.q) != frames:
        raise ValueError(f"arm {arm.robot!r} has {len(motion.q)} joint positions but the recording has {frames} frames")
    columns = [motion.joint_names.index(name) for name in robot.joint_names]
    return motion.T_world_base @ forward_kinematics(robot, motion.q[:, columns])


def move_node(node: Any, T_parent_node: Float[np.ndarray, "4 4"]) -> None:
    """Move a scene node."""
    node.wxyz = matrix_to_quaternion(T_parent_node[:3, :3])
    node.position = T_parent_node[:3, 3]


def _pairs(robots: Sequence[Robot], rec: Recording) -> list[tuple[Robot, Arm]]:
    if robots and len(robots) != len(rec.arms):
        raise ValueError(
            f"{len(robots)} robots were given but the {rec.title.lower()} holds the motion of {len(rec.arms)}; "
            "give one robot per arm, or none"
            + ("; control=... adds the motion to a clip or rollout" if not rec.arms else "")
        )
    return list(zip(robots, rec.arms, strict=False))


def _covering_size(rec: Recording, budget: int) -> float:
    """Half the distance between neighbouring points, with a little overlap. (viser's size is a radius.)"""
    frame = int(rec.pointmap.valid.any(axis=(1, 2)).argmax())
    valid = rec.pointmap.valid[frame]
    thinned = np.sqrt(max(1.0, valid.sum() / budget))
    pixel = float(np.median(rec.pointmap.depth[frame][valid])) / rec.camera.K[1, 1]
    return float(np.clip(0.85 * thinned * pixel, 2e-4, 0.05))


def _first_eye(T_world_camera: Float[np.ndarray, "4 4"], middle: Float[np.ndarray, "3"]) -> np.ndarray:
    """Behind the recording camera and to its side, so that the frustum and what it sees are both in view."""
    towards = T_world_camera[:3, 3] - middle
    distance = max(float(np.linalg.norm(towards)), 0.3)
    view = look_at(middle + towards, middle) if np.linalg.norm(towards[:2]) > 1e-3 * distance else T_world_camera
    return middle + 1.4 * towards + distance * (0.45 * view[:3, 0] + np.array([0, 0, 0.3]))


def _small(image: np.ndarray) -> np.ndarray:
    """Average blocks of pixels until the image is narrow enough."""
    n = max(1, -(-image.shape[1] // FRUSTUM_IMAGE_WIDTH))
    h, w = image.shape[0] // n * n, image.shape[1] // n * n
    if n == 1 or h == 0:
        return image
    blocks = np.zeros((h // n, w // n, 3), np.uint32)
    for i in range(n):  # much faster than a mean over the axes of a reshaped image
        for j in range(n):
            blocks += image[i:h:n, j:w:n]
    return (blocks // n**2).astype(np.uint8)
