"""Unit dual quaternions: how a small neighbourhood of a point turns and shifts (NeuROK, section 4.1, footnote 3).

[...,8]: the rotation r as (w, x, y, z), then the dual part (t r) / 2 of a shift t. Everything is plain arithmetic, so
derivatives of derivatives work. Meshes give them: a connected part that keeps its form has one for all its vertices,
elsewhere the rotation is that of the ring of triangles around a vertex (its polar decomposition), and the shift is
what takes the vertex exactly to where it goes."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64
from scipy.spatial.transform import Rotation
from torch import Tensor

from kinema4d.objects.fit import RIGID, rigid
from kinema4d.objects.solid import Mesh, parts

TINY = 1e-12
"""Added to squared lengths before a root is taken."""


def times(a: Tensor, b: Tensor) -> Tensor:
    """Product of quaternions [...,4]: first b, then a."""
    (w, u), (s, v) = (a[..., :1], a[..., 1:]), (b[..., :1], b[..., 1:])
    u, v = torch.broadcast_tensors(u, v)
    return torch.cat([w * s - (u * v).sum(-1, keepdim=True), w * v + s * u + torch.linalg.cross(u, v)], -1)


def conjugate(q: Tensor) -> Tensor:
    """The inverse of unit quaternions [...,4]; of dual ones [...,8], half by half."""
    if q.shape[-1] == 8:
        return torch.cat([conjugate(q[..., :4]), conjugate(q[..., 4:])], -1)
    return torch.cat([q[..., :1], -q[..., 1:]], -1)


def turned(q: Tensor, x: Tensor) -> Tensor:
    """Points [...,3] after unit quaternions [...,4]."""
    u, x = torch.broadcast_tensors(q[..., 1:], x)
    across = torch.linalg.cross(u, x)
    return x + 2 * (q[..., :1] * across + torch.linalg.cross(u, across))


def dual(r: Tensor, shift: Tensor) -> Tensor:
    """Unit quaternions [...,4] and shifts [...,3] as one, with w >= 0: both signs are the same motion."""
    r = torch.where(r[..., :1] < 0, -r, r)
    t = torch.cat([torch.zeros_like(shift[..., :1]), shift], -1)
    return torch.cat([r, 0.5 * times(t, r)], -1)


def shift_of(d: Tensor) -> Tensor:
    """[...,3] of unit dual quaternions."""
    return 2 * times(d[..., 4:], conjugate(d[..., :4]))[..., 1:]


def moved(d: Tensor, x: Tensor) -> Tensor:
    """Points [...,3] after unit dual quaternions [...,8]."""
    return turned(d[..., :4], x) + shift_of(d)


def composed(a: Tensor, b: Tensor) -> Tensor:
    """First b, then a."""
    return torch.cat([times(a[..., :4], b[..., :4]), times(a[..., :4], b[..., 4:]) + times(a[..., 4:], b[..., :4])], -1)


def unit(d: Tensor) -> Tensor:
    """The unit dual quaternion that eight numbers stand for: the rotation of length one, the dual part square to it."""
    size = (d[..., :4].square().sum(-1, keepdim=True) + TINY).sqrt()
    r, e = d[..., :4] / size, d[..., 4:] / size
    return torch.cat([r, e - (r * e).sum(-1, keepdim=True) * r], -1)


def blended(d: Tensor, share: Tensor) -> Tensor:
    """Means [...,8] of some [...,m,8] by shares [...,m], or of quaternions [...,m,4]: of the two signs of each, that
    of the first (linear blending)."""
    same = (d[..., :4] * d[..., :1, :4]).sum(-1, keepdim=True)
    mean = (torch.where(same < 0, -d, d) * share[..., None]).sum(-2)
    if d.shape[-1] == 8:
        return unit(mean)
    return mean / (mean.square().sum(-1, keepdim=True) + TINY).sqrt()


# ---------------------------------------------------------------------- of meshes


def turns_of(
    rest: Float64[np.ndarray, "v 3"], poses: Float64[np.ndarray, "p v 3"], faces: np.ndarray
) -> Float64[np.ndarray, "p v 4"]:
    """How every vertex's neighbourhood is turned from rest to every pose: with its part, where that keeps its form,
    else with the ring around it."""
    mesh = Mesh(vertices=rest, faces=faces)
    label, R = parts(mesh), np.zeros((len(poses), len(rest), 3, 3))
    for part in range(label.max() + 1):
        mine = np.flatnonzero(label == part)
        if len(mine) > 2 and rigid(rest[mine], poses[:, mine]) < RIGID * mesh.size:
            a, b = rest[mine] - rest[mine].mean(axis=0), poses[:, mine] - poses[:, mine].mean(axis=1, keepdims=True)
            R[:, mine] = _polar(np.einsum("pni,nj->pij", b, a))[:, None]
        else:
            R[:, mine] = _polar(_rings(rest, poses, faces)[:, mine])
    w = np.roll(Rotation.from_matrix(R.reshape(-1, 3, 3)).as_quat(), 1, axis=1).reshape(*R.shape[:2], 4)
    return np.where(w[..., :1] < 0, -w, w)


def _rings(rest: np.ndarray, poses: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """[p,v,3,3] sums over the triangles at each vertex of edges there times edges at rest; normals count as edges, as
    a flat ring says nothing of what stands on it, and a bent needle not how it is turned about itself."""

    def frames(x: np.ndarray) -> np.ndarray:  # [...,f,3 edges,3]
        a, b, c = (x[..., faces[:, i], :] for i in range(3))
        up = np.cross(b - a, c - a)
        area = np.linalg.norm(up, axis=-1, keepdims=True)
        return np.stack([b - a, c - a, up / np.sqrt(np.maximum(area, 1e-24))], axis=-2)

    per = np.einsum("pfei,fej->pfij", frames(poses), frames(rest))
    out = np.zeros((len(rest), len(poses), 3, 3))
    for i in range(3):
        np.add.at(out, faces[:, i], per.swapaxes(0, 1))
    return out.swapaxes(0, 1)


def _polar(A: np.ndarray) -> np.ndarray:
    """The nearest rotations to matrices [...,3,3]."""
    u, _, vt = np.linalg.svd(A)
    u[..., :, 2] *= np.linalg.det(u @ vt)[..., None]
    return u @ vt
