"""The rollout loop with somebody who takes over: what is executed, what is recorded, who is credited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowrl.acting import Actor
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import EPISODE, Kind, Outcome, Source
from flowrl.replay.verify import verify
from flowrl.replay.writer import StreamWriter
from flowrl.rollout import FixedActor, rollout
from flowrl.seeds import collection
from flowrl.spec import Chunking, Spec
from tests.helpers import identity_spec
from tests.reach import ReachEnv


class Nudge:
    """Takes over on given steps and moves straight to the origin."""

    def __init__(self, steps: set[int]) -> None:
        self.steps = steps
        self.asked: list[int] = []

    def act(self, observation: Mapping[str, NDArray[Any]], step: int) -> NDArray[Any] | None:
        self.asked.append(step)
        return np.clip(-5 * observation["observation.state"], -1, 1) if step in self.steps else None


def actor() -> Actor:
    torch.manual_seed(0)
    spec = identity_spec(2, 2, 3)
    return Actor(FlowMLP(spec, width=8, depth=1, flow_steps=2))


def record(path: Path, supervisor: Nudge | None, seed: int = 7) -> ReplayReader:
    env = ReachEnv()
    with StreamWriter.create(path, "corrections", env.interface, Kind.POLICY) as writer:
        rollout(env, FixedActor(actor(), 3), seed=seed, writer=writer, supervisor=supervisor)
    return ReplayReader(path)


def test_takeovers_are_numbered_credited_and_beside_the_proposal(tmp_path: Path) -> None:
    supervisor = Nudge({1, 2, 4})
    reader = record(tmp_path / "replay", supervisor)
    assert verify(tmp_path / "replay").ok
    assert supervisor.asked == list(range(reader.rows))
    takeover, source = reader.column("intervention_id"), reader.column("source")
    assert takeover[:6].tolist() == [-1, 0, 0, -1, 1, -1]
    assert [Source(s) for s in source[:5]] == [
        Source.POLICY,
        Source.HUMAN,
        Source.HUMAN,
        Source.POLICY,
        Source.HUMAN,
    ]
    executed = reader.action[1]
    assert np.allclose(executed, np.clip(-5 * reader.state[1], -1, 1), atol=1e-6)


def test_without_a_takeover_the_recording_is_that_of_nobody_watching(tmp_path: Path) -> None:
    watched, alone = record(tmp_path / "watched", Nudge(set())), record(tmp_path / "alone", None)
    assert np.array_equal(watched.action, alone.action)
    assert np.array_equal(watched.state, alone.state)
    assert (watched.column("source") == Source.POLICY).all()


def test_a_correction_turns_a_failure_into_a_success_of_the_interventions_source(tmp_path: Path) -> None:
    failed = record(tmp_path / "alone", None)
    assert failed.table[0, EPISODE["outcome"]] == Outcome.TIMEOUT
    saved = record(tmp_path / "corrected", Nudge(set(range(5, 20))))
    assert saved.table[0, EPISODE["outcome"]] == Outcome.SUCCESS
    config = SamplerConfig(batch_size=8, chunk=3, end_rule="padded", mix={"interventions": 1.0})
    batch = ChunkSampler(saved, config, 0).batch()
    assert (batch.source == Source.HUMAN).all()
    assert int(batch.row.min()) >= 5


def test_collection_starts_of_the_supervised_worker_meet_no_other() -> None:
    assert collection(0, 90, 0) not in {collection(0, worker, 0) for worker in range(90)}


class LooksBack(FlowMLP):
    """Keeps what it was shown."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec, width=8, depth=1, flow_steps=2)
        self.shown: list[Observation] = []

    def encode(self, observation: Observation) -> Context:
        self.shown.append(observation)
        return super().encode(observation)


def test_a_policy_that_looks_back_sees_while_acting_what_it_sees_in_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    spec = identity_spec(2, 2, 3)
    policy = LooksBack(replace(spec, chunk=Chunking(3, 3, past=2)))
    env = ReachEnv()
    with StreamWriter.create(tmp_path, "policy", env.interface, Kind.POLICY) as writer:
        rollout(env, FixedActor(Actor(policy), 0), seed=7, writer=writer)
    config = SamplerConfig(batch_size=256, chunk=3, past=2, drop_invalid=False)
    batch = ChunkSampler(ReplayReader(tmp_path), config).batch()
    for index, shown in enumerate(policy.shown):
        trained = batch.observation.rows((batch.row == 3 * index).nonzero()[0])
        assert torch.equal(shown.state, trained.state)
        assert len(shown.past) == len(trained.past) == 2
        for acted, drawn in zip(shown.past, trained.past, strict=True):
            assert torch.equal(acted.state, drawn.state)
    assert len(policy.shown) > 2
