"""Vector tasks whose right answers are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowrl.scratch.vector import FloatArray, VectorStep
from flowrl.spec import ActionSpec, Feature, Spec


def interface(state: int, action: int, half_range: float = 1.0) -> Spec:
    return Spec(
        observation=(Feature("observation.state", (state,)),),
        action=ActionSpec(
            tuple(f"a{i}" for i in range(action)), (-half_range,) * action, (half_range,) * action
        ),
        control_hz=10.0,
    )


class Bandit:
    """One-step episodes: the context c is uniform on [-1, 1], the reward of action a is ``-(a - c / 2)^2``.

    The action's unit is a tenth: bounds of 10 show where units are mixed up. The best return is 0; that of
    action 0 is ``-E[c^2] / 4 = -1/12`` on average.
    """

    name = "bandit"
    max_steps = 1

    def __init__(self, count: int) -> None:
        self.count = count
        self.interface = interface(1, 1, half_range=10.0)

    def reset(self, seeds: Sequence[int]) -> FloatArray:
        self._rng = np.random.default_rng(list(seeds))
        return self._next()

    def step(self, action: FloatArray) -> VectorStep:
        reward = -((action[:, 0] / 10 - self._context[:, 0] / 2) ** 2)
        ended, successor = np.ones(self.count, np.bool_), self._context
        return VectorStep(successor, reward.astype(np.float32), ended, ~ended, self._next())

    def close(self) -> None:
        pass

    def _next(self) -> FloatArray:
        self._context = self._rng.uniform(-1, 1, (self.count, 1)).astype(np.float32)
        return self._context


class PointMass:
    """A point on a line, pushed by at most 0.2 per step: reward ``-|x|``, fifteen steps, never terminated.

    The best policy moves straight to 0 and stays: from x it costs ``sum_k max(|x| - 0.2 k, 0)``, k from 1.
    """

    name = "point_mass"
    max_steps = 15

    def __init__(self, count: int) -> None:
        self.count = count
        self.interface = interface(1, 1)

    def reset(self, seeds: Sequence[int]) -> FloatArray:
        self._rng = np.random.default_rng(list(seeds))
        self._age = np.zeros(self.count, np.int64)
        self._x = self._rng.uniform(-1, 1, (self.count, 1))
        return self._x.astype(np.float32)

    def step(self, action: FloatArray) -> VectorStep:
        self._x = self._x + 0.2 * np.clip(action, -1, 1)
        self._age += 1
        successor = self._x.astype(np.float32)
        ended = self._age >= self.max_steps
        self._x = np.where(ended[:, None], self._rng.uniform(-1, 1, self._x.shape), self._x)
        self._age[ended] = 0
        reward = -np.abs(successor[:, 0])
        return VectorStep(successor, reward, np.zeros_like(ended), ended, self._x.astype(np.float32))

    def close(self) -> None:
        pass


def best_point_mass_return(x: float) -> float:
    return -sum(max(abs(x) - 0.2 * k, 0.0) for k in range(1, PointMass.max_steps + 1))


class Scripted:
    """N copies whose rewards and ends are given by hand, (T, N); the state is (copy, episode, step in it)."""

    name = "scripted"

    def __init__(self, reward: list[list[float]], end: list[str]) -> None:
        """``end`` has a letter per copy and step: ``.`` goes on, ``t`` is terminated, ``c`` is cut."""
        self._reward = np.array(reward, np.float32)
        self._end = np.array([list(row) for row in end])
        self.count = self._reward.shape[1]
        self.max_steps = len(reward)
        self.interface = interface(3, 1)

    def reset(self, seeds: Sequence[int]) -> FloatArray:
        self._now = 0
        self._episode, self._step = np.zeros(self.count), np.zeros(self.count)
        return self._state()

    def step(self, action: FloatArray) -> VectorStep:
        terminated, truncated = (self._end[self._now] == letter for letter in "tc")
        reward = self._reward[self._now]
        self._step += 1
        successor, ended = self._state(), terminated | truncated
        self._episode[ended] += 1
        self._step[ended] = 0
        self._now += 1
        return VectorStep(successor, reward, terminated, truncated, self._state())

    def close(self) -> None:
        pass

    def _state(self) -> FloatArray:
        return np.stack([np.arange(self.count), self._episode, self._step], axis=1).astype(np.float32)
