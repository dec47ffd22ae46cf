"""Fit: which everyday solid explains the pixels of a part, if any (:mod:`kinema4d.world.small.shape`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import least_squares, minimize

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import assemble, rasterize
from kinema4d.geometry.se3 import invert
from kinema4d.types import Camera
from kinema4d.world.small.shape import Shape, mesh_of

LEAST = 24
"""Pixels that are needed."""
GOOD = 0.002
"""How far the pixels of a part may be from a solid in the median, metres."""
BAND = 0.004
"""A pixel this near to the solid, or this much behind it, agrees with it, metres."""
WRONG, WRONG_SMALL, SMALL = 0.16, 0.3, 200
"""Share of pixels that a solid may lack or have too many of; the larger for parts of fewer than ``SMALL`` pixels, which
are mostly border."""
GROUND = 0.0025
"""Pixels of a part this near to where it stands may be the ground's, metres."""
NOISY, SPREAD = 0.0003, 1.6
"""Sensors with more noise (metres) have their normals taken from points averaged over so many pixels."""
SMOOTH = 0.004
"""Width of the window in which a profile is a straight line, metres."""
THIN, THICK, WALL = 0.0025, 0.009, 0.0045
"""Walls of vessels: least, most, and where only one side of them is seen, metres."""


@dataclass(frozen=True, eq=False)
class Sight:
    """A picture with depth, and the pixels of one part in it."""

    own: Bool[np.ndarray, "h w"]
    """The part's."""
    depth: Float[np.ndarray, "h w"]
    """Metres along the optical axis; 0 where unknown."""
    points: Float[np.ndarray, "h w 3"]
    """Every pixel's point."""
    camera: Camera
    """In the same frame."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points of a part with a normal of their own: not at its border."""

    points: Float[np.ndarray, "n 3"]
    normals: Float[np.ndarray, "n 3"]
    every: Float[np.ndarray, "m 3"]
    """Those of the border too."""
    pixel: float
    """Side of a pixel at the part, metres."""
    noise: float
    """Of the sensor, metres."""


def cloud_of(sight: Sight) -> Cloud | None:
    """What is seen of the part; None where that is too little."""
    seen = sight.own & (sight.depth > 0)
    if seen.sum() < LEAST:
        return None
    X = sight.points.astype(np.float64)
    noise = roughness(sight.depth, seen)
    inner = np.zeros(seen.shape, bool)
    inner[1:-1, 1:-1] = seen[1:-1, 1:-1] & seen[2:, 1:-1] & seen[:-2, 1:-1] & seen[1:-1, 2:] & seen[1:-1, :-2]
    r, c = np.nonzero(inner)
    even = _smoothed(X, seen, r, c) if noise > NOISY else X
    normals = np.cross(even[r + 1, c] - even[r - 1, c], even[r, c + 1] - even[r, c - 1])
    length = np.linalg.norm(normals, axis=1)
    own = length > 1e-12
    pixel = float(np.median(sight.depth[seen])) / float(sight.camera.K[1, 1])
    return Cloud(X[r, c][own], normals[own] / length[own, None], X[seen], pixel, noise)


def roughness(depth: Float[np.ndarray, "h w"], own: Bool[np.ndarray, "h w"]) -> float:
    """Noise of a depth sensor, from how much neighbours differ beyond a slope, metres."""
    three = own[:, 1:-1] & own[:, 2:] & own[:, :-2]
    bend = (depth[:, 2:] - 2 * depth[:, 1:-1] + depth[:, :-2])[three]
    return float(np.median(np.abs(bend))) * 1.48 / np.sqrt(6) if len(bend) else 0.0


def _smoothed(X: Float[np.ndarray, "h w 3"], own: Bool[np.ndarray, "h w"], r: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Points averaged with those of the same part around them: noise makes single pixels face anywhere."""
    from scipy.ndimage import gaussian_filter

    cut = (slice(max(r.min() - 2, 0), r.max() + 3), slice(max(c.min() - 2, 0), c.max() + 3)) if len(r) else ...
    out = X.copy()
    weight = gaussian_filter(own[cut].astype(np.float64), SPREAD)
    for k in range(3):
        total = gaussian_filter(np.where(own[cut], X[..., k][cut], 0.0), SPREAD)
        out[..., k][cut] = np.where(own[cut], total / np.maximum(weight, 1e-6), X[..., k][cut])
    return out


def fit(sight: Sight, low: float = 0.0) -> Shape | None:
    """The solid that explains the part best, or None where none does well enough. ``low`` is the height at which it
    stands."""
    # What lies flat on the support is the support, whatever the segmenter says.
    sight = replace(sight, own=sight.own & (sight.points[..., 2] > low + GROUND))
    cloud = cloud_of(sight)
    if cloud is None or len(cloud.points) < 10:
        return None
    tries = [ball(cloud, low), turned(cloud, low), capped(cloud, low), box(cloud, low, sight)]
    best, least = None, np.inf
    for shape in tries:
        if shape is None:
            continue
        off, wrong = disagreement(shape, sight)
        allowed, good = WRONG_SMALL if sight.own.sum() < SMALL else WRONG, GOOD + cloud.noise
        if off < good and wrong < allowed and off / good + wrong / allowed < least:
            best, least = shape, off / good + wrong / allowed
    return best


def disagreement(shape: Shape, sight: Sight) -> tuple[float, float]:
    """How far the part's pixels are from the solid in the median, metres, and the share of pixels that it lacks or has
    too many of."""
    there, hit = drawn(shape, sight.camera)
    seen = sight.depth > 0
    own = sight.own & seen
    off = np.abs(there - sight.depth)
    both = own & hit
    if not both.any():
        return np.inf, np.inf
    lacks = (own & ~hit).sum() + (both & (off > 3 * BAND)).sum()
    extra = (hit & seen & ~sight.own & (there < sight.depth - BAND)).sum()
    return float(np.median(off[both])), float((lacks + extra) / own.sum())


def drawn(shape: Shape, camera: Camera) -> tuple[Float[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    """Depth of a solid, and where it is seen."""
    vertices, faces = mesh_of(shape)
    surface = Mesh(vertices=vertices, faces=faces, colors=np.zeros((len(faces), 3), np.uint8))
    made = rasterize(assemble([(surface, 0)]), invert(camera.poses(1)[0])[None, None], camera, threads=1)
    return made.points[0, ..., 2], made.valid[0]


# ---------------------------------------------------------------------- balls


def ball(cloud: Cloud, low: float) -> Shape | None:
    """A ball that lies on something."""
    A = np.column_stack([2 * cloud.points, np.ones(len(cloud.points))])
    b = (cloud.points**2).sum(axis=1)
    x = np.linalg.lstsq(A, b, rcond=None)[0]
    start = np.array([*x[:3], np.sqrt(max(x[3] + x[:3] @ x[:3], 1e-6))])

    def off(s: np.ndarray) -> np.ndarray:
        return (np.linalg.norm(cloud.points - s[:3], axis=1) - s[3]) / 0.001

    found = least_squares(off, start, loss="soft_l1").x
    radius = float(found[3])
    if (
        not 0.006 < radius < 0.15
        or np.median(np.abs(off(found))) > 1.0 + cloud.noise / 0.001
        or np.ptp(cloud.normals, axis=0).max() < 0.8
    ):
        return None
    bottom = float(found[2]) - radius
    bottom = low if abs(bottom - low) < 0.01 else bottom
    return Shape(centre=found[:2], low=bottom, high=bottom + 2 * radius, ball=radius)


# ---------------------------------------------------------------------- turned solids


def smoother(at: Float[np.ndarray, " n"], ask: Float[np.ndarray, " m"], width: float) -> Float[np.ndarray, "m n"]:
    """The matrix that takes values at ``at`` to local straight lines at ``ask``."""
    d = at[None] - ask[:, None]
    w = np.exp(-0.5 * (d / width) ** 2) + 1e-9
    s0, s1, s2 = w.sum(1), (w * d).sum(1), (w * d * d).sum(1)
    bottom = s0 * s2 - s1**2 + 1e-6 * s0**2 * width**2
    return w * (s2[:, None] - s1[:, None] * d + 1e-6 * (s0 * width**2)[:, None]) / bottom[:, None]


def turned(cloud: Cloud, low: float) -> Shape | None:
    """A profile turned about a vertical axis, full or open above."""
    side = np.abs(cloud.normals[:, 2]) < 0.8
    if side.sum() < 12:
        return None
    P, N = cloud.points[side], cloud.normals[side]
    if len(P) > 500:
        keep = np.random.default_rng(0).permutation(len(P))[:500]
        P, N = P[keep], N[keep]
    level = N[:, :2] / np.linalg.norm(N[:, :2], axis=1, keepdims=True)
    if np.abs(level.mean(axis=0)).max() > 0.999:
        return None
    across = np.column_stack([level[:, 1], -level[:, 0]])

    def missed(c: np.ndarray) -> np.ndarray:  # every normal meets the axis
        return ((P[:, :2] - c) * across).sum(axis=1) / 0.002

    middle = np.median(P[:, :2], axis=0)
    start = least_squares(missed, middle, loss="soft_l1").x
    if np.linalg.norm(start - middle) > 0.3:
        return None
    out = (level * (P[:, :2] - start)).sum(axis=1) > 0
    width = max(SMOOTH, cloud.pixel)
    groups = [g for g in (out, ~out) if g.sum() >= 8]
    if not groups:
        return None
    flats = [np.eye(int(g.sum())) - smoother(P[g, 2], P[g, 2], width) for g in groups]

    def uneven(c: np.ndarray) -> np.ndarray:
        radii = np.linalg.norm(P[:, :2] - c, axis=1)
        return np.concatenate([M @ radii[g] for M, g in zip(flats, groups, strict=True)]) / 0.0007

    found = least_squares(uneven, start, loss="soft_l1").x
    if np.median(np.abs(uneven(found))) > 1.5 + cloud.noise / 0.0007 or np.linalg.norm(found - start) > 0.03:
        return None
    radii = np.linalg.norm(P[:, :2] - found, axis=1)
    top = float(np.percentile(cloud.every[:, 2], 99.5))
    if out.sum() < 8:  # a bowl from above shows nothing of its outer side
        line = profile(P[:, 2], radii + WALL, low, top, width)
        if line is None:
            return None
        return Shape(centre=found, low=low, high=top, profile=line, wall=WALL, floor=low + WALL)
    line = profile(P[out, 2], radii[out], low, top, width)
    if line is None:
        return None
    away = np.linalg.norm(cloud.every[:, :2] - found, axis=1)
    common = {"centre": found, "low": low}
    wall, floor = hollow(cloud, P, radii, out, away, line, top)
    if wall is not None:
        return Shape(high=top, profile=line, wall=wall, floor=max(floor, low + 0.002), **common)
    caps = cloud.normals[:, 2] > 0.9
    flat = float(np.median(cloud.points[caps, 2])) if caps.sum() >= 4 else top
    high = flat if abs(flat - top) < 0.006 else top
    line = line[line[:, 1] < high - 1e-4]
    line = np.concatenate([line, [[line[-1, 0], high]]])
    return Shape(high=high, profile=line, **common)


def capped(cloud: Cloud, low: float) -> Shape | None:
    """A can of which hardly more than its flat round top is seen."""
    top = cloud.normals[:, 2] > 0.95
    if top.sum() < 20 or top.mean() < 0.5:
        return None
    high = float(np.median(cloud.points[top, 2]))
    flat = cloud.every[np.abs(cloud.every[:, 2] - high) < 0.0025, :2]

    def off(c: np.ndarray) -> np.ndarray:
        return border - np.linalg.norm(flat[edge] - c, axis=1)

    middle = flat.mean(axis=0)
    border = float(np.sqrt(2 * ((flat - middle) ** 2).sum(axis=1).mean()))  # of a full disc
    edge = np.linalg.norm(flat - middle, axis=1) > 0.8 * border
    if edge.sum() < 8:
        return None
    centre = least_squares(off, middle, loss="soft_l1", f_scale=0.001).x
    ring = np.array([[border, low], [border, high]])
    return Shape(centre=centre, low=low, high=high, profile=ring) if high - low > 0.006 else None


def profile(
    z: Float[np.ndarray, " n"], r: Float[np.ndarray, " n"], low: float, top: float, width: float
) -> Float[np.ndarray, "k 2"] | None:
    """Radius by height from ``low`` to ``top``, as few straight pieces."""
    a, b = float(np.percentile(z, 1)), float(np.percentile(z, 99))
    if b - a < 0.006 or a - low > 0.6 * (top - low):
        return None
    ask = np.linspace(a, b, max(3, round((b - a) / 0.002)))
    keep = np.ones(len(z), bool)
    for _ in range(3):
        fitted = smoother(z[keep], z, width) @ r[keep]
        off = np.abs(r - fitted)
        keep = off < max(0.0015, 3 * float(np.median(off)))
    line = np.column_stack([smoother(z[keep], ask, width) @ r[keep], ask])
    line[:, 0] = np.maximum(line[:, 0], 0.002)
    ends = np.array([[line[0, 0], low]]), np.array([[line[-1, 0], top]])
    slope = (line[2, 0] - line[0, 0]) / (line[2, 1] - line[0, 1])
    ends[0][0, 0] = max(0.003, line[0, 0] - np.clip(slope, -1.5, 1.5) * min(line[0, 1] - low, 0.012))
    slope = (line[-1, 0] - line[-3, 0]) / (line[-1, 1] - line[-3, 1])
    ends[1][0, 0] = max(0.003, line[-1, 0] + np.clip(slope, -1.5, 1.5) * min(top - line[-1, 1], 0.006))
    inside = line[(line[:, 1] > low + 1e-4) & (line[:, 1] < top - 1e-4)]
    return straightened(np.concatenate([ends[0], inside, ends[1]]), 0.0006)


def straightened(line: Float[np.ndarray, "k 2"], tolerance: float) -> Float[np.ndarray, "j 2"]:
    """Without corners that are within ``tolerance`` of the line between others (Douglas and Peucker)."""
    if len(line) < 3:
        return line
    a, b = line[0], line[-1]
    along = (b - a) / np.linalg.norm(b - a)
    off = np.abs((line - a) @ np.array([-along[1], along[0]]))
    k = int(off.argmax())
    if off[k] <= tolerance:
        return line[[0, -1]]
    return np.concatenate([straightened(line[: k + 1], tolerance)[:-1], straightened(line[k:], tolerance)])


def hollow(
    cloud: Cloud,
    P: np.ndarray,
    radii: np.ndarray,
    out: np.ndarray,
    away: np.ndarray,
    line: np.ndarray,
    top: float,
) -> tuple[float | None, float]:
    """Thickness of the wall and height of the ground of a vessel; None where it is full."""
    rim = float(np.interp(top, line[:, 1], line[:, 0]))
    below = (away < 0.6 * rim) & (cloud.every[:, 2] < top - max(0.008, 0.15 * (top - line[0, 1])))
    inner = ~out & (P[:, 2] > line[0, 1])
    if not inner.any() or (inner.sum() < 0.06 * len(P) and below.sum() < 6):
        return None, 0.0
    thick = np.median(np.interp(P[inner, 2], line[:, 1], line[:, 0]) - radii[inner])
    ground = (away < 0.5 * rim) & (cloud.every[:, 2] < top - 0.4 * (top - line[0, 1]))
    wall = float(np.clip(thick, THIN, THICK))
    seen = float(np.median(cloud.every[ground, 2])) if ground.sum() >= 6 else line[0, 1] + wall
    return wall, min(seen, line[0, 1] + 0.4 * (top - line[0, 1]))


# ---------------------------------------------------------------------- boxes


def box(cloud: Cloud, low: float, sight: Sight) -> Shape | None:
    """An upright box."""
    upright, top = np.abs(cloud.normals[:, 2]) < 0.35, cloud.normals[:, 2] > 0.93
    if upright.sum() < 6 or len(cloud.points) < 16:
        return None
    heading = np.arctan2(cloud.normals[upright, 1], cloud.normals[upright, 0])
    mean = np.exp(4j * heading).mean()
    if abs(mean) < 0.75:
        return None
    yaw = float(np.angle(mean)) / 4
    c, s = np.cos(yaw), np.sin(yaw)
    frame = np.array([[c, s], [-s, c]])
    flat, every = cloud.points[:, :2] @ frame.T, cloud.every[:, :2] @ frame.T
    sides = cloud.normals[:, :2] @ frame.T
    ends = np.empty((2, 2))
    for k in range(2):
        for n, sign in enumerate((-1, 1)):
            face = upright & (sign * sides[:, k] > 0.9)
            edge = np.percentile(every[:, k], 0.5 if sign < 0 else 99.5) + sign * 0.25 * cloud.pixel
            ends[n, k] = np.median(flat[face, k]) if face.sum() >= 5 else edge
    high = float(np.median(cloud.points[top, 2])) if top.sum() >= 5 else float(np.percentile(cloud.every[:, 2], 99.5))
    half = (ends[1] - ends[0]) / 2
    if (half < 0.004).any() or half.max() > 0.3 or high - low < 0.006:
        return None
    start = Shape(centre=frame.T @ ends.mean(axis=0), low=low, high=high, yaw=yaw, half=half)
    return refined(start, sight)


def refined(shape: Shape, sight: Sight) -> Shape:
    """The box moved, turned and resized until it agrees best with the pixels around it."""
    assert shape.half is not None
    rows, columns = np.nonzero(sight.own)
    pad = 4
    window = (
        slice(max(rows.min() - pad, 0), min(rows.max() + pad + 1, len(sight.own))),
        slice(max(columns.min() - pad, 0), min(columns.max() + pad + 1, sight.own.shape[1])),
    )
    T = sight.camera.poses(1)[0]
    v, u = np.mgrid[window]
    K = sight.camera.K
    rays = np.stack([(u - K[0, 2]) / K[0, 0], (v - K[1, 2]) / K[1, 1], np.ones(u.shape)], axis=-1) @ T[:3, :3].T
    depth, own = sight.depth[window], sight.own[window]
    seen = depth > 0
    step = max(1, int(np.sqrt(own.sum() / 900)))
    pick = (slice(None, None, step), slice(None, None, step))
    rays, depth, own, seen = rays[pick].reshape(-1, 3), depth[pick].ravel(), own[pick].ravel(), seen[pick].ravel()
    count, eye = max(1, int((own & seen).sum())), T[:3, 3]

    def made(x: np.ndarray) -> Shape:
        assert shape.half is not None
        return replace(
            shape, centre=shape.centre + x[:2], yaw=shape.yaw + x[2] / 0.03, half=np.maximum(shape.half + x[3:5], 0.003)
        )

    def cost(x: np.ndarray) -> float:
        there, hit = cast(made(x), eye, rays)
        off = np.minimum(np.abs(there - depth), BAND) / BAND
        lacks = (own & seen & ~hit).sum()
        extra = (hit & seen & ~own & (there < depth - BAND)).sum()
        return float(off[own & seen & hit].sum() + lacks + extra) / count + 5 * float(np.abs(x[2])) ** 2 / 0.01

    start = np.vstack([np.zeros(5), 0.0015 * np.eye(5)])
    found = minimize(
        cost,
        np.zeros(5),
        method="Nelder-Mead",
        options={"initial_simplex": start, "maxfev": 160, "xatol": 2e-5, "fatol": 1e-5},
    )
    return made(found.x) if found.fun < cost(np.zeros(5)) else shape


def cast(
    shape: Shape, eye: Float[np.ndarray, "3"], rays: Float[np.ndarray, "n 3"]
) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Where rays of unit depth from ``eye`` meet a box: depth, and whether they do."""
    assert shape.half is not None
    c, s = np.cos(shape.yaw), np.sin(shape.yaw)
    R = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    middle = np.array([*shape.centre, (shape.low + shape.high) / 2])
    size = np.array([*shape.half, (shape.high - shape.low) / 2])
    o, d = R @ (eye - middle), rays @ R.T
    d = np.where(np.abs(d) < 1e-9, 1e-9, d)
    a, b = (-size - o) / d, (size - o) / d
    near, far = np.minimum(a, b).max(axis=1), np.maximum(a, b).min(axis=1)
    hit = (near < far) & (far > 0)
    return np.where(hit, near, 0.0), hit
