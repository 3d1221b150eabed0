"""Where the loss of SQAM drives a policy when the critic is known: the tables of docs/algorithms/sqam.md.

A velocity that is linear in x is iterated to the loss's fixed point: sample end points, move every
time's velocity towards the exact minimiser of the matching loss on bridge states, repeat. A whole step
would overshoot where the critic is strongly curved.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flowrl.algorithms.sqam import (
    SQAM,
    SQAMConfig,
    adjoint_matching_loss,
    bridge_times,
    scalar_adjoint,
    squared_noise_scale,
)
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context
from flowrl.policies.samplers import interpolate
from tests.algorithms.analytic import KnownCritic, LinearFlow

ROWS = 4096
QUANTILES = torch.special.ndtri((torch.arange(ROWS) + 0.5) / ROWS)[:, None]
Adjoint = Callable[[Tensor, Tensor], Tensor]


def quantile_noise(repeats: int, generator: torch.Generator) -> Tensor:
    """``repeats`` blocks of ROWS standard normals with exact marginals, each in a random order."""
    return torch.cat([QUANTILES[torch.randperm(ROWS, generator=generator)] for _ in range(repeats)])


def exact_factor(std: float) -> Adjoint:
    def adjoint(gradient: Tensor, tau: Tensor) -> Tensor:
        return -tau * std**2 / ((1 - tau) ** 2 + tau**2 * std**2) * gradient

    return adjoint


def fixed_point(
    gradient_of: Callable[[Tensor], Tensor],
    std: float,
    steps: int,
    dual_effective: float = 1.0,
    adjoint_of: Adjoint = scalar_adjoint,
    iterations: int = 60,
    rate: float = 0.3,
) -> tuple[float, float]:
    """Std and mean of the policy at which the matching loss comes to rest, base N(0, std^2)."""
    generator = torch.Generator().manual_seed(0)
    base, fast = LinearFlow(1, steps, std), LinearFlow(1, steps, std)
    context = Context(torch.ones(ROWS, 1))
    tiled = context.tile(steps)
    tau = bridge_times(steps, ROWS)
    squared_scale = squared_noise_scale(tau, 1 / steps)
    history = []
    for _ in range(iterations):
        with torch.no_grad():
            endpoint = fast.sample(context, quantile_noise(1, generator))
            x = interpolate(quantile_noise(steps, generator), endpoint.repeat(steps, 1), tau)
            target = base.velocity(tiled, x, tau)
        adjoint = adjoint_of(gradient_of(endpoint).repeat(steps, 1), tau)
        shift = fast.velocity(tiled, x, tau) - target
        fast.minimise(adjoint_matching_loss(shift, adjoint, squared_scale, dual_effective, ROWS), rate)
        history.append(fast.moments())
    tail = torch.tensor(history[-(iterations // 3) :]).mean(dim=0)
    return float(tail[0]), float(tail[1])


@pytest.mark.parametrize(("std", "shift"), [(0.1, 0.0922), (0.3, 0.2452), (1.0, 0.6232), (2.0, 0.9773)])
def test_linear_critic_shifts_a_gaussian_by_the_tabulated_amount(std: float, shift: float) -> None:
    strength = 0.5
    found_std, mean = fixed_point(
        lambda a: torch.full_like(a, strength), std, steps=400, dual_effective=2.0, iterations=1, rate=1.0
    )
    assert mean / (strength / 2.0) == pytest.approx(shift, rel=0.05)
    assert found_std == pytest.approx(LinearFlow(1, 400, std).moments()[0], rel=1e-3)


@pytest.mark.parametrize(
    ("std", "curvature", "expected"),
    [(1.0, 1.0, (0.7116, 0.3310)), (0.3, 10.0, (0.1575, 0.6766)), (0.3, 20.0, (0.1256, 0.8038))],
)
def test_quadratic_critic_at_ten_steps_gives_the_tabulated_std_and_mean(
    std: float, curvature: float, expected: tuple[float, float]
) -> None:
    assert fixed_point(lambda a: curvature * (1 - a), std, 10) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("std", "curvature", "expected"),
    [(1.0, 1.0, (0.6339, 0.4582)), (0.3, 10.0, (0.1681, 0.5149)), (0.3, 20.0, (0.1341, 0.6844))],
)
def test_exact_factor_at_ten_steps_gives_a_different_std_and_mean(
    std: float, curvature: float, expected: tuple[float, float]
) -> None:
    found = fixed_point(lambda a: curvature * (1 - a), std, 10, adjoint_of=exact_factor(std))
    assert found == pytest.approx(expected, rel=0.05)


def test_exact_factor_approaches_the_tilt_as_steps_grow() -> None:
    found = fixed_point(lambda a: 1 - a, 1.0, 50, adjoint_of=exact_factor(1.0), iterations=40)
    assert found == pytest.approx((0.7071, 0.5000), rel=0.05)


def bandit(dual_effective: float) -> SQAM:
    """SQAM as released, with its critic replaced by the bandit's own reward -||a - 0.5 c||^2."""
    policy = LinearFlow(2, 10, 0.3)
    config = SQAMConfig(
        critic=CriticConfig(heads=2, width=4, depth=1),
        dual_initial=dual_effective / 3.0,
        value_penalty=0.0,
        dual_rate=0.0,
    )
    learner = SQAM(config, policy)
    learner.critic.target = KnownCritic(  # type: ignore[assignment]
        lambda context, action: -(action - 0.5 * context).square().sum(dim=1), heads=2
    )
    return learner


def test_known_bandit_at_fixed_temperature_gives_the_tabulated_policy() -> None:
    learner = bandit(0.1)
    generator = torch.Generator().manual_seed(0)
    fast = learner.fast
    assert isinstance(fast, LinearFlow)
    history = []
    for _ in range(40):
        context = Context(torch.rand(ROWS, 2, generator=generator) * 2 - 1)
        endpoint = fast.sample(context, torch.randn(ROWS, 2, generator=generator)).detach()
        loss, info, _ = learner.actor_loss(context, endpoint, torch.randn(10 * ROWS, 2, generator=generator))
        fast.minimise(loss, 0.3)
        history.append(fast.moments())
    std, mean = torch.tensor(history[20:]).mean(dim=0).tolist()
    assert (std, mean) == (pytest.approx(0.1256, rel=0.05), pytest.approx(0.8038 * 0.5, rel=0.05))
    assert info["actor/saturated"] < 1e-3


def test_random_base_of_the_bandit_has_the_expected_reward() -> None:
    context = torch.rand(200_000, 2) * 2 - 1
    action = 0.3 * torch.randn(200_000, 2)
    reward = -(action - 0.5 * context).square().sum(dim=1)
    assert float(reward.mean()) == pytest.approx(-0.3467, abs=0.003)


@pytest.mark.parametrize(
    ("std", "sampled"), [(0.1, 0.0617), (0.3, 0.2469), (0.5, 0.4308), (1.0, 0.8790), (2.0, 1.7231)]
)
def test_euler_sampling_of_a_gaussian_has_the_tabulated_bias(std: float, sampled: float) -> None:
    policy = LinearFlow(1, 10, std, mean=0.7)
    assert policy.moments() == (pytest.approx(sampled, abs=1e-4), pytest.approx(0.7, abs=1e-5))
    ends = policy.sample(Context(torch.ones(ROWS, 1)), QUANTILES)
    assert float(ends.detach().std()) == pytest.approx(sampled, rel=1e-2)
