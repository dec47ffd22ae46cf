from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from kinema4d.evaluate.foretell import control_of, foretell
from kinema4d.geometry.se3 import look_at
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.episode import Wish, perform, record, set_stage
from kinema4d.types import Control, Episode
from kinema4d.world.load import load_world
from kinema4d.world.protocol import World, first_depth
from kinema4d.world.small.checkpoint import SHIPPED, load_small, save_small
from kinema4d.world.small.checks import SmallWorldWarning, check_camera, check_outline
from kinema4d.world.small.world import SmallWorld


@cache
def the_world() -> SmallWorld:
    world = load_world("small")
    assert isinstance(world, SmallWorld)
    return world


@cache
def played(task: str, seed: int, robot: str = "xarm7+k4grip") -> tuple[Episode, Control]:
    stage = set_stage(load_robot(robot), Wish(task=task, seed=seed, height=96, width=144))
    episode = record(stage, perform(stage), source=f"test/{task}/{seed}", facts={}, threads=1)
    return episode, control_of(episode)


def middle(episode: Episode, name: str, Ts: np.ndarray) -> np.ndarray:
    vertices = next(t for t in episode.tracks if t.name == name).vertices
    assert vertices is not None
    return Ts[:, :3, :3] @ vertices.mean(axis=0) + Ts[:, :3, 3]


def test_the_small_world_is_a_world():
    assert isinstance(the_world(), World)


@pytest.mark.parametrize(("task", "seed"), [("pick_place", 3), ("push", 1), ("topple", 2)])
def test_things_go_where_the_robot_takes_them(task, seed):
    episode, control = played(task, seed)
    assert episode.outcome == "success"
    made = foretell(the_world(), episode, control=control)
    target = episode.facts["roles"]["target"]["body"]
    true = middle(episode, target, next(t for t in episode.tracks if t.name == target).Ts_world_object)
    said = middle(episode, target, next(t for t in made.tracks if t.name == target).Ts_world_object)
    static = np.linalg.norm(true[-1] - true[0])
    assert static > 0.03
    assert np.linalg.norm(said[-1] - true[-1]) < 0.35 * static
    # The robot is exactly where kinematics says, and the first frame is the given one.
    robot = control.mask & (made.clip.pointmap.points[..., 2] == control.pointmap.points[..., 2])
    assert robot.sum() > 0.9 * control.mask[1:].sum()
    np.testing.assert_array_equal(made.clip.rgb[0], episode.clip.rgb[0])


def test_a_near_miss_misses_and_the_background_does_not_flicker():
    episode, control = played("near_miss", 4)
    made = foretell(the_world(), episode, control=control)
    assert not any(part["moved"] for part in made.provenance["parts"])
    # What neither the robot nor its shadow ever comes to stays bit for bit.
    true = episode.clip.rgb.astype(int)
    still = (np.abs(true - true[:1]).max(axis=(0, 3)) < 8) & ~control.mask.any(axis=0)
    same = (made.clip.rgb[:, still] == made.clip.rgb[:1, still]).all(axis=(0, 2))
    assert same.mean() > 0.95


def test_the_same_seed_gives_the_same_bits_and_samples_differ():
    episode, control = played("push", 1)
    world, image, depth = the_world(), episode.clip.rgb[0], first_depth(episode.clip)
    seen = world.see(image, control, depth=depth)
    a, b = (world.simulate(image, control, depth=depth, seed=5, sample=True) for _ in range(2))
    np.testing.assert_array_equal(a.clip.rgb, b.clip.rgb)
    np.testing.assert_array_equal(a.clip.pointmap.points, b.clip.pointmap.points)
    ends = [
        world.simulate(image, control, depth=depth, seed=s, sample=True, seen=seen).tracks[0].Ts_world_object[-1]
        for s in (6, 7)
    ]
    assert np.abs(ends[0] - ends[1]).max() > 0
    c = world.simulate(image, control, depth=depth, seed=5, sample=True, seen=seen)
    np.testing.assert_array_equal(a.clip.rgb, c.clip.rgb)


def test_without_depth_it_is_predicted_and_said():
    episode, control = played("push", 1)
    made = foretell(the_world(), episode, control=control, use_depth=False)
    assert made.provenance["depth"] == "predicted"
    depth, true = made.clip.pointmap.depth[0], episode.clip.pointmap.depth[0]
    assert episode.labels is not None
    thing = (episode.labels[0] > 0) & ~control.mask[0]
    assert np.median(np.abs(depth - true)[thing]) < 0.05


def test_depth_in_millimetres_is_refused_and_of_another_pose_is_doubted():
    episode, control = played("push", 1)
    depth = first_depth(episode.clip)
    assert depth is not None
    with pytest.raises(ValueError, match="seems to be in millimetres"):
        the_world().see(episode.clip.rgb[0], control, depth=1000 * depth)
    with pytest.warns(SmallWorldWarning, match="does not show the robot"):
        the_world().see(episode.clip.rgb[0], control, depth=depth + 0.3)


def test_without_depth_a_robot_that_is_elsewhere_is_doubted_by_its_outline():
    episode, control = played("push", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_outline(episode.clip.rgb[0], control)
    aside = replace(control, pointmap=replace(control.pointmap, valid=np.roll(control.mask, 9, axis=2)))
    with pytest.warns(SmallWorldWarning, match="does not show the robot's outline"):
        check_outline(episode.clip.rgb[0], aside)


def test_holes_in_depth_are_survived():
    episode, control = played("push", 1)
    depth = first_depth(episode.clip)
    assert depth is not None
    rng = np.random.default_rng(0)
    holes = np.where(rng.random(depth.shape) < 0.2, 0, depth)
    holes[:, :20] = np.nan
    made = the_world().simulate(episode.clip.rgb[0], control, depth=holes)
    assert np.isfinite(made.clip.pointmap.points).all()
    assert made.tracks


def test_an_empty_table_is_said():
    episode, control = played("push", 1)
    from kinema4d.world.small.see import world_rays

    direction, origin = world_rays(episode.clip.camera)
    table = (origin[2] / np.maximum(-direction[..., 2], 0.1)).astype(np.float32)
    table = np.where(control.mask[0], control.pointmap.depth[0], table)
    image = np.full_like(episode.clip.rgb[0], 120)
    with pytest.warns(SmallWorldWarning, match="no part that could move"):
        made = the_world().simulate(image, control, depth=table)
    assert made.tracks == ()


def test_labels_from_elsewhere_replace_the_segmenter():
    episode, control = played("push", 1)
    assert episode.labels is not None
    links = sum(n.startswith("robot") for n in episode.label_names)
    labels = np.where(episode.labels[0] > links, episode.labels[0].astype(np.int32) - links, 0)
    names = episode.label_names[links:]
    made = the_world().simulate(
        episode.clip.rgb[0], control, depth=first_depth(episode.clip), labels=labels, names=names
    )
    assert {t.name for t in made.tracks} <= set(names)
    assert episode.facts["roles"]["target"]["body"] in {t.name for t in made.tracks}
    with pytest.raises(ValueError, match="part labels are 10x10 but the image 96x144"):
        the_world().see(episode.clip.rgb[0], control, labels=labels[:10, :10])


def test_a_control_signal_without_solids_and_a_moving_camera_are_refused():
    episode, control = played("push", 1)
    with pytest.raises(ValueError, match="no solids"):
        the_world().see(episode.clip.rgb[0], replace(control, solids=()))
    moving = replace(control.camera, T_world_camera=control.camera.poses(len(control)).copy())
    with pytest.raises(ValueError, match="stands still"):
        the_world().see(episode.clip.rgb[0], replace(control, camera=moving))


def test_a_camera_outside_of_the_learned_range_is_said():
    _, control = played("push", 1)
    K = control.camera.K.copy()
    K[:2, :2] *= 3
    with pytest.warns(SmallWorldWarning, match="vertical angle of view is 15 degrees"):
        check_camera(replace(control.camera, K=K))
    level = replace(control.camera, T_world_camera=look_at(np.array([1.0, 0, 0.1]), np.array([0.0, 0, 0.1])))
    with pytest.warns(SmallWorldWarning, match="looks 0 degrees down"):
        check_camera(level)


def test_weights_survive_a_round_trip_and_damage_is_refused(tmp_path):
    file = tmp_path / "small.safetensors"
    shutil.copy(SHIPPED, file)
    shutil.copy(SHIPPED.with_suffix(".sha256"), file.with_suffix(".sha256"))
    eyes, mover, about = load_small(file)
    assert mover is None
    assert about["sha256"] == SHIPPED.with_suffix(".sha256").read_text().strip()
    blob = bytearray(file.read_bytes())
    blob[len(blob) // 2] ^= 1
    file.write_bytes(bytes(blob))
    with pytest.raises(ValueError, match="is damaged"):
        load_small(file)
    file.with_suffix(".sha256").unlink()
    file.write_bytes(bytes(blob[:1000]))
    with pytest.raises(ValueError, match="no readable safetensors"):
        load_small(file)
    with pytest.raises(ValueError, match="no weights at"):
        load_small(tmp_path / "absent.safetensors")
    from kinema4d.world.small.checkpoint import usual_config

    config = usual_config()
    config["complete"]["width"] = 64
    networks = {"segment": eyes.segment, "complete": eyes.complete, "blind": eyes.blind}
    save_small(file, networks, config, {})
    with pytest.raises(ValueError, match="does not fit its own configuration"):
        load_small(file)


def test_the_shipped_weights_are_small():
    assert SHIPPED.stat().st_size < 20e6


def test_unknown_worlds_are_named():
    with pytest.raises(ValueError, match="unknown world 'huge'; known are static"):
        load_world("huge")


def test_no_warning_on_a_good_scene():
    episode, control = played("push", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmallWorldWarning)
        the_world().see(episode.clip.rgb[0], control, depth=first_depth(episode.clip))


def test_chunks_go_on_as_one_piece():
    episode, control = played("pick_place", 3)
    whole, parts = (foretell(the_world(), episode, control=control, longest=n) for n in (None, 26))
    assert parts.provenance["chunks"] == [0, 25]
    target = episode.facts["roles"]["target"]["body"]
    a, b = (
        middle(episode, target, next(t for t in made.tracks if t.name == target).Ts_world_object)
        for made in (whole, parts)
    )
    assert np.linalg.norm(a[-1] - a[0]) > 0.1
    assert np.linalg.norm(a - b, axis=1).max() < 0.02
    off = np.abs(whole.clip.rgb[-1].astype(int) - parts.clip.rgb[-1]).max(axis=-1)
    assert (off > 20).mean() < 0.02


def test_a_correction_that_learned_nothing_changes_nothing_and_can_be_left_out():
    from kinema4d.world.small.move import MoveConfig, MoveNet

    episode, control = played("push", 1)
    world, image, depth = the_world(), episode.clip.rgb[0], first_depth(episode.clip)
    seen = world.see(image, control, depth=depth)
    corrected = replace(world, mover=MoveNet(MoveConfig(width=32, blocks=1)).eval())
    plain = world.simulate(image, control, seen=seen, seed=2, sample=True)
    made = corrected.simulate(image, control, seen=seen, seed=2, sample=True)
    assert (plain.provenance["mover"], made.provenance["mover"]) == ("engine", "flow")
    np.testing.assert_array_equal(made.clip.rgb, plain.clip.rgb)
    for a, b in zip(made.tracks, plain.tracks, strict=True):
        np.testing.assert_array_equal(a.Ts_world_object, b.Ts_world_object)
    assert corrected._flow("engine") is None
    with pytest.raises(ValueError, match="no learned correction"):
        world.simulate(image, control, seen=seen, mover="flow")
