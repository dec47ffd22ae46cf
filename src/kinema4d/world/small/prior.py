"""The moved prior: what geometry alone knows of the future, before a network paints the rest.

The first picture stands still. Parts that move are taken out of it and drawn where they have gone, their surfaces
coloured by the picture; the holes they and the robot leave are continued from around them; the robot is drawn by its
kinematics; depth decides. ``known`` marks what was copied from the picture and not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Float32, UInt8, UInt16, UInt64
from scipy.ndimage import binary_dilation

from kinema4d.geometry.camera import T_camera_world, unproject
from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import Light, assemble, default_threads, rasterize
from kinema4d.geometry.se3 import invert
from kinema4d.types import Control, Pointmap, check_transforms
from kinema4d.world.compose import Background, lit_like, robot_pixels
from kinema4d.world.protocol import check_view
from kinema4d.world.small import behind, prior_kernels
from kinema4d.world.small.casters import casters
from kinema4d.world.small.light import sunlit_robot
from kinema4d.world.small.membrane import membrane
from kinema4d.world.small.parts import Part
from kinema4d.world.small.shadow import Shade, Sun, find_shade, move_shadows, on_things, sunlit
from kinema4d.world.small.skin import FirstFrame, Lamp, box_of, normal_colours, skin

STILL = 0.0005
"""A part no point of which has moved farther has not moved: its pixels stay those of the first picture, metres."""
SLACK = 0.004
"""A part may be so far behind the background and still be drawn: what stands on a table touches it, metres."""
EDGE_ROWS = 240
"""A part's edge is mixed with what is behind it: one pixel goes with it, and one more for so many rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """What geometry knows of the future. Its first frame is the picture as it was given."""

    rgb: UInt8[np.ndarray, "t h w 3"]
    """Colour."""
    pointmap: Pointmap
    """Camera frame, metres; where the robot is seen exactly the control's."""
    known: Bool[np.ndarray, "t h w"]
    """False where the colour is a guess: in a hole that was filled, and on a side that the first picture hides."""
    part_ids: UInt16[np.ndarray, "t h w"]
    """0 where there is background or robot, else 1 + index of the moved part that is drawn there."""


def render(
    image: UInt8[np.ndarray, "h w 3"],
    depth: Float[np.ndarray, "h w"],
    has_depth: Bool[np.ndarray, "h w"],
    parts: Sequence[Part],
    motions: Float[np.ndarray, "p t 4 4"],
    control: Control,
    *,
    shadows: bool = True,
    planes: bool = True,
    out: Prior | None = None,
) -> Prior:
    """Draw the future in which part p has moved by ``motions[p, t]`` (world frame, against the first frame).
    ``shadows`` move with what throws them, where the picture shows a sun, and robot and things are lit by it; holes show the
    ``planes`` that must be behind them, otherwise a smooth continuation. ``out`` reuses the arrays of an earlier call of the
    same shape, which saves the cost of fresh memory."""
    out = _check(image, depth, has_depth, parts, motions, control, out)
    frame = FirstFrame(image=image, depth=depth, has_depth=has_depth, camera=control.camera)
    moves = np.array([_travel(part, Ts) > STILL for part, Ts in zip(parts, motions, strict=True)], bool)
    moves = moves.reshape(len(parts), len(control))
    moved = np.flatnonzero(moves.any(axis=1))
    movers = [part for part, moving in zip(parts, moves, strict=True) if moving.any()]
    still = [part for part, moving in zip(parts, moves, strict=True) if not moving.any()]
    shows_robot = robot_pixels(control, depth, has_depth)
    gone, away = _leaving(shows_robot, [part.mask for part in movers], moves[moved])
    points = _points(frame)
    shade = _shade(frame, points, shows_robot, parts, motions, control) if shadows else None
    with ThreadPoolExecutor(1) as pool:  # compiled code of one beside the Python of the other
        robot = None if shade is None else pool.submit(sunlit_robot, control, shade.sun, parts, motions)
        lit = frame if shade is None else replace(frame, image=sunlit(image, shade, _things(shows_robot, parts)))
        filling, ground = _complete(_continued(lit, gone > 0, parts, planes=planes), frame, still)
        drawn = _draw(frame, movers, motions[moved], shade)
        control = control if robot is None else replace(control, rgb=robot.result())
    rows, columns = np.nonzero(gone)
    holes = (rows, columns, gone[rows, columns], away, filling.rgb, filling.points)
    arguments = (
        *drawn, moves[moved], np.append(0, moved + 1).astype(np.uint16), SLACK,
        control.mask, control.pointmap.points, control.rgb, control.link_ids, _looks(image, control, shows_robot),
    )  # fmt: skip
    results = (out.rgb, out.pointmap.points, out.pointmap.valid, out.known, out.part_ids)
    for result, everywhere in zip(results, (image, points, has_depth, True, 0), strict=True):
        result[:] = everywhere
    workers = max(1, min(default_threads(), len(control) - 1))
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda i: prior_kernels.uncover(*holes, 1 + i, workers, *results[:4]), range(workers)))
        if shade is not None:
            ahead = np.where(filling.valid[..., None], filling.points, points)
            move_shadows(
                out.rgb, out.known, replace(shade, points=_to_world(ahead, control)), filling.valid, ground, lit.image
            )
        list(pool.map(lambda i: prior_kernels.layers(*arguments, 1 + i, workers, *results), range(workers)))
    # The first frame stays the picture; only the robot's place is known better than a sensor sees it.
    out.pointmap.points[0][shows_robot] = control.pointmap.points[0][shows_robot]
    out.pointmap.valid[0][shows_robot] = True
    return out


def _check(
    image: np.ndarray,
    depth: np.ndarray,
    has_depth: np.ndarray,
    parts: Sequence[Part],
    motions: np.ndarray,
    control: Control,
    out: Prior | None,
) -> Prior:
    """Raise unless all belongs together; returns where to draw."""
    if (blind := has_depth & ~check_view(image, control, depth)).any():
        raise ValueError(f"has_depth marks {int(blind.sum())} pixels whose depth is not a positive number of metres")
    if not has_depth.any():
        raise ValueError("no pixel of the first image has depth: predict it first")
    if control.camera.moving:
        raise ValueError("the prior cannot look at its first frame from a moving camera; give a camera with one pose")
    if control.rgb is None:
        raise ValueError("this control signal was made without colour; pass rgb=True to control()")
    if motions.shape != (len(parts), len(control), 4, 4):
        raise ValueError(
            f"motions must be [{len(parts)}, {len(control)}, 4, 4] for {len(parts)} parts and {len(control)} frames, "
            f"got {list(motions.shape)}"
        )
    if len(parts):
        check_transforms(motions, "motions")
        start = max(float(_travel(part, Ts[:1])[0]) for part, Ts in zip(parts, motions, strict=True))
        if start > STILL:
            raise ValueError(f"motions are against the first frame, but a part has moved {start:.2g} m there already")
    for part, Ts in zip(parts, motions, strict=True):
        if not len(part.faces) and (_travel(part, Ts) > STILL).any():
            raise ValueError(f"part {part.name!r} moves but has no surface to draw; complete it first")
    shape = control.mask.shape
    if out is None:
        return Prior(
            rgb=np.empty((*shape, 3), np.uint8),
            pointmap=Pointmap(points=np.empty((*shape, 3), np.float32), valid=np.empty(shape, bool)),
            known=np.empty(shape, bool),
            part_ids=np.empty(shape, np.uint16),
        )
    if out.known.shape != shape:
        raise ValueError(f"out has shape {list(out.known.shape)}, need {list(shape)}")
    return out


def _travel(part: Part, motion: Float[np.ndarray, "t 4 4"]) -> Float[np.ndarray, " t"]:
    """How far the farthest corner of a part's box has come, metres: no vertex has come farther."""
    low, high = part.vertices.min(axis=0), part.vertices.max(axis=0)
    corners = np.stack(np.meshgrid(*zip(low, high, strict=True)), axis=-1).reshape(-1, 3)
    moved = np.einsum("tij,nj->tni", motion[:, :3, :3], corners) + motion[:, None, :3, 3]
    return np.linalg.norm(moved - corners, axis=-1).max(axis=1)


def _leaving(
    shows_robot: Bool[np.ndarray, "h w"], masks: list[np.ndarray], moves: Bool[np.ndarray, "m t"]
) -> tuple[UInt64[np.ndarray, "h w"], UInt64[np.ndarray, " t"]]:
    """Per pixel a bit for the robot (0) and for every part that covers it; per frame the bits of those that have left."""
    gone = np.asarray(binary_dilation(shows_robot, np.ones((3, 3), bool)), bool).astype(np.uint64)
    away = np.ones(moves.shape[1], np.uint64)
    wide = 1 + round(len(shows_robot) / EDGE_ROWS)
    for i, (mask, moving) in enumerate(zip(masks, moves, strict=True)):
        bit = np.uint64(1) << np.uint64(min(i + 1, 63))  # past 63 parts, the last leave together
        gone[_widened(mask, wide)] |= bit
        away[moving] |= bit
    return gone, away


def _widened(mask: Bool[np.ndarray, "h w"], pixels: int) -> Bool[np.ndarray, "h w"]:
    """The mask and what is within so many pixels of it."""
    out = np.zeros(mask.shape, bool)
    rows, columns = np.nonzero(mask)
    if len(rows):
        near = (
            slice(max(rows.min() - pixels, 0), rows.max() + pixels + 1),
            slice(max(columns.min() - pixels, 0), columns.max() + pixels + 1),
        )
        out[near] = binary_dilation(mask[near], np.ones((3, 3), bool), iterations=pixels)
    return out


def _continued(frame: FirstFrame, gone: Bool[np.ndarray, "h w"], parts: Sequence[Part], *, planes: bool) -> Background:
    """The first picture with what is gone continued from around it. As in :func:`kinema4d.world.compose.background`, but
    nothing is continued from things that stand on what shows behind: their colours would bleed into it."""
    if not gone.any():
        return Background(rgb=frame.image, points=np.zeros((*gone.shape, 3), np.float32), valid=gone, known=~gone)
    source = ~gone
    for part in parts:
        source &= ~_widened(part.mask, 1)
    if not source.any():
        source = ~gone
    seen = source & frame.has_depth
    if not seen.any():
        raise ValueError("the first image has no depth beside the robot and what moves: there is no world to see")
    rgb = frame.image.copy()
    rgb[gone] = membrane(frame.image, source)[gone].round().clip(0, 255)
    inverse = membrane(np.where(seen, 1 / np.where(seen, frame.depth, 1), 0)[..., None], seen)[..., 0]
    depth, T = 1 / np.maximum(inverse, 1e-6), frame.camera.poses(1)[0]
    rays = unproject(frame.camera.K, np.ones(gone.shape, np.float32)) @ T[:3, :3].T
    if planes:
        world = rays * frame.depth[..., None] + T[:3, 3]
        colour, far, found = behind.continued(rgb, world, seen, gone, rays, frame.camera)
        rows, columns = (n[found] for n in np.nonzero(gone))
        rgb[rows, columns], depth[rows, columns] = colour[found], far[found]
    points = unproject(frame.camera.K, depth.astype(np.float32))
    return Background(rgb=rgb, points=points, valid=gone, known=~gone)


def _points(frame: FirstFrame) -> Float32[np.ndarray, "h w 3"]:
    """The first frame's points, guessed where its sensor is blind."""
    depth, seen = np.where(frame.has_depth, frame.depth, 1), frame.has_depth
    if not seen.all():
        depth = np.where(seen, depth, 1 / np.maximum(membrane(1 / depth[..., None], seen)[..., 0], 1e-6))
    return unproject(frame.camera.K, depth.astype(np.float32))


def _to_world(points: Float32[np.ndarray, "h w 3"], control: Control) -> Float32[np.ndarray, "h w 3"]:
    T = control.camera.poses(1)[0].astype(np.float32)
    return points @ T[:3, :3].T + T[:3, 3]


def _things(shows_robot: Bool[np.ndarray, "h w"], parts: Sequence[Part]) -> Bool[np.ndarray, "h w"]:
    """Pixels that show the robot or a part, and those beside them."""
    things = shows_robot.copy()
    for part in parts:
        things |= part.mask
    return _widened(things, 1)


def _shade(
    frame: FirstFrame,
    points: Float32[np.ndarray, "h w 3"],
    shows_robot: Bool[np.ndarray, "h w"],
    parts: Sequence[Part],
    motions: Float[np.ndarray, "p t 4 4"],
    control: Control,
) -> Shade | None:
    """The first picture's sun and what throws shadows in it; None where it shows none."""
    still = frame.has_depth & ~_things(shows_robot, parts)
    eye = frame.camera.poses(1)[0][:3, 3]
    return find_shade(frame.image, _to_world(points, control), still, eye, casters(control.solids, parts, motions))


def lamp_of(sun: Sun) -> Lamp:
    """A sun as what lights things: what it adds to a level surface is what a shadow takes from it."""
    direction = sun.direction_world
    kept = np.clip(sun.dark, 0.05, 1.0)
    return Lamp(direction_world=direction, gain=(1 / kept - 1) / max(float(direction[2]), 0.1))


def _complete(
    filling: Background, frame: FirstFrame, parts: Sequence[Part]
) -> tuple[Background, Bool[np.ndarray, "h w"]]:
    """Things that stand still, where the first picture does not show all of them: drawn into what is gone. Also where
    there is no such thing."""
    solid = [part for part in parts if len(part.faces)]
    hidden = [part for part in solid if filling.valid[box_of(part.vertices, frame.camera)].any()]
    if not hidden:
        return filling, np.ones(filling.valid.shape, bool)
    ids, points, rgb, *_ = (a[0] for a in _draw(frame, hidden, np.tile(np.eye(4), (len(hidden), 1, 1, 1))))
    front = filling.valid & (ids > 0) & (points[..., 2] <= filling.points[..., 2] + SLACK)
    filling.rgb[front], filling.points[front] = rgb[front], points[front]
    return filling, ~front


def _looks(image: np.ndarray, control: Control, shows_robot: np.ndarray) -> UInt8[np.ndarray, "l 256 3"]:
    """:func:`lit_like` as a table: what each link makes of each brightness. Cheaper than asking for every pixel."""
    assert control.rgb is not None
    links, pixels = len(control.link_names) + 1, int(shows_robot.sum())
    entries = np.arange(links * 256)
    width = max(len(entries), pixels)
    # Two pictures of one row: the robot's pixels of the first frame, and every entry of the table.
    rgb, ids = np.zeros((2, 1, width, 3), np.uint8), np.zeros((2, 1, width), np.uint16)
    rgb[0, 0, :pixels], rgb[1, 0, : len(entries)] = control.rgb[0][shows_robot], (entries % 256)[:, None]
    ids[0, 0, :pixels], ids[1, 0, : len(entries)] = control.link_ids[0][shows_robot], entries // 256
    row = np.zeros((1, width, 3), np.uint8)
    row[0, :pixels] = image[shows_robot]
    lit = lit_like(row, replace(control, rgb=rgb, link_ids=ids), np.arange(width)[None] < pixels)
    return np.ascontiguousarray(lit[1, 0, : len(entries)].reshape(links, 256, 3))


def _draw(
    frame: FirstFrame, parts: Sequence[Part], motions: Float[np.ndarray, "m t 4 4"], shade: Shade | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """These parts alone: 1 + their index, points, colour, whether it is known, and the boxes outside which nothing is
    drawn. A ``shade`` lights them as they turn; without one they keep the light of the first frame."""
    if not len(parts):
        none, boxes = np.zeros((0, 1, 1, 3), np.uint8), np.tile(np.array([0, -1, 0, -1]), (motions.shape[1], 1))
        return none[..., 0].astype(np.uint16), none.astype(np.float32), none, none[..., 0] > 0, boxes
    T_view = T_camera_world(frame.camera, 1)[0]
    Ts = T_view @ motions  # from the world at the first frame to the camera
    colors = [normal_colours(part.vertices @ T_view[:3, :3].T, part.faces) for part in parts]
    meshes = [Mesh(vertices=p.vertices, faces=p.faces, colors=c) for p, c in zip(parts, colors, strict=True)]
    surfaces = assemble([(mesh, i) for i, mesh in enumerate(meshes)])
    seen = rasterize(surfaces, np.swapaxes(Ts, 0, 1), frame.camera, rgb=True, light=Light(ambient=1.0))
    known = np.zeros(seen.valid.shape, bool)
    assert seen.rgb is not None
    normals, dim, lamp, eclipse = seen.rgb, np.zeros((0, 0, 0), np.float32), None, None
    if shade is not None:
        T_world = frame.camera.poses(1)[0]
        normals, lamp = seen.rgb.copy(), lamp_of(shade.sun)
        dim = on_things(shade, seen.ids, seen.points, seen.boxes, T_world)
        h, w = frame.image.shape[:2]
        own = np.any([part.mask for part in parts], axis=0).astype(np.uint16)[None]
        here = np.ascontiguousarray((shade.points - T_world[:3, 3]) @ T_world[:3, :3], np.float32)[None]
        eclipse = on_things(shade, own, here, np.array([[0, w - 1, 0, h - 1]]), T_world)[0]
    for i, part in enumerate(parts):
        look = skin(part, frame, lamp, eclipse)
        prior_kernels.colour(
            seen.ids, seen.points, seen.boxes, i + 1, np.ascontiguousarray(T_view @ invert(Ts[i])), frame.camera.K,
            look.left, look.top, look.texture, look.trust, look.depth, look.slack, look.low, look.cell, look.volume,
            seen.rgb, known,
        )  # fmt: skip
        if lamp is not None:
            towards = lamp.direction_world @ motions[i, :, :3, :3] @ T_view[:3, :3].T
            prior_kernels.relight(seen.ids, seen.boxes, i + 1, normals, towards, lamp.gain, dim, seen.rgb)
    return seen.ids, seen.points, seen.rgb, known, seen.boxes
