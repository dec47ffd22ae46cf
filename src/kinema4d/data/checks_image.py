"""Does the image show the robot where, and when, its joints say it is?

The drawn robot is compared with labelled robot pixels where there are any, and always with the change of the image
between frames: where the drawn robot comes or goes, pixels must change. A flip or shift that is found is undone
before the next question is asked, so that one fault is reported once and under its own name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, UInt8

from kinema4d.data.probe import MIN_PIXELS, Probe, Seen, coarse, grid_of
from kinema4d.data.thresholds import Finding, Thresholds, bad, grade, nothing
from kinema4d.geometry.camera import T_camera_world, project
from kinema4d.geometry.se3 import apply

FLIPS: dict[str, tuple[int, ...]] = {"": (), "vertically": (1,), "horizontally": (2,), "by 180 degrees": (1, 2)}
"""Ways in which images can be turned, and the axes of ``[t, h, w]`` that undo them."""
CHANGE_LEVELS = 40.0
"""Grey levels at which a pixel has changed for sure."""
NEARER_M = 0.02
"""Something that is this much nearer than the drawn robot hides it."""
WEAK_SYNC = (0.6, 0.25)
"""Correlation of joint speed and image change at the best shift, and its lead over no shift, to be believed."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """How one kind of evidence is turned and shifted against the drawn robot."""

    evidence: str
    """``labels`` or ``rgb``."""
    flip: str
    """Key of ``FLIPS``."""
    flip_scores: dict[str, float]
    """Agreement under each flip, without a shift."""
    offset: int
    """Frames by which the evidence comes late."""
    scores: dict[int, float]
    """Agreement under each shift, with the flip undone."""

    @property
    def score(self) -> float:
        """Agreement with flip and shift undone."""
        return self.scores[self.offset]


def matches(look: Probe, limits: Thresholds) -> list[Match]:
    """Line up labels and image with the drawn robot."""
    seen, episode = look.seen, look.episode
    if seen is None or seen.mask.sum() < MIN_PIXELS * len(seen.frames):
        return []
    low, high = -int(seen.frames[0]), len(episode) - 1 - int(seen.frames[-1])
    shifts = [k for k in range(-limits.sync_search, limits.sync_search + 1) if low <= k <= high]
    out = []
    robot = episode.robot_mask
    if robot is not None and episode.labels is not None:
        robot, ignored = look.grid(robot), _hiding(look, seen)
        out.append(_match("labels", lambda k, axes: overlap(seen, robot, ignored, k, axes), shifts, limits))
    pairs = _pairs(len(seen.frames))
    if not episode.clip.camera.moving and pairs:
        moved, judged = _kinematic_change(seen, pairs)
        if moved.sum() >= MIN_PIXELS * len(pairs):
            gray = look.gray()
            out.append(
                _match("rgb", lambda k, axes: _change_score(gray, seen, pairs, moved, judged, k, axes), shifts, limits)
            )
    return out


def check_flips(look: Probe, found: list[Match]) -> list[Finding]:
    """Is the image turned against the robot?"""
    if not found:
        return [nothing("flips", look.why_unseen or "the drawn robot is too small or moves too little")]
    out = []
    for flip in dict.fromkeys(match.flip for match in found):
        same = [match for match in found if match.flip == flip]
        kinds = " and ".join(match.evidence for match in same)
        scores = "; ".join(
            f"{match.evidence} as it is {match.flip_scores['']:.2f}"
            + "".join(f", {name} {score:.2f}" for name, score in match.flip_scores.items() if name)
            for match in same
        )
        lead = max(m.flip_scores[name] - m.flip_scores[""] for m in same for name in m.flip_scores if name)
        if flip:
            undo = {"vertically": "[:, ::-1]", "horizontally": "[:, :, ::-1]", "by 180 degrees": "[:, ::-1, ::-1]"}
            out.append(
                bad(
                    "flips",
                    f"{kinds} turned {flip} against the robot (agreement: {scores})",
                    f"ingest with images{undo[flip]}: LIBERO and robosuite images need a vertical flip, which most "
                    "other readers must not do. If the image looks right, T_world_camera is wrong instead",
                    value=lead,
                )
            )
        else:
            out.append(Finding(check="flips", severity="ok", value=lead, message=f"upright (agreement: {scores})"))
    return out


def check_sync(look: Probe, found: list[Match], limits: Thresholds) -> list[Finding]:
    """By how many frames do images and states miss each other?"""
    remedy = "shift the states by that many frames on ingest (drop frames at one end of each), or use the image's own timestamps"
    out = []
    for offset in dict.fromkeys(match.offset for match in found):
        same = [match for match in found if match.offset == offset]
        kinds = " and ".join(match.evidence for match in same)
        late = f"{abs(offset)} frames {'later' if offset > 0 else 'earlier'} than the states"
        scores = ", ".join(f"{m.evidence} {m.scores[0]:.3f} as it is, {m.score:.3f} at best" for m in same)
        text = f"{kinds} {late if offset else 'and states are in step'} (agreement: {scores})"
        out.append(grade("sync", abs(offset), limits.sync_frames, text, remedy))
    if out:
        return out
    offset, lead = _speed_offset(look, limits.sync_search)
    if offset is None:
        return [nothing("sync", "joint speed and image change do not tell")]
    text = f"joint speed and image change fit best {offset} frames apart (correlation better by {lead:.2f})"
    return [grade("sync", abs(offset), limits.sync_frames, text, remedy, worst="warn")]


def check_mask(look: Probe, found: list[Match], limits: Thresholds) -> list[Finding]:
    """Does the drawn robot cover the robot in the image?"""
    seen = look.seen
    if seen is None:
        return [nothing("mask", look.why_unseen)]
    robot = look.episode.robot_mask
    if not seen.mask.any():
        labelled = robot is not None and look.grid(robot)[seen.frames].sum() >= MIN_PIXELS * len(seen.frames)
        text = "the camera sees no part of the drawn robot" + (", but labels show one" if labelled else "")
        remedy = "check T_world_camera (not its inverse), T_world_base and K, or set camera_from to 'guessed'"
        limits_of = limits.mask_overlap if labelled else (0.0, 1.0)
        return [grade("mask", 0.0, limits_of, text, remedy)]
    remedy = "check camera, base pose and robot model; 'kinema4d calibrate' fits a camera to the robot in the footage"
    by_kind = {match.evidence: match for match in found}
    if "labels" in by_kind:
        iou = by_kind["labels"].score
        return [grade("mask", iou, limits.mask_overlap, f"drawn and labelled robot overlap by {iou:.2f} (IoU)", remedy)]
    if "rgb" in by_kind:
        score = by_kind["rgb"].score
        text = f"the image changes where the drawn robot moves: correlation {score:.2f}"
        return [grade("mask", score, limits.image_agreement, text, remedy, worst="warn")]
    return [nothing("mask", "no labels, and the drawn robot is too small or moves too little")]


def check_reprojection(look: Probe, found: list[Match], limits: Thresholds) -> list[Finding]:
    """Do points lie on the rays of their pixels, and on the robot where the robot is?"""
    episode, clip = look.episode, look.episode.clip
    if not clip.pointmap.valid.any():
        return [nothing("reprojection", "the episode has no depth")]
    if episode.camera_from == "guessed":
        return [nothing("reprojection", "the camera is guessed")]
    frames = np.unique(np.linspace(0, len(clip) - 1, 4).astype(int))
    points, valid = look.grid(clip.pointmap.points[frames]), look.grid(clip.pointmap.valid[frames])
    out = []
    v, u = np.nonzero(valid)[1:]
    xyz = points[valid].astype(np.float64)
    front = xyz[:, 2] > 0
    if front.any():
        view = coarse(clip.camera)
        off = np.abs(project(view.K, xyz[front]) - np.stack([u, v], axis=-1)[front]).max(axis=1)
        worst = float(np.quantile(off, 0.95)) * grid_of(clip.camera)[0]
        text = f"95 % of the points lie within {worst:.3g} px of the ray of their pixel"
        remedy = "the camera is not the one that made the pointmap: store its true K, or set camera_from to 'guessed'"
        out.append(grade("reprojection", worst, limits.off_ray_px, text, remedy))
    if look.seen is not None and episode.metric:
        out.append(_robot_depth(look, look.seen, found, limits))
    return out


def check_frozen(look: Probe, limits: Thresholds) -> list[Finding]:
    """Pictures that stand still while the robot moves, and steps that are far too large."""
    if len(look.episode) < 3:
        return [nothing("frozen", "too few frames")]
    gray = look.gray().astype(np.int16)
    change = np.abs(np.diff(gray, axis=0))
    still = (change > limits.frozen_levels).mean(axis=(1, 2)) < 5e-4
    out = []
    moving = moving_steps(look, limits)
    if moving is None or not moving.any():
        out.append(nothing("frozen", "the robot's motion is not known, or it does not move"))
    else:
        stuck = np.nonzero(still & moving)[0]
        where = f", first after frame {stuck[0]}" if len(stuck) else ""
        text = f"the picture stands still in {len(stuck)} of {int(moving.sum())} steps of a moving robot{where}"
        remedy = "the recorder repeated frames: drop the repeated frames and their states, or drop the episode"
        # Without a camera nobody knows whether the robot was in the picture at all.
        worst = "warn" if look.seen is None else "bad"
        out.append(grade("frozen", len(stuck) / moving.sum(), limits.frozen_share, text, remedy, worst=worst))
    steps = _steps(look)
    if steps is not None and len(steps) >= 5 and steps.max() > 0:
        jumps = jumping(steps, limits.jump_ratio)
        where = f", first after frame {jumps[0]}" if len(jumps) else ""
        text = (
            f"{len(jumps)} of {len(steps)} steps of the robot are {limits.jump_ratio:g} times their neighbours{where}"
        )
        remedy = "frames were lost, or the robot was jerked: resample by timestamp, or drop the episode unless the jerk is meant"
        out.append(grade("frozen", len(jumps) / len(steps), limits.jump_share, text, remedy))
    return out


def overlap(
    seen: Seen, robot: Bool[np.ndarray, "t h w"], ignored: Bool[np.ndarray, "t h w"], shift: int, axes: tuple[int, ...]
) -> float:
    """Intersection over union of the drawn robot and the labelled one, leaving out pixels where something hides it."""
    labelled = np.flip(robot[seen.frames + shift], axes)
    hidden = np.flip(ignored[seen.frames + shift], axes) & ~labelled
    union = ((seen.mask | labelled) & ~hidden).sum()
    return float((seen.mask & labelled).sum() / union) if union else 0.0


def jumping(steps: Float[np.ndarray, " n"], ratio: float) -> np.ndarray:
    """Steps that are large, and ``ratio`` times as large as both neighbours."""
    inner, neighbours = steps[1:-1], np.maximum(steps[:-2], steps[2:])
    large = inner > 0.5 * np.quantile(steps, 0.9)
    return np.nonzero(large & (inner >= ratio * neighbours))[0] + 1


def moving_steps(look: Probe, limits: Thresholds) -> Bool[np.ndarray, " n"] | None:
    """Steps in which the picture must change, because the tool crosses pixels or the joints turn a lot."""
    episode, camera = look.episode, look.episode.clip.camera
    if look.tool is None or look.seen is None or camera.moving:
        steps = _steps(look)
        if steps is None or len(steps) != len(episode) - 1 or steps.max() == 0:
            return None
        return np.asarray(steps > 0.5 * np.quantile(steps, 0.9))
    view = coarse(camera)
    at = apply(T_camera_world(view, 1)[0], look.tool)
    uv = project(view.K, np.where(at[:, 2:] > 0.05, at, np.array([0, 0, 1.0])))
    inside = (at[:, 2] > 0.05) & (uv >= 0).all(axis=1) & (uv < [view.width, view.height]).all(axis=1)
    step = np.linalg.norm(np.diff(uv, axis=0), axis=1)
    return np.asarray((step >= limits.frozen_px) & inside[1:] & inside[:-1])


# ---------------------------------------------------------------------- parts


def _match(evidence: str, score, shifts: list[int], limits: Thresholds) -> Match:
    kind = 0 if evidence == "labels" else 1
    flips = {name: score(0, axes) for name, axes in FLIPS.items()}
    best = max(flips, key=lambda name: flips[name])
    believed = flips[best] - flips[""] >= limits.flip_gain and flips[best] >= limits.flip_floor[kind]
    flip = best if believed else ""
    scores = {k: score(k, FLIPS[flip]) for k in shifts}
    offset = max(scores, key=lambda k: (scores[k], -abs(k)))
    if scores[offset] - scores[0] < limits.sync_gain[kind]:
        offset = 0
    return Match(evidence=evidence, flip=flip, flip_scores=flips, offset=offset, scores=scores)


def _hiding(look: Probe, seen: Seen) -> np.ndarray:
    """Pixels that show another labelled thing, or one that stored depth says is nearer than the robot."""
    episode = look.episode
    assert episode.labels is not None
    hiding = look.grid(episode.labels) > 0
    if episode.metric and episode.clip.pointmap.valid.any():
        z = look.grid(episode.clip.pointmap.points)[seen.frames, ..., 2]
        nearer = look.grid(episode.clip.pointmap.valid)[seen.frames] & seen.mask & (z < seen.depth - NEARER_M)
        hiding[seen.frames] |= nearer
    return hiding


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(i, i + step) for step in (1, 3) for i in range(count - step)]


def _kinematic_change(seen: Seen, pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Per pair of frames: pixels where the drawn robot comes or goes, and pixels that can be judged at all."""
    first, second = (seen.mask[[p[i] for p in pairs]] for i in (0, 1))
    return first ^ second, ~(first & second)


def _change_score(
    gray: UInt8[np.ndarray, "t h w"],
    seen: Seen,
    pairs: list[tuple[int, int]],
    moved: np.ndarray,
    judged: np.ndarray,
    shift: int,
    axes: tuple[int, ...],
) -> float:
    """Correlation over pixels of image change with kinematic change."""
    frames = gray[seen.frames + shift].astype(np.float32)
    first, second = (frames[[p[i] for p in pairs]] for i in (0, 1))
    change = np.flip(np.minimum(np.abs(first - second), CHANGE_LEVELS), axes)[judged]
    come = moved[judged].astype(np.float32)
    if change.std() < 1e-6 or come.std() < 1e-6:
        return 0.0
    return float(np.corrcoef(change, come)[0, 1])


def _robot_depth(look: Probe, seen: Seen, found: list[Match], limits: Thresholds) -> Finding:
    clip = look.episode.clip
    best, share = np.inf, 0
    # Depth travels with the labels or with the image: it is judged under the turn and shift that suits it best.
    for axes, shift in {((), 0)} | {(FLIPS[m.flip], m.offset) for m in found}:
        frames = seen.frames + shift
        on = np.flip(look.grid(clip.pointmap.valid[frames]), axes) & seen.mask
        robot = look.episode.robot_mask
        if robot is not None:
            on &= np.flip(look.grid(robot[frames]), axes)
        if on.sum() < MIN_PIXELS:
            continue
        z = np.flip(look.grid(clip.pointmap.points[frames])[..., 2], axes)
        error = float(np.median(np.abs(z[on] - seen.depth[on])))
        best, share = min(best, error), int(on.sum())
    if not np.isfinite(best):
        return nothing("reprojection", "no depth on the robot")
    text = f"stored and kinematic depth differ by {1e3 * best:.1f} mm on the robot (median of {share} pixels)"
    remedy = "check the unit and scale of depth and the camera's pose; set metric to false where the scale is lost"
    return grade("reprojection", 1e3 * best, limits.robot_depth_mm, text, remedy)


def _steps(look: Probe) -> np.ndarray | None:
    """Size of each step of the first arm: metres of its tool, or radians of its joints."""
    if look.tool is not None:
        return np.linalg.norm(np.diff(look.tool, axis=0), axis=1) if len(look.tool) > 1 else None
    if not look.episode.arms or len(look.episode.arms[0].trajectory.q) < 2:
        return None
    return np.linalg.norm(np.diff(look.episode.arms[0].trajectory.q, axis=0), axis=1)


def _speed_offset(look: Probe, search: int) -> tuple[int | None, float]:
    """Shift at which image change follows joint speed; None where the two do not tell."""
    steps = _steps(look)
    if steps is None or len(steps) != len(look.episode) - 1 or len(steps) < 4 * search or steps.std() < 1e-6:
        return None, 0.0
    gray = look.gray().astype(np.int16)
    energy = np.abs(np.diff(gray, axis=0)).mean(axis=(1, 2))
    if energy.std() < 1e-6:
        return None, 0.0
    inner = steps[search : len(steps) - search]
    scores = {}
    for k in range(-search, search + 1):
        part = energy[search + k : len(steps) - search + k]
        scores[k] = float(np.corrcoef(inner, part)[0, 1]) if inner.std() > 1e-9 and part.std() > 1e-9 else 0.0
    best = max(scores, key=lambda k: (scores[k], -abs(k)))
    floor, lead = WEAK_SYNC
    if scores[best] < floor:
        return None, 0.0
    return (best, scores[best] - scores[0]) if scores[best] - scores[0] >= lead else (0, 0.0)
