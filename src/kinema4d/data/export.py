"""Clips for other programs: the paper's pointmap video, PLY point clouds, a rerun recording."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data import video
from kinema4d.files import whole_file, whole_folder
from kinema4d.geometry.se3 import apply
from kinema4d.types import Clip, Pointmap

_VERTEX = np.dtype([("xyz", "<f4", 3), ("rgb", "u1", 3)])


def export(clip: Any, format: str, out: str | Path, **options: Any) -> list[Path]:
    """Write ``clip`` as one of ``EXPORTERS`` and return the files; ``options`` are that exporter's own."""
    if format not in EXPORTERS:
        raise ValueError(f"cannot export to {format!r}; the formats are {', '.join(EXPORTERS)}")
    allowed = [name for name, p in inspect.signature(EXPORTERS[format]).parameters.items() if p.kind == p.KEYWORD_ONLY]
    if unknown := sorted(options.keys() - set(allowed)):
        raise ValueError(f"{format} takes no option {', '.join(unknown)}; its options are {', '.join(allowed)}")
    if not isinstance(clip, Clip):
        raise ValueError(f"export takes a Clip (the .clip of a rollout, episode or control), got {type(clip).__name__}")
    return EXPORTERS[format](clip, Path(out), **options)


def pseudo_rgb(pointmap: Pointmap, low: np.ndarray, high: np.ndarray) -> Iterator[np.ndarray]:
    """Frames of the paper's pointmap video before compression; ``low`` and ``high`` are the metres of 0 and 255."""
    # A constant axis has no range to spread; any positive divisor maps it to 0.
    span = np.where(high > low, high - low, 1)
    for xyz, seen in zip(pointmap.points, pointmap.valid, strict=True):
        # Black is where the offset is: the smallest value, which stands in for what is not seen.
        yield np.rint((np.where(seen[..., None], xyz, low) - low) * (255 / span)).astype(np.uint8)


def pointmap_mp4(clip: Clip, out: Path, *, overwrite: bool = False) -> list[Path]:
    """The paper's pseudo-RGB pointmap video ``out`` (.mp4) and, beside it, its metric scale as .json.

    x, y, z are normalised over the whole sequence to 0..255 in R, G, B; black is "nothing here".
    """
    _need_suffix(out, ".mp4")
    low, high = _extent(clip.pointmap)
    images = pseudo_rgb(clip.pointmap, low, high)
    scale = {
        "encoding": "metres = min + value / 255 * (max - min) per channel; R, G, B are x, y, z; black is invalid",
        "frame": "camera (OpenCV axes)",
        "min": low.tolist(),
        "max": high.tolist(),
        "fps": float(clip.fps),
    }
    # The last one is moved in first, so there is never a video whose metres are unknown.
    beside = out.with_suffix(".json")
    with whole_file(out, overwrite=overwrite) as movie, whole_file(beside, overwrite=overwrite) as text:
        video.write_h264(movie, images, video.frame_rate(clip.fps))
        text.write_text(json.dumps(scale, indent=2) + "\n", encoding="utf-8")
    return [out, beside]


def ply(clip: Clip, out: Path, *, frame: str = "world", overwrite: bool = False) -> list[Path]:
    """One binary PLY per frame in the folder ``out``: valid points and their colours.

    ``frame`` is ``world`` or ``camera``: the coordinates the points are written in, metres.
    """
    if frame not in ("world", "camera"):
        raise ValueError(f"frame must be 'world' or 'camera', got {frame!r}")
    names = [f"frame_{i:04d}.ply" for i in range(len(clip))]
    with whole_folder(out, overwrite=overwrite, ours=_is_ply_folder) as folder:
        for i, name in enumerate(names):
            points, colours = _cloud(clip, i, world=frame == "world")
            vertices = np.empty(len(points), _VERTEX)
            vertices["xyz"], vertices["rgb"] = points, colours
            axes = [f"property float {axis}" for axis in "xyz"]
            channels = [f"property uchar {channel}" for channel in ("red", "green", "blue")]
            header = ["ply", "format binary_little_endian 1.0", f"comment metres in the {frame} frame"]
            header += [f"element vertex {len(points)}", *axes, *channels, "end_header"]
            with (folder / name).open("wb") as file:
                file.write(("\n".join(header) + "\n").encode("ascii"))
                file.write(vertices.tobytes())
    return [out / name for name in names]


def rrd(clip: Clip, out: Path, *, stride: int = 1, overwrite: bool = False) -> list[Path]:
    """A rerun recording ``out`` (.rrd): the camera, its images and coloured points in the world, over time.

    ``stride`` keeps every n-th pixel's point along both image axes; a full 480x720 frame takes 5.5 MB.
    """
    try:
        import rerun as rr  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("rrd needs the rerun viewer's package: pip install 'kinema4d[rerun]'") from None
    _need_suffix(out, ".rrd")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    # Rerun puts pixel (0, 0) at the image corner, we put it at the centre of the first pixel.
    K = clip.camera.K + np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    size = [clip.camera.width, clip.camera.height]
    with whole_file(out, overwrite=overwrite) as file, rr.RecordingStream("kinema4d") as recording:
        recording.save(file)
        recording.log("world", rr.ViewCoordinates.RIGHT_HAND_Z_UP, static=True)
        pinhole = rr.Pinhole(image_from_camera=K, resolution=size, camera_xyz=rr.ViewCoordinates.RDF)
        recording.log("world/camera", pinhole, static=True)
        for i, T in enumerate(clip.camera.poses(len(clip))):
            recording.set_time("frame", sequence=i)
            recording.set_time("time", duration=i / clip.fps)
            recording.log("world/camera", rr.Transform3D(translation=T[:3, 3], mat3x3=T[:3, :3]))
            recording.log("world/camera/image", rr.Image(clip.rgb[i]).compress(jpeg_quality=90))
            points, colours = _cloud(clip, i, world=True, stride=stride)
            recording.log("world/points", rr.Points3D(points, colors=colours))
    return [out]


EXPORTERS: dict[str, Callable[..., list[Path]]] = {"pointmap-mp4": pointmap_mp4, "ply": ply, "rrd": rrd}
"""Every format by name. A new one is a function ``(clip, out, *, overwrite) -> files`` and a line here."""


def _cloud(clip: Clip, i: int, *, world: bool, stride: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Valid points [n,3] float32 and colours [n,3] of frame ``i``."""
    grid = slice(None, None, stride)
    seen = clip.pointmap.valid[i, grid, grid]
    points, colours = clip.pointmap.points[i, grid, grid][seen], clip.rgb[i, grid, grid][seen]
    if world:
        points = apply(clip.camera.poses(len(clip))[i], points)
    return points.astype(np.float32), colours


def _extent(pointmap: Pointmap) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest x, y, z over the valid points of the sequence; zeros where there are none."""
    if not pointmap.valid.any():
        return np.zeros(3), np.zeros(3)
    axes = [pointmap.points[..., axis][pointmap.valid] for axis in range(3)]
    low, high = (np.array([reduce(axis) for axis in axes], np.float64) for reduce in (np.min, np.max))
    if not np.isfinite(low + high).all():
        raise ValueError("the pointmap has a non-finite valid point; mark such pixels as not valid")
    return low, high


def _need_suffix(out: Path, suffix: str) -> None:
    if out.suffix.lower() != suffix:
        raise ValueError(f"the output must be a file name that ends in {suffix}, got {out}")


def _is_ply_folder(folder: Path) -> bool:
    return all(re.fullmatch(r"frame_\d{4,}\.ply", file.name) for file in folder.iterdir())
