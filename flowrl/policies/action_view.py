"""Which part of a flat chunk a critic looks at, and in which units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flowrl.errors import ConfigError


class ActionView(nn.Module):
    """What of a flat chunk (B, D) moves the robot: some columns, scaled so that their bounds are +-1, clipped.

    A policy whose chunks lie in [-1, 1]^D and are executed whole needs neither columns nor bounds: chunks
    are clipped, as they are where they are executed. Where a policy also generates what is never executed
    (padding, steps beyond those executed) or works in other units (standard deviations), the critic must
    neither see the former nor value an action beyond the latter's bounds. No gradient passes a clip.

    Args:
        columns: E columns of the flat chunk; None for all.
        low, high: their bounds, E values each; None for -1 and 1.

    Raises ConfigError when the bounds do not belong to the columns, or are no bounds.
    """

    columns: Tensor | None
    centre: Tensor | None
    half_range: Tensor | None

    def __init__(
        self,
        columns: Sequence[int] | None = None,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self._config: dict[str, Any] = {
            "columns": None if columns is None else list(columns),
            "low": None if low is None else list(low),
            "high": None if high is None else list(high),
        }
        centre = half_range = None
        if low is not None and high is not None:
            bottom, top = torch.tensor(low), torch.tensor(high)
            centre, half_range = (bottom + top) / 2, (top - bottom) / 2
        sizes = {len(part) for part in (columns, low, high) if part is not None}
        if len(sizes) > 1 or (low is None) != (high is None):
            raise ConfigError(
                f"a view of {sizes} columns and bounds; give as many bounds of each kind as columns"
            )
        if half_range is not None and not bool((half_range > 0).all()):
            raise ConfigError("a view's lower bounds must lie below its upper ones")
        index = None if columns is None else torch.tensor(columns)
        for name, value in (("columns", index), ("centre", centre), ("half_range", half_range)):
            self.register_buffer(name, value, persistent=False)

    def forward(self, action: Tensor) -> Tensor:
        """Flat chunks (B, D) to what critics see, (B, E) in [-1, 1]."""
        return self.unclipped(action).clamp(-1, 1)

    def unclipped(self, action: Tensor) -> Tensor:
        """As `forward`, with actions beyond the bounds beyond -1 and 1: (B, E)."""
        seen = action if self.columns is None else action.index_select(-1, self.columns)
        if self.centre is not None and self.half_range is not None:
            seen = (seen - self.centre) / self.half_range
        return seen

    def restore(self, seen: Tensor, flat_size: int) -> Tensor:
        """Flat chunks (B, D) that critics see as ``seen`` (B, E); 0 in the columns that they do not see."""
        if self.centre is not None and self.half_range is not None:
            seen = seen * self.half_range + self.centre
        if self.columns is None:
            return seen
        return seen.new_zeros(len(seen), flat_size).index_copy(-1, self.columns, seen)

    def size(self, flat_size: int) -> int:
        """E, for flat chunks of D values."""
        return flat_size if self.columns is None else len(self.columns)

    def config(self) -> Mapping[str, Any]:
        """Constructor arguments, as JSON values."""
        return self._config
