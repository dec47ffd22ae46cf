"""What the full-scale model takes, by calculation: weights, activations and work per step, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GB = 1e9
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8": 1}
"""Bytes of a weight as it is kept."""
VAE, CLIP = 0.127e9, 0.632e9
"""Parameters of Wan's VAE, and of CLIP's image tower (kept in float32)."""
PIXEL, TILE = 10_430, 0.95e9
"""Bytes that the VAE holds while it decodes, per pixel of both halves or in tiles: traced on Wan2.1's, in bf16."""
TOLD = 257 + 624
"""Tokens of the image and of the robot at the release's size."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Of one clip."""

    tokens: int
    """Of the transformer's sequence."""
    parameters: float
    """Of the transformer."""
    weights_gb: float
    """Of everything that is on the card at the same time."""
    activations_gb: float
    """Of one pass of the transformer, at its fullest."""
    vae_gb: float
    """Of the VAE while it decodes, at its fullest."""
    tflop: float
    """Of one pass."""
    total_gb: float
    """On the card at its fullest: while the transformer runs, or while the VAE does."""


def parameters_of(config: Mapping[str, Any]) -> float:
    """Of Wan's transformer, by its configuration; words left out."""
    c, f = config["num_attention_heads"] * config["attention_head_dim"], config["ffn_dim"]
    square = c * c + c
    block = 8 * square + 2 * (c * config["added_kv_proj_dim"] + c) + 2 * c * f + f + c + 13 * c
    image = config["image_dim"] ** 2 + config["image_dim"] * c + 3 * config["image_dim"] + 3 * c
    time = config["freq_dim"] * c + c + square + 6 * square
    ends = config["in_channels"] * 4 * c + c + 64 * c + 64 + 2 * c
    return float(config["num_layers"] * block + image + time + ends)


def load_of(
    config: Mapping[str, Any],
    *,
    frames: int = 49,
    height: int = 480,
    width: int = 720,
    weights: str = "bfloat16",
    offload: str = "none",
    tiling: bool = False,
    parallel: int = 1,
) -> Load:
    """What one pass takes on each card. ``offload`` "model" has only the transformer on the card while it runs, "sequential" one
    block of it; ``parallel`` cards share the sequence."""
    c, f = config["num_attention_heads"] * config["attention_head_dim"], config["ffn_dim"]
    tokens = (1 + (frames - 1) // 4) * (height // 16) * (2 * width // 16)
    count = parameters_of(config)
    own = count * WIDTHS[weights]
    if offload == "sequential":
        own /= config["num_layers"]
    if offload != "model":
        own += VAE * 2 + CLIP * 4  # beside a Wan of 14B; a tiny one's are tiny
    # At its fullest a block holds: its input, the normed copy in float32, q, k, v, and the hidden layer of its MLP.
    inside = tokens / parallel * (2 * c + 4 * c + 3 * 2 * c + 2 * 2 * f)
    vae = TILE if tiling else PIXEL * height * 2 * width
    # Per token and block: six projections and the MLP, attention to all tokens, and to those of the image and the robot.
    work = 2 * tokens * config["num_layers"] * (6 * c * c + 2 * c * f + 2 * (tokens + TOLD) * c)
    return Load(
        tokens=tokens,
        parameters=count,
        weights_gb=own / GB,
        activations_gb=inside / GB,
        vae_gb=vae / GB,
        tflop=work / parallel / 1e12,
        total_gb=(max(own + inside, VAE * 2 + vae) if offload == "model" else own + max(inside, vae)) / GB,
    )


def training_gb(config: Mapping[str, Any], *, rank: int = 64, shard: int = 1, **size: Any) -> float:
    """On each card while an adapter is trained with one clip at a time: weights in bf16, its own in float32 with gradient and two moments,
    the inputs of all blocks, and the inside of one, computed again in the backward pass. ``shard`` cards share weights and moments."""
    c, f, layers = config["num_attention_heads"] * config["attention_head_dim"], config["ffn_dim"], config["num_layers"]
    tokens = load_of(config, **size).tokens
    own = layers * 8 * 2 * c * rank * 16
    inside = tokens * 2 * (16 * c + 3 * f)
    return ((parameters_of(config) * 2 + own) / shard + layers * tokens * c * 2 + inside) / GB


LOWER: dict[str, dict[str, Any]] = {
    "--wan.tiling": {"tiling": True},
    "--wan.offload model": {"offload": "model"},
    "--wan.quantise fp8": {"weights": "float8"},
    "--wan.offload model --wan.quantise fp8": {"offload": "model", "weights": "float8"},
    "--wan.offload sequential": {"offload": "sequential"},
    "--wan.offload sequential --wan.tiling": {"offload": "sequential", "tiling": True},
}
"""Options that lower what is needed on the card."""


def advice(config: Mapping[str, Any], **now: Any) -> str:
    """Which options lower what is needed, and by how much."""
    base = load_of(config, **now).total_gb
    twice = 2 * now.get("parallel", 1)
    every = {
        **LOWER,
        f"--wan.parallel {twice} under torchrun": {"parallel": twice},
        "half of the frames": {"frames": 1 + (now.get("frames", 49) - 1) // 8 * 4},
    }
    less = {name: load_of(config, **{**now, **change}).total_gb for name, change in every.items()}
    said = "; ".join(f"{name}: {gb:.1f} GB instead of {base:.1f}" for name, gb in less.items() if gb < base - 0.05)
    return said or f"it needs about {base:.1f} GB, and no option lowers it further"


def refuse(config: Mapping[str, Any], have_gb: float, **now: Any) -> None:
    """Refuse weights that cannot fit a card of so much memory, before they are loaded; activations may still not."""
    needs = load_of(config, **now)
    if needs.weights_gb > have_gb:
        raise ValueError(
            f"the card has {have_gb:.1f} GB and the weights alone take {needs.weights_gb:.1f}; {advice(config, **now)}"
        )
