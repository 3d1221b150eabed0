"""Actions outside the controller's range: measured per dimension, and met by an explicit rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError
from flowrl.replay.schema import Floats
from flowrl.spec import ActionSpec

ActionRule = Literal["refuse", "clip", "rescale"]


@dataclass(frozen=True)
class ActionRange:
    """What one action dimension of a file holds, against its bounds.

    ``share_outside`` is the fraction of steps outside. ``scale`` is what the values were multiplied by.
    """

    name: str
    low: float
    high: float
    minimum: float
    maximum: float
    share_outside: float
    scale: float = 1.0

    @property
    def is_outside(self) -> bool:
        """Whether any value lies outside the bounds, both as the 32-bit numbers that are stored."""
        low, high = np.float32(self.low), np.float32(self.high)
        return bool(np.float32(self.minimum) < low or np.float32(self.maximum) > high)


class RangeCounter:
    """Collects the extremes of a file's actions demonstration by demonstration."""

    def __init__(self, spec: ActionSpec) -> None:
        self._spec = spec
        self._low, self._high = (np.asarray(bound, np.float32) for bound in (spec.low, spec.high))
        self._minimum = np.full(spec.size, np.inf, np.float32)
        self._maximum = np.full(spec.size, -np.inf, np.float32)
        self._outside = np.zeros(spec.size, np.int64)
        self._steps = 0

    def add(self, actions: Floats) -> None:
        """Count the actions (T, A) of one demonstration."""
        self._minimum = np.minimum(self._minimum, actions.min(axis=0))
        self._maximum = np.maximum(self._maximum, actions.max(axis=0))
        self._outside += ((actions < self._low) | (actions > self._high)).sum(axis=0)
        self._steps += len(actions)

    def ranges(self) -> tuple[ActionRange, ...]:
        """One range per action dimension, in the order of the spec."""
        return tuple(
            ActionRange(
                name,
                self._spec.low[i],
                self._spec.high[i],
                float(self._minimum[i]),
                float(self._maximum[i]),
                float(self._outside[i]) / self._steps,
            )
            for i, name in enumerate(self._spec.names)
        )


@dataclass(frozen=True)
class ActionTransform:
    """The rule as numbers: actions are multiplied by ``scale`` (A,), then clipped to the bounds."""

    ranges: tuple[ActionRange, ...]

    def __call__(self, actions: Floats) -> Floats:
        """Apply the rule to (T, A); every value of the result lies within the bounds."""
        scale, low, high = (
            np.asarray([getattr(each, key) for each in self.ranges], np.float32)
            for key in ("scale", "low", "high")
        )
        return np.clip(actions * scale, low, high)


def apply_rule(rule: ActionRule, ranges: Sequence[ActionRange], where: str) -> ActionTransform:
    """Turn a rule into a transform.

    ``clip`` cuts each value to the bounds. ``rescale`` multiplies a dimension that leaves its bounds by
    the largest factor that brings every value of the file inside; zero stays zero, dimensions that fit
    are untouched. Raises DataError with a table of the offending dimensions for ``refuse``, and for
    ``rescale`` where the bounds do not enclose zero.
    """
    offending = [each for each in ranges if each.is_outside]
    if offending and rule == "refuse":
        lines = "\n".join(f"  {line}" for line in range_lines(offending))
        raise DataError(
            f"{where}: {len(offending)} of {len(ranges)} action dimensions leave the controller's range:\n"
            f"{lines}\n"
            "choose a rule: --actions clip executes what the controller executed (robosuite clips its "
            "input); --actions rescale keeps proportions but slows the motion"
        )
    if rule != "rescale":
        return ActionTransform(tuple(ranges))
    return ActionTransform(tuple(_rescaled(each, where) for each in ranges))


def range_lines(ranges: Sequence[ActionRange]) -> list[str]:
    """One aligned line per dimension: its extremes, its bounds, the share of steps outside."""
    width = max(len(each.name) for each in ranges)
    return [
        f"{each.name:{width}}  {each.minimum:g} .. {each.maximum:g}, allowed {each.low:g} .. {each.high:g}, "
        f"{each.share_outside:.1%} of steps outside"
        for each in ranges
    ]


def require_finite(values: NDArray[np.floating], names: Sequence[str] | str, where: str) -> None:
    """Raise DataError naming demonstration, step and dimension of the first value that is not finite.

    ``values`` is (T, D); ``names`` has D labels, or is the name of the array.
    """
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        step, index = (int(i) for i in wrong[0])
        name = f"{names}[{index}]" if isinstance(names, str) else f"{names[index]}"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise DataError(
            f"{where}, step {step}: {name} is {values[step, index]}{more}, expected a finite number; "
            "nothing was imported. Remove the demonstration or mend the recording"
        )


def _rescaled(each: ActionRange, where: str) -> ActionRange:
    if not each.is_outside:
        return each
    if not each.low < 0 < each.high:
        raise DataError(
            f"{where}: action {each.name!r} has bounds {each.low:g} .. {each.high:g} without zero inside, so "
            "it cannot be rescaled about zero; use --actions clip"
        )
    scale = 1.0 / max(each.minimum / each.low, each.maximum / each.high)
    return ActionRange(each.name, each.low, each.high, each.minimum, each.maximum, each.share_outside, scale)
