"""Moving shadows: find the sun by the shadow of the robot, whose shape is known, and move the shadows as things move.

The first picture is asked which direction of light explains its dark spots: for every direction the shadows of the robot
and of the parts are known, so that brightness must fall where they are. A picture without such a direction (soft light)
has no sun, and nothing is done to it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64, UInt8, UInt16
from scipy.ndimage import gaussian_filter, grey_dilation, grey_erosion, uniform_filter

from kinema4d.geometry.raster import default_threads
from kinema4d.world.small import shadow_kernels
from kinema4d.world.small.casters import Casters
from kinema4d.world.small.membrane import membrane

BIAS = 0.006
"""A caster so little above a surface throws no shadow on it: depth is not better known, metres."""
LOWEST, HIGHEST = 35.0, 85.0
"""Elevations of the sun that are tried, degrees."""
STEP, FINEST = 0.15, 0.005
"""Of the search, in metres that a shadow moves per metre of height: at first and at last."""
WEAK = 0.15
"""A direction that explains less of the variance of log-brightness is looked for again in finer steps."""
SOFT = 1.0
"""Width of the edge of a shadow, pixels."""
STARTS = 6
"""Best directions of the coarse search that are refined; no two of them neighbours."""
CELLS = (0.015, 0.004)
"""Side of the cells of the map that directions are judged by, and of the map for the last of them, metres."""
LEVEL = 0.95
"""Cosine to the vertical above which a surface is level: its light is even."""
SPOTS = 6000
"""Pixels by which a direction is judged, about."""
TILES = 10
"""Brightness is compared within so many pieces of the picture's height."""
DARKEST, FAINTEST = 0.15, 0.9
"""Share of light in a shadow that is believed."""
CLEAR = 0.03
"""Share of the variance of log-brightness that the sun's shadows must explain."""
CORE = 0.8
"""A spot that lacks more of the sun is in shadow."""
FEWEST = 12
"""Spots wholly in shadow that make a sun, and a third of those at least half in it."""
EVIDENCE = 2.5
"""Half of the spots in shadow must look so much more like ground in shadow than like sunlit ground, nats. Simulated scenes
have 2 to 8 with shadows and less than 0.1 without."""
TONE, TONES = 0.08, 74
"""Step of a palette in the logarithm of a colour, and how many there are: up to 255 and what a shadow takes."""
NUDGES = (0.0, -0.02, 0.02, -0.05, 0.05, -0.1, 0.1)
"""Changes to the logarithm of one channel of a shadow that are tried."""
ALONE = 0.75
"""Of the spots about shadows that look shadowed, so many must be in them."""
DOUBT = 0.5
"""Of a picture that says neither shadow nor sunlight: above 0, geometry is believed."""
EDGE = 0.15
"""Where the shadow changes by so much from pixel to pixel it has its edge, share of the sun."""
RARE = 1e-5
"""Share of the ground that a colour has which was not seen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Palette:
    """How often the sunlit ground has which colour."""

    share: Float32[np.ndarray, "r g b"]
    """Smoothed share of the ground, by the logarithm of its colour in steps of ``TONE``; nowhere zero."""

    @staticmethod
    def of(colours: Float[np.ndarray, "n 3"]) -> Palette:
        """Of the logarithms of many colours."""
        count = np.zeros((TONES, TONES, TONES), np.float32)
        np.add.at(count, _tones(colours), 1)
        count = gaussian_filter(count, 1.0, truncate=2.0) / max(len(colours), 1)
        return Palette(share=count + np.float32(RARE))

    def of_colours(self, colours: Float[np.ndarray, "n 3"]) -> Float32[np.ndarray, " n"]:
        """How often each of these colours occurs."""
        return self.share[_tones(colours)]

    def favours(self, colours: Float[np.ndarray, "n 3"], shift: Float[np.ndarray, "#n 3"]) -> Float32[np.ndarray, " n"]:
        """How much more these are colours of the ground darkened by ``shift`` than of the ground, nats."""
        return np.log(self.of_colours(colours - shift)) - np.log(self.of_colours(colours))


def _tones(colours: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.clip(np.round(colours / TONE), 0, TONES - 1).astype(np.int64).T)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sun:
    """One directional light."""

    shift: Float[np.ndarray, "2"]
    """Where the sun stands: along world x and y per unit of height."""
    dark: Float[np.ndarray, "3"]
    """What is left of a level surface's red, green and blue in shadow, 0..1."""
    evidence: float
    """How much more its shadows look like ground in shadow than like sunlit ground, nats."""
    palette: Palette
    """Colours of what it shines on."""

    @property
    def direction_world(self) -> Float[np.ndarray, "3"]:
        """Unit vector towards it."""
        return np.append(self.shift, 1.0) / np.sqrt(1 + self.shift @ self.shift)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shade:
    """The light of a picture, what stands in it, and on what shadows fall."""

    sun: Sun
    """The light."""
    casters: Casters
    """What throws shadows."""
    points: Float[np.ndarray, "h w 3"]
    """What every pixel sees, world, metres."""
    eye: Float[np.ndarray, "3"]
    """Where the camera is, world, metres."""


def find_sun(
    image: UInt8[np.ndarray, "h w 3"],
    points: Float[np.ndarray, "h w 3"],
    still: Bool[np.ndarray, "h w"],
    eye: Float[np.ndarray, "3"],
    cast: Casters,
) -> Sun | None:
    """The light of the first picture. ``points`` are in the world; ``still`` are pixels whose points are measured and
    that show neither robot nor parts; the camera is at ``eye``. None where no direction explains the picture."""
    spots, tiles, colours = _spots(image, points, still, eye)
    if len(spots) < 20 * FEWEST:
        return None
    counts = np.bincount(tiles)
    brightness = colours.mean(axis=1)
    brightness -= (np.bincount(tiles, brightness) / counts)[tiles]

    def shaded(shift: np.ndarray, cell: float) -> tuple[float, np.ndarray]:
        dim = np.zeros(len(spots))
        score, count = shadow_kernels.explained(
            cast.vertices[0], cast.faces, shift, cell, BIAS, spots, tiles, counts, brightness, dim
        )
        return (score if count >= 3 * FEWEST else 0.0), dim

    def judge(shift: np.ndarray, cell: float = CELLS[0]) -> float:
        return shaded(shift, cell)[0]

    score, shift = _search(judge, STEP)
    if score < WEAK:  # thin shadows fall between the steps
        score, shift = max((score, shift), _search(judge, STEP / 2), key=lambda found: found[0])
    best, shift = _climb(lambda s: judge(s, CELLS[1]), shift, 3 * FINEST)
    dim = shaded(shift, CELLS[1])[1]
    palette, dark_spots = Palette.of(colours[dim == 0]), colours[dim > CORE]
    if best < CLEAR or len(dark_spots) < FEWEST:
        return None
    dark = _darkness(palette, dark_spots)
    looks = palette.favours(colours, np.log(dark)[None])
    evidence = float(np.median(looks[dim > CORE]))
    # A dark thing that holds a shadow of the right shape is no shadow: about the true one, the ground is bright.
    near = (np.bincount(tiles, dim > CORE) > 0)[tiles] & (looks > 0)
    alone = float((near & (dim > 0)).sum() / max(near.sum(), 1))
    if evidence < EVIDENCE or alone < ALONE or not DARKEST < dark.mean() < FAINTEST:
        return None
    return Sun(shift=shift, dark=dark, evidence=evidence, palette=palette)


def _search(judge: Callable[[np.ndarray], float], step: float) -> tuple[float, np.ndarray]:
    """The best direction of a grid, and uphill from there."""
    reach = 1 / np.tan(np.radians([HIGHEST, LOWEST]))
    grid = np.arange(-np.ceil(reach[1] / step), np.ceil(reach[1] / step) + 1) * step
    tries = [np.array([x, y]) for x in grid for y in grid if reach[0] <= np.hypot(x, y) <= reach[1]]
    starts: list[np.ndarray] = []
    with ThreadPoolExecutor(default_threads()) as pool:
        scores = list(pool.map(judge, tries))
        for _, i in sorted(((score, i) for i, score in enumerate(scores)), reverse=True):
            if len(starts) < STARTS and all(np.hypot(*(tries[i] - s)) > 1.5 * step for s in starts):
                starts.append(tries[i])
        return max(pool.map(lambda start: _climb(judge, start, step / 2), starts), key=lambda found: found[0])


def _climb(judge: Callable[[np.ndarray], float], shift: np.ndarray, step: float) -> tuple[float, np.ndarray]:
    """Uphill from a direction, in ever smaller steps."""
    score = judge(shift)
    while step > FINEST:
        around = [shift + step * np.array([x, y]) for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        found = max((judge(s), i) for i, s in enumerate(around))
        if found[0] > score:
            score, shift = found[0], around[found[1]]
        else:
            step /= 2
    return score, shift


def _spots(
    image: np.ndarray, points: np.ndarray, still: np.ndarray, eye: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Level spots of the picture (world points), which tile each is in, and the logarithm of its colour."""
    stride = max(1, round(np.sqrt(still.sum() / SPOTS)))
    rows, columns = (n * stride for n in np.nonzero(still[::stride, ::stride]))
    up = shadow_kernels.facing(points, rows, columns, eye, np.array([0.0, 0, 1]))
    bright = image[rows, columns]
    fit = (up > LEVEL) & (bright.max(axis=1) < 250) & (bright.min(axis=1) > 4)
    rows, columns = rows[fit], columns[fit]
    side = len(image) / TILES
    tiles = (rows // side * 1000 + columns // side).astype(int)
    _, tiles = np.unique(tiles, return_inverse=True)
    return points[rows, columns].astype(np.float64), tiles, np.log(image[rows, columns].astype(np.float64))


def _darkness(palette: Palette, colours: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "3"]:
    """What is left of each channel in shadow: so much that shadowed colours, made brighter, are again those of the lit
    ground. Spots that are lit after all (hulls are wider than links) may keep their colours."""
    lit = palette.of_colours(colours)

    def likely(shift: np.ndarray) -> float:
        return float(np.log(0.8 * palette.of_colours(colours - shift) + 0.2 * lit).sum())

    shift = max((np.full(3, s) for s in np.arange(np.log(DARKEST), 0, 0.02)), key=likely)
    for _ in range(3):
        for k in range(3):  # the sky is not as grey as the sun
            shift = max((shift + s * np.eye(3)[k] for s in NUDGES), key=likely)
    return np.exp(shift)


def _footprint(points: np.ndarray, eye: np.ndarray, rows: int) -> float:
    """Side of what a pixel sees of the scene, about, metres."""
    return float(np.clip(np.median(np.linalg.norm(points - eye, axis=1)) / rows, 0.002, 0.02)) / 1.2


def _extent(vertices: Float[np.ndarray, "t v 3"], shift: np.ndarray, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """Least corner and size of a map that holds all shadows, with a border."""
    flat = vertices[..., :2] - vertices[..., 2:] * shift
    low, high = flat.min(axis=(0, 1)) - 4 * cell, flat.max(axis=(0, 1)) + 4 * cell
    return low, np.ceil((high - low) / cell).astype(np.int64)[::-1] + 1


def _project(points: np.ndarray, shift: np.ndarray, low: np.ndarray, cell: float) -> np.ndarray:
    return np.column_stack([(points[:, :2] - points[:, 2:] * shift - low) / cell, points[:, 2] + BIAS])


def find_shade(
    image: UInt8[np.ndarray, "h w 3"],
    points: Float[np.ndarray, "h w 3"],
    still: Bool[np.ndarray, "h w"],
    eye: Float[np.ndarray, "3"],
    cast: Casters | None,
) -> Shade | None:
    """:func:`find_sun`, and all that belongs to it."""
    sun = None if cast is None else find_sun(image, points, still, eye, cast)
    return None if sun is None or cast is None else Shade(sun=sun, casters=cast, points=points, eye=eye)


def sunlit(
    image: UInt8[np.ndarray, "h w 3"], shade: Shade, things: Bool[np.ndarray, "h w"]
) -> UInt8[np.ndarray, "h w 3"]:
    """The first picture without shadows: what holes are filled from, and what shadows leave behind. Edges of shadows are
    smoothed over but on ``things``, which have edges of their own."""
    place = _place(shade, np.ones(image.shape[:2], bool), frames=1)
    here = (place.rows, place.columns)
    share = _looks_shaded(image, shade, place)
    left = 1 - share[:, None] * place.dims
    out = image.copy()
    out[here] = np.clip(np.round(image[here] / left), 0, 255)
    return _without_edges(out, here, share, things)


def _without_edges(
    image: UInt8[np.ndarray, "h w 3"],
    here: tuple[np.ndarray, np.ndarray],
    share: Float[np.ndarray, " n"],
    things: Bool[np.ndarray, "h w"],
) -> UInt8[np.ndarray, "h w 3"]:
    """Pixels on the edge of a shadow were mixed in the picture, and an edge is not known to a pixel: they are continued
    from both of its sides, of which neither is far."""
    depth = np.zeros(image.shape[:2], np.float32)
    depth[here] = share
    wide = np.ones((3, 3), bool)
    edge = (grey_dilation(depth, footprint=wide) - grey_erosion(depth, footprint=wide) > EDGE) & ~things
    source = ~edge & ~things
    if not edge.any() or not source.any():
        return image
    out = image.copy()
    out[edge] = membrane(image, source)[edge].round().clip(0, 255)
    return out


def _looks_shaded(image: np.ndarray, shade: Shade, place: _Place) -> Float[np.ndarray, " n"]:
    """How far the pixels of a place are in shadow at the first frame: where geometry says so and the picture does not
    look sunlit there. Hulls are wider than links, and so are their shadows."""
    cast, here = shade.casters, (place.rows, place.columns)
    heights = np.full(tuple(place.size), shadow_kernels.NOTHING)
    shadow_kernels.fill_map(cast.vertices[0], cast.faces, shade.sun.shift, place.low, place.cell, heights)
    share = shadow_kernels.below(heights, place.spots)
    colours = np.log(np.maximum(image[here], 1).astype(np.float64))
    says = np.zeros(image.shape[:2], np.float32)  # for shadow, against sunlight
    says[here] = shade.sun.palette.favours(colours, np.log1p(-place.dims))
    some = np.zeros(image.shape[:2], np.float32)
    some[here] = share > 0
    wide = 3 + 2 * round(len(image) / 400)
    mean = uniform_filter(says * some, wide) / np.maximum(uniform_filter(some, wide), 1e-3)
    return share * np.clip(0.5 + DOUBT + mean[here] / 2, 0, 1)


def move_shadows(
    rgb: UInt8[np.ndarray, "t h w 3"],
    known: Bool[np.ndarray, "t h w"],
    shade: Shade,
    hole: Bool[np.ndarray, "h w"],
    ground: Bool[np.ndarray, "h w"],
    bare: UInt8[np.ndarray, "h w 3"],
) -> None:
    """Frames after the first, in place: they show the first picture where ``known`` and sunlit fillings in holes; then
    shadows lie on the ``ground`` as things are. ``bare`` is the first picture :func:`sunlit`."""
    cast, place = shade.casters, _place(shade, ground, frames=len(rgb))
    workers = max(1, min(default_threads(), len(rgb) - 1))
    here = (place.rows, place.columns)
    arguments = (
        cast.vertices, cast.faces, shade.sun.shift, place.low, place.cell, place.size, place.rows, place.columns,
        place.spots, place.dims, _looks_shaded(rgb[0], shade, place), hole[here], bare[here],
    )  # fmt: skip
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda i: shadow_kernels.shade(*arguments, 1 + i, workers, known, rgb), range(workers)))


def on_things(
    shade: Shade,
    ids: UInt16[np.ndarray, "t h w"],
    points: Float32[np.ndarray, "t h w 3"],
    boxes: Int64[np.ndarray, "t 4"],
    T_world_camera: Float[np.ndarray, "4 4"],
) -> Float32[np.ndarray, "t h w"]:
    """The share of the sun that drawn things lack: where ``ids`` are, at ``points`` in the camera frame."""
    cast, sun = shade.casters, shade.sun
    cell = SOFT * _footprint(shade.points[::8, ::8].reshape(-1, 3), shade.eye, len(shade.points))
    low, size = _extent(cast.vertices[: len(ids)], sun.shift, cell)
    dim = np.zeros(ids.shape, np.float32)
    workers = max(1, min(default_threads(), len(ids)))
    arguments = (ids, points, boxes, T_world_camera, cast.vertices, cast.faces, sun.shift, low, cell, size, BIAS)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda i: shadow_kernels.on_things(*arguments, i, workers, dim), range(workers)))
    return dim


@dataclass(frozen=True, kw_only=True, eq=False)
class _Place:
    """Where shadows fall in the picture, and the map to look them up in."""

    low: Float[np.ndarray, "2"]
    """Least corner of the map, metres."""
    size: np.ndarray
    """Its rows and columns."""
    cell: float
    """Side of its cells, metres."""
    rows: np.ndarray
    """Of the pixels that are in shadow at some frame."""
    columns: np.ndarray
    """Of the same."""
    spots: Float[np.ndarray, "n 3"]
    """Where they look into the map, and how high they are."""
    dims: Float[np.ndarray, "n 3"]
    """Share of light that they lose in full shadow."""


def _place(shade: Shade, ground: Bool[np.ndarray, "h w"], *, frames: int) -> _Place:
    """Where shadows fall in the first so many frames."""
    points, eye, sun, cast = shade.points, shade.eye, shade.sun, shade.casters
    cell = SOFT * _footprint(points[::8, ::8].reshape(-1, 3), eye, len(points))
    low, size = _extent(cast.vertices[:frames], sun.shift, cell)
    heights = np.full(tuple(size), shadow_kernels.NOTHING)
    for vertices in cast.vertices[:frames]:
        shadow_kernels.fill_map(vertices, cast.faces, sun.shift, low, cell, heights)
    reached = shadow_kernels.reached(points, sun.shift, low, cell, BIAS, heights)
    rows, columns = np.nonzero(reached & ground)
    # A level surface has ambient + (1 - ambient) * height of the sun; others turn towards the sun or away from it.
    slant = shadow_kernels.facing(points, rows, columns, eye, sun.direction_world) / sun.direction_world[2]
    excess = np.maximum(slant, 0)[:, None] * (1 / sun.dark - 1)
    return _Place(
        low=low, size=size, cell=cell, rows=rows, columns=columns, dims=excess / (1 + excess),
        spots=_project(points[rows, columns].astype(np.float64), sun.shift, low, cell),
    )  # fmt: skip
