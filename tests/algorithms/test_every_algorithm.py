"""What every algorithm that a recipe can name promises to the learner, whatever it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from flowrl import checkpoint
from flowrl.acting import load_actor, save_actor
from flowrl.algorithms.base import PolicyLearner
from flowrl.algorithms.factory import make_algorithm
from flowrl.critics.targets import CriticConfig
from flowrl.errors import NonFiniteLoss
from flowrl.learner.config import AlgorithmConfig
from flowrl.policies.diffusion import DiffusionMLP
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.helpers import identity_spec

ROWS, STATE, ACTION, CHUNK = 8, 3, 2, 2
KINDS: dict[str, type] = {config.kind: config for config in get_args(get_args(AlgorithmConfig)[0])}
WITH_CRITIC = [kind for kind, config in KINDS.items() if "critic" in {field.name for field in fields(config)}]
BASES = {"flow_mlp": FlowMLP, "diffusion_mlp": DiffusionMLP}
OPTIONS = {
    "three chunks": {"backup_chunks": 3},
    "two next samples": {"next_samples": 2},
    "histogram": {"head": "hl_gauss", "value_low": -10.0, "value_high": 0.0},
}


def base(kind: str = "flow_mlp") -> FlowPolicy:
    torch.manual_seed(0)
    return BASES[kind](identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=3)


def small(kind: str, **critic: Any) -> Any:
    """The configuration of ``kind`` by its defaults, with small networks."""
    offered = {"width": 16, "depth": 2, "critic": CriticConfig(heads=3, width=16, depth=2, **critic)}
    names = {field.name for field in fields(KINDS[kind])}
    return KINDS[kind](**{name: value for name, value in offered.items() if name in names})


def learner(
    kind: str, flow: FlowPolicy | None = None, seed: int = 0, **critic: Any
) -> PolicyLearner[Any, Any]:
    made = make_algorithm(small(kind, **critic), base() if flow is None else flow, seed)
    assert isinstance(made, PolicyLearner)
    return made


def batches() -> FixedBatches:
    return FixedBatches.random(ROWS, STATE, ACTION, CHUNK)


def finite(metrics: Mapping[str, float]) -> bool:
    return all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())


def same(first: Any, second: Any) -> bool:
    """Equality of nested states to the last bit."""
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


def acting_weights(algorithm: PolicyLearner[Any, Any]) -> dict[str, Any]:
    policies = {purpose: algorithm.actor(purpose).policy for purpose in ("collect", "evaluate")}
    return {purpose: deepcopy(policy.state_dict()) for purpose, policy in policies.items()}


def test_the_kinds_are_found() -> None:
    assert {"sqam", "imitation", "qc", "fql", "dsrl", "expo", "rlpd"} <= KINDS.keys()


@pytest.mark.parametrize("flow", BASES)
@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_finite_and_change_whatever_is_trained(kind: str, flow: str) -> None:
    algorithm, source = learner(kind, base(flow)), batches()
    groups = {group["name"]: group["params"] for group in algorithm.optimiser.param_groups}
    before = {name: [p.detach().clone() for p in group] for name, group in groups.items()}
    for _ in range(3):
        assert finite(algorithm.update(source))
    still = [name for name, group in groups.items() if all(map(torch.equal, group, before[name]))]
    assert still == []


@pytest.mark.parametrize("kind", KINDS)
def test_warming_up_leaves_the_acting_policy(kind: str) -> None:
    algorithm, source = learner(kind), batches()
    before = acting_weights(algorithm)
    for _ in range(3):
        assert finite(algorithm.warm_up(source))
    assert same(acting_weights(algorithm), before)


@pytest.mark.parametrize("kind", KINDS)
def test_diagnostics_are_finite_and_change_nothing(kind: str) -> None:
    algorithm, source = learner(kind), batches()
    algorithm.update(source)
    before = deepcopy(algorithm.state_dict())
    assert finite(algorithm.diagnostics(source))
    assert same(algorithm.state_dict(), before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_goes_on_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    algorithm, source = learner(kind), batches()
    algorithm.warm_up(source)
    algorithm.update(source)
    checkpoint.save(tmp_path / "state", algorithm.state_dict())
    again = learner(kind, seed=1)
    again.load_state_dict(checkpoint.load(tmp_path / "state"))
    rewound = batches()
    rewound.drawn = source.drawn
    for _ in range(2):
        assert again.update(rewound) == algorithm.update(source)
    assert same(again.state_dict(), algorithm.state_dict())


@pytest.mark.parametrize("purpose", ["collect", "evaluate"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_actor_acts_the_same(kind: str, purpose: Any, tmp_path: Path) -> None:
    algorithm = learner(kind)
    algorithm.update(batches())
    actor = algorithm.actor(purpose)
    save_actor(actor, tmp_path / "actor")
    again, observation = load_actor(tmp_path / "actor"), Observation(torch.randn(5, STATE))
    chunks = [a.act(observation, torch.Generator().manual_seed(2)) for a in (actor, again)]
    assert torch.equal(*chunks)
    assert again.rule == actor.rule


def poisoned(where: str) -> Callable[[int, str | None], ChunkBatch]:
    def make(count: int, source: str | None) -> ChunkBatch:
        batch = random_batch(count, ROWS, STATE, ACTION, CHUNK)
        if where == "state":
            batch.observation.state[2, 1] = float("nan")
            return batch
        bad = getattr(batch, where).clone()
        bad[2] = float("nan")
        return replace(batch, **{where: bad})

    return make


@pytest.mark.parametrize("where", ["state", "action", "rewards"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_in_the_batch_is_refused_before_anything_changes(kind: str, where: str) -> None:
    if where == "rewards" and kind not in WITH_CRITIC:
        return
    algorithm = learner(kind)
    algorithm.update(batches())
    before = deepcopy(algorithm.state_dict())
    with pytest.raises(NonFiniteLoss, match=r"no step was taken"):
        algorithm.update(FixedBatches(poisoned(where)))
    # What was drawn, and a count of the updates tried, may have moved.
    moved = {key: before[key] for key in ("generator", "updates") if key in before}
    assert same(algorithm.state_dict() | moved, before)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", WITH_CRITIC)
def test_the_critics_options_run_under_every_algorithm(kind: str, option: str) -> None:
    algorithm, source = learner(kind, **OPTIONS[option]), batches()
    assert finite(algorithm.warm_up(source))
    for _ in range(2):
        assert finite(algorithm.update(source))
