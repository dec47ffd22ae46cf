"""What is behind: the large surfaces of a picture are planes, and patterns on planes repeat.

A hole is continued as the plane that must be seen through it, and with that plane's own pattern where it repeats: tiles,
stripes, cloth, planks. A pattern is looked for in metres on the plane, where perspective is gone, as shifts that map it
onto itself, and believed only where it foretells what the picture shows elsewhere; otherwise colour is continued
smoothly, but from the same plane only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int8, UInt8
from scipy.ndimage import distance_transform_edt, gaussian_filter, map_coordinates, maximum_filter
from scipy.spatial import ConvexHull, QhullError

from kinema4d.geometry.camera import project
from kinema4d.geometry.se3 import invert
from kinema4d.types import Camera
from kinema4d.world.small.membrane import membrane

SAMPLES, TRIES = 3000, 150
"""Pixels by which planes are looked for, and how many are tried."""
MOST = 6
"""Planes."""
LEAST = 0.008
"""Share of the picture that makes a plane."""
THICK, PER_METRE = 0.003, 0.004
"""A point so near to a plane lies on it, metres, and per metre of distance."""
ALIKE = 0.9
"""Cosine between a plane and the surface at a pixel of it."""
RIGHT = 0.9
"""Share of the pixels about holes that rules must put on their plane to be believed inside."""
CELLS = 300
"""Of a plane's map along its longer side, at the most."""
REPEATS = 0.5
"""Correlation of a pattern with itself, shifted, that is looked at."""
SHIFTS, USED = 60, 16
"""That are tried, and that are used."""
OVERLAP = 0.12
"""Share of a pattern that a shift must map onto itself to count."""
BETTER = 0.7
"""A pattern must foretell known pixels with so small a share of the error that smooth colour has."""
PLAIN = 18.0
"""A surface whose colours are within this of those around them is plain: it goes on behind a hole as it is, of 255."""
ROWS = 200
"""Of the picture in which planes and patterns are looked for, about."""
NEAR = 0.1
"""Pixels this near to a hole judge a pattern, share of the picture's rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plane:
    """A large flat surface."""

    normal: Float[np.ndarray, "3"]
    """Unit, world, towards the camera."""
    origin: Float[np.ndarray, "3"]
    """A point on it, world, metres."""
    axes: Float[np.ndarray, "2 3"]
    """Level and upward (or across) directions on it, world."""

    def seen_by(
        self, rays: Float[np.ndarray, "*n 3"], eye: Float[np.ndarray, "3"]
    ) -> tuple[Float[np.ndarray, "*n"], Float[np.ndarray, "*n 2"]]:
        """Where rays of unit depth meet it: depth (infinite where they do not), and place on the plane."""
        slope = rays @ self.normal
        with np.errstate(divide="ignore", invalid="ignore"):
            depth = np.where(slope < -1e-6, (self.origin - eye) @ self.normal / slope, np.inf)
        place = (eye - self.origin) @ self.axes.T + np.where(np.isfinite(depth), depth, 0)[..., None] * (
            rays @ self.axes.T
        )
        return np.where(depth > 0, depth, np.inf), place


def plane_through(points: Float[np.ndarray, "n 3"], eye: Float[np.ndarray, "3"]) -> Plane:
    """The plane of least squares."""
    origin = points.mean(axis=0)
    normal = np.linalg.svd((points - origin)[:: max(1, len(points) // 2000)], full_matrices=False)[2][2]
    normal = normal if normal @ (eye - origin) > 0 else -normal
    level = np.cross([0.0, 0, 1], normal)
    level = level / np.linalg.norm(level) if np.linalg.norm(level) > 0.2 else np.array([1.0, 0, 0])
    level -= normal * (normal @ level)
    level /= np.linalg.norm(level)
    return Plane(normal=normal, origin=origin, axes=np.stack([level, np.cross(normal, level)]))


def normals_of(points: Float[np.ndarray, "h w 3"]) -> Float[np.ndarray, "h w 3"]:
    """Of the surface at every pixel, over two pixels to each side; zero at the border."""
    du, dv = np.zeros(points.shape), np.zeros(points.shape)
    du[:, 2:-2], dv[2:-2] = points[:, 4:] - points[:, :-4], points[4:] - points[:-4]
    normal = np.cross(dv, du)
    return normal / np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-12)


def find_planes(
    points: Float[np.ndarray, "h w 3"], known: Bool[np.ndarray, "h w"], eye: Float[np.ndarray, "3"]
) -> tuple[list[Plane], Int8[np.ndarray, "h w"]]:
    """Planes of the ``known`` world points, largest first, and which one each pixel is on (-1 none)."""
    rng = np.random.default_rng(0)
    normals, labels = normals_of(points), np.full(known.shape, -1, np.int8)
    rows, columns = np.nonzero(known)
    pick = rng.permutation(len(rows))[:SAMPLES]
    X, N = points[rows[pick], columns[pick]].astype(np.float64), normals[rows[pick], columns[pick]]
    thick = THICK + PER_METRE * np.linalg.norm(X - eye, axis=1)
    left, planes = np.linalg.norm(N, axis=1) > 0.5, []
    while len(planes) < MOST and left.sum() > LEAST * len(X):
        on, best = np.zeros(len(X), bool), 0
        for i in rng.choice(np.flatnonzero(left), min(TRIES, int(left.sum())), replace=False):
            there = left & (np.abs((X - X[i]) @ N[i]) < thick) & (np.abs(N @ N[i]) > ALIKE)
            on, best = (there, int(there.sum())) if there.sum() > best else (on, best)
        if best < LEAST * len(X):
            break
        plane = plane_through(X[on], eye)
        better = left & (np.abs((X - plane.origin) @ plane.normal) < thick) & (np.abs(N @ plane.normal) > ALIKE)
        plane = plane_through(X[better], eye) if better.sum() > best / 2 else plane
        planes.append(plane)
        left &= ~on & ~(np.abs((X - plane.origin) @ plane.normal) < thick)
    nearest = np.full(known.shape, 1.0)
    thick = THICK + PER_METRE * np.linalg.norm(points - eye, axis=-1)
    for k, plane in enumerate(planes):
        off = np.abs((points - plane.origin) @ plane.normal) / thick
        # At its rim a plane's pixels have the normals of two surfaces: there its points must be nearer to it.
        own = known & (off < np.where(np.abs(normals @ plane.normal) > ALIKE - 0.2, nearest, 0.3 * nearest))
        labels[own], nearest[own] = k, off[own]
    return planes, labels


# ---------------------------------------------------------------------- which plane is behind


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """A rectangle on a plane, outside of which it is not."""

    R: Float[np.ndarray, "2 2"]
    """How it is turned: places times this are along its sides."""
    low: Float[np.ndarray, "2"]
    """Least corner, metres."""
    high: Float[np.ndarray, "2"]
    """Largest."""

    def hold(self, places: Float[np.ndarray, "*n 2"]) -> Bool[np.ndarray, "*n"]:
        """Whether places are within."""
        turned = places @ self.R
        return np.asarray(((turned >= self.low) & (turned <= self.high)).all(axis=-1))


def nearest_plane(
    planes: Sequence[Plane],
    bounds: Sequence[Bounds | None],
    rays: Float[np.ndarray, "*n 3"],
    eye: Float[np.ndarray, "3"],
) -> Int8[np.ndarray, "*n"]:
    """The plane that a ray meets first within the plane's bounds, -1 where it meets none."""
    depths = []
    for plane, box in zip(planes, bounds, strict=True):
        depth, place = plane.seen_by(rays, eye)
        depths.append(depth if box is None else np.where(box.hold(place), depth, np.inf))
    every = np.stack(depths)
    return np.where(np.isfinite(every).any(axis=0), every.argmin(axis=0), -1).astype(np.int8)


def find_bounds(
    planes: Sequence[Plane],
    labels: Int8[np.ndarray, "h w"],
    near: Bool[np.ndarray, "h w"],
    rays: Float[np.ndarray, "h w 3"],
    eye: Float[np.ndarray, "3"],
) -> tuple[list[Bounds | None], float]:
    """Where planes end: at a rectangle about what is seen of them, or nowhere, whichever explains ``near`` pixels best;
    and the share of those that are explained."""
    bounds: list[Bounds | None] = [None] * len(planes)
    if not near.any():
        return bounds, 0.0
    some, truth = rays[near], labels[near]
    right = lambda tried: float((nearest_plane(planes, tried, some, eye) == truth).mean())  # noqa: E731
    best = right(bounds)
    for k, plane in enumerate(planes):
        for box in _boxes(plane.seen_by(rays[labels == k], eye)[1]):
            tried = [*bounds[:k], box, *bounds[k + 1 :]]
            if (score := right(tried)) > best + 1e-3:
                best, bounds = score, tried
    return bounds, best


def _about(known: np.ndarray, holes: np.ndarray, share: float) -> Bool[np.ndarray, "h w"]:
    """Known pixels so near to a hole."""
    far = distance_transform_edt(~holes)
    assert isinstance(far, np.ndarray)
    return known & (far < share * len(holes))


def _boxes(places: Float[np.ndarray, "n 2"]) -> list[Bounds]:
    """Rectangles about points, along the longest sides of their hull."""
    try:
        hull = ConvexHull(places)
    except (QhullError, ValueError):  # fewer than three, or all on one line
        return []
    corners = places[hull.vertices]
    sides = np.roll(corners, -1, axis=0) - corners
    out = []
    for side in sides[np.argsort(-np.linalg.norm(sides, axis=1))[:8]]:
        c, s = side / np.linalg.norm(side)
        R = np.array([[c, -s], [s, c]])
        out.append(Bounds(R=R, low=(corners @ R).min(axis=0), high=(corners @ R).max(axis=0)))
    return out


# ---------------------------------------------------------------------- patterns


def repeats(
    places: Float[np.ndarray, "n 2"], colours: Float[np.ndarray, "n 3"], cell: float
) -> list[Float[np.ndarray, "2"]]:
    """Shifts, in metres, that map a pattern onto itself, best first: peaks of its correlation with itself over what is
    known of both."""
    low = places.min(axis=0)
    cell = max(cell, float((places.max(axis=0) - low).max()) / CELLS)
    index = ((places - low) / cell).astype(int)
    nx, ny = index.max(axis=0) + 1
    flat = index[:, 1] * nx + index[:, 0]
    count = np.bincount(flat, minlength=nx * ny).reshape(ny, nx)
    light = colours - colours.mean(axis=0)
    M = (count > 0).astype(np.float64)
    size = (2 * ny, 2 * nx)
    F = np.fft.rfft2(M, size)
    overlap = np.fft.irfft2(F * F.conj(), size).round()
    both = np.zeros(size)
    power = np.zeros(size)
    for k in range(3):
        value = np.bincount(flat, light[:, k], nx * ny).reshape(ny, nx) / np.maximum(count, 1)
        V, S = np.fft.rfft2(value, size), np.fft.rfft2(value**2, size)
        both += np.fft.irfft2(V * V.conj(), size)
        one = np.fft.irfft2(S * F.conj(), size)
        power += one + np.roll(one[::-1, ::-1], (1, 1), (0, 1))
    enough = overlap > OVERLAP * M.sum()
    likeness = np.where(enough, 2 * both / np.maximum(power, 1e-6), -1.0)
    y, x = (np.fft.fftfreq(n, 1 / n) for n in size)
    steps = np.hypot(y[:, None], x[None])
    # The peak at no shift at all reaches as far as the pattern is alike to its own neighbourhood.
    order = np.argsort(steps, axis=None)
    falling = likeness.ravel()[order]
    ends = np.flatnonzero(falling < REPEATS)
    reach = max(steps.ravel()[order][ends[0]] if len(ends) else 0.0, 4.0)
    peak = (likeness == maximum_filter(likeness, 5, mode="wrap")) & (likeness > REPEATS) & (steps > 1.5 * reach)
    found = sorted(((-likeness[j, i], j, i) for j, i in np.argwhere(peak).tolist()))[:SHIFTS]
    return [_finer(likeness, j, i, x, y) * cell for _, j, i in found]


def _finer(values: np.ndarray, j: int, i: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A peak between cells, by a parabola each way."""
    ny, nx = values.shape
    out = np.array([x[i], y[j]])
    for axis, (a, c) in enumerate(
        ((values[j, i - 1], values[j, (i + 1) % nx]), (values[j - 1, i], values[(j + 1) % ny, i]))
    ):
        bend = a - 2 * values[j, i] + c
        out[axis] += np.clip(0.5 * (a - c) / bend, -0.5, 0.5) if bend < -1e-9 else 0.0
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Sheet:
    """One plane in the picture, to be read at places on it."""

    plane: Plane
    """Where it is."""
    image: UInt8[np.ndarray, "h w 3"]
    """The picture."""
    own: Float[np.ndarray, "h w"]
    """1 where the picture shows the plane."""
    camera: Camera
    """Who looks."""

    def read(self, places: Float[np.ndarray, "n 2"]) -> tuple[Float[np.ndarray, "n 3"], Bool[np.ndarray, " n"]]:
        """Colours at places on the plane, and where the picture shows them."""
        world = self.plane.origin + places @ self.plane.axes
        T = invert(self.camera.poses(1)[0])
        seen = world @ T[:3, :3].T + T[:3, 3]
        front = seen[:, 2] > 0.05
        u, v = project(self.camera.K, np.where(front[:, None], seen, [0.0, 0, 1])).T
        h, w = self.own.shape
        front &= (u >= 0) & (v >= 0) & (u <= w - 1) & (v <= h - 1)
        at = np.stack([np.clip(v, 0, h - 1), np.clip(u, 0, w - 1)])
        whole = map_coordinates(self.own, at, order=1) > 0.999
        colours = np.stack([map_coordinates(self.image[..., k].astype(np.float32), at, order=1) for k in range(3)], -1)
        return colours, front & whole


def patterned(
    sheet: Sheet,
    known: Bool[np.ndarray, "h w"],
    near: Bool[np.ndarray, "h w"],
    image: UInt8[np.ndarray, "h w 3"],
    places: Float[np.ndarray, "h w 2"],
    wanted: Float[np.ndarray, "n 2"],
) -> tuple[Float[np.ndarray, "n 3"], Bool[np.ndarray, " n"]] | None:
    """Colours at the ``wanted`` places of a plane by its pattern, and where there are any; None where it has no pattern
    that foretells what is ``near``. ``image`` and ``places`` are the picture, or every n-th pixel of it, in which
    ``known`` pixels show the plane."""
    step = np.linalg.norm(np.diff(places, axis=1), axis=-1)[known[:, :-1] & known[:, 1:]]
    if not len(step):
        return None
    shifts = repeats(places[known], image[known].astype(np.float64), float(np.median(step)))
    if not shifts:
        return None
    rows, columns = np.nonzero(near if near.sum() > 300 else known)
    stride = max(1, len(rows) // 2000)
    rows, columns = rows[::stride], columns[::stride]
    truth = image[rows, columns].astype(np.float64)
    trial = [sheet.read(places[rows, columns] + s) for s in shifts]
    errors = [((c - truth) ** 2)[ok].mean() if ok.sum() > 50 else np.inf for c, ok in trial]
    best = np.argsort(errors)[:USED]
    shifts, trial = [shifts[i] for i in best], [trial[i] for i in best]
    weights = np.array([1 / (errors[i] + 4.0) ** 2 if np.isfinite(errors[i]) else 0.0 for i in best])
    weights[weights < 0.05 * weights.max()] = 0.0
    guess, some = _mixed(trial, weights)
    smooth = _smooth(image, known)[rows, columns]
    if some.sum() < 50 or ((guess - truth) ** 2)[some].mean() > BETTER * ((smooth - truth) ** 2)[some].mean():
        return None
    used = np.flatnonzero(weights)
    return _mixed([sheet.read(wanted + shifts[i]) for i in used], weights[used])


def _mixed(
    readings: Sequence[tuple[np.ndarray, np.ndarray]], weights: np.ndarray
) -> tuple[Float[np.ndarray, "n 3"], Bool[np.ndarray, " n"]]:
    share = np.stack([w * ok for w, (_, ok) in zip(weights, readings, strict=True)])
    total = share.sum(axis=0)
    mean = (share[..., None] * np.stack([c for c, _ in readings])).sum(axis=0) / np.maximum(total, 1e-12)[:, None]
    return mean, total > 0


def _smooth(image: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Colour of the surroundings of every pixel: what a membrane over a hole would give."""
    wide = 0.03 * len(image)
    weight = np.maximum(gaussian_filter(known.astype(np.float64), wide), 1e-6)
    return np.stack([gaussian_filter(image[..., k] * known.astype(np.float64), wide) / weight for k in range(3)], -1)


# ---------------------------------------------------------------------- all of it


def continued(
    image: UInt8[np.ndarray, "h w 3"],
    points: Float[np.ndarray, "h w 3"],
    known: Bool[np.ndarray, "h w"],
    holes: Bool[np.ndarray, "h w"],
    rays: Float[np.ndarray, "h w 3"],
    camera: Camera,
) -> tuple[UInt8[np.ndarray, "n 3"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Colour and depth of the pixels of ``holes``, and for which of them a plane is behind. ``points`` and ``rays`` (of
    unit depth) are in the world; ``known`` are pixels that show background as it is. Holes keep the colour of ``image``
    where the plane behind has neither a pattern nor one colour. What is looked for, planes and patterns, is looked for in
    about ``ROWS`` rows; what is found is read at the picture's own."""
    n = max(1, round(len(image) / ROWS))
    few = (slice(None, None, n), slice(None, None, n))
    eye, small = camera.poses(1)[0][:3, 3], np.ascontiguousarray(image[few])
    planes, labels = find_planes(points[few], known[few], eye)
    rgb, depth, found = image[holes], np.zeros(int(holes.sum())), np.zeros(int(holes.sum()), bool)
    if not planes or not len(rgb):
        return rgb, depth, found
    bounds, right = find_bounds(planes, labels, _about(labels >= 0, holes[few], 4 * NEAR), rays[few], eye)
    through = nearest_plane(planes, bounds, rays[holes], eye)
    rows, columns = np.nonzero(holes)
    if right < RIGHT:  # then what is nearest in the picture
        index = distance_transform_edt(labels < 0, return_distances=False, return_indices=True)
        assert isinstance(index, np.ndarray)
        at = tuple(np.minimum(x // n, size - 1) for x, size in zip((rows, columns), labels.shape, strict=True))
        through = labels[tuple(i[at] for i in index)]
    for k, plane in enumerate(planes):
        mine, own = through == k, labels == k
        z, wanted = plane.seen_by(rays[holes][mine], eye)
        if not own.any() or not np.isfinite(z).all() or not len(z):
            continue
        depth[mine], found[mine] = z, True
        near = _about(own, holes[few], NEAR)
        if near.any() and ((_smooth(small, own) - small)[near] ** 2).mean() < PLAIN**2:
            at, smooth = np.stack([rows[mine] / n, columns[mine] / n]), membrane(small, own)
            rgb[mine] = np.stack([map_coordinates(smooth[..., c], at, order=1, mode="nearest") for c in range(3)], -1)
        own_full = own if n == 1 else own.repeat(n, 0).repeat(n, 1)[: len(image), : image.shape[1]]
        sheet = Sheet(plane=plane, image=image, own=(own_full & known).astype(np.float32), camera=camera)
        places = plane.seen_by(rays[few], eye)[1]
        pattern = patterned(sheet, own, near, small, places, wanted)
        if pattern is not None:
            colours, there = pattern
            rgb[np.flatnonzero(mine)[there]] = colours[there].round().clip(0, 255)
    return rgb, depth, found
