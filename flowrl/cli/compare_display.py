"""How a comparison looks on a terminal: one line per running job, totals, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flowrl.cli.progress import duration
from flowrl.comparison import Outcome
from flowrl.comparison.jobs import Job
from flowrl.comparison.progress import Report
from flowrl.comparison.table import COLUMNS, rows
from flowrl.comparison.words import caveats, verdicts

_EVERY_S = 15.0


class _Watcher:
    """What both displays share: when each job began, and a line for each that ends."""

    def __init__(self, write: Callable[[Text], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._began: dict[str, float] = {}
        self.start = clock()

    def watch(self, jobs: Sequence[Job], reports: dict[str, Report]) -> None:
        """How the jobs stand."""
        for name in reports:
            self._began.setdefault(name, self._clock())
        self.show(jobs, reports)

    def show(self, jobs: Sequence[Job], reports: dict[str, Report]) -> None:
        """Draw it."""
        raise NotImplementedError

    def ended(self, job: Job) -> None:
        """One line that stays."""
        line = Text()
        good = job.state == "done"
        line.append("✔ " if good else "✘ ", style="bold green" if good else "bold red")
        line.append(job.name)
        line.append(f"  {duration(self.elapsed(job.name))}", style="cyan")
        if job.reason:
            line.append(f"  {job.state}: {job.reason}", style="red")
        self._write(line)

    def elapsed(self, name: str) -> float:
        """Seconds since a job began in this session."""
        return self._clock() - self._began.get(name, self._clock())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class PlainWatcher(_Watcher):
    """Lines for where nobody watches: one per job that ends, and a sign of life now and then."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda line: write(line.plain), clock)
        self._say, self._last = write, clock()

    def show(self, jobs: Sequence[Job], reports: dict[str, Report]) -> None:
        """A line when the last one is old enough."""
        if self._clock() - self._last < _EVERY_S:
            return
        self._last = self._clock()
        running = "; ".join(f"{name}: {describe(report)}" for name, report in reports.items())
        self._say(f"  {totals(jobs)} after {duration(self._clock() - self.start)}; {running}")


class RichWatcher(_Watcher):
    """A live display: a bar per running job and the totals."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda line: console.print(line), clock)
        self._jobs: Sequence[Job] = ()
        self._reports: dict[str, Report] = {}
        self._live = Live(
            console=console, get_renderable=self.renderable, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, jobs: Sequence[Job], reports: dict[str, Report]) -> None:
        """Keep it for the next drawing."""
        self._jobs, self._reports = jobs, dict(reports)

    def renderable(self) -> RenderableType:
        """The display as it is now."""
        grid = Table.grid(padding=(0, 1))
        for name, report in self._reports.items():
            bar = ProgressBar(total=1.0, completed=report.fraction or 0.0, width=20)
            elapsed = Text(duration(self.elapsed(name)), style="cyan")
            note = Text(describe(report), style="dim", overflow="ellipsis", no_wrap=True)
            grid.add_row(Text(name, style="bold"), bar, elapsed, note)
        elapsed = Text(duration(self._clock() - self.start), style="cyan")
        grid.add_row("", Text(totals(self._jobs), no_wrap=True), elapsed, "")
        return grid


def totals(jobs: Sequence[Job]) -> str:
    """How many jobs are done, failed and open."""
    count = {state: sum(job.state == state for job in jobs) for state in ("done", "failed", "skipped")}
    bad = f", {count['failed'] + count['skipped']} failed" if count["failed"] + count["skipped"] else ""
    return f"{count['done']} of {len(jobs)} jobs done{bad}"


def describe(report: Report) -> str:
    """Where a job is, in words."""
    share = "" if report.fraction is None else f" {report.fraction:.0%}"
    success = "" if report.success is None else f", last evaluation {report.success:.0%}"
    return f"{report.phase}{share}{success}" + (f": {report.note}" if report.note else "")


def make_watcher(console: Console | None = None) -> RichWatcher | PlainWatcher:
    """The display that suits where it is shown; standard error by default. Use it in a ``with``."""
    console = console or Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return RichWatcher(console)

    def write(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return PlainWatcher(write)


def print_outcome(outcome: Outcome, console: Console | None = None) -> None:
    """The table, turned so that recipes are columns, the verdicts, what is open, and where the files are."""
    console = console or Console()
    found = rows(outcome.comparison)
    table = Table("", *(escape(row.cells[0]) for row in found), box=None)
    for index, name in enumerate(COLUMNS[1:], start=1):
        table.add_row(Text(name, style="dim"), *(Text(row.cells[index]) for row in found))
    console.print(table)
    for name, reason in outcome.failed.items():
        console.print(Text(f"failed: {name}: {reason}", style="red"), soft_wrap=True)
    for text in verdicts(outcome.comparison):
        console.print(Text(text, style="bold"), soft_wrap=True)
    for text in caveats(outcome.comparison):
        console.print(Text(f"- {text}", style="dim"), soft_wrap=True)
    directory = outcome.place.directory
    report = directory / "report.html"
    console.print(f"report: {report}\nnumbers: {directory / 'comparison.json'}", markup=False, soft_wrap=True)
