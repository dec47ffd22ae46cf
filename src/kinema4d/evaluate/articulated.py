"""Where does a robot stand in a pointmap? Articulated ICP: the joints that explain the generated points best.

The expected motion is only where the search starts, beside the frame before; what comes out is decided by the
generated points. So a robot that lags, strays or stands still is found where it is, and the distance to where it should
be is a distance between two robots, in metres at the tool, not between a robot and the wall behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Float32, Int32, UInt16

from kinema4d.evaluate import following_kernels
from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.raster import Render, Surfaces, rasterize
from kinema4d.geometry.se3 import look_at
from kinema4d.robot.control import robot_surfaces
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import PRISMATIC, Robot
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Arm, Camera

ROWS, COLUMNS = 96, 144
"""Largest picture that is looked at; a larger one is thinned to every n-th pixel. A pixel is then about 8 mm of arm."""
SURFACE_M = 0.015
"""A generated point this near to the fitted robot at its pixel is robot: three times the noise of a good pointmap, and
thinner than a finger."""
EXPLAINED_M = 0.02
"""A patch explains a point less the further it is across the surface, and not at all from here on."""
FOUND_SHARE = 0.5
"""Least share of the fitted robot's visible pixels that must lie on generated points. A right fit to points with 5 mm
of noise has 0.95, one to blurred edges 0.7; a robot laid into table and wall has 0.1 to 0.3."""
SEEN_PIXELS = 25
"""Fewest visible pixels of a robot that can be fitted at all."""
PATCHES_PER_LINK = 200
"""Surface samples per link: small links weigh as much as large ones, since the tool hangs on them."""
WIDE = ((6, 0.12), (6, 0.12), (6, 0.1), (5, 0.08), (4, 0.06), (3, 0.05), (2, 0.04), (2, 0.03), (2, 0.025), (1, 0.02))
"""Steps of the search: pixels looked around, and metres up to which a point is taken. Wide enough for a tool that is
5 cm off, narrow in the end so that the table under the hand pulls no more."""
NARROW = ((1, 0.025), (1, 0.02), (1, 0.015), (1, 0.015))
"""Steps of the second search, with exactly the surface that is seen from the first answer."""
DAMPING = 0.02
"""Added to the normal equations per rad^2, in square metres summed over patches: holds joints that nothing seen moves,
and is nothing beside some hundred patches at arm's length."""
_VIEWS, _VIEW_PX, _POSTURES = 8, 256, 4
_CELL_M = 0.012


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """A robot as the fit needs it."""

    robot: Robot
    """The kinematics."""
    patches: Float[np.ndarray, "n 3"]
    """Points of the surface that can be seen from outside, each in the frame of its link."""
    normals: Float[np.ndarray, "n 3"]
    """Outward normals there."""
    links: Int32[np.ndarray, " n"]
    """Link of each patch."""
    areas: Float[np.ndarray, " n"]
    """Surface that each patch stands for, in square metres."""
    moves: Bool[np.ndarray, "link link"]
    """[a, b]: the joint of link b moves link a."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """The robots of an episode before its camera, on few pixels."""

    bodies: tuple[Body, ...]
    """One per arm."""
    arms: tuple[Arm, ...]
    """The expected motion."""
    surfaces: Surfaces
    """All robots' triangles; links are numbered one after the other."""
    camera: Camera
    """The thinned view."""
    rows: slice
    """Rows of the full picture that are looked at."""
    columns: slice
    """Columns of the full picture that are looked at."""
    expected: Render
    """The robots where kinematics has them."""

    @property
    def frames(self) -> int:
        """Length of the episode."""
        return len(self.arms[0].trajectory.q)

    def thin(self, image: np.ndarray) -> np.ndarray:
        """Pictures ``[t, h, w, ...]`` on the stage's pixels."""
        return np.ascontiguousarray(image[:, self.rows, self.columns])


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Where the robots stand in a pointmap."""

    q: tuple[Float[np.ndarray, "t dof"], ...]
    """Fitted joints of each arm; only a guess where not ``found``."""
    found: Bool[np.ndarray, "t arm"]
    """Whether enough of the fitted robot lies on generated points."""
    share: Float[np.ndarray, "t arm"]
    """How much of it does, of the pixels where nothing stands before it."""
    render: Render
    """The fitted robots as the camera would see them alone."""
    mask: Bool[np.ndarray, "t h w"]
    """Generated points that lie on a found robot."""


@lru_cache(maxsize=16)
def body(name: str) -> Body:
    """A robot by name, with its patches; kept for the next episode."""
    robot = load_robot(name)
    patches, normals, links, areas = _exterior(robot)
    moves = np.zeros((len(robot.link_names),) * 2, bool)
    for a in range(len(moves)):
        b = a
        while b >= 0:
            moves[a, b] = robot.column[b] >= 0
            b = int(robot.parent[b])
    return Body(robot=robot, patches=patches, normals=normals, links=links, areas=areas, moves=moves)


@lru_cache(maxsize=16)
def _surfaces(names: tuple[str, ...]) -> Surfaces:
    return robot_surfaces([body(n).robot for n in names])


def stage(arms: Sequence[Arm], camera: Camera) -> Stage:
    """Set the robots before the camera and draw them where they should be."""
    step = max(1, -(-camera.height // ROWS), -(-camera.width // COLUMNS))
    first = step // 2
    rows, columns = slice(first, None, step), slice(first, None, step)
    # Pixel (u, v) of the thinned picture is pixel (first + step u, first + step v) of the full one, ray for ray.
    S = np.array([[1 / step, 0, -first / step], [0, 1 / step, -first / step], [0, 0, 1]])
    small = Camera(
        K=S @ camera.K,
        T_world_camera=camera.T_world_camera,
        height=len(range(first, camera.height, step)),
        width=len(range(first, camera.width, step)),
    )
    surfaces = _surfaces(tuple(a.robot for a in arms))
    bodies = tuple(body(a.robot) for a in arms)
    expected = draw(surfaces, bodies, arms, [a.trajectory.q for a in arms], small)
    return Stage(
        bodies=bodies, arms=tuple(arms), surfaces=surfaces, camera=small, rows=rows, columns=columns, expected=expected
    )


def draw(
    surfaces: Surfaces, bodies: Sequence[Body], arms: Sequence[Arm], qs: Sequence[np.ndarray], camera: Camera
) -> Render:
    """The robots with joints ``qs``, alone before the camera."""
    Ts_world_link = [
        a.trajectory.T_world_base @ forward_kinematics(b.robot, q) for a, b, q in zip(arms, bodies, qs, strict=True)
    ]
    return rasterize(
        surfaces, T_camera_world(camera, len(qs[0]))[:, None] @ np.concatenate(Ts_world_link, axis=1), camera
    )


def fit(
    at: Stage,
    points: Float32[np.ndarray, "t h w 3"],
    valid: Bool[np.ndarray, "t h w"],
) -> Fit:
    """Find the robots in generated points (camera frame, the stage's pixels). A wide search with few patches comes
    first; then, pixel by pixel, whether what it found explains the points better than the expected robot does, for a few
    patches can be mistaken; and from the better of the two a narrow search with every pixel that is seen."""
    expected = [a.trajectory.q for a in at.arms]
    wide = [_fit_arm(at, i, q, None, points, valid) for i, q in enumerate(expected)]
    drawn, qs = draw(at.surfaces, at.bodies, at.arms, wide, at.camera), []
    pixels = zip(_arm_pixels(at, at.expected), _arm_pixels(at, drawn), strict=True)
    for i, (due, got) in enumerate(pixels):
        better = _support(drawn.points, got, points, valid) > _support(at.expected.points, due, points, valid)
        start = np.where(better[:, None], wide[i], expected[i])
        pick = better[:, None, None]
        seen = np.where(pick[..., None], drawn.points, at.expected.points), np.where(pick, drawn.ids, at.expected.ids)
        qs.append(_fit_arm(at, i, start, seen, points, valid))
    render = draw(at.surfaces, at.bodies, at.arms, qs, at.camera)
    gap = np.linalg.norm(points - render.points, axis=-1)
    near = render.valid & valid & (gap < SURFACE_M)
    before = render.valid & valid & (points[..., 2] < render.points[..., 2] - SURFACE_M)
    share, found = np.zeros((at.frames, len(qs))), np.zeros((at.frames, len(qs)), bool)
    for i, own in enumerate(_arm_pixels(at, render)):
        good = (near & own).sum(axis=(1, 2))
        open_ = (own & ~before).sum(axis=(1, 2))
        share[:, i] = good / np.maximum(open_, 1)
        # A robot that is almost wholly behind something is not found either.
        found[:, i] = (share[:, i] >= FOUND_SHARE) & (good >= np.maximum(SEEN_PIXELS, 0.25 * own.sum(axis=(1, 2))))
        near &= ~own | found[:, i, None, None]
    return Fit(q=tuple(qs), found=found, share=share, render=render, mask=near)


def tool_path(at: Stage, arm: int, q: Float[np.ndarray, "t dof"]) -> Float[np.ndarray, "t 3"]:
    """Position of the tool in the world."""
    robot = at.bodies[arm].robot
    Ts = at.arms[arm].trajectory.T_world_base @ forward_kinematics(robot, q)[:, robot.link_index(robot.tool_link)]
    return Ts[:, :3, 3]


def _arm_pixels(at: Stage, render: Render) -> list[Bool[np.ndarray, "t h w"]]:
    ends = np.cumsum([0] + [len(b.robot.link_names) for b in at.bodies])
    return [(render.ids > a) & (render.ids <= b) for a, b in itertools.pairwise(ends)]


def _support(
    drawn: np.ndarray, own: Bool[np.ndarray, "t h w"], points: np.ndarray, valid: np.ndarray
) -> Float[np.ndarray, " t"]:
    """Per frame: how many pixels of a drawn robot lie on generated points, softly, less half of those through which one
    sees something behind."""
    off = np.where(valid, np.linalg.norm(points - drawn, axis=-1), np.inf)
    through = own & (off > 2 * SURFACE_M) & (~valid | (points[..., 2] > drawn[..., 2]))
    return np.where(own, np.maximum(1 - off / (2 * SURFACE_M), 0) - 0.5 * through, 0).sum(axis=(1, 2))


def _fit_arm(
    at: Stage,
    arm: int,
    starts: np.ndarray,
    seen: tuple[np.ndarray, np.ndarray] | None,
    points: np.ndarray,
    valid: np.ndarray,
) -> Float[np.ndarray, "t dof"]:
    """One arm's joints, with its patches or, given a drawing (points and ids), with what is seen there."""
    own, T_world_base = at.bodies[arm], at.arms[arm].trajectory.T_world_base
    robot, frames = own.robot, at.frames
    Ts_camera_base = T_camera_world(at.camera, frames) @ T_world_base
    if seen is None:
        patches, normals, links, areas = own.patches, own.normals, own.links, own.areas
        spans = np.tile(np.array([0, len(links)], np.int64), (frames, 1))
    else:
        first = sum(len(b.robot.link_names) for b in at.bodies[:arm])
        Ts = Ts_camera_base[:, None] @ forward_kinematics(robot, starts)
        patches, normals, links, spans = _visible(*seen, Ts, first)
        areas = np.ones(len(links))
    steps = WIDE if seen is None else NARROW
    q, explained = np.empty((frames, robot.dof)), np.empty(frames)
    # A finger slides by centimetres where a joint turns by radians.
    sliding = np.isin(np.arange(robot.dof), robot.column[robot.kind == PRISMATIC])
    following_kernels.fit(
        robot.parent, robot.T_parent_joint, robot.kind, robot.axis, robot.column, robot.multiplier, robot.offset,
        robot.lower, robot.upper, own.moves, patches, normals, links, areas, spans, points, valid, np.array(at.camera.K),
        np.ascontiguousarray(Ts_camera_base), np.array([s[0] for s in steps]), np.array([s[1] for s in steps]),
        np.where(sliding, 50 * DAMPING, DAMPING), EXPLAINED_M, np.ascontiguousarray(starts), seen is None, q, explained,
    )  # fmt: skip
    return q


def _visible(
    points: Float32[np.ndarray, "t h w 3"],
    ids: UInt16[np.ndarray, "t h w"],
    Ts_camera_link: Float[np.ndarray, "t link 4 4"],
    first: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What is seen of one robot in every frame, as patches in link frames: every pixel with a surface around it."""
    links = Ts_camera_link.shape[1]
    own, normal = _pixel_normals(points, ids)
    own &= (ids > first) & (ids <= first + links)
    own[:, ::2, ::2] = own[:, 1::2, 1::2] = False  # every other pixel, as on a chessboard, says the same
    t, v, u = np.nonzero(own)
    link = (ids[t, v, u] - 1 - first).astype(np.int32)
    Ts = Ts_camera_link[t, link]
    patches = np.einsum("nji,nj->ni", Ts[:, :3, :3], points[t, v, u] - Ts[:, :3, 3])
    normals = np.einsum("nji,nj->ni", Ts[:, :3, :3], normal[t, v, u].astype(np.float64))
    ends = np.searchsorted(t, np.arange(len(Ts_camera_link) + 1))
    return patches, normals, link, np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64)


def _pixel_normals(
    points: Float32[np.ndarray, "t h w 3"], ids: UInt16[np.ndarray, "t h w"]
) -> tuple[Bool[np.ndarray, "t h w"], Float32[np.ndarray, "t h w 3"]]:
    """Normals towards the camera from the neighbours right and below, where these are of the same link and near."""
    good = np.zeros(ids.shape, bool)
    normal = np.zeros(points.shape, np.float32)
    here = points[:, :-1, :-1]
    right, below = points[:, :-1, 1:] - here, points[:, 1:, :-1] - here
    n = np.cross(right, below)
    length = np.linalg.norm(n, axis=-1)
    same = (ids[:, :-1, :-1] > 0) & (ids[:, :-1, :-1] == ids[:, :-1, 1:]) & (ids[:, :-1, :-1] == ids[:, 1:, :-1])
    steep = (np.abs(right[..., 2]) > 0.03) | (np.abs(below[..., 2]) > 0.03)
    good[:, :-1, :-1] = same & ~steep & (length > 0)
    n /= np.maximum(length, 1e-12)[..., None]
    n *= np.where((n * here).sum(axis=-1) > 0, -1, 1)[..., None]
    normal[:, :-1, :-1] = n
    return good, normal


def _exterior(robot: Robot) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Patches all around the robot: looked at from ``_VIEWS`` sides in several postures, so that what lies inside of
    the meshes, or in a joint, is not among them. The same for every run."""
    rng = np.random.default_rng(0)
    low = np.where(np.isfinite(robot.lower), robot.lower, -np.pi)
    high = np.where(np.isfinite(robot.upper), robot.upper, np.pi)
    q = np.concatenate([robot.home[None], rng.uniform(low, high, (_POSTURES - 1, robot.dof))])
    Ts_base_link = forward_kinematics(robot, q)
    surfaces = robot_surfaces([robot])
    Ts_base_vertex = Ts_base_link[:, surfaces.vertex_body]
    at = (Ts_base_vertex[..., :3, :3] @ surfaces.vertices[None, :, :, None])[..., 0] + Ts_base_vertex[..., :3, 3]
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for Ts, vertices in zip(Ts_base_link, at, strict=True):
        middle = (vertices.min(axis=0) + vertices.max(axis=0)) / 2
        radius = float(np.linalg.norm(vertices - middle, axis=1).max())
        turns = np.arange(_VIEWS) * (2 * np.pi / _VIEWS)
        heights = np.where(np.arange(_VIEWS) % 2, 0.9, -0.3)
        sides = np.stack([np.cos(turns), np.sin(turns), heights], axis=1)
        eyes = middle + 4 * radius * sides / np.linalg.norm(sides, axis=1, keepdims=True)
        f = 0.5 * _VIEW_PX * 3.8
        K = np.array([[f, 0, (_VIEW_PX - 1) / 2], [0, f, (_VIEW_PX - 1) / 2], [0, 0, 1]])
        camera = Camera(
            K=K,
            T_world_camera=np.stack([look_at(eye, middle) for eye in eyes]),
            height=_VIEW_PX,
            width=_VIEW_PX,
        )
        Ts_camera_link = T_camera_world(camera, _VIEWS)[:, None] @ Ts[None]
        render = rasterize(surfaces, Ts_camera_link, camera)
        patches, normals, links, _ = _visible(render.points, render.ids, Ts_camera_link, 0)
        found.append((patches, normals, links))
    patches, normals, links = (np.concatenate([f[i] for f in found]) for i in range(3))
    areas, chosen = np.zeros(len(links)), []
    for link in np.unique(links):
        of_link = np.flatnonzero(links == link)
        some = rng.permutation(of_link)[:PATCHES_PER_LINK]
        cells = len(np.unique(np.floor(patches[of_link] / _CELL_M).astype(np.int64), axis=0))
        areas[some] = cells * _CELL_M**2 / len(some)
        chosen.append(some)
    keep = np.sort(np.concatenate(chosen))
    return patches[keep], normals[keep], links[keep], areas[keep]
