"""``kinema4d simulate`` and ``train`` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kinema4d as k4d
from kinema4d.cli import main
from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate
from kinema4d.geometry.camera import camera_to_dict
from kinema4d.world.protocol import first_depth


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "robo4d"
    generate(
        root,
        Recipe(episodes=1, robots=("k4arm",), tasks=("push",), failures=0, scenarios=("canonical",), seed=2),
        workers=1,
    )
    return root


@pytest.fixture(scope="module")
def brought(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user brings, as files."""
    folder = tmp_path_factory.mktemp("brought")
    rows = open_dataset(dataset)
    episode = rows.load(rows.rows[0].id)
    depth, path = first_depth(episode.clip), episode.arms[0].trajectory
    assert depth is not None
    Image.fromarray(episode.clip.rgb[0]).save(folder / "first.png")
    Image.fromarray(np.round(1000 * depth).astype(np.uint16)).save(folder / "depth.png")
    np.save(folder / "depth.npy", depth)
    np.savez(folder / "ep.npz", joint_position=path.q, fps=path.fps, T_world_base=path.T_world_base)
    (folder / "cam.json").write_text(json.dumps(camera_to_dict(episode.clip.camera)))
    return folder


def words(folder: Path, out: Path, **changed: str) -> list[str]:
    given = {"image": "first.png", "depth": "depth.png", "actions": "ep.npz", "camera": "cam.json"} | changed
    named = [w for k, v in given.items() if v for w in (f"--{k}", str(folder / v))]
    return ["simulate", *named, "--robot", "k4arm", "--out", str(out)]


def test_files_in_a_clip_out(brought, tmp_path, capsys):
    main([*words(brought, tmp_path / "a"), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["frames"] == 49
    assert said["provenance"]["depth"] == "given"
    rollout = k4d.load(tmp_path / "a")
    assert isinstance(rollout, k4d.Rollout)
    assert rollout.tracks
    assert rollout.provenance["weights"]["sha256"]
    main([*words(brought, tmp_path / "b", depth="depth.npy"), "--world", "small"])
    assert "kinema4d view" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(words(brought, tmp_path / "a"))
    assert "pass --overwrite" in capsys.readouterr().err


def test_an_episode_beside_its_truth(dataset, tmp_path, capsys):
    main(["simulate", "--episode", str(dataset / "0"), "--compare", "--out", str(tmp_path / "a"), "--json"])
    said = json.loads(capsys.readouterr().out)
    scores = said["scores"]
    assert scores["prediction"]["object_error_m"] < scores["static"]["object_error_m"]
    assert (tmp_path / "a" / "compare.jpg").stat().st_size > 5000
    main(["simulate", "--episode", str(dataset / "0"), "--world", "static", "--out", str(tmp_path / "s")])
    main(["simulate", "--episode", str(dataset / "0"), "--samples", "2", "--out", str(tmp_path / "n"), "--json"])
    assert [Path(p).name for p in json.loads(capsys.readouterr().out.splitlines()[-1])["out"]] == [
        "sample-000",
        "sample-001",
    ]
    assert isinstance(k4d.load(tmp_path / "n" / "sample-001"), k4d.Rollout)


def test_mistakes_are_named(brought, dataset, tmp_path, capsys):
    def says(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        assert stop.value.code == 2
        return capsys.readouterr().err

    out = tmp_path / "out"
    small = tmp_path / "small.png"
    Image.open(brought / "first.png").resize((72, 48)).save(small)
    assert "is 48x72 pixels (height x width)" in says(*words(brought, out, image=str(small)))
    Image.open(brought / "first.png").resize((72, 72)).save(small)
    assert "aspect is another" in says(*words(brought, out, image=str(small)))
    np.save(tmp_path / "mm.npy", 1000 * np.load(brought / "depth.npy"))
    assert "seems to be in millimetres" in says(*words(brought, out, depth=str(tmp_path / "mm.npy")))
    Image.fromarray(np.zeros((96, 144), np.uint8)).save(tmp_path / "eight.png")
    assert "8 bits per pixel" in says(*words(brought, out, depth=str(tmp_path / "eight.png")))
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert "no readable image" in says(*words(brought, out, image=str(tmp_path / "broken.png")))
    assert "give --camera, or an --episode" in says(*words(brought, out, camera=""))
    assert "unknown world 'huge'" in says(*words(brought, out), "--world", "huge")
    assert "no learned correction" in says(*words(brought, out), "--mover", "flow")
    assert "static moves no parts: leave out --mover" in says(
        *words(brought, out), "--world", "static", "--mover", "engine"
    )
    assert "has no episode 'x'" in says("simulate", "--episode", str(dataset / "x"), "--out", str(out))
    assert "leave those out" in says(*words(brought, out), "--episode", str(dataset / "0"))
    assert "needs a truth" in says(*words(brought, out), "--compare")
    assert "at least 1, got 0" in says(*words(brought, out), "--samples", "0")
    assert not out.exists()


def test_labels_of_the_users_own(brought, tmp_path, capsys):
    main([*words(brought, tmp_path / "a"), "--json"])
    labels = np.zeros((96, 144), np.uint8)
    labels[40:60, 60:80] = 200
    Image.fromarray(labels).save(tmp_path / "parts.png")
    capsys.readouterr()
    main([*words(brought, tmp_path / "b"), "--parts", str(tmp_path / "parts.png"), "--json"])
    assert len(json.loads(capsys.readouterr().out)["provenance"]["parts"]) <= 1


def test_training_draws_its_pictures_and_goes_on(tmp_path, capsys):
    command = ["train", "--preset", "small-complete", "--data", str(tmp_path / "see"), "--out", str(tmp_path / "run"), "--scenes", "8", "--workers", "2", "--threads", "1"]  # fmt: skip
    main([*command, "--steps", "2"])
    assert (tmp_path / "run" / "last.pt").is_file()
    main([*command, "--steps", "3"])
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 3]
    with pytest.raises(SystemExit):
        main([*command, "--steps", "0"])
    assert "--steps at least 1" in capsys.readouterr().err


def test_the_transformer_alone_is_trained_and_simulates(tmp_path, capsys):
    data, out = tmp_path / "data", tmp_path / "run"
    recipe = Recipe(
        episodes=2,
        robots=("k4arm",),
        tasks=("push",),
        failures=0,
        scenarios=("canonical",),
        seed=2,
        height=48,
        width=72,
    )
    generate(data, recipe, workers=1)
    train = [
        "train",
        "--preset",
        "small-direct",
        "--data",
        str(data),
        "--out",
        str(out),
        "--steps",
        "2",
        "--workers",
        "1",
    ]
    main(train)
    assert "direct.safetensors: sha256" in capsys.readouterr().out
    weights = str(out / "direct.safetensors")
    main(
        [
            "simulate",
            "--episode",
            str(data / "0"),
            "--world",
            weights,
            "--samples",
            "2",
            "--out",
            str(tmp_path / "a"),
            "--json",
        ]
    )
    rollout = k4d.load(tmp_path / "a" / "sample-001")
    assert isinstance(rollout, k4d.Rollout)
    assert rollout.provenance["world"] == "small-direct"
    assert rollout.clip.rgb.shape == (49, 48, 72, 3)
    for option in (["--mover", "engine"], ["--support", "0.1"]):
        with pytest.raises(SystemExit):
            main(["simulate", "--episode", str(data / "0"), "--world", weights, "--out", str(tmp_path / "b"), *option])
        assert "small-direct moves no parts" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*train[:-4], "--direct.control", "smell", "--steps", "2"])
    assert "unknown control 'smell'" in capsys.readouterr().err
