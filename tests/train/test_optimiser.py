from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'kinema4d[world]'")
import torch
from torch import nn

from kinema4d.train.optimiser import Optimiser


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 1)

    def matrices(self) -> list[nn.Parameter]:
        return list(self.inner.parameters())[:1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def steps(model: Two, optimiser: Optimiser, count: int, rate: float = 1e-2) -> float:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 6, generator=generator)
    loss = torch.tensor(0.0)
    for _ in range(count):
        loss = (model(x)[:, 0] - x[:, 0] * x[:, 1]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step(rate)
    return float(loss.detach())


@pytest.mark.parametrize("muon", [0.0, 3.0])
def test_every_parameter_is_trained_once(muon):
    model = Two()
    optimiser = Optimiser(model, decay=0.0, muon=muon)
    owned = [id(p) for part in optimiser.parts for g in part.param_groups for p in g["params"]]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
    assert len(optimiser.parts) == (2 if muon else 1)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    steps(model, optimiser, 1)
    assert all((p != before[n]).any() for n, p in model.named_parameters())


def test_muon_s_steps_are_orthogonal_and_of_its_own_rate():
    model = Two()
    before = model.inner.weight.detach().clone()
    steps(model, Optimiser(model, decay=0.0, muon=2.0), 1, rate=0.05)
    assert model.inner.weight.grad is not None
    gradient = torch.linalg.svdvals(model.inner.weight.grad)
    values = torch.linalg.svdvals(model.inner.weight.detach() - before)
    # All directions about alike, however small their gradient.
    assert values.max() / values.min() < 0.2 * gradient.max() / gradient.min()
    assert values.max() == pytest.approx(0.1, rel=0.3)


def test_it_goes_on_exactly_from_its_state():
    whole, half = Two(), Two()
    steps(whole, one := Optimiser(whole, decay=0.01, muon=3.0), 3)
    steps(half, two := Optimiser(half, decay=0.01, muon=3.0), 3)
    again = Two()
    again.load_state_dict(half.state_dict())
    three = Optimiser(again, decay=0.01, muon=3.0)
    three.load_state_dict(two.state_dict())
    steps(whole, one, 3)
    steps(again, three, 3)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert steps(whole, one, 40) < steps(Two(), Optimiser(Two(), decay=0.0, muon=0.0), 1)


def test_bad_wishes_are_refused():
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        Optimiser(Two(), decay=0.0, muon=-1.0)
    with pytest.raises(ValueError, match="Linear does not say which of its matrices"):
        Optimiser(nn.Linear(2, 2), decay=0.0, muon=1.0)
