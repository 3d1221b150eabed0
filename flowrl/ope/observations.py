"""Logged observations by their rows, given block by block: frames of a whole replay would not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
    """P observations of a reader: at ``rows`` (P,), -(e + 1) for the final observation of episode e."""

    reader: ReplayReader
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self) -> Iterator[Observation]:
        """All of them in order, so many at a time that their frames stay within `FRAME_BYTES`."""
        frames = sum(camera.size for camera in self.reader.spec.cameras)
        count = min(ROWS, max(1, FRAME_BYTES // frames)) if frames else ROWS
        for start in range(0, len(self), count):
            yield self._at(self.rows[start : start + count])

    def _at(self, rows: Ints) -> Observation:
        reader, final = self.reader, rows < 0
        state = reader.state[np.where(final, 0, rows)]
        state[final] = reader.final[-rows[final] - 1]
        episode = np.searchsorted(reader.table[:, EPISODE["first_row"]], rows, side="right") - 1
        episode[final] = -rows[final] - 1
        return Observation(
            torch.from_numpy(state),
            {camera.name: reader.frames.pixels(camera.name, rows) for camera in reader.spec.cameras},
            tuple(reader.tasks[each] for each in episode.tolist()),
        )
