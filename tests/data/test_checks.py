"""Each fault is found by its own check and by no other; the truth has no fault."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from doctored import episode, flipped, moved_base, unlabelled, view, with_clip, with_states

import kinema4d as k4d
from kinema4d.data.checks import CHECKS, check
from kinema4d.data.checks_image import jumping
from kinema4d.data.curate import score
from kinema4d.data.probe import coarse, probe
from kinema4d.data.resample import downsample
from kinema4d.data.thresholds import Finding, Thresholds, grade, load_thresholds, thresholds_to_dict
from kinema4d.data.video import read_footage
from kinema4d.geometry.camera import project
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.types import Commands, Episode, Pointmap


def found(thing: Episode, severity: str = "bad") -> set[str]:
    return {f.check for f in check(thing) if f.severity == severity}


def shifted(truth: Episode, by: int) -> Episode:
    q = truth.arms[0].trajectory.q
    rows = np.clip(np.arange(len(q)) + by, 0, len(q) - 1)
    return with_states(truth, q[rows])


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_has_no_fault(seed):
    truth = episode(seed=seed)
    findings = check(truth)
    assert all(f.severity == "ok" for f in findings), [f for f in findings if f.severity != "ok"]
    assert {f.check for f in findings} == set(CHECKS) - {"files"}
    assert score(findings) == 1.0
    assert all(f.value is not None for f in findings), "every check has something to measure on the truth"
    assert found(unlabelled(truth)) | found(unlabelled(truth), "warn") == set()


@pytest.mark.parametrize(("axes", "name"), [((1,), "vertically"), ((2,), "horizontally"), ((1, 2), "by 180 degrees")])
@pytest.mark.parametrize("kind", ["everything", "image only", "no labels"])
def test_flipped_images(axes, name, kind):
    thing = flipped(episode(), axes, labels=kind != "image only")
    thing = unlabelled(thing) if kind == "no labels" else thing
    assert found(thing) == {"flips"}
    bad = [f for f in check(thing) if f.severity == "bad"]
    assert len(bad) == 1
    assert f"turned {name}" in bad[0].message
    assert "ingest with images[:, " in bad[0].remedy


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("by", [-4, -2, 2, 3])
def test_states_out_of_step(by, labels):
    thing = shifted(episode() if labels else unlabelled(episode()), by)
    assert found(thing) == {"sync"}
    finding = next(f for f in check(thing) if f.severity == "bad")
    assert finding.value == abs(by)
    assert ("later" if by > 0 else "earlier") in finding.message
    assert found(shifted(episode(), 1), "warn") == {"sync"}


def test_sync_without_the_robots_files():
    truth = episode()
    # fits and starts, so that speed tells the time
    steps = 0.02 + 0.1 * (np.random.default_rng(3).random(48) > 0.6)
    turn = np.concatenate([[0], np.cumsum(steps * np.where(np.arange(48) < 24, 1, -1))])
    robot = k4d.load_robot("k4arm")
    q = np.tile(robot.home, (49, 1))
    q[:, 0] += turn - 0.7
    signal = k4d.control(robot, k4d.Actions(space="joint_position", values=q, fps=10.0), view())
    assert signal.rgb is not None
    rgb = np.where(signal.mask[..., None], signal.rgb, truth.clip.rgb[0])
    still = replace(with_clip(with_states(truth, q), rgb=rgb), labels=None, label_names=(), camera_from="guessed")
    late = with_clip(still, rgb=np.concatenate([np.repeat(rgb[:1], 3, axis=0), rgb[:-3]]))
    values = [next(f for f in check(thing) if f.check == "sync") for thing in (still, late)]
    assert values[0].severity == "ok"
    assert values[1].value == 3
    assert values[1].severity == "warn", "weak evidence never condemns"


def test_frozen_frames():
    rgb = episode().clip.rgb.copy()
    rgb[8:20] = rgb[8]
    thing = with_clip(episode(), rgb=rgb)
    assert found(thing) == {"frozen"}
    assert "first after frame 8" in next(f for f in check(thing) if f.severity == "bad").message


def test_a_still_picture_of_a_still_robot_is_fine():
    q = np.tile(episode().arms[0].trajectory.q[:1], (49, 1))
    rgb = np.repeat(episode().clip.rgb[:1], 49, axis=0)
    thing = with_states(with_clip(unlabelled(episode()), rgb=rgb), q)
    thing = replace(with_clip(thing, pointmap=_repeat(episode().clip.pointmap)), commands=None)
    assert found(thing) == set()


def _repeat(pointmap: Pointmap) -> Pointmap:
    return Pointmap(points=np.repeat(pointmap.points[:1], 49, axis=0), valid=np.repeat(pointmap.valid[:1], 49, axis=0))


def test_lost_frames():
    q = episode(frames=97).arms[0].trajectory.q
    keep = [*range(0, 10), *range(16, 30), *range(36, 50), *range(56, 67)]
    steps = np.linalg.norm(np.diff(q[keep], axis=0), axis=1)
    assert set(jumping(steps, 2.5)) == {9, 23, 37}
    assert len(jumping(np.linalg.norm(np.diff(q, axis=0), axis=1), 2.5)) == 0
    # keeping every second or third frame, as down-sampling does, is not a loss
    uneven = np.rint(np.linspace(0, 96, 70)).astype(int)
    assert len(jumping(np.linalg.norm(np.diff(q[uneven], axis=0), axis=1), 2.5)) == 0


def test_reversed_gripper():
    truth = episode()
    assert truth.commands is not None
    values = truth.commands.values.copy()
    values[:, 6] = 1 - values[:, 6]
    thing = replace(truth, commands=replace(truth.commands, values=values))
    assert found(thing) == {"polarity"}
    assert "swap open and closed" in next(f for f in check(thing) if f.severity == "bad").remedy


@pytest.mark.parametrize("convention", ["libero", "bridge", "rt1"])
def test_gripper_of_relative_actions(convention):
    """Tool displacements with each source's own gripper column, right and reversed."""
    truth = episode()
    robot = k4d.load_robot("k4arm")
    q = truth.arms[0].trajectory.q
    tool = forward_kinematics(robot, q)[:, robot.link_index("tool"), :3, 3]
    scale = {"libero": 0.05}.get(convention, 1.0)
    steps = np.diff(tool, axis=0) / scale
    closed = 1 - q[:, 6] / 0.045
    column = {
        "libero": np.where(closed[1:] > 0.5, 1.0, -1.0),
        "bridge": 1 - closed[1:],
        "rt1": np.diff(closed),
    }[convention]
    turned = {"libero": -column, "bridge": 1 - column, "rt1": -column}[convention]
    for gripper, expected in ((column, set()), (turned, {"polarity"})):
        values = np.concatenate([steps, np.zeros_like(steps), gripper[:, None]], axis=1)
        commands = Commands(
            values=values, names=("x", "y", "z", "a", "b", "c", "gripper"), fps=10.0, space="ee_delta",
            convention=convention,
        )  # fmt: skip
        thing = replace(truth, commands=commands)
        assert found(thing) == expected
        actions = next(f for f in check(thing) if f.check == "actions")
        assert actions.value is not None
        assert actions.value > 0.95


def test_commands_of_another_frame():
    truth = episode()
    assert truth.commands is not None
    values = truth.commands.values.copy()
    values[:, 0] += 0.8
    assert found(replace(truth, commands=replace(truth.commands, values=values))) == {"actions"}
    nonsense = replace(truth.commands, values=values[:, :4], names=("a", "b", "c", "d"))
    assert found(replace(truth, commands=nonsense), "warn") == {"actions"}
    unknown = replace(truth.commands, space="", convention="")
    assert found(replace(truth, commands=unknown)) == set()


def test_commands_faster_than_frames():
    truth = episode()
    assert truth.commands is not None
    at = np.linspace(0, 48, 48 * 3 + 1)
    low = np.minimum(at.astype(int), 47)
    values = truth.commands.values
    fine = values[low] + (at - low)[:, None] * (values[low + 1] - values[low])
    thing = replace(truth, commands=replace(truth.commands, values=fine, fps=30.0))
    finding = next(f for f in check(thing) if f.check == "actions")
    assert finding.severity == "ok"
    assert finding.value == pytest.approx(0, abs=1e-3)


def test_scaled_depth():
    pointmap = episode().clip.pointmap
    thing = with_clip(episode(), pointmap=replace(pointmap, points=pointmap.points * np.float32(1.2)))
    assert found(thing) == {"reprojection"}
    assert found(replace(thing, metric=False)) == set()


def test_points_of_another_lens():
    truth = episode()
    K = truth.clip.camera.K.copy()
    K[0, 0] *= 1.3
    thing = with_clip(truth, camera=replace(truth.clip.camera, K=K))
    assert "reprojection" in found(thing)
    assert "px of the ray" in next(f for f in check(thing) if f.check == "reprojection").message


def test_holes_and_points_behind_the_camera():
    pointmap = episode().clip.pointmap
    valid = pointmap.valid.copy()
    valid[:, ::1, :130] = False
    assert found(with_clip(episode(), pointmap=replace(pointmap, valid=valid))) == {"depth"}
    points = pointmap.points.copy()
    points[3, :4, :4] *= -1
    thing = with_clip(episode(), pointmap=replace(pointmap, points=points))
    assert "depth" in found(thing)
    none = with_clip(episode(), pointmap=replace(pointmap, valid=np.zeros_like(valid)))
    assert found(none) | found(none, "warn") == set()
    valid = pointmap.valid.copy()
    valid[7] = False
    assert found(with_clip(episode(), pointmap=replace(pointmap, valid=valid))) == {"depth"}


def test_a_robot_that_stands_elsewhere():
    assert "mask" in found(moved_base(episode(), 0.25))
    assert "mask" in found(moved_base(episode(), 30.0))


def test_jitter():
    q = episode().arms[0].trajectory.q.copy()
    q[:, :6] += np.random.default_rng(0).normal(0, 0.08, q[:, :6].shape)
    thing = replace(unlabelled(with_states(episode(), q)), commands=None, camera_from="guessed")
    assert found(thing) == {"jitter"}


def test_frames_and_cameras():
    truth = episode()
    assert found(with_states(truth, truth.arms[0].trajectory.q[:-3])) == {"frames"}
    K = truth.clip.camera.K.copy()
    K[:2] *= 10
    assert "camera" in found(with_clip(truth, camera=replace(truth.clip.camera, K=K)))
    assert found(replace(truth, camera_from="guessed"), "warn") == {"camera"}
    Ts = np.tile(truth.clip.camera.T_world_camera, (49, 1, 1))
    Ts[20:, 0, 3] += 2.0
    assert "camera" in found(with_clip(truth, camera=replace(truth.clip.camera, T_world_camera=Ts)))


def test_a_robot_that_is_not_here():
    truth = episode()
    thing = replace(truth, arms=(replace(truth.arms[0], robot="nowhere.urdf"),))
    assert "nowhere.urdf does not exist" in probe(thing).missing[0]
    assert found(thing) == set()


def test_the_coarse_camera_sees_the_same_points():
    camera = view(480, 720)
    small = coarse(camera)
    assert max(small.height, small.width) <= 144
    points = np.random.default_rng(0).uniform([-0.5, -0.5, 1], [0.5, 0.5, 2], (20, 3))
    step, start = 5, 2
    np.testing.assert_allclose(project(small.K, points) * step + start, project(camera.K, points))
    assert all(f.severity == "ok" for f in check(episode(frames=12, height=480, width=720)))


@pytest.mark.parametrize("name", ["train_4_view1", "train_5_view0", "train_5_view1"])
def test_real_footage(data, name):
    """DROID with estimated cameras and no labels: right as it is; flipped or out of step it is noticed."""
    if not (data / "droid/calib").is_dir():
        pytest.skip(f"no DROID footage in {data}")
    about = json.loads((data / f"droid/calib/{name}.json").read_text())
    states = json.loads((data / f"droid/annotation/{about['episode']}.json").read_text())
    actions = k4d.Actions(
        space="joint_position",
        values=np.array(states["observation.state.joint_position"]),
        gripper=np.ravel(states["observation.state.gripper_position"]),
        fps=15.0,
        convention="droid",
    )
    arm = k4d.drive(k4d.load_robot("panda_robotiq", assets=data / "robots"), actions)
    rgb = read_footage(data / "droid" / about["video"])
    q = arm.trajectory.q[::3][: len(rgb)]  # states are 15 Hz, frames 5 Hz
    n = len(q)
    path = replace(arm.trajectory, q=q, fps=5.0)
    arm = replace(arm, trajectory=path, **{k: getattr(arm, k)[:n] for k in ("converged", "residual_m", "residual_rad")})
    camera = k4d.load_camera(data / f"droid/calib/{name}.json")
    empty = Pointmap(points=np.zeros((*rgb[:n].shape[:3], 3), np.float32), valid=np.zeros(rgb[:n].shape[:3], bool))
    clip = k4d.Clip(camera=camera, rgb=rgb[:n], pointmap=empty, fps=5.0)
    truth = downsample(Episode(clip=clip, arms=(arm,), camera_from="estimated"))
    look = lambda thing: {f.check: f for f in check(thing, assets=data / "robots")}  # noqa: E731
    right = look(truth)
    assert all(f.severity == "ok" for f in right.values()), right
    assert right["mask"].value is not None
    assert right["mask"].value > 0.5
    for axes, word in (((1,), "vertically"), ((2,), "horizontally"), ((1, 2), "180")):
        turned = with_clip(truth, rgb=np.ascontiguousarray(np.flip(truth.clip.rgb, axes)))
        assert look(turned)["flips"].severity == "bad"
        assert re.search(rf"turned (by )?{word}", look(turned)["flips"].message)
    late = look(shifted(truth, 3))["sync"]
    assert (late.severity, late.value) == ("bad", 3)


def test_grades_fall_from_one_to_nothing():
    values = {x: grade("c", x, (1.0, 2.0), "m", "r") for x in (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0)}
    assert [f.severity for f in values.values()] == ["ok", "warn", "warn", "bad", "bad", "bad", "bad"]
    assert [f.score for f in values.values()] == [1, 1, 0.75, 0.5, 0.25, 0, 0]
    less = [grade("c", x, (0.8, 0.4), "m", "r").severity for x in (0.9, 0.6, 0.2)]
    assert less == ["ok", "warn", "bad"]
    assert grade("c", 9.0, (1.0, 2.0), "m", "r", worst="warn").severity == "warn"
    assert values[0.0].remedy == ""
    assert score([values[1.5], values[2.5], Finding(check="d", severity="warn", message="", score=0.5)]) == 0.125


def test_thresholds_from_a_file_and_from_texts(tmp_path):
    file = tmp_path / "limits.json"
    file.write_text(json.dumps({"jitter": [2, 3], "keep_score": 0.5}))
    limits = load_thresholds(file, ["sync-frames=3,6", "keep_score=0.1", "frames=10"])
    assert (limits.jitter, limits.sync_frames, limits.keep_score, limits.frames) == ((2, 3), (3, 6), 0.1, 10)
    assert load_thresholds() == Thresholds()
    file.write_text(json.dumps(thresholds_to_dict(limits)))
    assert load_thresholds(file) == limits
    for text, message in {
        "nonsense=1": "unknown threshold 'nonsense'; known are frames",
        "jitter=1": "needs two different numbers",
        "keep_score=1,2": "is one number",
        "jitter": "name=warn,bad",
        "jitter=a,b": "must be numbers",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_thresholds(None, [text])
    file.write_text("[1]")
    with pytest.raises(ValueError, match="must hold a JSON object"):
        load_thresholds(file)
