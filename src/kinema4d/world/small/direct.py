"""The world ``small-direct``: the 4D diffusion transformer alone, as in the paper, with no parts and no engine.

It sees the first image and the robot's control signal at its own small size, generates colour and pointmap of the whole
clip at once, and carries them to the picture's size: what did not change keeps the pixels of the picture, and the robot's
points are those of its kinematics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, UInt8
from PIL import Image

from kinema4d.geometry.camera import unproject
from kinema4d.types import Clip, Control, Pointmap, Rollout
from kinema4d.world.protocol import check_view
from kinema4d.world.small.machine import guard

guard()

from kinema4d.world.small.diffusion import ACTION, DiffusionConfig, DiffusionNet  # noqa: E402
from kinema4d.world.small.patches import STEPS, Scene, clip_of, known_of, sample, scale_of  # noqa: E402
from kinema4d.world.weights_file import fill_in, read_weights, write_weights  # noqa: E402

FORMAT = "kinema4d small direct 1"
"""What a file says it is."""
AGAIN = "train one with kinema4d train --preset small-direct"
SAME, OTHER = 6.0, 18.0
"""Colours that differ less from the first frame are taken as unchanged, more as changed, of 255."""


@dataclass(frozen=True, eq=False)
class DirectWorld:
    """The network and its sampler."""

    net: DiffusionNet
    """Trained by ``kinema4d train --preset small-direct``."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Which weights these are."""
    name: str = "small-direct"
    """Its name in tables."""

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
    ) -> Rollout:
        """The future of ``image`` under ``control``, one sample by ``seed``. ``depth`` is used where nothing changes, and by
        models that want the first frame's pointmap; ``text`` by models that are told by text."""
        config, count = self.net.config, len(control)
        if count > config.frames:
            raise ValueError(
                f"this model generates at most {config.frames} frames at once, got {count}: use kinema4d.simulate, "
                "which goes on in chunks"
            )
        has_depth = check_view(image, control, depth)
        scene = scene_of(image, control, config, depth=depth if has_depth.any() else None, text=text)
        tokens = sample(self.net, known_of([scene], config, seed=seed), steps=steps, seed=seed)
        rgb, points = clip_of(tokens, scale_of(scene), config)
        clip = enlarged(image, control, rgb[:count], None if points is None else points[:count], depth, has_depth)
        weights = {k: self.about[k] for k in ("file", "sha256") if k in self.about}
        return Rollout(
            clip=clip,
            provenance={"world": self.name, "seed": seed, "steps": steps, "weights": weights, "config": asdict(config)},
        )


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
    rows, columns = picks(image.shape[:2], config)
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


def picks(size: tuple[int, int], config: DiffusionConfig) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a picture of this size that a model sees of its geometry: what is in the middle of its pixels."""
    rows, columns = (
        ((np.arange(n) + 0.5) * whole / n).astype(int)
        for n, whole in zip((config.height, config.width), size, strict=True)
    )
    return rows, columns


def small(image: UInt8[np.ndarray, "h w 3"], height: int, width: int) -> UInt8[np.ndarray, "_ _ 3"]:
    """A picture of this size, by the mean of what each pixel covers."""
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))


def actions_of(control: Control) -> Float32[np.ndarray, "t 10"]:
    """What a policy would call the action: position and turn of the hand, and how far its fingers are apart."""
    palms = [s for s in control.solids if s.role == "palm"] or list(control.solids[-1:])
    out = np.zeros((len(control), ACTION), np.float32)
    if palms:
        T = palms[0].Ts_world_link
        out[:, :3], out[:, 3:9] = T[:, :3, 3], T[:, :3, :2].transpose(0, 2, 1).reshape(-1, 6)
    fingers = [
        s.Ts_world_link[:, :3, 3] + s.Ts_world_link[:, :3, :3] @ s.vertices.mean(0)
        for s in control.solids
        if s.role == "finger"
    ]
    if len(fingers) > 1:
        out[:, 9] = 10 * np.linalg.norm(fingers[0] - fingers[-1], axis=1)
    return out


def enlarged(
    image: UInt8[np.ndarray, "h w 3"],
    control: Control,
    rgb: UInt8[np.ndarray, "t _ _ 3"],
    points: Float32[np.ndarray, "t _ _ 3"] | None,
    depth: Float[np.ndarray, "h w"] | None,
    has_depth: np.ndarray,
) -> Clip:
    """A generated clip at the size of the picture. Where it does not differ from its first frame the picture stays."""
    h, w = image.shape[:2]
    up = lambda a: np.asarray(Image.fromarray(a).resize((w, h), Image.Resampling.BILINEAR))  # noqa: E731
    first = small(image, *rgb.shape[1:3]).astype(np.float32)
    out, z = np.empty((len(rgb), h, w, 3), np.uint8), np.zeros((len(rgb), h, w), np.float32)
    still = np.where(has_depth, 0 if depth is None else depth, 0).astype(np.float32)
    for t, frame in enumerate(rgb):
        other = np.clip((np.abs(frame - first).max(axis=-1) - SAME) / (OTHER - SAME), 0, 1).astype(np.float32)
        changed = up(other)[..., None] if t else np.zeros((h, w, 1), np.float32)
        out[t] = np.round((1 - changed) * image + changed * up(frame))
        z[t] = 0 if points is None else np.maximum(up(np.ascontiguousarray(points[t, ..., 2])), 1e-3)
        z[t] = np.where((changed[..., 0] < 0.5) & has_depth, still, z[t])
    valid = np.broadcast_to(has_depth, z.shape) & (z > 0) if points is None else z > 0
    pointmap = unproject(control.camera.K, z)
    exact = control.mask
    pointmap = np.where(exact[..., None], control.pointmap.points, pointmap).astype(np.float32)
    given = np.where(has_depth[..., None], unproject(control.camera.K, still), pointmap[0])
    pointmap[0] = np.where(control.mask[0][..., None], pointmap[0], given)
    return Clip(
        camera=control.camera, rgb=out, pointmap=Pointmap(points=pointmap, valid=valid | exact), fps=control.fps
    )


# ---------------------------------------------------------------------- files


def save_direct(path: str | Path, net: DiffusionNet, about: dict[str, Any]) -> str:
    """Write a network in float16 with its configuration; returns its hash."""
    state = {f"net.{k}": v for k, v in net.state_dict().items()}
    return write_weights(path, state, FORMAT, asdict(net.config), about)


def load_direct(path: str | Path) -> DirectWorld:
    """The world of a file; one that is damaged, of another format or that does not fit its configuration is refused."""
    state, config, about = read_weights(path, FORMAT, AGAIN)
    net = DiffusionNet(DiffusionConfig(**{**config, "patch": tuple(config["patch"])}))
    fill_in({"net": net}, state, path, AGAIN)
    return DirectWorld(net, about)
