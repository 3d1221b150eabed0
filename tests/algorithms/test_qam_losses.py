"""The losses of QAM and TRQAM: a literal reading of one update, closed forms, isolation, invariances."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flowrl.algorithms.qam import QAM, TRQAM, PathDraws, QAMConfig, TRQAMConfig
from flowrl.critics.ensemble import action_gradient
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.algorithms.rest import KnownTarget
from tests.helpers import identity_spec

STATE, ACTION, CHUNK, ROWS, STEPS = 3, 2, 2, 6, 4
SIZE = ACTION * CHUNK
CRITIC = CriticConfig(heads=3, width=16, depth=2)

Learner = QAM | TRQAM


def policy() -> FlowMLP:
    return FlowMLP(identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=STEPS)


def qam(**options: Any) -> QAM:
    return QAM(QAMConfig(critic=CRITIC, **options), policy())


def trqam(**options: Any) -> TRQAM:
    return TRQAM(TRQAMConfig(critic=CRITIC, **options), policy())


BOTH = pytest.mark.parametrize("make", [qam, trqam])


def disturb(module: nn.Module, scale: float = 0.3) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))


def problem(seed: int = 3) -> tuple[Context, PathDraws]:
    generator = torch.Generator().manual_seed(seed)
    context = Context(torch.randn(ROWS, STATE, generator=generator))
    return context, PathDraws.sample(ROWS, SIZE, STEPS, generator, torch.device("cpu"))


def literal_loss(
    learner: Learner, context: Context, draws: PathDraws, beta: float, dual_effective: float
) -> tuple[Tensor, float]:
    """Loss and path KL row by row, with whole Jacobians, as sections 1.2 and 1.6 of the specification read."""
    h, fast, base = 1 / STEPS, learner.fast.velocity, learner.slow_target.velocity
    loss, kl = torch.zeros(()), 0.0
    for row in range(ROWS):
        one = Context(context.features[row : row + 1])

        def at(t: float) -> Tensor:
            return torch.full((1, 1), t)

        states = [draws.start[row : row + 1]]
        for k in range(STEPS - 1):
            t, x = k * h, states[-1]
            g = (2 * (1 - t + h) / (t + h)) ** 0.5
            drift = 2 * fast(one, x, at(t)) - x / (t + h)
            states.append((x + h * drift + h**0.5 * g * draws.steps[k, row : row + 1]).detach())
        end = (states[-1] + h * base(one, states[-1], at(1 - h))).detach()
        adjoint = -beta * action_gradient(learner.critic.target, one.features, end)[0]
        for k in reversed(range(STEPS)):
            later = (k + 1) * h
            jacobian = torch.autograd.functional.jacobian(
                lambda x, later=later, one=one: 2 * base(one, x, at(later)) - x / later, states[k]
            ).view(SIZE, SIZE)
            adjoint = adjoint + h * adjoint @ jacobian
            t = k * h
            g = (2 * (1 - t + h) / (t + h)) ** 0.5
            sigma = g / dual_effective**0.5
            shift = fast(one, states[k], at(t)) - base(one, states[k], at(t)).detach()
            loss = loss + (2 / sigma * shift + sigma * adjoint).square().sum() / ROWS
            kl += float(2 * h / g**2 * shift.detach().square().sum()) / ROWS / CHUNK
    return loss, kl


@pytest.mark.parametrize(
    ("make", "options", "beta", "dual_effective"),
    [(qam, {"inverse_temperature": 1.7}, 1.7, 1.0), (trqam, {"dual_initial": 0.8}, 1.0, 2.4)],
)
def test_one_actor_loss_equals_a_literal_reading_of_the_equations(
    make: Any, options: dict[str, float], beta: float, dual_effective: float
) -> None:
    learner = make(**options)
    disturb(learner.fast)
    disturb(learner.slow_target)
    context, draws = problem()
    ours, _, kl = learner.actor_loss(context, draws)
    theirs, literal_kl = literal_loss(learner, context, draws, beta, dual_effective)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=0)
    assert kl == pytest.approx(literal_kl, rel=1e-4)
    parameters = list(learner.fast.parameters())
    for mine, yours in zip(
        torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters), strict=True
    ):
        torch.testing.assert_close(mine, yours, rtol=1e-3, atol=1e-4 * float(yours.abs().max()))


def test_unmoved_policy_has_no_path_kl_and_the_closed_form_loss() -> None:
    """With a base that does not depend on x the exact adjoint is t G, as in SQAM, on times 0 ... 1 - h."""
    learner = qam(inverse_temperature=2.0)
    for network in (learner.fast.network, learner.slow_target.network):  # type: ignore[union-attr]
        with torch.no_grad():
            network[0].weight[:, STATE : STATE + SIZE] = 0  # type: ignore[index,union-attr,operator]
            network[-1].weight.mul_(0.01)  # type: ignore[index,union-attr,operator]
    slope = torch.linspace(-1, 2, SIZE)
    KnownTarget.replace(learner.critic, lambda features, action: action @ slope)
    context, draws = problem()
    narrow = PathDraws(0.01 * draws.start, 0.01 * draws.steps, draws.base_noise, draws.base_time)
    loss, info, kl = learner.actor_loss(context, narrow)
    t = torch.arange(STEPS) / STEPS
    weight = (2 * (1 - t + 1 / STEPS) / (t + 1 / STEPS) * t.square()).sum()
    assert kl == info["actor/saturated"] == 0.0
    torch.testing.assert_close(loss.detach(), 4.0 * weight * slope.square().sum(), rtol=1e-4, atol=0)
    assert info["actor/adjoint_growth"] == pytest.approx(1.0)


def test_trust_region_loss_is_the_fixed_temperature_loss_times_lambda() -> None:
    """So both have the same minimiser at beta = 1 / lambda_eff."""
    fixed, dual = qam(inverse_temperature=1 / 1.5), trqam(dual_initial=0.5)
    dual.fast.load_state_dict(fixed.fast.state_dict())
    dual.slow_target.load_state_dict(fixed.slow_target.state_dict())
    dual.critic.target.load_state_dict(fixed.critic.target.state_dict())
    for learner in (fixed, dual):
        torch.manual_seed(0)
        disturb(learner.fast)
    losses = [learner.actor_loss(*problem()) for learner in (fixed, dual)]
    torch.testing.assert_close(losses[1][0], 1.5 * losses[0][0], rtol=1e-5, atol=0)
    assert losses[1][2] == pytest.approx(losses[0][2], rel=1e-6)


def untouched(module: nn.Module) -> bool:
    return all(p.grad is None or not p.grad.any() for p in module.parameters())


@BOTH
def test_actor_loss_reaches_the_fast_policy_alone(make: Any) -> None:
    learner = make()
    disturb(learner.fast)
    learner.actor_loss(*problem())[0].backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in learner.fast.parameters())
    others = (learner.slow, learner.slow_target, learner.critic.online, learner.critic.target)
    assert all(untouched(module) for module in others)


def test_joint_loss_trains_critic_base_and_policy_each_by_its_own_part() -> None:
    learner = qam()
    batch, view = learner.draw(FixedBatches(lambda n, s: random_batch(n, ROWS, STATE, ACTION, CHUNK)))
    _, draws = problem()
    total, info, _ = learner.losses(batch, view, batch, draws)
    parts = [info[name] for name in ("critic/td_loss", "actor/adjoint_loss", "base/loss")]
    assert float(total.detach()) == pytest.approx(sum(parts), rel=1e-5)
    total.backward()
    for trained in (learner.fast, learner.slow, learner.critic.online):
        assert not untouched(trained)
    assert untouched(learner.slow_target)
    assert untouched(learner.critic.target)
    assert "critic/value_gap" not in info


@BOTH
def test_adding_a_constant_to_the_critic_leaves_the_actor_loss(make: Any) -> None:
    learner = make()
    disturb(learner.fast)
    before, info, _ = learner.actor_loss(*problem())
    with torch.no_grad():
        learner.critic.target.biases[-1] += 7.0
    after, moved, _ = learner.actor_loss(*problem())
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    assert moved["actor/q_target_network"] == pytest.approx(info["actor/q_target_network"] + 7, abs=1e-4)


@BOTH
def test_permuting_action_dimensions_permutes_everything(make: Any) -> None:
    learner = make()
    disturb(learner.fast)
    order = torch.tensor([2, 0, 3, 1])
    permuted = deepcopy(learner)
    with torch.no_grad():
        for network in (permuted.fast.network, permuted.slow_target.network):
            network[0].weight[:, STATE : STATE + SIZE] = network[0].weight[:, STATE + order]
            network[-1].weight.copy_(network[-1].weight[order])
            network[-1].bias.copy_(network[-1].bias[order])
        weight = permuted.critic.target.weights[0]
        weight[:, STATE : STATE + SIZE] = weight[:, STATE + order]
    context, draws = problem()
    shuffled = PathDraws(draws.start[:, order], draws.steps[..., order], draws.base_noise, draws.base_time)
    ours, theirs = learner.actor_loss(context, draws), permuted.actor_loss(context, shuffled)
    torch.testing.assert_close(theirs[0], ours[0])
    assert theirs[2] == pytest.approx(ours[2], rel=1e-5)
