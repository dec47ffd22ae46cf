"""What is made of a network's choice of joints: links, a tree, screws that hold; and that the network itself is told of objects side by side as of each alone."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import torch
from torch.nn import functional as F

from kinema4d.objects.choose import JOINT, ONE, ChooseConfig, ChooseNet, Chosen, shown, tree
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import KINDS, draw, some_poses
from kinema4d.train.choose import Known, Looked, asked, explained_on_joints, judged, known, loss_of


def look(kind: str, seed: int, pose: int = 0) -> tuple[Known, Looked]:
    thing = draw(kind, seed)
    rest = thing.posed(np.zeros(thing.freedom))
    poses = np.concatenate([rest[None], thing.posed(some_poses(thing, 20, 1))])
    one = explained_on_joints(poses, thing.faces, parts(Mesh(vertices=rest, faces=thing.faces)), 8)
    assert one is not None
    got = known(one, pose, np.random.default_rng(0))
    return got, Looked(kind, kind, (got,), one.q[1:6].numpy(), one.twists.numpy(), True)


def truth(k: Known, *, sure: float = 9.0) -> Chosen:
    """What a network would say that knows."""
    far = torch.zeros(k.good.shape)
    for joint, size in enumerate(k.far):
        far[torch.from_numpy(k.joint) == joint] = float(size)
    return Chosen(
        sure * (2.0 * torch.from_numpy(k.still).float() - 1), sure * F.one_hot(torch.from_numpy(k.bond), 3).float(),
        sure * torch.from_numpy(k.good).float(), far,
    )  # fmt: skip


class Oracle(ChooseNet):
    """Says what is true."""

    def __init__(self, k: Known) -> None:
        super().__init__(ChooseConfig(width=8, rounds=1))
        self.known = k

    def forward(self, s: object) -> Chosen:
        return truth(self.known)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_right_choice_moves_as_the_object_does(kind: str):
    k, one = look(kind, 3)
    (off, went, counted, sure), = judged(Oracle(k), [one])  # fmt: skip
    assert counted == 1
    assert off < 0.02 * went + 1e-4
    assert sure > 0.9


def test_joints_hang_on_each_other_in_order_and_go_as_far_as_was_said():
    k, _ = look("chain", 5)
    got = tree(k.mates, truth(k), k.points)
    assert got.link[k.still].tolist() == [0] * int(k.still.sum())
    moves = np.abs(got.twists).max(axis=2) > 0
    assert sorted(moves.sum(axis=1).tolist()) == list(
        range(len(moves))
    )  # three links of one part each, one on the other
    np.testing.assert_allclose(np.linalg.norm(got.twists[..., :3], axis=2).max(axis=0), np.exp(k.far), rtol=1e-5)
    for j in range(got.twists.shape[1]):  # one screw for all that hangs on a joint
        rows = got.twists[moves[:, j], j]
        np.testing.assert_array_equal(rows, np.tile(rows[:1], (len(rows), 1)))


def test_a_doubtful_choice_is_said_to_be_one():
    k, _ = look("laptop", 3)
    assert tree(k.mates, truth(k), k.points).bonds > 0.9
    weak = tree(k.mates, truth(k, sure=0.3), k.points)
    assert weak.bonds < 0.8
    assert weak.sure.min() < 0.5
    flat = truth(k)._replace(bond=torch.zeros(len(k.bond), 3), still=torch.zeros(len(k.still)))
    got = tree(k.mates, flat, k.points)
    assert got.twists.shape[1] >= 1  # something is always said to move


def test_objects_side_by_side_are_told_apart():
    torch.manual_seed(0)
    net = ChooseNet(ChooseConfig(width=16, rounds=2)).eval()
    every = [look("door", 1)[0], look("chain", 2)[0]]
    together = net(shown([k.mates for k in every]))
    alone = [net(shown([k.mates])) for k in every]
    for field in ("still", "bond", "odds", "far"):
        torch.testing.assert_close(getattr(together, field), torch.cat([getattr(a, field) for a in alone]), atol=1e-5, rtol=1e-4)  # fmt: skip


def test_what_is_right_costs_nothing_and_any_right_candidate_will_do():
    k, _ = look("drawers", 2)
    batch = asked([k, k])

    class Two(Oracle):
        def forward(self, s: object) -> Chosen:
            one = truth(self.known, sure=20.0)
            return Chosen(*(torch.cat([v, v]) for v in one))

    lost, _ = loss_of(Two(k), batch)
    assert float(lost) < 1e-3
    first = k.good & (np.cumsum(k.good, axis=1) == 1)  # only one of several that are right
    assert first.sum() < k.good.sum()

    class Picky(Two):
        def forward(self, s: object) -> Chosen:
            return super().forward(s)._replace(odds=20 * torch.from_numpy(np.concatenate([first, first])).float())

    assert loss_of(Picky(k), batch)[1]["joint"] < 1e-3
    wrong = Two(k)
    wrong.known = k._replace(bond=np.where(k.bond == JOINT, ONE, k.bond))
    assert loss_of(wrong, batch)[1]["bond"] > 1
