"""What a page shows, whatever it was made from: control, clip, episode and rollout on one footing."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64, Shaped, UInt8

from kinema4d.geometry.se3 import apply
from kinema4d.types import Arm, Camera, Clip, Control, Episode, Pointmap, Rollout, is_robot_label

Viewable = Control | Clip | Episode | Rollout


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """One camera's 4D recording, and which of its pixels are robot."""

    title: str
    """What it is, in a few words."""
    camera: Camera
    """Who is looking."""
    pointmap: Pointmap
    """Camera-frame geometry."""
    rgb: UInt8[np.ndarray, "t h w 3"] | None
    """Colour; where absent, each label gets one."""
    labels: Shaped[np.ndarray, "t h w"] | None
    """Per pixel an index into ``robot_labels``; without labels everything is environment."""
    robot_labels: Bool[np.ndarray, " n"]
    """Which labels are robot links; entry 0 is the environment."""
    arms: tuple[Arm, ...]
    """Robots whose motion is known."""
    fps: float
    """Frames per second."""

    def __len__(self) -> int:
        return len(self.pointmap.valid)

    def image(self, frame: int) -> UInt8[np.ndarray, "h w 3"]:
        """The colour image of one frame."""
        if self.rgb is not None:
            return self.rgb[frame]
        assert self.labels is not None  # only a control signal can lack colour, and it has link ids
        return _palette(len(self.robot_labels))[self.labels[frame]]

    def robot_mask(self, frame: int) -> Bool[np.ndarray, "h w"]:
        """Which valid pixels of one frame are robot."""
        valid = self.pointmap.valid[frame]
        return valid & self.robot_labels[self.labels[frame]] if self.labels is not None else np.zeros_like(valid)


def recording(thing: Viewable, control: Control | None = None) -> Recording:
    """Any viewable as a :class:`Recording`. ``control`` adds robot mask and motion to a clip that has none."""
    if isinstance(thing, Control):
        rec = _of_control(thing)
    elif isinstance(thing, Clip):
        rec = _of_clip("4D clip", thing)
    elif isinstance(thing, Rollout):
        rec = _of_clip("Generated rollout", thing.clip)
    elif isinstance(thing, Episode):
        rec = _of_episode(thing)
    else:
        raise ValueError(f"cannot view a {type(thing).__name__}; give a Control, Clip, Episode or Rollout")
    if len(rec) == 0:
        raise ValueError(f"cannot view the {rec.title.lower()}: it has no frames")
    if not rec.pointmap.valid.any():
        raise ValueError(
            f"cannot view the {rec.title.lower()}: none of its {len(rec)} frames has a valid point. "
            "Does the camera look at the scene?"
        )
    rec.camera.poses(len(rec))  # a moving camera must have one pose per frame; say so before a page opens
    if control is None:
        return rec
    theirs = _of_control(control)
    if rec.labels is not None or rec.arms:
        raise ValueError(f"the {rec.title.lower()} already says where its robot is; leave out control")
    if theirs.pointmap.valid.shape != rec.pointmap.valid.shape:
        raise ValueError(
            f"the control signal is {list(theirs.pointmap.valid.shape)} but the {rec.title.lower()} is "
            f"{list(rec.pointmap.valid.shape)} (frames, height, width); they must agree"
        )
    return replace(rec, labels=theirs.labels, robot_labels=theirs.robot_labels, arms=theirs.arms)


def world_points(
    rec: Recording, frame: int, budget: int
) -> tuple[Float32[np.ndarray, "n 3"], UInt8[np.ndarray, "n 3"], Bool[np.ndarray, " n"]]:
    """At most ``budget`` points of one frame: world position in metres, colour, and whether each is robot."""
    valid = rec.pointmap.valid[frame]
    index = spread(valid, budget)
    points = rec.pointmap.points[frame].reshape(-1, 3)[index].astype(np.float32)
    T_world_camera = rec.camera.poses(len(rec))[frame].astype(np.float32)  # half the time, and far below a pixel
    return (
        apply(T_world_camera, points),
        rec.image(frame).reshape(-1, 3)[index],
        rec.robot_mask(frame).reshape(-1)[index],
    )


def spread(valid: Bool[np.ndarray, "h w"], budget: int) -> Int64[np.ndarray, " n"]:
    """Flat indices of at most ``budget`` valid pixels, evenly spread and the same in every frame.

    The priority is an additive recurrence on the plastic number (the "R2" low-discrepancy sequence): a fixed
    pattern that leaves neither the holes of a random choice nor the stripes of a stride, and does not flicker.
    """
    index = np.flatnonzero(valid)
    if len(index) <= budget:
        return index
    v, u = np.divmod(index, valid.shape[1])
    priority = (0.7548776662466927 * u + 0.5698402909980532 * v) % 1.0
    return np.sort(index[np.argpartition(priority, budget)[:budget]])


def focus(rec: Recording) -> Float[np.ndarray, "3"]:
    """The world point worth looking at: the middle of the robot, else of everything."""
    for robot_only in (True, False) if rec.robot_labels.any() else (False,):
        for frame in range(len(rec)):
            points, _, robot = world_points(rec, frame, 5000)
            points = points[robot] if robot_only else points
            if len(points):
                low, high = np.percentile(points, [5, 95], axis=0)
                return (low + high).astype(np.float64) / 2
    raise AssertionError("a recording has a valid point")


def depth_range(rec: Recording) -> tuple[float, float]:
    """Near and far metres between which nearly all depths lie, over the whole recording."""
    frames = np.unique(np.linspace(0, len(rec) - 1, 8).astype(int))
    depth = rec.pointmap.depth[frames][rec.pointmap.valid[frames]]
    if len(depth) == 0:
        depth = rec.pointmap.depth[rec.pointmap.valid]
    near, far = np.percentile(depth, [1, 99])
    return float(near), float(max(far, near + 1e-3))


def depth_image(rec: Recording, frame: int, near: float, far: float) -> UInt8[np.ndarray, "h w 3"]:
    """Depth as colour, warm near and cold far; light grey where there is no point."""
    valid = rec.pointmap.valid[frame]
    x = (far - rec.pointmap.depth[frame][valid]) / (far - near)
    image = np.full((*valid.shape, 3), 235, np.uint8)
    image[valid] = _TURBO[(255 * np.clip(x, 0, 1)).astype(np.uint8)]
    return image


def _of_control(control: Control) -> Recording:
    return Recording(
        title="Robot control signal", camera=control.camera, pointmap=control.pointmap, rgb=control.rgb,
        labels=control.link_ids, robot_labels=np.arange(len(control.link_names) + 1) > 0, arms=control.arms,
        fps=control.fps,
    )  # fmt: skip


def _of_clip(title: str, clip: Clip) -> Recording:
    return Recording(
        title=title, camera=clip.camera, pointmap=clip.pointmap, rgb=clip.rgb, labels=None,
        robot_labels=np.zeros(1, bool), arms=(), fps=clip.fps,
    )  # fmt: skip


def _of_episode(episode: Episode) -> Recording:
    robot = [is_robot_label(name) for name in episode.label_names]
    if episode.labels is not None and int(episode.labels.max(initial=0)) > len(robot):
        raise ValueError(
            f"the episode has label {int(episode.labels.max())} but only {len(robot)} label names; "
            "labels are 0 for environment, else 1 + index into label_names"
        )
    rec = _of_clip(f"Episode: {episode.text}" if episode.text else "Episode", episode.clip)
    return replace(rec, labels=episode.labels, robot_labels=np.array([False, *robot]), arms=episode.arms)


def _palette(n: int) -> UInt8[np.ndarray, "n 3"]:
    """Black, then colours that differ between neighbours (golden-ratio hues)."""
    hues = (np.arange(1, n) * 0.6180339887) % 1.0
    return np.array([(0, 0, 0), *(tuple(255 * c for c in colorsys.hsv_to_rgb(h, 0.65, 0.95)) for h in hues)], np.uint8)


def _turbo() -> UInt8[np.ndarray, "256 3"]:
    """Google's Turbo colour map by its published polynomial (Mikhailov 2019), without a plotting library."""
    x = np.linspace(0.08, 0.95, 256)[:, None] ** np.arange(6)  # without its ends, which are nearly black
    coefficients = np.array(
        [
            [0.13572138, 4.61539260, -42.66032258, 132.13108234, -152.94239396, 59.28637943],
            [0.09140261, 2.19418839, 4.84296658, -14.18503333, 4.27729857, 2.82956604],
            [0.10667330, 12.64194608, -60.58204836, 110.36276771, -89.90310912, 27.34824973],
        ]
    )
    return (255 * np.clip(x @ coefficients.T, 0, 1)).astype(np.uint8)


_TURBO = _turbo()
