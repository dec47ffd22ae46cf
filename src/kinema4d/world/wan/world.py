"""The world ``wan``: the paper's model at full scale, for those who have its weights and a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from kinema4d.geometry.camera import unproject
from kinema4d.types import Control, Pointmap, Rollout
from kinema4d.world.compose import clip_from
from kinema4d.world.frames import at_size, window
from kinema4d.world.protocol import check_view
from kinema4d.world.wan.condition import Told, arm_of, first_latents, given_mask, robot_latents, robot_mask
from kinema4d.world.wan.latents import KINEMA4D, PointStats, as_frames, check_size, decode, device_of
from kinema4d.world.wan.memory import advice
from kinema4d.world.wan.metric import Metric, metric
from kinema4d.world.wan.model import RobotWan
from kinema4d.world.wan.options import Sampling
from kinema4d.world.wan.sample import sample

SAME_M = 0.05
"""Where the generated robot is so near to the kinematic one, the pixel shows the robot and has its points, metres."""


@dataclass(frozen=True, eq=False)
class WanWorld:
    """Transformer, VAE and image encoder, loaded once for any number of clips."""

    model: RobotWan
    """The transformer."""
    vae: Any
    """diffusers' ``AutoencoderKLWan``."""
    clip: Any
    """transformers' ``CLIPVisionModel``, in float32."""
    eye: Any
    """Its image processor."""
    stats: PointStats = KINEMA4D
    """Of latents of pointmaps."""
    frames: int = 49
    """Of a clip; longer rollouts are chunked."""
    height: int = 480
    """Rows that the model sees; any picture is brought to them."""
    width: int = 720
    """Columns."""
    sampling: Sampling = field(default_factory=Sampling)
    """Unless something else is asked for."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Which weights these are."""
    load: Mapping[str, Any] = field(default_factory=dict)
    """What decides how much memory it needs, for advice."""
    name: str = "wan"
    """Its name in tables."""

    def __post_init__(self) -> None:
        check_size(self.frames, self.height, self.width, self.model.arm_patch)

    @property
    def longest(self) -> int:
        """Frames that it generates at once."""
        return self.frames

    def simulate(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        control: Control,
        *,
        depth: Float[np.ndarray, "_ _"] | None = None,
        seed: int = 42,
        sampling: Sampling | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Rollout:
        """The future of ``image`` under ``control``, in metres; ``depth`` is used for the first frame only."""
        if len(control) > self.frames:
            raise ValueError(
                f"this model generates at most {self.frames} frames at once, got {len(control)}: use kinema4d.simulate, "
                "which goes on in chunks"
            )
        has_depth, sampling = check_view(image, control, depth), sampling or self.sampling
        with self.enough_memory():
            told = self.told(image, control)
            latents = sample(self.model, told, sampling=sampling, seed=seed, progress=progress)
            rgb, values = self.decoded(latents)
        rgb, values = (_resized(v[: len(control)], *image.shape[:2]) for v in (rgb, values))
        assert told.scale is not None
        found = metric(values, control.pointmap, told.scale)
        points = found.apply(values)
        near = np.linalg.norm(points - control.pointmap.points, axis=-1) < max(
            SAME_M, 2 * np.nan_to_num(found.residual_m)
        )
        z = np.maximum(points[..., 2], 1e-3)
        points = np.where((control.mask & near)[..., None], control.pointmap.points, unproject(control.camera.K, z))
        clip = clip_from(
            image, depth, has_depth, control, (255 * rgb).round().clip(0, 255).astype(np.uint8),
            Pointmap(points=points.astype(np.float32), valid=np.ones(z.shape, bool)),
        )  # fmt: skip
        return Rollout(clip=clip, provenance=self._provenance(seed, sampling, found))

    @contextmanager
    def enough_memory(self) -> Iterator[None]:
        """Where a card has too little, say which option lowers it, and by how much."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            size = {"frames": self.frames, "height": self.height, "width": self.width}
            said = advice(dict(self.model.config), **{**self.load, **size})
            raise ValueError(f"the card has too little memory ({str(error).splitlines()[0]}); {said}") from error

    def _provenance(self, seed: int, sampling: Sampling, found: Metric) -> dict[str, Any]:
        return {
            "world": self.name,
            "seed": seed,
            "sampling": asdict(sampling),
            "variant": self.model.variant,
            "weights": dict(self.about),
            "metric": {
                "scale": found.scale.tolist(), "shift": found.shift.tolist(), "fitted": list(found.fitted), "residual_m": found.residual_m
            },
        }  # fmt: skip

    @torch.no_grad()
    def told(self, image: UInt8[np.ndarray, "h w 3"], control: Control) -> Told:
        """What the model is told, encoded once for all steps; a shorter signal waits at its end."""
        held = window(control, np.minimum(np.arange(self.frames), len(control) - 1))
        seen = at_size(held, self.height, self.width)
        picture = np.asarray(Image.fromarray(image).resize((self.width, self.height), Image.Resampling.BICUBIC))
        colour, points, scale = robot_latents(self.vae, seen, self.stats, self.model.variant)
        mask = torch.from_numpy(robot_mask(seen.mask))[None].to(points.device)
        arm = arm_of(mask, colour, points, self.model.variant)
        first = first_latents(self.vae, picture, self.frames)
        times, rows, columns = points.shape[2:]
        return Told(first, given_mask(times, rows, columns).to(first), arm, looked(self.clip, self.eye, image), scale)

    def decoded(self, latents: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Colour and pointmap in 0..1 of both halves."""
        left, right = latents.float().chunk(2, -1)
        video = decode(self.vae, torch.cat([left, self.stats.invert(right)], -1)).cpu()
        colour, points = video.chunk(2, -1)
        return as_frames(colour), as_frames(points)


@torch.no_grad()
def looked(clip: Any, eye: Any, image: UInt8[np.ndarray, "h w 3"]) -> Tensor:
    """CLIP's tokens [1,n,c] of a picture: its last layer but one."""
    pixels = eye(images=Image.fromarray(image), return_tensors="pt")["pixel_values"]
    found = clip(pixel_values=pixels.to(device_of(clip), clip.dtype), output_hidden_states=True)
    return found.hidden_states[-2].float()


def _resized(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """Frames [t,h,w,3] at another size."""
    if frames.shape[1:3] == (height, width):
        return frames
    video = torch.from_numpy(frames).permute(0, 3, 1, 2)
    out = torch.nn.functional.interpolate(video, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return out.permute(0, 2, 3, 1).numpy()
