from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the small world needs torch: pip install 'kinema4d[world]'")
import torch
from diffusion_cases import a_control

from kinema4d.types import Control, Pointmap
from kinema4d.world.load import load_world
from kinema4d.world.small.diffusion import DiffusionNet
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.direct import load_direct, load_painter, save_direct
from kinema4d.world.small.painter import changing, corrected, near, painted, painter_config, scene_of
from kinema4d.world.small.patches import known_of
from kinema4d.world.small.prior import Prior
from kinema4d.world.small.world import SmallWorld

CONFIG = painter_config(frames=5, height=16, width=24, patch=(2, 8, 8), channels=48, layers=2)


def a_prior(frames: int = 5) -> tuple[np.ndarray, Control, Prior]:
    """The robot goes right over a table, and a hole that it leaves is a guess."""
    image, control = a_control(frames)
    rgb = np.repeat(image[None], frames, axis=0)
    assert control.rgb is not None
    rgb[1:][control.mask[1:]] = control.rgb[1:][control.mask[1:]]
    known = np.ones(control.mask.shape, bool)
    left = control.mask[:1] & ~control.mask
    known[left], rgb[left] = False, 90
    z = np.where(control.mask, 0.7, 1.0).astype(np.float32)
    v, u = np.mgrid[: z.shape[1], : z.shape[2]]
    K = control.camera.K
    points = np.stack([(u - K[0, 2]) / K[0, 0] * z, (v - K[1, 2]) / K[1, 1] * z, z], axis=-1).astype(np.float32)
    return image, control, Prior(
        rgb=rgb, pointmap=Pointmap(points=points, valid=np.ones(z.shape, bool)), known=known, part_ids=np.zeros(z.shape, np.uint16)
    )  # fmt: skip


def loud(config: DiffusionConfig = CONFIG) -> DiffusionNet:
    """A painter that changes whatever it may."""
    torch.manual_seed(0)
    net = DiffusionNet(config)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return net.eval()


def test_an_untrained_painter_changes_nothing():
    image, control, prior = a_prior()
    made = painted(DiffusionNet(CONFIG), image, control, prior)
    np.testing.assert_array_equal(made.rgb, prior.rgb)
    np.testing.assert_allclose(made.pointmap.points, prior.pointmap.points, atol=1e-5)


def test_only_what_changed_is_painted_and_the_robot_keeps_its_points():
    image, control, prior = a_prior()
    made = painted(loud(), image, control, prior)
    np.testing.assert_array_equal(made.rgb[0], prior.rgb[0])
    same = (prior.rgb == prior.rgb[:1]).all(axis=-1) & prior.known & ~control.mask & ~control.mask[:1]
    np.testing.assert_array_equal(made.rgb[same], prior.rgb[same])
    np.testing.assert_array_equal(made.pointmap.points[control.mask], prior.pointmap.points[control.mask])
    assert (made.rgb != prior.rgb).any()


def test_tokens_near_change_are_few_and_hold_all_of_it():
    image, control, prior = a_prior()
    scene = scene_of(image, control, prior, CONFIG)
    pick = near(changing(scene), CONFIG)
    places = int(np.prod(CONFIG.grid))
    assert set(pick[: len(pick) // 2] + places) == set(pick[len(pick) // 2 :])
    assert pick.min() >= CONFIG.grid[1] * CONFIG.grid[2]  # nothing of the first frame
    colour, points = corrected(loud(), scene)
    assert points is not None
    touched = np.abs(colour).max(axis=-1) > 0
    assert (touched | ~changing(scene)).all()
    nothing = replace(scene, prior_rgb=np.repeat(scene.image[None], 5, axis=0), prior_known=np.ones((5, 16, 24), bool))
    assert nothing.prior_points is not None
    still = replace(nothing, prior_points=Pointmap(
        points=np.repeat(nothing.prior_points.points[:1], 5, axis=0), valid=nothing.prior_points.valid))  # fmt: skip
    assert len(near(changing(still), CONFIG)) == 0
    assert not corrected(loud(), still)[0].any()


def test_long_clips_are_painted_in_chunks_that_all_begin_with_the_picture():
    image, control, prior = a_prior()
    short = replace(CONFIG, frames=3)
    made = painted(loud(short), image, control, prior)
    last = np.r_[0, 3:5]
    points = Pointmap(points=prior.pointmap.points[last], valid=prior.pointmap.valid[last])
    part = replace(prior, rgb=prior.rgb[last], pointmap=points, known=prior.known[last], part_ids=prior.part_ids[last])
    from kinema4d.world.frames import window

    alone = painted(loud(short), image, window(control, last), part)
    np.testing.assert_array_equal(made.rgb[3:], alone.rgb[1:])


def test_painters_and_worlds_are_told_apart(tmp_path: Path):
    save_direct(tmp_path / "paint.safetensors", DiffusionNet(CONFIG), {})
    save_direct(tmp_path / "direct.safetensors", DiffusionNet(replace(CONFIG, prior=False)), {})
    world = load_world("small", painter=tmp_path / "paint.safetensors")
    assert isinstance(world, SmallWorld)
    assert world.painter is not None
    assert world.painter.config == CONFIG
    with pytest.raises(ValueError, match="is a painter, which is no world by itself"):
        load_direct(tmp_path / "paint.safetensors")
    with pytest.raises(ValueError, match="is a world of its own, no painter"):
        load_painter(tmp_path / "direct.safetensors")
    with pytest.raises(ValueError, match="not static"):
        load_world("static", painter=tmp_path / "paint.safetensors")


def test_a_painter_needs_attention_over_any_tokens():
    with pytest.raises(ValueError, match="attention"):
        painter_config(attention="split")
    assert known_of([scene_of(*a_prior(), CONFIG)], CONFIG).prior is not None
