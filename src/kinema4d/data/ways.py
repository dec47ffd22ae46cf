"""How far what the first frame shows has gone by each later frame: what tracks of things say of pixels."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float16

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.se3 import invert
from kinema4d.types import Episode


def away_of(episode: Episode, rows: np.ndarray, columns: np.ndarray) -> Float16[np.ndarray, "t r c 3"] | None:
    """How far what the first frame shows at these rows and columns has gone at every frame, by the tracks, camera frame; None where an
    episode has none or its camera moves."""
    clip = episode.clip
    if episode.labels is None or not episode.tracks or clip.camera.moving:
        return None
    labels, points = (a[0][rows][:, columns] for a in (episode.labels, clip.pointmap.points))
    T_cw = T_camera_world(clip.camera, 1)[0]
    out = np.zeros((len(clip), *labels.shape, 3), np.float16)
    for track in episode.tracks:
        mine = labels == episode.label_names.index(track.name) + 1 if track.name in episode.label_names else None
        if mine is None or not mine.any():
            continue
        Ts = T_cw @ track.Ts_world_object @ invert(track.Ts_world_object[0]) @ invert(T_cw)
        own = points[mine].astype(np.float64)
        out[:, mine] = np.einsum("tij,kj->tki", Ts[:, :3, :3], own) + Ts[:, None, :3, 3] - own
    return out
