"""Pieces on joints are explained in closed form, joint by joint; what bends is not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import torch

from kinema4d.objects.joints import joints, motions
from kinema4d.objects.least import Task
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import KINDS, draw, some_poses


def task_of(kind: str, seed: int) -> tuple[Task, int]:
    thing = draw(kind, seed)
    rest = thing.posed(np.zeros(thing.freedom))
    label = parts(Mesh(vertices=rest, faces=thing.faces))
    goals = torch.from_numpy(thing.posed(some_poses(thing, 20, 1)))
    return Task(
        rest=torch.from_numpy(rest), goals=goals, piece=torch.from_numpy(label), count=int(label.max()) + 1
    ), thing.freedom


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_joints_are_found_exactly(kind: str, seed: int):
    task, freedom = task_of(kind, seed)
    found = joints(task, 8)
    assert found is not None
    twists, q = found
    assert q.shape[1] == freedom
    torch.testing.assert_close(q.square().mean(0), torch.ones(freedom).double())
    assert task.error(twists, q) < 1e-8
    if freedom > 1:
        assert joints(task, freedom - 1) is None


def test_a_coordinate_is_a_joint():
    """Not a mixture: opening one drawer leaves the others shut, and the last link of a chain moves alone."""
    for kind, seed in (("drawers", 0), ("chain", 0), ("cabinet", 0)):
        task, freedom = task_of(kind, seed)
        found = joints(task, 8)
        assert found is not None
        moves = (found[0].abs().sum(-1) > 1e-6).sum(0)  # pieces that each coordinate moves
        thing = draw(kind, seed)
        assert thing.freedom == freedom
        if kind == "chain":
            assert moves.tolist() == list(range(freedom, 0, -1))
        else:
            assert int(moves.sum()) == int((found[0].abs().sum((1, 2)) > 1e-6).sum())  # no piece has two


def test_what_bends_or_is_too_thin_or_has_no_base_is_left_to_least_squares():
    task, _ = task_of("door", 0)
    bent = task.goals.clone()
    bent[3, 0] += 0.01
    assert motions(Task(rest=task.rest, goals=bent, piece=task.piece, count=task.count)) is None
    own = torch.arange(len(task.rest))
    assert motions(Task(rest=task.rest, goals=task.goals, piece=own, count=len(own))) is None
    g = torch.Generator().manual_seed(0)
    away = task.goals + torch.randn(len(task.goals), 1, 3, generator=g).double()
    assert joints(Task(rest=task.rest, goals=away, piece=task.piece, count=task.count), 8) is None
