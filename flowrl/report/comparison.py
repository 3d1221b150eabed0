"""What two evaluations say about each other: paired outcomes, a test, and a sentence about the gain.

Evaluations of one run share their starts, so outcomes are compared start by start; two rates that
differ are called different only when the test says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowrl.evaluation import Evaluation

SIGNIFICANCE = 0.05
"""Below this probability a difference is called clear."""


@dataclass(frozen=True)
class Control:
    """A measurement that isolates one part of the gain, such as best-of-N on the base."""

    name: str
    meaning: str
    evaluation: Evaluation

    @classmethod
    def from_json(cls, name: str, data: dict[str, Any]) -> Control:
        """Read one entry of ``controls`` in ``result.json``."""
        return cls(name, str(data.get("meaning", "")), Evaluation.from_json(data["evaluation"]))


@dataclass(frozen=True)
class Pair:
    """One start under two policies: whether each succeeded and how long each took."""

    seed: int
    before: bool
    after: bool
    before_length: int
    after_length: int


@dataclass(frozen=True)
class Paired:
    """Two evaluations from the same starts."""

    pairs: tuple[Pair, ...]

    def where(self, before: bool, after: bool) -> list[Pair]:
        """The starts with these two outcomes."""
        return [pair for pair in self.pairs if (pair.before, pair.after) == (before, after)]

    @property
    def fixed(self) -> int:
        """Starts that failed before and succeed after."""
        return len(self.where(False, True))

    @property
    def broken(self) -> int:
        """Starts that succeeded before and fail after."""
        return len(self.where(True, False))

    @property
    def p_value(self) -> float:
        """Two-sided exact McNemar test of "neither policy is better"."""
        return mcnemar_exact(self.fixed, self.broken)


def pair(before: Evaluation, after: Evaluation) -> Paired:
    """Match two evaluations by start; starts that only one of them has are left out."""
    later = {episode.seed: episode for episode in after.episodes}
    return Paired(
        tuple(
            Pair(e.seed, e.success, later[e.seed].success, e.length, later[e.seed].length)
            for e in before.episodes
            if e.seed in later
        )
    )


def mcnemar_exact(fixed: int, broken: int) -> float:
    """Two-sided exact McNemar probability: the binomial tail of the starts whose outcome changed."""
    changed = fixed + broken
    tail = sum(math.comb(changed, k) for k in range(min(fixed, broken) + 1))
    return min(1.0, 2 * tail / 2**changed)


def overlap(first: Evaluation, second: Evaluation) -> bool:
    """Whether the 95 % intervals of two success rates overlap."""
    return first.interval[0] <= second.interval[1] and second.interval[0] <= first.interval[1]


def clearly_better(worse: Evaluation, better: Evaluation) -> bool:
    """Whether ``better`` has the higher rate by more than chance explains.

    The paired test decides where the starts are the same, else intervals that do not overlap.
    """
    if better.success_rate <= worse.success_rate:
        return False
    if {e.seed for e in worse.episodes} == {e.seed for e in better.episodes}:
        return pair(worse, better).p_value < SIGNIFICANCE
    return not overlap(worse, better)


def gain_sentence(base: Evaluation, tuned: Evaluation, controls: Sequence[Control]) -> str:
    """Where the gain comes from, read off the numbers alone."""
    points = 100 * (tuned.success_rate - base.success_rate)
    if not clearly_better(base, tuned):
        return (
            f"{_rate(base)} before and {_rate(tuned)} after: {len(tuned.episodes)} episodes do not show "
            "that the tuned policy is better than its base, so there is no gain to explain."
        )
    if not controls:
        return (
            f"The gain is {points:.0f} points under one acting rule. No control was run, so this report "
            "cannot say which part of it the acting rule or cloning successes alone would have brought."
        )
    rivals = [c for c in controls if not clearly_better(c.evaluation, tuned)]
    reached = "; ".join(_reached(control, base, tuned) for control in controls)
    if not rivals:
        return (
            f"Of the {points:.0f} points gained, the controls reach only a part: {reached}. The tuned policy is "
            "clearly better than each, so the rest comes from learning with the critic."
        )
    names = " and ".join(f"“{control.name}”" for control in rivals)
    return (
        f"Of the {points:.0f} points gained, the controls reach: {reached}. {len(tuned.episodes)} episodes "
        f"cannot tell the tuned policy from {names}, so the gain may come from that alone."
    )


def _reached(control: Control, base: Evaluation, tuned: Evaluation) -> str:
    points = 100 * (control.evaluation.success_rate - base.success_rate)
    intervals = "overlaps" if overlap(control.evaluation, tuned) else "does not overlap"
    return (
        f"“{control.name}” {_rate(control.evaluation)} ({points:+.0f} points; "
        f"its interval {intervals} the tuned policy's)"
    )


def _rate(evaluation: Evaluation) -> str:
    return f"{evaluation.success_rate:.0%}"
