"""Scripted experts and the demonstrations collected from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flowrl.errors import FlowRLError, UsageError
from sim.base import SimEnv
from sim.experts import collect, expert_for
from sim.registry import make


class Idle:
    noise_shape = expert_for("lift").noise_shape

    def reset(self, env: SimEnv) -> None:
        self.resets = getattr(self, "resets", 0) + 1

    def act(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        return np.zeros(7, np.float32)


@pytest.fixture(scope="module")
def lift() -> SimEnv:
    return make("lift")


def test_the_lift_expert_succeeds_under_noise(lift: SimEnv) -> None:
    collection = collect(lift, expert_for("lift"), 10, noise=0.3, seed=0, only_successes=False)
    lengths = [len(demonstration) for demonstration in collection]
    assert collection.attempts == 10
    assert collection.successes >= 8
    assert 15 < np.mean(lengths) < 60


@pytest.mark.parametrize(("name", "noise"), [("can", 0.2), ("square", 0.1)])
@pytest.mark.slow
def test_the_other_experts_succeed_under_noise(name: str, noise: float) -> None:
    collection = collect(make(name), expert_for(name), 6, noise=noise, seed=0, only_successes=False)
    assert len(list(collection)) == 6
    assert collection.successes >= 4


def test_a_demonstration_is_complete_and_consistent(lift: SimEnv) -> None:
    (demonstration,) = collect(lift, expert_for("lift"), 1, noise=0.3, seed=4)
    length = len(demonstration)
    assert len(demonstration.observations) == length + 1
    assert demonstration.actions.shape == (length, 7)
    assert demonstration.actions.dtype == np.float32
    assert np.abs(demonstration.actions).max() <= 1
    assert demonstration.rewards.tolist() == [0.0] * (length - 1) + [1.0]
    assert demonstration.success
    assert demonstration.terminated


def test_a_demonstration_replays_from_its_seed(lift: SimEnv) -> None:
    (demonstration,) = collect(lift, expert_for("lift"), 1, noise=0.3, seed=4)
    observation, _info = lift.reset(seed=demonstration.seed)
    observations = [observation]
    for action in demonstration.actions:
        observations.append(lift.step(action)[0])
    for replayed, recorded in zip(observations, demonstration.observations, strict=True):
        for key, value in recorded.items():
            np.testing.assert_array_equal(replayed[key], value)


def test_a_collection_depends_on_its_seed_alone(lift: SimEnv) -> None:
    def actions(seed: int) -> list[NDArray[np.float32]]:
        return [d.actions for d in collect(lift, expert_for("lift"), 2, noise=0.3, seed=seed)]

    first, again, other = actions(0), actions(0), actions(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0][:5], other[0][:5])


def test_noise_goes_to_translation_less_to_rotation_and_not_to_the_gripper() -> None:
    env = make("lift", max_steps=40)
    actions = np.concatenate(
        [d.actions for d in collect(env, Idle(), 3, noise=0.2, seed=0, only_successes=False)]
    )
    spread = actions.std(axis=0)
    np.testing.assert_allclose(spread[:3], 0.2, rtol=0.25)
    np.testing.assert_allclose(spread[3:6], 0.06, rtol=0.25)
    assert spread[6] == 0


def test_failures_are_dropped_but_counted_and_the_search_ends() -> None:
    env = make("lift", max_steps=2)
    collection = collect(env, Idle(), 1, noise=0.0, seed=0)
    with pytest.raises(FlowRLError, match="succeeded in 0 of 30"):
        next(collection)
    assert collection.success_rate == 0


def test_demonstration_seeds_are_large_so_small_evaluation_seeds_never_meet_them() -> None:
    env = make("lift", max_steps=1)
    seeds = [d.seed for d in collect(env, Idle(), 20, seed=0, only_successes=False)]
    assert min(seeds) >= 2**30
    assert len(set(seeds)) == 20


def test_an_environment_without_expert_is_named() -> None:
    with pytest.raises(UsageError, match=r"'transport' has no scripted expert; can, lift, square have"):
        expert_for("transport")
