"""Find the camera from the robot's own motion: picked points, then the outline; and say honestly how good it is.

Few data sets come with usable extrinsics, but every arm is a calibration target of known shape in known
configurations. :func:`calibrate` starts from a rough camera or from a handful of picked points, moves the camera
until the projected silhouette lies on image edges, and judges the result on frames it has not seen. A fit that
clutter could explain as well is not called good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, UInt8

from kinema4d.geometry.camera import camera_to_dict
from kinema4d.geometry.se3 import difference, rotvec_to_matrix, transform
from kinema4d.robot.model import Robot
from kinema4d.robot.pnp import Pick, PickFit, camera_from_picks
from kinema4d.robot.silhouette import (
    SEARCH_PX,
    ContourError,
    Evidence,
    Scene,
    contour_error,
    draw_outline,
    find_edges,
    robot_scene,
    search_edges,
)
from kinema4d.types import Camera, check_transforms

# When a fit is good. Set between what right and wrong cameras reach on DROID footage (tests/robot/test_droid_footage).
MAX_HELDOUT_PX = 2.0
"""Largest contour error on held-out frames."""
MIN_BELOW_2PX = 0.65
"""Smallest share of held-out outline points within 2 px of an edge."""
MAX_RATIO = 0.75
"""The held-out error must be below this share of the error of each wrong explanation: states shuffled in time, and
a camera turned by ``NUDGE_PX``. In rich clutter every outline finds edges; only the right one finds clearly more."""
NUDGE_PX = 6.0
"""Image shift, about, of the turned camera in that comparison."""
MAX_SPLIT_MM, MAX_SPLIT_DEG = 20.0, 1.5
"""Largest difference between the cameras fitted to each half of the frames."""
MIN_FIT_FRAMES, MIN_HELDOUT_FRAMES = 4, 2
"""Fewer frames prove nothing."""
MIN_COVERED = 0.01
"""Smallest share of the image that the robot must fill, on average."""
MIN_CHANGED = 0.15
"""Smallest share of the robot's pixels that must change: an arm that hardly moves fixes one view of itself only."""
FX_BOUND = 0.15
"""The focal length may leave its guess by this share; a fit that wants more is wrong elsewhere."""

_STAGES: tuple[tuple[float, Literal["nearest", "salient"], int, int], ...] = (
    (24.0, "salient", 3, 4),
    (16.0, "salient", 6, 6),
    (8.0, "salient", 7, 8),
    (4.0, "nearest", 7, 20),
)
"""Search radius in px, which edge, how many of (turn, shift, focal length) are free, iterations. A camera that is
allowed to turn only cannot run away while most edges found are still wrong ones."""
_CORRELATED = 10.0
"""Neighbouring outline points see the same edge: about this many count as one observation against the prior."""
_FIT_POINTS = 200
"""Outline points per frame in the fit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """A camera and the evidence for it."""

    camera: Camera
    """The fitted camera."""
    initial: Camera
    """Where the outline fit started: the given camera, or the one from picks."""
    fit: ContourError
    """Agreement on the frames that were fitted."""
    heldout: ContourError
    """Agreement on frames that were not: the figure to quote."""
    fit_frames: tuple[int, ...]
    """Frames that were fitted."""
    heldout_frames: tuple[int, ...]
    """Frames kept for judging."""
    split_mm: float
    """Distance between the cameras fitted to each half of the fit frames; infinite with fewer than two frames."""
    split_deg: float
    """Angle between them."""
    shuffled_px: float
    """Held-out error of this camera when the robot states are shuffled in time."""
    nudged_px: float
    """Held-out error with the right states and this camera turned a little, mean over four directions."""
    covered: float
    """Mean share of the image that the robot fills."""
    changed: float
    """Share of the robot's pixels that change over the frames."""
    picks: PickFit | None
    """The fit to picked points, where there were any."""
    reasons: tuple[str, ...]
    """Why the fit is not good; empty when it is."""

    @property
    def good(self) -> bool:
        """Whether the camera may be relied on."""
        return not self.reasons


def calibrate(
    robot: Robot,
    q: Float[np.ndarray, "t dof"],
    images: UInt8[np.ndarray, "t h w 3"] | Bool[np.ndarray, "t h w"],
    *,
    initial: Camera | None = None,
    picks: Sequence[Pick] | None = None,
    K: Float[np.ndarray, "3 3"] | None = None,
    T_world_base: Float[np.ndarray, "4 4"] | None = None,
    fx_sigma: float = 0.02,
    max_frames: int = 21,
) -> Calibration:
    """The fixed camera that took ``images`` (RGB, or robot masks) of the robot at ``q``, one row per image.

    Start from ``initial`` (within about 3 degrees and 5 cm), or from ``picks`` and ``K`` (see :func:`intrinsics`).
    The focal length is refined with a relative prior ``fx_sigma`` around its start, fy/fx held; 0 fixes it. Up to
    ``max_frames`` frames, evenly spaced, are used; every third of them is held out for judging. The world is the
    robot's base unless ``T_world_base`` is given. Look at ``good`` and ``reasons`` before using the camera."""
    q, images = np.asarray(q, np.float64), np.asarray(images)
    if not ((images.dtype == np.uint8 and images.ndim == 4) or (images.dtype == bool and images.ndim == 3)):
        raise ValueError(
            f"images must be uint8 [t,h,w,3] or boolean masks [t,h,w], got {images.dtype} {list(images.shape)}"
        )
    if len(images) != len(q) or len(q) == 0:
        raise ValueError(f"need one row of q per image and at least one, got {len(q)} rows and {len(images)} images")
    if not 0 <= fx_sigma < 1:
        raise ValueError(f"fx_sigma is a relative standard deviation in 0..1 (0 fixes fx), got {fx_sigma}")
    if max_frames < 1:
        raise ValueError(f"max_frames must be at least 1, got {max_frames}")
    if T_world_base is not None:
        check_transforms(np.asarray(T_world_base), "T_world_base")
    height, width = images.shape[1:3]
    pick_fit = None
    if picks:
        K = K if K is not None else initial.K if initial is not None else None
        if K is None:
            raise ValueError("picks need K: pass K=intrinsics(fx, height=..., width=...), or an initial camera")
        pick_fit = camera_from_picks(robot, q, picks, K=K, height=height, width=width, T_world_base=T_world_base)
        initial = pick_fit.camera
    elif initial is None:
        raise ValueError("calibrate needs a start: an initial camera, or picks with K; got neither")
    if initial.moving:
        raise ValueError("calibrate finds a fixed camera; the initial one has a pose per frame")
    if (initial.height, initial.width) != (height, width):
        raise ValueError(
            f"the initial camera is {initial.height}x{initial.width} but the images are {height}x{width}; "
            "use camera.resized(height, width)"
        )
    frames = np.unique(np.linspace(0, len(q) - 1, min(len(q), max_frames)).round().astype(int))
    held = np.arange(len(frames)) % 3 == 1
    evidence, scene = find_edges(images[frames]), robot_scene(robot, q[frames], T_world_base)
    fit, out = np.nonzero(~held)[0], np.nonzero(held)[0]
    fx = float(initial.K[0, 0])
    camera = refine(evidence.take(fit), scene.take(fit), initial, fx_prior=fx, fx_sigma=fx_sigma)
    split_mm, split_deg = _split_half(evidence, scene, fit, camera, fx, fx_sigma)
    outline = draw_outline(scene, camera)
    shifts = np.unique(np.linspace(len(frames) / 4, len(frames) * 3 / 4, 4).astype(int))
    turn = np.degrees(NUDGE_PX / camera.K[0, 0])
    result = Calibration(
        camera=camera,
        initial=initial,
        fit=contour_error(evidence.take(fit), scene.take(fit), camera),
        heldout=contour_error(evidence.take(out), scene.take(out), camera),
        fit_frames=tuple(frames[fit].tolist()),
        heldout_frames=tuple(frames[out].tolist()),
        split_mm=split_mm,
        split_deg=split_deg,
        shuffled_px=_mean(evidence.take(out), [scene.take((out + s) % len(frames)) for s in shifts], [camera]),
        nudged_px=_mean(evidence.take(out), [scene.take(out)], [turned(camera, (x, y, 0)) for x, y in _around(turn)]),
        covered=float(outline.covered.mean()),
        changed=outline.changed,
        picks=pick_fit,
        reasons=(),
    )
    return replace(result, reasons=_judge(result))


def refine(
    evidence: Evidence,
    scene: Scene,
    camera: Camera,
    *,
    fx_prior: float,
    fx_sigma: float,
    stages: Sequence[tuple[float, Literal["nearest", "salient"], int, int]] = _STAGES,
) -> Camera:
    """Move ``camera`` until the outline of ``scene`` lies on the edges: Gauss-Newton on the distances along the
    outline's normals, drawn anew in every iteration, with weights that ignore what lies far off."""
    for radius, rank, free, iterations in stages:
        for _ in range(iterations):
            outline = draw_outline(scene, camera, max_points=_FIT_POINTS)
            d, found = search_edges(evidence, outline, radius, rank=rank)
            if found.sum() < 20:
                return camera  # nothing to hold on to; the judge will say so
            J, d = _jacobian(camera, outline.points[found], outline.normal[found]), d[found]
            scale = 2 * max(1.4826 * float(np.median(np.abs(d))), 0.5)
            weight = 1 / (1 + (d / scale) ** 2) ** 2
            A, b = J.T @ (J * weight[:, None]), J.T @ (d * weight)
            n = free if fx_sigma > 0 else min(free, 6)
            if n == 7:
                prior = _CORRELATED * (weight * d**2).sum() / weight.sum() / fx_sigma**2
                A[6, 6] += prior
                b[6] += prior * np.log(fx_prior / camera.K[0, 0])
            # Damping keeps directions that the outline does not see, e.g. along the optical axis, where they are.
            x = np.zeros(7)
            damping = 1e-2 if radius > SEARCH_PX else 1e-4
            x[:n] = np.linalg.solve((A + damping * np.diag(np.diag(A)) + 1e-9 * np.eye(7))[:n, :n], b[:n])
            x *= min(1.0, 0.1 / max(np.linalg.norm(x[:3]), np.linalg.norm(x[3:6]), 1e-12))
            camera = _moved(camera, x, fx_prior)
            if np.sqrt(((J @ x) ** 2).mean()) < 0.01:
                break
    return camera


def calibration_to_dict(calibration: Calibration) -> dict[str, Any]:
    """The content of a camera file that :func:`kinema4d.geometry.camera.load_camera` reads, with the report beside
    the camera under ``calibration``."""
    c = calibration
    report: dict[str, Any] = {
        "good": c.good,
        "reasons": list(c.reasons),
        "contour_error_px_fit": asdict(c.fit),
        "contour_error_px_heldout": asdict(c.heldout),
        "search_px": SEARCH_PX,
        "fit_frames": list(c.fit_frames),
        "heldout_frames": list(c.heldout_frames),
        # JSON has no infinity: null says that it could not be measured.
        "split_half": {"translation_mm": _finite(c.split_mm), "rotation_deg": _finite(c.split_deg)},
        "error_px_states_shuffled": c.shuffled_px,
        "error_px_camera_turned": c.nudged_px,
        "robot_share_of_image": c.covered,
        "robot_share_moving": c.changed,
    }
    if c.picks is not None:
        report["picks"] = {"error_px": [_finite(e) for e in c.picks.error_px], "used": c.picks.used.tolist()}
    return {**camera_to_dict(c.camera), "calibration": report}


def turned(
    camera: Camera,
    degrees: Sequence[float] | Float[np.ndarray, "3"],
    metres: Sequence[float] | Float[np.ndarray, "3"] = (0.0, 0.0, 0.0),
) -> Camera:
    """``camera`` turned about and shifted along its own axes (x right, y down, z forward)."""
    T = transform(np.asarray(metres, float), rotvec_to_matrix(np.radians(np.asarray(degrees, float))))
    return replace(camera, T_world_camera=camera.T_world_camera @ T)


def _judge(c: Calibration) -> tuple[str, ...]:
    """Everything that speaks against the fit, in words and numbers."""
    wrong = {"the robot states shuffled in time": c.shuffled_px, f"the camera turned by {NUDGE_PX:g} px": c.nudged_px}
    fx, fx_start = c.camera.K[0, 0], c.initial.K[0, 0]
    checks = [
        (len(c.fit_frames) < MIN_FIT_FRAMES or len(c.heldout_frames) < MIN_HELDOUT_FRAMES,
         f"too few frames: {len(c.fit_frames)} fitted and {len(c.heldout_frames)} held out, "
         f"need {MIN_FIT_FRAMES} and {MIN_HELDOUT_FRAMES}"),
        (c.covered < MIN_COVERED,
         f"the robot fills {c.covered:.2%} of the image, need {MIN_COVERED:.0%}: too small or not visible"),
        (c.changed < MIN_CHANGED,
         f"the arm hardly moves: {c.changed:.0%} of its pixels change, need {MIN_CHANGED:.0%}"),
        (c.heldout.mean_px > MAX_HELDOUT_PX,
         f"held-out contour error {c.heldout.mean_px:.2f} px, allowed {MAX_HELDOUT_PX:g}"),
        (c.heldout.below_2px < MIN_BELOW_2PX,
         f"{c.heldout.below_2px:.0%} of the held-out outline is within 2 px of an edge, need {MIN_BELOW_2PX:.0%}"),
        (not (c.split_mm <= MAX_SPLIT_MM and c.split_deg <= MAX_SPLIT_DEG),
         f"two halves of the frames give cameras {c.split_mm:.1f} mm and {c.split_deg:.2f} degrees apart, allowed "
         f"{MAX_SPLIT_MM:g} and {MAX_SPLIT_DEG:g}"),
        (abs(np.log(fx / fx_start)) > 0.99 * np.log1p(FX_BOUND),
         f"the focal length ran into its bound: {fx:.1f} px from a start of {fx_start:.1f} px"),
        *((c.heldout.mean_px > MAX_RATIO * px,
           f"held-out error {c.heldout.mean_px:.2f} px is not clearly better than {px:.2f} px with {what} "
           f"(need a factor {MAX_RATIO:g}): clutter explains it as well") for what, px in wrong.items()),
    ]  # fmt: skip
    return tuple(text for bad, text in checks if bad)


def _split_half(
    evidence: Evidence, scene: Scene, fit: np.ndarray, camera: Camera, fx_prior: float, fx_sigma: float
) -> tuple[float, float]:
    """How far apart two cameras are that saw different frames. They start on opposite sides of the fit, so that a
    fit that merely stays where it starts does not look repeatable."""
    if len(fit) < 2:
        return np.inf, np.inf
    away = np.degrees(4 / camera.K[0, 0])
    a, b = (
        refine(
            evidence.take(half), scene.take(half), turned(camera, (s * away, s * away, 0), (s * 0.01, 0, 0)),
            fx_prior=fx_prior, fx_sigma=fx_sigma,
        )
        for half, s in ((fit[::2], 1), (fit[1::2], -1))
    )  # fmt: skip
    metres, radians = difference(a.T_world_camera, b.T_world_camera)
    return 1e3 * float(metres), float(np.degrees(radians))


def _jacobian(camera: Camera, points: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Motion along the normal, in px, per rad and m of camera motion in its own frame, and per log focal length."""
    x, y, z = points.T
    nu, nv = normal[:, 0] * camera.K[0, 0], normal[:, 1] * camera.K[1, 1]
    per_point = np.stack([nu / z, nv / z, -(nu * x + nv * y) / z**2], axis=-1)
    # The camera turns by w and shifts by v, so points move by -w x X - v in its frame.
    return np.column_stack([np.cross(per_point, points), -per_point, (nu * x + nv * y) / z])


def _moved(camera: Camera, x: np.ndarray, fx_prior: float) -> Camera:
    bound = np.log1p(FX_BOUND)
    now = np.log(camera.K[0, 0] / fx_prior)
    K = np.array(camera.K)
    K[:2, :2] *= np.exp(np.clip(now + x[6], -bound, bound) - now)
    return replace(turned(camera, np.degrees(x[:3]), x[3:6]), K=K)


def _mean(evidence: Evidence, scenes: Sequence[Scene], cameras: Sequence[Camera]) -> float:
    if len(evidence) == 0:
        return SEARCH_PX
    return float(np.mean([contour_error(evidence, s, c).mean_px for s in scenes for c in cameras]))


def _around(a: float) -> tuple[tuple[float, float], ...]:
    return ((a, 0), (-a, 0), (0, a), (0, -a))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
