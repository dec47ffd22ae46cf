"""A damaged data set is described, never raised: file, episode and remedy."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doctored import episode, flipped

from kinema4d.cli.data_doctor import doctor as command
from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.doctor import doctor, report_to_dict
from kinema4d.data.meta_file import sha256
from kinema4d.data.pool import spread


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("doctor") / "set"
    dataset = open_dataset(root, create=True)
    for seed in range(3):
        dataset.add(f"ep{seed}", episode(seed=seed))
    return root


@pytest.fixture
def damaged(clean: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clean, tmp_path / "set"))


def bad(root: Path) -> dict[str, set[str]]:
    report = doctor(root, workers=1)
    out = {e.id: {f.check for f in e.findings if f.severity == "bad"} for e in report.episodes}
    return {id: checks for id, checks in out.items() if checks}


def message(root: Path, id: str) -> str:
    report = doctor(root, workers=1, episodes=[id])
    return " ".join(f"{f.message} | {f.remedy}" for f in report.episodes[0].findings if f.severity == "bad")


def test_a_stored_truth_is_all_green(clean):
    report = doctor(clean, workers=1)
    assert report.severity == "ok", [f for e in report.episodes for f in e.findings if f.severity != "ok"]
    assert report.counts == {"ok": 3, "warn": 0, "bad": 0}
    assert report.findings == ()
    json.dumps(report_to_dict(report), allow_nan=False)


def test_truncated_video(damaged):
    file = damaged / "episodes" / "ep1" / "rgb.mp4"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert bad(damaged) == {"ep1": {"files"}}
    assert "rgb.mp4" in message(damaged, "ep1")
    assert "restore the folder" in message(damaged, "ep1")


def test_a_changed_byte_and_a_changed_hash(damaged):
    folder = damaged / "episodes" / "ep0"
    content = bytearray((folder / "commands.npz").read_bytes())
    content[-200] ^= 1
    (folder / "commands.npz").write_bytes(content)
    manifest = damaged / "manifest.jsonl"
    real = sha256(damaged / "episodes" / "ep2" / "meta.json")
    manifest.write_text(manifest.read_text().replace(real, "0" * 64))
    assert bad(damaged) == {"ep0": {"files"}, "ep2": {"files"}}
    assert "commands.npz" in message(damaged, "ep0")
    assert "is not the one in the manifest" in message(damaged, "ep2")


def test_states_that_are_not_numbers(damaged):
    folder = damaged / "episodes" / "ep0"
    with np.load(folder / "trajectory.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["arm0_q"][7, 2] = np.nan
    np.savez(folder / "trajectory.npz", **arrays)
    assert bad(damaged) == {"ep0": {"files"}}
    assert "arm0_q has a non-finite value" in message(damaged, "ep0")


def test_missing_files_and_folders(damaged):
    (damaged / "episodes" / "ep0" / "depth.mkv").unlink()
    shutil.rmtree(damaged / "episodes" / "ep1")
    (damaged / "episodes" / "ep2" / "meta.json").write_text("{")
    assert bad(damaged) == {"ep0": {"files"}, "ep1": {"files"}, "ep2": {"files"}}
    assert "depth.mkv is missing" in message(damaged, "ep0")


def test_an_unknown_version(damaged):
    file = damaged / "episodes" / "ep0" / "meta.json"
    file.write_text(file.read_text().replace('"version": 1', '"version": 99', 1))
    assert bad(damaged) == {"ep0": {"files"}}
    assert "version 99" in message(damaged, "ep0")


def test_the_set_as_a_whole(damaged):
    dataset = open_dataset(damaged, create=True)
    dataset.add("copy", replace(episode(seed=0), group="elsewhere", source="synthetic/copy"))
    arm = episode(seed=1).arms[0]
    slow = replace(
        episode(seed=1), clip=replace(episode(seed=1).clip, fps=7.0), view="side",
        arms=(replace(arm, trajectory=replace(arm.trajectory, fps=7.0)),),
    )  # fmt: skip
    dataset.add("slow", slow)
    foreign = replace(episode(seed=2), group="f", source="synthetic/f", arms=(replace(arm, robot="nowhere.urdf"),))
    dataset.add("foreign", foreign)
    dataset.add("foreign2", replace(foreign, group="f2", source="synthetic/f2"))
    shutil.copytree(damaged / "episodes" / "ep0", damaged / "episodes" / "unlisted")
    (damaged / "episodes" / ".ep9.tmp-1").mkdir()
    report = doctor(damaged, workers=1)
    by_check = {f.check: f for f in report.findings}
    assert set(by_check) == {"copies", "fps", "robots", "manifest", "leftovers"}
    assert sum(f.check == "robots" for f in report.findings) == 1, "once per robot, not per episode"
    assert by_check["fps"].severity == "bad"
    assert "ep1 at 10" in by_check["fps"].message
    assert "slow at 7" in by_check["fps"].message
    assert "unlisted" in by_check["manifest"].message
    copies = " ".join(f.message for f in report.findings if f.check == "copies")
    assert "copy, ep0" in copies
    assert "leak" in copies


def test_workers_find_the_same(damaged):
    dataset = Dataset(damaged)
    for number in range(7):
        dataset.add(
            f"more{number}", replace(flipped(episode(frames=12), (1,)), group=f"g{number}", source=f"s/{number}")
        )
    one, two = doctor(damaged, workers=1), doctor(damaged, workers=2)
    assert report_to_dict(one) == report_to_dict(two)
    assert one.counts["bad"] == 7


def test_a_pool_keeps_order_and_refuses_none():
    seen = []
    assert spread(abs, [-2, 1, -3], workers=1, progress=lambda n, of: seen.append((n, of))) == [2, 1, 3]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert spread(abs, list(range(-20, 0)), workers=2) == list(range(20, 0, -1))
    with pytest.raises(ValueError, match="workers must be at least 1"):
        spread(abs, [1], workers=0)


def test_the_command(clean, damaged, capsys, tmp_path):
    command(clean, workers=1)
    assert "3 episodes: 3 ok" in capsys.readouterr().out
    command(clean, workers=1, all=True, episode=("1",))
    out = capsys.readouterr().out
    assert "polarity" in out
    assert "ep0" not in out
    (damaged / "episodes" / "ep1" / "rgb.mp4").write_bytes(b"no video")
    with pytest.raises(SystemExit, match="1"):
        command(damaged, workers=1, json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["counts"]["bad"] == 1
    with pytest.raises(ValueError, match="is not a kinema4d data set.*ingest"):
        command(tmp_path, workers=1)
