"""A data set of objects in 4D: what is stored is what was made, splits do not meet, kills lose nothing, damage is named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinema4d.cli import main
from kinema4d.data import objects_generate
from kinema4d.data.objects4d import CATEGORIES, read_objects
from kinema4d.data.objects_generate import KINDS, Recipe, generate, orders, split_of
from kinema4d.data.objects_make import SOFT
from kinema4d.scenes import jointed, soft_kinds
from kinema4d.scenes.assets import ASSETS

pytest.importorskip("mujoco", reason="objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
SMALL = Recipe(objects=6, kinds=("door", "faucet", "rope", "chain"), poses=5, motions=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("objects") / "objects4d"
    summary = generate(root, SMALL, workers=1)
    assert (summary.episodes, summary.skipped) == (6, {})
    return root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_what_is_stored_is_the_object(made: Path):
    found = read_objects(made)
    assert [o.id for o in found] == [
        "chain-00000",
        "door-00000",
        "door-00001",
        "faucet-00000",
        "faucet-00001",
        "rope-00000",
    ]
    for one in found:
        vertices, faces = one.shape()
        poses, (motions, step) = one.poses(), one.motion()
        assert poses.shape == (5, len(vertices), 3)
        assert step == 0.01
        assert faces.max() < len(vertices)
        assert all(31 <= len(m) <= 101 and m.shape[1:] == vertices.shape for m in motions)
        assert len(motions) == len(one.truth()["starts"])
        assert one.truth()["gravity"] == [0.0, 0.0, -9.81]
        seed = int(one.id[-5:])
        if one.kind in jointed.KINDS:
            thing = jointed.draw(one.kind, seed)
            np.testing.assert_array_equal(vertices, thing.posed(np.zeros(thing.freedom)))
            edges = faces[thing.part_of[faces[:, 0]] == thing.part_of[faces[:, 1]]][:, :2]
            long = lambda v, e=edges: np.linalg.norm(v[..., e[:, 0], :] - v[..., e[:, 1], :], axis=-1)  # noqa: E731
            for several in (poses, *motions):
                np.testing.assert_allclose(
                    long(several), np.broadcast_to(long(vertices), (len(several), len(edges))), atol=1e-6
                )
            low, high = thing.limits.T
            assert all((low <= s["q"]).all() and (s["q"] <= high).all() for s in one.truth()["starts"])
        else:
            np.testing.assert_array_equal(vertices, soft_kinds.draw(one.kind, seed).vertices)


def test_training_needs_no_truth_and_finds_no_label(copy: Path):
    for one in read_objects(copy):
        (one.folder / "truth.json").unlink()
        assert sorted(json.loads((one.folder / "object.json").read_text())) == ["category", "id", "kind", "split"]
        names = {file: set(np.load(one.folder / file).files) for file in ("shape.npz", "poses.npz", "motion.npz")}
        assert names == {
            "shape.npz": {"vertices", "faces"},
            "poses.npz": {"poses"},
            "motion.npz": {"vertices", "lengths", "step"},
        }
    for one in read_objects(copy):
        assert len(one.poses()) == 5
        assert one.motion()[1] == 0.01
        with pytest.raises(ValueError, match=r"truth\.json is not readable"):
            one.truth()


def test_splits_are_disjoint_and_held_out_kinds_never_train(made: Path):
    every = read_objects(made)
    assert {o.id for o in read_objects(made, "test-category")} == {"faucet-00000", "faucet-00001"}
    assert sum(len(read_objects(made, s)) for s in ("train", "val", "test-instance", "test-category")) == len(every)
    rows = [o.row for o in orders(Recipe(objects=4500, kinds=(*KINDS, *ASSETS)))]
    assert len({r["id"] for r in rows}) == 4500
    assert {r["category"] for r in rows} == set(CATEGORIES)
    held = [r for r in rows if r["split"] == "test-category"]
    assert {r["kind"] for r in held} == {"faucet", "scissors", "real-faucet"}
    assert not {r["kind"] for r in held} & {r["kind"] for r in rows if r["split"] != "test-category"}
    for kind in ("door", "cloth", "rope"):
        shares = [r["split"] for r in rows if r["kind"] == kind]
        assert 0.7 < shares.count("train") / len(shares) < 0.9
        assert shares.count("val") > 5
        assert shares.count("test-instance") > 5
    assert split_of("door-00000", "door", ()) == split_of("door-00000", "door", ("rope",))


def test_every_soft_kind_has_its_category():
    assert list(SOFT) == list(soft_kinds.KINDS)
    assert all(soft_kinds.draw(kind, 0).category == category for kind, category in SOFT.items())


def _bytes(root: Path) -> dict[str, Any]:
    """All arrays and texts of a set."""
    out: dict[str, Any] = {}
    for file in sorted(f for f in root.rglob("*") if f.is_file() and f.name != ".lock"):
        held = {k: v.tobytes() for k, v in np.load(file).items()} if file.suffix == ".npz" else file.read_text()
        out[str(file.relative_to(root))] = held
    return out


def test_a_killed_run_goes_on_and_ends_the_same(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root, real, calls = tmp_path / "set", objects_generate.write_object, []

    def killed(*arguments: Any) -> None:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(real(*arguments))

    monkeypatch.setattr(objects_generate, "write_object", killed)
    with pytest.raises(KeyboardInterrupt):
        generate(root, SMALL, workers=1)
    assert len(read_objects(root)) == 2
    monkeypatch.undo()
    dead = root / f".rope-00000.tmp-{_dead()}"
    dead.mkdir()
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["objects"] = manifest["objects"][:1]  # killed between folder and manifest
    (root / "manifest.json").write_text(json.dumps(manifest))
    summary = generate(root, SMALL, workers=1)
    assert (summary.before, summary.episodes) == (2, 4)
    assert not dead.exists()
    assert _bytes(root) == _bytes(made)
    assert generate(root, SMALL, workers=1).episodes == 0


def test_workers_make_the_same(made: Path, tmp_path: Path):
    assert generate(tmp_path / "set", SMALL, workers=2).episodes == 6
    assert _bytes(tmp_path / "set") == _bytes(made)


def _dead() -> int:
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    return child


def test_another_recipe_is_refused_and_more_objects_are_added(copy: Path):
    with pytest.raises(ValueError, match=r"another recipe \(poses 5 now 6\); use another --out"):
        generate(copy, Recipe(objects=6, kinds=SMALL.kinds, poses=6, motions=1), workers=1)
    more = Recipe(objects=7, kinds=SMALL.kinds, poses=5, motions=1)
    assert generate(copy, more, workers=1).episodes == 1
    assert len(read_objects(copy)) == 7
    (copy / "door-00000" / "poses.npz").unlink()
    summary = generate(copy, SMALL, workers=1)
    assert summary.episodes == 1
    assert "poses.npz missing" in summary.mended[0]


def test_damage_is_named(copy: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"has no manifest.json; make one with 'kinema4d objects generate'"):
        read_objects(tmp_path / "nothing")
    with pytest.raises(ValueError, match="unknown split 'dev'; known are train"):
        read_objects(copy, "dev")
    door = next(o for o in read_objects(copy) if o.kind == "door")
    bad = door.poses().copy()
    bad[1, 2, 0] = np.nan
    np.savez(door.folder / "poses.npz", poses=bad)
    with pytest.raises(ValueError, match="poses that are no numbers"):
        door.poses()
    np.savez(door.folder / "poses.npz", poses=np.zeros((2, 5, 3), np.float32))
    with pytest.raises(ValueError, match="its shape.npz has"):
        door.poses()
    (door.folder / "motion.npz").write_bytes(b"not a zip")
    with pytest.raises(ValueError, match="motion.npz is not readable"):
        door.motion()
    np.savez(door.folder / "shape.npz", vertices=np.zeros((4, 3)))
    with pytest.raises(ValueError, match="must hold faces as int64 with 2 axes, has nothing"):
        door.shape()
    (door.folder / "motion.npz").unlink()
    with pytest.raises(ValueError, match="is no whole object: motion.npz missing"):
        read_objects(copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for change, said in (
        ({"version": 9}, "has version 9, this kinema4d reads 1"),
        ({"format": "x"}, 'must say "format": "objects4d"'),
    ):
        (copy / "manifest.json").write_text(json.dumps(manifest | change))
        with pytest.raises(ValueError, match=said):
            read_objects(copy)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not readable as JSON"):
        read_objects(copy)


def test_bad_recipes_are_named(tmp_path: Path):
    with pytest.raises(ValueError, match="unknown or repeated kinds boat; known are door"):
        Recipe(kinds=("boat",))
    with pytest.raises(ValueError, match="unknown held-out kinds boat"):
        Recipe(held_out=("boat",))
    with pytest.raises(ValueError, match="got 0, 64, 2, 0"):
        Recipe(objects=0)
    with pytest.raises(ValueError, match="at most 1000 objects"):
        Recipe(objects=1001, kinds=("door",))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is not a data set of objects"):
        generate(tmp_path, SMALL, workers=1)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        generate(tmp_path / "new", SMALL, workers=0)
    with pytest.raises(ValueError, match="real-drawer needs metaworld"):
        generate(tmp_path / "new", Recipe(objects=1, kinds=("real-drawer",)), assets=tmp_path)


def test_the_command_makes_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "objects4d"
    main(["objects", "generate", "--out", str(out), "--objects", "2", "--kinds", "laptop", "scissors", "--poses", "3", "--workers", "1", "--json"])  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert (told["objects"], told["written"], told["categories"]) == (2, 2, {"articulated": 2})
    assert {o.split for o in read_objects(out) if o.kind == "scissors"} == {"test-category"}
