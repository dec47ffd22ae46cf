from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from kinema4d.geometry.se3 import look_at
from kinema4d.robot.actions import Actions
from kinema4d.robot.control import control
from kinema4d.robot.zoo import load_robot
from kinema4d.simulate.long import rollout
from kinema4d.types import Camera, Rollout, Track
from kinema4d.world.frames import followed, window
from kinema4d.world.static import StaticWorld

FRAMES = 11


@pytest.fixture(scope="module")
def signal():
    robot = load_robot("k4arm")
    q = np.linspace(robot.home, robot.home + 0.2, FRAMES)
    K = np.array([[60.0, 0, 35.5], [0, 60.0, 23.5], [0, 0, 1]])
    camera = Camera(
        K=K, T_world_camera=look_at(np.array([1.2, 0.3, 0.8]), np.array([0.0, 0, 0.2])), height=48, width=72
    )
    return control(robot, Actions(values=q, space="joint_position", fps=10.0), camera)


@dataclass(frozen=True)
class Counter(StaticWorld):
    """A static world that only knows short clips and says where it thinks a thing is."""

    longest: int | None = 5

    def simulate(self, image, control, *, depth=None, seed=0):
        assert self.longest is None or len(control) <= self.longest
        made = super().simulate(image, control, depth=depth, seed=seed)
        Ts = np.tile(np.eye(4), (len(control), 1, 1))
        return Rollout(clip=made.clip, provenance=made.provenance, tracks=(Track(name="thing", Ts_world_object=Ts),))


def test_chunks_join_to_what_one_piece_gives(signal):
    image, depth = np.full((48, 72, 3), 90, np.uint8), np.full((48, 72), 3.0, np.float32)
    whole = Counter(longest=None).simulate(image, signal, depth=depth)
    parts = rollout(Counter(), image, signal, depth=depth)
    assert len(parts.clip) == FRAMES
    assert parts.provenance["chunks"] == [0, 4, 8]
    assert len(parts.tracks[0].Ts_world_object) == FRAMES
    robot = signal.mask
    np.testing.assert_array_equal(parts.clip.pointmap.points[1:][robot[1:]], whole.clip.pointmap.points[1:][robot[1:]])
    background = ~robot.any(axis=0)
    np.testing.assert_array_equal(parts.clip.rgb[:, background], whole.clip.rgb[:, background])


def test_a_short_clip_or_a_world_without_limit_goes_in_one_piece(signal):
    image = np.zeros((48, 72, 3), np.uint8)
    assert "chunks" not in rollout(StaticWorld(), image, signal).provenance
    assert "chunks" not in rollout(Counter(longest=FRAMES), image, signal).provenance
    assert rollout(StaticWorld(), image, signal, longest=6).provenance["chunks"] == [0, 5]
    with pytest.raises(ValueError, match="at least 2 frames, got 1"):
        rollout(StaticWorld(), image, signal, longest=1)


def test_a_window_of_a_control_signal_is_that_of_its_frames(signal):
    cut = window(signal, slice(3, 7))
    assert len(cut) == 4
    np.testing.assert_array_equal(cut.arms[0].trajectory.q, signal.arms[0].trajectory.q[3:7])
    np.testing.assert_array_equal(cut.solids[0].Ts_world_link, signal.solids[0].Ts_world_link[3:7])
    moving = replace(signal.camera, T_world_camera=np.tile(signal.camera.T_world_camera, (FRAMES, 1, 1)))
    assert len(window(replace(signal, camera=moving), slice(3, 7)).camera.T_world_camera) == 4


def test_signals_one_after_the_other_are_the_whole(signal):
    whole = followed(window(signal, slice(0, 4)), window(signal, slice(4, None)))
    assert len(whole) == FRAMES
    np.testing.assert_array_equal(whole.pointmap.points, signal.pointmap.points)
    np.testing.assert_array_equal(whole.arms[0].trajectory.q, signal.arms[0].trajectory.q)
    np.testing.assert_array_equal(whole.solids[-1].Ts_world_link, signal.solids[-1].Ts_world_link)
    with pytest.raises(ValueError, match="not of the same robots"):
        followed(signal, replace(signal, link_names=("other",)))


def test_a_world_goes_on_from_its_state_and_hears_of_the_first_image_once(signal):
    heard = []

    @dataclass(frozen=True)
    class Remembers(StaticWorld):
        longest: int | None = 5

        def simulate(self, image, control, *, depth=None, seed=0, past=None, labels=None):
            heard.append((past, labels))
            return replace(super().simulate(image, control, depth=depth, seed=seed), state=len(heard))

    made = rollout(Remembers(), np.zeros((48, 72, 3), np.uint8), signal, labels="first")  # pyright: ignore[reportArgumentType]
    assert heard == [(None, "first"), (1, None), (2, None)]
    assert made.state == 3
