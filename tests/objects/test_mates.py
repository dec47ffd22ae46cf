"""The joints that could be between pieces that meet: boxes are found, candidates hold the true joints, and what is known of them does not depend on how the object stands."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh
from scipy.spatial.transform import Rotation

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")

from kinema4d.objects.look import box_of
from kinema4d.objects.mates import CANDIDATES, MATE, PAIR, PIECE, boxes, mates, survey
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import KINDS, draw, some_poses
from kinema4d.train.choose import explained_on_joints, known, left_over


def posed(kind: str, seed: int, poses: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    thing = draw(kind, seed)
    rest = thing.posed(np.zeros(thing.freedom))
    return np.concatenate([rest[None], thing.posed(some_poses(thing, poses, 1))]), thing.faces, parts(Mesh(vertices=rest, faces=thing.faces))  # fmt: skip


def test_boxes_are_found_however_they_are_turned():
    rng = np.random.default_rng(0)
    turns = Rotation.from_rotvec([[0.3, -0.8, 0.5], [1.1, 0.4, -0.7]]).as_matrix()
    half = np.array([0.5, 0.2, 0.03])
    box = np.asarray(trimesh.creation.box(2 * half).vertices) @ turns[0].T + [1.0, 2.0, 3.0]
    rod = np.asarray(trimesh.creation.cylinder(0.1, 0.9, sections=10).vertices) @ turns[1].T
    flat = np.concatenate([rng.uniform(-1, 1, (30, 2)) * [0.4, 0.1], np.zeros((30, 1))], axis=1) @ turns[0].T
    got = boxes(np.concatenate([box, rod, flat]), np.repeat([0, 1, 2], [len(box), len(rod), 30]))
    np.testing.assert_allclose(got.half[0], half, atol=1e-9)
    np.testing.assert_allclose(got.middle[0], [1, 2, 3], atol=1e-9)
    np.testing.assert_allclose(np.abs(got.axes[0] @ turns[0]), np.eye(3), atol=1e-9)
    assert got.half[1, 0] == pytest.approx(0.45)
    np.testing.assert_allclose(np.abs(got.axes[1, 0] @ turns[1][:, 2]), 1, atol=1e-9)
    assert got.half[2, 2] < 1e-9
    moved = got.moved(np.stack([turns[1]] * 3), np.ones((3, 3)))
    np.testing.assert_allclose(moved.middle[0], turns[1] @ [1, 2, 3] + 1, atol=1e-9)
    np.testing.assert_allclose(np.abs(moved.axes[0] @ turns[1] @ turns[0]), np.eye(3), atol=1e-9)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_joint_is_among_the_candidates_at_rest_and_in_other_poses(kind: str):
    for seed in (3, 4):
        poses, faces, label = posed(kind, seed)
        one = explained_on_joints(poses, faces, label, 8)
        assert one is not None
        for pose in (0, 5):
            look = known(one, pose, np.random.default_rng(0))
            for k in range(one.twists.shape[1]):
                assert look.good[look.joint == k].any()
            assert (look.bond[look.mates.meet][look.joint >= 0] == 1).all()
            assert look.still.any()


def test_what_is_known_does_not_depend_on_how_the_object_stands_nor_on_its_size():
    poses, faces, label = posed("chest", 2)
    turn = Rotation.from_euler("z", 0.7).as_matrix()
    every = []
    for large, vertices in ((1, poses[0]), (3, 3 * poses[0] @ turn.T + [1.0, -2.0, 5.0])):
        middle, size = box_of(poses[0])
        unit = (vertices - middle) / (large * size)
        every.append(mates(survey(unit, faces, label, np.random.default_rng(0))))
    a, b = every
    assert a.piece.shape[1:] == (PIECE,)
    assert a.pair.shape[1:] == (PAIR,)
    assert a.mate.shape[1:] == (CANDIDATES, MATE)
    np.testing.assert_array_equal(a.meet, b.meet)
    np.testing.assert_allclose(a.piece, b.piece, atol=2e-4)
    # Of a square rod the two short axes may change their names, and all may change their signs: what is known as a whole does not change.
    np.testing.assert_allclose(np.sort(a.mate, axis=1)[:, :, 10], np.sort(b.mate, axis=1)[:, :, 10], atol=2e-4)
    assert all(np.isfinite(v).all() for v in (a.piece, a.pair, a.mate, a.screws))


def test_a_tray_between_rails_goes_along_them_and_not_into_them():
    def solid(half: tuple[float, ...], at: tuple[float, ...]) -> trimesh.Trimesh:
        return trimesh.creation.box(2 * np.array(half)).apply_translation(at)

    rails = [solid((0.01, 0.3, 0.03), (x, 0, 0)) for x in (-0.111, 0.111)]
    tray = solid((0.1, 0.25, 0.02), (0, 0, 0))
    every = [tray, *rails]
    mesh = Mesh(
        vertices=np.concatenate([s.vertices for s in every]),
        faces=np.concatenate([s.faces + 8 * i for i, s in enumerate(every)]),
    )
    label = parts(mesh)
    look = survey(mesh.vertices, mesh.faces, label, np.random.default_rng(0), many=400)
    m = mates(look)
    pair = [i for i in range(len(m.meet)) if 0 in m.pairs[m.meet[i]]]
    along = np.array([0, 0, 0, 0, 1.0, 0])
    across = np.array([0, 0, 0, 1.0, 0, 0])
    moving = look.points[0]
    tray_first = [int(m.pairs[m.meet[i], 0] == 0) for i in pair]
    for i, first in zip(pair, tray_first, strict=True):
        side = 11 + 21 * (1 - first)  # where what is known of the tray begins
        into = {}
        for name, way in (("along", along), ("across", across)):
            at = int(left_over(m.screws[i : i + 1], way, moving)[0].argmin())
            assert left_over(m.screws[i : i + 1], way, moving)[0, at] < 1e-6
            into[name] = float(m.mate[i, at, side + 7])
            into[f"tried {name}"] = float(m.mate[i, at, side + 13 + 4])
        assert into["along"] < 0.05 < 0.5 < into["across"]  # of its motion into what it touches
        assert (
            into["tried along"] < 0.02 < 0.05 < into["tried across"]
        )  # how much of it is inside the other after a while
