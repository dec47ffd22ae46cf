"""Truth as prediction is the ceiling, a static world the floor, and damage never helps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from played import blurred, delayed, episode, erased, frozen, noisy, shifted

from kinema4d.evaluate.interaction import METRICS, interact, scores
from kinema4d.evaluate.score import NA, Pair
from kinema4d.types import Pointmap

pytest.importorskip("mujoco")


def number(value: object) -> float:
    assert isinstance(value, float), value
    return value


def test_ceiling():
    truth = episode("push")
    result = interact(Pair(predicted=truth.clip, truth=truth, tracks=truth.tracks))
    s = result.scores
    assert list(s) == list(METRICS)
    assert number(s["object_error_m"]) < 0.002
    assert number(s["false_motion_m"]) < 0.002
    assert s["object_found"] == s["outcome_right"] == s["outcome_right_said"] == 1.0
    assert s["object_error_m_said"] == 0.0
    assert s["changed_psnr_db"] == 60.0
    assert 0 <= number(s["penetration_m"]) < 0.01
    assert isinstance(s["near_miss_right"], NA)
    assert result.details["outcome"] == {"true": "success", "seen": "success", "said": "success"}


def test_floor():
    truth = episode("push")
    s = interact(Pair(predicted=frozen(truth), truth=truth)).scores
    moved = next(t for t in truth.tracks if t.name == truth.facts["roles"]["target"]["body"]).Ts_world_object
    assert number(s["object_error_m"]) == pytest.approx(np.linalg.norm(moved[-1, :3, 3] - moved[0, :3, 3]), abs=0.005)
    assert s["outcome_right"] == 0.0
    assert number(s["covered_iou"]) < 0.1
    assert isinstance(s["object_error_m_said"], NA)


def test_a_vanished_thing_has_no_error():
    truth = episode("push")
    s = scores(Pair(predicted=erased(truth, truth.facts["roles"]["target"]["body"]), truth=truth))
    assert isinstance(s["object_error_m"], NA)
    assert s["object_found"] == 0.0
    assert s["outcome_right"] == 0.0


def test_a_near_miss_is_one_only_while_things_stand():
    truth = episode("near_miss")
    assert scores(Pair(predicted=truth.clip, truth=truth))["near_miss_right"] == 1.0
    name = truth.facts["roles"]["target"]["body"]
    lying = tuple(
        replace(t, Ts_world_object=t.Ts_world_object + np.linspace(0, 0.03, len(truth))[:, None, None] * _X)
        if t.name == name
        else t
        for t in truth.tracks
    )
    s = scores(Pair(predicted=truth.clip, truth=truth, tracks=lying))
    assert s["near_miss_right_said"] == 0.0
    assert isinstance(s["object_error_m"], NA)
    assert s["object_error_m"].reason == "no thing moved"


_X = np.zeros((4, 4))
_X[0, 3] = 1.0


def test_damage_never_helps():
    truth = episode("push")
    ways = {
        "noise": [noisy(truth.clip, m, c) for m, c in ((0, 0), (0.004, 8), (0.012, 25))],
        "blur": [blurred(truth.clip, s) for s in (0.0, 1.0, 2.5)],
        "shift": [shifted(truth.clip, n) for n in (0, 2, 5)],
        "delay": [delayed(truth.clip, n) for n in (0, 16, 48)],
    }
    for way, clips in ways.items():
        found = [interact(Pair(predicted=clip, truth=truth), frames=5).scores for clip in clips]
        # A thing that is not found any more is no better than one that was.
        error = [0.5 if isinstance(s["object_error_m"], NA) else s["object_error_m"] for s in found]
        psnr = [number(s["changed_psnr_db"]) for s in found]
        assert all(b >= a - 5e-4 for a, b in pairwise(error)), (way, error)
        assert all(b <= a for a, b in pairwise(psnr)), (way, psnr)


def test_bad_input_is_no_score():
    truth = episode("push")
    blind = replace(truth.clip, pointmap=Pointmap(points=truth.clip.pointmap.points, valid=np.zeros_like(truth.clip.pointmap.valid)))  # fmt: skip
    s = scores(Pair(predicted=blind, truth=truth))
    assert isinstance(s["object_found"], NA)
    assert s["changed_psnr_db"] == 60.0  # colours are all there
    bare = replace(truth, tracks=())
    assert isinstance(scores(Pair(predicted=truth.clip, truth=bare))["object_error_m"], NA)
