"""From a simulated or recorded motion to batches: frames, signs and sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'kinema4d[world]'")
import torch

pytest.importorskip("mujoco", reason="simulated motions need MuJoCo: pip install 'kinema4d[mjcf]'")

from kinema4d.data.generate import Recipe
from kinema4d.data.store import save
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.episode import Wish, perform, record, set_stage
from kinema4d.train.motion_batches import ACTIVE, batch, cut, shell_points
from kinema4d.train.motion_loss import errors, estimate_loss, loss, noise_like
from kinema4d.train.motion_pack import (
    Motion,
    from_episode,
    from_folder,
    from_outcome,
    read_pack,
    sample_surface,
    shell_of,
    simulate_pack,
)
from kinema4d.world.small import motion as model_module
from kinema4d.world.small.motion import Config, Estimate, MotionModel, stay


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Motion]]:
    folder = tmp_path_factory.mktemp("motion")
    simulate_pack(
        folder, Recipe(robots=("k4arm",), episodes=4, failures=1, tasks=("push", "topple"), seed=5), workers=1
    )
    return folder, read_pack(folder)


def test_a_pack_holds_what_physics_did_and_is_not_made_twice(pack: tuple[Path, list[Motion]]):
    folder, motions = pack
    assert [m.task for m in motions] == ["push", "push", "topple", "topple"]
    for m in motions:
        assert m.Ts_world_part.shape == (49, len(m.names), 4, 4)
        np.testing.assert_allclose(np.linalg.det(m.Ts_world_part[..., :3, :3]), 1, atol=1e-4)
    assert motions[0].success
    file = next(folder.glob("*.npz"))
    before = file.stat().st_mtime_ns
    simulate_pack(
        folder, Recipe(robots=("k4arm",), episodes=4, failures=1, tasks=("push", "topple"), seed=5), workers=1
    )
    assert file.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="no motion shards"):
        read_pack(folder / "elsewhere")


def test_a_recorded_episode_gives_the_same_motion_as_physics(tmp_path: Path):
    stage = set_stage(load_robot("k4arm"), Wish(task="push", seed=1, height=32, width=48))
    outcome = perform(stage)
    episode = record(stage, outcome, source="x", facts={}, threads=1)
    save(episode, tmp_path / "episode")
    a = from_outcome(stage, outcome)
    for b in (from_episode(episode), from_folder(tmp_path / "episode")):
        assert a.names == b.names
        assert (a.task, a.success, a.seed) == (b.task, b.success, b.seed)
        np.testing.assert_allclose(a.Ts_world_part, b.Ts_world_part, atol=1e-6)
        np.testing.assert_allclose(a.Ts_world_link, b.Ts_world_link, atol=1e-6)
    with pytest.raises(ValueError, match="one robot at a time, this episode has 0"):
        from_episode(replace(episode, arms=()))
    with pytest.raises(ValueError, match="no tracks with surfaces"):
        from_episode(replace(episode, tracks=()))


def test_surface_points_lie_on_the_surface_and_spread_by_area():
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 5], [3, 0, 5], [0, 3, 5]], float)
    faces = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    points, normals = sample_surface(vertices, faces, 1000, np.random.default_rng(0))
    assert set(np.unique(points[:, 2])) == {0.0, 5.0}
    assert (points[:, 2] == 5).mean() == pytest.approx(0.9, abs=0.01)
    np.testing.assert_allclose(normals, np.broadcast_to([0, 0, 1], normals.shape))
    with pytest.raises(ValueError, match="without area"):
        sample_surface(vertices[:3] * 0, faces[:1], 5, np.random.default_rng(0))


def test_a_batch_moves_points_as_the_truth_does(pack: tuple[Path, list[Motion]]):
    _, motions = pack
    for rng in (None, np.random.default_rng(0)):
        samples = [cut(m) for m in motions]
        scene, target = batch(samples, rng)
        assert len(scene.owner) == sum(int(s.present.sum()) for s in samples) <= ACTIVE * len(samples)
        # The middle moves as the truth has it: rigidly, and only after the first frame.
        assert target.shift[:, 0].abs().max() < 1e-6
        np.testing.assert_allclose(torch.linalg.det(target.R).numpy(), 1, atol=1e-4)
        np.testing.assert_allclose(model_module.turned(target.turn).numpy(), target.R.numpy(), atol=2e-3)
    moved = target.shift[:, -1].norm(dim=-1).max()
    true = max(float(np.linalg.norm(m.Ts_world_part[-1, 0, :3, 3] - m.Ts_world_part[0, 0, :3, 3])) for m in motions)
    assert float(moved) == pytest.approx(true, abs=0.03)


def test_the_shell_is_on_the_hand():
    robot = load_robot("k4arm")
    shell = shell_of(robot)
    eye = np.tile(np.eye(4, dtype=np.float32), (1, len(shell.links), 1, 1))
    points, normals = shell_points("k4arm", eye)
    np.testing.assert_allclose(points[0], shell.points, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(normals[0], axis=-1), 1, atol=1e-3)
    assert len(np.unique(shell.link)) >= 3


def test_the_truth_has_the_least_loss_and_training_lowers_it(pack: tuple[Path, list[Motion]]):
    _, motions = pack
    scene, target = batch([cut(m) for m in motions], None)
    e = stay(scene)
    still = estimate_loss(scene, e, target)
    moves = torch.diff(target.shift, dim=1, prepend=target.shift[:, :1]).norm(dim=-1) > 0.0012
    gates = torch.stack([torch.zeros_like(moves, dtype=torch.float32), moves.float() * 20 - 10], -1)
    right = estimate_loss(scene, Estimate(target.shift, target.turn, target.R, gates, e.twist), target)
    assert right < 0.5 * still
    assert errors(scene, Estimate(target.shift, target.turn, target.R, gates, e.twist), target)["error"].max() == 0
    torch.manual_seed(0)
    model = MotionModel(Config(width=32, blocks=1, heads=2, passes=2, points=12))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    values = []
    for _ in range(25):
        value = loss(model, scene, target)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        values.append(value.item())
    assert np.mean(values[-5:]) < 0.9 * values[0]


def test_noise_begins_where_the_robot_comes(pack: tuple[Path, list[Motion]]):
    _, motions = pack
    scene, _ = batch([cut(m) for m in motions], None)
    contact = model_module.meet(scene, 12)
    noise = noise_like(scene, contact.gap, contact.start, torch.Generator().manual_seed(0))
    for n, start in enumerate(contact.start.tolist()):
        assert float(noise.shift[n, : max(start - 2, 1)].abs().max()) < 1e-6
    assert float(noise.shift.abs().max()) > 0.01
