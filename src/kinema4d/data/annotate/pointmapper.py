"""Pointmaps from images alone (VGGT, SpatialTrackerV2, Depth Anything, ...): any program, or VGGT weights.

What comes out is of unknown scale unless its maker says otherwise; :mod:`kinema4d.data.annotate.align` makes it metric.
"""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from kinema4d.data.annotate.command import check_command, model_errors, run_command, write_frames
from kinema4d.geometry.camera import rays
from kinema4d.types import Camera, Episode, Pointmap

VGGT_SIDE = 518
"""Longer side of VGGT's images, from its own loader."""
_KINDS = ("depth", "disparity", "points")


@dataclass(frozen=True, kw_only=True)
class CommandPointmap:
    """A program of the user's: ``python my_vggt.py {frames} {out}``.

    ``{frames}`` is a folder of ``00000.png``, ...; ``{out}`` an npz file to write with one of ``depth`` [t,h,w] (along
    the optical axis), ``disparity`` [t,h,w] (its inverse) or ``points`` [t,h,w,3] (camera frame, OpenCV axes); and
    optionally ``K`` ([3,3] or [t,3,3], on the grid of the output) and ``conf`` [t,h,w]. Any resolution of the whole
    image will do. Values that are not finite or not positive mean that nothing is known there.
    """

    command: str
    """Split like a shell does, but no shell runs."""
    metric: bool = False
    """The program gives metres."""
    min_conf: float = 0.0
    """Pixels of lower ``conf`` are not valid."""
    timeout_s: float = 3600.0
    """Longest run for one episode."""

    def __post_init__(self) -> None:
        check_command(self.command, ("frames", "out"))

    def __call__(self, episode: Episode, /) -> Pointmap:
        """Geometry as the program sees it."""
        with tempfile.TemporaryDirectory(prefix="kinema4d-") as name:
            paths = {"frames": Path(name) / "frames", "out": Path(name) / "out.npz"}
            write_frames(episode.clip.rgb, paths["frames"])
            run_command(self.command, paths, timeout_s=self.timeout_s)
            arrays = _read_npz(paths["out"])
        return to_pointmap(episode, arrays, min_conf=self.min_conf)


@dataclass(frozen=True, kw_only=True)
class VggtPointmap:
    """VGGT with local weights: its depth head, which its authors find more accurate than its point head."""

    weights: Path
    """Folder of the model (``config.json`` and ``model.safetensors``), as ``from_pretrained`` takes it."""
    min_conf: float = 0.0
    """Pixels of lower ``depth_conf`` (1 and more) are not valid."""
    device: str = ""
    """Torch device; empty takes CUDA where there is one."""
    metric: ClassVar[bool] = False
    package: ClassVar[str] = "vggt"

    def __post_init__(self) -> None:
        if not (Path(self.weights) / "config.json").is_file():
            raise ValueError(
                f"{self.weights} is not a folder of VGGT weights: it has no config.json; get one with "
                "huggingface-cli download facebook/VGGT-1B --local-dir VGGT-1B"
            )

    def prepare(self) -> None:
        """Load the weights, which stay in memory; ``ValueError`` where that fails."""
        _vggt(str(self.weights), self.device)

    def __call__(self, episode: Episode, /) -> Pointmap:
        """Geometry as VGGT sees it, up to scale."""
        with model_errors("VGGT"):
            arrays = self._infer(episode)
        return to_pointmap(episode, arrays, min_conf=self.min_conf)

    def _infer(self, episode: Episode) -> dict[str, np.ndarray]:
        torch, model, device = _vggt(str(self.weights), self.device)
        from vggt.utils.load_fn import load_and_preprocess_images  # pyright: ignore[reportMissingImports]
        from vggt.utils.pose_enc import pose_encoding_to_extri_intri  # pyright: ignore[reportMissingImports]

        height, width = episode.clip.rgb.shape[1:3]
        # "crop" cuts off rows of upright images, "pad" keeps them; both keep all of a wide image.
        mode = "pad" if height > width else "crop"
        faster = torch.autocast("cuda", dtype=torch.bfloat16) if device.startswith("cuda") else nullcontext()
        with tempfile.TemporaryDirectory(prefix="kinema4d-") as name, torch.no_grad(), faster:
            files = write_frames(episode.clip.rgb, Path(name) / "frames")
            images = load_and_preprocess_images([str(file) for file in files], mode=mode).to(device)
            found = model(images)
            _, K = pose_encoding_to_extri_intri(found["pose_enc"], images.shape[-2:])
            arrays = {"depth": _numpy(found["depth"])[0, ..., 0], "conf": _numpy(found["depth_conf"])[0]}
            arrays["K"] = _numpy(K)[0]
        if mode == "pad":
            side = round(width * VGGT_SIDE / height / 14) * 14
            left = (VGGT_SIDE - side) // 2
            arrays |= {key: arrays[key][..., left : left + side] for key in ("depth", "conf")}
            arrays["K"] = arrays["K"] - np.array([[0, 0, left], [0, 0, 0], [0, 0, 0]])
        return arrays


@lru_cache(maxsize=1)
def _vggt(weights: str, device: str) -> tuple[Any, Any, str]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
        from vggt.models.vggt import VGGT  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            f"VGGT is not installed ({error}); install torch and torchvision, then pip install "
            "'git+https://github.com/facebookresearch/vggt', or use --pointmap command with your own program"
        ) from None
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with model_errors("loading VGGT"):
        return torch, VGGT.from_pretrained(weights).to(device).eval(), device


def _numpy(tensor: Any) -> np.ndarray:
    return tensor.float().cpu().numpy()


def to_pointmap(episode: Episode, arrays: dict[str, np.ndarray], *, min_conf: float = 0.0) -> Pointmap:
    """A model's arrays on the clip's pixels, by nearest neighbour.

    Where the camera is known, points lie on its rays. Where it is guessed, they keep the model's own directions.
    """
    kinds = [kind for kind in _KINDS if kind in arrays]
    if len(kinds) != 1:
        raise ValueError(f"a pointmap needs one of {', '.join(_KINDS)}, got {', '.join(arrays) or 'nothing'}")
    kind, camera = kinds[0], episode.clip.camera
    raw = _checked(arrays, kind, len(episode), 4 if kind == "points" else 3)
    size = raw.shape[1:3]
    pick = _nearest(size, (camera.height, camera.width))
    z = raw[..., 2] if kind == "points" else raw
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        z = 1 / z if kind == "disparity" else z
        z = z.astype(np.float32)[pick]
    valid = np.isfinite(z) & (z > 0)
    if "conf" in arrays:
        conf = _checked(arrays, "conf", len(episode), 3)
        if conf.shape[1:3] != size:
            raise ValueError(f"conf is {list(conf.shape[1:])} but {kind} is {list(size)} (height, width)")
        valid &= np.nan_to_num(conf, nan=-np.inf)[pick] >= min_conf
    if episode.camera_from != "guessed":
        directions = rays(camera.K, camera.height, camera.width)[None]
    elif kind == "points":
        with np.errstate(divide="ignore", invalid="ignore"):
            directions = raw[pick] / z[..., None]
        valid &= np.isfinite(directions).all(axis=-1)
    else:
        directions = rays(_clip_K(arrays, camera, size), camera.height, camera.width)[None]
    points = np.where(valid[..., None], z[..., None] * directions, 0)
    return Pointmap(points=points.astype(np.float32), valid=valid)


def _clip_K(arrays: dict[str, np.ndarray], camera: Camera, size: tuple[int, ...]) -> Float[np.ndarray, "3 3"]:
    """The model's K, the median over frames, on the clip's grid; the clip's own where the model has none."""
    if "K" not in arrays:
        return camera.K
    K = np.asarray(arrays["K"], np.float64)
    if K.shape[-2:] != (3, 3) or K.ndim > 3 or not np.isfinite(K).all():
        raise ValueError(f"K must be finite and [3,3] or [t,3,3], got shape {list(K.shape)}")
    K = np.median(K.reshape(-1, 3, 3), axis=0)
    return Camera(K=K, T_world_camera=np.eye(4), height=size[0], width=size[1]).resized(camera.height, camera.width).K


def _checked(arrays: dict[str, np.ndarray], key: str, frames: int, ndim: int) -> np.ndarray:
    array = arrays[key]
    good = array.dtype.kind in "fui" and array.ndim == ndim and len(array) == frames and 0 not in array.shape
    if not good or (key == "points" and array.shape[-1] != 3):
        wanted = f"[{frames}, height, width{', 3' if ndim == 4 else ''}]"
        raise ValueError(f"{key} must be numbers of shape {wanted}, got {array.dtype} {list(array.shape)}")
    return array


def _nearest(size: tuple[int, ...], wanted: tuple[int, int]) -> tuple[Any, ...]:
    """Index that resamples [t, *size, ...] to [t, *wanted, ...]: the source pixel under each pixel centre."""
    if tuple(size) == wanted:
        return (slice(None),)
    rows, columns = (
        np.floor((np.arange(n) + 0.5) * have / n).astype(int) for have, n in zip(size, wanted, strict=True)
    )
    return (slice(None), rows[:, None], columns)


def _read_npz(file: Path) -> dict[str, np.ndarray]:
    if not file.is_file():
        raise ValueError("the command ended well but wrote no file to {out}; it must write an npz there")
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array; use np.savez")
        with archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"the command's output is not a readable npz: {error}") from None
