"""Messages in the order of their times, and the places where time breaks.

A recorder writes messages about in the order of their arrival; a later one may lie up to `WINDOW` before an
earlier one, and is sorted in. Beyond that the recorder's clock was set back. Sorting across such a jump would
mix two times, so it is a `Break`, as is a pause longer than `PAUSE`, a clock set forward (which looks the same)
and a part of the file that cannot be read.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from robot_bridge.bags.records import Hole, Item, Recorded

WINDOW = 500_000_000
"""Nanoseconds by which messages may be out of order. So much is not used before a hole: what is missing there
may belong among it."""
PAUSE = 5_000_000_000
"""Nanoseconds without any message after which time starts anew."""

BreakKind = Literal["back", "forward", "hole"]


@dataclass(frozen=True)
class Break:
    """Time does not go on: what comes after it has nothing to do with what was before.

    ``gap_ns`` is how far time went, backwards below zero; 0 for a hole. ``at_ns`` is the newest time before.
    """

    kind: BreakKind
    at_ns: int
    gap_ns: int


@dataclass(order=True)
class _Waiting:
    time_ns: int
    number: int
    message: Recorded = field(compare=False)


@dataclass(frozen=True)
class Timed:
    """A message at the time at which it counts."""

    time_ns: int
    message: Recorded


class Ordering:
    """Sorts the messages of a bag. ``earlier_ns`` counts those of some topics so much before they arrived."""

    def __init__(self, earlier_ns: Mapping[str, int]) -> None:
        self._earlier = earlier_ns
        self._most = max(earlier_ns.values(), default=0)
        self._heap: list[_Waiting] = []
        self._newest: int | None = None
        self._count = 0
        self.sorted_in = 0
        """Messages that were out of order."""
        self.unused = 0
        """Messages shortly before a hole."""

    def events(self, items: Iterable[Item]) -> Iterator[Timed | Break]:
        """Messages with increasing times between breaks."""
        for item in items:
            if isinstance(item, Hole):
                yield from self._break_hole()
            else:
                yield from self._message(item)
        yield from self._pop()

    def _message(self, message: Recorded) -> Iterator[Timed | Break]:
        newest, time_ns = self._newest, message.time_ns
        if newest is not None and not newest - WINDOW <= time_ns <= newest + PAUSE:
            yield from self._pop()
            yield Break("back" if time_ns < newest else "forward", newest, time_ns - newest)
            newest = None
        self.sorted_in += newest is not None and time_ns < newest
        self._newest = time_ns if newest is None else max(newest, time_ns)
        self._count += 1
        at = time_ns - self._earlier.get(message.channel.topic, 0)
        heapq.heappush(self._heap, _Waiting(at, self._count, message))
        yield from self._pop(self._newest - WINDOW - self._most)

    def _break_hole(self) -> Iterator[Timed | Break]:
        # What is missing may have been as old as `_pop` has left; rows are only built below that.
        if self._newest is not None:
            yield Break("hole", self._newest - WINDOW - self._most, 0)
        self.unused += len(self._heap)
        self._heap.clear()
        self._newest = None

    def _pop(self, below: int | None = None) -> Iterator[Timed]:
        """Give out what is older than ``below``; without it, everything."""
        while self._heap and (below is None or self._heap[0].time_ns < below):
            first = heapq.heappop(self._heap)
            yield Timed(first.time_ns, first.message)
