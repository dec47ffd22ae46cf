"""States from points: what was posed is found again, and what cannot be reached is said honestly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

from kinema4d.objects.body import Body, State, at_rest, jacobian, moved, points
from kinema4d.objects.exact import box, pendulum
from kinema4d.objects.inverse import initial_velocity, reach_cloud, reach_points
from kinema4d.objects.lagrange import Conditions, simulate

POSES = [((0.5,), (1.9,)), ((0.45, 0.4), (0.9, -1.6)), ((0.3, 0.3, 0.3), (2.5, 0.3, -1.2))]


def posed(lengths: tuple[float, ...], q: tuple[float, ...]) -> tuple[Body, Tensor, Tensor]:
    body = replace(pendulum(lengths), reach=torch.tensor([[-3.0, 3.0]] * len(lengths)))
    want = torch.tensor(q, dtype=torch.float64)
    return body, want, body.shape(want[None])[0]


def shuffled(x: Tensor, noise: float = 0.0) -> Tensor:
    g = torch.Generator().manual_seed(5)
    return x[torch.randperm(len(x), generator=g)] + noise * torch.randn(x.shape, generator=g, dtype=x.dtype)


def elbow() -> Body:
    """Two bars on one hinge that move freely."""
    chain = pendulum((0.3, 0.25))
    reach = torch.tensor([[-2.5, 2.5]])
    return replace(chain, shape=lambda q: chain.shape(torch.cat([0 * q, q], 1)), coordinates=1, free=True, reach=reach)


def somewhere(body: Body, q: float) -> State:
    change = torch.tensor([[0.7, -1.2, 0.4, 1.1, -0.8, 2.0, 0.0]], dtype=torch.float64)
    return moved(body, at_rest(body, torch.tensor([[q]], dtype=torch.float64)), change)


@pytest.mark.parametrize(("lengths", "q"), POSES, ids=str)
def test_coordinates_come_back_from_all_or_half_of_the_points(lengths: tuple[float, ...], q: tuple[float, ...]):
    body, want, x = posed(lengths, q)
    half = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: len(x) // 2]
    for on in (None, half):
        found = reach_points(body, x if on is None else x[on], on=on)
        torch.testing.assert_close(found.q, want, rtol=0, atol=1e-8)
        assert found.converged
        assert max(found.error, found.chamfer) < 1e-9
        assert found.strange == ()
    open_ = reach_points(replace(body, reach=None), x)
    assert open_.error < 1e-9


@pytest.mark.parametrize(("lengths", "q"), POSES, ids=str)
def test_a_shuffled_cloud_is_fitted_to_its_noise(lengths: tuple[float, ...], q: tuple[float, ...]):
    body, want, x = posed(lengths, q)
    found = reach_cloud(body, shuffled(x, 0.001))
    assert float((found.q - want).abs().max()) < 0.005
    assert found.converged
    assert 0.0012 < found.error < 0.002  # the mean length of noise of 1 mm in each direction is 1.6 mm
    assert float((body.shape(found.q[None])[0] - x).norm(dim=-1).mean()) < 0.001


def test_a_cloud_of_other_points_that_shows_half_and_has_strangers():
    body, want, _ = posed((0.45, 0.4), (0.9, -1.6))
    turn = pendulum((0.45, 0.4))

    def surface(count: int, seed: int):
        """Places on the bars as means of the points with masses at their ends, which are affine in each."""
        rest = turn.shape(torch.zeros(1, 2, dtype=torch.float64))[0]
        g = torch.Generator().manual_seed(seed)
        rows = torch.zeros(count, len(rest), dtype=torch.float64)
        for i in range(count):
            a = 32 * (i % 2)
            pick = torch.randperm(32, generator=g)[:2] + a
            share = torch.rand((), generator=g, dtype=torch.float64)
            rows[i, pick] = torch.stack([share, 1 - share])
        return lambda q: rows @ turn.shape(q)

    cloud = surface(800, 1)(want[None])[0]
    seen = cloud[cloud[:, 1] > 0]  # one side only
    assert 0.3 < len(seen) / len(cloud) < 0.7
    found = reach_cloud(body, seen, surface(300, 2), seen=0.6)
    assert float((found.q - want).abs().max()) < 0.05
    strangers = torch.rand(80, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.3 + 0.5
    mixed = torch.cat([cloud, strangers])
    clean = reach_cloud(body, mixed, surface(300, 2), clean=0.9)
    dirty = reach_cloud(body, mixed, surface(300, 2))
    assert float((clean.q - want).abs().max()) < 0.05
    assert float((clean.q - want).abs().max()) < float((dirty.q - want).abs().max())


def test_a_free_body_is_found_where_it_is():
    body = elbow()
    there = somewhere(body, 1.3)
    x = points(body, there)[0]
    on = torch.arange(0, len(x), 2)
    for found in (reach_points(body, x), reach_points(body, x[on], on=on)):
        for name in ("q", "place", "turn"):
            torch.testing.assert_close(getattr(found, name), getattr(there, name)[0], rtol=0, atol=1e-8)
        torch.testing.assert_close(points(body, found.state)[0], x)
    cloud = reach_cloud(body, shuffled(x, 0.0005))
    assert float((points(body, cloud.state)[0] - x).norm(dim=-1).mean()) < 0.001
    tight = reach_points(body, x, free=False)  # its frame may not move, its hinge may
    torch.testing.assert_close(tight.place, torch.zeros(3, dtype=torch.float64))
    assert tight.error > 0.5
    rigid = reach_points(box(), points(box(), moved(box(), at_rest(box(), torch.zeros(1, 0).double()), torch.ones(1, 6).double()))[0])  # fmt: skip
    assert rigid.error < 1e-12
    assert rigid.q.shape == (0,)


def test_what_is_out_of_reach_is_approached_and_the_rest_is_told():
    body, _, x = posed((0.5,), (1.9,))
    short = replace(body, reach=torch.tensor([[-0.5, 0.5]]))
    found = reach_points(short, x)
    assert found.converged
    assert float(found.q) == pytest.approx(0.5)
    best = float((body.shape(torch.tensor([[0.5]], dtype=torch.float64))[0] - x).norm(dim=-1).mean())
    assert found.error == pytest.approx(best, rel=1e-9)
    away = x + torch.tensor([0.0, 0.1, 0.0])  # along the hinge: no angle helps
    aside = reach_points(body, away)
    assert aside.converged
    assert float(aside.q) == pytest.approx(1.9, abs=1e-6)
    assert aside.error == pytest.approx(0.1, rel=1e-6)


def test_many_coordinates_at_the_ends_of_their_ranges_are_the_best_there_are():
    g = torch.Generator().manual_seed(0)
    ways = torch.randn(90, 12, generator=g, dtype=torch.float64) @ torch.randn(12, 12, generator=g, dtype=torch.float64)
    shape = lambda q: (q @ ways.T).unflatten(1, (30, 3))  # noqa: E731
    reach = torch.tensor([[-0.3, 0.4]] * 12, dtype=torch.float64)
    body = Body(shape=shape, mass=torch.ones(30), coordinates=12, reach=reach)
    target = 15 * torch.randn(30, 3, generator=g, dtype=torch.float64)
    best = lsq_linear(ways.numpy(), target.flatten().numpy(), (-0.3, 0.4), tol=1e-14)
    assert 3 < np.abs(best.active_mask).sum() < 12
    found = reach_points(body, target)
    assert found.converged
    assert found.rounds < 60
    np.testing.assert_allclose(found.q, best.x, atol=1e-6)


def test_points_that_count_more_are_met_better():
    body, _, x = posed((0.5,), (1.0,))
    torn = torch.cat([x, body.shape(torch.tensor([[1.4]], dtype=torch.float64))[0]])
    on = torch.arange(len(x)).repeat(2)
    even = reach_points(body, torn, on=on)
    first = reach_points(body, torn, on=on, weights=torch.cat([torch.ones(len(x)), torch.zeros(len(x))]))
    assert float(even.q) == pytest.approx(1.2, abs=1e-6)
    assert float(first.q) == pytest.approx(1.0, abs=1e-8)


def test_velocities_come_back_and_the_motion_goes_on():
    body, q, _ = posed((0.45, 0.4), (0.9, -1.6))
    fast = torch.tensor([[1.5, -2.0]], dtype=torch.float64)
    here = at_rest(body, q[None])
    velocity = torch.einsum("bnid,bd->bni", jacobian(body, here)[1], fast)[0]
    torch.testing.assert_close(initial_velocity(body, here, velocity), fast)
    on = torch.tensor([40, 55, 3])
    torch.testing.assert_close(initial_velocity(body, here, velocity[on], on), fast)
    want = simulate(body, here, Conditions(), seconds=0.3, velocity=fast)
    a, b = want.points[10][0], want.points[11][0]
    begin = reach_points(body, a).state
    again = simulate(body, begin, Conditions(), seconds=0.19, velocity=initial_velocity(body, begin, (b - want.points[9][0]) / 0.02))  # fmt: skip
    assert float((again.points[-1] - want.points[29]).norm(dim=-1).max()) < 0.003
    loose = elbow()
    spin = torch.tensor([[0.1, -0.2, 0.3, 1.0, 2.0, -1.0, 0.7]], dtype=torch.float64)
    place = somewhere(loose, 0.4)
    moving = torch.einsum("bnid,bd->bni", jacobian(loose, place)[1], spin)
    torch.testing.assert_close(initial_velocity(loose, place, moving), spin)


def test_what_makes_no_sense_is_refused_by_name():
    body, q, x = posed((0.5,), (0.4,))
    broken = x.clone()
    broken[3] = np.nan
    few = torch.arange(3)
    for call, match in (
        (lambda: reach_points(body, broken), "the targets with 32 points: 1 of them are no numbers"),
        (lambda: reach_cloud(body, broken), "the cloud with 32 points: 1 of them are no numbers"),
        (lambda: reach_points(body, x[:0], on=few[:0]), "the targets must be .* at least one point"),
        (lambda: reach_cloud(body, x[:0]), "the cloud must be .* at least one point"),
        (lambda: reach_points(body, x[:3], on=few + 30), "the body has points 0 to 31, got indices 30 to 32"),
        (lambda: reach_points(body, x[:2], on=few), "there are 2 targets for 3 points"),
        (lambda: reach_points(body, x[:3], on=few, weights=-torch.ones(3)), "weights must be 3 numbers"),
        (lambda: reach_points(body, x, start=torch.zeros(2, 3)), r"starts are \[s,1\], at least one, got \[2, 3\]"),
        (lambda: reach_cloud(body, x, seen=1.5), r"seen is a share in \(0, 1\], got 1.5"),
        (lambda: initial_velocity(body, at_rest(body, q[None]), x[:2], few), "velocities of 2 points and 3 points"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(ValueError, match="cannot be brought anywhere"):
        reach_cloud(box(), x, free=False)


def test_a_cloud_in_another_unit_or_frame_is_flagged():
    body, _, x = posed((0.5,), (0.4,))
    assert "m large, the body" in " ".join(reach_cloud(body, 1000 * x).strange)
    assert "another frame?" in " ".join(reach_cloud(body, x + 10).strange)
    assert reach_cloud(body, x).strange == ()
