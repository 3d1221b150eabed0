"""The rows of a replay that a check looks at: all of them, or as many as bound its time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Floats, Ints, Outcome

_SEED = 0


@dataclass(frozen=True)
class Limits:
    """How much of a replay is looked at.

    Attributes:
        rows: for quantiles, correlations and rotations; a replay with more is sampled evenly at random.
        windows: stretches of consecutive frames per camera.
        window: frames in a stretch; one of each is decoded.
        parity_values: actions times chunk length, above which no batch is cut to compare two paths.
        parity_rows: rows of that batch.
    """

    rows: int = 100_000
    windows: int = 48
    window: int = 8
    parity_values: int = 50_000_000
    parity_rows: int = 32


BEFORE_A_RUN = Limits(rows=20_000, windows=16, parity_values=5_000_000, parity_rows=8)
"""What a run looks at before it begins: a second or two."""


class Rows:
    """A sample of a replay's rows, in order, without the episodes a person discarded.

    Row arrays have R rows. The sample is the same at every check.
    """

    def __init__(self, reader: ReplayReader, limits: Limits) -> None:
        self.reader, self.limits = reader, limits
        kept = np.repeat(self._table[:, EPISODE["outcome"]] != Outcome.DISCARDED, self.lengths)
        chosen = np.flatnonzero(kept)
        if len(chosen) > limits.rows:
            drawn = np.random.default_rng(_SEED).choice(len(chosen), limits.rows, replace=False)
            chosen = chosen[np.sort(drawn)]
        self.index: Ints = chosen

    @property
    def _table(self) -> Ints:
        return self.reader.table

    @property
    def lengths(self) -> Ints:
        """Steps of each episode (E,)."""
        return self._table[:, EPISODE["length"]]

    @cached_property
    def state(self) -> Floats:
        """Flat states (R, S)."""
        return self.reader.state[self.index]

    @cached_property
    def action(self) -> Floats:
        """Executed actions (R, A)."""
        return self.reader.action[self.index]

    @cached_property
    def episode(self) -> Ints:
        """The episode of each row (R,)."""
        return np.searchsorted(self._table[:, EPISODE["first_row"]], self.index, side="right") - 1

    @cached_property
    def stream(self) -> Ints:
        """The position of each row's stream in ``list(reader.streams)`` (R,)."""
        return self.reader.stream_of_episode[self.episode]

    @cached_property
    def going_on(self) -> Ints:
        """Positions in this sample (P,) of rows that are not the last of their episode."""
        last = self._table[:, EPISODE["first_row"]] + self.lengths - 1
        return np.flatnonzero(self.index < last[self.episode])

    @cached_property
    def following(self) -> Floats:
        """The states (P, S) one step after the rows at `going_on`."""
        return self.reader.state[self.index[self.going_on] + 1]
