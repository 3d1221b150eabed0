"""The order of a comparison: own the directory, run what is missing, read everything, write the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowrl.comparison.findings import Comparison, write_json
from flowrl.comparison.jobs import Job, Unwatched, Watcher, plan_jobs, run_jobs
from flowrl.comparison.page import write_report
from flowrl.comparison.place import Place
from flowrl.comparison.plan import Plan
from flowrl.comparison.table import write_markdown
from flowrl.errors import Interrupted, Stopped, Terminated, UsageError
from flowrl.learner.config import AsynchronousConfig
from flowrl.learner.stop import StopRequest


@dataclass(frozen=True)
class Outcome:
    """A comparison that ran to its end; ``failed`` names the jobs that did not, with the reasons."""

    comparison: Comparison
    place: Place
    failed: dict[str, str]


def compare(
    plan: Plan,
    place: Place,
    command: Sequence[str],
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Run every base and run of ``plan`` that ``place`` lacks, then compare what is there.

    Args:
        plan: what to compare; stored in ``place`` unless it holds one, which must then be the same.
        place: a new directory, or that of an earlier call: finished runs are left alone, begun ones go on
            from their checkpoints, failed ones are tried again.
        command: starts a process that does one job, whose words are appended (`flowrl.comparison.work`).
        jobs: processes at a time; by default `default_jobs`.
        watcher: is told how the jobs stand.

    Raises:
        Interrupted: Ctrl-C; everything was saved first, as with Stopped.
        Stopped: SIGTERM.
        UsageError: another process owns the directory, or it holds another plan.
    """
    place.directory.mkdir(parents=True, exist_ok=True)
    with place.owned():
        if not place.plan.is_file():
            plan.write(place)
        elif Plan.read(place) != plan:
            raise UsageError(
                f"{place.directory} holds another comparison; choose another directory, or go on with that one: "
                f"flowrl compare --resume {place.directory}"
            )
        todo = plan_jobs(plan, place)
        try:
            with StopRequest() as stop:
                run_jobs(todo, command, place, jobs or default_jobs(plan), stop, watcher or Unwatched())
        except KeyboardInterrupt as error:
            kind = Stopped if isinstance(error, Terminated) else Interrupted
            done = sum(job.state == "done" for job in todo)
            raise kind(
                f"stopped with {done} of {len(todo)} jobs done; everything is saved. "
                f"Go on with: flowrl compare --resume {place.directory}"
            ) from error
        return _finish(plan, place, todo)


def default_jobs(plan: Plan) -> int:
    """Two processes at a time, or one where a run has worker processes of its own."""
    workers = any(isinstance(c.config.driver, AsynchronousConfig) for c in plan.contenders)
    return 1 if workers else 2


def _finish(plan: Plan, place: Place, jobs: Sequence[Job]) -> Outcome:
    failed = {job.name: job.reason for job in jobs if job.state in ("failed", "skipped")}
    reasons = {
        (contender.name, seed): failed[f"{contender.name}-{seed}"]
        for contender in plan.contenders
        for seed in plan.seeds
        if f"{contender.name}-{seed}" in failed
    }
    comparison = Comparison.read(plan, place, reasons)
    write_json(comparison, place)
    write_markdown(comparison, place)
    write_report(comparison, place)
    return Outcome(comparison, place, failed)
