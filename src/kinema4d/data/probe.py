"""An episode made ready for checking: its robots loaded, and what kinematics says the camera should see.

A few frames on a coarse grid are enough to tell whether robot and image agree, and cost a few milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.raster import Surfaces, rasterize
from kinema4d.robot.control import robot_surfaces
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Arm, Camera, Episode

SIDE = 144
"""Longer side of the coarse grid, at most."""
SAMPLES = 8
"""Frames that are rendered."""
MIN_PIXELS = 25
"""Robot pixels per sampled frame, on average, under which its silhouette says nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """The robot as kinematics draws it, in some frames of the coarse grid."""

    frames: Int[np.ndarray, " n"]
    """Which frames."""
    mask: Bool[np.ndarray, "n h w"]
    """Robot pixels."""
    depth: Float32[np.ndarray, "n h w"]
    """Metres along the optical axis; 0 off the robot."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """An episode and what its robots' files add to it."""

    episode: Episode
    """What is checked."""
    robots: tuple[Robot, ...]
    """One per arm; empty where any is missing."""
    missing: tuple[str, ...]
    """Why robots are missing: the zoo's messages."""
    paths: tuple[Float[np.ndarray, "t dof"], ...]
    """Per arm: its motion in the order of the robot's joints."""
    tool: Float[np.ndarray, "t 3"] | None
    """Path of the first arm's tool in the world."""
    seen: Seen | None
    """The drawn robot; None without robots, where the camera is guessed, or where clocks differ."""
    why_unseen: str
    """Why ``seen`` is None."""

    def grid(self, images: np.ndarray) -> np.ndarray:
        """A view of ``[t, h, w, ...]`` on the coarse grid."""
        step, start = grid_of(self.episode.clip.camera)
        return images[:, start::step, start::step]

    def gray(self) -> UInt8[np.ndarray, "t h w"]:
        """The green channel on the coarse grid: as sharp as any, and no sum to take."""
        return np.ascontiguousarray(self.grid(self.episode.clip.rgb)[..., 1])


def probe(episode: Episode, *, assets: Path | None = None, search: int = 5) -> Probe:
    """Load the robots and draw them; ``search`` frames are kept free at both ends, to shift the images by."""
    robots, missing, paths = [], [], []
    for arm in episode.arms:
        try:
            robot = robot_of(arm.robot, assets)[0]
            paths.append(_path(robot, arm))
            robots.append(robot)
        except ValueError as error:
            missing.append(f"robot {arm.robot!r}: {error}")
    if missing:
        robots, paths = [], []
    why = _why_unseen(episode, robots, missing)
    Ts = [
        arm.trajectory.T_world_base @ forward_kinematics(robot, q)
        for arm, robot, q in zip(episode.arms if robots else (), robots, paths, strict=True)
    ]
    tool = Ts[0][:, robots[0].link_index(robots[0].tool_link), :3, 3] if Ts else None
    return Probe(
        episode=episode,
        robots=tuple(robots),
        missing=tuple(missing),
        paths=tuple(paths),
        tool=tool,
        seen=None if why else _draw(episode, robots, np.concatenate(Ts, axis=1), assets, search),
        why_unseen=why,
    )


@lru_cache(maxsize=16)
def robot_of(name: str, assets: Path | None) -> tuple[Robot, Surfaces]:
    """A robot and its triangles, loaded once per process."""
    robot = load_robot(name, assets=assets)
    return robot, robot_surfaces([robot])


def grid_of(camera: Camera) -> tuple[int, int]:
    """Step and start of the coarse grid in pixels."""
    step = -(-max(camera.height, camera.width) // SIDE)
    return step, step // 2


def coarse(camera: Camera) -> Camera:
    """The camera whose pixels are exactly those of the coarse grid."""
    step, start = grid_of(camera)
    S = np.array([[1 / step, 0, -start / step], [0, 1 / step, -start / step], [0, 0, 1]])
    height, width = (len(range(start, n, step)) for n in (camera.height, camera.width))
    return replace(camera, K=S @ camera.K, height=height, width=width)


def _path(robot: Robot, arm: Arm) -> np.ndarray:
    names = arm.trajectory.joint_names
    strangers = [n for n in names if n not in robot.joint_names]
    if strangers:
        raise ValueError(
            f"the stored motion has joints {', '.join(strangers)}, which the robot's file does not have "
            f"({', '.join(robot.joint_names)}); use the file that the data set was made with (--assets)"
        )
    q = np.tile(robot.home, (len(arm.trajectory.q), 1))
    q[:, robot.joint_indices(names)] = arm.trajectory.q
    return q


def _why_unseen(episode: Episode, robots: list[Robot], missing: list[str]) -> str:
    if not episode.arms:
        return "the episode has no robot motion"
    if missing:
        return "a robot's files are not here"
    if episode.camera_from == "guessed":
        return "the camera is guessed"
    if any(len(arm.trajectory.q) != len(episode) for arm in episode.arms):
        return "states and frames differ in number"
    if any(not robot.visuals for robot in robots):
        return "a robot has no visible geometry"
    return ""


def _draw(episode: Episode, robots: list[Robot], Ts_world_link: np.ndarray, assets: Path | None, search: int) -> Seen:
    count = len(episode)
    margin = min(search, max((count - 2) // 3, 0))
    frames = np.unique(np.linspace(margin, count - 1 - margin, min(SAMPLES, count)).round().astype(int))
    camera = episode.clip.camera
    poses = camera.poses(count)[frames] if camera.moving else camera.T_world_camera
    view = replace(coarse(camera), T_world_camera=poses)
    surfaces = robot_of(episode.arms[0].robot, assets)[1] if len(robots) == 1 else robot_surfaces(robots)
    render = rasterize(surfaces, T_camera_world(view, len(frames))[:, None] @ Ts_world_link[frames], view, threads=1)
    return Seen(frames=frames, mask=render.valid, depth=render.points[..., 2])
