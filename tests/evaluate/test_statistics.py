"""Intervals cover, tests agree with SciPy, and few values give no number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kinema4d.evaluate.score import NA
from kinema4d.evaluate.statistics import Paired, bootstrap_interval, holm, paired, rate_interval, wilson


def _interval(values, **options) -> tuple[float, float]:
    found = bootstrap_interval(values, **options)
    assert not isinstance(found, NA)
    return found


def _coverage(make, truth: float, trials: int = 300, **options) -> float:
    hits = 0
    for trial in range(trials):
        values, groups = make(np.random.default_rng(trial))
        low, high = _interval(values, groups=groups, resamples=500, **options)
        hits += low <= truth <= high
    return hits / trials


@pytest.mark.parametrize("n", [8, 40])
def test_the_interval_of_a_mean_covers(n):
    assert 0.91 <= _coverage(lambda rng: (rng.normal(3, 2, n), None), 3) <= 0.985


@pytest.mark.parametrize("n", [9, 40])
def test_the_interval_of_a_median_covers_skewed_values(n):
    assert 0.91 <= _coverage(lambda rng: (rng.lognormal(0, 1, n), None), 1, statistic="median") <= 0.99


def test_a_skewed_mean_is_covered_less_but_not_little():
    assert 0.85 <= _coverage(lambda rng: (rng.lognormal(0, 1, 40), None), np.exp(0.5)) <= 0.97


def test_groups_are_resampled_whole():
    def scenes(rng):
        return np.repeat(rng.normal(0, 1, 12), 5) + rng.normal(0, 0.2, 60), np.repeat(np.arange(12), 5).tolist()

    assert 0.9 <= _coverage(scenes, 0) <= 0.985
    assert _coverage(lambda rng: (scenes(rng)[0], None), 0) < 0.75  # the mistake that groups prevent
    assert 0.88 <= _coverage(scenes, 0, statistic="median") <= 0.99


def test_the_interval_against_a_plain_loop():
    rng = np.random.default_rng(3)
    values, groups = rng.gamma(2, 1, 41), rng.integers(0, 30, 41).tolist()
    names = list(dict.fromkeys(groups))
    members = [values[[g == name for g in groups]] for name in names]
    for statistic, function in (("mean", np.mean), ("median", np.median)):
        drawn = np.random.default_rng(7).integers(0, len(names), (400, len(names)), dtype=np.int32)
        found = [function(np.concatenate([members[i] for i in row])) for row in drawn]
        g = len(names)
        tail = stats.norm.cdf(-np.sqrt(g / (g - 1)) * stats.t.ppf(0.975, g - 1))
        expected = np.quantile(found, [tail, 1 - tail])
        np.testing.assert_allclose(
            _interval(values, groups=groups, statistic=statistic, resamples=400, seed=7), expected, rtol=1e-12
        )


def test_with_many_values_the_interval_is_the_usual_one():
    values = np.random.default_rng(0).normal(0, 1, 4000)
    low, high = _interval(values)
    half = 1.96 * values.std(ddof=1) / np.sqrt(4000)
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_intervals_are_repeatable_and_ordered_by_level():
    values = np.random.default_rng(0).normal(0, 1, 30)
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)
    narrow, wide = _interval(values, level=0.5), _interval(values, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_few_values_have_no_interval():
    for values, groups, word in (
        ([], None, "no values"),
        ([1.0], None, "one value"),
        ([1.0, 2.0], ["a", "a"], "one group"),
    ):
        found = bootstrap_interval(values, groups=groups)
        assert isinstance(found, NA)
        assert word in found.reason
        assert isinstance(paired(values, values, groups=groups), NA)
        assert isinstance(rate_interval(np.round(values) > 1.5, groups=groups), NA)
    assert bootstrap_interval([0.1] * 7) == (0.1, 0.1)
    assert bootstrap_interval([1.0, 2.0]) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("values", "options", "word"),
    [
        ([1.0, np.nan], {}, "not finite"),
        ([1.0, 2.0], {"groups": ["a"]}, "2 values and 1 groups"),
        ([1.0, 2.0], {"statistic": "mode"}, "mean or median"),
        ([1.0, 2.0], {"level": 95.0}, "between 0 and 1"),
        ([1.0, 2.0], {"resamples": 3}, "at least 100"),
        ([[1.0], [2.0]], {}, "shape"),
    ],
)
def test_bad_values_are_refused(values, options, word):
    with pytest.raises(ValueError, match=word):
        bootstrap_interval(np.array(values), **options)


def _paired(a, b, **options) -> Paired:
    found = paired(a, b, **options)
    assert not isinstance(found, NA)
    return found


def test_the_exact_test_is_scipys():
    for n in (2, 5, 11):
        rng = np.random.default_rng(n)
        a = rng.normal(0, 1, n)
        b = np.round(a + rng.normal(0.4, 1, n), 1)
        found = _paired(a, b)
        expected = stats.permutation_test(
            (b - a,),
            lambda x, axis: x.mean(axis=axis),
            permutation_type="samples",
            n_resamples=1 << 12,
            vectorized=True,
        )
        assert found.exact
        assert found.p == pytest.approx(expected.pvalue, abs=1e-12)
        assert found.difference == pytest.approx((b - a).mean())


def test_the_drawn_test_is_close_to_the_usual_ones():
    rng = np.random.default_rng(1)
    a = rng.normal(0, 1, 60)
    b = a + rng.normal(0.25, 1, 60)
    found = _paired(a, b)
    assert not found.exact
    assert found.p == pytest.approx(stats.ttest_rel(b, a).pvalue, abs=0.01)
    assert found.p == pytest.approx(np.asarray(stats.wilcoxon(b, a))[1], abs=0.05)
    assert found == _paired(a, b)


def test_p_is_uniform_where_nothing_differs():
    p = [_paired(*np.random.default_rng(i).normal(0, 1, (2, 10))).p for i in range(400)]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(np.array(p) <= 0.5) == pytest.approx(0.5, abs=0.08)


def test_groups_flip_together():
    difference = np.array([1.0, 1.1, 0.9, 2.0, 2.1, 1.9])
    alone, together = _paired(np.zeros(6), difference), _paired(np.zeros(6), difference, groups=list("aaabbb"))
    assert alone.p == pytest.approx(2 / 2**6)
    assert together.p == pytest.approx(2 / 2**2)
    assert (together.n, together.groups) == (6, 2)
    assert together.excludes_zero


def test_equal_sides_do_not_differ():
    found = _paired([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (found.difference, found.p, found.interval, found.excludes_zero) == (0.0, 1.0, (0.0, 0.0), False)
    with pytest.raises(ValueError, match="3 and 2"):
        paired([1.0, 2.0, 3.0], [1.0, 2.0])


def test_wilson_by_hand_and_by_scipy():
    # none of n reaches up to z²/(n + z²)
    low, high = _wilson(15, 50)
    assert (round(low, 4), round(high, 4)) == (0.1910, 0.4375)
    assert _wilson(0, 10) == (0.0, pytest.approx(1.959964**2 / (10 + 1.959964**2), rel=1e-6))
    assert _wilson(10, 10)[1] == 1.0
    # Newcombe (1998), table I: 81 of 263 and 1 of 29, method 3
    assert tuple(round(x, 4) for x in _wilson(81, 263)) == (0.2553, 0.3662)
    assert tuple(round(x, 4) for x in _wilson(1, 29)) == (0.0061, 0.1718)
    for successes, n, level in ((3, 7, 0.9), (0, 1, 0.95), (40, 41, 0.99)):
        expected = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
        assert _wilson(successes, n, level) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert wilson(0, 0) == NA("no trials")
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


def _wilson(successes, n, level=0.95) -> tuple[float, float]:
    found = wilson(successes, n, level)
    assert not isinstance(found, NA)
    return found


def test_rates_count_groups_and_are_never_certain():
    assert rate_interval([1, 1, 1, 1, 1]) == _wilson(5, 5)
    assert rate_interval([1, 0, 1, 1, 0]) == pytest.approx(_wilson(3, 5))
    # three scenes whose four episodes each agree are three trials
    same = np.repeat([1.0, 1.0, 0.0], 4)
    assert rate_interval(same, groups=np.repeat(np.arange(3), 4).tolist()) == pytest.approx(_wilson(2, 3))
    # scenes that say nothing about their episodes leave the trials independent
    mixed = np.tile([1.0, 0.0], 6)
    assert rate_interval(mixed, groups=np.repeat(np.arange(3), 4).tolist()) == pytest.approx(_wilson(6, 12))
    with pytest.raises(ValueError, match="0 or 1"):
        rate_interval([0.5, 1.0])


def test_rates_cover():
    hits = 0
    for trial in range(400):
        rng = np.random.default_rng(trial)
        found = rate_interval(
            (np.repeat(rng.random(15) < 0.8, 4)).astype(float), groups=np.repeat(np.arange(15), 4).tolist()
        )
        assert not isinstance(found, NA)
        hits += found[0] <= 0.8 <= found[1]
    assert 0.92 <= hits / 400 <= 0.99


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
