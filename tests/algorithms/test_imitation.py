"""The controls without a critic: what they copy, from where, and where they come to rest."""

from __future__ import annotations

import pytest
import torch

from flowrl.algorithms.imitation import Imitation, ImitationConfig
from flowrl.policies.mlp import FlowMLP
from tests.algorithms import bandit
from tests.algorithms.analytic import FixedBatches, LinearFlow
from tests.algorithms.pages import Page
from tests.helpers import chunk_batch, identity_spec

ROWS = 512


def linear(source: FixedBatches, updates: int = 400) -> tuple[float, float]:
    """Mean and standard deviation of samples after cloning with a linear flow, started at N(0, 1)."""
    config = ImitationConfig(learning_rate=2e-2, average_actor=0.05, gradient_clip=100.0)
    # Times of the loss are continuous; the linear flow knows eleven, of which the last is not sampled.
    learner = Imitation(config, LinearFlow(1, 10, 1.0))
    for _ in range(updates):
        learner.update(source)
    std, mean = learner.acting.moments()  # type: ignore[attr-defined]
    return mean, std


def gaussian(valid_rows: int = ROWS) -> FixedBatches:
    """Chunks from N(0.5, 0.3^2) at state 1; rows beyond ``valid_rows`` straddle an end and lie elsewhere."""

    def make(count: int, source: str | None) -> object:
        action = 0.5 + 0.3 * torch.randn(ROWS, 1, 1, generator=torch.Generator().manual_seed(count))
        valid = torch.ones(ROWS, 1)
        action[valid_rows:], valid[valid_rows:] = -5.0, 0.0
        return chunk_batch(torch.ones(ROWS, 1), action, torch.zeros(ROWS, 1), valid=valid)

    return FixedBatches(make)  # type: ignore[arg-type]


@pytest.mark.parametrize("valid_rows", [ROWS, ROWS // 2])
def test_it_comes_to_rest_at_the_law_of_its_source(valid_rows: int) -> None:
    """N(0.5, 0.3^2) sampled by 10 Euler steps has the standard deviation 0.2469; invalid rows weigh nothing.

    The linear flow's slope is constant between two of its times, which costs it up to 0.04.
    """
    mean, std = linear(gaussian(valid_rows))
    assert mean == pytest.approx(0.5, abs=0.03)
    assert std == pytest.approx(0.2469, abs=0.04)


def test_it_asks_for_its_source_and_acts_by_its_average() -> None:
    batches = FixedBatches.random(8, 3, 2, 2)
    for source in ("success_mix", "demonstrations", None):
        policy = FlowMLP(identity_spec(3, 2, 2), width=8, depth=1)
        learner = Imitation(ImitationConfig(source=source), policy)
        learner.update(batches)
        assert learner.acting is learner.average
        assert learner.actor("collect").plain
        assert learner.warm_up(batches) == {}
    assert batches.sources == ["success_mix", "demonstrations", None]


def test_cloning_the_better_half_beats_the_base_without_a_critic() -> None:
    """In the bandit a named source is the better half: self-imitation reaches the bar of 9.7."""
    source = torch.Generator().manual_seed(0)
    config = ImitationConfig(learning_rate=1e-3, average_actor=0.05)
    assert bandit.train(Imitation(config, bandit.random_base(source)), source, updates=400) > -0.15


def test_cloning_the_whole_mix_only_narrows() -> None:
    """Nothing is preferred: the mean stays, and a sampler of ten steps narrows what it clones a little."""
    source = torch.Generator().manual_seed(0)
    config = ImitationConfig(source=None, learning_rate=1e-3, average_actor=0.05)
    reward = bandit.train(Imitation(config, bandit.random_base(source)), source, updates=100)
    assert bandit.BASE_REWARD - 0.03 < reward < -0.15


def test_the_page_explains_every_hyper_parameter_and_metric() -> None:
    page = Page("algorithms/imitation.md")
    page.check_hyper_parameters(ImitationConfig)
    batches, policy = FixedBatches.random(8, 3, 2, 2), FlowMLP(identity_spec(3, 2, 2), width=8, depth=1)
    learner = Imitation(ImitationConfig(), policy)
    page.check_metrics(learner.update(batches) | learner.diagnostics(batches))
    page.check_links()
