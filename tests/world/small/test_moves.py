"""Pixels of the first frame, moved in space and drawn anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusion_cases import TINY, H, W, a_scene

from kinema4d.types import Pointmap
from kinema4d.world.small.diffusion import DiffusionNet
from kinema4d.world.small.hints import Hints
from kinema4d.world.small.moves import GRIPPED, START, Moves, frames_of, tokens_of
from kinema4d.world.small.patches import Scene, at_groups, clip_of, known_of, lengths, moved_loss, sample, scale_of

CONFIG = replace(TINY, control="text")  # told nothing of contact


def a_wall() -> Scene:
    """A picture of random colours one metre away, of 20 pixels per metre."""
    scene, *_ = a_scene()
    assert scene.environment is not None
    rng = np.random.default_rng(0)
    flat = scene.environment.points / scene.environment.points[..., 2:]
    wall = Pointmap(points=flat, valid=scene.environment.valid)
    return replace(scene, image=rng.integers(0, 255, (H, W, 3), dtype=np.uint8), environment=wall)


def a_net(scene: Scene, metres: tuple[float, float, float], config=CONFIG) -> DiffusionNet:
    """One that says of every pixel that it has gone so far."""
    net = DiffusionNet(config)
    assert net.moves is not None
    with torch.no_grad():
        assert net.moves.leave.bias is not None
        net.moves.leave.bias[:3] = torch.from_numpy(lengths(np.array(metres, np.float32), scale_of(scene)))
        net.moves.leave.bias[3:] = torch.tensor([-20.0, -20.0, 20.0, 20.0])
    return net


@pytest.mark.parametrize("layout", ["width", "channel"])
def test_frames_and_tokens_are_each_other_s_inverse(layout):
    config = replace(TINY, layout=layout)
    frames = torch.randn(2, 3, 2, 6, H, W)
    tokens = tokens_of(frames, config)
    assert tokens.shape == ((2, 36, 3 * TINY.pixels) if layout == "width" else (2, 18, 6 * TINY.pixels))
    if layout == "channel":
        torch.testing.assert_close(frames_of(tokens, config), frames, rtol=0, atol=0)
    else:
        both = [frames_of(half, config) for half in tokens.chunk(2, 1)]
        torch.testing.assert_close(torch.cat(both, 3), frames, rtol=0, atol=0)


@pytest.mark.parametrize(("right", "down"), [(0, 0), (2, 0), (-3, 1)])
@pytest.mark.parametrize("layout", ["width", "channel"])
@pytest.mark.parametrize("output", ["4d", "2d"])
def test_what_has_gone_is_drawn_where_it_went(right, down, layout, output):
    """20 pixels per metre: a twentieth of a metre is one pixel. Colour and points agree."""
    config = replace(CONFIG, layout=layout, output=output)
    scene = a_wall()
    net = a_net(scene, (right / 20, down / 20, 0.0), config)
    rgb, points = clip_of(sample(net, known_of([scene], config), steps=1), scale_of(scene), config)
    inner = np.s_[4:-4, 4:-4]
    there = np.roll(scene.image, (down, right), (0, 1))
    assert np.abs(rgb[-1][inner].astype(int) - there[inner]).max() <= 1
    assert scene.environment is not None
    if output == "4d":
        assert points is not None
        np.testing.assert_allclose(points[-1][inner], scene.environment.points[0][inner], atol=1e-4)


def test_what_comes_nearer_grows():
    scene = a_wall()
    assert scene.environment is not None
    near = a_net(scene, (0.0, 0.0, -0.2))
    _, points = clip_of(sample(near, known_of([scene], CONFIG), steps=1), scale_of(scene), CONFIG)
    assert points is not None
    middle = points[-1, H // 2 - 2 : H // 2 + 2, W // 2 - 2 : W // 2 + 2]
    np.testing.assert_allclose(middle[..., 2], 0.8, atol=0.03)  # one that stayed where it was would be at 1


def test_unknown_points_and_what_leaves_the_picture_are_left_out():
    scene = a_wall()
    assert scene.environment is not None
    known = np.zeros_like(scene.environment.valid)
    blind = replace(scene, environment=Pointmap(points=np.ones_like(scene.environment.points), valid=known))
    blind.environment.valid[0, 0, :4] = blind.environment.valid[0, 1, :4] = True  # type: ignore[union-attr]
    blind.environment.points[:] = scene.environment.points  # type: ignore[union-attr]
    rgb, _ = clip_of(sample(a_net(blind, (0.2, 0.2, 0)), known_of([blind], CONFIG), steps=1), scale_of(blind), CONFIG)
    assert np.abs(rgb[-1][8:].astype(int) - blind.image[8:]).max() <= 1
    for far in ((9.0, 0.0, 0.0), (0.0, 0.0, -5.0)):  # beside the picture, behind the camera
        made = sample(a_net(scene, far), known_of([scene], CONFIG), steps=1)
        assert torch.isfinite(made).all()


def test_what_the_hand_would_carry_has_gone_with_it_before_any_training():
    config = replace(TINY, control="pointmap")
    scene, *_ = a_scene()
    known = known_of([scene], config)
    assert known.carry is not None
    assert known.reach is not None
    at = (0, 2, 1, 3)
    known.reach[..., 1], known.carry[:] = 0.0, 0.0
    known.reach[at][1], known.carry[at][0] = 1.0, 0.4
    known.reach[..., 3] = 0.0
    with torch.no_grad():
        pushed = Moves(config)(known)
        known.reach[at][3] = 1.0  # the fingers closed on it
        moved = Moves(config)(known)
    assert not moved.away[0, 0].any()  # the first frame
    assert (moved.gone[0, 0] < -10).all()
    own = moved.gone[0, 2, 1].reshape(H, W)
    assert (own[:2, 6:8] > 3).all()  # the four pixels of that place
    assert float(own.flatten().sort().values[-5]) == -4.0
    grip = torch.tensor([GRIPPED / 2, -GRIPPED / 2, 0.0])
    for found, way in ((moved, grip), (pushed, -grip)):  # where the push is zero, so is what is not carried
        share = (torch.tensor(START[3:6]) + way).softmax(0)[0]
        torch.testing.assert_close(found.away[0, 2, 1].reshape(H, W, 3)[0, 6, 0], 0.4 * share)
    assert float(moved.away[0, 2, 1].reshape(H, W, 3)[0, 6, 0]) > 0.9 * 0.4


@pytest.mark.parametrize("control", ["text", "embedding", "pointmap"])
def test_moves_are_taught_by_tracks_and_only_where_they_are_known(control):
    torch.manual_seed(0)
    config = replace(TINY, control=control)
    net, known = Moves(config), known_of([a_scene()[0]], config)
    assert float(moved_loss(net(known), torch.full((1, 3, 2, H * W, 3), torch.nan)).detach()) == 0.0
    away = torch.zeros(1, 3, 2, H * W, 3)
    away[:, 1:, :, 100:140, 0] = 0.3
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(80):
        optimiser.zero_grad()
        moved_loss(net(known), away).backward()
        optimiser.step()
    with torch.no_grad():
        moved = net(known)
    there = away[0].norm(dim=-1) > 0
    assert float(moved.gone[0][there].mean()) > float(moved.gone[0][~there].mean()) + 2
    assert float((moved.away[0] - away[0]).norm(dim=-1)[there].mean()) < 0.15


def test_actions_and_patches_know_their_time_and_words_have_none():
    scene, *_ = a_scene()
    for control, timed in {"embedding": True, "pointmap": True, "text": False}.items():
        config = replace(TINY, control=control)
        hints, known = Hints(config, 16), known_of([scene], config)
        with torch.no_grad():
            one, other = hints(known), hints(at_groups(known, [0, 6, 7]))
        assert torch.equal(one, other) != timed
        first = one.shape[1] // 3
        if timed:
            torch.testing.assert_close(one[:, :first], other[:, :first])  # only what comes later


def test_models_that_know_no_places_move_nothing():
    config = replace(TINY, environment=False)
    assert DiffusionNet(config).moves is None
    assert known_of([a_scene()[0]], config).places is None
