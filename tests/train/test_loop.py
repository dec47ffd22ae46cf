"""A training run is what its seed says, however often it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'kinema4d[world]'")
import torch

from kinema4d.train.loop import Plan, rate_at, train


class Line:
    """Learn y = 3 x - 1."""

    def __init__(self, stop_at: int | None = None) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(1, 1)
        self.stop_at = stop_at

    def loss(self, step: int) -> torch.Tensor:
        if step == self.stop_at:
            raise KeyboardInterrupt
        x = torch.rand(16, 1)
        return (self.model(x) - (3 * x - 1)).square().mean()

    def validate(self, model: torch.nn.Module) -> dict[str, float]:
        x = torch.linspace(0, 1, 5)[:, None]
        return {"error": float((model(x) - (3 * x - 1)).abs().max())}


PLAN = Plan(steps=300, rate=0.1, warmup=10, ema=0.9, log_every=50, validate_every=100, save_every=0.0)


def test_it_learns_and_logs(tmp_path: Path):
    told = []
    model = train(Line(), PLAN, tmp_path, config={"a": 1}, tell=lambda step, found: told.append(step))
    assert Line().validate(model)["error"] < 0.1
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == told == [50, 100, 150, 200, 250, 300]
    assert lines[-1]["val/error"] < lines[1]["val/error"]


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path):
    whole = train(Line(), PLAN, tmp_path / "whole", config={})
    for stop in (70, 71, 200):
        with pytest.raises(KeyboardInterrupt):
            train(Line(stop_at=stop), PLAN, tmp_path / "torn", config={})
    torn = train(Line(), PLAN, tmp_path / "torn", config={})
    for a, b in zip(whole.parameters(), torn.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_configuration_does_not_go_on_with_a_run(tmp_path: Path):
    train(Line(), Plan(steps=2, save_every=0.0), tmp_path, config={"width": 1})
    with pytest.raises(ValueError, match="another configuration"):
        train(Line(), Plan(steps=4), tmp_path, config={"width": 2})


def test_a_broken_gradient_stops_the_run(tmp_path: Path):
    class Broken(Line):
        def loss(self, step: int) -> torch.Tensor:
            return super().loss(step) * float("nan")

    with pytest.raises(ValueError, match="not finite at step 0"):
        train(Broken(), PLAN, tmp_path, config={})


def test_the_rate_rises_then_falls():
    rates = [rate_at(PLAN, s) for s in range(PLAN.steps)]
    assert rates[0] < rates[9] == max(rates) == PLAN.rate
    assert rates[-1] < 0.02 * PLAN.rate
