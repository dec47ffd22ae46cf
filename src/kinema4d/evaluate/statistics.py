"""How sure a number is: bootstrap intervals, paired tests, success-rate intervals.

Episodes of one scene are not independent, nor are several seeds of one episode: whoever counts them as such gets
intervals that are too narrow. Everything here takes ``groups`` and resamples, or flips, whole groups. All of it is
deterministic: the random numbers come from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from kinema4d.evaluate.score import NA

LEVEL = 0.95
"""Coverage that intervals aim at."""
RESAMPLES = 2000
"""Bootstrap draws."""
EXACT_GROUPS = 16
"""Up to so many groups all sign flips are enumerated; beyond, ``FLIPS`` of them are drawn."""
FLIPS = 20_000
"""Sign flips drawn where there are too many to enumerate."""
_CHUNK = 4_000_000
"""Numbers held at once while resampling."""
_CACHED = 2500
"""Draws for at most so many groups are kept between calls."""

Interval = tuple[float, float]
"""Low and high end."""


@dataclass(frozen=True, kw_only=True)
class Paired:
    """How two results of the same episodes differ: ``b - a``."""

    n: int
    """Pairs."""
    groups: int
    """Independent groups of pairs."""
    difference: float
    """Mean of ``b - a``."""
    interval: Interval
    """Bootstrap interval of the mean difference."""
    p: float
    """Two-sided p of the sign-flip test; with few groups it cannot get below ``2**(1 - groups)``."""
    exact: bool
    """Whether all flips were enumerated."""

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.interval[0] > 0 or self.interval[1] < 0


def bootstrap_interval(
    values: Sequence[float] | np.ndarray,
    *,
    groups: Sequence[Hashable] | None = None,
    statistic: str = "mean",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | NA:
    """Interval of the mean or the median, resampling whole groups.

    It is the percentile interval, widened for few groups as Student's t is (the expanded percentile interval, Hesterberg
    2015). The plain one covers 84 % instead of 95 % with 5 normal groups, this one 92 %; BCa is no better there. The mean
    of very skewed values (log-normal) stays under-covered at 10 to 30 groups by any of them: about 87 %.
    """
    x, member, count = _grouped(values, groups)
    if statistic not in ("mean", "median"):
        raise ValueError(f"statistic must be mean or median, got {statistic!r}")
    _check_level(level)
    if resamples < 100:
        raise ValueError(f"an interval needs at least 100 resamples, got {resamples}")
    few = _too_few(len(x), count)
    if few is not None:
        return few
    if (x == x[0]).all():
        return float(x[0]), float(x[0])
    found = (
        _means(x, member, count, resamples, seed)
        if statistic == "mean"
        else _medians(x, member, count, resamples, seed)
    )
    tail = float(ndtr(-math.sqrt(count / (count - 1)) * stdtrit(count - 1, 0.5 + level / 2)))
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def paired(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    *,
    groups: Sequence[Hashable] | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> Paired | NA:
    """Mean of ``b - a``, its interval, and the p of a test that flips the sign of whole groups."""
    if len(a) != len(b):
        raise ValueError(f"pairs need as many values on both sides, got {len(a)} and {len(b)}")
    first, member, count = _grouped(a, groups)
    second, _, _ = _grouped(b, groups)
    difference = second - first
    interval = bootstrap_interval(difference, groups=groups, level=level, seed=seed)
    if isinstance(interval, NA):
        return interval
    sums = np.bincount(member, difference, count)
    p, exact = _sign_flip(sums, seed)
    return Paired(
        n=len(difference), groups=count, difference=float(difference.mean()), interval=interval, p=p, exact=exact
    )


def wilson(successes: float, n: float, level: float = LEVEL) -> Interval | NA:
    """Wilson's score interval of a success rate; ``n`` may be an effective, fractional number of trials."""
    _check_level(level)
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and the number of trials, got {successes} of {n}")
    if n == 0:
        return NA("no trials")
    z = float(ndtri(0.5 + level / 2))
    rate = successes / n
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return low, high


def rate_interval(
    outcomes: Sequence[float] | np.ndarray, *, groups: Sequence[Hashable] | None = None, level: float = LEVEL
) -> Interval | NA:
    """Wilson's interval of a rate of zeros and ones, with as many trials as the groups make independent.

    The bootstrap says that 5 of 5 successes are certain; this does not. The effective number of trials is ``n`` over
    the design effect, and lies between the number of groups and ``n``; where all outcomes agree it is the number of groups.
    """
    x, member, count = _grouped(outcomes, groups)
    if not np.isin(x, (0.0, 1.0)).all():
        raise ValueError("a rate is of outcomes that are 0 or 1; use bootstrap_interval for other values")
    few = _too_few(len(x), count)
    if few is not None:
        return few
    n, rate = len(x), float(x.mean())
    trials = float(count)
    if 0 < rate < 1 and count < n:
        residual = np.bincount(member, x - rate, count)
        clustered = count / (count - 1) * float((residual**2).sum()) / n**2
        simple = rate * (1 - rate) / n
        trials = min(float(n), max(float(count), n * simple / clustered)) if clustered > 0 else float(n)
    return wilson(rate * trials, trials, level)


def holm(p: Sequence[float]) -> list[float]:
    """P values after Holm's correction for testing many things at once, in the given order."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    out, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        out[i] = largest
    return out


def _grouped(
    values: Sequence[float] | np.ndarray, groups: Sequence[Hashable] | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Values, the number of each one's group in order of appearance, and the number of groups."""
    x = np.asarray(values, np.float64)
    if x.ndim != 1:
        raise ValueError(f"values must be a list of numbers, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"value {int(np.flatnonzero(~np.isfinite(x))[0])} is not finite; leave missing scores out")
    if groups is None:
        return x, np.arange(len(x)), len(x)
    if len(groups) != len(x):
        raise ValueError(f"each value needs a group: got {len(x)} values and {len(groups)} groups")
    numbers: dict[Hashable, int] = {}
    member = np.array([numbers.setdefault(g, len(numbers)) for g in groups], np.int64)
    return x, member, len(numbers)


def _too_few(n: int, groups: int) -> NA | None:
    if n == 0:
        return NA("no values")
    if n == 1:
        return NA("one value has no interval")
    if groups == 1:
        return NA(f"all {n} values are of one group, so they have no interval")
    return None


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level}")


def _draw(groups: int, resamples: int, seed: int) -> np.ndarray:
    """Which groups each resample has, ``[resamples, groups]``."""
    drawn = np.random.default_rng(seed).integers(0, groups, (resamples, groups), dtype=np.int32)
    drawn.setflags(write=False)
    return drawn


_kept_draw = lru_cache(maxsize=8)(_draw)  # one report draws for the same few numbers of groups again and again


def _draws(groups: int, resamples: int, seed: int) -> np.ndarray:
    return (_kept_draw if groups <= _CACHED else _draw)(groups, resamples, seed)


def _means(x: np.ndarray, member: np.ndarray, count: int, resamples: int, seed: int) -> np.ndarray:
    sums, sizes = np.bincount(member, x, count), np.bincount(member, minlength=count)
    drawn = _draws(count, resamples, seed)
    return sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)


def _medians(x: np.ndarray, member: np.ndarray, count: int, resamples: int, seed: int) -> np.ndarray:
    """Medians by cumulative weights: how often a resample has a value is how often it drew its group."""
    order = np.argsort(x, kind="stable")
    ordered, owner = x[order], member[order]
    drawn = _draws(count, resamples, seed)
    out = np.empty(resamples)
    step = max(1, _CHUNK // len(x))
    for start in range(0, resamples, step):
        part = drawn[start : start + step]
        at = part + count * np.arange(len(part))[:, None]
        weight = np.bincount(at.ravel(), minlength=count * len(part)).reshape(len(part), count)
        total = weight[:, owner].cumsum(axis=1)
        last = total[:, -1:]
        below, above = (total > (last - 1) // 2).argmax(axis=1), (total > last // 2).argmax(axis=1)
        out[start : start + step] = (ordered[below] + ordered[above]) / 2
    return out


def _sign_flip(sums: np.ndarray, seed: int) -> tuple[float, bool]:
    """Share of sign flips whose sum is at least as far from zero as the observed one, and whether all were tried."""
    sums = sums[sums != 0]  # flipping a zero changes nothing
    observed = abs(float(sums.sum())) * (1 - 1e-12) - 1e-300  # sums in another order round differently
    if len(sums) <= EXACT_GROUPS:
        totals = np.zeros(1)
        for value in sums:
            totals = np.concatenate([totals + value, totals - value])
        return float((np.abs(totals) >= observed).mean()), True
    rng = np.random.default_rng(seed)
    found, step = 0, max(1, _CHUNK // len(sums))
    for start in range(0, FLIPS, step):
        signs = rng.integers(0, 2, (min(step, FLIPS - start), len(sums)), dtype=np.int8) * 2 - 1
        found += int((np.abs((signs * sums).sum(axis=1)) >= observed).sum())
    return (found + 1) / (FLIPS + 1), False
