from __future__ import annotations

import io

import pytest
from rich.console import Console

from flowrl.cli.progress import (
    PlainProgress,
    RichProgress,
    binned,
    columns,
    duration,
    make_progress,
    sparkline,
)
from flowrl.learner.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("rates", "width", "expected"),
    [
        ([0.0, 0.5, 1.0], 10, "▁▄█"),
        ([i / 8 for i in range(9)], 9, "▁▁▂▃▄▅▆▇█"),
        ([0.0, 0.5, 0.5, 1.0], 2, "▂▆"),
        ([2.0, -1.0], 5, "█▁"),
        ([], 5, ""),
    ],
)
def test_sparkline_known_answers(rates: list[float], width: int, expected: str) -> None:
    assert sparkline(rates, width) == expected


def test_columns_fill_from_the_bottom() -> None:
    assert columns([0.0, 0.25, 0.5, 1.0], 4, 2) == ["   █", "▁▄██"]


def test_bins_hold_every_value_once() -> None:
    assert binned([0.0, 0.0, 1.0, 1.0, 1.0], 2) == pytest.approx([0.0, 1.0])
    assert binned([0.3], 10) == [0.3]


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.44, "8.4 s"), (125, "2:05 min"), (3725, "1:02:05 h"), (59.999, "60.0 s")]
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_progress_says_one_line_per_phase_and_one_per_ten_seconds() -> None:
    clock, lines = Clock(), list[str]()
    with PlainProgress(lines.append, every=10.0, clock=clock) as progress:
        progress.phase("collecting", 10)
        for done in range(10):
            clock.now += 0.5
            progress.advance(done, f"{done} done")
        assert lines == []
        progress.phase("fine-tuning", 100.0)
        assert lines == ["done: collecting in 5.0 s: 9 done"]
        for done in range(100):
            clock.now += 0.25
            progress.advance(done + 1)
        assert lines[1:] == ["  fine-tuning 40% after 10.0 s", "  fine-tuning 80% after 20.0 s"]
        progress.success(1000, 0.8)
        progress.say("kept")
    assert lines[3:] == ["  evaluation at update 1,000: 80%", "  kept", "done: fine-tuning in 25.0 s"]


def test_a_phase_that_breaks_off_is_not_called_done() -> None:
    clock, lines = Clock(), list[str]()

    def fail() -> None:
        with PlainProgress(lines.append, clock=clock) as progress:
            progress.phase("fine-tuning")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert lines == ["stopped: fine-tuning in 0.0 s"]


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rich_progress_leaves_a_ticked_line_per_phase_and_plain_text() -> None:
    console, clock = terminal(), Clock()
    with RichProgress(console, clock=clock) as progress:
        progress.phase("cloning [bold]", 100)
        clock.now += 12
        progress.advance(100, "loss 0.1")
        progress.phase("fine-tuning", 1.0)
        for rate in (0.0, 0.5, 1.0):
            progress.collected(10, rate, 50)
        clock.now += 65
        progress.say("[red]said")
    text = written(console)
    assert "✔ cloning [bold]  12.0 s  loss 0.1" in text
    assert "✔ fine-tuning  1:05 min  ▁▄█" in text
    assert "[red]said" in text
    assert "\x1b[?25h" in text.split("fine-tuning  1:05")[1]  # the cursor is shown again


def test_rich_progress_marks_a_broken_phase_and_closes_the_display() -> None:
    console = terminal()
    progress = RichProgress(console, clock=Clock())

    def fail() -> None:
        with progress:
            progress.phase("fine-tuning")
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert "✘ fine-tuning" in written(console)
    assert written(console).endswith(("\x1b[?25h", "\x1b[2K"))


def test_the_live_view_shows_bar_remaining_time_note_and_curve() -> None:
    console, clock = terminal(), Clock()
    progress = RichProgress(console, clock=clock)
    progress.phase("fine-tuning", 1.0)
    for rate in (0.4, 0.6, 0.93):
        progress.collected(10, rate, 50)
    clock.now += 30
    progress.advance(0.25, "3,000 steps")
    console.print(progress.renderable())
    text = written(console)
    for expected in (
        "fine-tuning",
        "25%",
        "30.0 s, about 1:30 min left",
        "3,000 steps",
        "93% of the last 50",
    ):
        assert expected in text, expected


def test_what_shows_progress_depends_on_who_watches() -> None:
    assert isinstance(make_progress(terminal()), RichProgress)
    pipe = Console(file=io.StringIO(), force_terminal=False)
    progress = make_progress(pipe)
    assert isinstance(progress, PlainProgress)
    listener: Progress = progress
    with progress:
        listener.phase("x [b]")
    assert written(pipe) == "done: x [b] in 0.0 s\n"
