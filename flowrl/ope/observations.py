"""Logged observations by their rows, given block by block: frames of a whole replay would not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from flowrl.policies.observation import Observation
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Ints

ROWS = 4096
"""Observations of a block at most."""
FRAME_BYTES = 64 << 20
"""Bytes that the decoded frames of a block take at most, unless those of one observation are more."""


class Blocks(Protocol):
    """Observations in order, some at a time."""

    def blocks(self) -> Iterator[Observation]:
        """All of them."""
        ...


@dataclass(frozen=True)
class LoggedObservations:
    """P observations of a reader: at ``rows`` (P,), -(e + 1) for the final observation of episode e.

    Each has the ``past`` observations before it in its episode, the first one repeated.
    """

    reader: ReplayReader
    rows: Ints
    past: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self) -> Iterator[Observation]:
        """All of them in order, so many at a time that their frames stay within `FRAME_BYTES`."""
        frames = sum(camera.size for camera in self.reader.spec.cameras) * (1 + self.past)
        count = min(ROWS, max(1, FRAME_BYTES // frames)) if frames else ROWS
        for start in range(0, len(self), count):
            yield self._at(self.rows[start : start + count])

    def _at(self, rows: Ints) -> Observation:
        reader, final = self.reader, rows < 0
        first, length = (reader.table[:, EPISODE[name]] for name in ("first_row", "length"))
        episode = np.searchsorted(first, rows, side="right") - 1
        episode[final] = -rows[final] - 1
        place = np.where(final, (first + length)[episode], rows)
        past = [np.maximum(place - back, first[episode]) for back in range(self.past, 0, -1)]
        tasks = tuple(reader.tasks[each] for each in episode.tolist())
        return replace(self._seen(rows), tasks=tasks, past=tuple(self._seen(before) for before in past))

    def _seen(self, rows: Ints) -> Observation:
        reader, final = self.reader, rows < 0
        state = reader.state[np.where(final, 0, rows)]
        state[final] = reader.final[-rows[final] - 1]
        frames = {camera.name: reader.frames.pixels(camera.name, rows) for camera in reader.spec.cameras}
        return Observation(torch.from_numpy(state), frames)
