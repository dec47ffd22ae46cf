"""Live LIBERO: its worker's arithmetic, and episodes from what the worker writes. The simulator itself runs only where
KINEMA4D_LIBERO_PYTHON (the interpreter of its environment) and KINEMA4D_LIBERO_ASSETS are set."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinema4d.data.ingest import libero_expert, libero_live, libero_worker
from kinema4d.data.ingest.libero_live import read, record, recordings
from kinema4d.data.store import load, save
from kinema4d.geometry.camera import off_ray_px
from kinema4d.types import Episode

T, H, W, N = 5, 6, 8, 12
HOME = (0.0, -0.16, 0.0, -2.44, 0.0, 2.23, 0.785)


def _raw() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A tiny recording: a wall at 1.5 m, a robot's pixel, one thing that is lifted by 4 cm."""
    rng = np.random.default_rng(0)
    moved = np.tile(np.eye(4), (T, 1, 1, 1))
    moved[:, 0, 2, 3] = np.linspace(0.9, 0.94, T)
    depth = np.full((T, H, W), 1.5, np.float32)
    depth[:, 0, 0] = 0
    labels = np.zeros((T, H, W), np.uint8)
    labels[:, 2, 3], labels[:, 4, 4] = 1, 3
    base = np.eye(4)
    base[:3, 3] = [-0.66, 0, 0.912]
    camera = libero_worker.opencv_pose(np.array([0.66, 0, 1.6]), np.array([[0, 0.6, 0.8], [1, 0, 0], [0, 0.8, -0.6]]))
    arrays = {
        "rgb": rng.integers(0, 255, (T, H, W, 3), np.uint8),
        "depth": depth,
        "labels": labels,
        "q": np.array([[*HOME, f, -f] for f in np.linspace(0.04, 0, T)]),
        "K": libero_worker.intrinsics(45, H, W),
        "T_world_camera": np.tile(camera, (T, 1, 1)),
        "T_world_base": base,
        "Ts_world_object": moved,
        "actions": rng.uniform(-1, 1, (N, 7)),
        "frame_steps": libero_worker.frame_steps(N, T),
        "gaps": np.linspace(0.3, 0.01, N + 1),
    }
    meta = {
        **{"format": libero_worker.FORMAT, "version": libero_worker.VERSION, "fps": 20.0, "camera": "agentview"},
        **{
            "suite": "libero_object",
            "task": 3,
            "task_name": "pick_up_the_soup",
            "init": 1,
            "language": "pick up the soup",
        },
        **{"thing": "soup_1", "place": "basket_1_contain_region", "outcome": "failure", "success_step": None},
        **{"min_gap_m": 0.01, "min_gap_s": 0.6, "assets_remark": "substitute assets", "versions": {"mujoco": "3.8.1"}},
        **{"label_names": ["robot", "mount", "soup_1"], "object_names": ["soup_1"], "kind": "perturbed"},
        **{"demonstration": "libero_object_t03_i01_demo", "segment": 2, "sigma": 0.8, "noise_seed": 0},
        "noise_unit": libero_worker.NOISE_UNIT,
    }
    return arrays, meta


def _write(
    folder: Path, name: str = "a", arrays: dict[str, Any] | None = None, meta: dict[str, Any] | None = None
) -> Path:
    """The tiny recording with other arrays or entries; ``None`` drops one."""
    content, about = _raw()
    content = {k: v for k, v in (content | (arrays or {})).items() if v is not None}
    libero_worker.write(folder / f"{name}.npz", content, about | (meta or {}))
    return folder / f"{name}.npz"


def test_a_recording_becomes_an_episode_with_everything_the_simulator_knew(tmp_path: Path):
    _write(tmp_path)
    assert recordings(tmp_path) == ["a"]
    (episode,) = read(tmp_path, "a")
    arrays, meta = _raw()
    assert (len(episode), episode.view, episode.outcome, episode.camera_from) == (T, "agentview", "failure", "exact")
    assert episode.metric
    assert episode.text == "pick up the soup"
    assert episode.group == "libero_object/3/1"
    assert episode.source == "libero_live/a"
    assert not episode.clip.camera.moving
    # Twelve commands at 20 Hz lie between the first and the last of five frames.
    assert episode.clip.fps == pytest.approx(4 / (12 / 20))
    np.testing.assert_array_equal(episode.clip.rgb, arrays["rgb"])
    assert off_ray_px(episode.clip.camera.K, episode.clip.pointmap) < 1e-3
    assert not episode.clip.pointmap.valid[:, 0, 0].any()
    assert episode.clip.pointmap.valid.sum() == T * (H * W - 1)
    assert episode.robot_mask is not None
    assert episode.robot_mask.sum() == T
    assert episode.robot_mask[0, 2, 3]
    assert episode.commands is not None
    assert (episode.commands.space, episode.commands.convention) == (
        "ee_delta",
        "libero",
    )
    assert len(episode.commands.values) == N
    assert episode.commands.fps == 20
    assert [t.name for t in episode.tracks] == ["soup_1"]
    np.testing.assert_allclose(episode.tracks[0].Ts_world_object[-1, 2, 3], 0.94)
    facts = episode.facts
    assert (facts["sigma"], facts["segment"], facts["seed"], facts["min_gap_m"], facts["min_gap_s"]) == (
        0.8,
        2,
        0,
        0.01,
        0.6,
    )
    assert facts["assets"] == "substitute assets"
    assert facts["demonstration"] == meta["demonstration"]
    assert "0.05 m" in facts["noise_unit"]
    assert "0.5 rad" in facts["noise_unit"]
    assert facts["frame_steps"] == [0, 3, 6, 9, 12]


def test_the_arm_has_the_recorded_joints(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))
    q = _raw()[0]["q"]
    q[-1, 3] = -0.065  # MuJoCo's limits are soft: 5 mrad beyond that of the fourth joint
    _write(tmp_path, arrays={"q": q})
    (episode,) = read(tmp_path, "a")
    (arm,) = episode.arms
    assert arm.robot == "panda"
    assert arm.converged.all()
    assert arm.trajectory.fps == episode.clip.fps
    np.testing.assert_allclose(arm.trajectory.q[:, :7], q[:, :7])
    np.testing.assert_allclose(arm.trajectory.q[:, 7], np.linspace(0.04, 0, T), atol=1e-9)
    np.testing.assert_allclose(arm.trajectory.T_world_base[:3, 3], [-0.66, 0, 0.912])


def test_without_the_robots_files_the_episode_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> Any:
        raise ValueError(f"the files of robot {name!r} are not here")

    monkeypatch.setattr("kinema4d.data.ingest.parts.find", absent)
    _write(tmp_path)
    (episode,) = read(tmp_path, "a")
    assert episode.arms == ()
    assert "not here" in episode.facts["robot_missing"]


def test_an_episode_survives_the_store(tmp_path: Path):
    _write(tmp_path)
    (episode,) = read(tmp_path, "a")
    save(episode, tmp_path / "stored")
    back = load(tmp_path / "stored")
    assert isinstance(back, Episode)
    assert back.facts == episode.facts
    assert back.group == episode.group
    assert back.labels is not None
    assert episode.labels is not None
    np.testing.assert_array_equal(back.labels, episode.labels)


NAN = np.full((T, 9), np.nan)


@pytest.mark.parametrize(
    ("arrays", "meta", "said"),
    [
        ({"q": NAN}, {}, "q has a value that is not a number"),
        ({"depth": np.full((T, H, W), np.inf, np.float32)}, {}, "depth has a value that is not a number"),
        ({"actions": None}, {}, "actions must be .* found nothing"),
        ({"depth": np.ones((T - 1, H, W), np.float32)}, {}, "depth must be"),
        ({"rgb": np.zeros((T, H, W, 3), np.uint16)}, {}, "rgb must be uint8"),
        ({"labels": np.full((T, H, W), 9, np.uint8)}, {}, "labels reach 9"),
        ({"Ts_world_object": np.zeros((T, 1, 4, 4))}, {}, "soup_1"),
        ({"T_world_base": 2 * np.eye(4)}, {}, "T_world_base"),
        ({"K": np.zeros((3, 3))}, {}, "focal"),
        ({"frame_steps": np.array([0, 3, 3, 9, 12])}, {}, "frame_steps must rise"),
        ({"frame_steps": np.array([0, 3, 6, 9, 11])}, {}, "frame_steps must rise"),
        ({}, {"version": 99}, "version 99"),
        ({}, {"format": "something"}, "not a LIBERO recording"),
        ({}, {"fps": 0}, "rate"),
        ({}, {"min_gap_m": float("nan")}, "gap"),
        ({}, {"outcome": None}, "outcome"),
        ({}, {"outcome": "perhaps"}, "perhaps"),
        ({}, {"object_names": []}, "Ts_world_object"),
    ],
)
def test_a_bad_recording_is_refused_by_name(tmp_path: Path, arrays: dict[str, Any], meta: dict[str, Any], said: str):
    _write(tmp_path, "bad", arrays, meta)
    with pytest.raises(ValueError, match=said) as raised:
        read(tmp_path, "bad")
    assert "bad.npz" in str(raised.value)


@pytest.mark.parametrize("kept", [0, 10, 500, -200])
def test_a_truncated_recording_is_refused_by_name(tmp_path: Path, kept: int):
    file = _write(tmp_path)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"a\.npz is damaged.*record it again"):
        read(tmp_path, "a")


def test_flipped_bits_are_noticed(tmp_path: Path):
    file = _write(tmp_path)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz"):
        read(tmp_path, "a")


def test_a_folder_without_recordings_and_half_written_files_are_not_a_source(tmp_path: Path):
    (tmp_path / ".a.tmp-1.npz").write_bytes(b"half")
    with pytest.raises(ValueError, match="holds no recording"):
        recordings(tmp_path)
    with pytest.raises(ValueError, match="there is no recording"):
        read(tmp_path, "a")


# --------------------------------------------------------------- the worker's arithmetic


@pytest.mark.parametrize("steps", [3, 127, 192, 200])
def test_segments_cover_everything_once_and_evenly(steps: int):
    bounds = libero_worker.segment_bounds(steps)
    assert [i for a, b in bounds for i in range(a, b)] == list(range(steps))
    lengths = [b - a for a, b in bounds]
    assert len(bounds) == 3
    assert max(lengths) - min(lengths) <= 1


def test_noise_falls_on_the_pose_of_one_segment_only_and_stays_in_range():
    actions = np.random.default_rng(0).uniform(-1, 1, (90, 7))
    noisy = libero_worker.perturb(actions, 1, 0.8, np.random.default_rng(1))
    changed = noisy != actions
    assert not changed[:30].any()
    assert not changed[60:].any()
    assert not changed[:, 6].any()
    assert changed[30:60, :6].mean() > 0.9
    assert np.abs(noisy).max() <= 1
    quiet = libero_worker.perturb(np.zeros((30000, 7)), 0, 0.2, np.random.default_rng(1))
    assert quiet[:10000, :6].std() == pytest.approx(0.2, rel=0.02)


def test_noise_depends_on_the_candidate_and_on_nothing_else():
    def draw(*key: Any) -> float:
        return float(libero_worker.noise(*key).normal())

    key: tuple[Any, ...] = ("libero_object", 3, 1, 2, 0.8, 0)
    assert draw(*key) == draw(*key)
    others = [
        ("libero_goal", *key[1:]),
        *((*key[:i], key[i] + 1, *key[i + 1 :]) for i in (1, 2, 3, 5)),
        (*key[:4], 0.5, 0),
    ]
    assert len({draw(*k) for k in [key, *others]}) == 7
    assert len({libero_worker.recording_name(*k) for k in [key, *others]}) == 7


def test_frames_are_uniform_and_keep_both_ends():
    shown = libero_worker.frame_steps(191, 49)
    assert (len(shown), shown[0], shown[-1]) == (49, 0, 191)
    assert set(np.diff(shown)) <= {3, 4}
    np.testing.assert_array_equal(libero_worker.frame_steps(20, 49), np.arange(21))


def test_the_camera_has_opencv_axes_and_integer_pixel_centres():
    # MuJoCo's camera looks along -z with y up: a point ahead, right and above must land right of and above the middle.
    T = libero_worker.opencv_pose(np.array([1.0, 2, 3]), np.eye(3).flatten())
    x, y, z = np.linalg.inv(T)[:3] @ [1.1, 2.2, 1.0, 1]
    assert (x, y, z) == pytest.approx((0.1, -0.2, 2))
    K = libero_worker.intrinsics(90, 240, 360)
    # The image spans -0.5 to 239.5, and its edges are seen at half the field of view.
    assert K[1, 1] * np.tan(np.pi / 4) + K[1, 2] == pytest.approx(239.5)
    assert K[0, 2] == 179.5
    assert K[0, 0] == K[1, 1]


def test_the_worker_needs_only_numpy_and_the_standard_library_to_start():
    for module in (libero_worker, libero_expert):
        for node in ast.parse(Path(str(module.__file__)).read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert {n.split(".")[0] for n in names} <= set(sys.stdlib_module_names) | {"numpy"}


# ------------------------------------------------------------------------------- record


def _interpreter(folder: Path, script: str) -> Path:
    """Something that is started like a Python, and does what ``script`` says instead."""
    file = folder / "python"
    file.write_text(
        f"#!{sys.executable}\nimport json, sys\nargs = sys.argv[2:]\ntask = args[args.index('--task') + 1]\n{script}"
    )
    file.chmod(0o755)
    return file


def test_a_worker_that_dies_is_reported_and_the_others_go_on(tmp_path: Path):
    line = json.dumps({"recording": "r", "status": "written", "outcome": "success", "message": ""})
    script = f"""print("LIBERO talks", flush=True)
if task == "1":
    sys.exit("error: no such asset")
print({libero_worker.MARK!r} + {line!r})
"""
    seen = []
    done = record(
        tmp_path / "out",
        python=_interpreter(tmp_path, script),
        assets=tmp_path,
        suites=("libero_goal",),
        tasks=(0, 1, 2),
        workers=2,
        report=seen.append,
    )
    assert [(p.task, p.status) for p in done] == [(0, "written"), (1, "failed"), (2, "written")]
    assert "no such asset" in done[1].message
    assert "code 1" in done[1].message
    assert len(seen) == 3
    assert (tmp_path / "out" / "logs" / "libero_goal_t00.log").read_text() == "LIBERO talks\n"


def test_an_environment_without_libero_is_told_what_to_install(tmp_path: Path):
    (progress,) = record(
        tmp_path / "out", python=Path(sys.executable), assets=tmp_path, suites=("libero_goal",), tasks=(0,)
    )
    assert progress.status == "failed"
    assert "pip install hf-libero" in progress.message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"python": Path("nowhere/python")}, "not a Python interpreter"),
        ({"assets": Path("nowhere")}, "not a folder"),
        ({"tasks": ()}, "at least one"),
        ({"workers": 0}, "at least one"),
    ],
)
def test_record_refuses_what_cannot_work(tmp_path: Path, options: dict[str, Any], said: str):
    defaults: dict[str, Any] = {"python": Path(sys.executable), "assets": tmp_path}
    with pytest.raises(ValueError, match=said):
        record(tmp_path / "out", **(defaults | options))


def test_live_libero_records_a_demonstration_and_resumes(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch):
    python = os.environ.get("KINEMA4D_LIBERO_PYTHON")
    if not python:
        pytest.skip(
            "set KINEMA4D_LIBERO_PYTHON to the interpreter of LIBERO's environment (docs/libero.md); takes a minute"
        )
    assets = Path(os.environ.get("KINEMA4D_LIBERO_ASSETS", data / "libero"))
    monkeypatch.setenv("KINEMA4D_ASSETS", str(data / "robots"))
    options: dict[str, Any] = {
        "python": Path(python),
        "assets": assets,
        "suites": ("libero_object",),
        "tasks": (3,),
        "size": (96, 144),
    }
    (progress,) = record(tmp_path, failures=False, **options)
    assert (progress.status, progress.outcome) == ("written", "success"), progress.message
    (again,) = record(tmp_path, failures=False, **options)
    assert again.status == "there"
    (episode,) = read(tmp_path, progress.recording)
    assert episode.outcome == "success"
    assert len(episode) == 49
    assert episode.facts["min_gap_m"] == 0

    from kinema4d.robot.control import project
    from kinema4d.robot.zoo import load_robot

    drawn = project([load_robot("panda")], episode.arms, episode.clip.camera, rgb=False)
    seen = episode.robot_mask
    assert seen is not None
    assert (drawn.mask & seen).sum() / (drawn.mask | seen).sum() > 0.95
    both = drawn.mask & seen
    assert np.median(np.abs(drawn.pointmap.depth - episode.clip.pointmap.depth)[both]) < 1e-3
    lifted = np.ptp(next(t for t in episode.tracks if t.name == episode.facts["thing"]).Ts_world_object[:, 2, 3])
    assert lifted > 0.1
    assert libero_live.recordings(tmp_path) == [progress.recording]
