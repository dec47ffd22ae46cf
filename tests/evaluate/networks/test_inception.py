"""Our Inception against torch-fidelity 0.4.0 with the random state below; their outputs differed by 2e-6 at most."""

from __future__ import annotations

import numpy as np
import pytest
from evaluate.learned import smooth

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402

from kinema4d.evaluate import weights  # noqa: E402
from kinema4d.evaluate.networks import resize_tf1  # noqa: E402
from kinema4d.evaluate.networks.inception import Inception  # noqa: E402

REFERENCE = {
    (96, 144): ((0.05821086838841438, 0.0, 0.5122404098510742, 0.23551063239574432), 0.49252015352249146, 52.0321006),
    (301, 150): ((0.058912716805934906, 0.0, 0.5110607147216797, 0.2351229190826416), 0.4916260242462158, 51.9336280),
}
"""Image size: torch-fidelity's first four features of the first image; mean and length over two images."""


def random_state() -> dict[str, Tensor]:
    rng = np.random.Generator(np.random.PCG64(7))
    out = {}
    for key, shape in sorted(weights.expected("inception").items()):
        if key.endswith("conv.weight"):
            values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        elif key.endswith(("running_var", "bn.weight")):
            values = rng.uniform(0.8, 1.2, shape)
        else:
            values = rng.standard_normal(shape) * 0.1
        out[key] = torch.from_numpy(values.astype(np.float32))
    return out


@pytest.fixture(scope="module")
def net() -> Inception:
    built = Inception()
    built.load_state_dict(random_state(), strict=False)
    return built


@pytest.mark.parametrize(("height", "width"), REFERENCE)
def test_agrees_with_torch_fidelity(net: Inception, height: int, width: int):
    images = torch.from_numpy(smooth(height, width, 4)).movedim(-1, 1)
    with torch.inference_mode():
        got = net(images)
    first, mean, length = REFERENCE[height, width]
    assert got.shape == (2, 2048)
    np.testing.assert_allclose(got[0, :4], first, rtol=1e-4, atol=1e-6)
    assert float(got.mean()) == pytest.approx(mean, rel=1e-5)
    assert float(got.norm()) == pytest.approx(length, rel=1e-5)


def test_the_state_has_the_keys_of_the_published_file():
    keys = set(weights.expected("inception"))
    assert len(keys) == 94 * 5  # 94 convolutions, each with a batch norm
    assert {
        "Conv2d_1a_3x3.conv.weight",
        "Mixed_5b.branch5x5_2.bn.running_mean",
        "Mixed_6a.branch3x3dbl_3.bn.bias",
        "Mixed_6e.branch7x7dbl_5.conv.weight",
        "Mixed_7a.branch7x7x3_4.bn.weight",
        "Mixed_7c.branch3x3dbl_3b.conv.weight",
        "Mixed_7c.branch_pool.bn.running_var",
    } <= keys


def test_resizing_reads_as_tensorflow_1_does():
    """Pixel i of the result reads at i * old / new: no half-pixel shift, the last pixel repeats."""
    row = torch.tensor([0.0, 10.0, 20.0, 30.0]).reshape(1, 1, 1, 4)
    assert resize_tf1(row, 1, 8).flatten().tolist() == [0, 5, 10, 15, 20, 25, 30, 30]
    assert resize_tf1(row, 1, 2).flatten().tolist() == [0, 20]
    assert resize_tf1(row.reshape(1, 1, 4, 1), 6, 1).flatten().tolist() == pytest.approx(
        [0, 20 / 3, 40 / 3, 20, 80 / 3, 30], abs=1e-4
    )


def test_other_shapes_are_refused(net: Inception):
    with pytest.raises(ValueError, match=r"\[n, 3, h, w\]"):
        net(torch.zeros(1, 1, 32, 32))
