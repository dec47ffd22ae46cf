"""Joints that hold: out of motions of pieces that are mixed, and a little wrong, come the joints of the object."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch

from kinema4d.objects.hang import _hinge_or_slide, _metric, hung
from kinema4d.objects.joints import joints
from kinema4d.objects.least import Task
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import draw, some_poses

KINDS = [
    ("door", 3),
    ("drawers", 3),
    ("lamp", 4),
    ("chain", 5),
    ("cabinet", 3),
    ("faucet", 8),
    ("gadget", 11),
    ("gadget", 12),
]


def _known(kind: str, seed: int) -> tuple[Task, torch.Tensor, torch.Tensor]:
    """Poses, the true screws of its parts, and points of each part."""
    thing = draw(kind, seed)
    poses = thing.posed(np.concatenate([np.zeros((1, thing.freedom)), some_poses(thing, 20, 1)]))
    label = parts(Mesh(vertices=poses[0], faces=thing.faces))
    low, high = poses[0].min(0), poses[0].max(0)
    unit = torch.from_numpy((poses - (low + high) / 2) / np.linalg.norm(high - low))
    task = Task(rest=unit[0], goals=unit[1:], piece=torch.from_numpy(label), count=int(label.max()) + 1)
    found = joints(task, 8)
    assert found is not None
    mine = [unit[0][label == c] for c in range(task.count)]
    return task, found[0], torch.stack([m[torch.linspace(0, len(m) - 1, 40).round().long()] for m in mine])


@pytest.mark.parametrize(("kind", "seed"), KINDS)
def test_whatever_coordinates_the_motions_are_said_in_the_joints_come_out(kind: str, seed: int):
    task, twists, points = _known(kind, seed)
    k = twists.shape[1]
    mix = torch.linalg.qr(torch.randn(k, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[0]
    found = hung(torch.einsum("ckz,kj->cjz", twists, mix), points)
    assert found is not None
    assert found.loose < 1e-6
    assert task.error(found.twists, task.solved(found.twists)) < 1e-5


def test_a_chain_that_is_said_a_little_wrong_hangs_together():
    task, twists, points = _known("chain", 5)
    g = torch.Generator().manual_seed(1)
    wrong = twists + 0.05 * twists.std() * torch.randn(twists.shape, generator=g, dtype=twists.dtype)
    found = hung(wrong, points)
    assert found is not None
    assert 0.01 < found.loose < 0.4
    held, apart = (task.error(t, task.solved(t)) for t in (found.twists, wrong))
    assert held < 0.6 * apart
    # Every joint is one screw for all that hangs on it, so nothing can come apart.
    for joint in found.twists.unbind(1):
        on = joint.abs().sum(1) > 0
        assert 0 < on.sum() < len(on)  # what stands still is on none
        torch.testing.assert_close(joint[on], joint[on][:1].expand(int(on.sum()), 6))


def test_too_few_pieces_have_no_joints():
    _, twists, points = _known("laptop", 1)
    assert hung(twists[:, :1].repeat(1, 2, 1), points) is None


def test_a_joint_that_is_nearly_a_hinge_or_a_slide_is_one():
    x = torch.rand(1, 40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.0
    metric = _metric(x)[0]
    hinge = torch.tensor([0.0, 0.0, 1.0, 0.3, -0.2, 0.0], dtype=torch.float64)
    screwed = hinge + torch.tensor([0, 0, 0, 0, 0, 0.1], dtype=torch.float64)
    torch.testing.assert_close(_hinge_or_slide(screwed, metric), hinge)
    slide = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    tilted = slide + torch.tensor([0.02, 0, 0, 0, 0, 0], dtype=torch.float64)
    made = _hinge_or_slide(tilted, metric)
    assert made[:3].abs().max() == 0
    screw = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(_hinge_or_slide(screw, metric), screw)  # one that truly does both
