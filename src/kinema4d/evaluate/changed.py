"""Scores of the pixels that matter: where something other than the robot changed.

Most of a clip stands still, and a world that repeats its first frame scores well on it. Here only those pixels count
where the truth differs from its first frame: all of them, those that a moved thing newly covers, and those that the
robot or a moved thing uncovered, which the world had to make up. The masks come from the truth's labels, so the robot,
whose place is given, does not count.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from kinema4d.evaluate.score import NA, About, Pair, Scores, Value
from kinema4d.types import Clip, Episode

PSNR_CAP = 60.0
"""Of identical pixels, dB, as in :mod:`kinema4d.evaluate.video`: half a step of 8 bits is 54 dB."""
CHANGED_COLOR = 12
"""A pixel whose colour differs by more than this in some channel has changed, of 255."""
CHANGED_M = 0.01
"""A pixel whose depth differs by more than this has changed, metres."""
LEAST_PIXELS = 20
"""Fewer pixels of the whole clip make no score."""

METRICS: dict[str, About] = {
    "changed_psnr_db": About(
        label="PSNR changed", unit="dB", better="higher", group="interaction", digits=2,
        text="PSNR over all pixels without robot that differ from the truth's first frame in label, colour (12/255) or depth (1 cm); capped at 60 dB",
    ),
    "covered_psnr_db": About(
        label="PSNR covered", unit="dB", better="higher", group="interaction", digits=2,
        text="PSNR over the pixels that show a moved thing where the first frame showed something else; capped at 60 dB",
    ),
    "disoccluded_psnr_db": About(
        label="PSNR uncovered", unit="dB", better="higher", group="interaction", digits=2,
        text="PSNR over the pixels that show what the robot or a moved thing hid in the first frame; capped at 60 dB",
    ),
    "changed_depth_mae_m": About(
        label="depth changed", unit="m", better="lower", group="interaction", digits=4,
        text="mean absolute depth error over the changed pixels that are valid in both",
    ),
    "covered_iou": About(
        label="IoU covered", unit="%", better="higher", group="interaction", digits=1,
        text="overlap over union of the pixels without robot that came nearer than in the own first frame by 1 cm",
    ),
}  # fmt: skip
"""What the numbers of this file mean."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Changes:
    """Where the truth changed."""

    changed: Bool[np.ndarray, "t h w"]
    """Shows no robot, and not what the first frame showed."""
    covered: Bool[np.ndarray, "t h w"]
    """Shows a moved thing where something else was."""
    disoccluded: Bool[np.ndarray, "t h w"]
    """Shows what the robot or a moved thing hid."""
    robot: Bool[np.ndarray, "t h w"]
    """Shows the robot now, or did at first."""


def find_changes(truth: Episode, moved: Collection[str]) -> Changes | NA:
    """Masks of change; ``moved`` are the labels of the things that moved."""
    if truth.labels is None or truth.robot_mask is None:
        return NA("the truth has no labels")
    if truth.clip.camera.moving:
        return NA("the camera moves: no pixel stays what it was")
    clip, labels, robot = truth.clip, truth.labels, truth.robot_mask
    ids = [i + 1 for i, name in enumerate(truth.label_names) if name in moved]
    things = np.isin(labels, ids)
    another = labels != labels[:1]
    color = np.abs(clip.rgb.astype(np.int16) - clip.rgb[:1]).max(axis=-1) > CHANGED_COLOR
    valid = clip.pointmap.valid & clip.pointmap.valid[:1]
    depth = valid & (np.abs(clip.pointmap.depth - clip.pointmap.depth[:1]) > CHANGED_M)
    return Changes(
        changed=~robot & (another | color | depth),
        covered=things & another,
        disoccluded=~robot & ~things & (robot[:1] | things[:1]) & another,
        robot=robot | robot[:1],
    )


def changed_scores(pair: Pair, moved: Collection[str]) -> Scores:
    """All scores of this file."""
    found = find_changes(pair.truth, moved)
    if isinstance(found, NA):
        return dict.fromkeys(METRICS, found)
    predicted, clip = pair.predicted, pair.truth.clip
    error = (predicted.rgb.astype(np.float32) - clip.rgb) ** 2
    return {
        "changed_psnr_db": _psnr(error, found.changed, "nothing changed"),
        "covered_psnr_db": _psnr(error, found.covered, "no moved thing covers anything new"),
        "disoccluded_psnr_db": _psnr(error, found.disoccluded, "nothing was uncovered"),
        "changed_depth_mae_m": _depth(predicted, clip, found.changed),
        "covered_iou": _iou(predicted, clip, found.robot),
    }


def _psnr(error: np.ndarray, mask: np.ndarray, why: str) -> Value:
    count = int(mask.sum())
    if count < LEAST_PIXELS:
        return NA(f"{why} ({count} pixels)")
    mse = float(error[mask].mean(dtype=np.float64))
    return min(PSNR_CAP, float(10 * np.log10(255**2 / mse))) if mse > 0 else PSNR_CAP


def _depth(predicted: Clip, clip: Clip, mask: np.ndarray) -> Value:
    wanted = mask & clip.pointmap.valid
    both = wanted & predicted.pointmap.valid
    if wanted.sum() < LEAST_PIXELS:
        return NA(f"nothing changed ({int(wanted.sum())} pixels with depth)")
    if both.sum() < 0.5 * wanted.sum():
        return NA(f"the prediction has depth at only {int(both.sum())} of {int(wanted.sum())} changed pixels")
    return float(np.abs(predicted.pointmap.depth[both] - clip.pointmap.depth[both]).mean(dtype=np.float64))


def _nearer(clip: Clip) -> np.ndarray:
    depth, valid = clip.pointmap.depth, clip.pointmap.valid
    return valid & valid[:1] & (depth < depth[:1] - CHANGED_M)


def _iou(predicted: Clip, clip: Clip, robot: np.ndarray) -> Value:
    a, b = _nearer(predicted) & ~robot, _nearer(clip) & ~robot
    if b.sum() < LEAST_PIXELS:
        return NA(f"nothing came nearer ({int(b.sum())} pixels)")
    return float((a & b).sum() / (a | b).sum())
