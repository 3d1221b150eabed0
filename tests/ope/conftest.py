"""A finished run on the reach task, with noisy episodes to learn values from and one good checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from flowrl.acting import Actor
from flowrl.config import load
from flowrl.evaluation import Evaluation, evaluate
from flowrl.learner.config import RunConfig
from flowrl.learner.drivers import Simulation
from flowrl.learner.loop import create_run, finetune
from flowrl.learner.pretraining import clone
from flowrl.learner.run import Run
from flowrl.policies.io import load_policy, save_policy
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import CommitRule, StreamWriter
from tests.learner.conftest import SETTINGS
from tests.reach import ReachEnv, expert_action

GOOD = 30
"""Step of the checkpoint that holds a policy cloned for long enough."""


def reach_config(**changes: object) -> RunConfig:
    """The learner's small configuration, without periodic evaluations."""
    quiet = {"evaluation": {"episodes": 2, "periodic_episodes": 0, "every_updates": 8}}
    return load(RunConfig, {**SETTINGS, **quiet, **changes})


def write_exploration(replay: Path, episodes: int) -> None:
    """Episodes of the expert with a random part of noise, from hardly any to nothing else."""
    random, env = np.random.default_rng(0), ReachEnv()
    rule = CommitRule(seconds=math.inf, rows=2**31, open_seconds=math.inf)
    with StreamWriter.create(replay, "explore", env.interface, Kind.IMPORT, rule) as writer:
        for episode in range(episodes):
            observation, _ = env.reset(seed=500 + episode)
            writer.begin_episode(seed=500 + episode, task="reach")
            share, ended, success = random.random(), False, False
            while not ended:
                before = observation
                noise = random.uniform(-1, 1, 2).astype(np.float32)
                action = (1 - share) * expert_action(before["observation.state"]) + share * noise
                observation, reward, success, truncated, _ = env.step(action)
                ended = success or truncated
                writer.append(Step(before, action, reward, success, truncated, source=Source.SCRIPTED))
            outcome = Outcome.SUCCESS if success else Outcome.TIMEOUT
            writer.close_episode(outcome, OutcomeBy.ENVIRONMENT, observation)


@pytest.fixture(scope="session")
def reach_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run: base cloned too briefly, checkpoints 0, 10 and 20, a better policy at GOOD."""
    root = tmp_path_factory.mktemp("ope")
    write_exploration(root / "replay", 100)
    clone(reach_config(), root / "replay", root / "base")
    simulation = Simulation(make=ReachEnv, command=(), description={"name": "reach", "settings": {}})
    run = create_run(reach_config(), root / "runs", root / "base", [root / "replay" / "explore"])
    finetune(run, reach_config(), simulation)
    expert = root / "expert"
    with StreamWriter.create(expert, "demonstrations", ReachEnv.interface, Kind.DEMONSTRATION) as writer:
        _demonstrate(writer, 30)
    pretrain = {"steps": 400, "batch_size": 64}
    clone(reach_config(pretrain=pretrain), expert, root / "good")
    good = load_policy(root / "good")
    run.checkpoints.save(GOOD, {}, extra_dirs={"policy": lambda path: save_policy(good, path, durable=False)})
    return run


def _demonstrate(writer: StreamWriter, episodes: int) -> None:
    env = ReachEnv()
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        writer.begin_episode(seed=episode, task="reach")
        ended = False
        while not ended:
            before = observation
            action = expert_action(before["observation.state"])
            observation, reward, success, truncated, _ = env.step(action)
            ended = success or truncated
            writer.append(Step(before, action, reward, success, truncated, source=Source.SCRIPTED))
        writer.close_episode(Outcome.SUCCESS, OutcomeBy.ENVIRONMENT, observation)


def measure(actor: Actor) -> Evaluation:
    """The truth by 20 episodes in this process."""
    return evaluate(ReachEnv(), actor, range(200_000, 200_020))
