"""Rotations in torch, batched and differentiable."""

from __future__ import annotations

import torch
from torch import Tensor


def rotvec_to_matrix(w: Tensor) -> Tensor:
    """Rodrigues' formula, smooth at zero."""
    angle = (w * w).sum(-1, keepdim=True).add(1e-16).sqrt()[..., None]
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    W = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).unflatten(-1, (3, 3))
    a = torch.sin(angle) / angle
    b = (1 - torch.cos(angle)) / (angle * angle)
    eye = torch.eye(3, dtype=w.dtype, device=w.device)
    return eye + a * W + b * (W @ W)


def matrix_to_rotvec(R: Tensor) -> Tensor:
    """The smallest rotation vector; meant for small steps (below about 3 rad)."""
    v = torch.stack([R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]], -1)
    sine = v.norm(dim=-1) / 2
    cosine = (R.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    angle = torch.atan2(sine, cosine)
    scale = torch.where(sine > 1e-6, angle / (2 * sine.clamp(min=1e-6)), torch.full_like(angle, 0.5))
    return v * scale[..., None]


def angle_between(A: Tensor, B: Tensor) -> Tensor:
    """Angle of ``A B^T``, radians."""
    D = A @ B.transpose(-1, -2)
    v = torch.stack([D[..., 2, 1] - D[..., 1, 2], D[..., 0, 2] - D[..., 2, 0], D[..., 1, 0] - D[..., 0, 1]], -1)
    return torch.atan2(v.norm(dim=-1) / 2, (D.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2)
