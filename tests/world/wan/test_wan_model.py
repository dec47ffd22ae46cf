"""The fast model against a plain one from the fact sheet of the release."""

from __future__ import annotations

import pytest

pytest.importorskip("diffusers", reason="the full-scale model needs diffusers: pip install 'kinema4d[wan]'")
import torch
import wan_reference as reference
from wan_cases import an_input

from kinema4d.world.wan.model import Variant
from kinema4d.world.wan.tiny import WAN, transformer

HEADS = WAN["num_attention_heads"]


@pytest.mark.parametrize("variant", ["act", "pmcond"])
def test_it_is_the_release_to_rounding(variant: Variant):
    model = transformer(variant)
    x, time, arm, image = an_input(variant)
    with torch.no_grad():
        fast = model(x, time, arm, image)
        slow = reference.forward(dict(model.state_dict()), x.clone(), time, arm, image, variant=variant, heads=HEADS)
    assert fast.shape == (2, 16, 3, 6, 12)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
