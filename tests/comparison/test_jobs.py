"""Processes in order: how many at a time, what a failure stops, what a signal does. Trivial programs stand in."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowrl.comparison import compare
from flowrl.comparison.jobs import Job, explain, plan_jobs, run_jobs
from flowrl.comparison.place import Place, locked
from flowrl.comparison.plan import Plan
from flowrl.comparison.progress import FileProgress, Report, read_report
from flowrl.errors import FlowRLError, Interrupted, Stopped, Terminated, UsageError
from flowrl.learner.stop import StopRequest

# A job named by its words: notes that it began, then waits for its input to end, fails, or is done.
PROGRAM = """
import pathlib, sys
directory, name, does = sys.argv[1:]
place = pathlib.Path(directory)
(place / (name + ".began")).touch()
if does == "waits":
    sys.stdin.read()
if does == "fails":
    sys.exit("error: out of luck")
if does != "forgets":
    (place / name).touch()
"""
COMMAND = [sys.executable, "-c", PROGRAM]


class Recorder:
    """Keeps what it is told; at the first sight of ``trigger`` running it raises a signal."""

    def __init__(self, trigger: str = "", number: int = 0) -> None:
        self.most, self.ends = 0, list[str]()
        self._trigger, self._number = trigger, number

    def watch(self, jobs: Sequence[Job], reports: dict[str, Report]) -> None:
        self.most = max(self.most, len(reports))
        if self._trigger in reports and self._number:
            signal.raise_signal(self._number)
            self._number = 0

    def ended(self, job: Job) -> None:
        self.ends.append(f"{job.name} {job.state}")


def make_jobs(place: Path, does: str = "works", base: str = "works") -> list[Job]:
    first = Job("base-0", ["base-0", base], (place / "base-0").is_file)
    others = [Job(f"a-{i}", [f"a-{i}", does], (place / f"a-{i}").is_file, first) for i in range(3)]
    return [first, *others]


def run(jobs: list[Job], place: Path, limit: int = 2, recorder: Recorder | None = None) -> Recorder:
    recorder = recorder or Recorder()
    with StopRequest() as stop:
        run_jobs(jobs, COMMAND, Place(place), limit, stop, recorder)
    return recorder


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_than_the_limit_run_and_the_base_comes_first(tmp_path: Path, limit: int) -> None:
    recorder = run(make_jobs(tmp_path), tmp_path, limit)
    assert recorder.ends[0] == "base-0 done"
    assert sorted(recorder.ends[1:]) == ["a-0 done", "a-1 done", "a-2 done"]
    assert recorder.most <= limit


def test_a_failing_base_skips_its_runs_and_says_why(tmp_path: Path) -> None:
    jobs = make_jobs(tmp_path, base="fails")
    run(jobs, tmp_path)
    assert [job.state for job in jobs] == ["failed", "skipped", "skipped", "skipped"]
    assert jobs[0].reason == "exit code 1: error: out of luck"
    assert jobs[1].reason == "base-0 failed"
    assert not (tmp_path / "a-0.began").exists()


def test_a_failing_run_stops_no_other(tmp_path: Path) -> None:
    jobs = make_jobs(tmp_path)
    jobs[1].arguments = ["a-0", "fails"]
    run(jobs, tmp_path)
    assert [job.state for job in jobs] == ["done", "failed", "done", "done"]


def test_a_process_that_leaves_nothing_has_failed(tmp_path: Path) -> None:
    jobs = make_jobs(tmp_path)
    jobs[1].arguments = ["a-0", "forgets"]
    run(jobs, tmp_path)
    assert (jobs[1].state, jobs[1].reason) == ("failed", "exit code 0: it said nothing")


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_signal_ends_every_process_and_starts_no_more(
    tmp_path: Path, number: int, kind: type[BaseException]
) -> None:
    jobs = make_jobs(tmp_path, does="waits")
    with pytest.raises(kind):
        run(jobs, tmp_path, recorder=Recorder("a-1", number))
    assert [job.state for job in jobs] == ["done", "waiting", "waiting", "waiting"]
    assert all(job.process.poll() is not None for job in jobs[:3] if job.process)
    assert jobs[3].process is None


def test_ends_are_told_apart(tmp_path: Path) -> None:
    assert explain(-9, tmp_path / "log").startswith("ended by SIGKILL")
    assert explain(75, tmp_path / "log").startswith("stopped from outside")
    (tmp_path / "log").write_text("first\nerror: the reason\n")
    assert explain(1, tmp_path / "log") == "exit code 1: error: the reason"


def test_a_plan_becomes_a_base_and_its_runs_seed_by_seed(plan: Plan, tmp_path: Path) -> None:
    jobs = plan_jobs(plan, Place(tmp_path))
    names = [job.name for job in jobs]
    assert names == [
        f"{name}-{seed}" for seed in (0, 1) for name in ("base", "reach_sqam", "reach_imitation")
    ]
    assert jobs[5].needs is jobs[3]
    assert {job.state for job in jobs} == {"waiting"}


def test_progress_crosses_processes_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "job.progress.json"
    assert read_report(path) == Report()
    progress = FileProgress(path)
    progress.phase("fine-tuning", 200)
    assert read_report(path).fraction == 0
    progress.success(10, 0.4)
    assert read_report(path) == Report("fine-tuning", 0.0, 200, "", 0.4)


def test_a_lock_names_its_owner_and_is_free_afterwards(tmp_path: Path) -> None:
    import os

    with (
        locked(tmp_path / "lock", 0.0),
        pytest.raises(UsageError, match=rf"in use by process {os.getpid()}"),
        locked(tmp_path / "lock", 0.0),
    ):
        pass
    with locked(tmp_path / "lock", 0.0):
        pass


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, Interrupted), (signal.SIGTERM, Stopped)])
def test_a_stopped_comparison_says_how_to_go_on(
    plan: Plan, tmp_path: Path, number: int, kind: type[FlowRLError]
) -> None:
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with pytest.raises(kind, match=rf"0 of 6 jobs done.*flowrl compare --resume {tmp_path}"):
        compare(plan, Place(tmp_path), waiting, watcher=Recorder("base-0", number))
    assert Plan.read(Place(tmp_path)) == plan
    with Place(tmp_path).owned():
        pass
