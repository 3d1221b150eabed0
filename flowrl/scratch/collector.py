"""Collecting with many environments: exploration noise of each, and the books of their episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowrl import seeds
from flowrl.scratch.config import ExplorationConfig
from flowrl.scratch.replay import RingReplay
from flowrl.scratch.vector import BoolArray, FloatArray, VectorEnvironment

Act = Callable[[Tensor], Tensor]
"""Flat actions (N, D) in [-1, 1] for raw states (N, S)."""


class Exploration:
    """Gaussian noise whose standard deviation each environment draws anew for every episode (arXiv 2505.22642)."""

    def __init__(self, config: ExplorationConfig, count: int, seed: int) -> None:
        self._config = config
        self._generator = torch.Generator().manual_seed(seed)
        self.scale = self._draw(count)

    def disturb(self, action: Tensor) -> Tensor:
        """Actions (N, D) with noise, in [-1, 1]."""
        noise = torch.randn(action.shape, generator=self._generator)
        return (action + self.scale * noise).clamp(-1, 1)

    def uniform(self, count: int, size: int) -> Tensor:
        """Uniform actions (count, size)."""
        return torch.rand(count, size, generator=self._generator) * 2 - 1

    def restart(self, ended: BoolArray) -> None:
        """Draw new scales where an episode ended, (N,)."""
        if ended.any():
            picked = torch.from_numpy(ended)[:, None]
            self.scale = torch.where(picked, self._draw(len(ended)), self.scale)

    def _draw(self, count: int) -> Tensor:
        low, high = self._config.low, self._config.high
        return low + (high - low) * torch.rand(count, 1, generator=self._generator)

    def state_dict(self) -> dict[str, Any]:
        """Scales and random state."""
        return {"scale": self.scale, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.scale = state["scale"]
        self._generator.set_state(state["generator"])


class EpisodeBook:
    """Returns and lengths of the episodes that N environments have finished."""

    def __init__(self, count: int) -> None:
        self._return, self._length = np.zeros(count), np.zeros(count, np.int64)
        self.episodes = 0

    def step(self, reward: FloatArray, ended: BoolArray) -> list[tuple[float, int]]:
        """Add one step (N,); the return and length of every episode that ended with it."""
        self._return += reward
        self._length += 1
        done = [(float(self._return[i]), int(self._length[i])) for i in np.flatnonzero(ended)]
        self._return[ended], self._length[ended] = 0.0, 0
        self.episodes += len(done)
        return done


class Collector:
    """Steps a vector environment, remembers its transitions and keeps its books.

    ``session`` counts how often the run was started: the state of a simulator is not saved, so a resumed run
    begins new episodes, from starts that it has not used.
    """

    def __init__(
        self,
        env: VectorEnvironment,
        exploration: Exploration,
        replay: RingReplay,
        seed: int,
        session: int = 0,
    ) -> None:
        self.env, self.exploration, self._replay = env, exploration, replay
        self.book = EpisodeBook(env.count)
        starts = [seeds.collection(seed, session, i) for i in range(env.count)]
        self.observation = env.reset(starts)
        action = env.interface.action
        low, high = torch.tensor(action.low), torch.tensor(action.high)
        self._centre, self._half = (high + low) / 2, (high - low) / 2

    def step(self, act: Act | None) -> list[tuple[float, int]]:
        """One step in every environment, by uniform actions without ``act``; the episodes that ended."""
        if act is None:
            flat = self.exploration.uniform(self.env.count, len(self._half))
        else:
            flat = self.exploration.disturb(act(torch.from_numpy(self.observation)))
        action = flat * self._half + self._centre
        step = self.env.step(action.numpy())
        self._replay.add(self.observation, action, step)
        self.observation = step.observation
        self.exploration.restart(step.ended)
        return self.book.step(step.reward, step.ended)
