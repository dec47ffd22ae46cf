"""Things are found where they are drawn, not where they are hidden, erased, or only said to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from played import episode, erased, frozen, noisy

from kinema4d.evaluate.locate import Found, locate
from kinema4d.evaluate.symmetry import find_symmetry
from kinema4d.evaluate.thing_models import frames_of, models_of, seen_surface
from kinema4d.geometry.se3 import rotvec_to_matrix
from kinema4d.scenes.shapes import ball, box, cylinder
from kinema4d.types import Clip, Episode

pytest.importorskip("mujoco")


def errors(found: Found, truth: Episode) -> np.ndarray:
    Ts = next(t.Ts_world_object for t in truth.tracks if t.name == found.model.name)
    return np.linalg.norm(found.model.place(found.Ts_world_object) - found.model.place(Ts[found.frames]), axis=1)


def target(truth: Episode) -> str:
    return truth.facts["roles"]["target"]["body"]


def look(clip: Clip, truth: Episode) -> Found:
    name = target(truth)
    return locate(clip, truth, models={name: models_of(truth)[name]})[name]


@pytest.mark.parametrize("task", ["push", "topple", "stack"])
def test_the_truth_is_found(task: str):
    truth = episode(task)
    found = look(truth.clip, truth)
    assert found.status[-1] == "found"
    assert errors(found, truth)[found.found].max() < 0.002


def test_no_help_from_the_true_pose():
    """With a truth whose tracks lie, things are still found where the pixels show them."""
    truth = episode("push")
    name = target(truth)
    lying = [replace(t, Ts_world_object=np.repeat(t.Ts_world_object[:1], len(truth), axis=0)) for t in truth.tracks]
    found = locate(truth.clip, replace(truth, tracks=tuple(lying)), models={name: models_of(truth)[name]})[name]
    assert errors(found, truth)[found.found].max() < 0.004
    assert found.status[-1] == "found"


def test_noise_costs_little():
    truth = episode("push")
    found = look(noisy(truth.clip, 0.002, 4.0), truth)
    assert found.status[-1] == "found"
    assert errors(found, truth)[-1] < 0.006


def test_a_static_world_shows_things_at_their_old_place():
    truth = episode("push")
    found = look(frozen(truth), truth)
    Ts = next(t.Ts_world_object for t in truth.tracks if t.name == target(truth))
    gone = np.linalg.norm(found.model.place(Ts[-1]) - found.model.place(Ts[0]))
    assert gone > 0.05
    assert found.status[-1] == "found"
    assert errors(found, truth)[-1] == pytest.approx(gone, abs=0.003)


@pytest.mark.parametrize("task", ["push", "topple"])
def test_an_erased_thing_is_not_found(task: str):
    truth = episode(task)
    found = look(erased(truth, target(truth)), truth)
    assert "found" not in found.status


def test_frames_are_spread():
    assert frames_of(49).tolist() == list(range(0, 49, 4))
    assert frames_of(5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="first and the last"):
        frames_of(49, 1)


def test_a_thing_without_a_mesh_gets_what_was_seen():
    truth = episode("push")
    name = target(truth)
    bare = replace(truth, tracks=tuple(replace(t, vertices=None, faces=None) for t in truth.tracks))
    surface = seen_surface(bare, next(t for t in bare.tracks if t.name == name))
    assert surface is not None
    whole = next(t for t in truth.tracks if t.name == name).vertices
    assert whole is not None
    assert (surface[0].min(axis=0) > whole.min(axis=0) - 1e-3).all()
    assert (surface[0].max(axis=0) < whole.max(axis=0) + 1e-3).all()
    found = locate(bare.clip, bare)[name]
    assert found.status[-1] == "found"
    assert errors(found, bare)[-1] < 0.003


def test_symmetry():
    can, block, sphere = cylinder(0.02, 0.05, (0, 0, 0)), box((0.02, 0.03, 0.05), (0, 0, 0)), ball(0.0075, (0, 0, 0))
    turn = rotvec_to_matrix(np.array([0.0, 0.0, 1.0]))
    tip, half = rotvec_to_matrix(np.array([0.3, 0.0, 0.0])), rotvec_to_matrix(np.array([np.pi, 0.0, 0.0]))
    found = find_symmetry(can.vertices, can.faces)
    assert found.angle(np.eye(3), turn) == pytest.approx(0, abs=1e-6)
    assert found.angle(np.eye(3), tip) == pytest.approx(0.3)
    assert found.angle(np.eye(3), half @ tip) == pytest.approx(0.3)
    found = find_symmetry(block.vertices, block.faces)
    assert found.axis is None
    assert found.angle(np.eye(3), turn) == pytest.approx(1.0)
    assert found.angle(np.eye(3), half) == pytest.approx(0, abs=1e-6)
    assert find_symmetry(sphere.vertices, sphere.faces).round
