"""The learner of a run: an algorithm, its batches, its metrics and its checkpoints.

Drivers call `warm_up_step`, `step`, `refresh` and `save`; how experience arrives is their business.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from flowrl.acting import Actor
from flowrl.algorithms.factory import make_algorithm
from flowrl.algorithms.interface import Batches
from flowrl.checkpoint import Loaded
from flowrl.errors import NonFiniteLoss
from flowrl.learner.config import RunConfig
from flowrl.learner.metrics import JsonlSink, Metrics, TensorBoardSink
from flowrl.learner.run import Run
from flowrl.learner.stop import StopRequest
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.io import save_policy
from flowrl.replay.batch import ChunkBatch
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import EPISODE, Outcome

WORKER_STREAM = "worker-"
"""How the names of the streams begin that a run's own workers write."""
RECENT = 50
"""Episodes of the rolling training success."""


class Learner:
    """Updates an algorithm from a run's replay and keeps its books.

    ``updates`` and ``steps`` count from the end of the warm-up; ``seconds`` is training time, carried
    over by a resume.
    """

    def __init__(
        self, run: Run, config: RunConfig, policy: FlowPolicy, resume_step: int | None = None
    ) -> None:
        self.run, self.config, self.policy = run, config, policy
        self.reader = ReplayReader(
            run.replay,
            spec=policy.spec.interface(),
            decoded_bytes=config.sampling.decoded_mb << 20,
            reward=config.sampling.reward,
            own=WORKER_STREAM,
        )
        self.algorithm = make_algorithm(config.algorithm, policy, config.seed)
        self.sampler = self._new_sampler()
        sinks = [JsonlSink(run.metrics, resume_step), TensorBoardSink(run.tensorboard, resume_step)]
        self.metrics = Metrics(sinks)
        self.updates = 0
        self.warm_up_updates = 0
        self.warm_up_steps = 0
        self.seconds = 0.0
        self.stop = StopRequest()
        self.training = False
        """Whether there is anything to save: set by the end of the warm-up or by a resume."""
        self._resumed_at: float | None = None

    @property
    def batches(self) -> Batches:
        """Where the algorithm gets its batches, on its own device."""
        device = self.policy.device
        return self.sampler if device.type == "cpu" else _OnDevice(self.sampler, device)

    def _new_sampler(self) -> ChunkSampler:
        return ChunkSampler(self.reader, sampler_config(self.config, self.policy), self.config.seed)

    # Experience

    def refresh(self) -> int:
        """Take newly committed episodes into the cache; returns how many came."""
        return self.reader.refresh()

    @property
    def online_steps(self) -> int:
        """Rows collected in this run, warm-up included."""
        return int(self._online_table()[:, EPISODE["length"]].sum())

    @property
    def steps(self) -> int:
        """Rows collected since the warm-up."""
        return self.online_steps - self.warm_up_steps

    def recent_success(self) -> tuple[float, int]:
        """Success rate of the newest collected episodes and how many they are (at most RECENT)."""
        outcomes = self._online_table()[:, EPISODE["outcome"]]
        finished = outcomes[outcomes != Outcome.INTERRUPTED][-RECENT:]
        return (float((finished == Outcome.SUCCESS).mean()) if len(finished) else 0.0), len(finished)

    def _online_table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Episodes that this run collected: not what it was given, whoever acted there."""
        own = [name.startswith(WORKER_STREAM) for name in self.reader.streams]
        if not len(self.reader.table):
            return self.reader.table
        return self.reader.table[np.asarray(own)[self.reader.stream_of_episode]]

    # Updates

    def warm_up_step(self) -> None:
        """One update of the critics alone."""
        info = self.algorithm.warm_up(self.batches)
        self.warm_up_updates += 1
        self.metrics.add({f"warm_up/{name}": value for name, value in info.items()})
        if self.warm_up_updates % self.config.log_every == 0:
            self.log()

    def start_training(self) -> None:
        """The warm-up is over: steps, updates and seconds count from here."""
        self.training = True
        self.warm_up_steps = self.online_steps
        self._resumed_at = time.monotonic()

    def step(self) -> None:
        """One update; logs at the configured rate. Raises NonFiniteLoss naming the update."""
        began = time.perf_counter()
        try:
            info = self.algorithm.update(self.batches)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"update {self.updates + 1}: {error}") from error
        self.updates += 1
        self.metrics.add({**info, "run/update_ms": 1000 * (time.perf_counter() - began)})
        if self.updates % self.config.log_every == 0:
            self.log()

    @property
    def training_seconds(self) -> float:
        """Seconds of training so far, over all sessions of the run."""
        return self.seconds + (0.0 if self._resumed_at is None else time.monotonic() - self._resumed_at)

    def stop_clock(self) -> None:
        """Training is over: what follows is not counted."""
        self.seconds, self._resumed_at = self.training_seconds, None

    def log(self) -> None:
        """Write the averaged metrics since the last log, the counters and the training success."""
        success, episodes = self.recent_success()
        counters = {
            "run/env_steps": float(self.steps),
            "run/online_steps": float(self.online_steps),
            "run/updates": float(self.updates),
            "run/seconds": self.training_seconds,
            "collect/recent_success": success,
            "collect/recent_episodes": float(episodes),
        }
        with self.sampler.apart(self.updates):
            self.metrics.set({**counters, **self.algorithm.diagnostics(self.batches)})
        self.metrics.log(self.updates)

    # Acting

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """The live actor under the rule for collection or for evaluation."""
        return self.algorithm.actor(purpose)

    # Checkpoints

    def save(self, driver: Mapping[str, Any]) -> None:
        """Write a checkpoint of everything; ``driver`` is the driver's own state."""
        state = {
            "algorithm": self.algorithm.state_dict(),
            "sampler": self.sampler.state_dict(),
            "replay": self.reader.state_dict(),
            "counters": {
                "updates": self.updates,
                "warm_up_updates": self.warm_up_updates,
                "warm_up_steps": self.warm_up_steps,
                "seconds": self.training_seconds,
            },
            "metrics": self.metrics.state_dict(),
            "driver": dict(driver),
        }
        policy = self.actor("evaluate").policy
        lineage = {"run": self.run.name, "updates": self.updates}

        def write(path: Path) -> None:
            save_policy(policy, path, lineage, durable=False)

        self.run.checkpoints.save(self.updates, state, extra_dirs={"policy": write})
        self.run.checkpoints.prune(self.config.keep_checkpoints, protect=[0])

    def restore(self, loaded: Loaded) -> dict[str, Any]:
        """Continue from a checkpoint; returns the driver's state."""
        state = loaded.state
        self.reader.load_state_dict(state["replay"])
        # The first one has cut the episodes that came after the checkpoint, too.
        self.sampler = self._new_sampler()
        self.algorithm.load_state_dict(state["algorithm"])
        self.sampler.load_state_dict(state["sampler"])
        counters = state["counters"]
        self.updates = counters["updates"]
        self.warm_up_updates = counters["warm_up_updates"]
        self.warm_up_steps = counters["warm_up_steps"]
        self.seconds = counters["seconds"]
        self._resumed_at = time.monotonic()
        self.metrics.load_state_dict(state["metrics"])
        self.training = True
        return state["driver"]

    def close(self) -> None:
        """Flush the metrics."""
        self.metrics.close()


class _OnDevice:
    """Batches moved to the device of the networks."""

    def __init__(self, batches: Batches, device: torch.device) -> None:
        self._batches, self._device = batches, device

    def batch(self, source: str | None = None, chunks: int = 1) -> ChunkBatch:
        return self._batches.batch(source, chunks).to(self._device)


def sampler_config(config: RunConfig, policy: FlowPolicy) -> SamplerConfig:
    """How this run's batches are cut, given the policy's chunk and the algorithm's discount."""
    sampling = config.sampling
    return SamplerConfig(
        batch_size=sampling.batch_size,
        chunk=policy.chunk.length,
        past=policy.chunk.past,
        ahead=policy.chunk.ahead,
        discount=config.algorithm.discount,
        end_rule=sampling.end_rule,
        reward_scale=sampling.reward_scale,
        reward_shift=sampling.reward_shift,
        mix=sampling.mix,
        named=sampling.named,
    )
