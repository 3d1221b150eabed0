"""Scripted experts that solve a task, and demonstrations collected from them.

Noise is injected while the expert acts (DART, arXiv 1703.09327): the action that is executed and
recorded carries the noise and the expert corrects for it on the next step, so demonstrations cover
the neighbourhood of the ideal path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import FlowRLError, UsageError
from sim.base import Action, Observations, SimEnv
from sim.scripted import CanExpert, LiftExpert, SquareExpert

# Half the range of reset seeds: small seeds, such as evaluations use, never meet a demonstration's.
_FIRST_SEED, _LAST_SEED = 2**30, 2**31 - 1


class Expert(Protocol):
    """A scripted solution of one task."""

    @property
    def noise_shape(self) -> NDArray[np.float64]:
        """Injected noise of each action dimension (A,), relative to the ``noise`` asked for."""
        ...

    def reset(self, env: SimEnv) -> None:
        """Forget the last episode; called after ``env.reset``."""
        ...

    def act(self, observation: Mapping[str, NDArray[Any]]) -> Action:
        """The next action (A,) for all state features (`SimEnv.full_state`)."""
        ...


@dataclass(frozen=True)
class Demonstration:
    """One recorded episode of L steps.

    ``observations`` has L + 1 entries (the last is the final one), ``actions`` (L, A) are the
    executed ones, ``rewards`` (L,). ``terminated`` is False when the time limit ended the episode.
    ``seed`` is the reset seed that reproduces the start.
    """

    observations: list[Observations]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: bool
    success: bool
    seed: int

    def __len__(self) -> int:
        return len(self.actions)


class Collection(Iterator[Demonstration]):
    """Demonstrations made one by one as they are asked for, with the success count so far."""

    def __init__(
        self, env: SimEnv, expert: Expert, episodes: int, noise: float, seed: int, only_successes: bool
    ) -> None:
        self._env, self._expert, self._noise = env, expert, noise
        self._generator = np.random.default_rng(seed)
        self._wanted, self._only_successes = episodes, only_successes
        self._limit = 20 + 10 * episodes
        self._kept = self.attempts = self.successes = 0

    @property
    def success_rate(self) -> float:
        """Successes over all attempts, the discarded failures included; NaN before the first."""
        return self.successes / self.attempts if self.attempts else float("nan")

    def __next__(self) -> Demonstration:
        while self._kept < self._wanted:
            if self.attempts >= self._limit:
                raise FlowRLError(
                    f"{self._env.name}: the expert succeeded in {self.successes} of {self.attempts} "
                    f"episodes, too rarely to collect {self._wanted}; lower the noise ({self._noise})"
                )
            demonstration = self._attempt()
            if demonstration.success or not self._only_successes:
                self._kept += 1
                return demonstration
        raise StopIteration

    def _attempt(self) -> Demonstration:
        seed = int(self._generator.integers(_FIRST_SEED, _LAST_SEED))
        demonstration = run_expert(
            self._env, self._expert, self._noise, seed, np.random.default_rng([seed, 1])
        )
        self.attempts += 1
        self.successes += demonstration.success
        return demonstration


def collect(
    env: SimEnv,
    expert: Expert,
    episodes: int,
    noise: float = 0.0,
    seed: int = 0,
    only_successes: bool = True,
) -> Collection:
    """Iterate over ``episodes`` demonstrations of an expert.

    ``noise`` is the standard deviation added to the translation while the expert acts (rotation
    gets 0.3 of it, the gripper none). The whole sequence depends on ``seed`` alone. The returned
    iterator also counts ``attempts``, ``successes`` and ``success_rate``. Raises FlowRLError when
    the expert fails so often that the episodes cannot be had.
    """
    return Collection(env, expert, episodes, noise, seed, only_successes)


def run_expert(
    env: SimEnv, expert: Expert, noise: float, seed: int, generator: np.random.Generator
) -> Demonstration:
    """One episode of the expert with action noise drawn from ``generator``."""
    observation, _info = env.reset(seed=seed)
    expert.reset(env)
    low, high = np.asarray(env.interface.action.low), np.asarray(env.interface.action.high)
    observations, actions, rewards = [observation], list[Action](), list[float]()
    terminated = truncated = False
    while not (terminated or truncated):
        disturbance = noise * expert.noise_shape * generator.standard_normal(low.size)
        action = np.clip(expert.act(env.full_state()) + disturbance, low, high).astype(np.float32)
        observation, reward, terminated, truncated, _info = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
    return Demonstration(
        observations, np.stack(actions), np.asarray(rewards, np.float32), terminated, terminated, seed
    )


def expert_for(name: str) -> Expert:
    """The scripted expert of an environment. Raises UsageError naming those that have one."""
    if name not in _EXPERTS:
        raise UsageError(f"environment {name!r} has no scripted expert; {', '.join(sorted(_EXPERTS))} have")
    return _EXPERTS[name]()


_EXPERTS: dict[str, Callable[[], Expert]] = {
    "lift": LiftExpert,
    "can": CanExpert,
    "square": SquareExpert,
}
