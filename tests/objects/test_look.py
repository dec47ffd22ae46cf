"""What a network is shown: points of every part in the unit box, turned about the vertical."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh

from kinema4d.objects.look import look_at, squared
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.jointed import draw


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
    look = look_at(rest, thing.faces, label, np.random.default_rng(0), points=12)
    assert look.points.shape == (label.max() + 1, 12, 3)
    assert np.abs(look.points).max() <= 0.5
    np.testing.assert_allclose(look.turn @ look.turn.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(look.turn[2], [0, 0, 1])
    np.testing.assert_allclose(np.linalg.norm(look.normals, axis=-1), 1, atol=1e-5)
    low, high = (look.boxes[:, None, i : i + 3] for i in (0, 3))
    assert ((look.points >= low - 1e-6) & (look.points <= high + 1e-6)).all()
    turned = look_at(rest, thing.faces, label, np.random.default_rng(0), points=12, quarter=1).turn @ look_at(rest, thing.faces, label, np.random.default_rng(0), points=12, quarter=0).turn.T  # fmt: skip
    np.testing.assert_allclose(turned, [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-12)
