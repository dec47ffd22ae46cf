from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusion_cases import TINY, H, T, W, a_control, a_scene

from kinema4d.simulate.long import rollout as long_rollout
from kinema4d.types import Pointmap
from kinema4d.world.load import load_world
from kinema4d.world.small import direct
from kinema4d.world.small.contact import FAR_M, TOUCH_M, carry_of, reach_of
from kinema4d.world.small.diffusion import DiffusionNet
from kinema4d.world.small.diffusion_config import CONTROLS, DiffusionConfig
from kinema4d.world.small.direct import DirectWorld, Memory, enlarged, load_direct, save_direct, scene_of, small
from kinema4d.world.small.patches import (
    Scene,
    clip_of,
    cut,
    domains,
    flow_loss,
    joined,
    known_of,
    lengths,
    positions,
    sample,
    scale_of,
    some,
    target_of,
    undomained,
    unit,
    words,
)
from kinema4d.world.small.pixels import touched_pixels, touches

PAINTER = replace(TINY, prior=True, attention="full", moves=False)


def test_patches_are_put_together_again():
    frames = torch.randn(2, T, H, W, 3)
    tokens = cut(frames, TINY)
    t, rows, columns = TINY.grid
    assert tokens.shape == (2, t * rows * columns, 3 * TINY.pixels)
    assert (t, rows, columns) == (3, 2, 3)
    torch.testing.assert_close(joined(tokens, TINY), frames, rtol=0, atol=0)
    for layout in ("width", "channel"):
        config = replace(TINY, layout=layout)
        a, b = undomained(domains(tokens, -tokens, config), config)
        torch.testing.assert_close(a, tokens, rtol=0, atol=0)
        assert b is not None
        torch.testing.assert_close(b, -tokens, rtol=0, atol=0)


def test_domains_share_their_positions_and_are_told_apart():
    where = positions(TINY)
    half = len(where) // 2
    torch.testing.assert_close(where[:half, :3], where[half:, :3])
    assert set(where[:half, 3].tolist()) == {0}
    assert set(where[half:, 3].tolist()) == {1}
    assert len(positions(replace(TINY, layout="channel"))) == half
    assert len(positions(replace(TINY, output="2d"))) == half


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("output", ["4d", "2d"])
def test_every_control_and_output_is_one_field(control, output):
    config = replace(TINY, control=control, output=output)
    scene, rgb, points = a_scene()
    net, known = DiffusionNet(config), known_of([scene, scene], config)
    target = target_of(rgb, points, scale_of(scene), config)
    loss = flow_loss(net, known, target.repeat(2, 1, 1), torch.ones_like(target).repeat(2, 1, 1))
    loss.backward()
    assert torch.isfinite(loss)
    made, geometry = clip_of(sample(net, known_of([scene], config), steps=2), scale_of(scene), config)
    assert made.shape == (T, H, W, 3)
    assert (geometry is None) == (output == "2d")


@pytest.mark.parametrize("control", ["embedding", "text", "none"])
def test_what_is_told_by_other_means_does_not_leak(control):
    """Without a picture of the robot no token may depend on where it goes."""
    config = replace(TINY, control=control)
    one, other = (known_of([a_scene(way)[0]], config) for way in (1, -1))
    assert torch.equal(one.robot, other.robot)
    assert not one.mask.any()
    assert torch.equal(one.hints, other.hints) == (control == "none")
    assert one.reach is None


def test_contact_is_how_near_the_robot_has_come_to_what_was_there_first():
    scene, *_ = a_scene()
    assert scene.environment is not None
    robot, places = scene.robot, scene.environment.points
    found = reach_of(robot, scene.environment)
    assert found.shape == (T, H // 2, W // 2, 2)
    now, ever = found[..., 0].astype(int), found[..., 1].astype(int)
    assert (ever >= now).all()
    assert (np.diff(ever, axis=0) >= 0).all()
    t, v, u = 3, 3, 2  # one place, the slow way
    away = np.linalg.norm(robot.points[t][robot.valid[t]] - places[0, 2 * v, 2 * u], axis=-1).min()
    assert now[t, v, u] == round(255 * np.exp(-away / TOUCH_M)) if away < FAR_M else now[t, v, u] == 0
    assert now[0, 3, 5] == 255  # the robot itself is there at first
    config = replace(TINY, control="pointmap")
    told = known_of([scene], config).reach
    assert told is not None
    assert told.shape == (1, 3, 2, (H // 2) * (W // 2), 4)
    things = np.where(robot.valid[0, ::2, ::2], 0, ever[2]) / 255  # what shows the robot is no thing that it touches
    np.testing.assert_allclose(told[0, 1, 1, :, 1].numpy().reshape(H // 2, W // 2), things, atol=1e-6)
    assert known_of([scene], replace(config, contact=False)).reach is None
    own = touches(told, config)
    assert own.shape == (1, 3 * 2 * 3, 4 * TINY.pixels // 4)
    pixel = joined(touched_pixels(own, known_of([scene], config).mask, config).chunk(2, 1)[0], config, 4)[0]
    np.testing.assert_allclose(pixel[2, ::2, ::2, 1].numpy(), things, atol=1e-6)


@pytest.mark.parametrize("side", [1, -1])
def test_what_the_hand_would_carry_moves_with_it_until_the_fingers_open(side: int):
    scene, *_ = a_scene()
    assert scene.environment is not None
    flat = scene.environment.points.copy()
    flat *= 1.0 / flat[..., 2:]  # a wall one metre away, of 20 pixels per metre
    flat[..., 0] *= side
    wall, nobody = Pointmap(points=flat, valid=scene.environment.valid), np.zeros((H, W), bool)
    actions = np.zeros((T, 10), np.float32)
    actions[:, 0], actions[:, [3, 7]] = 0.1 * side * np.arange(T), 1  # two pixels per frame, one place
    reach = np.zeros((T, H // 2, W // 2, 2), np.uint8)
    reach[1, 3, 5, 0] = 200
    reach[1:, 3, 5, 1] = 200
    away, told = carry_of(actions, reach, wall, nobody)
    np.testing.assert_allclose(away[:, 3, 5, 0], side * np.array([0, 0, 0.1, 0.2, 0.3]), atol=1e-6)
    assert not away[:, 3, 5, 1:3].any()
    np.testing.assert_allclose(away[:, 3, 5, 3:], away[:, 3, 5, :3], atol=1e-6)  # it goes straight on
    assert not away[:, 2, 2].any()  # nobody touched that
    assert told[3, 3, 7].tolist() == [0, 0, 200, 0]
    assert told[3, 3, 5].tolist() == [0, 200, 0, 0]
    closing = actions.copy()
    closing[0, 9] = 0.9
    closing[1:, 9] = (
        0.75  # decimetres: 1.5 cm nearer to each other, as on a thing that is nearly as wide as the hand opens
    )
    held, told = carry_of(closing, reach, wall, nobody)
    np.testing.assert_allclose(held, away)
    assert set(told[1:, 3, 5, 3].tolist()) <= {127, 128}
    assert not told[0, 3, 5, 3]
    assert not told[:, 2, 2, 3].any()
    open_again = actions.copy()
    open_again[3:, 9] = 0.4
    left, _ = carry_of(open_again, reach, wall, nobody)
    np.testing.assert_allclose(left[:, 3, 5, 0], side * np.array([0, 0, 0.1, 0.1, 0.1]), atol=1e-6)
    aside = actions.copy()
    aside[3:, 0], aside[3:, 1] = 0.2 * side, [0.1, 0.2]  # then up: what is carried goes along, what is pushed does not
    both, _ = carry_of(aside, reach, wall, nobody)
    np.testing.assert_allclose(both[:, 3, 5, 1], [0, 0, 0, 0.1, 0.2], atol=1e-6)
    np.testing.assert_allclose(both[:, 3, 5, 3], side * np.array([0, 0, 0.1, 0.1, 0.1]), atol=1e-6)
    assert not both[:, 3, 5, 4:].any()
    own = nobody.copy()
    own[6, 10] = True  # what shows the robot itself is not touched by it
    assert not carry_of(actions, reach, wall, own)[0].any()
    spin = actions.copy()
    spin[:, 0] = 0
    quarter = np.pi / 2 * np.arange(T) / 4
    spin[:, 3], spin[:, 4], spin[:, 6], spin[:, 7] = np.cos(quarter), np.sin(quarter), -np.sin(quarter), np.cos(quarter)
    reach[:, 3, 5] = 255
    reach[1:, 3, 5, 0] = 0
    turned, _ = carry_of(spin, reach, wall, nobody)
    x, y = flat[0, 6, 10, :2]
    np.testing.assert_allclose(turned[4, 3, 5, :3], [-y - x, x - y, 0], atol=1e-6)


def test_before_training_it_repeats_what_it_starts_from_and_the_control_path_is_zero():
    scene, *_ = a_scene()
    net = DiffusionNet(TINY)
    made, _ = clip_of(sample(net, known_of([scene], TINY)), scale_of(scene), TINY)
    assert np.abs(made.astype(int) - scene.image).max() <= 1
    assert not net.robot.weight.any()
    made, points = clip_of(sample(DiffusionNet(PAINTER), known_of([scene], PAINTER)), scale_of(scene), PAINTER)
    assert scene.prior_rgb is not None
    assert scene.prior_points is not None
    assert np.abs(made.astype(int) - scene.prior_rgb).max() <= 1
    assert points is not None
    np.testing.assert_allclose(points, scene.prior_points.points, atol=1e-4)


def test_split_attention_looks_along_one_time_and_one_place_by_turns():
    from kinema4d.world.small.diffusion import attend

    torch.manual_seed(0)
    times, places = 3, 5
    q, k, v = (torch.randn(1, 2, 2 * times * places, 4) for _ in range(3))
    time, place = (x.reshape(-1) for x in torch.meshgrid(torch.arange(times), torch.arange(places), indexing="ij"))
    for axis, own in ((3, time), (4, place)):
        own = own.repeat(2)  # both domains
        apart = own[:, None] != own[None]
        slow = (q @ k.transpose(-1, -2) / 2).masked_fill(apart, -1e9).softmax(-1) @ v
        torch.testing.assert_close(attend(q, k, v, (times, places), axis), slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["width", "channel"])
def test_each_pixel_knows_whether_it_shows_the_robot(layout):
    """The head that finishes pixels sees the signal of its own pixel, in both domains, and of no other."""
    config = replace(TINY, layout=layout, mask="none")
    net, known = DiffusionNet(config), known_of([a_scene()[0]], config)
    assert net.pixels is not None
    torch.manual_seed(0)
    torch.nn.init.normal_(net.pixels.mix.bias)  # the head alone: everything else still ends in zero
    x, time = torch.zeros_like(known.first), torch.zeros(1)
    before = net(x, known, time)
    robot = known.robot.clone()
    places = robot.shape[1] // (2 if layout == "width" else 1)
    at = robot.shape[1] - 1  # the last place, in the domain of points
    robot[0, at, -1] += 1.0  # its last pixel's z
    after = net(x, replace(known, robot=robot), time)
    other = (after - before).abs().unflatten(-1, (-1, config.pixels)).amax(2)[0]
    assert other[:, -1].nonzero().flatten().tolist() == sorted({places - 1, at})
    assert not other[:, :-1].any()


def test_a_mixed_model_learns_from_every_control_and_is_told_by_one():
    net = DiffusionNet(replace(TINY, control="mixed"))
    scene, *_ = a_scene()
    for control in ("pointmap", "rgb", "embedding", "text"):
        made = sample(net, known_of([scene], replace(TINY, control=control)), steps=1)
        assert torch.isfinite(made).all()
    with pytest.raises(ValueError, match="say which as control: pointmap, "):
        known_of([scene], replace(TINY, control="mixed"))


def test_masks_are_hard_soft_or_none():
    scene, *_ = a_scene()
    there = int(scene.robot.valid[1:].sum())
    counts = {}
    for mask in ("none", "hard", "soft"):
        tokens = undomained(known_of([scene], replace(TINY, mask=mask, soft_ratio=0.5)).mask, TINY)[0]
        frames = joined(tokens, TINY, 1)[0, 1:]
        counts[mask] = [int((frames == v).sum()) for v in (0.5, 1.0)]
    assert counts["none"] == [0, 0]
    assert counts["hard"] == [0, there]
    assert sum(counts["soft"]) == there
    assert counts["soft"][0] > 0.3 * there


def test_some_tokens_are_those_tokens():
    scene, *_ = a_scene()
    known = known_of([scene], PAINTER)
    pick = torch.tensor([[3, 0, 7]])
    few = some(known, pick)
    torch.testing.assert_close(few.first[0], known.first[0, [3, 0, 7]])
    torch.testing.assert_close(few.where[0], known.where[0, [3, 0, 7]])
    assert few.prior is not None
    assert few.prior.shape[1] == 3
    # Attention sees a set: in whatever order places come (the same in both domains), each is answered the same.
    net = DiffusionNet(PAINTER)
    torch.manual_seed(0)
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.1)
    places = known.first.shape[1] // 2
    mixed = torch.randperm(places)
    x, order = torch.randn_like(known.first), torch.cat([mixed, mixed + places])[None]
    time = torch.tensor([0.3])
    straight = net(x, known, time)[:, order[0]]
    torch.testing.assert_close(net(x[:, order[0]], some(known, order), time), straight, rtol=1e-4, atol=1e-4)


def trained(config: DiffusionConfig, scenes: list[tuple[Scene, np.ndarray, np.ndarray]], steps: int) -> DiffusionNet:
    torch.manual_seed(0)
    net = DiffusionNet(config)
    known = known_of([s for s, *_ in scenes], config)
    target = torch.cat([target_of(rgb, points, scale_of(s), config) for s, rgb, points in scenes])
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = flow_loss(net, known, target, torch.ones_like(target))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


def test_it_learns_that_the_future_follows_the_robot():
    """Two futures of one first image: the robot's pointmap tells them apart, nothing else does."""
    scenes = [a_scene(1), a_scene(-1)]
    assert np.array_equal(scenes[0][0].image, scenes[1][0].image)

    def errors(config: DiffusionConfig) -> list[float]:
        net = trained(config, scenes, 400)
        out = []
        for scene, rgb, _ in scenes:
            made, _ = clip_of(sample(net, known_of([scene], config)), scale_of(scene), config)
            out.append(float(np.mean((made[-1].astype(float) - rgb[-1]) ** 2)))
        return out

    told, untold = errors(TINY), errors(replace(TINY, control="none"))
    assert max(told) < 0.35 * max(untold)
    assert max(told) < 400


def test_seeds_reproduce_and_steps_are_checked():
    scene, *_ = a_scene()
    net = trained(TINY, [a_scene()], 5)
    known = known_of([scene], TINY)
    assert torch.equal(sample(net, known, seed=3), sample(net, known, seed=3))
    assert not torch.equal(sample(net, known, seed=3), sample(net, known, seed=4))
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        sample(net, known, steps=0)


def test_units_keep_shapes_and_come_back():
    scene, _, points = a_scene()
    scale = scale_of(scene)
    x = unit(points, scale)
    np.testing.assert_allclose(scale.invert((x + 1) / 2), points, atol=1e-5)
    assert np.ptp(scale.maximum - scale.minimum) == 0


def test_words_are_numbers_that_stay():
    assert words("Open the drawer")[:3] == words("open the drawer now")[:3]
    assert words("")[0] == 0
    assert len(words("a " * 99)) == 16


@pytest.mark.parametrize(
    ("field", "match"),
    [
        ({"height": 50}, "cannot be cut into patches"),
        ({"frames": 48}, "1 \\+ a multiple of 2"),
        ({"control": "smell"}, "unknown control 'smell'"),
        ({"heads": 5}, "cannot be shared by 5 heads"),
        ({"soft_ratio": 1.5}, "between 0 and 1, got 1.5"),
        ({"detail": 0}, "moves need a head per pixel"),
        ({"patch": (2, 2, 2)}, "a multiple of 4 rows and columns, got 2x2"),
    ],
)
def test_bad_configurations_are_refused(field, match):
    with pytest.raises(ValueError, match=match):
        replace(TINY, **field)


def test_scenes_of_another_size_or_without_what_is_needed_are_refused():
    scene, *_ = a_scene()
    with pytest.raises(ValueError, match="this model sees 5x24x24"):
        known_of([scene], replace(TINY, height=24))
    with pytest.raises(ValueError, match="give depth"):
        known_of([replace(scene, environment=None)], replace(TINY, environment=True))
    with pytest.raises(ValueError, match="a painter needs the moved prior"):
        known_of([replace(scene, prior_rgb=None)], PAINTER)


# ---------------------------------------------------------------------- as a world


def test_as_a_world_it_keeps_the_picture_s_size_and_the_robot_s_points(tmp_path: Path):
    image, control = a_control()
    world = DirectWorld(trained(TINY, [a_scene()], 60))
    depth = np.full(image.shape[:2], 1.0, np.float32)
    made = world.simulate(image, control, depth=depth, seed=1)
    assert made.clip.rgb.shape == (T, *image.shape)
    np.testing.assert_array_equal(made.clip.rgb[0], image)
    own = control.mask
    np.testing.assert_array_equal(made.clip.pointmap.points[own], control.pointmap.points[own])
    save_direct(tmp_path / "direct.safetensors", world.net, {"steps": 60})
    again = load_world(tmp_path / "direct.safetensors")
    assert isinstance(again, DirectWorld)
    assert again.net.config == TINY
    other = again.simulate(image, control, depth=depth, seed=1).clip.rgb
    assert np.abs(other.astype(int) - made.clip.rgb).mean() < 0.5  # float16
    (tmp_path / "direct.safetensors").write_bytes((tmp_path / "direct.safetensors").read_bytes()[:-8])
    with pytest.raises(ValueError, match="is damaged"):
        load_direct(tmp_path / "direct.safetensors")


def test_without_a_sensor_the_first_pointmap_is_guessed(monkeypatch):
    image, control = a_control()
    asked = []

    def guessed(rgb, part, eyes, *, told):
        asked.append(rgb.shape)
        return np.full(rgb.shape[:3], 1.5, np.float32)

    monkeypatch.setattr(direct, "reconstructed", guessed)
    world = DirectWorld(DiffusionNet(TINY))
    made = world.simulate(image, control)
    assert asked == [(1, *image.shape)]
    free = ~control.mask
    np.testing.assert_allclose(made.clip.pointmap.depth[free], 1.5, atol=1e-3)
    DirectWorld(DiffusionNet(replace(TINY, environment=False))).simulate(image, control)
    assert len(asked) == 1


def test_shorter_signals_wait_and_longer_ones_are_refused():
    image, control = a_control(3)
    world = DirectWorld(DiffusionNet(TINY))
    assert len(world.simulate(image, control).clip) == 3
    scene = scene_of(image, control, TINY)
    np.testing.assert_array_equal(scene.robot.valid[3], scene.robot.valid[2])
    np.testing.assert_array_equal(scene.image, small(image, H, W))
    long = replace(TINY, frames=3)
    with pytest.raises(ValueError, match="at most 3 frames at once, got 5"):
        DirectWorld(DiffusionNet(long)).simulate(*a_control())


def test_chunks_remember_the_very_first_background():
    """A bright block covers the table in the chunk's own first frame, and has left it in what was generated."""
    image, control = a_control()
    table = image.copy()
    table[...] = (60, 120, 90)
    hidden = table.copy()
    hidden[12:30, 24:39] = (220, 40, 60)
    depth = np.full(image.shape[:2], 1.0, np.float32)
    now, first = (Memory(image=i, depth=depth * z) for i, z in ((hidden, 0.7), (table, 1.0)))
    made = np.repeat(small(table, H, W)[None], T, axis=0)
    made = np.clip(made.astype(int) + 4, 0, 255).astype(np.uint8)  # a little off, as networks are
    z = np.full((T, H, W), 1.3, np.float32)
    alone, remembered = (enlarged(k, control, made, z, told=False) for k in ([now], [now, first]))
    own = np.s_[1:, 14:28, 27:36]
    np.testing.assert_array_equal(remembered.rgb[own], np.broadcast_to(table, (T, *table.shape))[own])
    np.testing.assert_array_equal(remembered.pointmap.depth[own], 1.0)
    assert (alone.rgb[own] != remembered.rgb[own]).any()
    np.testing.assert_array_equal(alone.rgb[0], hidden)
    world = DirectWorld(DiffusionNet(replace(TINY, frames=3)))
    rollout = long_rollout(world, image, control, depth=depth)
    assert rollout.provenance["chunks"] == [0, 2]
    assert isinstance(rollout.state, Memory)
    np.testing.assert_array_equal(rollout.state.image, image)


def test_a_world_says_how_far_things_have_gone():
    """In metres at the end, at the size of the model, whatever its unit of length."""
    image, control = a_control()
    net = DiffusionNet(replace(TINY, control="text"))  # told nothing of contact
    depth = np.full(image.shape[:2], 1.5, np.float32)
    world = DirectWorld(net)
    scene = scene_of(image, control, net.config, depth=depth)
    metres = np.array([0.1, -0.05, 0.2], np.float32)
    assert net.moves is not None
    with torch.no_grad():
        assert net.moves.leave.bias is not None
        net.moves.leave.bias[:3] = torch.from_numpy(lengths(metres, scale_of(scene)))
        net.moves.leave.bias[3:] = torch.tensor([-20.0, -20.0, 20.0, 20.0])
    found = world.said(image, control, depth=depth)
    assert found is not None
    away, sure = found
    assert away.shape == (H, W, 3)
    np.testing.assert_allclose(away, np.broadcast_to(metres, away.shape), atol=1e-5)
    assert sure.shape == (H, W)
    assert (sure > 0.99).all()
    assert DirectWorld(DiffusionNet(replace(TINY, moves=False))).said(image, control, depth=depth) is None


def test_the_weights_of_the_package_are_a_world():
    from kinema4d.world.load import load_world
    from kinema4d.world.small.direct import SHIPPED

    assert SHIPPED.stat().st_size < 30e6
    world = load_world("small-direct")
    assert isinstance(world, DirectWorld)
    assert world.net.config.control == "pointmap+rgb"
    assert world.net.moves is not None
    image, control = a_control(3)
    made = world.simulate(image, control, depth=np.full(image.shape[:2], 1.5, np.float32), steps=1)
    assert made.clip.rgb.shape == (3, *image.shape)
    np.testing.assert_array_equal(made.clip.rgb[0], image)
    assert np.isfinite(made.clip.pointmap.points).all()
    weights = made.provenance["weights"]
    assert weights["file"] == "direct.safetensors"
