"""What must hold of the reward columns of a stream; `flowrl.replay.verify` places each fault."""

from __future__ import annotations

from collections.abc import Iterator

import icechunk
import numpy as np

from flowrl.replay.rewards import ColumnId, Labels, Provenance, read_column, read_labels, stored_columns
from flowrl.replay.schema import EPISODE, INT, Ints, Outcome, OutcomeBy
from flowrl.replay.storage import first_line

Fault = tuple[str, int, int]
"""A message with the episode and step it concerns, -1 where it concerns more than one."""

_PART_KEYS = {"episodes", "rows", "time", "snapshot", "source", "flowrl"}
_RULE_KEYS = {"classifier": {"digest", "threshold"}, "human": {"base", "rest"}}


def reward_faults(session: icechunk.Session, table: Ints, integers: Ints) -> Iterator[Fault]:
    """Every fault of the columns of a stream with this episode table and these integer rows."""
    closed = table[table[:, EPISODE["outcome"]] != Outcome.OPEN]
    for column in stored_columns(session):
        try:
            found = list(_column_faults(session, column, closed, integers))
        except Exception as error:
            # As for a whole stream: damage can surface as any error of the store or the codecs.
            found = [(f"cannot be read: {first_line(error)}; label again under a new version", -1, -1)]
        for message, episode, step in found:
            yield f"reward {column}: {message}", episode, step


def _column_faults(
    session: icechunk.Session, column: ColumnId, closed: Ints, integers: Ints
) -> Iterator[Fault]:
    stored = read_column(session, column)
    assert stored is not None
    yield from _provenance_faults(stored.provenance, stored.episodes, stored.rows)
    if stored.episodes > len(closed):
        yield f"labels {stored.episodes} episodes, the stream has {len(closed)} closed ones", -1, -1
        return
    table = closed[: stored.episodes]
    rows = int(table[:, EPISODE["length"]].sum())
    if stored.rows != rows:
        yield f"has {stored.rows} rewards for episodes with {rows} steps", -1, -1
        return
    labels = read_labels(session, column, slice(0, stored.episodes), slice(0, rows))
    yield from _label_faults(labels, table, integers[:rows, INT["terminated"]])


def _provenance_faults(provenance: Provenance, episodes: int, rows: int) -> Iterator[Fault]:
    keys = _RULE_KEYS.get(provenance.labeller)
    if keys is None:
        yield f"its labeller is {provenance.labeller!r}, which is not known", -1, -1
    elif missing := keys - set(provenance.rule):
        yield f"its provenance lacks {', '.join(sorted(missing))} of its rule", -1, -1
    before = [0, 0]
    for part in provenance.parts:
        if missing := _PART_KEYS - set(part):
            yield f"a part of its provenance lacks {', '.join(sorted(missing))}", -1, -1
            return
        if [part["episodes"][0], part["rows"][0]] != before:
            yield "the parts of its provenance do not follow one another", -1, -1
            return
        before = [part["episodes"][1], part["rows"][1]]
    if before != [episodes, rows]:
        yield f"its provenance covers {before[0]} episodes, it labels {episodes}", -1, -1


def _label_faults(labels: Labels, table: Ints, recorded: Ints) -> Iterator[Fault]:
    starts, lengths = table[:, EPISODE["first_row"]], table[:, EPISODE["length"]]
    for row in np.flatnonzero(~np.isfinite(labels.reward)).tolist():
        episode = int(np.searchsorted(starts, row, side="right")) - 1
        yield "is not finite", episode, row - int(starts[episode])
    counted, terminated = labels.column("length"), labels.column("terminated")
    outcome = labels.column("outcome")
    known = np.isin(outcome, list(Outcome)) & (outcome != Outcome.OPEN)
    shortened = counted < lengths
    for wrong, message in (
        ((counted < 1) | (counted > lengths), "counts more steps than the episode has, or none"),
        (~np.isin(terminated, (0, 1)), "has an end flag that is not 0 or 1"),
        (~known | ~np.isin(labels.column("outcome_by"), list(OutcomeBy)), "has an outcome that is not known"),
        (shortened & (outcome != Outcome.SUCCESS), "ends an episode early that is no success"),
        (shortened & (terminated != 1), "ends an episode early without terminating it"),
        (
            (terminated == 1) & (outcome != Outcome.SUCCESS) & (recorded[starts + lengths - 1] != 1),
            "terminates an episode that neither succeeds nor was recorded as terminated",
        ),
    ):
        for episode in np.flatnonzero(wrong).tolist():
            yield message, episode, -1
