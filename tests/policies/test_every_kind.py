"""What every kind of policy promises to actors, with or without a velocity."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from flowrl.acting import Actor, load_actor, save_actor
from flowrl.critics.targets import CriticConfig
from flowrl.policies import ChunkPolicy, Observation, create_policy
from flowrl.spec import Spec
from tests.policies.kinds import STATE_KINDS, small


@pytest.fixture(params=STATE_KINDS)
def policy(request: pytest.FixtureRequest, spec: Spec) -> ChunkPolicy:
    made = create_policy(request.param, spec, small(request.param))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.2)
    return made


def test_sample_and_candidates_have_the_shape_of_flat_chunks(policy: ChunkPolicy) -> None:
    context = policy.encode(Observation(torch.randn(5, 3)))
    noise = torch.randn(5, policy.noise_size)
    assert context.features.shape == (5, policy.feature_size)
    assert policy.sample(context, noise).shape == (5, 8)
    assert policy.candidates(context, noise).shape == (5 * policy.candidates_per_noise, 8)


def test_a_sample_is_among_the_candidates_of_its_own_row(policy: ChunkPolicy) -> None:
    context, noise = policy.encode(Observation(torch.randn(5, 3))), torch.randn(5, policy.noise_size)
    sample = policy.sample(context, noise).clamp(-1, 1)
    candidates = policy.candidates(context, noise).clamp(-1, 1).view(5, -1, 8)
    distance = (candidates - sample[:, None]).abs().amax(dim=2).amin(dim=1)
    assert float(distance.max().detach()) < 1e-5


def test_rows_do_not_see_each_other(policy: ChunkPolicy) -> None:
    state, noise = torch.randn(5, 3), torch.randn(5, policy.noise_size)
    whole = policy.sample(policy.encode(Observation(state)), noise)
    alone = policy.sample(policy.encode(Observation(state[2:3])), noise[2:3])
    assert torch.allclose(whole[2:3], alone, atol=1e-5)


def test_settings_rebuild_the_same_policy(policy: ChunkPolicy) -> None:
    again = create_policy(policy.kind, policy.spec, policy.config())
    again.load_state_dict(policy.state_dict())
    assert again.config() == policy.config()
    context, noise = policy.encode(Observation(torch.randn(5, 3))), torch.randn(5, policy.noise_size)
    assert torch.equal(again.sample(context, noise), policy.sample(context, noise))


@pytest.mark.parametrize("best_of", [1, 3])
def test_a_saved_actor_acts_the_same_within_the_bounds(
    policy: ChunkPolicy, best_of: int, tmp_path: Path
) -> None:
    critic = CriticConfig(heads=2, width=8, depth=1).build(policy.feature_size, policy.flat_size)
    actor = Actor(policy, critic, best_of)
    save_actor(actor, tmp_path / "actor")
    again = load_actor(tmp_path / "actor")
    observation = Observation(torch.randn(6, 3))
    chunks = [a.act(observation, torch.Generator().manual_seed(0)) for a in (actor, again)]
    assert torch.equal(*chunks)
    assert again.rule == actor.rule
    low, high = torch.tensor(policy.spec.action.low), torch.tensor(policy.spec.action.high)
    assert ((chunks[0] >= low) & (chunks[0] <= high)).all()
