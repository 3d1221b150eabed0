"""Intervals for reported numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_Z95 = 1.959963984540054


def wilson_interval(successes: int, trials: int, z: float = _Z95) -> tuple[float, float]:
    """Wilson's score interval of a success rate, 95 % by default; (0, 1) when there are no trials."""
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    denominator = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / denominator
    half = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_interval(
    values: Sequence[float], *, level: float = 0.95, samples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean, with a fixed seed."""
    data = np.asarray(values, np.float64)
    if len(data) == 0:
        return math.nan, math.nan
    picks = np.random.default_rng(seed).integers(0, len(data), (samples, len(data)))
    low, high = np.quantile(data[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
