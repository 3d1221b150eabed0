"""The two drivers: one process that collects and trains in turn, or workers beside the learner.

A driver runs the warm-up and the training of a `Learner`; both ask the same evaluator questions.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flowrl import seeds as seed_plan
from flowrl.acting import Actor
from flowrl.environment import Environment
from flowrl.evaluation import Evaluation, evaluate
from flowrl.learner.config import AsynchronousConfig, InterleavedConfig
from flowrl.learner.control import Control, RatioLimiter, write_control
from flowrl.learner.learner import Learner
from flowrl.learner.processes import CollectorPool, EvaluatorPool
from flowrl.learner.progress import Progress
from flowrl.policies.io import save_policy
from flowrl.replay.schema import Kind
from flowrl.replay.writer import CommitRule, StreamWriter
from flowrl.rollout import Episode, FixedActor, rollout

OnEpisode = Callable[[Episode], None]


@dataclass(frozen=True)
class Simulation:
    """How a run reaches its environment without importing a simulator.

    ``make`` builds one in this process; ``command`` starts the process that `sim.worker` implements.
    """

    make: Callable[[], Environment]
    command: Sequence[str]
    description: Mapping[str, Any]


class Driver(Protocol):
    """Collects and trains; owned by the loop in `flowrl.learner.loop`."""

    def evaluate(self, actor: Actor, start_seeds: Sequence[int], on_episode: OnEpisode) -> Evaluation:
        """Evaluate an actor, waiting for the answer."""
        ...

    def warm_up(self, base: Actor) -> None:
        """Collect with the base, then train the critics alone."""
        ...

    def train(self) -> None:
        """Collect and train until the budget is spent."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's driver state."""
        ...

    def state(self) -> dict[str, Any]:
        """The driver's part of a checkpoint."""
        ...

    def close(self) -> None:
        """Stop every process and close every stream."""
        ...


class _Base:
    """What both drivers share: the budget, and evaluation and checkpoints at their rates."""

    def __init__(self, learner: Learner, progress: Progress) -> None:
        self.learner, self.progress = learner, progress
        self.config = learner.config

    def spent(self) -> float:
        """The largest spent fraction of the budget's limits; training ends at 1."""
        budget, learner = self.config.budget, self.learner
        parts = [
            (learner.steps, budget.env_steps),
            (learner.updates, budget.updates),
            (learner.training_seconds, budget.wall_s),
        ]
        return max((done / limit for done, limit in parts if limit), default=1.0)

    def due(self, every: int) -> bool:
        """Whether the update just made is a multiple of ``every``."""
        return every > 0 and self.learner.updates > 0 and self.learner.updates % every == 0

    def evaluation_due(self) -> bool:
        """Whether to evaluate after the update just made."""
        return self.config.evaluation.periodic_episodes > 0 and self.due(self.config.evaluation.every_updates)

    def report(self) -> None:
        """Tell the progress display where training is."""
        success, episodes = self.learner.recent_success()
        note = (
            f"{self.learner.steps:,} steps, {self.learner.updates:,} updates, "
            f"collected success {success:.0%} of the last {episodes}"
        )
        self.progress.advance(min(self.spent(), 1.0), note)
        self.progress.collected(self.learner.steps, success, episodes)

    def record_evaluation(self, updates: int, evaluation: Evaluation) -> None:
        """Log a periodic evaluation."""
        low, high = evaluation.interval
        self.learner.metrics.write(
            updates,
            {
                "evaluation/success": evaluation.success_rate,
                "evaluation/low": low,
                "evaluation/high": high,
                "evaluation/length": evaluation.mean_length,
                "evaluation/env_steps": float(self.learner.steps),
                "evaluation/seconds": self.learner.training_seconds,
            },
        )
        self.progress.success(updates, evaluation.success_rate)


class Interleaved(_Base):
    """Collects an episode, pays the updates it owes, repeats. Deterministic on a CPU."""

    def __init__(
        self, learner: Learner, progress: Progress, driver: InterleavedConfig, simulation: Simulation
    ) -> None:
        super().__init__(learner, progress)
        self.driver = driver
        self.env = simulation.make()
        # Whole episodes only: a resumed run then collects exactly what an uninterrupted one would have.
        rule = CommitRule(seconds=0.0, rows=2**31, open_seconds=math.inf)
        interface = self.env.interface
        self.writer = StreamWriter.open_or_create(
            learner.run.replay, "worker-0", interface, Kind.POLICY, rule
        )
        self.owed = 0.0
        self._pinned: list[str] = []

    def evaluate(self, actor: Actor, start_seeds: Sequence[int], on_episode: OnEpisode) -> Evaluation:
        """Evaluate in this process."""
        return evaluate(self.env, actor, start_seeds, on_episode)

    def warm_up(self, base: Actor) -> None:
        """Collect with the base, then train the critics alone."""
        learner, target = self.learner, self.config.warm_up
        self.progress.phase("collecting with the base policy", target.env_steps)
        while learner.online_steps < target.env_steps:
            learner.stop.check()
            self._collect(base)
            self.progress.advance(learner.online_steps)
        self.progress.phase("warming up the critic", target.updates)
        while learner.warm_up_updates < target.updates:
            learner.stop.check()
            learner.warm_up_step()
            self.progress.advance(learner.warm_up_updates)

    def train(self) -> None:
        """Collect and train until the budget is spent."""
        self.progress.phase("fine-tuning", 1.0)
        while self.spent() < 1:
            self.learner.stop.check()
            if self.owed < 1:
                self.owed += self.driver.updates_per_step * self._collect(self.learner.actor("collect"))
                self.report()
                continue
            self.learner.step()
            self.owed -= 1
            if self.evaluation_due():
                seeds = seed_plan.periodic(self.config.evaluation.periodic_episodes)
                answer = evaluate(self.env, self.learner.actor("evaluate"), seeds)
                self.record_evaluation(self.learner.updates, answer)
            if self.due(self.config.checkpoint_every):
                self.learner.save(self.state())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Drop what was collected after the checkpoint: it is collected again, identically."""
        self.writer.rollback(state["snapshot"])
        self.owed = state["owed"]

    def state(self) -> dict[str, Any]:
        """Updates owed and the snapshot of the stream, pinned for as long as its checkpoint may be kept."""
        snapshot = self.writer.pin()
        self._pinned = [pinned for pinned in self._pinned if pinned != snapshot] + [snapshot]
        for pinned in self._pinned[1 : -(self.config.keep_checkpoints + 1)]:
            self.writer.unpin(pinned)
            self._pinned.remove(pinned)
        return {"owed": self.owed, "snapshot": snapshot}

    def close(self) -> None:
        """Close the stream and the environment."""
        self.writer.close()
        self.env.close()

    def _collect(self, actor: Actor) -> int:
        seed = seed_plan.collection(self.config.seed, 0, self.writer.episodes)
        source = FixedActor(actor, self.learner.updates)
        episode = rollout(self.env, source, seed=seed, writer=self.writer)
        self.writer.commit()
        self.learner.refresh()
        return episode.length


class Asynchronous(_Base):
    """Workers collect while the learner trains; evaluators answer without stopping either."""

    def __init__(
        self, learner: Learner, progress: Progress, driver: AsynchronousConfig, simulation: Simulation
    ) -> None:
        super().__init__(learner, progress)
        self.driver, self.run = driver, learner.run
        slack = max(self.config.warm_up.env_steps // 4, 200)
        self.limiter = RatioLimiter(driver.updates_per_step_low, driver.updates_per_step_high, slack)
        settings = [self._settings(index, simulation) for index in range(driver.workers)]
        self.collectors = CollectorPool(simulation.command, settings, self.run.logs)
        count = self.config.evaluation.workers
        self.evaluators = EvaluatorPool(simulation.command, simulation.description, count, self.run.logs)
        self.evaluators.start()
        self._evaluated_at = 0

    def evaluate(self, actor: Actor, start_seeds: Sequence[int], on_episode: OnEpisode) -> Evaluation:
        """Evaluate in the evaluator processes; the workers wait meanwhile."""
        self._drain()
        self.evaluators.submit(actor, start_seeds)
        return self.evaluators.wait(on_episode)

    def warm_up(self, base: Actor) -> None:
        """Train the critics alone while the workers collect with the base."""
        learner, target = self.learner, self.config.warm_up
        self._publish(base)
        self.collectors.start()
        self._allow(2 * target.env_steps)
        self.progress.phase("warming up the critic on the base policy's episodes", target.updates)
        while learner.warm_up_updates < target.updates or learner.online_steps < target.env_steps:
            learner.stop.check()
            if learner.warm_up_updates % self.driver.publish_every == 0 or not learner.online_steps:
                self._look_around()
            if learner.online_steps and learner.warm_up_updates < target.updates:
                learner.warm_up_step()
            else:
                time.sleep(0.01)
                self._look_around()
            self.progress.advance(learner.warm_up_updates, f"{learner.online_steps:,} steps collected")

    def train(self) -> None:
        """Train until the budget is spent, within the limits on updates per step."""
        learner = self.learner
        self.progress.phase("fine-tuning", 1.0)
        self._publish(learner.actor("collect"))
        self.collectors.start()
        while self.spent() < 1:
            self.learner.stop.check()
            if not self.limiter.may_update(learner.updates, learner.steps):
                time.sleep(0.01)
                self._look_around()
                continue
            learner.step()
            if self.due(self.driver.publish_every):
                self._publish(learner.actor("collect"))
                self._look_around()
                self.report()
            if self.evaluation_due():
                self._drain()
                seeds = seed_plan.periodic(self.config.evaluation.periodic_episodes)
                self._evaluated_at = learner.updates
                self.evaluators.submit(learner.actor("evaluate"), seeds)
            if self.due(self.config.checkpoint_every):
                learner.save(self.state())
        self._drain()
        self._allow(0)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing of its own: episodes that came after the checkpoint stay."""

    def state(self) -> dict[str, Any]:
        """Nothing of its own."""
        return {"restarts": self.collectors.restarts}

    def close(self) -> None:
        """Stop workers and evaluators; each closes its stream first."""
        write_control(self.run.weights.directory, Control("stop"))
        self.collectors.stop()
        self.evaluators.stop()
        self.learner.refresh()

    def _look_around(self) -> None:
        """Take new episodes, revive workers, extend their limit, collect an evaluation's answer."""
        self.learner.refresh()
        self.collectors.check()
        if self.learner.warm_up_steps:
            self._allow(self.learner.warm_up_steps + self.limiter.step_limit(self.learner.updates))
        if self.evaluators.busy and (answer := self.evaluators.poll()) is not None:
            self.record_evaluation(self._evaluated_at, answer)

    def _drain(self) -> None:
        if self.evaluators.busy:
            self.record_evaluation(self._evaluated_at, self.evaluators.wait())

    def _allow(self, total: int) -> None:
        """Let the workers collect ``total`` steps together, over the whole run."""
        limit = math.ceil(total / self.driver.workers)
        write_control(self.run.weights.directory, Control("collect", limit))

    def _publish(self, actor: Actor) -> None:
        version = (self.run.weights.latest() or 0) + 1
        self.run.weights.publish(
            version, lambda path: save_policy(actor.policy, path, durable=False), actor.state()
        )

    def _settings(self, index: int, simulation: Simulation) -> Path:
        path = self.run.logs / f"worker-{index}.json"
        settings = {
            "environment": dict(simulation.description),
            "replay": str(self.run.replay),
            "weights": str(self.run.weights.directory),
            "worker": index,
            "run_seed": self.config.seed,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=2))
        return path
