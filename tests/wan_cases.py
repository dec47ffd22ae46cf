"""A Wan of two layers with random weights: everything but its size is the real thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from kinema4d.world.condition import Normalisation
from kinema4d.world.wan import cache, weights
from kinema4d.world.wan.model import RobotWan, Variant

WAN: dict[str, Any] = {
    "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 36, "out_channels": 16, "text_dim": 32,
    "freq_dim": 256, "ffn_dim": 64, "num_layers": 2, "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6,
    "image_dim": 20, "added_kv_proj_dim": 48, "rope_max_seq_len": 64,
}  # fmt: skip
TOKENS = 5
"""Of the image."""


def a_model(variant: Variant = "act", seed: int = 0, **more: Any) -> RobotWan:
    """With weights that are random throughout, also where training starts at zero."""
    torch.manual_seed(seed)
    model = RobotWan(variant=variant, image_tokens=TOKENS, arm_grid=(3, 2, 2), arm_patch=3, arm_channels=8, **{**WAN, **more})  # fmt: skip
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(std=0.1 if p.ndim > 1 else 0.2)
            if "norm" in name and name.endswith("weight"):
                p.add_(1)
    return model.eval()


def an_input(variant: str = "act", seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    width = 12 if variant == "act" else 6
    return draw(2, 36, 3, 6, 12), torch.tensor([900.0, 37.0]), draw(2, 20, 3, 6, width), draw(2, TOKENS, 20)


def a_vae(seed: int = 0) -> Any:
    """Wan's VAE with few channels."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

    torch.manual_seed(seed)
    return AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1).eval().requires_grad_(False)


def an_eye(seed: int = 0) -> tuple[Any, Any]:
    """CLIP with few channels that gives ``TOKENS`` tokens, and its processor."""
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(seed)
    config = CLIPVisionConfig(
        hidden_size=20, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    size = {"height": 16, "width": 16}
    eye = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=size)
    return CLIPVisionModel(config).eval().requires_grad_(False), eye


def tiny_base(folder: Path, seed: int = 3) -> dict[str, torch.Tensor]:
    """A base of two layers, with words, as diffusers saves one."""
    model = a_model("act", seed)
    state = {k: v for k, v in model.state_dict().items() if not weights.is_added(k)}
    words = {"linear_1.weight": (48, 32), "linear_1.bias": (48,), "linear_2.weight": (48, 48), "linear_2.bias": (48,)}
    more = {f"condition_embedder.text_embedder.{k}": torch.randn(s) for k, s in words.items()}
    more |= {f"blocks.{b}.attn2.norm_added_q.weight": torch.ones(48) for b in range(2)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({**state, **more}, folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps({"_class_name": "WanTransformer3DModel", **WAN}))
    return state


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


def tiny_weights(folder: Path) -> Path:
    """A whole folder of weights, as diffusers has Wan2.1-I2V, and as small as can be."""
    tiny_base(folder / "transformer")
    clip, eye = an_eye()
    a_vae().save_pretrained(folder / "vae")
    clip.save_pretrained(folder / "image_encoder")
    eye.save_pretrained(folder / "image_processor")
    return folder
