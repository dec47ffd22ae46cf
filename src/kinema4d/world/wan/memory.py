"""What the full-scale model takes, by calculation: weights, activations and work per step, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GB = 1e9
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8": 1}
"""Bytes of a weight as it is kept."""
VAE, CLIP, TEXT = 0.127e9, 0.632e9, 5.68e9
"""Parameters of Wan's VAE, of CLIP's image tower (kept in float32), and of UMT5-XXL, which the release keeps on the card and we never load."""


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
    tflop: float
    """Of one pass."""

    @property
    def total_gb(self) -> float:
        """Both."""
        return self.weights_gb + self.activations_gb


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
    batch: int = 1,
) -> Load:
    """What one pass takes. ``offload`` "model" has only the transformer on the card while it runs, "sequential" one block of it."""
    c, f = config["num_attention_heads"] * config["attention_head_dim"], config["ffn_dim"]
    tokens = (1 + (frames - 1) // 4) * (height // 16) * (2 * width // 16)
    count = parameters_of(config)
    own = count * WIDTHS[weights]
    if offload == "sequential":
        own /= config["num_layers"]
    elif offload == "none":
        own += VAE * 2 + CLIP * 4
    # At its fullest a block holds: its input, the normed copy in float32, q, k, v, and the hidden layer of its MLP.
    inside = batch * tokens * (2 * c + 4 * c + 3 * 2 * c + 2 * 2 * f)
    work = 2 * tokens * (count - config["num_layers"] * 4 * c * c) + 4 * tokens * tokens * c * config["num_layers"]
    return Load(
        tokens=batch * tokens,
        parameters=count,
        weights_gb=own / GB,
        activations_gb=inside / GB,
        tflop=batch * work / 1e12,
    )


LOWER: dict[str, dict[str, Any]] = {
    "--wan.offload model": {"offload": "model"},
    "--wan.quantise fp8": {"weights": "float8"},
    "--wan.offload model --wan.quantise fp8": {"offload": "model", "weights": "float8"},
    "--wan.offload sequential": {"offload": "sequential"},
}
"""Options that lower what is needed on the card."""


def advice(config: Mapping[str, Any], **now: Any) -> str:
    """Which options lower what is needed, and by how much."""
    base = load_of(config, **now)
    less = {name: load_of(config, **{**now, **change}).total_gb for name, change in LOWER.items()}
    return "; ".join(f"{name}: {gb:.1f} GB instead of {base.total_gb:.1f}" for name, gb in less.items())
