"""Laws of the learned correction; what it has learned is measured by benchmarks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the small world needs torch: pip install 'kinema4d[world]'")
import torch
from move_cases import BLOCK, DOOR, DRAWER, FAR, FPS, FRAMES, SHELF, a_case, motions, the_parts, the_robot

from kinema4d.world.small import move, move_reading
from kinema4d.world.small.move import MoveConfig, MoveNet, corrected, pose_of
from kinema4d.world.small.move_scene import sample_surface, stack
from kinema4d.world.small.rotation import angle_between, matrix_to_rotvec, rotvec_to_matrix


def a_net(*, trained: bool) -> MoveNet:
    """With ``trained`` one that says something, if nothing useful."""
    torch.manual_seed(0)
    net = MoveNet(MoveConfig(width=32, blocks=2, heads=2, points=12)).eval().requires_grad_(False)
    if trained:
        torch.nn.init.normal_(net.head.weight, std=0.3)
    return net


def test_rotation_vectors_and_matrices():
    w = torch.randn(200, 3, dtype=torch.float64) * 0.8
    R = rotvec_to_matrix(w)
    torch.testing.assert_close(R @ R.transpose(-1, -2), torch.eye(3, dtype=torch.float64).expand_as(R))
    small = w[w.norm(dim=-1) < 3]
    torch.testing.assert_close(matrix_to_rotvec(rotvec_to_matrix(small)), small, atol=1e-6, rtol=1e-6)
    eye = torch.eye(3, dtype=torch.float64)
    angle = angle_between(rotvec_to_matrix(small), eye)
    torch.testing.assert_close(angle, small.norm(dim=-1), atol=1e-6, rtol=1e-6)
    assert torch.equal(rotvec_to_matrix(torch.zeros(3)), torch.eye(3))
    zero = torch.zeros(3, requires_grad=True)
    rotvec_to_matrix(zero).sum().backward()
    assert torch.isfinite(zero.grad).all()  # pyright: ignore[reportArgumentType]


def test_running_products_by_doubling_are_the_running_products():
    turns = rotvec_to_matrix(torch.randn(3, 13, 3) * 0.4)
    slow = [turns[:, 0]]
    for t in range(1, 13):
        slow.append(turns[:, t] @ slow[-1])
    torch.testing.assert_close(move.composed(turns), torch.stack(slow, 1), atol=1e-5, rtol=1e-5)


def test_points_are_spread_by_area():
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 5], [3, 0, 5], [0, 3, 5]], float)
    faces = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    points, normals = sample_surface(vertices, faces, 1000, np.random.default_rng(0))
    assert (points[:, 2] == 5).mean() == pytest.approx(0.9, abs=0.01)
    np.testing.assert_allclose(normals, np.broadcast_to([0, 0, 1], normals.shape))
    with pytest.raises(ValueError, match="without area"):
        sample_surface(vertices[:3] * 0, faces[:1], 5, np.random.default_rng(0))


def test_nearest_points_are_the_nearest():
    scene = stack([a_case()])
    X = move_reading.placed(scene, pose_of(scene, torch.zeros(len(scene.owner), FRAMES, 6)), 12)
    index, distance = move_reading.near_robot(scene, X)
    gap = torch.cdist(X[0], scene.shell[0])
    torch.testing.assert_close(distance[0], gap.amin(-1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gap.gather(-1, index[0][..., None])[..., 0], gap.amin(-1), atol=1e-5, rtol=1e-4)
    vector, gap = move_reading.near_others(scene, X)
    others = torch.cat([X[1], X[2], scene.still[0][scene.still_present[0]].expand(FRAMES, -1, -1)], 1)
    true = torch.cdist(X[0], others).amin(-1).clamp(max=move_reading.FAR)
    torch.testing.assert_close(gap[0], true, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(vector[0].norm(dim=-1), true, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_network_that_has_learned_nothing_leaves_the_engines_bits(seed):
    said = motions(0.7)
    out = corrected(a_net(trained=False), the_parts(), the_robot(), said, fps=FPS, support=0.013, seed=seed)
    np.testing.assert_array_equal(out, said)


@pytest.mark.parametrize("seed", [None, 3])
def test_parts_keep_to_their_joints_and_what_nothing_touches_stays(seed):
    parts, said = the_parts(), motions(0.7)
    out = corrected(a_net(trained=True), parts, the_robot(), said, fps=FPS, seed=seed)
    assert np.abs(out[[BLOCK, DRAWER, DOOR]] - said[[BLOCK, DRAWER, DOOR]]).max(axis=(1, 2, 3)).min() > 1e-3
    np.testing.assert_array_equal(out[[FAR, SHELF]], said[[FAR, SHELF]])
    np.testing.assert_array_equal(out[:, 0], np.tile(np.eye(4), (len(parts), 1, 1)))
    np.testing.assert_allclose(np.linalg.det(out[..., :3, :3]), 1, atol=1e-5)
    # The drawer does not turn, nor leave its axis; the door turns about its axis, and its pivot stays.
    axis, pivot = parts[DRAWER].axis, parts[DOOR].pivot
    assert axis is not None
    assert pivot is not None
    np.testing.assert_allclose(out[DRAWER, :, :3, :3], np.broadcast_to(np.eye(3), (FRAMES, 3, 3)), atol=1e-6)
    shift = out[DRAWER, :, :3, 3]
    np.testing.assert_allclose(shift, (shift @ axis)[:, None] * axis, atol=1e-6)
    np.testing.assert_allclose(out[DOOR, :, :3, :3] @ [0.0, 0.0, 1.0], np.tile([0.0, 0.0, 1.0], (FRAMES, 1)), atol=1e-6)
    np.testing.assert_allclose(
        out[DOOR, :, :3, :3] @ pivot + out[DOOR, :, :3, 3], np.tile(pivot, (FRAMES, 1)), atol=1e-6
    )


def test_a_still_part_is_corrected_only_where_the_robot_comes_near():
    case = a_case(share=0.0)
    assert case.active().tolist() == [True, True, True, False, False]
    assert case.gap[FAR] > 0.3
    assert replace(case, gap=case.gap + 1).active().tolist() == [False] * 5
    moved = replace(a_case(), gap=case.gap + 1)
    assert moved.active().tolist() == [True, True, True, False, False]


def test_with_the_hand_and_stay_mean_what_they_say():
    scene = stack([a_case()])
    contact, zero = move_reading.meet(scene, 12), torch.zeros(len(scene.owner), FRAMES, 6)
    out = torch.zeros(len(scene.owner), FRAMES, 8)
    out[..., 7] = 30.0
    stays = pose_of(scene, move.summed(scene, contact, pose_of(scene, zero), out))
    torch.testing.assert_close(stays.c[:2], scene.center[:2, None].expand(-1, FRAMES, -1), atol=1e-5, rtol=1e-5)
    out = out.roll(-1, dims=-1)  # with the hand: an estimate that is read again where it is gets there
    z = zero
    for _ in range(FRAMES):
        z = move.summed(scene, contact, pose_of(scene, z), out)
    step = scene.hand @ torch.linalg.inv(scene.hand[:, :1])
    true = torch.einsum("btij,bj->bti", step[..., :3, :3], scene.center[:1]) + step[..., :3, 3]
    torch.testing.assert_close(pose_of(scene, z).c[:1], true, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pose_of(scene, z).R[:1], step[..., :3, :3], atol=1e-2, rtol=1e-2)


def test_the_height_of_the_table_changes_nothing():
    up = np.eye(4)
    up[2, 3] = 0.2
    parts = [replace(p, vertices=p.vertices + up[:3, 3], pivot=None if p.pivot is None else p.pivot + up[:3, 3]) for p in the_parts()]  # fmt: skip
    solids = [replace(s, Ts_world_link=up @ s.Ts_world_link) for s in the_robot()]
    raised = up @ motions(0.7) @ np.linalg.inv(up)
    a = corrected(a_net(trained=True), the_parts(), the_robot(), motions(0.7), fps=FPS)
    b = corrected(a_net(trained=True), parts, solids, raised, fps=FPS, support=0.2)
    np.testing.assert_allclose(up @ a @ np.linalg.inv(up), b, atol=2e-4)


def test_scenes_of_a_batch_do_not_see_each_other_and_shorter_ones_are_the_same():
    net, one, two = a_net(trained=True), a_case(), a_case(seed=5)
    both, alone = stack([one, two]), stack([two], [0])
    keep = both.owner == 1
    torch.testing.assert_close(net.mean(both)[keep], net.mean(alone), atol=1e-5, rtol=1e-4)
    short = replace(two, proposals=two.proposals[:, :, :9], Ts_world_link=two.Ts_world_link[:, :9])
    longer = stack([one, short])
    assert longer.frames.tolist() == [FRAMES, 9]
    torch.testing.assert_close(longer.middle[keep, 8:], longer.middle[keep, 8:9].expand(-1, FRAMES - 8, -1))


def test_samples_differ_by_seed_and_repeat():
    net = a_net(trained=True)
    runs = [corrected(net, the_parts(), the_robot(), motions(0.7), fps=FPS, seed=s, steps=2) for s in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert np.abs(runs[0] - runs[2]).max() > 1e-5
    with pytest.raises(ValueError, match="at least 1 step"):
        net.sample(stack([a_case()]), steps=0)


def test_the_network_is_small():
    count = sum(p.numel() for p in MoveNet(MoveConfig()).parameters())
    assert 0.3e6 < count < 0.7e6
