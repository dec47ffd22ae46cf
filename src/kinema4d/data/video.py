"""Video files: H.264 for colour, FFV1 for numbers that must come back bit for bit.

Bytes are the same for the same frames on every run: thread and slice counts are fixed, not taken
from the machine, and muxers write neither dates nor random ids. Decoders conceal some flipped bits
instead of failing, so :mod:`kinema4d.data.store` also keeps a SHA-256 of each file.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.codec.context import Flags, ThreadType
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter
from av.video.stream import VideoStream
from PIL import Image, UnidentifiedImageError

H264 = {"crf": "16", "preset": "fast", "mbtree": "0"}
"""Constant quality, visually lossless. Macroblock-tree rate control saves a quarter of the bytes, but
gave different ones on each run (x264 core 165), even with one thread."""
SMALL_H264 = {**H264, "preset": "ultrafast"}
"""For small pictures: a third of the time and one decibel better (41.3 against 39.8 dB at 96x144), at twice the bytes."""
SMALL_PIXELS = 256 * 256
"""Pictures up to this size keep their colour resolution: halving it costs 5 dB at 96x144, and nearly no bytes."""
FFV1 = {"level": "3", "g": "1"}
"""Version 3, every frame on its own: on depth that costs under 1 % and damage does not spread."""
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
"""Image files that a folder of footage may hold."""
THREADS = 4
"""Encoder threads, and FFV1 slices. They change the bytes, so the count is not the machine's."""
_TO_YUV = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INP | Interpolation.BITEXACT
_TO_RGB = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.BITEXACT
_FFV1_FORMATS = {("uint8", 2): "gray", ("uint16", 2): "gray16le", ("uint16", 3): "gbrp16le"}


def frame_rate(fps: float) -> Fraction:
    """``fps`` as the fraction it stands for: 15 is 15/1, 29.97002997002997 is 30000/1001."""
    if not 0.001 <= fps <= 100_000:
        raise ValueError(f"fps must be between 0.001 and 100000, got {fps}")
    return Fraction(float(fps)).limit_denominator(10_000)


def write_h264(path: str | Path, images: Iterable[np.ndarray], fps: Fraction) -> int:
    """Write RGB frames, uint8 [h,w,3], as an mp4 that browsers play; returns how many.

    Pixels are yuv420p, which halves colour resolution and needs even sizes; small pictures keep it, and an odd
    size is not padded: those are yuv444p (which some hardware players refuse).
    """
    return _encode(Path(path), images, fps, "libx264", {("uint8", 3): "rgb24"}, H264)


def h264_pixels(height: int, width: int) -> str:
    """The pixel format in which :func:`write_h264` stores pictures of a size."""
    return "yuv444p" if height * width <= SMALL_PIXELS or height % 2 or width % 2 else "yuv420p"


def write_ffv1(path: str | Path, images: Iterable[np.ndarray], fps: Fraction) -> int:
    """Write uint8 [h,w], uint16 [h,w] or uint16 [h,w,3] frames losslessly as Matroska; returns how many."""
    return _encode(Path(path), images, fps, "ffv1", _FFV1_FORMATS, FFV1)


def read(path: str | Path, *, count: int, frames: slice | None = None) -> np.ndarray:
    """Frames of a video of ``count`` frames as written: [t,h,w,3] or [t,h,w], uint8 or uint16.

    ``frames`` is the window to keep; the file is decoded up to its last frame. Raises ``ValueError``
    when the file is missing, damaged, or holds another number of frames.
    """
    path = Path(path)
    wanted = range(count)[frames if frames is not None else slice(None)]
    if wanted.step < 1:
        raise ValueError(f"frames must run forwards, got {frames}")
    if not path.is_file():
        raise ValueError(f"{path} is missing: expected a video of {count} frames, found none")
    out: np.ndarray | None = None
    found, reformatter = 0, VideoReformatter()
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise ValueError("unknown codec")
            stream.codec_context.options = {"err_detect": "explode"}
            stream.codec_context.thread_type = ThreadType.AUTO
            for frame in container.decode(stream):
                if frame.is_corrupt:
                    raise ValueError(f"frame {found} is damaged")
                if found in wanted:
                    image = _pixels(frame, reformatter)
                    out = np.empty((len(wanted), *image.shape), image.dtype) if out is None else out
                    out[wanted.index(found)] = image
                found += 1
                # A window need not decode what follows it; a whole read also notices surplus frames.
                if frames is not None and (not wanted or found > wanted[-1]):
                    return _nonempty(out, path)
    except (FFmpegError, ValueError, IndexError) as error:
        raise ValueError(
            f"{path} is damaged: expected {count} frames, found {found} before: {error}; write it again"
        ) from None
    if found != count:
        raise ValueError(f"{path} is incomplete or of another clip: expected {count} frames, found {found}")
    return _nonempty(out, path)


def read_footage(path: str | Path) -> np.ndarray:
    """All frames of a user's own video, or all images of a folder in the order of their names: uint8 [t,h,w,3]."""
    path = Path(path)
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix.lower() in IMAGES)
        if not files:
            raise ValueError(f"folder {path} holds no image ({', '.join(IMAGES)})")
        images = [_image(f) for f in files]
    elif path.is_file():
        try:
            with av.open(str(path)) as container:
                images = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        except (FFmpegError, IndexError) as error:
            raise ValueError(f"cannot read video {path}: {error}") from None
    else:
        raise ValueError(f"there is no video or folder of images at {path}")
    sizes = {i.shape for i in images}
    if len(sizes) != 1:
        raise ValueError(f"the frames of {path} must all have one size, got {len(sizes)} different ones")
    return np.stack(images)


def _image(file: Path) -> np.ndarray:
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB"), np.uint8)
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"cannot read image {file}: {error}") from None


def _nonempty(out: np.ndarray | None, path: Path) -> np.ndarray:
    if out is None:
        raise ValueError(f"the window asked from {path} holds no frame")
    return out


def _encode(
    path: Path,
    images: Iterable[np.ndarray],
    fps: Fraction,
    codec: str,
    formats: dict[tuple[str, int], str],
    options: dict[str, str],
) -> int:
    shape, dtype, source, count = (), None, "", 0
    reformatter = VideoReformatter()  # one for all frames: setting it up takes longer than a small frame
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as container:
        stream = cast(VideoStream, container.add_stream(codec, rate=fps, options=options))
        context = stream.codec_context
        for image in images:
            if count == 0:
                shape, dtype = image.shape, image.dtype
                source = formats.get((str(image.dtype), image.ndim))
                if source is None or (image.ndim == 3 and image.shape[2] != 3):
                    allowed = ", ".join(f"{kind} {'[h,w]' if ndim == 2 else '[h,w,3]'}" for kind, ndim in formats)
                    raise ValueError(f"{path} takes frames of {allowed}; got {image.dtype} {list(image.shape)}")
                stream.height, stream.width = shape[:2]
                context.time_base = 1 / fps
                context.thread_count, context.thread_type = THREADS, ThreadType.AUTO
                context.flags |= Flags.bitexact
                if source == "rgb24":
                    stream.pix_fmt = h264_pixels(*shape[:2])
                    context.options = SMALL_H264 if shape[0] * shape[1] <= SMALL_PIXELS else H264
                    # Untagged colours are guessed by players from the image size: say it.
                    context.colorspace, context.color_range = Colorspace.ITU709, ColorRange.MPEG
                    context.color_primaries = context.color_trc = 1
                else:
                    stream.pix_fmt = source
                    # One slice compresses small pictures better, and FFV1 refuses slices thinner than a pixel.
                    slices = THREADS if shape[0] * shape[1] > SMALL_PIXELS and min(shape[:2]) > 1 else 1
                    context.options = {**options, "slices": str(slices)}
                    context.thread_count = slices
            if image.shape != shape or image.dtype != dtype:
                raise ValueError(
                    f"{path}: frame {count} is {image.dtype} {list(image.shape)}, the first was {dtype} {list(shape)}"
                )
            frame = VideoFrame.from_ndarray(image, format=source)
            if source == "rgb24":
                frame = reformatter.reformat(
                    frame,
                    format=stream.pix_fmt,
                    dst_colorspace=Colorspace.ITU709,
                    dst_color_range=ColorRange.MPEG,
                    interpolation=_TO_YUV,
                )
            frame.pts, frame.time_base = count, 1 / fps
            for packet in stream.encode(frame):
                container.mux(packet)
            count += 1
        if count == 0:
            raise ValueError(f"{path}: a video needs at least one frame, got none")
        for packet in stream.encode(None):
            container.mux(packet)
    return count


def _pixels(frame: VideoFrame, reformatter: VideoReformatter) -> np.ndarray:
    """The frame as an array; grey and RGB are views into the frame, not copies."""
    name = frame.format.name
    if name == "gbrp16le":
        return frame.to_ndarray()
    if name not in ("gray", "gray16le"):
        frame = reformatter.reformat(frame, format="rgb24", src_colorspace=frame.colorspace, interpolation=_TO_RGB)
    plane = frame.planes[0]
    dtype = np.dtype(np.uint16 if name == "gray16le" else np.uint8)
    channels = 1 if name in ("gray", "gray16le") else 3
    rows = np.frombuffer(memoryview(plane), dtype).reshape(frame.height, plane.line_size // dtype.itemsize)
    image = rows[:, : frame.width * channels]
    return image if channels == 1 else image.reshape(frame.height, frame.width, 3)
