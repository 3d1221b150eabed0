"""Rows become the steps of episodes, and what was said about an episode becomes its outcome.

The newest row is held back, because only what follows tells whether it is the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flowrl.replay.importers.actions import RangeCounter
from flowrl.replay.importers.episodes import DemonstrationDone
from flowrl.replay.schema import Floats, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import StreamWriter
from flowrl.spec import Spec
from robot_bridge.bags.resample import Driven, EndKind, Event, Judged, PartEnd
from robot_bridge.takeover import TakeoverCounter


@dataclass(frozen=True)
class Ended:
    """An episode that was written."""

    name: str
    steps: int
    outcome: Outcome
    takeovers: int
    cut_by: EndKind


class EpisodeWriter:
    """Writes the episodes of a stream, until there are ``limit``.

    ``acting`` is who acts where no person has taken over; ``clip`` cuts actions to the bounds of the spec, which
    ``ranges`` counts as they are found.
    """

    def __init__(
        self,
        writer: StreamWriter,
        spec: Spec,
        *,
        task: str,
        acting: Source,
        judged_by: OutcomeBy,
        clip: bool,
        limit: int | None,
        on_episode: Callable[[DemonstrationDone], None],
    ) -> None:
        self._writer, self._task, self._acting, self._judged_by = writer, task, acting, judged_by
        self._low, self._high = (np.asarray(each, np.float32) for each in (spec.action.low, spec.action.high))
        self._clip, self._limit, self._on_episode = clip, limit, on_episode
        self._held: Step | None = None
        self._cut_by: EndKind | None = None
        self._success: bool | None = None
        self._takeovers = TakeoverCounter()
        self._steps = 0
        self.ranges = RangeCounter(spec.action)
        self.ended: list[Ended] = []
        self.stray = 0
        """Judgements before there was an episode to judge."""
        self.ages: list[list[int]] = []
        """Of every row, the ages of all streams, nanoseconds."""

    @property
    def full(self) -> bool:
        """Whether the limit is reached and the rest need not be read."""
        return self._limit is not None and len(self.ended) >= self._limit

    def take(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Driven():
                self._row(event)
            case Judged(success):
                self.stray += self._held is None
                self._success = success if self._held is not None else None
            case PartEnd(kind):
                # Streams that fall silent shortly before the end of an episode do not cut it.
                if self._held is not None and self._cut_by in (None, "gap"):
                    self._cut_by = "gap" if self._cut_by == "gap" and kind != "over" else kind

    def close(self) -> None:
        """Write what is held back."""
        if self._held is not None:
            self._finish()

    def _row(self, driven: Driven) -> None:
        if self._cut_by is not None:
            self._finish()
            if self.full:
                return
        if self._held is None:
            self._writer.begin_episode(task=self._task)
        else:
            self._writer.append(self._held)
        row, observed = driven.row, driven.row.observed
        number = self._takeovers.number(driven.human)
        action = row.commanded.action
        self.ranges.add(action[None])
        self.ages.append([*observed.ages_ns.values(), *row.commanded.ages_ns.values()])
        self._held = Step(
            observed.observation,
            self._bounded(action),
            0.0,
            source=Source.HUMAN if driven.human else self._acting,
            intervention_id=number,
            stamp_ns=row.time_ns,
            age_ns=observed.age_ns,
        )
        self._steps += 1

    def _bounded(self, action: Floats) -> Floats:
        return np.clip(action, self._low, self._high) if self._clip else action

    def _finish(self) -> None:
        """Write the last row and close the episode with its outcome."""
        held, success, cut_by = self._held, self._success, self._cut_by or "over"
        if held is None:
            return
        solved = success is True
        self._writer.append(replace(held, reward=float(solved), terminated=solved, truncated=not solved))
        if success is not None:
            outcome = Outcome.SUCCESS if success else Outcome.FAILURE
        else:
            outcome = Outcome.UNKNOWN if cut_by == "over" else Outcome.INTERRUPTED
        self._writer.close_episode(outcome, OutcomeBy.NONE if success is None else self._judged_by)
        index = len(self.ended)
        done = Ended(f"episode_{index}", self._steps, outcome, self._takeovers.count, cut_by)
        self.ended.append(done)
        self._on_episode(DemonstrationDone(done.name, index + 1, index + 1, done.steps, success))
        self._held = self._cut_by = self._success = None
        self._takeovers, self._steps = TakeoverCounter(), 0
