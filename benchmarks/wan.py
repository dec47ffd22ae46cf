"""The full-scale world on a Wan of two layers: is it the release's arithmetic, and what does it save?

    python benchmarks/wan.py --json

``reference_max_abs_diff``: our model against a plain one from the fact sheet of the release (tests/wan_reference.py), velocity of one
step, for both variants and both kinds of guidance. ``evaluations_ratio``: passes of the transformer per clip, the release's sampler
against our default, counted. ``train_step_speedup``: a training step that encodes its condition anew, as the release does, against one on
cached latents, taking turns in one run. ``overfit_psnr_db``: a LoRA learns one episode, then draws it from noise; of latents, against
their range. ``load``: what a pass of the 14B model takes, computed and traced. Sizes are tiny but for that: ratios, not times.
"""

from __future__ import annotations

import json as json_module
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import wan_reference as reference  # pyright: ignore[reportMissingImports]
from wan_cases import an_input, overfit, some_latents, traced, traced_vae  # pyright: ignore[reportMissingImports]

from kinema4d.train.wan import loss_of, with_lora
from kinema4d.train.wan_plan import WanPlan
from kinema4d.world.wan import cache, tiny
from kinema4d.world.wan.condition import Told, first_latents
from kinema4d.world.wan.latents import KINEMA4D
from kinema4d.world.wan.memory import load_of
from kinema4d.world.wan.options import Sampling
from kinema4d.world.wan.sample import sample, velocity

HEADS = tiny.WAN["num_attention_heads"]
WAN14B = {"num_attention_heads": 40, "attention_head_dim": 128, "text_dim": 4096, "ffn_dim": 13824, "num_layers": 40, "image_dim": 1280, "added_kv_proj_dim": 5120, "rope_max_seq_len": 1024}  # fmt: skip
"""What Wan2.1-I2V-14B has beyond a tiny one."""


def told_of(variant: str) -> tuple[Told, torch.Tensor, torch.Tensor]:
    """What a model is told, noisy latents and a time."""
    x, at, arm, image = (v[:1] for v in an_input(variant))
    return Told(x[:, 20:], x[:, 16:20], arm, image), x[:, :16], at


def difference(variant: Any) -> float:
    """From the reference, the largest of both kinds of guidance."""
    model = tiny.transformer(variant)
    told, x, at = told_of(variant)
    state, rest = dict(model.state_dict()), (at, told.arm, told.image)
    with torch.no_grad():
        slow = {
            "official": reference.official(state, told.beside(x), *rest, variant=variant, heads=HEADS),
            "single": reference.forward(state, told.beside(x), *rest, variant=variant, heads=HEADS),
        }
    # The release's guidance multiplies rounding by nine: it is compared as what each of its passes would have to be off by.
    return max(
        float((velocity(model, told, x, at, Sampling(guidance=g)) - v).abs().max()) / (9 if g == "official" else 1)
        for g, v in slow.items()
    )


def evaluations() -> float:
    """Passes of the transformer for one clip: the release's sampler over our default, counted."""
    model, count = tiny.transformer("act"), []
    model.proj_out.register_forward_hook(lambda *_: count.append(1))
    found = []
    for sampling in (Sampling(guidance="official"), Sampling()):
        count.clear()
        sample(model, told_of("act")[0], sampling=sampling)
        found.append(len(count))
    return found[0] / found[1]


def speedup(folder: Path, rounds: int = 7) -> float:
    """A training step with its condition encoded anew over one with cached latents, medians of turns."""
    coder, plan = tiny.vae(), WanPlan(rank=2, batch=1, checkpointing=False)
    model = with_lora(tiny.transformer("act"), plan)
    latents = cache.read(cache.listed(folder)[0])
    image = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    times: dict[str, list[float]] = {"encoded": [], "cached": []}
    for n in range(rounds + 1):
        for name, spent in times.items():
            begin = time.perf_counter()
            if name == "encoded":
                first_latents(coder, image, 9)
            loss_of(model, latents, plan, KINEMA4D, (n, 0), variant="act", device="cpu", dtype=torch.float32).backward()
            if n:  # the first compiles and warms up
                spent.append(time.perf_counter() - begin)
    return float(np.median(times["encoded"]) / np.median(times["cached"]))


def loads() -> dict[str, dict[str, float]]:
    """Of Wan2.1-14B at 49 frames of 480x720: by the formulas of ``memory.py``, and traced on tensors without content."""
    whole = {**tiny.WAN, **WAN14B}
    said = load_of(whole)
    return {
        "computed": {
            "weights_gb": 2 * said.parameters / 1e9,
            "activations_gb": said.activations_gb,
            "tflop": said.tflop,
        },
        "traced": {**traced(whole), "vae_gb": traced_vae(), "vae_tiled_gb": traced_vae(tiling=True)},
    }


def main(*, json: bool = False) -> None:
    """Measure.

    Args:
        json: Print one JSON object instead of text.
    """
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some_latents(folder / "latents", 1)
        found = {
            "reference_max_abs_diff": {v: difference(v) for v in ("act", "pmcond")},
            "evaluations_ratio": evaluations(),
            "train_step_speedup": round(speedup(folder / "latents"), 2),
            "overfit_psnr_db": round(
                overfit(folder / "overfit", episodes=8, heads=8, base_steps=1000, steps=300)[1], 1
            ),
            "load": loads(),
        }
    if json:
        print(json_module.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    tyro.cli(main)
