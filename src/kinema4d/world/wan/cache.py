"""Latents of an episode as a file, encoded once: everything that a training step needs, and nothing larger than it must be.

One ``<id>.safetensors`` per episode. The mask is at the rate of latents (kilobytes, where the release keeps 17 MB), the condition
is encoded once, not in every step. :func:`read_release` and :func:`write_release` are the release's own layout.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kinema4d.files import whole_file
from kinema4d.world.condition import Normalisation
from kinema4d.world.wan import files
from kinema4d.world.wan.condition import Told, arm_of, given_mask
from kinema4d.world.wan.latents import PointStats
from kinema4d.world.wan.model import Variant

FORMAT = "kinema4d latents 1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Latents:
    """Of one episode; scaled by Wan's statistics, pointmaps not yet by their own."""

    colour: Tensor
    """[16,t,h,w] of the clip."""
    points: Tensor
    """[16,t,h,w] of its pointmap in 0..1."""
    robot_colour: Tensor
    """[16,t,h,w] of the robot alone."""
    robot_points: Tensor
    """[16,t,h,w] of the robot's pointmap in 0..1."""
    mask: Tensor
    """[t,h,w] where the robot is, 0 or 1, bytes."""
    first: Tensor
    """[16,t,h,2w] of the condition video."""
    image: Tensor
    """[n,c] CLIP's tokens of the first image."""

    def __post_init__(self) -> None:
        shape = self.colour.shape[1:]
        want = {"points": shape, "robot_colour": shape, "robot_points": shape, "first": (*shape[:2], 2 * shape[2])}
        for name, size in want.items():
            found = tuple(getattr(self, name).shape)
            if found != (self.colour.shape[0], *size):
                raise ValueError(f"latents of {name} are {list(found)}, those of colour {list(self.colour.shape)}")
        if tuple(self.mask.shape) != tuple(shape):
            raise ValueError(f"the mask is {list(self.mask.shape)}, latents of colour {list(self.colour.shape)}")

    def target(self, stats: PointStats) -> Tensor:
        """[16,t,h,2w] what is generated."""
        return torch.cat([self.colour.float(), stats.apply(self.points.float())], -1)

    def told(self, stats: PointStats, variant: Variant, *, mask: Tensor | None = None) -> Told:
        """What the model is told of it; ``mask`` [t,h,w] instead of the hard one."""
        soft = (self.mask if mask is None else mask).float()[None]
        arm = arm_of(soft, self.robot_colour.float()[None], stats.apply(self.robot_points.float())[None], variant)
        t, h, w = self.mask.shape
        return Told(self.first.float()[None], given_mask(t, h, w), arm, self.image.float()[None])


def write(path: Path, latents: Latents, *, scale: Normalisation, world: Normalisation, source: str) -> None:
    """One episode, in bf16; whole or absent."""
    from safetensors.torch import save

    state = {f.name: getattr(latents, f.name) for f in fields(Latents)}
    half = {
        k: (v.to(torch.uint8) if k == "mask" else v.to(torch.bfloat16)).cpu().contiguous() for k, v in state.items()
    }
    about = {
        "source": source,
        "robot": [scale.minimum.tolist(), scale.maximum.tolist()],
        "world": [world.minimum.tolist(), world.maximum.tolist()],
    }
    with whole_file(path, overwrite=True) as file:
        file.write_bytes(save(half, {"format": FORMAT, "about": json.dumps(about)}))


def read(path: Path) -> Latents:
    """One episode; one that is damaged or something else is refused."""
    from safetensors.torch import load_file

    found, about = files.header(path)
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{path} says it is {about.get('format')!r}, expected {FORMAT!r}: encode it with kinema4d data encode"
        )
    names = {f.name for f in fields(Latents)}
    if found.keys() != names:
        raise ValueError(f"{path} holds {sorted(found)}, expected {sorted(names)}")
    return Latents(**load_file(path))


def extent(path: Path) -> Normalisation:
    """How the clip's points were brought into 0..1."""
    low, high = json.loads(files.header(path)[1]["about"])["world"]
    return Normalisation(minimum=np.array(low), maximum=np.array(high))


def listed(folder: str | Path) -> tuple[Path, ...]:
    """Every episode of a folder of latents, in order."""
    found = tuple(sorted(Path(folder).glob("*.safetensors")))
    if not found:
        raise ValueError(f"{folder} holds no latents: encode a data set with kinema4d data encode")
    return found


# ---------------------------------------------------------------------- the release's layout


RELEASE = ("video_latents", "mask_video_latents", "pointmap_latents", "mask_pointmap_latents")
"""Folders of the release's latents."""
RELEASE_PARTS = ("colour", "image", "points", "robot_colour", "robot_points")
"""What they hold of an episode."""


def release_names(root: Path) -> tuple[str, ...]:
    """Episodes whose latents are there, in order."""
    return tuple(sorted(p.stem for p in (root / RELEASE[0]).glob("*.safetensors")))


def write_release(root: Path, name: str, latents: Latents) -> None:
    """``video_latents``, ``pointmap_latents``, ``mask_video_latents`` and ``mask_pointmap_latents`` of one episode."""
    from safetensors.torch import save

    blobs = {
        "video_latents": {"encoded_video": latents.colour, "image_embedding": latents.image},
        "mask_video_latents": {"encoded_video": latents.robot_colour},
    }
    for folder, state in blobs.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        with whole_file(root / folder / f"{name}.safetensors", overwrite=True) as file:
            file.write_bytes(save({k: v.cpu().contiguous() for k, v in state.items()}))
    for folder, tensor in {"pointmap_latents": latents.points, "mask_pointmap_latents": latents.robot_points}.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        with whole_file(root / folder / f"{name}.pt", overwrite=True) as file:
            torch.save(tensor.cpu().contiguous(), file)


def read_release(root: Path, name: str) -> dict[str, Tensor]:
    """What the release has of one episode: ``colour``, ``image``, ``points``, ``robot_colour``, ``robot_points``, those that are
    there; any float type, with a batch of one or without."""
    from safetensors.torch import load_file

    out: dict[str, Tensor] = {}
    for folder, key in {"video_latents": "colour", "mask_video_latents": "robot_colour"}.items():
        file = root / folder / f"{name}.safetensors"
        if file.is_file():
            state = load_file(file)
            inner = [k for k in ("encoded_video", "latents") if k in state]
            if not inner:
                raise ValueError(f"{file} holds {sorted(state)}, expected 'encoded_video' or 'latents'")
            out[key] = _one(state[inner[0]], file)
            if "image_embedding" in state:
                out["image"] = state["image_embedding"].float()
    for folder, key in {"pointmap_latents": "points", "mask_pointmap_latents": "robot_points"}.items():
        file = root / folder / f"{name}.pt"
        if file.is_file():
            out[key] = _one(torch.load(file, map_location="cpu", weights_only=True), file)
    if not out:
        raise ValueError(f"{root} holds no latents of {name!r}")
    return out


def _one(x: Tensor, file: Path) -> Tensor:
    x = x[0] if x.ndim == 5 and len(x) == 1 else x
    if x.ndim != 4 or len(x) != 16:
        raise ValueError(f"{file} holds a tensor of {list(x.shape)}, expected latents [16,t,h,w]")
    return x.float()


def as_mask(mask: np.ndarray) -> Tensor:
    """A latent mask as it is kept."""
    return torch.from_numpy(np.ascontiguousarray(mask)).to(torch.uint8)
