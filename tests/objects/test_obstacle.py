"""Distance to closed meshes, beside slow references, and what is no obstacle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
import trimesh

from kinema4d.geometry.motion_folder import ply
from kinema4d.objects.lagrange import ground
from kinema4d.objects.obstacle import Obstacle, around, least, read_obstacle
from kinema4d.objects.solid import Mesh


def mesh(made: Any) -> Mesh:
    return Mesh(vertices=np.asarray(made.vertices, np.float64), faces=np.asarray(made.faces, np.int64))


@pytest.mark.parametrize("name", ["ball", "ring", "plate", "wedge"])
def test_distances_are_those_of_a_slow_search(name: str):
    made = {
        "ball": trimesh.creation.icosphere(3),
        "ring": trimesh.creation.torus(0.8, 0.25),
        "plate": trimesh.creation.box([1.6, 1.2, 0.05]),
        "wedge": trimesh.convex.convex_hull(np.array([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0], [0.9, 0, 0.05]])),
    }[name]  # fmt: skip
    x = np.random.default_rng(0).uniform(-1.3, 1.3, (250, 3)) * np.maximum(made.extents / 2, 0.3)
    far, way = (v.numpy() for v in around(mesh(made))(torch.from_numpy(x)))
    _, true, _ = trimesh.proximity.closest_point_naive(made, x)
    np.testing.assert_allclose(np.abs(far), true, atol=1e-12)
    angle = np.zeros(len(x))  # winding number: the solid angle of all triangles (van Oosterom and Strackee)
    for a, b, c in made.triangles:
        u, v, w = a - x, b - x, c - x
        lu, lv, lw = (np.linalg.norm(k, axis=1) for k in (u, v, w))
        below = lu * lv * lw + (u * v).sum(1) * lw + (v * w).sum(1) * lu + (w * u).sum(1) * lv
        angle += 2 * np.arctan2((u * np.cross(v, w)).sum(1), below)
    np.testing.assert_array_equal(far < 0, angle > 2 * np.pi)
    step, distance = 1e-6, around(mesh(made))
    slope = [(distance(torch.from_numpy(x + step * e))[0] - distance(torch.from_numpy(x - step * e))[0]).numpy() / (2 * step) for e in np.eye(3)]  # fmt: skip
    off = np.abs(np.stack(slope, 1) - way).max(axis=1)
    assert (off > 1e-5).mean() < 0.01  # but where two places are nearest at once
    np.testing.assert_allclose(np.linalg.norm(way, axis=1), 1, atol=1e-9)


def test_what_overlaps_is_one_thing():
    """A top and a leg that stands in it: what is inside either is inside, and as deep as in the one where it is deeper."""
    top, leg = trimesh.creation.box([1, 1, 0.1]), trimesh.creation.box([0.2, 0.2, 1.0])
    leg.apply_translation([0, 0, -0.46])
    distance = around(mesh(trimesh.util.concatenate([top, leg])))
    x = torch.tensor([[0, 0, 0.03], [0, 0, -0.3], [0, 0, -0.05], [0.3, 0, -0.2], [0, 0, 0.2]], dtype=torch.float64)
    far, way = distance(x)
    np.testing.assert_allclose(far, [-0.02, -0.1, -0.09, 0.15, 0.15], atol=1e-12)
    np.testing.assert_allclose(way[3], [0, 0, -1], atol=1e-12)
    on, normal = distance(torch.tensor([[0.2, 0.1, 0.05], [0.5, 0.5, 0.05]], dtype=torch.float64))
    np.testing.assert_allclose(on, 0, atol=1e-12)
    np.testing.assert_allclose(normal[0], [0, 0, 1], atol=1e-9)
    np.testing.assert_allclose(normal[1], np.ones(3) / np.sqrt(3), atol=1e-9)


def test_far_away_it_may_say_less_but_never_less_than_its_limit():
    made = mesh(trimesh.creation.torus(0.8, 0.25))
    x = torch.from_numpy(np.random.default_rng(1).uniform(-1.3, 1.3, (300, 3)))
    exact, rough = around(made)(x)[0], around(made, limit=0.2)(x)[0]
    near = exact < 0.2
    assert 20 < int(near.sum()) < 280
    torch.testing.assert_close(rough[near], exact[near])
    assert bool((rough[~near] >= 0.2 - 1e-12).all())
    assert bool((rough <= exact + 1e-12).all())


def test_the_nearest_of_several_counts():
    x = torch.tensor([[0.0, 0, 1.2], [0, 0, 0.1], [3, 0, 0.4]], dtype=torch.float64)
    ball = trimesh.creation.box([2, 2, 2])
    ball.apply_translation([0, 0, 2.5])
    both = least([ground(), around(mesh(ball))])
    assert both is not None
    far, way = both(x)
    np.testing.assert_allclose(far, [0.3, 0.1, 0.4], atol=1e-12)
    np.testing.assert_allclose(way, [[0, 0, -1], [0, 0, 1], [0, 0, 1]], atol=1e-12)
    assert least([]) is None


def test_what_is_no_solid_is_refused_by_name(tmp_path: Path):
    box = trimesh.creation.box([1, 1, 1])
    v, f = np.asarray(box.vertices), np.asarray(box.faces)
    nan = v.copy()
    nan[3] = np.nan
    half = np.concatenate([v, (v[f[0, 0]] + v[f[0, 1]])[None] / 2])
    sliver = np.concatenate([f[1:], [[f[0, 0], 8, f[0, 2]], [8, f[0, 1], f[0, 2]], [f[0, 0], f[0, 1], 8]]])
    for vertices, faces, says in (
        (v, f[:-2], r"bad.ply is open: 4 of its edges have one triangle, so it has no inside; close it"),
        (v, np.concatenate([f, f[:1]]), r"is not a manifold: 3 of its edges have more than two triangles; close it"),
        (
            v,
            np.concatenate([f[:-1], f[-1:, ::-1]]),
            r"triangles that look the other way than their neighbours; close it",
        ),
        (half, sliver, r"is degenerate: 1 of 14 triangles have no area; remove them"),
        (nan, f, r"the obstacle .*bad.ply cannot be used: .* 1 vertices that are no numbers"),
        (1e4 * v, f, r"bad.ply is 10000 m large; .* --unit mm"),
    ):
        (tmp_path / "bad.ply").write_bytes(ply(vertices, faces))
        with pytest.raises(ValueError, match=says):
            read_obstacle(tmp_path / "bad.ply")
    with pytest.raises(ValueError, match="there is no mesh file"):
        read_obstacle(tmp_path / "none.glb")
    with pytest.raises(ValueError, match="is open"):
        Obstacle(name="half", mesh=Mesh(vertices=v, faces=f[:-1]))
    (tmp_path / "good.ply").write_bytes(ply(v, f[:, ::-1]))  # inside out: turned over
    assert float(around(read_obstacle(tmp_path / "good.ply").mesh)(torch.zeros(1, 3).double())[0]) == pytest.approx(
        -0.5
    )
