"""The squashed Gaussian over chunks: its density is that of its samples, zero noise is its mean."""

from __future__ import annotations

import pytest
import torch

from flowrl.policies.gaussian import GaussianPolicy
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from tests.helpers import identity_spec


def gaussian(size: int) -> GaussianPolicy:
    return GaussianPolicy.around(FlowMLP(identity_spec(3, size, 1), width=8, depth=1))


def test_the_density_integrates_to_one_over_the_actions_range() -> None:
    policy, grid = gaussian(1), torch.linspace(-0.99999, 0.99999, 20_001)
    density = policy.log_prob(Context(torch.ones(len(grid), 3)), grid[:, None]).exp().detach()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-3)


def test_the_density_is_that_of_the_samples() -> None:
    """The share of samples below 0 is the density's integral there; standard error 0.0025."""
    policy, grid = gaussian(1), torch.linspace(-0.99999, 0, 10_001)
    state, count = torch.tensor([[0.5, -1.0, 2.0]]), 40_000
    density = policy.log_prob(Context(state.expand(len(grid), 3)), grid[:, None]).exp().detach()
    with torch.no_grad():
        samples = policy.sample(Context(state.expand(count, 3)), torch.randn(count, 1))
    below = float((samples < 0).float().mean())
    assert below == pytest.approx(float(torch.trapezoid(density, grid)), abs=0.01)


def test_zero_noise_is_the_squashed_mean() -> None:
    policy, features = gaussian(2), torch.randn(5, 3)
    mean, _ = policy.gaussian.moments(features)
    assert torch.equal(policy.sample(Context(features), torch.zeros(5, 2)), mean.tanh())


def test_actions_at_the_bounds_have_a_finite_density() -> None:
    density = gaussian(2).log_prob(Context(torch.zeros(2, 3)), torch.tensor([[1.0, -1.0], [1.5, 0.0]]))
    assert bool(density.isfinite().all())
