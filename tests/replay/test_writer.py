"""A stream keeps exactly what was committed, and refuses what does not belong in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowrl.errors import DataError, ReplayError, SpecMismatch
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.storage import CHUNK_EPISODES, CHUNK_ROWS
from flowrl.replay.verify import verify
from flowrl.replay.writer import CommitRule, StreamWriter
from tests.replay.streams import ONLY_BY_HAND, SPEC, Child, new_stream, step, write_episode
from tests.waiting import wait_for


def test_every_column_comes_back_as_written(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        assert writer.begin_episode(seed=7, task="push the block") == 0
        writer.append(step(1.0, 0.5, stamp_ns=10, age_ns=3, policy_version=4))
        human = step(2.0, source=Source.HUMAN, intervention_id=0, stamp_ns=20, policy_action=np.array([0.25]))
        writer.append(human)
        writer.append(step(3.0, 1.0, terminated=True, source=Source.HOLD, stamp_ns=20, policy_version=6))
        writer.close_episode(Outcome.SUCCESS, OutcomeBy.HUMAN, {"observation.state": np.array([9.0, 8.0])})
    episode = ReplayReader(tmp_path).episode(0)
    assert episode.state.tolist() == [[1, -1], [2, -2], [3, -3]]
    np.testing.assert_allclose(episode.action[:, 0], [0.01, 0.02, 0.03])
    np.testing.assert_allclose(episode.policy_action[:, 0], [0.01, 0.25, np.nan])
    assert episode.reward.tolist() == [0.5, 0.0, 1.0]
    assert episode.integers.tolist() == [
        [0, -1, 0, 0, 10, 3, 4, 0, 0],
        [1, 0, 0, 0, 20, 0, -1, 0, 1],
        [3, -1, 1, 0, 20, 0, 6, 0, 2],
    ]
    assert episode.final is not None
    assert episode.final.tolist() == [9.0, 8.0]
    row = ReplayReader(tmp_path).table[0]
    assert [int(row[EPISODE[name]]) for name in ("seed", "outcome_by", "version_min", "version_max")] == [
        7, OutcomeBy.HUMAN, 4, 6,
    ]  # fmt: skip


def test_streams_longer_than_many_blocks_keep_every_row(tmp_path: Path) -> None:
    episodes, length = CHUNK_EPISODES * 2 + 3, 2 * CHUNK_ROWS // CHUNK_EPISODES + 1
    rule = replace(ONLY_BY_HAND, rows=CHUNK_ROWS // 3)
    with StreamWriter.create(tmp_path, "w0", SPEC, Kind.POLICY, rule) as writer:
        for episode in range(episodes):
            write_episode(writer, range(episode * length, (episode + 1) * length), final=0.5)
    reader = ReplayReader(tmp_path)
    assert (reader.episodes, reader.rows) == (episodes, episodes * length)
    assert reader.state[:, 0].tolist() == list(range(episodes * length))
    assert verify(tmp_path).ok


def test_growth_beyond_the_preallocated_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flowrl.replay.storage.BLOCKS",
        {"steps/float": 512, "steps/int": 512, "episodes/table": 64, "episodes/final": 64},
    )
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(400), final=0)
        writer.commit()
        reader = ReplayReader(tmp_path)
        for episode in range(70):
            write_episode(writer, range(400 + episode * 10, 410 + episode * 10), final=0)
    assert reader.refresh() == 70
    assert reader.state[:, 0].tolist() == list(range(1100))
    assert verify(tmp_path).ok


def test_reopened_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    for episode in range(3):
        with StreamWriter.open_or_create(tmp_path, "w0", SPEC, Kind.POLICY) as writer:
            assert writer.committed_rows == 4 * episode
            write_episode(writer, range(4 * episode, 4 * episode + 4), final=0)
    assert ReplayReader(tmp_path).state[:, 0].tolist() == list(range(12))
    assert verify(tmp_path).ok


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        reader = ReplayReader(tmp_path)
        write_episode(writer, range(3), final=3)
        assert reader.refresh() == 0
        assert (writer.rows, writer.committed_rows, writer.committed_episodes) == (3, 0, 0)
        writer.commit()
        assert reader.refresh() == 1
        writer.begin_episode()
        writer.append(step(5.0))
        writer.commit()
        assert (writer.committed_rows, writer.committed_episodes) == (4, 1)
        assert reader.refresh() == 0, "an open episode must stay invisible"


def test_rows_force_a_commit_inside_an_episode(tmp_path: Path) -> None:
    rule = replace(ONLY_BY_HAND, rows=5)
    with StreamWriter.create(tmp_path, "w0", SPEC, Kind.POLICY, rule) as writer:
        writer.begin_episode()
        for value in range(12):
            writer.append(step(value))
        assert writer.committed_rows == 10


def test_commit_without_news_makes_no_snapshot(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(3), final=3)
        snapshot = writer.commit()
        assert writer.commit() == snapshot
        writer.begin_episode()
        assert writer.commit() == snapshot


def test_empty_episode_closed_as_interrupted_leaves_no_trace(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(3), final=3)
        writer.begin_episode(seed=9)
        writer.commit()
        with pytest.raises(ReplayError, match="no steps"):
            writer.close_episode(Outcome.SUCCESS, OutcomeBy.HUMAN)
        writer.close_episode(Outcome.INTERRUPTED, OutcomeBy.NONE)
        write_episode(writer, range(3, 5), final=5)
    assert ReplayReader(tmp_path).table[:, EPISODE["seed"]].tolist() == [0, 3]
    assert verify(tmp_path).ok


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Step(np.array([0.0, np.nan]), np.zeros(1), 0.0), r"observation.state\[1\] \(y\) is nan"),
        (Step(np.zeros(2), np.array([np.inf]), 0.0), r"action\[0\] \(push\) is inf"),
        (Step(np.zeros(2), np.zeros(1), float("nan")), "reward is nan"),
        (Step(np.zeros(2), np.zeros(1), 0.0, policy_action=np.array([np.inf])), "policy_action"),
        (Step(np.zeros(2), np.zeros(1), 0.0, policy_action=np.array([np.nan])), "policy_action is NaN"),
        (Step(np.zeros(3), np.zeros(1), 0.0), r"observation has shape \(3,\)"),
        (Step({"observation.state": np.zeros(3)}, np.zeros(1), 0.0), r"'observation.state' has shape \(3,\)"),
        (Step({"state": np.zeros(2)}, np.zeros(1), 0.0), "no feature 'observation.state'"),
        (Step(np.zeros(2), np.zeros(2), 0.0), r"action has shape \(2,\)"),
        (Step(np.zeros(2), np.zeros(1), 0.0, stamp_ns=-5), "monotonic"),
        (Step(np.zeros(2), np.zeros(1), 0.0, intervention_id=0), "source policy"),
        (Step(np.zeros(2), np.zeros(1), 0.0, source=Source.HUMAN), "intervention_id"),
    ],
)
def test_malformed_step_is_refused_by_stream_episode_and_step(
    tmp_path: Path, bad: Step, message: str
) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(2), final=2)
        writer.begin_episode()
        writer.append(step(0.0))
        with pytest.raises(DataError, match=message) as raised:
            writer.append(bad)
        assert "stream 'w0', episode 1, step 1" in str(raised.value)
        writer.append(step(1.0))
        assert writer.rows == 4, "the refused step must not be stored"
    assert verify(tmp_path).ok


def test_final_observation_must_be_finite(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        writer.begin_episode()
        writer.append(step(0.0))
        with pytest.raises(DataError, match="episode 0, observation after the last step"):
            writer.close_episode(Outcome.TIMEOUT, OutcomeBy.ENVIRONMENT, np.array([np.nan, 0.0]))


def test_takeovers_are_numbered_upwards(tmp_path: Path) -> None:
    with new_stream(tmp_path, kind=Kind.ROBOT) as writer:
        writer.begin_episode()
        for takeover in (0, 0, -1, 1):
            writer.append(
                step(1.0, source=Source.HUMAN if takeover >= 0 else Source.POLICY, intervention_id=takeover)
            )
        with pytest.raises(DataError, match="takeover 0 is already over"):
            writer.append(step(1.0, source=Source.HUMAN, intervention_id=0))


def test_the_state_machine_cannot_skip_a_close(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        with pytest.raises(ReplayError, match="no episode is open"):
            writer.append(step(0.0))
        with pytest.raises(ReplayError, match="no episode is open"):
            writer.close_episode(Outcome.SUCCESS, OutcomeBy.HUMAN)
        writer.begin_episode()
        with pytest.raises(ReplayError, match="episode 0 is still open"):
            writer.begin_episode()
        writer.append(step(0.0, terminated=True))
        with pytest.raises(ReplayError, match="ended the episode"):
            writer.append(step(1.0))
        with pytest.raises(ReplayError, match="not cut by the time limit"):
            writer.close_episode(Outcome.TIMEOUT, OutcomeBy.ENVIRONMENT)
        with pytest.raises(ReplayError, match="someone who said so"):
            writer.close_episode(Outcome.SUCCESS, OutcomeBy.NONE)
    with pytest.raises(ReplayError, match="closed"):
        writer.begin_episode()


def test_leaving_an_open_episode_closes_it_as_interrupted(tmp_path: Path) -> None:
    def interrupted() -> None:
        with new_stream(tmp_path) as writer:
            writer.begin_episode()
            writer.append(step(1.0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ReplayReader(tmp_path).episode(0).outcome is Outcome.INTERRUPTED


def test_names_and_specs_are_refused_by_name(tmp_path: Path) -> None:
    new_stream(tmp_path, "arm").close()
    with pytest.raises(ReplayError, match="'arm' already exists"):
        new_stream(tmp_path, "arm")
    with pytest.raises(ReplayError, match=r"holds \['arm'\]"):
        StreamWriter.open(tmp_path, "leg", SPEC)
    with pytest.raises(ReplayError, match="letters"):
        new_stream(tmp_path, "../arm")
    other = replace(SPEC, control_hz=10.0)
    with pytest.raises(SpecMismatch, match=r"stream 'arm'(.|\n)*control_hz: 20.0 against 10.0"):
        StreamWriter.open(tmp_path, "arm", other)
    StreamWriter.open(tmp_path, "arm", SPEC).close()


def test_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    with new_stream(tmp_path), pytest.raises(ReplayError, match=f"'w0'.*process {os.getpid()}"):
        StreamWriter.open(tmp_path, "w0", SPEC)
    StreamWriter.open(tmp_path, "w0", SPEC).close()


def test_lock_of_a_killed_process_is_taken_over_and_its_episode_closed(tmp_path: Path) -> None:
    holder = Child("hold_stream", tmp_path, "w0")
    assert holder.line() == "ready"
    with pytest.raises(ReplayError, match=f"process {holder.process.pid}"):
        StreamWriter.open(tmp_path, "w0", SPEC)
    holder.process.kill()
    # A killed process whose parent has not waited for it yet owns nothing either.
    wait_for(lambda: not _is_locked(tmp_path), "the lock of the killed process counts as free")
    with StreamWriter.open(tmp_path, "w0", SPEC) as writer:
        assert (writer.committed_rows, writer.committed_episodes) == (2, 1)
        write_episode(writer, range(10, 13), final=13)
    holder.process.join()
    reader = ReplayReader(tmp_path)
    assert [reader.episode(i).outcome for i in range(2)] == [Outcome.INTERRUPTED, Outcome.SUCCESS]
    assert reader.column("episode").tolist() == [0, 0, 1, 1, 1]
    assert reader.episode(0).seed == 5
    assert verify(tmp_path).ok


def _is_locked(replay: Path) -> bool:
    try:
        StreamWriter.open(replay, "w0", SPEC).close()
    except ReplayError:
        return True
    return False


def test_process_number_used_again_does_not_hold_the_lock(tmp_path: Path) -> None:
    new_stream(tmp_path).close()
    lock = tmp_path / "w0" / "writer.lock"
    lock.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "start": "1"}))
    StreamWriter.open(tmp_path, "w0", SPEC).close()


def test_rollback_returns_to_a_snapshot(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(3), final=3)
        writer.commit()
        snapshot = writer.snapshot_id
        write_episode(writer, range(100, 104), final=0)
        writer.commit()
        writer.begin_episode()
        writer.append(step(50.0))
        writer.rollback(snapshot)
        assert (writer.rows, writer.committed_rows, writer.episodes) == (3, 3, 1)
        write_episode(writer, range(3, 8), final=8)
    assert ReplayReader(tmp_path).state[:, 0].tolist() == list(range(8))
    assert verify(tmp_path).ok


def test_pinned_snapshot_survives_compaction_and_others_do_not(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(600), final=3)
        writer.commit()
        pinned = writer.pin()
        assert writer.pin() == pinned
        write_episode(writer, range(3, 6), final=6)
        lost = writer.commit()
        write_episode(writer, range(6, 9), final=9)
        writer.commit()
        assert writer.compact(grace_s=0.0) > 0
        with pytest.raises(ReplayError, match=f"'{lost}'.*pinned are.*{pinned}"):
            writer.rollback(lost)
        assert writer.rows == 606
        writer.rollback(pinned)
        assert writer.rows == 600
        write_episode(writer, range(600, 603), final=603)
        writer.commit()
        writer.unpin(pinned)
        writer.compact(grace_s=0.0)
        with pytest.raises(ReplayError, match="any more"):
            writer.rollback(pinned)
    assert ReplayReader(tmp_path).state[:, 0].tolist() == list(range(603))
    assert verify(tmp_path).ok


def test_compaction_brings_the_disk_down_to_about_the_data(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with StreamWriter.create(tmp_path, "w0", SPEC, Kind.POLICY, replace(ONLY_BY_HAND)) as writer:
        for _ in range(30):
            writer.begin_episode()
            for _ in range(50):
                writer.append(Step(random.standard_normal(2), random.uniform(-1, 1, 1), 0.0))
            writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE, random.standard_normal(2))
            writer.commit()
        before = sum(f.stat().st_size for f in (tmp_path / "w0" / "chunks").iterdir())
        writer.compact(grace_s=0.0)
        after = sum(f.stat().st_size for f in (tmp_path / "w0" / "chunks").iterdir())
    assert after < before / 3
    assert ReplayReader(tmp_path).rows == 1500


def test_compaction_happens_by_itself(tmp_path: Path) -> None:
    rule = CommitRule(seconds=0.0, compact_every=5, grace_s=0.0)
    with StreamWriter.create(tmp_path, "w0", SPEC, Kind.POLICY, rule) as writer:
        for episode in range(11):
            write_episode(writer, range(episode, episode + 2), final=0)
        assert len(list((tmp_path / "w0" / "snapshots").iterdir())) <= 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB, where mounting one is allowed."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here; the test with a file size limit covers the same path")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_full_disk_keeps_what_was_committed_and_the_writer_goes_on(small_disk: Path) -> None:
    error, at_error, at_end = Child("fill_disk", small_disk / "replay", small_disk / "filler").rest()
    assert error.startswith("ReplayError stream 'w0' could not commit: the disk is full")
    assert "100 rows and 1 episodes are safe" in error
    assert "free some space" in error
    assert at_error == "100 2000"
    assert at_end == "2010 2010"
    assert ReplayReader(small_disk / "replay").state[:, 0].tolist() == list(range(2010))
    assert verify(small_disk / "replay").ok


def test_file_size_limit_is_met_like_a_full_disk(tmp_path: Path) -> None:
    """The same path without privileges: the system refuses every larger file with EFBIG."""
    error, at_error, at_end = Child("outgrow_limit", tmp_path).rest()
    assert error.startswith("ReplayError stream 'w0' could not commit: the disk is full")
    assert (at_error, at_end) == ("10 510", "510 510")
    assert ReplayReader(tmp_path).state[:, 0].tolist() == list(range(510))
    assert verify(tmp_path).ok
