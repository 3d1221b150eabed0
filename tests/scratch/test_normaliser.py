"""The running normalisation equals numpy's, whatever the order of the pieces, and travels with the policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.scratch.normaliser import RunningNormaliser, initial_spec
from tests.scratch.tasks import interface

STATES = np.random.default_rng(0).normal([1000.0, -3.0, 0.0], [0.5, 2.0, 40.0], (501, 3))


def fitted(pieces: list[int]) -> RunningNormaliser:
    normaliser = RunningNormaliser(3)
    for piece in np.split(STATES, pieces):
        normaliser.update(piece)
    return normaliser


@pytest.mark.parametrize("pieces", [[], [1], [16, 17, 300], list(range(1, 501))])
def test_pieces_give_the_statistics_of_the_whole(pieces: list[int]) -> None:
    normaliser = fitted(pieces)
    np.testing.assert_allclose(normaliser.mean, STATES.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(normaliser.std, STATES.std(axis=0), rtol=1e-9)


def test_float32_states_far_from_zero_keep_their_spread() -> None:
    normaliser = RunningNormaliser(1)
    states = (1e4 + np.random.default_rng(0).normal(0, 0.3, (20_000, 1))).astype(np.float32)
    for piece in np.split(states, 100):
        normaliser.update(piece)
    np.testing.assert_allclose(normaliser.std, states.astype(np.float64).std(axis=0), rtol=1e-6)


def test_before_the_first_state_nothing_is_changed() -> None:
    normaliser = RunningNormaliser(2)
    assert normaliser.mean.tolist() == [0, 0]
    assert normaliser.std.tolist() == [1, 1]


def test_a_constant_dimension_is_not_divided_by_zero() -> None:
    normaliser = RunningNormaliser(1)
    normaliser.update(np.full((10, 1), 7.0))
    assert normaliser.std.tolist() == [0.01]


def test_a_policy_sees_through_it_and_its_saved_spec_says_the_same() -> None:
    normaliser = fitted([100])
    spec = initial_spec(interface(3, 1))
    live = FlowMLP(spec, width=8, depth=1)
    normaliser.write_to(live)
    saved = FlowMLP(normaliser.spec(spec), width=8, depth=1)
    states = torch.from_numpy(STATES[:50].astype(np.float32))
    features = [policy.encode(Observation(states)).features for policy in (live, saved)]
    torch.testing.assert_close(features[0], features[1])
    expected = np.clip((STATES[:50] - STATES.mean(axis=0)) / STATES.std(axis=0), -5, 5)
    # float32 near 1000 leaves 6e-5 of a unit, half of which divided by 0.5.
    np.testing.assert_allclose(features[0].numpy(), expected, atol=2e-4)


def test_it_resumes_exactly() -> None:
    whole, first = fitted([250]), RunningNormaliser(3)
    first.update(STATES[:250])
    resumed = RunningNormaliser(3)
    resumed.load_state_dict(first.state_dict())
    resumed.update(STATES[250:])
    assert np.array_equal(resumed.mean, whole.mean)
    assert np.array_equal(resumed.std, whole.std)
