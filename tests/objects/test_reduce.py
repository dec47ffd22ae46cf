"""Degrees of freedom: as many as there are, and none are made up."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch

from kinema4d.objects.exact import pendulum
from kinema4d.objects.reduce import active_subspace


def test_directions_that_move_nothing_have_no_weight():
    body = pendulum((0.45, 0.4))
    g = torch.Generator().manual_seed(0)
    mix = torch.randn(2, 6, generator=g, dtype=torch.float64)  # six latents of which two directions matter
    decode = lambda z: body.shape(z @ mix.T)  # noqa: E731
    draws = torch.randn(40, 6, generator=g, dtype=torch.float64)
    found = active_subspace(decode, draws, body.mass)
    assert float(found.values[1] / found.values[0]) > 1e-4
    assert float(found.values[2] / found.values[0]) < 1e-12
    span = found.directions[:, :2]
    torch.testing.assert_close(span @ span.T @ mix.T, mix.T, rtol=1e-6, atol=1e-6)
    paper = active_subspace(decode, draws, body.mass, scalar=True)
    assert float(paper.values[2] / paper.values[0]) < 1e-12
