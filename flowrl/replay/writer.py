"""Write one stream: append steps, close episodes, commit atomically.

A commit publishes rows, episodes and their counts together, so a reader never sees half an episode's
row and kill -9 loses at most what was not committed. A commit costs about the same for one row as for
five hundred; `CommitRule` says when one happens by itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np
import zarr

from flowrl.errors import ReplayError
from flowrl.replay import storage
from flowrl.replay.checks import StepChecks, integer_row, require_outcome
from flowrl.replay.commits import CommitRule
from flowrl.replay.frame_tails import FrameTails
from flowrl.replay.frames import FrameCodec
from flowrl.replay.lock import WriterLock
from flowrl.replay.schema import (
    EPISODE,
    INT,
    NO_INTERVENTION,
    NO_SEED,
    NO_VERSION,
    Array,
    Kind,
    Outcome,
    OutcomeBy,
    Step,
)
from flowrl.replay.storage import BRANCH, StreamArrays, StreamHeader
from flowrl.replay.tail import Tail
from flowrl.spec import Spec, require_match


class StreamWriter:
    """The one writer of one stream. Make it with `create`, `open` or `open_or_create`.

    Not thread-safe. Usable as a context manager: leaving it closes the stream, and an episode still
    open then is closed as interrupted.
    """

    def __init__(self, path: Path, spec: Spec, rule: CommitRule, codec: FrameCodec) -> None:
        self._path, self._spec, self._rule, self._codec = path, spec, rule, codec
        self._repository = storage.open_repository(path)
        self._lock = WriterLock(path)
        try:
            self._start()
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def create(
        cls,
        replay: str | Path,
        name: str,
        spec: Spec,
        kind: Kind,
        rule: CommitRule | None = None,
        codec: FrameCodec | None = None,
    ) -> Self:
        """Create the stream ``<replay>/<name>`` and own it.

        Raises ReplayError when it exists or its name is unusable.
        """
        storage.check_name(name)
        path = Path(replay) / name
        if path.exists():
            raise ReplayError(
                f"stream {name!r} already exists in replay {str(replay)!r}; open it, or choose another name"
            )
        storage.create_stream(path, StreamHeader(name, Kind(kind), spec))
        return cls(path, spec, rule or CommitRule(), codec or FrameCodec())

    @classmethod
    def open(
        cls,
        replay: str | Path,
        name: str,
        spec: Spec,
        rule: CommitRule | None = None,
        codec: FrameCodec | None = None,
    ) -> Self:
        """Own an existing stream and append to it.

        An episode that a killed writer left open is closed as interrupted. Raises ReplayError when the
        stream is missing or has a live writer, SpecMismatch listing every difference to its spec.
        """
        return cls(Path(replay) / name, spec, rule or CommitRule(), codec or FrameCodec())

    @classmethod
    def open_or_create(
        cls,
        replay: str | Path,
        name: str,
        spec: Spec,
        kind: Kind,
        rule: CommitRule | None = None,
        codec: FrameCodec | None = None,
    ) -> Self:
        """`open` when the stream exists, `create` otherwise."""
        if (Path(replay) / name).exists():
            return cls.open(replay, name, spec, rule, codec)
        return cls.create(replay, name, spec, kind, rule, codec)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._path.name

    @property
    def committed_rows(self) -> int:
        """Rows that survive kill -9."""
        return self._committed_rows

    @property
    def committed_episodes(self) -> int:
        """Closed episodes that readers can see."""
        return self._committed_episodes

    @property
    def rows(self) -> int:
        """All rows, committed or not."""
        return self._floats.count

    @property
    def episodes(self) -> int:
        """All closed episodes, committed or not."""
        return self._table.count - (self._first_row is not None)

    @property
    def snapshot_id(self) -> str:
        """The newest committed snapshot, for `rollback`. See `pin` to keep it through compaction."""
        return self._repository.lookup_branch(BRANCH)

    def begin_episode(self, seed: int | None = None, task: str = "") -> int:
        """Open an episode and return its number in the stream. Raises ReplayError when one is open."""
        self._require_usable()
        if self._first_row is not None:
            raise ReplayError(
                f"stream {self.name!r}: episode {self.episodes} is still open; close it before the next"
            )
        self._first_row = self._floats.count
        self._interventions = NO_INTERVENTION
        row = self._table.append()
        row[:] = 0
        row[EPISODE["first_row"]] = self._first_row
        row[EPISODE["outcome"]] = Outcome.OPEN
        row[EPISODE["outcome_by"]] = OutcomeBy.NONE
        row[EPISODE["seed"]] = NO_SEED if seed is None else seed
        row[EPISODE["task"]] = self._text("tasks", task)
        row[EPISODE["digest"]] = self._text("digests", self._spec.digest())
        row[EPISODE["version_min"]] = row[EPISODE["version_max"]] = NO_VERSION
        self._finals.append()[:] = np.nan
        self._frames.begin_episode()
        return self.episodes

    def append(self, step: Step) -> None:
        """Add one step to the open episode.

        Raises DataError naming stream, episode and step when a shape is wrong, a value is not finite or a
        camera's frame is missing or damaged (the step is then not stored), ReplayError when no episode is
        open or it has already ended, and ReplayError when a commit that was due failed (the step is then
        kept in memory, go on with the next one).
        """
        self._require_usable()
        first = self._first_row
        if first is None:
            raise ReplayError(f"stream {self.name!r}: no episode is open; call begin_episode first")
        number = self._floats.count - first
        where = f"stream {self.name!r}, episode {self.episodes}, step {number}"
        previous = self._ints[self._floats.count - 1].tolist() if number else None
        self._checks.require_order(step, previous, self._interventions, where)
        values = self._checks.floats(step, where)
        integers = integer_row(step, self.episodes, number)
        frames = self._frames.encode(step.observation, where)
        self._frames.append(frames)
        self._floats.append()[:] = values
        self._ints.append()[:] = integers
        self._interventions = max(self._interventions, step.intervention_id)
        self._note_step(number, step.policy_version)
        waiting = self._floats.count - self._committed_rows
        if waiting >= self._rule.rows or time.monotonic() - self._commit_time >= self._rule.open_seconds:
            self.commit()

    def close_episode(
        self,
        outcome: Outcome,
        outcome_by: OutcomeBy,
        final_observation: Mapping[str, Array | bytes] | Array | None = None,
    ) -> None:
        """Close the open episode.

        ``final_observation`` is the observation after the last step, by name or flat (S,). Without it
        an episode that did not terminate loses its last step as a start for learning. An episode without
        steps leaves no trace when it is closed as interrupted or discarded. Raises
        ReplayError when no episode or an empty one is open, DataError when the observation is malformed.
        """
        self._require_usable()
        first = self._first_row
        if first is None:
            raise ReplayError(f"stream {self.name!r}: no episode is open, so none can be closed")
        where = f"stream {self.name!r}, episode {self.episodes}"
        if outcome is Outcome.OPEN:
            raise ReplayError(f"{where}: an episode cannot be closed as open; say how it ended")
        length = self._floats.count - first
        if length == 0 and outcome in (Outcome.INTERRUPTED, Outcome.DISCARDED):
            self._forget_episode()
            return
        if length == 0:
            raise ReplayError(f"{where} has no steps; append at least one, or close it as interrupted")
        terminated = bool(self._ints[self._ints.count - 1][INT["terminated"]])
        require_outcome(outcome, outcome_by, terminated, where)
        if final_observation is not None:
            after = f"{where}, observation after the last step"
            state = self._checks.state(final_observation, after)
            self._checks.require_finite(state, after)
            self._frames.close_episode(self._frames.encode(final_observation, after))
            self._finals[self.episodes][:] = state
        row = self._table[self.episodes]
        row[EPISODE["outcome"]] = outcome
        row[EPISODE["outcome_by"]] = outcome_by
        row[EPISODE["has_final"]] = final_observation is not None
        self._touch_open_episode()
        self._first_row = None
        if time.monotonic() - self._commit_time >= self._rule.seconds:
            self.commit()

    def commit(self) -> str:
        """Publish everything appended so far, atomically. Returns the snapshot id.

        Raises ReplayError when the disk is full or the store fails: what was committed is kept, the
        rows since then stay in memory, and the next commit writes them.
        """
        self._require_usable()
        self._commit_time = time.monotonic()
        if not self._floats.is_dirty and self.episodes == self._committed_episodes:
            return self.snapshot_id
        try:
            snapshot = self._write_session()
        except storage.STORAGE_ERRORS as error:
            self._arrays.forget()
            raise ReplayError(self._failure(error)) from error
        self._commits += 1
        if self._rule.compact_every and self._commits % self._rule.compact_every == 0:
            self.compact()
        return snapshot

    def compact(self, grace_s: float | None = None) -> int:
        """Delete snapshots older than the grace period (seconds) and the data only they used.

        Pinned snapshots stay. Returns the bytes freed. A reader on a deleted snapshot refreshes.
        """
        self._require_usable()
        try:
            return storage.expire(self._repository, self._rule.grace_s if grace_s is None else grace_s)
        except storage.STORAGE_ERRORS as error:
            raise ReplayError(
                f"stream {self.name!r}: old snapshots could not be collected: {storage.first_line(error)}; "
                "no data is lost, it will be tried again"
            ) from error

    def pin(self) -> str:
        """Keep the newest snapshot through every `compact`, so that `rollback` can return to it."""
        snapshot = self.snapshot_id
        if _pin_name(snapshot) not in self._repository.list_tags():
            self._repository.create_tag(_pin_name(snapshot), snapshot)
        return snapshot

    def unpin(self, snapshot_id: str) -> None:
        """Let `compact` delete a pinned snapshot again."""
        if _pin_name(snapshot_id) in self._repository.list_tags():
            self._repository.delete_tag(_pin_name(snapshot_id))

    def rollback(self, snapshot_id: str) -> None:
        """Return the stream to a snapshot; everything newer, also what is not committed, is undone.

        Raises ReplayError when the snapshot does not exist (any more).
        """
        self._require_usable()
        try:
            self._repository.reset_branch(BRANCH, snapshot_id)
        except (*storage.STORAGE_ERRORS, ValueError) as error:
            raise ReplayError(
                f"stream {self.name!r} has no snapshot {snapshot_id!r} (any more); pinned are "
                f"{[tag.removeprefix('pin.') for tag in sorted(self._repository.list_tags())]}. "
                "Pin a snapshot when it is recorded, so that compaction keeps it"
            ) from error
        self._load()

    def close(self) -> None:
        """Commit and give the stream up. An episode still open is closed as interrupted."""
        if self._closed:
            return
        try:
            if self._first_row is not None:
                self.close_episode(Outcome.INTERRUPTED, OutcomeBy.NONE)
            self.commit()
        finally:
            self._closed = True
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        session = self._repository.readonly_session(BRANCH)
        header = storage.read_header(self._path, session)
        require_match(header.spec, self._spec, f"stream {self.name!r}", "the writer's spec")
        self._checks = StepChecks(self._spec, header.kind)
        self._arrays = StreamArrays()
        names = ("steps/float", "steps/int", "episodes/final", "episodes/table")
        layouts = storage.layouts(self._spec)
        self._floats, self._ints, self._finals, self._table = self._tails = [
            Tail(name, layouts[name]) for name in names
        ]
        self._frames = FrameTails(self._spec, self._codec)
        self._closed = False
        self._commits = 0
        self._load()

    def _load(self) -> None:
        """Continue from the newest snapshot; close what a killed writer left open."""
        self._arrays.forget()
        session = self._repository.readonly_session(BRANCH)
        table = storage.read_episode_table(self._arrays, session, 0)
        rows = int(table[-1, EPISODE["first_row"]] + table[-1, EPISODE["length"]]) if len(table) else 0
        for tail, count in (
            (self._floats, rows),
            (self._ints, rows),
            (self._table, len(table)),
            (self._finals, len(table)),
        ):
            tail.load(self._arrays, session, count, max(0, count - 1))
        self._frames.load(self._arrays, session, rows, len(table))
        attributes = cast(
            Mapping[str, list[str]],
            zarr.open_group(session.store, path="episodes", mode="r").attrs.asdict(),
        )
        self._texts = {key: list(attributes[key]) for key in ("tasks", "digests")}
        self._texts_dirty = False
        self._first_row: int | None = None
        self._committed_rows = rows
        self._committed_episodes = len(table)
        self._commit_time = time.monotonic()
        if len(table) and table[-1, EPISODE["outcome"]] == Outcome.OPEN:
            self._committed_episodes -= 1
            self._table[len(table) - 1][EPISODE["outcome"]] = Outcome.INTERRUPTED
            self._table.touch(len(table) - 1)
            self.commit()

    def _write_session(self) -> str:
        session = self._repository.writable_session(BRANCH)
        # An episode without steps is not published: a table row always has rows behind it.
        empty = self._first_row is not None and self._floats.count == self._first_row
        by_episode = (self._table, self._finals, *self._frames.finals)
        held = [(tail, tail[tail.count - 1].copy()) for tail in by_episode] if empty else []
        for tail, _ in held:
            tail.drop_last()
        try:
            for tail in (*self._frames.tails, *self._tails):
                tail.write(self._arrays, session)
            if self._texts_dirty:
                zarr.open_group(session.store, path="episodes", mode="r+").attrs.put(dict(self._texts))
            closed = self.episodes if not empty else self._table.count
            snapshot = session.commit(f"{self._floats.count} rows, {closed} episodes")
        finally:
            for tail, values in held:
                tail.append()[:] = values
        self._frames.committed()
        for tail in self._tails:
            # The open episode's table row changes until it is closed, so it stays in memory.
            tail.committed(tail.count - 1)
        self._texts_dirty = False
        if self._first_row is not None:
            self._touch_open_episode()
        self._committed_rows = self._floats.count
        self._committed_episodes = self.episodes
        return snapshot

    def _failure(self, error: BaseException) -> str:
        reason, remedy = storage.failure(error)
        waiting = self._floats.count - self._committed_rows
        return (
            f"stream {self.name!r} could not commit: {reason}. {self._committed_rows} rows and "
            f"{self._committed_episodes} episodes are safe on disk, {waiting} newer rows are kept in memory: "
            f"{remedy}"
        )

    def _note_step(self, number: int, version: int) -> None:
        row = self._table[self._table.count - 1]
        row[EPISODE["length"]] = number + 1
        if version != NO_VERSION:
            oldest = row[EPISODE["version_min"]]
            row[EPISODE["version_min"]] = version if oldest == NO_VERSION else min(oldest, version)
            row[EPISODE["version_max"]] = max(row[EPISODE["version_max"]], version)

    def _forget_episode(self) -> None:
        self._table.drop_last()
        self._finals.drop_last()
        self._frames.forget_episode()
        self._first_row = None

    def _touch_open_episode(self) -> None:
        last = self._table.count - 1
        self._table.touch(last)
        self._finals.touch(last)
        self._frames.touch()

    def _text(self, key: str, text: str) -> int:
        """The position of a text in one of the lists kept in the attributes of ``episodes``."""
        known = self._texts[key]
        if text not in known:
            known.append(text)
            self._texts_dirty = True
        return known.index(text)

    def _require_usable(self) -> None:
        if self._closed:
            raise ReplayError(f"stream {self.name!r}: this writer is closed; open the stream again")


def _pin_name(snapshot_id: str) -> str:
    return f"pin.{snapshot_id}"
