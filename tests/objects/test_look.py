"""What the model is shown: pieces, patches of what bends, and points of both in the unit box."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import trimesh

from kinema4d.objects.look import cut, look_at, squared
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import draw


def _sheet(rows: int = 9, columns: int = 9) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.meshgrid(np.linspace(0, 1, columns), np.linspace(0, 1, rows))
    at = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = (v.ravel() for v in (at[:-1, :-1], at[:-1, 1:], at[1:, 1:], at[1:, :-1]))
    return np.stack([x.ravel(), y.ravel(), 0 * x.ravel()], 1), np.concatenate(
        [np.stack([a, b, c], 1), np.stack([a, c, d], 1)]
    )


def test_a_part_that_bends_is_cut_into_even_patches_and_vertices_follow_those_around_them():
    vertices, faces = _sheet()
    made = cut(vertices, faces, np.zeros(len(vertices), np.int64), [True], 16)
    assert made.count == 16
    assert made.patch.all()
    many = np.bincount(made.face)
    assert many.min() >= 0.4 * many.mean()
    np.testing.assert_allclose(made.share.sum(1), 1)
    assert (made.share >= 0).all()
    assert (made.share > 1e-6).sum(1).max() <= 4
    # Neighbours follow nearly the same, so that nothing tears.
    edges = np.concatenate([faces[:, :2], faces[:, 1:]])
    assert np.abs(made.share[edges[:, 0]] - made.share[edges[:, 1]]).sum(1).mean() < 1.0  # of 2


def test_rigid_parts_are_pieces_and_what_hangs_on_them_gets_the_rest():
    box = trimesh.creation.box((1, 1, 1))
    sheet, triangles = _sheet()
    vertices = np.concatenate([np.asarray(box.vertices), sheet + np.array([3, 0, 0])])
    faces = np.concatenate([np.asarray(box.faces), triangles + 8])
    label = np.repeat([0, 1], [8, len(sheet)])
    made = cut(vertices, faces, label, [False, True], 10)
    assert made.patch.tolist() == [False] + [True] * 9
    assert (made.share[:8, 0] == 1).all()
    assert (made.share[8:, 0] == 0).all()
    with pytest.raises(ValueError, match="the object has 2 parts that do not touch; the model knows at most 1"):
        cut(vertices, faces, label, [False, False], 1)


def test_what_is_upright_looks_along_an_axis():
    rest = draw("chest", 2).posed(np.zeros(1))
    faces = draw("chest", 2).faces
    for angle in (0.0, 0.3, -0.6, 0.5):
        R = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        assert squared(rest @ R.T, faces) == pytest.approx(angle, abs=1e-6)
    ball = trimesh.creation.icosphere(2)
    assert squared(np.asarray(ball.vertices), np.asarray(ball.faces)) == 0


def test_what_is_looked_at_is_turned_about_the_vertical_in_a_unit_box():
    thing = draw("door", 3)
    rest = thing.posed(np.zeros(1))
    label = parts(Mesh(vertices=rest, faces=thing.faces))
    whole = cut(rest, thing.faces, label, np.zeros(label.max() + 1, bool), 24)
    look = look_at(rest[None], thing.faces, whole, np.random.default_rng(0), points=12, most=24)
    own = look.points[0][look.there]
    assert look.there.sum() == label.max() + 1
    assert np.abs(own).max() <= 0.5
    np.testing.assert_allclose(look.turn @ look.turn.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(look.turn[2], [0, 0, 1])
    np.testing.assert_allclose(np.linalg.norm(look.normals[look.there], axis=-1), 1, atol=1e-5)
    low, high = (look.boxes[look.there][:, None, i : i + 3] for i in (0, 3))
    assert ((own >= low - 1e-6) & (own <= high + 1e-6)).all()
    with pytest.raises(ValueError, match=r"the object has \d+ pieces; the model knows at most 2"):
        look_at(rest[None], thing.faces, whole, np.random.default_rng(0), points=12, most=2)
