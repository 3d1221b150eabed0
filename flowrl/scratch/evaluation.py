"""Returns of a deployed policy, from fixed starts side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flowrl.acting import Actor
from flowrl.policies.observation import Observation
from flowrl.scratch.vector import VectorEnvironment
from flowrl.statistics import bootstrap_interval


@dataclass(frozen=True)
class Returns:
    """One episode's return and length for each start, under an acting rule in words."""

    rule: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def mean_length(self) -> float:
        """Mean length in control steps."""
        return float(np.mean(self.lengths))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the mean return over starts; it says nothing about other seeds of training."""
        return bootstrap_interval(self.returns)

    def __str__(self) -> str:
        low, high = self.interval
        return f"return {self.mean:.1f} [{low:.1f}, {high:.1f}] over {len(self.returns)} episodes"

    def to_json(self) -> dict[str, Any]:
        """Summary and episodes as JSON values."""
        return {
            "rule": self.rule,
            "return": self.mean,
            "interval": list(self.interval),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }


def evaluate(
    env: VectorEnvironment,
    actor: Actor,
    starts: Sequence[int],
    check: Callable[[], None] = lambda: None,
) -> Returns:
    """Run the first episode from each of N ``starts`` in the N copies of ``env``.

    ``check`` is called at every step and may raise, to stop early.
    """
    count = env.count
    observation = env.reset(starts)
    returns, lengths, running = np.zeros(count), np.zeros(count, np.int64), np.ones(count, np.bool_)
    generator = torch.Generator().manual_seed(0)
    while running.any():
        check()
        action = actor.act(Observation(torch.from_numpy(observation)), generator)[:, 0]
        step = env.step(action.cpu().numpy())
        returns += np.where(running, step.reward, 0.0)
        lengths += running
        running &= ~step.ended
        observation = step.observation
    return Returns(actor.rule, tuple(returns.tolist()), tuple(lengths.tolist()))
