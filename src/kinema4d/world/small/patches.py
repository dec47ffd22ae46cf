"""Clips as tokens of the diffusion transformer, what is known of them, and the flow from noise to clip."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, UInt8
from torch import Tensor
from torch.nn import functional as F

from kinema4d.types import Pointmap
from kinema4d.world.condition import Normalisation, normalisation, soft_mask
from kinema4d.world.small.contact import carry_of, lens_of, reach_of
from kinema4d.world.small.diffusion import DiffusionNet, Known
from kinema4d.world.small.diffusion_config import ACTION, LONGEST, MIXED, WORDS, DiffusionConfig, manner
from kinema4d.world.small.moves import Moved

STEPS = 2
"""Of the flow, by default."""
SHIFT = 6.0
"""Times of the flow crowd at its start: a patch has hundreds of pixels, and their mean is seen through much noise."""

FAR, GONE, MORE = 3.0, 4.0, 3.0
LOST = 1.0
"""What is further off than this, in the model's unit, is no more wrong: things that fell off the table, which nobody can foretell."""
"""How much it counts how far things have gone, and whether, beside the flow; and how much more that they have than that they have not."""
LEAST_AWAY = 0.01
"""What has gone less far, in the model's unit, has not gone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """One clip's conditions at the size of the model, in plain arrays."""

    image: UInt8[np.ndarray, "h w 3"]
    """The first frame."""
    robot: Pointmap
    """The robot's visible surface at every frame, camera frame."""
    robot_rgb: UInt8[np.ndarray, "t h w 3"]
    """Its colour."""
    actions: Float32[np.ndarray, "t 10"]
    """:func:`kinema4d.world.small.direct.actions_of`."""
    text: str = ""
    """The instruction."""
    scale: Normalisation | None = None
    """Unit of length, where these frames are some of a longer clip."""
    environment: Pointmap | None = None
    """One frame: the whole scene at the first."""
    reach: UInt8[np.ndarray, "t _ _ 4"] | None = None
    """What :func:`kinema4d.world.small.contact.carry_of` says of contact, where that is known already."""
    carry: Float32[np.ndarray, "t _ _ 6"] | None = None
    """And how far things would be carried and pushed."""
    prior_rgb: UInt8[np.ndarray, "t h w 3"] | None = None
    """The moved prior."""
    prior_points: Pointmap | None = None
    """Its geometry."""
    prior_known: Bool[np.ndarray, "t h w"] | None = None
    """What of it is no guess."""


def cut(frames: Tensor, config: DiffusionConfig) -> Tensor:
    """[b,t,h,w,c] to tokens [b,n,c*pixels] of one domain: the first frame alone, as often as a group is long."""
    p, h, w = config.patch
    x = torch.cat([frames[:, :1].expand(-1, p, -1, -1, -1), frames[:, 1:]], 1)
    b, t, rows, columns, c = x.shape
    x = x.reshape(b, t // p, p, rows // h, h, columns // w, w, c).permute(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(b, -1, c * config.pixels)


def _tokens(frames: np.ndarray, config: DiffusionConfig) -> Tensor:
    return cut(torch.from_numpy(np.ascontiguousarray(frames, np.float32))[None], config)


def joined(tokens: Tensor, config: DiffusionConfig, channels: int = 3) -> Tensor:
    """The inverse of :func:`cut`."""
    p, h, w = config.patch
    t, rows, columns = config.grid
    x = tokens.reshape(-1, t, rows, columns, channels, p, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
    x = x.reshape(-1, t * p, rows * h, columns * w, channels)
    return torch.cat([x[:, :1], x[:, p:]], 1)


def domains(colour: Tensor, points: Tensor, config: DiffusionConfig) -> Tensor:
    """Tokens of both domains, side by side or stacked; only those of colour where only that is made."""
    if config.output == "2d":
        return colour
    return torch.cat([colour, points], -1 if config.layout == "channel" else 1)


def undomained(tokens: Tensor, config: DiffusionConfig) -> tuple[Tensor, Tensor | None]:
    """The inverse of :func:`domains`."""
    if config.output == "2d":
        return tokens, None
    a, b = tokens.chunk(2, -1 if config.layout == "channel" else 1)
    return a, b


def positions(config: DiffusionConfig) -> Tensor:
    """[n,4] time, row, column and domain of every token."""
    where = torch.stack(torch.meshgrid(*(torch.arange(n) for n in config.grid), indexing="ij"), -1).reshape(-1, 3)
    each = range(1 if config.layout == "channel" else config.domains)
    return torch.cat([F.pad(where, (0, 1), value=d) for d in each])


# ---------------------------------------------------------------------- what is known


def scale_of(scene: Scene) -> Normalisation:
    """The model's own unit of length (appendix B.1): the robot's extent over the whole sequence, one for all axes, so that
    shapes keep their proportions."""
    return scene.scale or normalisation(scene.robot, per_axis=False)


def unit(points: Float[np.ndarray, "*b 3"], scale: Normalisation) -> Float32[np.ndarray, "*b 3"]:
    """Metres to the model's -1..1 over the robot's extent."""
    return 2 * scale.apply(points) - 1


def lengths(away: Float[np.ndarray, "*b 3"], scale: Normalisation) -> Float32[np.ndarray, "*b 3"]:
    """The same of differences."""
    return (unit(away, scale) - unit(np.zeros(3, np.float32), scale)).astype(np.float32)


def words(text: str) -> list[int]:
    """Numbers of the words of an instruction; the same word has the same number everywhere."""
    found = [1 + zlib.crc32(w.encode()) % (WORDS - 1) for w in text.lower().split()[:LONGEST]]
    return found + [0] * (LONGEST - len(found))


def known_of(scenes: Sequence[Scene], config: DiffusionConfig, *, seed: int = 0) -> Known:
    """What a model with this configuration may know of these scenes, as all of its tokens."""
    if config.control == "mixed":
        raise ValueError(f"a mixed model is told in one of several ways, say which as control: {', '.join(MIXED)}")
    rows = [_known(scene, config, seed + i) for i, scene in enumerate(scenes)]
    stack = lambda name: torch.stack([getattr(r, name)[0] for r in rows])  # noqa: E731
    prior = stack("prior") if config.prior else None
    return Known(
        stack("first"),
        stack("robot"),
        stack("mask"),
        prior,
        stack("where"),
        stack("hints"),
        manner(config.control),
        stack("when"),
        stack("reach") if config.touches else None,
        stack("carry") if config.touches else None,
        stack("places") if config.moving else None,
        stack("lens") if config.moving else None,
    )


def _known(scene: Scene, config: DiffusionConfig, seed: int) -> Known:
    t, h, w = config.frames, config.height, config.width
    if scene.image.shape != (h, w, 3) or scene.robot.valid.shape != (t, h, w):
        raise ValueError(
            f"this model sees {t}x{h}x{w} (frames x rows x columns), the scene has an image of "
            f"{scene.image.shape[0]}x{scene.image.shape[1]} and a robot of {'x'.join(map(str, scene.robot.valid.shape))}"
        )
    scale = scale_of(scene)
    tokens = partial(_tokens, config=config)
    still = np.broadcast_to(scene.image / np.float32(127.5) - 1, (t, h, w, 3))
    nothing = np.zeros((t, h, w, 3), np.float32)
    around = nothing
    if config.environment and not config.prior:  # the prior has it
        if scene.environment is None:
            raise ValueError("this model wants the first frame's pointmap (environment): give depth")
        seen = np.where(scene.environment.valid[..., None], unit(scene.environment.points, scale), 0)
        around = np.broadcast_to(seen, (t, h, w, 3))
    mask, shape, colour = _signal(scene, config, scale, seed)
    given = None
    if config.prior:
        if scene.prior_rgb is None or scene.prior_points is None or scene.prior_known is None:
            raise ValueError("a painter needs the moved prior: its colour, points and what is known of it")
        ghost = domains(tokens(scene.prior_rgb / 127.5 - 1), tokens(unit(scene.prior_points.points, scale)), config)
        sure = tokens(scene.prior_known[..., None])
        given = torch.cat([ghost, _everywhere(sure, config)], -1)
    return Known(
        domains(tokens(still), tokens(around), config),
        # Where only colour is made, its tokens are told of the robot's points all the same.
        domains(tokens(colour if config.output == "4d" or config.control == "rgb" else shape), tokens(shape), config),
        _everywhere(tokens(mask[..., None]), config),
        given,
        positions(config)[None],
        _hints(scene, config, tokens(shape if config.control != "rgb" else colour)),
        manner(config.control),
        torch.arange(config.grid[0])[None],
        *_contact(scene, config, scale),
        *(_places(scene.environment, scale) if config.moving and scene.environment is not None else (None, None)),
    )


def _places(environment: Pointmap, scale: Normalisation) -> tuple[Tensor, Tensor]:
    """[1,h*w,4] the first frame's points and whether they are known, and [1,3,4] the camera that sees them, in the model's unit."""
    seen = environment.valid[0].reshape(-1, 1).astype(np.float32)
    points = np.concatenate([unit(environment.points[0].reshape(-1, 3), scale) * seen, seen], axis=-1)
    fx, cx, fy, cy = lens_of(environment)
    zero, ends = (unit(np.asarray(p, np.float64), scale) for p in (np.zeros(3), np.eye(3)))
    back = np.concatenate([np.eye(3) / np.diag(ends - zero), -(zero / np.diag(ends - zero))[:, None]], axis=1)
    lens = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]) @ back
    return torch.from_numpy(points)[None].float(), torch.from_numpy(lens)[None].float()


def grouped(x: np.ndarray, config: DiffusionConfig) -> Tensor:
    """[t,r,c,...] to [1,times,frames,k,...] in groups of frames, the first alone as often as a group is long."""
    p = config.patch[0]
    every = torch.from_numpy(np.concatenate([np.repeat(x[:1], p, axis=0), x[1:]])).float()
    return every.flatten(1, 2).unflatten(0, (-1, p))[None]


def _contact(scene: Scene, config: DiffusionConfig, scale: Normalisation) -> tuple[Tensor | None, Tensor | None]:
    """[1,times,frames,k,4] and [1,times,frames,k,6] what is known of contact, in groups of frames."""
    if not config.touches:
        return None, None
    reach, carry = scene.reach, scene.carry
    if reach is None or carry is None:
        assert scene.environment is not None  # checked with the first frame's pointmap
        reach = reach_of(scene.robot, scene.environment)
        carry, reach = carry_of(scene.actions, reach, scene.environment, scene.robot.valid[0])
    return grouped(reach, config) / 255, grouped(
        lengths(carry.reshape(*carry.shape[:3], 2, 3), scale).reshape(carry.shape), config
    )


def _everywhere(tokens: Tensor, config: DiffusionConfig) -> Tensor:
    """What is the same for both domains."""
    return tokens.repeat(1, 1 if config.layout == "channel" else config.domains, 1)


def _signal(
    scene: Scene, config: DiffusionConfig, scale: Normalisation, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The robot's mask, and what stands in the domains of points and of colour, by the kind of control."""
    there, kind = scene.robot.valid, config.control
    nothing = np.zeros((*there.shape, 3), np.float32)
    only = lambda values: np.where(there[..., None], values, 0).astype(np.float32)  # noqa: E731
    points, colour = only(unit(scene.robot.points, scale)), only(scene.robot_rgb / np.float32(127.5) - 1)
    shape = {
        "pointmap": points, "pointmap+rgb": points, "mask": only(np.ones((1, 1, 1, 3), np.float32)),
        "depth": points[..., 2:].repeat(3, axis=-1),
    }.get(kind, nothing)  # fmt: skip
    if config.mask == "none" or kind in ("embedding", "text", "none"):
        mask = np.zeros(there.shape, np.float32)  # otherwise the mask would tell what they must not know
    elif config.mask == "hard":
        mask = there.astype(np.float32)
    else:
        mask = soft_mask(there, seed=seed, ratio=config.soft_ratio)
    return mask, shape, colour if kind in ("rgb", "pointmap+rgb") else nothing


def _hints(scene: Scene, config: DiffusionConfig, robot: Tensor) -> Tensor:
    """What cross-attention reads."""
    if config.control == "text":
        return torch.tensor(words(scene.text))[None]
    if config.control == "none":
        return torch.zeros(1, 1, 1)
    if config.control == "embedding":
        p = config.patch[0]
        every = np.concatenate([np.repeat(scene.actions[:1], p, axis=0), scene.actions[1:]])
        return torch.from_numpy(every.reshape(1, -1, p * ACTION).astype(np.float32))
    t, rows, columns = config.grid
    x = robot.reshape(t, rows, columns, -1).permute(0, 3, 1, 2)
    # Patches in twos: the hints are about the whole robot, pixels are in the tokens already.
    return F.avg_pool2d(x, 2, ceil_mode=True).permute(0, 2, 3, 1).reshape(1, -1, x.shape[1])


def at_groups(known: Known, groups: Sequence[int]) -> Known:
    """What is known of some groups of frames of a longer clip, which of them these are."""
    which = torch.tensor(groups)
    where = torch.cat([which[known.where[..., :1]], known.where[..., 1:]], -1)
    return replace(known, where=where, when=which[known.when])


def some(known: Known, pick: Tensor) -> Known:
    """What is known of the tokens ``pick`` [b,k] alone."""
    at = lambda x: x.gather(1, pick[..., None].expand(-1, -1, x.shape[-1]))  # noqa: E731
    return replace(
        known, first=at(known.first), robot=at(known.robot), mask=at(known.mask), where=at(known.where),
        prior=None if known.prior is None else at(known.prior),
    )  # fmt: skip


# ---------------------------------------------------------------------- the flow


def target_of(
    rgb: UInt8[np.ndarray, "t h w 3"],
    points: Float[np.ndarray, "t h w 3"],
    scale: Normalisation,
    config: DiffusionConfig,
) -> Tensor:
    """A clip as tokens [1,n,...]."""
    return domains(_tokens(rgb / 127.5 - 1, config), _tokens(unit(points, scale), config), config)


def flow_loss(net: DiffusionNet, known: Known, target: Tensor, weight: Tensor) -> Tensor:
    """Where does the flow end that is on a straight line from noise to the clip? ``weight`` [b,n,...] says how much
    each value counts. Half of the clips start at nothing but noise, which is where every sample starts and few steps end."""
    time = shifted(torch.rand(len(target))) * (torch.rand(len(target)) > 0.5)
    x = time[:, None, None] * target + (1 - time[:, None, None]) * torch.randn_like(target)
    return ((net(x, known, time) - target).square() * weight).sum() / weight.sum().clamp(min=1.0)


def moved_loss(moved: Moved, away: Tensor) -> Tensor:
    """How far pixels of the first frame have gone, [b,times,frames,k,3] by the tracks, NaN where nobody knows; and whether."""
    told = away.isfinite().all(-1)
    away = away.nan_to_num()
    gone = (away.norm(dim=-1) > LEAST_AWAY).float()
    off = (moved.away - away).norm(dim=-1).clamp(max=LOST) * gone * told
    sure = F.binary_cross_entropy_with_logits(moved.gone, gone, reduction="none", pos_weight=torch.tensor(MORE)) * told
    return FAR * off.sum() / (gone * told).sum().clamp(min=50) + GONE * sure.sum() / told.sum().clamp(min=1)


def shifted(time: Tensor) -> Tensor:
    """Even times to those of the flow."""
    return time / (time + SHIFT * (1 - time))


@torch.no_grad()
def sample(net: DiffusionNet, known: Known, *, steps: int = STEPS, seed: int = 0) -> Tensor:
    """Tokens of a clip: from noise in ``steps`` steps of the flow."""
    if steps < 1:
        raise ValueError(f"the flow needs at least 1 step, got {steps}")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(known.first.shape, generator=generator)
    times = shifted(torch.linspace(0, 1, steps + 1)).tolist()
    for i, (now, then) in enumerate(pairwise(times)):
        end = net(x, known, torch.full((len(x),), now))
        x = end if i + 1 == steps else x + (end - x) * ((then - now) / (1 - now))
    return x


def clip_of(
    tokens: Tensor, scale: Normalisation, config: DiffusionConfig
) -> tuple[UInt8[np.ndarray, "t h w 3"], Float32[np.ndarray, "t h w 3"] | None]:
    """Colour and points (camera frame, metres) of one clip's tokens [1,n,...]."""
    colour, points = undomained(tokens, config)
    rgb = ((joined(colour, config)[0] + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
    if points is None:
        return rgb, None
    return rgb, scale.invert((joined(points, config)[0].numpy() + 1) / 2)
