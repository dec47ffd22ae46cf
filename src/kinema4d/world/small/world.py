"""The small world: see, move, and draw what moved.

First image, robot, camera in; the future as a 4D clip out, on a laptop. Parts are found and completed
(:mod:`look`), a rigid-body engine answers to the robot's solids (:mod:`rigid`), a network corrects its answer where the
weights have one (:mod:`move`), and what moved is drawn over the first frame (:mod:`prior`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int32, UInt8

from kinema4d.types import Camera, Control, Rollout, Solid, Track
from kinema4d.world.compose import clip_from, robot_pixels
from kinema4d.world.protocol import check_view
from kinema4d.world.small.look import Eyes, View, find_parts, guess_depth, support_height, with_surfaces
from kinema4d.world.small.move import MoveNet, corrected
from kinema4d.world.small.parts import Part
from kinema4d.world.small.prior import Prior, render
from kinema4d.world.small.rigid import Physics, answer, draw

NEAR = 0.1
"""A part that the robot comes this near to may move, and so may those this near to it, metres."""
WRONG_UNITS = 20.0
"""A depth image whose robot is so many times too far or too near is in other units."""
STEEP, FOV = (12.0, 70.0), (30.0, 62.0)
"""Cameras that the networks know: degrees below level, and vertical angle of view in degrees."""
ELSEWHERE = 0.05
"""Depth of the robot that is off by more than this on most of its pixels means another pose or another robot, metres."""


class SmallWorldWarning(UserWarning):
    """Something about the input that makes the result doubtful."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What the first picture shows: what ``simulate`` starts from, and what users may look at and correct."""

    view: View
    """Picture, depth and robot."""
    parts: tuple[Part, ...]
    """What the robot comes near to, and what is near to that, with completed surfaces."""
    guessed_depth: bool
    """Whether depth was predicted."""


@dataclass(frozen=True, eq=False)
class SmallWorld:
    """See, move, draw."""

    eyes: Eyes
    """The networks."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Which weights these are."""
    name: str = "small"
    """Its name in tables."""
    mover: MoveNet | None = None
    """Corrects the engine's answer."""

    def simulate(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        control: Control,
        *,
        depth: Float[np.ndarray, "_ _"] | None = None,
        seed: int = 0,
        sample: bool = False,
        seen: Seen | None = None,
        labels: Int32[np.ndarray, "_ _"] | None = None,
        names: Sequence[str] = (),
        support: float | None = None,
        mover: Literal["engine", "flow"] | None = None,
    ) -> Rollout:
        """The future of ``image`` under ``control``.

        ``sample`` draws what a picture does not tell (weight, friction, exact size) by ``seed`` instead of taking the
        most likely: many seeds give a distribution of outcomes. ``seen`` skips looking; ``labels`` (with ``names``)
        replaces the segmenter's grouping of pixels; ``support`` is the height of the table where it is known.
        ``mover`` says who moves the parts: the rigid-body ``engine`` alone, or the learned ``flow`` that corrects it (its
        mean, or with ``sample`` a flow from one draw of the engine); default is the flow where the weights have one.
        """
        flow = self._flow(mover)
        seen = seen or self.see(image, control, depth=depth, labels=labels, names=names, support=support)
        physics = draw(np.random.default_rng(seed)) if sample else Physics()
        fps, support = control.fps, seen.view.support
        motions = answer(seen.parts, control.solids, fps=fps, support=support, physics=physics)
        if flow is not None:
            start = seed if sample else None
            motions = corrected(flow, seen.parts, control.solids, motions, fps=fps, support=support, seed=start)
        shown = seen.view.depth
        prior = render(image, shown, shown > 0, seen.parts, motions, control)
        return Rollout(
            clip=clip_from(image, shown, shown > 0, control, prior.rgb, prior.pointmap),
            provenance={
                **self._provenance(seen, motions, prior, seed=seed, sample=sample),
                "mover": "engine" if flow is None else "flow",
            },
            tracks=tracks_of(seen.parts, motions),
        )

    def _flow(self, mover: str | None) -> MoveNet | None:
        if mover not in (None, "engine", "flow"):
            raise ValueError(f"mover is 'engine' or 'flow', got {mover!r}")
        if mover == "flow" and self.mover is None:
            raise ValueError("these weights have no learned correction of motions: train one with --preset small-move")
        return None if mover == "engine" else self.mover

    def see(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        control: Control,
        *,
        depth: Float[np.ndarray, "_ _"] | None = None,
        labels: Int32[np.ndarray, "_ _"] | None = None,
        names: Sequence[str] = (),
        support: float | None = None,
    ) -> Seen:
        """Depth and parts of the first picture."""
        has_depth = check_view(image, control, depth)
        if control.camera.moving:
            raise ValueError("the small world looks from a camera that stands still; give a camera with one pose")
        if not control.solids:
            raise ValueError(
                "this control signal has no solids (the robot as something that pushes): make it with control()"
            )
        if labels is not None and labels.shape != image.shape[:2]:
            raise ValueError(
                f"the part labels are {labels.shape[0]}x{labels.shape[1]} but the image {image.shape[0]}x{image.shape[1]}"
            )
        check_depth(control, depth, has_depth)
        check_camera(control.camera)
        robot = robot_pixels(control, depth, has_depth)
        exact = np.where(robot, control.pointmap.depth[0], 0).astype(np.float32)
        guessed = depth is None or not has_depth.any()
        known = exact if depth is None or guessed else np.where(has_depth, depth, 0).astype(np.float32)
        view = View(rgb=image, depth=known, robot=robot, camera=control.camera, support=support or 0.0)
        if guessed:
            view = replace(view, depth=guess_depth(self.eyes, view))
        elif support is None:
            view = replace(view, support=support_height(view))
        parts = find_parts(self.eyes, view, labels=labels, names=tuple(names))
        if not any(p.joint != "fixed" for p in parts):
            warnings.warn(
                "no part that could move was found in the first image: only the robot will move",
                SmallWorldWarning,
                stacklevel=2,
            )
        near = sorted(involved(parts, control.solids))
        closed = with_surfaces(self.eyes, view, [parts[i] for i in near])
        return Seen(view=view, parts=tuple(closed), guessed_depth=guessed)

    def _provenance(
        self, seen: Seen, motions: Float[np.ndarray, "p t 4 4"], prior: Prior, *, seed: int, sample: bool
    ) -> dict[str, Any]:
        moved = (np.abs(motions - np.eye(4)).max(axis=(1, 2, 3)) > 0) if len(motions) else np.zeros(0, bool)
        parts = [
            {"name": p.name, "joint": p.joint, "confidence": round(p.confidence, 3), "moved": bool(m)}
            for p, m in zip(seen.parts, moved, strict=True)
        ]
        return {
            "world": self.name,
            "seed": seed,
            "sample": sample,
            "weights": {k: self.about[k] for k in ("file", "sha256") if k in self.about},
            "depth": "predicted" if seen.guessed_depth else "given",
            "support_m": round(seen.view.support, 4) + 0.0,  # no "-0"
            "parts": parts,
            "known": round(float(prior.known.mean()), 4),
        }


def check_depth(control: Control, depth: Float[np.ndarray, "h w"] | None, has_depth: Bool[np.ndarray, "h w"]) -> None:
    """Raise where depth is in other units than metres, warn where it does not show the robot at its pose: the robot's
    geometry is known exactly."""
    both = control.mask[0] & has_depth
    if depth is None or both.sum() < 30:
        return
    true = control.pointmap.depth[0][both]
    ratio = float(np.median(depth[both] / true))
    if ratio > WRONG_UNITS or ratio < 1 / WRONG_UNITS:
        unit = "millimetres" if 500 < ratio < 2000 else f"units of 1/{ratio:.3g} m"
        raise ValueError(
            f"depth is not in metres: where the robot must be {float(np.median(true)):.2f} m away it says "
            f"{float(np.median(depth[both])):.4g}, so it seems to be in {unit}"
        )
    off = np.abs(depth[both] - true)
    nearer = depth[both] < true - ELSEWHERE  # something before the robot is no contradiction
    if (off[~nearer] > ELSEWHERE).mean() > 0.5 if (~nearer).sum() > 30 else nearer.mean() > 0.9:
        warnings.warn(
            f"the depth image does not show the robot at its stated pose: {100 * float((off > ELSEWHERE).mean()):.0f} % of its "
            f"pixels are off by more than {100 * ELSEWHERE:.0f} cm; check robot, joint positions and camera",
            SmallWorldWarning,
            stacklevel=3,
        )


def check_camera(camera: Camera) -> None:
    """Warn of a view that the networks have not learned from."""
    forward = camera.poses(1)[0][:3, 2]
    steep = float(np.round(np.degrees(np.arcsin(np.clip(-forward[2], -1, 1))), 1)) + 0.0  # no "-0"
    fov = float(np.degrees(2 * np.arctan2(camera.height / 2, camera.K[1, 1])))
    wrong = []
    if not STEEP[0] <= steep <= STEEP[1]:
        wrong.append(f"it looks {steep:.0f} degrees down (learned: {STEEP[0]:.0f} to {STEEP[1]:.0f})")
    if not FOV[0] <= fov <= FOV[1]:
        wrong.append(f"its vertical angle of view is {fov:.0f} degrees (learned: {FOV[0]:.0f} to {FOV[1]:.0f})")
    if wrong:
        text = f"the camera is outside of what the small world has learned from: {'; '.join(wrong)}: look at its parts"
        warnings.warn(text, SmallWorldWarning, stacklevel=3)


def involved(parts: Sequence[Part], solids: Sequence[Solid]) -> set[int]:
    """Parts that the robot comes near to, and those near to them, and so on."""
    clouds = [p.vertices[:: max(1, len(p.vertices) // 60)] for p in parts]
    balls = [(c.mean(axis=0), float(np.linalg.norm(c - c.mean(axis=0), axis=1).max())) for c in clouds]
    near: set[int] = set()
    for i, (middle, radius) in enumerate(balls):
        for solid in solids:
            corners = solid.vertices
            centre, size = corners.mean(axis=0), float(np.linalg.norm(corners - corners.mean(axis=0), axis=1).max())
            way = solid.Ts_world_link[:, :3, :3] @ centre + solid.Ts_world_link[:, :3, 3]
            if np.linalg.norm(way - middle, axis=1).min() < radius + size + NEAR:
                near.add(i)
                break
    grown = set(near)
    while grown:
        grown = {
            j
            for j in range(len(parts))
            if j not in near
            and any(np.linalg.norm(balls[i][0] - balls[j][0]) < balls[i][1] + balls[j][1] + NEAR for i in near)
        }
        near |= grown
    return near


def tracks_of(parts: Sequence[Part], motions: Float[np.ndarray, "p t 4 4"]) -> tuple[Track, ...]:
    """Object trajectories: each part's frame sits at the middle of its surface, turned like the world at the start."""
    out = []
    for part, Ts in zip(parts, motions, strict=True):
        middle = (part.vertices.min(axis=0) + part.vertices.max(axis=0)) / 2
        T = np.eye(4)
        T[:3, 3] = middle
        out.append(Track(name=part.name, Ts_world_object=Ts @ T, vertices=part.vertices - middle, faces=part.faces))
    return tuple(out)
