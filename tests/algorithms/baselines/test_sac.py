"""SAC's temperature and its actor's loss: where they come to rest."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch

from flowrl.algorithms.baselines.rlpd import RLPD, RLPDConfig
from flowrl.algorithms.baselines.sac import Temperature, seeded, wrap
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.policies.gaussian import GaussianPolicy
from tests.algorithms.analytic import KnownCritic
from tests.algorithms.baselines.common import CRITIC, STATE, base


def test_the_temperature_rises_exactly_when_the_entropy_is_below_its_target() -> None:
    """d L / d log alpha = -alpha (mean log pi + target): with entropy -3 and target -2, a step up."""
    temperature = Temperature(0.5, target_entropy=-2.0)
    density = torch.tensor([2.0, 4.0], requires_grad=True)
    temperature.loss(density).backward()
    assert float(temperature.log_value.grad or 0) == pytest.approx(-0.5 * (3 - 2))
    assert density.grad is None
    assert float(temperature.value) == pytest.approx(0.5)


def test_the_target_is_per_dimension() -> None:
    learner = RLPD(RLPDConfig(critic=CRITIC, target_entropy=-0.25), base())
    assert learner.temperature.target_entropy == -0.25 * learner.policy.flat_size


def test_the_actors_loss_is_the_free_energy_of_its_samples() -> None:
    """Under a constant critic it is alpha log pi - Q, and its gradient is that of the entropy alone."""
    learner = RLPD(RLPDConfig(critic=CRITIC, temperature=2.0), base())
    critic = cast(CriticEnsemble, KnownCritic(lambda features, action: 0 * action.sum(dim=1) + 7.0))
    action = torch.zeros(4, learner.policy.flat_size, requires_grad=True)
    density = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    loss, info = learner.soft_loss(critic, torch.zeros(4, STATE), action, density)
    assert float(loss.detach()) == pytest.approx(2.0 * 2.5 - 7.0)
    loss.backward()
    assert density.grad is not None
    assert torch.allclose(density.grad, torch.full((4,), 2.0 / 4))
    assert info["actor/entropy"] == pytest.approx(-2.5 / learner.policy.flat_size)


def test_the_joint_optimum_of_a_linear_critic_is_its_boltzmann_density() -> None:
    """On (-1, 1) the best density is exp(g a / alpha) / Z, whose mean is coth(k) - 1 / k for k = g / alpha.

    A squashed Gaussian only comes near it, so that 0.08 is allowed.
    """
    torch.manual_seed(0)
    learner = RLPD(RLPDConfig(critic=CRITIC, temperature=0.5, width=32, depth=2), base())
    critic = cast(CriticEnsemble, KnownCritic(lambda features, action: action.sum(dim=1)))
    optimiser = torch.optim.Adam(learner.policy.gaussian.parameters(), 1e-2)
    features = torch.zeros(64, STATE)
    for _ in range(200):
        action, density = learner.policy.gaussian(features, learner.normal(64, learner.policy.flat_size))
        optimiser.zero_grad()
        learner.soft_loss(critic, features, action, density)[0].backward()
        optimiser.step()
    with torch.no_grad():
        noise = learner.normal(2000, learner.policy.flat_size)
        action, _ = learner.policy.gaussian(torch.zeros(2000, STATE), noise)
    assert float(action.mean()) == pytest.approx(1 / math.tanh(2) - 1 / 2, abs=0.08)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"target_entropy": 0.7}])
def test_unusable_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"it must be positive|no density on"):
        RLPDConfig(**settings)  # type: ignore[arg-type]


def test_the_seed_fixes_the_new_weights_and_leaves_torchs_generator() -> None:
    flow = base()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, same, other = (wrap(GaussianPolicy, flow, seed, width=8, depth=1) for seed in (1, 1, 2))
    with seeded(9):
        torch.rand(2)
    assert torch.equal(torch.rand(3), expected)
    weights = [dict(p.named_parameters())["gaussian.network.0.weight"] for p in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
