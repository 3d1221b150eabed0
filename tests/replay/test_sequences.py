"""Sequences of chunks from the real replay against a loop over episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.critics.chunk_critic import ChunkCritic
from flowrl.critics.targets import CriticConfig
from flowrl.policies.mlp import FlowMLP
from flowrl.replay.batch import ChunkBatch
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import EPISODE, Outcome
from tests.helpers import identity_spec
from tests.replay.streams import new_stream, write_episode

CHUNK, CHUNKS = 3, 4
CONFIG = SamplerConfig(
    batch_size=512, chunk=CHUNK, discount=0.9, drop_invalid=False, reward_scale=2.0, reward_shift=-0.25
)
ENDINGS = [Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.INTERRUPTED, Outcome.DISCARDED]


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    """Episodes of 1 to 14 steps for every outcome, with and without an observation after the last step."""
    random = np.random.default_rng(0)
    with new_stream(tmp_path) as writer:
        for length in range(1, 15):
            for index, outcome in enumerate(ENDINGS):
                start = 20 * length + index / 10
                final = start + length if outcome is Outcome.TIMEOUT or random.random() < 0.5 else None
                write_episode(writer, [start + i for i in range(length)], outcome, final=final)
    return tmp_path


def steps_left(reader: ReplayReader) -> dict[int, tuple[int, bool]]:
    """For each row the usable steps from it to the end of its episode, and whether it is discarded."""
    found: dict[int, tuple[int, bool]] = {}
    for episode in reader.table:
        first, length = int(episode[EPISODE["first_row"]]), int(episode[EPISODE["length"]])
        outcome = Outcome(int(episode[EPISODE["outcome"]]))
        whole = outcome is Outcome.SUCCESS or episode[EPISODE["has_final"]] == 1
        usable = length if whole else length - 1
        for offset in range(length):
            found[first + offset] = (usable - offset, outcome is Outcome.DISCARDED)
    return found


def following(row: int, left: dict[int, tuple[int, bool]]) -> int | None:
    """The start of the next chunk: the whole chunk lies in the episode, and at least one step is left."""
    steps, discarded = left[row]
    return None if discarded or steps <= CHUNK else row + CHUNK


@pytest.mark.parametrize("end_rule", ["strict", "padded"])
def test_later_chunks_are_those_of_a_loop_over_the_episode(replay: Path, end_rule: Any) -> None:
    reader = ReplayReader(replay)
    config = replace(CONFIG, end_rule=end_rule)
    batch = ChunkSampler(reader, config).batch(chunks=CHUNKS)
    single = by_row(ChunkSampler(reader, replace(config, batch_size=4096)).batch())
    later, present, left = batch.later, batch.present, steps_left(reader)
    assert later is not None
    assert present is not None
    assert later.action.shape == ((CHUNKS - 1) * 512, CHUNK, 1)
    counts = [0] * CHUNKS
    for b, start in enumerate(batch.row.tolist()):
        row: int | None = start
        for i in range(CHUNKS):
            row = start if i == 0 else None if row is None else following(row, left)
            assert present[i, b] == (row is not None)
            if row is None:
                continue
            counts[i] += 1
            if i > 0:
                place = (i - 1) * 512 + b
                assert later.row[place] == row
                assert chunk(later, place) == single[row]
    assert min(counts) > 0, "sequences of all lengths must occur"
    assert len({int(n) for n in present.sum(dim=0)}) == CHUNKS


def by_row(batch: ChunkBatch) -> dict[int, list[float]]:
    return {int(batch.row[i]): chunk(batch, i) for i in range(len(batch))}


def chunk(batch: ChunkBatch, i: int) -> list[float]:
    """Everything in one row of a batch."""
    parts = [batch.observation.state, batch.next_observation.state, batch.action.flatten(1)]
    parts += [batch.rewards, batch.mask, batch.valid, batch.success[:, None], batch.source[:, None]]
    return [number for part in parts for number in part[i].tolist()]


def test_absent_chunks_hold_finite_numbers(replay: Path) -> None:
    later = ChunkSampler(ReplayReader(replay), CONFIG).batch(chunks=CHUNKS).later
    assert later is not None
    assert all(np.isfinite(chunk(later, i)).all() for i in range(len(later)))


def test_sequences_start_with_the_chunks_that_a_plain_batch_has(replay: Path) -> None:
    reader = ReplayReader(replay)
    plain, long = (ChunkSampler(reader, CONFIG, seed=4) for _ in range(2))
    for _ in range(3):
        one, more = plain.batch(), long.batch(chunks=2)
        assert one.later is one.present is None
        assert torch.equal(one.row, more.row)
        assert torch.equal(one.rewards, more.rewards)
    assert plain.state_dict() == long.state_dict()


def test_a_batch_moves_with_its_sequences(replay: Path) -> None:
    moved = ChunkSampler(ReplayReader(replay), CONFIG).batch(chunks=2).to("meta")
    assert moved.later is not None
    assert moved.present is not None
    assert {moved.row.device.type, moved.later.action.device.type, moved.present.device.type} == {"meta"}


def test_episodes_that_arrive_later_are_followed_too(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(9), final=9)
        writer.commit()
        reader = ReplayReader(tmp_path)
        sampler = ChunkSampler(reader, replace(CONFIG, batch_size=64))
        write_episode(writer, range(20, 29), final=29)
        writer.commit()
        reader.refresh()
        batch = sampler.batch(chunks=2)
    assert batch.later is not None
    assert batch.present is not None
    rows = batch.row[batch.present[1] > 0]
    assert set(rows.tolist()) == {*range(6), *range(9, 15)}
    assert torch.equal(batch.later.row[batch.present[1] > 0], rows + CHUNK)


@pytest.mark.parametrize("decay", [1.0, 0.6])
def test_returns_from_the_replay_equal_a_loop_over_the_raw_rows(replay: Path, decay: float) -> None:
    """Rewards, discounts, ends and bootstraps read off the reader, step by step."""
    reader = ReplayReader(replay)
    batch = ChunkSampler(reader, replace(CONFIG, batch_size=128, drop_invalid=True)).batch(chunks=CHUNKS)
    policy = FlowMLP(identity_spec(2, 1, CHUNK), width=8, depth=1)
    config = CriticConfig(heads=2, width=8, depth=1, backup_chunks=CHUNKS, trace=decay, aggregation="mean")
    critic, left = ChunkCritic(config, policy, 0.9, seed=0), steps_left(reader)
    view = critic.view(batch, policy)
    found = critic.td_target(batch, view, torch.zeros(CHUNKS * 128, CHUNK), torch.Generator())

    def value(row: int) -> float:
        """At the state after the chunk from ``row``: of the next row, or after the episode's end."""
        steps, _ = left[row]
        ends = steps == CHUNK and left.get(row + CHUNK, (1, False))[0] > 0
        state = reader.final[episode_of(reader, row)] if ends else reader.state[row + CHUNK]
        with torch.no_grad():
            return float(critic.target(torch.from_numpy(state)[None], torch.zeros(1, CHUNK)).mean())

    def by_hand(row: int, chunks: int) -> float:
        total = sum(0.9**i * 2.0 * (float(reader.reward[row + i]) - 0.25) for i in range(CHUNK))
        if reader.column("terminated")[row : row + CHUNK].any():
            return total
        onward, after = value(row), following(row, left)
        if chunks > 1 and after is not None and left[after][0] >= CHUNK:
            onward = (1 - decay) * onward + decay * by_hand(after, chunks - 1)
        return total + 0.9**CHUNK * onward

    expected = [by_hand(row, CHUNKS) for row in batch.row.tolist()]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


def episode_of(reader: ReplayReader, row: int) -> int:
    return int(np.searchsorted(reader.table[:, EPISODE["first_row"]], row, side="right")) - 1
