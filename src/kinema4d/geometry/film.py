"""A film of a moving object, by our own rasteriser: shaded, on a floor with its shadow, with what stands in its way, and the forces as
arrows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace
from av.video.stream import VideoStream
from jaxtyping import Float, UInt8

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.deforming import ObjectMotion
from kinema4d.geometry.deforming_look import (
    RED,
    Floor,
    arrow,
    arrows,
    everything,
    face_colors,
    floor,
    obstacle_mesh,
    towards_eye,
)
from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import Light, Render, Surfaces, assemble, merge, rasterize
from kinema4d.geometry.se3 import look_at
from kinema4d.types import Camera

HEIGHT, WIDTH = 480, 640
"""Of a film, pixels."""
FINE = 2
"""Samples per pixel along each side: edges are smooth."""
FILLED = 0.86
"""Share of the picture that the whole motion takes."""
SHADOW = 1536
"""Side of the shadow map."""
TILES = np.array([[226, 229, 233], [212, 216, 222]], np.uint8)
"""The floor's two greys."""
SKY = np.array([[247, 248, 250], [228, 232, 238]], np.float64)
"""Behind everything, top and bottom."""


def write_film(motion: ObjectMotion, path: str | Path, *, height: int = HEIGHT, width: int = WIDTH) -> int:
    """Write an H.264 mp4 that runs as fast as the motion did, and return how many frames it has: one for each."""
    rate = Fraction(1 / motion.step).limit_denominator(10_000)
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as container:
        stream = cast(VideoStream, container.add_stream("libx264", rate=rate, options={"crf": "18", "preset": "fast"}))
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream.codec_context.time_base = 1 / rate
        for number, image in enumerate(film(motion, height=height, width=width)):
            frame = VideoFrame.from_ndarray(image, format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return len(motion)


def film_strip(
    motion: ObjectMotion, frames: int = 6, *, height: int = 240, width: int = 240
) -> UInt8[np.ndarray, "h w 3"]:
    """Some frames, evenly in time and with first and last, side by side in one picture."""
    if frames < 1:
        raise ValueError(f"a strip needs at least one frame, got {frames}")
    which = np.linspace(0, len(motion) - 1, frames).round().astype(int)
    return np.concatenate(list(film(motion, which.tolist(), height=height, width=width)), axis=1)


def film(
    motion: ObjectMotion, frames: Sequence[int] | None = None, *, height: int = HEIGHT, width: int = WIDTH
) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    """Pictures of frames (all without), from a camera that sees the whole motion."""
    if height < 2 or width < 2 or height % 2 or width % 2:
        raise ValueError(f"a film needs even sides, got {height}x{width} (height x width)")
    camera = watching(motion, height * FINE, width * FINE)
    x, y, _ = towards_eye(motion)  # light from the right of the camera, so that what it sees is lit
    light = Light(direction_world=(0.77 * x - 0.64 * y, 0.64 * x + 0.77 * y, 1.1), ambient=0.5, shadow_size=SHADOW)
    stands = [(_tiles(floor(motion)), 1), *([(o, 1)] if (o := obstacle_mesh(motion)) is not None else [])]
    ground, colors = assemble(stands), face_colors(motion)
    faces = motion.faces.astype(np.int32)
    sky = np.linspace(SKY[0], SKY[1], camera.height)[:, None].round().astype(np.uint8)
    scene: Render | None = None
    for frame in range(len(motion)) if frames is None else frames:
        body = assemble([(Mesh(vertices=motion.vertices[frame], faces=faces, colors=colors), 0)])
        scene = _drawn(merge([(body, 0), (ground, 0)]), camera, light=light, out=scene)
        assert scene.rgb is not None
        image = np.where(scene.valid[0, ..., None], scene.rgb[0], sky)
        if len(ends := arrows(motion, frame)):
            image = _overlaid(image, scene, _drawn(assemble([(_arrow(*e), 0) for e in ends]), camera, light=Light(ambient=0.7)))  # fmt: skip
        yield _averaged(image)


def watching(motion: ObjectMotion, height: int, width: int) -> Camera:
    """A camera that stands still and sees the whole motion."""
    x, eye = everything(motion), towards_eye(motion)
    middle = (x.min(axis=0) + x.max(axis=0)) / 2
    far = 3.4 * max(float(np.linalg.norm(x - middle, axis=1).max()), 1e-6)
    T = look_at(middle + far * eye, middle)
    seen = (x - T[:3, 3]) @ T[:3, :3]
    u = seen[:, :2] / seen[:, 2:]
    low, high = u.min(axis=0), u.max(axis=0)
    focal = FILLED * float((np.array([width, height]) / np.maximum(high - low, 1e-9)).min())
    cx, cy = (np.array([width, height]) - 1) / 2 - focal * (low + high) / 2
    return Camera(K=np.array([[focal, 0, cx], [0, focal, cy], [0, 0, 1]]), T_world_camera=T, height=height, width=width)


def _drawn(surfaces: Surfaces, camera: Camera, *, light: Light, out: Render | None = None) -> Render:
    """One picture of things in the world."""
    Ts = np.repeat(T_camera_world(camera, 1)[:, None], int(surfaces.face_body.max()) + 1, axis=1)
    return rasterize(surfaces, Ts, camera, rgb=True, light=light, out=out)


def _overlaid(image: np.ndarray, scene: Render, arrow: Render) -> np.ndarray:
    """Arrows over a picture; through the object they are fainter: a push on its far side is there, too."""
    assert arrow.rgb is not None
    at = arrow.valid[0]
    hidden = scene.valid[0, at] & (scene.points[0, at, 2] < arrow.points[0, at, 2])
    share = np.where(hidden, 0.45, 1.0)[:, None]
    image[at] = (image[at] * (1 - share) + arrow.rgb[0, at] * share).round()
    return image


def _averaged(image: np.ndarray) -> np.ndarray:
    """Blocks of pixels as one."""
    total = np.zeros((image.shape[0] // FINE, image.shape[1] // FINE, 3), np.uint16)
    for i in range(FINE):  # much faster than a mean over the axes of a reshaped image
        for j in range(FINE):
            total += image[i::FINE, j::FINE]
    return (total // FINE**2).astype(np.uint8)


def _tiles(ground: Floor) -> Mesh:
    n = round(2 * ground.half / ground.cell)
    line = np.arange(n + 1) * ground.cell - ground.half
    x, y = np.meshgrid(line, line, indexing="ij")
    vertices = np.stack([x.ravel(), y.ravel(), 0 * x.ravel()], axis=1) + ground.middle
    i, j = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
    a, b = i * (n + 1) + j, (i + 1) * (n + 1) + j
    faces = np.concatenate([np.stack([a, b, b + 1], 1), np.stack([a, b + 1, a + 1], 1)]).astype(np.int32)
    return Mesh(vertices=vertices, faces=faces, colors=np.tile(TILES[(i + j) % 2], (2, 1)))


def _arrow(begin: Float[np.ndarray, "3"], end: Float[np.ndarray, "3"]) -> Mesh:
    vertices, faces = arrow()
    z = end - begin
    x = np.cross(z, np.eye(3)[np.abs(z).argmin()])
    x *= np.linalg.norm(z) / np.linalg.norm(x)
    y = np.cross(z, x) / np.linalg.norm(z)
    return Mesh(
        vertices=vertices @ np.stack([x, y, z]) + begin,
        faces=faces,
        colors=np.broadcast_to(np.array(RED, np.uint8), faces.shape).copy(),
    )
