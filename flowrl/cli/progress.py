"""Progress on a terminal: phases with their time, a bar, and a live success curve while fine-tuning.

Where nobody watches (a pipe, CI) it is one line per phase and a sign of life now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_CURVE_WIDTH, _CURVE_HEIGHT = 48, 4
_Clock = Callable[[], float]


class _Phases:
    """What both displays share: the phase that runs, and a context that ends it."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self.name, self.note = "", ""
        self.total: float | None = None
        self.done = 0.0
        self._began = clock()

    def phase(self, name: str, total: float | None = None) -> None:
        """The former phase is over; a new one begins."""
        self._end(True)
        self.name, self.total, self.done, self.note = name, total, 0.0, ""
        self._began = self._clock()

    def advance(self, done: float, note: str = "") -> None:
        """Where the phase is."""
        self.done = done
        self.note = note or self.note

    def collected(self, steps: int, rate: float, episodes: int) -> None:
        """Shown by displays that draw."""

    def success(self, step: int, rate: float) -> None:
        """An evaluation made while training."""
        self.say(f"evaluation at update {step:,}: {rate:.0%}")

    def say(self, text: str) -> None:
        """A line that stays."""
        raise NotImplementedError

    def close(self, completed: bool = True) -> None:
        """End the display; the running phase counts as ``completed`` or as broken off."""
        self._end(completed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error is None)

    @property
    def elapsed(self) -> float:
        """Seconds of the running phase."""
        return self._clock() - self._began

    @property
    def fraction(self) -> float | None:
        """How much of the phase is done, where its total is known."""
        return min(self.done / self.total, 1.0) if self.total else None

    def _end(self, completed: bool) -> None:
        if self.name:
            self._finished(completed)
        self.name = ""

    def _finished(self, completed: bool) -> None:
        raise NotImplementedError


class PlainProgress(_Phases):
    """One line when a phase ends, and at most one every ``every`` seconds while it runs."""

    def __init__(
        self, write: Callable[[str], None], every: float = 10.0, clock: _Clock = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._write, self._every, self._last = write, every, clock()

    def phase(self, name: str, total: float | None = None) -> None:
        """Begin a phase; a line comes when it has run for a while, or ends."""
        super().phase(name, total)
        self._last = self._clock()

    def advance(self, done: float, note: str = "") -> None:
        """A sign of life, when the last line is old enough."""
        super().advance(done, note)
        if self._clock() - self._last < self._every:
            return
        self._last = self._clock()
        share = "" if self.fraction is None else f" {self.fraction:.0%}"
        self._write(f"  {self.name}{share} after {duration(self.elapsed)}{_tail(self.note)}")

    def say(self, text: str) -> None:
        """A line of its own."""
        self._write(f"  {text}")

    def _finished(self, completed: bool) -> None:
        mark = "done" if completed else "stopped"
        self._write(f"{mark}: {self.name} in {duration(self.elapsed)}{_tail(self.note)}")


class RichProgress(_Phases):
    """A live display below the lines of the phases that are over."""

    def __init__(self, console: Console, clock: _Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._console = console
        self._spinner = Spinner("dots", style="cyan")
        self._rates: list[float] = []
        self._episodes = 0
        self._live = Live(
            console=console, get_renderable=self.renderable, refresh_per_second=6, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def phase(self, name: str, total: float | None = None) -> None:
        """Turn the former phase into a line with its duration and show the new one."""
        super().phase(name, total)
        self._rates = []

    def collected(self, steps: int, rate: float, episodes: int) -> None:
        """Add a point to the live curve."""
        self._rates.append(rate)
        self._episodes = episodes

    def say(self, text: str) -> None:
        """A line above the live display."""
        self._console.print(Text(f"  {text}", style="dim"))

    def close(self, completed: bool = True) -> None:
        """Leave the terminal as it was, with one line per phase."""
        super().close(completed)
        self._live.stop()

    def _finished(self, completed: bool) -> None:
        line = Text()
        line.append("✔ " if completed else "✘ ", style="bold green" if completed else "bold red")
        line.append(self.name)
        line.append(f"  {duration(self.elapsed)}", style="cyan")
        if self._rates:
            line.append(f"  {sparkline(self._rates, 24)}", style="green")
        if self.note:
            line.append(f"  {self.note}", style="dim")
        self._console.print(line)

    def renderable(self) -> RenderableType:
        """The live display as it is now."""
        if not self.name:
            return Text("")
        parts: list[RenderableType] = [self._bar()]
        if self.note:
            parts.append(Text(f"  {self.note}", style="dim", overflow="ellipsis", no_wrap=True))
        if len(self._rates) > 1:
            parts.append(curve(self._rates, self._episodes, min(_CURVE_WIDTH, self._console.width - 12)))
        return Group(*parts)

    def _bar(self) -> Table:
        row = Table.grid(padding=(0, 1))
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True, overflow="ellipsis")
        fraction, times = self.fraction, duration(self.elapsed)
        if fraction is None:
            row.add_row(self._spinner, self.name, Text(times, style="cyan"))
            return row
        if 0.05 <= fraction < 1:
            times += f", about {duration(self.elapsed * (1 - fraction) / fraction)} left"
        bar = ProgressBar(total=1.0, completed=fraction, width=24)
        row.add_row(self._spinner, self.name, bar, f"{fraction:4.0%}", Text(times, style="cyan"))
        return row


def make_progress(console: Console | None = None) -> RichProgress | PlainProgress:
    """The display that suits where it is shown; standard error by default. Use it in a ``with``."""
    console = console or Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return RichProgress(console)

    def write(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return PlainProgress(write)


def curve(rates: Sequence[float], episodes: int, width: int) -> Table:
    """Success rates in [0, 1] as a small plot with its scale and the newest value."""
    rows = columns(rates, max(width, 8), _CURVE_HEIGHT)
    plot = Table.grid(padding=(0, 1))
    for index, row in enumerate(rows):
        label = "100%" if index == 0 else "0%" if index == len(rows) - 1 else ""
        newest = f"{rates[-1]:.0%} of the last {episodes}" if index == 0 else ""
        plot.add_row(Text(label.rjust(6), style="dim"), Text(row, style="green"), Text(newest, style="bold"))
    plot.add_row("", Text("success while collecting", style="dim"))
    return plot


def sparkline(rates: Sequence[float], width: int) -> str:
    """Rates in [0, 1] as one line of block characters, one per bin of at most ``width`` bins.

    A rate of 0 is the lowest block, so that it differs from no data.
    """
    return "".join(_EIGHTHS[max(1, round(8 * rate))] for rate in binned(rates, width))


def columns(rates: Sequence[float], width: int, height: int) -> list[str]:
    """Rates in [0, 1] as ``height`` lines of block characters, top line first, 1 filling all of them."""
    levels = [max(1, round(8 * height * rate)) for rate in binned(rates, width)]
    return [
        "".join(_EIGHTHS[min(max(level - 8 * row, 0), 8)] for level in levels)
        for row in reversed(range(height))
    ]


def binned(rates: Sequence[float], width: int) -> list[float]:
    """Means of at most ``width`` bins of nearly equal size, in order, clipped to [0, 1]."""
    count = min(width, len(rates))
    edges = [round(i * len(rates) / count) for i in range(count + 1)] if count else [0]
    means = [sum(rates[a:b]) / (b - a) for a, b in pairwise(edges)]
    return [min(max(mean, 0.0), 1.0) for mean in means]


def duration(seconds: float) -> str:
    """Seconds as a person says them: 8.4 s, 2:05 min, 1:02:05 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def _tail(note: str) -> str:
    return f": {note}" if note else ""
