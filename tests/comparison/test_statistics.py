"""Intervals and differences against known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flowrl.comparison.statistics import crossed_interval, curve_interval, paired_difference
from flowrl.statistics import bootstrap_interval


def outcomes(successes: int, starts: int) -> np.ndarray:
    return (np.arange(starts) < successes).astype(float)


def test_one_seed_gives_the_plain_bootstrap() -> None:
    row = outcomes(20, 50)
    # Two Monte Carlo estimates of one quantile; 0.01 is half an episode.
    assert crossed_interval(row[None]) == pytest.approx(bootstrap_interval(row.tolist()), abs=0.01)


def test_seeds_that_agree_on_every_start_add_nothing() -> None:
    row = outcomes(20, 50)
    assert crossed_interval(np.tile(row, (5, 1))) == pytest.approx(bootstrap_interval(row.tolist()), abs=0.01)


def test_without_noise_in_starts_the_interval_is_that_over_seeds() -> None:
    rates = [0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    values = np.repeat(np.array(rates)[:, None], 40, axis=1)
    assert crossed_interval(values) == pytest.approx(bootstrap_interval(rates), abs=1e-9)


def test_the_width_is_that_of_the_sum_of_both_variances() -> None:
    random = np.random.default_rng(3)
    seeds, starts = random.normal(size=(40, 1)), random.normal(size=(1, 60))
    low, high = crossed_interval(seeds + starts)
    expected = math.sqrt(seeds.var() / 40 + starts.var() / 60)
    # A mean of independent draws is nearly normal: 2 * 1.96 standard errors.
    assert high - low == pytest.approx(2 * 1.96 * expected, rel=0.05)


def test_a_certain_outcome_has_no_width() -> None:
    assert crossed_interval(np.ones((3, 10))) == (1.0, 1.0)
    assert curve_interval([0.0, 0.0], 20) == (0.0, 0.0)


def test_nothing_measured_is_not_a_number() -> None:
    assert all(math.isnan(bound) for bound in crossed_interval(np.zeros((0, 0))))
    assert all(math.isnan(bound) for bound in curve_interval([], 20))


def test_a_point_of_a_curve_with_equal_seeds_has_the_binomial_width() -> None:
    low, high = curve_interval([0.5, 0.5, 0.5, 0.5], 25)
    # 100 episodes at one half: standard error 0.05; the grid of 1/100 allows 0.01.
    assert (low, high) == pytest.approx((0.402, 0.598), abs=0.011)


def test_a_recipe_differs_from_itself_by_exactly_nothing() -> None:
    values = np.random.default_rng(0).integers(0, 2, (3, 50)).astype(float)
    found = paired_difference(values, values)
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)
    assert (found.gained, found.lost, found.p_value, found.direction) == (0, 0, 1.0, 0)


def test_pairing_sees_what_unpaired_intervals_do_not() -> None:
    first, second = np.tile(outcomes(25, 50), (3, 1)), np.tile(outcomes(33, 50), (3, 1))
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(0.16)
    assert found.low > 0
    assert (found.gained, found.lost) == (24, 0)
    assert found.direction == 1
    assert crossed_interval(first)[1] > crossed_interval(second)[0]


def test_the_difference_is_antisymmetric() -> None:
    random = np.random.default_rng(1)
    first, second = (random.random((3, 40)) < rate for rate in (0.3, 0.8))
    one = paired_difference(first.astype(float), second.astype(float))
    other = paired_difference(second.astype(float), first.astype(float))
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert (one.direction, other.direction) == (1, -1)


def test_few_episodes_are_not_enough_however_they_fall() -> None:
    # The bootstrap of four pairs that all improved has no width; the exact test knows that 4 of 4 is p = 0.125.
    found = paired_difference(np.zeros((1, 4)), np.ones((1, 4)))
    assert (found.low, found.high) == (1.0, 1.0)
    assert found.p_value == pytest.approx(0.125)
    assert found.direction == 0


def test_equal_methods_are_told_apart_in_at_most_about_a_twentieth_of_comparisons() -> None:
    random = np.random.default_rng(5)
    wrong = sum(
        paired_difference(*(random.random((2, 3, 30)) < 0.5).astype(float)).direction != 0 for _ in range(60)
    )
    # Interval and exact test must both reject: the rate is below 5 %; 8 of 60 is 5 % plus 3 standard errors.
    assert wrong <= 8


def test_unequal_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(3, 2\)"):
        paired_difference(np.zeros((2, 3)), np.zeros((3, 2)))
