"""The chunk critic: its value penalty and its target."""

from __future__ import annotations

import pytest
import torch

from flowrl.critics.chunk_critic import ChunkCritic, value_gap
from flowrl.critics.targets import CriticConfig, td_loss
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import random_batch
from tests.helpers import identity_spec

STATE, ACTION, CHUNK, ROWS = 3, 2, 2, 10


def critic(**options: object) -> tuple[ChunkCritic, FlowMLP]:
    policy = FlowMLP(identity_spec(STATE, ACTION, CHUNK), width=8, depth=1)
    config = CriticConfig(heads=3, width=16, depth=2, **options)  # type: ignore[arg-type]
    return ChunkCritic(config, policy, 0.9, seed=0), policy


def test_value_gap_has_no_gradient_when_the_policy_repeats_the_data() -> None:
    chunk_critic, policy = critic()
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    view = chunk_critic.view(batch, policy)
    _, gap, info = chunk_critic.loss(
        batch, view, torch.zeros(ROWS, 4), torch.Generator(), view.action.clone()
    )
    assert gap is not None
    assert info["critic/value_gap"] == pytest.approx(0.0, abs=1e-6)
    for slope in torch.autograd.grad(gap, list(chunk_critic.online.parameters())):
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-6)


@pytest.mark.parametrize("penalty", [0.1, 0.3, 1.0])
def test_tabular_data_value_settles_half_a_penalty_above_its_target(penalty: float) -> None:
    """min (q - y)^2 - c q at the data action; nothing but the penalty holds the policy's action."""
    target = torch.tensor([-3.0, 0.5, 2.0])
    data, policy = (torch.zeros(1, 3, requires_grad=True) for _ in range(2))
    rate = 0.2
    for _ in range(300):
        loss = td_loss(data, target, torch.ones(3)) + penalty * value_gap(policy, data)
        slopes = torch.autograd.grad(loss, (data, policy))
        with torch.no_grad():
            data -= rate * slopes[0]
            policy -= rate * slopes[1]
    torch.testing.assert_close(data.detach()[0], target + penalty / 2, rtol=0, atol=1e-4)
    expected = torch.full((1, 3), -penalty * rate * 300 / 3)
    torch.testing.assert_close(policy.detach(), expected, rtol=1e-4, atol=0)


def test_target_uses_the_clipped_action_and_the_target_heads() -> None:
    chunk_critic, policy = critic(aggregation="mean")
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    view = chunk_critic.view(batch, policy)
    action = 3 * torch.randn(ROWS, ACTION * CHUNK)
    generator = torch.Generator().manual_seed(0)
    found = chunk_critic.td_target(batch, view, action, generator)
    values = chunk_critic.target(view.next_context.features, action.clamp(-1, 1)).mean(dim=0)
    torch.testing.assert_close(found, batch.rewards[:, -1] + 0.9**CHUNK * values)
    with torch.no_grad():
        chunk_critic.online.biases[-1].add_(5.0)
    torch.testing.assert_close(chunk_critic.td_target(batch, view, action, generator), found)
    assert not found.requires_grad


def test_target_bounds_hold_the_bootstrap() -> None:
    chunk_critic, policy = critic(target_low=-1.0, target_high=0.0)
    with torch.no_grad():
        chunk_critic.target.biases[-1].add_(100.0)
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    view = chunk_critic.view(batch, policy)
    found = chunk_critic.td_target(batch, view, torch.zeros(ROWS, 4), torch.Generator())
    torch.testing.assert_close(found, batch.rewards[:, -1])


def test_target_tracks_the_online_critic_at_its_rate() -> None:
    chunk_critic, _ = critic(polyak=0.25)
    with torch.no_grad():
        chunk_critic.online.biases[-1].fill_(4.0)
    for expected in (1.0, 1.75):
        chunk_critic.track()
        torch.testing.assert_close(
            chunk_critic.target.biases[-1], torch.full_like(chunk_critic.target.biases[-1], expected)
        )


def test_seed_fixes_the_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    first, _ = critic()
    state = torch.get_rng_state()
    policy = FlowMLP(identity_spec(STATE, ACTION, CHUNK), width=8, depth=1)
    torch.set_rng_state(state)
    second = ChunkCritic(first.config, policy, 0.9, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    for mine, yours in zip(first.online.parameters(), second.online.parameters(), strict=True):
        assert torch.equal(mine, yours)
