"""Write reward columns of a stream: as its only writer, each in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import icechunk
import numpy as np
import zarr
from zarr.codecs import ZstdCodec

import flowrl
from flowrl.errors import ReplayError
from flowrl.replay import storage
from flowrl.replay.lock import WriterLock
from flowrl.replay.rewards import GROUP, LABEL_COLUMNS, ColumnId, Labels, Provenance, read_column
from flowrl.replay.schema import EPISODE, Ints, Outcome
from flowrl.replay.storage import BRANCH, StreamArrays

CHUNK_ROWS = 1 << 14
CHUNK_EPISODES = 1 << 10


class RewardWriter:
    """Owns a stream, so that no row arrives while it is labelled, until it is closed.

    Usable as a context manager. Raises ReplayError when the stream is missing or has a live writer.
    """

    def __init__(self, stream: Path) -> None:
        self._stream = stream
        self._repository = storage.open_repository(stream)
        self._lock = WriterLock(stream)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._stream.name

    def session(self) -> icechunk.Session:
        """To read the stream as it is now."""
        return self._repository.readonly_session(BRANCH)

    def closed_episodes(self) -> Ints:
        """The rows of the episode table that will not change any more, (E, len(EPISODE_COLUMNS))."""
        table = storage.read_episode_table(StreamArrays(), self.session(), 0)
        return table[table[:, EPISODE["outcome"]] != Outcome.OPEN]

    def write(self, column: ColumnId, labels: Labels, provenance: Provenance, source: str = "") -> None:
        """Add the labels of the next episodes to a column, which is created when the stream lacks it.

        All of them arrive, or none. ``source`` says where the labeller lies, for whoever repeats it; the
        entry of ``parts`` is made here. Raises ReplayError when the labels do not fit the rows, the column
        was made by another rule, or the store fails.
        """
        stored = read_column(self.session(), column)
        if stored is not None and (stored.provenance.labeller, dict(stored.provenance.rule)) != (
            provenance.labeller,
            dict(provenance.rule),
        ):
            raise ReplayError(
                f"stream {self.name!r}: reward column {column} was made by {_made(stored.provenance)}, not by "
                f"{_made(provenance)}; make a new version instead"
            )
        covered, rows = (0, 0) if stored is None else (stored.episodes, stored.rows)
        self._require_fit(column, labels, covered)
        if not len(labels.episodes):
            return
        part = self._part(labels, covered, rows, source)
        earlier = () if stored is None else stored.provenance.parts
        try:
            session = self._repository.writable_session(BRANCH)
            group = _open_group(session, column) if stored is not None else _create_group(session, column)
            for name, values in (("reward", labels.reward), ("episodes", labels.episodes)):
                _append(cast("zarr.Array[Any]", group[name]), values)
            group.attrs.put(replace(provenance, parts=(*earlier, part)).to_json())
            session.commit(f"reward {column}: {covered + len(labels.episodes)} episodes")
        except storage.STORAGE_ERRORS as error:
            reason, _ = storage.failure(error)
            raise ReplayError(
                f"stream {self.name!r}: reward column {column} was not written: {reason}; the stream is as it "
                "was before, mend that and label again"
            ) from error

    def close(self) -> None:
        """Give the stream up."""
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

    def _require_fit(self, column: ColumnId, labels: Labels, covered: int) -> None:
        table = self.closed_episodes()[covered:][: len(labels.episodes)]
        rows = int(table[:, EPISODE["length"]].sum())
        if (len(table), rows) != (len(labels.episodes), len(labels.reward)):
            raise ReplayError(
                f"stream {self.name!r}: {len(labels.episodes)} labels with {len(labels.reward)} rows for reward "
                f"column {column}, but the stream has {len(table)} such episodes with {rows} rows"
            )

    def _part(self, labels: Labels, episodes: int, rows: int, source: str) -> Mapping[str, Any]:
        return {
            "episodes": [episodes, episodes + len(labels.episodes)],
            "rows": [rows, rows + len(labels.reward)],
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "snapshot": self._repository.lookup_branch(BRANCH),
            "source": source,
            "flowrl": flowrl.__version__,
        }


def _create_group(session: icechunk.Session, column: ColumnId) -> zarr.Group:
    root = zarr.open_group(session.store, mode="r+")
    group = root.require_group(GROUP).create_group(str(column))
    for name, row, dtype, fill, chunk in (
        ("reward", (), np.float32, np.nan, CHUNK_ROWS),
        ("episodes", (len(LABEL_COLUMNS),), np.int64, -1, CHUNK_EPISODES),
    ):
        group.create_array(
            name,
            shape=(0, *row),
            chunks=(chunk, *row),
            dtype=dtype,
            fill_value=fill,
            compressors=ZstdCodec(level=0, checksum=True),
        )
    return group


def _open_group(session: icechunk.Session, column: ColumnId) -> zarr.Group:
    return zarr.open_group(session.store, path=column.path, mode="r+")


def _append(array: zarr.Array[Any], values: np.ndarray[Any, Any]) -> None:
    start = array.shape[0]
    array.resize((start + len(values), *array.shape[1:]))
    array[start:] = values


def _made(provenance: Provenance) -> str:
    details = ", ".join(f"{key} {str(value)[:12]}" for key, value in provenance.rule.items())
    return f"a {provenance.labeller} ({details})"
