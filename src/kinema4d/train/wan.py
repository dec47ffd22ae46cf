"""LoRA training of the full-scale model on cached latents: flow matching, any number of processes.

Everything random in a step is drawn from the seed, the step and the clip, never from the process: two processes with one clip
each take the same step as one with two, and a run that was killed ends where an uninterrupted one does, also on another number of
processes. Launch with ``torchrun`` or ``accelerate launch``. Sharding is torch's own FSDP2, not accelerate's, which has none without a
GPU and so could not be tested here.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from kinema4d.files import whole_file
from kinema4d.train.wan_plan import WanPlan, rate_at
from kinema4d.train.wan_rollouts import Judge, Rollouts
from kinema4d.world.condition import soft_mask
from kinema4d.world.wan import cache, weights
from kinema4d.world.wan.latents import KINEMA4D, PointStats
from kinema4d.world.wan.model import RobotWan, Variant
from kinema4d.world.wan.options import Setup

PATCH, CHANNELS = 15, 128
"""Latents that one of the robot's tokens covers, and its channels, in the release."""
STATE = "state.pt"
"""Where a run goes on from."""


def with_lora(model: RobotWan, plan: WanPlan, start: str | Path | None = None) -> RobotWan:
    """The model with a LoRA to train, in place: the layers of the release, from nothing or from an adapter's factors; what was
    added to Wan is trained too, all else is fixed."""
    from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict

    model.requires_grad_(False)
    targets = sorted(weights.lora_layers(model))
    alpha: Any = plan.alpha  # peft says int, and takes any number
    config = LoraConfig(r=plan.rank, lora_alpha=alpha, target_modules=targets, init_lora_weights=True)
    inject_adapter_in_model(config, model)
    if start is not None:
        adapter = weights.read_adapter(start)
        if adapter.rank != plan.rank:
            raise ValueError(f"{start} has a LoRA of rank {adapter.rank}, the plan says {plan.rank}")
        pairs = weights.pairs_of(weights.tensors_in(adapter.folder / weights.LORA), adapter.folder / weights.LORA)
        ratio = adapter.scale / (plan.alpha / plan.rank)  # the same weights at another alpha
        state = {
            f"{n}.lora_{s}.weight": x * (ratio if s == "B" else 1)
            for n, ab in pairs.items()
            for s, x in zip("AB", ab, strict=True)
        }
        set_peft_model_state_dict(model, state)
    for name, p in model.named_parameters():
        if "lora_" in name or weights.is_added(name):
            p.requires_grad_(True)
            p.data = p.data.float()
    if plan.checkpointing:
        model.enable_gradient_checkpointing()
    return model


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is trained, by name."""
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def parts_of(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """LoRA and added parameters under the release's names."""
    lora = {f"transformer.{n.replace('.default', '')}": v for n, v in state.items() if "lora_" in n}
    return lora, {n: v for n, v in state.items() if "lora_" not in n}


def train_adapter(
    base: Path,
    folder: Path,
    out: Path,
    plan: WanPlan,
    *,
    adapter: Path | None = None,
    variant: Variant = "act",
    judge: Judge | None = None,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> Path:
    """Train an adapter of the weights in ``base`` on the latents in ``folder``, from nothing or from another ``adapter``; latents are scaled
    by the statistics of the adapter, or by their own. ``judge`` scores rollouts of clips that are held out."""
    from kinema4d.train.encode import measure

    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    one = cache.read(cache.listed(folder)[0])
    found = weights.read_adapter(adapter) if adapter is not None else None
    t, h, w = one.mask.shape
    patch = PATCH if not (h % PATCH or w % PATCH) else math.gcd(h, w)
    options: dict[str, Any] = {"image_tokens": len(one.image), "variant": variant}
    if found is None or found.kind == "4dnex":
        options["arm"] = (t, h // patch, w // patch, patch, CHANNELS)
    model, _ = weights.load(base / "transformer", adapter, dtype=dtype, fuse=False, **options)
    model = with_lora(model, plan, start=adapter if found is not None and found.rank else None)
    stats = measure(folder) if found is None else found.stats
    validate = None
    if plan.held_out and judge is not None:
        from kinema4d.world.wan.load import eyes_of

        _, held = split_of(cache.listed(folder), plan)
        validate = Rollouts(held, eyes_of(base, Setup())[0], stats, judge, plan.rollout_steps)
    about = {"base": base.name, "start": None if adapter is None else adapter.name, "variant": model.variant}
    return train_wan(model, folder, out, plan, stats=stats, dtype=dtype, about=about, validate=validate, tell=tell)


# ---------------------------------------------------------------------- a step


def split_of(paths: Sequence[Path], plan: WanPlan) -> tuple[list[Path], list[Path]]:
    """Clips to learn from, and those held out."""
    if plan.held_out >= len(paths):
        raise ValueError(f"{plan.held_out} of {len(paths)} clips held out leave none to learn from")
    held = set(np.random.default_rng([plan.seed, 7]).permutation(len(paths))[: plan.held_out].tolist())
    return [p for i, p in enumerate(paths) if i not in held], [p for i, p in enumerate(paths) if i in held]


def drawn(plan: WanPlan, step: int, count: int) -> list[int]:
    """The clips of a step, over all processes: each epoch in an order of its own."""
    out = []
    for i in range(step * plan.batch, (step + 1) * plan.batch):
        epoch, at = divmod(i, count)
        out.append(int(np.random.default_rng([plan.seed, epoch]).permutation(count)[at]))
    return out


def loss_of(model: Callable[..., Tensor], latents: cache.Latents, plan: WanPlan, stats: PointStats, key: Sequence[int], *, variant: Any, device: Any, dtype: torch.dtype) -> Tensor:  # fmt: skip
    """Of one clip, drawn by ``key``: the velocity from clip to noise at an even time, plain squared error."""
    generator = torch.Generator().manual_seed(int(np.random.default_rng([plan.seed, *key]).integers(2**62)))
    soft = soft_mask(
        latents.mask.bool().numpy(), seed=int(torch.randint(2**31, (1,), generator=generator)), ratio=plan.soft_ratio
    )
    told = latents.told(stats, variant, mask=torch.from_numpy(soft))
    clip = latents.target(stats)[None]
    even = torch.rand(1, generator=generator)
    sigma = plan.shift * even / (1 + (plan.shift - 1) * even)
    noise = torch.randn(clip.shape, generator=generator)
    x = (1 - sigma) * clip + sigma * noise
    give = lambda t: t.to(device, dtype)  # noqa: E731
    made = model(give(told.beside(x)), (1000 * sigma).to(device), give(told.arm), give(told.image))
    return (made.float() - (noise - clip).to(device)).square().mean()


# ---------------------------------------------------------------------- the run


def train_wan(
    model: RobotWan,
    folder: str | Path,
    out: str | Path,
    plan: WanPlan,
    *,
    stats: PointStats = KINEMA4D,
    dtype: torch.dtype = torch.bfloat16,
    about: dict[str, Any] | None = None,
    validate: Callable[[RobotWan, int], dict[str, float]] | None = None,
    tell: Callable[[int, dict[str, float]], None] | None = None,
) -> Path:
    """Train until ``plan.steps`` on the latents in ``folder``, from the last checkpoint in ``out`` if there is one; returns the
    folder of the adapter. Every process calls this."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=1)
    if (kind := accelerator.distributed_type.name) in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise ValueError(f"accelerate is set to {kind}; sharding is --wan.shard here: launch with torchrun, or set accelerate to plain multi-GPU")  # fmt: skip
    paths, out = split_of(cache.listed(folder), plan)[0], Path(out)
    many, me = accelerator.num_processes, accelerator.process_index
    if plan.batch % many:
        raise ValueError(f"a batch of {plan.batch} clips cannot be shared by {many} processes")
    variant = model.variant
    shard = plan.shard and many > 1
    whole: Any = sharded(model, accelerator.device) if shard else accelerator.prepare(model)
    groups = list(trained(model).values())
    optimiser = torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.95), weight_decay=plan.decay)
    first, average = _resume(out, plan, model, optimiser)
    began, smooth = time.monotonic(), None
    for step in range(first, plan.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate_at(plan, step)
        mine = drawn(plan, step, len(paths))[me::many]
        total = torch.zeros((), device=accelerator.device)
        for k, i in enumerate(mine):
            last = k + 1 == len(mine)
            if shard:
                whole.set_requires_gradient_sync(last)
            with accelerator.no_sync(whole) if not (last or shard) else nullcontext():
                loss = loss_of(whole, cache.read(paths[i]), plan, stats, (step, me + many * k), variant=variant, device=accelerator.device, dtype=dtype)  # fmt: skip
                accelerator.backward(loss / len(mine))
            total += loss.detach() / len(mine)
        norm = whole_of(nn.utils.clip_grad_norm_(groups, plan.clip))
        if not math.isfinite(float(norm)):
            raise ValueError(f"the gradient is not finite at step {step}: lower the rate (now {plan.rate:g})")
        optimiser.step()
        optimiser.zero_grad()
        if average is not None:
            for n, p in trained(model).items():
                average[n].lerp_(part_of(p), 1 - min(plan.ema, (1 + step) / (10 + step)))
        mean: Any = accelerator.reduce(total, "mean")
        value = float(mean)
        smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
        done = step + 1 == plan.steps
        found: dict[str, float] = {}
        if (step + 1) % plan.log_every == 0 or done:
            found = {
                "loss": smooth,
                "rate": rate_at(plan, step),
                "seconds_per_step": (time.monotonic() - began) / (step + 1 - first),
            }
        if (step + 1) % plan.save_every == 0 or done:
            if validate is not None:
                with _averaged(model, average):
                    found |= {f"val/{k}": v for k, v in validate(model, step + 1).items()}
                    if shard:
                        whole.reshard()  # without a backward pass the last group stays whole
            state = _state(model, optimiser, average)
            if accelerator.is_main_process:
                _save(out, plan, step + 1, state, stats, about or {})
            accelerator.wait_for_everyone()
        if found and accelerator.is_main_process:
            _log(out, step + 1, found)
            if tell is not None:
                tell(step + 1, found)
    return out


def sharded(model: RobotWan, device: torch.device) -> RobotWan:
    """The model with its weights shared out among the processes, block by block, in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def whole_of(x: Tensor) -> Tensor:
    """Of all processes, where a tensor is shared out; every process calls this."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def part_of(p: Tensor) -> Tensor:
    """What this process has of it, in the machine's memory."""
    return (p.to_local() if isinstance(p, DTensor) else p).detach().cpu()


def _put(p: Tensor, part: Tensor) -> None:
    (p.to_local() if isinstance(p, DTensor) else p).copy_(part)


@contextmanager
def _averaged(model: nn.Module, average: dict[str, Tensor] | None) -> Iterator[None]:
    """With the average of what is trained in its place, where there is one: that is what is saved."""
    if average is None:
        yield
        return
    now = {n: part_of(p).clone() for n, p in trained(model).items()}
    for state in (average, now):
        with torch.no_grad():
            for n, p in trained(model).items():
                _put(p, state[n])
        if state is average:
            yield


def _state(model: RobotWan, optimiser: torch.optim.Optimizer, average: dict[str, Tensor] | None) -> dict[str, Any]:
    """All that a run goes on from, of all processes."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    gather = lambda: {n: whole_of(p.detach()).cpu().clone() for n, p in trained(model).items()}  # noqa: E731
    now = gather()
    with _averaged(model, average):
        mean = None if average is None else gather()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {"trained": now, "average": mean, "optimiser": get_optimizer_state_dict(model, optimiser, options=options)}


def _save(out: Path, plan: WanPlan, step: int, state: dict[str, Any], stats: PointStats, about: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    lora, added = parts_of(state["average"] or state["trained"])
    weights.save_adapter(
        out, lora, added, alpha=plan.alpha, stats=stats, about={"steps": step, "plan": asdict(plan), **about}
    )
    with whole_file(out / STATE, overwrite=True) as file:
        torch.save({"step": step, "plan": asdict(plan), **state}, file)


MAY_CHANGE = ("steps", "save_every", "log_every", "shard", "rollout_steps")
"""What a run may go on with differently."""


def _resume(
    out: Path, plan: WanPlan, model: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[int, dict[str, Tensor] | None]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    own = trained(model)
    average = {n: part_of(p).clone() for n, p in own.items()} if plan.ema else None
    file = out / STATE
    if not file.is_file():
        return 0, average
    state = torch.load(file, map_location="cpu", weights_only=True)
    mine, theirs = ({k: v for k, v in p.items() if k not in MAY_CHANGE} for p in (asdict(plan), state["plan"]))
    if mine != theirs:
        other = next(k for k in mine if mine[k] != theirs.get(k))
        raise ValueError(f"{out} holds a run with {other} {theirs.get(other)}, now {mine[other]}; use another --out")
    if list(state["trained"]) != list(own):
        raise ValueError(f"{out} holds a run of another model; use another --out")
    share = lambda p, v: distribute_tensor(v.to(p.device), p.device_mesh, p.placements) if isinstance(p, DTensor) else v  # noqa: E731
    with torch.no_grad():
        for n, p in own.items():
            p.copy_(share(p, state["trained"][n]))
            if average is not None:
                average[n].copy_(part_of(share(p, state["average"][n])))
    set_optimizer_state_dict(model, optimiser, state["optimiser"], options=StateDictOptions(full_state_dict=True))
    return int(state["step"]), average


def _log(out: Path, step: int, found: dict[str, float]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, **{k: round(v, 6) for k, v in found.items()}}) + "\n")
