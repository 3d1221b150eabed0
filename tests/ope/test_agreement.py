"""Rank correlation, regret@k and SharpeRatio@k against values worked out by hand and by scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from flowrl.errors import UsageError
from flowrl.ope.agreement import ranks, regret_at, sharpe_ratio_at, spearman


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_rank_correlation_equals_scipys_with_and_without_ties() -> None:
    random = np.random.default_rng(0)
    for decimals in (8, 1):
        a, b = random.normal(size=(2, 30)).round(decimals)
        assert spearman(a.tolist(), b.tolist()) == pytest.approx(stats.spearmanr(a, b)[0], abs=1e-12)


def test_rank_correlation_of_orders_known_by_hand() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == 1.0
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -1.0
    assert spearman([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == 0.5
    assert math.isnan(spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
    assert math.isnan(spearman([1.0], [1.0]))


def test_regret_is_what_the_best_of_the_chosen_k_misses() -> None:
    estimates, truth = [0.9, 0.8, 0.1], [0.3, 0.6, 0.7]
    assert [regret_at(k, estimates, truth) for k in (1, 2, 3)] == pytest.approx([0.4, 0.1, 0.0])


def test_of_equal_estimates_the_earlier_candidate_is_chosen() -> None:
    assert regret_at(1, [0.5, 0.5], [0.2, 0.8]) == pytest.approx(0.6)
    assert regret_at(1, [0.5, 0.5], [0.8, 0.2]) == 0.0


def test_sharpe_ratio_by_hand() -> None:
    # The two highest estimates have true values 0.5 and 0.9: best 0.9, population std 0.2, baseline 0.4.
    estimates, truth = [0.9, 0.8, 0.1], [0.5, 0.9, 0.4]
    assert sharpe_ratio_at(2, estimates, truth, 0.4) == pytest.approx(0.5 / 0.2)
    spread = np.std([0.5, 0.9, 0.4])
    assert sharpe_ratio_at(3, estimates, truth, 0.4) == pytest.approx(0.5 / spread)


def test_sharpe_ratio_prefers_the_portfolio_without_bad_policies() -> None:
    """Example 1 of the definition: same best policy, but one estimator also picks a poor one."""
    truth = [10.0, 9.0, 1.0]
    careful, reckless = [3.0, 2.0, 1.0], [3.0, 1.0, 2.0]
    assert regret_at(2, careful, truth) == regret_at(2, reckless, truth) == 0.0
    assert sharpe_ratio_at(2, careful, truth, 5.0) == pytest.approx(10.0)
    assert sharpe_ratio_at(2, reckless, truth, 5.0) == pytest.approx(5 / 4.5)


def test_sharpe_ratio_is_undefined_without_spread() -> None:
    assert math.isnan(sharpe_ratio_at(1, [2.0, 1.0], [0.9, 0.1], 0.5))
    assert math.isnan(sharpe_ratio_at(2, [2.0, 1.0], [0.9, 0.9], 0.5))


def test_k_outside_the_candidates_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match=r"k is 3; it must lie in 1\.\.2"):
        regret_at(3, [1.0, 2.0], [1.0, 2.0])
    with pytest.raises(UsageError, match=r"2 estimates for 1 true values"):
        spearman([1.0, 2.0], [1.0])
