"""Areas, thresholds and counts, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flowrl.rewards.metrics import Counts, choose_threshold, roc_auc, roc_curve


def of(positive: list[float], negative: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([*positive, *negative]), np.arange(len(positive) + len(negative)) < len(positive)


@pytest.mark.parametrize(
    ("positive", "negative", "area"),
    [
        ([0.9, 0.8], [0.1, 0.2, 0.3], 1.0),
        ([0.1], [0.9, 0.8], 0.0),
        # 0.5 beats 0.4, ties with 0.5, loses to 0.6: half of the three pairs.
        ([0.5], [0.4, 0.5, 0.6], 0.5),
        # Of 4 pairs 0.7 wins 2 and 0.3 wins 1.
        ([0.7, 0.3], [0.2, 0.5], 0.75),
    ],
)
def test_area_counts_the_pairs_in_order(positive: list[float], negative: list[float], area: float) -> None:
    assert roc_auc(*of(positive, negative)) == pytest.approx(area)
    # The curve's own area, ties drawn as a slope, is the same number.
    false, true = roc_curve(*of(positive, negative))
    assert np.trapezoid(true, false) == pytest.approx(area)


def test_area_of_one_class_is_no_number() -> None:
    assert math.isnan(roc_auc(*of([0.5], [])))
    assert math.isnan(roc_auc(*of([], [0.5])))


def test_the_curve_has_a_point_for_each_score() -> None:
    false, true = roc_curve(*of([0.9, 0.5], [0.5, 0.1]))
    assert false.tolist() == [0, 0, 0.5, 1]
    assert true.tolist() == [0, 0.5, 1, 1]


@pytest.mark.parametrize(
    ("positive", "negative", "bound", "threshold"),
    [
        # Nothing wrong allowed: between 0.3 and 0.8.
        ([0.9, 0.8], [0.1, 0.3], 0.0, 0.55),
        # 0.2 cannot be had: it lies below a failure.
        ([0.9, 0.2], [0.1, 0.3], 0.0, 0.6),
        # A tie with a failure cannot be had either.
        ([0.9, 0.3], [0.1, 0.3], 0.0, 0.6),
        # Half may be wrong: 0.3 may stay above, so 0.2 is had, between 0.1 and 0.2.
        ([0.9, 0.2], [0.1, 0.3], 0.5, 0.15),
        # Less than one frame allowed is none allowed.
        ([0.9, 0.2], [0.1, 0.3], 0.49, 0.6),
        ([0.3, 0.2], [0.4, 0.1], 0.0, None),
    ],
)
def test_the_threshold_has_the_largest_recall_within_the_bound(
    positive: list[float], negative: list[float], bound: float, threshold: float | None
) -> None:
    found = choose_threshold(*of(positive, negative), bound)
    assert found == (None if threshold is None else pytest.approx(threshold))


def test_the_bound_holds_and_no_other_threshold_within_it_finds_more() -> None:
    random = np.random.default_rng(0)
    for bound in (0.0, 0.01, 0.1):
        scores, truth = of(random.beta(4, 2, 50).tolist(), random.beta(2, 4, 200).tolist())
        threshold = choose_threshold(scores, truth, bound)
        assert threshold is not None
        counts = Counts.of(scores >= threshold, truth)
        assert counts.false_positive_rate <= bound
        others = [Counts.of(scores >= other, truth) for other in scores]
        assert counts.recall == max(each.recall for each in others if each.false_positive_rate <= bound)


def test_neighbouring_numbers_are_told_apart() -> None:
    low = 0.5
    high = np.nextafter(low, 1)
    threshold = choose_threshold(*of([high], [low]), 0.0)
    assert threshold == high


def test_counts() -> None:
    counts = Counts.of(np.array([1, 1, 0, 0, 1], bool), np.array([1, 0, 1, 0, 1], bool))
    assert counts == Counts(2, 1, 1, 1)
    assert (counts.precision, counts.recall, counts.false_positive_rate) == (2 / 3, 2 / 3, 0.5)
    nothing = Counts.of(np.zeros(2, bool), np.zeros(2, bool))
    assert math.isnan(nothing.precision)
    assert math.isnan(nothing.recall)
