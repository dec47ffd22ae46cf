"""The model of unseen objects: it learns what is on joints and what bends from poses alone, goes on after a kill, and foretells a mesh it never saw."""

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
from kinema4d.objects.amortised import AmortisedConfig, ScrewNet
from kinema4d.objects.choose import ChooseConfig, ChooseNet
from kinema4d.objects.foretell import Foreteller, kinematics, load_foreteller, save_foreteller
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import draw, some_poses
from kinema4d.train.bending import BendingTask, _whole, left_over, read_seen
from kinema4d.train.choose import ChooseTask, Looked, judged, looked, run_joints
from kinema4d.train.loop import Plan, train
from kinema4d.train.objects import run_objects

TINY = AmortisedConfig(points=6, pieces=8, coordinates=2, width=48, layers=2, octaves=3)


@pytest.fixture(scope="module")
def chests(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "set"
    generate(root, Recipe(objects=120, kinds=("chest", "rigid"), poses=12, motions=0, held_out=()), workers=1)
    return root


@pytest.fixture(scope="module")
def bars(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "soft"
    generate(root, Recipe(objects=12, kinds=("bar", "cloth"), poses=8, motions=0, held_out=()), workers=1)
    return root


def test_what_is_on_joints_and_what_bends_is_told_apart(chests: Path, bars: Path):
    on_joints = [looked(o) for o in read_objects(chests)]
    assert {one.kind for one in on_joints if one is not None} == {
        "chest"
    }  # a rigid body has one part, and nothing to learn
    assert not any(looked(o) for o in read_objects(bars))
    soft = read_seen(read_objects(bars), TINY)
    assert {s.kind for s in soft} == {"bar", "cloth"}
    assert all(s.bends.all() and s.pieces.patch.all() for s in soft)
    stiff = read_seen(read_objects(chests), TINY)
    assert {s.kind for s in stiff} == {"chest"}
    assert not any(s.bends.any() for s in stiff)
    with pytest.raises(ValueError, match="0 objects that bend to learn from and 0 to judge by"):
        BendingTask(ScrewNet(TINY), stiff, stiff, steps=1)
    with pytest.raises(ValueError, match="0 objects on joints to learn from"):
        ChooseTask(ChooseNet(ChooseConfig(width=8)), [], [])


def test_the_ways_that_are_taught_of_what_bends_span_how_its_patches_move(bars: Path):
    seen = read_seen(read_objects(bars), AmortisedConfig())
    task = BendingTask(ScrewNet(AmortisedConfig()), seen, seen, steps=1)
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


def test_one_kind_is_learned_and_an_unseen_one_is_foretold(chests: Path, tmp_path: Path):
    told: list[dict[str, float]] = []
    file, digest = run_objects(
        [chests], tmp_path / "run", steps=80, about={"data": "chests"}, tell=lambda _, f: told.append(f)
    )
    last = told[-1]
    assert last["val/percent"] < 0.05 * last["val/still"]  # of how far points go
    assert last["val/counted"] == 1
    assert json.loads((tmp_path / "run" / "joints" / "log.jsonl").read_text().splitlines()[-1])["step"] == 80
    again, note = load_foreteller(file)
    assert note["data"] == "chests"
    assert (note["sha256"], len(digest)) == (digest, 64)
    assert again.bends is None  # there was nothing to learn it from
    assert again.joints is not None
    thing = draw("chest", 4000)
    mesh = Mesh(vertices=thing.posed(np.zeros(1)), faces=thing.faces)
    got = kinematics(mesh, file)
    assert got.twists.shape == (parts(mesh).max() + 1, 1, 6)
    assert got.freedom.why.startswith("1 hinge (")
    goals = thing.posed(some_poses(thing, 4, 3))
    off = np.linalg.norm(got.vertices(got.coordinates(goals)).numpy() - goals, axis=-1).mean()
    assert off < 0.02 * np.linalg.norm(mesh.vertices - goals, axis=-1).mean()
    np.testing.assert_array_equal(got.twists, kinematics(mesh, file).twists)  # by its seed
    goals = thing.posed(np.array([[0.5 * thing.limits[0, 1]]]))
    moved = kinematics(Mesh(vertices=goals[0], faces=thing.faces), file)  # seen half open
    off = np.linalg.norm(moved.vertices(moved.coordinates(mesh.vertices[None])).numpy() - mesh.vertices, axis=-1).mean()
    assert off < 0.02 * np.linalg.norm(mesh.vertices - goals, axis=-1).mean()
    with pytest.raises(ValueError, match="knows nothing of what bends; train one"):
        kinematics(mesh, file, bends="all")


def test_a_killed_run_ends_as_one_that_was_not(chests: Path, bars: Path, tmp_path: Path):
    seen = read_seen(read_objects(bars), TINY)
    task = BendingTask(ScrewNet(TINY), seen, seen, steps=10)
    assert torch.equal(task.loss(7), task.loss(7))  # all that is random is drawn by the number of the step
    every = [one for o in read_objects(chests, "train")[:12] if (one := looked(o)) is not None]
    choose = ChooseTask(ChooseNet(ChooseConfig(width=8)), every, every)
    assert torch.equal(choose.loss(7), choose.loss(7))
    whole = run_joints([chests], tmp_path / "a", ChooseConfig(width=8, rounds=1), steps=6)
    run_joints([chests], tmp_path / "b", ChooseConfig(width=8, rounds=1), steps=3)
    state = torch.load(tmp_path / "b" / "last.pt", weights_only=True)
    assert state["step"] == 3
    with pytest.raises(ValueError, match="holds a run of another configuration"):
        run_joints([chests], tmp_path / "b", ChooseConfig(width=16), steps=6)
    assert [p.shape for p in whole.parameters()] == [
        p.shape for p in ChooseNet(ChooseConfig(width=8, rounds=1)).parameters()
    ]


def test_what_bends_is_learned(bars: Path, tmp_path: Path):
    seen = read_seen(read_objects(bars), TINY)
    told: list[dict[str, float]] = []
    task = BendingTask(ScrewNet(TINY), seen, seen, steps=80)
    train(task, Plan(steps=80, warmup=10, validate_every=80), tmp_path, config={}, tell=lambda _, f: told.append(f))
    assert told[-1]["val/percent_given"] < 0.8 * told[-1]["val/still"]
    assert told[-1]["val/bends"] == 1


def test_objects_are_judged_as_they_are_seen(chests: Path):
    every = [one for o in read_objects(chests, "train")[:4] if (one := looked(o)) is not None]
    torch.manual_seed(0)
    rows = judged(ChooseNet(ChooseConfig(width=8, rounds=1)), every)
    for one, (off, went, counted, sure) in zip(every, rows, strict=True):
        assert isinstance(one, Looked)
        assert 0.01 < went < 0.5
        assert off < 1.5 * went
        assert counted in (0, 1)
        assert 0 < sure < 0.5  # it knows nothing


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


def test_what_an_object_does_as_a_whole_is_not_asked_for():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, 3, generator=g)
    whole = _whole(x, torch.ones(2, 3, dtype=torch.bool))
    true = torch.randn(2, 36, 1, generator=g)
    use = torch.ones(2, 1, dtype=torch.bool)
    # One half held and the other turned about it is the same motion within.
    other = true + whole[..., 2:3] - 0.3 * whole[..., 3:4]
    outside, _ = left_over(other, true, use)
    within, _ = left_over(other, true, use, whole=whole)
    assert float(outside.min()) > 0.05
    assert float(within.max()) < 0.02


def test_files_that_are_no_weights_and_objects_unlike_any_are_refused(tmp_path: Path):
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is no readable safetensors file"):
        load_foreteller(file)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, file, {"format": "other"})
    with pytest.raises(ValueError, match="says it is 'other', expected 'kinema4d objects 3'"):
        load_foreteller(file)
    torch.manual_seed(0)
    net = ChooseNet(ChooseConfig(width=16))
    for entry in (net.mate, net.pair, net.odds):  # an answer of its own for every look
        for p in entry.parameters():
            torch.nn.init.normal_(p, std=2.0)
    save_foreteller(file, Foreteller(joints=net, bends=None), {})
    thing = draw("cabinet", 1)
    with pytest.raises(ValueError, match="unlike those that the model learned from: looked at 6 times, it"):
        kinematics(Mesh(vertices=thing.posed(np.zeros(thing.freedom)), faces=thing.faces), file)


def test_one_solid_has_no_motion_of_its_own_unless_it_is_said_to_bend(tmp_path: Path, monkeypatch):
    import trimesh

    torch.manual_seed(0)
    net = ScrewNet(TINY)
    last = net.bend[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.constant_(last.bias, -50.0)
    save_foreteller(tmp_path / "w.safetensors", Foreteller(joints=None, bends=net), {})
    box = trimesh.creation.box((1, 1, 3)).subdivide().subdivide()
    mesh = Mesh(vertices=np.asarray(box.vertices, np.float64), faces=np.asarray(box.faces, np.int64))
    with pytest.raises(ValueError, match="one part that keeps its form: it has no motion of its own"):
        kinematics(mesh, tmp_path / "w.safetensors")
    monkeypatch.setattr("kinema4d.objects.foretell.ALIKE", 2.0)  # an untrained model answers in many ways
    got = kinematics(mesh, tmp_path / "w.safetensors", bends="all")
    assert got.freedom.count is None
    assert "it bends (1 of 1 parts)" in got.freedom.why
    assert len(got.twists) == len(mesh.vertices)  # each its own mean of the patches around it
    two = box.copy().apply_translation([2, 0, 0])
    pair = Mesh(vertices=np.concatenate([mesh.vertices, np.asarray(two.vertices)]), faces=np.concatenate([mesh.faces, mesh.faces + len(mesh.vertices)]))  # fmt: skip
    with pytest.raises(ValueError, match="knows nothing of joints"):
        kinematics(pair, tmp_path / "w.safetensors")


def test_learning_goes_on_from_weights_of_the_same_size(chests: Path, tmp_path: Path):
    small = ChooseConfig(width=8, rounds=1)
    first = run_joints([chests], tmp_path / "a", small, steps=4, workers=1)
    again = run_joints([chests], tmp_path / "b", small, steps=1, start=first, workers=1)
    fresh = run_joints([chests], tmp_path / "c", small, steps=1, workers=1)
    off = [sum(float((p - q).detach().abs().sum()) for p, q in zip(net.parameters(), first.parameters(), strict=True)) for net in (again, fresh)]  # fmt: skip
    assert off[0] < 0.7 * off[1]
    with pytest.raises(ValueError, match="start from one of the same preset"):
        run_joints([chests], tmp_path / "d", ChooseConfig(width=16, rounds=1), steps=1, start=first, workers=1)
