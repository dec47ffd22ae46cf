"""What all real sources share: frames without depth, checked numbers, and robots that may be absent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from kinema4d.data.ingest.rlds import decode_image
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import ASSETS_VARIABLE, find, load_robot
from kinema4d.types import Arm, Camera, Clip, Pointmap


def without_depth(camera: Camera, rgb: UInt8[np.ndarray, "t h w 3"], fps: float) -> Clip:
    """A clip of which only the colours are known."""
    # One zero seen from everywhere: a long recording's empty pointmap would be gigabytes.
    points = np.broadcast_to(np.zeros((), np.float32), rgb.shape)
    valid = np.broadcast_to(np.zeros((), bool), rgb.shape[:3])
    return Clip(camera=camera, rgb=rgb, pointmap=Pointmap(points=points, valid=valid), fps=fps)


def decode_frames(images: Sequence[bytes] | np.ndarray, where: str) -> UInt8[np.ndarray, "t h w 3"]:
    """The frames of an encoded sequence; ``where`` names it in errors."""
    if not len(images):
        raise ValueError(f"{where} has no frame; leave this recording out")
    frames = []
    for i, data in enumerate(images):
        try:
            frames.append(decode_image(data))
        except ValueError as error:
            raise ValueError(f"{where}, frame {i}: {error}; download its file again") from None
        if frames[i].shape != frames[0].shape:
            sizes = f"{list(frames[i].shape[:2])}, the first is {list(frames[0].shape[:2])}"
            raise ValueError(f"{where}: frame {i} is {sizes}; all must have one size")
    return np.stack(frames)


def numbers(values: Any, where: str, names: Sequence[str], rows: int | None = None) -> Float[np.ndarray, "t d"]:
    """``values`` as float64 [t, d] with the columns ``names``, finite, and ``rows`` long where that is known."""
    try:
        table = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: expected rows of {len(names)} numbers ({', '.join(names)})") from None
    if table.ndim == 1 and len(names) == 1:
        table = table[:, None]
    if table.ndim != 2 or table.shape[1] != len(names):
        raise ValueError(
            f"{where}: expected rows of {len(names)} numbers ({', '.join(names)}), got {list(table.shape)}"
        )
    if rows is not None and len(table) != rows:
        raise ValueError(f"{where}: expected {rows} rows, got {len(table)}; the file is incomplete, download it again")
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        raise ValueError(
            f"{where}: row {row}, column {column} ({names[column]}) is {table[row, column]}; leave this recording out or "
            "repair the row"
        )
    return table


def arms_of(robot: str, drive: Callable[[Robot], Arm]) -> tuple[tuple[Arm, ...], dict[str, Any]]:
    """The arm that ``drive`` makes of a zoo robot, and facts; no arm, with the reason, where its files are not here."""
    try:
        find(robot)
    except ValueError as error:
        return (), {"robot": robot, "robot_missing": str(error)}
    arm = drive(_kinematics(robot, os.environ.get(ASSETS_VARIABLE, "")))
    missed = int((~arm.converged).sum())
    return (arm,), {"robot": robot} | ({"frames_not_reached": missed} if missed else {})


@lru_cache(maxsize=8)
def _kinematics(robot: str, assets: str) -> Robot:
    """A robot without its meshes; ``assets`` is in the key because it decides which files are found."""
    return load_robot(robot, visuals=False)
