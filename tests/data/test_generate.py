"""A recipe fixes every byte of its episodes, whoever makes them and in however many runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_jobs import contents

from kinema4d.data import generate as module
from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import CANDIDATES, Recipe, balance, doable, generate, make, orders
from kinema4d.scenes.episode import SEGMENTS, SIGMAS, TASKS

pytest.importorskip("mujoco", reason="simulated episodes need MuJoCo: pip install 'kinema4d[mjcf]'")

SMALL = Recipe(robots=("k4arm",), episodes=5, failures=1, height=32, width=48, tasks=("push", "poke", "topple"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the small recipe."""
    root = tmp_path_factory.mktemp("made") / "set"
    heard: list[tuple[int, int]] = []
    summary = generate(root, SMALL, workers=1, tell=lambda s, total: heard.append((s.jobs, total)))
    assert (summary.jobs, summary.episodes, summary.before, summary.skipped) == (3, 5, 0, {})
    assert heard == [(1, 3), (2, 3), (3, 3)]
    return root


def test_two_workers_make_the_same_bytes(made: Path, tmp_path: Path) -> None:
    assert generate(tmp_path / "two", SMALL, workers=2).episodes == 5
    assert contents(tmp_path / "two") == contents(made)


def test_ray_makes_the_same_bytes(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'kinema4d[ray]'")
    assert generate(tmp_path / "ray", SMALL, engine="ray", workers=2).episodes == 5
    assert contents(tmp_path / "ray") == contents(made)


def test_a_run_that_is_there_is_not_made_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make", lambda *_: pytest.fail("made again"))
    for episodes in (5, 3):
        summary = generate(made, replace(SMALL, episodes=episodes), workers=1)
        assert (summary.jobs, summary.episodes, summary.before) == (
            0,
            0,
            len(orders(replace(SMALL, episodes=episodes))),
        )


def test_growing_in_any_steps_ends_in_the_same_bytes(made: Path, tmp_path: Path) -> None:
    root = tmp_path / "grown"
    for episodes in (1, 4, 5):
        before = set(contents(root)) if root.exists() else set()
        generate(root, replace(SMALL, episodes=episodes), workers=1)
        assert len(open_dataset(root)) == episodes
        assert before <= set(contents(root))
    assert contents(root) == contents(made)


def test_a_missing_failure_is_made_alone_as_it_was_made_with_the_others(made: Path, tmp_path: Path) -> None:
    # What a kill leaves: the demonstration is there, its disturbance is not.
    order = orders(SMALL)[1]
    (tmp_path / "set").mkdir()
    rows = make(str(tmp_path / "set"), (order, (order.ids[1],)))
    assert rows == [open_dataset(made).row(order.ids[1])]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"failures": 2}, "failures 1 now 2"),
        ({"height": 48}, "height 32 now 48"),
        ({"tasks": ("push",)}, r"tasks \['push', 'poke', 'topple'\] now \['push'\]"),
    ],
)
def test_another_recipe_for_the_same_ids_is_refused(made: Path, change: dict[str, Any], said: str) -> None:
    before = contents(made)
    with pytest.raises(ValueError, match=rf"another recipe \({said}\); use another --out, or another --seed"):
        generate(made, replace(SMALL, **change), workers=1)
    assert contents(made) == before


def test_every_episode_says_how_it_was_made(made: Path) -> None:
    dataset = open_dataset(made)
    for order in orders(SMALL):
        for id, disturbance in zip(order.ids, [None, *order.disturbances], strict=True):
            row, episode = dataset.row(id), dataset.load(id)
            assert dataset.verify(id) == []
            assert (row.task, row.robots, row.facts["scenario"]) == (order.wish.task, ("k4arm",), order.wish.scenario)
            assert row.facts["demonstration"] == order.id
            assert row.group == dataset.row(order.id).group  # a split keeps them together
            assert row.facts.get("segment") == (disturbance and disturbance[0])
            assert row.facts.get("sigma") == (disturbance and disturbance[1])
            assert disturbance or row.outcome == "success"
            assert (len(episode), episode.clip.rgb.shape[1:3]) == (49, (32, 48))
            assert episode.commands is not None
            assert episode.tracks
    assert sum(total for _, total in balance(dataset.rows).values()) == 5


def test_an_expert_that_fails_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEMONSTRATIONS", 2)
    honest = module.perform
    monkeypatch.setattr(module, "perform", lambda *a: replace(honest(*a), success=False))
    summary = generate(tmp_path / "set", replace(SMALL, episodes=2), workers=1)
    assert (summary.jobs, summary.episodes) == (0, 0)
    assert "the expert failed in 2" in next(iter(summary.skipped.values()))
    assert len(open_dataset(tmp_path / "set")) == 0


# ------------------------------------------------------------------ what is ordered


@pytest.mark.parametrize("episodes", [1, 2, 10, 11, 97])
@pytest.mark.parametrize("failures", [0, 1, 3, 9])
def test_exactly_as_many_as_asked_for(episodes: int, failures: int) -> None:
    made = orders(replace(SMALL, episodes=episodes, failures=failures))
    ids = [id for order in made for id in order.ids]
    assert len(ids) == len(set(ids)) == episodes
    assert all(len(order.disturbances) == failures for order in made[:-1])


def test_nine_failures_are_those_of_the_paper() -> None:
    for order in orders(replace(SMALL, episodes=40, failures=9)):
        assert set(order.disturbances) == {(segment, sigma) for segment in range(SEGMENTS) for sigma in SIGMAS}
        assert len(order.disturbances) == 9
    few = orders(replace(SMALL, episodes=4 * 90, failures=3))
    chosen = Counter(d for order in few for d in order.disturbances)
    assert set(chosen) == set(CANDIDATES)
    assert all(15 <= count <= 45 for count in chosen.values())  # 30 each on average


def able(monkeypatch: pytest.MonkeyPatch, possible: Callable[[str], bool] = lambda _: True) -> None:
    """Robots that need no file; who can do the tasks is ``possible``."""
    tasks = {name: SimpleNamespace(possible=possible) for name in TASKS}
    for name, value in {
        "TASKS": tasks, "with_hand": lambda name: name, "_robot": lambda name: name, "measure_reach": lambda name: name
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("robots", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 11, 12])
@pytest.mark.parametrize("scenarios", [1, 2, 3])
def test_turns_are_fair(robots: int, tasks: int, scenarios: int, monkeypatch: pytest.MonkeyPatch) -> None:
    able(monkeypatch)
    recipe = Recipe(
        robots=tuple(f"r{i}" for i in range(robots)),
        tasks=tuple(TASKS)[:tasks],
        scenarios=("canonical", "cluttered", "dynamic")[:scenarios],
        failures=0,
        episodes=tasks * robots * scenarios,
    )
    made = orders(recipe)
    # Every task meets every robot in every scenario once in so many rounds, and half a set is as fair as can be.
    assert set(Counter((o.wish.task, o.robot, o.wish.scenario) for o in made).values()) == {1}
    part = made[: tasks * max(robots, scenarios)]
    for of in (lambda o: o.robot, lambda o: o.wish.scenario, lambda o: (o.wish.task, o.robot)):
        counts = Counter(of(order) for order in part).values()
        assert max(counts) - min(counts) <= max(1, tasks // 3)


def test_only_who_can_do_a_task_takes_turns_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    able(monkeypatch, lambda robot: robot != "r1")
    recipe = replace(SMALL, robots=("r0", "r1", "r2"), tasks=("push", "pour"), failures=0, episodes=12)
    met = Counter((order.wish.task, order.robot, order.wish.scenario) for order in orders(recipe))
    assert len(met) == 12
    assert {robot for _, robot, _ in met} == {"r0", "r2"}
    with pytest.raises(ValueError, match="none of r1 can do push, pour"):
        orders(replace(recipe, robots=("r1",)))


def test_growing_does_not_change_what_was_ordered() -> None:
    many = orders(replace(SMALL, episodes=200, failures=3))
    for episodes in (1, 7, 50):
        few = orders(replace(SMALL, episodes=episodes, failures=3))
        assert few[:-1] == many[: len(few) - 1]
        assert few[-1] == replace(many[len(few) - 1], disturbances=few[-1].disturbances)
        assert many[len(few) - 1].disturbances[: len(few[-1].disturbances)] == few[-1].disturbances


def test_a_robot_of_ones_own_makes_plain_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    able(monkeypatch)
    monkeypatch.setattr(module, "with_hand", lambda name: f"{name}+k4grip")
    ids = orders(replace(SMALL, robots=("my robots/arm 7.urdf",), episodes=1))[0].ids
    assert ids == ["tabletop-0-000000-push-arm_7.urdf+k4grip"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ("fly",)}, "unknown tasks fly; known are pick_place"),
        ({"tasks": ()}, r"unknown tasks \(none\)"),
        ({"scenarios": ("moon",)}, "unknown scenarios moon; known are canonical"),
        ({"suite": "kitchen"}, "unknown suite 'kitchen'"),
        ({"robots": ()}, "at least one robot"),
        ({"failures": 10}, "0 to 9 per demonstration, got 10"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"width": 8}, "at least 16x16, got 5 and 32x8"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
    ],
)
def test_what_a_recipe_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_what_no_robot_can_do_is_told_apart() -> None:
    able, idle = doable(("panda",))
    assert "pour" in idle  # its wrist does not turn so far
    assert set(able) | set(idle) == set(TASKS)
    assert "pick_place" in able
    with pytest.raises(ValueError, match="none of panda can do pour"):
        orders(Recipe(robots=("panda",), tasks=("pour",)))
