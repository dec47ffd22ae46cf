"""From noise to latents: the flow of the full-scale model.

The release calls its arithmetic classifier-free guidance. There is no text to be free of: its second pass sees the robot's
latents added twice, because the first pass changed its input in place, so its answer is 5 f(once) - 4 f(twice). ``official``
repeats that; ``single`` is one pass per step, which is what training saw, at half the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kinema4d.world.wan.condition import Told
from kinema4d.world.wan.latents import device_of
from kinema4d.world.wan.model import LATENT, RobotWan
from kinema4d.world.wan.options import Sampling


def solver_of(sampling: Sampling) -> Any:
    """diffusers' scheduler, set to these steps."""
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
    from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

    if sampling.solver == "euler":
        solver = FlowMatchEulerDiscreteScheduler(shift=sampling.shift)
    else:
        solver = UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=sampling.shift, solver_order=2, solver_type="bh2"
        )  # fmt: skip
    solver.set_timesteps(sampling.steps)
    return solver


@torch.no_grad()
def velocity(model: RobotWan, told: Told, x: Tensor, time: Tensor, sampling: Sampling) -> Tensor:
    """What the flow does at noisy latents ``x`` [b,16,t,h,2w]."""
    dtype, device = model.patch_embedding.weight.dtype, x.device
    whole = told.beside(x).to(dtype)
    arm, image = told.arm.to(device, dtype), told.image.to(device, dtype)
    once = model(whole, time, arm, image).float()
    if sampling.guidance == "single":
        return once
    twice = model(whole, time, arm, image, times=2).float()
    return twice + sampling.scale * (once - twice)


@torch.no_grad()
def sample(
    model: RobotWan,
    told: Told,
    *,
    sampling: Sampling | None = None,
    seed: int = 42,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Latents [1,16,t,h,2w] of a clip; noise is drawn on the CPU, so every machine has the same."""
    sampling = sampling or Sampling()
    solver = solver_of(sampling)
    shape = (1, LATENT, *told.first.shape[2:])
    device = device_of(model)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)
    for i, time in enumerate(solver.timesteps):
        speed = velocity(model, told, x, time.to(device).expand(1), sampling)
        x = solver.step(speed, time, x, return_dict=False)[0]
        if progress is not None:
            progress(i + 1, sampling.steps)
    return x
