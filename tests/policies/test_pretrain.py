"""Behaviour cloning: what it learns, that it repeats, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowrl.config import load
from flowrl.errors import ConfigError, DataError, NonFiniteLoss
from flowrl.policies import Context, FlowPolicy, Observation, create_policy
from flowrl.policies.pretrain import ArrayBatch, Demonstrations, PretrainConfig, imitation_loss, pretrain
from flowrl.policies.samplers import euler_ode
from flowrl.spec import Spec

KINDS = {
    "flow_mlp": ({"width": 128, "depth": 2}, PretrainConfig(steps=700, learning_rate=3e-3)),
    "diffusion_mlp": ({"width": 128, "depth": 2}, PretrainConfig(steps=900, learning_rate=3e-3)),
    "flow_transformer": (
        {"width": 32, "depth": 2},
        PretrainConfig(steps=250, batch_size=64, learning_rate=3e-3),
    ),
}


def demonstrations(policy_spec: Spec, two_moded: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """States with chunks that are a function of the state, or that sit at -0.6 or 0.6 in every dimension."""
    rng = np.random.default_rng(1)
    states = rng.normal(size=(512, 3))
    if two_moded:
        flat = np.where(rng.random((512, 1)) < 0.5, -0.6, 0.6) + 0.02 * rng.normal(size=(512, 8))
    else:
        flat = 0.8 * np.tanh(states @ rng.normal(size=(3, 8)))
    assert policy_spec.normalisation is not None
    return states, policy_spec.normalisation.raw_action(flat.reshape(512, 4, 2))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_cloning_finds_both_modes(kind: str, spec: Spec) -> None:
    settings, config = KINDS[kind]
    policy = create_policy(kind, spec, settings)
    states, chunks = demonstrations(spec, two_moded=True)
    pretrain(policy, (states, chunks), config)
    with torch.no_grad():
        context = policy.encode(Observation(torch.from_numpy(states.astype(np.float32))))
        sample = policy.sample(context, torch.randn(len(states), 8))
    upper, lower = (sample > 0).all(dim=1), (sample < 0).all(dim=1)
    assert 0.4 < float(upper.float().mean()) < 0.6
    assert 0.4 < float(lower.float().mean()) < 0.6
    assert float((upper | lower).float().mean()) > 0.95, "a sample mixes the modes"
    distance = (sample.abs() - 0.6).square().mean(dim=1).sqrt()
    assert float(distance.quantile(0.8)) < 0.2


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_time_runs_from_noise_to_action(kind: str, spec: Spec) -> None:
    settings, config = KINDS[kind]
    policy = create_policy(kind, spec, settings)
    states, chunks = demonstrations(spec, two_moded=False)
    pretrain(policy, (states, chunks), config)
    action = policy.flat_action(torch.from_numpy(chunks))
    noise = torch.randn(action.shape)

    def flipped(context: Context, x: Tensor, t: Tensor) -> Tensor:
        return -policy.velocity(context, x, t)

    with torch.no_grad():
        context = policy.encode(Observation(torch.from_numpy(states.astype(np.float32))))
        right = policy.sample(context, noise)
        wrong = euler_ode(flipped, context, noise, policy.flow_steps)
    variance = action.var()
    assert (right - action).square().mean() < 0.1 * variance
    assert (wrong - action).square().mean() > variance


def test_two_runs_are_bit_equal(spec: Spec) -> None:
    data = demonstrations(spec, two_moded=True)

    def train(seed: int) -> FlowPolicy:
        torch.manual_seed(5)
        policy = create_policy("flow_mlp", spec, {"width": 16})
        torch.manual_seed(torch.seed() % 1000)  # the global generator must not matter
        pretrain(policy, data, PretrainConfig(steps=20, seed=seed))
        return policy

    first, second, other = (list(train(seed).parameters()) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_progress_reports_every_interval_and_the_end(spec: Spec) -> None:
    seen: list[tuple[int, float]] = []
    policy = create_policy("flow_mlp", spec, {"width": 16})
    metrics = pretrain(
        policy,
        demonstrations(spec, two_moded=True),
        PretrainConfig(steps=25, log_every=10),
        lambda step, values: seen.append((step, values["pretrain/learning_rate"])),
    )
    assert [step for step, _ in seen] == [10, 20, 25]
    assert seen[-1][1] == pytest.approx(1e-3 * (1 + np.cos(np.pi * 24 / 25)) / 2)
    assert set(metrics) == {
        "pretrain/loss",
        "pretrain/gradient_norm",
        "pretrain/learning_rate",
        "pretrain/updates_per_s",
    }


def test_a_chunk_that_straddles_an_end_weighs_nothing(spec: Spec) -> None:
    policy = create_policy("flow_mlp", spec, {"width": 16})
    states, chunks = torch.randn(6, 3), torch.rand(6, 4, 2)
    batch = ArrayBatch(states, chunks)
    batch.valid[3:, -1] = 0
    spoiled = ArrayBatch(states, torch.cat([chunks[:3], chunks[3:] + 100]))
    spoiled.valid = batch.valid
    losses = [imitation_loss(policy, b, torch.Generator().manual_seed(1)) for b in (batch, spoiled)]
    assert torch.equal(*losses)
    assert losses[0] > 0


class Recorded:
    """Batches that remember which source was asked for, with one bad batch if told so."""

    def __init__(self, inner: Demonstrations, bad_step: int | None = None) -> None:
        self.inner, self.bad_step, self.sources = inner, bad_step, list[str | None]()

    def batch(self, source: str | None = None) -> ArrayBatch:
        self.sources.append(source)
        batch = self.inner.batch()
        if len(self.sources) == self.bad_step:
            batch.action[0, 0, 0] = torch.inf
        return batch


def test_a_named_source_is_asked_for(spec: Spec) -> None:
    batches = Recorded(Demonstrations(spec, *demonstrations(spec, two_moded=True), batch_size=8))
    policy = create_policy("flow_mlp", spec, {"width": 16})
    pretrain(policy, batches, PretrainConfig(steps=3, source="successes"))
    assert batches.sources == ["successes"] * 3


def test_a_loss_that_is_not_finite_stops_at_its_step_with_the_last_good_weights(spec: Spec) -> None:
    data = demonstrations(spec, two_moded=True)
    policies: list[FlowPolicy] = []
    for bad_step in (None, 3):
        torch.manual_seed(5)
        policies.append(create_policy("flow_mlp", spec, {"width": 16}))
        batches = Recorded(Demonstrations(spec, *data, batch_size=8), bad_step)
        if bad_step is None:
            before = [p.clone() for p in policies[0].parameters()]
            pretrain(policies[0], batches, PretrainConfig(steps=2))
            assert not torch.equal(before[0], next(policies[0].parameters()))
        else:
            with pytest.raises(NonFiniteLoss, match=r"step 3 of 5.*loss is (inf|nan)"):
                pretrain(policies[1], batches, PretrainConfig(steps=5))
    assert all(p.isfinite().all() for p in policies[1].parameters())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_is_not_finite_is_refused_by_name(spec: Spec, value: float) -> None:
    states, chunks = demonstrations(spec, two_moded=True)
    policy = create_policy("flow_mlp", spec, {"width": 16})
    bad_states = states.copy()
    bad_states[7, 1] = value
    with pytest.raises(DataError, match=r"observation.state\[1\] \(y\) is (nan|inf) at row 7"):
        pretrain(policy, (bad_states, chunks), PretrainConfig(steps=1))
    bad_chunks = chunks.copy()
    bad_chunks[9, 2, 1] = value
    with pytest.raises(DataError, match=r"action\[2\].dy is (nan|inf) at row 9"):
        pretrain(policy, (states, bad_chunks), PretrainConfig(steps=1))


@pytest.mark.parametrize(
    ("states", "chunks", "message"),
    [
        ((5, 4), (5, 4, 2), r"states have shape \(5, 4\)"),
        ((5, 3), (5, 3, 2), r"chunks have shape \(5, 3, 2\), the spec says \(5, 4, 2\)"),
        ((5, 3), (6, 4, 2), "chunks have shape"),
        ((0, 3), (0, 4, 2), "rows > 0"),
    ],
)
def test_data_of_another_shape_is_refused(
    spec: Spec, states: tuple[int, ...], chunks: tuple[int, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Demonstrations(spec, np.zeros(states), np.zeros(chunks), batch_size=4)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"steps": 0}, "must be positive"), ({"learning_rat": 1.0}, "nearest valid key is 'learning_rate'")],
)
def test_a_wrong_setting_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(PretrainConfig, values)


def test_normalisation_of_the_policy_is_not_refitted(spec: Spec) -> None:
    assert spec.normalisation is not None
    shifted = replace(spec, normalisation=replace(spec.normalisation, state_mean=(9.0, 9.0, 9.0)))
    policy = create_policy("flow_mlp", shifted, {"width": 16})
    pretrain(policy, demonstrations(spec, two_moded=True), PretrainConfig(steps=2))
    assert policy.spec == shifted
