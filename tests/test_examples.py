"""The examples run as they are written, and show what they promise."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kinema4d as k4d

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *words: str) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("robot", ["k4arm", "panda"])
def test_control(tmp_path, robot):
    if robot == "panda":
        pytest.importorskip("viser")
    text = run("01_control.py", "--robot", robot, "--out", str(tmp_path / "demo"), "--frames", "9")
    assert "IK reached 9 of 9 poses" in text
    control = k4d.load(tmp_path / "demo" / "clip")
    assert isinstance(control, k4d.Control)
    assert 0.02 < control.mask.mean() < 0.5
    sheet = np.asarray(Image.open(tmp_path / "demo" / "preview.png"))
    assert sheet.std() > 10
    # the arm is in every column of the sheet, and no two moments look alike
    columns = np.split(sheet[: sheet.shape[0] // 3], 5, axis=1)
    assert all(c.max() > 100 for c in columns)
    assert all((a != b).mean() > 0.005 for a, b in itertools.pairwise(columns))
    assert (tmp_path / "demo" / "view.html").stat().st_size > 1e5


def test_zoo(tmp_path):
    text = run("03_zoo.py", "--out", str(tmp_path / "zoo.png"), "--size", "64")
    assert "k4arm: 7 joints" in text
    assert np.asarray(Image.open(tmp_path / "zoo.png")).std() > 10


def test_droid_overlay(tmp_path, data):
    text = run("02_droid_overlay.py", "--out", str(tmp_path), "--data", str(data))
    errors = [
        float(line.split("contour error ")[1].split(" px")[0]) for line in text.splitlines() if "contour error" in line
    ]
    assert len(errors) == 3
    assert max(errors) < 1.6
    assert len(list(tmp_path.glob("*.png"))) == 3


def test_droid_overlay_says_what_is_missing(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "02_droid_overlay.py"), "--data", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "KINEMA4D_DATA" in done.stderr
    assert "Traceback" not in done.stderr
