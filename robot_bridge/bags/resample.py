"""Rows at the contract's rate out of messages in order.

The first row is at the time of the message that makes one possible; from there rows are a period apart. A row
that the assembler refuses is left out. After more than ``max_gap_rows`` of them in a row the episode part ends,
and the next row that is possible begins another, on its own grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from robot_bridge.assembler import Assembler, Refusal, Row
from robot_bridge.contract import Contract
from robot_bridge.messages import read_bool
from robot_bridge.takeover import Takeover

EndKind = Literal["over", "gap", "back", "forward", "hole"]


@dataclass(frozen=True)
class Driven:
    """A row, and whether a person was in charge at its time."""

    row: Row
    human: bool


@dataclass(frozen=True)
class PartEnd:
    """No row follows on the present grid. ``over`` is the end of the episode, the others cut it."""

    kind: EndKind


@dataclass(frozen=True)
class Judged:
    """Somebody said how the newest episode went."""

    success: bool


Event = Driven | PartEnd | Judged


@dataclass
class Resampler:
    """Turns messages at increasing times into rows. ``refused`` counts what was left out, and why."""

    contract: Contract
    assembler: Assembler
    refused: Counter[Refusal] = field(default_factory=Counter[Refusal])
    others: Counter[str] = field(default_factory=Counter[str])
    """Messages by topic that hold nothing of the contract."""
    waited_ns: int = 0
    """Time while an episode ran and no row was possible, beside that of refused rows."""

    def __post_init__(self) -> None:
        self._takeover = Takeover(self.contract.intervention)
        self._topics = self.assembler.topics
        self._running = self.contract.episodes.running is None
        self._start: int | None = None
        self._next = self._missing = 0
        self._candidate: int | None = None
        self._waiting_since: int | None = None
        self._newest = 0
        self.blocker: Refusal | None = None
        """What the last attempt to begin failed for."""

    def put(self, topic: str, message: Any, time_ns: int) -> Iterator[Event]:
        """Take a message; first come the rows before it.

        Raises MessageFault for a message that is useless, DataError when it contradicts the contract. The rows
        before it must be taken all the same.
        """
        episodes, intervention = self.contract.episodes, self.contract.intervention
        if topic in self._topics and not self.assembler.put(topic, message, time_ns):
            self.others[topic] += 1
        if intervention is not None and topic == intervention.topic:
            self._takeover.put(message, time_ns)
        if topic == episodes.success:
            yield Judged(read_bool(message))
        if topic == episodes.running and read_bool(message) != self._running:
            self._running = not self._running
            if not self._running:
                yield from self._end("over")
        self._newest = time_ns
        if self._running and self._start is None:
            self._candidate = time_ns
            self._waiting_since = time_ns if self._waiting_since is None else self._waiting_since

    def until(self, time_ns: int, inclusive: bool = False) -> Iterator[Event]:
        """The rows before a time (``inclusive``: or at it), every message of which has been put."""
        while True:
            due = self._candidate if self._start is None else self._next
            if due is None or due > time_ns or (due == time_ns and not inclusive):
                return
            yield from self._attempt(due)

    def finish(self, complete: bool = True) -> Iterator[Event]:
        """The rows up to the newest message, and the end of the episode."""
        yield from self.until(self._newest, inclusive=complete)
        yield from self._end("over")

    def interrupt(self, kind: EndKind, at_ns: int) -> Iterator[Event]:
        """Time breaks: forget all messages but what was going on."""
        yield from self.until(at_ns if kind == "hole" else self._newest, inclusive=kind != "hole")
        yield from self._end(kind)
        self.assembler.clear()
        self._takeover.forget_time()

    def _attempt(self, due: int) -> Iterator[Event]:
        row = self.assembler.row(due)
        if self._start is None:
            self._candidate = None
            if isinstance(row, Refusal):
                self.blocker = row
                return
            self._start, self._index = due, 0
            if self._waiting_since is not None:
                self.waited_ns += due - self._waiting_since
            self._waiting_since = None
        self._index += 1
        self._next = self._start + round(self._index * self.contract.period_ns)
        if isinstance(row, Row):
            self._missing = 0
            yield Driven(row, self._takeover.human(due))
            return
        self.refused[row] += 1
        self._missing += 1
        if self._missing > self.contract.episodes.max_gap_rows:
            yield from self._end("gap")
            self._waiting_since = due

    def _end(self, kind: EndKind) -> Iterator[Event]:
        if self._waiting_since is not None:
            self.waited_ns += max(0, self._newest - self._waiting_since)
        self._start, self._missing = None, 0
        self._candidate = self._waiting_since = None
        yield PartEnd(kind)
