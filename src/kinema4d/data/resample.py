"""Uniform temporal down-sampling: the paper's 49 frames from a recording of any length (section 3.3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Int

from kinema4d.types import Episode, Pointmap

FRAMES = 49
"""Frames of an episode in the paper."""


def uniform_indices(count: int, frames: int = FRAMES) -> Int[np.ndarray, " n"]:
    """Which of ``count`` frames to keep: the first, the last, and evenly spaced ones between, rounded to whole frames."""
    if frames < 2:
        raise ValueError(f"frames must be at least 2, got {frames}")
    if count <= frames:
        return np.arange(count)
    return np.rint(np.linspace(0, count - 1, frames)).astype(int)


def downsample(episode: Episode, frames: int = FRAMES) -> Episode:
    """At most ``frames`` frames; a short episode is left alone. The frame rate becomes the mean rate of those kept;
    commands keep their own clock."""
    count = len(episode)
    keep = uniform_indices(count, frames)
    if len(keep) == count:
        return episode
    clip = episode.clip
    fps = clip.fps * (len(keep) - 1) / (count - 1)
    camera = clip.camera
    if camera.moving:
        camera = replace(camera, T_world_camera=camera.T_world_camera[keep])
    arms = []
    for arm in episode.arms:
        if len(arm.converged) != count:
            raise ValueError(
                f"the arm has {len(arm.converged)} states but the clip {count} frames: bring them to one clock first"
            )
        path = replace(arm.trajectory, q=arm.trajectory.q[keep], fps=fps)
        per_frame = {key: getattr(arm, key)[keep] for key in ("converged", "residual_m", "residual_rad")}
        arms.append(replace(arm, trajectory=path, **per_frame))
    pointmap = Pointmap(points=clip.pointmap.points[keep], valid=clip.pointmap.valid[keep])
    return replace(
        episode,
        clip=replace(clip, camera=camera, rgb=clip.rgb[keep], pointmap=pointmap, fps=fps),
        arms=tuple(arms),
        labels=None if episode.labels is None else episode.labels[keep],
        tracks=tuple(replace(t, Ts_world_object=t.Ts_world_object[keep]) for t in episode.tracks),
    )
