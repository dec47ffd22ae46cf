"""The model of unseen objects: it learns where joints are from poses alone, goes on after a kill, and foretells a mesh it never saw."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import torch

from kinema4d.data.objects4d import read_objects
from kinema4d.data.objects_generate import Recipe, generate
from kinema4d.objects.amortised import AmortisedConfig, ScrewNet, load_model, save_model, told
from kinema4d.objects.body import cross
from kinema4d.objects.foretell import kinematics
from kinema4d.objects.look import cut
from kinema4d.objects.pieces import nearest
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import draw, some_poses
from kinema4d.train.objects import ObjectsTask, Seen, _whole, explained, left_over, read_seen, run_objects

TINY = AmortisedConfig(points=6, pieces=8, coordinates=2, width=48, layers=2, octaves=3)


@pytest.fixture(scope="module")
def chests(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "set"
    generate(root, Recipe(objects=120, kinds=("chest", "rigid"), poses=12, motions=0, held_out=()), workers=1)
    return root


@pytest.fixture(scope="module")
def bars(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "soft"
    generate(root, Recipe(objects=6, kinds=("bar", "cloth"), poses=8, motions=0, held_out=()), workers=1)
    return root


def test_what_is_on_joints_and_what_bends_is_learned_from_and_what_is_one_solid_is_not(chests: Path, bars: Path):
    seen = read_seen(read_objects(chests, "train"), TINY)
    assert {s.kind for s in seen} == {"chest"}  # a rigid body has one part, and nothing to learn
    assert not any(s.bends.any() for s in seen)
    soft = read_seen(read_objects(bars), TINY)
    assert {s.kind for s in soft} == {"bar", "cloth"}
    assert all(s.bends.all() and s.pieces.patch.all() and s.twists is None for s in soft)
    with pytest.raises(ValueError, match="0 objects to learn from"):
        ObjectsTask(ScrewNet(TINY), [], seen, steps=1)


def test_the_ways_that_are_taught_of_what_bends_span_how_its_patches_move(bars: Path):
    seen = read_seen(read_objects(bars), AmortisedConfig())
    task = ObjectsTask(ScrewNet(AmortisedConfig()), seen, seen, steps=1)
    b = task.batch(seen, 6, np.random.default_rng(0))
    x, goals = b.shown.x, b.goals
    flat = (goals - x[:, None]).flatten(2).transpose(1, 2)  # [b,3n,p] where points went
    use = torch.arange(b.moves.shape[-1]) < b.count[:, None]
    left, _ = left_over(b.flat(), flat, use)
    assert float(left.sqrt().mean()) < 0.4  # what bends far goes along arcs
    alone, _ = left_over(b.flat(), flat, use & (torch.arange(b.moves.shape[-1]) < 1))
    assert float(alone.sqrt().mean()) > 1.3 * float(left.sqrt().mean())
    size = b.moves.square().sum((1, 2, 3))
    assert (size.diff(dim=1) <= 1e-6).all()  # the largest first


def test_one_kind_is_learned_and_an_unseen_one_is_foretold(chests: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("kinema4d.train.objects.OBJECTS", 12)
    monkeypatch.setattr("kinema4d.train.objects.POSES", 4)
    told: list[dict[str, float]] = []
    net = run_objects([chests], tmp_path / "run", TINY, steps=300, tell=lambda _, f: told.append(f))
    last = told[-1]
    assert last["val/percent_given"] < 0.5 * last["val/still"]  # of how far points go
    assert json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])["step"] == 300
    file = tmp_path / "objects.safetensors"
    digest = save_model(file, net, {"data": "chests"})
    again, note = load_model(file)
    assert note["data"] == "chests"
    assert len(digest) == 64
    for a, b in zip(net.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a.detach().half().float(), b)
    monkeypatch.setattr("kinema4d.objects.foretell.ALIKE", 2.0)  # so short a training answers in many ways
    thing = draw("chest", 4000)
    mesh = Mesh(vertices=thing.posed(np.zeros(1)), faces=thing.faces)
    got = kinematics(mesh, file)
    assert got.twists.shape[0] == parts(mesh).max() + 1
    goals = thing.posed(some_poses(thing, 4, 3))
    off = np.linalg.norm(got.vertices(got.coordinates(goals)).numpy() - goals, axis=-1).mean()
    assert off < 0.5 * np.linalg.norm(mesh.vertices - goals, axis=-1).mean()
    same = kinematics(mesh, file)
    np.testing.assert_array_equal(got.twists, same.twists)  # by its seed


def test_a_killed_run_ends_as_one_that_was_not(chests: Path, tmp_path: Path):
    seen = read_seen(read_objects(chests), TINY)
    task = ObjectsTask(ScrewNet(TINY), seen, seen, steps=10)
    torch.manual_seed(0)
    a = task.loss(7)
    torch.manual_seed(0)
    assert torch.equal(a, task.loss(7))  # all that is random is drawn by the number of the step


def test_the_screws_that_are_taught_move_the_object_from_the_pose_that_is_seen():
    thing = draw("chain", 5)  # joints on joints
    poses = thing.posed(np.concatenate([np.zeros((1, thing.freedom)), some_poses(thing, 9, 1)]))
    label = parts(Mesh(vertices=poses[0], faces=thing.faces))
    found = explained(poses, label, 5)
    assert found is not None
    assert explained(poses, label, thing.freedom - 1) is None
    whole = cut(poses[0], thing.faces, label, np.zeros(label.max() + 1, bool), 24)
    still = np.zeros(label.max() + 1, bool)
    one = Seen(name="chain", kind="chain", poses=poses, faces=thing.faces, pieces=whole, whole=whole, bends=still, twists=found[0], q=found[1])  # fmt: skip
    task = ObjectsTask(ScrewNet(AmortisedConfig()), [one], [one], steps=1)
    b = task.batch([one, one, one], 5, np.random.default_rng(2))
    assert b.count.tolist() == [thing.freedom] * 3
    every = torch.arange(b.moves.shape[-1])
    use = every < b.count[:, None]
    x, goals, there = b.shown.x.double(), b.goals.double(), b.shown.there
    # Back from how points move to the screws of their pieces.
    unit = torch.eye(3, dtype=x.dtype).expand(*x.shape[:3], 3, 3)
    ways = torch.cat([-cross(x), unit], -1).flatten(2, 3)
    twists = torch.linalg.lstsq(ways, b.moves.double().flatten(2, 3), driver="gelsd").solution.transpose(2, 3)
    torch.testing.assert_close(told(twists, x, there), b.flat().double(), atol=1e-5, rtol=1e-4)
    _, error, _ = nearest(x, twists, goals, there, use, rounds=60)
    assert float(error.sqrt().mean()) < 0.01  # weakly drawn to the pose that is seen
    _, far, _ = nearest(x, twists, goals, there, use & (every < 1), rounds=60)
    assert float(far.sqrt().mean()) > 0.03


def test_coordinates_that_span_the_same_motions_are_as_good():
    g = torch.Generator().manual_seed(0)
    true = torch.cat([torch.randn(2, 30, 2, generator=g), torch.zeros(2, 30, 1)], -1)
    mixed = torch.cat([true[..., :2] @ torch.randn(2, 2, 2, generator=g), torch.randn(2, 30, 1, generator=g)], -1)
    use = torch.tensor([[True, True, False]] * 2)
    left, _ = left_over(mixed, true, use)
    assert float(left.max()) < 1e-3
    _, long = left_over(2 * true, true, use)
    torch.testing.assert_close(long, torch.full((2,), float(np.log(4)) ** 2), atol=1e-4, rtol=1e-4)
    less, _ = left_over(mixed, true, use & torch.tensor([True, False, False]))
    assert float(less.min()) > 0.1


def test_of_what_moves_as_a_whole_nothing_is_asked_within(chests: Path):
    seen = read_seen(read_objects(chests, "train"), TINY)[:4]
    task = ObjectsTask(ScrewNet(TINY), seen, seen, steps=1)
    b = task.batch(seen, 4, np.random.default_rng(0))
    use = torch.arange(TINY.coordinates) < b.count[:, None]
    whole = _whole(b.shown.x, b.shown.there)
    # The lid held and the box turned about it is the same motion within.
    other = b.flat() + whole[..., 2:3] - 0.3 * whole[..., 3:4]
    outside, _ = left_over(other, b.flat(), use)
    within, _ = left_over(other, b.flat(), use, whole=whole)
    assert float(outside.min()) > 0.1
    assert float(within.max()) < 0.02


def test_files_that_are_no_weights_and_objects_unlike_any_are_refused(tmp_path: Path):
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is no readable safetensors file"):
        load_model(file)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, file, {"format": "other"})
    with pytest.raises(ValueError, match="says it is 'other', expected 'kinema4d objects 2'"):
        load_model(file)
    torch.manual_seed(0)
    net = ScrewNet(TINY)
    torch.nn.init.normal_(net.enter.weight, std=3.0)  # an answer of its own for every look
    save_model(file, net, {})
    thing = draw("chest", 1)
    with pytest.raises(ValueError, match="unlike those that the model learned from: looked at 6 times, it answers"):
        kinematics(Mesh(vertices=thing.posed(np.zeros(1)), faces=thing.faces), file)


def test_one_solid_has_no_motion_of_its_own_unless_it_is_said_to_bend(tmp_path: Path, monkeypatch):
    import trimesh

    torch.manual_seed(0)
    net = ScrewNet(TINY)
    last = net.bend[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.constant_(last.bias, -50.0)
    save_model(tmp_path / "w.safetensors", net, {})
    box = trimesh.creation.box((1, 1, 3)).subdivide().subdivide()
    mesh = Mesh(vertices=np.asarray(box.vertices, np.float64), faces=np.asarray(box.faces, np.int64))
    with pytest.raises(ValueError, match="one part that keeps its form: it has no motion of its own"):
        kinematics(mesh, tmp_path / "w.safetensors")
    monkeypatch.setattr("kinema4d.objects.foretell.ALIKE", 2.0)  # an untrained model answers in many ways
    got = kinematics(mesh, tmp_path / "w.safetensors", bends="all")
    assert got.freedom.count is None
    assert "it bends (1 of 1 parts)" in got.freedom.why
    assert len(got.twists) == len(mesh.vertices)  # each its own mean of the patches around it
