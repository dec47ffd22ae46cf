"""The model of unseen objects: it learns where joints are from poses alone, goes on after a kill, and foretells a mesh it never saw."""

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
from kinema4d.objects.amortised import AmortisedConfig, ScrewNet, kinematics, load_model, look_at, save_model, squared
from kinema4d.objects.pieces import nearest
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import draw, some_poses
from kinema4d.train.objects import ObjectsTask, Seen, explained, left_over, read_jointed, run_objects

TINY = AmortisedConfig(points=6, pieces=8, coordinates=2, width=48, layers=2, octaves=3)


@pytest.fixture(scope="module")
def chests(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "set"
    generate(root, Recipe(objects=120, kinds=("chest", "rigid"), poses=12, motions=0, held_out=()), workers=1)
    return root


def test_only_objects_whose_parts_keep_their_form_are_learned_from(chests: Path):
    seen = read_jointed(read_objects(chests, "train"), TINY)
    assert {s.kind for s in seen} == {"chest"}  # a rigid body has one part, and nothing to learn
    with pytest.raises(ValueError, match="0 objects to learn from"):
        ObjectsTask(ScrewNet(TINY), [], seen, steps=1)


def test_one_kind_is_learned_and_an_unseen_one_is_foretold(chests: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("kinema4d.train.objects.OBJECTS", 12)
    monkeypatch.setattr("kinema4d.train.objects.POSES", 4)
    told: list[dict[str, float]] = []
    net = run_objects(chests, tmp_path / "run", TINY, steps=300, tell=lambda _, f: told.append(f))
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
    seen = read_jointed(read_objects(chests), TINY)
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
    one = Seen(name="chain", kind="chain", poses=poses, faces=thing.faces, label=label, twists=found[0], q=found[1])
    task = ObjectsTask(ScrewNet(AmortisedConfig()), [one], [one], steps=1)
    b = task.batch([one, one, one], 5, np.random.default_rng(2))
    assert b.count.tolist() == [thing.freedom] * 3
    use = torch.arange(5) < b.count[:, None]
    x, twists, goals = b.x.double(), b.twists.double(), b.goals.double()
    _, error, _ = nearest(x, twists, goals, b.there, use, rounds=60)
    assert float(error.sqrt().mean()) < 0.01  # weakly drawn to the pose that is seen
    _, far, _ = nearest(x, twists, goals, b.there, use & (torch.arange(5) < 1), rounds=60)
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


def test_what_is_upright_looks_along_an_axis():
    rest = draw("chest", 2).posed(np.zeros(1))
    faces = draw("chest", 2).faces
    for angle in (0.0, 0.3, -0.6, 0.5):
        R = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        assert squared(rest @ R.T, faces) == pytest.approx(angle, abs=1e-6)
    ball = trimesh.creation.icosphere(2)
    assert squared(np.asarray(ball.vertices), np.asarray(ball.faces)) == 0


def test_what_is_looked_at_is_turned_about_the_vertical_in_a_unit_box():
    thing = draw("door", 3)
    rest = thing.posed(np.zeros(1))
    label = parts(Mesh(vertices=rest, faces=thing.faces))
    look = look_at(rest[None], thing.faces, label, AmortisedConfig(), np.random.default_rng(0))
    own = look.points[0][look.there]
    assert look.there.sum() == label.max() + 1
    assert np.abs(own).max() <= 0.5
    np.testing.assert_allclose(look.turn @ look.turn.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(look.turn[2], [0, 0, 1])
    np.testing.assert_allclose(np.linalg.norm(look.normals[look.there], axis=-1), 1, atol=1e-5)
    with pytest.raises(ValueError, match=r"the object has \d+ parts that do not touch; the model knows at most 2"):
        look_at(rest[None], thing.faces, label, AmortisedConfig(pieces=2), np.random.default_rng(0))


def test_files_that_are_no_weights_and_objects_unlike_any_are_refused(tmp_path: Path):
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is no readable safetensors file"):
        load_model(file)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, file, {"format": "other"})
    with pytest.raises(ValueError, match="says it is 'other', expected 'kinema4d objects 1'"):
        load_model(file)
    torch.manual_seed(0)
    net = ScrewNet(TINY)
    torch.nn.init.normal_(net.enter.weight, std=3.0)  # an answer of its own for every look
    save_model(file, net, {})
    thing = draw("chest", 1)
    with pytest.raises(ValueError, match="unlike those that the model learned from: looked at 4 times, it answers"):
        kinematics(Mesh(vertices=thing.posed(np.zeros(1)), faces=thing.faces), file)
