"""What an estimator sees of a replay: the reward, the split, the returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.errors import UsageError
from flowrl.ope.data import EpisodeSubset, discounted_returns, next_rows, split
from flowrl.replay.chunks import ChunkRule
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import EPISODE
from tests.ope.analytic import write_chain, write_episodes


@pytest.fixture
def reader(tmp_path: Path) -> ReplayReader:
    states = np.arange(20.0).reshape(5, 4)
    write_episodes(tmp_path, states, states / 20, states)
    return ReplayReader(tmp_path)


def test_a_subset_is_a_reader_of_its_episodes(reader: ReplayReader) -> None:
    subset = EpisodeSubset(reader, np.array([3, 1]), reader.reward)
    assert (subset.episodes, subset.rows) == (2, 8)
    assert subset.state[:, 0].tolist() == [12, 13, 14, 15, 4, 5, 6, 7]
    assert subset.table[:, EPISODE["first_row"]].tolist() == [0, 4]
    assert subset.episode(1).state.tolist() == reader.episode(1).state.tolist()
    assert subset.streams == reader.streams
    assert subset.refresh() == 0


def test_a_sampler_over_a_subset_draws_its_episodes_alone(reader: ReplayReader) -> None:
    subset = EpisodeSubset(reader, np.array([4]), reader.reward)
    batch = ChunkSampler(subset, SamplerConfig(batch_size=64, chunk=2)).batch()
    assert set(batch.observation.state[:, 0].tolist()) == {16.0, 17.0, 18.0}


def test_returns_are_discounted_sums_of_the_chosen_reward(reader: ReplayReader) -> None:
    subset = EpisodeSubset(reader, np.array([1]), 2 * reader.reward)
    assert discounted_returns(subset, 0.5) == pytest.approx([2 * (4 + 2.5 + 1.5 + 0.875)])


def test_next_states_are_those_a_batch_has(reader: ReplayReader) -> None:
    everything = EpisodeSubset(reader, np.arange(5), reader.reward)
    config = SamplerConfig(batch_size=200, chunk=3, end_rule="padded")
    batch = ChunkSampler(everything, config).batch()
    after = next_rows(everything, ChunkRule(3, 0.99, "padded", 1.0, 0.0))
    (following,) = everything.observations(after).blocks()
    assert torch.equal(following.state[batch.row], batch.next_observation.state)


def test_observations_before_are_those_a_batch_has(reader: ReplayReader) -> None:
    everything = EpisodeSubset(reader, np.arange(5), reader.reward)
    config = SamplerConfig(batch_size=200, chunk=3, past=2, end_rule="padded")
    batch = ChunkSampler(everything, config).batch()
    after = next_rows(everything, ChunkRule(3, 0.99, "padded", 1.0, 0.0))
    for rows, drawn in (
        (np.arange(everything.rows), batch.observation),
        (after, batch.next_observation),
    ):
        (logged,) = replace(everything.observations(rows), past=2).blocks()
        for mine, theirs in zip(logged.past, drawn.past, strict=True):
            assert torch.equal(mine.state[batch.row], theirs.state)


def test_a_split_has_every_episode_once_and_repeats(reader: ReplayReader) -> None:
    first, again = (split(reader, 0.4, 0.9, "auto", seed=3) for _ in range(2))
    starts = [sorted(part.state[::4, 0].tolist()) for part in (first.training, first.held_out)]
    assert sorted(starts[0] + starts[1]) == [0, 4, 8, 12, 16]
    assert len(starts[1]) == 2
    assert (first.training.state == again.training.state).all()
    (starts_of_all,) = first.initial_observations().blocks()
    assert starts_of_all.state[:, 0].tolist() == [
        *first.training.state[::4, 0].tolist(), *first.held_out.state[::4, 0].tolist(),
    ]  # fmt: skip
    assert len(first.returns()) == first.episodes == 5


def test_a_sparse_reward_becomes_success_and_any_other_stays(tmp_path: Path) -> None:
    """Success is worth 1 whatever the raw reward says; a reward elsewhere is kept as it is."""
    for name, reward in (("scaled", 7.0), ("silent", 0.0)):
        write_chain(tmp_path / name, 6, reward=reward)
        data = split(ReplayReader(tmp_path / name), 0.2, 0.9, "auto", 0)
        assert data.rewarded == "success"
        lengths = [part.table[:, EPISODE["length"]] for part in (data.training, data.held_out)]
        assert data.returns() == pytest.approx(0.9 ** (np.concatenate(lengths) - 1.0), rel=1e-6)
    raw = split(ReplayReader(tmp_path / "scaled"), 0.2, 0.9, "raw", 0)
    assert raw.returns().max() > 1
    states = np.ones((5, 3))
    write_episodes(tmp_path / "dense", states, states / 2, states)
    assert split(ReplayReader(tmp_path / "dense"), 0.2, 0.9, "auto", 0).rewarded == "raw"


def test_too_few_episodes_and_a_share_out_of_range_are_refused(tmp_path: Path, reader: ReplayReader) -> None:
    write_chain(tmp_path / "few", 3)
    with pytest.raises(UsageError, match=r"has 3 finished episodes; an estimate needs at least 4"):
        split(ReplayReader(tmp_path / "few"), 0.2, 0.9, "auto", 0)
    with pytest.raises(UsageError, match=r"held-out is 1\.0; it is a share"):
        split(reader, 1.0, 0.9, "auto", 0)
