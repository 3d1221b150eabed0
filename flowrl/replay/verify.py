"""Check every invariant of a replay and name each violation by stream, episode and step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import icechunk
import numpy as np
import zarr
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table

from flowrl.errors import DataError, ReplayError
from flowrl.replay import storage
from flowrl.replay.frames import decode
from flowrl.replay.reward_checks import Fault, reward_faults
from flowrl.replay.schema import (
    EPISODE,
    INT,
    NO_INTERVENTION,
    Array,
    Kind,
    Outcome,
    OutcomeBy,
    Source,
    column_name,
    float_columns,
)
from flowrl.replay.storage import BRANCH, CHUNK_ROWS, StreamArrays
from flowrl.spec import Feature, Spec, compare

_SHOWN = 100


@dataclass(frozen=True)
class Violation:
    """One broken invariant. ``episode`` and ``step`` are -1 where it concerns more than one of them."""

    stream: str
    rule: str
    message: str
    episode: int = -1
    step: int = -1

    def __str__(self) -> str:
        place = f"stream {self.stream!r}"
        place += f", episode {self.episode}" if self.episode >= 0 else ""
        place += f", step {self.step}" if self.step >= 0 else ""
        return f"{place}: {self.message} [{self.rule}]"


@dataclass(frozen=True)
class Report:
    """What `verify` found: every violation, and how much it looked at."""

    violations: tuple[Violation, ...]
    streams: int
    episodes: int
    rows: int

    @property
    def ok(self) -> bool:
        """Whether the replay breaks no invariant."""
        return not self.violations


@dataclass(frozen=True)
class _Frames:
    """Encoded frames one after another, and the offset and length of each camera's in them."""

    data: NDArray[np.uint8]
    steps: NDArray[np.int64]
    finals: NDArray[np.int64]


@dataclass(frozen=True)
class _Content:
    """A stream read as it lies on the disk. Rows are those the episode table claims."""

    name: str
    kind: Kind
    spec: Spec
    digest: str
    texts: dict[str, list[str]]
    table: Array
    floats: Array
    integers: Array
    beyond: Array
    finals: Array
    frames: _Frames | None
    rewards: tuple[Fault, ...]

    @property
    def episode_of_row(self) -> NDArray[np.int64]:
        """By first rows alone, so that it is defined for a table whose lengths contradict them."""
        starts = self.table[:, EPISODE["first_row"]]
        found = np.searchsorted(starts, np.arange(len(self.integers)), side="right") - 1
        return np.maximum(found, 0)

    @property
    def step_of_row(self) -> NDArray[np.int64]:
        return np.arange(len(self.integers)) - self.table[self.episode_of_row, EPISODE["first_row"]]

    def column(self, name: str) -> NDArray[np.int64]:
        return self.integers[:, INT[name]]


def verify(path: str | Path) -> Report:
    """Check every stream of a replay; reads all of it. Raises ReplayError when the replay is missing."""
    violations: list[Violation] = []
    contents: list[_Content] = []
    names = storage.stream_names(Path(path))
    for name in names:
        try:
            content = _read(Path(path) / name)
        except Exception as error:
            # Damage can surface as any error of the store, the codecs or the parsers: all are findings.
            message = f"cannot be read: {storage.first_line(error)}; restore it from a copy"
            violations.append(Violation(name, "readable", message))
            continue
        contents.append(content)
        violations += _check_table(content)
        violations += _check_rows(content)
        violations += _check_people(content)
        violations += _check_frames(content)
        violations += [Violation(name, "rewards", *fault) for fault in content.rewards]
    for content in contents[1:]:
        for difference in compare(contents[0].spec, content.spec):
            message = f"spec differs from stream {contents[0].name!r}: {difference}"
            violations.append(Violation(content.name, "specs equal", message))
    return Report(
        tuple(violations),
        len(names),
        sum(len(c.table) for c in contents),
        sum(len(c.floats) for c in contents),
    )


def render_report(report: Report) -> RenderableType:
    """The report for a terminal: one line per violation, or one line that says all is well."""
    seen = f"{report.streams} streams, {report.episodes} episodes, {report.rows} steps"
    if report.ok:
        return f"[green]ok[/green]: {seen}, every invariant holds"
    table = Table("stream", "episode", "step", "rule", "what is wrong", title=f"violations in {seen}")
    for violation in report.violations[:_SHOWN]:
        episode = str(violation.episode) if violation.episode >= 0 else "-"
        step = str(violation.step) if violation.step >= 0 else "-"
        table.add_row(violation.stream, episode, step, violation.rule, violation.message)
    more = len(report.violations) - _SHOWN
    return Group(table, f"and {more} more") if more > 0 else table


def _read(path: Path) -> _Content:
    repository = storage.open_repository(path)
    session = repository.readonly_session(BRANCH)
    header = storage.read_header(path, session)
    arrays = StreamArrays()
    table = storage.read_episode_table(arrays, session, 0)
    rows = int(table[-1, EPISODE["first_row"]] + table[-1, EPISODE["length"]]) if len(table) else 0
    if rows < 0:
        raise ReplayError(f"the episode table claims {rows} rows")
    root = zarr.open_group(session.store, mode="r")
    group = zarr.open_group(session.store, path="episodes", mode="r")
    texts = cast("dict[str, list[str]]", group.attrs.asdict())
    integers = arrays.read(session, "steps/int", 0, rows)
    return _Content(
        name=path.name,
        kind=header.kind,
        spec=header.spec,
        digest=str(root.attrs.asdict()["spec_digest"]),
        texts=texts,
        table=table,
        floats=arrays.read(session, "steps/float", 0, rows),
        integers=integers,
        beyond=_beyond(arrays, session, rows),
        finals=arrays.read(session, "episodes/final", 0, len(table)),
        frames=_read_frames(arrays, session, rows, len(table)) if header.spec.cameras else None,
        rewards=tuple(reward_faults(session, table, integers)),
    )


def _read_frames(arrays: StreamArrays, session: icechunk.Session, rows: int, episodes: int) -> _Frames:
    steps = arrays.read(session, "images/steps", 0, rows)
    finals = arrays.read(session, "images/final", 0, episodes)
    places = np.concatenate([steps, finals])
    end = int((places[:, 0::2] + places[:, 1::2]).max(initial=0))
    return _Frames(arrays.read(session, "images/bytes", 0, end), steps, finals)


def _beyond(arrays: StreamArrays, session: icechunk.Session, rows: int) -> NDArray[Any]:
    """The rest of the last chunk: rows no episode claims."""
    return arrays.read(session, "steps/int", rows, (rows // CHUNK_ROWS + 1) * CHUNK_ROWS)


def _check_table(content: _Content) -> Iterator[Violation]:
    """Counts, contiguity, words and digests of the episode table."""
    if content.digest != content.spec.digest():
        message = f"stored digest {content.digest} is not the digest {content.spec.digest()} of its spec"
        yield Violation(content.name, "digest", message)
    if (content.beyond[:, INT["episode"]] >= 0).any():
        count = int((content.beyond[:, INT["episode"]] >= 0).sum())
        yield Violation(content.name, "counts", f"{count} rows after the last episode belong to none")
    next_row = 0
    for number, row in enumerate(content.table.tolist()):
        values = dict(zip(EPISODE, row, strict=True))
        for rule, message in _episode_faults(content, values, number, next_row):
            yield Violation(content.name, rule, message, number)
        next_row = values["first_row"] + values["length"]


def _episode_faults(
    content: _Content, values: dict[str, int], number: int, next_row: int
) -> Iterator[tuple[str, str]]:
    first, length = values["first_row"], values["length"]
    if first != next_row:
        yield "contiguous", f"starts at row {first}, the episode before ends at row {next_row}"
    if length < 1:
        yield "counts", f"has {length} steps"
    if values["outcome"] not in set(Outcome) or values["outcome_by"] not in set(OutcomeBy):
        yield "outcome", f"outcome {values['outcome']} by {values['outcome_by']} is not known"
    elif values["outcome"] == Outcome.OPEN and number < len(content.table) - 1:
        yield "outcome", "is open, but another episode follows"
    elif values["outcome"] in (Outcome.SUCCESS, Outcome.FAILURE) and values["outcome_by"] == OutcomeBy.NONE:
        yield "outcome", f"{Outcome(values['outcome']).name.lower()}, but nobody said so"
    if not 0 <= values["task"] < len(content.texts["tasks"]):
        yield "task", f"task text number {values['task']} does not exist"
    digests = content.texts["digests"]
    if not 0 <= values["digest"] < len(digests) or digests[values["digest"]] != content.digest:
        yield "digest", "was recorded under another spec than its stream states"
    known = content.column("policy_version")[first : first + length]
    known = known[known >= 0]
    span = (int(known.min()), int(known.max())) if len(known) else (-1, -1)
    stated = (values["version_min"], values["version_max"])
    if span != stated:
        yield "policy versions", f"states policy versions {stated}, its steps have {span}"
    final = content.finals[number]
    if values["has_final"] and not np.isfinite(final).all():
        yield "finite", "its observation after the last step is not finite"
    if not values["has_final"] and np.isfinite(final).any():
        yield "counts", "states no observation after the last step, but has one"


def _check_rows(content: _Content) -> Iterator[Violation]:
    """Numbering, finite values, stamps and ends of the step rows."""
    if not len(content.integers):
        return
    columns, episode = float_columns(content.spec), content.episode_of_row
    last = np.not_equal(episode, np.append(episode[1:], -1))
    same = ~np.roll(last, 1)
    terminated, truncated = content.column("terminated"), content.column("truncated")
    timeout = content.table[episode, EPISODE["outcome"]] == Outcome.TIMEOUT
    proposed = content.floats[:, slice(*columns["policy_action"])]
    nan = np.isnan(proposed)
    silent = (content.column("source") == Source.POLICY) & nan.all(axis=1)
    earlier = same & (np.diff(content.column("stamp_ns"), prepend=0) < 0)
    findings: list[tuple[Any, str, str]] = [
        (content.column("episode") != episode, "numbered", "says it is of another episode"),
        (content.column("step") != content.step_of_row, "numbered", "has another step number"),
        (earlier, "stamps", "is stamped before the step before it"),
        (
            ~np.isin(terminated, (0, 1)) | ~np.isin(truncated, (0, 1)),
            "end",
            "has an end flag that is not 0 or 1",
        ),
        (~last & ((terminated == 1) | (truncated == 1)), "end", "ends the episode, but is not its last step"),
        (last & (terminated == 1) & timeout, "outcome", "terminated, but the episode says timeout"),
        (np.isinf(proposed).any(axis=1), "policy_action", "policy_action is infinite"),
        (nan.any(axis=1) & ~nan.all(axis=1), "policy_action", "policy_action is partly NaN"),
        (silent, "policy_action", "the policy acted, but policy_action is NaN"),
    ]
    for start, stop in (span for name, span in columns.items() if name != "policy_action"):
        for column in range(start, stop):
            label = column_name(content.spec, column)
            findings.append((~np.isfinite(content.floats[:, column]), "finite", f"{label} is not finite"))
    for wrong, rule, message in findings:
        yield from _rows(content, wrong, rule, message)


def _check_people(content: _Content) -> Iterator[Violation]:
    """Sources and intervention spans."""
    source, takeover = content.column("source"), content.column("intervention_id")
    yield from _rows(content, ~np.isin(source, list(Source)), "source", "its source is not known")
    yield from _rows(content, takeover < NO_INTERVENTION, "intervention", "intervention_id is below -1")
    inside = takeover > NO_INTERVENTION
    wrong = inside & (source == Source.POLICY)
    yield from _rows(content, wrong, "intervention", "lies in an intervention, but the policy acted")
    if not content.kind.is_demonstration:
        wrong = ~inside & (source == Source.HUMAN)
        yield from _rows(content, wrong, "intervention", "a human acted outside an intervention")
    for number, row in enumerate(content.table.tolist()):
        first = row[EPISODE["first_row"]]
        span = takeover[first : first + max(row[EPISODE["length"]], 0)]
        starts = np.flatnonzero((span != np.append(NO_INTERVENTION, span[:-1])) & (span > NO_INTERVENTION))
        again = starts[1:][np.diff(span[starts]) <= 0]
        if len(again):
            message = f"intervention {span[again[0]]} begins a second time or out of order"
            yield Violation(content.name, "intervention", message, number, int(again[0]))


def _check_frames(content: _Content) -> Iterator[Violation]:
    """Every frame of every camera decodes to the size that the spec says; a frame stored once is read once."""
    frames = content.frames
    if frames is None:
        return
    seen = set[tuple[int, int, int]]()
    episode_of_row, step_of_row = content.episode_of_row, content.step_of_row
    for camera, feature in enumerate(content.spec.cameras):
        columns = slice(2 * camera, 2 * camera + 2)
        for row, place in enumerate(frames.steps[:, columns].tolist()):
            if fault := _frame_fault(frames, camera, place, feature, seen):
                yield Violation(
                    content.name, "frames", fault, int(episode_of_row[row]), int(step_of_row[row])
                )
        for number, place in enumerate(frames.finals[:, columns].tolist()):
            if content.table[number, EPISODE["has_final"]] and (
                fault := _frame_fault(frames, camera, place, feature, seen)
            ):
                yield Violation(content.name, "frames", f"after the last step, {fault}", number)


def _frame_fault(
    frames: _Frames, camera: int, place: list[int], feature: Feature, seen: set[tuple[int, int, int]]
) -> str:
    """What is wrong with one frame, in words; empty when nothing is, or when it was looked at before."""
    offset, length = place
    if (camera, offset, length) in seen:
        return ""
    seen.add((camera, offset, length))
    if offset < 0 or length < 1 or offset + length > len(frames.data):
        return f"{feature.name} lies at bytes {offset}..{offset + length} of {len(frames.data)}"
    try:
        shape = decode(frames.data[offset : offset + length].tobytes()).shape
    except DataError as error:
        return f"{feature.name}: {error}"
    return (
        "" if shape == feature.shape else f"{feature.name} has shape {shape}, the spec says {feature.shape}"
    )


def _rows(content: _Content, wrong: NDArray[np.bool_], rule: str, message: str) -> Iterator[Violation]:
    """One violation for each row marked wrong."""
    found = np.flatnonzero(wrong)
    if len(found):
        episode, step = content.episode_of_row, content.step_of_row
        for row in found:
            yield Violation(content.name, rule, message, int(episode[row]), int(step[row]))
