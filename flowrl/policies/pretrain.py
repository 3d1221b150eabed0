"""Behaviour cloning: fit a policy to demonstrated chunks by its own imitation loss.

Batches come from anything with ``batch(source)``: the same sampler that reinforcement learning
uses, or plain arrays wrapped as `Demonstrations`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowrl.config import configclass
from flowrl.errors import DataError, NonFiniteLoss
from flowrl.normalisation import require_finite
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.observation import Observation
from flowrl.spec import Spec
from flowrl.training import adam, clipped_step

Progress = Callable[[int, dict[str, float]], None]
"""``progress(step, metrics)``, called every ``log_every`` steps and after the last one."""


@configclass
class PretrainConfig:
    """Behaviour cloning; the defaults fit a few demonstrations of a simulated task in ten seconds."""

    steps: int = 2000
    """Gradient steps."""
    batch_size: int = 128
    """B, chunks in a batch cut from arrays; a replay sampler has its own."""
    learning_rate: float = 1e-3
    """Adam's step size at the start; it falls to 0 along a cosine."""
    gradient_clip: float = 10.0
    """Largest norm of the gradient."""
    seed: int = 0
    """Seed of the noise, the flow times and the rows drawn."""
    source: str | None = None
    """Named source to clone, for example ``successes``; none takes the sampler's mix."""
    log_every: int = 100
    """Steps between two reports."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")


class ImitationBatch(Protocol):
    """What cloning reads of a batch; `flowrl.replay.batch.ChunkBatch` has it."""

    @property
    def observation(self) -> Observation:
        """B raw observations."""
        ...

    @property
    def action(self) -> Tensor:
        """Raw chunks (B, H, A)."""
        ...

    @property
    def valid(self) -> Tensor:
        """(B, H); a row whose last column is 0 straddles the end of an episode and weighs nothing."""
        ...


class ImitationBatches(Protocol):
    """Where batches come from; `flowrl.algorithms.interface.Batches` is one."""

    def batch(self, source: str | None = None) -> ImitationBatch:
        """A fresh batch from the mix, or from one named source."""
        ...


class ArrayBatch:
    """A batch cut from arrays, every row valid."""

    def __init__(self, state: Tensor, action: Tensor) -> None:
        self.observation = Observation(state)
        self.action = action
        self.valid = torch.ones(action.shape[:2])


class Demonstrations:
    """Batches of uniformly drawn rows from raw states (N, S) and raw action chunks (N, H, A).

    Raises DataError when a shape does not fit the spec, or naming the first value that is not finite.
    """

    def __init__(
        self, spec: Spec, states: NDArray[Any], chunks: NDArray[Any], batch_size: int, seed: int = 0
    ) -> None:
        length = None if spec.chunk is None else spec.chunk.length
        rows = len(states)
        for name, found, expected in (
            ("states", states.shape, (rows, spec.state_size)),
            ("chunks", chunks.shape, (rows, length, spec.action.size)),
        ):
            if rows == 0 or found != expected:
                raise DataError(f"{name} have shape {found}, the spec says {expected} with rows > 0")
        require_finite(states, spec.state_dimension_names())
        steps = [f"action[{i}].{name}" for i in range(chunks.shape[1]) for name in spec.action.names]
        require_finite(chunks.reshape(rows, -1), steps)
        self._states = torch.from_numpy(states.astype(np.float32))
        self._chunks = torch.from_numpy(chunks.astype(np.float32))
        self._batch_size = batch_size
        self._generator = torch.Generator().manual_seed(seed)

    def batch(self, source: str | None = None) -> ArrayBatch:
        """A fresh batch; arrays have one source, so ``source`` is not looked at."""
        rows = torch.randint(len(self._states), (self._batch_size,), generator=self._generator)
        return ArrayBatch(self._states[rows], self._chunks[rows])


def pretrain(
    policy: FlowPolicy,
    batches: ImitationBatches | tuple[NDArray[Any], NDArray[Any]],
    config: PretrainConfig,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Clone ``batches`` (or raw states (N, S) and chunks (N, H, A)) into ``policy``, in place.

    Deterministic on CPU given the policy's weights, the batches and ``config.seed``. Returns the last
    metrics: ``pretrain/loss`` (mean since the last report), ``pretrain/gradient_norm``,
    ``pretrain/learning_rate``, ``pretrain/updates_per_s``.

    Raises:
        NonFiniteLoss: naming the step; the policy keeps the weights before it.
        DataError: arrays of another shape than the spec's, or with non-finite values.
    """
    if isinstance(batches, tuple):
        batches = Demonstrations(policy.spec, *batches, config.batch_size, config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    optimiser = adam({"policy": policy}, {"policy": config.learning_rate})
    metrics = dict[str, float]()
    total, since, started = torch.zeros((), device=policy.device), 0, time.perf_counter()
    policy.train()
    # Random shifts of frames come from torch's global generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        for step in range(1, config.steps + 1):
            rate = config.learning_rate * (1 + math.cos(math.pi * (step - 1) / config.steps)) / 2
            optimiser.param_groups[0]["lr"] = rate
            loss = imitation_loss(policy, batches.batch(config.source), generator)
            try:
                norms = clipped_step(optimiser, loss, config.gradient_clip)
            except NonFiniteLoss as error:
                raise NonFiniteLoss(
                    f"pretraining stopped at step {step} of {config.steps}: {error}; check the data's range "
                    f"(`flowrl check`), or lower the learning rate {config.learning_rate:g}"
                ) from error
            total, since = total + loss.detach(), since + 1
            if step % config.log_every == 0 or step == config.steps:
                metrics = {
                    "pretrain/loss": float(total) / since,
                    "pretrain/gradient_norm": norms["policy"],
                    "pretrain/learning_rate": rate,
                    "pretrain/updates_per_s": step / (time.perf_counter() - started),
                }
                total, since = torch.zeros_like(total), 0
                if progress is not None:
                    progress(step, metrics)
    policy.eval()
    return metrics


def imitation_loss(policy: FlowPolicy, batch: ImitationBatch, generator: torch.Generator) -> Tensor:
    """The policy's imitation loss on a batch, rows weighted by ``valid[:, -1]`` (arXiv 2601.14234).

    Noise, then t ~ U[0, 1], are drawn from ``generator``, on its own device: a run on an accelerator
    sees the draws of a run on CPU.
    """
    device = policy.device
    context = policy.encode(batch.observation.to(device))
    action = policy.flat_action(batch.action.to(device))
    place = generator.device
    noise = torch.randn(action.shape, generator=generator, device=place).to(device)
    t = torch.rand(len(action), 1, generator=generator, device=place).to(device)
    return policy.imitation_loss(context, action, noise, t, batch.valid[:, -1].to(device))
