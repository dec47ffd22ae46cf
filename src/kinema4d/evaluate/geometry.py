"""How far generated geometry is from the truth, and from itself one frame later (Table 2 of the paper).

Every frame is a set of points, the valid pixels of its pointmap in metres. Distances go from each point to the exact
nearest neighbour in the other set, frame by frame, and frames count alike. The paper does not define its numbers further;
here "L1" is the distance itself and "L2" its square, both halves of the Chamfer distance are averaged, not added.

Plain names are metric: nothing is aligned. Names that end in ``_aligned`` come after the prediction was scaled about the
camera by one number for the whole clip, the median of z_truth / z_predicted over all pixels valid in both: a model that
knows shape but not size does well there, and the median, unlike a least-squares scale, does not follow a few wild pixels.

Which frames count: those where the truth has points. Others are left out; ``geometry_frames`` says how many are left. A
frame where the truth has points and the prediction has none is no score but ``n/a``: leaving it out would reward a model
for saying nothing, and no finite distance to an empty set is right. Pixels that are missing within a frame cost
completeness, and ``depth_coverage`` counts them, because AbsRel and delta only see pixels valid in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from kinema4d.evaluate.neighbours import Frame, OneWay, compare_frames
from kinema4d.evaluate.score import NA, About, Pair, Scores, Value
from kinema4d.types import Clip, Pointmap

TAU = 0.01
"""Threshold of the F-score in metres (the paper's F-Score@0.01)."""
DELTA = 1.25
"""Largest ratio between two depths that counts as right."""
NAMED_FRAMES = 5
"""Frames that a reason lists before it only counts them."""

_BASE: dict[str, tuple[str, str, str, str, int]] = {
    "cd_l1": ("CD-L1", "m", "lower", "half of accuracy + completeness, mean over frames", 4),
    "cd_l2": ("CD-L2", "m²", "lower", "as CD-L1 with squared distances", 6),
    "f_score": (
        "F-score",
        "%",
        "higher",
        f"harmonic mean of the shares of predicted and true points with a neighbour nearer than {TAU} m, mean over frames",
        3,
    ),
    "accuracy": ("accuracy", "m", "lower", "mean distance from predicted points to the nearest true point", 4),
    "completeness": ("completeness", "m", "lower", "mean distance from true points to the nearest predicted point", 4),
    "abs_rel": ("AbsRel", "", "lower", "mean of |z - z_true| / z_true over pixels valid in both, mean over frames", 4),
    "delta_125": (
        "δ<1.25",
        "%",
        "higher",
        "share of pixels valid in both whose depths differ by a factor below 1.25",
        3,
    ),
}
_ALIGNED = (
    ", after scaling the prediction by the median of z_true / z over the clip (in the truth's unit, if not metres)"
)
_TEMPORAL = ", between frames t and t+1 of the prediction itself, in the world frame where the camera moves"


def _metrics() -> dict[str, About]:
    def about(name: str, mark: str, more: str) -> About:
        label, unit, better, text, digits = _BASE[name]
        return About(label=label + mark, unit=unit, better=better, group="geometry", text=text + more, digits=digits)

    found = {name: about(name, "", "") for name in _BASE}
    found |= {f"{name}_aligned": about(name, " aligned", _ALIGNED) for name in _BASE}
    found |= {f"{name}_temp": about(name, " (temp)", _TEMPORAL) for name in ("cd_l1", "cd_l2", "f_score")}
    extras = {
        "depth_coverage": ("coverage", "%", "higher", "share of pixels valid in the truth that are valid in the prediction"),
        "alignment_scale": ("scale", "", "none", "median of z_true / z over pixels valid in both; 1 is right"),
        "geometry_frames": ("frames", "frames", "none", "frames in which the truth has points: those that were judged"),
    }  # fmt: skip
    for name, (label, unit, better, text) in extras.items():
        digits = 0 if name == "geometry_frames" else 3
        found[name] = About(label=label, unit=unit, better=better, group="geometry", text=text, digits=digits)
    return found


METRICS: dict[str, About] = _metrics()
"""What the numbers of :func:`scores` mean."""
_METRIC = tuple(_BASE)
_TEMP = ("cd_l1_temp", "cd_l2_temp", "f_score_temp")


@dataclass(frozen=True, kw_only=True)
class Chamfer:
    """Distances between two sequences of point sets, means over frames."""

    l1: float
    """Half the sum of both mean distances, metres."""
    l2: float
    """Half the sum of both mean squared distances, square metres."""
    f_score: float
    """Harmonic mean of precision and recall per frame, 0 where both are 0."""
    accuracy: float
    """Mean distance from the first to the second, metres."""
    completeness: float
    """Mean distance from the second to the first, metres."""
    precision: float
    """Share of the first's points that have a neighbour below the threshold."""
    recall: float
    """Share of the second's points that have one."""
    frames: int
    """Frames that were compared."""


def chamfer(a: Pointmap, b: Pointmap, tau: float = TAU, *, threads: int | None = None) -> Chamfer:
    """Compare two pointmaps (``a`` the prediction) frame by frame, as they are. Frames where neither has a point are left
    out; a frame where only one has points is an error, because no distance to an empty set is right."""
    if a.valid.shape != b.valid.shape:
        raise ValueError(f"pointmaps must have the same shape, got {a.valid.shape} and {b.valid.shape}")
    has_a, has_b = _has_points(a.valid), _has_points(b.valid)
    if (has_a != has_b).any():
        raise ValueError(
            f"only one of the two pointmaps has points in {_frames(has_a != has_b)}: no distance to an empty set"
        )
    if not has_a.any():
        raise ValueError("neither pointmap has a valid point in any frame: there is nothing to compare")
    return _chamfer(np.flatnonzero(has_a).tolist(), _frames_of(a), _frames_of(b), tau, threads)


def _chamfer(
    frames: Sequence[int], a: Callable[[int], Frame], b: Callable[[int], Frame], tau: float, threads: int | None
) -> Chamfer:
    if not tau > 0:
        raise ValueError(f"tau must be a positive distance in metres, got {tau}")
    found = compare_frames(frames, a, b, tau, threads=threads)

    def mean(of: Callable[[OneWay, OneWay], float]) -> float:
        return float(np.mean([of(*both) for both in found]))

    def f_score(ab: OneWay, ba: OneWay) -> float:
        return 2 * ab.near * ba.near / (ab.near + ba.near) if ab.near + ba.near > 0 else 0.0

    return Chamfer(
        l1=mean(lambda ab, ba: (ab.mean + ba.mean) / 2),
        l2=mean(lambda ab, ba: (ab.mean_square + ba.mean_square) / 2),
        f_score=mean(f_score),
        accuracy=mean(lambda ab, ba: ab.mean),
        completeness=mean(lambda ab, ba: ba.mean),
        precision=mean(lambda ab, ba: ab.near),
        recall=mean(lambda ab, ba: ba.near),
        frames=len(frames),
    )


def scores(pair: Pair, *, tau: float = TAU, aligned: bool = True, threads: int | None = None) -> Scores:
    """Every number of ``METRICS`` for one pair; ``aligned=False`` leaves the aligned ones out, which halves the time."""
    predicted, truth = pair.predicted.pointmap, pair.truth.clip.pointmap
    has_truth, has_predicted = _has_points(truth.valid), _has_points(predicted.valid)
    reason = _why_none(predicted, truth, has_predicted, has_truth)
    if reason is not None:
        return {name: NA(reason) for name in METRICS}
    frames = np.flatnonzero(has_truth).tolist()
    out: Scores = {"geometry_frames": float(len(frames)), "depth_coverage": _coverage(predicted, truth)}
    scale = median_scale(predicted, truth)
    out["alignment_scale"] = scale if scale is not None else NA("no pixel has positive depth in both")

    def compared(factor: float) -> dict[str, Value]:
        found = _chamfer(frames, _frames_of(predicted, factor), _frames_of(truth), tau, threads)
        lengths = (found.l1, found.l2, found.f_score, found.accuracy, found.completeness)
        return dict(zip(_METRIC, (*lengths, *_depth(predicted, truth, frames, factor)), strict=True))

    if pair.truth.metric:
        plain = compared(1.0)
        out |= plain
        out |= _temporal(pair.predicted, has_predicted, tau, threads)
    else:
        plain = None
        out |= {name: NA("truth is not metric") for name in (*_METRIC, *_TEMP)}
    if not aligned or scale is None:
        why = NA("alignment was not asked for" if not aligned else "no pixel has positive depth in both")
        out |= {f"{name}_aligned": why for name in _METRIC}
    else:
        values = plain if plain is not None and scale == 1.0 else compared(scale)
        out |= {f"{name}_aligned": value for name, value in values.items()}
    if not pair.truth.metric:  # lengths in a unit that nobody knows
        out |= {
            f"{name}_aligned": NA("truth is not metric") for name in _METRIC if name not in ("abs_rel", "delta_125")
        }
    return {name: out[name] for name in METRICS}


def _why_none(predicted: Pointmap, truth: Pointmap, has_predicted: np.ndarray, has_truth: np.ndarray) -> str | None:
    """Why there can be no geometry score at all, or None."""
    if not has_truth.any():
        return "the truth has no depth"
    if not has_predicted.any():
        return "the prediction has no valid point"
    missing = has_truth & ~has_predicted
    if missing.any():
        return f"the prediction has no points in {_frames(missing)}, where the truth has some"
    for name, pointmap in {"prediction": predicted, "truth": truth}.items():
        bad = np.array([not np.isfinite(p[v]).all() for p, v in zip(pointmap.points, pointmap.valid, strict=True)])
        if bad.any():
            return f"the {name} has points that are not finite in {_frames(bad)}"
    return None


def median_scale(predicted: Pointmap, truth: Pointmap) -> float | None:
    """Exact median of z_truth / z_predicted (as float32) over all pixels valid and in front of the camera in both; None
    where there is none. Two passes of counting, so that no list of all pixels is needed."""

    def keys(frame: int) -> np.ndarray:
        z, z_true = predicted.depth[frame], truth.depth[frame]
        both = predicted.valid[frame] & truth.valid[frame]
        z, z_true = z[both].astype(np.float64), z_true[both].astype(np.float64)
        front = (z > 0) & (z_true > 0)
        # Positive floats sort as their bits do.
        return (z_true[front] / z[front]).astype(np.float32).view(np.uint32)

    count = np.zeros(1 << 16, np.int64)
    for frame in range(len(truth.valid)):
        count += np.bincount(keys(frame) >> 16, minlength=1 << 16)
    total = int(count.sum())
    if total == 0:
        return None
    ends = np.cumsum(count)
    ranks = [(total - 1) // 2, total // 2]
    upper = [int(np.searchsorted(ends, rank, side="right")) for rank in ranks]
    lower = {bucket: np.zeros(1 << 16, np.int64) for bucket in upper}
    for frame in range(len(truth.valid)):
        found = keys(frame)
        for bucket, within in lower.items():
            within += np.bincount(found[found >> 16 == bucket] & 0xFFFF, minlength=1 << 16)
    middle = []
    for rank, bucket in zip(ranks, upper, strict=True):
        before = int(ends[bucket] - count[bucket])
        low = int(np.searchsorted(np.cumsum(lower[bucket]), rank - before, side="right"))
        middle.append(float(np.array(bucket << 16 | low, np.uint32).view(np.float32)))
    return (middle[0] + middle[1]) / 2


def _depth(predicted: Pointmap, truth: Pointmap, frames: Sequence[int], scale: float) -> tuple[Value, Value]:
    """AbsRel and the share of depths within ``DELTA``."""
    errors, shares = [], []
    for frame in frames:
        both = predicted.valid[frame] & truth.valid[frame] & (truth.depth[frame] > 0)
        if not both.any():
            continue
        z = scale * predicted.depth[frame][both].astype(np.float64)
        z_true = truth.depth[frame][both].astype(np.float64)
        errors.append(float(np.mean(np.abs(z - z_true) / z_true)))
        shares.append(float(np.mean((z < DELTA * z_true) & (z_true < DELTA * z))))
    if not errors:
        return NA("no pixel has depth in both"), NA("no pixel has depth in both")
    return float(np.mean(errors)), float(np.mean(shares))


def _temporal(clip: Clip, has_points: np.ndarray, tau: float, threads: int | None) -> dict[str, Value]:
    """Chamfer between each frame and the next one of the same clip."""
    frames = np.flatnonzero(has_points[:-1] & has_points[1:]).tolist()
    if not frames:
        return {name: NA("the prediction has no two frames in a row with points") for name in _TEMP}
    here = _frames_of(clip.pointmap)
    if clip.camera.moving:
        Ts_world_camera = clip.camera.poses(len(clip))

        def here_in_world(frame: int) -> Frame:
            points, T = clip.pointmap.points[frame], Ts_world_camera[frame]
            return (points @ T[:3, :3].T + T[:3, 3]).astype(points.dtype), clip.pointmap.valid[frame]

        here = here_in_world
    found = _chamfer(frames, here, lambda frame: here(frame + 1), tau, threads)
    return dict(zip(_TEMP, (found.l1, found.l2, found.f_score), strict=True))


def _coverage(predicted: Pointmap, truth: Pointmap) -> float:
    both = sum(int(np.count_nonzero(p & t)) for p, t in zip(predicted.valid, truth.valid, strict=True))
    return both / int(np.count_nonzero(truth.valid))


def _frames_of(pointmap: Pointmap, scale: float = 1.0) -> Callable[[int], Frame]:
    def frame_of(frame: int) -> Frame:
        points = pointmap.points[frame]
        if scale != 1.0:
            points = (points * np.float64(scale)).astype(points.dtype)
        return points, pointmap.valid[frame]

    return frame_of


def _has_points(valid: Bool[np.ndarray, "t h w"]) -> Bool[np.ndarray, " t"]:
    return np.array([frame.any() for frame in valid], bool)


def _frames(which: Bool[np.ndarray, " t"]) -> str:
    """``frame 3``, or ``frames 3, 4, 5, 6, 7 and 12 more``."""
    found = np.flatnonzero(which).tolist()
    more = f" and {len(found) - NAMED_FRAMES} more" if len(found) > NAMED_FRAMES else ""
    return f"frame{'s' if len(found) > 1 else ''} {', '.join(map(str, found[:NAMED_FRAMES]))}{more}"
