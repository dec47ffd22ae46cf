from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluate.learned import KINDS, degraded, generated, need, pair_of, smooth

from kinema4d.evaluate import perceptual
from kinema4d.evaluate.score import NA, value_or


@pytest.mark.parametrize("network", perceptual.NETWORKS)
def test_more_degradation_never_looks_better(network: str):
    need(f"lpips_{network}")
    truth = generated()[8:16:2, 16:80, 40:104]
    for kind in KINDS:
        values = [0.0]
        for amount in (1, 2, 3):
            pair = pair_of(degraded(truth, kind, amount), truth)
            value = perceptual.scores(pair, networks=(network,))[f"lpips_{network}"]
            assert isinstance(value, float)
            values.append(value)
        assert (np.diff(values) > -1e-9).all(), (kind, values)
        assert values[-1] > 0.02, kind


def test_the_truth_has_no_distance_and_a_still_clip_is_the_smoothest():
    need("lpips_alex")
    clip = smooth(48, 64, 5, 4)
    assert perceptual.scores(pair_of(clip, clip), networks=("alex",))["lpips_alex"] == 0
    still = np.repeat(clip[:1], 4, axis=0)
    scored = perceptual.scores(pair_of(still, clip), networks=("alex",))
    assert scored["lpips_alex_temp"] == 0
    assert value_or(scored, "lpips_alex", 0.0) > 0.1  # which is why smoothness alone says little


def test_the_given_frame_does_not_count():
    need("lpips_alex")
    a, b = smooth(48, 64, 1, 3), smooth(48, 64, 2, 3)
    worse = a.copy()
    worse[0] = b[0]
    assert perceptual.scores(pair_of(worse, a), networks=("alex",))["lpips_alex"] == 0


def test_batches_do_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch):
    need("lpips_alex")
    a, b = smooth(40, 48, 1, 7), smooth(40, 48, 2, 7)
    whole = perceptual.distances(a, b, temporal=True)
    monkeypatch.setattr(perceptual, "BATCH_PIXELS", 3 * 40 * 48)
    parts = perceptual.distances(a, b, temporal=True)
    assert whole[1] is not None
    assert parts[1] is not None
    assert whole[0].shape == (7,)
    assert whole[1].shape == (6,)
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-5)
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-5)
    np.testing.assert_allclose(perceptual.distances(a[:-1], a[1:])[0], whole[1], rtol=1e-5)


def test_without_weights_there_is_no_score_but_a_reason(tmp_path: Path):
    clip = smooth(48, 64, 1)
    scored = perceptual.scores(pair_of(clip, clip), folder=tmp_path)
    assert set(scored) == set(perceptual.METRICS)
    for name, value in scored.items():
        assert isinstance(value, NA)
        assert "weights absent" in value.reason
        assert f"kinema4d weights --fetch {name.removesuffix('_temp')}" in value.reason


def test_small_images_and_single_frames_have_no_score():
    need("lpips_alex")
    need("lpips_vgg")
    small = smooth(24, 64, 1)
    scored = perceptual.scores(pair_of(small, small))
    assert scored["lpips_alex"] == NA("the image is 24x64 and AlexNet needs 31x31 pixels")
    assert scored["lpips_vgg"] == 0
    one = smooth(48, 64, 1, 1)
    assert all(isinstance(v, NA) and "one frame" in v.reason for v in perceptual.scores(pair_of(one, one)).values())


def test_only_what_is_asked_for():
    clip = smooth(24, 32, 1)
    assert list(perceptual.scores(pair_of(clip, clip), networks=("vgg",))) == ["lpips_vgg"]
    with pytest.raises(ValueError, match="alex, vgg"):
        perceptual.scores(pair_of(clip, clip), networks=("squeeze",))
    with pytest.raises(ValueError, match="one shape"):
        perceptual.distances(clip, clip[:1])
