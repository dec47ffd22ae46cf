"""How an adapter of the full-scale model is trained. Loads without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WanPlan:
    """How the adapter is trained; defaults are the release's, with the warm-up that it asked for and never got."""

    steps: int = 5000
    """Of the optimiser."""
    batch: int = 32
    """Clips per step, over all processes."""
    rank: int = 64
    """Of the LoRA."""
    alpha: float = 32.0
    """Over ``rank``: the scale of the LoRA."""
    rate: float = 2e-5
    """Highest learning rate."""
    warmup: int = 100
    """Steps until then; it then falls linearly to zero."""
    decay: float = 1e-4
    """Weight decay."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    shift: float = 1.0
    """Of the times towards noise; 1 is even."""
    soft_ratio: float = 0.1
    """Share of the robot's latents at which the mask says 0.5, drawn anew for every step."""
    ema: float = 0.0
    """Weight of the past in an average of what is trained; 0 for none."""
    checkpointing: bool = True
    """Whether activations are computed again in the backward pass, which saves memory."""
    shard: bool = False
    """Whether the weights are shared out among the processes (torch's FSDP2, ZeRO-3), for cards that cannot hold them all."""
    held_out: int = 0
    """Clips that are not learned from: each checkpoint draws them from noise and is scored on them."""
    rollout_steps: int = 20
    """Of the flow, for those."""
    seed: int = 0
    """Of everything random."""
    save_every: int = 400
    """Steps between checkpoints."""
    log_every: int = 10
    """Steps between lines of the log."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "rank", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.held_out < 0 or self.rollout_steps < 1:
            raise ValueError(
                f"held_out must be at least 0 and rollout_steps at least 1, got {self.held_out} and {self.rollout_steps}"
            )
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be at least 0 and less than 1, got {self.ema}")


def rate_at(plan: WanPlan, step: int) -> float:
    """Linear warm-up, then linear to zero."""
    if step < plan.warmup:
        return plan.rate * (step + 1) / plan.warmup
    return plan.rate * max(0.0, (plan.steps - step) / max(plan.steps - plan.warmup, 1))
