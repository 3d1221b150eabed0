"""The newest rows of one array, held in memory until they are committed."""

from __future__ import annotations

from typing import Any

import icechunk
import numpy as np
from numpy.typing import NDArray

from flowrl.replay.storage import CHUNKS, Layout, StreamArrays


class Tail:
    """The rows of one array from its last whole committed chunk on, ``values[:count - base]``.

    Whole chunks are written, filled up with the array's fill value: writing part of a chunk would make
    zarr read and decode the stored one first. Nothing is dropped before `committed` is called, so a
    failed commit can be repeated.
    """

    def __init__(self, name: str, layout: Layout) -> None:
        self.name = name
        self.base = 0
        self.count = 0
        self._chunk = CHUNKS[name]
        self._layout = layout
        self._dirty_from = 0
        self.values: NDArray[Any] = self._empty(2 * self._chunk)

    def __getitem__(self, row: int) -> NDArray[Any]:
        """One row by its number in the array; it must not lie before ``base``."""
        return self.values[row - self.base]

    @property
    def is_dirty(self) -> bool:
        """Whether there are rows that no commit holds."""
        return self._dirty_from < self.count

    def append(self) -> NDArray[Any]:
        """A new row at the end, to be filled by the caller."""
        return self.extend(1)[0]

    def extend(self, rows: int) -> NDArray[Any]:
        """New rows at the end, to be filled by the caller."""
        local = self.count - self.base
        if local + rows > len(self.values):
            more = max(len(self.values), local + rows - len(self.values))
            self.values = np.concatenate([self.values, self._empty(_whole(more, self._chunk))])
        self.count += rows
        return self.values[local : local + rows]

    def touch(self, row: int) -> None:
        """Say that a row changed after it was committed."""
        self._dirty_from = min(self._dirty_from, row)

    def drop_last(self) -> None:
        """Take back the last appended row."""
        self.count -= 1
        self.values[self.count - self.base] = self._layout.fill
        self._dirty_from = min(self._dirty_from, self.count)

    def write(self, arrays: StreamArrays, session: icechunk.Session) -> None:
        """Write every chunk that holds a dirty row."""
        if not self.is_dirty:
            return
        start = (self._dirty_from // self._chunk) * self._chunk
        stop = -(-self.count // self._chunk) * self._chunk
        arrays.write(session, self.name, start, self.values[start - self.base : stop - self.base])

    def committed(self, keep_from: int | None = None) -> None:
        """All rows are committed; forget the whole chunks before ``keep_from`` (default: the end)."""
        self._dirty_from = self.count
        keep = self.count if keep_from is None else min(keep_from, self.count)
        base = (keep // self._chunk) * self._chunk
        if base > self.base:
            kept = self.values[base - self.base : self.count - self.base].copy()
            self.values = self._empty(2 * self._chunk + _whole(len(kept), self._chunk))
            self.values[: len(kept)] = kept
            self.base = base

    def load(self, arrays: StreamArrays, session: icechunk.Session, count: int, keep_from: int) -> None:
        """Start again from what the session holds: ``count`` rows, those from ``keep_from`` in memory."""
        self.base = (keep_from // self._chunk) * self._chunk
        self.count = self._dirty_from = count
        rows = arrays.read(session, self.name, self.base, count)
        self.values = self._empty(2 * self._chunk + _whole(len(rows), self._chunk))
        self.values[: len(rows)] = rows

    def _empty(self, rows: int) -> NDArray[Any]:
        return np.full((rows, *self._layout.row), self._layout.fill, self._layout.dtype)


def _whole(rows: int, chunk: int) -> int:
    return -(-rows // chunk) * chunk
