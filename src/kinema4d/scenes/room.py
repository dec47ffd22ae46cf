"""Randomised surroundings: table, floor, walls, sun and camera."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import Light
from kinema4d.geometry.se3 import look_at
from kinema4d.scenes import looks
from kinema4d.scenes.shapes import box
from kinema4d.scenes.world import Room, Scene
from kinema4d.types import Camera


@dataclass(frozen=True, kw_only=True)
class Eyes:
    """From where a camera may look."""

    elevation: tuple[float, float] = (0.5, 0.9)
    """Radians above the table."""
    distance: tuple[float, float] = (0.68, 0.85)
    """Metres from the middle of the workspace."""
    fov: tuple[float, float] = (42.0, 48.0)
    """Vertical angle of view, degrees."""
    azimuth: float = 1.2
    """Radians to either side of straight ahead of the robot."""


EYES = {
    "train": Eyes(),
    "unseen": Eyes(elevation=(0.95, 1.15), distance=(0.72, 0.95), fov=(51.0, 58.0)),
    "wide": Eyes(elevation=(0.3, 0.92), distance=(0.55, 1.1), fov=(36.0, 50.0), azimuth=2.2),
}
"""Cameras by look: ``unseen`` is steeper and wider than whatever a world may learn from; ``wide`` is for learning to see."""


def sample_room(rng: np.random.Generator, base_x: float, *, look: str = "train") -> Room:
    """A table from behind the robot, which stands at ``base_x``, to beyond the workspace, in a room with four walls."""
    table = (base_x - rng.uniform(0.2, 0.3), -rng.uniform(0.5, 0.7), rng.uniform(0.4, 0.5), rng.uniform(0.5, 0.7))
    x0, y0, x1, y1 = table
    floor = -rng.uniform(0.65, 0.8)
    top = ((x1 - x0) / 2, (y1 - y0) / 2, 0.02)
    centre = ((x0 + x1) / 2, (y0 + y1) / 2, -0.02)
    meshes = [_textured(rng, top, centre, texel=rng.uniform(0.15, 0.5), look=look)]
    for x in (x0 + 0.06, x1 - 0.06):
        for y in (y0 + 0.06, y1 - 0.06):
            leg = (0.025, 0.025, (-0.04 - floor) / 2)
            meshes.append(box(leg, (90, 88, 85), centre=(x, y, (floor - 0.04) / 2)))
    meshes.append(_textured(rng, (2.6, 2.6, 0.01), (0, 0, floor - 0.01), texel=rng.uniform(0.4, 0.9), look=look))
    paint, high = looks.muted_color(rng), 1.5
    coat = looks.texture(rng, "speckle", paint)
    for axis in (0, 1):
        for sign in (-1, 1):
            half, at = [2.6, 2.6, (high - floor) / 2], [0.0, 0.0, (high + floor) / 2]
            half[axis], at[axis] = 0.01, sign * 2.6
            meshes.append(box(half, paint, centre=at, texture=coat, texel=1.7))
    return Room(meshes=tuple(meshes), table=table)


def sample_light(rng: np.random.Generator) -> Light:
    """A sun between 50 and 80 degrees high, so that walls throw no shadow on the table."""
    azimuth, elevation = rng.uniform(-np.pi, np.pi), np.radians(rng.uniform(50, 80))
    x, y = np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth)
    direction = (float(x), float(y), float(np.sin(elevation)))
    return Light(direction_world=direction, ambient=float(rng.uniform(0.4, 0.6)))


def sample_camera(
    rng: np.random.Generator, height: int, width: int, *, side: bool = False, look: str = "train"
) -> Camera:
    """An oblique view of the workspace from before the robot, or from one ``side``, where furniture shows its front."""
    eyes = EYES[look]
    azimuth = rng.uniform(1.2, 2.0) * rng.choice([-1, 1]) if side else rng.uniform(-eyes.azimuth, eyes.azimuth)
    elevation, distance = rng.uniform(*eyes.elevation), rng.uniform(*eyes.distance)
    target = np.array([-0.03, 0.0, 0.06]) + rng.uniform(-0.03, 0.03, 3)
    away = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    T = look_at(target + distance * away, target)
    focal = 0.5 * height / np.tan(np.radians(rng.uniform(*eyes.fov)) / 2)
    K = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])
    return Camera(K=K, T_world_camera=T, height=height, width=width)


def _textured(
    rng: np.random.Generator, half: tuple[float, float, float], centre: tuple[float, float, float], *, texel: float, look: str
) -> Mesh:  # fmt: skip
    paint = looks.muted_color(rng)
    kind = str(rng.choice(looks.LOOKS[look]))
    return box(half, paint, centre=centre, texture=looks.texture(rng, kind, paint), texel=texel)


def restyle(rng: np.random.Generator, scene: Scene, *, look: str, side: bool = False, eyes: str | None = None) -> Scene:
    """The same things in another room, under another sun, before another camera, with other patterns."""
    kinds = looks.LOOKS[look]

    def coat(mesh: Mesh) -> Mesh:
        if mesh.texture is None or mesh.uvs is None:
            return mesh
        r, g, b = (int(c) for c in mesh.texture.reshape(-1, 3).mean(axis=0))
        return replace(mesh, texture=looks.texture(rng, str(rng.choice(kinds)), (r, g, b)))

    things = tuple(
        replace(t, bodies=tuple(replace(b, meshes=tuple(coat(m) for m in b.meshes)) for b in t.bodies))
        for t in scene.things
    )
    camera = sample_camera(rng, scene.camera.height, scene.camera.width, side=side, look=eyes or look)
    room = sample_room(rng, float(scene.T_world_base[0, 3]), look=look)
    return replace(scene, things=things, room=room, camera=camera, light=sample_light(rng))
