"""Does a simulator rank policies as the real world does? The metrics of SIMPLER (Li et al. 2024).

Both take the success rates of the same policies, **first in simulation, then in reality**. Pearson's correlation does
not mind the order. The mean maximum rank violation does: its mistakes are weighed by how far apart the policies
are in reality, because confusing two equally good policies costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kinema4d.evaluate.score import NA, About, Scores, Value

METRICS = {
    "pearson": About(
        label="Pearson",
        unit="",
        better="higher",
        group="policy",
        text="Correlation of the policies' success rates in simulation and in reality.",
    ),
    "mmrv": About(
        label="MMRV",
        unit="",
        better="lower",
        group="policy",
        text="Mean over policies of the largest real success-rate gap to a policy that the simulation ranks the other way round.",
    ),
}
"""What the numbers mean."""


def pearson(sim: Sequence[float] | np.ndarray, real: Sequence[float] | np.ndarray) -> Value:
    """Correlation of success rates; none where one side has no spread."""
    s, r = _rates(sim, real)
    if len(s) < 2:
        return NA(f"ranking needs at least 2 policies, got {len(s)}")
    for name, x in (("simulation", s), ("reality", r)):
        if (x == x[0]).all():
            return NA(f"all policies are equally good in {name}, so nothing correlates")
    s, r = s - s.mean(), r - r.mean()
    # SIMPLER adds 1e-8 to the denominator, which shifts small rates; spread is checked above instead.
    return float(np.clip((s @ r) / np.sqrt((s @ s) * (r @ r)), -1.0, 1.0))


def mmrv(sim: Sequence[float] | np.ndarray, real: Sequence[float] | np.ndarray) -> Value:
    """Mean maximum rank violation of ``sim`` against ``real``, between 0 (same order) and the spread of ``real``.

    Policies i, j are violated where "i is better than j" is true of one side alone. So where the simulation cannot tell two
    policies apart that differ in reality, the really better one is violated and the other is not; this is SIMPLER's rule.
    """
    s, r = _rates(sim, real)
    if len(s) < 2:
        return NA(f"ranking needs at least 2 policies, got {len(s)}")
    violated = (s[:, None] > s) != (r[:, None] > r)
    return float((violated * np.abs(r[:, None] - r)).max(axis=1).mean())


def scores(sim: Mapping[str, float], real: Mapping[str, float]) -> Scores:
    """Both, from success rates by policy; both sides need the same policies."""
    strangers = sorted(set(sim) ^ set(real))
    if strangers:
        raise ValueError(
            f"simulation and reality need the same policies; only one side has {', '.join(strangers)}: leave them out of both"
        )
    a, b = [sim[name] for name in sim], [real[name] for name in sim]
    return {"pearson": pearson(a, b), "mmrv": mmrv(a, b)}


def _rates(sim: Sequence[float] | np.ndarray, real: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s, r = np.asarray(sim, np.float64), np.asarray(real, np.float64)
    if s.ndim != 1 or s.shape != r.shape:
        raise ValueError(f"simulation and reality need one success rate per policy each, got {s.shape} and {r.shape}")
    if not (np.isfinite(s).all() and np.isfinite(r).all()):
        raise ValueError("a success rate is not finite; leave policies out that were not run on both sides")
    return s, r
