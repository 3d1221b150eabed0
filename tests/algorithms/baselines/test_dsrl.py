"""DSRL: the noise goes to its bound under a linear critic; the flow never moves."""

from __future__ import annotations

import pytest
import torch

from flowrl.algorithms.baselines.dsrl import DSRL, DSRLConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from tests.algorithms import bandit
from tests.algorithms.analytic import FixedBatches, LinearFlow, random_batch
from tests.algorithms.baselines.common import (
    ACTION,
    BANDIT_CRITIC,
    CHUNK,
    CRITIC,
    ROWS,
    SIZE,
    STATE,
    base,
    generator,
    know,
)
from tests.algorithms.pages import Page
from tests.algorithms.test_sqam_losses import touched, untouched
from tests.helpers import identity_spec

SMALL = {"width": 16, "depth": 2}


def learner(**options: object) -> DSRL:
    return DSRL(DSRLConfig(critic=CRITIC, **(SMALL | options)), base())  # type: ignore[arg-type]


def test_under_a_linear_critic_the_noise_goes_to_its_bound() -> None:
    """Base N(0.2, 0.3^2), g = (1, -1): w = +-1.5, so the action is 0.2 +- 1.5 s_K."""
    config = DSRLConfig(
        critic=CriticConfig(heads=2, width=32, depth=2, learning_rate=3e-3),
        learning_rate=3e-3,
        temperature=1e-3,
        temperature_rate=1e-9,
        latent_updates=2,
        **SMALL,  # type: ignore[arg-type]
    )
    dsrl = DSRL(config, FlowMLP(identity_spec(2, 2, 1), width=4, depth=1))
    flow = LinearFlow(2, 4, 0.3, mean=0.2)
    dsrl.policy.base = flow
    know(dsrl, lambda features, action: action[:, 0] - action[:, 1])
    context = Context(torch.ones(64, 2))
    for _ in range(200):
        u, density = dsrl.policy.choose(context, dsrl.normal(64, 2))
        actor, _ = dsrl.soft_loss(dsrl.latent, context.features, u, density)
        dsrl.step(dsrl.latent_loss(context) + actor)
    std, mean = flow.moments()
    with torch.no_grad():
        u, _ = dsrl.policy.choose(Context(torch.ones(1, 2)), torch.zeros(1, 2))
        action = dsrl.policy.sample(Context(torch.ones(1, 2)), torch.zeros(1, 2))
    sign = torch.tensor([[1.0, -1.0]])
    assert torch.allclose(dsrl.policy.magnitude * u, 1.5 * sign, atol=0.05)
    assert torch.allclose(action, mean + 1.5 * std * sign, atol=0.02)


def test_no_sample_leaves_the_reach_of_the_bounded_noise() -> None:
    dsrl = DSRL(DSRLConfig(critic=CRITIC), FlowMLP(identity_spec(2, 2, 1), width=4, depth=1))
    flow = LinearFlow(2, 10, 0.3)
    dsrl.policy.base = flow
    with torch.no_grad():
        action = dsrl.policy.sample(Context(torch.zeros(2000, 2)), 99 * torch.randn(2000, 2))
    assert float(action.abs().max()) == pytest.approx(1.5 * flow.moments()[0], abs=1e-4)


def test_the_critic_of_noise_learns_what_the_critic_says_of_the_flows_action() -> None:
    dsrl = learner()
    know(dsrl, lambda features, action: action @ torch.tensor([1.0, -2.0, 0.5, 1.0]))
    dsrl.latent = CriticConfig(heads=2, width=32, depth=2).build(STATE, SIZE)
    optimiser = torch.optim.Adam(dsrl.latent.parameters(), 3e-3)
    context = Context(torch.randn(128, STATE))
    losses: list[float] = []
    for _ in range(200):
        loss = dsrl.latent_loss(context)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    u = (torch.randn(128, SIZE) / 1.5).clamp(-1, 1)
    with torch.no_grad():
        truth = dsrl.policy.decode(context, u).clamp(-1, 1) @ torch.tensor([1.0, -2.0, 0.5, 1.0])
        error = (dsrl.latent(context.features, u).mean(dim=0) - truth).square().mean()
    assert float(error) < 0.1 * float(truth.var())
    assert losses[-1] < 0.1 * losses[0]


def test_the_regression_reaches_the_critic_of_noise_alone() -> None:
    dsrl = learner()
    dsrl.latent_loss(Context(torch.randn(ROWS, STATE))).backward()
    assert touched(dsrl.latent)
    assert all(untouched(m) for m in (dsrl.policy, dsrl.critic.online, dsrl.critic.target))


def test_the_actors_loss_reaches_the_steering_alone() -> None:
    dsrl = learner()
    features = torch.randn(ROWS, STATE)
    u, density = dsrl.policy.choose(Context(features), torch.randn(ROWS, SIZE))
    dsrl.soft_loss(dsrl.latent, features, u, density)[0].backward()
    assert touched(dsrl.policy.steering)
    assert all(untouched(m) for m in (dsrl.latent, dsrl.policy.base, dsrl.critic.online))


def test_the_critic_learns_from_td_alone() -> None:
    dsrl = learner()
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    dsrl.temporal_loss(batch, dsrl.critic.view(batch, dsrl.policy))[0].backward()
    assert touched(dsrl.critic.online)
    assert all(untouched(m) for m in (dsrl.policy, dsrl.latent))


def test_the_flow_stays_as_it_was() -> None:
    dsrl, batches = learner(), FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    before = {name: value.clone() for name, value in dsrl.policy.base.state_dict().items()}
    for _ in range(3):
        dsrl.update(batches)
    assert all(torch.equal(value, before[name]) for name, value in dsrl.policy.base.state_dict().items())


def test_an_update_regresses_as_often_as_it_says() -> None:
    """Adam counts the steps of every parameter."""
    for count in (1, 4):
        dsrl = learner(latent_updates=count)
        dsrl.update(FixedBatches.random(ROWS, STATE, ACTION, CHUNK))
        states = [dsrl.optimiser.state[next(m.parameters())] for m in (dsrl.latent, dsrl.policy.steering)]
        assert [int(state["step"]) for state in states] == [count, 1]


def test_it_evaluates_by_the_mean_noise_and_collects_at_random() -> None:
    dsrl = learner()
    assert dsrl.actor("evaluate").zero_noise
    assert not dsrl.actor("collect").zero_noise
    observation = Observation(torch.randn(5, STATE))
    chunks = [dsrl.actor("evaluate").act(observation, generator(seed)) for seed in (0, 1)]
    assert torch.equal(*chunks)


def test_clipping_apart_treats_both_critics_alike() -> None:
    limits = learner(critic_gradient_clip=7.0).limits()
    assert limits == {"critic": 7.0, "latent": 7.0, "steering": 1.0, "temperature": 1.0}
    assert learner().limits() == 1.0


@pytest.mark.parametrize("settings", [{"magnitude": 0.0}, {"latent_updates": 0}])
def test_unusable_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"it must be (positive|at least 1)"):
        DSRLConfig(**settings)  # type: ignore[arg-type]


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    config = DSRLConfig(
        critic=BANDIT_CRITIC,
        learning_rate=1e-3,
        temperature=0.02,
        latent_updates=4,
        width=64,
        depth=2,
    )
    source = generator()
    assert bandit.train(DSRL(config, bandit.random_base(source)), source, updates=150, warm_up=100) > -0.15


def test_the_page_explains_every_hyper_parameter_and_metric() -> None:
    page = Page("algorithms/dsrl.md")
    page.check_hyper_parameters(DSRLConfig)
    batches, dsrl = FixedBatches.random(ROWS, STATE, ACTION, CHUNK), learner()
    page.check_metrics(dsrl.warm_up(batches) | dsrl.update(batches) | dsrl.diagnostics(batches))
    page.check_links()
