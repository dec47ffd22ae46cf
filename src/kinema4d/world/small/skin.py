"""Skin: the colour of a part's whole surface, from the side that the first picture shows.

What is seen keeps the pixels of the picture. What is not takes the colour of the nearest seen surface that faces the
same way; cans, boxes and bowls are about as deep as they look, so the seen side, mirrored through the upright plane
that faces the camera, counts as seen too, only a little farther off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int32, UInt8
from scipy.ndimage import binary_dilation, binary_erosion, distance_transform_edt
from scipy.spatial import KDTree

from kinema4d.geometry.camera import project
from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import NEAR, Light, assemble, rasterize
from kinema4d.geometry.se3 import invert
from kinema4d.types import Camera
from kinema4d.world.small.parts import Part

MARGIN = 3
"""Pixels around a part that its cut-out of the picture keeps."""
SAME_SURFACE = 0.02
"""A pixel whose depth differs more from the part's surface shows something else, metres."""
FACING = (0.1, 0.3)
"""Cosine towards the camera below which a surface was seen too slantwise to be copied, and above which it is copied."""
HIDDEN = 0.003
"""So far behind the part's own front a surface is hidden by it, metres; more where the front slopes."""
SAMPLES = 4000
"""Points of the surface that are coloured."""
CELLS = 40
"""Cells of the colour volume along the longest side."""
NEIGHBOURS = 6
"""Seen points that colour an unseen one."""
TURNED, MIRRORED = 0.4, 0.15
"""What facing the opposite way and being mirrored count as distance, in sizes of the part."""
FAR = 0.3
"""What is seen so far off tells no more than the mean of all that is seen, in sizes of the part."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Skin:
    """Colours of one part, in the camera frame at the first frame."""

    left: int
    """First column of the cut-out in the picture."""
    top: int
    """First row of it."""
    texture: UInt8[np.ndarray, "h w 3"]
    """The cut-out; pixels that show something else continue the part's own."""
    trust: Float32[np.ndarray, "h w"]
    """How far a pixel shows the part, and not too slantwise, 0..1."""
    depth: Float32[np.ndarray, "h w"]
    """Of the part's own front, metres; 0 where it is not."""
    slack: Float32[np.ndarray, "h w"]
    """A point so near to that depth is on the front, metres."""
    low: Float[np.ndarray, "3"]
    """Least corner of the colour volume, metres."""
    cell: float
    """Side of its cells, metres."""
    volume: UInt8[np.ndarray, "z y x 3"]
    """Colour of the surface where it is not seen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstFrame:
    """The first frame as the camera sees it."""

    image: UInt8[np.ndarray, "h w 3"]
    """Colour."""
    depth: Float[np.ndarray, "h w"]
    """Along the optical axis, metres."""
    has_depth: Bool[np.ndarray, "h w"]
    """Where it is known."""
    camera: Camera
    """Who is looking; it stands still."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Lamp:
    """The light of the first frame."""

    direction_world: Float[np.ndarray, "3"]
    """Unit vector towards the sun."""
    gain: Float[np.ndarray, "3"]
    """How much stronger it is than the light from all around, per channel."""

    def share(
        self, normals: Float[np.ndarray, "*n 3"], dim: Float[np.ndarray, "*n"] | float = 0.0
    ) -> Float[np.ndarray, "*n 3"]:
        """Light on surfaces with these world normals that lack the share ``dim`` of the sun, against one that faces it."""
        cosine = np.maximum(normals @ self.direction_world, 0.0) * (1 - np.asarray(dim))
        return (1 + self.gain * cosine[..., None]) / (1 + self.gain)


def skin(part: Part, frame: FirstFrame, lamp: Lamp | None = None, dim: Float[np.ndarray, "h w"] | None = None) -> Skin:
    """Colour a part as far as the first picture shows it, and guess the rest. With a ``lamp``, colours are those of full
    light (``dim`` is the share of it that pixels of the picture lack); without, those of the first frame."""
    camera, T_camera_world = frame.camera, invert(frame.camera.T_world_camera)
    vertices, up = part.vertices @ T_camera_world[:3, :3].T + T_camera_world[:3, 3], T_camera_world[:3, 2]
    here = box_of(part.vertices, camera, margin=MARGIN)
    top, left, window = here[0].start, here[1].start, (here[0].stop - here[0].start, here[1].stop - here[1].start)
    front, facing, normal = _front(vertices, part.faces, camera, top, left, window)
    there, depth = front > 0, frame.depth[here]
    shown = part.mask[here] & there & ~(frame.has_depth[here] & (np.abs(depth - front) > SAME_SURFACE))
    inner = np.asarray(binary_erosion(shown, np.ones((3, 3), bool)), bool)
    if 4 * inner.sum() < shown.sum():  # too thin to lose its border
        inner = shown
    cut = frame.image[here]
    if lamp is not None:
        light = lamp.share(normal @ T_camera_world[:3, :3], 0.0 if dim is None else dim[here])
        cut = np.where(there[..., None], np.clip(cut / light, 0, 255), cut).round().astype(np.uint8)
    if inner.any():
        cut = cut[tuple(_nearest(inner))]
    steep = np.clip((facing - FACING[0]) / (FACING[1] - FACING[0]), 0, 1)
    slant = np.sqrt(1 - facing**2) / np.maximum(facing, FACING[0])
    slack = (HIDDEN + 1.5 * slant * front / camera.K[0, 0]).astype(np.float32)
    near = np.asarray(binary_dilation(shown, np.ones((3, 3), bool)), bool)
    trust = np.where(near & there, steep, 0).astype(np.float32)
    samples, normals = _samples(vertices, part.faces)
    before = samples[:, 2] > NEAR
    uv = np.round(project(camera.K, np.where(before[:, None], samples, [0, 0, 1]))).astype(int) - (left, top)
    u, v = np.clip(uv, 0, (window[1] - 1, window[0] - 1)).T
    inside = before & (uv >= 0).all(axis=1) & (uv < (window[1], window[0])).all(axis=1)
    towards = -(samples * normals).sum(axis=1) > 0
    seen = inside & towards & (trust[v, u] > 0.5) & (np.abs(samples[:, 2] - front[v, u]) <= slack[v, u])
    known = cut[inner] if inner.any() else frame.image[part.mask]  # (not relit: nothing says how it faces)
    plain = known.mean(axis=0) if len(known) else np.full(3, 128.0)
    colours = _spread(samples, normals, cut[v, u].astype(np.float64), seen, up, plain)
    low, cell, volume = _volume(samples, colours)
    cut = np.ascontiguousarray(cut)
    return Skin(
        left=left, top=top, texture=cut, trust=trust, depth=front, slack=slack, low=low, cell=cell, volume=volume
    )


def box_of(vertices: Float[np.ndarray, "v 3"], camera: Camera, *, margin: int = 0) -> tuple[slice, slice]:
    """Rows and columns in which world points may be seen; at least one pixel."""
    points = vertices @ camera.T_world_camera[:3, :3] - camera.T_world_camera[:3, 3] @ camera.T_world_camera[:3, :3]
    if not (points[:, 2] > NEAR).all():
        return slice(0, camera.height), slice(0, camera.width)
    u, v = project(camera.K, points).T
    left, right = (
        int(np.clip(n, 0, camera.width - 1)) for n in (np.floor(u.min()) - margin, np.ceil(u.max()) + margin)
    )
    top, bottom = (
        int(np.clip(n, 0, camera.height - 1)) for n in (np.floor(v.min()) - margin, np.ceil(v.max()) + margin)
    )
    return slice(top, bottom + 1), slice(left, right + 1)


def _front(
    vertices: np.ndarray, faces: np.ndarray, camera: Camera, top: int, left: int, window: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Depth of the surface in the cut-out (0 where it is not), cosine between its normal and the camera, the normal."""
    K = camera.K - np.array([[0, 0, left], [0, 0, top], [0, 0, 0]])
    small = Camera(K=K, T_world_camera=np.eye(4), height=window[0], width=window[1])
    surface = assemble([(Mesh(vertices=vertices, faces=faces, colors=normal_colours(vertices, faces)), 0)])
    drawn = rasterize(surface, np.eye(4)[None, None], small, rgb=True, light=Light(ambient=1.0), threads=1)
    assert drawn.rgb is not None
    points, normal = drawn.points[0], drawn.rgb[0] / 127.5 - 1
    length = np.linalg.norm(points, axis=-1) * np.linalg.norm(normal, axis=-1)
    facing = np.clip(-(points * normal).sum(axis=-1) / np.maximum(length, 1e-9), 0, 1)
    return points[..., 2], facing, normal / np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-9)


def normal_colours(vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"]) -> UInt8[np.ndarray, "f 3"]:
    """The normal of each face as its colour. Without a light the rasteriser draws faces in their own colours, so that
    pixels know their normals."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)
    normal /= np.maximum(np.linalg.norm(normal, axis=1), 1e-12)[:, None]
    return np.round(127.5 * (normal + 1)).astype(np.uint8)


def _samples(vertices: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points evenly over the surface, and the normals there."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)
    area = np.linalg.norm(normal, axis=1)
    rng = np.random.default_rng(0)
    ends = np.cumsum(area) / max(area.sum(), 1e-12)
    face = np.minimum(np.searchsorted(ends, (np.arange(SAMPLES) + 0.5) / SAMPLES), len(faces) - 1)
    r, s = rng.random((2, SAMPLES, 1))
    r, s = np.where(r + s > 1, 1 - r, r), np.where(r + s > 1, 1 - s, s)
    points = a[face] + r * (b - a)[face] + s * (c - a)[face]
    return points, (normal / np.maximum(area, 1e-12)[:, None])[face]


def _spread(
    points: np.ndarray, normals: np.ndarray, colours: np.ndarray, seen: np.ndarray, up: np.ndarray, plain: np.ndarray
) -> np.ndarray:
    """Colours of all points from those of the seen ones; ``plain`` where none is seen."""
    if not seen.any():
        return np.broadcast_to(plain, colours.shape)
    size = max(float(np.ptp(points, axis=0).max()), 1e-6)
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    across = middle - up * (middle @ up)  # level, away from the camera
    across /= max(float(np.linalg.norm(across)), 1e-9)
    mirror = np.eye(3) - 2 * np.outer(across, across)

    def features(p: np.ndarray, n: np.ndarray, extra: float) -> np.ndarray:
        return np.column_stack([p / size, TURNED / 2 * n, np.full(len(p), extra)])

    own, facing = points[seen], normals[seen]
    other = features((own - middle) @ mirror + middle, facing @ mirror, MIRRORED)
    tree = KDTree(np.concatenate([features(own, facing, 0.0), other]))
    gap, index = tree.query(features(points[~seen], normals[~seen], 0.0), k=min(NEIGHBOURS, 2 * len(own)))
    gap, index = gap.reshape(len(gap), -1), index.reshape(len(gap), -1) % len(own)
    weight = 1 / (gap + 0.01) ** 2
    near = (colours[seen][index] * weight[..., None]).sum(axis=1) / weight.sum(axis=1)[:, None]
    trust = 1 / (1 + (gap[:, :1] / FAR) ** 4)
    out = colours.copy()
    out[~seen] = trust * near + (1 - trust) * plain
    return out


def _volume(points: np.ndarray, colours: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """Coloured points as a volume: the mean of each cell's points, elsewhere the nearest such cell."""
    cell = max(float(np.ptp(points, axis=0).max()) / CELLS, 1e-4)
    low = points.min(axis=0) - cell
    index = ((points - low) / cell).astype(int)
    nx, ny, nz = index.max(axis=0) + 2
    flat = (index[:, 2] * ny + index[:, 1]) * nx + index[:, 0]
    count = np.bincount(flat, minlength=nx * ny * nz)
    total = np.stack([np.bincount(flat, colours[:, k], nx * ny * nz) for k in range(3)], axis=1)
    mean = (total / np.maximum(count, 1)[:, None]).reshape(nz, ny, nx, 3)
    return low, cell, mean[tuple(_nearest(count.reshape(nz, ny, nx) > 0))].round().clip(0, 255).astype(np.uint8)


def _nearest(there: Bool[np.ndarray, "*n"]) -> Int32[np.ndarray, "d *n"]:
    """For every cell the index of the nearest that is there."""
    index = distance_transform_edt(~there, return_distances=False, return_indices=True)
    assert isinstance(index, np.ndarray)
    return index
