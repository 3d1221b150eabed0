"""QC: what choosing the best of N does to a Gaussian, and who learns from what."""

from __future__ import annotations

import pytest
import torch

from flowrl.algorithms.baselines.cloning import cloning_loss
from flowrl.algorithms.baselines.qc import QC, QCConfig
from flowrl.policies.interface import Context
from flowrl.policies.observation import Observation
from tests.algorithms import bandit
from tests.algorithms.analytic import FixedBatches, LinearFlow, random_batch
from tests.algorithms.baselines.common import (
    ACTION,
    BANDIT_CRITIC,
    CHUNK,
    CRITIC,
    ROWS,
    STATE,
    base,
    generator,
    know,
    linear,
)
from tests.algorithms.pages import Page
from tests.algorithms.test_sqam_losses import touched, untouched

SAMPLED_STD = 0.2469
"""Euler sampling with 10 steps narrows N(0, 0.3^2) to this."""
ORDER_STATISTICS = {4: 1.0294, 8: 1.4237, 16: 1.7661, 32: 2.0698}


def learner(**options: object) -> QC:
    return QC(QCConfig(critic=CRITIC, **options), base())  # type: ignore[arg-type]


@pytest.mark.parametrize("count", ORDER_STATISTICS)
@pytest.mark.parametrize("slope", [2.0, -0.5])
def test_the_target_and_both_actors_shift_the_mean_by_the_order_statistic(count: int, slope: float) -> None:
    """sign(g) s_K e_N; the standard error of 5,000 means is below 0.003 for the largest N."""
    counts = dict.fromkeys(("collect_best_of", "evaluate_best_of", "target_best_of"), count)
    qc = QC(QCConfig(critic=CRITIC, **counts), LinearFlow(1, 10, 0.3))  # type: ignore[arg-type]
    know(qc, linear(torch.tensor([slope])))
    state = torch.zeros(5000, 1)
    expected = ORDER_STATISTICS[count] * SAMPLED_STD * (1 if slope > 0 else -1)
    assert float(qc.next_action(Context(state)).mean()) == pytest.approx(expected, abs=0.01)
    for purpose in ("collect", "evaluate"):
        chunks = qc.actor(purpose).act(Observation(state), generator())
        assert float(chunks.mean()) == pytest.approx(expected, abs=0.01)


def test_each_purpose_has_its_own_count() -> None:
    qc = learner(collect_best_of=5, evaluate_best_of=1, target_best_of=2)
    assert qc.actor("collect").candidates == 5
    assert qc.actor("evaluate").plain


def test_the_critic_learns_from_td_alone_and_the_flow_from_cloning_alone() -> None:
    qc = learner(target_best_of=2)
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    loss, _, _ = qc.temporal_loss(batch, qc.critic.view(batch, qc.policy))
    loss.backward()
    assert touched(qc.critic.online)
    assert untouched(qc.policy)
    qc = learner()
    batches = FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    cloning_loss(qc.policy, batch, batches, None, qc.generator)[0].backward()
    assert touched(qc.policy)
    assert untouched(qc.critic.online)


def test_the_flow_clones_the_critics_batch_or_a_named_source() -> None:
    batches = FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    learner(target_best_of=2).update(batches)
    learner(target_best_of=2, source="success_mix").update(batches)
    assert batches.sources == [None, None, "success_mix"]


def test_choosing_is_no_deviation_but_a_source_is() -> None:
    assert learner().deviations() == []
    found = learner(source="success_mix", average_actor=0.1, critic_gradient_clip=1.0).deviations()
    assert found[0] == "the flow clones the source 'success_mix' only"
    assert len(found) == 3


@pytest.mark.parametrize("name", ["collect_best_of", "evaluate_best_of", "target_best_of"])
def test_a_choice_among_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} is 0; it must be at least 1"):
        QCConfig(**{name: 0})  # type: ignore[arg-type]


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    config = QCConfig(
        critic=BANDIT_CRITIC, collect_best_of=16, target_best_of=1, source="successes", learning_rate=1e-3
    )
    source = generator()
    assert bandit.train(QC(config, bandit.random_base(source)), source, updates=150) > -0.15


def test_the_page_explains_every_hyper_parameter_and_metric() -> None:
    page = Page("algorithms/qc.md")
    page.check_hyper_parameters(QCConfig)
    batches = FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    qc = learner(target_best_of=2)
    page.check_metrics(qc.warm_up(batches) | qc.update(batches) | qc.diagnostics(batches))
    page.check_links()
