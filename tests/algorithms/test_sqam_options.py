"""SQAM as a learner: exact resume, and what each option that deviates from the publication does."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from flowrl.acting import Actor
from flowrl.algorithms.sqam import SQAM, SQAMConfig
from flowrl.critics.targets import CriticConfig
from flowrl.errors import UsageError
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.helpers import identity_spec

STATE, ACTION, CHUNK, ROWS = 3, 2, 2, 8


def learner(seed: int = 0, aggregation: str = "mean_minus_std", **options: object) -> SQAM:
    torch.manual_seed(1)
    policy = FlowMLP(identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=3)
    critic = CriticConfig(heads=3, width=16, depth=2, aggregation=aggregation)  # type: ignore[arg-type]
    return SQAM(SQAMConfig(critic=critic, **options), policy, seed)  # type: ignore[arg-type]


def make(count: int, source: str | None) -> ChunkBatch:
    return random_batch(count + (1000 if source else 0), ROWS, STATE, ACTION, CHUNK)


def train(sqam: SQAM, updates: int, start: int = 0) -> dict[str, float]:
    batches = FixedBatches(make)
    batches.drawn = start
    info: dict[str, float] = {}
    for _ in range(updates):
        info = sqam.update(batches)
    return info


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


@pytest.mark.parametrize(
    "options",
    [{}, {"average_actor": 0.1, "critic_gradient_clip": 10.0}, {"aggregation": "subsample_min2"}],
    ids=["released", "deviating", "random heads"],
)
def test_resume_is_bit_equal(options: dict[str, Any]) -> None:
    whole = learner(**options)
    train(whole, 10)
    saved = deepcopy(whole.state_dict())
    whole_info = train(whole, 10, start=10)
    resumed = learner(seed=99, **options)
    resumed.load_state_dict(saved)
    resumed_info = train(resumed, 10, start=10)
    assert equal(whole.state_dict(), resumed.state_dict())
    assert whole_info == resumed_info


def test_two_learners_of_one_seed_are_equal_and_of_two_seeds_differ() -> None:
    first, same, other = learner(3), learner(3), learner(4)
    for sqam in (first, same, other):
        train(sqam, 2)
    assert equal(first.state_dict(), same.state_dict())
    assert not equal(first.state_dict(), other.state_dict())


def test_released_options_deviate_in_nothing() -> None:
    assert learner().deviations() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"average_actor": 0.02}, "moving average of the policy (rate 0.02)"),
        ({"base_source": "successes"}, "'successes'"),
        ({"freeze_base": True}, "frozen"),
        ({"critic_gradient_clip": 10.0}, "clipped separately"),
        ({"collect_best_of": 16}, "best of 16"),
    ],
)
def test_each_deviation_is_named(options: dict[str, Any], words: str) -> None:
    (text,) = learner(**options).deviations()
    assert words in text


def test_average_actor_acts_with_a_moving_average_of_the_policy() -> None:
    sqam = learner(average_actor=0.25)
    expected = weights(sqam.fast)
    for update in range(3):
        train(sqam, 1, start=update)
        expected = [0.75 * old + 0.25 * new for old, new in zip(expected, weights(sqam.fast), strict=True)]
    for purpose in ("collect", "evaluate"):
        acting = sqam.actor(purpose).policy
        assert acting is sqam.average
        assert acting is not sqam.fast
        for mine, yours in zip(acting.parameters(), expected, strict=True):
            torch.testing.assert_close(mine, yours)


def test_without_an_average_the_policy_itself_acts() -> None:
    sqam = learner()
    assert sqam.actor("collect").policy is sqam.fast
    assert sqam.actor("evaluate").best_of == 1


def test_base_source_feeds_the_slow_base_alone() -> None:
    batches = FixedBatches(make)
    learner(base_source="successes").update(batches)
    assert batches.sources == [None, "successes"]
    changed, plain = learner(base_source="successes"), learner(base_source="successes")
    changed.update(FixedBatches(lambda count, source: make(count if source is None else 77, source)))
    plain.update(FixedBatches(make))
    assert not equal(weights(changed.slow), weights(plain.slow))
    assert not batches_used_by_default().count("successes")


def batches_used_by_default() -> list[str | None]:
    batches = FixedBatches(make)
    learner().update(batches)
    return batches.sources


def test_frozen_base_never_moves() -> None:
    sqam = learner(freeze_base=True)
    slow, target, fast = weights(sqam.slow), weights(sqam.slow_target), weights(sqam.fast)
    info = train(sqam, 5)
    assert equal(slow, weights(sqam.slow))
    assert equal(target, weights(sqam.slow_target))
    assert not equal(fast, weights(sqam.fast))
    assert info["base/loss"] == 0.0


def test_slow_target_follows_the_slow_base_at_its_rate() -> None:
    sqam = learner(base_polyak=0.2)
    before = weights(sqam.slow_target)
    train(sqam, 1)
    moved = zip(sqam.slow_target.parameters(), before, weights(sqam.slow), strict=True)
    for target, old, new in moved:
        torch.testing.assert_close(target.detach(), 0.8 * old + 0.2 * new)


def test_separate_clipping_keeps_the_critics_step_when_the_actors_gradient_is_huge() -> None:
    """Under the joint clip a huge adjoint gradient shrinks the critic's gradient; apart it does not."""
    sizes = {}
    for name, clip in (("joint", None), ("separate", 1e9)):
        sqam = learner(critic_gradient_clip=clip, gradient_clip=1.0, dual_high=1e4, dual_initial=1e4)
        with torch.no_grad():
            for parameter in sqam.fast.parameters():
                parameter.mul_(2)
        info = sqam.update(FixedBatches(make))
        assert info["fast/gradient_norm"] > 50 * info["critic/gradient_norm"]
        sizes[name] = {
            network: torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm()
            for network, module in (("critic", sqam.critic.online), ("fast", sqam.fast))
        }
        sizes[name]["before"] = torch.tensor(info["critic/gradient_norm"])
    assert float(sizes["joint"]["critic"]) < 0.02 * float(sizes["joint"]["before"])
    torch.testing.assert_close(sizes["separate"]["critic"], sizes["separate"]["before"])
    torch.testing.assert_close(sizes["separate"]["fast"], torch.tensor(1.0))


def test_collect_best_of_changes_collection_and_not_evaluation() -> None:
    sqam = learner(collect_best_of=16)
    collect, evaluate = sqam.actor("collect"), sqam.actor("evaluate")
    assert (collect.best_of, evaluate.best_of) == (16, 1)
    assert collect.critic is sqam.critic.target
    assert evaluate.critic is None
    assert "best of 16" in collect.rule
    observation = Observation(torch.randn(64, STATE))
    values = []
    for actor in (collect, evaluate):
        action = actor.act(observation, torch.Generator().manual_seed(0))
        flat = sqam.fast.flat_action(action)
        values.append(float(sqam.critic.target(observation.state, flat).mean().detach()))
    assert values[0] > values[1]


def test_best_of_without_a_critic_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a critic"):
        Actor(learner().fast, None, 4)
    with pytest.raises(UsageError, match="at least 1"):
        Actor(learner().fast, None, 0)


def test_warm_up_moves_the_critic_and_its_target_alone() -> None:
    sqam = learner()
    policies = [weights(m) for m in (sqam.fast, sqam.slow, sqam.slow_target)]
    online, target = weights(sqam.critic.online), weights(sqam.critic.target)
    info = sqam.warm_up(FixedBatches(make))
    assert equal(policies, [weights(m) for m in (sqam.fast, sqam.slow, sqam.slow_target)])
    assert not equal(online, weights(sqam.critic.online))
    assert not equal(target, weights(sqam.critic.target))
    assert "critic/value_gap" not in info
    assert "actor/adjoint_loss" not in info
    assert "critic/gradient_norm" in info


def test_bridge_states_follow_the_flow_steps_unless_set() -> None:
    seen = []
    for bridges in (None, 7):
        sqam = learner(bridge_states=bridges)
        original = sqam.actor_loss

        def spy(context: Any, endpoint: Any, noise: Any, original: Any = original) -> Any:
            seen.append(len(noise) // ROWS)
            return original(context, endpoint, noise)

        sqam.actor_loss = spy  # type: ignore[method-assign]
        train(sqam, 1)
    assert seen == [3, 7]


def test_diagnostics_change_nothing_that_training_depends_on() -> None:
    sqam = learner()
    train(sqam, 2)
    before = deepcopy(sqam.state_dict())
    info = sqam.diagnostics(FixedBatches(make))
    assert equal(before, sqam.state_dict())
    assert info["actor/endpoint_shift"] > 0
    assert info == sqam.diagnostics(FixedBatches(make))


def test_untrained_policy_has_not_moved_from_its_base() -> None:
    assert learner().diagnostics(FixedBatches(make))["actor/endpoint_shift"] < 1e-6
