"""How a running comparison looks, and what is said at its end."""

from __future__ import annotations

import io

from rich.console import Console

from flowrl.cli.compare_display import PlainWatcher, RichWatcher, describe, print_outcome, totals
from flowrl.comparison import Outcome
from flowrl.comparison.jobs import Job
from flowrl.comparison.progress import Report
from flowrl.comparison.words import NOT_TOLD_APART, verdicts


def job(name: str, state: str, reason: str = "") -> Job:
    return Job(name, [], lambda: False, state=state, reason=reason)  # type: ignore[arg-type]


JOBS = [
    job("base-0", "done"),
    job("a-0", "running"),
    job("b-0", "failed", "out of luck"),
    job("c-0", "skipped"),
]
REPORT = Report("fine-tuning", 0.25, 1.0, "500 steps", 0.4)


def test_totals_and_a_job_in_words() -> None:
    assert totals(JOBS) == "1 of 4 jobs done, 2 failed"
    assert totals(JOBS[:2]) == "1 of 2 jobs done"
    assert describe(REPORT) == "fine-tuning 25%, last evaluation 40%: 500 steps"
    assert describe(Report("cloning")) == "cloning"


def test_without_a_terminal_there_is_a_line_per_end_and_a_rare_sign_of_life() -> None:
    now, lines = [0.0], list[str]()
    watcher = PlainWatcher(lines.append, lambda: now[0])
    watcher.watch(JOBS, {"a-0": REPORT})
    assert lines == []
    now[0] = 20.0
    watcher.watch(JOBS, {"a-0": REPORT})
    watcher.watch(JOBS, {"a-0": REPORT})
    watcher.ended(JOBS[2])
    assert lines == [
        "  1 of 4 jobs done, 2 failed after 20.0 s; a-0: fine-tuning 25%, last evaluation 40%: 500 steps",
        "✘ b-0  0.0 s  failed: out of luck",
    ]


def test_on_a_terminal_there_is_one_line_per_running_job_and_the_totals() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    watcher = RichWatcher(console, lambda: 0.0)
    watcher.watch(JOBS, {"a-0": REPORT, "d-0": Report("cloning")})
    console.print(watcher.renderable())
    lines = [line for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]
    assert [line.split()[0] for line in lines] == ["a-0", "d-0", "1"]


def test_the_end_names_failures_verdicts_and_files(finished: Outcome) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_outcome(Outcome(finished.comparison, finished.place, {"reach_sqam-0": "exit code 1: x"}), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "failed: reach_sqam-0: exit code 1: x" in text
    for verdict in verdicts(finished.comparison):
        assert verdict in text
    assert str(finished.place.directory / "comparison.json") in text


def test_no_recipe_is_called_better_while_its_difference_may_be_zero(finished: Outcome) -> None:
    against = finished.comparison.summaries[1].against
    assert against is not None
    (sentence,) = verdicts(finished.comparison)
    # 12 pairs of nearly equal policies.
    assert against.own.low <= 0 <= against.own.high
    assert NOT_TOLD_APART in sentence
    assert "better" not in sentence
    assert "worse" not in sentence
