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
from kinema4d.objects.amortised import AmortisedConfig, ScrewNet, kinematics, load_model, look_at, save_model
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import draw, some_poses
from kinema4d.train.objects import ObjectsTask, read_jointed, run_objects

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
    assert last["val/percent_2"] < 0.4 * last["val/still"]  # of how far points go
    assert json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])["step"] == 300
    file = tmp_path / "objects.safetensors"
    digest = save_model(file, net, {"data": "chests"})
    again, note = load_model(file)
    assert note == {"data": "chests"}
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
    with pytest.raises(ValueError, match="is no file of weights"):
        load_model(file)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, file, {"format": "other"})
    with pytest.raises(ValueError, match="weights of 'other', not of 'kinema4d-objects'"):
        load_model(file)
    torch.manual_seed(0)
    net = ScrewNet(TINY)
    torch.nn.init.normal_(net.enter.weight, std=3.0)  # an answer of its own for every look
    save_model(file, net, {})
    thing = draw("chest", 1)
    with pytest.raises(ValueError, match="unlike those that the model learned from: looked at 4 times, it answers"):
        kinematics(Mesh(vertices=thing.posed(np.zeros(1)), faces=thing.faces), file)
