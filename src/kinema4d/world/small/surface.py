"""Surface: the unseen sides of parts, and where parts stand.

What is an everyday solid becomes one (:mod:`kinema4d.world.small.shape_fit`), doors, lids and drawers become boards
(:mod:`kinema4d.world.small.board`), the rest is completed by a network (:mod:`kinema4d.world.small.complete`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int32

from kinema4d.geometry.camera import rays
from kinema4d.geometry.se3 import invert
from kinema4d.types import Camera
from kinema4d.world.small.board import hinged_board, shut_board, shut_front
from kinema4d.world.small.complete import Glimpse, complete
from kinema4d.world.small.look import HANG, Eyes, View, along_side, resized, shrunk
from kinema4d.world.small.outline import grounded
from kinema4d.world.small.parts import Part
from kinema4d.world.small.pieces import decompose, dense, joined, tray
from kinema4d.world.small.see import level_frame, segment_input
from kinema4d.world.small.shape import Shape, mesh_of, moved
from kinema4d.world.small.shape_fit import Sight, fit

SNAP = 0.006
"""A part whose lowest point is this near to the support stands on it, metres."""
HIDDEN = 0.06
"""The same for a part whose feet are out of sight."""
LEVEL = 0.015
"""What was guessed to be this near to the support, and is no part, is the support, metres."""
ASKEW = 0.5
"""A joint that is seen to be off a side of its furniture by less is along it, radians."""
SHUT = 0.015
"""A drawer that is open by less is shut, metres."""
COVERED = 0.15
"""Share of a part's border that something else may hide before the network has a say in how large it is."""


def with_surfaces(eyes: Eyes, view: View, parts: Sequence[Part]) -> list[Part]:
    """The parts with their unseen sides: completed, closed, standing on the support where they are near it."""
    small = resized(view)
    x, X = segment_input(small.rgb, small.depth, small.depth > 0, small.robot, small.camera, small.support)
    R, foot = level_frame(view.camera), np.array([*view.camera.poses(1)[0][:2, 3], view.support])
    normals, P = x[4:7].transpose(1, 2, 0), projection(small.camera, view.support)
    level = leveled(view)
    clouds = [(p.vertices - foot) @ R.T for p in parts]
    out = []
    for i, part in enumerate(parts):
        own = shrunk(part.mask.astype(np.int32), small.robot.shape) > 0
        glimpse = Glimpse(own & ~small.robot, small.depth, X, normals, P)
        others = [c for k, c in enumerate(clouds) if k != i]
        sight = replace(level, own=part.mask & ~view.robot)
        shape = _recognised(part, sight, glimpse, others)
        if shape is not None and hidden(sight) <= COVERED:
            surface = mesh_of(shape)
        else:
            surface = _completed(eyes, part, glimpse, clouds[i], others)
            shape = shape if shape is not None and _alike(shape, surface[0]) else None
            surface = mesh_of(shape) if shape is not None else surface
        known = None if shape is None else moved(shape, R.T, foot)
        out.append(replace(part, vertices=surface[0] @ R + foot, faces=surface[1], shape=known))
    seen = {p.name: p.vertices for p in parts}
    return [boarded(p, seen[p.name], out, view) for p in out]


def boarded(part: Part, seen: Float[np.ndarray, "n 3"], parts: Sequence[Part], view: View) -> Part:
    """A jointed part as flat pieces, however little of it is seen; a drawer with what is behind its front. Other parts as
    they are."""
    from scipy.spatial import KDTree

    if part.joint not in ("slide", "hinge"):
        return part

    tree = KDTree(part.vertices)
    chests = [p for p in parts if p.joint == "fixed" and tree.query(dense(p.vertices, p.faces))[0].min() < HANG]
    part = _squared(part, chests)
    if part.joint == "hinge" and part.axis is not None and part.pivot is not None:
        eye = view.camera.poses(1)[0][:3, 3]
        pixel = float(np.linalg.norm(seen.mean(axis=0) - eye)) / float(view.camera.K[1, 1])
        board = hinged_board(seen, part.axis, part.pivot, eye, pixel, view.support)
        shut = part.room is not None and part.room[0] > -0.4
        for chest in chests:
            if board is None and shut and chest.shape is not None:
                board = shut_board(seen, part.axis, part.pivot, eye, chest.shape, view.support)
        if board is not None:
            vertices, faces = joined(board.pieces)
            return replace(part, vertices=vertices, faces=faces, pieces=board.pieces, axis=board.axis)
    pieces = decompose(part.vertices, part.faces, part.joint, part.axis)
    if part.joint == "slide" and part.axis is not None and chests:
        back = -part.room[0] if part.room else 0.0
        largest = max(chests, key=lambda p: int(p.mask.sum()))
        if back < SHUT and largest.shape is not None:
            eye = view.camera.poses(1)[0][:3, 3]
            pieces = shut_front(seen, part.axis, eye, largest.shape, view.support) or pieces
        pieces = [*pieces, *tray(pieces, part.axis, largest.vertices, back)]
    vertices, faces = joined(pieces)
    return replace(part, vertices=vertices, faces=faces, pieces=tuple(pieces))


def _squared(part: Part, chests: Sequence[Part]) -> Part:
    """The part with a level axis turned to the nearest side of the box that it hangs on."""
    boxes = [p for p in chests if p.shape is not None and p.shape.half is not None]
    if part.axis is None or abs(part.axis[2]) > 0.5 or not boxes:
        return part
    shape = max(boxes, key=lambda p: int(p.mask.sum())).shape
    assert shape is not None
    return replace(part, axis=along_side(part.axis, shape.yaw, ASKEW))


def leveled(view: View) -> Sight:
    """The picture in the level frame over the camera's foot, no part chosen yet."""
    T = T_level_world(view.camera, view.support) @ view.camera.poses(1)[0]
    points = (rays(view.camera.K, *view.robot.shape) * view.depth[..., None]) @ T[:3, :3].T + T[:3, 3]
    return Sight(np.zeros(view.robot.shape, bool), view.depth, points, replace(view.camera, T_world_camera=T))


def stood(view: View, parts: Sequence[Part], matter: Collection[int]) -> tuple[View, list[Part]]:
    """A view whose depth was guessed, and its parts, with everything standing on the support: the parts that ``matter`` by
    their outlines (:mod:`kinema4d.world.small.outline`), others by their feet, what is nearly level with the support by
    its plane."""
    level, depth = leveled(view), view.depth.copy()
    things = view.robot.copy()
    for part in parts:
        things |= part.mask
    T = level.camera.poses(1)[0]
    down = (rays(view.camera.K, *view.robot.shape) @ T[:3, :3].T)[..., 2]
    plane = np.where(down < -1e-3, -T[2, 3] / np.minimum(down, -1e-3), 0.0)
    flat = ~things & (plane > 0) & (np.abs(level.points[..., 2]) < LEVEL)
    depth[flat] = plane[flat]
    for i, part in enumerate(parts):
        own = part.mask & ~view.robot & (view.depth > 0)
        if part.joint in ("slide", "hinge") or not own.any():  # they hang, nothing says where their feet are
            continue
        free = ~(things & ~part.mask)
        whole = i in matter and part.joint == "free"
        found = grounded(replace(level, own=own), free, whole=whole)
        if found is not None:
            depth[own] = found[own]
    out = replace(view, depth=depth.astype(np.float32))
    pose = view.camera.poses(1)[0]
    points = (rays(view.camera.K, *view.robot.shape) * out.depth[..., None]) @ pose[:3, :3].T + pose[:3, 3]
    return out, [replace(p, vertices=points[p.mask & (out.depth > 0)].astype(np.float64)) for p in parts]


def _completed(
    eyes: Eyes,
    part: Part,
    glimpse: Glimpse,
    cloud: Float[np.ndarray, "n 3"],
    others: Sequence[Float[np.ndarray, "_ 3"]],
) -> tuple[Float[np.ndarray, "v 3"], Int32[np.ndarray, "f 3"]]:
    """The part's surface as the network guesses it, standing on the support where it is near it."""
    found = complete(eyes.complete, glimpse, handles=part.joint in ("slide", "hinge")) or _prism(cloud)
    vertices, faces = found[0].astype(np.float64), found[1]
    reach = HIDDEN if _feet_hidden(vertices, glimpse, others) else SNAP
    return settled(vertices, part.joint, reach), faces


def _recognised(part: Part, sight: Sight, glimpse: Glimpse, others: Sequence[Float[np.ndarray, "_ 3"]]) -> Shape | None:
    """The everyday solid that a part is, if it is one: in any way free, of fixed furniture only boxes."""
    if part.joint not in ("free", "fixed") or not (sight.own & (sight.depth > 0)).any():
        return None
    low = float(np.percentile(sight.points[sight.own & (sight.depth > 0)][:, 2], 1))
    shape = fit(sight, low if low > 2 * SNAP else 0.0)
    if shape is not None and shape.low > 0 and _feet_hidden(mesh_of(shape)[0], glimpse, others):
        shape = fit(sight, 0.0)
    return None if shape is None or (part.joint == "fixed" and shape.half is None) else shape


def hidden(sight: Sight) -> float:
    """Share of a part's border beyond which something nearer is seen, or nothing is known: there it may go on."""
    own, depth = np.pad(sight.own, 1), np.pad(np.where(sight.depth > 0, sight.depth, 0.0), 1)
    covered = border = 0
    for axis, step in ((0, 1), (0, -1), (1, 1), (1, -1)):
        edge = own & ~np.roll(own, step, axis)
        border += int(edge.sum())
        covered += int((edge & (np.roll(depth, step, axis) < depth - 0.006)).sum())
    return covered / max(border, 1)


def _alike(shape: Shape, completed: Float[np.ndarray, "v 3"]) -> bool:
    """Whether a solid is about as large as the network completed the part."""
    size, guess = np.ptp(mesh_of(shape)[0], axis=0), np.ptp(completed, axis=0)
    return bool((size < 1.5 * guess + 0.01).all() and (size > 0.5 * guess - 0.01).all())


def _feet_hidden(
    vertices: Float[np.ndarray, "v 3"], glimpse: Glimpse, others: Sequence[Float[np.ndarray, "_ 3"]]
) -> bool:
    """Whether all that is below a part is out of sight and it stands on none of the ``others``: then nothing says that
    it hovers, and it does not."""
    low = float(vertices[:, 2].min())
    foot = vertices[vertices[:, 2] < low + 0.008]
    small, large = foot[:, :2].min(axis=0), foot[:, :2].max(axis=0)
    for cloud in others:
        under = (np.abs(cloud[:, :2] - (small + large) / 2) < (large - small) / 2 + 0.005).all(axis=1)
        if (under & (np.abs(cloud[:, 2] - low) < 0.02)).any():
            return False
    below = np.concatenate([foot * [1, 1, 0] + [0, 0, share * low] for share in (0.2, 0.5, 0.8)])
    uvz = below @ glimpse.P[:, :3].T + glimpse.P[:, 3]
    h, w = glimpse.own.shape
    u, v = (np.rint(uvz[:, i] / np.maximum(uvz[:, 2], 1e-3)).astype(int) for i in (0, 1))
    inside = (u >= 0) & (u < w) & (v >= 0) & (v < h)
    seen = np.where(inside, glimpse.depth[np.clip(v, 0, h - 1), np.clip(u, 0, w - 1)], 0)
    return bool((seen > uvz[:, 2] + 0.008).mean() < 0.2)


def T_level_world(camera: Camera, support: float) -> Float[np.ndarray, "4 4"]:
    """To the level frame over the camera's foot, the support at 0."""
    T = np.eye(4)
    T[:3, :3] = level_frame(camera)
    T[:3, 3] = -T[:3, :3] @ np.array([*camera.poses(1)[0][:2, 3], support])
    return T


def projection(camera: Camera, support: float = 0.0) -> Float[np.ndarray, "3 4"]:
    """From the level frame over the camera's foot to pixels."""
    return camera.K @ (invert(camera.poses(1)[0]) @ invert(T_level_world(camera, support)))[:3]


def settled(vertices: Float[np.ndarray, "v 3"], joint: str, reach: float = SNAP) -> Float[np.ndarray, "v 3"]:
    """Stretched down to the support where the lowest point is within ``reach`` of it, and flat there."""
    low, high = vertices[:, 2].min(), vertices[:, 2].max()
    out = vertices.copy()
    if joint in ("free", "fixed") and low < reach and high - low > 0.004:
        out[:, 2] = (vertices[:, 2] - low) * high / (high - low)
        out[out[:, 2] < 0.0025, 2] = 0.0
    return np.column_stack([out[:, :2], np.maximum(out[:, 2], 0.0)])


def _prism(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is seen, closed down to the support: the hull of the points and of their shadow."""
    from scipy.spatial import ConvexHull

    spread = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]) * 0.002
    cloud = np.concatenate([points, points * [1, 1, 0]])
    cloud = (cloud[:: max(1, len(cloud) // 200), None] + spread).reshape(-1, 3)
    hull = ConvexHull(cloud)
    used, faces = np.unique(hull.simplices, return_inverse=True)
    faces = faces.reshape(-1, 3).astype(np.int32)
    corners = cloud[used]
    a, b, c = (corners[faces[:, i]] for i in range(3))
    flip = (np.cross(b - a, c - a) * hull.equations[:, :3]).sum(axis=1) < 0
    faces[flip] = faces[flip][:, ::-1]
    return corners.astype(np.float32), faces
