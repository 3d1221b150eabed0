"""Where the command line joins the core with the simulators of `sim`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from flowrl.environment import Environment
from flowrl.learner.config import EnvironmentConfig, RunConfig
from flowrl.learner.drivers import Simulation
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import StreamWriter

DEMONSTRATIONS = "demonstrations"
"""Name of the stream that scripted demonstrations go to."""


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


def collect_demonstrations(
    config: RunConfig, replay: Path, on_episode: Callable[[int, float], None] = lambda done, rate: None
) -> float:
    """Let the task's scripted expert fill the stream ``demonstrations``; returns its success rate.

    Only successful episodes are kept. ``on_episode`` hears how many are done and the rate so far.
    """
    from sim import registry
    from sim.experts import collect, expert_for

    wanted = config.demonstrations
    env = registry.make(config.environment.name, **config.environment.settings)
    collection = collect(env, expert_for(env.name), wanted.episodes, wanted.noise, wanted.seed)
    with StreamWriter.create(replay, DEMONSTRATIONS, env.interface, Kind.DEMONSTRATION) as writer:
        for done, demonstration in enumerate(collection, start=1):
            writer.begin_episode(seed=demonstration.seed, task=env.name)
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
            on_episode(done, collection.success_rate)
    env.close()
    return collection.success_rate
