"""Rows for a policy that looks back and generates beyond its chunk, against hand-computed ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.errors import ConfigError
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Outcome
from tests.replay.streams import new_stream, write_episode

BEYOND = SamplerConfig(batch_size=256, chunk=2, past=2, ahead=1, end_rule="padded")


def batch(replay: Path, config: SamplerConfig = BEYOND, chunks: int = 1):
    return ChunkSampler(ReplayReader(replay), config).batch(chunks=chunks)


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    """Two episodes, 10 to 13 with the final observation 14, and 50, 51 with 52."""
    with new_stream(tmp_path) as writer:
        write_episode(writer, [10, 11, 12, 13], Outcome.SUCCESS, final=14)
        write_episode(writer, [50, 51], Outcome.SUCCESS, final=52)
    return tmp_path


def test_actions_reach_back_and_ahead_and_repeat_at_the_ends(replay: Path) -> None:
    drawn = batch(replay)
    rows = {
        int(row): [round(100 * a) for a in action[:, 0].tolist()]
        for row, action in zip(drawn.row, drawn.action, strict=True)
    }
    assert rows == {
        0: [10, 10, 10, 11, 12],
        1: [10, 10, 11, 12, 13],
        2: [10, 11, 12, 13, 13],
        3: [11, 12, 13, 13, 13],
        4: [50, 50, 50, 51, 51],
        5: [50, 50, 51, 51, 51],
    }


def test_observations_of_the_steps_before_stop_at_the_first(replay: Path) -> None:
    drawn = batch(replay)
    seen = {
        int(row): tuple(
            [step.state[i, 0].item() for step in (*observation.past, observation)]
            for observation in (drawn.observation, drawn.next_observation)
        )
        for i, row in enumerate(drawn.row)
    }
    assert seen == {
        0: ([10, 10, 10], [10, 11, 12]),
        1: ([10, 10, 11], [11, 12, 13]),
        2: ([10, 11, 12], [12, 13, 14]),
        3: ([11, 12, 13], [12, 13, 14]),
        4: ([50, 50, 50], [50, 51, 52]),
        5: ([50, 50, 51], [50, 51, 52]),
    }


def test_rewards_and_masks_are_those_of_the_chunk_alone(replay: Path) -> None:
    plain = SamplerConfig(batch_size=256, chunk=2, end_rule="padded")
    wide, narrow = batch(replay), batch(replay, plain)
    for name in ("row", "rewards", "mask", "valid", "success", "source"):
        assert torch.equal(getattr(wide, name), getattr(narrow, name)), name
    assert torch.equal(wide.action[:, 2:4], narrow.action)
    assert narrow.observation.past == ()


def test_chunks_that_follow_have_their_own_past(replay: Path) -> None:
    drawn = batch(replay, chunks=2)
    assert drawn.later is not None
    first = {int(row): i for i, row in enumerate(drawn.row)}
    later = drawn.later.observation
    i = first[0]
    assert [step.state[i, 0].item() for step in (*later.past, later)] == [10, 11, 12]


def test_episodes_that_arrive_later_are_cut_alike(replay: Path) -> None:
    reader = ReplayReader(replay)
    sampler = ChunkSampler(reader, BEYOND)
    with new_stream(replay, "more") as writer:
        write_episode(writer, [70, 71, 72], Outcome.SUCCESS, final=73)
    reader.refresh()
    drawn = sampler.batch()
    newest = drawn.action[np.argsort(drawn.row.numpy())[-1]]
    assert [round(100 * a) for a in newest[:, 0].tolist()] == [70, 71, 72, 72, 72]


@pytest.mark.parametrize("name", ["past", "ahead"])
def test_a_negative_reach_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"sampler.{name} is -1, expected at least 0"):
        SamplerConfig(**{name: -1})
