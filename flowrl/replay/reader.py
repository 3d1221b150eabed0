"""Read a replay while it grows: all streams merged into one table of rows in memory.

Only closed episodes are taken, whole, in the order in which they are found; a row's number never
changes afterwards. `state_dict` records that order, so a resumed run numbers the same rows the same.
With a reward column, everything is as that column says: rewards, ends, outcomes and the steps that count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import icechunk
import numpy as np

from flowrl.errors import ReplayError
from flowrl.replay import storage
from flowrl.replay.frame_reader import FrameReader
from flowrl.replay.frames import Pixels
from flowrl.replay.growable import Growable
from flowrl.replay.rewards import RECORDED, ColumnId
from flowrl.replay.schema import (
    EPISODE,
    INT,
    INT_COLUMNS,
    Floats,
    Ints,
    Kind,
    Outcome,
    float_columns,
)
from flowrl.replay.storage import BRANCH, StreamArrays, StreamHeader
from flowrl.replay.stored_rows import StoredRows, labelled
from flowrl.spec import Spec, require_match

IMAGE_BYTES = 2 << 30
"""Default budget for encoded frames in memory."""

_TRIES = 3


@dataclass(frozen=True)
class Episode:
    """One closed episode, as arrays over its L steps (views of the reader's memory).

    ``state`` (L, S), ``action`` and ``policy_action`` (L, A), ``reward`` (L,); ``integers`` (L, 9) has
    the columns of `flowrl.replay.schema.INT_COLUMNS`. ``final`` (S,) is the observation after the last
    step, or None. ``row`` is the number of its first row in the reader, ``task`` its instruction. Frames are
    in `ReplayReader.frames`.
    """

    stream: str
    number: int
    row: int
    outcome: Outcome
    seed: int
    state: Floats
    action: Floats
    policy_action: Floats
    reward: Floats
    integers: Ints
    final: Floats | None
    task: str = ""


@dataclass
class _Stream:
    """What the reader keeps of one stream."""

    header: StreamHeader
    path: Path
    repository: icechunk.Repository
    arrays: StreamArrays = field(default_factory=StreamArrays)
    episodes: int = 0
    rows: int = 0
    snapshot: str = ""
    tasks: list[str] = field(default_factory=list[str])


class ReplayReader:
    """All streams of a replay, or the named ones, merged.

    Row arrays (N rows) and episode arrays (E episodes) are properties; they are views, valid until the
    next `refresh`. The reader never writes and needs no lock. Encoded camera frames are kept in memory within
    ``image_bytes`` and read again from the disk beyond that; decoded ones are kept within ``decoded_bytes``.

    ``reward`` is ``recorded`` or a reward column, ``<name>@<version>``. Streams whose name begins with ``own``
    are those that a run collects itself: where the column has no label there, they are taken as recorded.

    Raises ReplayError when the replay or a named stream is missing or the column lacks labels, ConfigError
    when there is no such column, SpecMismatch when the streams disagree with each other or with ``spec``.
    """

    def __init__(
        self,
        path: str | Path,
        streams: Sequence[str] | None = None,
        spec: Spec | None = None,
        image_bytes: int = IMAGE_BYTES,
        decoded_bytes: int = 0,
        reward: str = RECORDED,
        own: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._column = None if reward == RECORDED else ColumnId.parse(reward)
        self._own = own
        self.rewarded_by = reward
        """``recorded``, or the reward column that everything is shown by."""
        self._image_bytes, self._decoded_bytes = image_bytes, decoded_bytes
        self._wanted = None if streams is None else list(streams)
        self._spec = None if spec is None else spec.interface()
        self._spec_from = "the given spec"
        self._reset()
        self.refresh()

    def _reset(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._names: list[str] = []
        self._order: list[tuple[str, int]] = []
        self._allocated = False

    @property
    def spec(self) -> Spec:
        """The spec all streams share. Raises ReplayError while there is no stream."""
        if self._spec is None:
            raise ReplayError(
                f"replay {str(self.path)!r} holds no streams yet; record or import into it first"
            )
        return self._spec

    @property
    def streams(self) -> dict[str, Kind]:
        """The streams read so far, in order of arrival, with their kind."""
        return {name: self._streams[name].header.kind for name in self._names}

    @property
    def rows(self) -> int:
        """N, the number of rows."""
        return len(self._state) if self._allocated else 0

    @property
    def episodes(self) -> int:
        """E, the number of episodes."""
        return len(self._table) if self._allocated else 0

    @property
    def state(self) -> Floats:
        """Flat observations (N, S)."""
        return self._state.view

    @property
    def action(self) -> Floats:
        """Executed actions (N, A)."""
        return self._action.view

    @property
    def policy_action(self) -> Floats:
        """Proposed actions (N, A), NaN where nothing was proposed."""
        return self._policy_action.view

    @property
    def reward(self) -> Floats:
        """Raw rewards (N,)."""
        return self._reward.view

    @property
    def integers(self) -> Ints:
        """(N, 9), the columns of `flowrl.replay.schema.INT_COLUMNS`."""
        return self._integers.view

    @property
    def table(self) -> Ints:
        """(E, 10), the columns of `flowrl.replay.schema.EPISODE_COLUMNS`.

        ``first_row`` counts the rows of this reader, not those of the stream.
        """
        return self._table.view

    @property
    def final(self) -> Floats:
        """Observations after the last step (E, S), NaN where missing."""
        return self._final.view

    @property
    def frames(self) -> FrameReader:
        """The camera frames of all rows."""
        return self._frames

    @property
    def tasks(self) -> list[str]:
        """The instruction of each episode, length E."""
        return self._tasks

    @property
    def stream_of_episode(self) -> Ints:
        """Position in ``list(self.streams)`` of each episode's stream (E,)."""
        return self._stream_index.view

    def column(self, name: str) -> Ints:
        """One integer column (N,), for example ``source``."""
        return self._integers.view[:, INT[name]]

    def episode(self, index: int) -> Episode:
        """Episode ``index`` (0..E-1) in order of arrival."""
        row = self.table[index]
        first, length = int(row[EPISODE["first_row"]]), int(row[EPISODE["length"]])
        span = slice(first, first + length)
        integers = self.integers[span]
        return Episode(
            stream=self._names[int(self.stream_of_episode[index])],
            number=int(integers[0, INT["episode"]]),
            row=first,
            outcome=Outcome(int(row[EPISODE["outcome"]])),
            seed=int(row[EPISODE["seed"]]),
            state=self.state[span],
            action=self.action[span],
            policy_action=self.policy_action[span],
            reward=self.reward[span],
            integers=integers,
            final=self.final[index] if row[EPISODE["has_final"]] else None,
            task=self._tasks[index],
        )

    def refresh(self) -> int:
        """Take every newly committed closed episode. Returns how many came.

        Cheap when nothing changed: one small read per stream. A snapshot that is collected while it is
        read is met by reading the newest one.
        """
        names = storage.stream_names(self.path)
        if self._wanted is not None:
            missing = [name for name in self._wanted if name not in names]
            if missing:
                raise ReplayError(
                    f"replay {str(self.path)!r} has no stream {', '.join(map(repr, missing))}; "
                    f"it holds {names}"
                )
            names = self._wanted
        return sum(self._read_new(self._stream(name)) for name in names)

    def state_dict(self) -> dict[str, Any]:
        """The order of arrival as JSON values: ``order`` is a run-length list of (stream, episodes).

        ``snapshots`` are the snapshots last read, to which `StreamWriter.rollback` can return.
        """
        return {
            "order": [list(run) for run in self._order],
            "snapshots": {name: stream.snapshot for name, stream in self._streams.items()},
            "rows": self.rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Read the episodes of a `state_dict` again, in its order: the same row numbers, the same bits.

        Newer episodes wait for the next `refresh`. Raises ReplayError when a stream has fewer episodes.
        """
        self._reset()
        needed: dict[str, int] = {}
        for name, count in state["order"]:
            needed[name] = needed.get(name, 0) + count
        fetched = {name: self._fetch_saved(self._stream(name), count) for name, count in needed.items()}
        for name, count in state["order"]:
            stream = self._streams[name]
            self._take(stream, fetched[name].episodes(stream.episodes, stream.episodes + count))
        for name, snapshot in state["snapshots"].items():
            self._stream(name).snapshot = snapshot
        if self.rows != state["rows"]:
            raise ReplayError(
                f"replay {str(self.path)!r} gives {self.rows} rows, the saved state has {state['rows']}; "
                "it is not the replay that belongs to the checkpoint"
            )

    def _stream(self, name: str) -> _Stream:
        if name not in self._streams:
            path = self.path / name
            repository = storage.open_repository(path)
            header = storage.read_header(path, repository.readonly_session(BRANCH))
            if self._spec is None:
                self._spec, self._spec_from = header.spec, f"stream {name!r}"
            require_match(self._spec, header.spec, self._spec_from, f"stream {name!r}")
            self._streams[name] = _Stream(header, path, repository)
            self._names.append(name)
            if not self._allocated:
                self._allocate(header.spec)
        return self._streams[name]

    def _allocate(self, spec: Spec) -> None:
        state, action = spec.state_size, spec.action.size
        self._state = Growable((state,), np.float32)
        self._action = Growable((action,), np.float32)
        self._policy_action = Growable((action,), np.float32)
        self._reward = Growable((), np.float32)
        self._integers = Growable((len(INT_COLUMNS),), np.int64)
        self._table = Growable((len(EPISODE),), np.int64)
        self._final = Growable((state,), np.float32)
        self._stream_index = Growable((), np.int64)
        self._tasks: list[str] = []
        self._frames = FrameReader(spec, self._read_frames, self._image_bytes, self._decoded_bytes)
        self._allocated = True

    def _read_new(self, stream: _Stream) -> int:
        """Append the stream's closed episodes that are not here yet."""
        if stream.repository.lookup_branch(BRANCH) == stream.snapshot:
            return 0
        new = self._fetch(stream, None)
        self._take(stream, new)
        return len(new.table)

    def _fetch_saved(self, stream: _Stream, count: int) -> StoredRows:
        """The first ``count`` episodes of a stream that nothing was read from yet."""
        rows = self._fetch(stream, count)
        if len(rows.table) != count:
            raise ReplayError(
                f"stream {stream.header.name!r} holds {len(rows.table)} closed episodes, the saved state "
                f"needs {count}; restore the replay that belongs to the checkpoint"
            )
        return rows

    def _fetch(self, stream: _Stream, limit: int | None) -> StoredRows:
        """Read closed episodes beyond those already taken from the newest snapshot, at most ``limit``."""
        return self._trying(stream, lambda: self._read_snapshot(stream, limit))

    def _trying[Found](self, stream: _Stream, read: Callable[[], Found]) -> Found:
        for _ in range(_TRIES - 1):
            try:
                return read()
            except storage.STORAGE_ERRORS:
                # The writer may have collected this snapshot after we looked it up: take the newest.
                stream.arrays.forget()
                stream.repository = storage.open_repository(stream.path)
        try:
            return read()
        except storage.STORAGE_ERRORS as error:
            raise ReplayError(
                f"stream {stream.header.name!r} cannot be read: {storage.first_line(error)}; "
                "`flowrl replay verify` says what is damaged"
            ) from error

    def _read_snapshot(self, stream: _Stream, limit: int | None) -> StoredRows:
        snapshot = stream.repository.lookup_branch(BRANCH)
        session = stream.repository.readonly_session(snapshot_id=snapshot)
        table = storage.read_episode_table(stream.arrays, session, stream.episodes)
        table = table[table[:, EPISODE["outcome"]] != Outcome.OPEN][:limit]
        first = stop = stream.rows
        if len(table):
            stop = int(table[-1, EPISODE["first_row"]] + table[-1, EPISODE["length"]])
            self._require_contiguous(stream, int(table[0, EPISODE["first_row"]]))
        else:
            self._require_not_shrunk(stream, session)
        count = stream.episodes + len(table)
        read = partial(stream.arrays.read, session)
        frames, final_frames = (np.empty((size, 0), np.int64) for size in (stop - first, len(table)))
        if stream.header.spec.cameras:
            frames = read("images/steps", first, stop)
            final_frames = read("images/final", stream.episodes, count)
        rows = StoredRows(
            table,
            read("steps/float", first, stop),
            read("steps/int", first, stop),
            read("episodes/final", stream.episodes, count),
            frames,
            final_frames,
        )
        if self._column is not None and len(table):
            start = (stream.episodes, stream.rows)
            is_own = self._own is not None and stream.header.name.startswith(self._own)
            rows = labelled(rows, stream.path, session, self._column, start, allow_missing=is_own)
        if len(table) and int(table[:, EPISODE["task"]].max()) >= len(stream.tasks):
            stream.tasks = storage.read_tasks(session)
        stream.snapshot = snapshot
        return rows

    def _read_frames(self, stream: int, start: int, stop: int) -> Pixels:
        """Bytes of a stream's encoded frames, from its newest snapshot."""
        found = self._streams[self._names[stream]]

        def read() -> Pixels:
            session = found.repository.readonly_session(BRANCH)
            return found.arrays.read(session, "images/bytes", start, stop)

        return self._trying(found, read)

    def _take(self, stream: _Stream, new: StoredRows) -> None:
        """Append fetched episodes to the merged rows."""
        if not len(new.table):
            return
        columns, name = float_columns(stream.header.spec), stream.header.name
        stored, new = new, new.shown(stream.header.spec)
        table = new.table.copy()
        table[:, EPISODE["first_row"]] += self.rows - stream.rows
        self._table.append(table)
        self._state.append(new.floats[:, : stream.header.spec.state_size])
        self._action.append(new.floats[:, slice(*columns["action"])])
        self._policy_action.append(new.floats[:, slice(*columns["policy_action"])])
        self._reward.append(new.floats[:, columns["reward"][0]])
        self._integers.append(new.integers)
        self._final.append(new.finals)
        index = self._names.index(name)
        self._stream_index.append(np.full(len(table), index))
        self._tasks += [stream.tasks[number] for number in table[:, EPISODE["task"]].tolist()]
        self._frames.add(index, new.frames, new.final_frames)
        stream.rows += len(stored.floats)
        stream.episodes += len(table)
        if self._order and self._order[-1][0] == name:
            self._order[-1] = (name, self._order[-1][1] + len(table))
        else:
            self._order.append((name, len(table)))

    def _require_contiguous(self, stream: _Stream, first_row: int) -> None:
        if first_row != stream.rows:
            raise ReplayError(
                f"stream {stream.header.name!r}: the next episode starts at row {first_row}, expected "
                f"{stream.rows}; it was rolled back while it was read, or it is damaged: open a new reader, "
                "and see `flowrl replay verify`"
            )

    def _require_not_shrunk(self, stream: _Stream, session: icechunk.Session) -> None:
        if stream.episodes:
            last = stream.arrays.read(session, "episodes/table", stream.episodes - 1, stream.episodes)
            if last[0, 0] < 0 or last[0, EPISODE["outcome"]] == Outcome.OPEN:
                raise ReplayError(
                    f"stream {stream.header.name!r} was rolled back below the {stream.episodes} episodes "
                    "already read; open a new reader, or load the state that belongs to the snapshot"
                )
