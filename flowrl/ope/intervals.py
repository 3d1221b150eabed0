"""Bootstrap draws that candidates share, so that their differences are paired."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.float64]
LEVEL = 0.95
"""Coverage that intervals aim at."""


@dataclass(frozen=True)
class Interval:
    """A percentile interval."""

    low: float
    high: float

    @classmethod
    def of(cls, samples: Counts) -> Interval:
        """The central `LEVEL` of bootstrap samples (R,), those that are finite; NaN without any."""
        finite = samples[np.isfinite(samples)]
        if not len(finite):
            return cls(math.nan, math.nan)
        low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls(float(low), float(high))

    @property
    def half_width(self) -> float:
        """Half of the distance between the ends."""
        return (self.high - self.low) / 2

    def excludes(self, value: float) -> bool:
        """Whether ``value`` lies outside."""
        return not self.low <= value <= self.high


def resample(count: int, samples: int, seed: int) -> Counts:
    """How often each of ``count`` units occurs in each of R draws with replacement: (R, count)."""
    random = np.random.default_rng(seed)
    return random.multinomial(count, np.full(count, 1 / count), samples).astype(np.float64)


def two_way_means(values: NDArray[np.float64], units: Counts, fits: Counts) -> Counts:
    """Bootstrap means (R,) of ``values`` (fits, units), both axes resampled: the same draw for all candidates.

    With F fits the variance between them is under-estimated by the factor (F - 1) / F.
    """
    inner = fits @ values / values.shape[0]
    return (inner * units).sum(axis=1) / values.shape[1]
