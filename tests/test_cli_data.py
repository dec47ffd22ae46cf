"""The data commands as a user types them: make, bring in, check, look, convert; and what they say about bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kinema4d.cli import main
from kinema4d.data.dataset import open_dataset
from kinema4d.types import Episode

pytest.importorskip("mujoco", reason="data generate needs MuJoCo: pip install 'kinema4d[mjcf]'")

SMALL = (
    "--robots",
    "k4arm",
    "--tasks",
    "poke,push",
    "--failures",
    "1",
    "--height",
    "48",
    "--width",
    "72",
    "--workers",
    "1",
)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    main([str(a) for a in arguments])
    return capsys.readouterr().out


def error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "robo4d"
    main(["data", "generate", "--out", str(root), "--episodes", "4", *SMALL])
    return root


def test_generate_makes_what_was_asked_for_and_again_makes_nothing(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = open_dataset(made).rows
    assert len(rows) == 4
    assert {row.task for row in rows} == {"poke", "push"}
    assert all((row.frames, row.height, row.width, row.robots) == (49, 48, 72, ("k4arm",)) for row in rows)
    again = json.loads(run(capsys, "data", "generate", "--out", made, "--episodes", 4, *SMALL, "--json"))
    assert (again["written"], again["episodes"]) == (0, 4)


def test_an_episode_knows_everything(made: Path) -> None:
    episode = open_dataset(made).load(0)
    assert isinstance(episode, Episode)
    assert episode.robot_mask is not None
    assert episode.robot_mask.any()
    assert episode.clip.pointmap.valid.all()
    assert episode.commands is not None
    assert episode.commands.space == "ee_pose"
    assert all(track.vertices is not None for track in episode.tracks)
    assert {"seed", "scenario", "min_gap_m", "target"} <= set(episode.facts)


def test_a_changed_recipe_is_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = error(capsys, "data", "generate", "--out", made, "--episodes", 4, *SMALL, "--height", 64)
    assert "height" in said
    assert "48" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tasks", "fly"), "known are pick_place"),
        (("--scenarios", "chaos"), "known are canonical"),
        (("--robots", "nobody"), "unknown robot 'nobody'"),
        (("--failures", "10"), "0 to 9"),
        (("--episodes", "0"), "at least 1"),
    ],
)
def test_bad_recipes_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert said in error(capsys, "data", "generate", "--out", tmp_path / "x", *options)
    assert not (tmp_path / "x").exists()


def test_doctor_curate_split_stats_and_shards_go_through(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, "data", "doctor", made, "--workers", 1, "--json"))
    assert report["counts"]["bad"] == 0
    curated = json.loads(run(capsys, "data", "curate", made, "--workers", 1, "--json"))
    assert curated["kept"] == 4
    assert Path(curated["report"]).is_file()
    run(capsys, "data", "split", made, "--fractions", 0.5, 0.25, 0.25, "--workers", 1)
    parts = [(made / "splits" / f"{part}.txt").read_text().split() for part in ("train", "val", "test")]
    assert sorted(id for part in parts for id in part) == [row.id for row in open_dataset(made).rows]
    assert "poke" in run(capsys, "data", "stats", made)
    run(capsys, "data", "shards", made, "--workers", 1)
    assert list((made / "shards").rglob("*.k4s"))


def test_view_and_export_an_episode(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "view", made, "--episode", 1, "--html", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000
    run(capsys, "data", "export", made, "--episode", 0, "--format", "ply", "--out", tmp_path / "ply")
    assert len(list((tmp_path / "ply").glob("*.ply"))) == 49
    assert "0 to 3" in error(capsys, "view", made, "--episode", 99)
    assert "not one" in error(capsys, "view", tmp_path / "ply", "--episode", 0)


def test_official_layout_out_and_in(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--height", 48, "--width", 72)
    run(capsys, "data", "export", made, "--format", "robo4d", "--out", tmp_path / "official", *small)
    assert len(list((tmp_path / "official" / "videos").glob("*.mp4"))) == 4
    out = run(capsys, "data", "ingest", "robo4d", "--root", tmp_path / "official", "--out", tmp_path / "back", "--workers", 1)  # fmt: skip
    assert "4 episodes written" in out


def test_lerobot_out_and_in(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="LeRobot files need pyarrow: pip install 'kinema4d[parquet]'")
    one = open_dataset(made).rows[0].id
    run(capsys, "data", "export", made, "--format", "lerobot", "--ids", one, "--out", tmp_path / "lerobot")
    out = run(capsys, "data", "ingest", "lerobot", "--root", tmp_path / "lerobot", "--out", tmp_path / "back", "--workers", 1)  # fmt: skip
    assert "1 episodes written" in out


def test_ingest_goes_on_and_skips_with_reasons(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = data / "bridge_rlds"
    if not source.is_dir():
        pytest.skip("no Bridge sample: set KINEMA4D_DATA to a folder with bridge_rlds")
    raw = tmp_path / "bridge"
    shutil.copytree(source, raw)
    shard = next(raw.rglob("*tfrecord*"))
    content = bytearray(shard.read_bytes())
    content[200] ^= 1  # in the payload of the first record: its checksum is wrong now
    shard.write_bytes(content)
    command = (
        "data",
        "ingest",
        "bridge",
        "--root",
        raw,
        "--out",
        tmp_path / "set",
        "--limit",
        3,
        "--workers",
        1,
        "--json",
    )
    first = json.loads(run(capsys, *command))
    assert (first["recordings"], len(first["skipped"])) == (2, 1)
    (reason,) = first["skipped"].values()
    assert shard.name in reason
    report = json.loads((tmp_path / "set" / "reports" / "ingest-bridge.json").read_text())
    assert report["skipped"] == first["skipped"]
    shutil.copytree(source, raw, dirs_exist_ok=True)  # mended: only what was skipped is read
    second = json.loads(run(capsys, *command))
    assert (second["recordings"], second["before"], second["skipped"]) == (1, 2, {})


def test_the_wrong_root_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source in ("droid", "bridge", "rt1", "libero", "libero_live", "lerobot", "robo4d"):
        empty = tmp_path / source
        empty.mkdir()
        assert str(empty) in error(capsys, "data", "ingest", source, "--root", empty, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "not a kinema4d data set" in error(capsys, "data", "doctor", tmp_path)
