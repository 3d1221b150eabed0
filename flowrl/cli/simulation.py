"""Where the command line joins the core with the simulators of `sim`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flowrl import seeds
from flowrl.acting import Actor
from flowrl.environment import Environment
from flowrl.evaluation import Evaluation
from flowrl.learner.config import EnvironmentConfig, RunConfig
from flowrl.learner.drivers import Simulation
from flowrl.learner.loop import Result
from flowrl.learner.processes import EvaluatorPool
from flowrl.learner.progress import Progress, Quiet
from flowrl.policies.io import load_policy
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import StreamWriter
from flowrl.report import Filmstrip, choose_start, record
from flowrl.rollout import Episode, FixedActor, require_environment, rollout

DEMONSTRATIONS = "demonstrations"
"""Name of the stream that scripted demonstrations go to."""
CORRECTIONS = "corrections"
"""Name of the stream of episodes that a scripted person finishes."""
_SUPERVISED_WORKER = 90
"""Place of its starts among those of collecting workers: beyond any that a run has."""


def make_environment(config: EnvironmentConfig) -> Environment:
    """The environment of a configuration. Raises UsageError or MissingExtra."""
    from sim import registry

    return registry.make(config.name, **config.settings)


def simulation(config: RunConfig) -> Simulation:
    """How a run reaches its environment: in this process, and as worker processes."""
    environment = config.environment
    return Simulation(
        make=lambda: make_environment(environment),
        command=[sys.executable, "-m", "sim.worker"],
        description={"name": environment.name, "settings": dict(environment.settings)},
    )


def collect_demonstrations(config: RunConfig, replay: Path, progress: Progress | None = None) -> float:
    """Let the task's scripted expert fill the stream ``demonstrations``; returns its success rate.

    Only successful episodes are kept.
    """
    from sim import registry
    from sim.experts import collect, expert_for

    wanted = config.demonstrations
    progress = progress or Quiet()
    progress.phase(f"collecting {wanted.episodes} demonstrations", wanted.episodes)
    env = registry.make(config.environment.name, **config.environment.settings)
    collection = collect(env, expert_for(env.name), wanted.episodes, wanted.noise, wanted.seed)
    with StreamWriter.create(replay, DEMONSTRATIONS, env.interface, Kind.DEMONSTRATION) as writer:
        for done, demonstration in enumerate(collection, start=1):
            writer.begin_episode(seed=demonstration.seed, task=env.instruction)
            last = len(demonstration) - 1
            for i, action in enumerate(demonstration.actions):
                writer.append(
                    Step(
                        demonstration.observations[i],
                        action,
                        float(demonstration.rewards[i]),
                        terminated=i == last and demonstration.success,
                        truncated=i == last and not demonstration.success,
                        source=Source.SCRIPTED,
                        stamp_ns=round(i / env.interface.control_hz * 1e9),
                    )
                )
            outcome = Outcome.SUCCESS if demonstration.success else Outcome.TIMEOUT
            writer.close_episode(outcome, OutcomeBy.ENVIRONMENT, demonstration.observations[-1])
            progress.advance(done, f"the expert succeeds in {collection.success_rate:.0%} of its attempts")
    env.close()
    return collection.success_rate


def collect_with_policy(config: RunConfig, replay: Path, policy: Path, progress: Progress) -> Evaluation:
    """Roll a policy out into the stream ``policy``, from starts of the collection range."""
    env = make_environment(config.environment)
    actor = Actor(load_policy(policy))
    require_environment(actor, env)
    count = config.demonstrations.episodes
    progress.phase(f"collecting {count} episodes of the policy", count)
    episodes = list[Episode]()
    with StreamWriter.open_or_create(replay, "policy", env.interface, Kind.POLICY) as writer:
        while len(episodes) < count:
            seed = seeds.collection(config.seed, 0, writer.episodes)
            episodes.append(rollout(env, FixedActor(actor, version=0), seed=seed, writer=writer))
            progress.advance(len(episodes), f"{sum(e.success for e in episodes)} succeeded")
    env.close()
    return Evaluation(actor.rule, tuple(episodes))


def collect_corrections(
    config: RunConfig, replay: Path, policy: Path, progress: Progress | None = None
) -> Evaluation:
    """Let a policy begin episodes that a scripted person takes over, into the stream ``corrections``.

    Episodes in which the policy succeeds by itself are recorded, too, until ``demonstrations.corrections``
    have been taken over. Raises UsageError for an environment without a scripted expert.
    """
    from sim import registry
    from sim.experts import expert_for
    from sim.supervision import PatientSupervisor

    wanted, progress = config.demonstrations, progress or Quiet()
    env = registry.make(config.environment.name, **config.environment.settings)
    patience = env.max_steps // 2 if wanted.patience is None else wanted.patience
    supervisor = PatientSupervisor(env, expert_for(env.name), patience)
    actor = Actor(load_policy(policy))
    require_environment(actor, env)
    progress.phase(f"collecting {wanted.corrections} corrected episodes", wanted.corrections)
    episodes = list[Episode]()
    corrected = 0
    with StreamWriter.create(replay, CORRECTIONS, env.interface, Kind.POLICY) as writer:
        while corrected < wanted.corrections:
            seed = seeds.collection(wanted.seed, _SUPERVISED_WORKER, writer.episodes)
            source = FixedActor(actor, version=0)
            episodes.append(rollout(env, source, seed=seed, writer=writer, supervisor=supervisor))
            corrected += episodes[-1].length > patience
            succeeded = sum(episode.success for episode in episodes)
            progress.advance(corrected, f"{succeeded} of {len(episodes)} ended in success")
    env.close()
    return Evaluation(f"{actor.rule}; a scripted person after {patience} steps", tuple(episodes))


def evaluate_in_processes(
    config: RunConfig, actor: Actor, starts: Sequence[int], workers: int, progress: Progress
) -> Evaluation:
    """Evaluate an actor from start seeds in parallel processes."""
    how = simulation(config)
    progress.phase("evaluating", len(starts))
    done: list[bool] = []

    def on_episode(episode: Episode) -> None:
        done.append(episode.success)
        progress.advance(len(done), f"{sum(done)} of {len(done)} succeeded")

    with tempfile.TemporaryDirectory(prefix="flowrl-") as scratch:
        pool = EvaluatorPool(how.command, how.description, min(workers, len(starts)), Path(scratch) / "logs")
        pool.start()
        try:
            pool.submit(actor, starts)
            return pool.wait(on_episode)
        finally:
            pool.stop()


def record_strips(result: Result) -> list[Filmstrip]:
    """Film one start under the base and under the tuned policy, one the base fails if there is one.

    Raises UsageError naming the rendering backend and the remedy when nothing can be drawn.
    """
    from sim import registry

    run = result.run
    config = run.config()
    seed = choose_start(result.base, result.tuned)
    if seed is None:
        return []
    env = registry.make(config.environment.name, **config.environment.settings)
    try:
        actors = {"base policy": Actor(load_policy(run.base)), "tuned policy": run.tuned_actor()}
        return [record(env.render_frame, env, actor, seed, title=title) for title, actor in actors.items()]
    finally:
        env.close()
