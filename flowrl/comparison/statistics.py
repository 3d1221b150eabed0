"""Intervals over seeds and starts, and what a difference between two recipes is worth.

Outcomes are matrices (S, E): seeds by starts, the same starts for every seed and recipe. Because starts
are shared, one draw of starts serves all seeds of a bootstrap sample (the two-way bootstrap of Owen,
arXiv 0708.0720): treating each seed's episodes as fresh starts would make intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowrl.report.comparison import SIGNIFICANCE, mcnemar_exact

Array = NDArray[np.float64]
SAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """A mean difference of paired outcomes with its 95 % interval.

    ``gained`` and ``lost`` count the pairs whose outcome changed; ``p_value`` is the two-sided exact
    McNemar probability of as uneven a split, over the pairs of all seeds.
    """

    mean: float
    low: float
    high: float
    gained: int
    lost: int
    p_value: float

    @property
    def direction(self) -> int:
        """1 or -1 where interval and test both tell the two apart, else 0."""
        if self.p_value >= SIGNIFICANCE:
            return 0
        return int(self.low > 0) - int(self.high < 0)


def crossed_interval(
    values: Array, *, level: float = 0.95, samples: int = SAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean of ``values`` (S, E), drawing seeds and starts with replacement.

    With one seed only starts are drawn: it says nothing about other seeds. (nan, nan) without values.
    """
    if values.size == 0:
        return float("nan"), float("nan")
    seeds, starts = values.shape
    random = np.random.default_rng(seed)
    # Counts instead of weights: sums of outcomes stay whole numbers, so that a certain rate has no width.
    seed_counts = random.multinomial(seeds, np.full(seeds, 1 / seeds), samples).astype(np.float64)
    start_counts = random.multinomial(starts, np.full(starts, 1 / starts), samples)
    means = ((seed_counts @ values) * start_counts).sum(axis=1) / (seeds * starts)
    return _quantiles(means, level)


def curve_interval(
    rates: Sequence[float], episodes: int, *, level: float = 0.95, samples: int = SAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean of ``rates`` (S,), each measured on ``episodes`` episodes.

    Seeds are drawn with replacement, then each drawn seed's episodes: of a rate alone, that is a binomial
    draw. (nan, nan) without rates.
    """
    data = np.asarray(rates, np.float64)
    if data.size == 0 or episodes < 1:
        return float("nan"), float("nan")
    random = np.random.default_rng(seed)
    drawn = data[random.integers(0, len(data), (samples, len(data)))]
    return _quantiles((random.binomial(episodes, drawn) / episodes).mean(axis=1), level)


def paired_difference(first: Array, second: Array, *, seed: int = 0) -> Difference:
    """``second`` minus ``first``, matrices (S, E) of 0 and 1 with the same seeds and starts.

    Raises ValueError when their shapes differ or they are empty.
    """
    if first.shape != second.shape or not first.size:
        raise ValueError(f"paired outcomes have shapes {first.shape} and {second.shape}")
    change = second - first
    low, high = crossed_interval(change, seed=seed)
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    return Difference(float(change.mean()), low, high, gained, lost, mcnemar_exact(gained, lost))


def _quantiles(means: Array, level: float) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
