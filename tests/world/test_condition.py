"""Conditioning pieces: normalisation and back, soft mask, latent mask, disturbances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d.types import Pointmap
from kinema4d.world.condition import (
    DISTURBANCES,
    denormalise,
    disturb,
    latent_mask,
    normalise,
    soft_mask,
)


def blob(frames=9, height=48, width=64, seed=0) -> Pointmap:
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[:height, :width]
    valid = np.stack([(u - 30 - t) ** 2 + (v - 22) ** 2 < 144 for t in range(frames)])
    points = rng.uniform(-1, 1, (frames, height, width, 3)).astype(np.float32) + np.array([0, 0, 2], np.float32)
    return Pointmap(points=np.where(valid[..., None], points, np.float32(0)), valid=valid)


@pytest.mark.parametrize("per_axis", [True, False])
def test_normalisation_spans_the_sequence_and_inverts(per_axis):
    p = blob()
    values, scale = normalise(p, per_axis=per_axis)
    inside = values[p.valid]
    assert inside.min() == 0
    assert inside.max() == pytest.approx(1, abs=1e-6)
    if per_axis:
        np.testing.assert_allclose(inside.max(axis=0), 1, atol=1e-6)
    else:
        assert (scale.minimum == scale.minimum[0]).all()  # one scale: shapes keep their proportions
    assert (values[~p.valid] == 0).all()
    back = denormalise(values, p.valid, scale)
    np.testing.assert_allclose(back.points, p.points, atol=1e-6)


@given(st.floats(0.2, 5), st.floats(-3, 3))
def test_normalised_frame_is_affine_invariant(factor, shift):
    p = blob(frames=2)
    moved = Pointmap(points=(p.points * np.float32(factor) + np.float32(shift)), valid=p.valid)
    np.testing.assert_allclose(normalise(p)[0], normalise(moved)[0], atol=1e-4)


def test_flat_and_empty_sequences():
    p = blob(frames=2)
    flat = Pointmap(points=np.full_like(p.points, 1.5), valid=p.valid)
    values, scale = normalise(flat)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(scale.invert(values)[p.valid], 1.5, atol=1e-5)
    with pytest.raises(ValueError, match="sees no robot"):
        normalise(Pointmap(points=p.points, valid=np.zeros_like(p.valid)))


def test_soft_mask_softens_exactly_a_tenth_and_repeats_by_seed():
    mask = blob().valid
    soft = soft_mask(mask, seed=3)
    assert set(np.unique(soft)) == {0.0, 0.5, 1.0}
    assert (soft == 0.5).sum() == round(0.1 * mask.sum())
    assert (soft[~mask] == 0).all()
    np.testing.assert_array_equal(soft, soft_mask(mask, seed=3))
    assert (soft != soft_mask(mask, seed=4)).any()
    assert set(np.unique(soft_mask(mask, seed=0, ratio=0.0))) == {0.0, 1.0}
    with pytest.raises(ValueError, match="between 0 and 1, got 1.5"):
        soft_mask(mask, seed=0, ratio=1.5)


def test_latent_mask_follows_the_causal_rate():
    mask = np.zeros((49, 480, 720), bool)
    mask[0, 8, 16] = True  # frame 0 alone
    mask[4, 16, 24] = True  # last of the first group 1..4
    mask[5, 24, 32] = True  # first of the second group
    mask[48, 32, 40] = True
    mask[7, 33, 41] = True  # between the sampled pixels
    small = latent_mask(mask)
    assert small.shape == (13, 60, 90)
    assert {tuple(i) for i in np.argwhere(small)} == {(0, 1, 2), (1, 2, 3), (2, 3, 4), (12, 4, 5)}
    with pytest.raises(ValueError, match="1 .* 4k frames and sides divisible by 8, got 50x480x720; use 49 frames"):
        latent_mask(np.zeros((50, 480, 720), bool))


def test_latent_mask_is_torch_nearest():
    rng = np.random.default_rng(0)
    mask = rng.random((5, 48, 64)) < 0.3
    rows, columns = (np.floor(np.arange(n) * 8).astype(int) for n in (6, 8))
    expected = mask[:, rows][:, :, columns]
    np.testing.assert_array_equal(latent_mask(mask)[0], expected[0])
    np.testing.assert_array_equal(latent_mask(mask)[1], expected[1:5].max(axis=0))


def test_disturbances_do_what_the_paper_says():
    p = blob()
    removed = disturb(p, "remove", seed=0)
    assert (p.valid & ~removed.valid).sum() == round(0.05 * p.valid.sum())
    assert not (removed.valid & ~p.valid).any()
    noisy = disturb(p, "gaussian", seed=0)
    np.testing.assert_array_equal(noisy.valid, p.valid)
    assert (noisy.points - p.points)[p.valid].std() == pytest.approx(0.01, rel=0.05)
    assert (noisy.points[~p.valid] == 0).all()
    shifts = set()
    for seed in range(40):
        moved = disturb(p, "translate", seed=seed)
        dv, du = np.argwhere(moved.valid[0]).mean(axis=0) - np.argwhere(p.valid[0]).mean(axis=0)
        shifts.add((round(du), round(dv)))
        assert abs(du) <= 5
        assert abs(dv) <= 5
        v, u = np.argwhere(moved.valid[0])[0]
        np.testing.assert_array_equal(moved.points[0, v, u], p.points[0, v - round(dv), u - round(du)])
    assert len(shifts) > 15
    bar = np.zeros((1, 101, 101), bool)
    bar[0, 48:53, 10:91] = True
    stick = Pointmap(points=np.ones((1, 101, 101, 3), np.float32), valid=bar)
    angles = []
    for seed in range(30):
        turned = disturb(stick, "rotate", seed=seed)
        rows, columns = np.nonzero(turned.valid[0])
        angles.append(np.degrees(np.arctan(np.polyfit(columns, rows, 1)[0])))
    assert max(np.abs(angles)) <= 5.1
    assert max(angles) > 3
    assert min(angles) < -3


def test_disturbances_repeat_by_seed_and_unknown_ones_are_named():
    p = blob(frames=2)
    for kind in DISTURBANCES:
        a, b = (disturb(p, kind, seed=7) for _ in range(2))
        np.testing.assert_array_equal(a.points, b.points)
    with pytest.raises(ValueError, match="unknown disturbance 'melt'; known are remove, gaussian, translate, rotate"):
        disturb(p, "melt", seed=0)
