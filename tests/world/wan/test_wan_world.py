"""The whole path on a tiny Wan: encode, sample, decode, metres."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="the full-scale model needs diffusers: pip install 'kinema4d[wan]'")
pytest.importorskip("transformers", reason="the full-scale model needs transformers: pip install 'kinema4d[wan]'")
import torch
import wan_reference as reference
from diffusion_cases import a_control
from wan_cases import an_input

from kinema4d.simulate.long import rollout as long_rollout
from kinema4d.types import Pointmap
from kinema4d.world.condition import normalisation
from kinema4d.world.wan import tiny
from kinema4d.world.wan.condition import Told, arm_of, first_latents, given_mask, robot_mask, slope
from kinema4d.world.wan.latents import KINEMA4D, as_frames, as_video, decode, encode, latent_shape, measured
from kinema4d.world.wan.metric import metric
from kinema4d.world.wan.model import Variant
from kinema4d.world.wan.options import Sampling
from kinema4d.world.wan.sample import sample, solver_of, velocity
from kinema4d.world.wan.world import WanWorld

HEADS = tiny.WAN["num_attention_heads"]


def told_of(variant: Variant) -> tuple[Told, torch.Tensor, torch.Tensor]:
    x, time, arm, image = (v[:1] for v in an_input(variant))
    return Told(x[:, 20:], x[:, 16:20], arm, image), x[:, :16], time


@pytest.mark.parametrize("variant", ["act", "pmcond"])
def test_official_guidance_is_the_release_s_arithmetic_and_single_is_one_pass(variant: Variant):
    model = tiny.transformer(variant)
    told, x, time = told_of(variant)
    state, args = dict(model.state_dict()), (time, told.arm, told.image)
    with torch.no_grad():
        slow = reference.official(state, told.beside(x), *args, variant=variant, heads=HEADS)
        once = reference.forward(state, told.beside(x), *args, variant=variant, heads=HEADS)
    fast = velocity(model, told, x, time, Sampling(guidance="official"))
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(velocity(model, told, x, time, Sampling()), once, rtol=1e-5, atol=1e-5)
    assert (fast - once).abs().max() > 1e-3
    assert Sampling(steps=50, guidance="official").evaluations == 2 * Sampling(steps=50).evaluations


@pytest.mark.parametrize("solver", ["unipc", "euler"])
def test_the_flow_ends_where_a_known_flow_ends(solver, monkeypatch):
    """Of a velocity that points from noise to one clip, every solver ends at that clip; times are shifted towards noise."""
    told, x, _ = told_of("act")
    goal = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    model = tiny.transformer("act")

    def toward(model, told, x, time, sampling):
        return (x - goal) / (time / 1000)

    monkeypatch.setattr("kinema4d.world.wan.sample.velocity", toward)
    made = sample(model, told, sampling=Sampling(steps=12, solver=solver), seed=1)
    torch.testing.assert_close(made, goal, rtol=1e-3, atol=2e-2)
    times = solver_of(Sampling(steps=10, solver=solver)).timesteps / 1000
    assert times[0] > 0.99
    assert float(times[5]) == pytest.approx(3 * 0.5 / (1 + 2 * 0.5), abs=0.08)  # shift 3 at the middle


@pytest.mark.parametrize(
    ("field", "match"),
    [
        ({"steps": 0}, "at least 1 step"), ({"solver": "x"}, "unknown solver 'x'"), ({"guidance": "x"}, "unknown guidance"),
        ({"shift": 0.0}, "must be positive"),
    ],
)  # fmt: skip
def test_bad_sampling_is_refused(field: dict[str, Any], match: str):
    with pytest.raises(ValueError, match=match):
        Sampling(**field)


def test_conditions_are_as_the_release_has_them():
    vae = tiny.vae()
    s = slope(6, 9)
    assert s[0, 0].tolist() == [0, 0, 1]
    assert s[-1, -1].tolist() == [1, 1, 0]
    image = np.random.default_rng(0).integers(0, 255, (16, 24, 3), np.uint8)
    first = first_latents(vae, image, 5)
    assert first.shape == (1, 16, 2, 2, 6)
    video = torch.zeros(1, 3, 5, 16, 48)
    video[0, :, 0, :, :24] = torch.from_numpy(image).permute(2, 0, 1) / 127.5 - 1
    video[0, :, 0, :, 24:] = torch.from_numpy(slope(16, 24)).permute(2, 0, 1) * 2 - 1
    torch.testing.assert_close(first, encode(vae, video))
    mask = given_mask(3, 2, 4)
    assert mask[0, :, 0, :, :4].unique().tolist() == [1.0]
    assert mask[0, :, 0, :, 4:].unique().tolist() == [0.5]
    assert not mask[:, :, 1:].any()
    there = np.zeros((9, 16, 24), bool)
    there[0, 8, 16] = there[3, 0, 0] = True
    there[8, 1, 1] = True  # between the pixels that are looked at
    robot = robot_mask(there)
    assert robot.shape == (3, 2, 3)
    assert np.argwhere(robot).tolist() == [[0, 1, 2], [1, 0, 0]]
    soft = robot_mask(np.ones((9, 80, 80), bool), soft=4)
    assert set(np.unique(soft).tolist()) == {0.5, 1.0}
    assert (soft == 0.5).mean() == pytest.approx(0.1, abs=0.01)
    points, colour = torch.randn(1, 16, 3, 2, 3), torch.randn(1, 16, 3, 2, 3)
    arm = arm_of(torch.from_numpy(robot)[None], colour, points, "act")
    assert arm.shape == (1, 20, 3, 2, 6)
    torch.testing.assert_close(arm[:, 4:, ..., :3], colour)
    torch.testing.assert_close(arm[:, 4:, ..., 3:], points)
    torch.testing.assert_close(arm[:, 2, ..., 3:], torch.from_numpy(robot)[None])
    assert arm_of(torch.from_numpy(robot)[None], None, points, "pmcond").shape == (1, 20, 3, 2, 3)
    with pytest.raises(ValueError, match="rgb=True"):
        arm_of(torch.from_numpy(robot)[None], None, points, "act")


def test_latents_come_back_and_points_have_their_own_scale():
    vae = tiny.vae()
    video = torch.rand(1, 3, 5, 16, 24) * 2 - 1
    z = encode(vae, video)
    raw = vae.encode(video).latent_dist.mode()
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    torch.testing.assert_close(z, (raw - mean) / std)
    torch.testing.assert_close(decode(vae, z), vae.decode(raw).sample.clamp(-1, 1), rtol=1e-4, atol=1e-4)
    assert not torch.equal(encode(vae, video, generator=torch.Generator().manual_seed(0)), z)
    torch.testing.assert_close(KINEMA4D.apply(z), (z + 0.17) / 1.36)
    torch.testing.assert_close(KINEMA4D.invert(KINEMA4D.apply(z)), z)
    found = measured([2 + 3 * torch.randn(20000), 2 + 3 * torch.randn(20000)])
    assert (found.mean, found.std) == (pytest.approx(2, abs=0.05), pytest.approx(3, abs=0.05))
    frames = np.random.default_rng(0).random((5, 8, 8, 3), np.float32)
    np.testing.assert_allclose(as_frames(as_video(frames)), frames, atol=1e-6)
    assert latent_shape(49, 480, 720) == (13, 60, 90)
    with pytest.raises(ValueError, match="1 \\+ 4k frames .* got 48x480x720: use 45 frames"):
        latent_shape(48, 480, 720)


def test_the_robot_fixes_scale_and_shift_of_the_whole_scene():
    rng = np.random.default_rng(0)
    _, control = a_control()
    truth = np.where(
        control.mask[..., None], control.pointmap.points, rng.uniform(-1, 3, (*control.mask.shape, 3))
    ).astype(np.float32)
    scale, shift = np.array([0.7, 1.3, 2.2]), np.array([-0.3, 0.1, 0.4])
    values = (truth - shift) / scale
    # The robot of these cases is flat: give it depth, and let a thing stand before a fifth of it.
    depth = np.linspace(0.6, 1.4, control.mask.shape[1])[None, :, None] * np.ones(control.mask.shape)
    truth[..., 2] = np.where(control.mask, depth, truth[..., 2])
    robot = Pointmap(points=truth.copy(), valid=control.mask)
    signal = normalisation(robot)
    values = (truth - shift) / scale
    hidden = control.mask & (rng.random(control.mask.shape) < 0.2)
    values[hidden] -= 0.2
    found = metric(values, robot, signal)
    np.testing.assert_allclose(found.scale, scale, rtol=0.02)
    np.testing.assert_allclose(found.shift, shift, atol=0.02)
    assert found.fitted == (True, True, True)
    assert found.residual_m < 0.01
    free = ~control.mask
    np.testing.assert_allclose(found.apply(values)[free], truth[free], atol=0.05)
    nobody = metric(values, Pointmap(points=robot.points, valid=np.zeros_like(control.mask)), signal)
    assert nobody.fitted == (False, False, False)
    np.testing.assert_allclose(nobody.scale, signal.maximum - signal.minimum)
    flat = values.copy()
    flat[..., 2] = 0.5  # a depth that does not change fixes no scale
    assert metric(flat, robot, signal).fitted == (True, True, False)


@pytest.fixture(scope="module")
def world() -> WanWorld:
    clip, eye = tiny.eye()
    return WanWorld(
        tiny.transformer("act"), tiny.vae(), clip, eye, frames=9, height=48, width=48, sampling=Sampling(steps=2)
    )


def test_the_whole_path_makes_a_metric_clip(world: WanWorld):
    image, control = a_control()
    depth = np.full(image.shape[:2], 1.0, np.float32)
    made = world.simulate(image, control, depth=depth, seed=3)
    assert made.clip.rgb.shape == (len(control), *image.shape)
    np.testing.assert_array_equal(made.clip.rgb[0], image)
    np.testing.assert_allclose(made.clip.pointmap.depth[0], 1.0)
    assert np.isfinite(made.clip.pointmap.points).all()
    assert made.provenance["variant"] == "act"
    assert len(made.provenance["metric"]["scale"]) == 3
    again = world.simulate(image, control, depth=depth, seed=3)
    np.testing.assert_array_equal(again.clip.rgb, made.clip.rgb)
    other = world.simulate(image, control, depth=depth, seed=4)
    assert (other.clip.rgb != made.clip.rgb).any()
    with pytest.raises(ValueError, match="at most 1 frames"):
        replace(world, frames=1).simulate(image, control)


def test_sizes_that_the_weights_do_not_allow_are_refused(world: WanWorld):
    with pytest.raises(ValueError, match="sides divisible by 24 .* got 9x50x48"):
        replace(world, height=50)
    with pytest.raises(ValueError, match="1 \\+ 4k frames"):
        replace(world, frames=8)


def test_longer_signals_go_on_in_chunks(world: WanWorld):
    image, control = a_control()
    made = long_rollout(replace(world, frames=5), image, control, depth=None)
    assert len(made.clip) == len(control)


def test_real_latents_of_wan_are_scaled_as_we_scale(data: Path):
    """Latents that a Wan2.1 pipeline left: scaled by its own statistics they are about one wide, and channel for channel the unscaled ones
    have the means and deviations that the VAE's configuration says, within what one clip may differ."""
    file = data / "wan" / "test_latents_wan.pth"
    if not file.is_file():
        pytest.skip(f"no real latents at {file}")
    z = torch.load(file, map_location="cpu", weights_only=True).float()
    assert z.shape == (1, 16, 16, 40, 64)
    assert abs(float(z.mean())) < 0.2
    assert 0.7 < float(z.std()) < 1.3
    config = tiny.vae().config
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (config["latents_mean"], config["latents_std"]))
    raw = z * std + mean
    spread = raw.std((0, 2, 3, 4)) / torch.tensor(config["latents_std"])
    assert 0.5 < float(spread.min()) <= float(spread.max()) < 1.5
    found = measured([z])
    assert (found.mean, found.std) == (
        pytest.approx(float(z.mean()), abs=1e-4),
        pytest.approx(float(z.std()), rel=1e-3),
    )
