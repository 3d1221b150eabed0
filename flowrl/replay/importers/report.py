"""What an import did: read back by `imported`, shown by `render_import`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from flowrl.errors import ReplayError
from flowrl.replay import storage
from flowrl.replay.importers.actions import ActionRange, ActionRule

REPORT_FILE = "import.json"
"""Name of the report in the directory of its stream."""

_FORMAT = 1


@dataclass(frozen=True)
class Dropped:
    """Something of the file that is not in the stream, how much of it, and why."""

    what: str
    count: int
    reason: str


@dataclass(frozen=True)
class StreamUse:
    """One stream of messages of a recording: how many there were, and how old they were in the rows, ms."""

    name: str
    topic: str
    messages: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    ``source`` is the name of the file or directory and ``sha256`` that of its bytes; ``environment`` is
    empty where none was needed; ``demonstrations`` are the names imported, in order. ``observations`` says
    where observations came from: states replayed in the simulator, or the file. ``ranges`` are the actions
    as found; ``rule`` is what was done about them. ``acted`` counts steps by who acted, where that was looked
    at step by step, and ``takeovers`` those of all episodes. ``streams`` are the messages that rows were made of,
    where the source is a recording of messages.
    """

    stream: str
    source: str
    sha256: str
    format: str
    environment: str
    episodes: int
    steps: int
    successes: int
    demonstrations: tuple[str, ...]
    observations: Literal["states", "file"]
    rule: ActionRule
    ranges: tuple[ActionRange, ...]
    dropped: tuple[Dropped, ...]
    warnings: tuple[str, ...]
    seconds: float
    acted: Mapping[str, int] = field(default_factory=dict[str, int])
    takeovers: int = 0
    streams: tuple[StreamUse, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back to an equal report."""
        return {"report_format": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ImportReport:
        """Read a report. Raises ReplayError when it is of another version or incomplete."""
        values: dict[str, Any] = dict(data)
        if values.pop("report_format", None) != _FORMAT:
            raise ReplayError(
                f"import report: format {data.get('report_format')}, this flowrl reads {_FORMAT}"
            )
        try:
            values["demonstrations"] = tuple(values["demonstrations"])
            values["ranges"] = tuple(ActionRange(**each) for each in values["ranges"])
            values["dropped"] = tuple(Dropped(**each) for each in values["dropped"])
            values["warnings"] = tuple(values["warnings"])
            values["streams"] = tuple(StreamUse(**each) for each in values.get("streams", ()))
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ReplayError(f"import report: {error}") from error


def read_report(stream: Path) -> ImportReport | None:
    """The report of a stream directory; None when the stream was not imported.

    Raises ReplayError when the report is damaged.
    """
    file = stream / REPORT_FILE
    try:
        return ImportReport.from_json(json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ReplayError) as error:
        raise ReplayError(
            f"stream {stream.name!r} in replay {str(stream.parent)!r}: its {REPORT_FILE} cannot be read "
            f"({storage.first_line(error)}); restore it, or move the stream out of the replay and import again"
        ) from error


def imported(replay: Path) -> Iterator[ImportReport]:
    """The reports of all imported streams of a replay; none when the replay does not exist."""
    if replay.is_dir():
        for name in storage.stream_names(replay):
            report = read_report(replay / name)
            if report is not None:
                yield report


def render_import(report: ImportReport) -> RenderableType:
    """The report for a terminal: counts, actions per dimension, what was dropped, warnings."""
    actions = Table(
        "action", "min", "max", "allowed", "outside", "factor", title=f"actions ({report.rule})", box=None
    )
    for each in report.ranges:
        style = "yellow" if each.is_outside else ""
        numbers = (f"{each.minimum:g}", f"{each.maximum:g}", f"{each.low:g} .. {each.high:g}")
        outside = f"{each.share_outside:.1%}" if each.is_outside else "-"
        actions.add_row(escape(each.name), *numbers, outside, f"{each.scale:g}", style=style)
    parts: list[RenderableType] = [_summary(report), actions]
    if report.streams:
        streams = Table("stream", "topic", "messages", "age p50", "p99", "max", title="streams", box=None)
        for used in report.streams:
            ages = (f"{age:.1f} ms" for age in (used.p50_ms, used.p99_ms, used.max_ms))
            streams.add_row(escape(used.name), escape(used.topic), f"{used.messages:,}", *ages)
        parts.append(streams)
    if report.dropped:
        dropped = Table("dropped", "count", "reason", box=None)
        for entry in report.dropped:
            dropped.add_row(escape(entry.what), f"{entry.count:,}", escape(entry.reason))
        parts.append(dropped)
    parts += [f"[yellow]warning:[/yellow] {escape(warning)}" for warning in report.warnings]
    return Group(*parts)


def _summary(report: ImportReport) -> Table:
    came_from = (
        "states replayed in the simulator" if report.observations == "states" else "taken from the file"
    )
    share = f"{report.successes:,} ({report.successes / report.episodes:.0%})"
    table = Table(box=None, show_header=False)
    for name, value in (
        ("stream", report.stream),
        ("source", f"{report.source} ({report.format}, sha256 {report.sha256[:12]})"),
        ("environment", report.environment or "none"),
        ("episodes", f"{report.episodes:,}"),
        ("steps", f"{report.steps:,}"),
        ("successes", share),
        ("acted", _acted(report)),
        ("observations", came_from),
        ("time", f"{report.seconds:.1f} s"),
    ):
        if value:
            table.add_row(name, escape(value))
    return table


def _acted(report: ImportReport) -> str:
    shares = [f"{who} {steps:,}" for who, steps in report.acted.items()]
    takeovers = [f"{report.takeovers:,} takeovers"] if report.takeovers else []
    return ", ".join(shares + takeovers)
