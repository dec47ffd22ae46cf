"""Where the robot's outline should be, where the image says it is, and how far the two are apart.

The outline comes from the rasteriser's mask, the evidence from edges of the image (or of a given mask) along
the outline's normals. :mod:`kinema4d.robot.calibrate` moves a camera until the two agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8
from scipy import ndimage, special

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.raster import Surfaces, assemble, rasterize
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.types import Camera

SEARCH_PX = 8.0
"""Half-width of the edge search in the reported error; a missing edge counts as this much."""
STEP_PX = 0.5
"""Spacing of the samples along a normal, refined to sub-pixel by a parabola."""
BLUR_PX = 1.0
"""Gaussian scale of the image gradient and of the outline: the two round corners alike."""
EDGE_LEVELS = 6.0
"""Weakest edge that counts, in grey levels (of 255) per pixel across the outline. Lower ones find an edge anywhere:
on DROID the gap between a right and a wrong camera narrows (benchmarked at 3, 4, 6, 8, 12)."""
STILL_WEIGHT = 0.1
"""What an edge that never moves is worth beside one that does, when the two compete for an outline point. Not zero,
because the base of the arm does not move either."""
OUTLINE_POINTS = 400
"""Most outline points per frame: neighbours say the same thing."""
_ROOM = int(np.ceil(4 * BLUR_PX)) + 1
"""Reach of the blur in pixels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """Edges of several frames, ready to be searched."""

    gradient: Float32[np.ndarray, "t h w 2"]
    """(d/du, d/dv) in grey levels per pixel, of the colour channel that changes most."""
    moving: Float32[np.ndarray, "t h w"]
    """How much the gradient differs from its median over time, ``STILL_WEIGHT`` .. 1: the camera stands still and
    the arm does not, so this tells the arm from the clutter behind it."""
    mask: bool
    """Made from masks: only a fall from inside to outside is an edge."""

    def __len__(self) -> int:
        return len(self.gradient)

    def take(self, frames: Int[np.ndarray, " n"]) -> Evidence:
        """A selection of frames."""
        return Evidence(gradient=self.gradient[frames], moving=self.moving[frames], mask=self.mask)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """Sampled silhouette of the robot over several frames."""

    frame: Int[np.ndarray, " n"]
    """Which frame each point belongs to."""
    uv: Float[np.ndarray, "n 2"]
    """Sub-pixel position on the outline."""
    normal: Float[np.ndarray, "n 2"]
    """Unit image normal, pointing out of the robot."""
    points: Float[np.ndarray, "n 3"]
    """The surface point next to it, camera frame, metres."""
    covered: Float[np.ndarray, " t"]
    """Per frame: share of the image that the robot fills."""
    changed: float
    """Share of the pixels ever covered that are not always covered: how much the arm moves in the image."""


@dataclass(frozen=True, kw_only=True)
class ContourError:
    """Agreement of outline and image: the figures to quote for a calibration."""

    mean_px: float
    """Mean distance from the outline to the nearest edge along its normal, within ``SEARCH_PX``; a point
    without an edge counts as ``SEARCH_PX``."""
    median_px: float
    """Median of the same."""
    below_2px: float
    """Share of outline points with an edge nearer than 2 px."""
    found: int
    """Outline points that have an edge."""
    points: int
    """Outline points in all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """A robot in known configurations, ready to be drawn from any camera."""

    surfaces: Surfaces
    """The robot's triangles."""
    Ts_world_link: Float[np.ndarray, "t link 4 4"]
    """Link poses of every frame."""

    def take(self, frames: Int[np.ndarray, " n"]) -> Scene:
        """A selection of frames, in the given order."""
        return Scene(surfaces=self.surfaces, Ts_world_link=self.Ts_world_link[frames])


def robot_scene(
    robot: Robot, q: Float[np.ndarray, "t dof"], T_world_base: Float[np.ndarray, "4 4"] | None = None
) -> Scene:
    """The robot at every row of ``q``; its base is the world unless ``T_world_base`` says otherwise."""
    Ts_base_link = forward_kinematics(robot, q)
    Ts_world_link = Ts_base_link if T_world_base is None else np.asarray(T_world_base, float) @ Ts_base_link
    return Scene(surfaces=assemble([(v.mesh, v.link) for v in robot.visuals]), Ts_world_link=Ts_world_link)


def find_edges(images: UInt8[np.ndarray, "t h w 3"] | Bool[np.ndarray, "t h w"]) -> Evidence:
    """Gradients of RGB frames, or of robot masks."""
    mask = images.dtype == bool
    out = np.empty((*images.shape[:3], 2), np.float32)
    for t, image in enumerate(images):
        channels = [image.astype(np.float32) * 255] if mask else list(np.moveaxis(image, -1, 0).astype(np.float32))
        # Canny's rule for colour: each pixel speaks through the channel that changes most there.
        g = np.stack([np.stack([_gaussian(c, axis=1), _gaussian(c, axis=0)], axis=-1) for c in channels])
        best = (g**2).sum(axis=-1).argmax(axis=0)
        out[t] = np.take_along_axis(g, best[None, ..., None], axis=0)[0]
    moving = np.ones(out.shape[:3], np.float32)
    if not mask and len(out) >= 3:
        still = np.median(out, axis=0)
        size = np.linalg.norm(out, axis=-1) + np.linalg.norm(still, axis=-1)
        moving = np.maximum(np.linalg.norm(out - still, axis=-1) / np.maximum(size, 1e-6), STILL_WEIGHT)
    return Evidence(gradient=out, moving=moving.astype(np.float32), mask=mask)


def draw_outline(scene: Scene, camera: Camera, *, max_points: int = OUTLINE_POINTS) -> Outline:
    """The robot's silhouette in every frame. Where the image's border cuts the robot there is no outline."""
    frames = len(scene.Ts_world_link)
    render = rasterize(scene.surfaces, T_camera_world(camera, frames)[:, None] @ scene.Ts_world_link, camera)
    parts = [_trace(valid, max_points) for valid in render.valid]
    frame = np.repeat(np.arange(frames), [len(p[0]) for p in parts])
    pixel, uv, normal = (np.concatenate([p[i] for p in parts]) for i in range(3))
    always, ever = render.valid.all(axis=0).sum(), render.valid.any(axis=0).sum()
    return Outline(
        frame=frame,
        uv=uv,
        normal=normal,
        points=render.points[frame, pixel[:, 1], pixel[:, 0]].astype(np.float64),
        covered=render.valid.mean(axis=(1, 2)),
        changed=float(1 - always / ever) if ever else 0.0,
    )


def search_edges(
    evidence: Evidence, outline: Outline, radius: float, *, rank: Literal["nearest", "salient"] = "nearest"
) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Signed distance in pixels, along each normal, to an edge; and whether there is one within ``radius``.

    Where there are several, ``nearest`` is right close to the solution (the strongest edge near an arm is often in
    the background) and ``salient``, strong and moving, is right far from it (the nearest is then any clutter)."""
    reach = radius + 2 * STEP_PX  # a peak needs neighbours on both sides
    steps = np.arange(-reach, reach + STEP_PX / 2, STEP_PX)
    uv = outline.uv[:, None] + steps[:, None] * outline.normal[:, None]
    across = _sample(evidence.gradient, outline.frame, uv, outline.normal)
    strength = np.maximum(-across, 0) if evidence.mask else np.abs(across)
    before, b, after = strength[:, 1:-3], strength[:, 2:-2], strength[:, 3:-1]
    peak = (b > EDGE_LEVELS) & (b >= before) & (b > after)
    # The parabola spans a pixel to each side: between pixels the gradient is linear and has its peaks at pixels.
    a, c = strength[:, :-4], strength[:, 4:]
    distance = steps[2:-2] + 2 * STEP_PX * np.clip(0.5 * (a - c) / np.minimum(a - 2 * b + c, -1e-9), -0.75, 0.75)
    if rank == "nearest":
        score = -np.abs(distance)
    else:
        h, w = evidence.moving.shape[1:]
        u, v = np.moveaxis(np.clip(np.rint(uv[:, 2:-2]), 0, [w - 1, h - 1]).astype(np.int64), -1, 0)
        score = evidence.moving[outline.frame[:, None], v, u] * np.sqrt(b)
    best = np.where(peak, score, -np.inf).argmax(axis=1)
    found = np.asarray(peak.any(axis=1))
    return np.where(found, distance[np.arange(len(uv)), best], 0.0), found


def contour_error(evidence: Evidence, scene: Scene, camera: Camera) -> ContourError:
    """How well the robot, seen from ``camera``, sits on the edges of the frames."""
    outline = draw_outline(scene, camera)
    if len(outline.frame) == 0:
        return ContourError(mean_px=SEARCH_PX, median_px=SEARCH_PX, below_2px=0.0, found=0, points=0)
    distance, found = search_edges(evidence, outline, SEARCH_PX)
    error = np.where(found, np.abs(distance), SEARCH_PX)
    return ContourError(
        mean_px=float(error.mean()),
        median_px=float(np.median(error)),
        below_2px=float((error < 2).mean()),
        found=int(found.sum()),
        points=len(error),
    )


def _gaussian(channel: np.ndarray, axis: int) -> np.ndarray:
    """Derivative along ``axis`` of the smoothed channel."""
    along = ndimage.gaussian_filter1d(channel, BLUR_PX, axis=axis, order=1, mode="nearest")
    return np.asarray(ndimage.gaussian_filter1d(along, BLUR_PX, axis=1 - axis, mode="nearest"))


def _trace(valid: np.ndarray, max_points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outline pixels (u, v), their sub-pixel positions and outward normals, for one mask."""
    rows, columns = np.nonzero(valid.any(axis=1))[0], np.nonzero(valid.any(axis=0))[0]
    if len(rows) == 0:
        return np.zeros((0, 2), np.int64), np.zeros((0, 2)), np.zeros((0, 2))
    # Work on the robot's box only, with room for the blur: most of the image is empty.
    top, left = max(rows[0] - _ROOM, 0), max(columns[0] - _ROOM, 0)
    valid = valid[top : rows[-1] + 1 + _ROOM, left : columns[-1] + 1 + _ROOM]
    inner = np.asarray(ndimage.binary_erosion(valid, border_value=1), bool)  # the image's border is not an outline
    v, u = np.nonzero(valid & ~inner)
    soft = valid.astype(np.float64)
    level = ndimage.gaussian_filter(soft, BLUR_PX, mode="nearest")[v, u]
    g = np.stack([_gaussian(soft, axis=1)[v, u], _gaussian(soft, axis=0)[v, u]], axis=-1)
    slope = np.linalg.norm(g, axis=-1)
    # A thin sliver has no defined side; the outline of its neighbours is enough.
    keep = np.nonzero(slope > 0.1)[0]
    keep = keep[np.linspace(0, len(keep) - 1, min(max_points, len(keep))).astype(int)]
    pixel, normal = np.stack([u + left, v + top], axis=-1)[keep], -g[keep] / slope[keep, None]
    # The blur of a straight edge is the normal distribution of the distance to it.
    uv = pixel + normal * np.clip(BLUR_PX * special.ndtri(level[keep]), -0.5, 1.5)[:, None]
    return pixel, uv, normal


def _sample(gradient: np.ndarray, frame: np.ndarray, uv: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Bilinear gradient at ``uv`` [n, steps, 2], across the outline. Outside the image there is no edge."""
    h, w = gradient.shape[1:3]
    inside = ((uv >= 0) & (uv <= [w - 1, h - 1])).all(axis=-1)
    base = np.clip(np.floor(uv), 0, [w - 2, h - 2]).astype(np.int64)
    f = np.clip(uv - base, 0, 1)
    start = (frame[:, None] * h + base[..., 1]) * w + base[..., 0]
    flat = gradient.reshape(-1, 2)
    out: Any = 0.0
    for du, dv in ((0, 0), (1, 0), (0, 1), (1, 1)):
        weight = (f[..., 0] if du else 1 - f[..., 0]) * (f[..., 1] if dv else 1 - f[..., 1])
        g = flat[start + dv * w + du]
        out = out + weight * (g[..., 0] * normal[:, None, 0] + g[..., 1] * normal[:, None, 1])
    return np.where(inside, out, 0.0)
