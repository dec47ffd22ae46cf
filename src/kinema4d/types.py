"""The nouns of kinema4d: frozen values that every stage passes to the next.

Conventions (docs/conventions.md): ``T_a_b`` maps b-coordinates to a, metres and radians, world is
+Z up, cameras have OpenCV axes, pixel (0, 0) is the centre of the top-left pixel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped, UInt8, UInt16

ORTHONORMAL_TOLERANCE = 1e-5
"""Largest accepted |R R^T - 1|: float32 files pass, a scaled or sheared matrix does not."""


def check_transforms(Ts: np.ndarray, name: str) -> None:
    """Raise ``ValueError`` unless every 4x4 in ``Ts`` is a rigid transform."""
    if Ts.shape[-2:] != (4, 4):
        raise ValueError(f"{name} must end in a 4x4 matrix, got shape {list(Ts.shape)}")
    if not np.isfinite(Ts).all():
        raise ValueError(f"{name} has a non-finite entry")
    R = Ts[..., :3, :3]
    error = np.abs(R @ np.swapaxes(R, -1, -2) - np.eye(3)).max()
    if error > ORTHONORMAL_TOLERANCE:
        raise ValueError(
            f"{name} has a rotation that is not orthonormal (|R R^T - 1| = {error:.2g}, allowed "
            f"{ORTHONORMAL_TOLERANCE:g}); remove scale and shear, e.g. R = U V^T of its SVD"
        )
    if (np.linalg.det(R) < 0).any():
        raise ValueError(f"{name} is a reflection (det = -1); flip one axis to make it a rotation")
    if np.abs(Ts[..., 3, :] - [0, 0, 0, 1]).max() > 1e-9:
        raise ValueError(f"{name} must have 0 0 0 1 as its last row")


@dataclass(frozen=True, kw_only=True, eq=False)
class Camera:
    """A pinhole camera, fixed or moving."""

    K: Float[np.ndarray, "3 3"]
    """Intrinsics in pixels, ``[[fx, skew, cx], [0, fy, cy], [0, 0, 1]]``."""
    T_world_camera: Float[np.ndarray, "*t 4 4"]
    """Camera frame in the world: one pose, or one per frame."""
    height: int
    """Image rows."""
    width: int
    """Image columns."""

    def __post_init__(self) -> None:
        K = np.array(self.K, np.float64)
        if K.shape != (3, 3) or not np.isfinite(K).all():
            raise ValueError(f"camera K must be a finite 3x3 matrix, got shape {K.shape}: {K.tolist()}")
        if not (K[0, 0] > 0 and K[1, 1] > 0):
            raise ValueError(f"camera focal lengths must be positive, got fx={K[0, 0]:g}, fy={K[1, 1]:g}")
        if not np.allclose(K[2], [0, 0, 1]) or K[1, 0] != 0:
            raise ValueError(f"camera K must be upper triangular with last row 0 0 1, got {K.tolist()}")
        if self.height < 1 or self.width < 1:
            raise ValueError(f"camera size must be positive, got {self.height}x{self.width} (height x width)")
        Ts = np.array(self.T_world_camera, np.float64)
        if Ts.ndim not in (2, 3) or Ts.shape[-2:] != (4, 4) or Ts.shape[0] == 0:
            raise ValueError(f"T_world_camera must be [4,4] or [t,4,4], got {list(Ts.shape)}")
        check_transforms(Ts, "camera T_world_camera")
        object.__setattr__(self, "K", _frozen(K))
        object.__setattr__(self, "T_world_camera", _frozen(Ts))

    @property
    def moving(self) -> bool:
        """Whether there is one pose per frame."""
        return self.T_world_camera.ndim == 3

    def poses(self, frames: int) -> Float[np.ndarray, "t 4 4"]:
        """``T_world_camera`` for each of ``frames`` frames."""
        if not self.moving:
            return np.broadcast_to(self.T_world_camera, (frames, 4, 4))
        if len(self.T_world_camera) != frames:
            raise ValueError(
                f"the moving camera has {len(self.T_world_camera)} poses but the sequence has {frames} frames; "
                "give one pose per frame, or a single pose"
            )
        return self.T_world_camera

    def resized(self, height: int, width: int) -> Camera:
        """The same view sampled on another pixel grid (a squash changes fy/fx, as it should)."""
        sx, sy = width / self.width, height / self.height
        # Pixel centres are integers, so the image spans [-0.5, width-0.5].
        S = np.array([[sx, 0, (sx - 1) / 2], [0, sy, (sy - 1) / 2], [0, 0, 1]])
        return replace(self, K=S @ self.K, height=height, width=width)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """Where one robot's joints are over time."""

    q: Float[np.ndarray, "t dof"]
    """Joint positions in rad or m, in the order of ``joint_names``."""
    joint_names: tuple[str, ...]
    """Actuated joints, the columns of ``q``."""
    fps: float
    """Frames per second."""
    T_world_base: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    """The robot's root link in the world."""

    def __post_init__(self) -> None:
        q = np.array(self.q, np.float64)
        if q.ndim != 2 or q.shape[1] != len(self.joint_names):
            raise ValueError(f"q must be [t, {len(self.joint_names)}] for joints {self.joint_names}, got {q.shape}")
        if not np.isfinite(q).all():
            raise ValueError(f"q has a non-finite value in frame {int(np.argwhere(~np.isfinite(q))[0][0])}")
        if not self.fps > 0:
            raise ValueError(f"fps must be positive, got {self.fps}")
        T = np.array(self.T_world_base, np.float64)
        check_transforms(T, "T_world_base")
        object.__setattr__(self, "q", _frozen(q))
        object.__setattr__(self, "T_world_base", _frozen(T))


@dataclass(frozen=True, kw_only=True, eq=False)
class Pointmap:
    """A 3D point per pixel (equation 1 of the paper)."""

    points: Float[np.ndarray, "t h w 3"]
    """Metres in the camera frame of the same frame index. Undefined where not ``valid``."""
    valid: Bool[np.ndarray, "t h w"]
    """Which pixels hold a point; the only way to say "nothing here"."""

    @property
    def depth(self) -> Float[np.ndarray, "t h w"]:
        """z along the optical axis in metres; undefined where not ``valid``."""
        return self.points[..., 2]


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """A 4D clip: synchronized RGB and metric pointmaps of one camera."""

    camera: Camera
    """Who is looking."""
    rgb: UInt8[np.ndarray, "t h w 3"]
    """Colour, 0..255."""
    pointmap: Pointmap
    """Geometry on the same pixels and the same clock."""
    fps: float
    """Frames per second."""

    def __post_init__(self) -> None:
        shape = self.rgb.shape[:3]
        if self.pointmap.valid.shape != shape or shape[1:] != (self.camera.height, self.camera.width):
            raise ValueError(
                f"clip parts disagree: rgb {list(shape)}, pointmap {list(self.pointmap.valid.shape)}, "
                f"camera {self.camera.height}x{self.camera.width}"
            )

    def __len__(self) -> int:
        return len(self.rgb)


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """One robot's share of a control signal: which robot, how it moved, and how well it followed."""

    robot: str
    """Zoo name or path that :func:`kinema4d.load_robot` takes."""
    trajectory: Trajectory
    """The motion that was rendered."""
    link_names: tuple[str, ...]
    """Names behind the link ids of this robot."""
    converged: Bool[np.ndarray, " t"]
    """Per frame: did the robot reach what the action asked for?"""
    residual_m: Float[np.ndarray, " t"]
    """Per frame: distance between asked and reached tool position (0 in joint spaces)."""
    residual_rad: Float[np.ndarray, " t"]
    """Per frame: angle between asked and reached tool orientation (0 in joint spaces)."""


SOLID_ROLES = ("finger", "palm", "arm")
"""What a solid of a robot may be."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Solid:
    """One link of a robot as something that pushes: its convex hull, and where it is at every frame."""

    name: str
    """Of the link, as in ``link_names``."""
    role: str
    """``finger`` where the gripper moves it, ``palm`` where fingers hang on it, else ``arm``."""
    vertices: Float[np.ndarray, "v 3"]
    """Corners of the hull in the frame of the link, metres."""
    faces: Int32[np.ndarray, "f 3"]
    """Triangles of the hull, normals outward."""
    Ts_world_link: Float[np.ndarray, "t 4 4"]
    """Where the link is at each frame."""
    meshes: tuple[Any, ...] = ()
    """What is seen of the link, each a ``kinema4d.geometry.mesh.Mesh`` in its frame; empty where that is not known."""

    def __post_init__(self) -> None:
        if self.role not in SOLID_ROLES:
            raise ValueError(f"a solid is one of {', '.join(SOLID_ROLES)}, got {self.role!r}")
        check_transforms(self.Ts_world_link, f"solid {self.name!r}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Control:
    """The 4D robot control signal: where the robot is in every pixel of every frame."""

    camera: Camera
    """The view that was projected into."""
    pointmap: Pointmap
    """The robot's visible surface; ``valid`` is the robot mask."""
    link_ids: UInt16[np.ndarray, "t h w"]
    """0 where there is no robot, else 1 + index into ``link_names``."""
    link_names: tuple[str, ...]
    """Every link of every arm, in order; prefixed with the arm's number when there are several."""
    arms: tuple[Arm, ...]
    """The robots in the scene."""
    fps: float
    """Frames per second."""
    rgb: UInt8[np.ndarray, "t h w 3"] | None = None
    """Shaded robot on black, where asked for."""
    solids: tuple[Solid, ...] = ()
    """The links that have a surface, for worlds in which the robot moves things."""

    @property
    def mask(self) -> Bool[np.ndarray, "t h w"]:
        """Robot occupancy."""
        return self.pointmap.valid

    @property
    def clip(self) -> Clip:
        """The signal as a clip, for viewers and metrics."""
        if self.rgb is None:
            raise ValueError("this control signal was made without colour; pass rgb=True to control()")
        return Clip(camera=self.camera, rgb=self.rgb, pointmap=self.pointmap, fps=self.fps)

    def __len__(self) -> int:
        return len(self.link_ids)


_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, eq=False)
class Commands:
    """What the robot was told, as the source recorded it; ``Actions`` of :mod:`kinema4d.robot.actions` interprets it."""

    values: Float[np.ndarray, "n d"]
    """The numbers, one row per command."""
    names: tuple[str, ...]
    """What each column is."""
    fps: float
    """Commands per second; may be faster than the frames."""
    space: str = ""
    """Action space that ``Actions`` takes, or empty where the source's numbers have no such meaning."""
    convention: str = ""
    """Convention that ``Actions`` takes, or empty."""

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise ValueError(f"commands must be [n, {len(self.names)}] for {self.names}, got {self.values.shape}")
        if not np.isfinite(self.values).all():
            raise ValueError(f"command {int(np.argwhere(~np.isfinite(self.values))[0][0])} has a non-finite value")
        if not self.fps > 0:
            raise ValueError(f"commands' fps must be positive, got {self.fps}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Track:
    """One rigid thing of the scene over time: an object, or a moving part of one such as a drawer."""

    name: str
    """Its label in the episode."""
    Ts_world_object: Float[np.ndarray, "t 4 4"]
    """Its frame in the world at each frame of the clip."""
    vertices: Float[np.ndarray, "v 3"] | None = None
    """Its surface in its own frame in metres, where known."""
    faces: Int32[np.ndarray, "f 3"] | None = None
    """Triangles of the surface."""

    def __post_init__(self) -> None:
        check_transforms(self.Ts_world_object, f"track {self.name!r}")
        if (self.vertices is None) != (self.faces is None):
            raise ValueError(f"track {self.name!r} needs both vertices and faces, or neither")


def check_tracks(tracks: tuple[Track, ...], frames: int) -> None:
    """Raise ``ValueError`` unless every track has one pose per frame."""
    for track in tracks:
        if len(track.Ts_world_object) != frames:
            raise ValueError(
                f"track {track.name!r} has {len(track.Ts_world_object)} poses but the clip {frames} frames"
            )


ROBOT_LABEL = "robot"
"""Label of robot pixels: this name alone, or ``robot:<link>`` where links are told apart."""
CAMERA_ORIGINS = ("exact", "estimated", "guessed")
"""How an episode's camera came about: simulated or calibrated; fitted by us; a plausible pinhole, nothing more."""
OUTCOMES = ("success", "failure", "unknown")
"""How an episode can end."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """A recorded or simulated truth: one camera's clip with everything that is known about it.

    A recording with several cameras is several episodes of one ``group``.
    """

    clip: Clip
    """What the camera saw. Where no depth is known, no pixel of its pointmap is valid."""
    arms: tuple[Arm, ...] = ()
    """The robots and their motion."""
    labels: Shaped[np.ndarray, "t h w"] | None = None
    """Per pixel: 0 environment, else 1 + index into ``label_names``."""
    label_names: tuple[str, ...] = ()
    """Links (``robot:<link>``, or ``robot`` for all) and objects behind ``labels``."""
    text: str = ""
    """Task instruction."""
    outcome: str = "unknown"
    """One of ``OUTCOMES``."""
    source: str = ""
    """Data set and episode it came from."""
    task: str = ""
    """Kind of task, such as ``pick_place``."""
    group: str = ""
    """Scene or recording that it shares with other episodes: a split never tears a group apart."""
    view: str = ""
    """Which camera of the recording this is."""
    camera_from: str = "exact"
    """One of ``CAMERA_ORIGINS``."""
    metric: bool = True
    """Whether the pointmap is in metres; False where a source threw its scale away."""
    commands: Commands | None = None
    """The recorded actions."""
    tracks: tuple[Track, ...] = ()
    """Where every movable thing was, in simulated episodes."""
    facts: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    """Anything else worth keeping, as JSON has it: seed, scenario, smallest gripper gap, captions."""

    def __post_init__(self) -> None:
        for name, allowed in {"outcome": OUTCOMES, "camera_from": CAMERA_ORIGINS}.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"episode {name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        check_tracks(self.tracks, len(self.clip))

    @property
    def robot_mask(self) -> Bool[np.ndarray, "t h w"] | None:
        """Pixels that show a robot; None where they are not labelled."""
        ids = [i + 1 for i, name in enumerate(self.label_names) if is_robot_label(name)]
        if self.labels is None or not ids:
            return None
        seen = np.zeros(len(self.label_names) + 1, bool)
        seen[ids] = True
        return seen[self.labels]

    def __len__(self) -> int:
        return len(self.clip)


def is_robot_label(name: str) -> bool:
    """Whether a label names a robot or a part of one."""
    return name == ROBOT_LABEL or name.startswith(ROBOT_LABEL + ":")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """A generated future and how it was made."""

    clip: Clip
    """The generated 4D clip."""
    provenance: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    """Seed, configuration, checkpoint hash, version."""
    tracks: tuple[Track, ...] = ()
    """Where the world says that things went, if it knows: object trajectories for rewards and success checks."""
    state: object | None = None
    """What the world that made it needs to go on from its last frame (its ``simulate`` takes it as ``past``); not kept
    in files. None: it goes on from the last image and depth."""

    def __post_init__(self) -> None:
        check_tracks(self.tracks, len(self.clip))


def _frozen(a: np.ndarray) -> np.ndarray:
    a.setflags(write=False)
    return a
