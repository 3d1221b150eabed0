"""A whole run: it learns, says so in its files, stops by its budget, resumes, and is honest about time."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.critics.targets import CriticConfig
from flowrl.errors import ConfigError, Interrupted
from flowrl.learner.config import BudgetConfig
from flowrl.learner.metrics import read_metrics
from flowrl.learner.progress import Quiet
from flowrl.learner.run import Run
from flowrl.policies.io import load_policy
from flowrl.policies.observation import Observation
from flowrl.scratch.config import (
    ExplorationConfig,
    FlowActorConfig,
    ScratchConfig,
    ScratchEvaluationConfig,
    UpdateConfig,
)
from flowrl.scratch.loop import run_config, train
from flowrl.scratch.trainer import Stopwatch, Trainer
from tests.scratch.tasks import Bandit

CONFIG = ScratchConfig(
    name="bandit",
    actor=FlowActorConfig(width=32, depth=2, flow_weight=0.01),
    critic=CriticConfig(heads=2, width=32, depth=2, aggregation="min", polyak=0.05, learning_rate=3e-3),
    discount=0.9,
    update=UpdateConfig(batch_size=32, actor_rate=3e-3, per_step=0.5, start_steps=160),
    exploration=ExplorationConfig(low=0.05, high=0.4, random_steps=160),
    replay_steps=2000,
    budget=BudgetConfig(env_steps=800),
    evaluation=ScratchEvaluationConfig(episodes=4, every_steps=400, final_episodes=16),
    log_every=80,
    checkpoint_every=400,
)
COUNT = CONFIG.environment.count


class Telling(Quiet):
    """Remembers phases and lines."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float | None]] = []
        self.lines: list[str] = []
        self.notes: list[tuple[float, str]] = []

    def phase(self, name: str, total: float | None = None) -> None:
        self.phases.append((name, total))

    def advance(self, done: float, note: str = "") -> None:
        self.notes.append((done, note))

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_run_counts_logs_evaluates_and_saves(tmp_path: Path) -> None:
    run, told = Run.create(CONFIG, tmp_path), Telling()
    result = train(run, CONFIG, Bandit, told)
    # 800 steps are 50 of all 16 copies; updates are owed from step 160 on, at the tenth, a half for each.
    assert (result.steps, result.updates) == (800, 20)
    assert told.phases[0] == ("training", 800)
    assert told.notes[-1][0] == 800
    assert [line.split(",")[0].split(" -")[0] for line in told.lines] == [
        "untrained: return",
        "step 400",
        "step 800",
    ]
    metrics = read_metrics(run.metrics)
    logged = np.isfinite(metrics["collect/return"])
    assert metrics["step"][logged].tolist() == list(range(80, 801, 80))
    evaluated = np.isfinite(metrics["evaluation/return"])
    assert metrics["step"][evaluated].tolist() == [0, 400, 800]
    assert (metrics["collect/length"][logged] == 1).all()
    assert any(run.tensorboard.iterdir())
    stored = json.loads((run.directory / "result.json").read_text())
    assert stored["final"]["return"] == result.final.mean
    assert len(stored["final"]["returns"]) == 16
    assert stored["updates"] == 20
    assert run.checkpoints.latest() == 800


def test_the_saved_policy_acts_as_it_was_evaluated(tmp_path: Path) -> None:
    run = Run.create(CONFIG, tmp_path)
    train(run, CONFIG, Bandit)
    policy, actor = load_policy(run.policy), run.tuned_actor()
    assert actor.zero_noise
    states = torch.linspace(-1, 1, 9)[:, None]
    trained = load_policy(run.checkpoints.directory / "800" / "policy")
    generator = torch.Generator().manual_seed(0)
    for other in (policy, trained):
        again = actor.with_policy(other).act(Observation(states), generator)
        assert torch.equal(again, actor.act(Observation(states), generator))
    assert policy.spec.normalisation is not None
    # Contexts are uniform on [-1, 1]; 816 of them have a standard deviation of 0.577 within 3 %.
    assert policy.spec.normalisation.state_scale[0] == pytest.approx(1 / 3**0.5, rel=0.06)


def test_two_runs_with_the_same_seed_are_equal(tmp_path: Path) -> None:
    returns = [train(Run.create(CONFIG, tmp_path), CONFIG, Bandit).final.returns for _ in range(2)]
    other = replace(CONFIG, seed=1)
    assert returns[0] == returns[1]
    assert train(Run.create(other, tmp_path), other, Bandit).final.returns != returns[0]


def test_a_stopped_run_saves_and_goes_on(tmp_path: Path) -> None:
    class Stopping(Telling):
        def advance(self, done: float, note: str = "") -> None:
            super().advance(done, note)
            if done == 480:
                signal.raise_signal(signal.SIGINT)

    run = Run.create(CONFIG, tmp_path)
    with pytest.raises(Interrupted, match=r"stopped after step 480.*flowrl train --resume"):
        train(run, CONFIG, Bandit, Stopping())
    assert run.checkpoints.latest() == 480
    told = Telling()
    result = train(run, run_config(run), Bandit, told)
    assert told.lines[0] == "resumed at step 480, 10 updates"
    assert (result.steps, result.updates) == (800, 20)
    assert told.notes[0][0] == 496
    steps = read_metrics(run.metrics)["step"]
    assert steps.tolist() == sorted(steps.tolist())


def test_a_resumed_run_has_what_the_halted_one_had(tmp_path: Path) -> None:
    """All but the simulator's state: it begins new episodes, from starts of a new session."""
    run = Run.create(CONFIG, tmp_path)
    halted = Trainer(run, replace(CONFIG, budget=BudgetConfig(env_steps=400)), Bandit, "cpu")
    halted.train(Quiet())
    halted.save()
    resumed = Trainer(run, CONFIG, Bandit, "cpu", run.checkpoints.load_latest())
    for trainer in (halted, resumed):
        assert (trainer.steps, trainer.agent.updates) == (400, 8)
        trainer.close()
    for _ in range(4):
        # The first states of the new session were seen by the resumed one alone.
        resumed.agent.normaliser.load_state_dict(halted.agent.normaliser.state_dict())
        resumed.agent.normaliser.write_to(resumed.agent.policy)
        assert halted.agent.update(halted._replay) == resumed.agent.update(resumed._replay)
    assert not np.array_equal(halted._collector.observation, resumed._collector.observation)
    assert torch.equal(halted._exploration.scale, resumed._exploration.scale)


def test_evaluations_do_not_count_as_training_time() -> None:
    now = [0.0]
    watch = Stopwatch(lambda: now[0])
    now[0] = 3.0
    with watch.pause():
        now[0] = 10.0
        assert watch.read() == 3.0
    now[0] = 11.0
    assert watch.read() == 4.0


def test_a_budget_of_seconds_ends_the_run(tmp_path: Path) -> None:
    config = replace(CONFIG, budget=BudgetConfig(env_steps=None, wall_s=0.3))
    told = Telling()
    result = train(Run.create(config, tmp_path), config, Bandit, told)
    assert told.phases[0] == ("training", 0.3)
    assert 0.3 <= result.train_s < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": {"count": 0}}, r"environment.count must be at least 1"),
        ({"update": {"policy_delay": 0}}, r"policy_delay must be at least 1"),
        ({"exploration": {"low": 0.5}}, r"exploration.low must lie between 0 and exploration.high"),
        ({"actor": {"kind": "qf4"}}, r"qf3"),
        ({"actor": {"alhpa": 1.0}}, r"alpha"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, object], message: str) -> None:
    from flowrl.config import load

    with pytest.raises(ConfigError, match=message):
        load(ScratchConfig, change)
