"""What things look like, so that they can be looked for: their surface, the turns that it does not show, their colours.

All of it is the truth's. A simulated thing has its mesh; one without (LIBERO's) gets the surface that the truth's camera
saw of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int, Int32, UInt8

from kinema4d.evaluate.symmetry import NONE, Symmetry, find_symmetry, surface_points
from kinema4d.geometry.se3 import apply, invert
from kinema4d.types import ROBOT_LABEL, Episode, Track, is_robot_label

MOST_ROWS, MOST_COLUMNS = 120, 180
"""Larger clips are looked at on every second, third... pixel."""
VISIBLE_PIXELS = 4
"""Fewer pixels than this of a thing in the truth are not looked for."""
TWIN_M, TWIN_COLORS = 0.001, 0.4
"""Twins differ in size by less than this, metres, and share at least so much of their colours."""
BINS = 16
"""Colour bins per channel."""
UNSEEN = 2e-4
"""Frequency of colours that nobody has shown: neither the thing's nor others'."""
MESH_VIEWS = 9
"""Frames that a thing without a mesh gets its surface from."""
ANOTHER_VIEW = float(np.radians(8))
"""A view of it from a direction that differs by less shows nothing new."""
SEEN_JUMP_M = 0.02
"""Neighbouring pixels further apart are not one surface."""
FRAMES = 13
"""Frames of a clip that are looked at, evenly spaced, the first and the last among them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A thing that can be looked for."""

    name: str
    """Its label and track."""
    vertices: Float[np.ndarray, "v 3"]
    """Its surface in its own frame, metres."""
    faces: Int32[np.ndarray, "f 3"]
    """Triangles."""
    centre: Float[np.ndarray, "3"]
    """Middle of the surface: the point whose place is judged."""
    radius: float
    """Of a ball around the middle that holds it, metres."""
    symmetry: Symmetry
    """Turns that cannot be seen."""
    whole: bool
    """Whether the surface is the thing's mesh; else it is what the truth's camera saw of it."""
    likeness: Float32[np.ndarray, "b b b"]
    """By colour: how much it speaks for the thing against everything else, 0..1."""
    twins: tuple[str, ...] = ()
    """Other things of the same shape and colours, as beads are: nobody can tell them apart."""

    def place(self, Ts: Float[np.ndarray, "*t 4 4"]) -> Float[np.ndarray, "*t 3"]:
        """Where its middle is."""
        return Ts[..., :3, :3] @ self.centre + Ts[..., :3, 3]


def frames_of(count: int, frames: int = FRAMES) -> Int[np.ndarray, " n"]:
    """Evenly spaced frames of ``count``, the first and the last among them."""
    if frames < 2:
        raise ValueError(f"at least the first and the last frame are looked at, got {frames}")
    return np.unique(np.linspace(0, count - 1, min(frames, count)).round().astype(int))


def stride_of(height: int, width: int) -> int:
    """Every how many pixels a clip is looked at."""
    return max(1, -(-height // MOST_ROWS), -(-width // MOST_COLUMNS))


def models_of(truth: Episode) -> dict[str, Model]:
    """Everything with a track that can be looked for, by name. A thing without a mesh gets the surface that the truth's
    camera saw of it; one that is never seen is left out."""
    if truth.labels is None or not truth.tracks:
        return {}
    step = stride_of(*truth.clip.rgb.shape[1:3])
    part = (slice(None), slice(step // 2, None, step), slice(step // 2, None, step))
    bins = binned(truth.clip.rgb[part])
    labels = truth.labels[part]
    flat = (bins.astype(np.int64) * np.array([BINS * BINS, BINS, 1])).sum(axis=-1)
    names = len(truth.label_names) + 1
    counts = np.bincount((labels.astype(np.int64) * BINS**3 + flat).ravel(), minlength=names * BINS**3)
    counts = counts.reshape(names, BINS, BINS, BINS).astype(np.float64)
    shares = _shares(truth, counts)
    shapes: dict[str, tuple[np.ndarray, np.ndarray, bool]] = {}
    for track in truth.tracks:
        surface = _surface(truth, track) if track.name in shares else None
        if surface is not None:
            shapes[track.name] = surface
    return {name: _model(name, shapes, shares) for name in shapes}


def _model(
    name: str, shapes: Mapping[str, tuple[np.ndarray, np.ndarray, bool]], shares: Mapping[str, np.ndarray]
) -> Model:
    vertices, faces, whole = shapes[name]
    centre = surface_points(vertices, faces, 2000).mean(axis=0)
    twins = tuple(
        other
        for other, (theirs, _, _) in shapes.items()
        if other != name
        and theirs.shape == vertices.shape
        and np.abs(np.ptp(theirs, axis=0) - np.ptp(vertices, axis=0)).max() < TWIN_M
        and np.minimum(shares[name], shares[other]).sum() > TWIN_COLORS
    )
    return Model(
        name=name,
        vertices=np.ascontiguousarray(vertices, np.float64),
        faces=np.ascontiguousarray(faces, np.int32),
        centre=centre,
        radius=float(np.linalg.norm(vertices - centre, axis=1).max()),
        symmetry=find_symmetry(vertices, faces) if whole else NONE,
        whole=whole,
        likeness=_likeness(shares, name, twins),
        twins=twins,
    )


def binned(rgb: UInt8[np.ndarray, "t h w 3"]) -> UInt8[np.ndarray, "t h w 3"]:
    """Colours in coarse steps."""
    return rgb // (256 // BINS)


def _shares(truth: Episode, counts: Float[np.ndarray, "n b b b"]) -> dict[str, np.ndarray]:
    """How often the room, the robot and each thing shows each colour, a little blurred."""
    from scipy.ndimage import gaussian_filter

    pooled: dict[str, np.ndarray] = {"": counts[0]}
    for name, own in zip(truth.label_names, counts[1:], strict=True):
        key = ROBOT_LABEL if is_robot_label(name) else name
        pooled[key] = pooled.get(key, 0.0) + own
    return {
        name: gaussian_filter(own / own.sum(), 1.0, mode="constant") for name, own in pooled.items() if own.sum() > 0
    }


def _likeness(shares: Mapping[str, np.ndarray], name: str, twins: tuple[str, ...]) -> Float32[np.ndarray, "b b b"]:
    """For each colour the thing against whoever shows it most among the others. Other things count by half: mostly they
    stand where they stood, and where one does not, it is found itself."""
    rooms = [share for other, share in shares.items() if other in ("", ROBOT_LABEL)]
    things = [share / 2 for other, share in shares.items() if other not in (name, "", ROBOT_LABEL, *twins)]
    most = np.max([np.zeros_like(shares[name]), *rooms, *things], axis=0)
    a, b = shares[name] + UNSEEN, most + UNSEEN
    return (a / (a + b)).astype(np.float32)


def _surface(truth: Episode, track: Track) -> tuple[np.ndarray, np.ndarray, bool] | None:
    if track.vertices is not None and track.faces is not None:
        return np.asarray(track.vertices, np.float64), track.faces, True
    return seen_surface(truth, track)


def seen_surface(truth: Episode, track: Track) -> tuple[np.ndarray, np.ndarray, bool] | None:
    """The surface of a thing as the truth's camera saw it: its labelled pixels as triangles, from some frames in which
    much of it is seen."""
    assert truth.labels is not None
    clip, step = truth.clip, stride_of(*truth.clip.rgb.shape[1:3])
    part = (slice(step // 2, None, step), slice(step // 2, None, step))
    own = truth.labels == truth.label_names.index(track.name) + 1
    sizes = own.reshape(len(own), -1).sum(axis=1)
    spread = frames_of(len(own), MESH_VIEWS)
    Ts_object_camera = invert(track.Ts_world_object) @ clip.camera.poses(len(clip))
    from_where = Ts_object_camera[:, :3, 3].copy()
    from_where /= np.linalg.norm(from_where, axis=1, keepdims=True)
    chosen: list[int] = []
    for t in sorted({int(sizes.argmax()), *(int(t) for t in spread if sizes[t] > 0)}, key=lambda t: -sizes[t]):
        if all(from_where[t] @ from_where[other] < np.cos(ANOTHER_VIEW) for other in chosen):
            chosen.append(t)
    vertices, faces, count = [], [], 0
    for t in chosen:
        seen = own[t][part] & clip.pointmap.valid[t][part]
        if seen.sum() < VISIBLE_PIXELS:
            continue
        points = clip.pointmap.points[t][part].astype(np.float64)
        number = np.cumsum(seen).reshape(seen.shape) - 1
        quads = np.stack([number[:-1, :-1], number[:-1, 1:], number[1:, 1:], number[1:, :-1]], axis=-1)
        z = points[..., 2]
        corners = np.stack([z[:-1, :-1], z[:-1, 1:], z[1:, 1:], z[1:, :-1]])
        whole = seen[:-1, :-1] & seen[:-1, 1:] & seen[1:, 1:] & seen[1:, :-1] & (np.ptp(corners, axis=0) < SEEN_JUMP_M)
        quads = quads[whole] + count
        vertices.append(apply(Ts_object_camera[t], points[seen]))
        faces += [quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]
        count += int(seen.sum())
    if not faces or not sum(len(f) for f in faces):
        return None
    return np.concatenate(vertices), np.concatenate(faces).astype(np.int32), False
