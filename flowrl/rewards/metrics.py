"""How well scores tell success apart: area under the ROC curve, the threshold, counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Truth = NDArray[np.bool_]


@dataclass(frozen=True)
class Counts:
    """How many are found, missed, called a success wrongly, and left alone rightly."""

    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int

    @classmethod
    def of(cls, called: Truth, truth: Truth) -> Counts:
        """Compare what was called a success (N,) with what is one (N,)."""
        pairs = ((called & truth), (~called & truth), (called & ~truth), (~called & ~truth))
        return cls(*(int(pair.sum()) for pair in pairs))

    @property
    def precision(self) -> float:
        """Share of what was called a success that is one; NaN when nothing was."""
        return _share(self.true_positives, self.false_positives)

    @property
    def recall(self) -> float:
        """Share of successes that were found; NaN when there is none."""
        return _share(self.true_positives, self.false_negatives)

    @property
    def false_positive_rate(self) -> float:
        """Share of the others that were called a success; NaN when there is none."""
        return _share(self.false_positives, self.true_negatives)


def roc_auc(scores: Scores, truth: Truth) -> float:
    """Probability that a success scores above another one, ties counted half (Mann and Whitney 1947)."""
    positive, negative = scores[truth], np.sort(scores[~truth])
    if not len(positive) or not len(negative):
        return math.nan
    below = np.searchsorted(negative, positive, "left")
    upto = np.searchsorted(negative, positive, "right")
    return float((below + upto).mean() / (2 * len(negative)))


def roc_curve(scores: Scores, truth: Truth) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """False and true positive rates (T,) from (0, 0) to (1, 1), one point for each distinct score."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)
    found = [np.append(0, np.cumsum(which[order])[last]) for which in (~truth, truth)]
    return found[0] / max(found[0][-1], 1), found[1] / max(found[1][-1], 1)


def choose_threshold(scores: Scores, truth: Truth, false_positives: float) -> float | None:
    """The threshold of the largest recall whose false positive rate is within the bound, None without recall.

    A score at the threshold or above counts as a success. Any threshold in the gap between the highest score
    that must stay out and the lowest success above it does the same here; it is the middle of that gap.
    """
    negative = np.sort(scores[~truth])[::-1]
    allowed = math.floor(false_positives * len(negative) + 1e-9)
    floor = float(negative[allowed]) if allowed < len(negative) else -math.inf
    above = scores[truth & (scores > floor)]
    if not len(above):
        return None
    lowest = float(above.min())
    middle = (max(floor, 0.0) + lowest) / 2
    return middle if middle > floor else lowest


def _share(part: int, other: int) -> float:
    return part / (part + other) if part + other else math.nan
