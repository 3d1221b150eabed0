"""The numbers by which the scalar adjoint is told from the exact one: closed forms against the tables.

Tables of the specification's section 1.4; what SQAM itself does with them is in test_sqam_fixed_points.py,
what QAM does in test_qam_fixed_points.py.
"""

from __future__ import annotations

import pytest

from tests.algorithms.rest import (
    Factor,
    bridge_rest,
    discrete_factors,
    exact_factor,
    half_squared_scale,
    path_rest,
    scalar_factor,
    slope,
    tilt,
)

PROBLEMS = [(1.0, 1.0), (0.3, 10.0), (0.3, 20.0)]

SCALAR = {
    10: [(0.7116, 0.3310), (0.1575, 0.6766), (0.1256, 0.8038)],
    50: [(0.7795, 0.3638), (0.1882, 0.6846), (0.1518, 0.8083)],
    200: [(0.7930, 0.3756), (0.1956, 0.6897), (0.1587, 0.8114)],
}
EXACT = {
    10: [(0.6339, 0.4582), (0.1681, 0.5149), (0.1341, 0.6844)],
    200: [(0.7032, 0.4950), (0.2143, 0.4759), (0.1760, 0.6453)],
}


@pytest.mark.parametrize(
    ("factor", "table"), [(scalar_factor, SCALAR), (exact_factor, EXACT)], ids=["scalar", "exact"]
)
def test_regression_on_bridges_rests_at_the_tabulated_std_and_mean(
    factor: Factor, table: dict[int, list[tuple[float, float]]]
) -> None:
    for steps, row in table.items():
        for (std, curvature), expected in zip(PROBLEMS, row, strict=True):
            assert bridge_rest(factor, std, curvature, steps) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("std", "curvature", "expected"),
    [
        (1.0, 1.0, (0.7976, 0.3825)),
        (0.5, 1.0, (0.4447, 0.2682)),
        (0.3, 1.0, (0.2809, 0.1947)),
        (1.0, 4.0, (0.5490, 0.7114)),
        (0.3, 10.0, (0.1983, 0.6933)),
        (0.3, 20.0, (0.1612, 0.8137)),
    ],
)
def test_scalar_factor_approaches_its_continuous_table(
    std: float, curvature: float, expected: tuple[float, float]
) -> None:
    found = bridge_rest(scalar_factor, std, curvature, 2000)
    assert found == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(("std", "curvature"), [*PROBLEMS, (0.5, 1.0), (1.0, 4.0)])
def test_exact_adjoint_approaches_the_tilt_on_bridges_and_on_paths(std: float, curvature: float) -> None:
    for rest in (
        lambda steps: bridge_rest(exact_factor, std, curvature, steps),
        lambda steps: path_rest(std, curvature, steps),
    ):
        assert rest(2000) == pytest.approx(tilt(std, curvature), rel=5e-3)


def linear_shift(factors: list[float], std: float) -> float:
    """How far a linear critic of gradient 1 moves the mean of an Euler sample, in exact arithmetic."""
    steps, mean = len(factors) - 1, 0.0
    for k in range(steps):
        t = k / steps
        mean += (slope(t, std) * mean + half_squared_scale(t, 1 / steps) * factors[k]) / steps
    return mean


@pytest.mark.parametrize("std", [0.1, 0.3, 1.0, 2.0])
def test_linear_critic_moves_the_mean_by_the_variance_under_the_exact_adjoint(std: float) -> None:
    steps = 2000
    continuous = [exact_factor(k / steps, std) for k in range(steps + 1)]
    for factors in (discrete_factors(std, steps), continuous):
        assert linear_shift(factors, std) == pytest.approx(std**2, rel=0.01)


@pytest.mark.parametrize(("std", "shift"), [(0.1, 0.0922), (0.3, 0.2452), (1.0, 0.6232), (2.0, 0.9773)])
def test_linear_critic_moves_the_mean_by_the_tabulated_amount_under_the_scalar_adjoint(
    std: float, shift: float
) -> None:
    steps = 2000
    found = linear_shift([k / steps for k in range(steps + 1)], std)
    assert found == pytest.approx(shift, rel=0.02)


@pytest.mark.parametrize("std", [0.3, 0.5, 1.0, 2.0])
def test_factors_of_the_grid_are_those_of_continuous_time_within_3_percent(std: float) -> None:
    steps = 200
    largest = max(exact_factor(k / steps, std) for k in range(steps + 1))
    for k, factor in enumerate(discrete_factors(std, steps)):
        assert factor == pytest.approx(exact_factor(k / steps, std), abs=0.03 * largest)
