"""A robot that is a block before a table, and its future: what the diffusion transformers are tried on."""

from __future__ import annotations

import numpy as np

from kinema4d.types import Camera, Control, Pointmap
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.patches import Scene

TINY = DiffusionConfig(frames=5, height=16, width=24, patch=(2, 8, 8), channels=48, layers=2, heads=4)
H, W, T = TINY.height, TINY.width, TINY.frames


def a_scene(way: int = 1, seed: int = 0) -> tuple[Scene, np.ndarray, np.ndarray]:
    """A robot (a bright block before a table) that goes ``way`` columns per frame, and the true future."""
    rng = np.random.default_rng(seed)
    image = np.full((H, W, 3), 90, np.uint8)
    image[..., 0] = (np.arange(W) * 6)[None]
    z = np.full((T, H, W), 1.0, np.float32)
    rgb = np.repeat(image[None], T, axis=0)
    mask = np.zeros((T, H, W), bool)
    for t in range(T):
        left = 8 + way * t
        mask[t, 4:10, left : left + 5] = True
    rgb[mask], z[mask] = (220, 40, 60), 0.7
    v, u = np.mgrid[:H, :W]
    points = np.stack([(u - W / 2) / 20 * z, (v - H / 2) / 20 * z, z], axis=-1).astype(np.float32)
    robot = Pointmap(points=np.where(mask[..., None], points, np.float32(0)), valid=mask)
    actions = np.zeros((T, 10), np.float32)
    actions[:, 0] = way * np.arange(T)
    scene = Scene(
        image=rgb[0], robot=robot, robot_rgb=np.where(mask[..., None], rgb, 0).astype(np.uint8), actions=actions,
        text="go right" if way > 0 else "go left", environment=Pointmap(points=points[:1], valid=np.ones((1, H, W), bool)),
        prior_rgb=rgb, prior_points=Pointmap(points=points, valid=np.ones((T, H, W), bool)),
        prior_known=rng.random((T, H, W)) < 0.9,
    )  # fmt: skip
    return scene, rgb, points


def a_control(frames: int = T, factor: int = 3) -> tuple[np.ndarray, Control]:
    scene, *_ = a_scene()
    grow = lambda a: a.repeat(factor, 1).repeat(factor, 2)[:frames]  # noqa: E731
    camera = Camera(
        K=np.array([[60.0, 0, 35.5], [0, 60, 23.5], [0, 0, 1]]), T_world_camera=np.eye(4), height=H * factor, width=W * factor
    )  # fmt: skip
    mask = grow(scene.robot.valid)
    control = Control(
        camera=camera, pointmap=Pointmap(points=grow(scene.robot.points), valid=mask), link_ids=mask.astype(np.uint16),
        link_names=("hand",), arms=(), fps=10.0, rgb=grow(scene.robot_rgb),
    )  # fmt: skip
    return scene.image.repeat(factor, 0).repeat(factor, 1), control
