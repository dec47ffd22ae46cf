"""Everything that is measured on one episode. A check is a function; ``CHECKS`` says what each is about."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinema4d.data.checks_image import check_flips, check_frozen, check_mask, check_reprojection, check_sync, matches
from kinema4d.data.checks_motion import check_actions, check_jitter, check_polarity
from kinema4d.data.probe import Probe, probe
from kinema4d.data.thresholds import Finding, Thresholds, bad, grade, nothing
from kinema4d.types import Episode

CHECKS: dict[str, str] = {
    "files": "every file is there, whole, readable, and the one that was saved",
    "frames": "enough frames, and as many states, at the same rate",
    "camera": "a plausible lens, and a pose that does not jump",
    "polarity": "the gripper closes when it is told to close",
    "sync": "images and states show the same moment",
    "flips": "the image is not mirrored against the robot",
    "mask": "the drawn robot covers the robot in the image",
    "reprojection": "points lie on the rays of their pixels, and on the robot",
    "frozen": "no repeated and no lost frames",
    "jitter": "the arm does not shake",
    "depth": "few holes, nothing behind the camera",
    "actions": "the states follow the commands",
}
"""Every check of an episode; ``files`` is the doctor's own."""


def check(episode: Episode, thresholds: Thresholds | None = None, *, assets: Path | None = None) -> list[Finding]:
    """All findings about an episode that could be read. Robots whose files are not here are left out."""
    return check_probe(probe(episode, assets=assets, search=(thresholds or Thresholds()).sync_search), thresholds)


def check_probe(look: Probe, thresholds: Thresholds | None = None) -> list[Finding]:
    """As :func:`check`, for an episode whose robots are loaded."""
    limits = thresholds or Thresholds()
    found = matches(look, limits)
    return [
        *check_frames(look.episode, limits),
        *check_camera(look.episode, limits),
        *check_polarity(look, limits),
        *check_sync(look, found, limits),
        *check_flips(look, found),
        *check_mask(look, found, limits),
        *check_reprojection(look, found, limits),
        *check_frozen(look, limits),
        *check_jitter(look, limits),
        *check_depth(look.episode, limits),
        *check_actions(look, limits),
    ]


def check_frames(episode: Episode, limits: Thresholds) -> list[Finding]:
    """Are there enough frames, and a state for each?"""
    count = len(episode)
    if count < limits.frames:
        return [
            bad(
                "frames",
                f"{count} frame, at least {limits.frames} are needed",
                "drop the episode",
                count,
                limits.frames,
            )
        ]
    for number, arm in enumerate(episode.arms):
        states, fps = len(arm.trajectory.q), arm.trajectory.fps
        if states != count or abs(fps - episode.clip.fps) > 1e-3 * episode.clip.fps:
            return [
                bad(
                    "frames",
                    f"arm {number} ({arm.robot}) has {states} states at {fps:g} Hz, the clip {count} frames at "
                    f"{episode.clip.fps:g} Hz",
                    "bring both to one clock on ingest: take the state nearest in time to each image",
                    states,
                    count,
                )
            ]
    return [Finding(check="frames", severity="ok", value=count, limit=limits.frames, message=f"{count} frames")]


def check_camera(episode: Episode, limits: Thresholds) -> list[Finding]:
    """Is the lens plausible, and the pose steady?"""
    camera = episode.clip.camera
    out = []
    focal, (low, high) = camera.K[0, 0] / camera.width, limits.focal_widths
    if not low <= focal <= high:
        out.append(
            bad(
                "camera",
                f"the focal length is {focal:.2f} image widths, plausible are {low:g} to {high:g}",
                f"K must be in pixels of the stored {camera.width}x{camera.height} image: Camera.resized scales it",
                focal,
                low if focal < low else high,
            )
        )
    cx, cy = camera.K[0, 2], camera.K[1, 2]
    if not (0 <= cx <= camera.width - 1 and 0 <= cy <= camera.height - 1):
        out.append(
            bad(
                "camera",
                f"the principal point ({cx:.0f}, {cy:.0f}) is outside the {camera.width}x{camera.height} image",
                "K must be in pixels of the stored image: scale or crop it as the image was",
            )
        )
    if camera.moving and len(camera.T_world_camera) > 2:
        steps = np.linalg.norm(np.diff(camera.T_world_camera[:, :3, 3], axis=0), axis=1)
        jump = float(steps.max() - 5 * np.median(steps))
        text = f"the camera's largest step is {steps.max():.3f} m after frame {int(steps.argmax())}, the median {np.median(steps):.3f} m"
        out.append(
            grade(
                "camera",
                max(jump, 0.0),
                limits.camera_jump_m,
                text,
                "a pose is missing or of another frame: fix the extrinsics",
            )
        )
    if episode.camera_from == "guessed":
        out.append(
            Finding(
                check="camera",
                severity="warn",
                message="the camera is guessed, so that image and robot cannot be compared",
                remedy="calibrate it ('kinema4d calibrate') and store camera_from 'estimated'",
                score=0.75,
            )
        )
    return out or [
        Finding(check="camera", severity="ok", value=focal, message=f"focal length {focal:.2f} image widths")
    ]


def check_depth(episode: Episode, limits: Thresholds) -> list[Finding]:
    """How much of the image has depth, and is it in front of the camera?"""
    valid, depth = episode.clip.pointmap.valid, episode.clip.pointmap.depth
    per_frame = valid.mean(axis=(1, 2))
    if not per_frame.any():
        return [nothing("depth", "the episode has no depth")]
    out = []
    behind = int((valid & ~(depth > 0)).sum())
    if behind:
        out.append(
            bad(
                "depth",
                f"{behind} valid points have no positive depth",
                "mark pixels without depth as not valid; points are in OpenCV axes, z forward",
                behind,
                0,
            )
        )
    holes = float(1 - per_frame.mean())
    empty = np.nonzero(per_frame == 0)[0]
    if len(empty):
        text = f"{len(empty)} of {len(valid)} frames have no depth at all, first frame {empty[0]}"
        out.append(bad("depth", text, "fill the frames again from the source, or drop the episode", len(empty), 0))
    text = f"{100 * holes:.1f} % of the pixels have no depth"
    out.append(
        grade("depth", holes, limits.depth_holes, text, "annotate depth again, or accept with --limit depth_holes")
    )
    return out
