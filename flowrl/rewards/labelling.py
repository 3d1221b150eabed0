"""Write reward columns into a replay: by a classifier, by a person, and the rows that came later.

Every stream is owned while it is labelled, and gets its part of a column in one transaction; a kill between two
streams leaves a column that `complete` finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.errors import ReplayError, UsageError
from flowrl.learner.progress import Progress, Quiet
from flowrl.replay import storage
from flowrl.replay.reader import ReplayReader
from flowrl.replay.reward_writer import RewardWriter
from flowrl.replay.rewards import (
    RECORDED,
    ColumnId,
    Labels,
    Provenance,
    StoredColumn,
    check_column_name,
    columns_of,
    incomplete,
    next_version,
    read_column,
    read_labels,
    recorded_labels,
    unknown,
)
from flowrl.replay.schema import EPISODE, Ints, Outcome
from flowrl.rewards.classifier import SuccessClassifier, require_sees
from flowrl.rewards.frames import episode_frames
from flowrl.rewards.io import load_classifier
from flowrl.rewards.rules import by_classifier, by_human, by_outcome


@dataclass(frozen=True)
class Labelled:
    """What was written to one stream: episodes labelled, and successes among them.

    ``recorded`` and ``successes`` count them as recorded and by the label; ``added`` are only the latter,
    ``denied`` only the former.
    """

    column: ColumnId
    stream: str
    episodes: int
    recorded: int
    successes: int
    added: int
    denied: int


Make = Callable[[RewardWriter, int], Labels]
"""``make(writer, first)``: the labels of a stream's closed episodes from number ``first`` on."""


def apply(
    classifier: SuccessClassifier, replay: Path, name: str, progress: Progress | None = None
) -> list[Labelled]:
    """Label every closed episode of a replay as a new version of column ``name``.

    Raises ConfigError for an unusable name, DataError when the replay lacks a camera or a size fits not,
    ReplayError when a stream has a live writer.
    """
    check_column_name(name)
    with _owned(replay) as writers:
        return _by_classifier(classifier, replay, next_version(replay, name), writers, progress or Quiet())


def label(
    replay: Path, stream: str, judged: Mapping[int, bool], name: str = "human", base: str | None = None
) -> list[Labelled]:
    """A person says of episodes of a stream whether they succeeded: a new version of column ``name``.

    It begins as a copy of ``base``: ``recorded``, a column, or by default the newest version of ``name``. What
    nobody judged keeps what that says; recorded outcomes become a sparse reward. Raises UsageError for an
    episode that is not there or was discarded, ConfigError for an unknown column.
    """
    check_column_name(name)
    with _owned(replay) as writers:
        known = columns_of(replay)
        newest = [str(column) for column in known if column.name == name]
        source = base or (newest[-1] if newest else RECORDED)
        rest, said = _inherited(replay, source)
        _require_episodes(replay, writers, stream, judged)
        said[stream] = {**said.get(stream, {}), **judged}
        column, rule = next_version(replay, name), {"base": source, "rest": rest}
        return _by_human(replay, column, rule, said, writers)


def complete(
    replay: Path,
    column: ColumnId,
    classifier: Path | None = None,
    progress: Progress | None = None,
) -> list[Labelled]:
    """Label the episodes that a column does not cover yet, by the rule it was made with.

    ``classifier`` is where the column's classifier lies now, if it was moved. Raises ConfigError when there is
    no such column, ReplayError when the classifier is another one.
    """
    with _owned(replay) as writers:
        stored = columns_of(replay).get(column)
        if stored is None:
            raise unknown(replay, column)
        provenance = next(iter(stored.values())).provenance
        if provenance.labeller == "human":
            return _by_human(replay, column, provenance.rule, _judged(stored), writers)
        place = classifier or Path(provenance.parts[-1]["source"])
        found = load_classifier(place)
        if found.digest != provenance.rule["digest"]:
            raise ReplayError(
                f"reward column {column} was made by the classifier {str(provenance.rule['digest'])[:12]}, {place} "
                f"is {found.digest[:12]}; name the right one with --classifier, or make a new version with: "
                f"flowrl reward apply {place} --replay {replay} --name {column.name}"
            )
        return _by_classifier(found, replay, column, writers, progress or Quiet())


@contextmanager
def _owned(replay: Path) -> Generator[dict[str, RewardWriter]]:
    """Own every stream of a replay. Raises ReplayError naming one that has a writer."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(RewardWriter(replay / name)) for name in storage.stream_names(replay)
        }


def _by_classifier(
    classifier: SuccessClassifier,
    replay: Path,
    column: ColumnId,
    writers: Mapping[str, RewardWriter],
    progress: Progress,
) -> list[Labelled]:
    reader = ReplayReader(replay)
    if reader.episodes:
        require_sees(classifier, reader.spec, f"replay {replay}")
    progress.phase("scoring", reader.rows + reader.episodes)
    done = 0

    def make(writer: RewardWriter, first: int) -> Labels:
        nonlocal done
        members = _members(reader, writer.name)[first:]
        frames = [episode_frames(reader, episode) for episode in members.tolist()]
        before = done
        scores = classifier.scores(
            reader, np.concatenate(frames), lambda count: progress.advance(before + count, writer.name)
        )
        done += len(scores)
        by_episode = np.split(scores, np.cumsum([len(places) for places in frames])[:-1])
        return by_classifier(_facts(reader, members), by_episode, classifier.threshold)

    rule = {"digest": classifier.digest, "threshold": classifier.threshold}
    source = "" if classifier.place is None else str(classifier.place.resolve())
    return _write(column, writers, make, Provenance("classifier", rule), {}, source)


def _by_human(
    replay: Path,
    column: ColumnId,
    rule: Mapping[str, Any],
    judged: Mapping[str, Mapping[int, bool]],
    writers: Mapping[str, RewardWriter],
) -> list[Labelled]:
    reader = ReplayReader(replay, image_bytes=0)

    def make(writer: RewardWriter, first: int) -> Labels:
        recorded = _facts(reader, _members(reader, writer.name))
        rest = _rest(replay, writer, str(rule["rest"]), recorded)
        labels = by_human(recorded, rest, judged.get(writer.name, {}))
        rows = int(recorded.column("length")[:first].sum())
        return Labels(labels.reward[rows:], labels.episodes[first:])

    return _write(column, writers, make, Provenance("human", rule), judged, "")


def _write(
    column: ColumnId,
    writers: Mapping[str, RewardWriter],
    make: Make,
    provenance: Provenance,
    judged: Mapping[str, Mapping[int, bool]],
    source: str,
) -> list[Labelled]:
    """Make the missing labels of every stream, then write them one stream after another."""
    made: list[tuple[RewardWriter, Labels, Labelled]] = []
    for name, writer in writers.items():
        stored = read_column(writer.session(), column)
        first = 0 if stored is None else stored.episodes
        table = writer.closed_episodes()[first:]
        if not len(table):
            continue
        labels = make(writer, first)
        before = table[:, EPISODE["outcome"]] == Outcome.SUCCESS
        after = labels.column("outcome") == Outcome.SUCCESS
        sets = (before, after, after & ~before, before & ~after)
        counts = [int(chosen.sum()) for chosen in sets]
        made.append((writer, labels, Labelled(column, name, len(table), *counts)))
    for writer, labels, _ in made:
        said = {str(episode): success for episode, success in judged.get(writer.name, {}).items()}
        writer.write(column, labels, replace(provenance, judged=said), source)
    return [labelled for _, _, labelled in made]


def _inherited(replay: Path, base: str) -> tuple[str, dict[str, dict[int, bool]]]:
    """What labels the episodes that nobody judged, and what was judged before, in a copy of a column."""
    if base == RECORDED:
        return RECORDED, {}
    column = ColumnId.parse(base)
    stored = columns_of(replay).get(column)
    if stored is None:
        raise unknown(replay, column)
    provenance = next(iter(stored.values())).provenance
    if provenance.labeller == "classifier":
        return base, {}
    return str(provenance.rule["rest"]), _judged(stored)


def _judged(stored: Mapping[str, StoredColumn]) -> dict[str, dict[int, bool]]:
    """What people said, by stream and episode."""
    return {
        name: {int(episode): success for episode, success in column.provenance.judged.items()}
        for name, column in stored.items()
    }


def _rest(replay: Path, writer: RewardWriter, rest: str, recorded: Labels) -> Labels:
    """The labels of a stream's episodes where nobody judged them."""
    if rest == RECORDED:
        return by_outcome(recorded)
    column, session, episodes = ColumnId.parse(rest), writer.session(), len(recorded.episodes)
    stored = read_column(session, column)
    covered = 0 if stored is None else stored.episodes
    if covered < episodes:
        raise incomplete(replay, writer.name, column, covered, episodes)
    return read_labels(session, column, slice(0, episodes), slice(0, len(recorded.reward)))


def _require_episodes(
    replay: Path, writers: Mapping[str, RewardWriter], stream: str, judged: Mapping[int, bool]
) -> None:
    if stream not in writers:
        raise UsageError(f"replay {replay} has no stream {stream!r}; it has {', '.join(writers) or 'none'}")
    table = writers[stream].closed_episodes()
    for episode in judged:
        if not 0 <= episode < len(table):
            raise UsageError(
                f"stream {stream!r} has no closed episode {episode}; its episodes are 0 to {len(table) - 1}"
            )
        if table[episode, EPISODE["outcome"]] == Outcome.DISCARDED:
            raise UsageError(
                f"stream {stream!r}, episode {episode} was discarded by a person: it is never drawn, whatever "
                "its label"
            )


def _members(reader: ReplayReader, stream: str) -> Ints:
    """The episodes of a stream in the reader, in their order."""
    return np.flatnonzero(reader.stream_of_episode == list(reader.streams).index(stream))


def _facts(reader: ReplayReader, episodes: Ints) -> Labels:
    """What was recorded of consecutive episodes of one stream, read at once."""
    table = reader.table[episodes]
    start = int(table[0, EPISODE["first_row"]])
    rows = slice(start, start + int(table[:, EPISODE["length"]].sum()))
    return recorded_labels(table, reader.reward[rows], reader.column("terminated")[rows])
