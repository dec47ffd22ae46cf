"""The model of unseen objects: it learns what is on joints and what bends from poses alone, goes on after a kill, and foretells a mesh it never saw."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import torch
import trimesh

from kinema4d.data.objects4d import read_objects
from kinema4d.data.objects_generate import Recipe, generate
from kinema4d.objects.choose import ChooseConfig, ChooseNet
from kinema4d.objects.foretell import Foreteller, kinematics, load_foreteller, looks_limp, save_foreteller
from kinema4d.objects.limp import LimpConfig, LimpNet
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes import soft_kinds
from kinema4d.scenes.jointed import draw, some_poses
from kinema4d.simulate.object_wish import Wish
from kinema4d.simulate.objects import simulate_object
from kinema4d.train.choose import ChooseTask, Looked, judged, looked, run_joints
from kinema4d.train.limp import LimpTask, read_seen, run_limp
from kinema4d.train.objects import run_objects

TINY = LimpConfig(points=6, width=32, layers=1, octaves=3)


@pytest.fixture(scope="module")
def chests(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "set"
    generate(root, Recipe(objects=120, kinds=("chest", "rigid"), poses=12, motions=0, held_out=()), workers=1)
    return root


@pytest.fixture(scope="module")
def hung(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "soft"
    generate(root, Recipe(objects=40, kinds=("cloth", "rope"), poses=8, motions=0, held_out=()), workers=1)
    return root


def test_what_is_on_joints_and_what_bends_is_told_apart(chests: Path, hung: Path):
    on_joints = [looked(o) for o in read_objects(chests)]
    assert {one.kind for one in on_joints if one is not None} == {
        "chest"
    }  # a rigid body has one part, and nothing to learn
    held = [one for o in read_objects(hung) if (one := looked(o)) is not None]  # what holds them at several places
    assert held
    assert all(not one.moving and one.q.shape[1] == 0 and one.looks[0].still.all() for one in held)
    soft = read_seen(read_objects(hung))
    assert {s.kind for s in soft} == {"cloth", "rope"}
    assert all(s.bends.sum() == 1 and len(s.bends) > 1 for s in soft)
    stiff = read_seen(read_objects(chests))
    assert {s.kind for s in stiff} == {"chest", "rigid"}
    assert not any(s.bends.any() for s in stiff)
    with pytest.raises(ValueError, match="0 objects that bend to learn from and 0 to judge by"):
        LimpTask(LimpNet(TINY), stiff, stiff)
    with pytest.raises(ValueError, match="0 objects on joints to learn from"):
        ChooseTask(ChooseNet(ChooseConfig(width=8)), [], [])


def test_a_box_that_swings_with_a_cloth_is_learned_from_without_it(tmp_path: Path):
    generate(tmp_path / "set", Recipe(objects=2, kinds=("box-cloth",), poses=8, motions=0, held_out=()), workers=1)
    one = read_objects(tmp_path / "set")[0]
    found = looked(one)
    assert found is not None
    rest, faces = one.shape()
    label = parts(Mesh(vertices=rest, faces=faces))
    assert found.twists.shape == (label.max(), 1, 6)  # all parts but the cloth
    assert found.looks[0].still.sum() == 2  # the posts


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
    assert again.limp is None  # there was nothing to learn it from
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


def test_a_killed_run_ends_as_one_that_was_not(chests: Path, hung: Path, tmp_path: Path):
    seen = read_seen(read_objects(hung))
    task = LimpTask(LimpNet(TINY), seen, seen)
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


def test_what_bends_is_learned(chests: Path, hung: Path, tmp_path: Path):
    told: list[dict[str, float]] = []
    net = run_limp([hung, chests], tmp_path, TINY, steps=120, tell=lambda _, f: told.append(f))
    assert told[-1]["val/right"] > 0.9
    thing = soft_kinds.draw("cloth", 4000)
    mesh = Mesh(vertices=thing.vertices, faces=thing.faces)
    label = parts(mesh)
    limp = looks_limp(net, mesh, label, np.random.default_rng(0))
    assert limp.tolist() == [bool((thing.rigid[label == c] < 0).all()) for c in range(len(limp))]


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


def test_files_that_are_no_weights_and_objects_unlike_any_are_refused(tmp_path: Path):
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is no readable safetensors file"):
        load_foreteller(file)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, file, {"format": "other"})
    with pytest.raises(ValueError, match="says it is 'other', expected 'kinema4d objects 4'"):
        load_foreteller(file)
    torch.manual_seed(0)
    net = ChooseNet(ChooseConfig(width=16))
    for entry in (net.mate, net.pair, net.odds):  # an answer of its own for every look
        for p in entry.parameters():
            torch.nn.init.normal_(p, std=2.0)
    save_foreteller(file, Foreteller(joints=net, limp=None), {})
    thing = draw("cabinet", 1)
    with pytest.raises(ValueError, match="unlike those that the model learned from: looked at 6 times, it"):
        kinematics(Mesh(vertices=thing.posed(np.zeros(thing.freedom)), faces=thing.faces), file)


def test_what_nothing_holds_is_held_flies_or_is_refused(tmp_path: Path):
    file = tmp_path / "w.safetensors"
    torch.manual_seed(0)
    net = LimpNet(TINY)
    last = net.leave[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.constant_(last.bias, -50.0)
    save_foreteller(file, Foreteller(joints=None, limp=net), {})
    box = trimesh.creation.box((1, 1, 3)).subdivide().subdivide()
    mesh = Mesh(vertices=np.asarray(box.vertices, np.float64), faces=np.asarray(box.faces, np.int64))
    with pytest.raises(ValueError, match="one part that keeps its form: it has no motion of its own"):
        kinematics(mesh, file)
    with pytest.raises(ValueError, match="nothing holds a part that bends.*say where it is held with --pin, or let it fly with --free"):  # fmt: skip
        kinematics(mesh, file, bends="all")
    pinned = kinematics(mesh, file, bends="all", held=[(0.5, 0.5, -1.5), (0.5, -0.5, -1.5), (-0.5, -0.5, -1.5)])
    assert pinned.freedom.count is None
    low = np.flatnonzero((np.abs(mesh.vertices[:, :2]) == 0.5).all(1) & (mesh.vertices[:, 2] == -1.5))
    moves = np.abs(pinned.twists[pinned.piece]).max((1, 2))
    assert sorted(moves[low] == 0) == [False, True, True, True]
    turned = kinematics(mesh, file, bends="all", held=[(0.5, 0.5, -1.5), (0.5, -0.5, -1.5)])
    assert (np.abs(turned.twists[..., :3]).max((0, 2)) > 0).sum() == 1  # about the line of both
    everywhere = kinematics(mesh, file, bends="all", held=[(v[0], v[1], v[2]) for v in mesh.vertices.tolist()])
    assert everywhere.twists.shape[1] == 0
    flies = kinematics(mesh, file, bends="all", free=True)
    motion = simulate_object(flies, Wish(seconds=0.1, free=True))
    assert motion.vertices[-1].mean(0)[2] - motion.vertices[0].mean(0)[2] == pytest.approx(-9.81 * 0.005, rel=0.02)
    two = box.copy().apply_translation([2, 0, 0])
    pair = Mesh(vertices=np.concatenate([mesh.vertices, np.asarray(two.vertices)]), faces=np.concatenate([mesh.faces, mesh.faces + len(mesh.vertices)]))  # fmt: skip
    with pytest.raises(ValueError, match="knows nothing of joints"):
        kinematics(pair, file)
    with pytest.raises(ValueError, match="say where it is held with --pin$"):
        kinematics(pair, file, bends="all", free=True)


def test_learning_goes_on_from_weights_of_the_same_size(chests: Path, tmp_path: Path):
    small = ChooseConfig(width=8, rounds=1)
    first = run_joints([chests], tmp_path / "a", small, steps=4, workers=1)
    again = run_joints([chests], tmp_path / "b", small, steps=1, start=first, workers=1)
    fresh = run_joints([chests], tmp_path / "c", small, steps=1, workers=1)
    off = [sum(float((p - q).detach().abs().sum()) for p, q in zip(net.parameters(), first.parameters(), strict=True)) for net in (again, fresh)]  # fmt: skip
    assert off[0] < 0.7 * off[1]
    with pytest.raises(ValueError, match="start from one of the same preset"):
        run_joints([chests], tmp_path / "d", ChooseConfig(width=16, rounds=1), steps=1, start=first, workers=1)
