"""Meshes as solids: moments are exact, and what is no object is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trimesh

from kinema4d.objects.solid import Mesh, checked, parts, quadrature


def as_mesh(shape: trimesh.Trimesh) -> Mesh:
    return Mesh(vertices=np.asarray(shape.vertices, np.float64), faces=np.asarray(shape.faces, np.int64))


def found(mesh: Mesh, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    weighed = quadrature(mesh, **options)
    return weighed.points(mesh.vertices), weighed.mass


def inertia(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    centre = (w[:, None] * x).sum(axis=0) / w.sum()
    u = x - centre
    return np.einsum("n,ni,nj->ij", w, u, u)


@pytest.mark.parametrize("shape", [trimesh.creation.box((0.3, 0.2, 0.1)), trimesh.creation.icosphere(radius=0.2), trimesh.creation.cylinder(0.05, 0.4)], ids=["box", "ball", "rod"])  # fmt: skip
@pytest.mark.parametrize("cells", [1, 3])
def test_mass_centre_and_inertia_are_exact(shape: trimesh.Trimesh, cells: int):
    shape = shape.copy()
    shape.apply_transform(trimesh.transformations.rotation_matrix(0.7, (1, 2, 3), (0.1, 0, 0)))
    x, w = found(as_mesh(shape), density=500.0, cells=cells)
    assert (w > 0).all()
    assert w.sum() == pytest.approx(500 * shape.volume, rel=1e-6)
    np.testing.assert_allclose((w[:, None] * x).sum(axis=0) / w.sum(), shape.center_mass, atol=1e-7)
    shape.density = 500.0
    turned = np.trace(inertia(x, w)) * np.eye(3) - inertia(x, w)
    np.testing.assert_allclose(turned, shape.moment_inertia, rtol=1e-5, atol=1e-9)
    if cells == 1:
        assert len(x) <= 10


def test_points_follow_vertices_that_turn_and_stretch():
    mesh = as_mesh(trimesh.creation.box((0.3, 0.2, 0.1)))
    change = np.random.default_rng(0).normal(size=(3, 3))
    other = Mesh(vertices=mesh.vertices @ change.T + (1, 2, 3), faces=mesh.faces)
    weighed = quadrature(mesh)
    np.testing.assert_allclose(
        weighed.points(other.vertices), weighed.points(mesh.vertices) @ change.T + (1, 2, 3), atol=1e-12
    )


def test_every_part_has_its_own_mass():
    two: Any = trimesh.util.concatenate([trimesh.creation.box((0.1, 0.1, 0.1)), trimesh.creation.box((0.2, 0.1, 0.1), trimesh.transformations.translation_matrix((1, 0, 0)))])  # fmt: skip
    mesh = as_mesh(two)
    assert parts(mesh).max() == 1
    x, w = found(mesh)
    far = x[:, 0] > 0.5
    assert w[~far].sum() == pytest.approx(1.0, rel=1e-6)
    assert w[far].sum() == pytest.approx(2.0, rel=1e-6)
    assert checked(mesh) == ["it has 2 parts that do not touch"]


def test_an_open_sheet_is_a_shell():
    sheet = Mesh(
        vertices=np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], np.float64), faces=np.array([[0, 1, 2], [0, 2, 3]])
    )  # fmt: skip
    _, w = found(sheet, density=100.0, thick=0.01)
    assert w.sum() == pytest.approx(1.0)
    assert "weighed as a shell" in checked(sheet)[0]


def test_what_is_no_object_is_refused_by_name():
    box = as_mesh(trimesh.creation.box((0.3, 0.2, 0.1)))
    broken = box.vertices.copy()
    broken[2, 0] = np.nan
    for bad, match in (
        (Mesh(vertices=broken, faces=box.faces), "door has 1 vertices that are no numbers"),
        (Mesh(vertices=1e4 * box.vertices, faces=box.faces), "door is 3000 m large; .* give it in metres"),
        (Mesh(vertices=box.vertices, faces=box.faces[:1]), "8 vertices and 1 triangles: that is no object"),
        (Mesh(vertices=box.vertices, faces=box.faces + 5), "triangles of vertices 5 to 12, and 8 vertices"),
        (Mesh(vertices=box.vertices * (1, 0, 0), faces=box.faces), "every triangle of door is flat"),
    ):
        with pytest.raises(ValueError, match=match):
            checked(bad, "door")
    thrice = Mesh(vertices=box.vertices, faces=np.concatenate([box.faces, box.faces[:1]]))
    assert any("not a manifold" in s for s in checked(thrice))
