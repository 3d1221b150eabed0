"""What an import of a bag counts, and how its report says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from flowrl.replay.importers.report import Dropped, StreamUse
from flowrl.replay.schema import Outcome
from robot_bridge.bags.episodes import Ended
from robot_bridge.bags.order import WINDOW, Break
from robot_bridge.bags.records import Hole

_SECOND, _MS = 1e9, 1e6
_CLOCK_MOVED_NS = 1_000_000_000
_LISTED = 5


@dataclass
class _Clock:
    """The source's stamps of one topic against the times of arrival."""

    newest: int = 0
    backwards: int = 0
    least: int | None = None
    most: int = 0

    def add(self, stamp_ns: int, arrival_ns: int) -> None:
        self.backwards += stamp_ns < self.newest
        self.newest = stamp_ns
        behind = arrival_ns - stamp_ns
        self.most = behind if self.least is None else max(self.most, behind)
        self.least = behind if self.least is None else min(self.least, behind)


@dataclass
class Tally:
    """Counts of messages by topic."""

    messages: Counter[str] = field(default_factory=Counter[str])
    foreign: Counter[str] = field(default_factory=Counter[str])
    """Messages of topics that the contract does not name."""
    faults: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Messages that were useless, by topic and reason."""
    holes: list[Hole] = field(default_factory=list[Hole])
    breaks: list[Break] = field(default_factory=list[Break])
    clocks: dict[str, _Clock] = field(default_factory=dict[str, _Clock])

    def stamp(self, topic: str, stamp_ns: int | None, arrival_ns: int) -> None:
        """Note the source's own time of a message."""
        if stamp_ns is not None:
            self.clocks.setdefault(topic, _Clock()).add(stamp_ns, arrival_ns)

    def dropped(self, unused: int, others: Mapping[str, int]) -> list[Dropped]:
        """What is not in the stream, rows aside.

        ``unused`` are messages shortly before a hole, ``others`` those by topic of other publishers.
        """
        out = [
            Dropped(f"bytes of {hole.file}", hole.lost_bytes, f"{hole.reason}; what was there is lost")
            for hole in self.holes
        ]
        if unused:
            reason = f"the last {WINDOW / _SECOND:g} s before what is lost, of which something may be missing"
            out.append(Dropped("messages", unused, reason))
        out += [Dropped(f"messages on {t}", n, why) for (t, why), n in sorted(self.faults.items())]
        out += [
            Dropped(f"messages on {topic}", count, "none of the contract's joints: another publisher")
            for topic, count in sorted(others.items())
        ]
        out += [
            Dropped(f"messages on {topic}", count, "the contract does not name the topic")
            for topic, count in sorted(self.foreign.items())
        ]
        return out

    def warnings(self, sorted_in: int) -> Iterator[str]:
        """What a user should know about times. ``sorted_in`` messages were out of order."""
        jumps = [each for each in self.breaks if each.kind != "hole"]
        yield from map(_jump_words, jumps[:_LISTED])
        if len(jumps) > _LISTED:
            yield f"time breaks {len(jumps) - _LISTED} more times"
        if sorted_in:
            yield f"{sorted_in:,} messages were out of order by less than {WINDOW / _SECOND:g} s, and were sorted"
        for topic, clock in sorted(self.clocks.items()):
            if clock.backwards:
                yield (
                    f"the stamps of {topic} go back {clock.backwards} times; rows are aligned by arrival, not by stamps"
                )
            moved = clock.most - (clock.least or 0)
            if moved > _CLOCK_MOVED_NS:
                yield (
                    f"the clock that stamps {topic} moved by {moved / _SECOND:.3g} s against the recorder's; rows are "
                    "aligned by arrival, not by stamps"
                )


def stream_uses(
    streams: Mapping[str, str], messages: Mapping[str, int], ages_ns: Sequence[Sequence[int]]
) -> tuple[StreamUse, ...]:
    """Per stream its topic, messages and ages in the rows; ``ages_ns`` is (rows, streams)."""
    ages = np.asarray(ages_ns, np.float64).reshape(len(ages_ns), len(streams)) / _MS
    middle, high = np.percentile(ages, [50, 99], axis=0)
    return tuple(
        StreamUse(name, topic, messages[topic], float(middle[i]), float(high[i]), float(ages[:, i].max()))
        for i, (name, topic) in enumerate(streams.items())
    )


def episode_notes(ended: Iterable[Ended], says_success: bool) -> Iterator[str]:
    """What a user should know about the episodes."""
    ended = list(ended)
    counts = Counter(each.outcome for each in ended)
    if counts[Outcome.INTERRUPTED]:
        why = Counter(each.cut_by for each in ended if each.outcome is Outcome.INTERRUPTED)
        words = {"gap": "a gap in a stream", "hole": "a damaged place", "back": "the clock set back"}
        words["forward"] = "a pause or the clock set forward"
        listed = ", ".join(f"{words[kind]} ({count})" for kind, count in why.items())
        yield f"{counts[Outcome.INTERRUPTED]} episodes are cut by {listed}; their outcome is interrupted"
    if counts[Outcome.UNKNOWN] and not says_success:
        yield (
            f"nobody says how {counts[Outcome.UNKNOWN]} episodes ended; imported with outcome unknown. Name a topic in "
            "episodes.success"
        )
    elif counts[Outcome.UNKNOWN]:
        yield f"nothing was said about {counts[Outcome.UNKNOWN]} episodes; their outcome is unknown"


def _jump_words(jump: Break) -> str:
    at = datetime.fromtimestamp(jump.at_ns / _SECOND, UTC).isoformat(timespec="milliseconds")
    if jump.kind == "back":
        return (
            f"the recorder's clock was set back by {-jump.gap_ns / _SECOND:.3g} s at {at}; what comes after is apart "
            "from what was before"
        )
    return f"nothing was recorded for {jump.gap_ns / _SECOND:.3g} s after {at}, or the clock was set forward"
