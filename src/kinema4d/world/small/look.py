"""Look: from a picture to its depth and to parts, without surfaces yet (:mod:`kinema4d.world.small.surface`).

The networks see about 192 rows. Their labels are carried to the picture's own pixels by position and colour; a label
image from elsewhere (SAM, a person) may take their place, and then the network only says how each piece can move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int32, UInt8

from kinema4d.types import Camera
from kinema4d.world.small.complete import CompleteNet
from kinema4d.world.small.group import group
from kinema4d.world.small.parts import JOINTS, Part
from kinema4d.world.small.see import (
    ROOM_UNIT,
    ROWS,
    BlindNet,
    Said,
    SegmentNet,
    blind_input,
    level_frame,
    segment_input,
)

TOUCHES = 0.01
"""Parts this near to each other touch, metres."""
BEHIND = 0.15
"""The axis of a hinge is this near to furniture, of which the robot may hide that much, metres."""
SURE = 0.8
"""A joint that the network is so sure of may hang on what the robot hides."""
HANG = 0.08
"""A joint hangs on furniture this near to it; what joins a handle to its drawer may be hidden, metres."""


@dataclass(frozen=True, eq=False)
class Eyes:
    """The networks that see."""

    segment: SegmentNet
    """Finds parts."""
    complete: CompleteNet
    """Guesses unseen sides."""
    blind: BlindNet
    """Finds parts, and guesses depth, where no sensor gives it."""


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
def guess(eyes: Eyes, view: View) -> tuple[Float32[np.ndarray, "h w"], Said]:
    """Depth of a picture without any, at its own size, exact on the robot, whose depth ``view`` has; and what is said of
    the pixels of the reduced picture."""
    small = resized(view)
    x, reference = blind_input(small.rgb, small.robot, small.depth, small.camera, small.support)
    inverse, said = eyes.blind(torch.from_numpy(x)[None], torch.from_numpy(reference)[None])
    h, w = view.robot.shape
    if inverse.shape[1:] != (h, w):
        inverse = torch.nn.functional.interpolate(inverse[None], size=(h, w), mode="bilinear", align_corners=False)[0]
    depth = 1 / inverse[0].numpy()
    return np.where(view.robot & (view.depth > 0), view.depth, depth).astype(np.float32), said


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
    said: Said | None = None,
) -> list[Part]:
    """All parts of a view, without surfaces yet: their vertices are the points that are seen. ``labels`` (0 = nothing)
    replaces the network's own grouping; ``names`` are what its numbers are called; ``said`` comes from :func:`guess` where
    that made the view's depth."""
    small = resized(view)
    x, X = segment_input(small.rgb, small.depth, small.depth > 0, small.robot, small.camera, small.support)
    pixels: Said = eyes.segment(torch.from_numpy(x)[None]) if said is None else said
    chance = pixels.kind[0].softmax(0).numpy()
    votes, axis, pivot = (a[0].permute(1, 2, 0).numpy() for a in (pixels.vote, pixels.axis, pixels.pivot))
    room = pixels.room[0].permute(1, 2, 0).numpy()
    usable = (small.depth > 0) & ~small.robot
    if labels is None:
        found = group(chance, X, votes, usable, measured=said is None)
        full = carried(found, small, view)
    else:
        full = np.where(view.robot, 0, labels)
        found = shrunk(full, small.robot.shape)
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
            own = shrunk(mask.astype(np.int32), small.robot.shape) > 0
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
    out = [_built_in(part, out) for part in out]
    return [_hung(part, out, view.robot) for part in out]


def _hung(part: Part, parts: list[Part], robot: Bool[np.ndarray, "h w"]) -> Part:
    """A joint needs something to hang on: without furniture beside it a part is free, unless the network is sure and the
    robot may hide that furniture."""
    if part.joint not in ("slide", "hinge") or any(p.joint == "fixed" and _gap(part, p) < HANG for p in parts):
        return part
    if part.confidence > SURE and _distance(part.mask)[robot].min(initial=np.inf) < 2:
        return part
    return replace(part, joint="free", axis=None, pivot=None, room=None)


def _built_in(part: Part, parts: list[Part]) -> Part:
    """What seems loose, but touches a smaller piece of furniture and is beside the axis of a door, is furniture: the
    robot hides what joins them."""
    if part.joint != "free":
        return part
    for p in parts:
        small = p.joint == "fixed" and p.mask.sum() < part.mask.sum()
        if small and _gap(part, p) < TOUCHES and any(_beside_axis(door, part) for door in parts):
            return replace(part, joint="fixed")
    return part


def _gap(part: Part, other: Part) -> float:
    """Between what is seen of two parts, metres."""
    from scipy.spatial import KDTree

    return float(KDTree(part.vertices[:: max(1, len(part.vertices) // 300)]).query(other.vertices)[0].min())


def _beside_axis(hinge: Part, other: Part) -> bool:
    """Whether a part comes near to the axis of a hinge."""
    if hinge.joint != "hinge" or hinge.axis is None or hinge.pivot is None:
        return False
    away = other.vertices - hinge.pivot
    return float(np.linalg.norm(away - (away @ hinge.axis)[:, None] * hinge.axis, axis=1).min()) < BEHIND


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
    return along_side(axis, float(np.angle(mean)) / 4, 0.6)


def along_side(axis: Float[np.ndarray, "3"], yaw: float, most: float) -> Float[np.ndarray, "3"]:
    """A level axis turned to the nearest side of a box with this yaw; unchanged where that is ``most`` radians or more."""
    own = float(np.arctan2(axis[1], axis[0]))
    off = (yaw - own + np.pi / 4) % (np.pi / 2) - np.pi / 4
    return np.array([np.cos(own + off), np.sin(own + off), 0.0]) if abs(off) < most else axis


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


def shrunk(labels: Int32[np.ndarray, "h w"], shape: tuple[int, int]) -> Int32[np.ndarray, "a b"]:
    """Labels of a picture of another size."""
    h, w = labels.shape
    rows = np.minimum(((np.arange(shape[0]) + 0.5) * h / shape[0]).astype(int), h - 1)
    columns = np.minimum(((np.arange(shape[1]) + 0.5) * w / shape[1]).astype(int), w - 1)
    return labels[rows][:, columns]
