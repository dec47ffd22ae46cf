"""Composition of stages: labels are merged, the order is right, and the record says who made what."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from kinema4d.data.annotate.kinematic_mask import KinematicMask, project_robot
from kinema4d.data.annotate.stages import CAPTIONS, RECORD, Scaling, annotate, describe, differs, fit_K, plan
from kinema4d.geometry.camera import from_depth
from kinema4d.types import Trajectory


def test_earlier_robot_labels_go_and_objects_stay(truth):
    labels = np.zeros(truth.mask.shape, np.uint16)
    labels[:, :10] = 1
    labels[:, 10:20] = 2
    labels[:, 20:30] = 3
    episode = replace(truth.episode, labels=labels, label_names=("robot:hand", "cup", "bowl"))
    found = annotate(episode, mask=lambda _: truth.mask)
    assert found.labels is not None
    assert found.label_names == ("cup", "bowl", "robot")
    np.testing.assert_array_equal(found.robot_mask, truth.mask)
    free = ~truth.mask
    assert (found.labels[:, :10][free[:, :10]] == 0).all()
    assert (found.labels[:, 10:20][free[:, 10:20]] == 1).all()
    assert (found.labels[:, 20:30][free[:, 20:30]] == 2).all()


def test_the_kinematic_mask_waits_for_depth_and_a_segmenter_does_not(truth):
    order = []

    def pointmap(episode):
        order.append("pointmap" if episode.robot_mask is None else "pointmap after mask")
        return truth.pointmap

    def segmenter(_):
        order.append("mask")
        return truth.mask

    annotate(truth.episode, mask=segmenter, pointmap=pointmap)
    annotate(truth.episode, mask=KinematicMask(), pointmap=pointmap)
    assert order == ["mask", "pointmap after mask", "pointmap"]


def test_metres_are_claimed_only_with_reason(truth):
    @dataclass(frozen=True)
    class Metric:
        metric: bool

        def __call__(self, episode, /):
            return truth.pointmap

    assert not annotate(truth.episode, pointmap=Metric(metric=False)).metric
    assert annotate(truth.episode, pointmap=Metric(metric=True)).metric
    assert annotate(truth.episode, pointmap=Metric(metric=False), scaling=Scaling(method="scale")).metric


def test_the_record_is_json_and_grows(truth):
    first = annotate(truth.episode, mask=KinematicMask(tolerance_m=0.03))
    second = annotate(first, text=lambda _: {"episode": "It moves.", "environment": "A table."})
    facts = json.loads(json.dumps(dict(second.facts)))
    assert facts[CAPTIONS] == {"episode": "It moves.", "environment": "A table."}
    assert facts[RECORD]["mask"]["stage"] == "KinematicMask"
    assert facts[RECORD]["mask"]["settings"] == {"tolerance_m": 0.03, "tolerance_share": 0.02}
    assert facts[RECORD]["mask"]["kinema4d"]
    assert "lambda" in facts[RECORD]["captions"]["stage"]
    assert differs(facts, plan(mask=KinematicMask(tolerance_m=0.03))) == []
    assert differs(facts, plan(mask=KinematicMask())) == ["mask"]
    assert differs({}, plan(mask=KinematicMask())) == ["mask"]


def test_captions_of_the_source_are_kept(truth):
    episode = replace(truth.episode, facts={"captions": ["push it", "move the box"], "seed": 3})
    found = annotate(episode, text=lambda _: {"episode": "It moves."})
    assert found.facts[CAPTIONS] == {"source": ["push it", "move the box"], "episode": "It moves."}
    assert found.facts["seed"] == 3
    again = annotate(found, text=lambda _: {"episode": "It pushes."})
    assert again.facts[CAPTIONS] == {"source": ["push it", "move the box"], "episode": "It pushes."}


def test_a_guessed_lens_follows_the_points(truth):
    camera = truth.episode.clip.camera
    K = np.array([[140.0, 0, 80.0], [0, 150.0, 61.0], [0, 0, 1]])
    other = from_depth(K, truth.depth, truth.depth > 0)
    np.testing.assert_allclose(fit_K(other, camera), K, rtol=1e-4)
    assert fit_K(truth.pointmap, camera) is camera.K
    guessed = replace(truth.episode, camera_from="guessed")
    found = annotate(guessed, pointmap=lambda _: other)
    np.testing.assert_allclose(found.clip.camera.K, K, rtol=1e-4)
    assert found.camera_from == "guessed"
    np.testing.assert_array_equal(annotate(truth.episode, pointmap=lambda _: other).clip.camera.K, camera.K)
    flipped = replace(other, points=other.points * np.array([-1, 1, 1], np.float32))
    with pytest.raises(ValueError, match="x right, y down, z forward"):
        annotate(guessed, pointmap=lambda _: flipped)


def test_bad_stages_are_named(truth):
    with pytest.raises(ValueError, match="nothing to annotate"):
        annotate(truth.episode)
    with pytest.raises(ValueError, match=r"returned \[8, 120, 90\] pixels, the clip has \[8, 120, 180\]"):
        annotate(truth.episode, mask=lambda _: truth.mask[:, :, :90])
    with pytest.raises(ValueError, match="no valid point in any frame"):
        annotate(truth.episode, pointmap=lambda _: truth.episode.clip.pointmap)
    with pytest.raises(ValueError, match="needs a pointmap stage"):
        plan(mask=KinematicMask(), scaling=Scaling(method="scale"))
    with pytest.raises(ValueError, match="scale, affine, disparity or none, got 'log'"):
        Scaling(method="log")
    assert describe(KinematicMask())["stage"] == "KinematicMask"


def test_a_robot_that_cannot_be_projected_is_refused(truth):
    episode = truth.episode
    with pytest.raises(ValueError, match="panda is not here"):
        project_robot(replace(episode, arms=(), facts={"robot_missing": "panda is not here"}))
    with pytest.raises(ValueError, match="camera is only guessed"):
        KinematicMask()(replace(episode, camera_from="guessed"))
    arm = episode.arms[0]
    motion = arm.trajectory
    other = Trajectory(q=motion.q, joint_names=motion.joint_names[::-1], fps=motion.fps)
    with pytest.raises(ValueError, match="ingest the episode again"):
        project_robot(replace(episode, arms=(replace(arm, trajectory=other),)))
    short = Trajectory(q=motion.q[:3], joint_names=motion.joint_names, fps=motion.fps)
    with pytest.raises(ValueError, match="has 3 joint states, the clip 8 frames"):
        project_robot(replace(episode, arms=(replace(arm, trajectory=short),)))
    with pytest.raises(ValueError, match="must not be negative"):
        KinematicMask(tolerance_m=-1.0)
