"""Nearest neighbours: exact against brute force and SciPy, whatever the points look like."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]

from kinema4d.evaluate.neighbours import compare_frames, nearest_distances, pointmap_distances

SIZES = (1, 2, 7, 8, 9, 63, 64, 65, 511, 513, 4097)


def brute(a, b):
    """Slow and obvious."""
    return np.array([np.sqrt(((b.astype(np.float64) - p) ** 2).sum(1)).min() for p in a.astype(np.float64)])


def scipy(a, b):
    return cKDTree(b.astype(np.float64)).query(a.astype(np.float64))[0]


def surface(rng, height=60, width=90):
    """A tabletop of sorts: a tilted plane with a box on it and a wall behind."""
    v, u = np.mgrid[:height, :width]
    z = 1.5 - 0.6 * v / height
    z[20:40, 30:50] -= 0.2
    z[:12] = 2.5
    z = z + 0.001 * rng.normal(size=z.shape)
    return np.stack([(u - width / 2) / width * z, (v - height / 2) / width * z, z], -1).astype(np.float32)


def shapes(rng):
    """Pairs that grids, hints or splits could stumble over."""
    a = surface(rng)
    wild = a.copy()
    far = rng.random(a.shape[:2]) < 0.01
    wild[far] = rng.normal(0, 1000, (far.sum(), 3))
    mixed = a.copy()
    mixed[::2] *= np.float32(1e6)
    line = np.zeros_like(a)
    line[..., 0] = rng.random(a.shape[:2])
    coarse = np.round(a, 1)
    return {
        "itself": a,
        "noise": a + rng.normal(0, 0.005, a.shape).astype(np.float32),
        "rolled": np.roll(a, 2, axis=1),
        "shifted": a + np.array([0.3, 0, 0], np.float32),
        "deeper": a + np.array([0, 0, 0.3], np.float32),
        "scaled": 2 * a,
        "box": rng.uniform(-1, 3, a.shape).astype(np.float32),
        "one place": np.broadcast_to(a[3, 3], a.shape),
        "two places": np.where(rng.random(a.shape[:2])[..., None] < 0.5, a[0, 0], a[-1, -1]),
        "outliers": wild,
        "two worlds": mixed,
        "line": line,
        "many equal": coarse,
        "upside down": a[::-1],
        "tiny": a * np.float32(1e-20),
        "huge": a * np.float32(1e15),
    }


@pytest.mark.parametrize("name", list(shapes(np.random.default_rng(0))))
def test_pointmaps_agree_with_scipy(name):
    rng = np.random.default_rng(1)
    a, b = surface(rng), shapes(rng)[name]
    for share in (1.0, 0.6, 0.01):
        a_valid, b_valid = rng.random(a.shape[:2]) <= share, rng.random(a.shape[:2]) <= share
        ab, ba = pointmap_distances(a, a_valid, b, b_valid)
        for found, expected in ((ab, scipy(a[a_valid], b[b_valid])), (ba, scipy(b[b_valid], a[a_valid]))):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9 if name != "tiny" else 0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lists_of_any_length_agree_with_brute_force(n, dtype):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(97, 3)).astype(dtype), rng.normal(size=(n, 3)).astype(dtype)
    np.testing.assert_allclose(nearest_distances(a, b), brute(a, b), rtol=1e-14, atol=1e-15)
    back = rng.permutation(n)[:50]
    np.testing.assert_allclose(nearest_distances(b[back], a), brute(b[back], a), rtol=1e-14, atol=1e-15)


coordinates = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5]), st.floats(-1e3, 1e3, width=32), st.floats(-(2.0**-10), 2.0**-10, width=32)
)
clouds = st.lists(st.tuples(coordinates, coordinates, coordinates), min_size=1, max_size=80)


@settings(max_examples=150, deadline=None)
@given(clouds, clouds, st.integers(0, 2**32 - 1))
def test_anything_agrees_with_brute_force_with_and_without_hints(a, b, seed):
    a, b = np.array(a, np.float32), np.array(b, np.float32)
    expected = brute(a, b)
    hint = np.random.default_rng(seed).integers(-1, len(b), len(a))
    np.testing.assert_allclose(nearest_distances(a, b), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(nearest_distances(a, b, hint), expected, rtol=1e-12, atol=1e-12)


def test_the_order_of_points_does_not_matter():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(1000, 3)), rng.normal(size=(2000, 3))
    order = rng.permutation(1000)
    found = nearest_distances(a, b)
    np.testing.assert_array_equal(nearest_distances(a[order], b[rng.permutation(2000)]), found[order])


def test_sorted_points_and_organ_pipes_are_split_without_trouble():
    x = np.arange(5000, dtype=np.float32)
    for values in (x, x[::-1], np.minimum(x, 5000 - x), x % 7, np.where(x < 4990, 0, x)):
        b = np.stack([values, np.zeros_like(x), np.zeros_like(x)], 1)
        a = b[::10] + np.float32(0.25)
        np.testing.assert_allclose(nearest_distances(a, b), scipy(a, b), rtol=1e-12)


def test_any_number_of_threads_gives_the_same_bits():
    rng = np.random.default_rng(3)
    a = np.stack([surface(rng) for _ in range(5)])
    b = a + rng.normal(0, 0.004, a.shape).astype(np.float32)
    valid = np.ones(a.shape[:3], bool)
    found = [
        compare_frames(range(5), lambda i: (a[i], valid[i]), lambda i: (b[i], valid[i]), 0.01, threads=n)
        for n in (1, 2, 3, 7)
    ]
    assert found[0] == found[1] == found[2] == found[3]


def test_reused_room_does_not_remember_the_frame_before():
    rng = np.random.default_rng(4)
    full, few = np.ones((60, 90), bool), rng.random((60, 90)) < 0.02
    a, b = surface(rng), surface(rng) + np.float32(0.01)
    masks = [full, few, full, few]
    found = compare_frames(range(4), lambda i: (a, masks[i]), lambda i: (b, masks[3 - i]), 0.01, threads=1)
    for i, (ab, ba) in enumerate(found):
        assert ab.mean == pytest.approx(scipy(a[masks[i]], b[masks[3 - i]]).mean(), rel=1e-12)
        assert ba.mean == pytest.approx(scipy(b[masks[3 - i]], a[masks[i]]).mean(), rel=1e-12)


def test_no_shape_is_catastrophic():
    """Each within a few seconds on a busy machine: a search that visits everything would take minutes."""
    rng = np.random.default_rng(5)
    v = np.ones((160, 240), bool)
    a = surface(rng, 160, 240)
    cases = {"same": np.broadcast_to(a[5, 5], a.shape), "noise": rng.uniform(-1, 3, a.shape).astype(np.float32)}
    cases |= {"deeper": a + np.array([0, 0, 0.3], np.float32), "scaled": 2 * a}
    cases["worlds"] = np.where(rng.random(v.shape)[..., None] < 0.5, a, rng.normal(0, 1e6, a.shape)).astype(np.float32)
    pointmap_distances(a, v, a + np.float32(0.1), v)
    for name, b in cases.items():
        start = time.thread_time()
        pointmap_distances(a, v, b, v)
        assert time.thread_time() - start < 3, name


def test_bad_input_is_named():
    a = np.zeros((3, 3))
    with pytest.raises(ValueError, match="no points"):
        nearest_distances(a, np.zeros((0, 3)))
    assert len(nearest_distances(np.zeros((0, 3)), a)) == 0
    with pytest.raises(ValueError, match="not finite"):
        nearest_distances(a, np.array([[0, 0, np.nan]]))
    with pytest.raises(ValueError, match="hint must hold 3 indices from -1 to 2"):
        nearest_distances(a, a, np.array([0, 1, 3]))
    points, valid = np.zeros((2, 2, 2, 3), np.float32), np.ones((2, 2, 2), bool)
    points[1, 0, 1, 2] = np.inf
    with pytest.raises(ValueError, match="frame 1: the point at row 0, column 1 is not finite"):
        compare_frames([0, 1], lambda i: (points[i], valid[i]), lambda i: (points[0], valid[0]), 0.01)
    with pytest.raises(ValueError, match="frame 0: there is no nearest neighbour among no points"):
        compare_frames([0], lambda i: (points[0], valid[0]), lambda i: (points[0], ~valid[0]), 0.01)
