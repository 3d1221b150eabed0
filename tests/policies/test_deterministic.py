"""The deterministic policy: no noise, bounded actions, zero at the start, the same after a round trip."""

from __future__ import annotations

from pathlib import Path

import torch

from flowrl.acting import Actor
from flowrl.policies.deterministic import DeterministicMLP
from flowrl.policies.io import load_policy, save_policy
from flowrl.policies.observation import Observation
from tests.helpers import identity_spec


def disturbed() -> DeterministicMLP:
    policy = DeterministicMLP(identity_spec(3, 2, 1), width=16, depth=1, layer_norm=True)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter))
    return policy


def test_the_untrained_policy_acts_in_the_middle() -> None:
    policy = DeterministicMLP(identity_spec(3, 2, 1))
    assert (policy.sample(policy.encode(Observation(torch.randn(5, 3))), torch.zeros(5, 0)) == 0).all()


def test_it_acts_the_same_every_time_inside_the_bounds_and_after_a_round_trip(tmp_path: Path) -> None:
    policy, generator = disturbed(), torch.Generator().manual_seed(0)
    observation = Observation(10 * torch.randn(64, 3))
    first = Actor(policy).act(observation, generator)
    assert policy.noise_size == 0
    assert first.abs().max() <= 1
    assert torch.equal(Actor(policy).act(observation, generator), first)
    save_policy(policy, tmp_path / "policy")
    assert torch.equal(Actor(load_policy(tmp_path / "policy")).act(observation, generator), first)
    assert Actor(policy).rule == "one deterministic action"
