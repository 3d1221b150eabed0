"""The order of a run: preflight, base evaluation, critic warm-up, training, final evaluation, result."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flowrl import seeds as seed_plan
from flowrl.acting import Actor, save_actor
from flowrl.checkpoint import Loaded
from flowrl.errors import Interrupted, NonFiniteLoss, Stopped, Terminated, UsageError
from flowrl.evaluation import Evaluation
from flowrl.learner.base_policy import load_base
from flowrl.learner.config import AsynchronousConfig, InterleavedConfig, RunConfig
from flowrl.learner.drivers import Asynchronous, Driver, Interleaved, Simulation
from flowrl.learner.learner import Learner
from flowrl.learner.progress import Progress, Quiet
from flowrl.learner.run import Run
from flowrl.policies.io import load_flow_policy, read_description, save_policy
from flowrl.preflight import preflight
from flowrl.rollout import Episode

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What a finished run found, as stored in ``result.json``."""

    run: Run
    base: Evaluation
    tuned: Evaluation
    steps: int
    updates: int
    train_s: float
    changed: bool
    """Whether the tuned weights differ from the base's."""


def create_run(config: RunConfig, root: Path, policy: Path, streams: Sequence[Path]) -> Run:
    """A fresh run directory with a copy of the base policy and of the given replay streams.

    Copies, so that the run can be moved and the sources changed. Raises UsageError when a source is
    missing.
    """
    base = load_flow_policy(policy)
    run = Run.create(config, root)
    save_policy(base, run.base, read_description(policy).get("lineage"))
    for stream in streams:
        shutil.copytree(stream, run.replay / stream.name, ignore=shutil.ignore_patterns("*.lock"))
    return run


def finetune(run: Run, config: RunConfig, simulation: Simulation, progress: Progress | None = None) -> Result:
    """Fine-tune the run's base policy; continues from the latest checkpoint when there is one.

    Raises Interrupted after saving when the user stops it, NonFiniteLoss (the last good checkpoint is
    kept), SpecMismatch when policy, replay and environment do not fit.
    """
    with run.logged():
        return _finetune(run, config, simulation, progress or Quiet())


def _finetune(run: Run, config: RunConfig, simulation: Simulation, progress: Progress) -> Result:
    base = load_base(run.base, config, resolve_device(config.device))
    run.write_json("spec.json", base.spec.to_json())
    loaded = run.checkpoints.load_latest()
    learner = Learner(run, config, base, None if loaded is None else loaded.step)
    for finding in preflight(base, learner.reader, run.directory, config.sampling.end_rule):
        _log.info("preflight %s, %s: %s", finding.level, finding.name, finding.message)
        if finding.level == "warning":
            progress.say(f"preflight: {finding.name}: {finding.message}")
    driver = make_driver(learner, progress, config, simulation)
    try:
        with learner.stop:
            return _phases(learner, driver, loaded, progress)
    except KeyboardInterrupt as error:
        saved = "everything is saved"
        if learner.training:
            learner.save(driver.state())
        elif loaded is None:
            saved = "what was collected is kept, the warm-up of the critics starts again"
        kind = Stopped if isinstance(error, Terminated) else Interrupted
        raise kind(
            f"stopped after update {learner.updates:,}; {saved}. "
            f"Go on with: flowrl finetune --resume {run.directory}"
        ) from error
    except NonFiniteLoss as error:
        kept = run.checkpoints.latest()
        raise NonFiniteLoss(
            f"{error}. The last good checkpoint is that of update {kept} in {run.checkpoints.directory}; "
            "lower the learning rates or raise algorithm.value_penalty, then resume"
        ) from error
    finally:
        driver.close()
        learner.close()


def _phases(learner: Learner, driver: Driver, loaded: Loaded | None, progress: Progress) -> Result:
    """Base evaluation, warm-up or resume, training, final evaluation."""
    run, base = learner.run, Actor(learner.policy)
    before = _evaluate_once(learner, "base", base, driver, progress)
    if loaded is None:
        driver.warm_up(base)
        learner.start_training()
        learner.save(driver.state())
    else:
        driver.restore(learner.restore(loaded))
        progress.say(f"resumed at update {learner.updates:,}, {learner.steps:,} steps")
    driver.train()
    learner.stop_clock()
    learner.save(driver.state())
    learner.log()
    actor = learner.actor("evaluate")
    save_policy(actor.policy, run.policy, _lineage(run, learner))
    shutil.rmtree(run.actor, ignore_errors=True)
    if not actor.plain:
        save_actor(actor, run.actor)
    if run.read_json("result.json").get("updates") != learner.updates:
        _forget(run, "tuned")
    after = _evaluate_once(learner, "tuned", actor, driver, progress)
    return _finish(run, learner, before, after)


def resolve_device(name: str) -> str:
    """The device a configuration means: ``auto`` is CUDA when there is one.

    Raises UsageError when CUDA is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name.startswith("cuda") and not available:
        raise UsageError(f"device {name!r}: torch finds no CUDA device; use device=cpu, or see flowrl doctor")
    return ("cuda" if available else "cpu") if name == "auto" else name


def make_driver(learner: Learner, progress: Progress, config: RunConfig, simulation: Simulation) -> Driver:
    """The driver that the configuration names."""
    match config.driver:
        case InterleavedConfig():
            return Interleaved(learner, progress, config.driver, simulation)
        case AsynchronousConfig():
            return Asynchronous(learner, progress, config.driver, simulation)


def _evaluate_once(
    learner: Learner, name: str, actor: Actor, driver: Driver, progress: Progress
) -> Evaluation:
    """The reported evaluation of ``name``; read from the result file when an earlier session made it."""
    run = learner.run
    result = run.read_json("result.json")
    if name in result:
        return Evaluation.from_json(result[name])
    answer = _measure(learner, name, actor, driver, progress)
    run.write_json("result.json", {**result, name: answer.to_json()})
    progress.say(f"{name}: {answer}, {answer.rule}")
    return answer


def _forget(run: Run, name: str) -> None:
    """Drop an evaluation that an earlier session made of other weights."""
    result = run.read_json("result.json")
    run.write_json("result.json", {key: value for key, value in result.items() if key != name})


def _measure(learner: Learner, name: str, actor: Actor, driver: Driver, progress: Progress) -> Evaluation:
    """Evaluate an actor from the reported starts, showing progress."""
    evaluation = learner.config.evaluation
    start_seeds = seed_plan.reported(evaluation.episodes, evaluation.offset)
    progress.phase(f"evaluating the {name} policy", len(start_seeds))
    outcomes: list[bool] = []

    def on_episode(episode: Episode) -> None:
        learner.stop.check()
        outcomes.append(episode.success)
        progress.advance(len(outcomes), f"{sum(outcomes)} of {len(outcomes)} succeeded")

    return driver.evaluate(actor, start_seeds, on_episode)


def _finish(run: Run, learner: Learner, before: Evaluation, after: Evaluation) -> Result:
    base_hash, tuned_hash = (read_description(path)["sha256"] for path in (run.base, run.policy))
    result = Result(
        run=run,
        base=before,
        tuned=after,
        steps=learner.steps,
        updates=learner.updates,
        train_s=learner.training_seconds,
        changed=base_hash != tuned_hash,
    )
    run.write_json(
        "result.json",
        {
            **run.read_json("result.json"),
            "steps": result.steps,
            "warm_up_steps": learner.warm_up_steps,
            "updates": result.updates,
            "train_s": result.train_s,
            "weights_changed": result.changed,
            "deviations": learner.algorithm.deviations(),
            "shares": learner.sampler.shares(),
        },
    )
    return result


def _lineage(run: Run, learner: Learner) -> dict[str, Any]:
    return {"run": run.name, "updates": learner.updates, "steps": learner.steps}
