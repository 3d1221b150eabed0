"""From demonstrations in a replay to a cloned base policy with its normalisation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flowrl import normalisation
from flowrl.config import to_mapping
from flowrl.errors import ReplayError
from flowrl.learner.config import RunConfig
from flowrl.learner.statistics import statistics
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.io import create_flow_policy, save_policy
from flowrl.policies.lerobot.config import LeRobotPolicyConfig
from flowrl.policies.pretrain import Progress, pretrain
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig


def new_policy(config: RunConfig, reader: ReplayReader, seed: int) -> FlowPolicy:
    """An untrained policy for the replay's spec, with normalisation fitted on its rows.

    Raises ReplayError when the replay is empty, DataError when it holds non-finite values.
    """
    if reader.episodes == 0:
        raise ReplayError(
            f"replay {reader.path} holds no closed episode to clone; collect or import some first"
        )
    spec, action = reader.spec, reader.spec.action
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(config.policy, LeRobotPolicyConfig):
            from flowrl.policies.lerobot.adopt import fresh

            wanted = config.policy
            return fresh(wanted.type, spec, wanted.settings, statistics(reader), config.chunk.executed)
        fitted = normalisation.fit(reader.state, action.low, action.high, spec.state_dimension_names())
        spec = replace(spec, normalisation=fitted).with_chunk(config.chunk.length, config.chunk.executed)
        settings: dict[str, Any] = to_mapping(config.policy)
        kind = settings.pop("kind")
        return create_flow_policy(kind, spec, settings)


def clone(
    config: RunConfig,
    replay: Path,
    to: Path,
    streams: list[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Clone the episodes of a replay into a new policy directory; returns the last metrics."""
    sampled = config.sampling
    reader = ReplayReader(replay, streams, decoded_bytes=sampled.decoded_mb << 20, reward=sampled.reward)
    policy = new_policy(config, reader, config.pretrain.seed)
    sampling = SamplerConfig(
        batch_size=config.pretrain.batch_size,
        chunk=policy.chunk.length,
        past=policy.chunk.past,
        ahead=policy.chunk.ahead,
        end_rule=config.sampling.end_rule,
    )
    metrics = pretrain(
        policy, ChunkSampler(reader, sampling, config.pretrain.seed), config.pretrain, progress
    )
    lineage = {
        "trained_on": {name: kind.value for name, kind in reader.streams.items()},
        "episodes": reader.episodes,
        "steps": config.pretrain.steps,
        "seed": config.pretrain.seed,
    }
    save_policy(policy, to, lineage)
    return metrics
