"""Statistics of policy and data, and the two paths of a policy that differ by one skipped step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flowrl.policies.interface import ChunkPolicy, Context
from flowrl.policies.io import create_policy
from flowrl.policies.observation import Observation
from flowrl.preflight import check
from flowrl.preflight.normalisation import served_observation
from flowrl.preflight.rows import Limits
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from tests.policies.constant import ConstantPolicy
from tests.preflight.replays import SEEING, clean, clean_seeing, faults, message, policy_for, write


@pytest.fixture
def reader(tmp_path: Path) -> ReplayReader:
    return write(tmp_path / "r", clean())


def remade(policy: ConstantPolicy, kind: type[ConstantPolicy], **settings: Any) -> ConstantPolicy:
    return kind(policy.spec, **settings)


def test_scales_that_differ_are_warned_of_beyond_the_factor(reader: ReplayReader) -> None:
    normalisation = policy_for(reader).spec.normalisation
    assert normalisation is not None
    x, *others = normalisation.state_scale
    at_most = check(policy_for(reader, state_scale=(2.9 * x, *others)), reader)
    assert faults(at_most) == []
    assert "a factor of 2.90 (observation.state[0] (x))" in message(at_most, "statistics")
    beyond = check(policy_for(reader, state_scale=(3.1 * x, *others)), reader)
    assert faults(beyond) == [("warning", "statistics")]
    (found,) = [f for f in beyond.findings if f.name == "statistics"]
    assert found.numbers["largest_factor"] == pytest.approx(3.1, rel=1e-6)
    assert "1 of 3 dimensions" in found.message


def test_raw_data_for_a_policy_of_normalised_states_is_said(reader: ReplayReader) -> None:
    """The policy has no statistics of its own: mean 0 and scale 1 (dexbotic, 0 of 500)."""
    policy = policy_for(reader, state_mean=(0.0,) * 3, state_scale=(1.0,) * 3)
    checked = check(policy, reader)
    assert faults(checked) == [("warning", "statistics")]
    assert "the data is raw" in message(checked, "statistics")


def test_normalised_data_for_a_policy_of_raw_states_is_said(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", clean())
    fitted = policy_for(raw).spec.normalisation
    assert fitted is not None
    normalised = [
        replace(each, state=(each.state - fitted.state_mean) / fitted.state_scale) for each in clean()
    ]
    reader = write(tmp_path / "r", normalised)
    checked = check(policy_for(raw), reader)
    assert ("warning", "statistics") in faults(checked)
    assert "the data is normalised already" in message(checked, "statistics")


def test_the_served_observation_has_the_batchs_bits(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean_seeing(), SEEING)
    batch = ChunkSampler(reader, SamplerConfig(batch_size=8, chunk=3)).batch()
    served = served_observation(reader, batch)
    assert torch.equal(served.state, batch.observation.state)
    assert served.images.keys() == batch.observation.images.keys()
    for name, frames in served.images.items():
        assert torch.equal(frames, batch.observation.images[name])
    assert served.tasks == batch.observation.tasks


@pytest.mark.parametrize("kind", ["flow_mlp", "flow_transformer"])
def test_our_policies_agree_on_both_paths(reader: ReplayReader, kind: str) -> None:
    policy = create_policy(kind, policy_for(reader).spec)
    checked = check(policy.train(), reader)
    assert [f for f in checked.about("normalisation") if f.level != "ok"] == []
    assert len(checked.about("normalisation")) == 4
    assert policy.training, "left as it was"


class OtherStatistics(ConstantPolicy):
    """It divides by twice the scale that its spec states."""

    def normalised_state(self, state: Tensor) -> Tensor:
        return super().normalised_state(state) / 2


class ServesRaw(ConstantPolicy):
    """Its server leaves the clip and the normalisation of the state out: it serves a batch it has not seen."""

    def __init__(self, spec: Any, scale: float = 0.5) -> None:
        super().__init__(spec, scale)
        self.seen = 0

    def encode(self, observation: Observation) -> Context:
        self.seen += 1
        raw = self.seen == 1
        return Context(observation.state if raw else self.normalised_state(observation.state))

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        return 0.1 * context.features.sum(dim=1, keepdim=True).tanh().expand_as(noise)


class NotBack(ConstantPolicy):
    """It forgets the centre on the way out."""

    def raw_action(self, flat: Tensor) -> Tensor:
        return super().raw_action(flat) - self.get_buffer("action_centre")


class NotFinite(ConstantPolicy):
    def sample(self, context: Context, noise: Tensor) -> Tensor:
        return noise * float("nan")


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (OtherStatistics, "states", "does not use the statistics in its spec"),
        (ServesRaw, "acting", "served actions differ from those of the trained path"),
        (NotFinite, "acting", "not finite"),
    ],
)
def test_a_policy_whose_paths_differ_is_an_error(
    reader: ReplayReader, kind: type[ConstantPolicy], name: str, text: str
) -> None:
    checked = check(remade(policy_for(reader), kind), reader)
    assert faults(checked) == [("error", name)]
    assert text in message(checked, name)


def test_actions_that_do_not_come_back_are_an_error(reader: ReplayReader) -> None:
    # Bounds of -1 to 3 about a centre of 1: all actions fit, so nothing but the way back is wrong.
    policy = policy_for(reader, action_centre=(0.0, 1.0), action_half_range=(1.0, 2.0))
    assert faults(check(policy, reader)) == []
    checked = check(remade(policy, NotBack), reader)
    assert faults(checked) == [("error", "actions")]
    assert "delta_y changes by 0.5 of half its range" in message(checked, "actions")


def test_a_large_offset_is_rounding_not_a_fault(tmp_path: Path) -> None:
    """States of 1e4 with a spread of 0.1, as positions in another frame: 32 bits lose digits on both paths."""
    moved = [replace(e, state=e.state + np.array([1e4, 0, 0])) for e in clean()]
    reader = write(tmp_path / "r", moved)
    assert faults(check(policy_for(reader), reader)) == []


def test_a_large_replay_is_not_cut_before_a_run(reader: ReplayReader) -> None:
    policy: ChunkPolicy = policy_for(reader)
    checked = check(policy, reader, limits=Limits(parity_values=10))
    assert faults(checked) == []
    assert "not compared" in message(checked, "trained and served")
