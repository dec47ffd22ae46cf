"""Does the prediction do the right thing at the right time? Read off the matrix of every frame against every frame.

``E[t, s]`` is how badly predicted frame t agrees with where kinematics has the robot in frame s, and ``S[t, s]`` is the same
for a perfect prediction. A late robot has its valley beside the diagonal, a frozen one a vertical valley, a shuffled one
none. Thresholds are shares of what ``S`` says a fault would cost, so they hold for slow robots and for fast ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

TELL = 0.01
"""Least mean disagreement, of 1, that a fault must cause before it can be told from noise: a robot that hardly moves is
neither late nor frozen."""
GAIN = 0.5
"""Share of a delay's cost that shifting back must win for the prediction to be called late: half separates a delayed
robot (all) from one that strays (little)."""
TIE = 0.01
"""Frames that agree about as well as the best one count as equally good: the robot stood still, or came back."""
ORDER = 0.6
"""Rank correlation of matched and real time below which frames are out of order; shuffled ones have 0 +- 0.15."""
MOVED = 0.3
"""Share of the expected change that a robot must show in order to count as moving."""
MIRRORED = 0.05
"""By how much the flipped prediction must agree better."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What the matrix says."""

    delay: int | None
    """Frames that the prediction is late (early: negative); None where the robot moves too little to tell."""
    order: float | None
    """Rank correlation between time and the matched frames over the parts that move; None where none do."""
    reordered: bool
    """Whether putting the frames in their matched places wins at least ``GAIN`` of what the wrong places would cost."""
    moved: float | None
    """Change that the prediction shows, as a share of the expected change; None where none is expected."""


def timing(E: Float[np.ndarray, "t t"], S: Float[np.ndarray, "t t"]) -> Timing:
    """Read delay, order and motion off the matrix ``E``, knowing the perfect one, ``S``."""
    frames = len(E)
    t = np.arange(frames)
    match = _match(E)
    change = float(S[t, 0].mean())
    moved = None
    if change >= TELL:
        moved = float(S[match, match[0]].mean()) / change
    won, due = float((E[t, t] - E[t, match]).mean()), float(S[t, match].mean())
    return Timing(delay=_delay(E, S), order=_order(S, match), reordered=due >= TELL and won >= GAIN * due, moved=moved)


def _match(E: np.ndarray) -> np.ndarray:
    """For every predicted frame the expected frame that agrees best; of equally good ones the nearest in time."""
    t = np.arange(len(E))
    good = E.min(axis=1, keepdims=True) + TIE >= E
    return np.where(good, np.abs(t[None] - t[:, None]), len(E)).argmin(axis=1)


def _delay(E: np.ndarray, S: np.ndarray) -> int | None:
    t = np.arange(len(E))
    most = max(1, len(E) // 3)
    # A late robot waits in its first posture, an early one in its last: every lag is judged on all frames.
    lags = sorted(range(-most, most + 1), key=abs)
    at = [np.clip(t - lag, 0, len(E) - 1) for lag in lags]
    cost = np.array([E[t, s].mean() for s in at])
    due = np.array([S[t, s].mean() for s in at])
    if due[[lags.index(2), lags.index(-2)]].max() < TELL if most >= 2 else due.max() < TELL:
        return None
    best = int(cost.argmin())
    if due[best] < TELL or cost[0] - cost[best] < GAIN * due[best]:
        return 0
    return lags[best]


def _order(S: np.ndarray, match: np.ndarray) -> float | None:
    step = np.diagonal(S, 1)
    moves = np.zeros(len(S), bool)
    moves[:-1] |= step > TIE
    moves[1:] |= step > TIE
    t = np.flatnonzero(moves)
    if len(t) < 5:
        return None
    if np.ptp(match[t]) == 0:
        return 0.0
    return float(np.corrcoef(stats.rankdata(t), stats.rankdata(match[t]))[0, 1])


def mask_disagreement(a: np.ndarray, b: np.ndarray, hidden: np.ndarray) -> Float[np.ndarray, "t t"]:
    """1 - IoU of every mask of ``a`` with every mask of ``b``, without the pixels that are ``hidden`` in b."""
    x, y, z = (m.reshape(len(m), -1).astype(np.float32) for m in (a, b, hidden))
    both = x @ y.T
    either = (x.sum(axis=1)[:, None] - x @ z.T) + y.sum(axis=1)[None] - both
    return (1 - both / np.maximum(either, 1)).astype(np.float64)
