"""A prepared run on the reach task: demonstrations, a cloned base, a small SQAM configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flowrl.config import load
from flowrl.learner.config import RunConfig
from flowrl.learner.drivers import Simulation
from flowrl.learner.loop import create_run
from flowrl.learner.pretraining import clone
from flowrl.learner.run import Run
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import StreamWriter
from tests.reach import ReachEnv, expert_action

SETTINGS = {
    "name": "reach",
    "environment": {"name": "reach"},
    "chunk": {"length": 3},
    "policy": {"kind": "flow_mlp", "width": 32, "depth": 2, "flow_steps": 4},
    "pretrain": {"steps": 60, "batch_size": 32},
    "sampling": {"batch_size": 16, "end_rule": "padded", "reward_scale": 0.1, "reward_shift": -1.0},
    "algorithm": {
        "kind": "sqam",
        "discount": 0.95,
        "critic": {"heads": 2, "width": 32, "depth": 2},
        "average_actor": 0.05,
    },
    "warm_up": {"env_steps": 60, "updates": 10},
    "driver": {"kind": "interleaved", "updates_per_step": 0.5},
    "budget": {"env_steps": None, "updates": 20},
    "evaluation": {"episodes": 6, "periodic_episodes": 3, "every_updates": 8},
    "log_every": 5,
    "checkpoint_every": 10,
}


def settings(**changes: object) -> RunConfig:
    """The small configuration with sections merged; a driver replaces the former one."""
    merged: dict[str, object] = {**SETTINGS}
    for key, value in changes.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict) and key != "driver"
        merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]
    return load(RunConfig, merged)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A replay of 4 demonstrations and a base policy cloned from it, deliberately too briefly."""
    root = tmp_path_factory.mktemp("reach")
    env = ReachEnv()
    with StreamWriter.create(root / "replay", "demonstrations", env.interface, Kind.DEMONSTRATION) as writer:
        for seed in range(4):
            observation, _ = env.reset(seed=seed)
            writer.begin_episode(seed=seed, task="reach")
            ended = False
            while not ended:
                before = observation
                action = expert_action(before["observation.state"])
                observation, reward, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
                writer.append(Step(before, action, reward, terminated, truncated, source=Source.SCRIPTED))
            writer.close_episode(Outcome.SUCCESS, OutcomeBy.ENVIRONMENT, observation)
    clone(settings(), root / "replay", root / "base")
    return root / "replay", root / "base"


@pytest.fixture
def new_run(prepared: tuple[Path, Path], tmp_path: Path) -> Callable[[RunConfig], Run]:
    """Makes fresh runs from the prepared replay and base."""
    replay, base = prepared

    def make(config: RunConfig) -> Run:
        return create_run(config, tmp_path / "runs", base, [replay / "demonstrations"])

    return make


@pytest.fixture
def simulation() -> Simulation:
    """The reach task in this process."""
    return Simulation(make=ReachEnv, command=(), description={"name": "reach", "settings": {}})


def weights(run: Run) -> dict[str, np.ndarray]:
    """The tuned policy's tensors."""
    from flowrl.policies.io import load_policy

    return {name: value.numpy() for name, value in load_policy(run.policy).state_dict().items()}
