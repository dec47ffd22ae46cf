"""A data set in the layout of the official Robo4D-200k release, for the official training and inference code.

Per episode ``<n>``: ``first_frames/<n>.png`` and four mp4: ``videos/`` (colour), ``pointmap/`` (x, y, z over the whole
sequence in 0..255 as red, green and blue), ``mask_videos/`` and ``mask_pointmap/`` (the same, black where there is no
robot); and the lists ``train_shuffled.txt`` and ``train_img_shuffled.txt``. Their layout has no scale, camera, robot,
action or text: ``kinema4d_meta.jsonl`` keeps them, one line per episode, and ``kinema4d_masks/`` the exact robot
masks. Official readers look at neither.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import av
import numpy as np
from av.video.stream import VideoStream
from jaxtyping import Bool, Shaped, UInt8
from PIL import Image

from kinema4d.data import video
from kinema4d.data.dataset import Dataset
from kinema4d.data.export import pointmap_mp4, pseudo_rgb
from kinema4d.data.extras import describe
from kinema4d.data.ingest.robo4d import FPS, FRAMES, MASKS, META, decode_points
from kinema4d.data.resample import downsample
from kinema4d.files import whole_folder
from kinema4d.geometry.camera import camera_to_dict
from kinema4d.types import Arm, Camera, Clip, Episode, Pointmap

HEIGHT, WIDTH = 480, 720
"""Size of every official frame."""
FOLDERS = ("first_frames", "videos", "pointmap", "mask_videos", "mask_pointmap")
"""Folders of the layout."""
IMAGEIO_CRF = 25
"""Quality of imageio's default H.264, which the official code writes with; :mod:`kinema4d.data.video` uses 16."""


def export_robo4d(
    dataset: Dataset,
    out: str | Path,
    *,
    ids: Sequence[str] | None = None,
    height: int = HEIGHT,
    width: int = WIDTH,
    frames: int = FRAMES,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Write the episodes ``ids`` (all, where none are given) in the official layout; returns its folder.

    Longer episodes are down-sampled to ``frames``; other sizes are resized to cover and cropped about the centre,
    with the camera adjusted: colour bilinear with antialiasing, geometry and masks nearest. ``seed`` shuffles the lists.
    Bytes are the same for the same input.
    """
    rows = dataset.rows if ids is None else tuple(dataset.row(id) for id in ids)
    if not rows:
        raise ValueError("there is no episode to export")
    short = [row.id for row in rows if row.frames < frames]
    if short:
        raise ValueError(
            f"{len(short)} episodes have fewer than {frames} frames ({', '.join(short[:5])}); the official code skips "
            "those: pass other ids, or a smaller number of frames"
        )
    names = [f"{number:06d}" for number in range(len(rows))]
    with whole_folder(out, overwrite=overwrite, ours=_is_ours) as folder:
        for name in (*FOLDERS, MASKS):
            (folder / name).mkdir()
        with (folder / META).open("w", encoding="utf-8") as lines:
            for name, row in zip(names, rows, strict=True):
                episode = _fit(_checked(dataset.load(row.id), row.id), height, width, frames)
                line = {"name": name, "id": row.id, **_write(episode, folder, name)}
                lines.write(json.dumps(line, allow_nan=False) + "\n")
        order = np.random.default_rng(seed).permutation(len(names))
        for file, pattern in {"train_shuffled": "videos/{}.mp4", "train_img_shuffled": "first_frames/{}.png"}.items():
            text = "".join(pattern.format(names[i]) + "\n" for i in order)
            (folder / f"{file}.txt").write_text(text, encoding="utf-8")
    return Path(out)


def cover(episode: Episode, height: int, width: int) -> Episode:
    """The episode at another size: resized until it covers it, then cropped about the centre."""
    clip, camera = episode.clip, episode.clip.camera
    if (camera.height, camera.width) == (height, width):
        return episode
    scale = max(height / camera.height, width / camera.width)
    tall, wide = round(camera.height * scale), round(camera.width * scale)
    top, left = (tall - height) // 2, (wide - width) // 2
    rows = _nearest(camera.height, tall)[top : top + height]
    columns = _nearest(camera.width, wide)[left : left + width]
    large = camera.resized(tall, wide)
    K = large.K - np.array([[0, 0, left], [0, 0, top], [0, 0, 0]])
    rgb = np.stack(
        [
            np.asarray(Image.fromarray(image).resize((wide, tall), Image.Resampling.BILINEAR))[
                top : top + height, left : left + width
            ]
            for image in clip.rgb
        ]
    )
    grid = (slice(None), rows[:, None], columns[None])
    return replace(
        episode,
        clip=Clip(
            camera=Camera(K=K, T_world_camera=camera.T_world_camera, height=height, width=width),
            rgb=rgb,
            pointmap=Pointmap(points=clip.pointmap.points[grid], valid=clip.pointmap.valid[grid]),
            fps=clip.fps,
        ),
        labels=None if episode.labels is None else episode.labels[grid],
    )


def official_rmse(episode: Episode, *, crf: int = IMAGEIO_CRF) -> float:
    """Millimetres (root mean square of the distance, over valid points) that a pointmap loses in the official layout.

    The scale is taken as known, which the official files do not even have: this is what 8 bits and H.264 cost.
    ``crf`` is the quality of the video; the default is that of the official code.
    """
    clip = episode.clip
    seen = clip.pointmap.valid
    if not seen.any():
        raise ValueError("the episode has no valid point to measure; annotate its geometry first")
    low, high = (reduce(clip.pointmap.points[seen], axis=0).astype(np.float64).tolist() for reduce in (np.min, np.max))
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "pointmap.mp4"
        _encode_as_imageio(file, np.stack([*pseudo_rgb(clip.pointmap, np.asarray(low), np.asarray(high))]), crf)
        codes = video.read(file, count=len(clip))
    points = decode_points(codes, low, high, dense=True).points
    squares = ((points.astype(np.float64) - clip.pointmap.points) ** 2).sum(axis=-1)
    return float(np.sqrt(squares[seen].mean()) * 1000)


# ---------------------------------------------------------------------- one episode


def _checked(episode: Episode, id: str) -> Episode:
    mask = episode.robot_mask
    if mask is None or not mask.any():
        raise ValueError(
            f"episode {id} has no robot mask, which the official layout needs; annotate it first, or leave it out"
        )
    if not episode.clip.pointmap.valid.any():
        raise ValueError(
            f"episode {id} has no pointmap, which the official layout needs; annotate it first, or leave it out"
        )
    return episode


def _fit(episode: Episode, height: int, width: int, frames: int) -> Episode:
    return cover(downsample(episode, frames), height, width)


def _write(episode: Episode, folder: Path, name: str) -> dict[str, Any]:
    """Write the files of one episode; returns the rest of its line in the side file."""
    clip, mask, rate = episode.clip, episode.robot_mask, video.frame_rate(FPS)
    if mask is None:
        raise ValueError(f"episode {name} lost its robot mask")
    Image.fromarray(clip.rgb[0]).save(folder / "first_frames" / f"{name}.png")
    video.write_h264(folder / "videos" / f"{name}.mp4", clip.rgb, rate)
    _, beside = pointmap_mp4(replace(clip, fps=FPS), folder / "pointmap" / f"{name}.mp4")
    scale = json.loads(beside.read_text(encoding="utf-8"))
    beside.unlink()
    images = np.stack([*pseudo_rgb(clip.pointmap, np.array(scale["min"]), np.array(scale["max"]))])
    for kind, source in {"mask_videos": clip.rgb, "mask_pointmap": images}.items():
        video.write_h264(folder / kind / f"{name}.mp4", _only(source, mask), rate)
    video.write_ffv1(folder / MASKS / f"{name}.mkv", mask.view(np.uint8), rate)
    return {
        "min": scale["min"],
        "max": scale["max"],
        "dense": bool(clip.pointmap.valid.all()),
        "fps": float(clip.fps),
        "camera": camera_to_dict(clip.camera),
        **describe(episode),
        "arms": [_arm(arm) for arm in episode.arms],
        "commands": None
        if episode.commands is None
        else {
            "values": episode.commands.values.tolist(),
            "names": list(episode.commands.names),
            **{key: getattr(episode.commands, key) for key in ("fps", "space", "convention")},
        },
        "tracks": [{"name": t.name, "Ts_world_object": t.Ts_world_object.tolist()} for t in episode.tracks],
    }


def _only(images: UInt8[np.ndarray, "t h w 3"], mask: Bool[np.ndarray, "t h w"]) -> UInt8[np.ndarray, "t h w 3"]:
    return np.where(mask[..., None], images, np.uint8(0))


def _arm(arm: Arm) -> dict[str, Any]:
    path = arm.trajectory
    return {
        "robot": arm.robot,
        "joint_names": list(path.joint_names),
        "link_names": list(arm.link_names),
        "fps": float(path.fps),
        "T_world_base": path.T_world_base.tolist(),
        "q": path.q.tolist(),
        **{key: getattr(arm, key).tolist() for key in ("converged", "residual_m", "residual_rad")},
    }


def _nearest(size: int, target: int) -> Shaped[np.ndarray, " n"]:
    """For each of ``target`` pixels, the one of ``size`` pixels that its centre lies in."""
    return np.minimum(((np.arange(target) + 0.5) * size / target).astype(int), size - 1)


def _encode_as_imageio(file: Path, images: UInt8[np.ndarray, "t h w 3"], crf: int) -> None:
    """An mp4 as the official code writes it: H.264, yuv420p, colours untagged."""
    with av.open(str(file), "w") as container:
        stream = cast(VideoStream, container.add_stream("libx264", rate=int(FPS), options={"crf": str(crf)}))
        stream.height, stream.width = images.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def _is_ours(folder: Path) -> bool:
    return (folder / META).is_file()
