"""The paper's transformer at full scale: diffusers' Wan2.1, told of a robot (section 3.2, appendix B.1).

Colour and pointmap stand side by side in one latent, [RGB | XYZ]. What is added to Wan: both halves share their rotary
positions and are told apart by learned embeddings; the robot's latents go into the condition channels through a projection
that starts at zero, its mask into the mask channels; and its patches stand where Wan has words, so there is no text encoder.
Two variants were released: ``act`` is told of the robot in both halves, ``pmcond`` only by its pointmap.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanAttnProcessor,
    WanRotaryPosEmbed,
    WanTransformer3DModel,
)
from torch import Tensor, nn
from torch.nn import functional as F

LATENT, MASK = 16, 4
"""Channels of a latent, and of a mask beside it. The input is noise, mask and condition: 16 + 4 + 16."""
Variant = Literal["act", "pmcond"]


class SharedRope(WanRotaryPosEmbed):
    """Rotary positions of half the width, for both halves."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Cosine and sine of every token of a latent [b,c,t,h,w] of two halves."""
        t, h, w = (n // p for n, p in zip(hidden_states.shape[2:], self.patch_size, strict=True))
        half = super().forward(hidden_states[..., : hidden_states.shape[-1] // 2])
        both = [x.unflatten(1, (t, h, w // 2)).repeat(1, 1, 1, 2, 1, 1).flatten(1, 3) for x in half]
        return both[0], both[1]


class RobotAttention(WanAttnProcessor):
    """Cross-attention to the image's tokens and the robot's, of which there may be any number: diffusers' own takes the last 512
    for words."""

    def __init__(self, image_tokens: int) -> None:
        super().__init__()
        self.image_tokens = image_tokens

    def __call__(
        self,
        attn: WanAttention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """As diffusers' own."""
        if encoder_hidden_states is None or attn.add_k_proj is None or attn.add_v_proj is None:
            return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb)
        image, robot = encoder_hidden_states.tensor_split([self.image_tokens], dim=1)
        heads = lambda x: x.unflatten(2, (attn.heads, -1))  # noqa: E731
        query = heads(attn.norm_q(attn.to_q(hidden_states)))
        told = (heads(attn.norm_k(attn.to_k(robot))), heads(attn.to_v(robot)))
        seen = (heads(attn.norm_added_k(attn.add_k_proj(image))), heads(attn.add_v_proj(image)))
        read = lambda kv: dispatch_attention_fn(query, *kv, backend=self._attention_backend)  # noqa: E731
        both = read(told).flatten(2).type_as(query) + read(seen).flatten(2).type_as(query)
        return attn.to_out[1](attn.to_out[0](both))


class RobotWan(WanTransformer3DModel):
    """Wan2.1's transformer with a robot. Added parameters have the names of the release."""

    _skip_layerwise_casting_patterns = (
        *WanTransformer3DModel._skip_layerwise_casting_patterns,
        "arm_",
    )  # few, and not in blocks

    def __init__(
        self,
        *,
        variant: Variant = "act",
        image_tokens: int = 257,
        arm_grid: tuple[int, int, int] = (13, 4, 6),
        arm_patch: int = 15,
        arm_channels: int = 128,
        **wan: Any,
    ) -> None:
        super().__init__(**wan)
        self.variant: Variant = variant
        self.arm_patch, self.arm_grid = arm_patch, tuple(arm_grid)
        size = self.config["attention_head_dim"]
        width = self.config["num_attention_heads"] * size
        self.rope = SharedRope(size, self.config["patch_size"], self.config["rope_max_seq_len"])
        setattr(self.condition_embedder, "text_embedder", nn.Identity())  # noqa: B010  the robot's tokens come as they are
        for module in self.modules():
            if isinstance(module, WanAttention) and module.add_k_proj is not None:
                reads: Any = RobotAttention(image_tokens)
                module.set_processor(reads)
        self.learnable_domain_embeddings = nn.Parameter(torch.empty(2, width))
        self.patch_embedding_arm = nn.Conv3d(
            LATENT + MASK, arm_channels, (1, arm_patch, arm_patch), (1, arm_patch, arm_patch)
        )
        self.arm_ln = nn.LayerNorm(arm_channels)
        self.arm_pos_emb = nn.Parameter(torch.empty(1, arm_channels, *self.arm_grid))
        self.arm_domain_emb = nn.Parameter(torch.empty(2, arm_channels)) if variant == "act" else None
        self.arm_patch_proj = nn.Linear(arm_channels, width)
        self.arm_cond_proj = nn.Linear(LATENT, LATENT)
        self.patch_embedding.register_forward_hook(self._told_apart)

    def start(self) -> None:
        """Fill in the added parameters as training starts with them: what tells of the robot starts at zero."""
        for p in (self.learnable_domain_embeddings, self.arm_pos_emb, self.arm_domain_emb):
            if p is not None:
                nn.init.trunc_normal_(p, std=0.02)
        nn.init.xavier_uniform_(self.patch_embedding_arm.weight)
        zero = (self.patch_embedding_arm.bias, *self.arm_patch_proj.parameters(), *self.arm_cond_proj.parameters())
        for p in zero:
            if p is not None:
                nn.init.zeros_(p)
        self.arm_ln.reset_parameters()

    def _told_apart(self, _: nn.Module, __: Any, tokens: Tensor) -> Tensor:
        """After the patch embedding [b,c,t,h,w]: left and right half by their learned embeddings."""
        sides = self.learnable_domain_embeddings.to(tokens.dtype).repeat_interleave(tokens.shape[-1] // 2, 0)
        return tokens + sides.T[:, None, None]

    def with_robot(self, x: Tensor, arm: Tensor, *, times: int = 1) -> Tensor:
        """The input [b,36,t,h,2w] with the robot's mask and latents ``arm`` [b,20,t,h,...] in it, the latents so many times."""
        mask, latents = arm.split([MASK, LATENT], 1)
        more = times * self.arm_cond_proj(latents.movedim(1, -1).to(self.arm_cond_proj.weight.dtype)).movedim(-1, 1)
        x = x.clone()
        here = (
            (slice(None), slice(None), slice(1, None))
            if self.variant == "act"
            else (..., slice(x.shape[-1] // 2, None))
        )
        own = here if self.variant == "act" else (...,)
        x[:, LATENT : LATENT + MASK][here] = mask[own].to(x.dtype)
        x[:, LATENT + MASK :][here] += more[own].to(x.dtype)
        return x

    def robot_tokens(self, arm: Tensor) -> Tensor:
        """``arm`` [b,20,t,h,...] as what cross-attention reads [b,n,c]."""
        y = self.patch_embedding_arm(arm.to(self.patch_embedding_arm.weight.dtype)).movedim(1, -1)
        y = F.gelu(self.arm_ln(y)).movedim(-1, 1)
        place = self.arm_pos_emb
        halves = 2 if self.variant == "act" else 1
        size = (*y.shape[2:4], y.shape[4] // halves)
        if size != place.shape[2:]:  # another size of picture, or another length
            place = F.interpolate(place.float(), size, mode="trilinear", align_corners=False).to(place.dtype)
        y = y + place.repeat(1, 1, 1, 1, halves)
        if self.arm_domain_emb is not None:
            y = y + self.arm_domain_emb.repeat_interleave(size[2], 0).T[:, None, None]
        return self.arm_patch_proj(y.flatten(2).transpose(1, 2))

    def forward(  # type: ignore[override]
        self, x: Tensor, timestep: Tensor, arm: Tensor, image: Tensor, *, times: int = 1
    ) -> Tensor:
        """Velocity [b,16,t,h,2w] of noisy latents ``x`` [b,36,...] at ``timestep``, told of the robot by ``arm`` and of the first
        image by its CLIP tokens; ``times`` 2 is what the release's second pass sees."""
        told = self.robot_tokens(arm).to(x.dtype)  # what was added is kept in float32
        whole: Any = self.with_robot(x, arm, times=times)
        made: Any = super().forward(whole, timestep, told, image, return_dict=False)  # type: ignore[arg-type]
        return made[0]
