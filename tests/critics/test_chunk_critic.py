"""The chunk critic: its value penalty, its target, and every option through the same calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flowrl.critics.chunk_critic import ChunkCritic, value_gap
from flowrl.critics.encoder import Viewer
from flowrl.critics.hinges import hinges
from flowrl.critics.targets import CriticConfig, td_loss
from flowrl.policies.mlp import FlowMLP
from flowrl.replay.batch import ChunkBatch
from flowrl.training import adam, clipped_step
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.helpers import identity_spec, stack_batches

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


def sequences(chunks: int) -> ChunkBatch:
    """Chunks that end episodes, straddle ends and do not exist, all of them with their own numbers."""
    generator = torch.Generator().manual_seed(9)
    parts = [random_batch(seed, ROWS, STATE, ACTION, CHUNK) for seed in range(chunks)]
    present = torch.ones(chunks, ROWS)
    for i, part in enumerate(parts):
        mask, valid = part.mask.clone(), part.valid.clone()
        valid[:, -1] = (torch.rand(ROWS, generator=generator) < 0.85).float()
        mask[:, -1] = (torch.rand(ROWS, generator=generator) < 0.85).float()
        parts[i] = replace(part, mask=mask, valid=valid)
        present[i + 1 :] *= mask[:, -1] * valid[:, -1]
    return replace(parts[0], later=stack_batches(parts[1:]), present=present)


def chunk_of(batch: ChunkBatch, index: int) -> ChunkBatch:
    """One chunk of every sequence as a batch of its own."""
    if index == 0:
        return replace(batch, later=None, present=None)
    assert batch.later is not None
    rows = slice((index - 1) * ROWS, index * ROWS)
    later = batch.later
    return ChunkBatch(
        type(later.observation)(later.observation.state[rows]),
        later.action[rows], later.rewards[rows], later.mask[rows], later.valid[rows],
        type(later.observation)(later.next_observation.state[rows]),
        later.row[rows], later.success[rows], later.source[rows],
    )  # fmt: skip


def next_values(chunk_critic: ChunkCritic, policy: FlowMLP, batch: ChunkBatch, action: Tensor) -> Tensor:
    context = policy.encode(batch.next_observation)
    return chunk_critic.target(context.features, action).mean(dim=0)


def test_view_asks_for_actions_sample_by_sample_then_chunk_by_chunk() -> None:
    chunk_critic, policy = critic(backup_chunks=3, next_samples=2)
    batch = sequences(3)
    view = chunk_critic.view(batch, policy)
    expected = [chunk_of(batch, i).next_observation.state for i in range(3)]
    assert chunk_critic.chunks == 3
    assert chunk_critic.next_rows(ROWS) == len(view.next_context) == 60
    torch.testing.assert_close(view.next_context.features, torch.cat(expected * 2))
    torch.testing.assert_close(view.context.features, batch.observation.state)


def test_a_batch_is_drawn_with_the_chunks_that_the_option_needs() -> None:
    batches = FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    for options, chunks in (({}, 1), ({"backup_chunks": 3}, 3), ({"hinge": 1.0, "hinge_chunks": 2}, 2)):
        drawn = critic(**options)[0].draw(batches, "successes")
        assert batches.sources[-1] == "successes"
        assert (0 if drawn.later is None else len(drawn.later)) == (chunks - 1) * ROWS


@pytest.mark.parametrize("decay", [0.0, 0.6, 1.0])
def test_target_over_chunks_equals_the_recursion_by_hand(decay: float) -> None:
    chunk_critic, policy = critic(backup_chunks=3, trace=decay, aggregation="mean")
    batch = sequences(3)
    assert batch.present is not None
    view = chunk_critic.view(batch, policy)
    action = torch.rand(3 * ROWS, ACTION * CHUNK) - 0.5
    found = chunk_critic.td_target(batch, view, action, torch.Generator())
    parts = [chunk_of(batch, i) for i in range(3)]
    values = [
        next_values(chunk_critic, policy, part, a) for part, a in zip(parts, action.chunk(3), strict=True)
    ]

    def by_hand(i: int, row: int) -> float:
        part, onward = parts[i], float(values[i][row].detach())
        if i < 2 and batch.present is not None and batch.present[i + 1, row] and parts[i + 1].valid[row, -1]:
            onward = (1 - decay) * onward + decay * by_hand(i + 1, row)
        return float(part.rewards[row, -1]) + 0.9**CHUNK * float(part.mask[row, -1]) * onward

    assert found.tolist() == pytest.approx([by_hand(0, row) for row in range(ROWS)], abs=1e-5)


EQUAL: list[dict[str, Any]] = [
    {"backup_chunks": 3, "trace": 0.0},
    {"hinge": 0.0, "hinge_chunks": 3},
    {"hinge": 1.0, "hinge_chunks": 1},
    {"next_samples": 4, "next_reduce": "trimmed"},
    {"next_samples": 3, "next_reduce": "median"},
]


@pytest.mark.parametrize("options", EQUAL)
def test_options_that_change_nothing_equal_td(options: dict[str, Any]) -> None:
    """The later chunks present or not; every sample of the next action the same one."""
    plain, policy = critic()
    other, _ = critic(**options)
    batch = sequences(3) if other.chunks == 3 else chunk_of(sequences(3), 0)
    policy_action = torch.rand(ROWS, ACTION * CHUNK) - 0.5
    first = torch.rand(ROWS, ACTION * CHUNK) - 0.5
    later = torch.rand((other.chunks - 1) * ROWS, ACTION * CHUNK) - 0.5
    actions = torch.cat([first, later]).repeat(other.config.next_samples, 1)
    expected, gap, info = plain.loss(
        chunk_of(batch, 0), plain.view(chunk_of(batch, 0), policy), first, torch.Generator(), policy_action
    )
    found, same, others = other.loss(
        batch, other.view(batch, policy), actions, torch.Generator(), policy_action
    )
    assert gap is not None
    assert same is not None
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(same, gap)
    for name, number in info.items():
        assert others[name] == pytest.approx(number, abs=1e-5), name


def test_hinged_loss_is_td_on_every_present_chunk_and_the_weighted_penalties() -> None:
    chunk_critic, policy = critic(hinge=0.7, hinge_chunks=3, aggregation="min")
    batch = sequences(3)
    assert batch.present is not None
    view = chunk_critic.view(batch, policy)
    action = torch.rand(3 * ROWS, ACTION * CHUNK) - 0.5
    found, _, info = chunk_critic.loss(batch, view, action, torch.Generator())
    plain, _ = critic(aggregation="min")
    errors, values, means = 0.0, [], []
    for i, proposed in enumerate(action.chunk(3)):
        part = chunk_of(batch, i)
        assert batch.present is not None
        part = replace(part, valid=part.valid * batch.present[i][:, None])
        loss, _, _ = plain.loss(part, plain.view(part, policy), proposed, torch.Generator())
        errors += ROWS * float(loss.detach())
        values.append(chunk_critic.online(part.observation.state, part.action.flatten(1)))
        means.append(next_values(chunk_critic, policy, part, proposed))
    rewards, mask, valid = (
        torch.stack([getattr(chunk_of(batch, i), name)[:, -1] for i in range(3)])
        for name in ("rewards", "mask", "valid")
    )
    usable = valid * batch.present
    lower, upper, pairs = hinges(
        torch.stack(values, dim=1), torch.stack(means), rewards, mask, usable, 0.9**CHUNK
    )
    lower, upper = lower.detach(), upper.detach()
    assert pairs > 0
    assert info["critic/td_loss"] == pytest.approx(errors / float(batch.present.sum()), rel=1e-5)
    assert info["critic/lower_hinge"] == pytest.approx(float(lower), rel=1e-5)
    assert info["critic/upper_hinge"] == pytest.approx(float(upper), rel=1e-5)
    assert info["critic/hinge_pairs"] == pairs
    expected = info["critic/td_loss"] + 0.7 * float(lower + upper)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("head", ["scalar", "c51", "hl_gauss"])
def test_bonus_moves_the_bootstrap_by_its_discounted_size(head: Any) -> None:
    """Inside the range of a distribution; its mean is what moves."""
    chunk_critic, policy = critic(head=head, atoms=41, value_low=-20.0, value_high=20.0)
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    view, action = chunk_critic.view(batch, policy), torch.zeros(ROWS, 4)
    with torch.no_grad():
        for net in (chunk_critic.target, chunk_critic.online):
            net.biases[-1].zero_()
            if head != "scalar":
                net.biases[-1][..., 20] = 30.0  # all mass near 0, away from the ends
    bonus = torch.linspace(-2, 2, ROWS)
    found = [chunk_critic.td_target(batch, view, action, torch.Generator(), b) for b in (None, bonus)]
    if head == "c51":
        found = [target @ chunk_critic.target.head.atoms for target in found]  # type: ignore[operator]
    torch.testing.assert_close(found[1] - found[0], 0.9**CHUNK * bonus, rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("head", ["c51", "hl_gauss"])
def test_distributional_target_has_the_scalar_targets_mean(head: Any, chunks: int) -> None:
    """With the same heads' values; a wide range, so that nothing is clipped."""
    options = {"backup_chunks": chunks, "next_samples": 5, "next_reduce": "median", "aggregation": "min"}
    chunk_critic, policy = critic(head=head, atoms=81, value_low=-20.0, value_high=20.0, **options)
    scalar, _ = critic(**options)
    scalar.target = chunk_critic.target
    batch = sequences(3) if chunks == 3 else chunk_of(sequences(3), 0)
    with torch.no_grad():
        chunk_critic.target.biases[-1][..., 36:44] = 12.0
    view = chunk_critic.view(batch, policy)
    action = torch.rand(chunk_critic.next_rows(ROWS), ACTION * CHUNK) - 0.5
    found = chunk_critic.td_target(batch, view, action, torch.Generator())
    atoms = chunk_critic.target.head.get_buffer("atoms")
    values = chunk_critic.target.head.values(chunk_critic.target.logits(view.next_context.features, action))
    assert float(values.std()) > 0.01
    mean = found @ atoms if head == "c51" else found

    class Known(Viewer):
        """The same values as a scalar critic."""

        head = scalar.online.head

        def logits(self, features: Tensor, action: Tensor) -> Tensor:
            return values[..., None]

    scalar.target = Known()  # type: ignore[assignment]
    expected = scalar.td_target(batch, view, action, torch.Generator())
    torch.testing.assert_close(mean, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head": "c51", "value_low": -3.0, "value_high": 1.0, "atoms": 33},
        {"head": "hl_gauss", "value_low": -3.0, "value_high": 1.0, "atoms": 33},
        {"lora_rank": 4},
        {"hinge": 0.5, "hinge_chunks": 3},
        {"expectile": 0.5, "backup_chunks": 3, "trace": 0.5},
    ],
)
def test_every_kind_of_critic_learns_what_chunks_are_worth(options: dict[str, Any]) -> None:
    """Chunks that all end their episode: the value is the reward, -0.5 or -1.5 by the sign of the state."""
    chunk_critic, policy = critic(**options)
    generator = torch.Generator().manual_seed(1)
    batch = random_batch(0, 64, STATE, ACTION, CHUNK)
    reward = torch.where(batch.observation.state[:, 0] > 0, -0.5, -1.5)
    batch = replace(batch, rewards=reward[:, None].expand(-1, CHUNK), mask=torch.zeros(64, CHUNK))
    batches = FixedBatches(lambda count, source: batch)
    optimiser = adam({"critic": chunk_critic.online}, {"critic": 1e-2})
    drawn = chunk_critic.draw(batches)
    view = chunk_critic.view(drawn, policy)
    for _ in range(120):
        action = torch.zeros(len(view.next_context), ACTION * CHUNK)
        loss, _, _ = chunk_critic.loss(drawn, view, action, generator)
        clipped_step(optimiser, loss, 1.0)
        chunk_critic.track()
    found = chunk_critic.online(view.context.features, view.action).mean(dim=0)
    assert float((found - reward).abs().mean().detach()) < 0.1
