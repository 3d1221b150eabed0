"""FQL: where the one-step policy comes to rest under a linear critic, and who learns from what."""

from __future__ import annotations

import pytest
import torch

from flowrl.algorithms.baselines.fql import FQL, FQLConfig, one_step_loss
from flowrl.algorithms.baselines.sac import ascent_loss
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
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
    STEPS,
    base,
    generator,
    know,
    linear,
)
from tests.algorithms.pages import Page
from tests.algorithms.test_sqam_losses import touched, untouched
from tests.helpers import identity_spec

SLOPE = torch.tensor([0.5, -1.0, 0.2, 2.0])


def learner(**options: object) -> FQL:
    return FQL(FQLConfig(critic=CRITIC, **options), base())  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [10.0, 40.0])
def test_the_loss_is_smallest_at_the_flows_sample_plus_d_g_over_two_alpha(alpha: float) -> None:
    """The loss is quadratic in mu, so one Newton step lands on the minimum."""
    fql = learner()
    know(fql, linear(SLOPE))
    features, taught = torch.zeros(ROWS, STATE), 0.3 * torch.randn(ROWS, SIZE)
    mu = torch.zeros(ROWS, SIZE, requires_grad=True)
    loss, _ = one_step_loss(fql.critic.online, features, mu, taught, alpha)
    (gradient,) = torch.autograd.grad(loss, mu)
    curvature = 2 * alpha / (ROWS * SIZE)
    assert torch.allclose(mu - gradient / curvature, taught + SIZE * SLOPE / (2 * alpha), atol=1e-5)


def test_training_moves_a_one_step_policy_there() -> None:
    """A linear one-step map of a linear flow: std s_K stays, the mean moves by D g / (2 alpha) = 0.2."""
    fql = FQL(FQLConfig(critic=CRITIC, alpha=5.0), FlowMLP(identity_spec(1, 1, 1), width=4, depth=1))
    know(fql, linear(torch.tensor([2.0])))
    student, context = LinearFlow(1, 10, 0.2), Context(torch.ones(4096, 1))
    fql.flow, fql.policy.base = LinearFlow(1, 10, 0.2), student
    student.minimise(fql.actor_loss(context)[0])
    noise = torch.randn(20_000, 1, generator=generator())
    with torch.no_grad():
        ends = fql.policy.sample(Context(torch.ones(20_000, 1)), noise)
    assert float(ends.mean()) == pytest.approx(1 * 2.0 / (2 * 5.0), abs=5e-3)
    assert float(ends.std()) == pytest.approx(fql.flow.moments()[0], abs=5e-3)


def test_normalising_makes_the_step_independent_of_the_critics_scale() -> None:
    fql = learner()
    features, mu = torch.zeros(ROWS, STATE), 0.3 * torch.randn(ROWS, SIZE, requires_grad=True)
    gradients = []
    for scale in (1.0, 100.0):
        know(fql, lambda features, action, scale=scale: scale * (action @ SLOPE - 3))
        loss, _ = one_step_loss(fql.critic.online, features, mu, mu.detach(), 10.0, normalise=True)
        gradients.append(torch.autograd.grad(loss, mu, retain_graph=True)[0])
    assert torch.allclose(*gradients, atol=1e-7)


def test_ascent_passes_the_critics_gradient_through_the_clip_and_not_into_it() -> None:
    fql = learner()
    action = torch.tensor([[0.5, 1.5, -2.0, 0.0]], requires_grad=True)
    loss, gradient, values = ascent_loss(fql.critic.online, torch.randn(1, STATE), action)
    loss.backward()
    assert action.grad is not None
    assert torch.equal(action.grad, -gradient)
    assert (gradient[0, 1:3] == 0).all()
    assert float(loss.detach()) == pytest.approx(-float(values.mean()))
    assert untouched(fql.critic.online)


def test_the_actors_loss_reaches_the_one_step_policy_alone() -> None:
    fql = learner()
    fql.actor_loss(Context(torch.randn(ROWS, STATE)))[0].backward()
    assert all(p.grad is not None for p in fql.policy.parameters())
    assert all(untouched(m) for m in (fql.flow, fql.critic.online, fql.critic.target))


def test_the_critic_learns_from_td_alone() -> None:
    fql = learner()
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    fql.temporal_loss(batch, fql.critic.view(batch, fql.policy))[0].backward()
    assert touched(fql.critic.online)
    assert all(untouched(m) for m in (fql.flow, fql.policy))


def test_the_one_step_policy_starts_at_the_mean_of_a_gaussian_base() -> None:
    """z + v(s, z, 0) is E[a | s] for the exact flow of N(0.4 s, 0.3^2), whatever z."""
    fql = learner()
    fql.policy.base = LinearFlow(1, STEPS, 0.3, mean=0.4)
    state = torch.randn(9, 1)
    assert torch.allclose(fql.policy.sample(Context(state), torch.randn(9, 1)), 0.4 * state, atol=1e-6)


def test_the_flow_clones_the_critics_batch_or_a_named_source() -> None:
    batches = FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    learner().update(batches)
    learner(source="success_mix").update(batches)
    assert batches.sources == [None, None, "success_mix"]
    assert learner().deviations() == []
    found = learner(source="success_mix", collect_best_of=2).deviations()
    assert found == [
        "the flow clones the source 'success_mix' only",
        "collects with the best of 2 samples",
    ]


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    config = FQLConfig(critic=BANDIT_CRITIC, alpha=1.0, learning_rate=1e-3)
    source = generator()
    assert bandit.train(FQL(config, bandit.random_base(source)), source, updates=200) > -0.15


def test_the_page_explains_every_hyper_parameter_and_metric() -> None:
    page = Page("algorithms/fql.md")
    page.check_hyper_parameters(FQLConfig)
    batches, fql = FixedBatches.random(ROWS, STATE, ACTION, CHUNK), learner()
    page.check_metrics(fql.warm_up(batches) | fql.update(batches) | fql.diagnostics(batches))
    page.check_links()
