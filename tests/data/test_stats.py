"""Statistics count what is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doctored import episode

from kinema4d.cli.stats import stats as command
from kinema4d.data.dataset import open_dataset
from kinema4d.data.stats import stats


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stats") / "set"
    dataset = open_dataset(root, create=True)
    for seed in range(3):
        dataset.add(f"ep{seed}", replace(episode(seed=seed), outcome=["success", "failure", "success"][seed]))
    arm = replace(episode().arms[0], robot="nowhere.urdf")
    dataset.add("foreign", replace(episode(), arms=(arm,), facts={}, task="", source="other/1"))
    return root


def test_numbers(root):
    found = stats(root)
    assert (found["episodes"], found["groups"], found["frames"]) == (4, 3, 4 * 49)
    assert found["hours"] == pytest.approx(4 * 4.9 / 3600)
    assert found["by"]["outcome"] == {"success": 3, "failure": 1}
    assert found["by"]["source"] == {"synthetic": 3, "other": 1}
    assert found["by"]["task"] == {"carry": 3, "(none)": 1}
    assert found["by"]["scenario"] == {"canonical": 3, "(none)": 1}
    assert found["by"]["robot"] == {"k4arm": 3, "nowhere.urdf": 1}
    assert found["success_by_task"]["carry"] == {"success": 2, "failure": 1}
    assert found["min_gap_m"]["count"] == 3
    assert found["min_gap_m"]["p50"] == pytest.approx(0.01)
    files = [f for f in (root / "episodes").rglob("*") if f.is_file()]
    assert found["bytes"] == sum(f.stat().st_size for f in files)
    q = np.concatenate([episode(seed=s).arms[0].trajectory.q for s in range(3)])
    assert found["joints"]["k4arm"]["joint1"] == pytest.approx([q[:, 0].min(), q[:, 0].max()])
    low, high = np.array(found["tool_box_m"]["k4arm"])
    assert (low < high).all()
    assert found["robots_without_files"] == ["nowhere.urdf"]
    assert found["unreadable"] == []


def test_the_command(root, capsys):
    command(root, json=True)
    assert json.loads(capsys.readouterr().out)["episodes"] == 4
    command(root)
    out = capsys.readouterr().out
    assert "4 in 3 groups" in out
    assert "finger_joint" in out


def test_an_empty_set(tmp_path, capsys):
    open_dataset(tmp_path / "set", create=True)
    assert stats(tmp_path / "set")["bytes_per_episode"] is None
    command(tmp_path / "set")
    assert "0 in 0 groups" in capsys.readouterr().out
