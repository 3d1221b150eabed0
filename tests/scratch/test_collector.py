"""Collected transitions, returns and noise scales against episodes written out by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from flowrl.acting import Actor
from flowrl.policies.deterministic import DeterministicMLP
from flowrl.scratch.collector import Collector, Exploration
from flowrl.scratch.config import ExplorationConfig
from flowrl.scratch.evaluation import evaluate
from flowrl.scratch.normaliser import initial_spec
from flowrl.scratch.replay import RingReplay
from tests.scratch.tasks import Bandit, Scripted

REWARD = [[1, 10], [2, 20], [3, 30], [4, 40], [5, 50]]
END = ["..", "t.", ".c", "..", "tt"]
"""Copy 0: episodes of 2 and 3 steps, both terminated. Copy 1: 3 steps cut, then 2 steps terminated."""


def collector(noise: ExplorationConfig | None = None) -> tuple[Collector, RingReplay]:
    replay = RingReplay(10, 2, 3, 1, batch_size=256)
    exploration = Exploration(noise or ExplorationConfig(low=0.1, high=0.4), 2, seed=0)
    return Collector(Scripted(REWARD, END), exploration, replay, seed=0), replay


def zero(states: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(states), 1)


def test_returns_and_lengths_are_those_of_the_episodes() -> None:
    collect, _ = collector()
    found = [collect.step(zero) for _ in range(5)]
    assert found == [[], [(3.0, 2)], [(60.0, 3)], [], [(12.0, 3), (90.0, 2)]]
    assert collect.book.episodes == 4


def test_a_transition_never_leads_into_the_next_episode() -> None:
    collect, replay = collector()
    for _ in range(5):
        collect.step(zero)
    batch = replay.batch()
    before, after = batch.observation.state, batch.next_observation.state
    assert torch.equal(after[:, :2], before[:, :2])
    assert torch.equal(after[:, 2], before[:, 2] + 1)


def test_only_a_terminated_step_is_not_bootstrapped() -> None:
    """A cut episode bootstraps from its true last state: copy 1, episode 0, step 3."""
    collect, replay = collector()
    for _ in range(5):
        collect.step(zero)
    batch = replay.batch()
    last = [tuple(row) for row in batch.next_observation.state[batch.mask[:, 0] == 0].int().tolist()]
    assert set(last) == {(0, 0, 2), (0, 1, 3), (1, 1, 2)}
    rows = [tuple(row) for row in batch.next_observation.state[batch.mask[:, 0] == 1].int().tolist()]
    assert (1, 0, 3) in rows


def test_a_noise_scale_is_drawn_for_each_episode() -> None:
    collect, _ = collector()
    scales = [collect.exploration.scale[:, 0].tolist()]
    for _ in range(5):
        collect.step(zero)
        scales.append(collect.exploration.scale[:, 0].tolist())
    changed = [[a != b for a, b in zip(*pair, strict=True)] for pair in pairwise(scales)]
    assert changed == [[letter != "." for letter in row] for row in END]
    assert all(0.1 <= scale <= 0.4 for row in scales for scale in row)


def test_noise_has_the_environments_own_scale() -> None:
    exploration = Exploration(ExplorationConfig(low=0.05, high=0.2), 3, seed=1)
    draws = torch.stack([exploration.disturb(torch.zeros(3, 1)) for _ in range(4000)])
    # The standard error of a standard deviation over n draws is 1 / sqrt(2 n), 1.1 %: five of them.
    torch.testing.assert_close(draws.std(dim=0), exploration.scale, rtol=0.055, atol=0)


def test_actions_reach_the_environment_in_its_units() -> None:
    replay = RingReplay(10, 4, 1, 1, batch_size=64)
    env = Bandit(4)
    collect = Collector(env, Exploration(ExplorationConfig(low=0, high=0), 4, 0), replay, seed=0)
    collect.step(lambda states: states / 2)
    batch = replay.batch()
    torch.testing.assert_close(batch.action[:, 0, 0], 5 * batch.observation.state[:, 0])
    assert batch.rewards.abs().max() < 1e-12


def test_uniform_actions_fill_the_range() -> None:
    replay = RingReplay(600, 4, 1, 1, batch_size=4096)
    collect = Collector(Bandit(4), Exploration(ExplorationConfig(), 4, 0), replay, seed=0)
    for _ in range(600):
        collect.step(None)
    action = replay.batch().action
    assert action.abs().max() <= 10
    assert float(action.std()) == pytest.approx(20 / 12**0.5, rel=0.03)


def test_an_evaluation_counts_each_copys_first_episode_alone() -> None:
    env = Scripted(REWARD, END)
    policy = DeterministicMLP(initial_spec(env.interface), width=8, depth=1)
    found = evaluate(env, Actor(policy), [1, 2])
    assert found.returns == (3.0, 60.0)
    assert found.lengths == (2, 3)
    assert found.mean == 31.5
    assert found.rule == "one deterministic action"


def test_an_evaluation_repeats_bit_for_bit() -> None:
    env = Bandit(32)
    policy = DeterministicMLP(initial_spec(env.interface), width=8, depth=1)
    first, again, other = (evaluate(env, Actor(policy), range(s, s + 32)) for s in (0, 0, 32))
    assert first == again
    assert first != other
    # Action 0 costs c^2 / 4, whose mean is 1/12 and standard deviation 0.0745.
    assert first.mean == pytest.approx(-1 / 12, abs=4 * 0.0745 / 32**0.5)
    low, high = first.interval
    assert low < first.mean < high
    assert np.isclose(float(np.mean(first.to_json()["returns"])), first.mean)
