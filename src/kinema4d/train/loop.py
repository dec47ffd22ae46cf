"""One training loop for every small model: it logs, validates, keeps an average of the weights, and goes on after a kill.

Everything random in a step is drawn from the seed and the number of the step, so a run that was interrupted ends with
the same weights as one that was not.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from kinema4d.files import whole_file
from kinema4d.train.optimiser import Optimiser


@runtime_checkable
class Task(Protocol):
    """What is trained."""

    @property
    def model(self) -> nn.Module:
        """The network; its parameters are trained."""
        ...

    def loss(self, step: int) -> Tensor:
        """The loss of one batch, drawn by the number of the step."""
        ...

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures that matter, of a model that may be the average."""
        ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and how fast."""

    steps: int = 10_000
    """Steps in all."""
    rate: float = 1e-3
    """Highest learning rate."""
    warmup: int = 200
    """Steps until then."""
    muon: float = 0.0
    """Rate of Muon for the matrices of a transformer's blocks, as a multiple of that of AdamW, which has the rest; 0: AdamW has
    all."""
    decay: float = 0.02
    """Weight decay."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    ema: float = 0.999
    """Weight of the past in the average; less at the start."""
    seed: int = 0
    """Of everything random."""
    log_every: int = 50
    """Steps between lines of the log."""
    validate_every: int = 1000
    """Steps between validations."""
    save_every: float = 180.0
    """Seconds between checkpoints."""


def rate_at(plan: Plan, step: int) -> float:
    """Warm-up, then half a cosine to a hundredth."""
    if step < plan.warmup:
        return plan.rate * (step + 1) / plan.warmup
    share = (step - plan.warmup) / max(plan.steps - plan.warmup, 1)
    return plan.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(share, 1.0))))


def train(
    task: Task,
    plan: Plan,
    out: str | Path,
    *,
    config: dict[str, Any],
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> nn.Module:
    """Train until ``plan.steps``, from the last checkpoint in ``out`` if there is one; returns the averaged model."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    model = task.model
    average = _copy(model)
    optimiser = Optimiser(model, decay=plan.decay, muon=plan.muon)
    first = _resume(out, plan, config, model, average, optimiser)
    board = _board(out)
    saved, began, smooth = time.monotonic(), time.monotonic(), None
    for step in range(first, plan.steps):
        torch.manual_seed(plan.seed * 1_000_003 + step)
        loss = task.loss(step)
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        if not torch.isfinite(norm):
            raise ValueError(f"the gradient is not finite at step {step}: lower the rate (now {plan.rate:g})")
        optimiser.step(rate_at(plan, step))
        _average(average, model, min(plan.ema, (1 + step) / (10 + step)))
        smooth = float(loss.detach()) if smooth is None else 0.98 * smooth + 0.02 * float(loss.detach())
        found: dict[str, float] = {}
        if (step + 1) % plan.log_every == 0:
            found = {
                "loss": smooth,
                "gradient": float(norm),
                "rate": rate_at(plan, step),
                "seconds_per_step": (time.monotonic() - began) / (step + 1 - first),
            }
        if (step + 1) % plan.validate_every == 0 or step + 1 == plan.steps:
            average.eval()
            found |= {f"val/{k}": v for k, v in task.validate(average).items()}
        if found:
            _log(out, board, step + 1, found)
            if tell is not None:
                tell(step + 1, found)
        if time.monotonic() - saved > plan.save_every or step + 1 == plan.steps:
            _save(out, plan, config, step + 1, model, average, optimiser)
            saved = time.monotonic()
    return average.eval()


def _copy(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def _average(average: nn.Module, model: nn.Module, keep: float) -> None:
    for mine, other in zip(average.parameters(), model.parameters(), strict=True):
        mine.lerp_(other, 1 - keep)
    for mine, other in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(other)


def _save(
    out: Path,
    plan: Plan,
    config: dict[str, Any],
    step: int,
    model: nn.Module,
    average: nn.Module,
    optimiser: Optimiser,
) -> None:
    state = {
        "step": step,
        "plan": asdict(plan),
        "config": config,
        "model": model.state_dict(),
        "average": average.state_dict(),
        "optimiser": optimiser.state_dict(),
    }
    with whole_file(out / "last.pt", overwrite=True) as temporary:
        torch.save(state, temporary)


def _resume(
    out: Path,
    plan: Plan,
    config: dict[str, Any],
    model: nn.Module,
    average: nn.Module,
    optimiser: Optimiser,
) -> int:
    file = out / "last.pt"
    if not file.exists():
        return 0
    state = torch.load(file, weights_only=True)
    if state["config"] != config or state["plan"]["seed"] != plan.seed:
        raise ValueError(
            f"{out} holds a run of another configuration ({state['config']}, now {config}); use another --out"
        )
    if isinstance(state["optimiser"], dict):
        raise ValueError(f"{file} is of an earlier version and cannot be gone on from; use another --out")
    model.load_state_dict(state["model"])
    average.load_state_dict(state["average"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"])


def _log(out: Path, board: Any, step: int, found: dict[str, float]) -> None:
    with (out / "log.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, **{k: round(v, 6) for k, v in found.items()}}) + "\n")
    if board is not None:
        for name, value in found.items():
            board.add_scalar(name, value, step)
        board.flush()


def _board(out: Path) -> Any:
    """A TensorBoard writer, where that package is installed; the log has all of it anyway."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(out / "tensorboard"))
