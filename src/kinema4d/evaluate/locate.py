"""Where is each thing in a generated clip? Analysis by synthesis: the pose whose picture explains the pixels best.

A thing's shape, looks and first pose are known from the truth; the first frame is given to every world. At some frames
of the clip several poses are tried: where it was found before, where it began, carried along by the hand, where its
colours are seen, and a little beside where it truly is. The last is only a place to begin: every score comes from the predicted pixels
alone. Each pose is fitted to the predicted points and then scored: a pixel agrees where the predicted depth is at the
surface and the colour is one of the thing's; it contradicts where the prediction shows something behind the surface,
or another colour on it; what is before the surface hides it and says nothing, unless it is the bare table or wall of the
first frame, in which nothing can be. Pixels that show the robot at its place, or what
they showed at first, or another thing that looks alike, speak for no thing. A thing that no pose explains is missing,
and one that all good poses hide is hidden: neither gets a made-up place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, UInt8

from kinema4d.evaluate import locate_kernels
from kinema4d.evaluate.thing_models import FRAMES, VISIBLE_PIXELS, Model, binned, frames_of, models_of, stride_of
from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.se3 import apply, invert, rotvec_to_matrix
from kinema4d.types import Clip, Episode, is_robot_label

_kernels: Any = locate_kernels  # compiled: the checker does not see their signatures

TOLERANCE_M = 0.008
"""Depth within which a pixel agrees with a surface: one pixel of a 96x144 clip is about as large."""
TOLERANCE_SHARE = 0.6
"""The same for small things, as a share of their radius."""
GATES_M = (0.03, 0.03, 0.02, 0.012, 0.008, 0.008, 0.006, 0.006)
"""Distances within which points pull on a pose, step by step."""
STEPS_M = (0.008, 0.004, 0.002, 0.001, 0.0005)
"""Steps of the search by outlines."""
DAMPING = 0.05
"""Keeps a pose where the points do not say; against about one per pixel that they do."""
MIN_PIXELS = 2.0
"""Least agreement for a thing to be found, pixels: beads show four."""
ENOUGH_PIXELS, ENOUGH_SHARE = 6.0, 0.25
"""Where less than this share of the thing agrees, at least so many pixels must: most of it may be hidden, but then what
is left must be more than a speck."""
MIN_SHARE = 0.5
"""Least share of agreement in all that is seen where the thing would be."""
BESIDE_M = 0.004
"""How far beside the true pose the search begins that knows of it, metres."""
BESIDE = BESIDE_M * np.array([2.0, -2.0, 1.0]) / 3
BESIDE_TURN = rotvec_to_matrix(np.radians([1.5, -1.0, 2.0]))
"""The same as a vector, and the turn that goes with it."""
REACH_M = 1.0
"""Nothing is looked for further from where it began: no robot here throws."""
HIDDEN_SHARE = 0.7
"""A thing that is not found is hidden where this share of it lies behind something."""
PREFER = 0.02
"""A pose that is better by less than this share of agreement does not displace the thing from where it began."""
CHANGED_COLOR = 24
"""Change of colour against the first frame that is not noise, of 255."""
LOST_SHARE = 0.3
"""A thing is looked for again where others have a better right to more than this share of its pixels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Where a thing was found in a clip."""

    model: Model
    """What was looked for."""
    frames: Int[np.ndarray, " n"]
    """Frames that were looked at."""
    Ts_world_object: Float[np.ndarray, "n 4 4"]
    """Its poses; where it was not found, where it was last, as a guess for what is hidden."""
    status: tuple[str, ...]
    """``found``, ``hidden`` or ``missing`` at each frame."""
    agreement: Float[np.ndarray, "n"]
    """Pixels that speak for the pose."""
    contradiction: Float[np.ndarray, "n"]
    """Pixels that speak against it."""
    visible: Bool[np.ndarray, " n"]
    """Whether the truth shows enough of it to be looked for."""

    @property
    def found(self) -> Bool[np.ndarray, " n"]:
        """Where it was found."""
        return np.array([s == "found" for s in self.status])


@dataclass(frozen=True, kw_only=True, eq=False)
class _View:
    """A clip on the pixels that are looked at."""

    K: Float[np.ndarray, "3 3"]
    Ts_camera_world: Float[np.ndarray, "n 4 4"]
    points: Float32[np.ndarray, "n h w 3"]
    valid: Bool[np.ndarray, "n h w"]
    bins: UInt8[np.ndarray, "n h w 3"]
    rgb: UInt8[np.ndarray, "n h w 3"]


def locate(
    clip: Clip,
    truth: Episode,
    *,
    models: Mapping[str, Model] | None = None,
    Ts_world_tool: Sequence[Float[np.ndarray, "t 4 4"]] = (),
    frames: int = FRAMES,
) -> dict[str, Found]:
    """Look for every thing of ``models`` (by default all of the truth's) in a clip. ``Ts_world_tool`` is where the
    robots' hands are at every frame: a held thing goes along."""
    models = models_of(truth) if models is None else models
    at = frames_of(len(clip), frames)
    view = _view(clip, at)
    first = _view(truth.clip, at[:1])
    carries = [Ts[at[1:]] @ invert(Ts[at[:-1]]) for Ts in Ts_world_tool]
    tracks = {track.name: track for track in truth.tracks}
    step = stride_of(*clip.rgb.shape[1:3])
    assert truth.labels is not None
    labels = truth.labels[at][:, step // 2 :: step, step // 2 :: step]
    changed = ~first.valid | (np.abs(view.points[..., 2] - first.points[..., 2]) > TOLERANCE_M)
    # The bare room of the first frame, where it still is: nothing hides behind it.
    solid = ~changed & (labels[:1] == 0)
    changed |= np.abs(view.rgb.astype(np.int16) - first.rgb).max(axis=-1) > CHANGED_COLOR
    # The robot where kinematics puts it, as the prediction shows it: no thing is there either.
    there = _view(truth.clip, at)
    robot = [i + 1 for i, name in enumerate(truth.label_names) if is_robot_label(name)]
    robots = np.isin(labels, robot) & (np.abs(view.points[..., 2] - there.points[..., 2]) < TOLERANCE_M)
    owns = {name: labels == truth.label_names.index(name) + 1 for name in models}
    found: dict[str, Found] = {}
    claims: dict[str, np.ndarray] = {}

    def look(name: str, others: np.ndarray) -> None:
        model, own = models[name], owns[name]
        like = model.likeness[view.bins[..., 0], view.bins[..., 1], view.bins[..., 2]]
        like[~changed & own[0]] = 1.0
        like[robots | (~changed & ~own[0]) | others] = 0.0
        known = [tracks[n].Ts_world_object[at] for n in (name, *model.twins)]
        found[name], claims[name] = _follow(model, known, view, at, carries, own, changed | own[0], solid, like)

    nobody = np.zeros(labels.shape, bool)
    for name, model in models.items():
        look(name, np.any([nobody, *(claims[n] for n in model.twins if n in found)], axis=0))
    for name in sorted(models, key=lambda n: found[n].agreement.sum()):
        lost = _contested(name, found, claims)
        if (lost.sum(axis=(1, 2)) > LOST_SHARE * claims[name].sum(axis=(1, 2))).any():
            look(name, lost)
    return found


def _contested(name: str, found: Mapping[str, Found], claims: Mapping[str, np.ndarray]) -> Bool[np.ndarray, "n h w"]:
    """Pixels that others explain who have more of their own to show at that frame: a thing of the same colour that is
    hidden must not be seen in them."""
    lost = np.zeros(claims[name].shape, bool)
    for other, pixels in claims.items():
        if other != name:
            lost |= pixels & (found[other].agreement > found[name].agreement)[:, None, None]
    return lost


def _follow(
    model: Model,
    known: Sequence[Float[np.ndarray, "n 4 4"]],
    view: _View,
    at: Int[np.ndarray, " n"],
    carries: Sequence[np.ndarray],
    own: Bool[np.ndarray, "n h w"],
    changed: Bool[np.ndarray, "n h w"],
    solid: Bool[np.ndarray, "n h w"],
    like: Float32[np.ndarray, "n h w"],
) -> tuple[Found, Bool[np.ndarray, "n h w"]]:
    n, height, width = view.valid.shape
    vertices, faces = model.vertices, model.faces
    work = (
        np.empty((len(vertices), 3)), np.empty((len(vertices), 3)), np.zeros((height, width)), np.full((height, width), -1)
    )  # fmt: skip
    start = known[0][0]
    claims = np.zeros(own.shape, bool)
    turns, tolerance = not model.symmetry.round, min(TOLERANCE_M, TOLERANCE_SHARE * model.radius)
    Ts, status = np.empty((n, 4, 4)), []
    scores = np.zeros((n, 4))
    last = start
    for k in range(n):
        T_camera_world = view.Ts_camera_world[k]
        T_world_camera = invert(T_camera_world)
        common: tuple[Any, ...] = (
            vertices,
            faces,
            view.K,
            view.points[k],
            view.valid[k],
            view.rgb[k],
            like[k],
            solid[k],
            tolerance,
        )
        spot: tuple[Any, ...] = (model.centre, model.radius)

        def judge(T: np.ndarray, common: tuple[Any, ...] = common, spot: tuple[Any, ...] = spot) -> np.ndarray:
            said = np.empty(4)
            _kernels.compare(T, *common, 0.0, *spot, work, np.empty((6, 6)), np.empty(6), said)
            return said

        T_start = np.ascontiguousarray(T_camera_world @ start)
        said = judge(T_start)
        if _sure(said, model.whole):  # it stands where it stood, and all that is seen of it says so
            Ts[k], scores[k], last = start, said, start
            status.append("found")
            claims[k] = _covered(T_start, model, view, k, work)
            continue
        tries = [last, start]
        if k:
            tries += [carry[k - 1] @ last for carry in carries]
        if (seen := _by_color(model, view, k, (like[k] > 0.8) & changed[k], last)) is not None:
            tries.append(seen)
        guesses = len(tries)
        tries += [_beside(Ts_true[k], model) for Ts_true in known]
        fits = []
        for T in tries:
            best = np.empty(4)
            T_fit = _kernels.refine(
                np.ascontiguousarray(T_camera_world @ T), *common, np.array(GATES_M), *spot, DAMPING, work, best
            )
            fits.append((best[0] - best[1], T_fit))
        order = sorted(range(len(fits)), key=lambda i: -fits[i][0])
        best_T, best_said = fits[order[0]][1], np.empty(4)
        best_score = -np.inf
        for i in order[:2]:
            polished = np.empty(4)
            T_fit = _kernels.search(fits[i][1], *common, np.array(STEPS_M), turns, *spot, work, polished)
            T_fit = _kernels.refine(T_fit, *common, np.array(GATES_M[-2:]), *spot, DAMPING, work, polished)
            if polished[0] - polished[1] > best_score:
                best_score, best_T, best_said = polished[0] - polished[1], T_fit, polished
        if said[0] - said[1] >= best_score - PREFER * max(best_said[0], 1.0):
            best_T, best_said = T_start, said
        scores[k] = best_said
        away = np.linalg.norm(model.place(T_world_camera @ best_T) - model.place(start))
        if _is_found(best_said) and away < REACH_M:
            Ts[k] = last = T_world_camera @ best_T
            status.append("found")
            claims[k] = _covered(best_T, model, view, k, work)
        else:
            # No pixel speaks for a place, so the true one must not be among the guesses.
            guess = [(judge(np.ascontiguousarray(T_camera_world @ T)), T) for T in tries[: guesses if k else 1]]
            hidden = [T for said, T in guess if said[3] > 0 and said[2] >= HIDDEN_SHARE * said[3]]
            status.append("hidden" if hidden else "missing")
            Ts[k] = last = hidden[0] if hidden else last
    result = Found(
        model=model,
        frames=at,
        Ts_world_object=Ts,
        status=tuple(status),
        agreement=scores[:, 0],
        contradiction=scores[:, 1],
        visible=own.sum(axis=(1, 2)) >= VISIBLE_PIXELS,
    )
    return result, claims


def _covered(T: np.ndarray, model: Model, view: _View, k: int, work: tuple) -> Bool[np.ndarray, "h w"]:
    """Pixels that a thing at a pose explains."""
    out = np.zeros(view.valid.shape[1:], bool)
    _kernels.cover(T, model.vertices, model.faces, view.K, view.points[k], TOLERANCE_M, work, out)
    return out


def _beside(T: np.ndarray, model: Model) -> np.ndarray:
    """A pose a little off: were the true pose itself tried, it would win every tie."""
    out = T.copy()
    out[:3, :3] = BESIDE_TURN @ T[:3, :3]
    out[:3, 3] += model.place(T) - model.place(out) + min(1.0, 0.3 * model.radius / BESIDE_M) * BESIDE
    return out


def _is_found(said: np.ndarray) -> bool:
    least = max(MIN_PIXELS, min(ENOUGH_PIXELS, ENOUGH_SHARE * said[3]))
    return bool(said[0] >= least and said[0] >= MIN_SHARE * (said[0] + said[1]))


def _sure(said: np.ndarray, whole: bool) -> bool:
    """Everything that is seen agrees, and nearly all exactly; a surface put together from views is a little rough."""
    seen, rough = said[3] - said[2], 0.01 if whole else 0.03
    return bool(said[0] >= MIN_PIXELS and said[0] > (1 - 1.5 * rough) * seen and said[1] < rough * seen)


def _by_color(model: Model, view: _View, k: int, where: np.ndarray, T: np.ndarray) -> np.ndarray | None:
    """The pose ``T`` moved to where the thing's colours are seen and were not before."""
    where = where & view.valid[k]
    if where.sum() < VISIBLE_PIXELS:
        return None
    world = apply(invert(view.Ts_camera_world[k]), view.points[k][where].astype(np.float64))
    middle = np.median(world, axis=0)
    near = np.linalg.norm(world - middle, axis=1) < 2 * model.radius
    if near.sum() < VISIBLE_PIXELS:
        return None
    out = T.copy()
    # What is seen is the side towards the camera: the middle lies behind it.
    eye = invert(view.Ts_camera_world[k])[:3, 3]
    inward = (middle - eye) / np.linalg.norm(middle - eye)
    out[:3, 3] += world[near].mean(axis=0) + 0.4 * model.radius * inward - model.place(T)
    return out


def _view(clip: Clip, at: np.ndarray) -> _View:
    step = stride_of(*clip.rgb.shape[1:3])
    part = (at, slice(step // 2, None, step), slice(step // 2, None, step))
    K = np.array(clip.camera.K)
    K[:2] /= step
    K[:2, 2] = (clip.camera.K[:2, 2] - step // 2) / step
    rgb = clip.rgb[part]
    return _View(
        K=K,
        Ts_camera_world=np.ascontiguousarray(T_camera_world(clip.camera, len(clip))[at]),
        points=np.ascontiguousarray(clip.pointmap.points[part], np.float32),
        valid=np.ascontiguousarray(clip.pointmap.valid[part]),
        bins=binned(rgb),
        rgb=np.ascontiguousarray(rgb),
    )
