from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluate.learned import KINDS, clip_of, degraded, generated, need, smooth
from scipy.linalg import sqrtm

from kinema4d.evaluate import frechet, weights
from kinema4d.evaluate.score import NA


def by_matrix_root(a: np.ndarray, b: np.ndarray) -> float:
    """The textbook formula."""
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = np.real(sqrtm(ca @ cb))
    return float(np.square(a.mean(0) - b.mean(0)).sum() + np.trace(ca + cb - 2 * root))


@pytest.mark.parametrize(("n", "m"), [(200, 300), (40, 25), (30, 500)])
def test_agrees_with_the_matrix_root(n: int, m: int):
    rng = np.random.default_rng(n)
    mix = rng.normal(size=(12, 12))
    a = rng.normal(size=(n, 12)) @ mix
    b = rng.normal(size=(m, 12)) * np.linspace(0.5, 2, 12) + 0.3
    assert frechet.frechet_distance(a, b) == pytest.approx(by_matrix_root(a, b), rel=1e-8)


def test_two_gaussians_by_hand():
    """In one dimension: (difference of means)² + (difference of deviations)²; independent dimensions add up."""
    a = np.array([[-1.0], [1.0]]) / np.sqrt(2)  # mean 0, deviation 1
    b = 5 + 3 * a
    assert frechet.frechet_distance(a, b) == pytest.approx(5**2 + 2**2)
    cross = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]]) * np.sqrt(3 / 2)  # both deviations 1, uncorrelated
    assert frechet.frechet_distance(cross, cross * [2, 4] + [1, 1]) == pytest.approx(1 + 9 + 2)


def test_fewer_samples_than_dimensions():
    """Both sets in a three-dimensional subspace of 400: rotating them there changes nothing."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3)), rng.normal(size=(6, 3)) * 2 + 1
    turn = np.linalg.qr(rng.normal(size=(400, 3)))[0].T
    assert frechet.frechet_distance(a @ turn, b @ turn) == pytest.approx(by_matrix_root(a, b), rel=1e-7)
    assert frechet.frechet_distance(a @ turn, a @ turn) == pytest.approx(0, abs=1e-12)
    assert frechet.frechet_distance(a, b) == pytest.approx(frechet.frechet_distance(b, a))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (np.zeros((1, 4)), np.zeros((3, 4)), "at least 2 samples, got 1"),
        (np.zeros((3, 4)), np.zeros((3, 5)), "one length, got 4 and 5"),
        (np.full((3, 4), np.nan), np.zeros((3, 4)), "non-finite"),
    ],
)
def test_refuses_what_has_no_distance(a: np.ndarray, b: np.ndarray, said: str):
    with pytest.raises(ValueError, match=said):
        frechet.frechet_distance(a, b)


def test_more_degradation_never_looks_more_like_the_truth():
    need("i3d")
    rgb = generated()
    truth = [rgb[i : i + 9] for i in (4, 24)]
    true = _rows("fvd", truth)
    for kind in KINDS:
        values = [0.0]
        for amount in (1, 3):
            worse = _rows("fvd", [degraded(clip, kind, amount) for clip in truth])
            values.append(frechet.frechet_distance(worse, true))
        assert (np.diff(values) > 0).all(), (kind, values)


def test_the_substitute_falls_with_degradation_too():
    need("lpips_alex")
    rgb = generated()
    truth = [rgb[i : i + 4] for i in (4, 18, 32)]
    true = _rows("fd_alexnet", truth)
    assert true.shape == (9, 256)
    for kind in KINDS:
        values = [0.0]
        for amount in (1, 2, 3):
            worse = _rows("fd_alexnet", [degraded(clip, kind, amount) for clip in truth])
            values.append(frechet.frechet_distance(worse, true))
        assert (np.diff(values) > 0).all(), (kind, values)


def _rows(name: str, clips: list[np.ndarray]) -> np.ndarray:
    found = [frechet.features(name, clip_of(clip)) for clip in clips]
    return np.concatenate([rows for rows in found if not isinstance(rows, NA)])


def test_sets_of_clips():
    need("lpips_alex")
    a = [clip_of(smooth(40, 48, seed, 3)) for seed in (1, 2, 3)]
    b = [clip_of(smooth(40, 48, seed, 3)) for seed in (4, 5, 6)]
    assert frechet.fd_alexnet(a, a) == pytest.approx(0, abs=1e-6)
    value = frechet.fd_alexnet(a, b)
    assert isinstance(value, float)
    assert value > 1
    assert frechet.fd_alexnet(a[:1], b) == NA("needs at least 2 clips, got 1")
    assert frechet.distance(np.zeros((40, 3)), np.zeros((40, 3)), clips=1) == NA("needs at least 2 clips, got 1")
    assert frechet.distance(np.zeros((1, 3)), np.zeros((1, 3))) == NA("needs at least 2 clips, got 1")


def test_clips_without_features_say_why(tmp_path: Path):
    clip = clip_of(smooth(24, 32, 1, 3))
    if weights.find("i3d"):
        assert frechet.features("fvd", clip) == NA("I3D needs at least 9 frames, the clip has 3")
    if weights.find("lpips_alex"):
        assert frechet.features("fd_alexnet", clip) == NA("the image is 24x32 and AlexNet needs 31x31 pixels")
    assert frechet.features("fvd", clip, folder=tmp_path) == NA("weights absent: run: kinema4d weights --fetch i3d")
    with pytest.raises(ValueError, match="fvd, fid, fd_alexnet"):
        frechet.features("kid", clip)


def test_fid_without_its_weights_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    clips = [clip_of(smooth(40, 48, seed, 3)) for seed in (1, 2)]
    value = frechet.fid(clips, clips, folder=tmp_path)
    assert isinstance(value, NA)
    assert "weights absent: put pt_inception-2015-12-05-6726825d.pth into" in value.reason


def test_frames_go_through_inception(monkeypatch: pytest.MonkeyPatch):
    """With random weights: the real ones are nobody's to ship."""
    torch = pytest.importorskip("torch")
    from kinema4d.evaluate.networks.inception import Inception

    torch.manual_seed(0)
    net = Inception()
    monkeypatch.setattr(weights, "load_network", lambda name, folder=None: net)
    found = frechet.inception_features(clip_of(smooth(40, 48, 1, 3)))
    assert found.shape == (3, 2048)
    assert found.dtype == np.float32


def test_i3d_sees_frames_at_its_own_size():
    need("i3d")
    found = frechet.i3d_features(clip_of(smooth(40, 60, 1, 9)))
    assert found.shape == (400,)
    assert np.isfinite(found).all()
