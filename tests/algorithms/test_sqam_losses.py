"""The losses of SQAM: closed forms, isolation of gradients, invariances, refusal of bad numbers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from flowrl.algorithms.sqam import SQAM, Draws, SQAMConfig, bridge_times, squared_noise_scale
from flowrl.critics.ensemble import action_gradient
from flowrl.critics.targets import CriticConfig
from flowrl.errors import NonFiniteLoss
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.helpers import identity_spec

STATE, ACTION, CHUNK, ROWS, STEPS = 3, 2, 2, 12, 5
SIZE = ACTION * CHUNK


def learner(**options: object) -> SQAM:
    policy = FlowMLP(identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=STEPS)
    critic = CriticConfig(heads=3, width=16, depth=2)
    return SQAM(SQAMConfig(critic=critic, **options), policy)  # type: ignore[arg-type]


def disturb(module: nn.Module, scale: float = 0.3) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))


def actor_loss(sqam: SQAM, seed: int = 3) -> tuple[Tensor, dict[str, float], float]:
    generator = torch.Generator().manual_seed(seed)
    context = Context(torch.randn(ROWS, STATE, generator=generator))
    endpoint = torch.randn(ROWS, SIZE, generator=generator)
    return sqam.actor_loss(context, endpoint, torch.randn(STEPS * ROWS, SIZE, generator=generator))


def untouched(module: nn.Module) -> bool:
    return all(p.grad is None or not p.grad.any() for p in module.parameters())


def touched(module: nn.Module) -> bool:
    return all(p.grad is not None and bool(p.grad.any()) for p in module.parameters())


def test_unmoved_policy_has_no_path_kl_and_the_closed_form_loss() -> None:
    sqam = learner(dual_initial=0.8)
    context, endpoint = Context(torch.randn(ROWS, STATE)), torch.randn(ROWS, SIZE)
    loss, _, kl = sqam.actor_loss(context, endpoint, torch.randn(STEPS * ROWS, SIZE))
    gradient, _ = action_gradient(sqam.critic.target, context.features, endpoint)
    tau = bridge_times(STEPS, 1)
    sigma2 = squared_noise_scale(tau, 1 / STEPS) / (3.0 * 0.8)
    expected = (sigma2 * tau.square()).sum() * gradient.square().sum(dim=1).mean()
    assert kl == 0.0
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=0)


def test_actor_loss_reaches_the_fast_policy_alone() -> None:
    sqam = learner()
    disturb(sqam.fast)
    actor_loss(sqam)[0].backward()
    assert touched(sqam.fast)
    assert all(untouched(m) for m in (sqam.slow, sqam.slow_target, sqam.critic.online, sqam.critic.target))


def test_critic_losses_reach_the_online_critic_alone() -> None:
    sqam = learner()
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    view = sqam.critic.view(batch, sqam.fast)
    action = sqam.fast.sample(view.next_context, torch.randn(ROWS, SIZE))
    temporal, gap, _ = sqam.critic.loss(batch, view, action, sqam.generator, action.detach().clamp(-1, 1))
    assert gap is not None
    (temporal + gap).backward()
    assert touched(sqam.critic.online)
    assert all(untouched(m) for m in (sqam.fast, sqam.slow, sqam.slow_target, sqam.critic.target))


def test_base_loss_reaches_the_slow_base_alone() -> None:
    sqam = learner()
    draws = Draws.sample(ROWS, SIZE, STEPS, sqam.generator, sqam.fast.device)
    sqam.base_loss(random_batch(0, ROWS, STATE, ACTION, CHUNK), draws).backward()
    assert touched(sqam.slow)
    assert all(untouched(m) for m in (sqam.fast, sqam.slow_target, sqam.critic.online, sqam.critic.target))


def test_adding_a_constant_to_the_critic_leaves_the_actor_loss() -> None:
    sqam = learner()
    disturb(sqam.fast)
    before, info, _ = actor_loss(sqam)
    with torch.no_grad():
        sqam.critic.target.biases[-1] += 7.0
    after, moved, _ = actor_loss(sqam)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    assert moved["actor/q_target_network"] == pytest.approx(info["actor/q_target_network"] + 7, abs=1e-4)


def test_scaling_critic_and_lambda_together_leaves_the_best_velocity() -> None:
    sqam = learner(dual_initial=1.0)
    disturb(sqam.fast)
    loss, _, _ = actor_loss(sqam)
    with torch.no_grad():
        sqam.critic.target.weights[-1].mul_(4.0)
        sqam.critic.target.biases[-1].mul_(4.0)
    sqam.dual.value = 4.0
    scaled, _, _ = actor_loss(sqam)
    torch.testing.assert_close(scaled, 4 * loss, rtol=1e-5, atol=0)


def test_permuting_action_dimensions_permutes_everything() -> None:
    sqam = learner()
    disturb(sqam.fast)
    order = torch.tensor([2, 0, 3, 1])
    permuted = deepcopy(sqam)
    with torch.no_grad():
        for policy in (permuted.fast, permuted.slow_target):
            assert isinstance(policy, FlowMLP)
            first, last = policy.network[0], policy.network[-1]
            assert isinstance(first, nn.Linear)
            assert isinstance(last, nn.Linear)
            first.weight[:, STATE : STATE + SIZE] = first.weight[:, STATE + order]
            last.weight.copy_(last.weight[order])
            last.bias.copy_(last.bias[order])
        weight = permuted.critic.target.weights[0]
        weight[:, STATE : STATE + SIZE] = weight[:, STATE + order]
    context = Context(torch.randn(ROWS, STATE))
    endpoint, noise = torch.randn(ROWS, SIZE), torch.randn(STEPS * ROWS, SIZE)
    torch.testing.assert_close(
        permuted.fast.sample(context, noise[:ROWS][:, order]),
        sqam.fast.sample(context, noise[:ROWS])[:, order],
    )
    ours = sqam.actor_loss(context, endpoint, noise)
    theirs = permuted.actor_loss(context, endpoint[:, order], noise[:, order])
    torch.testing.assert_close(theirs[0], ours[0])
    assert theirs[2] == pytest.approx(ours[2], rel=1e-5)


def test_saturated_dimensions_get_no_gradient() -> None:
    sqam = learner()
    action = torch.zeros(1, SIZE)
    action[0, 1], action[0, 3] = 1.5, -2.0
    gradient, _ = action_gradient(sqam.critic.target, torch.randn(1, STATE), action)
    assert (gradient[0, [1, 3]] == 0).all()
    assert (gradient[0, [0, 2]] != 0).all()


@pytest.mark.parametrize("where", ["rewards", "action", "state"])
def test_a_nan_in_the_batch_is_refused_before_anything_changes(where: str) -> None:
    sqam = learner()

    def poisoned(count: int, source: str | None) -> object:
        batch = random_batch(count, ROWS, STATE, ACTION, CHUNK)
        if where == "state":
            batch.observation.state[2, 1] = float("nan")
            return batch
        bad = getattr(batch, where).clone()
        bad[2] = float("nan")
        return replace(batch, **{where: bad})

    before = deepcopy(sqam.state_dict())
    with pytest.raises(NonFiniteLoss, match="no step was taken"):
        sqam.update(FixedBatches(poisoned))  # type: ignore[arg-type]
    after = sqam.state_dict()
    for name, module in before["modules"].items():
        assert all(torch.equal(value, after["modules"][name][key]) for key, value in module.items())
    assert after["dual"] == before["dual"]
    assert not after["optimiser"]["state"]


def test_straddling_chunks_count_neither_for_the_critic_nor_for_the_base() -> None:
    sqam = learner(value_penalty=0.0)
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    valid = torch.ones(ROWS, CHUNK)
    valid[4:, -1] = 0
    wild = batch.rewards.clone()
    wild[4:] = 1e3
    action = batch.action.clone()
    action[4:] = 0.5
    draws = Draws.sample(ROWS, SIZE, STEPS, sqam.generator, sqam.fast.device)
    plain = replace(batch, valid=valid)
    changed = replace(plain, rewards=wild, action=action)
    results = [sqam.losses(b, b, draws)[1] for b in (plain, changed)]
    for key in ("critic/td_loss", "base/loss"):
        assert results[0][key] == pytest.approx(results[1][key], rel=1e-6)
