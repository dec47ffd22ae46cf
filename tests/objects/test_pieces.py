"""Pieces that follow screws: the batched form agrees with the plain one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
from torch import Tensor

from kinema4d.objects.pieces import advanced, carried
from kinema4d.objects.screws import exponential, product, screwed

B, P, C, M, K = 2, 3, 4, 5, 3


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x, twists = torch.randn(B, C, M, 3, generator=g).double() / 2, torch.randn(B, C, K, 6, generator=g).double()
    return x, twists, torch.randn(B, P, K, generator=g).double() / 2


def test_they_are_where_the_plain_product_of_screws_has_them():
    x, twists, q = drawn()
    turn, shift = exponential(twists)
    torch.testing.assert_close(x[:, :, :K] @ turn[:, :, 0].transpose(-1, -2) + shift[:, :, 0, None], screwed(x[:, :, :K], twists[:, :, None, 0]))  # fmt: skip
    y, slopes = carried(x, twists, q)
    for b in range(B):
        every = twists[b].repeat_interleave(M, 0)  # a point has the screws of its piece
        want = product(x[b].flatten(0, 1), every, q[b])
        torch.testing.assert_close(y[b].flatten(1, 2), want)
    ways = torch.eye(K).double()
    for j in range(K):
        slope = torch.func.jvp(lambda v: carried(x, twists, v)[0], (q,), (ways[j].expand(B, P, K),))[1]
        torch.testing.assert_close(slopes[..., j], slope)
    now, turn, shift = advanced(twists, q)  # screws where those before them have brought them
    torch.testing.assert_close(y, x[:, None] @ turn.transpose(-1, -2) + shift[..., None, :])
    w, v = now[..., 1, None, :3], now[..., 1, None, 3:]
    torch.testing.assert_close(slopes[..., 1], torch.linalg.cross(w.expand_as(y), y) + v)


def test_pieces_without_coordinates_stay():
    x, twists, q = drawn(1)
    y, slopes = carried(x, twists[:, :, :0], q[..., :0])
    torch.testing.assert_close(y, x[:, None].expand_as(y))
    assert slopes.shape == (*y.shape, 0)
    assert advanced(twists[:, :, :0], q[..., :0])[0].shape == (B, P, C, 0, 6)
