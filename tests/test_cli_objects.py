"""``kinema4d objects fit`` and ``simulate`` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")

from kinema4d.cli import main
from kinema4d.geometry.motion_folder import load_motion, ply
from kinema4d.objects.store import load_fitted
from kinema4d.scenes.jointed import draw, some_poses

LAPTOP = draw("laptop", 0)
LID = "0,0.12,0.24"
"""The upper edge of the lid."""


@pytest.fixture(scope="module")
def meshes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("laptop")
    q = np.concatenate([np.zeros((1, 1)), some_poses(LAPTOP, 47, 1)])
    for i, vertices in enumerate(LAPTOP.posed(q)):
        (folder / f"frame{i}.ply").write_bytes(ply(vertices, LAPTOP.faces))
    return folder


@pytest.fixture(scope="module")
def fitted(meshes: Path) -> Path:
    out = meshes.parent / "fitted"
    main(["objects", "fit", str(meshes), "--out", str(out)])
    return out


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["objects", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_fit_finds_one_hinge(meshes, fitted, tmp_path, capsys):
    assert load_fitted(fitted).freedom.count == 1
    main(["objects", "fit", str(meshes), "--out", str(tmp_path / "a")])
    said = capsys.readouterr()
    assert "1 coordinate: " in said.out
    assert "degrees of freedom: 1 (1 coordinates reconstruct" in said.out
    assert "2 parts that do not touch" in said.err
    about = json.loads((tmp_path / "a" / "meta.json").read_text())["about"]
    assert about["command"] == "objects fit"
    assert about["config"]["density"] == 1000.0
    assert "exists; pass --overwrite" in refused(["fit", str(meshes), "--out", str(tmp_path / "a")], capsys)
    main(["objects", "fit", str(meshes), "--out", str(tmp_path / "a"), "--overwrite", "--json"])
    assert json.loads(capsys.readouterr().out)["freedom"] == 1


def test_a_pushed_lid_moves_and_its_energy_is_the_work(fitted, tmp_path, capsys):
    words = ["objects", "simulate", str(fitted), "--out", str(tmp_path / "m"), "--gravity", "0,0,0", "--seconds", "0.3"]
    main([*words, "--push", f"{LID}: 0,-0.5,0 @0-0.2s", "--no-video", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == ["energy.svg", "mesh.npz", "meshes/", "meta.json", "motion.npz", "sliders.npz"]
    assert said["energy_gained"] == pytest.approx(said["work"], rel=0.02)
    assert said["work"] > 0.001
    assert said["energy_drift"] < 0.02
    motion = load_motion(tmp_path / "m")
    lid = LAPTOP.part_of == 1
    assert np.linalg.norm(motion.vertices[-1, lid] - motion.vertices[0, lid], axis=-1).max() > 0.05
    np.testing.assert_allclose(motion.vertices[:, ~lid], np.broadcast_to(motion.rest[~lid], motion.vertices[:, ~lid].shape), atol=1e-4)  # fmt: skip
    assert len(list((tmp_path / "m" / "meshes").iterdir())) == 31
    assert motion.about["config"]["push"] == [f"{LID}: 0,-0.5,0 @0-0.2s"]


def test_pushes_add_up_and_text_is_short(fitted, tmp_path, capsys):
    words = ["objects", "simulate", str(fitted), "--out", str(tmp_path / "m"), "--seconds", "0.1", "--no-meshes"]
    main([*words, "--push=-0.1,0.12,0.24: 0,-1,0", "--push", f"{LID}: 0,1,0", "--pin=-0.1,0.11,0", "--step", "0.02"])
    said = capsys.readouterr()
    assert "pushes and hands did" in said.out
    assert "drift" in said.out
    assert "the pin at -0.1,0.11,0 m is on what stands still" in said.err
    assert (tmp_path / "m" / "video.mp4").is_file()
    assert load_motion(tmp_path / "m").force.shape[1] == 2


def test_elasticity_is_passed_on(fitted, tmp_path, capsys):
    words = ["objects", "simulate", str(fitted), "--seconds", "0.05", "--no-video", "--no-meshes"]
    main([*words, "--out", str(tmp_path / "m"), "--young", "1e5", "--poisson", "0.4", "--thickness", "0.003"])
    assert "every part of it keeps its form: --young does nothing" in capsys.readouterr().err
    about = load_motion(tmp_path / "m").about
    assert about["config"]["young"] == about["wish"]["young"] == 1e5
    assert (about["wish"]["poisson"], about["wish"]["thickness"]) == (0.4, 0.003)
    out = ["simulate", str(fitted), "--out", str(tmp_path / "n")]
    assert "young (Young's modulus, Pa) must be positive, got -1" in refused([*out, "--young=-1"], capsys)
    assert "must be above -1 and below 0.5, got 0.7" in refused([*out, "--young", "1e5", "--poisson", "0.7"], capsys)
    assert "0.001 without young" in refused([*out, "--thickness", "0.001"], capsys)


def test_obstacles_hands_and_velocities_are_passed_on(fitted, tmp_path, capsys):
    block = np.array(list(np.ndindex(2, 2, 2)), float) * [400, 40, 40] + [
        -200,
        -130,
        130,
    ]  # before the lid, in millimetres
    faces = np.array([[0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1], [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]])  # fmt: skip
    (tmp_path / "block.ply").write_bytes(ply(block, faces))
    words = ["objects", "simulate", str(fitted), "--gravity", "0,0,0", "--seconds", "0.3", "--no-video", "--no-meshes", "--json"]  # fmt: skip
    stands = ["--obstacle", str(tmp_path / "block.ply"), "--unit", "mm"]
    main([*words, "--out", str(tmp_path / "m"), *stands, "--velocity", f"{LID}: 0,-2,0"])
    said = json.loads(capsys.readouterr().out)
    assert "obstacles.npz" in said["files"]
    assert said["penetration"] < 0.004
    motion = load_motion(tmp_path / "m")
    assert motion.obstacle_faces.shape == (12, 3)
    assert motion.obstacle[:, 1].min() == pytest.approx(-0.13)
    assert motion.about["config"]["obstacle"] == [str(tmp_path / "block.ply")]
    main([*words, "--out", str(tmp_path / "n"), "--lead", f"{LID}: 0,0,0.24 @0-0.2s"])
    said = json.loads(capsys.readouterr().out)
    assert abs(said["energy_gained"] - said["work"]) < 1e-3
    assert load_motion(tmp_path / "n").force[5:15].any()
    out = ["simulate", str(fitted), "--out", str(tmp_path / "x")]
    (tmp_path / "open.ply").write_bytes(ply(block / 1000, faces[:-1]))
    assert "open.ply is open: 3 of its edges" in refused([*out, "--obstacle", str(tmp_path / "open.ply")], capsys)
    assert "does not say from when to when" in refused([*out, "--lead", f"{LID}: 0,0,0"], capsys)
    assert "off the surface" in refused([*out, "--lead", "1,1,1: 0,0,0 @0-1s"], capsys)
    assert "give one of them" in refused([*out, "--velocity", f"{LID}: 0,1,0", "--speed", "1"], capsys)
    assert not (tmp_path / "x").exists()


def test_a_lost_simulation_is_kept_and_told(fitted, tmp_path, capsys):
    words = ["objects", "simulate", str(fitted), "--out", str(tmp_path / "m"), "--no-video"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--push", f"{LID}: 0,-1e9,0 @0.05-1s"])
    assert ended.value.code == 1
    assert "stopped early: the step has no answer" in capsys.readouterr().err
    assert 5 <= len(load_motion(tmp_path / "m")) < 10


def test_bad_input_is_one_line(meshes, fitted, tmp_path, capsys, monkeypatch):
    out = ["--out", str(tmp_path / "m"), "--no-video"]
    run = lambda *words: refused(["simulate", *words], capsys)  # noqa: E731
    assert "off the surface" in run(str(fitted), *out, "--push", "0.4,0,1.1: 5,0,0 @0-0.2s")
    assert "has no colon" in run(str(fitted), *out, "--push", "5,0,0")
    assert "--unit and --up are for mesh files" in run(str(fitted), *out, "--unit", "mm")
    assert "is not a fitted object" in run(str(meshes), *out)
    assert "does not exist" in run(str(tmp_path / "door.glb"), *out)
    assert "exists; pass --overwrite" in run(str(fitted), "--out", str(fitted))
    assert "did not write it" in run(str(fitted), "--out", str(meshes), "--overwrite", "--seconds", "0.02", "--no-video")  # fmt: skip
    assert "has no mesh files" in refused(["fit", str(fitted), "--out", str(tmp_path / "x")], capsys)
    assert "0.153 m" not in refused(["fit", str(meshes), "--unit", "mm", "--out", str(tmp_path / "x")], capsys)
    assert "--most must be at least 1" in refused(["fit", str(meshes), "--most", "0", "--out", str(tmp_path / "x")], capsys)  # fmt: skip
    assert "which needs none" in run(str(fitted), *out, "--weights", "w.safetensors")
    assert "is no readable safetensors file" in run(
        str(meshes / "frame0.ply"), *out, "--weights", str(meshes / "frame0.ply")
    )
    monkeypatch.setattr("kinema4d.objects.foretell.shipped", lambda: None)
    assert "has no weights that foretell meshes: give --weights, or fit it" in run(str(meshes / "frame0.ply"), *out)
    assert not (tmp_path / "m").exists()


def test_a_mesh_goes_through_the_shipped_model(meshes, fitted, tmp_path, capsys, monkeypatch):
    """Here in place of it: one that knows laptops."""
    monkeypatch.setattr("kinema4d.objects.foretell.shipped", lambda: Path("shipped.safetensors"))
    monkeypatch.setattr(
        "kinema4d.objects.foretell.kinematics", lambda mesh, weights, bends, held, free: load_fitted(fitted)
    )
    words = ["objects", "simulate", str(meshes / "frame0.ply"), "--out", str(tmp_path / "m"), "--seconds", "0.05"]
    main([*words, "--no-video", "--no-meshes", "--json"])
    assert json.loads(capsys.readouterr().out)["frames"] == 6
    assert load_motion(tmp_path / "m").about["model"] == "shipped.safetensors"
