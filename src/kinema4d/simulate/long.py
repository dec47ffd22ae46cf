"""Rollouts of any length: worlds that only know short clips go on from where they were.

A world that gives its state with a rollout goes on from that; any other starts every chunk with its own last frame, colour
and geometry both, so that errors add up. ``provenance`` says where the seams are. Worlds whose ``longest`` is None
need none of this.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from kinema4d.types import Clip, Control, Pointmap, Rollout, Track
from kinema4d.world.frames import window
from kinema4d.world.protocol import World

FIRST = ("labels", "names", "seen", "past")
"""Options that are about the first image of a chunk."""


def rollout(
    world: World,
    image: UInt8[np.ndarray, "h w 3"],
    control: Control,
    *,
    depth: Float[np.ndarray, "_ _"] | None = None,
    seed: int = 0,
    longest: int | None = None,
    **options: Any,
) -> Rollout:
    """``world.simulate``, in chunks of at most ``longest`` frames (default: the world's own limit). What ``options`` say
    of the first image (``labels``, ``names``, ``seen``) is said to the first chunk only."""
    limit = longest or getattr(world, "longest", None)
    if limit is not None and limit < 2:
        raise ValueError(f"a chunk needs at least 2 frames, got {limit}")
    if limit is None or len(control) <= limit:
        return world.simulate(image, control, depth=depth, seed=seed, **options)
    pieces: list[Rollout] = []
    seams: list[int] = []
    start = 0
    while start < len(control) - 1:
        part = world.simulate(image, window(control, slice(start, start + limit)), depth=depth, seed=seed, **options)
        pieces.append(part)
        seams.append(start)
        start += len(part.clip) - 1
        last = part.clip.pointmap
        options = {k: v for k, v in options.items() if k not in FIRST}
        if part.state is not None:
            options["past"] = part.state
        image, depth = part.clip.rgb[-1], np.where(last.valid[-1], last.points[-1, ..., 2], 0).astype(np.float32)
    return _joined(pieces, seams)


def _joined(pieces: list[Rollout], seams: list[int]) -> Rollout:
    """One rollout; the first frame of each chunk but the first is the last of the one before."""
    first = pieces[0]
    cut = lambda get: np.concatenate([get(p)[1 if i else 0 :] for i, p in enumerate(pieces)])  # noqa: E731
    clip = Clip(
        camera=first.clip.camera,
        rgb=cut(lambda p: p.clip.rgb),
        pointmap=Pointmap(points=cut(lambda p: p.clip.pointmap.points), valid=cut(lambda p: p.clip.pointmap.valid)),
        fps=first.clip.fps,
    )
    return Rollout(
        clip=clip, provenance={**first.provenance, "chunks": seams}, tracks=_tracks(pieces), state=pieces[-1].state
    )


def _tracks(pieces: list[Rollout]) -> tuple[Track, ...]:
    """Tracks that all chunks share by name. A world that finds its parts anew in each chunk must not give them the same
    names, or give its state."""
    names = set.intersection(*({t.name for t in p.tracks} for p in pieces))
    out = []
    for track in pieces[0].tracks:
        if track.name in names:
            parts = [next(t for t in p.tracks if t.name == track.name).Ts_world_object for p in pieces]
            Ts = np.concatenate([T[1 if i else 0 :] for i, T in enumerate(parts)])
            out.append(replace(track, Ts_world_object=Ts))
    return tuple(out)
