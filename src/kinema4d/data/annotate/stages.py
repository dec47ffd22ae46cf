"""Annotation of episodes that came without masks, depth or captions (appendix B.2 of the paper).

A stage is a callable of one episode; :func:`annotate` composes stages and writes down which one made what. Any
function with the right signature is a stage. Ours are frozen dataclasses, so that their settings can be recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Shaped

from kinema4d.data.annotate.align import METHODS, Alignment, align_to_robot
from kinema4d.geometry.camera import rays
from kinema4d.types import ROBOT_LABEL, Camera, Episode, Pointmap, is_robot_label

RECORD = "annotations"
"""Key of an episode's facts under which :func:`annotate` records what was made by which stage."""
CAPTIONS = "captions"
"""Key of an episode's facts for the texts that a stage wrote."""


@runtime_checkable
class MaskStage(Protocol):
    """Finds the robot. A stage whose ``after_depth`` is true runs after the pointmap stage and may look at it."""

    def __call__(self, episode: Episode, /) -> Bool[np.ndarray, "t h w"]:
        """Pixels that show a robot."""
        ...


@runtime_checkable
class PointmapStage(Protocol):
    """Finds the geometry. A stage whose ``metric`` is true promises metres."""

    def __call__(self, episode: Episode, /) -> Pointmap:
        """A point per pixel of the clip, in the camera frame."""
        ...


@runtime_checkable
class TextStage(Protocol):
    """Describes the episode."""

    def __call__(self, episode: Episode, /) -> dict[str, str]:
        """Texts by name, such as ``episode`` and ``environment``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a pointmap is brought to metres by the robot's known geometry."""

    method: str = "none"
    """``scale``, ``affine``, ``disparity`` (see :mod:`kinema4d.data.annotate.align`) or ``none``."""
    per_frame: bool = False
    """One fit per frame instead of one per sequence."""

    def __post_init__(self) -> None:
        if self.method not in (*METHODS, "none"):
            raise ValueError(f"alignment must be one of {', '.join(METHODS)} or none, got {self.method!r}")
        if self.per_frame and self.method == "none":
            raise ValueError("one alignment per frame needs a method: scale, affine or disparity")


AS_IT_COMES = Scaling()
"""No alignment."""


def annotate(
    episode: Episode,
    *,
    mask: MaskStage | None = None,
    pointmap: PointmapStage | None = None,
    text: TextStage | None = None,
    scaling: Scaling = AS_IT_COMES,
) -> Episode:
    """The episode with what the stages found: robot pixels labelled ``robot``, the pointmap replaced, captions and
    a record of every stage in its facts. ``scaling`` applies to the new pointmap."""
    planned = plan(mask=mask, pointmap=pointmap, text=text, scaling=scaling)
    if not planned:
        raise ValueError("there is nothing to annotate: give at least one of mask, pointmap and text")
    late = bool(getattr(mask, "after_depth", False))
    done: dict[str, Any] = {}
    if mask is not None and not late:
        episode = _with_mask(episode, mask)
    if pointmap is not None:
        episode, done["pointmap"] = _with_pointmap(episode, pointmap, scaling)
    if mask is not None and late:
        episode = _with_mask(episode, mask)
    facts = dict(episode.facts)
    if text is not None:
        before = facts.get(CAPTIONS, {})
        # Some sources bring captions of their own as a list; they are kept beside ours.
        facts[CAPTIONS] = {**(before if isinstance(before, Mapping) else {"source": before}), **text(episode)}
    for name, entry in planned.items():
        planned[name] = {**entry, "kinema4d": _version("kinema4d"), **done.get(name, {})}
    facts[RECORD] = {**facts.get(RECORD, {}), **planned}
    return replace(episode, facts=facts)


def plan(
    *,
    mask: MaskStage | None = None,
    pointmap: PointmapStage | None = None,
    text: TextStage | None = None,
    scaling: Scaling = AS_IT_COMES,
) -> dict[str, Any]:
    """What will be recorded before anything ran: the stages and their settings. Two runs with equal plans ask for
    the same annotations."""
    if scaling.method != "none" and pointmap is None:
        raise ValueError(f"alignment {scaling.method!r} needs a pointmap stage to align")
    stages = {"mask": mask, "pointmap": pointmap, CAPTIONS: text}
    planned = {name: describe(stage) for name, stage in stages.items() if stage is not None}
    if pointmap is not None:
        planned["pointmap"]["scaling"] = asdict(scaling)
    return planned


def describe(stage: object) -> dict[str, Any]:
    """A stage for the record: its name, its settings as JSON has them, and the package behind it."""
    if not is_dataclass(stage) or isinstance(stage, type):
        return {"stage": getattr(stage, "__qualname__", type(stage).__qualname__)}
    settings = {f.name: _plain(getattr(stage, f.name)) for f in fields(stage) if f.repr}
    entry: dict[str, Any] = {"stage": type(stage).__name__, "settings": settings}
    package = getattr(stage, "package", None)
    if package is not None:
        entry["package"] = f"{package} {_version(package)}"
    return entry


def differs(facts: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """Stages of a plan that made something else, or nothing, in the episode that has these facts."""
    record = facts.get(RECORD, {})
    return [
        name
        for name, entry in planned.items()
        if {k: record.get(name, {}).get(k) for k in entry if k != "package"}
        != {k: v for k, v in entry.items() if k != "package"}
    ]


def _with_mask(episode: Episode, stage: MaskStage) -> Episode:
    mask = stage(episode)
    _check_shape(mask.shape, episode, stage)
    labels, names = with_robot(episode, mask)
    return replace(episode, labels=labels, label_names=names)


def with_robot(
    episode: Episode, mask: Bool[np.ndarray, "t h w"]
) -> tuple[Shaped[np.ndarray, "t h w"], tuple[str, ...]]:
    """Labels and their names with ``mask`` as the robot: earlier robot labels go, objects stay where it is not."""
    names = (*(n for n in episode.label_names if not is_robot_label(n)), ROBOT_LABEL)
    kind = np.uint8 if len(names) <= 255 else np.uint16
    if episode.labels is None:
        return np.where(mask, kind(len(names)), kind(0)), names
    new = np.zeros(len(episode.label_names) + 1, kind)
    for i, name in enumerate(episode.label_names):
        new[i + 1] = 0 if is_robot_label(name) else names.index(name) + 1
    return np.where(mask, kind(len(names)), new[episode.labels]), names


def _with_pointmap(episode: Episode, stage: PointmapStage, scaling: Scaling) -> tuple[Episode, dict[str, Any]]:
    found = stage(episode)
    _check_shape(found.valid.shape, episode, stage)
    if not found.valid.any():
        raise ValueError(f"{describe(stage)['stage']} gave no valid point in any frame")
    result: dict[str, Any] = {}
    if scaling.method != "none":
        found, alignment = align_to_robot(episode, found, method=scaling.method, per_frame=scaling.per_frame)
        result["alignment"] = _summary(alignment)
    camera = episode.clip.camera
    if episode.camera_from == "guessed":
        # The pose stays a guess, but pixels and points shall agree on the lens.
        camera = replace(camera, K=fit_K(found, camera))
    clip = replace(episode.clip, camera=camera, pointmap=found)
    metric = scaling.method != "none" or bool(getattr(stage, "metric", False))
    return replace(episode, clip=clip, metric=metric), result


def fit_K(pointmap: Pointmap, camera: Camera) -> Float[np.ndarray, "3 3"]:
    """Focal lengths and centre under which the points project best to their pixels; those of ``camera`` where the
    points lie on its rays already, or leave K open."""
    t, v, u = np.nonzero(pointmap.valid)
    keep = slice(None, None, max(1, len(t) // 20_000))
    t, v, u = t[keep], v[keep], u[keep]
    xyz = pointmap.points[t, v, u].astype(np.float64)
    x, y = (xyz[:, :2] / xyz[:, 2:]).T
    if np.abs(np.stack([x, y], -1) - rays(camera.K, camera.height, camera.width)[v, u, :2]).max() < 1e-5:
        return camera.K
    if np.ptp(x) < 1e-3 or np.ptp(y) < 1e-3:
        return camera.K
    fx, cx = np.polyfit(x, u, 1)
    fy, cy = np.polyfit(y, v, 1)
    if not (fx > 0 and fy > 0):
        raise ValueError(
            f"the points fit no camera that looks along +z (fx={fx:.3g}, fy={fy:.3g}); points must have OpenCV axes: "
            "x right, y down, z forward"
        )
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


def _summary(alignment: Alignment) -> dict[str, Any]:
    return {
        "method": alignment.method,
        "scale": [float(x) for x in alignment.scale],
        "shift": [float(x) for x in alignment.shift],
        "inliers": float(alignment.inliers),
        "residual_m": float(alignment.residual_m),
        "pixels": int(alignment.pixels),
    }


def _check_shape(shape: tuple[int, ...], episode: Episode, stage: object) -> None:
    if shape != episode.clip.rgb.shape[:3]:
        raise ValueError(
            f"{describe(stage)['stage']} returned {list(shape)} pixels, the clip has {list(episode.clip.rgb.shape[:3])}"
        )


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"
