"""The command line as a user meets it: in a process, with exit codes and one clear line per mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kinema4d as k4d
from kinema4d.cli import main
from kinema4d.geometry.camera import camera_to_dict


@pytest.fixture
def job(tmp_path) -> dict[str, Path]:
    arm = k4d.load_robot("k4arm", visuals=False)
    q = np.tile(arm.home[:6], (5, 1))
    q[:, 0] += np.linspace(-0.4, 0.4, 5)
    np.savez(tmp_path / "ep.npz", joint_position=q, gripper=np.linspace(0, 1, 5), fps=10.0)
    camera = k4d.Camera(
        K=np.array([[80.0, 0, 47.5], [0, 80, 31.5], [0, 0, 1]]),
        T_world_camera=k4d.look_at(np.array([1.2, -0.7, 0.8]), np.array([0.1, 0, 0.3])),
        height=64,
        width=96,
    )
    (tmp_path / "cam.json").write_text(json.dumps(camera_to_dict(camera)))
    return {"actions": tmp_path / "ep.npz", "camera": tmp_path / "cam.json", "out": tmp_path / "out"}


def arguments(job, *extra, robot=("k4arm",), **change) -> list[str]:
    job = {**job, **change}
    words = ["control", "--robot", *robot, "--actions", str(job["actions"]), "--camera", str(job["camera"])]
    return [*words, "--out", str(job["out"]), *extra]


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "kinema4d.cli", *words], capture_output=True, text=True)


def test_control_writes_a_clip_that_loads(job):
    done = run(*arguments(job))
    assert done.returncode == 0, done.stderr
    assert "reached 5 of 5 frames" in done.stdout
    assert "kinema4d view" in done.stdout
    control = k4d.load(job["out"])
    assert isinstance(control, k4d.Control)
    assert control.rgb is not None
    assert len(control) == 5
    meta = json.loads((job["out"] / "meta.json").read_text())
    assert meta["provenance"]["config"]["robot"] == ["k4arm"]
    again = run(*arguments(job))
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert run(*arguments(job, "--overwrite")).returncode == 0


def test_control_json_and_resize(job, capsys):
    main(arguments(job, "--json", "--height", "32", "--width", "48", "--no-rgb"))
    report = json.loads(capsys.readouterr().out)
    assert report["clips"][0]["height"] == 32
    assert report["arms"][0] == {**report["arms"][0], "robot": "k4arm", "reached": 5, "first_missed": None}
    control = k4d.load(job["out"])
    assert isinstance(control, k4d.Control)
    assert control.rgb is None


def test_two_arms_and_two_cameras(job, tmp_path, capsys):
    other = tmp_path / "side.json"
    other.write_text(job["camera"].read_text())
    words = ["control", "--robot", "k4arm", "k4arm", "--actions", str(job["actions"]), str(job["actions"])]
    words += [
        "--camera",
        str(job["camera"]),
        str(other),
        "--base",
        "0,0.3,0,0",
        "0,-0.3,0,90",
        "--out",
        str(job["out"]),
    ]
    main(words)
    capsys.readouterr()
    for name in ("cam", "side"):
        control = k4d.load(job["out"] / name)
        assert isinstance(control, k4d.Control)
        assert len(control.arms) == 2
        np.testing.assert_allclose(control.arms[1].trajectory.T_world_base[:2, 0], [0, 1], atol=1e-12)


def test_one_bad_camera_of_two_leaves_nothing(job, tmp_path, capsys):
    camera = json.loads(job["camera"].read_text())
    camera["T_world_camera"] = k4d.look_at(np.array([1.0, 0, 1]), np.array([5.0, 0, 1])).tolist()
    (tmp_path / "blind.json").write_text(json.dumps(camera))
    words = ["control", "--robot", "k4arm", "--actions", str(job["actions"]), "--camera", str(job["camera"])]
    with pytest.raises(SystemExit):
        main([*words, str(tmp_path / "blind.json"), "--out", str(job["out"])])
    assert "behind the camera" in capsys.readouterr().err
    assert not job["out"].exists()


def test_a_strange_robot_gets_its_gripper_by_hand(job, tmp_path, capsys):
    from kinema4d.robot.zoo import find

    mine = tmp_path / "mine.urdf"
    mine.write_text(find("k4arm")[0].read_text())
    with pytest.raises(SystemExit):
        main(arguments(job, robot=(str(mine),)))
    assert "--gripper" in capsys.readouterr().err
    main(arguments(job, "--tool-link", "tool", "--gripper", "finger_joint:0.04:0.01", robot=(str(mine),)))
    control = k4d.load(job["out"])
    assert isinstance(control, k4d.Control)
    np.testing.assert_allclose(control.arms[0].trajectory.q[[0, -1], -1], [0.04, 0.01])
    with pytest.raises(SystemExit):
        main(arguments(job, "--overwrite", "--gripper", "finger_joint", robot=(str(mine),)))
    assert "joint:open:closed" in capsys.readouterr().err


def test_unreached_poses_are_a_warning(job, tmp_path, capsys):
    np.savez(tmp_path / "far.npz", ee_delta=np.tile([0.1, 0, 0, 0, 0, 0], (8, 1)), fps=5.0)
    main(arguments(job, actions=tmp_path / "far.npz"))
    warning = capsys.readouterr().err
    assert "did not reach" in warning
    assert "worst" in warning
    assert "first at frame" in warning


MISTAKES = [
    ({"robot": ("pandaa",)}, {}, "unknown robot 'pandaa'"),
    ({"robot": ("nowhere.urdf",)}, {}, "nowhere.urdf does not exist"),
    ({}, {"actions": "none.npz"}, "none.npz does not exist"),
    ({}, {"camera": "none.json"}, "cannot read camera file none.json"),
    ({"extra": ("--convention", "acme")}, {}, "unknown action convention 'acme'"),
    ({"extra": ("--space", "ee_pose")}, {}, "ee_pose|no 'actions'"),
    ({"extra": ("--base", "1,2")}, {}, "x,y,z,yaw"),
    ({"extra": ("--tool-link", "nose")}, {}, "no link 'nose'"),
    ({"robot": ("k4arm", "k4arm")}, {}, "2 robots need as many action files"),
]


@pytest.mark.parametrize(("call", "files", "message"), MISTAKES)
def test_mistakes_are_one_line_and_leave_nothing(job, tmp_path, capsys, call, files, message):
    extra = call.get("extra", ())
    with pytest.raises(SystemExit) as exit_:
        main(arguments(job, *extra, robot=call.get("robot", ("k4arm",)), **files))
    assert exit_.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("kinema4d: error: ")
    assert len(text.strip().splitlines()) == 1
    import re

    assert re.search(message, text)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cam.json", "ep.npz"]


def test_no_traceback_in_a_real_process(job, tmp_path):
    (tmp_path / "bad.urdf").write_text(
        '<robot><link name="a"><visual><geometry><mesh filename="gone.dae"/></geometry></visual></link></robot>'
    )
    done = run(*arguments(job, robot=(str(tmp_path / "bad.urdf"),)))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "gone.dae" in done.stderr
    assert not job["out"].exists()


def test_blind_camera_says_where_the_robot_is(job, tmp_path, capsys):
    camera = json.loads(job["camera"].read_text())
    camera["T_world_camera"] = k4d.look_at(np.array([1.0, 0, 1]), np.array([5.0, 0, 1])).tolist()
    (tmp_path / "blind.json").write_text(json.dumps(camera))
    with pytest.raises(SystemExit):
        main(arguments(job, camera=tmp_path / "blind.json"))
    assert "behind the camera" in capsys.readouterr().err
    assert not job["out"].exists()


def test_doctor_reports_and_names_remedies(capsys, monkeypatch):
    monkeypatch.delenv("KINEMA4D_ASSETS", raising=False)
    main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    found = {f["name"]: f for f in report["findings"]}
    assert found["numpy"]["ok"]
    assert found["codec ffv1"]["ok"]
    assert found["k4arm"]["ok"]
    assert not found["google_robot"]["ok"]
    assert "git clone" in found["google_robot"]["remedy"]
    main(["doctor"])
    table = capsys.readouterr().out
    assert "kinema4d" in table
    assert "panda" in table


def test_doctor_fails_without_a_core_package(monkeypatch, capsys):
    import importlib.metadata

    real = importlib.metadata.version

    def without_numba(name: str) -> str:
        if name == "numba":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", without_numba)
    with pytest.raises(SystemExit) as exit_:
        main(["doctor"])
    assert exit_.value.code == 1
    assert "pip install numba" in capsys.readouterr().out


def test_export_and_static_view(job, tmp_path, capsys):
    main(arguments(job))
    main(["data", "export", str(job["out"]), "--format", "ply", "--out", str(tmp_path / "ply")])
    assert len(list((tmp_path / "ply").glob("*.ply"))) == 5
    pytest.importorskip("viser")
    main(["view", str(job["out"]), "--html", str(tmp_path / "view.html")])
    assert (tmp_path / "view.html").stat().st_size > 100_000
    assert "wrote" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["view", str(tmp_path / "nothing"), "--html", str(tmp_path / "x.html")])
    assert "nothing" in capsys.readouterr().err


def test_help_is_for_people():
    done = run("--help")
    assert done.returncode == 0
    for command in ("control", "view", "doctor", "data"):
        assert command in done.stdout


@pytest.fixture
def footage(tmp_path) -> dict[str, Path]:
    """Robot masks of a swinging arm as a folder of images, its states, and a camera 2 degrees and 2 cm off."""
    from PIL import Image

    from kinema4d.robot.calibrate import turned

    robot = k4d.load_robot("k4arm")
    s = np.linspace(0, 2 * np.pi, 14)
    q = np.tile(robot.home, (14, 1))
    q[:, 0] += 0.7 * np.sin(s)
    q[:, 1] += 0.35 * np.cos(2 * s)
    q[:, 2] += 0.3 * np.sin(s + 1)
    camera = k4d.Camera(
        K=np.array([[260.0, 0, 119.5], [0, 260, 89.5], [0, 0, 1]]),
        T_world_camera=k4d.look_at(np.array([1.1, -0.7, 0.8]), np.array([0.12, 0, 0.35])),
        height=180,
        width=240,
    )
    control = k4d.control(robot, k4d.Actions(space="joint_position", values=q, fps=5.0), camera, rgb=False)
    (tmp_path / "masks").mkdir()
    for t, mask in enumerate(control.mask):
        Image.fromarray((255 * mask).astype(np.uint8)).save(tmp_path / "masks" / f"{t:03d}.png")
    np.savez(tmp_path / "states.npz", joint_position=q, fps=5.0)
    np.savez(tmp_path / "wrong.npz", joint_position=q[::-1], fps=5.0)
    rough = turned(camera, (1.5, -1.0, 0.5), (0.02, -0.01, 0.0))
    (tmp_path / "rough.json").write_text(json.dumps(camera_to_dict(rough)))
    (tmp_path / "true.json").write_text(json.dumps(camera_to_dict(camera)))
    return {n: tmp_path / n for n in ("masks", "states.npz", "wrong.npz", "rough.json", "true.json", "out.json")}


def calibration(footage, states="states.npz", *extra) -> list[str]:
    words = ["calibrate", "--robot", "k4arm", "--actions", str(footage[states]), "--video", str(footage["masks"])]
    return [*words, "--masks", "--out", str(footage["out.json"]), *extra]


def test_calibrate_finds_the_camera_and_refuses_a_bad_fit(footage, capsys):
    rough = ("--camera", str(footage["rough.json"]))
    with pytest.raises(SystemExit) as exit_:
        main(calibration(footage, "wrong.npz", *rough))
    assert exit_.value.code == 2
    assert "not good" in capsys.readouterr().err
    assert not footage["out.json"].exists()
    main(calibration(footage, "states.npz", *rough))
    assert "good: wrote" in capsys.readouterr().out
    found, true = k4d.load_camera(footage["out.json"]), k4d.load_camera(footage["true.json"])
    assert np.linalg.norm(found.T_world_camera[:3, 3] - true.T_world_camera[:3, 3]) < 0.01
    assert json.loads(footage["out.json"].read_text())["calibration"]["good"] is True
    with pytest.raises(SystemExit):
        main(calibration(footage, "states.npz", *rough))
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs a start"),
        (("--picks", "{tmp}/picks.json"), "must hold a list like"),
        (("--picks", "{tmp}/none.json"), "cannot read picks"),
        (("--row-step", "2", "--camera", "{tmp}/rough.json"), "14 frames, but .* gives 7 states"),
        (("--row-step", "0", "--camera", "{tmp}/rough.json"), "at least 1, got 0"),
        (("--video", "{tmp}/gone", "--camera", "{tmp}/rough.json"), "no video or folder of images"),
    ],
)
def test_calibrate_mistakes_are_named(footage, tmp_path, capsys, words, message):
    import re

    (tmp_path / "picks.json").write_text('[{"frame": 0, "link": "base", "xyz": [0, 1], "uv": [3, 4]}]')
    with pytest.raises(SystemExit) as exit_:
        main(calibration(footage, "states.npz", *(w.format(tmp=tmp_path) for w in words)))
    assert exit_.value.code == 2
    assert re.search(message, capsys.readouterr().err)
    assert not footage["out.json"].exists()
