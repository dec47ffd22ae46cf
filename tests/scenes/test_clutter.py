"""The paper's three scenarios: how many distractors, how near, and that one hides a part of the target."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tables import robot_named

from kinema4d.geometry.se3 import apply, place
from kinema4d.scenes.clutter import NEAR_M, surface_gap
from kinema4d.scenes.episode import Stage, Wish, set_stage
from kinema4d.scenes.picture import draw, label_names
from kinema4d.scenes.tasks import put
from kinema4d.scenes.things import Thing, block, can

pytest.importorskip("mujoco")
TASKS = ("pick_place", "push", "topple", "open_drawer", "close_hinge")


@cache
def staged(task: str, scenario: str, seed: int) -> Stage:
    return set_stage(robot_named("k4arm"), Wish(task=task, scenario=scenario, seed=seed))


def outline(thing: Thing) -> np.ndarray:
    """The footprint of its first body, densely: every edge of every triangle."""
    corners = np.concatenate([m.vertices[m.faces] for m in thing.bodies[0].meshes])
    share = np.linspace(0, 1, 12)[:, None, None, None]
    edges = corners + share * (np.roll(corners, 1, axis=1) - corners)
    return np.unique(np.round(apply(thing.T_world_thing, edges.reshape(-1, 3))[:, :2], 4), axis=0)


def apart(a: Thing, b: Thing) -> float:
    """Distance between two outlines, by brute force."""
    p, q = outline(a), outline(b)
    return float(min(np.linalg.norm(q - point, axis=1).min() for point in p))


@pytest.mark.parametrize("seed", range(6))
def test_surface_gap_is_the_distance_of_footprints(seed):
    rng = np.random.default_rng(seed)
    make = [block, can]
    a = put(make[seed % 2](rng, "red"), 0, 0, yaw=rng.uniform(-3, 3))
    b = put(make[seed // 3](rng, "blue"), *rng.uniform(0.05, 0.09, 2), yaw=rng.uniform(-3, 3))
    assert surface_gap(a, b) == pytest.approx(apart(a, b), abs=0.002)
    assert surface_gap(a, b) == pytest.approx(surface_gap(b, a))


@pytest.mark.parametrize("task", TASKS)
def test_scenarios_have_the_distractors_that_they_promise(task):
    for seed in (0, 1):
        stages = {scenario: staged(task, scenario, seed) for scenario in ("canonical", "cluttered", "dynamic")}
        others = {name: s.scene.things[len(s.cast.things) :] for name, s in stages.items()}
        assert len(others["canonical"]) == 0
        assert 3 <= len(others["cluttered"]) <= 5
        assert len(others["dynamic"]) > 5
        near = [apart(stages["cluttered"].cast.target, thing) for thing in others["cluttered"]]
        assert max(near) < NEAR_M + 0.001
        assert min(near) > 0.003
        for stage in stages.values():
            names = [t.name for t in stage.scene.things]
            assert len(set(names)) == len(names)  # "the red block" is one thing
            moved = stage.world.transforms(stage.world.data.qpos[None].copy())[0]
            bodies = {n: moved[len(stage.scene.robot.link_names) + i] for i, n in enumerate(stage.world.names)}
            for thing in stage.scene.things:  # nothing was put into something else, which would push it away
                T = bodies[f"{thing.name}/{thing.bodies[0].name}"]
                assert np.linalg.norm(T[:3, 3] - thing.T_world_thing[:3, 3]) < 0.001, thing.name


@pytest.mark.parametrize("task", TASKS)
def test_something_hides_a_part_of_the_target_in_dynamic_scenes(task):
    for seed in (0, 1):
        stage = staged(task, "dynamic", seed)
        links, own = len(stage.scene.robot.link_names), sum(len(t.bodies) for t in stage.cast.things)
        Ts = stage.world.transforms(stage.world.data.qpos[None].copy())
        Ts[:, :links] = place(0, 0, 50.0) @ Ts[:, :links]  # the robot may hide it too: out of the picture
        names = label_names(stage.scene)
        ids = [i + 1 for i, n in enumerate(names) if n.startswith(f"{stage.cast.target.name}/")]
        alone = np.isin(draw(replace(stage.scene, things=stage.cast.things), Ts[:, : links + own]).ids, ids).sum()
        seen = np.isin(draw(stage.scene, Ts).ids, ids).sum()
        assert alone > 20
        assert 0 < seen < 0.97 * alone


def test_unknown_scenarios_are_refused():
    with pytest.raises(ValueError, match="unknown scenario 'messy'; known are canonical, cluttered, dynamic"):
        set_stage(robot_named("k4arm"), Wish(task="push", scenario="messy"))
