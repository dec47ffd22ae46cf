"""Boxes as one surface: closed, of the volume that they fill together, and refused where they only touch at an edge."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh

from kinema4d.objects.solid import Mesh, checked, parts
from kinema4d.scenes.weld import Union, connect, union

Box = tuple[tuple[float, float, float], tuple[float, float, float]]


def joined(*boxes: Box) -> Union | None:
    """Boxes by half sides and middle."""
    return union(np.array([h for h, _ in boxes]), np.array([m for _, m in boxes]))


def volume(one: Union) -> float:
    return float(trimesh.Trimesh(one.vertices, one.faces, process=False).volume)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_closed_and_of_the_volume_that_boxes_fill(seed: int):
    rng = np.random.default_rng(seed)
    half, middle = (
        rng.uniform(0.1, 0.5, (4, 3)),
        rng.uniform(-0.3, 0.3, (4, 3)),
    )  # every one around the origin or near it
    one = union(half, middle)
    assert one is not None
    assert not [
        line for line in checked(Mesh(vertices=one.vertices, faces=one.faces)) if "manifold" in line or "open" in line
    ]
    x = rng.uniform(-0.8, 0.8, (50_000, 3))
    inside = (np.abs(x[:, None] - middle) < half).all(axis=-1).any(axis=-1)
    assert volume(one) == pytest.approx(inside.mean() * 1.6**3, rel=0.03)
    assert volume(one) == pytest.approx(8 * np.prod(one.half, axis=1).sum(), rel=1e-9)
    held = (np.abs(x[:, None] - one.middle) < one.half).all(axis=-1).sum(axis=-1)
    assert held.max() == 1  # cells do not overlap
    np.testing.assert_array_equal(held > 0, inside)


def test_a_box_open_on_one_side_stays_hollow():
    t, walls = 0.05, []
    walls = [((0.5, 0.5, t), (0.0, 0.0, -0.5 + t))]
    walls += [((t, 0.5, 0.5), (s * (0.5 - t), 0.0, 0.0)) for s in (-1, 1)]
    walls += [((0.5, t, 0.5), (0.0, s * (0.5 - t), 0.0)) for s in (-1, 1)]
    one = joined(*walls)
    assert one is not None
    assert volume(one) == pytest.approx(1 - 0.8 * 0.8 * 0.9)
    assert parts(Mesh(vertices=one.vertices, faces=one.faces)).max() == 0  # one surface


def test_boxes_side_by_side_share_no_wall():
    one = joined(((0.5, 0.5, 0.5), (0.0, 0.0, 0.0)), ((0.5, 0.5, 0.5), (1.0, 0.0, 0.0)))
    assert one is not None
    assert volume(one) == pytest.approx(2)
    assert not (np.abs(one.vertices[one.faces].mean(axis=1)[:, 0] - 0.5) < 1e-9).any()


@pytest.mark.parametrize("at", [(1.0, 1.0, 0.0), (1.0, 1.0, 1.0)])
def test_boxes_that_touch_at_an_edge_or_corner_are_no_solid(at: tuple[float, float, float]):
    assert joined(((0.5, 0.5, 0.5), (0.0, 0.0, 0.0)), ((0.5, 0.5, 0.5), at)) is None


def test_one_box_and_rods_have_nothing_to_be_welded_to():
    assert connect([("box", (1, 1, 1), (0, 0, 0)), ("rod", (0.1, 0.5, 0.0), (0, 0, 0))]) is None
