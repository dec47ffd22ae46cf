"""Let a world foretell a recorded episode: its first frame and its robot go in, nothing else of it.

The parts that a world finds have no names; for judging, a track gets the name of the true thing whose pixels it covers
in the first frame. That is all that the truth is used for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int32

from kinema4d.robot.recorded import control_of
from kinema4d.simulate.long import rollout
from kinema4d.types import Control, Episode, Rollout, Track
from kinema4d.world.protocol import World, first_depth

OVERLAP = 0.3
"""A part is the thing with which it shares at least this much of both their pixels."""


def foretell(
    world: World,
    episode: Episode,
    *,
    seed: int = 0,
    use_depth: bool = True,
    control: Control | None = None,
    **options: Any,
) -> Rollout:
    """The rollout of ``world`` from the episode's first frame."""
    depth = first_depth(episode.clip) if use_depth else None
    made = rollout(world, episode.clip.rgb[0], control or control_of(episode), depth=depth, seed=seed, **options)
    return replace(made, tracks=named_like(made.tracks, episode))


def named_like(tracks: tuple[Track, ...], episode: Episode) -> tuple[Track, ...]:
    """Tracks under the names of the things that they cover in the first frame, as frames of those things; and a track
    that stands still for every thing that no part covers."""
    if episode.labels is None or not tracks:
        return tracks
    true = {t.name: t for t in episode.tracks}
    shown = {name: episode.labels[0] == i + 1 for i, name in enumerate(episode.label_names) if name in true}
    pairs = []
    owner = _owners(tracks, episode)
    for i in range(len(tracks)):
        mine = owner == i + 1
        for name, theirs in shown.items():
            if mine.any() and theirs.any():
                pairs.append((float((mine & theirs).sum() / (mine | theirs).sum()), i, name))
    out, taken = list(tracks), set()
    used: set[int] = set()
    for share, i, name in sorted(pairs, reverse=True):
        if share >= OVERLAP and name not in taken and i not in used:
            taken.add(name)
            used.add(i)
            T_first = true[name].Ts_world_object[0]
            motion = tracks[i].Ts_world_object @ np.linalg.inv(tracks[i].Ts_world_object[0])
            out[i] = replace(true[name], Ts_world_object=motion @ T_first)
    # What no part covers is said to stand still.
    frames = len(tracks[0].Ts_world_object)
    still = [replace(t, Ts_world_object=np.tile(t.Ts_world_object[0], (frames, 1, 1))) for t in true.values()]
    return (*out, *(t for t in still if t.name not in taken))


def _owners(tracks: tuple[Track, ...], episode: Episode) -> Int32[np.ndarray, "h w"]:
    """1 + index of the track whose surface is foremost in each pixel of the first frame; 0 where there is none, or the
    truth has something nearer."""
    from kinema4d.geometry.camera import T_camera_world
    from kinema4d.geometry.mesh import Mesh
    from kinema4d.geometry.raster import assemble, rasterize

    clip = episode.clip
    owner = np.zeros(clip.rgb.shape[1:3], np.int32)
    solid = [i for i, t in enumerate(tracks) if t.vertices is not None and t.faces is not None]
    if not solid:
        return owner
    view = T_camera_world(clip.camera, 1)[0]
    meshes = []
    for n, i in enumerate(solid):
        vertices, faces = tracks[i].vertices, tracks[i].faces
        assert vertices is not None
        assert faces is not None
        meshes.append((Mesh(vertices=vertices, faces=faces, colors=np.zeros((len(faces), 3), np.uint8)), n))
    Ts = np.stack([view @ tracks[i].Ts_world_object[0] for i in solid])
    camera = replace(clip.camera, T_world_camera=clip.camera.poses(1)[0])
    seen = rasterize(assemble(meshes), Ts[None], camera, threads=1)
    hidden = clip.pointmap.valid[0] & (clip.pointmap.depth[0] < seen.points[0, ..., 2] - 0.02)
    shown = seen.valid[0] & ~hidden
    owner[shown] = 1 + np.array(solid)[seen.ids[0][shown].astype(int) - 1]
    return owner
