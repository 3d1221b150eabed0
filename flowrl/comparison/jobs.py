"""The processes of a comparison: which may start, how many at a time, how each ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from flowrl.comparison.place import MEASURED, Place
from flowrl.comparison.plan import Plan
from flowrl.comparison.progress import Report, read_report
from flowrl.errors import EXIT_RESUMABLE
from flowrl.learner.processes import last_words
from flowrl.learner.stop import StopRequest

State = Literal["waiting", "running", "done", "failed", "skipped"]
_POLL_S = 0.1
_STOP_S = 60.0


@dataclass
class Job:
    """One process of a comparison. ``needs`` must be done before it may start."""

    name: str
    arguments: Sequence[str]
    done: Callable[[], bool]
    needs: Job | None = None
    state: State = "waiting"
    reason: str = ""
    """Why it failed or was skipped."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)


class Watcher(Protocol):
    """Is told how the jobs stand; the command line draws it."""

    def watch(self, jobs: Sequence[Job], reports: dict[str, Report]) -> None:
        """How all jobs stand now; ``reports`` has one entry for each that runs."""
        ...

    def ended(self, job: Job) -> None:
        """A job is done, failed or skipped."""
        ...


class Unwatched:
    """Shows nothing."""

    def watch(self, jobs: Sequence[Job], reports: dict[str, Report]) -> None:
        """Ignored."""

    def ended(self, job: Job) -> None:
        """Ignored."""


def plan_jobs(plan: Plan, place: Place) -> list[Job]:
    """Every job of a plan, seed by seed, so that an early stop leaves whole seeds; finished ones are done."""
    jobs: list[Job] = []
    for seed in plan.seeds:
        base = Job(f"base-{seed}", ["base", str(seed)], place.base(seed).is_dir)
        runs = [
            Job(
                f"{contender.name}-{seed}",
                ["run", contender.name, str(seed)],
                (place.run(contender.name, seed).directory / MEASURED).is_file,
                base,
            )
            for contender in plan.contenders
        ]
        jobs += [base, *runs]
    for job in jobs:
        job.state = "done" if job.done() else "waiting"
    return jobs


def run_jobs(
    jobs: Sequence[Job],
    command: Sequence[str],
    place: Place,
    limit: int,
    stop: StopRequest,
    watcher: Watcher,
) -> None:
    """Run the waiting jobs, at most ``limit`` at a time. A failing job stops no other.

    Raises KeyboardInterrupt, after ending the processes in order, when ``stop`` was asked for.
    """
    try:
        while any(job.state in ("waiting", "running") for job in jobs):
            stop.check()
            for job in jobs:
                if job.state == "running":
                    _look_at(job, place, watcher)
            _start_ready(jobs, command, place, limit, watcher)
            watcher.watch(jobs, {j.name: read_report(place.progress(j.name)) for j in _running(jobs)})
            time.sleep(_POLL_S)
    finally:
        _end_all(_running(jobs))


def _running(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.state == "running"]


def _start_ready(
    jobs: Sequence[Job], command: Sequence[str], place: Place, limit: int, watcher: Watcher
) -> None:
    for job in jobs:
        if job.state != "waiting":
            continue
        if job.needs is not None and job.needs.state == "failed":
            job.state, job.reason = "skipped", f"{job.needs.name} failed"
            watcher.ended(job)
        elif len(_running(jobs)) < limit and (job.needs is None or job.needs.state == "done"):
            job.process = _start(job, command, place)
            job.state = "running"


def _start(job: Job, command: Sequence[str], place: Place) -> subprocess.Popen[bytes]:
    """Its own session, so that a Ctrl-C in the terminal reaches the comparison, which ends it in order."""
    log, progress = place.log(job.name), place.progress(job.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    progress.unlink(missing_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, str(place.directory), *job.arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def _look_at(job: Job, place: Place, watcher: Watcher) -> None:
    assert job.process is not None
    code = job.process.poll()
    if code is None:
        return
    if job.process.stdin is not None:
        job.process.stdin.close()
    job.state = "done" if code == 0 and job.done() else "failed"
    if job.state == "failed":
        job.reason = explain(code, place.log(job.name))
    place.progress(job.name).unlink(missing_ok=True)
    watcher.ended(job)


def explain(code: int, log: Path) -> str:
    """Why a process ended that should not have, with its last words."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}; --resume goes on with it"
    if code == EXIT_RESUMABLE:
        return "stopped from outside; --resume goes on with it"
    return f"exit code {code}: {last_words(log, 1) or 'it said nothing'}"


def _end_all(jobs: Sequence[Job]) -> None:
    """Ask every process to save and end, wait for all, kill what takes too long."""
    processes = [job.process for job in jobs if job.process is not None]
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()
    end = time.monotonic() + _STOP_S
    try:
        for process in processes:
            process.wait(max(end - time.monotonic(), 0.1))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in processes:
            process.kill()
            process.wait()
    for job in jobs:
        job.state = "waiting"
