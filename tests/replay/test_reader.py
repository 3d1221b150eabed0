"""Readers see whole committed episodes, in an order that can be repeated."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowrl.errors import ReplayError, SpecMismatch
from flowrl.replay import storage
from flowrl.replay.info import info, render_info
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Kind, Outcome, Source
from flowrl.replay.storage import open_repository
from flowrl.replay.writer import StreamWriter
from tests.replay.processes import pattern_value
from tests.replay.streams import ONLY_BY_HAND, SPEC, Child, new_stream, step, write_episode


def assert_prefix(reader: ReplayReader) -> None:
    """Every visible row is exactly the row that the pattern writer wrote at that place."""
    expected = np.array([pattern_value(row) for row in range(reader.rows)])
    np.testing.assert_array_equal(reader.state, np.stack([expected, -expected], axis=1).astype(np.float32))
    np.testing.assert_array_equal(reader.action[:, 0], (expected / 100).astype(np.float32))
    assert reader.column("episode").tolist() == [row // 10 for row in range(reader.rows)]


def test_streams_are_merged_and_the_order_is_repeated(tmp_path: Path) -> None:
    with new_stream(tmp_path, "a") as a, new_stream(tmp_path, "b", Kind.ROBOT) as b:
        reader = ReplayReader(tmp_path)
        for name, episodes in (("a", 1), ("b", 1), ("a", 2), ("b", 2)):
            for _ in range(episodes):
                write_episode(a if name == "a" else b, range(reader.rows, reader.rows + 3), final=0)
            (a if name == "a" else b).commit()
            assert reader.refresh() == episodes
        saved = json.loads(json.dumps(reader.state_dict()))
        assert saved["order"] == [["a", 1], ["b", 1], ["a", 2], ["b", 2]]
        write_episode(a, range(500, 503), final=0)
        a.commit()
        other = ReplayReader(tmp_path)
        assert other.rows == reader.rows + 3
        other.load_state_dict(saved)
        for name in ("state", "action", "reward", "integers", "table", "final", "stream_of_episode"):
            np.testing.assert_array_equal(getattr(other, name), getattr(reader, name))
        assert other.refresh() == 1 == reader.refresh()
        np.testing.assert_array_equal(other.state, reader.state)
        assert reader.streams == {"a": Kind.POLICY, "b": Kind.ROBOT}


def test_saved_order_that_the_replay_cannot_give_is_refused(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(3), final=0)
        snapshot = writer.commit()
        write_episode(writer, range(3), final=0)
        writer.commit()
        reader = ReplayReader(tmp_path)
        saved = reader.state_dict()
        writer.rollback(snapshot)
        with pytest.raises(ReplayError, match="holds 1 closed episodes, the saved state needs 2"):
            ReplayReader(tmp_path).load_state_dict(saved)
        with pytest.raises(ReplayError, match="rolled back below the 2 episodes"):
            reader.refresh()


def test_new_streams_are_found_and_named_ones_are_required(tmp_path: Path) -> None:
    new_stream(tmp_path, "a").close()
    reader = ReplayReader(tmp_path)
    with new_stream(tmp_path, "b") as writer:
        write_episode(writer, range(3), final=0)
    assert reader.refresh() == 1
    assert ReplayReader(tmp_path, streams=["a"]).rows == 0
    with pytest.raises(ReplayError, match=r"no stream 'c'; it holds \['a', 'b'\]"):
        ReplayReader(tmp_path, streams=["c"])
    with pytest.raises(ReplayError, match="does not exist"):
        ReplayReader(tmp_path / "elsewhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReplayError, match="holds no streams yet"):
        _ = ReplayReader(tmp_path / "empty").spec


def test_streams_of_different_specs_are_refused_by_name(tmp_path: Path) -> None:
    new_stream(tmp_path, "a").close()
    slow = replace(SPEC, control_hz=10.0)
    StreamWriter.create(tmp_path, "b", slow, Kind.POLICY).close()
    with pytest.raises(SpecMismatch, match=r"stream 'a' does not match stream 'b'(.|\n)*20.0 against 10.0"):
        ReplayReader(tmp_path)
    with pytest.raises(SpecMismatch, match="the given spec does not match stream 'a'"):
        ReplayReader(tmp_path, streams=["a"], spec=slow)


def test_reader_whose_snapshot_was_collected_refreshes_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(600), final=0)
        writer.commit()
        reader = ReplayReader(tmp_path)
        write_episode(writer, range(600, 700), final=0)
        writer.commit()
        real, failures = storage.read_episode_table, []

        def collected_meanwhile(arrays: object, session: object, start: int) -> object:
            if not failures:
                failures.append(start)
                write_episode(writer, range(700, 710), final=0)
                writer.commit()
                writer.compact(grace_s=0.0)
            return real(arrays, session, start)  # type: ignore[arg-type]

        monkeypatch.setattr(storage, "read_episode_table", collected_meanwhile)
        reader.refresh()
        reader.refresh()
    assert failures == [1]
    assert reader.state[:, 0].tolist() == list(range(710))


def test_storage_error_is_met_by_the_newest_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(3), final=0)
    real, failures = storage.read_episode_table, []

    def fails_once(*arguments: object) -> object:
        if not failures:
            failures.append(1)
            raise OSError("object not found")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "read_episode_table", fails_once)
    assert ReplayReader(tmp_path).rows == 3
    monkeypatch.setattr(storage, "read_episode_table", lambda *_: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(ReplayError, match="stream 'w0' cannot be read: gone"):
        ReplayReader(tmp_path)


def test_snapshot_really_expires(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(600), final=0)
        old = writer.commit()
        write_episode(writer, range(3), final=0)
        writer.commit()
        writer.compact(grace_s=3600.0)
        open_repository(tmp_path / "w0").readonly_session(snapshot_id=old)
        writer.compact(grace_s=0.0)
        with pytest.raises(storage.STORAGE_ERRORS):
            open_repository(tmp_path / "w0").readonly_session(snapshot_id=old)


@pytest.mark.slow
def test_kill_9_with_a_live_reader_loses_no_committed_row(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for trial in range(3):
        child = Child("write_pattern", tmp_path, "w0", 10_000, 10)
        first = child.line()
        reader = ReplayReader(tmp_path)
        end = time.monotonic() + random.uniform(0.05, 0.4)
        while time.monotonic() < end:
            reader.refresh()
            assert_prefix(reader)
        rows, episodes = map(int, ([first, *child.kill()])[-1].split())
        with StreamWriter.open(tmp_path, "w0", SPEC, ONLY_BY_HAND) as writer:
            assert writer.committed_rows >= rows, f"trial {trial}"
            assert writer.committed_episodes >= episodes
            # The reopened writer closed a broken episode: complete the pattern's numbering for the next trial.
            table = ReplayReader(tmp_path).table
            lengths = table[:, 1].tolist()
            assert set(lengths[:-1]) <= {10}
            assert 1 <= lengths[-1] <= 10
            writer.rollback(_snapshot_of_whole_episodes(writer, tmp_path))


def _snapshot_of_whole_episodes(writer: StreamWriter, replay: Path) -> str:
    """The newest snapshot whose rows are whole pattern episodes."""
    for snapshot in open_repository(replay / "w0").ancestry(branch=storage.BRANCH):
        if snapshot.message == "layout" or int(snapshot.message.split()[0]) % 10 == 0:
            return snapshot.id
    raise AssertionError(writer.name)


@pytest.mark.slow
def test_four_readers_see_a_prefix_while_one_writer_grows(tmp_path: Path) -> None:
    writer = Child("write_pattern", tmp_path, "w0", 60, 10)
    writer.line()
    readers = [Child("follow", tmp_path, 600) for _ in range(4)]
    assert writer.rest()[-1] == "600 60"
    for child in readers:
        said = child.rest()
        assert said[-1] == "600 rows, every one as written"


def test_info_counts_what_is_there(tmp_path: Path) -> None:
    with new_stream(tmp_path, "robot", Kind.ROBOT) as writer:
        write_episode(
            writer, range(5, 9), final=0, sources=[Source.POLICY, Source.HUMAN] + [Source.POLICY] * 2
        )
        write_episode(writer, range(7, 11), Outcome.TIMEOUT, final=0)
        writer.begin_episode()
        writer.append(step(1.0, policy_version=9))
        writer.commit()
        (found,) = info(tmp_path)
    assert (found.name, found.kind, found.episodes, found.steps, found.open_steps) == (
        "robot",
        Kind.ROBOT,
        2,
        8,
        1,
    )
    assert (found.successes, found.human_share, found.policy_versions) == (1, 1 / 8, (5, 7))
    assert found.bytes > 1000
    assert found.snapshots == 3
    assert render_info([found]).row_count == 1
