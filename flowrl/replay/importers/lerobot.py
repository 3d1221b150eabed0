"""Import a LeRobotDataset v3 into a new stream. docs/import.md says what is kept, judged and dropped.

Columns are read once into arrays, videos decoded from front to back; LeRobot itself is not needed.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from flowrl.errors import DataError, UsageError
from flowrl.replay.frames import FrameCodec, Pixels, decode, frame_size
from flowrl.replay.importers.actions import (
    ActionRule,
    ActionTransform,
    RangeCounter,
    apply_rule,
    require_finite,
)
from flowrl.replay.importers.episodes import DemonstrationDone, commit_rule
from flowrl.replay.importers.lerobot_episodes import events_of
from flowrl.replay.importers.lerobot_features import (
    DONE,
    REWARD,
    Choice,
    Selection,
    action_labels,
    select,
)
from flowrl.replay.importers.lerobot_files import INFO, TASKS, EpisodePlace, LeRobotFiles
from flowrl.replay.importers.lerobot_video import MissingFrames, VideoCursor
from flowrl.replay.importers.provenance import keep_report, require_new
from flowrl.replay.importers.report import Dropped, ImportReport
from flowrl.replay.importers.staging import staged
from flowrl.replay.schema import Array, Kind, Outcome, Source, Step
from flowrl.replay.writer import StreamWriter
from flowrl.spec import Feature


@dataclass(frozen=True)
class LeRobotOptions:
    """How to import.

    Attributes:
        choice: which features, under which names, for which spec.
        actions: what to do about actions outside the bounds.
        source: who acted, where the dataset does not say.
        limit: import only the first so many episodes.
        salvage: drop episodes whose video lacks frames, instead of refusing the dataset.
        replace: replace the stream when it is an earlier import.
        allow_duplicate: import episodes that another stream of the replay already holds.
        codec: how decoded frames are stored.
    """

    choice: Choice = field(default_factory=Choice)
    actions: ActionRule = "refuse"
    source: Source = Source.HUMAN
    limit: int | None = None
    salvage: bool = False
    replace: bool = False
    allow_duplicate: bool = False
    codec: FrameCodec = field(default_factory=FrameCodec)


@dataclass
class _Tally:
    """What is counted while episodes are written."""

    names: list[str] = field(default_factory=list[str])
    steps: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    salvaged: list[EpisodePlace] = field(default_factory=list[EpisodePlace])
    done_inside: int = 0
    warnings: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Data:
    """All numbers of the episodes to import: ``columns`` by the spec's names, each (N, ...).

    ``rows`` are those of each episode.
    """

    episodes: list[EpisodePlace]
    rows: list[slice]
    columns: Mapping[str, Array]
    transform: ActionTransform


def import_lerobot(
    path: str | Path,
    replay: str | Path,
    stream: str,
    options: LeRobotOptions | None = None,
    on_episode: Callable[[DemonstrationDone], None] = lambda done: None,
) -> ImportReport:
    """Import a dataset directory into the new stream ``<replay>/<stream>``, whole or not at all.

    Raises:
        UsageError: the directory is no LeRobotDataset v3, or an option does not fit it.
        DataError: a file is missing or damaged, a video lacks frames (without ``salvage``), a value is not
            finite, there is no action, or an action leaves the bounds without a rule.
        SpecMismatch: the dataset differs from the given spec; every difference is listed.
        ReplayError: the stream exists, or another stream holds the same episodes.
        MissingExtra: pyarrow, or PyAV for videos, is not installed.
    """
    started, options = time.perf_counter(), options or LeRobotOptions()
    replay, files = Path(replay), LeRobotFiles(Path(path).resolve())
    selection = select(files, options.choice)
    with staged(replay, stream, options.replace) as aside:
        sha256, episodes = files.sha256(), _limited(files.episodes, options.limit)
        if not options.allow_duplicate:
            require_new(replay, stream, sha256, files.name, [each.name for each in episodes])
        data = _read(files, selection, episodes, options.actions)
        spec = selection.spec
        with StreamWriter.create(
            aside, stream, spec, Kind.IMPORT, commit_rule(spec), options.codec
        ) as writer:
            tally = _Import(files, selection, options, data, writer).run(on_episode)
        report = ImportReport(
            stream=stream,
            source=files.name,
            sha256=sha256,
            format=f"LeRobotDataset {files.version}",
            environment=files.robot or "not stated",
            episodes=len(tally.names),
            steps=tally.steps,
            successes=tally.outcomes[Outcome.SUCCESS],
            demonstrations=tuple(tally.names),
            observations="file",
            rule=options.actions,
            ranges=data.transform.ranges,
            dropped=_dropped(files, selection, data, tally),
            warnings=_notes(selection, tally),
            seconds=time.perf_counter() - started,
        )
        keep_report(report, aside / stream)
    return report


def _limited(episodes: list[EpisodePlace], limit: int | None) -> list[EpisodePlace]:
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}; it must be at least 1")
    return episodes[:limit]


def _read(files: LeRobotFiles, selection: Selection, episodes: list[EpisodePlace], rule: ActionRule) -> _Data:
    """Read and check all numbers before any frame is decoded."""
    names = {name: each.name for name, each in selection.columns.items() if each.is_numeric}
    read = files.numbers(list(names.values()), episodes)
    columns = {name: read[column] for name, column in names.items()} | {"task_index": read["task_index"]}
    for name in ("action", *(each.name for each in selection.spec.state_features), REWARD):
        if name in columns:
            columns[name] = columns[name].astype(np.float32)
    ends = itertools.accumulate(episode.length for episode in episodes)
    rows = [slice(end - each.length, end) for end, each in zip(ends, episodes, strict=True)]
    counter, labels = RangeCounter(selection.spec.action), _labels(selection)
    for span, episode in zip(rows, episodes, strict=True):
        for name, each in labels.items():
            values = columns[name][span].reshape(episode.length, -1)
            require_finite(values, each, f"{files.name}, {episode.name}")
        counter.add(columns["action"][span])
    return _Data(episodes, rows, columns, apply_rule(rule, counter.ranges(), files.name))


def _labels(selection: Selection) -> dict[str, list[str]]:
    """A label for each dimension of the columns that must be finite."""
    spec = selection.spec
    labels = {
        each.name: [each.dimension_name(i) for i in range(each.size)] for each in _flat(spec.state_features)
    }
    labels["action"] = action_labels(spec.action.names)
    if REWARD in selection.events:
        labels[REWARD] = [REWARD]
    if selection.restored:
        labels["policy_action"] = [f"policy_{each}" for each in labels["action"]]
    return labels


def _flat(features: tuple[Feature, ...]) -> list[Feature]:
    """Features of several dimensions as vectors, whose dimensions have no names."""
    return [each if len(each.shape) == 1 else Feature(each.name, (each.size,)) for each in features]


@dataclass
class _Import:
    """Writes the episodes of a dataset one by one and counts."""

    files: LeRobotFiles
    selection: Selection
    options: LeRobotOptions
    data: _Data
    writer: StreamWriter
    tally: _Tally = field(default_factory=_Tally)

    def run(self, on_episode: Callable[[DemonstrationDone], None]) -> _Tally:
        """Write all episodes. Raises MissingFrames unless the options say to drop such episodes."""
        episodes, tally = self.data.episodes, self.tally
        with ExitStack() as stack:
            cursors: dict[str, VideoCursor] = {}
            for camera in self.selection.cameras:
                cursors[camera.name] = VideoCursor(self.files.root, self.files.fps)
                stack.callback(cursors[camera.name].close)
            for index, episode in enumerate(episodes):
                try:
                    frames = {name: self._frames(name, cursor, episode) for name, cursor in cursors.items()}
                except MissingFrames:
                    if not self.options.salvage:
                        raise
                    tally.salvaged.append(episode)
                    continue
                outcome = self._write(index, frames)
                success = None if outcome is Outcome.UNKNOWN else outcome is Outcome.SUCCESS
                on_episode(DemonstrationDone(episode.name, index + 1, len(episodes), episode.length, success))
        if not tally.names:
            raise DataError(
                f"{self.files.name}: no episode has all its frames; nothing was imported. Copy the videos again"
            )
        return tally

    def _frames(self, camera: str, cursor: VideoCursor, episode: EpisodePlace) -> list[bytes]:
        """An episode's frames as bytes to store: images as they are where the size fits."""
        column, where = self.selection.columns[camera], f"{self.files.name}, {episode.name}"
        fit = partial(self._fitted, camera)
        if column.dtype == "video":
            frames = cursor.frames(episode.videos[column.name], episode.length, where)
            return [self.options.codec.encode(fit(frame, f"{where}: {camera}")) for frame in frames]
        size, out = self.selection.size(camera), list[bytes]()
        for step, data in enumerate(self.files.images(column.name, episode)):
            try:
                fits = frame_size(data) == size
                pixels = None if fits else decode(data)
            except DataError as error:
                raise DataError(f"{where}, step {step}: {camera}: {error}") from error
            if pixels is not None:
                data = self.options.codec.encode(fit(pixels, f"{where}, step {step}: {camera}"))
            out.append(data)
        return out

    def _fitted(self, camera: str, pixels: Pixels, where: str) -> Pixels:
        """Pixels (3, height, width) at the camera's size."""
        height, width = self.selection.size(camera)
        if pixels.shape[1:] == (height, width):
            return pixels
        if self.options.choice.image_size is None:
            raise DataError(
                f"{where} is {pixels.shape[1]} x {pixels.shape[2]} pixels, {INFO} says {height} x {width}; resize "
                "all frames with --image-size"
            )
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).transpose(2, 0, 1)

    def _write(self, index: int, frames: Mapping[str, list[bytes]]) -> Outcome:
        episode, selection, tally = self.data.episodes[index], self.selection, self.tally
        columns = {name: each[self.data.rows[index]] for name, each in self.data.columns.items()}
        try:
            events = events_of(columns, selection.events, selection.restored, self.options.source)
        except DataError as error:
            raise DataError(f"{self.files.name}, {episode.name}: {error}") from error
        ending, last = events.ending, episode.length - 1
        self.writer.begin_episode(task=self._task(columns["task_index"], episode))
        for step, action in enumerate(self.data.transform(columns["action"])):
            observation: dict[str, Array | bytes] = {
                each.name: columns[each.name][step] for each in selection.spec.state_features
            }
            proposed = events.proposed is not None and events.proposed[step]
            self.writer.append(
                Step(
                    observation | {name: each[step] for name, each in frames.items()},
                    action,
                    float(events.reward[step]),
                    terminated=ending.terminated and step == last,
                    truncated=ending.truncated and step == last,
                    policy_action=columns["policy_action"][step] if proposed else None,
                    source=events.source[step],
                    intervention_id=events.intervention_id[step],
                    stamp_ns=round(step / self.files.fps * 1e9),
                )
            )
        self.writer.close_episode(ending.outcome, ending.outcome_by)
        tally.names.append(episode.name)
        tally.steps += episode.length
        tally.outcomes[ending.outcome] += 1
        tally.done_inside += DONE in selection.events and bool((columns[DONE][:-1] > 0).any())
        return ending.outcome

    def _task(self, indices: Array, episode: EpisodePlace) -> str:
        """The instruction of an episode: that of its first frame."""
        first = int(indices.reshape(-1)[0])
        if first not in self.files.tasks:
            raise DataError(
                f"{self.files.name}, {episode.name}: task {first} is not in {TASKS}; copy it again"
            )
        if (indices != first).any():
            self.tally.warnings.append(f"{episode.name} has several tasks; all its steps keep the first one")
        return self.files.tasks[first]


def _dropped(files: LeRobotFiles, selection: Selection, data: _Data, tally: _Tally) -> tuple[Dropped, ...]:
    """Everything of the dataset that is not in the stream."""
    out = list(selection.dropped)
    beyond = len(files.episodes) - len(data.episodes)
    if beyond:
        out.append(Dropped("episodes", beyond, f"beyond the limit of {len(data.episodes)}"))
    if tally.salvaged:
        steps = sum(episode.length for episode in tally.salvaged)
        out.append(
            Dropped("episodes", len(tally.salvaged), f"their videos lack frames ({steps:,} steps; --salvage)")
        )
    return tuple(out)


def _notes(selection: Selection, tally: _Tally) -> tuple[str, ...]:
    notes = [*selection.warnings, *tally.warnings]
    if tally.salvaged:
        notes.append(f"without frames, and left out: {', '.join(each.name for each in tally.salvaged)}")
    unknown, failed = tally.outcomes[Outcome.UNKNOWN], tally.outcomes[Outcome.FAILURE]
    if unknown and not selection.restored:
        notes.append(
            f"the dataset does not say whether its {unknown} episodes succeed; their outcome is unknown"
        )
    if failed and not selection.restored:
        notes.append(f"{failed} of {len(tally.names)} episodes never succeed; imported as failures")
    if tally.done_inside:
        notes.append(
            f"{DONE} is set before the last step of {tally.done_inside} episodes; they are kept whole, and only "
            "their last step ends them"
        )
    return tuple(notes)
