"""Awkward replays, through the real store and sampler, for every recipe: documented behaviour or a clear error."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flowrl.algorithms.factory import make_algorithm
from flowrl.algorithms.interface import Algorithm
from flowrl.config import load_recipe
from flowrl.errors import ConfigError, ReplayError
from flowrl.learner.config import RunConfig
from flowrl.policies.mlp import FlowMLP
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Kind, Outcome
from tests.helpers import identity_spec
from tests.replay.streams import new_stream, write_episode

RECIPES = sorted(path.stem for path in (Path(__file__).parents[2] / "configs").glob("lift_*.yaml"))
CHUNK, BATCH = 4, 8


def replay(directory: Path, demonstrations: list[int], failures: list[int]) -> ReplayReader:
    """Successful demonstrations and failed episodes of a policy, of these lengths."""
    for name, kind, lengths in (
        ("demonstrations", Kind.DEMONSTRATION, demonstrations),
        ("worker-0", Kind.POLICY, failures),
    ):
        with new_stream(directory, name, kind) as writer:
            for index, length in enumerate(lengths):
                outcome = Outcome.SUCCESS if kind is Kind.DEMONSTRATION else Outcome.TIMEOUT
                values = [100.0 * index + step for step in range(length)]
                write_episode(writer, values, outcome, final=values[-1] + 1)
            writer.commit()
    return ReplayReader(directory)


def learner(recipe: str) -> tuple[Algorithm, RunConfig]:
    """The recipe's algorithm with all its settings, on small networks."""
    critic = ["algorithm.critic.width=16", "algorithm.critic.depth=2"]
    has_critic = hasattr(load_recipe(RunConfig, recipe).algorithm, "critic")
    config = load_recipe(RunConfig, recipe, critic if has_critic else [])
    torch.manual_seed(0)
    policy = FlowMLP(identity_spec(2, 1, CHUNK), width=16, depth=2, flow_steps=3)
    return make_algorithm(config.algorithm, policy, 0), config


def sampler(reader: ReplayReader, config: RunConfig, end_rule: str | None = None) -> ChunkSampler:
    sampling = config.sampling
    made = SamplerConfig(
        batch_size=BATCH,
        chunk=CHUNK,
        discount=config.algorithm.discount,
        end_rule=sampling.end_rule,
        mix=sampling.mix,
        named=sampling.named,
    )
    return ChunkSampler(reader, made if end_rule is None else replace(made, end_rule=end_rule), 0)  # type: ignore[arg-type]


def finite(metrics: dict[str, float]) -> bool:
    return bool(metrics) and all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_replay_without_a_success_of_the_policy_trains(recipe: str, tmp_path: Path) -> None:
    """Demonstrations take over the share of the successes that there are not."""
    algorithm, config = learner(recipe)
    batches = sampler(replay(tmp_path / "replay", [9, 7], [10, 12]), config)
    algorithm.warm_up(batches)
    assert finite(algorithm.update(batches))
    assert finite(algorithm.update(batches))
    assert batches.batch("success_mix").success.min() == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_replay_without_demonstrations_is_refused_by_name(recipe: str, tmp_path: Path) -> None:
    algorithm, config = learner(recipe)
    batches = sampler(replay(tmp_path / "replay", [], [10, 12]), config)
    with pytest.raises(ReplayError, match=r"source 'demonstrations' of replay .* has no start rows"):
        algorithm.update(batches)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_chunk_longer_than_every_episode(recipe: str, tmp_path: Path) -> None:
    """With absorbing ends a short success is a chunk with copies of its last action; strictly there is none."""
    algorithm, config = learner(recipe)
    reader = replay(tmp_path / "replay", [3, 2], [2, 3])
    padded = sampler(reader, config, "padded")
    batch = padded.batch()
    assert (batch.valid[:, -1] == batch.success).all()
    assert finite(algorithm.update(padded))
    with pytest.raises(
        ReplayError, match=r"has no start rows: 4 episodes, 10 rows were read, chunk 4, end rule"
    ):
        sampler(reader, config, "strict").batch("demonstrations")


def test_a_mixture_that_names_an_unknown_source_says_which_are_known(tmp_path: Path) -> None:
    _, config = learner("lift_sqam")
    reader = replay(tmp_path / "replay", [9], [9])
    broken = replace(
        config, sampling=replace(config.sampling, mix={"demonstrations": 0.5, "corrections": 0.5})
    )
    with pytest.raises(ConfigError, match=r"no source 'corrections'; there are all, demonstrations"):
        sampler(reader, broken)
