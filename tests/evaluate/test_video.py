from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from evaluate.pairs import small_pair
from scipy.ndimage import gaussian_filter, shift
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from kinema4d.evaluate import video
from kinema4d.evaluate.score import NA, Pair


def degraded(rgb: np.ndarray, kind: str, amount: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "blur":
        return gaussian_filter(rgb.astype(np.float64), (0, amount, amount, 0)).round().astype(np.uint8)
    if kind == "noise":
        return np.clip(rgb + rng.normal(0, 10 * amount, rgb.shape), 0, 255).round().astype(np.uint8)
    if kind == "shift":
        return shift(rgb, (0, 0, amount, 0), order=0, mode="nearest")
    return rgb[np.maximum(np.arange(len(rgb)) - round(amount), 0)]  # delay


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_scikit_image(seed: int):
    rng = np.random.default_rng(seed)
    a = gaussian_filter(rng.uniform(0, 255, (40, 60, 3)), (1, 1, 0)).astype(np.uint8)
    b = np.clip(a + rng.normal(0, 12, a.shape), 0, 255).astype(np.uint8)
    assert video.psnr(a, b) == pytest.approx(peak_signal_noise_ratio(a, b, data_range=255), abs=1e-9)
    theirs = structural_similarity(
        a, b, data_range=255, channel_axis=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert video.ssim(a, b) == pytest.approx(theirs, abs=1e-9)


def test_hand_computed():
    a = np.zeros((12, 12, 3), np.uint8)
    assert video.psnr(a, a + np.uint8(255)) == pytest.approx(0.0)
    assert video.psnr(a, a + np.uint8(1)) == pytest.approx(20 * np.log10(255))
    assert video.psnr(a, a) == video.PSNR_CAP
    assert video.ssim(a, a) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["blur", "noise", "shift", "delay"])
def test_more_of_a_fault_never_scores_better(kind: str):
    pair = small_pair()
    series = []
    for amount in (0, 1, 2, 4):
        rgb = degraded(pair.truth.clip.rgb, kind, amount) if amount else pair.truth.clip.rgb
        series.append(video.scores(replace(pair, predicted=replace(pair.predicted, rgb=rgb))))
    for name in ("psnr", "ssim"):
        values = [s[name] for s in series]
        assert all(isinstance(v, float) for v in values)
        assert values == sorted(values, reverse=True), (name, values)  # pyright: ignore[reportArgumentType]
        assert values[0] > values[-1]  # pyright: ignore[reportOperatorIssue]


def test_a_mask_chooses_pixels_and_an_empty_one_is_no_score():
    a = np.zeros((2, 4, 4, 3), np.uint8)
    b = a.copy()
    b[0, 0, 0] = 255
    mask = np.zeros((2, 4, 4), bool)
    assert isinstance(video.masked_psnr(a, b, mask), NA)
    mask[0, 0, 0] = True
    assert video.masked_psnr(a, b, mask) == pytest.approx(0.0)
    assert isinstance(video.masked_psnr(a, b, mask, least=2), NA)


def test_too_small_or_too_short_is_no_score():
    with pytest.raises(ValueError, match="at least 11x11"):
        video.ssim(np.zeros((10, 20, 3), np.uint8), np.zeros((10, 20, 3), np.uint8))
    pair = small_pair(height=8, width=24)
    assert isinstance(video.scores(pair)["ssim"], NA)
    assert isinstance(video.scores(pair)["psnr"], float)
    one = small_pair(frames=1)
    assert all(isinstance(v, NA) for v in video.scores(one).values())


def test_pairs_that_do_not_match_are_refused():
    pair = small_pair()
    with pytest.raises(ValueError, match=r"prediction has \d+ frames and its truth"):
        Pair(predicted=small_pair(frames=3).predicted, truth=pair.truth)
    with pytest.raises(ValueError, match="same pixels"):
        Pair(predicted=small_pair(height=30).predicted, truth=pair.truth)
    camera = pair.predicted.camera
    moved = camera.T_world_camera.copy()
    moved[0, 3] += 0.01
    with pytest.raises(ValueError, match="different cameras: T_world_camera differs by up to 0.01"):
        Pair(
            predicted=replace(pair.predicted, camera=replace(camera, T_world_camera=moved)),
            truth=pair.truth,
        )
