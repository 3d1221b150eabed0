"""Import a bag of rosbag2 into a new stream, by a contract. docs/import.md says what is kept, cut and dropped.

A bag is read once, from front to back; of its messages half a second is in memory.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flowrl.errors import DataError, UsageError
from flowrl.replay.extras import data_module
from flowrl.replay.frames import FrameCodec
from flowrl.replay.importers.actions import ActionRange, ActionRule, range_lines
from flowrl.replay.importers.episodes import DemonstrationDone, commit_rule
from flowrl.replay.importers.images import resize_note
from flowrl.replay.importers.provenance import keep_report, require_new, source_digest
from flowrl.replay.importers.report import Dropped, ImportReport
from flowrl.replay.importers.staging import staged
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source
from flowrl.replay.writer import StreamWriter
from robot_bridge.bags.bag import Bag, open_bag
from robot_bridge.bags.episodes import EpisodeWriter
from robot_bridge.bags.rows import BagRows
from robot_bridge.bags.tally import episode_notes, stream_uses
from robot_bridge.contract import Contract

_FIRST = "episode_0"


@dataclass(frozen=True)
class BagOptions:
    """How to import.

    Attributes:
        actions: what to do about commands outside the contract's limits. Targets cannot be rescaled.
        source: who acted where no person had taken over; None is the policy where the contract has an
            intervention, and a person where it has none.
        limit: import only the first so many episodes.
        replace: replace the stream when it is an earlier import.
        allow_duplicate: import a bag that another stream of the replay already holds.
        codec: how frames that are resized or arrive as pixels are stored.
    """

    actions: Literal["refuse", "clip"] = "refuse"
    source: Source | None = None
    limit: int | None = None
    replace: bool = False
    allow_duplicate: bool = False
    codec: FrameCodec = field(default_factory=FrameCodec)


def import_bag(
    path: str | Path,
    replay: str | Path,
    stream: str,
    contract: Contract,
    options: BagOptions | None = None,
    on_episode: Callable[[DemonstrationDone], None] = lambda done: None,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> ImportReport:
    """Import a .mcap or .db3 file or a rosbag2 directory into the new stream ``<replay>/<stream>``.

    The stream appears whole or not at all. What a damaged bag still holds is imported, and the report says what is
    lost. ``on_bytes`` is told how much of the bag is read.

    Raises:
        UsageError: there is no bag, or it is compressed as a whole.
        DataError: the bag lacks a topic or contradicts the contract, no row could be made, or an action leaves the
            limits without a rule.
        ReplayError: the stream exists, or another stream holds the same bag.
        MissingExtra: mcap or mcap-ros2-support is not installed.
    """
    started, options = time.perf_counter(), options or BagOptions()
    replay, bag = Path(replay), open_bag(Path(path))
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"limit is {options.limit}; it must be at least 1")
    for module in ("mcap.stream_reader", "mcap_ros2.decoder"):
        data_module(module)
    spec = contract.spec()
    with staged(replay, stream, options.replace) as aside:
        sha256 = source_digest(bag.path)
        if not options.allow_duplicate:
            require_new(replay, stream, sha256, bag.name, [_FIRST])
        with StreamWriter.create(
            aside, stream, spec, Kind.IMPORT, commit_rule(spec), options.codec
        ) as writer:
            episodes = EpisodeWriter(
                writer,
                spec,
                task=contract.task,
                acting=_acting(contract, options.source),
                judged_by=OutcomeBy[contract.episodes.judged_by.upper()],
                clip=options.actions == "clip",
                limit=options.limit,
                on_episode=on_episode,
            )
            rows = BagRows(bag, contract, options.codec, on_bytes)
            job = _Import(bag, contract, options, rows, episodes)
            job.run()
        ranges = episodes.ranges.ranges()
        _require_inside(ranges, options.actions, bag.name)
        report = ImportReport(
            stream=stream,
            source=bag.name,
            sha256=sha256,
            format=bag.format,
            environment=contract.robot,
            episodes=len(episodes.ended),
            steps=sum(each.steps for each in episodes.ended),
            successes=sum(each.outcome is Outcome.SUCCESS for each in episodes.ended),
            demonstrations=tuple(each.name for each in episodes.ended),
            observations="file",
            rule=options.actions,
            ranges=ranges,
            dropped=tuple(job.dropped()),
            warnings=tuple(job.warnings()),
            seconds=time.perf_counter() - started,
            streams=stream_uses(rows.assembler.streams, rows.tally.messages, episodes.ages),
        )
        keep_report(report, aside / stream)
    return report


def _require_inside(ranges: Sequence[ActionRange], rule: ActionRule, where: str) -> None:
    outside = [each for each in ranges if each.is_outside]
    if outside and rule == "refuse":
        lines = "\n".join(f"  {line}" for line in range_lines(outside))
        raise DataError(
            f"{where}: {len(outside)} of {len(ranges)} action dimensions leave the contract's limits:\n{lines}\n"
            "nothing was imported. Where the robot may be told so, widen the limits of the contract; --actions clip "
            "cuts the commands to them"
        )


def _acting(contract: Contract, source: Source | None) -> Source:
    if source is not None:
        return source
    return Source.HUMAN if contract.intervention is None else Source.POLICY


class _Import:
    """Writes the episodes of a bag, and says what was not written."""

    def __init__(
        self, bag: Bag, contract: Contract, options: BagOptions, rows: BagRows, episodes: EpisodeWriter
    ) -> None:
        self._bag, self._contract, self._options = bag, contract, options
        self._rows, self._episodes = rows, episodes
        self._tally = rows.tally

    def run(self) -> None:
        """Write all episodes. Raises DataError when there is none, or a topic is missing."""
        for event in self._rows.events():
            self._episodes.take(event)
            if self._episodes.full:
                break
        self._episodes.close()
        self._require_topics()
        if not self._episodes.ended:
            raise DataError(self._no_row())

    def dropped(self) -> Iterator[Dropped]:
        """Everything that is not in the stream."""
        resampler = self._rows.resampler
        for refusal, count in sorted(resampler.refused.items(), key=str):
            yield Dropped("rows", count, f"{refusal.stream}: {refusal.reason}")
        waited_ms = round(resampler.waited_ns / 1e6)
        if waited_ms:
            yield Dropped("milliseconds", waited_ms, "inside episodes, while a stream was missing or too old")
        yield from self._tally.dropped(self._rows.ordering.unused, resampler.others)

    def warnings(self) -> Iterator[str]:
        """What the user should know."""
        yield from self._bag.notes
        for hole in self._tally.holes:
            yield f"{hole.file}: {hole.reason}; {hole.lost_bytes:,} bytes are lost, the rest was imported"
        yield from self._tally.warnings(self._rows.ordering.sorted_in)
        for feature in self._contract.spec().cameras:
            yield from resize_note(feature, self._rows.assembler.sizes[feature.name])
        if self._episodes.full:
            yield f"the bag was read up to episode {self._options.limit}, the limit"
        if self._episodes.stray:
            yield f"{self._episodes.stray} judgements came before the first row of an episode; they are left out"
        yield from episode_notes(self._episodes.ended, self._contract.episodes.success is not None)
        for topic in self._absent(self._optional()):
            yield f"the bag has nothing on {topic}, which the contract names"

    def _optional(self) -> list[str]:
        """Topics on which silence has a meaning: nobody judged, or nobody took over where somebody else acts."""
        topics = [self._contract.episodes.success]
        if self._contract.intervention is not None and self._options.source is not None:
            topics.append(self._contract.intervention.topic)
        return [topic for topic in topics if topic is not None]

    def _absent(self, topics: list[str]) -> list[str]:
        return [topic for topic in topics if not self._tally.messages[topic]]

    def _require_topics(self) -> None:
        """Raise DataError for a topic without messages."""
        if self._episodes.full:
            return
        optional = self._optional()
        missing = self._absent([topic for topic in self._rows.types if topic not in optional])
        if not missing:
            return
        there = sorted(self._tally.messages.keys() | self._tally.foreign.keys())
        near = difflib.get_close_matches(missing[0], there, 1)
        intervention = self._contract.intervention
        remedy = f"; the nearest that it has is {near[0]}" if near else ""
        if intervention is not None and missing[0] == intervention.topic:
            remedy += "; where nobody could take over, say who acted with --source"
        elif missing[0] == self._contract.episodes.running:
            remedy += "; where a bag is one episode, set episodes.running to null"
        damage = " that can be read" if self._tally.holes else ""
        raise DataError(
            f"{self._bag.name} has nothing on {missing[0]}{damage}, which the contract names for "
            f"{self._rows.types[missing[0]]}{remedy}. Its topics: {', '.join(there) or 'none'}"
        )

    def _no_row(self) -> str:
        blocker = self._rows.resampler.blocker
        why = "no episode ran" if blocker is None else f"{blocker.stream}: {blocker.reason}"
        faults = "; ".join(f"{n} messages on {t}: {why}" for (t, why), n in self._tally.faults.most_common(3))
        return (
            f"{self._bag.name}: no row could be made ({why}{'; ' + faults if faults else ''}); nothing was imported. "
            "Compare the contract's limits on age and skew with the rates of its topics"
        )
