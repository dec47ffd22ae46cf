"""Paint by a network: the diffusion transformer as a correction of the moved prior, near what changed and nowhere else.

It works at a small size, on the tokens that show the robot, a moved part or something that was uncovered. What it adds is carried
to the size of the picture as a difference, so edges stay those of the prior, and no other pixel is touched.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, UInt8
from PIL import Image
from scipy.ndimage import binary_dilation
from torch import Tensor

from kinema4d.geometry.camera import picks, unproject
from kinema4d.types import Control, Pointmap
from kinema4d.world.frames import window
from kinema4d.world.small import direct
from kinema4d.world.small.diffusion import DiffusionNet
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.direct import small
from kinema4d.world.small.patches import STEPS, Scene, cut, joined, known_of, sample, scale_of, some, undomained
from kinema4d.world.small.prior import Prior

CHANGED_COLOR, CHANGED_M = 6, 0.01
"""A pixel of the prior that differs by more from its first frame has changed: of 255, and metres."""


def painter_config(**fields: object) -> DiffusionConfig:
    """A painter of the usual size."""
    usual = {
        "height": 96,
        "width": 144,
        "channels": 128,
        "layers": 4,
        "heads": 4,
        "prior": True,
        "attention": "full",
        "moves": False,
    }
    return DiffusionConfig(**{**usual, **fields})  # type: ignore[arg-type]


def scene_of(image: UInt8[np.ndarray, "h w 3"], control: Control, prior: Prior, config: DiffusionConfig) -> Scene:
    """What a painter knows, at its size; a shorter clip waits at its end."""
    rows, columns = picks(image.shape[:2], (config.height, config.width))
    frames = np.minimum(np.arange(config.frames), len(control) - 1)
    pick = lambda a: a[:, rows][:, :, columns][frames]  # noqa: E731
    points = pick(prior.pointmap.points)
    return replace(
        direct.scene_of(image, control, config),
        prior_rgb=np.stack([small(frame, config.height, config.width) for frame in prior.rgb])[frames],
        prior_points=Pointmap(points=points, valid=np.ones(points.shape[:3], bool)),
        prior_known=pick(prior.known),
    )


def changing(scene: Scene) -> Bool[np.ndarray, "t h w"]:
    """Where the prior is not its first frame, or a guess."""
    assert scene.prior_rgb is not None
    assert scene.prior_points is not None
    assert scene.prior_known is not None
    return _other(scene.prior_rgb, scene.prior_points.points[..., 2], scene.prior_known)


def _other(rgb: np.ndarray, z: np.ndarray, known: np.ndarray) -> Bool[np.ndarray, "t h w"]:
    """Pixels that differ from those of the first of these frames, or are a guess; none of the first itself."""
    out = np.abs(rgb.astype(np.int16) - rgb[:1]).max(axis=-1) > CHANGED_COLOR
    out |= (np.abs(z - z[:1]) > CHANGED_M) | ~known
    out[0] = False
    return out


def near(changed: Bool[np.ndarray, "t h w"], config: DiffusionConfig) -> Int64[np.ndarray, " k"]:
    """Tokens (of both domains) in which something changes, and those beside them."""
    tokens = cut(torch.from_numpy(changed[None, ..., None].astype(np.float32)), config)[0].amax(-1)
    grid = tokens.numpy().reshape(config.grid) > 0
    wide = binary_dilation(grid, np.ones((1, 3, 3), bool))
    wide[0] = False  # the first frame is given
    own = np.flatnonzero(wide)
    each = range(config.domains if config.layout == "width" else 1)
    return np.concatenate([own + d * grid.size for d in each])


@torch.no_grad()
def corrected(
    net: DiffusionNet, scene: Scene, *, steps: int = STEPS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray | None]:
    """What the painter adds to the prior at its size: colour [t,h,w,3] in steps of 255, and points in metres."""
    config = net.config
    whole = known_of([scene], config, seed=seed)
    pick = torch.from_numpy(near(changing(scene), config))[None]
    assert whole.prior is not None
    base = whole.prior[..., : whole.first.shape[-1]]
    made = base.clone()
    if pick.shape[1]:
        few = sample(net, some(whole, pick), steps=steps, seed=seed)
        made.scatter_(1, pick[..., None].expand_as(few), few)
    return _difference(made, base, scene, config)


def _difference(
    made: Tensor, base: Tensor, scene: Scene, config: DiffusionConfig
) -> tuple[np.ndarray, np.ndarray | None]:
    scale = scale_of(scene)
    colour, points = undomained(made - base, config)
    size = float((scale.maximum - scale.minimum)[0]) / 2
    more = None if points is None else size * joined(points, config)[0].numpy()
    return 127.5 * joined(colour, config)[0].numpy(), more


def painted(
    net: DiffusionNet,
    image: UInt8[np.ndarray, "h w 3"],
    control: Control,
    prior: Prior,
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> Prior:
    """The prior with the painter's correction, where something changed; the robot's points stay its own."""
    h, w = image.shape[:2]
    rgb, z = prior.rgb.copy(), prior.pointmap.points[..., 2].copy()
    for start in range(0, max(len(control) - 1, 1), net.config.frames - 1):
        # Every chunk begins with the picture itself: the background of the first frame is never forgotten.
        frames = np.r_[0, start + 1 : min(start + net.config.frames, len(control))]
        scene = scene_of(image, window(control, frames), _some_frames(prior, frames), net.config)
        colour, points = corrected(net, scene, steps=steps, seed=seed)
        changed = _other(prior.rgb[frames], prior.pointmap.points[frames, ..., 2], prior.known[frames])
        for i, t in enumerate(frames):
            here = changed[i]
            if not here.any():
                continue
            more = _grown(colour[i], h, w)
            rgb[t][here] = (rgb[t][here] + more[here]).round().clip(0, 255).astype(np.uint8)
            if points is not None:
                free = here & ~control.mask[t]
                z[t][free] = np.maximum(z[t][free] + _grown(points[i, ..., 2:], h, w)[free, 0], 1e-3)
    moved = unproject(control.camera.K, z)
    same = z == prior.pointmap.points[..., 2]
    both = np.where(same[..., None], prior.pointmap.points, moved).astype(np.float32)
    return replace(prior, rgb=rgb, pointmap=Pointmap(points=both, valid=prior.pointmap.valid))


def _some_frames(prior: Prior, frames: np.ndarray) -> Prior:
    points = Pointmap(points=prior.pointmap.points[frames], valid=prior.pointmap.valid[frames])
    return Prior(rgb=prior.rgb[frames], pointmap=points, known=prior.known[frames], part_ids=prior.part_ids[frames])


def _grown(values: Float32[np.ndarray, "a b c"], h: int, w: int) -> Float32[np.ndarray, "h w c"]:
    """A small picture of differences at the size of the large one."""
    planes = [Image.fromarray(np.ascontiguousarray(values[..., c], np.float32)) for c in range(values.shape[-1])]
    return np.stack([np.asarray(p.resize((w, h), Image.Resampling.BILINEAR)) for p in planes], axis=-1)
