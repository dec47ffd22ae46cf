"""Down-sampling keeps the ends, the order, the clock and everything that runs along with the frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_jobs import tiny

from kinema4d.data.resample import FRAMES, downsample, uniform_indices


@given(st.integers(1, 3000), st.integers(2, 120))
def test_indices_are_even_and_keep_both_ends(count: int, frames: int) -> None:
    keep = uniform_indices(count, frames)
    assert len(keep) == min(count, frames)
    assert keep[0] == 0
    assert keep[-1] == count - 1
    steps = np.diff(keep)
    assert (steps >= 1).all()  # none twice
    assert len(steps) == 0 or steps.max() - steps.min() <= 1
    even = np.linspace(0, count - 1, len(keep))
    assert np.abs(keep - even).max() <= 0.5


@pytest.mark.parametrize("frames", [1, 0, -3])
def test_fewer_than_two_frames_are_refused(frames: int) -> None:
    with pytest.raises(ValueError, match=f"frames must be at least 2, got {frames}"):
        uniform_indices(100, frames)


@pytest.mark.parametrize("count", [2, 48, FRAMES])
def test_short_episodes_are_left_alone(count: int) -> None:
    episode = tiny(frames=count)
    assert downsample(episode) is episode


@pytest.mark.parametrize("frames", [2, 7, 49])
def test_everything_keeps_step_with_the_frames(frames: int) -> None:
    count = 100
    episode = tiny(frames=count)
    Ts = np.tile(np.eye(4), (count, 1, 1))
    Ts[:, 2, 3] = np.arange(count)
    episode = replace(episode, clip=replace(episode.clip, camera=replace(episode.clip.camera, T_world_camera=Ts)))
    short, keep = downsample(episode, frames), uniform_indices(count, frames)
    assert len(short) == frames
    assert np.array_equal(short.clip.rgb, episode.clip.rgb[keep])
    assert np.array_equal(short.clip.pointmap.points, episode.clip.pointmap.points[keep])
    assert np.array_equal(short.clip.pointmap.valid, episode.clip.pointmap.valid[keep])
    assert np.array_equal(short.clip.camera.T_world_camera[:, 2, 3], keep)
    assert episode.labels is not None
    assert short.labels is not None
    assert np.array_equal(short.labels, episode.labels[keep])
    for mine, theirs in zip(short.arms, episode.arms, strict=True):
        assert np.array_equal(mine.trajectory.q, theirs.trajectory.q[keep])
        assert mine.trajectory.fps == short.clip.fps
        assert len(mine.converged) == len(mine.residual_m) == len(mine.residual_rad) == frames
    for mine, theirs in zip(short.tracks, episode.tracks, strict=True):
        assert np.array_equal(mine.Ts_world_object, theirs.Ts_world_object[keep])
        assert mine.vertices is theirs.vertices
    # The last frame is at the same second, and commands, which have their own clock, still fit.
    assert (frames - 1) / short.clip.fps == pytest.approx((count - 1) / episode.clip.fps)
    assert short.commands is episode.commands
    for name in ("text", "outcome", "source", "task", "group", "view", "camera_from", "metric", "facts", "label_names"):
        assert getattr(short, name) == getattr(episode, name)


def test_what_is_not_known_stays_unknown() -> None:
    short = downsample(tiny(frames=60, arms=(), labels=None, label_names=(), tracks=(), commands=None))
    assert (len(short), short.arms, short.labels, short.tracks, short.commands) == (FRAMES, (), None, (), None)


def test_an_arm_on_another_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="the arm has 120 states but the clip 60 frames: bring them to one clock"):
        downsample(tiny(frames=60, arms=tiny(frames=120).arms))
