"""Robot masks by video segmentation, where kinematics or camera are not known: any program, or SAM2 weights.

Both are told where the robot is if the episode knows it: points and a box from the projected robot. Programs are
also given the text ``robot arm``, as in appendix B.2 of the paper.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool
from PIL import Image
from scipy import ndimage

from kinema4d.data.annotate.command import check_command, frame_name, model_errors, run_command, write_frames
from kinema4d.data.annotate.kinematic_mask import project_robot
from kinema4d.types import Episode

POINTS = 5
"""Prompt points at most: the innermost of the visible robot, apart from each other."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Where the robot is in one frame."""

    frame: int
    """The frame that shows most of the robot."""
    points: list[list[int]]
    """(u, v) pixels on the robot."""
    labels: list[int]
    """1 for every point: they are on the robot, not beside it."""
    box: list[int]
    """First column, first row, last column, last row."""


@dataclass(frozen=True, kw_only=True)
class CommandSegmenter:
    """A program of the user's: ``python my_sam2.py {frames} {out}``.

    ``{frames}`` is a folder of ``00000.png``, ...; ``{out}`` a folder for a mask per frame of the same name and size,
    or one ``masks.npy`` [t,h,w]; every value but 0 is robot. ``{prompts}`` is a JSON file with ``text``, ``prompt``
    (frame, points, labels, box, or null where the robot's place is not known), ``height``, ``width``, ``fps``.
    """

    command: str
    """Split like a shell does, but no shell runs."""
    text: str = "robot arm"
    """What to look for, for segmenters that read."""
    timeout_s: float = 3600.0
    """Longest run for one episode."""

    def __post_init__(self) -> None:
        check_command(self.command, ("frames", "out"))

    def __call__(self, episode: Episode, /) -> Bool[np.ndarray, "t h w"]:
        """Robot pixels as the program sees them."""
        clip = episode.clip
        prompt = prompt_of(episode) if can_project(episode) else None
        with tempfile.TemporaryDirectory(prefix="kinema4d-") as name:
            folder = Path(name)
            paths = {"frames": folder / "frames", "out": folder / "out", "prompts": folder / "prompts.json"}
            write_frames(clip.rgb, paths["frames"])
            paths["out"].mkdir()
            asked: dict[str, Any] = {"text": self.text, "prompt": None if prompt is None else asdict(prompt)}
            asked |= {"height": clip.camera.height, "width": clip.camera.width, "fps": clip.fps}
            paths["prompts"].write_text(json.dumps(asked), encoding="utf-8")
            run_command(self.command, paths, timeout_s=self.timeout_s)
            mask = read_masks(paths["out"], clip.rgb.shape[:3])
        return _found(mask, self.command)


@dataclass(frozen=True, kw_only=True)
class Sam2Segmenter:
    """SAM2 with local weights, prompted by the projected robot and propagated both ways through the clip."""

    config: str
    """Model configuration that the ``sam2`` package knows, such as ``configs/sam2.1/sam2.1_hiera_s.yaml``."""
    checkpoint: Path
    """Weights, such as ``sam2.1_hiera_small.pt``."""
    device: str = ""
    """Torch device; empty takes CUDA where there is one."""
    package: ClassVar[str] = "SAM-2"

    def __post_init__(self) -> None:
        if not Path(self.checkpoint).is_file():
            raise ValueError(f"SAM2 checkpoint {self.checkpoint} does not exist; download one and give its path")

    def prepare(self) -> None:
        """Load the weights, which stay in memory; ``ValueError`` where that fails."""
        _sam2(self.config, str(self.checkpoint), self.device)

    def __call__(self, episode: Episode, /) -> Bool[np.ndarray, "t h w"]:
        """Robot pixels as SAM2 sees them."""
        prompt = prompt_of(episode)  # first, because loading weights takes long
        with model_errors("SAM2"):
            return _found(self._track(episode, prompt), "SAM2")

    def _track(self, episode: Episode, prompt: Prompt) -> Bool[np.ndarray, "t h w"]:
        torch, predictor, device = _sam2(self.config, str(self.checkpoint), self.device)
        mask = np.zeros(episode.clip.rgb.shape[:3], bool)
        faster = torch.autocast("cuda", dtype=torch.bfloat16) if device.startswith("cuda") else nullcontext()
        with tempfile.TemporaryDirectory(prefix="kinema4d-") as name, torch.inference_mode(), faster:
            write_frames(episode.clip.rgb, Path(name) / "frames", ".jpg")
            state = predictor.init_state(video_path=str(Path(name) / "frames"))
            predictor.add_new_points_or_box(
                inference_state=state,
                frame_idx=prompt.frame,
                obj_id=1,
                points=np.array(prompt.points, np.float32),
                labels=np.array(prompt.labels, np.int32),
                box=np.array(prompt.box, np.float32),
            )
            for reverse in (False, True) if prompt.frame > 0 else (False,):
                for index, ids, logits in predictor.propagate_in_video(
                    state, start_frame_idx=prompt.frame, reverse=reverse
                ):
                    mask[index] = (logits[list(ids).index(1)] > 0.0).cpu().numpy()[0]
            predictor.reset_state(state)
        return mask


@lru_cache(maxsize=1)
def _sam2(config: str, checkpoint: str, device: str) -> tuple[Any, Any, str]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
        from sam2.build_sam import build_sam2_video_predictor  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            f"SAM2 is not installed ({error}); install torch, then pip install "
            "'git+https://github.com/facebookresearch/sam2', or use --mask command with your own program"
        ) from None
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with model_errors("loading SAM2"):
        return torch, build_sam2_video_predictor(config, checkpoint, device=device), device


def can_project(episode: Episode) -> bool:
    """Whether the episode knows where its robot is in the image."""
    return bool(episode.arms) and episode.camera_from != "guessed"


def prompt_of(episode: Episode) -> Prompt:
    """Points and box of the projected robot, in the frame that shows most of it; ``ValueError`` where unknown."""
    mask = project_robot(episode).mask
    frame = int(mask.sum(axis=(1, 2)).argmax())
    rows, columns = np.nonzero(mask[frame])
    points = _inner_points(mask[frame])
    box = [int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())]
    return Prompt(frame=frame, points=points, labels=[1] * len(points), box=box)


def _inner_points(mask: Bool[np.ndarray, "h w"]) -> list[list[int]]:
    """The pixel farthest from the outline, then the next one away from those already taken."""
    depth = ndimage.distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]  # type: ignore[index]
    rows, columns = np.indices(mask.shape)
    points: list[list[int]] = []
    for _ in range(POINTS):
        v, u = np.unravel_index(int(depth.argmax()), depth.shape)
        if depth[v, u] < 1:
            break
        points.append([int(u), int(v)])
        depth[np.hypot(rows - v, columns - u) < 3 * depth[v, u]] = 0
    return points


def read_masks(out: Path, shape: tuple[int, ...]) -> Bool[np.ndarray, "t h w"]:
    """The masks that a program left in ``out``, checked against the clip's ``shape`` (t, h, w)."""
    array = out / "masks.npy"
    if array.is_file():
        try:
            masks = np.load(array, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"the command's masks.npy is not readable: {error}") from None
        if masks.dtype.kind not in "bui" or masks.shape != shape:
            raise ValueError(
                f"the command's masks.npy is {masks.dtype} {list(masks.shape)}; it must be bool or whole numbers and "
                f"{list(shape)} (frames, height, width)"
            )
        return masks != 0
    wanted = [out / frame_name(i, ".png") for i in range(shape[0])]
    there = sum(file.is_file() for file in wanted)
    if there != len(wanted):
        raise ValueError(
            f"the command wrote masks for {there} of {len(wanted)} frames; it must write {wanted[0].name} ... "
            f"{wanted[-1].name}, or one masks.npy, to {{out}}"
        )
    return np.stack([_read_mask(file, shape[1:]) for file in wanted])


def _read_mask(file: Path, size: tuple[int, ...]) -> Bool[np.ndarray, "h w"]:
    try:
        with Image.open(file) as image:
            mode, pixels = image.mode, np.asarray(image)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"the command's mask {file.name} is not readable as an image: {error}") from None
    if pixels.ndim != 2 or pixels.shape != size:
        raise ValueError(
            f"the command's mask {file.name} is {list(pixels.shape)} of mode {mode}; it must have one channel and "
            f"the size of the frames, {list(size)} (height, width)"
        )
    return pixels != 0


def _found(mask: Bool[np.ndarray, "t h w"], who: str) -> Bool[np.ndarray, "t h w"]:
    if not mask.any():
        raise ValueError(f"{who} found no robot in any frame")
    return mask
