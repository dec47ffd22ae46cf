"""A Wan as small as can be, with random weights: everything but its size is the real thing.

For tests, for benchmarks, and to try every command on a laptop before 33 GB are downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinema4d.world.wan import weights
from kinema4d.world.wan.model import RobotWan, Variant

WAN: dict[str, Any] = {
    "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 36, "out_channels": 16, "text_dim": 32,
    "freq_dim": 256, "ffn_dim": 64, "num_layers": 2, "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6,
    "image_dim": 20, "added_kv_proj_dim": 48, "rope_max_seq_len": 64,
}  # fmt: skip
"""Configuration of the transformer."""
TOKENS = 5
"""Of the image."""
ARM = {"arm_grid": (3, 2, 2), "arm_patch": 3, "arm_channels": 8}
"""Of the robot's tokens."""


def transformer(variant: Variant = "act", seed: int = 0, **more: Any) -> RobotWan:
    """With weights that are random throughout, also where training starts at zero."""
    torch.manual_seed(seed)
    config = {**WAN, **more}
    width = config["num_attention_heads"] * config["attention_head_dim"]
    model = RobotWan(variant=variant, image_tokens=TOKENS, **ARM, **{**config, "added_kv_proj_dim": width})
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(std=0.1 if p.ndim > 1 else 0.2)
            if "norm" in name and name.endswith("weight"):
                p.add_(1)
    return model.eval()


def vae(seed: int = 0) -> Any:
    """Wan's VAE with few channels."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan

    torch.manual_seed(seed)
    return AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1).eval().requires_grad_(False)


def eye(seed: int = 0) -> tuple[Any, Any]:
    """CLIP with few channels that gives ``TOKENS`` tokens, and its processor."""
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(seed)
    config = CLIPVisionConfig(
        hidden_size=20, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    processor = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return CLIPVisionModel(config).eval().requires_grad_(False), processor


def write_base(folder: Path, seed: int = 3) -> dict[str, Tensor]:
    """A transformer as diffusers saves Wan's, with the words that we leave out."""
    from safetensors.torch import save_file

    state = {k: v for k, v in transformer("act", seed).state_dict().items() if not weights.is_added(k)}
    width, text = WAN["num_attention_heads"] * WAN["attention_head_dim"], WAN["text_dim"]
    words = {"linear_1.weight": (width, text), "linear_1.bias": (width,), "linear_2.weight": (width, width), "linear_2.bias": (width,)}  # fmt: skip
    more = {f"condition_embedder.text_embedder.{k}": torch.randn(s) for k, s in words.items()}
    more |= {f"blocks.{b}.attn2.norm_added_q.weight": torch.ones(width) for b in range(WAN["num_layers"])}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({**state, **more}, folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps({"_class_name": "WanTransformer3DModel", **WAN}))
    return state


def write_weights(folder: str | Path) -> Path:
    """A whole folder of weights, as diffusers has Wan2.1-I2V."""
    folder = Path(folder)
    write_base(folder / "transformer")
    clip, processor = eye()
    vae().save_pretrained(folder / "vae")
    clip.save_pretrained(folder / "image_encoder")
    processor.save_pretrained(folder / "image_processor")
    return folder
