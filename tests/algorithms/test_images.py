"""Every algorithm on a policy that sees, by what learns."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flowrl import checkpoint
from flowrl.acting import load_actor, save_actor
from flowrl.algorithms.base import PolicyLearner
from flowrl.algorithms.factory import make_algorithm
from flowrl.critics.encoder import EncoderConfig
from flowrl.errors import ConfigError
from flowrl.policies.image_transformer import FlowImageTransformer
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from flowrl.spec import Feature
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.algorithms.test_every_algorithm import (
    ACTION,
    CHUNK,
    KINDS,
    ROWS,
    STATE,
    WITH_CRITIC,
    finite,
    same,
    small,
)
from tests.helpers import identity_spec

CAMERA = Feature("observation.images.front", (3, 16, 16), "uint8")


def seeing() -> FlowImageTransformer:
    spec = identity_spec(STATE, ACTION, CHUNK)
    torch.manual_seed(0)
    policy = FlowImageTransformer(
        replace(spec, observation=(*spec.observation, CAMERA)),
        width=16,
        depth=2,
        queries=2,
        vision_depth=1,
        flow_steps=3,
    )
    # Blocks start as the identity and the head as zero: nothing would reach the encoder.
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return policy


def look(observation: Observation, seed: int) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(observation), *CAMERA.shape)
    return replace(
        observation,
        images={CAMERA.name: torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)},
    )


def batch(count: int, source: str | None) -> ChunkBatch:
    made = random_batch(count, ROWS, STATE, ACTION, CHUNK)
    return replace(
        made,
        observation=look(made.observation, 2 * count),
        next_observation=look(made.next_observation, 2 * count + 1),
    )


def learner(kind: str, what: Any, seed: int = 0, **critic: Any) -> PolicyLearner[Any, Any]:
    made = make_algorithm(small(kind, **critic), seeing().train_only(what), seed)
    assert isinstance(made, PolicyLearner)
    return made


def vision(algorithm: PolicyLearner[Any, Any]) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value.clone()
        for name, module in algorithm.state_dict()["modules"].items()
        for key, value in module.items()
        if "vision." in key and name not in ("average", "slow_target", "critic", "critic_target")
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_encoder_is_left_alone_and_holds_no_optimiser_state(kind: str) -> None:
    algorithm, source = learner(kind, "expert"), FixedBatches(batch)
    before = vision(algorithm)
    for _ in range(2):
        assert finite(algorithm.update(source))
    assert finite(algorithm.diagnostics(source))
    assert same(vision(algorithm), before)
    held = sum(p.numel() for p in algorithm.optimiser.state)
    frozen = [p for group in algorithm.optimiser.param_groups for p in group["params"] if not p.requires_grad]
    assert all(p not in algorithm.optimiser.state for p in frozen)
    assert held > 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("fql", "dsrl", "expo", "rlpd")])
def test_an_encoder_that_may_learn_does(kind: str) -> None:
    algorithm, source = learner(kind, "all"), FixedBatches(batch)
    before = vision(algorithm)
    for _ in range(2):
        assert finite(algorithm.update(source))
    assert finite(algorithm.diagnostics(source))
    after = vision(algorithm)
    trained = {group["name"] for group in algorithm.optimiser.param_groups}
    moved = {key.split("/")[0] for key in before if not torch.equal(before[key], after[key])}
    assert moved == {key.split("/")[0] for key in before} & trained


@pytest.mark.parametrize("kind", ["sqam", "qam", "trqam", "qf3"])
def test_a_reference_is_asked_with_its_own_encoding_where_encoders_learn(kind: str) -> None:
    seen = batch(0, None)
    algorithm: Any = learner(kind, "all")
    with torch.no_grad():
        for parameter in algorithm.policy.vision.parameters():
            parameter.add_(0.1)
    context = algorithm.view(seen).context
    own = algorithm.reference.encode(seen.observation)
    assert torch.equal(context.base.cache, own.cache)
    assert not torch.equal(context.cache, own.cache)
    expected = algorithm.reference.encode(batch(1, None).observation).cache
    asked = list[torch.Tensor]()
    original = algorithm.reference.velocity

    def velocity(context: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        asked.append(context.cache)
        return original(context, x, t)

    algorithm.reference.velocity = velocity
    algorithm.update(FixedBatches(batch))
    assert asked
    assert all(torch.allclose(cache[:ROWS], expected) for cache in asked)
    assert learner(kind, "expert").view(seen).context.base is None


def test_fql_refuses_an_encoder_that_should_learn() -> None:
    with pytest.raises(ConfigError, match=r"share the base's encoder.*set trainable to expert"):
        learner("fql", "all")


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_and_a_saved_actor_go_on_the_same(kind: str, tmp_path: Path) -> None:
    algorithm, source = learner(kind, "expert"), FixedBatches(batch)
    algorithm.warm_up(source)
    algorithm.update(source)
    checkpoint.save(tmp_path / "state", algorithm.state_dict())
    again = learner(kind, "expert", seed=1)
    again.load_state_dict(checkpoint.load(tmp_path / "state"))
    rewound = FixedBatches(batch)
    rewound.drawn = source.drawn
    assert again.update(rewound) == algorithm.update(source)
    actor = algorithm.actor("collect")
    save_actor(actor, tmp_path / "actor")
    observation = look(Observation(torch.randn(3, STATE)), 7)
    chunks = [
        a.act(observation, torch.Generator().manual_seed(2)) for a in (actor, load_actor(tmp_path / "actor"))
    ]
    assert torch.equal(*chunks)


OWN: Any = {"encoder": EncoderConfig(width=16, queries=2, depth=1, shift=2)}


@pytest.mark.parametrize("kind", WITH_CRITIC)
def test_a_critic_may_have_an_encoder_of_its_own(kind: str, tmp_path: Path) -> None:
    """It learns, its target follows, a checkpoint goes on the same, a saved actor acts the same."""
    algorithm, source = learner(kind, "expert", **OWN), FixedBatches(batch)
    before = deepcopy(algorithm.state_dict()["modules"])
    assert finite(algorithm.warm_up(source) | algorithm.update(source) | algorithm.diagnostics(source))
    after = algorithm.state_dict()["modules"]
    for name in ("critic", "critic_target"):
        own = [key for key in before[name] if key.startswith("encoder.")]
        assert own
        assert not any(torch.equal(before[name][key], after[name][key]) for key in own)
    checkpoint.save(tmp_path / "state", algorithm.state_dict())
    again = learner(kind, "expert", seed=1, **OWN)
    again.load_state_dict(checkpoint.load(tmp_path / "state"))
    rewound = FixedBatches(batch)
    rewound.drawn = source.drawn
    assert again.update(rewound) == algorithm.update(source)
    assert same(again.state_dict(), algorithm.state_dict())
    actor = replace(algorithm.actor("collect"), critic=algorithm.critic.target, best_of=3)  # type: ignore[attr-defined]
    save_actor(actor, tmp_path / "actor")
    observation = look(Observation(torch.randn(3, STATE)), 7)
    chunks = [
        a.act(observation, torch.Generator().manual_seed(2)) for a in (actor, load_actor(tmp_path / "actor"))
    ]
    assert torch.equal(*chunks)


@pytest.mark.parametrize("kind", WITH_CRITIC)
def test_nothing_but_the_critics_own_loss_reaches_its_encoder(kind: str) -> None:
    algorithm: Any = learner(kind, "expert", **OWN)
    loss = algorithm.critic.loss

    def without_gradient(*given: Any) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, float]]:
        temporal, gap, info = loss(*given)
        return temporal.detach(), None if gap is None else gap.detach(), info

    algorithm.critic.loss = without_gradient
    if kind == "rlpd":  # its other updates are of the critic alone
        algorithm.config = replace(algorithm.config, critic_updates=1)
    before = deepcopy(algorithm.state_dict()["modules"])
    algorithm.update(FixedBatches(batch))
    after = algorithm.state_dict()["modules"]
    assert all(p.grad is None for p in algorithm.critic.online.parameters())
    assert same(after["critic"], before["critic"])
    assert not same(after, before)
