"""The dual variable: where it comes to rest, and how it is clipped and averaged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flowrl.algorithms.sqam import (
    Dual,
    SQAMConfig,
    adjoint_matching_loss,
    bridge_times,
    path_kl,
    scalar_adjoint,
    squared_noise_scale,
)

ROWS, SIZE = 6, 4


def path_kl_at_the_optimum(gradient: Tensor, dual_effective: float, steps: int, chunk: int) -> float:
    """Minimise the matching loss over a free velocity shift; return the path KL there."""
    tau = bridge_times(steps, ROWS)
    squared_scale = squared_noise_scale(tau, 1 / steps)
    adjoint = scalar_adjoint(gradient.repeat(steps, 1), tau)
    shift = torch.zeros_like(adjoint, requires_grad=True)
    loss = adjoint_matching_loss(shift, adjoint, squared_scale, dual_effective, ROWS)
    (slope,) = torch.autograd.grad(loss, shift, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), shift)
    best = (shift - slope / curvature).detach()
    rest = adjoint_matching_loss(best, adjoint, squared_scale, dual_effective, ROWS)
    assert float(rest) < 1e-6 * float(loss.detach())
    return float(path_kl(best, squared_scale, 1 / steps, ROWS, chunk))


def gradient_of_norm(norm: float) -> Tensor:
    direction = torch.randn(ROWS, SIZE)
    return norm * direction / direction.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(("norm", "dual_effective", "chunk"), [(1.0, 1.0, 1), (2.5, 0.7, 1), (2.5, 3.0, 5)])
def test_path_kl_at_ten_steps_has_the_coefficient_0_17924(
    norm: float, dual_effective: float, chunk: int
) -> None:
    found = path_kl_at_the_optimum(gradient_of_norm(norm), dual_effective, 10, chunk)
    assert found == pytest.approx(0.17924 * norm**2 / (dual_effective**2 * chunk), rel=1e-4)


def test_path_kl_approaches_one_sixth_as_steps_grow() -> None:
    found = path_kl_at_the_optimum(gradient_of_norm(2.0), 1.5, 2000, 5)
    assert found == pytest.approx(2.0**2 / (6 * 1.5**2 * 5), rel=2e-3)


def settled(norm: float, config: SQAMConfig) -> tuple[float, float]:
    """lambda_eff and path KL once the dual variable has come to rest, the policy always optimal."""
    dual = Dual(config.dual_initial)
    kl = float("nan")
    for _ in range(3000):
        lambda_eff = config.dual_scale * dual.value
        kl = 0.17924 * norm**2 / lambda_eff**2
        dual.step(kl, config)
    return config.dual_scale * dual.value, kl


@pytest.mark.parametrize("budget", [0.1, 0.5, 2.0])
def test_dual_variable_settles_where_the_path_kl_equals_the_budget(budget: float) -> None:
    lambda_eff, kl = settled(1.5, SQAMConfig(kl_budget=budget))
    assert lambda_eff == pytest.approx(1.5 * (0.17924 / budget) ** 0.5, rel=1e-3)
    assert kl == pytest.approx(budget, rel=1e-3)


def test_scaling_the_critic_scales_lambda_and_leaves_the_path_kl() -> None:
    small, large = (settled(norm, SQAMConfig(kl_budget=0.5)) for norm in (1.0, 4.0))
    assert large[0] == pytest.approx(4 * small[0], rel=1e-3)
    assert large[1] == pytest.approx(small[1], rel=1e-3)


def test_one_dual_step_clips_the_kl_at_twice_the_budget_then_averages() -> None:
    config = SQAMConfig(kl_budget=0.5, kl_average=0.1, dual_rate=0.01)
    dual = Dual(1.0, average=0.2)
    dual.step(100.0, config)
    assert dual.average == pytest.approx(0.9 * 0.2 + 0.1 * 1.0)
    assert dual.value == pytest.approx(1.0 + 0.01 * (dual.average - 0.5))


@pytest.mark.parametrize(("start", "kl", "end"), [(0.0101, 0.0, 0.01), (99.999, 1e9, 100.0)])
def test_dual_variable_stays_inside_its_bounds(start: float, kl: float, end: float) -> None:
    dual = Dual(start)
    for _ in range(60):
        dual.step(kl, SQAMConfig())
    assert dual.value == end
