"""NeuROK's own model: dual quaternions, a decoder that is a field, latents in order, and one mesh with few coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
import trimesh
from scipy.spatial.transform import Rotation

from kinema4d.objects import dual
from kinema4d.objects.body import at_rest
from kinema4d.objects.field import FieldConfig, FieldNet, Points, divergence, load_field, ordered, save_field
from kinema4d.objects.field_object import drawn, edge_distortion, field_body, field_object, parts_of
from kinema4d.objects.foretell import Foreteller, load_foreteller, save_foreteller
from kinema4d.objects.inverse import reach_cloud
from kinema4d.objects.lagrange import Conditions, simulate
from kinema4d.objects.limp import LimpConfig, LimpNet
from kinema4d.objects.reduce import Subspace, by_errors, by_values
from kinema4d.objects.solid import Mesh, parts

TINY = FieldConfig(points=24, width=16, tokens=2, channels=3, seen=3, blocks=(1, 1, 1), looks=1, heads=2, octaves=3)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def motions(*shape: int, seed: int = 0) -> torch.Tensor:
    return dual.unit(torch.randn(*shape, 8, generator=generator(seed), dtype=torch.float64))


def lively(config: FieldConfig = TINY, seed: int = 0) -> FieldNet:
    """One whose answers are far from nothing."""
    torch.manual_seed(seed)
    net = FieldNet(config)
    torch.nn.init.normal_(list(net.leave.parameters())[-2], std=0.3)
    return net.eval().requires_grad_(False)


def two_boxes() -> Mesh:
    a, b = trimesh.creation.box((0.4, 0.3, 0.2)), trimesh.creation.box((0.3, 0.1, 0.1))
    vertices = np.concatenate([a.vertices, b.vertices + np.array([0.4, 0.0, 0.1])])
    return Mesh(vertices=vertices, faces=np.concatenate([a.faces, b.faces + len(a.vertices)]).astype(np.int64))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_field(tmp_path / "field.safetensors", lively(), {"data": "none"})
    return tmp_path / "field.safetensors"


# ---------------------------------------------------------------------- dual quaternions


def test_unit_dual_quaternions_are_the_group_of_rigid_motions():
    a, b, c = (motions(50, seed=i) for i in range(3))
    x = torch.randn(50, 3, generator=generator(9), dtype=torch.float64)
    torch.testing.assert_close(dual.moved(dual.composed(a, b), x), dual.moved(a, dual.moved(b, x)))
    torch.testing.assert_close(dual.composed(dual.composed(a, b), c), dual.composed(a, dual.composed(b, c)))
    one = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64).expand(50, 8)
    torch.testing.assert_close(dual.composed(a, dual.conjugate(a)), one)
    torch.testing.assert_close(dual.moved(-a, x), dual.moved(a, x))  # both signs are the same motion
    R = Rotation.from_quat(np.roll(a[:, :4].numpy(), -1, axis=1)).as_matrix()
    torch.testing.assert_close(
        dual.moved(a, x), torch.from_numpy(np.einsum("bij,bj->bi", R, x.numpy())) + dual.shift_of(a)
    )
    made = dual.dual(a[:, :4], dual.shift_of(a))
    assert bool((made[:, 0] >= 0).all())
    torch.testing.assert_close(dual.moved(made, x), dual.moved(a, x))


def test_a_mean_of_opposite_signs_of_one_motion_is_that_motion():
    a = motions(5)
    mean = dual.blended(torch.stack([a, -a, a], 1), torch.full((5, 3), 1 / 3).double())
    torch.testing.assert_close(mean, a)
    torch.testing.assert_close(
        dual.blended(torch.stack([a, -a], 1)[..., :4], torch.full((5, 2), 0.5).double()), a[:, :4]
    )


def test_what_keeps_its_form_is_turned_as_a_whole_and_what_bends_ring_by_ring():
    mesh = two_boxes()
    label = parts(mesh)
    turn = Rotation.from_rotvec([[0.3, 0.9, -2.0], [0.0, 0.0, 0.4]])
    pose = np.where(
        label[:, None] == 0, mesh.vertices @ turn[0].as_matrix().T, mesh.vertices @ turn[1].as_matrix().T + 0.2
    )
    got = Rotation.from_quat(np.roll(dual.turns_of(mesh.vertices, pose[None], mesh.faces)[0], -1, axis=1))
    for part in (0, 1):
        assert (turn[part].inv() * got[label == part]).magnitude().max() < 1e-7
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 21), np.linspace(0, 0.3, 5), indexing="ij"), -1).reshape(-1, 2)
    sheet = np.concatenate([grid, np.zeros((len(grid), 1))], axis=1)
    i, j = np.divmod(np.arange(20 * 5), 5)
    a = (i * 5 + j)[j < 4]
    faces = np.concatenate([np.stack([a, a + 5, a + 1], 1), np.stack([a + 1, a + 5, a + 6], 1)])
    angle = 1.2 * sheet[:, 0]  # rolled into an arc: at x it is turned by angle(x) about y
    arc = np.stack([np.sin(angle) / 1.2, sheet[:, 1], (1 - np.cos(angle)) / 1.2], 1)
    found = Rotation.from_quat(np.roll(dual.turns_of(sheet, arc[None], faces)[0], -1, axis=1)).as_rotvec()
    inner = (sheet[:, 0] > 0.01) & (sheet[:, 0] < 0.99)
    np.testing.assert_allclose(found[inner], np.outer(-angle[inner], [0, 1, 0]), atol=0.02)


# ---------------------------------------------------------------------- the model


def test_a_point_that_is_asked_about_does_not_see_the_others():
    net = lively().double()
    x = torch.rand(1, 24, 3, generator=generator(), dtype=torch.float64) - 0.5
    seen, mean = net.conditioned(Points(x=x))
    every = net.decoded(seen, mean + 1, Points(x=x))
    torch.testing.assert_close(net.decoded(seen, mean + 1, Points(x=x[:, 3:5])), every[:, 3:5], rtol=0, atol=1e-12)
    assert float((every[:, 0] - every[:, 1]).abs().max()) > 1e-3  # and places differ
    assert float((every - net.decoded(seen, mean - 1, Points(x=x))).abs().max()) > 1e-3  # and latents
    torch.testing.assert_close(every[..., :4].norm(dim=-1), torch.ones(1, 24).double())
    torch.testing.assert_close(
        (every[..., :4] * every[..., 4:]).sum(-1), torch.zeros(1, 24).double(), rtol=0, atol=1e-12
    )
    assert float(every[..., 0].min()) >= 0


def test_any_number_of_points_may_be_seen_in_any_order():
    net = lively().double()
    x = torch.rand(1, 60, 3, generator=generator(), dtype=torch.float64)
    (seen, mean), (again, same) = net.conditioned(Points(x=x)), net.conditioned(Points(x=x.flip(1)))
    assert seen.shape == (1, 5, 16)
    assert mean.shape == (1, 6)
    torch.testing.assert_close(seen, again)
    torch.testing.assert_close(mean, same)
    twice, _ = net.conditioned(Points(x=torch.cat([x, x], 1)))  # a mean over points, not a sum
    torch.testing.assert_close(seen, twice)
    with pytest.raises(ValueError, match="is told the part of the mesh"):
        lively(FieldConfig(parts=True)).conditioned(Points(x=x.float()))


def test_the_mean_of_the_prior_goes_past_nested_dropout():
    g = generator()
    z, prior = torch.randn(4, 6, generator=g), torch.randn(4, 6, generator=g)
    out = ordered(z, prior, torch.tensor([0, 2, 5, 6]))
    assert torch.equal(out[0], prior[0])
    torch.testing.assert_close(out[1], torch.cat([z[1, :2], prior[1, 2:]]))
    torch.testing.assert_close(out[2], torch.cat([z[2, :5], prior[2, 5:]]))
    torch.testing.assert_close(out[3], z[3])


def test_the_divergence_is_what_draws_say():
    mean, log, prior = torch.tensor([[0.7]]).double(), torch.tensor([[-0.8]]).double(), torch.tensor([[-0.4]]).double()
    z = mean + log.exp() * torch.randn(400_000, 1, generator=generator(), dtype=torch.float64)
    own = -0.5 * ((z - mean) / log.exp()).square() - log
    other = -0.5 * (z - prior).square()
    assert float(divergence(mean, log, prior)) == pytest.approx(float((own - other).mean()), abs=0.01)
    assert float(divergence(prior, torch.zeros_like(log), prior)) == 0


def test_derivatives_of_derivatives_are_those_of_finite_differences():
    net = lively().double()
    x = torch.rand(1, 10, 3, generator=generator(), dtype=torch.float64)
    seen, mean = net.conditioned(Points(x=x))
    way = torch.randn(1, 6, generator=generator(1), dtype=torch.float64)
    shape: Any = lambda t: net.moved(net.decoded(seen, mean + t * way, Points(x=x)), x)  # noqa: E731
    t, one = torch.tensor(0.3).double(), torch.tensor(1.0).double()
    slope: Any = lambda s: torch.func.jvp(shape, (s,), (one,))[1]  # noqa: E731
    bend: Any = torch.func.jvp(slope, (t,), (one,))[1]
    h = 1e-4
    by_steps = (shape(t + h) - 2 * shape(t) + shape(t - h)) / h**2
    torch.testing.assert_close(bend, by_steps, rtol=1e-4, atol=1e-6)
    assert float(bend.abs().max()) > 1e-4


def test_what_was_saved_is_what_is_read(weights: Path, tmp_path: Path):
    net, about = load_field(weights)
    assert net.config == TINY
    assert about["data"] == "none"
    for a, b in zip(lively().parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(a.half().float(), b)
    with pytest.raises(ValueError, match="says it is 'kinema4d object field 1', expected 'kinema4d objects 4'"):
        load_foreteller(weights)
    limp = LimpNet(LimpConfig(width=16, layers=1))
    save_foreteller(tmp_path / "limp.safetensors", Foreteller(joints=None, limp=limp), {})
    with pytest.raises(ValueError, match="train one with kinema4d objects train --model field"):
        load_field(tmp_path / "limp.safetensors")


# ---------------------------------------------------------------------- one mesh


@pytest.mark.parametrize("follow", ["query", "average"])
def test_coordinates_move_a_mesh_and_are_found_again(weights: Path, follow: Any):
    mesh = two_boxes()
    got = field_object(mesh, weights, coordinates=2, follow=follow)
    q = torch.tensor([[0.6, -0.9]], dtype=torch.float64)
    pose = got.vertices(q)[0].numpy()
    assert np.linalg.norm(pose - got.vertices(0 * q)[0].numpy(), axis=-1).mean() > 1e-3 * mesh.size
    again = got.vertices(got.reached(pose)[None])[0].numpy()
    assert np.linalg.norm(again - pose, axis=-1).max() < 1e-6 * mesh.size
    some = got.vertices(got.reached(pose, on=np.arange(0, 16, 2))[None])[0].numpy()
    assert np.linalg.norm(some - pose, axis=-1).max() < 1e-5 * mesh.size


def test_it_is_a_body_that_mechanics_moves_and_clouds_are_found_with(weights: Path, monkeypatch):
    monkeypatch.setattr("kinema4d.objects.inverse.ROUNDS", 30)
    mesh = two_boxes()
    got = field_object(mesh, weights, coordinates=2)
    body = field_body(mesh, weights, coordinates=2)
    q = torch.tensor([[0.1, -0.2]], dtype=torch.float64)
    torch.testing.assert_close(body.shape(q), got.body().shape(q))
    assert float(body.mass.sum()) == pytest.approx(1000 * (0.4 * 0.3 * 0.2 + 0.3 * 0.1 * 0.1), rel=1e-6)
    made = simulate(body, at_rest(body, q), Conditions(), seconds=0.02, step=0.002)
    assert made.stopped is None
    assert float((made.states[-1].q - q).abs().max()) > 1e-4
    energy = made.energy[:, 0]
    assert float((energy - energy[0]).abs().max()) < 0.02 * float(torch.stack(made.kinetic).max())
    cloud = got.vertices(torch.tensor([[0.5, 0.4]]).double())[0]
    found = reach_cloud(got.surface(), cloud, start=torch.tensor([[0.3, 0.2]]).double(), free=False)
    assert found.chamfer < 0.2 * float((got.vertices(0 * q)[0] - cloud).norm(dim=-1).mean())


def test_the_number_of_coordinates_comes_from_poses_or_from_eigenvalues(weights: Path, monkeypatch):
    monkeypatch.setattr("kinema4d.objects.inverse.ROUNDS", 30)
    monkeypatch.setattr("kinema4d.objects.field_object.MOST", 4)
    mesh = two_boxes()
    alone = field_object(mesh, weights)
    assert alone.freedom.count == alone.count or (alone.freedom.count is None and "not minimal" in alone.freedom.why)
    every = field_object(mesh, weights, reduced=False)
    assert every.count == 6
    two = field_object(mesh, weights, coordinates=2)
    assert two.count == 2
    poses = two.vertices(torch.randn(3, 2, generator=generator(), dtype=torch.float64)).numpy()
    known = field_object(mesh, weights, poses=poses)
    assert known.count == 2  # the poses were made with two of the same directions
    assert len(known.freedom.errors) == 4
    assert float((two.vertices(two.rest()[None])[0] - torch.from_numpy(mesh.vertices)).norm(dim=-1).mean()) <= float(
        (two.vertices(torch.zeros(1, 2).double())[0] - torch.from_numpy(mesh.vertices)).norm(dim=-1).mean()
    )
    paper = field_object(mesh, weights, coordinates=2, scalar=True)
    assert not torch.allclose(paper.directions, two.directions)
    with pytest.raises(ValueError, match="the model has 6 latents, asked for 7 coordinates"):
        field_object(mesh, weights, coordinates=7)


def test_it_is_said_when_signs_disagree():
    every = torch.eye(4).double()
    clear = Subspace(values=torch.tensor([5.0, 2.0, 1e-4, 1e-5]).double(), directions=every)
    count, freedom = by_values(clear)
    assert (count, freedom.count) == (2, 2)
    assert by_errors([0.2, 0.01, 0.0095, 0.0090], clear)[1].count == 2
    count, freedom = by_errors([0.2, 0.05, 0.010, 0.0095], clear)
    assert (count, freedom.count) == (3, None)
    assert freedom.why.startswith("not minimal: 3 coordinates reconstruct to 1 % of the size")
    even = Subspace(values=torch.tensor([5.0, 4.0, 3.0, 2.0]).double(), directions=every)
    assert by_values(even)[0] == 4


def test_rigid_motions_stretch_no_edge_and_samples_of_the_prior_may(weights: Path):
    mesh = two_boxes()
    x = torch.from_numpy(mesh.vertices)
    d = motions(4)[:, None]
    assert float(edge_distortion(mesh, dual.moved(d, x.expand(4, -1, 3))).max()) < 1e-12
    torch.testing.assert_close(edge_distortion(mesh, 1.3 * x[None]), torch.tensor([0.3]).double())
    got = field_object(mesh, weights, coordinates=2)
    samples = got.sampled(5)
    assert samples.shape == (5, 16, 3)
    assert torch.equal(samples, got.sampled(5))
    assert float(edge_distortion(mesh, samples).min()) > 1e-4
    assert not torch.allclose(samples, got.sampled(5, reduced=False))


def test_points_are_spread_evenly_and_know_their_part():
    mesh = two_boxes()
    at, share = drawn(mesh.vertices, mesh.faces, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(share.sum(1), 1)
    assert share.min() >= 0
    label = parts(mesh)
    large, small = 2 * (0.4 * 0.3 + 0.4 * 0.2 + 0.3 * 0.2), 2 * (0.3 * 0.1 * 2 + 0.1 * 0.1)
    assert (label[at[:, 0]] == label[0]).mean() == pytest.approx(large / (large + small), abs=0.01)
    part = parts_of(mesh.vertices, label)
    np.testing.assert_allclose(part[label == label[0], :3], 0, atol=1e-12)
    np.testing.assert_allclose(part[label != label[0], :3], [[0.4, 0, 0.1]] * 8, atol=1e-12)
    np.testing.assert_allclose(part[label != label[0], 3], np.hypot(0.15, np.hypot(0.05, 0.05)))
