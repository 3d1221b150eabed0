"""OGPO as a learner: exact resume, step sizes, acting rules, sources, and what each option does."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from flowrl.acting import Actor
from flowrl.algorithms.ogpo import OGPO, OGPOConfig, scheduled_rate
from flowrl.config import load
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.critics.targets import CriticConfig
from flowrl.errors import ConfigError, ReplayError
from flowrl.policies.diffusion import DiffusionMLP
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.policies.samplers import tapered_sde
from flowrl.replay.batch import ChunkBatch
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Outcome
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.algorithms.test_sqam_options import equal, weights
from tests.helpers import identity_spec
from tests.replay.streams import new_stream, write_episode

STATE, ACTION, CHUNK, ROWS = 3, 2, 2, 8


def learner(
    seed: int = 0,
    policy: type[FlowMLP] | type[DiffusionMLP] = FlowMLP,
    next_samples: int = 1,
    **options: object,
) -> OGPO:
    torch.manual_seed(1)
    base = policy(identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=3)
    critic = CriticConfig(heads=3, width=16, depth=2, aggregation="mean", next_samples=next_samples)
    return OGPO(OGPOConfig(critic=critic, group=4, **options), base, seed)  # type: ignore[arg-type]


def make(count: int, source: str | None) -> ChunkBatch:
    return random_batch(count + (1000 if source else 0), ROWS, STATE, ACTION, CHUNK)


def no_successes(count: int, source: str | None) -> ChunkBatch:
    if source is not None:
        raise ReplayError(f"source {source!r} has no start rows")
    return make(count, None)


def train(ogpo: OGPO, updates: int, start: int = 0) -> dict[str, float]:
    batches, info = FixedBatches(make), dict[str, float]()
    batches.drawn = start
    for _ in range(updates):
        info = ogpo.update(batches)
    return info


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"advantage": "consensus", "success_weight": 0.3, "success_td": True, "states": 5, "next_samples": 8},
        {"policy": DiffusionMLP, "rate_warm_up": 3, "rate_decay": 6},
    ],
    ids=["published", "everything on", "diffusion"],
)
def test_resume_is_bit_equal(options: dict[str, Any]) -> None:
    whole = learner(**options)
    train(whole, 4)
    saved = deepcopy(whole.state_dict())
    whole_info = train(whole, 4, start=10)
    resumed = learner(seed=99, **options)
    resumed.load_state_dict(saved)
    assert train(resumed, 4, start=10) == whole_info
    assert equal(whole.state_dict(), resumed.state_dict())
    assert whole.updates == 8


@pytest.mark.parametrize("policy", [FlowMLP, DiffusionMLP])
def test_an_update_moves_policy_average_and_critic_but_not_the_base(policy: type[FlowMLP]) -> None:
    ogpo = learner(policy=policy, average_actor=0.1, rate_warm_up=0)
    assert ogpo.average is not None
    before = weights(ogpo.base), weights(ogpo.average), weights(ogpo.critic.online)
    train(ogpo, 2)
    assert equal(before[0], weights(ogpo.base))
    assert not equal(before[1], weights(ogpo.average))
    assert not equal(before[2], weights(ogpo.critic.online))
    assert not equal(weights(ogpo.policy), weights(ogpo.average))


def test_warm_up_leaves_the_policy_and_its_schedule() -> None:
    ogpo = learner()
    before = weights(ogpo.policy)
    ogpo.warm_up(FixedBatches(make))
    assert equal(before, weights(ogpo.policy))
    assert ogpo.updates == 0


def test_the_step_size_rises_linearly_and_falls_by_half_a_cosine() -> None:
    config = OGPOConfig(learning_rate=4e-3, rate_warm_up=4, rate_decay=12, rate_end=1e-3)
    found = [scheduled_rate(update, config) for update in (0, 1, 3, 4, 8, 12, 99)]
    expected = [1e-3, 2e-3, 4e-3, 4e-3, 2.5e-3, 1e-3, 1e-3]
    assert found == pytest.approx(expected)
    assert scheduled_rate(6, config) == pytest.approx(1e-3 + 3e-3 * (1 + math.cos(math.pi / 4)) / 2)
    constant = OGPOConfig(learning_rate=4e-3, rate_warm_up=0, rate_decay=None)
    assert {scheduled_rate(update, constant) for update in (0, 5, 10**6)} == {4e-3}


def test_the_schedule_is_the_policys_alone() -> None:
    ogpo = learner(rate_warm_up=10)
    info = train(ogpo, 3)
    rates = {group["name"]: group["lr"] for group in ogpo.optimiser.param_groups}
    assert info["actor/learning_rate"] == pytest.approx(0.3 * 4.5e-5)
    assert rates["policy"] == pytest.approx(0.4 * 4.5e-5), "that of the next update"
    assert rates["critic"] == ogpo.config.critic.learning_rate


def test_next_actions_are_sde_samples_of_the_average() -> None:
    ogpo = learner(average_actor=1e-6)
    train(ogpo, 2)
    context = Context(torch.randn(5, STATE))
    generator = torch.Generator()
    generator.set_state(ogpo.generator.get_state())
    found = ogpo.next_action(context)

    def normal(mean: torch.Tensor) -> torch.Tensor:
        return torch.randn(mean.shape, generator=generator)

    noise = normal(torch.empty(5, ACTION * CHUNK))
    assert ogpo.average is not None
    assert torch.equal(found, tapered_sde(ogpo.average.velocity, context, noise, 3, 0.05, normal).end)


def test_each_rule_of_acting() -> None:
    ogpo = learner()
    own = ogpo.actor("collect")
    assert own == ogpo.actor("evaluate")
    assert own.policy is ogpo.average
    assert own.critic is ogpo.critic.target
    assert (own.best_of, own.score, own.sde_scale) == (8, "subsample_min2", 0.05)
    sde, ode = learner(evaluate_by="sde").actor("evaluate"), learner(evaluate_by="ode").actor("evaluate")
    assert (sde.candidates, sde.sde_scale) == (1, 0.05)
    assert ode.plain
    assert learner(evaluate_by="ode").actor("collect").best_of == 8
    single = learner(collect_best_of=1).actor("collect")
    assert (single.critic, single.sde_scale) == (None, 0.05)


class Heads(CriticEnsemble):
    """Three heads that say 0, 1 and 2 of everything."""

    def forward(self, features: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.arange(3.0)[:, None].expand(3, len(action))


def test_every_candidate_is_scored_by_its_own_pair_of_heads() -> None:
    """The first of four scores 1 with probability 1/3, and is taken too when all score 0: 1/3 + (2/3)^4.

    With one pair for all of them it would always be taken.
    """
    ogpo, rows = learner(), 4000
    actor = Actor(ogpo.policy, Heads(7, heads=3, width=2, depth=1), 4, score="subsample_min2")
    context = ogpo.policy.encode(Observation(torch.zeros(rows, STATE)))
    chosen = actor.choose(context, torch.Generator().manual_seed(0))
    noise = torch.randn(4 * rows, ACTION * CHUNK, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = ogpo.policy.sample(context, noise.view(rows, 4, -1)[:, 0]).clamp(-1, 1)
    taken = (chosen == first).all(dim=1).float().mean()
    assert float(taken) == pytest.approx(1 / 3 + (2 / 3) ** 4, abs=0.03)


def test_successes_are_drawn_for_imitation_and_for_the_second_step() -> None:
    batches = FixedBatches(make)
    info = learner(success_weight=0.5, success_td=True).update(batches)
    assert batches.sources == [None, "successes", "successes"]
    assert info["actor/success_share"] == 1
    assert {"actor/success_loss", "critic/success_td_loss", "critic/success_gradient_norm"} <= set(info)
    plain = FixedBatches(make)
    assert not any("success" in name for name in learner().update(plain))
    assert plain.sources == [None]


def test_the_second_step_moves_the_critic_alone() -> None:
    moved, plain = learner(success_td=True), learner()
    train(moved, 1)
    train(plain, 1)
    assert equal(weights(moved.policy), weights(plain.policy))
    assert not equal(weights(moved.critic.online), weights(plain.critic.online))
    assert not equal(weights(moved.critic.target), weights(plain.critic.target))


def test_without_successes_the_replay_batch_stands_in_and_there_is_no_second_step() -> None:
    fallen = learner(success_weight=0.5, success_td=True)
    info = fallen.update(FixedBatches(no_successes))
    assert info["actor/success_share"] == 0
    assert "critic/success_td_loss" not in info
    same = learner(success_weight=0.5)
    same.update(FixedBatches(lambda count, source: make(1, None)))
    assert equal(weights(fallen.policy), weights(same.policy))
    assert equal(weights(fallen.critic.online), weights(same.critic.online))


def test_a_replay_of_failures_alone_trains_and_a_misspelt_source_does_not(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        for start in (10, 20):
            write_episode(writer, [start, start + 1, start + 2, start + 3], Outcome.FAILURE, final=start + 4)
    batches = ChunkSampler(ReplayReader(tmp_path), SamplerConfig(batch_size=8, chunk=2))
    base = FlowMLP(identity_spec(2, 1, 2), width=8, depth=1, flow_steps=2)
    critic = CriticConfig(heads=2, width=8, depth=1)
    for source in ("successes", "sucesses"):
        config = OGPOConfig(critic=critic, group=2, success_weight=1.0, success_source=source)
        if source == "successes":
            assert OGPO(config, base).update(batches)["actor/success_share"] == 0
        else:
            with pytest.raises(ConfigError, match="did you mean 'successes'"):
                OGPO(config, base).update(batches)


def test_published_settings_deviate_in_nothing() -> None:
    assert OGPOConfig().average_actor is not None
    assert learner().deviations() == []
    assert learner(success_weight=1.0, success_td=True, advantage="consensus").deviations() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evaluate_by": "ode"}, "one ODE sample"),
        ({"success_weight": 0.2, "success_source": "success_mix"}, "'success_mix'"),
        ({"rate_decay": None}, "does not fall"),
        ({"critic_gradient_clip": None}, "jointly"),
    ],
)
def test_each_deviation_is_named(options: dict[str, Any], words: str) -> None:
    (text,) = learner(**options).deviations()
    assert words in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"average_actor": None}, "samples from the average"),
        ({"group": 1}, "at least 2 chains"),
        ({"states": 0}, "states is 0"),
        ({"noise_scale": 0.0}, "no likelihood"),
        ({"ratio_clip": 1.0}, "between 0 and 1"),
        ({"success_weight": -1.0}, "must not be negative"),
        ({"advantage": "penultimate", "critic": {"heads": 2}}, "3 or more"),
        ({"rate_warm_up": 9, "rate_decay": 9}, "rate_warm_up < rate_decay"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(OGPOConfig, settings)
