"""Degrees of freedom: as many as there are, and none are made up."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
from torch import Tensor

from kinema4d.objects.deform import deformed, embedded, turned
from kinema4d.objects.exact import pendulum
from kinema4d.objects.reduce import active_subspace, freedom


def test_directions_that_move_nothing_have_no_weight():
    body = pendulum((0.45, 0.4))
    g = torch.Generator().manual_seed(0)
    mix = torch.randn(2, 6, generator=g, dtype=torch.float64)  # six latents of which two directions matter
    decode = lambda z: body.shape(z @ mix.T)  # noqa: E731
    draws = torch.randn(40, 6, generator=g, dtype=torch.float64)
    found = active_subspace(decode, draws, body.mass)
    assert found.gap == 2
    assert float(found.values[2] / found.values[0]) < 1e-12
    span = found.directions[:, :2]
    torch.testing.assert_close(span @ span.T @ mix.T, mix.T, rtol=1e-6, atol=1e-6)
    paper = active_subspace(decode, draws, body.mass, scalar=True)
    assert float(paper.values[2] / paper.values[0]) < 1e-12


def test_two_signs_have_to_agree():
    values = torch.tensor([1.0, 0.5, 1e-5, 1e-6])
    good = freedom([0.1, 0.002, 0.002, 0.0019], values)
    assert good.count == 2
    assert "2 latents reconstruct as well as 4" in good.why
    more = freedom([0.1, 0.05, 0.0021, 0.002], values)
    assert more.count is None
    assert "not minimal: 3 latents" in more.why
    smooth = freedom([0.1, 0.002, 0.002, 0.0019], torch.tensor([1.0, 0.5, 0.2, 0.1]))
    assert smooth.count is None
    assert "nowhere" in smooth.why


def test_no_deformation_is_none_and_turns_keep_lengths():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, 7, 3, generator=g)
    torch.testing.assert_close(deformed(x, torch.zeros(5, 7, 7)), x)
    q = torch.nn.functional.normalize(torch.randn(5, 7, 4, generator=g), dim=-1)
    torch.testing.assert_close(turned(q, x).norm(dim=-1), x.norm(dim=-1))
    half = torch.tensor([0.5**0.5, 0, 0, 0.5**0.5])
    torch.testing.assert_close(turned(half, torch.tensor([1.0, 0, 0])), torch.tensor([0.0, 1, 0]))
    wide = embedded(x, 3)
    assert wide.shape == (5, 7, 21)

    def twice(v: Tensor) -> Tensor:  # the mechanics differentiates twice
        return torch.func.jvp(lambda u: deformed(x, u), (v,), (torch.ones_like(v),))[1]

    second = torch.func.jvp(twice, (0.1 * torch.randn(5, 7, 7, generator=g),), (torch.ones(5, 7, 7),))[1]
    assert torch.isfinite(second).all()
