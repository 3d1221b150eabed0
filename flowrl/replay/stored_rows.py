"""Whole episodes of one stream as read, and as a reward column shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import icechunk
import numpy as np

from flowrl.replay.rewards import (
    ColumnId,
    Labels,
    columns_of,
    incomplete,
    joined,
    read_column,
    read_labels,
    recorded_labels,
    unknown,
)
from flowrl.replay.schema import EPISODE, INT, Floats, Ints
from flowrl.spec import Spec


@dataclass(frozen=True)
class StoredRows:
    """Consecutive episodes: their table rows, step rows, final observations and places of frames.

    ``labels`` is what a reward column says of them; None takes them as recorded.
    """

    table: Ints
    floats: Floats
    integers: Ints
    finals: Floats
    frames: Ints
    final_frames: Ints
    labels: Labels | None = None

    def episodes(self, start: int, stop: int) -> StoredRows:
        """Some of the episodes; counted, like the rows, from the start of the stream."""
        table = self.table[start:stop]
        rows = slice(
            int(table[0, EPISODE["first_row"]]),
            int(table[-1, EPISODE["first_row"]] + table[-1, EPISODE["length"]]),
        )
        labels = self.labels
        return StoredRows(
            table,
            self.floats[rows],
            self.integers[rows],
            self.finals[start:stop],
            self.frames[rows],
            self.final_frames[start:stop],
            None if labels is None else Labels(labels.reward[rows], labels.episodes[start:stop]),
        )

    def shown(self, spec: Spec) -> StoredRows:
        """The episodes as their labels say: rewards, ends and outcomes, and only the steps that count.

        Of an episode that ends earlier, the observation after its last step that counts is the final one. A
        step that does not terminate any more is a cut: the environment was not stepped beyond it.
        """
        labels = self.labels
        if labels is None:
            return self
        table, recorded = self.table.copy(), self.table[:, EPISODE["length"]]
        length, terminated = labels.column("length"), labels.column("terminated")
        first = np.cumsum(recorded) - recorded
        last, is_cut = first + length - 1, length < recorded
        after = (first + length)[is_cut]
        floats, integers = self.floats.copy(), self.integers.copy()
        floats[:, -1] = labels.reward
        ends = self.integers[last][:, [INT["terminated"], INT["truncated"]]].max(axis=1)
        integers[last, INT["terminated"]] = terminated
        integers[last, INT["truncated"]] = np.where(terminated == 1, 0, ends)
        finals, final_frames = self.finals.copy(), self.final_frames.copy()
        finals[is_cut] = self.floats[after, : spec.state_size]
        final_frames[is_cut] = self.frames[after]
        for name in ("length", "outcome", "outcome_by"):
            table[:, EPISODE[name]] = labels.column(name)
        table[:, EPISODE["has_final"]] |= is_cut
        table[:, EPISODE["first_row"]] = table[0, EPISODE["first_row"]] + np.cumsum(length) - length
        kept = np.arange(len(floats)) - np.repeat(first, recorded) < np.repeat(length, recorded)
        return replace(
            self,
            table=table,
            floats=floats[kept],
            integers=integers[kept],
            finals=finals,
            frames=self.frames[kept],
            final_frames=final_frames,
            labels=None,
        )


def labelled(
    rows: StoredRows,
    stream: Path,
    session: icechunk.Session,
    column: ColumnId,
    start: tuple[int, int],
    *,
    allow_missing: bool,
) -> StoredRows:
    """Rows of a stream with the labels of a column; ``start`` is their first episode and row in the stream.

    With ``allow_missing`` episodes without a label keep what was recorded. Raises ReplayError naming them
    otherwise, ConfigError when no stream of the replay has the column.
    """
    episode, row = start
    stored, count = read_column(session, column), len(rows.table)
    covered = 0 if stored is None else min(max(stored.episodes - episode, 0), count)
    if covered < count and not allow_missing:
        if column not in columns_of(stream.parent):
            raise unknown(stream.parent, column)
        raise incomplete(stream.parent, stream.name, column, episode + covered, episode + count)
    parts: list[Labels] = []
    split = int(rows.table[:covered, EPISODE["length"]].sum())
    if covered:
        episodes, found = slice(episode, episode + covered), slice(row, row + split)
        parts.append(read_labels(session, column, episodes, found))
    if covered < count:
        reward, terminated = rows.floats[split:, -1], rows.integers[split:, INT["terminated"]]
        parts.append(recorded_labels(rows.table[covered:], reward, terminated))
    return replace(rows, labels=joined(parts))
