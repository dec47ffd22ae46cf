"""How something elastic deforms where it is held: as a beam's theory says, shorter where it bends far, and with turns that cost nothing."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
import trimesh

from kinema4d.objects.elastic import Elastic, Material, elastic
from kinema4d.objects.modes import ways
from kinema4d.objects.solid import Mesh


def bar(long: float = 1.0, thick: float = 0.15, along: int = 19, across: int = 4) -> Mesh:
    """A solid from x = 0."""
    counts, grid = np.array([along, across, across]) - 1, []
    for axis in range(3):
        for side in (0, 1):
            u, v = (axis + 1) % 3, (axis + 2) % 3
            at = np.stack(np.meshgrid(np.arange(counts[u]), np.arange(counts[v]), indexing="ij"), -1).reshape(-1, 2)
            corner = np.zeros((len(at), 4, 3))
            corner[..., axis] = side * counts[axis]
            corner[..., [u, v]] = at[:, None] + np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
            grid.append(corner if side else corner[:, ::-1])
    nodes, index = np.unique(np.concatenate(grid).reshape(-1, 3), axis=0, return_inverse=True)
    index = index.reshape(-1, 4)
    vertices = nodes / counts * (long, thick, thick) - (0, thick / 2, thick / 2)
    mesh = Mesh(vertices=vertices, faces=np.concatenate([index[:, [0, 1, 2]], index[:, [0, 2, 3]]]).astype(np.int64))
    assert trimesh.Trimesh(mesh.vertices, mesh.faces, process=False).volume == pytest.approx(long * thick**2)
    return mesh


def sheet(rows: int = 9) -> Mesh:
    """A square metre in the plane y = 0."""
    x, z = (v.ravel() for v in np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, rows), indexing="ij"))
    at = np.arange(rows * rows).reshape(rows, rows)
    a, b, c, d = (v.ravel() for v in (at[:-1, :-1], at[1:, :-1], at[1:, 1:], at[:-1, 1:]))
    faces = np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])
    return Mesh(vertices=np.stack([x, 0 * x, z], 1), faces=faces)


def energies(solid: Elastic, mesh: Mesh, shifts: np.ndarray) -> np.ndarray:
    return solid.energy(torch.from_numpy(mesh.vertices + shifts)).numpy()


def test_a_bar_in_a_clamp_bends_first_and_what_is_held_stays():
    mesh = bar()
    held = mesh.vertices[:, 0] < 1e-9
    solid = elastic(mesh, Material(young=1e5), rods=False)
    found = ways(mesh, held, solid, 24)
    assert len(found.turns) == 0
    assert found.shifts.shape == (24, len(mesh.vertices), 3)
    assert np.abs(found.shifts[:, held]).max() == 0
    size = [float(np.abs(s).max()) for s in found.shifts]
    assert max(size) == max(size[:2])
    # A cantilever's slowest vibrations, to both sides, are among them: sections stay at right angles to its line.
    x, b = mesh.vertices[:, 0], 1.8751
    bent = np.cosh(b * x) - np.cos(b * x) - 0.7341 * (np.sinh(b * x) - np.sin(b * x))
    slope = b * (np.sinh(b * x) + np.sin(b * x) - 0.7341 * (np.cosh(b * x) - np.cos(b * x)))
    flat = found.shifts.reshape(24, -1).T
    for side in (1, 2):
        want = np.zeros_like(mesh.vertices)
        want[:, side], want[:, 0] = bent, -slope * mesh.vertices[:, side]
        left = want.ravel() - flat @ np.linalg.lstsq(flat, want.ravel(), rcond=None)[0]
        assert np.linalg.norm(left) < 0.05 * np.linalg.norm(want)


def test_what_bends_far_becomes_shorter():
    mesh = bar()
    held = mesh.vertices[:, 0] < 1e-9
    solid = elastic(mesh, Material(young=1e5), rods=False)
    found = ways(mesh, held, solid, 24)
    aside = found.shifts[0] / np.abs(found.shifts[0]).max() * 0.25
    plain = float(energies(solid, mesh, aside[None])[0])
    flat = torch.from_numpy(found.shifts[1:].reshape(23, -1))
    q = torch.zeros(23, dtype=torch.float64, requires_grad=True)
    lead = torch.from_numpy(mesh.vertices + aside)
    best = torch.optim.LBFGS([q], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        best.zero_grad()
        energy = solid.energy((lead + (q @ flat).view(-1, 3))[None])[0]
        energy.backward()
        return energy

    best.step(closure)  # type: ignore[arg-type]
    with torch.no_grad():
        moved = (q @ flat).view(-1, 3).numpy()
        left = float(solid.energy((lead + torch.from_numpy(moved))[None])[0])
    tip = mesh.vertices[:, 0] > 1 - 1e-9
    assert moved[tip, 0].mean() < -0.02  # of a metre; a line that keeps its length would by 0.6 * 0.25^2
    assert left < 0.5 * plain


@pytest.mark.parametrize(
    ("place", "turns"), [(lambda x: x[:, 2] == 1, 1), (lambda x: (x[:, 2] == 1) & (x[:, 0] == 1), 3), (lambda x: (x[:, 2] == 1) | (x[:, 0] == 1), 0)]
)  # fmt: skip
def test_a_sheet_turns_about_the_side_or_the_corner_that_holds_it(place, turns: int):
    mesh = sheet()
    held = place(mesh.vertices)
    solid = elastic(mesh, Material(young=1e5), rods=False)
    found = ways(mesh, held, solid, 20)
    assert len(found.turns) == turns
    fast = np.cross(found.turns[:, None, :3], mesh.vertices) + found.turns[:, None, 3:]
    assert np.abs(fast[:, held]).max(initial=0) < 1e-9
    # No shift does what a turn does.
    mass = np.asarray(solid.weighed.rows.T @ solid.weighed.mass)
    for turn in fast:
        along = np.einsum("kvi,vi,v->k", found.shifts, turn, mass) / np.sqrt(np.einsum("kvi,v->k", found.shifts**2, mass) * np.einsum("vi,v->", turn**2, mass))  # fmt: skip
        assert np.abs(along).max() < 0.05


def test_what_nothing_holds_only_deforms():
    mesh = bar(along=9, across=3)
    solid = elastic(mesh, Material(young=1e5), rods=False)
    found = ways(mesh, np.zeros(len(mesh.vertices), bool), solid, 12)
    mass = np.asarray(solid.weighed.rows.T @ solid.weighed.mass)
    shift = np.einsum("kvi,v->ki", found.shifts, mass) / mass.sum()
    assert np.abs(shift).max() < 0.02 * np.abs(found.shifts).max()


def test_size_and_stiffness_do_not_matter():
    mesh = bar(along=9, across=3)
    held = mesh.vertices[:, 0] < 1e-9
    a = ways(mesh, held, elastic(mesh, Material(young=1e5), rods=False), 8)
    large = Mesh(vertices=4 * mesh.vertices, faces=mesh.faces)
    b = ways(large, held, elastic(large, Material(young=1e3), rods=False), 8)
    for x, y in zip(a.shifts[:4], b.shifts[:4], strict=True):
        np.testing.assert_allclose(np.linalg.norm(4 * x), np.linalg.norm(y), rtol=0.05)
