"""Every algorithm fine-tunes every adapter: an update, a checkpoint, an actor on disk."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lerobot")

import torch

from flowrl import checkpoint
from flowrl.acting import load_actor, save_actor
from flowrl.algorithms.base import PolicyLearner
from flowrl.algorithms.factory import make_algorithm
from flowrl.policies.lerobot.base import LeRobotPolicy
from flowrl.replay.batch import ChunkBatch
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.algorithms.test_every_algorithm import KINDS, finite, small
from tests.policies.lerobot.conftest import Adopted
from tests.policies.lerobot.tiny import ACTION, ADAPTERS, CASES, CHUNK, Case, observation, raw_chunk

ROWS = 3
ON = ["diffusion_states_past", *ADAPTERS[1:]]
"""The ResNet of a diffusion policy is what takes time, not its update."""


def batches(case: Case) -> FixedBatches:
    def make(count: int, source: str | None) -> ChunkBatch:
        return replace(
            random_batch(count, ROWS, case.interface.state_size, ACTION, CHUNK),
            observation=observation(case, ROWS, 2 * count),
            next_observation=observation(case, ROWS, 2 * count + 1),
            action=raw_chunk(ROWS, count),
        )

    return FixedBatches(make)


def learner(kind: str, policy: LeRobotPolicy, what: Any, seed: int = 0) -> PolicyLearner[Any, Any]:
    config = small(kind)
    if hasattr(config, "critic_updates"):
        config = replace(config, critic_updates=2)
    made = make_algorithm(config, deepcopy(policy).train_only(what), seed)
    assert isinstance(made, PolicyLearner)
    return made


@pytest.mark.parametrize("name", ON)
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_a_checkpoint_and_an_actor(kind: str, name: str, adopted: Adopted, tmp_path: Path) -> None:
    case, source = CASES[name], batches(CASES[name])
    algorithm = learner(kind, adopted(name), "expert")
    encoder = [p for part in algorithm.actor("evaluate").policy.encoder_parts for p in part.parameters()]
    before = [p.clone() for p in encoder]
    assert finite(algorithm.update(source))
    assert all(map(torch.equal, encoder, before))
    checkpoint.save(tmp_path / "state", algorithm.state_dict())
    again = learner(kind, adopted(name), "expert", seed=1)
    again.load_state_dict(checkpoint.load(tmp_path / "state"))
    rewound = batches(case)
    rewound.drawn = source.drawn
    assert again.update(rewound) == algorithm.update(source)
    actor = algorithm.actor("collect")
    save_actor(actor, tmp_path / "actor")
    chunks = [
        a.act(observation(case), torch.Generator().manual_seed(2))
        for a in (actor, load_actor(tmp_path / "actor"))
    ]
    assert torch.equal(*chunks)
    assert chunks[0].shape == (3, CHUNK, ACTION)


@pytest.mark.parametrize("name", ON)
@pytest.mark.parametrize("kind", ["sqam", "imitation", "qc"])
def test_an_encoder_that_may_learn_does(kind: str, name: str, adopted: Adopted) -> None:
    policy = adopted(name)
    algorithm: Any = learner(kind, policy, "all")
    assert finite(algorithm.update(batches(CASES[name])))
    trained = algorithm.policy
    moved = [
        not torch.equal(new, old)
        for part, mine in zip(trained.encoder_parts, policy.encoder_parts, strict=True)
        for new, old in zip(part.parameters(), mine.parameters(), strict=True)
    ]
    assert any(moved) == bool(policy.encoder_parts)
    for part, mine in zip(trained.never_trained, policy.never_trained, strict=True):
        assert all(map(torch.equal, part.parameters(), mine.parameters()))
