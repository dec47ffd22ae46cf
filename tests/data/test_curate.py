"""Curation keeps the true, drops the damaged, and says why."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from doctored import episode, flipped

from kinema4d.cli.curate import curate as command
from kinema4d.data.curate import curate, kept_ids
from kinema4d.data.dataset import open_dataset
from kinema4d.data.doctor import doctor
from kinema4d.data.thresholds import Thresholds


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("curate") / "set"
    dataset = open_dataset(root, create=True)
    truth = episode()
    dataset.add("a_copy", replace(truth, camera_from="guessed", source="synthetic/copy"))
    dataset.add("flipped", replace(flipped(truth, (1,)), source="synthetic/flipped"))
    dataset.add("guessed", replace(episode(seed=1), camera_from="guessed"))
    dataset.add("true", truth)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "set"))


def test_decisions(root):
    curation = curate(root, workers=1)
    by_id = {d.id: d for d in curation.decisions}
    assert curation.kept == ("guessed", "true")
    assert by_id["true"].score == 1.0
    assert by_id["true"].reasons == ()
    assert by_id["guessed"].score == 0.75
    assert by_id["flipped"].score == 0.0
    assert [f.check for f in by_id["flipped"].reasons] == ["flips"]
    # of two with one video the better stays, though the other comes first
    assert "the very same video as true" in by_id["a_copy"].reasons[-1].message
    assert curation.reasons["flips"] == {"bad": 1, "warn": 0}


def test_the_file_is_whole_and_repeatable(root):
    curate(root, workers=1)
    first = (root / "curation.json").read_bytes()
    content = json.loads(first)
    assert content["counts"] == {"keep": 2, "drop": 2}
    assert content["thresholds"]["keep_score"] == 0.25
    assert content["episodes"]["true"]["sha256"] == open_dataset(root).row("true").sha256
    curate(root, report=doctor(root, workers=1))
    assert (root / "curation.json").read_bytes() == first
    assert not list(root.glob(".*tmp*"))


def test_thresholds_decide(root):
    assert curate(root, Thresholds(keep_score=0.8), workers=1).kept == ("true",)
    with pytest.raises(ValueError, match="must be of all episodes"):
        curate(root, report=doctor(root, workers=1, episodes=["true"]))


def test_what_came_later_is_not_judged(root):
    dataset = open_dataset(root)
    assert kept_ids(dataset) is None
    curate(root, workers=1)
    dataset.add("later", episode(seed=2))
    assert kept_ids(dataset) == (["guessed", "true"], ["later"])
    (root / "curation.json").write_text("{}")
    with pytest.raises(ValueError, match="curation.json is damaged.*run 'kinema4d data curate"):
        kept_ids(dataset)


def test_the_command(root, capsys):
    command(root, workers=1, limit=("keep_score=0.8",), json=True)
    content = json.loads(capsys.readouterr().out)
    assert (content["kept"], content["dropped"]) == (1, 3)
    assert Path(content["report"]).is_file()
    command(root, workers=1, report=False)
    assert "kept 2 of 4" in capsys.readouterr().out
