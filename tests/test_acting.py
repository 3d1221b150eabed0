"""Acting rules: what best-of-N does to a Gaussian policy under a linear critic."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch

from flowrl.acting import Actor, load_actor, save_actor
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.errors import UsageError
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from tests.algorithms.analytic import KnownCritic, LinearFlow
from tests.helpers import identity_spec
from tests.policies.constant import ConstantPolicy

ROWS, STD = 20_000, 0.3
SAMPLED_STD = 0.2469
"""Euler sampling with 10 steps narrows N(0, 0.3^2) to this."""


def linear_critic(slope: float) -> CriticEnsemble:
    return cast(CriticEnsemble, KnownCritic(lambda s, a: slope * a[:, 0], heads=2))


def act(best_of: int, slope: float, seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    actor = Actor(LinearFlow(1, 10, STD), linear_critic(slope), best_of)
    return actor.act(Observation(torch.zeros(rows, 1)), torch.Generator().manual_seed(seed))[:, 0, 0]


@pytest.mark.parametrize(("best_of", "order_statistic"), [(4, 1.0294), (16, 1.7661)])
@pytest.mark.parametrize("slope", [2.0, -0.5])
def test_best_of_n_shifts_the_mean_by_the_normal_order_statistic(
    best_of: int, order_statistic: float, slope: float
) -> None:
    """sign(g) s_K e_N, whatever the size of the critic's slope."""
    expected = order_statistic * SAMPLED_STD * (1 if slope > 0 else -1)
    assert float(act(best_of, slope).mean()) == pytest.approx(expected, rel=0.02)


def test_one_sample_ignores_the_critic() -> None:
    assert float(act(1, 100.0).mean()) == pytest.approx(0.0, abs=0.01)
    assert torch.equal(act(1, 100.0), act(1, -100.0))


def test_best_of_n_chooses_for_every_row_from_its_own_candidates() -> None:
    """The policy's mean and the critic depend on the row; a mixed-up row would be far off."""
    policy = LinearFlow(1, 10, 0.05, mean=0.5)
    critic = cast(CriticEnsemble, KnownCritic(lambda s, a: s[:, 0] * a[:, 0]))
    state = torch.tensor([[1.0], [-1.0]]).repeat(500, 1)
    raw = Actor(policy, critic, 8).act(Observation(state), torch.Generator().manual_seed(0))[:, 0, 0]
    assert float((raw * state[:, 0]).min()) > 0.45
    assert float((raw * state[:, 0]).mean()) == pytest.approx(0.5 + 1.4236 * policy.moments()[0], rel=0.01)


def test_actions_are_repeatable_from_the_generator_and_clipped() -> None:
    assert torch.equal(act(4, 1.0, rows=50), act(4, 1.0, rows=50))
    assert not torch.equal(act(4, 1.0, rows=50), act(4, 1.0, seed=1, rows=50))
    wide = Actor(LinearFlow(1, 10, 3.0))
    raw = wide.act(Observation(torch.zeros(200, 1)), torch.Generator().manual_seed(0))
    assert float(raw.abs().max()) == 1.0
    assert raw.shape == (200, 1, 1)


def test_zero_noise_is_deterministic_and_every_rule_says_what_it_is() -> None:
    actor = Actor(LinearFlow(1, 10, STD, mean=0.4), zero_noise=True)
    observation = Observation(torch.ones(3, 1))
    first = actor.act(observation, torch.Generator().manual_seed(0))
    assert torch.equal(first, actor.act(observation, torch.Generator().manual_seed(1)))
    assert float(first[0]) == pytest.approx(0.4, abs=1e-5)
    assert actor.rule == "one ODE sample, zero noise, 10 Euler steps"
    best = Actor(LinearFlow(1, 10, STD), linear_critic(1.0), 16)
    assert best.rule == "best of 16 ODE samples by the critic's mean, random noise, 10 Euler steps"


def test_a_policy_may_offer_several_candidates_of_one_noise() -> None:
    """Of +-noise / 2 the critic takes the positive one: the mean of |N(0, 1/4)| is sqrt(2 / pi) / 2."""
    policy = ConstantPolicy(identity_spec(1, 1, 1))
    generator = torch.Generator().manual_seed(0)
    observation = Observation(torch.zeros(ROWS, 1))
    plain = Actor(policy).act(observation, generator)
    assert float(plain.mean()) == pytest.approx(0.0, abs=0.01)
    actor = Actor(policy, linear_critic(1.0))
    assert actor.candidates == 2
    chosen = actor.act(observation, generator)
    assert float(chosen.min()) >= 0
    assert float(chosen.clamp(max=1).mean()) == pytest.approx(0.3969, abs=0.01)  # clipped at 1: 2 % of them
    assert actor.rule == "best of 2 scaled noises by the critic's mean, random noise"
    assert (Actor(policy).plain, actor.plain, actor.common().plain) == (True, False, True)


def test_the_sde_is_wider_with_its_noise_and_needs_a_velocity() -> None:
    policy = LinearFlow(1, 10, 0.2)
    observation = Observation(torch.zeros(ROWS, 1))

    def spread(scale: float | None) -> float:
        generator = torch.Generator().manual_seed(0)
        return float(Actor(policy, sde_scale=scale).act(observation, generator).std())

    assert spread(1e-6) < spread(None)  # its means are clipped at 1 on the way
    assert spread(0.1) > 1.1 * spread(1e-6)
    with pytest.raises(UsageError, match=r"'constant' has no velocity to sample by an SDE"):
        Actor(ConstantPolicy(identity_spec(1, 1, 1)), sde_scale=0.1)


def test_a_saved_actor_acts_as_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = FlowMLP(identity_spec(2, 1, 3), width=8, depth=1, flow_steps=2)
    actor = Actor(policy, CriticEnsemble(5, heads=3, width=8, depth=1), 4, score="min", sde_scale=0.05)
    save_actor(actor, tmp_path / "actor")
    again = load_actor(tmp_path / "actor")
    observation = Observation(torch.randn(6, 2))
    chunks = [a.act(observation, torch.Generator().manual_seed(1)) for a in (actor, again)]
    assert torch.equal(*chunks)
    assert again.rule == actor.rule
