"""A frozen flow with chosen noise: bounds of the noise, and what the untrained policy does."""

from __future__ import annotations

import pytest
import torch

from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.steered import SteeredPolicy
from tests.algorithms.analytic import LinearFlow
from tests.helpers import identity_spec


def steered(**settings: float) -> SteeredPolicy:
    return SteeredPolicy.around(FlowMLP(identity_spec(2, 2, 1), width=8, depth=1), **settings)


def test_a_sample_is_the_flows_own_at_the_chosen_noise() -> None:
    policy = steered(magnitude=1.2)
    context, noise = Context(torch.randn(6, 2)), torch.randn(6, 2)
    u, _ = policy.choose(context, noise)
    assert torch.equal(policy.sample(context, noise), policy.base.sample(context, 1.2 * u))
    assert float(u.detach().abs().max()) <= 1


def test_the_untrained_policy_spreads_nearly_as_its_base_does() -> None:
    """The base's noise has a standard deviation of 1; the untrained noise has 0.94 up to initial weights."""
    policy = steered()
    policy.base = LinearFlow(2, 10, 0.3)
    context = Context(torch.zeros(20_000, 2))
    with torch.no_grad():
        spread = policy.sample(context, torch.randn(20_000, 2)).std(dim=0) / 0.2469
    assert spread.tolist() == pytest.approx([0.94, 0.94], abs=0.15)
