"""Normalisation: fitted once, warned about by name, exact at the action's bounds."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from flowrl.errors import DataError
from flowrl.normalisation import SCALE_FLOOR, ConstantDimension, Normalisation, fit

NAMES = ("height", "table", "grip")
LOW, HIGH = (-0.05, 0.0, -3.0), (0.05, 1.0, 1.0)


def states(rows: int = 200) -> np.ndarray:
    values = np.random.default_rng(0).normal(2.0, 0.5, size=(rows, 3))
    values[:, 1] = 0.8
    return values


def fitted() -> Normalisation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(states(), LOW, HIGH, NAMES)


def test_a_constant_dimension_is_named_and_its_scale_is_floored() -> None:
    with pytest.warns(ConstantDimension, match=r": table$"):
        normalisation = fit(states(), LOW, HIGH, NAMES)
    assert normalisation.state_scale[1] == SCALE_FLOOR
    out = normalisation.state(states())
    assert np.abs(out[:, 1]).max() < 1e-3
    assert normalisation.state(np.array([2.0, 0.9, 2.0]))[1] == normalisation.clip


def test_varying_dimensions_raise_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(states()[:, [0, 2]], LOW[:2], HIGH[:2], ("height", "grip"))


def test_states_come_out_standardised_and_clipped() -> None:
    out = fitted().state(states())[:, [0, 2]]
    np.testing.assert_allclose(out.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(out.std(axis=0), 1, atol=1e-2)
    assert fitted().state(np.full(3, 1e9)).tolist() == [5.0, 5.0, 5.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_value_is_refused_with_its_row_and_dimension(bad: float) -> None:
    values = states()
    values[17, 2] = bad
    with pytest.raises(DataError, match=r"grip is .* at row 17 \(1 non-finite"):
        fit(values, LOW, HIGH, NAMES)


@pytest.mark.parametrize("shape", [(0, 3), (3,)])
def test_no_data_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="N > 0"):
        fit(np.zeros(shape), LOW, HIGH, NAMES)


def test_action_bounds_map_exactly_to_minus_one_and_one() -> None:
    normalisation = fitted()
    assert normalisation.action(np.array(LOW)).tolist() == [-1.0, -1.0, -1.0]
    assert normalisation.action(np.array(HIGH)).tolist() == [1.0, 1.0, 1.0]
    assert normalisation.raw_action(np.array([-1.0, -1.0, -1.0])).tolist() == pytest.approx(LOW)
    assert normalisation.raw_action(np.array([1.0, 1.0, 1.0])).tolist() == pytest.approx(HIGH)


def test_actions_survive_the_round_trip_and_are_not_clipped() -> None:
    normalisation = fitted()
    raw = np.random.default_rng(1).uniform(-4, 4, size=(50, 3))
    np.testing.assert_allclose(normalisation.raw_action(normalisation.action(raw)), raw, rtol=1e-5, atol=1e-6)
    assert np.abs(normalisation.action(raw)).max() > 1


def test_quantiles_and_json_are_exact() -> None:
    normalisation = fitted()
    expected = np.quantile(states(), [0.01, 0.99], axis=0)
    np.testing.assert_allclose([normalisation.state_q01, normalisation.state_q99], expected)
    assert Normalisation.from_json(normalisation.to_json()) == normalisation
