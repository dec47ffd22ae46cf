"""A first camera from a handful of points that a person picked on the robot in the images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from kinema4d.geometry.camera import project
from kinema4d.geometry.se3 import apply, invert, rotvec_to_matrix, transform
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.types import Camera

PICK_PX = 6.0
"""A pick further than this from its projection is an outlier."""
MIN_SPREAD_M = 0.01
"""Picks must extend this far (standard deviation) along every axis in space: points in a plane fit two cameras."""


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A point of the robot that somebody found in an image."""

    frame: int
    """Row of q and of the images."""
    link: str
    """Link the point is fixed to."""
    xyz: tuple[float, float, float]
    """Where it is in that link's frame, metres."""
    uv: tuple[float, float]
    """Where it was seen: column and row, pixels, (0, 0) the centre of the top-left pixel."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PickFit:
    """A camera from picked points."""

    camera: Camera
    """The camera."""
    error_px: Float[np.ndarray, " n"]
    """Distance of every pick from its projection."""
    used: Bool[np.ndarray, " n"]
    """Picks that were believed."""


def load_picks(path: str | Path) -> list[Pick]:
    """Picks from a JSON list of objects with the fields of :class:`Pick`."""
    try:
        rows = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read picks from {path}: {error}") from None
    try:
        picks = []
        for row in rows:
            (x, y, z), (u, v) = row["xyz"], row["uv"]
            xyz, uv = (float(x), float(y), float(z)), (float(u), float(v))
            picks.append(Pick(frame=int(row["frame"]), link=str(row["link"]), xyz=xyz, uv=uv))
        return picks
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f'{path} must hold a list like [{{"frame": 0, "link": "hand", "xyz": [0, 0, 0.1], "uv": [120, 80]}}]; '
            f"{type(error).__name__}: {error}"
        ) from None


def intrinsics(fx: float, *, height: int, width: int, fy_over_fx: float = 1.0) -> Float[np.ndarray, "3 3"]:
    """K with a centred principal point. ``fy_over_fx`` is not 1 where a video was squashed: DROID's 16:9 frames
    stored as 320x192 have 192/180."""
    return np.array([[fx, 0, (width - 1) / 2], [0, fx * fy_over_fx, (height - 1) / 2], [0, 0, 1.0]])


def camera_from_picks(
    robot: Robot,
    q: Float[np.ndarray, "t dof"],
    picks: Sequence[Pick],
    *,
    K: Float[np.ndarray, "3 3"],
    height: int,
    width: int,
    T_world_base: Float[np.ndarray, "4 4"] | None = None,
) -> PickFit:
    """A camera from at least four picked points (PnP); from six on, wrong picks are found and left out (RANSAC)."""
    cv2 = _opencv()
    if len(picks) < 4:
        raise ValueError(f"a camera needs at least 4 picks, got {len(picks)} (6 or more to survive a wrong one)")
    for p in picks:
        if not 0 <= p.frame < len(q):
            raise ValueError(f"a pick names frame {p.frame}, but q has frames 0..{len(q) - 1}")
        if not np.isfinite([*p.xyz, *p.uv]).all():
            raise ValueError(f"a pick has a non-finite number: {p}")
    T = np.eye(4) if T_world_base is None else np.asarray(T_world_base, float)
    Ts = T @ forward_kinematics(robot, np.asarray(q)[[p.frame for p in picks]])
    links = [robot.link_index(p.link) for p in picks]
    xyz = apply(Ts[np.arange(len(picks)), links], np.array([p.xyz for p in picks], float)[:, None])[:, 0]
    uv = np.array([p.uv for p in picks], float)
    _check_spread(xyz, uv)
    used = np.arange(len(picks))
    if len(picks) >= 6:
        ok, _, _, inliers = cv2.solvePnPRansac(
            xyz, uv, np.array(K), None, reprojectionError=PICK_PX, iterationsCount=500
        )
        if not ok or inliers is None or len(inliers) < max(4, len(picks) / 2):
            raise ValueError(
                f"no camera explains at least half of the {len(picks)} picks within {PICK_PX:g} px; check the pixels, "
                "the link frames, the frame numbers and the focal length"
            )
        used = inliers.reshape(-1)
        _check_spread(xyz[used], uv[used])
    ok, rvec, tvec = cv2.solvePnP(xyz[used], uv[used], np.array(K), None, flags=cv2.SOLVEPNP_SQPNP)
    if not ok:
        raise ValueError(f"no camera explains the {len(used)} picks; check the pixels, link frames and frame numbers")
    rvec, tvec = cv2.solvePnPRefineLM(xyz[used], uv[used], np.array(K), None, rvec, tvec)
    T_camera_world = transform(tvec.reshape(3), rotvec_to_matrix(rvec.reshape(3)))
    points = apply(T_camera_world, xyz)
    if not (points[used, 2] > 0).all():
        raise ValueError(
            "the camera that fits the picks has some of them behind it; check the pixels and frame numbers"
        )
    error = np.linalg.norm(project(K, np.where(points[:, 2:] > 0, points, np.nan)) - uv, axis=-1)
    camera = Camera(K=np.array(K), T_world_camera=invert(T_camera_world), height=height, width=width)
    return PickFit(camera=camera, error_px=np.nan_to_num(error, nan=np.inf), used=np.isin(np.arange(len(picks)), used))


def _check_spread(xyz: np.ndarray, uv: np.ndarray) -> None:
    spread = np.linalg.svd(xyz - xyz.mean(axis=0), compute_uv=False) / np.sqrt(len(xyz))
    shape = (
        "nearly the same point"
        if spread[0] < MIN_SPREAD_M
        else "on a line"
        if spread[1] < MIN_SPREAD_M
        else "in a plane"
    )
    if spread[2] < MIN_SPREAD_M:
        raise ValueError(
            f"the picks lie {shape} in space (they extend {', '.join(f'{1e3 * s:.1f}' for s in spread)} mm along their "
            f"axes, need {1e3 * MIN_SPREAD_M:g} mm along each); pick other links, or frames in which the arm has moved"
        )
    if np.ptp(uv, axis=0).max() < 5:
        raise ValueError(f"the picks are {np.ptp(uv, axis=0).max():.1f} px apart in the image, need at least 5 px")


def _opencv() -> Any:
    try:
        import cv2
    except ImportError:
        raise ValueError("picks need OpenCV: pip install 'kinema4d[calibrate]', or pass an initial camera") from None
    return cv2
