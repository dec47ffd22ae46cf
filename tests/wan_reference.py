"""The released model, plain and slow, from its fact sheet alone: what the fast path is compared with.

Nothing of diffusers and nothing of ours: tensors by name in, velocity out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]


def linear(s: State, name: str, x: Tensor) -> Tensor:
    return x @ s[f"{name}.weight"].T + s[f"{name}.bias"]


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
    return x if weight is None or bias is None else x * weight + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rope(times: int, rows: int, columns: int, size: int) -> Tensor:
    """[n,size/2] complex turns of tokens in order of time, row, column; both halves of the width have the same columns."""
    side = 2 * (size // 6)
    out = []
    for t in range(times):
        for r in range(rows):
            for c in range(columns):
                turns = []
                for place, dims in ((t, size - 2 * side), (r, side), (c % (columns // 2), side)):
                    rate = 1.0 / 10000.0 ** (torch.arange(0, dims, 2, dtype=torch.float64) / dims)
                    turns.append(torch.polar(torch.ones_like(rate), place * rate))
                out.append(torch.cat(turns))
    return torch.stack(out)


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """[b,n,heads,size] by complex multiplication of interleaved pairs."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(-2).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[b,n,heads,size] each."""
    score = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhnm,bmhd->bnhd", score.softmax(-1), v).flatten(2)


def block(s: State, x: Tensor, context: Tensor, images: int, time: Tensor, turns: Tensor, heads: int) -> Tensor:
    split = lambda y: y.unflatten(-1, (heads, -1))  # noqa: E731
    shift, scale, gate, shift2, scale2, gate2 = (s["scale_shift_table"] + time).unbind(1)
    y = layer_norm(x) * (1 + scale[:, None]) + shift[:, None]
    q, k = (rms_norm(linear(s, f"attn1.to_{n}", y), s[f"attn1.norm_{n}.weight"]) for n in "qk")
    y = attention(turned(split(q), turns), turned(split(k), turns), split(linear(s, "attn1.to_v", y)))
    x = x + gate[:, None] * linear(s, "attn1.to_out.0", y)
    y = layer_norm(x, s["norm2.weight"], s["norm2.bias"])
    q = split(rms_norm(linear(s, "attn2.to_q", y), s["attn2.norm_q.weight"]))
    image, robot = context[:, :images], context[:, images:]
    k = split(rms_norm(linear(s, "attn2.to_k", robot), s["attn2.norm_k.weight"]))
    seen = split(rms_norm(linear(s, "attn2.add_k_proj", image), s["attn2.norm_added_k.weight"], 1e-6))
    y = attention(q, k, split(linear(s, "attn2.to_v", robot)))
    y = y + attention(q, seen, split(linear(s, "attn2.add_v_proj", image)))
    x = x + linear(s, "attn2.to_out.0", y)
    y = layer_norm(x) * (1 + scale2[:, None]) + shift2[:, None]
    y = F.gelu(linear(s, "ffn.net.0.proj", y), approximate="tanh")
    return x + gate2[:, None] * linear(s, "ffn.net.2", y)


def robot_tokens(s: State, arm: Tensor, variant: str) -> Tensor:
    weight = s["patch_embedding_arm.weight"]
    y = F.conv3d(arm, weight, s["patch_embedding_arm.bias"], stride=weight.shape[2:])
    y = F.gelu(layer_norm(y.movedim(1, -1), s["arm_ln.weight"], s["arm_ln.bias"], 1e-5)).movedim(-1, 1)
    halves = y.chunk(2, -1) if variant == "act" else (y,)
    halves = [h + s["arm_pos_emb"] for h in halves]
    if variant == "act":
        halves = [h + s["arm_domain_emb"][i][None, :, None, None, None] for i, h in enumerate(halves)]
    return linear(s, "arm_patch_proj", torch.cat(halves, -1).flatten(2).transpose(1, 2))


def changed_in_place(s: State, x: Tensor, arm: Tensor, variant: str) -> None:
    """What the release does to its input: each call adds the robot's feature once more."""
    feature = linear(s, "arm_cond_proj", arm[:, 4:].movedim(1, -1)).movedim(-1, 1)
    if variant == "act":
        x[:, 16:20, 1:] = arm[:, :4, 1:]
        x[:, 20:, 1:] += feature[:, :, 1:]
    else:
        half = x.shape[-1] // 2
        x[:, 16:20, ..., half:] = arm[:, :4]
        x[:, 20:, ..., half:] += feature


def forward(s: State, x: Tensor, timestep: Tensor, arm: Tensor, image: Tensor, *, variant: str, heads: int) -> Tensor:
    """Changes ``x`` in place, as the release does."""
    changed_in_place(s, x, arm, variant)
    patch = s["patch_embedding.weight"].shape[2:]
    y = F.conv3d(x, s["patch_embedding.weight"], s["patch_embedding.bias"], stride=patch)
    half = y.shape[-1] // 2
    left, right = s["learnable_domain_embeddings"]
    y = torch.cat([y[..., :half] + left[:, None, None, None], y[..., half:] + right[:, None, None, None]], -1)
    times, rows, columns = y.shape[2:]
    y = y.flatten(2).transpose(1, 2)
    rate = torch.exp(-math.log(10000) * torch.arange(128) / 128)
    angle = timestep[:, None].float() * rate
    t = torch.cat([angle.cos(), angle.sin()], -1)
    e = "condition_embedder."
    t = linear(s, f"{e}time_embedder.linear_2", F.silu(linear(s, f"{e}time_embedder.linear_1", t)))
    six = linear(s, f"{e}time_proj", F.silu(t)).unflatten(1, (6, -1))
    i = f"{e}image_embedder."
    seen = layer_norm(image, s[f"{i}norm1.weight"], s[f"{i}norm1.bias"], 1e-5)
    seen = linear(s, f"{i}ff.net.2", F.gelu(linear(s, f"{i}ff.net.0.proj", seen)))
    seen = layer_norm(seen, s[f"{i}norm2.weight"], s[f"{i}norm2.bias"], 1e-5)
    context = torch.cat([seen, robot_tokens(s, arm, variant)], 1)
    turns = rope(times, rows, columns, y.shape[-1] // heads)
    count = 1 + max(int(n.split(".")[1]) for n in s if n.startswith("blocks."))
    for b in range(count):
        own = {n.removeprefix(f"blocks.{b}."): v for n, v in s.items() if n.startswith(f"blocks.{b}.")}
        y = block(own, y, context, image.shape[1], six, turns, heads)
    shift, scale = (s["scale_shift_table"] + t[:, None]).unbind(1)
    y = linear(s, "proj_out", layer_norm(y) * (1 + scale[:, None]) + shift[:, None])
    y = y.unflatten(1, (times, rows, columns)).unflatten(-1, (*patch, -1))
    return y.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)


def official(s: State, x: Tensor, timestep: Tensor, arm: Tensor, image: Tensor, *, variant: str, heads: int, scale: float = 5.0) -> Tensor:  # fmt: skip
    """The release's guidance: the same tensor goes into both passes."""
    x = x.clone()
    cond = forward(s, x, timestep, arm, image, variant=variant, heads=heads)
    uncond = forward(s, x, timestep, arm, image, variant=variant, heads=heads)
    return uncond + scale * (cond - uncond)
