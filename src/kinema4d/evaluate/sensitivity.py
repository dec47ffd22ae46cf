"""Do different actions give different worlds? Two episodes that start from the same picture and then act differently.

A world model that ignores its actions scores well on each episode alone when the worlds differ little. Side by side it
gives the same video twice, and shows 0 here.
"""

from __future__ import annotations

import numpy as np

from kinema4d.evaluate.score import NA, About, Pair, Scores, Value
from kinema4d.types import Episode, Pointmap

RGB_LEVELS = 24.0
"""Largest channel difference of the truths, in levels of 255, from which on a pixel differs: more than the shimmer of a
shadow's rim or of video compression."""
POINT_M = 0.01
"""Distance between the truths' points from which on a pixel differs in geometry."""
POINT_CAP_M = 0.3
"""Differences of points count up to this: a robot before a far wall would drown everything else."""
LEAST_PIXELS = 20
"""Fewest differing pixels, over all frames, that a ratio is made of."""

_TEXT = (
    "mean difference of the two predictions over that of the two truths, {what}, on the {where} pixels where the truths "
    "differ; 1 = as different as the truth, 0 = the same world for both actions"
)


def _about(label: str, what: str, where: str) -> About:
    return About(label=label, unit="", better="none", group="following", text=_TEXT.format(what=what, where=where))


METRICS: dict[str, About] = {
    "sensitivity_robot": _about("sensitivity, robot", "in RGB", "robot"),
    "sensitivity_world": _about("sensitivity, world", "in RGB", "other"),
    "sensitivity_robot_points": _about("sensitivity, robot (points)", "in points up to 0.3 m", "robot"),
    "sensitivity_world_points": _about("sensitivity, world (points)", "in points up to 0.3 m", "other"),
}


def sensitivity(a: Pair, b: Pair) -> Scores:
    """How different the predicted worlds of two action sequences are, relative to the true ones."""
    reason = _why_not(a.truth, b.truth)
    if reason:
        return dict.fromkeys(METRICS, NA(reason))
    frames = min(len(a.truth), len(b.truth))
    masks = [e.robot_mask for e in (a.truth, b.truth)]
    robot = None if masks[0] is None or masks[1] is None else masks[0][:frames] | masks[1][:frames]
    true_rgb = _rgb_difference(a.truth.clip.rgb[:frames], b.truth.clip.rgb[:frames])
    made_rgb = _rgb_difference(a.predicted.rgb[:frames], b.predicted.rgb[:frames])
    out: Scores = {}
    names = {"sensitivity_robot": robot, "sensitivity_world": None if robot is None else ~robot}
    true_points, true_valid = _point_difference(a.truth.clip.pointmap, b.truth.clip.pointmap, frames)
    made_points, made_valid = _point_difference(a.predicted.pointmap, b.predicted.pointmap, frames)
    for name, region in names.items():
        if region is None:
            out[name] = out[f"{name}_points"] = NA("the robot's pixels are not labelled in the truth")
            continue
        changed = region & (true_rgb.max(axis=-1) > RGB_LEVELS)
        out[name] = _ratio(
            made_rgb.mean(axis=-1), true_rgb.mean(axis=-1), changed, "the true pictures do not differ there"
        )
        changed = region & true_valid & (true_points > POINT_M)
        if not true_valid.any():
            out[f"{name}_points"] = NA("the truth has no points")
        elif not (changed & made_valid).sum() >= 0.5 * changed.sum():
            out[f"{name}_points"] = NA("the prediction has points on less than half of the pixels that differ")
        else:
            changed &= made_valid
            out[f"{name}_points"] = _ratio(made_points, true_points, changed, "the true points do not differ there")
    return out


def _why_not(a: Episode, b: Episode) -> str:
    if not a.group or a.group != b.group:
        raise ValueError(
            f"sensitivity compares two episodes of one group, got {a.group!r} and {b.group!r}; give a demonstration and a "
            "disturbed episode of it"
        )
    if a.view != b.view or a.clip.rgb.shape[1:] != b.clip.rgb.shape[1:]:
        raise ValueError(
            f"sensitivity needs one camera, got view {a.view!r} at {a.clip.rgb.shape[1:3]} and {b.view!r} at "
            f"{b.clip.rgb.shape[1:3]}; pair the episodes view by view"
        )
    start = np.abs(a.clip.rgb[0].astype(np.int16) - b.clip.rgb[0]).max(axis=-1)
    if (start > RGB_LEVELS).mean() > 0.01:
        return "the two episodes do not start from the same picture"
    return ""


def _rgb_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a.astype(np.int16) - b).astype(np.float32)


def _point_difference(a: Pointmap, b: Pointmap, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Distance of the two worlds' points, capped, and where both have one."""
    p, q = a.points[:frames], b.points[:frames]
    valid = a.valid[:frames] & b.valid[:frames]
    off = np.where(valid[..., None], p, 0) - np.where(valid[..., None], q, 0)
    distance = np.minimum(np.linalg.norm(off, axis=-1), POINT_CAP_M)
    finite = np.isfinite(distance)
    return np.where(finite, distance, 0).astype(np.float32), valid & finite


def _ratio(made: np.ndarray, true: np.ndarray, where: np.ndarray, reason: str) -> Value:
    if where.sum() < LEAST_PIXELS:
        return NA(reason)
    return float(made[where].mean(dtype=np.float64) / true[where].mean(dtype=np.float64))
