"""The world ``small-direct``: the 4D diffusion transformer alone, as in the paper, with no parts and no engine.

It sees the first image and the robot's control signal at its own small size, generates colour and pointmap of the whole
clip at once, and carries them to the picture's size: what did not change keeps the pixels of the picture, and the robot's
points are those of its kinematics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, UInt8
from PIL import Image

from kinema4d.geometry.camera import picks, unproject
from kinema4d.types import Clip, Control, Pointmap, Rollout
from kinema4d.world.frames import at_size, window
from kinema4d.world.protocol import check_view
from kinema4d.world.small.machine import guard

guard()

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kinema4d.weights_file import fill_in, read_weights, write_weights  # noqa: E402
from kinema4d.world.small.diffusion import DiffusionNet  # noqa: E402
from kinema4d.world.small.diffusion_config import ACTION, TOLD, DiffusionConfig  # noqa: E402
from kinema4d.world.small.look import Eyes, View, guess  # noqa: E402
from kinema4d.world.small.patches import STEPS, Scene, clip_of, known_of, lengths, sample, scale_of  # noqa: E402
from kinema4d.world.small.pixels import PixelHead  # noqa: E402

SHIPPED = Path(__file__).parent / "weights" / "direct.safetensors"
"""The weights that come with the package."""
FORMAT = "kinema4d small direct 1"
"""What a file says it is."""
AGAIN = "train one with kinema4d train --preset small-direct"
SAME, OTHER = 6.0, 18.0
"""Colours that differ less from the first frame are taken as unchanged, more as changed, of 255."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """What a chunk remembers of the very first frame: the background that stays."""

    image: UInt8[np.ndarray, "h w 3"]
    """The picture."""
    depth: Float32[np.ndarray, "h w"]
    """Its depth, 0 where it is not known."""


@dataclass(frozen=True, eq=False)
class DirectWorld:
    """The network and its sampler."""

    net: DiffusionNet
    """Trained by ``kinema4d train --preset small-direct``."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Which weights these are."""
    name: str = "small-direct"
    """Its name in tables."""
    exact: bool = True
    """Whether the robot's points are those of its kinematics, in models that are told them, and those of what stands still
    the sensor's; otherwise all are the network's own, as ablations compare them."""
    eyes: Eyes | None = None
    """Guesses the geometry of pictures of models that make no points; default the package's own, read when needed."""

    @property
    def longest(self) -> int:
        """Frames that it generates at once; longer rollouts are chunked."""
        return self.net.config.frames

    def simulate(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        control: Control,
        *,
        depth: Float[np.ndarray, "_ _"] | None = None,
        seed: int = 0,
        steps: int = STEPS,
        text: str = "",
        past: Memory | None = None,
    ) -> Rollout:
        """The future of ``image`` under ``control``, one sample by ``seed``. ``depth`` is used where nothing changes, and by
        models that want the first frame's pointmap, for which it is guessed where it is not given; ``text`` by models that are told by text. ``past`` is the ``state`` of the
        rollout whose last frame ``image`` is: what looks as it did in the very first frame keeps those pixels."""
        config, count = self.net.config, len(control)
        scene, depth, has_depth = self._seen(image, control, depth, text)
        tokens = sample(self.net, known_of([scene], config, seed=seed), steps=steps, seed=seed)
        rgb, points = clip_of(tokens, scale_of(scene), config)
        told = config.control in TOLD
        z = reconstructed(rgb[:count], control, self.eyes, told=told) if points is None else points[:count, ..., 2]
        now = Memory(image=image, depth=np.where(has_depth, 0 if depth is None else depth, 0).astype(np.float32))
        known = [now] if past is None else [now, past]
        clip = enlarged(known, control, rgb[:count], z, exact=self.exact, told=told)
        weights = {k: self.about[k] for k in ("file", "sha256") if k in self.about}
        return Rollout(
            clip=clip,
            provenance={"world": self.name, "seed": seed, "steps": steps, "weights": weights, "config": asdict(config)},
            state=past or now,
        )

    def said(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        control: Control,
        *,
        depth: Float[np.ndarray, "_ _"] | None = None,
        text: str = "",
    ) -> tuple[Float32[np.ndarray, "r c 3"], Float32[np.ndarray, "r c"]] | None:
        """What it says itself of the last frame, before it draws it: how far (metres, camera frame) what each pixel of the first frame shows has gone, at the
        size of the model, and how sure it is that it has. None of a model without moves."""
        net, config = self.net, self.net.config
        if net.moves is None:
            return None
        scene, _, _ = self._seen(image, control, depth, text)
        with torch.no_grad():
            moved = net.moves(known_of([scene], config))
        unit = lengths(np.ones(3, np.float32), scale_of(scene))
        size = (config.height, config.width)
        return moved.away[0, -1, -1].numpy().reshape(*size, 3) / unit, moved.gone[0, -1, -1].sigmoid().numpy().reshape(
            size
        )

    def _seen(
        self, image: np.ndarray, control: Control, depth: np.ndarray | None, text: str
    ) -> tuple[Scene, np.ndarray | None, np.ndarray]:
        """What the model may know; and the depth of the first frame, guessed where a model wants it that has none, and where it is known."""
        config, count = self.net.config, len(control)
        if count > config.frames:
            raise ValueError(
                f"this model generates at most {config.frames} frames at once, got {count}: use kinema4d.simulate, "
                "which goes on in chunks"
            )
        has_depth = check_view(image, control, depth)
        if config.environment and not has_depth.any():
            guessed = reconstructed(image[None], window(control, slice(0, 1)), self.eyes, told=True)[0]
            depth, has_depth = guessed, guessed > 0
        return scene_of(image, control, config, depth=depth if has_depth.any() else None, text=text), depth, has_depth


def scene_of(
    image: UInt8[np.ndarray, "h w 3"],
    control: Control,
    config: DiffusionConfig,
    *,
    depth: Float[np.ndarray, "h w"] | None = None,
    text: str = "",
) -> Scene:
    """Image and control at the size of a model; a shorter signal waits at its end."""
    if control.rgb is None:
        raise ValueError("this control signal was made without colour; pass rgb=True to control()")
    rows, columns = picks(image.shape[:2], (config.height, config.width))
    pick = lambda a: a[:, rows][:, :, columns]  # noqa: E731
    frames = np.minimum(np.arange(config.frames), len(control) - 1)
    robot = Pointmap(points=pick(control.pointmap.points)[frames], valid=pick(control.pointmap.valid)[frames])
    around = None
    if depth is not None:
        seen = unproject(control.camera.K, np.where(depth > 0, depth, 1).astype(np.float32))[None]
        around = Pointmap(points=pick(seen), valid=pick((depth > 0)[None]))
    return Scene(
        image=small(image, config.height, config.width), robot=robot, robot_rgb=pick(control.rgb)[frames],
        actions=actions_of(control)[frames], text=text, environment=around,
    )  # fmt: skip


def small(image: UInt8[np.ndarray, "h w 3"], height: int, width: int) -> UInt8[np.ndarray, "_ _ 3"]:
    """A picture of this size, by the mean of what each pixel covers."""
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))


def actions_of(control: Control) -> Float32[np.ndarray, "t 10"]:
    """What a policy would call the action: position and turn of the hand before the first camera, and how far its fingers
    are apart."""
    palms = [s for s in control.solids if s.role == "palm"] or list(control.solids[-1:])
    out = np.zeros((len(control), ACTION), np.float32)
    if palms:
        T = np.linalg.inv(control.camera.poses(1)[0]) @ palms[0].Ts_world_link
        out[:, :3], out[:, 3:9] = T[:, :3, 3], T[:, :3, :2].transpose(0, 2, 1).reshape(-1, 6)
    fingers = [
        s.Ts_world_link[:, :3, 3] + s.Ts_world_link[:, :3, :3] @ s.vertices.mean(0)
        for s in control.solids
        if s.role == "finger"
    ]
    if len(fingers) > 1:
        out[:, 9] = 10 * np.linalg.norm(fingers[0] - fingers[-1], axis=1)
    return out


def reconstructed(
    rgb: UInt8[np.ndarray, "t h w 3"], control: Control, eyes: Eyes | None, *, told: bool
) -> Float32[np.ndarray, "t h w"]:
    """Depth of generated pictures, each guessed by the small world's network for pictures without a sensor: what Table 4
    calls 2D-out, which the paper reconstructs with ST-V2. ``told`` are the robot's pixels and their depth."""
    from kinema4d.world.small.checkpoint import load_small

    eyes = eyes or load_small()[0]
    seen = at_size(control, *rgb.shape[1:3])
    camera = replace(seen.camera, T_world_camera=seen.camera.poses(1)[0])
    robot, z = seen.mask & told, seen.pointmap.depth
    views = (
        View(rgb=c, depth=np.where(r, d, 0), robot=r, camera=camera) for c, r, d in zip(rgb, robot, z, strict=True)
    )
    return np.stack([guess(eyes, view)[0] for view in views])


def enlarged(
    known: Sequence[Memory],
    control: Control,
    rgb: UInt8[np.ndarray, "t _ _ 3"],
    z: Float32[np.ndarray, "t _ _"],
    *,
    exact: bool = True,
    told: bool = True,
) -> Clip:
    """A generated clip at the size of the picture. Where it looks like one of the ``known`` frames, of which the first is its
    own, that one's pixels stand, and where ``exact`` also their depth; and where ``told`` the robot's points."""
    h, w = known[0].image.shape[:2]
    up = lambda a: np.asarray(Image.fromarray(a).resize((w, h), Image.Resampling.BILINEAR))  # noqa: E731
    firsts = [small(k.image, *rgb.shape[1:3]).astype(np.float32) for k in known]
    out, far = np.empty((len(rgb), h, w, 3), np.uint8), np.empty((len(rgb), h, w), np.float32)
    for t, frame in enumerate(rgb):
        gaps = [np.abs(frame - first).max(axis=-1) for first in firsts]
        others = [np.clip((gap - SAME) / (OTHER - SAME), 0, 1).astype(np.float32) for gap in gaps]
        grown = np.stack([up(other) for other in others]) if t else np.zeros((1, h, w), np.float32)
        which = grown.argmin(axis=0)
        changed = grown.min(axis=0)
        still = np.choose(which[..., None], [k.image for k in known])
        seen = np.choose(which, [k.depth for k in known])
        out[t] = np.round((1 - changed[..., None]) * still + changed[..., None] * up(frame))
        far[t] = np.maximum(up(np.ascontiguousarray(z[t])), 1e-3)
        if exact:
            far[t] = np.where((changed < 0.5) & (seen > 0), seen, far[t])
    points = unproject(control.camera.K, far)
    if exact and told:
        points = np.where(control.mask[..., None], control.pointmap.points, points).astype(np.float32)
    everywhere = np.ones(far.shape, bool)
    return Clip(camera=control.camera, rgb=out, pointmap=Pointmap(points=points, valid=everywhere), fps=control.fps)


# ---------------------------------------------------------------------- files


def config_of(fields: Mapping[str, Any]) -> DiffusionConfig:
    """A configuration as a file has it."""
    return DiffusionConfig(**{**fields, "patch": tuple(fields["patch"])})


def save_direct(path: str | Path, net: DiffusionNet, about: dict[str, Any]) -> str:
    """Write a network in float16 with its configuration; returns its hash."""
    state = {f"net.{k}": v for k, v in net.state_dict().items()}
    return write_weights(path, state, FORMAT, asdict(net.config), about)


def load_direct(path: str | Path = SHIPPED) -> DirectWorld:
    """The world of a file (default: that of the package); one that is damaged, of another format or that does not fit its configuration is refused."""
    net, about = _read(path)
    if net.config.prior:
        raise ValueError(f"{path} is a painter, which is no world by itself: use it with small")
    return DirectWorld(net, about)


def load_painter(path: str | Path) -> DiffusionNet:
    """The painter of a file."""
    net, _ = _read(path)
    if not net.config.prior:
        raise ValueError(
            f"{path} is a world of its own, no painter: train one with kinema4d train --preset small-paint"
        )
    return net


def _read(path: str | Path) -> tuple[DiffusionNet, dict[str, Any]]:
    state, config, about = read_weights(path, FORMAT, AGAIN)
    net = DiffusionNet(config_of(config))
    fill_in({"net": net}, state, path, AGAIN)
    return net, about


def start_from(net: DiffusionNet, path: str | Path) -> list[str]:
    """Begin with the weights of a model of the same size that may be told of the robot in another way, as the paper begins
    with 4DNeX; returns the names of tensors that it does not have in this shape, which stay as they are."""
    state, config, _ = read_weights(path, FORMAT, AGAIN)
    size = ("patch", "channels", "layers", "heads", "layout")
    other = [n for n in size if json.dumps(config[n]) != json.dumps(getattr(net.config, n))]
    if other:
        raise ValueError(
            f"{path} cannot be started from: its {other[0]} is {config[other[0]]}, here {getattr(net.config, other[0])}"
        )
    own = net.state_dict()
    theirs = {n.removeprefix("net."): v.float() for n, v in state.items()}
    if "domain" in theirs:  # a model of colour alone has the first of two
        theirs["domain"] = theirs["domain"][: len(own["domain"])]
    have, want = (PixelHead.inputs(c) for c in (config_of(config), net.config))
    if "pixels.weight" in theirs:  # by name; what it was not told starts at zero
        wide = F.pad(theirs["pixels.weight"], (0, 1))
        theirs["pixels.weight"] = wide[:, [have.index(n) if n in have else -1 for n in want]]
    fits = {n: v for n, v in theirs.items() if n in own and own[n].shape == v.shape}
    net.load_state_dict(fits, strict=False)
    return sorted(own.keys() - fits.keys())
