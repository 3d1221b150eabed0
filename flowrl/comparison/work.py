"""What the processes of a comparison do: make a seed's base, or one run with its measurements.

A job is one process, so that a crash, a kill or a leak of one run touches no other. It can be ended at
any moment: what it makes appears under its final name only when it is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from flowrl import seeds as seed_plan
from flowrl.acting import Actor
from flowrl.comparison.measure import as_json, finished_algorithm, parameters, rules, update_ms
from flowrl.comparison.place import MEASURED, Place, locked
from flowrl.comparison.plan import Plan
from flowrl.comparison.progress import FileProgress
from flowrl.errors import UsageError
from flowrl.evaluation import Evaluation, evaluate
from flowrl.learner.config import RunConfig
from flowrl.learner.drivers import Simulation
from flowrl.learner.loop import create_run, finetune
from flowrl.learner.pretraining import clone
from flowrl.learner.progress import Progress
from flowrl.learner.run import Run
from flowrl.policies.io import load_flow_policy, read_description, save_policy
from flowrl.replay.storage import stream_names
from flowrl.report import write_report
from flowrl.rollout import Episode

_LOCK_WAIT_S = 120.0
"""A job whose parent was killed still saves; its successor waits for it."""


class Tools(Protocol):
    """What a job needs of the simulators, given by the composition root."""

    def demonstrate(self, config: RunConfig, replay: Path, progress: Progress) -> None:
        """Record the configuration's scripted demonstrations into a replay."""
        ...

    def correct(self, config: RunConfig, replay: Path, policy: Path, progress: Progress) -> None:
        """Record episodes that the policy begins and a scripted person finishes into a replay."""
        ...

    def simulation(self, config: RunConfig) -> Simulation:
        """How a run reaches its environment."""
        ...


def work(arguments: Sequence[str], tools: Tools) -> None:
    """Do the job ``DIRECTORY base SEED`` or ``DIRECTORY run RECIPE SEED``; nothing when it is done.

    Raises UsageError for another job, and whatever the job itself raises.
    """
    match list(arguments):
        case [directory, "base", seed]:
            place, job = Place(Path(directory)), f"base-{seed}"
            with _at_work(place, job) as progress:
                make_base(place, Plan.read(place), int(seed), tools, progress)
        case [directory, "run", recipe, seed]:
            place, job = Place(Path(directory)), f"{recipe}-{seed}"
            with _at_work(place, job) as progress:
                make_run(place, Plan.read(place), recipe, int(seed), tools, progress)
        case _:
            raise UsageError(f"no job of a comparison: {' '.join(arguments)}")


@contextmanager
def _at_work(place: Place, job: str) -> Generator[Progress]:
    """The job's progress file, while this process alone works on it."""
    with locked(place.directory / "logs" / f"{job}.lock", _LOCK_WAIT_S):
        yield FileProgress(place.progress(job))


def end_with_parent() -> None:
    """End this process as SIGTERM would, saved and resumable, when its standard input ends.

    Standard input is a pipe from the comparison: it ends when that process does, however it ends.
    """

    def watch() -> None:
        while sys.stdin.read(1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def make_base(place: Place, plan: Plan, seed: int, tools: Tools, progress: Progress) -> None:
    """Demonstrations, base policy and its evaluation by one plain sample, shared by all runs of a seed."""
    target, config = place.base(seed), plan.base_config(seed)
    if target.exists():
        return
    aside = target.with_name(f".{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    if plan.replay is None:
        tools.demonstrate(config, aside / "replay", progress)
    else:
        for name in stream_names(plan.replay):
            ignore = shutil.ignore_patterns("*.lock")
            shutil.copytree(plan.replay / name, aside / "replay" / name, ignore=ignore)
    _base_policy(plan, config, aside, progress)
    if config.demonstrations.corrections:
        tools.correct(config, aside / "replay", aside / "policy", progress)
    actor = Actor(load_flow_policy(aside / "policy"))
    evaluation = _evaluate(actor, config, tools, "evaluating the base", progress)
    (aside / "base.json").write_text(json.dumps(evaluation.to_json(), indent=2) + "\n")
    aside.rename(target)


def _base_policy(plan: Plan, config: RunConfig, aside: Path, progress: Progress) -> None:
    if plan.policy is not None:
        lineage = read_description(plan.policy).get("lineage")
        save_policy(load_flow_policy(plan.policy), aside / "policy", lineage)
        return
    progress.phase("cloning", config.pretrain.steps)

    def on_step(step: int, metrics: dict[str, float]) -> None:
        progress.advance(step, f"loss {metrics['pretrain/loss']:.4f}")

    clone(config, aside / "replay", aside / "policy", progress=on_step)


def make_run(place: Place, plan: Plan, recipe: str, seed: int, tools: Tools, progress: Progress) -> None:
    """One run from its seed's base, begun or gone on with, then what the comparison measures of it."""
    run = place.run(recipe, seed)
    if (run.directory / MEASURED).is_file():
        return
    if not run.directory.exists():
        _create(place, plan, recipe, seed, run)
    config = run.config()
    result = finetune(run, config, tools.simulation(config), progress)
    measured = _measure(run, config, result.tuned, tools, progress)
    write_report(run)
    run.write_json(MEASURED, measured)


def _create(place: Place, plan: Plan, recipe: str, seed: int, run: Run) -> None:
    """A run directory under its final name. It holds its base's evaluation, which all runs of the seed share."""
    base, aside = place.base(seed), run.directory.with_name(f".{run.name}")
    shutil.rmtree(aside, ignore_errors=True)
    streams = [base / "replay" / name for name in stream_names(base / "replay")]
    made = create_run(plan.config(recipe, seed), aside, base / "policy", streams)
    made.write_json("result.json", {"base": json.loads((base / "base.json").read_text())})
    made.directory.rename(run.directory)
    aside.rmdir()


def _measure(
    run: Run, config: RunConfig, tuned: Evaluation, tools: Tools, progress: Progress
) -> dict[str, Any]:
    """Evaluations that separate the acting rule from the weights, sizes, and time per update."""
    algorithm = finished_algorithm(run)
    found = rules(run, algorithm)
    common, base_own = tuned, None
    if found.differ:
        common = _evaluate(found.common, config, tools, "evaluating under the common rule", progress)
    if found.base_own is not None:
        what = "evaluating the base under the recipe's rule"
        base_own = _evaluate(found.base_own, config, tools, what, progress)
    return as_json(
        {
            "tuned_common": common,
            "base_own": base_own,
            "parameters": parameters(algorithm, found),
            "update_ms": update_ms(run),
            "base_sha256": read_description(run.base)["sha256"],
        }
    )


def _evaluate(actor: Actor, config: RunConfig, tools: Tools, what: str, progress: Progress) -> Evaluation:
    starts = seed_plan.reported(config.evaluation.episodes, config.evaluation.offset)
    progress.phase(what, len(starts))
    outcomes: list[bool] = []

    def on_episode(episode: Episode) -> None:
        outcomes.append(episode.success)
        progress.advance(len(outcomes), f"{sum(outcomes)} of {len(outcomes)} succeeded")

    env = tools.simulation(config).make()
    try:
        return evaluate(env, actor, starts, on_episode)
    finally:
        env.close()
