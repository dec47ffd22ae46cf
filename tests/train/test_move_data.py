"""Packs, augmentation and the training of the correction of motions, on a handful of samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'kinema4d[world]'")
import torch
from move_cases import BLOCK, DOOR, DRAWER, a_case, motions

from kinema4d.cli import main
from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate
from kinema4d.train import move_pack
from kinema4d.train.groups import split
from kinema4d.train.loop import Plan, train
from kinema4d.train.move import MoveTask, augmented, batch, distance, losses, moved, yaw
from kinema4d.train.move_pack import Sample
from kinema4d.world.load import load_world
from kinema4d.world.small.move import MoveConfig, MoveNet, pose_of
from kinema4d.world.small.world import SmallWorld


def a_sample(seed: int = 0, share: float = 0.7) -> Sample:
    """The engine goes only ``share`` of the true way."""
    return Sample(
        case=a_case(share, seed), truth=motions().astype(np.float32), known=np.ones(5, bool), group=f"g{seed}", task="t"
    )


def a_net() -> MoveNet:
    torch.manual_seed(0)
    return MoveNet(MoveConfig(width=32, blocks=1, heads=2, points=12))


def test_the_target_leads_from_the_proposal_to_the_truth():
    for draw in (0, 1):
        scene, target = batch([a_sample(0), a_sample(1)], [draw, draw])
        assert scene.part.tolist() == [BLOCK, DRAWER, DOOR] * 2
        pose = pose_of(scene, target.z)
        torch.testing.assert_close(pose.c, target.c, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(pose.R, target.R, atol=1e-4, rtol=1e-4)
        assert distance(scene, target.z, target) < 1e-3 < distance(scene, torch.zeros_like(target.z), target)


@pytest.mark.parametrize("mirror", [1.0, -1.0])
def test_augmentation_moves_proposal_truth_robot_and_joints_alike(mirror):
    sample, shift = a_sample(), np.array([0.1, -0.2, 0.0])
    M = yaw(0.7) @ np.diag([1.0, mirror, 1.0])
    turned = moved(sample, M, shift)
    scene, target = batch([sample])
    other, there = batch([turned])
    rotation = torch.from_numpy(M).float()
    for a, b in ((scene.middle, other.middle), (target.c, there.c), (scene.shell, other.shell)):
        torch.testing.assert_close(b, a @ rotation.T + torch.from_numpy(shift).float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(there.R, rotation @ target.R @ rotation.T, atol=1e-5, rtol=1e-4)
    # The truth can be reached on the joints, so they were moved too.
    torch.testing.assert_close(pose_of(other, there.z).c, there.c, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(np.linalg.det(turned.case.proposals[..., :3, :3]), 1, atol=1e-5)
    drawn = augmented(sample, np.random.default_rng(0))
    assert drawn.case.active().tolist() == sample.case.active().tolist()


def test_turning_the_table_turns_the_answer():
    """All inputs are in the contact frame or the hand's, so this holds before any training."""
    net = a_net().requires_grad_(False)
    torch.nn.init.normal_(net.head.weight, std=0.3)
    sample, M = a_sample(), yaw(0.9)
    one, two = (net.mean(batch([s])[0]) for s in (sample, moved(sample, M, np.array([0.3, -0.2, 0.0]))))
    rotation = torch.from_numpy(M).float()
    expected = torch.cat([one[..., :3] @ rotation.T, one[..., 3:] @ rotation.T], -1)
    assert one.abs().max() > 1e-3
    torch.testing.assert_close(two, expected, atol=5e-4, rtol=1e-2)


def test_training_lowers_the_loss_and_learns_one_scene():
    net, (scene, target) = a_net(), batch([a_sample()])
    optimiser = torch.optim.AdamW(net.parameters(), 1e-2)
    values = []
    for step in range(30):
        torch.manual_seed(step)
        mean, flow = losses(net, scene, target)
        optimiser.zero_grad()
        (mean + flow).backward()
        optimiser.step()
        values.append([mean.item(), flow.item()])
    assert (np.mean(values[-5:], axis=0) < 0.35 * np.array(values[0])).all()
    with torch.no_grad():
        ends = [pose_of(scene, z).c[:, -1] for z in (net.mean(scene), net.sample(scene), torch.zeros_like(target.z))]
    errors = [float((c - target.c[:, -1]).norm(dim=-1).mean()) for c in ends]
    assert max(errors[:2]) < 0.5 * errors[2]


def test_parts_that_nobody_knows_are_not_judged():
    sample = a_sample()
    unknown = Sample(**{**vars(sample), "known": np.zeros(5, bool)})
    scene, target = batch([unknown])
    assert distance(scene, torch.zeros_like(target.z), target) == 0


def test_whole_groups_are_held_out():
    samples = [a_sample(seed) for seed in (0, 0, 1, 1, 2)]
    learn, held_out = split(samples)
    assert {s.group for s in learn}.isdisjoint({s.group for s in held_out})
    assert len(learn) + len(held_out) == 5
    with pytest.raises(ValueError, match="all episodes show one scene"):
        split(samples[:2])


def test_a_run_goes_on_to_the_same_weights(tmp_path):
    plan = Plan(steps=4, warmup=1, log_every=1, validate_every=4, save_every=0.0)
    task = lambda: MoveTask(a_net(), [a_sample(0), a_sample(1)], [a_sample(2)], size=2)  # noqa: E731
    whole = train(task(), plan, tmp_path / "whole", config={})
    broken = task()
    original = broken.loss
    broken.loss = lambda step: original(step) if step < 2 else (_ for _ in ()).throw(KeyboardInterrupt)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(KeyboardInterrupt):
        train(broken, plan, tmp_path / "torn", config={})
    torn = train(task(), plan, tmp_path / "torn", config={})
    for a, b in zip(whole.parameters(), torn.parameters(), strict=True):
        assert torch.equal(a, b)
    last = json.loads((tmp_path / "torn" / "log.jsonl").read_text().splitlines()[-1])
    assert {"val/engine_cm", "val/mean_cm", "val/flow_cm"} <= last.keys()


# ---------------------------------------------------------------------- from episodes


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("robo4d") / "set"
    recipe = Recipe(episodes=2, robots=("k4arm",), tasks=("push",), failures=0, seed=5, height=96, width=144)
    generate(root, recipe, workers=1)
    return root


def test_a_pack_holds_what_was_seen_and_what_happened_and_goes_on(episodes, tmp_path, monkeypatch):
    monkeypatch.setattr(move_pack, "PER_SHARD", 1)
    paths = move_pack.make_pack(tmp_path, episodes, workers=1)
    samples = move_pack.read_pack(paths)
    assert len(samples) == len(paths) == len(open_dataset(episodes))
    for sample in samples:
        scene, target = batch([sample], [1])
        went = (target.c[:, -1] - scene.center).norm(dim=-1)
        assert target.known[went.argmax()]
        # What the robot pushed was seen, and the engine moved it about as it went.
        assert float(went.max()) > 0.02
        off = (scene.middle[:, -1] - target.c[:, -1]).norm(dim=-1)
        assert float(off[went.argmax()]) < 0.5 * float(went.max())
    before = [p.stat().st_mtime_ns for p in paths]
    content = paths[0].read_bytes()
    paths[0].unlink()
    told = []
    again = move_pack.make_pack(tmp_path, episodes, workers=1, progress=lambda done, total: told.append((done, total)))
    assert again == paths
    assert told == [(1, 1)]
    assert paths[1].stat().st_mtime_ns == before[1]
    assert np.load(paths[0])["0.proposals"].tobytes() == move_pack.read_shard(paths[0])[0].case.proposals.tobytes()
    assert len(content) == paths[0].stat().st_size
    with pytest.raises(ValueError, match="use another folder"):
        move_pack.make_pack(tmp_path, episodes, draws=3, workers=1)


def test_the_command_packs_trains_and_writes_weights_that_simulate(episodes, tmp_path):
    out = tmp_path / "run"
    command = ["train", "--preset", "small-move", "--data", str(episodes), "--out", str(out), "--steps", "1", "--workers", "1"]  # fmt: skip
    main(command)
    world = load_world(out / "small.safetensors")
    assert isinstance(world, SmallWorld)
    assert world.mover is not None
    assert (out / "log.jsonl").exists()


def test_data_that_is_no_episodes_is_named(tmp_path, capsys):
    pictures, nothing = tmp_path / "pictures", tmp_path / "empty"
    pictures.mkdir()
    (pictures / "see-1-00000.npz").write_bytes(b"")
    open_dataset(nothing, create=True)
    for data, said in ((pictures, "pack of pictures"), (nothing, "without episodes"), (tmp_path / "no", "no")):
        with pytest.raises(SystemExit):
            main(["train", "--preset", "small-move", "--data", str(data), "--out", str(tmp_path / "out")])
        text = capsys.readouterr().err
        assert said in text
        assert data.name in text
    assert not (tmp_path / "out").exists()
