"""The short form of benchmarks/kill.py: kill -9 of the whole job, three times."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mujoco", reason="simulated episodes need MuJoCo: pip install 'kinema4d[mjcf]'")


def test_killed_three_times_the_set_is_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    kill: Any = importlib.import_module("kill")
    result = kill.prove(tmp_path, kills=3, episodes=6, seed=1)
    assert result.kills == 3
    assert result.wrong == []
