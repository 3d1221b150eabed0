"""Training from scratch, step by step: collect in every environment, learn, measure, keep the books."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from flowrl import seeds
from flowrl.checkpoint import Loaded
from flowrl.learner.metrics import JsonlSink, Metrics, TensorBoardSink
from flowrl.learner.progress import Progress
from flowrl.learner.run import Run
from flowrl.learner.stop import StopRequest
from flowrl.policies.interface import ChunkPolicy
from flowrl.policies.io import save_policy
from flowrl.scratch.agent import Agent
from flowrl.scratch.collector import Collector, Exploration
from flowrl.scratch.config import ScratchConfig
from flowrl.scratch.evaluation import Returns, evaluate
from flowrl.scratch.normaliser import initial_spec
from flowrl.scratch.replay import RingReplay
from flowrl.scratch.vector import MakeVector


class Stopwatch:
    """Seconds of training: a clock that stands still while it is paused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lost, self._paused = clock, 0.0, None

    def read(self) -> float:
        """The time, without the pauses."""
        now: float = self._clock() if self._paused is None else self._paused
        return now - self._lost

    @contextmanager
    def pause(self) -> Generator[None]:
        """Stand still inside."""
        self._paused = began = self._clock()
        try:
            yield
        finally:
            self._paused = None
            self._lost += self._clock() - began


class Trainer:
    """One run of training from scratch. ``steps`` counts environment steps over all copies.

    ``session`` is how often the run was started before.
    """

    def __init__(
        self, run: Run, config: ScratchConfig, make: MakeVector, device: str, loaded: Loaded | None = None
    ) -> None:
        self.run, self.config, self._make = run, config, make
        self.steps, self._owed, self._session = 0, 0.0, 0
        self.stop = StopRequest()
        env = make(config.environment.count)
        self.spec = initial_spec(env.interface)
        self.agent = Agent(config, self.spec, device)
        self._replay = RingReplay(
            max(1, config.replay_steps // env.count),
            env.count,
            self.spec.state_size,
            self.spec.action.size,
            batch_size=config.update.batch_size,
            reward_scale=config.reward_scale,
            seed=config.seed,
            device=device,
        )
        self._exploration = Exploration(config.exploration, env.count, config.seed)
        self._clock = Stopwatch()
        resume_step = None if loaded is None else loaded.step
        sinks = [JsonlSink(run.metrics, resume_step), TensorBoardSink(run.tensorboard, resume_step)]
        self.metrics = Metrics(sinks, clock=self._clock.read)
        if loaded is not None:
            self._restore(loaded.state)
        self._collector = Collector(env, self._exploration, self._replay, config.seed, self._session)
        self.agent.observe(self._collector.observation)

    @property
    def seconds(self) -> float:
        """Seconds of training, evaluations and checkpoints not counted; a resumed run goes on counting."""
        return self.metrics.wall_s

    def train(self, progress: Progress) -> None:
        """Train until the budget ends. Raises KeyboardInterrupt between two steps when asked to stop."""
        name, total = self._limit()
        progress.phase("training", total)
        note = ""
        if self.steps == 0:
            progress.say(f"untrained: {self._evaluate_periodically()}")
        while not self._finished():
            self.stop.check()
            self._step()
            if self._due(self.config.log_every):
                values = self.metrics.log(self.steps)
                note = f"return while collecting {values.get('collect/return', float('nan')):.1f}"
            if self._due(self.config.evaluation.every_steps):
                progress.say(f"step {self.steps:,}, {self.seconds:.0f} s: {self._evaluate_periodically()}")
            if self._due(self.config.checkpoint_every):
                self.save()
            done = {"wall_s": self.seconds, "env_steps": self.steps, "updates": self.agent.updates}
            progress.advance(done[name], f"{self.steps:,} steps, {self.agent.updates:,} updates {note}")

    def evaluate(self, starts: list[int]) -> Returns:
        """Measure the deployed policy from ``starts``, the clock standing still."""
        with self._clock.pause():
            env = self._make(len(starts))
            try:
                return evaluate(env, self.agent.actor.deployed(), starts, self.stop.check)
            finally:
                env.close()

    def save(self) -> None:
        """Write a checkpoint with the policy, the clock standing still."""
        with self._clock.pause():
            policy = self.policy()

            def write(path: Path) -> None:
                save_policy(policy, path, self.lineage(), durable=False)

            self.run.checkpoints.save(self.steps, self._state(), extra_dirs={"policy": write})
            self.run.checkpoints.prune(self.config.keep_checkpoints)

    def policy(self) -> ChunkPolicy:
        """A copy of the policy with the normalisation of now."""
        policy = deepcopy(self.agent.policy)
        policy.spec = self.agent.normaliser.spec(self.spec)
        return policy

    def lineage(self) -> dict[str, Any]:
        """Where the policy comes from."""
        return {"run": self.run.name, "steps": self.steps, "updates": self.agent.updates}

    def close(self) -> None:
        """Free the environments and close the metrics."""
        self._collector.env.close()
        self.metrics.close()

    def _step(self) -> None:
        config, collector = self.config, self._collector
        uniform = self.steps < config.exploration.random_steps
        for earned, length in collector.step(None if uniform else self.agent.act):
            self.metrics.add({"collect/return": earned, "collect/length": length})
        self.agent.observe(collector.observation)
        self.steps += collector.env.count
        if self.steps >= config.update.start_steps:
            self._owed += config.update.per_step
        while self._owed >= 1:
            self.metrics.add(self.agent.update(self._replay))
            self._owed -= 1

    def _evaluate_periodically(self) -> Returns:
        found = self.evaluate(seeds.periodic(self.config.evaluation.episodes))
        values = {"evaluation/return": found.mean, "evaluation/length": found.mean_length}
        self.metrics.write(self.steps, values | {"updates": self.agent.updates})
        return found

    def _due(self, every: int) -> bool:
        """Whether the last step passed a multiple of ``every`` environment steps."""
        return self.steps // every > (self.steps - self._collector.env.count) // every

    def _limit(self) -> tuple[str, float]:
        """The budget that progress is shown against: seconds before steps before updates."""
        budget = self.config.budget
        limits = {"wall_s": budget.wall_s, "env_steps": budget.env_steps, "updates": budget.updates}
        return next((name, limit) for name, limit in limits.items() if limit is not None)

    def _finished(self) -> bool:
        budget = self.config.budget
        spent = [
            (self.seconds, budget.wall_s),
            (self.steps, budget.env_steps),
            (self.agent.updates, budget.updates),
        ]
        return any(limit is not None and used >= limit for used, limit in spent)

    def _state(self) -> dict[str, Any]:
        return {
            "agent": self.agent.state_dict(),
            "replay": self._replay.state_dict(),
            "exploration": self._exploration.state_dict(),
            "metrics": self.metrics.state_dict(),
            "steps": self.steps,
            "owed": self._owed,
            "session": self._session,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.agent.load_state_dict(state["agent"])
        self._replay.load_state_dict(state["replay"])
        self._exploration.load_state_dict(state["exploration"])
        self.metrics.load_state_dict(state["metrics"])
        self.steps, self._owed = state["steps"], state["owed"]
        self._session = state["session"] + 1
