"""Importance sampling: weights by hand, on-policy identity, Gaussian problems whose value is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flowrl.ope.data import EpisodeSubset, discounted_returns
from flowrl.ope.wpdis import Decisions, Weighted
from flowrl.policies.interface import ChunkPolicy
from flowrl.policies.observation import Observation
from flowrl.replay.reader import ReplayReader
from tests.ope.analytic import GaussianPolicy, chain_spec, write_episodes


@dataclass
class States:
    """Observations that are states (P, S) in memory."""

    values: NDArray[np.float32]

    def blocks(self) -> Iterator[Observation]:
        yield Observation(torch.from_numpy(self.values))


def everything(replay: Path) -> EpisodeSubset:
    reader = ReplayReader(replay)
    return EpisodeSubset(reader, np.arange(reader.episodes), reader.reward)


def weigh(decisions: Decisions, candidate: ChunkPolicy, behaviour: ChunkPolicy) -> Weighted:
    ratios = decisions.log_ratios(decisions.densities(candidate), decisions.densities(behaviour))
    return Weighted(ratios, decisions.rewards)


def test_weights_by_hand() -> None:
    """Ratios 1, 2, 4, 1 at the first and 3, 1, 1/2, 1 at the second decision: products 3, 2, 2, 1."""
    ratios = np.log([[1.0, 3.0], [2.0, 1.0], [4.0, 0.5], [1.0, 1.0]])
    rewards = np.array([[1.0, 0.0], [0.0, 10.0], [2.0, 0.0], [0.0, 4.0]])
    found = Weighted(ratios, rewards)
    assert found.estimate == pytest.approx((1 + 8) / 8 + (20 + 4) / 8)
    assert found.effective == pytest.approx([64 / 22, 64 / 18])
    assert found.effective_share == pytest.approx(64 / 22 / 4)
    counts = np.array([[0.0, 2.0, 1.0, 1.0]])
    assert found.resampled(counts)[0] == pytest.approx(8 / 9 + (40 + 4) / 7)


def test_an_episode_without_a_density_takes_no_part() -> None:
    ratios = np.zeros((5, 1))
    ratios[0] = math.nan
    found = Weighted(ratios, np.array([[100.0], [1.0], [2.0], [3.0], [4.0]]))
    assert found.estimate == 2.5
    assert found.effective_share == pytest.approx(4 / 5)
    assert math.isnan(Weighted(ratios[:4], np.ones((4, 1))).estimate)


def test_ratios_too_large_for_a_double_do_not_overflow() -> None:
    ratios = np.array([[800.0], [800.0], [-800.0], [-800.0]])
    assert Weighted(ratios, np.array([[1.0], [3.0], [9.0], [9.0]])).estimate == pytest.approx(2.0)


def test_equal_policies_give_exactly_the_mean_return(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    states, actions, rewards = random.normal(size=(3, 12, 6)) * 0.3
    write_episodes(tmp_path, states, actions, rewards)
    episodes = everything(tmp_path)
    policy = GaussianPolicy(chain_spec(), std=0.5)
    found = weigh(Decisions.of(episodes, 2, 0.9), policy, policy)
    assert found.estimate == pytest.approx(discounted_returns(episodes, 0.9).mean(), rel=1e-12)
    assert found.effective_share == 1.0


def test_a_chunk_cut_short_by_the_end_has_ratio_one(tmp_path: Path) -> None:
    """Five steps in chunks of two: decisions at 0, 2 and 4, the last without a density."""
    values = np.arange(20.0).reshape(4, 5) / 100
    write_episodes(tmp_path, values, values, np.ones((4, 5)))
    decisions = Decisions.of(everything(tmp_path), 2, 0.5)
    assert decisions.index.tolist() == [[2 * i, 2 * i + 1, -1] for i in range(4)]
    assert decisions.rewards[0] == pytest.approx([1.5, 0.375, 0.0625])
    assert decisions.action[:, :, 0] == pytest.approx(
        np.array([row[:4].reshape(2, 2) for row in values]).reshape(8, 2)
    )
    far = weigh(decisions, GaussianPolicy(chain_spec(), mean=0.3), GaussianPolicy(chain_spec(), mean=0.1))
    assert (far.log_ratios[:, 2] == 0).all()


def test_a_gaussian_bandit_has_its_known_value() -> None:
    """One chunk of two actions, reward the first one squared: E = mean^2 + std^2.

    20,000 draws; the weighted estimate's standard error is near 0.001, four of them are allowed.
    """
    random = np.random.default_rng(1)
    behaviour, candidate = (GaussianPolicy(chain_spec(), m, 0.2) for m in (0.0, 0.1))
    actions = random.normal(0.0, 0.2, (20_000, 2, 1)).astype(np.float32)
    states, index = np.zeros((20_000, 1), np.float32), np.arange(20_000)[:, None]
    found = weigh(
        Decisions(actions[:, 0].astype(float) ** 2, index, States(states), actions), candidate, behaviour
    )
    assert found.estimate == pytest.approx(0.1**2 + 0.2**2, abs=0.004)
    # E[w]^2 / E[w^2] of two equal Gaussians d apart, two dimensions: exp(-2 d^2 / std^2).
    assert found.effective_share == pytest.approx(math.exp(-2 * 0.01 / 0.04), rel=0.1)


def test_a_two_step_problem_has_its_known_value() -> None:
    """Chunks of one action: s_1 = a_0, a_1 ~ N(m + g s_1, std), reward a_1 at the end, gamma 0.8.

    So J = 0.8 (m + g m) with E[a_0] = m (s_0 = 0). 20,000 episodes; the standard error is near 0.003, four
    of them are allowed.
    """
    random = np.random.default_rng(2)
    std, gamma = 0.2, 0.8
    behaviour = GaussianPolicy(chain_spec(1), 0.0, std, 0.5)
    candidate = GaussianPolicy(chain_spec(1), 0.08, std, 0.7)
    first = random.normal(0.0, std, 20_000)
    second = random.normal(0.5 * first, std)
    actions = np.stack([first, second], axis=1).reshape(-1, 1, 1).astype(np.float32)
    states = np.stack([np.zeros(20_000), first], axis=1).reshape(-1, 1).astype(np.float32)
    rewards = np.stack([np.zeros(20_000), gamma * second], axis=1)
    decisions = Decisions(rewards, np.arange(40_000).reshape(-1, 2), States(states), actions)
    found = weigh(decisions, candidate, behaviour)
    assert found.estimate == pytest.approx(gamma * (0.08 + 0.7 * 0.08), abs=0.012)
    assert weigh(decisions, behaviour, behaviour).estimate == pytest.approx(rewards.sum(1).mean(), abs=1e-12)
