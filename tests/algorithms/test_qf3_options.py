"""QF3 as a learner: exact resume, what each option changes, acting rules, sources, and its page."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from flowrl.algorithms.qf3 import QF3, QF3Config
from flowrl.config import load
from flowrl.critics.targets import CriticConfig
from flowrl.errors import ConfigError, ReplayError
from flowrl.policies.diffusion import DiffusionMLP
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.replay.batch import ChunkBatch
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.algorithms.pages import Page
from tests.algorithms.test_sqam_options import equal, weights
from tests.helpers import identity_spec

STATE, ACTION, CHUNK, ROWS = 3, 2, 2, 8
SIZE = ACTION * CHUNK


def learner(seed: int = 0, policy: type[FlowMLP] | type[DiffusionMLP] = FlowMLP, **options: object) -> QF3:
    torch.manual_seed(1)
    base = policy(identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=3)
    critic = CriticConfig(heads=3, width=16, depth=2, aggregation="mean")
    return QF3(QF3Config(critic=critic, **options), base, seed)  # type: ignore[arg-type]


def make(count: int, source: str | None) -> ChunkBatch:
    return random_batch(count + (1000 if source else 0), ROWS, STATE, ACTION, CHUNK)


def _values(qf3: QF3, context: Context, action: torch.Tensor) -> torch.Tensor:
    return qf3.value_of(context)(action).detach()


def train(qf3: QF3, updates: int, start: int = 0) -> dict[str, float]:
    batches, info = FixedBatches(make), dict[str, float]()
    batches.drawn = start
    for _ in range(updates):
        info = qf3.update(batches)
    return info


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"success_weight": 0.5, "average_actor": 0.1, "target_actor": "average", "policy_delay": 3},
        {"policy": DiffusionMLP, "q_aggregation": "subsample_min2"},
    ],
    ids=["published", "everything on", "diffusion"],
)
def test_resume_is_bit_equal(options: dict[str, Any]) -> None:
    """Four updates, then four: with a delay of three the policy's turns are the third and the sixth."""
    whole = learner(**options)
    train(whole, 4)
    saved = deepcopy(whole.state_dict())
    whole_info = train(whole, 4, start=10)
    resumed = learner(seed=99, **options)
    resumed.load_state_dict(saved)
    assert train(resumed, 4, start=10) == whole_info
    assert equal(whole.state_dict(), resumed.state_dict())
    assert whole.updates == 8


def test_the_base_pulls_the_policy_back() -> None:
    """From a disturbed policy, with the critic out of the way by alpha 0."""
    distances = list[float]()
    for weight in (0.0, 10.0):
        qf3 = learner(alpha=0.0, flow_weight=0.0, base_weight=weight, learning_rate=3e-3)
        with torch.no_grad():
            for parameter in qf3.policy.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        before = train(qf3, 1)["actor/base_shift"]
        after = train(qf3, 100)["actor/base_shift"]
        distances.append(after / before)
    assert distances[0] == pytest.approx(1, abs=0.5)
    assert distances[1] < 0.1


def test_flow_matching_sums_over_dimensions() -> None:
    """Without critic and base it is ``lambda_cfm D`` times the mean squared error of flow matching."""
    qf3 = learner(flow_weight=2.0, alpha=0.0, base_weight=0.0)
    batch = make(0, None)
    view = qf3.critic.view(batch, qf3.policy)
    state = qf3.generator.get_state()
    _, info = qf3.actor_loss(batch, view)
    qf3.generator.set_state(state)
    noise, t = qf3.normal(ROWS, SIZE), qf3.uniform(ROWS)
    matching = qf3.policy.imitation_loss(view.context, view.action, noise, t, batch.valid[:, -1])
    found = info["actor/loss"] + float((batch.valid[:, -1] * _values(qf3, view.context, view.action)).mean())
    assert found == pytest.approx(2.0 * SIZE * float(matching.detach()), rel=1e-4)


@pytest.mark.parametrize("aggregation", ["mean", "min"])
def test_the_policy_climbs_the_aggregation_it_is_told_to(aggregation: str) -> None:
    qf3 = learner(q_aggregation=aggregation)
    features, action = torch.randn(ROWS, STATE), torch.rand(ROWS, SIZE) * 2 - 1
    heads = qf3.critic.online(features, action)
    expected = heads.mean(dim=0) if aggregation == "mean" else heads.min(dim=0).values
    torch.testing.assert_close(qf3.value_of(Context(features))(action), expected)


def test_predictions_outside_the_range_are_valued_at_its_edge() -> None:
    qf3 = learner()
    value = qf3.value_of(Context(torch.zeros(2, STATE)))
    torch.testing.assert_close(value(torch.full((2, SIZE), 3.0)), value(torch.ones(2, SIZE)))


def test_the_policys_turn_comes_with_the_delay() -> None:
    qf3, batches = learner(policy_delay=2, average_actor=0.5), FixedBatches(make)
    moved = list[bool]()
    for _ in range(4):
        assert qf3.average is not None
        before = weights(qf3.policy), weights(qf3.average), weights(qf3.critic.online)
        info = qf3.update(batches)
        moved.append(not equal(before[0], weights(qf3.policy)))
        assert moved[-1] == (not equal(before[1], weights(qf3.average))) == ("actor/loss" in info)
        assert not equal(before[2], weights(qf3.critic.online))
    assert moved == [False, True, False, True]


def test_the_actors_loss_leaves_critic_and_base_alone() -> None:
    qf3 = learner()
    batch = make(0, None)
    qf3.actor_loss(batch, qf3.critic.view(batch, qf3.policy))[0].backward()
    assert all(p.grad is not None for p in qf3.policy.parameters())
    for module in (qf3.critic.online, qf3.critic.target, qf3.base):
        assert all(p.grad is None for p in module.parameters())


def test_straddling_chunks_do_not_count() -> None:
    qf3 = learner()
    batch = make(0, None)
    valid = torch.ones(ROWS, CHUNK)
    valid[4:, -1] = 0
    wild = batch.action.clone()
    wild[4:] = 0.9
    losses = list[torch.Tensor]()
    for action in (batch.action, wild):
        qf3.generator.manual_seed(0)
        changed = replace(batch, valid=valid, action=action)
        losses.append(qf3.actor_loss(changed, qf3.critic.view(changed, qf3.policy))[0].detach())
    torch.testing.assert_close(*losses)


def test_next_actions_are_of_the_policy_or_of_its_average() -> None:
    context = Context(torch.randn(5, STATE))
    for target in ("current", "average"):
        qf3 = learner(average_actor=1e-6, target_actor=target, learning_rate=1e-2)
        train(qf3, 3)
        state = qf3.generator.get_state()
        found = qf3.next_action(context)
        qf3.generator.set_state(state)
        policy = qf3.policy if target == "current" else qf3.average
        assert policy is not None
        assert torch.equal(found, policy.sample(context, qf3.normal(5, SIZE)))


def test_each_rule_of_acting() -> None:
    own = learner().actor("collect")
    assert (own.best_of, own.sde_scale, own.score) == (8, 0.05, "mean")
    assert learner().actor("evaluate").best_of == 8
    assert learner(evaluate_by="ode").actor("evaluate").plain
    assert learner(evaluate_by="ode").actor("collect").best_of == 8
    zero = learner(evaluate_by="zero").actor("evaluate")
    assert zero.zero_noise
    assert zero.candidates == 1
    single = learner(collect_best_of=1, sde_scale=None).actor("collect")
    assert single.plain
    averaged = learner(average_actor=0.1)
    assert averaged.actor("evaluate").policy is averaged.average


def test_successes_are_drawn_only_when_they_count() -> None:
    plain, plus = FixedBatches(make), FixedBatches(make)
    assert "actor/success_loss" not in learner().update(plain)
    assert "actor/success_loss" in learner(success_weight=100.0, success_source="success_mix").update(plus)
    assert (plain.sources, plus.sources) == ([None], [None, "success_mix"])


def test_a_source_without_successes_is_an_error() -> None:
    def none(count: int, source: str | None) -> ChunkBatch:
        if source is not None:
            raise ReplayError(f"source {source!r} has no start rows")
        return make(count, None)

    with pytest.raises(ReplayError, match=r"'successes' has no start rows"):
        learner(success_weight=1.0).update(FixedBatches(none))


def test_published_settings_deviate_in_nothing() -> None:
    assert learner().deviations() == []
    assert learner(success_weight=100.0, average_actor=0.05, evaluate_by="zero").deviations() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"success_weight": 0.2, "success_source": "success_mix"}, "'success_mix'"),
        ({"critic_gradient_clip": None}, "jointly"),
    ],
)
def test_each_deviation_is_named(options: dict[str, Any], words: str) -> None:
    (text,) = learner(**options).deviations()
    assert words in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"base_weight": -1.0}, "base_weight is -1.0"),
        ({"policy_delay": 0}, "policy_delay is 0"),
        ({"target_actor": "average"}, "set average_actor"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(QF3Config, settings)


def test_diagnostics_start_at_the_base_and_change_nothing() -> None:
    qf3 = learner()
    assert qf3.diagnostics(FixedBatches(make))["actor/endpoint_shift"] < 1e-6
    train(qf3, 2)
    before = deepcopy(qf3.state_dict())
    assert qf3.diagnostics(FixedBatches(make)) == qf3.diagnostics(FixedBatches(make))
    assert equal(before, qf3.state_dict())


# The page.

PAGE = Page("algorithms/qf3.md")


def test_every_hyper_parameter_is_explained() -> None:
    PAGE.check_hyper_parameters(QF3Config)


def test_every_metric_is_explained_and_no_other() -> None:
    qf3, batches = learner(success_weight=1.0), FixedBatches(make)
    PAGE.check_metrics(set(qf3.warm_up(batches)) | set(qf3.update(batches)) | set(qf3.diagnostics(batches)))


def test_links_of_the_page_lead_somewhere() -> None:
    PAGE.check_links()
