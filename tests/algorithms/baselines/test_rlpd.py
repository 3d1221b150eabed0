"""RLPD: what enters the target, how often the critic moves, where batches come from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flowrl.algorithms.baselines.rlpd import RLPD, RLPDConfig
from flowrl.policies.observation import Observation
from tests.algorithms import bandit
from tests.algorithms.analytic import FixedBatches, random_batch
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
)
from tests.algorithms.pages import Page
from tests.algorithms.test_sqam_losses import touched, untouched

SMALL = {"width": 16, "depth": 2}


def learner(**options: object) -> RLPD:
    settings = {"critic": CRITIC, "critic_updates": 2, **SMALL, **options}
    return RLPD(RLPDConfig(**settings), base())  # type: ignore[arg-type]


@pytest.mark.parametrize("backup", [True, False])
def test_the_target_holds_the_entropy_of_the_next_action(backup: bool) -> None:
    """Two learners that differ in alpha alone: their targets differ by gamma^H alpha mean(-log pi)."""
    targets: list[float] = []
    for temperature in (1e-12, 0.5):
        rlpd = learner(temperature=temperature, backup_entropy=backup)
        batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
        _, _, info = rlpd.temporal_loss(batch, rlpd.critic.view(batch, rlpd.policy))
        targets.append(info["critic/q_target"])
    rlpd = learner()
    noise = rlpd.normal(ROWS, SIZE)
    next_state = random_batch(0, ROWS, STATE, ACTION, CHUNK).next_observation
    with torch.no_grad():
        _, density = rlpd.policy.gaussian(rlpd.policy.encode(next_state).features, noise)
    bonus = 0.99**CHUNK * 0.5 * -float(density.mean()) if backup else 0.0
    assert targets[1] - targets[0] == pytest.approx(bonus, abs=1e-5)


def test_the_critic_moves_more_often_than_the_actor_and_on_fresh_batches() -> None:
    rlpd = learner(critic_updates=5, source="half_demonstrations")
    batches = FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    rlpd.update(batches)
    parameters = (next(rlpd.critic.online.parameters()), next(rlpd.policy.gaussian.parameters()))
    assert [int(rlpd.optimiser.state[p]["step"]) for p in parameters] == [5, 1]
    assert batches.sources == ["half_demonstrations"] * 5
    rlpd.warm_up(batches)
    assert batches.sources[-1] == "half_demonstrations"


def test_nothing_depends_on_the_base_but_its_view() -> None:
    """Another base of the same shape, and the learner behaves the same to the last bit."""
    torch.manual_seed(1)
    runs = [RLPD(RLPDConfig(critic=CRITIC, critic_updates=2, **SMALL), base()) for _ in range(2)]  # type: ignore[arg-type]
    assert not torch.equal(*(next(run.policy.base.parameters()) for run in runs))
    metrics = [run.update(FixedBatches.random(ROWS, STATE, ACTION, CHUNK)) for run in runs]
    assert metrics[0] == metrics[1]


def test_the_actors_loss_reaches_the_gaussian_alone() -> None:
    rlpd = learner()
    features = torch.randn(ROWS, STATE)
    action, density = rlpd.policy.gaussian(features, torch.randn(ROWS, SIZE))
    rlpd.soft_loss(rlpd.critic.online, features, action, density)[0].backward()
    assert touched(rlpd.policy.gaussian)
    assert all(untouched(m) for m in (rlpd.policy.base, rlpd.critic.online, rlpd.temperature))


def test_the_critic_learns_from_td_alone() -> None:
    rlpd = learner()
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    rlpd.temporal_loss(batch, rlpd.critic.view(batch, rlpd.policy))[0].backward()
    assert touched(rlpd.critic.online)
    assert all(untouched(m) for m in (rlpd.policy, rlpd.temperature))


def test_straddling_chunks_count_nothing_for_the_critic() -> None:
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    valid, wild = torch.ones(ROWS, CHUNK), batch.rewards.clone()
    valid[4:, -1], wild[4:] = 0, 1e3
    losses: list[float] = []
    for rewards in (batch.rewards, wild):
        rlpd, changed = learner(), replace(batch, valid=valid, rewards=rewards)
        losses.append(float(rlpd.temporal_loss(changed, rlpd.critic.view(changed, rlpd.policy))[0].detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_it_evaluates_by_the_mean_and_collects_at_random() -> None:
    rlpd = learner()
    observation = Observation(torch.randn(5, STATE))
    chunks = [rlpd.actor("evaluate").act(observation, generator(seed)) for seed in (0, 1)]
    assert torch.equal(*chunks)
    features = rlpd.policy.encode(observation).features
    mean, _ = rlpd.policy.gaussian.moments(features)
    assert torch.allclose(chunks[0].flatten(1), mean.tanh())
    assert not rlpd.actor("collect").zero_noise


def test_a_run_without_half_demonstrations_says_so() -> None:
    assert learner(source="half_demonstrations").deviations() == []
    assert learner(backup_entropy=False).deviations() == [
        "batches are the run's mix, not half of demonstrations",
        "the next action's entropy is no part of the target",
    ]


def test_no_update_of_the_critic_is_refused() -> None:
    with pytest.raises(ValueError, match=r"critic_updates is 0; it must be at least 1"):
        RLPDConfig(critic_updates=0)


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    config = RLPDConfig(
        critic=BANDIT_CRITIC,
        learning_rate=3e-3,
        temperature=0.02,
        critic_updates=2,
        width=64,
        depth=2,
    )
    source = generator()
    assert bandit.train(RLPD(config, bandit.random_base(source)), source, updates=200, warm_up=50) > -0.15


def test_the_page_explains_every_hyper_parameter_and_metric() -> None:
    page = Page("algorithms/rlpd.md")
    page.check_hyper_parameters(RLPDConfig)
    batches, rlpd = FixedBatches.random(ROWS, STATE, ACTION, CHUNK), learner()
    page.check_metrics(rlpd.warm_up(batches) | rlpd.update(batches) | rlpd.diagnostics(batches))
    page.check_links()
