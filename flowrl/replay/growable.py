"""An array that grows by whole blocks of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.replay.schema import Array


class Growable:
    """Rows that are appended in bulk and read as one contiguous array, ``view`` (N, ...)."""

    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        self._values: NDArray[Any] = np.empty((1024, *shape), dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def view(self) -> NDArray[Any]:
        """All rows so far, without a copy; taken again after every `append`."""
        return self._values[: self._count]

    def append(self, rows: Array) -> None:
        """Add rows at the end. Amortised: the memory doubles."""
        needed = self._count + len(rows)
        if needed > len(self._values):
            grown = np.empty(
                (max(needed, 2 * len(self._values)), *self._values.shape[1:]), self._values.dtype
            )
            grown[: self._count] = self.view
            self._values = grown
        self._values[self._count : needed] = rows
        self._count = needed
