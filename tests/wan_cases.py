"""What the tests of the full-scale world share: inputs and latents of the size of ``kinema4d.world.wan.tiny``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate
from kinema4d.evaluate.decoded import decoded_scores
from kinema4d.train.encode import encode_dataset, measure
from kinema4d.train.wan import split_of, train_wan, with_lora
from kinema4d.train.wan_plan import WanPlan
from kinema4d.train.wan_rollouts import Rollouts
from kinema4d.world.condition import Normalisation
from kinema4d.world.wan import cache, tiny
from kinema4d.world.wan.latents import KINEMA4D
from kinema4d.world.wan.model import RobotWan
from kinema4d.world.wan.options import Sampling
from kinema4d.world.wan.sample import sample
from kinema4d.world.wan.tiny import TOKENS, vae


def an_input(variant: str = "act", seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    width = 12 if variant == "act" else 6
    return draw(2, 36, 3, 6, 12), torch.tensor([900.0, 37.0]), draw(2, 20, 3, 6, width), draw(2, TOKENS, 20)


def some_latents(folder: Path, count: int, seed: int = 0) -> None:
    """Files of latents as large as ``an_input``."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    box = Normalisation(minimum=np.zeros(3), maximum=np.ones(3))
    for i in range(count):
        latents = cache.Latents(
            colour=draw(16, 3, 6, 6), points=draw(16, 3, 6, 6), robot_colour=draw(16, 3, 6, 6), robot_points=draw(16, 3, 6, 6),
            mask=(draw(3, 6, 6) > 0).to(torch.uint8), first=draw(16, 3, 6, 12), image=draw(TOKENS, 20),
        )  # fmt: skip
        cache.write(folder / f"{i:03d}.safetensors", latents, scale=box, world=box, source=f"made {i}")


def tiny_rollouts(folder: Path | str, plan: WanPlan) -> Rollouts:
    return Rollouts(split_of(cache.listed(folder), plan)[1], vae(), KINEMA4D, decoded_scores, steps=2)


class Fullest(TorchDispatchMode):
    """Counts what is alive of all that is made inside it, and is no weight of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.live = {StorageWeakRef(p.untyped_storage()): 0 for p in module.parameters()}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.live.setdefault(StorageWeakRef(t.untyped_storage()), t.untyped_storage().nbytes())
        self.live = {r: n for r, n in self.live.items() if not r.expired()}
        self.bytes = max(self.bytes, sum(self.live.values()))
        return out


@contextmanager
def hollow_bf16() -> Iterator[None]:
    """Tensors have sizes and no content, and are bf16 unless it is said: any size can be traced anywhere."""
    with FakeTensorMode(), torch.no_grad():
        torch.set_default_dtype(torch.bfloat16)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def traced(config: dict[str, Any], *, frames: int = 49, height: int = 480, width: int = 720) -> dict[str, float]:
    """What one pass of a model in bf16 takes."""
    t, h, w = 1 + (frames - 1) // 4, height // 8, width // 8
    with hollow_bf16():
        model = RobotWan(**config)
        inputs = torch.zeros(1, 36, t, h, 2 * w), torch.zeros(1, dtype=torch.float32), torch.zeros(1, 20, t, h, 2 * w), torch.zeros(1, 257, config["image_dim"])  # fmt: skip
        with Fullest(model) as memory:
            model(*inputs)
        with (
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as work,
        ):  # other kernels of a CPU are not counted
            model(*inputs)
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {
        "weights_gb": weights / 1e9,
        "activations_gb": memory.bytes / 1e9,
        "tflop": work.get_total_flops() / 1e12,
    }


def traced_vae(*, frames: int = 49, height: int = 480, width: int = 720, tiling: bool = False) -> float:
    """GB that Wan2.1's VAE takes in bf16 to decode both halves."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

    with hollow_bf16():
        coder = AutoencoderKLWan()
        if tiling:
            coder.enable_tiling()
        latents = torch.zeros(1, 16, 1 + (frames - 1) // 4, height // 8, 2 * width // 8)
        with Fullest(coder) as memory:
            coder.decode(latents)
    return memory.bytes / 1e9


def encoded_episodes(root: Path, count: int) -> tuple[Path, Path]:
    """Latents of simulated episodes, as many as that, and of one more."""
    about: dict[str, Any] = {"robots": ("k4arm",), "tasks": ("push",), "height": 48, "width": 80}
    generate(root / "data", Recipe(episodes=count + 1, failures=0, seed=5, **about), workers=1)
    clip, eye = tiny.eye()
    ids = open_dataset(root / "data").ids
    coders: dict[str, Any] = {"vae": tiny.vae(), "clip": clip, "eye": eye, "frames": 9, "height": 48, "width": 48}
    for name, some in {"many": ids[1:], "one": ids[:1]}.items():
        encode_dataset(root / "data", root / name, ids=some, **coders)
    return root / "many", root / "one"


def overfit(root: Path, *, episodes: int, heads: int, base_steps: int, steps: int) -> tuple[float, float]:
    """A LoRA learns one episode and draws it from noise: PSNR of its latents against the truth's before and after, in dB of their range.
    The base first learns other episodes with all of its parameters, for LoRAs are made for a base that can take off noise. Latents are
    compared, not pictures: the decoder of a VAE that never learned turns small errors into large ones."""
    many, one = encoded_episodes(root, episodes)
    torch.manual_seed(0)
    model = tiny.transformer("act", num_attention_heads=heads, ffn_dim=32 * heads)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1 and "table" not in name and "emb" not in name:
                p.mul_(0.5)
    model.start()
    model.requires_grad_(True)
    plan = WanPlan(rank=4 * heads, alpha=4.0 * heads, batch=4, rate=3e-3, warmup=20, steps=steps, save_every=steps, checkpointing=False)  # fmt: skip
    stats = measure(many)
    base = replace(plan, steps=base_steps, save_every=base_steps)
    train_wan(model, many, root / "base", base, stats=stats, dtype=torch.float32)
    latents = cache.read(cache.listed(one)[0])
    goal = latents.target(stats)[None]

    def found() -> float:
        made = sample(model.eval(), latents.told(stats, "act"), sampling=Sampling(steps=20))
        return float(10 * torch.log10((goal.max() - goal.min()) ** 2 / (made - goal).square().mean()))

    before = found()
    model = with_lora(model, plan)
    train_wan(model, one, root / "run", plan, stats=stats, dtype=torch.float32)
    return before, found()
