"""The reward columns of a replay, for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowrl.replay import storage
from flowrl.replay.rewards import ColumnId, Provenance, columns_of, read_labels
from flowrl.replay.schema import EPISODE, Ints, Outcome
from flowrl.replay.storage import BRANCH, StreamArrays


@dataclass(frozen=True)
class ColumnSummary:
    """A column over all streams: ``episodes`` of the ``closed`` ones have a label.

    Among the labelled ones ``recorded`` succeeded as recorded; the column adds ``added`` and denies ``denied``.
    """

    column: ColumnId
    made_by: str
    time: str
    episodes: int
    closed: int
    recorded: int
    added: int
    denied: int


def columns(replay: Path) -> list[ColumnSummary]:
    """Every column of a replay. Raises ReplayError when the replay or a stream cannot be read."""
    found = columns_of(replay)
    sessions = {
        name: storage.open_repository(replay / name).readonly_session(BRANCH)
        for name in storage.stream_names(replay)
    }
    tables = {
        name: _closed(storage.read_episode_table(StreamArrays(), each, 0)) for name, each in sessions.items()
    }
    closed = sum(len(table) for table in tables.values())
    summaries: list[ColumnSummary] = []
    for column, stored in found.items():
        covered = recorded = added = denied = 0
        for name, part in stored.items():
            labels = read_labels(sessions[name], column, slice(0, part.episodes), slice(0, part.rows))
            after = labels.column("outcome") == Outcome.SUCCESS
            before = tables[name][: part.episodes, EPISODE["outcome"]] == Outcome.SUCCESS
            covered, recorded = covered + part.episodes, recorded + int(before.sum())
            added, denied = added + int((after & ~before).sum()), denied + int((before & ~after).sum())
        parts = [part.provenance for part in stored.values()]
        time = max(entry["time"] for each in parts for entry in each.parts)
        made_by = _made_by(parts)
        summaries.append(ColumnSummary(column, made_by, time, covered, closed, recorded, added, denied))
    return summaries


def _closed(table: Ints) -> Ints:
    return table[table[:, EPISODE["outcome"]] != Outcome.OPEN]


def _made_by(parts: list[Provenance]) -> str:
    first = parts[0]
    if first.labeller == "classifier":
        return f"classifier {str(first.rule['digest'])[:12]} at {float(first.rule['threshold']):.4g}"
    judged = sum(len(each.judged) for each in parts)
    return f"a human, {judged:,} episodes; {first.rule['rest']} elsewhere"
