"""How well a ranking by estimates agrees with measured values: rank correlation, regret, Sharpe ratio.

Every function takes the estimates and the true values of the same C candidates, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowrl.errors import UsageError

_Values = NDArray[np.float64]


def ranks(values: ArrayLike) -> _Values:
    """Ranks 1..C, ascending; equal values share the mean of their ranks."""
    data = np.asarray(values, np.float64)
    _, group, counts = np.unique(data, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]


def spearman(estimates: Sequence[float], truth: Sequence[float]) -> float:
    """Spearman's rank correlation: Pearson's correlation of the ranks (arXiv 2103.16596).

    NaN when either side is constant or there are fewer than two candidates: no order can agree then.
    """
    _require_pairs(estimates, truth)
    left, right = (ranks(side) - (len(side) + 1) / 2 for side in (estimates, truth))
    scale = math.sqrt(float((left**2).sum() * (right**2).sum()))
    return float((left * right).sum()) / scale if scale > 0 else math.nan


def regret_at(k: int, estimates: Sequence[float], truth: Sequence[float]) -> float:
    """``max over all of J - max over the k with the highest estimates of J`` (arXiv 2103.16596).

    In the unit of J, not normalised. Raises UsageError when k is not in 1..C.
    """
    chosen = _top(k, estimates, truth)
    return float(np.max(np.asarray(truth)) - chosen.max())


def sharpe_ratio_at(k: int, estimates: Sequence[float], truth: Sequence[float], baseline: float) -> float:
    """SharpeRatio@k of arXiv 2311.18207, as SCOPE-RL (arXiv 2311.18206) reports it:

        SharpeRatio@k = (best@k - J(pi_b)) / std@k

    ``best@k`` is the highest true value among the k candidates with the highest estimates, ``std@k`` the
    population standard deviation of their true values, ``J(pi_b)`` the ``baseline``: the true value of the
    policy that is deployed already and needs no trial. High means that trying these k finds a better
    policy without risking much worse ones.

    NaN where std@k is 0: for k = 1, and where the k are equally good, no risk was taken and the ratio
    is not defined. Where the baseline is not among the k, the numerator may be negative. Raises
    UsageError when k is not in 1..C.
    """
    chosen = _top(k, estimates, truth)
    spread = float(chosen.std())
    return float(chosen.max() - baseline) / spread if spread > 1e-12 else math.nan


def _top(k: int, estimates: Sequence[float], truth: Sequence[float]) -> _Values:
    """The true values of the k highest estimates; of equal estimates the earlier candidate is taken."""
    _require_pairs(estimates, truth)
    if not 1 <= k <= len(estimates):
        raise UsageError(f"k is {k}; it must lie in 1..{len(estimates)}, the number of candidates")
    order = np.argsort(-np.asarray(estimates, np.float64), kind="stable")
    return np.asarray(truth, np.float64)[order[:k]]


def _require_pairs(estimates: Sequence[float], truth: Sequence[float]) -> None:
    if len(estimates) != len(truth):
        raise UsageError(f"{len(estimates)} estimates for {len(truth)} true values")
