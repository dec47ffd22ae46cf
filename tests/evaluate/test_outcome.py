"""The rules say of the true tracks what the simulator said, and something else of others."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from played import episode

from kinema4d.evaluate.outcome import MOVED_M, judge, steady, untouched
from kinema4d.evaluate.score import NA
from kinema4d.evaluate.thing_models import frames_of
from kinema4d.geometry.se3 import place
from kinema4d.scenes.tasks import Roles
from kinema4d.types import Episode, Track

pytest.importorskip("mujoco")


def tracks(truth: Episode) -> dict[str, np.ndarray]:
    return {t.name: t.Ts_world_object for t in truth.tracks}


@pytest.mark.parametrize("task", ["push", "stack", "topple", "open_drawer", "near_miss"])
def test_true_tracks_give_the_true_outcome(task: str):
    truth = episode(task)
    assert judge(truth, tracks(truth)) == truth.outcome
    at = frames_of(len(truth))
    assert judge(truth, {n: Ts[at] for n, Ts in tracks(truth).items()}, frames=at) == truth.outcome


@pytest.mark.parametrize("task", ["push", "stack", "topple", "open_drawer"])
def test_nothing_moved_is_failure(task: str):
    truth = episode(task)
    assert truth.outcome == "success"
    still = {n: np.repeat(Ts[:1], len(Ts), axis=0) for n, Ts in tracks(truth).items()}
    assert judge(truth, still) == "failure"


def test_roles_survive_json():
    truth = episode("open_drawer")
    data = json.loads(json.dumps(truth.facts["roles"]))
    roles = Roles.from_json(data)
    assert roles.to_json() == data
    assert roles.target.joint is not None
    assert roles.target.joint.kind == "slide"
    with pytest.raises(ValueError, match="generate again"):
        Roles.from_json({"target": data["target"], "goal": None})


def test_why_nobody_can_say():
    truth = episode("push")
    old = replace(truth, facts={k: v for k, v in truth.facts.items() if k != "roles"})
    verdict = judge(old, tracks(truth))
    assert isinstance(verdict, NA)
    assert "generate again" in verdict.reason
    assert isinstance(judge(truth, {}), NA)


def test_libero_rules():
    truth = episode("push")
    thing, basket = (np.tile(place(0, 0, 0), (len(truth), 1, 1)) for _ in range(2))
    both = tuple(Track(name=n, Ts_world_object=T) for n, T in (("soup_1", thing), ("basket_1", basket)))
    libero = replace(truth, facts={"thing": "soup_1", "place": "basket_1_contain_region"}, tracks=both)
    thing[-1, :3, 3] = [0.03, 0.0, 0.05]
    assert judge(libero, {"soup_1": thing, "basket_1": basket}) == "success"
    thing[-1, :3, 3] = [0.12, 0.0, 0.05]
    assert judge(libero, {"soup_1": thing, "basket_1": basket}) == "failure"
    on = replace(libero, facts={"thing": "soup_1", "place": "basket_1"})
    thing[-1, :3, 3] = [0.02, 0.0, 0.01]
    assert judge(on, {"soup_1": thing, "basket_1": basket}) == "success"
    assert isinstance(judge(on, {"soup_1": thing}), NA)


def test_dead_band():
    Ts = np.stack([place(0, 0, 0), place(0.6 * MOVED_M, 0, 0), place(2 * MOVED_M, 0, 0), place(0, 0, 0, yaw=0.2)])
    calm = steady(Ts, np.zeros(3))
    assert (calm[1] == Ts[0]).all()
    assert (calm[2:] == Ts[2:]).all()


def test_near_misses():
    assert untouched(episode("near_miss"))
    assert not untouched(episode("push"))
