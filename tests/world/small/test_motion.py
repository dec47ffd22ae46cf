"""Laws of the motion model's geometry; what it has learned is measured by benchmarks."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the small world needs torch: pip install 'kinema4d[world]'")
import torch

from kinema4d.world.small import motion
from kinema4d.world.small.motion import Config, Estimate, MotionModel, Scene
from kinema4d.world.small.rotation import angle_between, matrix_to_rotvec, rotvec_to_matrix

T = 9


def a_scene(seed: int = 0, *, parts: tuple[int, ...] = (2, 1)) -> Scene:
    """Small blocks, and a hand that comes down and goes sideways with a turn."""
    g = torch.Generator().manual_seed(seed)
    owner = torch.tensor([b for b, n in enumerate(parts) for _ in range(n)])
    n, b, q = len(owner), len(parts), 20
    hand = torch.eye(4).repeat(b, T, 1, 1)
    hand[..., :3, 3] = torch.stack([torch.linspace(0, 0.2, T), torch.zeros(T), torch.linspace(0.3, 0.05, T)], -1)
    hand[..., :3, :3] = rotvec_to_matrix(torch.stack([torch.zeros(T), torch.zeros(T), torch.linspace(0, 0.5, T)], -1))
    shell = torch.rand(b, 1, q, 3, generator=g) * 0.1 - 0.05
    shell = torch.einsum("btij,bsqj->btqi", hand[..., :3, :3], shell) + hand[:, :, None, :3, 3]
    return Scene(
        owner=owner,
        center=torch.rand(n, 3, generator=g) * 0.2,
        shape=torch.rand(n, 24, 3, generator=g) * 0.06 - 0.03,
        normals=torch.nn.functional.normalize(torch.rand(n, 24, 3, generator=g) - 0.5, dim=-1),
        still=torch.rand(b, 12, 3, generator=g),
        still_present=torch.ones(b, 12, dtype=torch.bool),
        shell=shell,
        shell_normals=torch.nn.functional.normalize(shell - hand[:, :, None, :3, 3], dim=-1),
        hand=hand,
        seconds=torch.full((b,), 0.06),
    )


def test_rotation_vectors_and_matrices():
    w = torch.randn(200, 3, dtype=torch.float64) * 0.8
    R = rotvec_to_matrix(w)
    torch.testing.assert_close(R @ R.transpose(-1, -2), torch.eye(3, dtype=torch.float64).expand_as(R))
    small = w[w.norm(dim=-1) < 3]
    torch.testing.assert_close(matrix_to_rotvec(rotvec_to_matrix(small)), small, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        angle_between(rotvec_to_matrix(small), torch.eye(3, dtype=torch.float64)),
        small.norm(dim=-1),
        atol=1e-6,
        rtol=1e-6,
    )
    assert torch.equal(rotvec_to_matrix(torch.zeros(3)), torch.eye(3))
    zero = torch.zeros(3, requires_grad=True)
    rotvec_to_matrix(zero).sum().backward()
    assert torch.isfinite(zero.grad).all()  # pyright: ignore[reportArgumentType]


def test_running_products_by_doubling_are_the_running_products():
    steps = rotvec_to_matrix(torch.randn(3, 13, 3) * 0.4)
    slow = [steps[:, 0]]
    for t in range(1, 13):
        slow.append(steps[:, t] @ slow[-1])
    torch.testing.assert_close(motion.composed(steps), torch.stack(slow, 1), atol=1e-5, rtol=1e-5)


def test_a_part_that_is_attached_goes_with_the_hand_exactly():
    scene = a_scene()
    contact = motion.meet(scene, 16)
    n = len(scene.owner)
    gates = torch.full((n, T, 2), 30.0)  # both gates open
    e = motion.integrate(scene, contact, torch.zeros(n, T, 6), gates)
    hand = scene.hand[scene.owner]
    T_step = hand @ torch.linalg.inv(hand[:, :1])
    expected = torch.einsum("ntij,nj->nti", T_step[..., :3, :3], scene.center) + T_step[..., :3, 3]
    torch.testing.assert_close(scene.center[:, None] + e.shift, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(e.R, T_step[..., :3, :3], atol=1e-5, rtol=1e-5)


def test_closed_gates_keep_everything_still_and_the_first_frame_is_given():
    scene = a_scene()
    contact = motion.meet(scene, 16)
    n = len(scene.owner)
    twist = torch.randn(n, T, 6)
    e = motion.integrate(scene, contact, twist, torch.tensor([5.0, -80.0]).expand(n, T, 2))
    assert e.shift.abs().max() < 1e-6
    assert (e.R - torch.eye(3)).abs().max() < 1e-6
    moving = motion.integrate(scene, contact, twist, torch.full((n, T, 2), 30.0))
    assert torch.equal(moving.shift[:, 0], torch.zeros(n, 3))
    assert torch.equal(moving.R[:, 0], torch.eye(3).expand(n, 3, 3))


def test_nearest_points_are_the_nearest():
    scene = a_scene()
    X = motion.placed(scene, motion.stay(scene), 16)
    index, distance = motion.near_robot(scene, X)
    for n, b in enumerate(scene.owner.tolist()):
        gap = torch.cdist(X[n], scene.shell[b])
        torch.testing.assert_close(distance[n], gap.amin(-1), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(gap.gather(-1, index[n][..., None])[..., 0], gap.amin(-1), atol=1e-5, rtol=1e-4)
    vector, gap = motion.near_others(scene, X)
    mine = X[0]
    others = torch.cat([X[1], scene.still[0].expand(T, -1, -1)], 1)
    true = torch.cdist(mine, others).amin(-1)
    torch.testing.assert_close(gap[0], true.clamp(max=motion.FAR), atol=1e-5, rtol=1e-4)
    near = true < motion.FAR
    torch.testing.assert_close(vector[0].norm(dim=-1)[near], true[near], atol=1e-5, rtol=1e-4)


def moved_world(scene: Scene, yaw: float, shift: tuple[float, float]) -> Scene:
    from dataclasses import replace

    R = rotvec_to_matrix(torch.tensor([0.0, 0.0, yaw]))
    x = torch.tensor([*shift, 0.0])
    hand = scene.hand.clone()
    hand[..., :3, :3], hand[..., :3, 3] = R @ hand[..., :3, :3], hand[..., :3, 3] @ R.T + x
    return replace(
        scene,
        center=scene.center @ R.T + x,
        shape=scene.shape @ R.T,
        normals=scene.normals @ R.T,
        still=scene.still @ R.T + x,
        shell=scene.shell @ R.T + x,
        shell_normals=scene.shell_normals @ R.T,
        hand=hand,
    )


def test_turning_and_moving_the_table_turns_and_moves_the_answer():
    """All inputs are in the contact frame or the hand's, so this holds before any training."""
    torch.manual_seed(0)
    model = MotionModel(Config(width=32, blocks=2, heads=2, passes=2, points=12)).eval()
    torch.nn.init.normal_(model.head.weight, std=0.3)
    torch.nn.init.zeros_(model.head.bias)
    scene = a_scene()
    yaw = 0.9
    with torch.no_grad():
        one, two = model.mean(scene)[-1], model.mean(moved_world(scene, yaw, (0.3, -0.2)))[-1]
    R = rotvec_to_matrix(torch.tensor([0.0, 0.0, yaw]))
    assert one.shift.abs().max() > 1e-3
    torch.testing.assert_close(two.shift, one.shift @ R.T, atol=2e-4, rtol=1e-2)
    torch.testing.assert_close(two.R, R @ one.R @ R.T, atol=2e-3, rtol=1e-2)


def test_scenes_of_a_batch_do_not_see_each_other():
    torch.manual_seed(0)
    model = MotionModel(Config(width=32, blocks=2, heads=2, passes=1, points=12)).eval()
    torch.nn.init.normal_(model.head.weight, std=0.3)
    torch.nn.init.zeros_(model.head.bias)
    both = a_scene(parts=(2, 1))
    keep = both.owner == 0
    alone = Scene(
        owner=both.owner[keep], center=both.center[keep], shape=both.shape[keep], normals=both.normals[keep],
        still=both.still[:1], still_present=both.still_present[:1], shell=both.shell[:1],
        shell_normals=both.shell_normals[:1], hand=both.hand[:1], seconds=both.seconds[:1],
    )  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(model.mean(both)[-1].shift[keep], model.mean(alone)[-1].shift, atol=1e-6, rtol=1e-4)


def test_a_sample_flows_from_noise_to_the_networks_answer_and_repeats():
    torch.manual_seed(0)
    model = MotionModel(Config(width=32, blocks=2, heads=2, passes=2, points=12)).eval()
    scene = a_scene()
    empty = motion.stay(scene)
    turn = torch.randn(3, T, 3) * 0.1
    noise = Estimate(torch.randn(3, T, 3) * 0.05, turn, motion.turned(turn), empty.gates, empty.twist)
    with torch.no_grad():
        a, b = model.sample(scene, noise, steps=3), model.sample(scene, noise, steps=3)
    assert torch.equal(a.shift, b.shift)
    half = motion.between(noise, a, 1.0)
    torch.testing.assert_close(half.shift, a.shift)
    np.testing.assert_allclose(motion.turned(a.turn).numpy(), a.R.numpy(), atol=1e-4)
