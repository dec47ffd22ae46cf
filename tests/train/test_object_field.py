"""NeuROK's own model is taught from pairs of poses, of whatever deforms, and goes on after a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import torch

from kinema4d.cli import main
from kinema4d.data.objects_generate import Recipe as Objects
from kinema4d.data.objects_generate import generate
from kinema4d.geometry.motion_folder import ply
from kinema4d.objects.field import PRESETS, FieldConfig, FieldNet, load_field
from kinema4d.scenes.jointed import draw, some_poses
from kinema4d.train.object_field import PLAN, Deforming, FieldTask, Recipe, deforming, risen, run_field
from kinema4d.train.optimiser import Optimiser

TINY = FieldConfig(points=32, width=32, tokens=2, channels=4, seen=6, blocks=(1, 1, 1), looks=1, heads=2, octaves=4)


def door(seed: int = 3, poses: int = 3) -> Deforming:
    thing = draw("door", seed)
    rest = thing.posed(np.zeros(thing.freedom))
    return deforming("door", "door", rest, thing.posed(some_poses(thing, poses, 1)), thing.faces)


def task(config: FieldConfig = TINY, recipe: Recipe | None = None, steps: int = 10) -> FieldTask:
    torch.manual_seed(0)
    return FieldTask(FieldNet(config), [door()], [door()], steps=steps, recipe=recipe or Recipe())


@pytest.mark.parametrize("recipe", [Recipe(), Recipe.plain()])
def test_what_is_taught_takes_points_where_they_go(recipe: Recipe):
    for config in (TINY, FieldConfig(**{**TINY.__dict__, "dual": False})):
        own = task(config)
        b = own.batch([door(), door(4)], 3, np.random.default_rng(0), recipe)
        torch.testing.assert_close(own.net.moved(b.deformation, b.points.x[:, None]), b.goals, rtol=0, atol=1e-6)
        assert float((b.goals - b.points.x[:, None]).norm(dim=-1).max()) > 0.05
    if recipe == Recipe.plain():
        assert float(b.points.x.abs().max()) <= 0.5 + 1e-6
    b = task().batch([door()], 1, np.random.default_rng(0), recipe)
    r = b.deformation[0, 0, :, :4]
    near = (r[:, None] - r[None]).norm(dim=-1) < 1e-5
    assert len({tuple(row) for row in near.tolist()}) == 2  # frame and leaf, and nothing between


def test_turned_and_scaled_pairs_are_the_same_deformation():
    own, rng = task(), np.random.default_rng
    plain = own.batch([door()], 2, rng(3), Recipe.plain())
    turned = own.batch([door()], 2, rng(3), Recipe(swapped=False))
    d, e = torch.cdist(plain.points.x[0], plain.points.x[0]), torch.cdist(turned.points.x[0], turned.points.x[0])
    size = float(e.sum() / d.sum())
    assert 0.85 <= size <= 1.15
    torch.testing.assert_close(e, size * d, rtol=0, atol=2e-3)
    torch.testing.assert_close(plain.deformation[..., 0], turned.deformation[..., 0], rtol=0, atol=1e-5)  # half angles
    assert float((plain.points.x - turned.points.x).abs().max()) > 0.1


def test_all_that_is_random_is_drawn_by_the_number_of_the_step():
    own = task()
    torch.manual_seed(0)
    a = own.loss(7)
    torch.manual_seed(0)
    assert torch.equal(a, own.loss(7))
    with pytest.raises(ValueError, match="0 objects to learn from"):
        FieldTask(own.net, [], own.seen, steps=1, recipe=Recipe())


def test_content_comes_before_order():
    first, last = Recipe().ordering
    assert risen(first, (first, last)) == 0
    assert risen(last, (first, last)) == 1
    assert risen((first + last) / 2, (first, last)) == pytest.approx(0.5)
    one, two = task(recipe=Recipe(nested=True), steps=100), task(recipe=Recipe(nested=False), steps=100)
    two.net.load_state_dict(one.net.state_dict())
    torch.nn.init.normal_(list(one.net.leave.parameters())[-2], std=0.3)
    two.net.load_state_dict(one.net.state_dict())
    for step, same in ((0, True), (90, False)):
        made = []
        for own in (one, two):
            torch.manual_seed(0)
            made.append(own.loss(step))
        assert torch.equal(*made) is same


def test_a_door_is_learned_by_heart(monkeypatch):
    monkeypatch.setattr("kinema4d.train.object_field.OBJECTS", 6)
    monkeypatch.setattr("kinema4d.train.object_field.ASKED", 32)
    recipe = Recipe(turned=False, scaled=False, swapped=False)
    own = task(recipe=recipe, steps=10_000)
    still = own.validate(own.net)["still"]
    optimiser = Optimiser(own.net, decay=0.02, muon=20.0)
    for step in range(200):
        torch.manual_seed(step)
        optimiser.zero_grad()
        own.loss(step).backward()
        torch.nn.utils.clip_grad_norm_(own.net.parameters(), 1.0)
        optimiser.step(1e-3 * min(1.0, (step + 1) / 20, (200 - step) / 60))
    found = own.validate(own.net)
    assert found["percent"] < 0.5 * still
    assert found["percent_0"] > 1.5 * found["percent"]  # it is the latents that say which pose it is


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "set"
    generate(root, Objects(objects=40, kinds=("chest", "laptop"), poses=6, motions=0, held_out=()), workers=1)
    return root


def test_a_killed_run_ends_as_one_that_was_not(mixed: Path, tmp_path: Path):
    whole = run_field([mixed], tmp_path / "a", TINY, steps=6)

    class KilledError(Exception):
        pass

    def kill(step: int, found: dict[str, float]) -> None:
        if step == 3 and "val/percent" in found:
            raise KilledError

    own = pytest.MonkeyPatch()
    own.setattr("kinema4d.train.object_field.PLAN", replace(PLAN, save_every=0.0, validate_every=1))
    with pytest.raises(KilledError):
        run_field([mixed], tmp_path / "b", TINY, steps=6, tell=kill)
    own.undo()
    again = run_field([mixed], tmp_path / "b", TINY, steps=6)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="holds a run of another configuration"):
        run_field([mixed], tmp_path / "b", TINY, Recipe(nested=False), steps=6)


def test_the_command_trains_either_model(mixed: Path, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setitem(PRESETS, "small", TINY)
    words = ["objects", "train", "--data", str(mixed), "--steps", "2"]
    main([*words, "--out", str(tmp_path / "f"), "--model", "field", "--no-dual", "--no-augment", "--no-nested"])
    assert "field.safetensors: sha256 " in capsys.readouterr().out
    net, about = load_field(tmp_path / "f" / "field.safetensors")
    assert not net.config.dual
    assert about["augment"] is False
    assert about["nested"] is False
    for wrong, say in (
        (["--model", "limp", "--no-dual"], "--no-dual is for --model field"),
        (["--model", "limp", "--start", "w.safetensors"], "--start is for --model joints"),
        (["--no-nested"], "--no-nested is for --model field"),
    ):
        with pytest.raises(SystemExit):
            main([*words, "--out", str(tmp_path / "g"), *wrong])
        assert say in capsys.readouterr().err
    thing = draw("chest", 1)
    (tmp_path / "chest.ply").write_bytes(ply(thing.posed(np.zeros(1)), thing.faces))
    with pytest.raises(SystemExit):
        main(
            [
                "objects",
                "simulate",
                str(tmp_path / "chest.ply"),
                "--out",
                str(tmp_path / "m"),
                "--weights",
                str(tmp_path / "f" / "field.safetensors"),
            ]
        )
    assert "field_body" in capsys.readouterr().err
