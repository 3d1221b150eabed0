"""What runs inside the other processes of the crash and concurrency tests."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import icechunk
import numpy as np

from flowrl.replay.reader import ReplayReader
from flowrl.replay.reward_writer import RewardWriter
from flowrl.replay.rewards import ColumnId, Labels, Provenance, next_version
from flowrl.replay.schema import EPISODE, Kind, Outcome, OutcomeBy
from flowrl.replay.writer import CommitRule, StreamWriter
from tests.replay.streams import ONLY_BY_HAND, SPEC, step, write_episode

Say = Callable[[str], None]


def pattern_value(row: int) -> float:
    """The first state value of a stream's row; the second one is its negative, the action a hundredth."""
    return float(row % 100_003)


def write_pattern(say: Say, replay: str, name: str, episodes: str, length: str) -> None:
    """Append checksum-pattern episodes, saying the committed rows and episodes after each commit."""
    rule = CommitRule(seconds=1e9, rows=7, open_seconds=1e9, compact_every=20, grace_s=0.5)
    with StreamWriter.open_or_create(replay, name, SPEC, Kind.POLICY, rule) as writer:
        committed = -1
        for _ in range(int(episodes)):
            writer.begin_episode()
            for index in range(int(length)):
                last = index == int(length) - 1
                writer.append(step(pattern_value(writer.rows), truncated=last, stamp_ns=index))
                if writer.committed_rows != committed:
                    committed = writer.committed_rows
                    say(f"{committed} {writer.committed_episodes}")
            writer.close_episode(Outcome.TIMEOUT, OutcomeBy.ENVIRONMENT, step(-1.0).observation)
            writer.commit()
            committed = writer.committed_rows
            say(f"{committed} {writer.committed_episodes}")


def hold_stream(say: Say, replay: str, name: str) -> None:
    """Own a stream with one step in an open episode until killed."""
    writer = StreamWriter.open_or_create(replay, name, SPEC, Kind.POLICY, ONLY_BY_HAND)
    writer.begin_episode(seed=5)
    writer.append(step(1.0))
    writer.append(step(2.0))
    writer.commit()
    writer.append(step(3.0))
    say("ready")
    threading.Event().wait()


def fill_disk(say: Say, replay: str, filler: str) -> None:
    """Append until the disk is full, say what the error said, free space and finish."""
    writer = StreamWriter.create(replay, "w0", SPEC, Kind.POLICY, ONLY_BY_HAND)
    write_episode(writer, range(100), final=100)
    writer.commit()
    _fill(Path(filler))
    write_episode(writer, range(100, 2000), final=2000)
    try:
        writer.commit()
    except Exception as error:
        say(f"{type(error).__name__} {error}")
    else:
        say("no error")
    say(f"{writer.committed_rows} {writer.rows}")
    Path(filler).unlink()
    write_episode(writer, range(2000, 2010), final=2010)
    writer.close()
    say(f"{writer.committed_rows} {writer.rows}")


def outgrow_limit(say: Say, replay: str) -> None:
    """Append under a limit of 2 kB per file, say what the error said, lift the limit and finish."""
    writer = StreamWriter.create(replay, "w0", SPEC, Kind.POLICY, ONLY_BY_HAND)
    write_episode(writer, range(10), final=10)
    writer.commit()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
    write_episode(writer, range(10, 510), final=510)
    try:
        writer.commit()
    except Exception as error:
        say(f"{type(error).__name__} {error}")
    say(f"{writer.committed_rows} {writer.rows}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.close()
    say(f"{writer.committed_rows} {writer.rows}")


def _fill(filler: Path) -> None:
    """Take all the space that is left, to the last byte."""
    with filler.open("wb", buffering=0) as file:
        for block in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"\0" * block) == block:
                    pass
            except OSError:
                continue


def follow(say: Say, replay: str, rows: str) -> None:
    """Read a growing pattern stream until it has ``rows`` rows, checking every row at every refresh."""
    from tests.replay.test_reader import assert_prefix

    reader = ReplayReader(replay)
    end = time.monotonic() + 60
    while reader.rows < int(rows) and time.monotonic() < end:
        reader.refresh()
        assert_prefix(reader)
    say(f"{reader.rows} rows, every one as written")


def labels_of_version(rows: int, episodes: int, version: int) -> Labels:
    """Labels of episodes of equal outcome whose every reward tells the version."""
    length = [5, 3, 4]
    assert (sum(length), len(length)) == (rows, episodes)
    ends = [[steps, 0, int(Outcome.FAILURE), int(OutcomeBy.CLASSIFIER)] for steps in length]
    return Labels(np.full(rows, float(version), np.float32), np.array(ends, np.int64))


def label_versions(say: Say, replay: str, name: str) -> None:
    """Write version after version of a column, saying each after its commit."""
    while True:
        with RewardWriter(Path(replay) / name) as writer:
            column = next_version(Path(replay), "success")
            _label(writer, column)
        say(str(column))


def label_and_hang(say: Say, replay: str, name: str) -> None:
    """Write version 2 of a column to the last byte, and wait for ever where it would be committed."""

    def hang(session: icechunk.Session, message: str) -> str:
        say("written")
        threading.Event().wait()
        return message

    icechunk.Session.commit = hang  # type: ignore[method-assign,assignment]
    with RewardWriter(Path(replay) / name) as writer:
        _label(writer, ColumnId("success", 2))


def _label(writer: RewardWriter, column: ColumnId) -> None:
    table = writer.closed_episodes()
    labels = labels_of_version(int(table[:, EPISODE["length"]].sum()), len(table), column.version)
    writer.write(column, labels, Provenance("classifier", {"digest": "d" * 64, "threshold": 0.5}))
