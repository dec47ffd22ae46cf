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
from jaxtyping import Float, Int32, UInt8

from kinema4d.types import Clip, Control, Pointmap, Rollout, Solid, Track
from kinema4d.world.compose import clip_from, robot_pixels
from kinema4d.world.frames import followed, solids_after, window
from kinema4d.world.protocol import check_view
from kinema4d.world.small.checks import SmallWorldWarning, check_camera, check_depth, check_outline
from kinema4d.world.small.diffusion import DiffusionNet
from kinema4d.world.small.felt import felt, unseen
from kinema4d.world.small.look import Eyes, View, find_parts, guess, support_height
from kinema4d.world.small.move import MoveNet, corrected
from kinema4d.world.small.painter import painted
from kinema4d.world.small.parts import Part
from kinema4d.world.small.prior import Prior, render
from kinema4d.world.small.rigid import Physics, answer, draw
from kinema4d.world.small.surface import boarded, stood, with_surfaces

NEAR = 0.1
"""A part that the robot comes this near to may move, and so may those this near to it, metres."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What the first picture shows: what ``simulate`` starts from, and what users may look at and correct."""

    view: View
    """Picture, depth and robot."""
    parts: tuple[Part, ...]
    """What the robot comes near to, and what is near to that, with completed surfaces."""
    guessed_depth: bool
    """Whether depth was predicted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Past:
    """What the small world needs to go on: where it began, and all that the robot has done since."""

    seen: Seen
    """Of the very first frame."""
    first: Control
    """Its frame of the control signal."""
    solids: tuple[Solid, ...]
    """The robot's way until now."""


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
    paint: bool = True
    """Light, shadows and what is behind. Without, parts carry their pixels along and holes are continued smoothly: what
    motion alone knows."""
    painter: DiffusionNet | None = None
    """Corrects what was drawn (``kinema4d train --preset small-paint``), longer clips in chunks."""

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
        past: Past | None = None,
        mover: Literal["engine", "flow"] | None = None,
    ) -> Rollout:
        """The future of ``image`` under ``control``.

        ``sample`` draws what a picture does not tell (weight, friction, exact size) by ``seed`` instead of taking the
        most likely: many seeds give a distribution of outcomes. ``seen`` skips looking; ``labels`` (with ``names``)
        replaces the segmenter's grouping of pixels; ``support`` is the height of the table where it is known. ``past`` is
        the ``state`` of a rollout whose last frame ``image`` is: the world then goes on as if both were one. ``mover``
        says who moves the parts: the rigid-body ``engine`` alone, or the learned ``flow`` that corrects it (its mean, or
        with ``sample`` a flow from one draw of the engine); default is the flow where the weights have one.
        """
        flow = self._flow(mover)
        if past is not None:
            return self._go_on(past, control, flow, seed=seed, sample=sample)
        seen = seen or self.see(image, control, depth=depth, labels=labels, names=names, support=support)
        motions = _moved(seen, control.solids, control.fps, flow, seed=seed, sample=sample)
        shown = seen.view.depth
        prior = self._drawn(image, shown, seen.parts, motions, control)
        return Rollout(
            clip=clip_from(image, shown, shown > 0, control, prior.rgb, prior.pointmap),
            provenance=self._provenance(seen, motions, prior, flow, seed=seed, sample=sample),
            tracks=tracks_of(seen.parts, motions),
            state=Past(seen=seen, first=window(control, slice(0, 1)), solids=control.solids),
        )

    def _go_on(self, past: Past, control: Control, flow: MoveNet | None, *, seed: int, sample: bool) -> Rollout:
        """Move everything again from the very first frame, along all that the robot has done since, and draw the new
        frames over the first picture: nothing drifts, nothing that was seen then is forgotten."""
        seen, count = past.seen, len(control)
        solids = solids_after(past.solids, window(control, slice(1, None)).solids)
        motions = _moved(seen, solids, control.fps, flow, seed=seed, sample=sample)[:, -count:]
        signal = followed(past.first, control)
        here = np.concatenate([np.tile(np.eye(4), (len(motions), 1, 1, 1)), motions], axis=1)
        image, shown = seen.view.rgb, seen.view.depth
        prior = self._drawn(image, shown, seen.parts, here, signal)
        whole = clip_from(image, shown, shown > 0, signal, prior.rgb, prior.pointmap)
        points = Pointmap(points=whole.pointmap.points[1:], valid=whole.pointmap.valid[1:])
        return Rollout(
            clip=Clip(camera=whole.camera, rgb=whole.rgb[1:], pointmap=points, fps=whole.fps),
            provenance=self._provenance(seen, motions, prior, flow, seed=seed, sample=sample),
            tracks=tracks_of(seen.parts, motions),
            state=replace(past, solids=solids),
        )

    def prior(
        self, image: UInt8[np.ndarray, "h w 3"], control: Control, *, depth: Float[np.ndarray, "_ _"] | None = None
    ) -> Prior:
        """What is drawn without a painter, and what of it is known."""
        seen = self.see(image, control, depth=depth)
        motions = _moved(seen, control.solids, control.fps, self.mover, seed=0, sample=False)
        return replace(self, painter=None)._drawn(image, seen.view.depth, seen.parts, motions, control)

    def _drawn(
        self, image: np.ndarray, depth: np.ndarray, parts: Sequence[Part], motions: np.ndarray, control: Control
    ) -> Prior:
        prior = render(image, depth, depth > 0, parts, motions, control, shadows=self.paint, planes=self.paint)
        return prior if self.painter is None else painted(self.painter, image, control, prior)

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
        if not has_depth.any():
            check_outline(image, control)
        robot = robot_pixels(control, depth, has_depth)
        exact = np.where(robot, control.pointmap.depth[0], 0).astype(np.float32)
        guessed = depth is None or not has_depth.any()
        known = exact if depth is None or guessed else np.where(has_depth, depth, 0).astype(np.float32)
        view = View(rgb=image, depth=known, robot=robot, camera=control.camera, support=support or 0.0)
        said = None
        if guessed:
            there, said = guess(self.eyes, view)
            view = replace(view, depth=there)
        elif support is None:
            view = replace(view, support=support_height(view))
        parts = find_parts(self.eyes, view, labels=labels, names=tuple(names), said=said)
        if guessed:
            view, parts = stood(view, parts, involved(parts, control.solids))
        if not any(p.joint != "fixed" for p in parts):
            warnings.warn(
                "no part that could move was found in the first image: only the robot will move",
                SmallWorldWarning,
                stacklevel=2,
            )
        near = sorted(involved(parts, control.solids))
        closed = with_surfaces(self.eyes, view, [parts[i] for i in near])
        if guessed:
            view, closed = felt(view, closed, control.solids)
        else:
            closed += [boarded(p, p.vertices, closed, view) for p in unseen(view, closed, control.solids)]
        return Seen(view=view, parts=tuple(closed), guessed_depth=guessed)

    def _provenance(
        self,
        seen: Seen,
        motions: Float[np.ndarray, "p t 4 4"],
        prior: Prior,
        flow: MoveNet | None,
        *,
        seed: int,
        sample: bool,
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
            "mover": "engine" if flow is None else "flow",
            "paint": self.paint,
            "painter": self.painter is not None,
            "weights": {k: self.about[k] for k in ("file", "sha256") if k in self.about},
            "depth": "predicted" if seen.guessed_depth else "given",
            "support_m": round(seen.view.support, 4) + 0.0,  # no "-0"
            "parts": parts,
            "known": round(float(prior.known.mean()), 4),
        }


def _moved(
    seen: Seen, solids: Sequence[Solid], fps: float, flow: MoveNet | None, *, seed: int, sample: bool
) -> Float[np.ndarray, "p t 4 4"]:
    """The motion of every part against the first frame."""
    physics, support = draw(np.random.default_rng(seed)) if sample else Physics(), seen.view.support
    motions = answer(seen.parts, solids, fps=fps, support=support, physics=physics)
    if flow is None:
        return motions
    start = seed if sample else None
    return corrected(flow, seen.parts, solids, motions, fps=fps, support=support, seed=start)


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
