"""Chunks have the hand-computed values, and every source gets exactly its stated share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from flowrl.errors import ConfigError, ReplayError
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Kind, Outcome, Source
from tests.replay.streams import new_stream, write_episode

HALF = SamplerConfig(batch_size=256, chunk=2, discount=0.5, drop_invalid=False)


@dataclass(frozen=True)
class Chunk:
    """One row of a batch, in plain numbers; the action in hundredths."""

    state: float
    action: list[int]
    rewards: list[float]
    mask: list[float]
    valid: list[float]
    next: float
    success: float


def chunks(replay: Path, config: SamplerConfig) -> dict[int, Chunk]:
    """Every chunk the sampler draws, by the row it starts at."""
    batch = ChunkSampler(ReplayReader(replay), config).batch()
    found: dict[int, Chunk] = {}
    for i in range(len(batch)):
        found[int(batch.row[i])] = Chunk(
            state=batch.observation.state[i, 0].item(),
            action=[round(100 * a) for a in batch.action[i, :, 0].tolist()],
            rewards=batch.rewards[i].tolist(),
            mask=batch.mask[i].tolist(),
            valid=batch.valid[i].tolist(),
            next=batch.next_observation.state[i, 0].item(),
            success=batch.success[i].item(),
        )
    return dict(sorted(found.items()))


def record(replay: Path, outcome: Outcome, values: Sequence[float], final: float | None) -> None:
    with new_stream(replay) as writer:
        write_episode(writer, values, outcome, final=final)


def test_terminated_episode_under_the_strict_rule(tmp_path: Path) -> None:
    record(tmp_path, Outcome.SUCCESS, [10, 11, 12], 13)
    assert chunks(tmp_path, HALF) == {
        0: Chunk(state=10, action=[10, 11], rewards=[0, 0], mask=[1, 1], valid=[1, 1], next=12, success=1),
        1: Chunk(state=11, action=[11, 12], rewards=[0, 0.5], mask=[1, 0], valid=[1, 1], next=13, success=1),
        2: Chunk(state=12, action=[12, 12], rewards=[1, 1], mask=[0, 0], valid=[1, 0], next=13, success=1),
    }
    assert list(chunks(tmp_path, replace(HALF, drop_invalid=True))) == [0, 1]


def test_successful_episode_under_the_padded_rule(tmp_path: Path) -> None:
    record(tmp_path, Outcome.SUCCESS, [10, 11, 12], 13)
    rule = replace(HALF, end_rule="padded", drop_invalid=True, reward_scale=10.0, reward_shift=-1.0)
    assert chunks(tmp_path, rule) == {
        0: Chunk(
            state=10, action=[10, 11], rewards=[-10, -15], mask=[1, 1], valid=[1, 1], next=12, success=1
        ),
        1: Chunk(
            state=11, action=[11, 12], rewards=[-10, -10], mask=[1, 0], valid=[1, 1], next=13, success=1
        ),
        2: Chunk(state=12, action=[12, 12], rewards=[0, 0], mask=[0, 0], valid=[1, 1], next=13, success=1),
    }


def test_as_many_starts_as_steps_in_a_chunk_carry_the_end(tmp_path: Path) -> None:
    record(tmp_path, Outcome.SUCCESS, range(9), 9)
    carrying: dict[str, list[int]] = {}
    for rule in ("strict", "padded"):
        found = chunks(tmp_path, replace(HALF, chunk=5, end_rule=rule, drop_invalid=True))
        carrying[rule] = [row for row, chunk in found.items() if chunk.rewards[-1] > 0]
    assert carrying == {"strict": [4], "padded": [4, 5, 6, 7, 8]}


@pytest.mark.parametrize("rule", ["strict", "padded"])
def test_truncated_episode_bootstraps_and_is_never_padded(tmp_path: Path, rule: Any) -> None:
    record(tmp_path, Outcome.TIMEOUT, [10, 11, 12], 13)
    assert chunks(tmp_path, replace(HALF, end_rule=rule)) == {
        0: Chunk(state=10, action=[10, 11], rewards=[0, 0], mask=[1, 1], valid=[1, 1], next=12, success=0),
        1: Chunk(state=11, action=[11, 12], rewards=[0, 0], mask=[1, 1], valid=[1, 1], next=13, success=0),
        2: Chunk(state=12, action=[12, 12], rewards=[0, 0], mask=[1, 1], valid=[1, 0], next=13, success=0),
    }


def test_interrupted_episode_without_final_observation_loses_its_last_step(tmp_path: Path) -> None:
    record(tmp_path, Outcome.INTERRUPTED, [10, 11, 12, 13], None)
    found = chunks(tmp_path, HALF)
    assert list(found) == [0, 1, 2]
    assert found[1] == Chunk(
        state=11, action=[11, 12], rewards=[0, 0], mask=[1, 1], valid=[1, 1], next=13, success=0
    )
    assert (found[2].valid, found[2].next) == ([1, 0], 13)
    assert list(chunks(tmp_path, replace(HALF, drop_invalid=True))) == [0, 1]


def test_terminated_episode_needs_no_final_observation(tmp_path: Path) -> None:
    record(tmp_path, Outcome.SUCCESS, [10, 11], None)
    found = chunks(tmp_path, HALF)
    assert [c.next for c in found.values()] == [11, 11]
    assert [c.mask for c in found.values()] == [[1, 0], [0, 0]]


def test_chunk_longer_than_the_episode(tmp_path: Path) -> None:
    record(tmp_path, Outcome.SUCCESS, [10, 11], 12)
    long = replace(HALF, chunk=4)
    assert chunks(tmp_path, replace(long, end_rule="padded")) == {
        0: Chunk(
            state=10, action=[10, 11, 11, 11], rewards=[0, 0.5, 0.5, 0.5], mask=[1, 0, 0, 0],
            valid=[1, 1, 1, 1], next=12, success=1,
        ),
        1: Chunk(
            state=11, action=[11] * 4, rewards=[1] * 4, mask=[0] * 4, valid=[1] * 4, next=12, success=1
        ),
    }  # fmt: skip
    assert chunks(tmp_path, long)[0].valid == [1, 1, 0, 0]
    with pytest.raises(ReplayError, match=r"'all'.*no start rows.*chunk 4, end rule 'strict'"):
        ChunkSampler(ReplayReader(tmp_path), replace(long, drop_invalid=True)).batch()


def test_discarded_episodes_are_never_drawn(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(4), Outcome.DISCARDED, final=4)
        write_episode(writer, range(10, 14), Outcome.TIMEOUT, final=14)
    assert list(chunks(tmp_path, HALF)) == [4, 5, 6, 7]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_chunks_equal_a_step_by_step_reference(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The vectorised chunks against the definition of algorithms 0.3, written as loops."""
    replay = tmp_path_factory.mktemp("replay")
    horizon = data.draw(st.integers(1, 4))
    endings = st.sampled_from([Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.INTERRUPTED, Outcome.UNKNOWN])
    episodes = data.draw(st.lists(st.tuples(st.integers(1, 6), endings), min_size=1, max_size=4))
    with new_stream(replay) as writer:
        for length, outcome in episodes:
            write_episode(writer, range(length), outcome, final=99)
    config = SamplerConfig(batch_size=256, chunk=horizon, discount=0.9, drop_invalid=False)
    batch = ChunkSampler(ReplayReader(replay), config).batch()
    reader = ReplayReader(replay)
    done = (reader.column("terminated") | reader.column("truncated")).astype(bool)
    last = np.cumsum([length for length, _ in episodes]) - 1
    done[last] = True
    for i in range(len(batch)):
        alive, bootstrap, total = 1.0, 1.0, 0.0
        for j in range(horizon):
            assert batch.valid[i, j] == alive
            row = int(batch.row[i]) + j
            if alive:
                bootstrap *= 1 - reader.column("terminated")[row]
                total += 0.9**j * float(reader.reward[row])
                assert batch.action[i, j, 0] == reader.action[row, 0]
                alive *= 1 - done[row]
                after = 99.0 if done[row] else float(reader.state[row + 1, 0])
            assert batch.mask[i, j] == bootstrap
            assert batch.rewards[i, j].item() == pytest.approx(total)
            assert batch.next_observation.state[i, 0] == after or alive


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Demonstrations, policy rows of two outcomes, and interventions; no chunk is lost at H = 1."""
    with new_stream(tmp_path, "demo", Kind.DEMONSTRATION) as writer:
        write_episode(writer, range(10), final=10, sources=[Source.HUMAN] * 10)
    with new_stream(tmp_path, "robot", Kind.ROBOT) as writer:
        acted = [Source.POLICY] * 6 + [Source.HUMAN] * 4 + [Source.POLICY] * 10
        write_episode(writer, range(100, 120), Outcome.TIMEOUT, final=120, sources=acted)
        write_episode(writer, range(200, 215), final=215)
    return tmp_path


def test_named_sources_hold_the_rows_they_name(mixed: Path) -> None:
    sampler = ChunkSampler(ReplayReader(mixed), SamplerConfig(chunk=1))
    sizes = {
        name: sampler.size(name) for name in ("all", "demonstrations", "online", "policy", "interventions")
    }
    assert sizes == {"all": 45, "demonstrations": 10, "online": 35, "policy": 31, "interventions": 4}
    assert (sampler.size("successes"), sampler.size("stream:robot")) == (25, 35)
    batch = sampler.batch("interventions")
    assert set(batch.observation.state[:, 0].tolist()) == {106, 107, 108, 109}
    assert set(batch.source.tolist()) == {int(Source.HUMAN)}
    assert set(sampler.batch("successes").success.tolist()) == {1.0}


def test_mix_frequencies_match_the_stated_fractions(mixed: Path) -> None:
    """Batch 50 makes every share fractional: 12.5 / 12.5 / 25."""
    mix = {"demonstrations": 0.25, "interventions": 0.25, "policy": 0.5}
    sampler = ChunkSampler(ReplayReader(mixed), SamplerConfig(batch_size=50, chunk=1, mix=mix), seed=3)
    rows = np.concatenate([sampler.batch().row.numpy() for _ in range(1000)])
    counts = np.bincount(rows, minlength=45)
    group = np.array(["demo"] * 10 + ["policy"] * 6 + ["human"] * 4 + ["policy"] * 25)
    found = [counts[group == name].sum() for name in ("demo", "human", "policy")]
    assert np.abs(np.array(found) - [12_500, 12_500, 25_000]).max() <= 100
    assert sampler.drawn == dict(zip(("demonstrations", "interventions", "policy"), found, strict=True))
    for name in ("demo", "human", "policy"):
        assert 1e-3 < stats.chisquare(counts[group == name]).pvalue < 1 - 1e-3, f"{name} rows are not uniform"


def test_one_row_has_one_identity(mixed: Path) -> None:
    """A row that two sources hold is one row: it is drawn as often as the two shares say together."""
    mix = {"online": 0.5, "interventions": 0.5}
    sampler = ChunkSampler(ReplayReader(mixed), SamplerConfig(batch_size=100, chunk=1, mix=mix), seed=4)
    batches = [sampler.batch() for _ in range(400)]
    rows = np.concatenate([batch.row.numpy() for batch in batches])
    states = np.concatenate([batch.observation.state.numpy() for batch in batches])
    reader = sampler.reader
    assert reader.rows == 45 == len({(s, e, t) for s, e, t in _identities(reader)})
    np.testing.assert_array_equal(states, reader.state[rows])
    human = np.flatnonzero((reader.column("source") == Source.HUMAN) & (np.arange(45) >= 10))
    expected = np.zeros(45)
    expected[10:] = 0.5 / 35
    expected[human] += 0.5 / 4
    drawn = np.bincount(rows, minlength=45)
    assert stats.chisquare(drawn[10:], expected[10:] * len(rows)).pvalue > 1e-3


def _identities(reader: ReplayReader) -> list[tuple[int, int, int]]:
    stream = np.repeat(reader.stream_of_episode, reader.table[:, 1])
    return list(
        zip(stream.tolist(), reader.column("episode").tolist(), reader.column("step").tolist(), strict=True)
    )


def test_empty_growing_source_gives_its_share_to_the_others(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(10), Outcome.TIMEOUT, final=10)
        writer.commit()
        mix = {"interventions": 0.5, "successes": 0.25, "policy": 0.25}
        reader = ReplayReader(tmp_path)
        sampler = ChunkSampler(reader, SamplerConfig(batch_size=8, chunk=1, mix=mix))
        assert sampler.shares() == {"policy": 1.0}
        assert len(sampler.batch()) == 8
        with pytest.raises(ReplayError, match=r"'successes'.*no start rows"):
            sampler.batch("successes")
        write_episode(writer, range(20, 24), final=24)
        writer.commit()
        reader.refresh()
        assert sampler.shares() == {"successes": 0.5, "policy": 0.5}
    with pytest.raises(ReplayError, match=r"'demonstrations'.*no start rows"):
        ChunkSampler(reader, SamplerConfig(chunk=1, mix={"demonstrations": 0.5, "policy": 0.5})).batch()


def test_named_mix_is_drawn_by_its_name(mixed: Path) -> None:
    named = {"success_mix": {"demonstrations": 0.25, "successes": 0.75}}
    sampler = ChunkSampler(ReplayReader(mixed), SamplerConfig(batch_size=40, chunk=1, named=named))
    assert set(sampler.batch("success_mix").success.tolist()) == {1.0}
    assert sampler.drawn == {"demonstrations": 10, "successes": 30}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mix": {"all": 0.5}}, "sum to 1, not 0.5"),
        ({"mix": {"all": 1.5, "policy": -0.5}}, "not be negative"),
        ({"mix": {"succeses": 1.0}}, "did you mean 'successes'"),
        ({"named": {"good": {"sucesses": 1.0}}}, r"named\.good.*did you mean 'successes'"),
        ({"named": {"all": {"successes": 1.0}}}, "built-in"),
        ({"chunk": 0}, "chunk"),
        ({"discount": 1.5}, "discount"),
        ({"end_rule": "loose"}, "strict"),
    ],
)
def test_wrong_configuration_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplerConfig(**values)


def test_unknown_source_is_named_with_the_nearest(mixed: Path) -> None:
    sampler = ChunkSampler(ReplayReader(mixed), SamplerConfig(chunk=1))
    with pytest.raises(ConfigError, match=r"'intervention'.*did you mean 'interventions'"):
        sampler.batch("intervention")
    with pytest.raises(ConfigError, match=r"'stream:robots'.*did you mean 'stream:robot'"):
        sampler.batch("stream:robots")


def test_saved_state_continues_with_bit_equal_batches(mixed: Path) -> None:
    mix = {"demonstrations": 0.3, "policy": 0.7}
    config = SamplerConfig(batch_size=33, chunk=3, mix=mix, end_rule="padded")
    reader = ReplayReader(mixed)
    sampler = ChunkSampler(reader, config, seed=11)
    for _ in range(5):
        sampler.batch()
    saved = json.loads(json.dumps({"reader": reader.state_dict(), "sampler": sampler.state_dict()}))
    expected = [sampler.batch() for _ in range(5)]
    fresh = ReplayReader(mixed)
    fresh.load_state_dict(saved["reader"])
    again = ChunkSampler(fresh, config, seed=0)
    again.load_state_dict(saved["sampler"])
    for batch in expected:
        other = again.batch()
        assert torch.equal(batch.row, other.row)
        assert torch.equal(batch.action, other.action)
        assert torch.equal(batch.rewards, other.rewards)
        assert torch.equal(batch.next_observation.state, other.next_observation.state)
    assert again.drawn == sampler.drawn


def test_batches_do_not_share_memory_with_the_replay(mixed: Path) -> None:
    sampler = ChunkSampler(ReplayReader(mixed), SamplerConfig(chunk=2))
    before = sampler.reader.state.copy(), sampler.reader.action.copy()
    batch = sampler.batch()
    for tensor in (batch.observation.state, batch.action, batch.rewards, batch.next_observation.state):
        tensor.zero_()
    np.testing.assert_array_equal(sampler.reader.state, before[0])
    assert sampler.batch().action.abs().sum() > 0
