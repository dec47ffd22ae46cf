"""Meshes in, camera-space pointmap, ids and colour out: equation 1 of the paper for every visible point."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int32, Int64, UInt8, UInt16

from kinema4d.geometry import raster_kernels
from kinema4d.geometry.mesh import Mesh, corner_normals
from kinema4d.types import Camera

NEAR = 1e-3
"""Default near plane in metres. 1/z in float64 loses nothing close to the camera, so it can be tight."""
MAX_SIDE = 32_000
"""Pixel boxes are kept in 16 bits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Surfaces:
    """All triangles of a scene in flat arrays. Each triangle moves with one body."""

    vertices: Float[np.ndarray, "v 3"]
    """Metres in the frame of the vertex's body."""
    vertex_body: Int32[np.ndarray, " v"]
    """Which body each vertex belongs to."""
    spans: Int64[np.ndarray, "s 5"]
    """The same by meshes: first vertex, last + 1, body, first face, last + 1."""
    spheres: Float[np.ndarray, "s 4"]
    """Centre and radius of a ball around each mesh, in the frame of its body."""
    faces: Int32[np.ndarray, "f 3"]
    """Vertex indices."""
    face_body: Int32[np.ndarray, " f"]
    """Which body each face belongs to."""
    normals: Float32[np.ndarray, "f 3 3"]
    """Unit normal of each corner in the body's frame."""
    colors: UInt8[np.ndarray, "f 3"]
    """Base colour."""
    uvs: Float32[np.ndarray, "f 3 2"]
    """Texture coordinates; zero where there is no texture."""
    face_texture: Int32[np.ndarray, " f"]
    """Index into ``texture_shape``, or -1."""
    texels: UInt8[np.ndarray, "n 3"]
    """The pixels of all textures, one after the other."""
    texture_shape: Int64[np.ndarray, "k 3"]
    """Per texture: its first texel, height and width."""


@dataclass(frozen=True, kw_only=True)
class Light:
    """One directional light and what bounces around it."""

    direction_world: tuple[float, float, float] = (0.35, -0.45, 0.82)
    """From the scene towards the light."""
    ambient: float = 0.35
    """Share of light that arrives from everywhere, 0..1."""
    shadow_size: int = 0
    """Side of the shadow map in texels (1024 is good for a table); 0 casts no shadows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Render:
    """What the camera sees. Reusable as the ``out`` of the next call of the same shape."""

    points: Float32[np.ndarray, "t h w 3"]
    """Camera-frame metres; 0 where not ``valid``."""
    valid: Bool[np.ndarray, "t h w"]
    """Pixels that see a surface."""
    ids: UInt16[np.ndarray, "t h w"]
    """Label of the body seen; 0 where not ``valid``."""
    rgb: UInt8[np.ndarray, "t h w 3"] | None = None
    """Shaded colour; black where not ``valid``."""
    boxes: Int64[np.ndarray, "t 4"]
    """Per frame the first and last column and row outside which nothing is valid; empty where first > last."""


def default_threads() -> int:
    """As many as this process may use cores, or ``NUMBA_NUM_THREADS`` where that is set."""
    chosen = os.environ.get("NUMBA_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def assemble(parts: Sequence[tuple[Mesh, int]]) -> Surfaces:
    """Flatten ``(mesh, body)`` pairs; vertices are in the frame of their body."""
    if not parts:
        raise ValueError("there is nothing to draw: the robot has no visual geometry")
    offsets = np.cumsum([0] + [len(m.vertices) for m, _ in parts])
    ends = np.cumsum([0] + [len(m.faces) for m, _ in parts])
    texture_index: dict[int, int] = {}
    textures: list[np.ndarray] = []
    uvs, face_texture = [], []
    for mesh, _ in parts:
        n = len(mesh.faces)
        if mesh.texture is not None and mesh.uvs is not None:
            if id(mesh.texture) not in texture_index:
                texture_index[id(mesh.texture)] = len(textures)
                textures.append(mesh.texture)
            uvs.append(mesh.uvs)
            face_texture.append(np.full(n, texture_index[id(mesh.texture)], np.int32))
        else:
            uvs.append(np.zeros((n, 3, 2), np.float32))
            face_texture.append(np.full(n, -1, np.int32))
    sizes = np.array([i.shape[:2] for i in textures], np.int64).reshape(-1, 2).T
    starts = np.concatenate([[0], np.cumsum(sizes[0] * sizes[1])])[:-1]
    return Surfaces(
        vertices=np.concatenate([m.vertices for m, _ in parts]).astype(np.float64),
        vertex_body=np.concatenate([np.full(len(m.vertices), b, np.int32) for m, b in parts]),
        spans=np.stack([offsets[:-1], offsets[1:], [b for _, b in parts], ends[:-1], ends[1:]], axis=1).astype(
            np.int64
        ),
        spheres=np.array([_ball(m.vertices) for m, _ in parts]),
        faces=np.concatenate([m.faces + np.int32(o) for (m, _), o in zip(parts, offsets[:-1], strict=True)]),
        face_body=np.concatenate([np.full(len(m.faces), b, np.int32) for m, b in parts]),
        normals=np.concatenate([corner_normals(m) for m, _ in parts]),
        colors=np.concatenate([m.colors for m, _ in parts]),
        uvs=np.concatenate(uvs),
        face_texture=np.concatenate(face_texture),
        texels=np.concatenate([np.zeros((0, 3), np.uint8), *(i.reshape(-1, 3) for i in textures)]),
        texture_shape=np.stack([starts, *sizes], axis=1).astype(np.int64),
    )


def _ball(vertices: np.ndarray) -> tuple[float, float, float, float]:
    """Centre and radius of a ball that holds all vertices."""
    if not len(vertices):
        return 0.0, 0.0, 0.0, 0.0
    x, y, z = (vertices.min(axis=0) + vertices.max(axis=0)) / 2
    radius = np.sqrt(((vertices - (x, y, z)) ** 2).sum(axis=1).max())
    return float(x), float(y), float(z), float(radius) * (1 + 1e-9)


def merge(parts: Sequence[tuple[Surfaces, int]]) -> Surfaces:
    """Several assembled scenes as one; the bodies of each are counted from the number beside it. Cheaper than
    :func:`assemble`, so that a robot is assembled once for many scenes."""
    vertices = np.cumsum([0] + [len(s.vertices) for s, _ in parts])
    faces = np.cumsum([0] + [len(s.faces) for s, _ in parts])
    textures = np.cumsum([0] + [len(s.texture_shape) for s, _ in parts])
    texels = np.cumsum([0] + [len(s.texels) for s, _ in parts])
    each = [(s, b, int(v), int(k), int(n)) for (s, b), v, k, n in zip(parts, vertices, textures, texels, strict=False)]
    return Surfaces(
        vertices=np.concatenate([s.vertices for s, *_ in each]),
        vertex_body=np.concatenate([s.vertex_body + np.int32(b) for s, b, *_ in each]),
        spans=np.concatenate(
            [s.spans + np.array([v, v, b, f, f]) for (s, b, v, *_), f in zip(each, faces, strict=False)]
        ),
        spheres=np.concatenate([s.spheres for s, *_ in each]),
        faces=np.concatenate([s.faces + np.int32(v) for s, _, v, *_ in each]),
        face_body=np.concatenate([s.face_body + np.int32(b) for s, b, *_ in each]),
        normals=np.concatenate([s.normals for s, *_ in each]),
        colors=np.concatenate([s.colors for s, *_ in each]),
        uvs=np.concatenate([s.uvs for s, *_ in each]),
        face_texture=np.concatenate(
            [np.where(s.face_texture < 0, -1, s.face_texture + k).astype(np.int32) for s, _, _, k, _ in each]
        ),
        texels=np.concatenate([s.texels for s, *_ in each]),
        texture_shape=np.concatenate([s.texture_shape + np.array([n, 0, 0]) for s, *_, n in each]),
    )


def rasterize(
    surfaces: Surfaces,
    Ts_camera_body: Float[np.ndarray, "t b 4 4"],
    camera: Camera,
    *,
    labels: UInt16[np.ndarray, " b"] | None = None,
    rgb: bool = False,
    light: Light | None = None,
    casters: Surfaces | None = None,
    near: float = NEAR,
    out: Render | None = None,
    threads: int | None = None,
) -> Render:
    """Draw every frame. ``labels`` names the bodies in the id image (default 1 + body index); ``casters`` are the
    triangles that throw shadows, by default all: without the floor, and coarser, they cost less and look the same;
    ``out`` reuses the arrays of an earlier call, which saves the cost of fresh memory; frames are shared out to
    ``threads``."""
    frames, bodies = Ts_camera_body.shape[:2]
    shape = (frames, camera.height, camera.width)
    if max(shape[1:]) > MAX_SIDE:
        raise ValueError(f"images may have at most {MAX_SIDE} rows and columns, got {shape[1]}x{shape[2]}")
    if not near > 0:
        raise ValueError(f"near must be positive, got {near}")
    if int(surfaces.face_body.max(initial=-1)) >= bodies:
        raise ValueError(f"the scene has {int(surfaces.face_body.max()) + 1} bodies but {bodies} transforms were given")
    if labels is None:
        labels = np.arange(1, bodies + 1, dtype=np.uint16)
    if out is None:
        # np.zeros maps pages lazily: pixels that see nothing are never written.
        out = Render(
            points=np.zeros((*shape, 3), np.float32),
            valid=np.zeros(shape, bool),
            ids=np.zeros(shape, np.uint16),
            rgb=np.zeros((*shape, 3), np.uint8) if rgb else None,
            boxes=np.tile(np.array([camera.width, -1, camera.height, -1]), (frames, 1)),
        )
    elif out.valid.shape != shape or (out.rgb is None) == rgb:
        raise ValueError(f"out has shape {out.valid.shape} and rgb={out.rgb is not None}, need {shape} and rgb={rgb}")
    light, cast = light or Light(), casters or surfaces
    if int(cast.face_body.max(initial=-1)) >= bodies:
        raise ValueError(f"shadows come from {int(cast.face_body.max()) + 1} bodies but {bodies} transforms were given")
    if not 0 <= light.shadow_size <= MAX_SIDE:
        raise ValueError(f"the shadow map may have 0 to {MAX_SIDE} texels a side, got {light.shadow_size}")
    direction = np.asarray(light.direction_world, np.float64)
    R_camera_world = np.swapaxes(camera.poses(frames)[:, :3, :3], 1, 2)
    arguments = (
        surfaces.vertices, surfaces.spans, surfaces.spheres, surfaces.faces, surfaces.face_body, labels,
        surfaces.colors, surfaces.normals, surfaces.uvs, surfaces.face_texture, surfaces.texels, surfaces.texture_shape,
        np.ascontiguousarray(Ts_camera_body, np.float64), np.array(camera.K), near,
        R_camera_world @ (direction / np.linalg.norm(direction)), light.ambient,
        light.shadow_size, cast.vertices, cast.spans, cast.faces, cast.face_body,
        _first_still(surfaces, Ts_camera_body, R_camera_world),
    )  # fmt: skip
    results = (
        out.points, out.valid, out.ids, out.rgb if out.rgb is not None else np.zeros((1, 1, 1, 3), np.uint8), out.boxes, rgb
    )  # fmt: skip
    workers = max(1, min(threads or default_threads(), frames))
    if workers == 1:
        raster_kernels.render(*arguments, 0, 1, *results)
    else:  # the kernel releases the interpreter, so plain threads are all it takes
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda first: raster_kernels.render(*arguments, first, workers, *results), range(workers)))
    return out


def _first_still(surfaces: Surfaces, Ts_camera_body: np.ndarray, R_camera_world: np.ndarray) -> int:
    """The span from which on everything stands still before a camera that stands still: walls and tables, where a scene
    lists them last. They are drawn once for all frames."""
    moves = (Ts_camera_body != Ts_camera_body[:1]).any(axis=(0, 2, 3))
    if len(Ts_camera_body) < 2 or (R_camera_world != R_camera_world[:1]).any():
        return len(surfaces.spans)
    moving = np.flatnonzero(moves[surfaces.spans[:, 2]])
    return int(moving[-1]) + 1 if len(moving) else 0
