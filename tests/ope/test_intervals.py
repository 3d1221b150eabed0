"""Bootstrap draws: shared by candidates, honest about both axes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flowrl.ope.intervals import Interval, resample, two_way_means


def test_a_draw_has_as_many_units_as_there_are() -> None:
    counts = resample(7, 50, seed=0)
    assert counts.shape == (50, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert (counts == resample(7, 50, seed=0)).all()


def test_two_way_means_are_means_over_the_drawn_fits_and_units() -> None:
    values = np.array([[1.0, 2.0], [10.0, 20.0]])
    units, fits = np.array([[1.0, 1.0], [2.0, 0.0]]), np.array([[1.0, 1.0], [0.0, 2.0]])
    assert two_way_means(values, units, fits).tolist() == [8.25, 10.0]


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """40 initial states and 8 fits, both with their own noise: 300 data sets of known mean 0.

    The percentile bootstrap over 8 fits is a little narrow (its variance is short by 1/8), so a coverage
    of about 92 % is expected where 95 % is aimed at; 300 trials leave 3 points of chance to either side.
    """
    random = np.random.default_rng(0)
    units, fits = resample(40, 400, seed=1), resample(8, 400, seed=2)
    covered = 0
    for _ in range(300):
        values = random.normal(size=(1, 40)) + 0.5 * random.normal(size=(8, 1))
        covered += not Interval.of(two_way_means(values, units, fits)).excludes(0.0)
    assert 0.86 <= covered / 300 <= 0.97


def test_one_fit_leaves_the_interval_over_initial_states() -> None:
    values = np.random.default_rng(0).normal(size=(1, 400))
    interval = Interval.of(two_way_means(values, resample(400, 4000, 1), resample(1, 4000, 2)))
    assert interval.half_width == pytest.approx(1.96 * values.std() / 20, rel=0.06)


def test_samples_that_are_not_finite_are_left_out() -> None:
    assert Interval.of(np.array([1.0, math.nan, 1.0])) == Interval(1.0, 1.0)
    assert math.isnan(Interval.of(np.array([math.nan])).low)
