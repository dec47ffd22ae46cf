"""Look: from a picture with depth to parts with closed surfaces.

The networks see about 192 rows. Their labels are carried to the picture's own pixels by position and colour; a label
image from elsewhere (SAM, a person) may take their place, and then the network only says how each piece can move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int32, UInt8

from kinema4d.geometry.camera import rays
from kinema4d.geometry.se3 import invert
from kinema4d.types import Camera
from kinema4d.world.small.board import hinged_board, shut_board, shut_front
from kinema4d.world.small.complete import CompleteNet, Glimpse, complete
from kinema4d.world.small.group import group
from kinema4d.world.small.outline import grounded
from kinema4d.world.small.parts import JOINTS, Part
from kinema4d.world.small.pieces import decompose, joined, tray
from kinema4d.world.small.see import ROOM_UNIT, ROWS, DepthNet, SegmentNet, depth_input, level_frame, segment_input
from kinema4d.world.small.shape import Shape, mesh_of, moved
from kinema4d.world.small.shape_fit import Sight, fit

HANG = 0.08
"""A joint hangs on furniture this near to it; what joins a handle to its drawer may be hidden, metres."""
SNAP = 0.006
"""A part whose lowest point is this near to the support stands on it, metres."""
HIDDEN = 0.06
"""The same for a part whose feet are out of sight."""
LEVEL = 0.015
"""What was guessed to be this near to the support, and is no part, is the support, metres."""
SHUT = 0.015
"""A drawer that is open by less is shut, metres."""
COVERED = 0.15
"""Share of a part's border that something else may hide before the network has a say in how large it is."""


@dataclass(frozen=True, eq=False)
class Eyes:
    """The networks that see."""

    depth: DepthNet
    """Guesses depth."""
    segment: SegmentNet
    """Finds parts."""
    complete: CompleteNet
    """Guesses unseen sides."""
    blind: SegmentNet | None = None
    """Finds parts where depth is a guess; without one, ``segment`` does."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """The first picture and what is known about it."""

    rgb: UInt8[np.ndarray, "h w 3"]
    """Colour."""
    depth: Float32[np.ndarray, "h w"]
    """Metres along the optical axis; 0 where unknown."""
    robot: Bool[np.ndarray, "h w"]
    """Pixels that show the robot."""
    camera: Camera
    """Who looks."""
    support: float = 0.0
    """Height of the table in the world, metres."""


def resized(view: View) -> View:
    """The view with about ``ROWS`` rows: every n-th pixel, or every pixel twice."""
    h, w = view.robot.shape
    factor = max(1, round(h / ROWS))
    K = np.array(view.camera.K)
    if factor > 1:
        at, (ch, cw) = factor // 2, (h // factor, w // factor)
        pick = lambda a: a[at::factor, at::factor][:ch, :cw]  # noqa: E731
        rgb = (
            view.rgb[: ch * factor, : cw * factor].reshape(ch, factor, cw, factor, 3).mean(axis=(1, 3)).astype(np.uint8)
        )
        K[0, 2], K[1, 2] = (K[0, 2] - at) / factor, (K[1, 2] - at) / factor
        K[0, :2], K[1, 1] = K[0, :2] / factor, K[1, 1] / factor
        depth, robot = pick(view.depth), pick(view.robot)
    elif h * 1.4 < ROWS:
        factor = round(ROWS / h)
        grow = lambda a: np.repeat(np.repeat(a, factor, 0), factor, 1)  # noqa: E731
        rgb, depth, robot = grow(view.rgb), grow(view.depth), grow(view.robot)
        K[:2, :2] *= factor
        K[0, 2], K[1, 2] = (K[0, 2] + 0.5) * factor - 0.5, (K[1, 2] + 0.5) * factor - 0.5
    else:
        return view
    rows, columns = robot.shape
    camera = Camera(K=K, T_world_camera=view.camera.poses(1)[0], height=rows, width=columns)
    return View(rgb=rgb, depth=depth, robot=robot, camera=camera, support=view.support)


@torch.no_grad()
def guess_depth(eyes: Eyes, view: View) -> Float32[np.ndarray, "h w"]:
    """Depth of a picture without any, at its own size; exact on the robot, whose depth ``view`` has."""
    small = resized(view)
    x, reference = depth_input(small.rgb, small.robot, small.depth, small.camera, small.support)
    inverse = eyes.depth(torch.from_numpy(x)[None], torch.from_numpy(reference)[None])
    h, w = view.robot.shape
    if inverse.shape[1:] != (h, w):
        inverse = torch.nn.functional.interpolate(inverse[None], size=(h, w), mode="bilinear", align_corners=False)[0]
    depth = 1 / inverse[0].numpy()
    return np.where(view.robot & (view.depth > 0), view.depth, depth).astype(np.float32)


def support_height(view: View) -> float:
    """Height of the most common level surface before the robot's feet, metres; 0 where none is found."""
    X, normals = _world(view)
    level = (normals[..., 2] > 0.95) & (view.depth > 0) & ~view.robot & (view.depth < 2.0)
    heights = X[..., 2][level]
    heights = heights[np.abs(heights) < 1.5]
    if len(heights) < 200:
        return 0.0
    counts, edges = np.histogram(heights, bins=np.arange(-1.5, 1.505, 0.005))
    best = int(counts.argmax())
    near = heights[np.abs(heights - (edges[best] + 0.0025)) < 0.006]
    return float(np.median(near))


def _world(view: View) -> tuple[np.ndarray, np.ndarray]:
    x, X = segment_input(view.rgb, view.depth, view.depth > 0, view.robot, view.camera)
    return X, x[4:7].transpose(1, 2, 0)


@torch.no_grad()
def find_parts(
    eyes: Eyes,
    view: View,
    *,
    labels: Int32[np.ndarray, "h w"] | None = None,
    names: tuple[str, ...] = (),
    guessed: bool = False,
) -> list[Part]:
    """All parts of a view, without surfaces yet: their vertices are the points that are seen. ``labels`` (0 = nothing)
    replaces the network's own grouping; ``names`` are what its numbers are called; ``guessed`` says that a network made the
    view's depth."""
    small = resized(view)
    x, X = segment_input(small.rgb, small.depth, small.depth > 0, small.robot, small.camera, small.support)
    net = eyes.blind if guessed and eyes.blind is not None else eyes.segment
    said = net(torch.from_numpy(x)[None])
    chance = said.kind[0].softmax(0).numpy()
    votes, axis, pivot = (a[0].permute(1, 2, 0).numpy() for a in (said.vote, said.axis, said.pivot))
    room = said.room[0].permute(1, 2, 0).numpy()
    usable = (small.depth > 0) & ~small.robot
    if labels is None:
        found = group(chance, X, votes, usable)
        full = carried(found, small, view)
    else:
        full = np.where(view.robot, 0, labels)
        found = _shrunk(full, small.robot.shape)
    R = level_frame(view.camera)
    foot = np.array([*view.camera.poses(1)[0][:2, 3], view.support])
    world = (_world(view)[0] - [0, 0, 0]) @ R + [*foot[:2], 0.0]
    out = []
    for label in range(1, int(full.max(initial=0)) + 1):
        mask, own = full == label, (found == label) & usable
        seen = mask & (view.depth > 0)
        if seen.sum() < 3:
            continue
        if not own.any():
            own = _shrunk(mask.astype(np.int32), small.robot.shape) > 0
        share = chance[:, own].mean(axis=1) if own.any() else np.array([0, 0, 1.0, 0, 0])
        kind = int(share[1:].argmax()) if share[1:].max() > 0.15 else JOINTS.index("free")
        joint = JOINTS[kind]
        name = names[label - 1] if label <= len(names) else f"part {label}"
        sure = float(share[1 + kind] / max(share.sum(), 1e-6))
        direction, point, span = _joint(joint, axis[own], (X + pivot)[own], room[own], R, foot)
        if direction is not None:
            around = usable & (chance[0] < 0.5) & (_distance(own) < 40)
            direction = squared(direction, x[4:7].transpose(1, 2, 0)[around] @ R)
        out.append(
            Part(
                name=name, joint=joint, mask=mask, vertices=world[seen], faces=np.zeros((0, 3), np.int32),
                axis=direction, pivot=point, room=span, confidence=sure,
            )
        )  # fmt: skip
    return [_hung(part, out) for part in out]


def _hung(part: Part, parts: list[Part]) -> Part:
    """A joint needs something to hang on: without furniture beside it, a part is free."""
    from scipy.spatial import KDTree

    if part.joint not in ("slide", "hinge"):
        return part
    tree = KDTree(part.vertices[:: max(1, len(part.vertices) // 300)])
    if any(p.joint == "fixed" and tree.query(p.vertices)[0].min() < HANG for p in parts):
        return part
    return replace(part, joint="free", axis=None, pivot=None, room=None)


def _joint(
    joint: str, axis: np.ndarray, pivot: np.ndarray, room: np.ndarray, R: np.ndarray, foot: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None, tuple[float, float] | None]:
    """Axis, pivot and room of a part in the world, from what its pixels say. Drawers slide level, doors turn upright,
    lids level: an axis near to one of these is one."""
    if joint not in ("slide", "hinge"):
        return None, None, None
    mean = np.median(axis, axis=0)
    if joint == "slide":
        mean[2] = 0.0 if abs(mean[2]) < 0.3 * np.linalg.norm(mean) else mean[2]
    elif abs(mean[2]) > 0.85 * np.linalg.norm(mean):
        mean[:2] = 0.0
    elif abs(mean[2]) < 0.4 * np.linalg.norm(mean):
        mean[2] = 0.0
    direction = (mean / max(np.linalg.norm(mean), 1e-6)) @ R
    back, forth = np.median(room, axis=0) * (ROOM_UNIT if joint == "slide" else 1.0)
    span = (float(min(back, 0.0)), float(max(forth, 0.0)))
    return direction, np.median(pivot, axis=0) @ R + foot, span


def _distance(own: Bool[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
    """Pixels to the nearest one of ``own``."""
    from scipy.ndimage import distance_transform_edt

    found = distance_transform_edt(~own)
    assert isinstance(found, np.ndarray)
    return found


def squared(axis: Float[np.ndarray, "3"], normals: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "3"]:
    """A level axis turned to the nearest side of the furniture around it, whose upright faces say how it stands: boxes
    have four sides. Unchanged where there is no such agreement, or the nearest side is far."""
    upright = np.abs(normals[:, 2]) < 0.4
    if abs(axis[2]) > 0.5 or upright.sum() < 20:
        return axis
    heading = np.arctan2(normals[upright, 1], normals[upright, 0])
    mean = np.exp(4j * heading).mean()
    if abs(mean) < 0.5:
        return axis
    side, own = np.angle(mean) / 4, np.arctan2(axis[1], axis[0])
    turn = own + (side - own + np.pi / 4) % (np.pi / 2) - np.pi / 4
    return np.array([np.cos(turn), np.sin(turn), 0.0]) if abs(turn - own) < 0.6 else axis


def carried(found: Int32[np.ndarray, "a b"], small: View, view: View) -> Int32[np.ndarray, "h w"]:
    """Labels of the reduced picture on the pixels of the full one: inside a label as they are, at its border by which
    of the nine pixels around is nearest in space and colour."""
    (a, b), (h, w) = found.shape, view.robot.shape
    if (a, b) == (h, w):
        return np.where(view.robot, 0, found)
    rows = np.minimum((np.arange(h) + 0.5) * a / h, a - 1).astype(int)
    columns = np.minimum((np.arange(w) + 0.5) * b / w, b - 1).astype(int)
    out = found[rows][:, columns]
    padded = np.pad(found, 1, mode="edge")
    shifts = [padded[1 + i : 1 + i + a, 1 + j : 1 + j + b] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    border = np.logical_or.reduce([s != found for s in shifts])[rows][:, columns]
    y, x = np.nonzero(border & (view.depth > 0))
    r, c = rows[y], columns[x]
    best, label = np.full(len(y), np.inf), out[y, x].copy()
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            rr, cc = np.clip(r + i, 0, a - 1), np.clip(c + j, 0, b - 1)
            far = np.abs(small.depth[rr, cc] - view.depth[y, x]) / 0.01
            other = np.abs(small.rgb[rr, cc].astype(np.int32) - view.rgb[y, x]).sum(axis=1) / 60
            cost = far + other + 0.3 * (abs(i) + abs(j))
            better = cost < best
            best, label = np.where(better, cost, best), np.where(better, found[rr, cc], label)
    out[y, x] = label
    return np.where(view.robot, 0, out)


def _shrunk(labels: Int32[np.ndarray, "h w"], shape: tuple[int, int]) -> Int32[np.ndarray, "a b"]:
    h, w = labels.shape
    rows = np.minimum(((np.arange(shape[0]) + 0.5) * h / shape[0]).astype(int), h - 1)
    columns = np.minimum(((np.arange(shape[1]) + 0.5) * w / shape[1]).astype(int), w - 1)
    return labels[rows][:, columns]


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
        own = _shrunk(part.mask.astype(np.int32), small.robot.shape) > 0
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
    return [_boarded(p, seen[p.name], out, view) if p.joint in ("slide", "hinge") else p for p in out]


def _boarded(part: Part, seen: Float[np.ndarray, "n 3"], parts: Sequence[Part], view: View) -> Part:
    """A jointed part as flat pieces, however little of it is seen; a drawer with what is behind its front."""
    from scipy.spatial import KDTree

    tree = KDTree(part.vertices)
    chests = [p for p in parts if p.joint == "fixed" and tree.query(p.vertices)[0].min() < HANG]
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


def leveled(view: View) -> Sight:
    """The picture in the level frame over the camera's foot, no part chosen yet."""
    T = np.eye(4)
    T[:3, :3] = level_frame(view.camera)
    T[:3, 3] = -T[:3, :3] @ np.array([*view.camera.poses(1)[0][:2, 3], view.support])
    T = T @ view.camera.poses(1)[0]
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
        free = ~(things & ~part.mask)
        whole = i in matter and part.joint == "free"
        found = grounded(replace(level, own=own), free, whole=whole) if own.any() else None
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
    if part.joint not in ("free", "fixed") or not sight.own.any():
        return None
    low = float(np.percentile(sight.points[sight.own & (sight.depth > 0)][:, 2], 1)) if part.mask.any() else 0.0
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


def projection(camera: Camera, support: float = 0.0) -> Float[np.ndarray, "3 4"]:
    """From the level frame over the camera's foot to pixels."""
    T = np.eye(4)
    T[:3, :3] = level_frame(camera)
    T[:3, 3] = -T[:3, :3] @ np.array([*camera.poses(1)[0][:2, 3], support])
    return camera.K @ (invert(camera.poses(1)[0]) @ invert(T))[:3]


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
