"""The examples run as they are written, and show what they promise."""

from __future__ import annotations

import itertools
import json
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


def test_simulate(tmp_path):
    pytest.importorskip("viser")
    words = ["--robot", "k4arm", "--task", "push", "--height", "96", "--width", "144", "--out", str(tmp_path / "demo")]
    text = run("04_simulate.py", *words)
    assert "49 frames of 96x144" in text
    assert "kinema4d simulate --image" in text
    rollout = k4d.load(tmp_path / "demo" / "clip")
    assert isinstance(rollout, k4d.Rollout)
    assert rollout.tracks
    assert (tmp_path / "demo" / "view.html").stat().st_size > 1e5
    assert np.asarray(Image.open(tmp_path / "demo" / "compare.jpg")).std() > 10


def test_the_readme_tells_the_truth(tmp_path, monkeypatch):
    """Its Python block runs as printed, but for opening a browser, and does what its comments say."""
    readme = (EXAMPLES.parent / "README.md").read_text()
    block = readme.split("```python\n")[1].split("```")[0]
    assert "k4d.view(control, robots=[robot])" in block
    robot = k4d.load_robot("panda", visuals=False)
    q = np.tile(robot.home, (49, 1))
    q[:, 0] += np.linspace(-0.3, 0.3, 49)
    np.savez(tmp_path / "ep.npz", joint_position=q, fps=10.0)
    T = k4d.look_at(np.array([1.6, -0.8, 0.9]), np.array([0.2, 0.2, 0.4]))
    camera = {"fx": 120, "fy": 120, "cx": 79.5, "cy": 59.5, "height": 120, "width": 160, "T_world_camera": T.tolist()}
    (tmp_path / "cam.json").write_text(json.dumps(camera))
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(block.replace("k4d.view(control, robots=[robot])", ""), scope)
    assert scope["Ts"].shape == (49, len(robot.link_names), 4, 4)
    assert scope["ik"].converged.all()
    assert len(scope["pair"].arms) == 2
    assert scope["pair"].mask.sum() > 1.3 * scope["control"].mask.sum()
    assert isinstance(k4d.load("out"), k4d.Control)


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
