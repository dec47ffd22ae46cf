"""The control signal of a recorded episode: its robots are found by name."""

from __future__ import annotations

from functools import lru_cache

from kinema4d.robot.control import project
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Control, Episode


@lru_cache(maxsize=8)
def _robot(name: str) -> Robot:
    return load_robot(name)


def control_of(episode: Episode) -> Control:
    """The control signal of an episode's robots."""
    if not episode.arms:
        raise ValueError(f"episode {episode.source or '?'} has no robot: there is nothing to foretell")
    return project([_robot(arm.robot) for arm in episode.arms], episode.arms, episode.clip.camera)
