"""Peers of learned coordinates: bases that have what they promise, and bodies that can be simulated."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise, permutations, product

import numpy as np
import pytest
import trimesh

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
from scipy.sparse import csr_matrix, identity, kron
from scipy.sparse.linalg import eigsh
from torch import Tensor

from kinema4d.objects import peers
from kinema4d.objects.body import at_rest, jacobian
from kinema4d.objects.exact import beam
from kinema4d.objects.inverse import reach_points
from kinema4d.objects.lagrange import Conditions, simulate
from kinema4d.objects.peers import Peer, modal_body, pca_body, skinning_modes_body, static_body
from kinema4d.objects.solid import Mesh, Weighed, quadrature


def as_mesh(shape: trimesh.Trimesh) -> Mesh:
    return Mesh(vertices=np.asarray(shape.vertices, np.float64), faces=np.asarray(shape.faces, np.int64))


def rod(rings: int = 24, length: float = 0.5, width: float = 0.02) -> tuple[Mesh, Weighed]:
    """A square bar along x, in rings of four vertices."""
    ring = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * width / 2
    v = np.concatenate([np.c_[np.full(4, x), ring] for x in np.linspace(0, length, rings + 1)])
    f = [[4 * i + a, 4 * i + b, 4 * i + a + 4] for i in range(rings) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0))]
    f += [[4 * i + b, 4 * i + b + 4, 4 * i + a + 4] for i in range(rings) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0))]
    e = 4 * rings
    f += [[0, 2, 1], [0, 3, 2], [e, e + 1, e + 2], [e, e + 2, e + 3]]
    mesh = Mesh(vertices=v, faces=np.array(f, np.int64))
    return mesh, quadrature(mesh, cells=rings)


def block() -> tuple[Mesh, Weighed]:
    mesh = as_mesh(trimesh.creation.box((0.2, 0.1, 0.1)).subdivide().subdivide())
    return mesh, quadrature(mesh, cells=6)


def poses_of(kind: str, count: int = 40) -> tuple[Mesh, Weighed, np.ndarray]:
    """A box beside another that slides out or turns about its edge."""
    still, loose = trimesh.creation.box((0.3, 0.2, 0.02)), trimesh.creation.box((0.3, 0.02, 0.2))
    loose.apply_translation((0, 0.11, 0.1))
    both = as_mesh(trimesh.util.concatenate([still, loose]))  # pyright: ignore[reportArgumentType]
    mine, out = both.vertices[:, 1] >= 0.1 - 1e-9, []
    mine[:8] = False
    for u in np.linspace(-0.5, 0.5, count):
        x = both.vertices.copy()
        if kind == "slide":
            x[mine] += (0.2 * u, 0, 0)
        else:
            c, s = math.cos(2 * u), math.sin(2 * u)
            x[mine] = x[mine] @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]]).T
        out.append(x)
    return both, quadrature(both), np.stack(out)


def miss(peer: Peer, poses: np.ndarray) -> float:
    """Mean distance of vertices when coordinates are the best for the vertices."""
    q0 = torch.zeros(1, peer.body.coordinates, dtype=torch.float64)
    at = peer.vertices(q0)[0].numpy()
    ways = torch.func.jacfwd(lambda q: peer.vertices(q[None])[0])(q0[0]).numpy().reshape(at.size, -1)
    q = np.linalg.lstsq(ways, (poses - at).reshape(len(poses), -1).T, rcond=None)[0].T
    made = peer.vertices(torch.from_numpy(q)).numpy()
    return float(np.linalg.norm(made - poses, axis=-1).mean())


def inertia(peer: Peer) -> Tensor:
    _, slopes = jacobian(peer.body, at_rest(peer.body, peer.rest[None]))
    return torch.einsum("nid,n,nie->de", slopes[0], peer.body.mass, slopes[0])[-peer.body.coordinates :, -peer.body.coordinates :]  # fmt: skip


# ---------------------------------------------------------------------- principal components


def test_what_slides_needs_one_direction():
    mesh, weighed, poses = poses_of("slide")
    one = pca_body(mesh, poses, weighed, 1)
    assert miss(one, poses) < 1e-12
    np.testing.assert_allclose(one.vertices(one.rest[None])[0], mesh.vertices, atol=1e-12)
    with pytest.raises(ValueError, match="differ in 1 directions only, asked for 2"):
        pca_body(mesh, poses, weighed, 2)


def test_more_directions_are_better_and_all_are_exact():
    mesh, weighed, poses = poses_of("hinge")
    assert miss(pca_body(mesh, poses, weighed, 2), poses) < 1e-9  # a hinge: sine and cosine
    rng = np.random.default_rng(0)
    wild = mesh.vertices + 0.05 * rng.normal(size=(7, *mesh.vertices.shape))
    found = [miss(pca_body(mesh, wild, weighed, k), wild) for k in range(1, 7)]
    assert all(a > b for a, b in pairwise(found)), found
    assert found[-1] < 1e-12


def test_the_range_and_the_points_are_those_of_the_poses():
    mesh, weighed, poses = poses_of("hinge")
    peer = pca_body(mesh, poses, weighed, 2)
    assert peer.body.reach is not None
    for pose in poses[::13]:
        found = reach_points(peer.body, torch.from_numpy(weighed.points(pose)))
        assert found.error < 1e-8
        np.testing.assert_allclose(peer.vertices(found.q[None])[0], pose, atol=1e-7)
        assert bool((found.q >= peer.body.reach[:, 0]).all() & (found.q <= peer.body.reach[:, 1]).all())


def test_what_does_not_move_is_at_rest():
    mesh, weighed, poses = poses_of("slide")
    still = static_body(mesh, weighed)
    np.testing.assert_array_equal(still.vertices(still.rest[None])[0], mesh.vertices)
    found = reach_points(still.body, torch.from_numpy(weighed.points(poses[0])), free=False)
    want = np.linalg.norm(weighed.points(poses[0]) - weighed.points(mesh.vertices), axis=1).mean()
    assert found.error == pytest.approx(want)
    assert found.converged


# ---------------------------------------------------------------------- vibration modes


def test_a_beam_vibrates_as_its_formula_says():
    mesh, weighed = rod()
    held = modal_body(mesh, weighed, 6, young=1e6, held=range(4), cells=24)
    assert held.frequencies is not None
    want = beam(young=1e6)[1]
    torch.testing.assert_close(held.frequencies[[0, 1]], want[[0, 0]], rtol=0.01, atol=0)
    torch.testing.assert_close(held.frequencies[[2, 3]], want[[1, 1]], rtol=0.01, atol=0)
    torch.testing.assert_close(held.frequencies[[4, 5]], want[[2, 2]], rtol=0.05, atol=0)
    floating = modal_body(mesh, weighed, 4, young=1e6, cells=24)
    assert floating.frequencies is not None
    roots = torch.tensor([4.730041, 4.730041, 7.853205, 7.853205], dtype=torch.float64)
    line = (roots / 0.5).square() * math.sqrt(1e6 * 0.02**2 / 12 / 1000)
    torch.testing.assert_close(floating.frequencies, line, rtol=0.05, atol=0)
    torch.testing.assert_close(floating.frequencies[:2], line[:2], rtol=0.01, atol=0)


@pytest.mark.parametrize("held", [(), range(4)], ids=["free", "held"])
def test_modes_have_unit_mass_and_rigid_motions_cost_nothing(held: range | tuple[int, ...]):
    mesh, weighed = rod()
    for peer in (modal_body(mesh, weighed, 5, held=held, cells=24), skinning_modes_body(mesh, weighed, 3, held=held, cells=24)):  # fmt: skip
        k = peer.body.coordinates
        torch.testing.assert_close(inertia(peer), torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-8)
        np.testing.assert_allclose(peer.vertices(peer.rest[None])[0], mesh.vertices, atol=1e-12)
        q = torch.randn(1, k, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        moved = (peer.vertices(0.01 * q)[0] - peer.vertices(0 * q)[0]).norm(dim=-1)
        assert bool((moved[:4] < 1e-9).all()) == bool(len(held))
    grid = peers._lattice(mesh, weighed, 24, 0.002, held)
    stiff = peers._assembled(grid.bricks, grid.fill, peers._brick(grid.side, 1e6, 0.3))
    rigid = peers._rigid(grid.nodes)
    assert np.abs(stiff @ rigid).max() < 1e-12 * np.abs(stiff.data).max()


def test_rigid_motions_are_not_among_the_modes_of_a_free_solid():
    mesh, weighed = block()
    peer = modal_body(mesh, weighed, 6, cells=8)
    assert peer.body.free
    assert peer.frequencies is not None
    assert float(peer.frequencies[0]) > 10
    _, slopes = jacobian(peer.body, at_rest(peer.body, peer.rest[None]))
    cross = torch.einsum("nid,n,nie->de", slopes[0, ..., :6], peer.body.mass, slopes[0, ..., 6:])
    unit = torch.einsum("nid,n,nid->d", slopes[0, ..., :6], peer.body.mass, slopes[0, ..., :6]).sqrt()
    assert float((cross / unit[:, None]).abs().max()) < 0.1  # nearly none: by other masses, those of the points


def test_affine_motions_of_skinning_modes_turn_without_energy():
    mesh, weighed = block()
    peer = skinning_modes_body(mesh, weighed, 2, cells=6)
    assert peer.body.coordinates == 24
    assert peer.body.energy is not None
    T = trimesh.transformations.rotation_matrix(1.5, (1, 2, 3), (0.1, 0, 0))
    turned = trimesh.transform_points(mesh.vertices, T)
    assert miss(peer, turned[None]) < 1e-9
    assert miss(peer, (mesh.vertices * (1.1, 0.9, 1.0))[None]) < 1e-9
    inner = trimesh.transform_points(weighed.points(mesh.vertices), T)
    found = reach_points(peer.body, torch.from_numpy(inner))
    assert found.error < 1e-9
    stretched = reach_points(peer.body, torch.from_numpy(1.1 * weighed.points(mesh.vertices)))
    assert float(peer.body.energy(found.q[None])) < 1e-9 * float(peer.body.energy(stretched.q[None]))
    volume, strain, lam, mu = 0.002, (1.1**2 - 1) / 2, 1e6 * 0.3 / (1.3 * 0.4), 1e6 / 2.6
    want = volume * (mu * 3 * strain**2 + lam / 2 * (3 * strain) ** 2)
    assert float(peer.body.energy(stretched.q[None])) == pytest.approx(want, rel=1e-6)


def test_parts_that_touch_bend_together_and_few_masses_are_refused():
    mesh, weighed, _ = poses_of("hinge")
    peer = modal_body(mesh, weighed, 3, cells=12, held=range(8))
    assert peer.frequencies is not None
    assert float(peer.frequencies[0]) > 1  # a plate on another, not loose from it
    long, _ = rod()
    with pytest.raises(ValueError, match="points with masses tell .* motions apart: weigh the object in more cells"):
        modal_body(long, quadrature(long), 40, cells=24, held=range(4))
    for call, match in (
        (lambda: modal_body(mesh, weighed, 3, young=-1.0), "Young's modulus is positive"),
        (lambda: modal_body(mesh, weighed, 3, held=[99]), "held vertices are 99 to 99, and the mesh has 0 to 15"),
        (lambda: modal_body(mesh, weighed, 3, cells=0), "at least one cell"),
        (lambda: modal_body(mesh, weighed, 900, cells=2), "too few for 906 modes"),
        (lambda: modal_body(long, weighed, 3), "weighed has points of 16 vertices, and the mesh has 100"),
        (lambda: pca_body(mesh, np.zeros((3, 5, 3)), weighed, 1), "poses have 5 vertices and the mesh has 16"),
        (lambda: pca_body(mesh, np.full((3, 16, 3), np.nan), weighed, 1), "3 of 3 poses have vertices"),
        (lambda: pca_body(mesh, np.zeros((3, 16, 3)), weighed, 5), "have 1 to 2 directions, asked for 5"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_weights_are_the_smooth_functions_of_a_box():
    mesh, weighed = block()
    grid = peers._lattice(mesh, weighed, 16, 0.0, ())
    smooth = peers._assembled(grid.bricks, grid.fill, peers._smooth(grid.side))
    weights = peers._slowest(smooth, grid.mass, grid.open, 4)
    density = weighed.mass.sum() / 0.002
    values = np.einsum("nk,nk->k", weights, smooth @ weights) * density
    np.testing.assert_allclose(values, [0, *[(math.pi / s) ** 2 for s in (0.2, 0.1, 0.1)]], rtol=0.02, atol=1e-6)


def test_the_same_as_simkit_on_tetrahedra():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of options that are not there
        simkit = pytest.importorskip("simkit", reason="compared with simkit: pip install simkit==0.1.8")
    mesh, weighed = block()
    grid = peers._lattice(mesh, weighed, 16, 0.0, ())
    six = []
    for order in permutations(range(3)):  # Kuhn's tetrahedra of a brick
        at = np.concatenate([np.zeros((1, 3), int), np.cumsum(np.eye(3, dtype=int)[list(order)], axis=0)])
        six.append([list(product((0, 1), repeat=3)).index(tuple(c)) for c in at.tolist()])
    tetra = grid.bricks[:, np.array(six)].reshape(-1, 4)
    volume = np.linalg.det(grid.nodes[tetra[:, 1:]] - grid.nodes[tetra[:, :1]])
    tetra[volume < 0] = tetra[volume < 0][:, [1, 0, 2, 3]]
    density = weighed.mass.sum() / 0.002
    smooth, mass = simkit.dirichlet_laplacian(grid.nodes, tetra), simkit.massmatrix(grid.nodes, tetra)
    theirs = eigsh(csr_matrix(smooth), 5, M=csr_matrix(mass), sigma=-1.0, return_eigenvectors=False)
    own = peers._assembled(grid.bricks, grid.fill, peers._smooth(grid.side))
    ways = peers._slowest(own, grid.mass, grid.open, 5)
    np.testing.assert_allclose(np.sort(np.einsum("nk,nk->k", ways, own @ ways)) * density, np.sort(theirs), rtol=0.05, atol=1e-6)  # fmt: skip
    mu, lam = simkit.ympr_to_lame(1e6, 0.3)
    each = np.ones((len(tetra), 1))
    stiff = simkit.energies.linear_elasticity.linear_elasticity_hessian(X=grid.nodes, T=tetra, mu=mu * each, lam=lam * each)  # fmt: skip
    heavy = csr_matrix(kron(density * mass, identity(3)))
    squares = np.sort(eigsh(csr_matrix(stiff), 9, M=heavy, sigma=-1.0, return_eigenvectors=False))[6:]
    peer = modal_body(mesh, weighed, 3, cells=16)
    assert peer.frequencies is not None
    np.testing.assert_allclose(
        peer.frequencies.numpy(), np.sqrt(squares), rtol=0.1
    )  # theirs are stiffer: constant strain


# ---------------------------------------------------------------------- as bodies


@pytest.mark.parametrize("kind", ["static", "pca", "modal", "held", "skinning"])
def test_every_peer_can_be_simulated(kind: str):
    mesh, weighed, poses = poses_of("hinge")
    peer = {
        "static": lambda: static_body(mesh, weighed),
        "pca": lambda: pca_body(mesh, poses, weighed, 2),
        "modal": lambda: modal_body(mesh, weighed, 4, cells=10),
        "held": lambda: modal_body(mesh, weighed, 4, cells=10, held=range(8)),
        "skinning": lambda: skinning_modes_body(mesh, weighed, 2, cells=8, held=range(8)),
    }[kind]()
    begin = at_rest(peer.body, peer.rest[None])
    made = simulate(peer.body, begin, Conditions(), seconds=0.2, step=0.01, implicit=peer.body.energy is not None)
    assert made.stopped is None
    assert len(made) == 21
    seen = peer.vertices(made.states[-1].q)
    assert bool(torch.isfinite(seen).all())
    if kind == "static":
        assert float(made.states[-1].place[0, 2]) == pytest.approx(-9.81 * 0.04 / 2, rel=1e-6)


def test_a_mode_swings_at_its_frequency():
    mesh, weighed = rod()
    peer = modal_body(mesh, weighed, 3, young=1e6, held=range(4), cells=24)
    assert peer.frequencies is not None
    period = 2 * math.pi / float(peer.frequencies[2])
    q = torch.tensor([[0.0, 0.0, 1e-3]], dtype=torch.float64)
    made = simulate(peer.body, at_rest(peer.body, q), Conditions(gravity=(0, 0, 0)), seconds=period, step=period / 200)
    torch.testing.assert_close(made.states[-1].q, q, rtol=0, atol=2e-6)
