"""One object from its own deforming mesh: its degrees of freedom are found, and it moves as MuJoCo moves it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import torch
from scipy.spatial.transform import Rotation

from kinema4d.objects.body import at_rest, jacobian
from kinema4d.objects.fit import FitPlan, fit, pieces, rigid
from kinema4d.objects.lagrange import Conditions, simulate
from kinema4d.objects.quick import moved_points, moved_points_and_slopes, turning
from kinema4d.objects.rings import rings
from kinema4d.objects.screws import product, product_and_slopes, screwed
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes import soft, soft_kinds
from kinema4d.scenes.jointed import Jointed, draw, some_poses, swing

ASKEW = (0.3, -0.8, -9.75)
"""Gravity that opens drawers, too."""


def at_zero(thing: Jointed) -> Mesh:
    return Mesh(vertices=thing.posed(np.zeros(thing.freedom)), faces=thing.faces)


def test_screws_are_rigid_motions_that_add_up():
    g = torch.Generator().manual_seed(0)
    x, twist = torch.randn(9, 3, generator=g).double(), torch.randn(6, generator=g).double()
    half = screwed(screwed(x, twist / 2), twist / 2)
    torch.testing.assert_close(screwed(x, twist), half)
    torch.testing.assert_close(torch.cdist(half, half), torch.cdist(x, x))
    torch.testing.assert_close(screwed(x, 1e-3 * twist) - x, 1e-3 * (torch.linalg.cross(twist[:3].expand(9, 3), x) + twist[3:]), atol=2e-5, rtol=0)  # fmt: skip
    slope = torch.func.jvp(lambda t: screwed(x, t), (torch.zeros(6).double(),), (twist,))[1]
    torch.testing.assert_close(slope, torch.linalg.cross(twist[:3].expand(9, 3), x) + twist[3:])
    two = torch.stack([twist, twist.flip(0)]).expand(9, 2, 6)
    one = product(x, two, torch.tensor([[0.3, -0.7]]).double())[0]
    torch.testing.assert_close(one, screwed(screwed(x, -0.7 * twist.flip(0)), 0.3 * twist))


def test_slopes_of_screws_are_those_that_torch_derives():
    g = torch.Generator().manual_seed(0)
    x, twists, q = (
        torch.randn(5, 3, generator=g).double(),
        torch.randn(5, 3, 6, generator=g).double(),
        torch.randn(2, 3, generator=g).double(),
    )
    made, slopes = product_and_slopes(x, twists, q)
    torch.testing.assert_close(made, product(x, twists, q))
    for j in range(3):
        way = torch.eye(3).double()[j].expand(2, 3)
        torch.testing.assert_close(slopes[..., j], torch.func.jvp(lambda v: product(x, twists, v), (q,), (way,))[1])
    thing = draw("chain", 1)
    body = fit(at_zero(thing), thing.posed(some_poses(thing, 32, 1))).body()
    bends = replace(body, slopes=None, free=True)
    for a, b in zip(
        jacobian(replace(body, free=True), at_rest(bends, q[:, : body.coordinates])),
        jacobian(bends, at_rest(bends, q[:, : body.coordinates])),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("kind", "seed", "push"), [("laptop", 0, 0.1), ("chain", 1, 0.1), ("drawers", 2, 0.05)])
def test_degrees_of_freedom_are_found_and_motion_is_mujocos(kind: str, seed: int, push: float):
    thing = draw(kind, seed)
    mesh = at_zero(thing)
    got = fit(mesh, thing.posed(some_poses(thing, 64, 1)))
    assert got.freedom.count == thing.freedom, got.freedom.why
    assert got.error < 1e-4
    seconds = 0.5
    start = np.array([0.2, 0.6][: thing.freedom]) * thing.limits[:, 1]
    truth = swing(thing, start, np.zeros(thing.freedom), seconds=seconds, gravity=ASKEW)
    q = got.coordinates(thing.posed(start)[None])
    np.testing.assert_allclose(got.vertices(q)[0], thing.posed(start), atol=1e-4 * mesh.size)
    body = got.body()
    made = simulate(body, at_rest(body, q), Conditions(gravity=ASKEW), seconds=seconds)
    assert made.stopped is None
    still = (truth >= thing.limits[:, 0]).all(1) & (truth <= thing.limits[:, 1]).all(1)
    last = int(still.argmin()) - 1 if not still.all() else len(truth) - 1
    assert last > 8
    goal = thing.posed(truth)
    off = np.linalg.norm(got.vertices(made.states[last].q)[0].numpy() - goal[last], axis=-1).mean() / mesh.size
    went = np.linalg.norm(goal[0] - goal[last], axis=-1).mean() / mesh.size
    assert went > push / 10
    assert off < 1e-3


def test_parts_that_keep_their_form_are_pieces_and_others_are_not():
    thing = draw("laptop", 0)
    mesh, poses = at_zero(thing), thing.posed(some_poses(thing, 20, 1))
    assert pieces(mesh, poses).max() == 1
    assert rigid(mesh.vertices[:8], poses[:, :8]) < 1e-12
    bent = poses.copy()
    bent[:, :8, 2] += 5 * mesh.vertices[:8, 0] * mesh.vertices[:8, 1] * np.linspace(-1, 1, 20)[:, None]
    assert pieces(mesh, bent).max() == 8  # eight vertices, and the lid


def test_what_bends_is_said_to():
    rng = np.random.default_rng(0)
    line = np.linspace(0, 1, 9)
    y, x = np.meshgrid([0.0, 0.1], line, indexing="ij")
    rest = np.stack([x.ravel(), y.ravel(), 0 * x.ravel()], 1)
    faces = np.array([[i, i + 1, i + 9] for i in range(8)] + [[i + 1, i + 10, i + 9] for i in range(8)])
    modes = np.stack([np.sin(np.pi * n * rest[:, 0]) / n**2 for n in range(1, 7)])
    poses = np.tile(rest, (60, 1, 1))
    poses[:, :, 2] += 0.1 * rng.standard_normal((60, 6)) @ modes
    got = fit(Mesh(vertices=rest, faces=faces), poses, FitPlan(error=5e-3))
    assert got.freedom.count is None
    assert got.freedom.bends
    assert got.error < 5e-3
    assert (np.diff(got.errors) < 0).all()


@pytest.mark.parametrize("turns", [0, 2, 4])
def test_many_screws_at_once_are_those_one_after_the_other(turns: int):
    g = torch.Generator().manual_seed(turns)
    x, twists, q = (torch.randn(*size, generator=g).double() for size in ((7, 3), (3, 4, 6), (2, 4)))
    twists[:, turns:, :3] = 0
    piece = torch.tensor([0, 1, 2, 1, 0, 2, 2])
    assert turning(twists) == turns
    made, slopes = product_and_slopes(x, twists[piece], q)
    torch.testing.assert_close(moved_points(x, piece, twists, q), made)
    quick = moved_points_and_slopes(x, piece, twists, q)
    torch.testing.assert_close(quick[0], made)
    torch.testing.assert_close(quick[1], slopes)


def learned(kind: str, seed: int, count: int) -> tuple[soft.Soft, Mesh, np.ndarray, np.ndarray]:
    """Poses to learn from, and others of other runs."""
    thing = soft_kinds.draw(kind, seed)
    mesh = Mesh(vertices=thing.vertices, faces=thing.faces)
    return thing, mesh, soft.some_poses(thing, count, 1), soft.some_poses(thing, 8, 2)


def components(train: np.ndarray, test: np.ndarray, k: int) -> np.ndarray:
    """[t,v,3] what principal components of the poses leave of others."""
    ways = np.linalg.svd((train - train.mean(axis=0)).reshape(len(train), -1), full_matrices=False)[2][:k]
    away = (test - train.mean(axis=0)).reshape(len(test), -1)
    return (away - away @ ways.T @ ways).reshape(test.shape)


@pytest.mark.parametrize("kind", ["bar", "cloth"])
def test_what_bends_is_as_good_as_principal_components(kind: str):
    _, mesh, train, test = learned(kind, 0, 48)
    got = fit(mesh, train, FitPlan(error=5e-4, bends=16))
    k = got.twists.shape[1]
    assert 4 < k <= 16
    own = np.linalg.norm(got.vertices(got.coordinates(test)).numpy() - test, axis=-1).mean()
    assert own < 1.25 * np.linalg.norm(components(train, test, k), axis=-1).mean()
    assert got.freedom.count is None
    assert got.freedom.bends == (got.error < 0.03)


@pytest.mark.parametrize("kind", ["rope", "door-rope"])
def test_a_rope_is_a_chain_of_rods_with_as_many_coordinates_as_mujoco_has(kind: str):
    thing, mesh, train, test = learned(kind, 0, 32)
    got = fit(mesh, train)
    assert got.twists.shape[1] == thing.freedom
    assert got.error < 5e-4
    own = np.linalg.norm(got.vertices(got.coordinates(test)).numpy() - test, axis=-1).mean()
    assert own < 1e-3 * mesh.size
    assert own < 0.5 * np.linalg.norm(components(train, test, min(thing.freedom, 31)), axis=-1).mean()
    label = parts(mesh)
    for part in range(label.max() + 1):  # the door keeps its form
        if rigid(mesh.vertices[label == part], train[:, label == part]) < 1e-6:
            assert len(np.unique(got.piece[label == part])) == 1


def test_cloth_rides_on_the_box_that_it_covers():
    _, mesh, train, _ = learned("box-cloth", 0, 32)
    got = fit(mesh, train)
    first = torch.from_numpy(got.twists[:, 0, :3])
    assert turning(torch.from_numpy(got.twists)) == 1  # the hinge; all else are shifts of the cloth
    still = first.abs().amax(1) < 1e-9  # the posts
    assert 0 < still.sum() <= 2
    turned = first[~still]
    torch.testing.assert_close(turned, turned[:1].expand_as(turned), atol=1e-6, rtol=0)
    assert got.error < 2e-3


def test_rings_are_those_of_a_tube_and_nothing_else_has_any():
    thing = soft_kinds.draw("rope", 0)
    every = np.arange(8, len(thing.vertices))  # without its hook
    found = rings(thing.vertices, thing.faces, int(every[-2]), every)
    assert found is not None
    np.testing.assert_array_equal(found[:-2], np.arange(len(every) - 2) // 6)
    assert rings(thing.vertices, thing.faces, 28, every) is None  # from the middle they go both ways
    bar = soft_kinds.draw("bar", 0)
    assert all(rings(bar.vertices, bar.faces, i, np.flatnonzero(bar.rigid < 0)) is None for i in range(8))


def test_what_cannot_be_fitted_is_refused():
    thing = draw("laptop", 0)
    mesh = at_zero(thing)
    poses = thing.posed(some_poses(thing, 20, 1))
    with pytest.raises(ValueError, match=r"poses are \[t,16,3\] for this mesh, got .*its topology must not change"):
        fit(mesh, poses[:, :10])
    with pytest.raises(ValueError, match="at least 16 poses, got 5"):
        fit(mesh, poses[:5])
    with pytest.raises(ValueError, match="nothing moves"):
        fit(mesh, np.tile(mesh.vertices, (20, 1, 1)))
    poses[3, 2, 0] = np.nan
    with pytest.raises(ValueError, match="vertices that are no numbers"):
        fit(mesh, poses)


def test_what_flies_is_seen_from_itself():
    rng = np.random.default_rng(0)
    turns, shifts = Rotation.from_rotvec(rng.normal(size=(48, 3))).as_matrix(), rng.normal(size=(48, 1, 3))
    thing = draw("chain", 3)
    mesh = at_zero(thing)
    flown = thing.posed(some_poses(thing, 48, 1)) @ turns.swapaxes(1, 2) + shifts
    got = fit(mesh, flown)
    assert got.freedom.count == thing.freedom
    assert "it moves as a whole, too, which is not among its coordinates" in got.freedom.why
    alone = fit(mesh, mesh.vertices @ turns.swapaxes(1, 2) + shifts)
    assert (alone.freedom.count, alone.twists.shape[1], alone.error) == (0, 0, 0.0)
    assert alone.freedom.why.startswith(f"its {parts(mesh).max() + 1} parts move as one")


def test_a_door_without_its_frame_is_on_a_hinge_all_the_same():
    thing = draw("door", 3)
    mesh, moved = at_zero(thing), thing.posed(np.array([[0.5]]))[0]
    label = parts(mesh)
    leaf = np.flatnonzero(np.isin(label, np.unique(label[np.linalg.norm(moved - mesh.vertices, axis=1) > 1e-9])))
    faces = np.searchsorted(leaf, mesh.faces[np.isin(mesh.faces, leaf).all(axis=1)])
    got = fit(Mesh(vertices=mesh.vertices[leaf], faces=faces), thing.posed(some_poses(thing, 40, 1))[:, leaf])
    assert got.freedom.count == 1
    assert "as a whole" not in got.freedom.why


def test_what_bends_and_flies_ends():
    rng = np.random.default_rng(1)
    thing = soft_kinds.draw("blob", 1)
    mesh = Mesh(vertices=thing.vertices, faces=thing.faces)
    poses = soft.some_poses(thing, 24, 1)
    turns = Rotation.from_rotvec(0.5 * rng.normal(size=(24, 3))).as_matrix()
    got = fit(mesh, poses @ turns.swapaxes(1, 2) + rng.normal(size=(24, 1, 3)))
    assert got.freedom.count is None
    assert got.freedom.bends
    assert "as a whole" in got.freedom.why
