"""Vector environments for training from scratch: many copies of one locomotion task in envpool's C++.

envpool restarts an environment by itself, on the step *after* an episode's last one, whose action is lost.
`EnvPoolVector` restarts at once instead, so that every step is a transition and the last state of an
episode is never mistaken for the first of the next.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError, UsageError
from flowrl.scratch.vector import FloatArray, VectorStep
from flowrl.spec import ActionSpec, Feature, Spec
from sim.gymnasium_env import STATE, import_simulator


@dataclass(frozen=True)
class Task:
    """A task of envpool.

    ``state`` names the part of the observation that a policy sees, where there are several: joystick tasks
    also have a noiseless ``privileged_state``, which is not used.
    """

    summary: str
    envpool_id: str
    control_hz: float
    state: str | None = None


_TASKS: dict[str, Task] = {
    "go1_joystick": Task(
        "Go1 quadruped follows velocity commands", "Go1JoystickFlatTerrain-v1", 50.0, "state"
    ),
    "spot_joystick": Task(
        "Spot quadruped follows velocity commands", "SpotFlatTerrainJoystick-v1", 50.0, "state"
    ),
    "h1_joystick": Task("H1 humanoid follows velocity commands in a gait", "H1JoystickGaitTracking-v1", 50.0),
    "g1_joystick": Task("G1 humanoid follows velocity commands", "G1JoystickFlatTerrain-v1", 50.0, "state"),
    "t1_joystick": Task("T1 humanoid follows velocity commands", "T1JoystickFlatTerrain-v1", 50.0, "state"),
    "humanoid": Task("MuJoCo Humanoid-v5 runs", "Humanoid-v5", 1 / 0.015),
    "ant": Task("MuJoCo Ant-v5, a quadruped, runs", "Ant-v5", 20.0),
    "half_cheetah": Task("MuJoCo HalfCheetah-v5 runs", "HalfCheetah-v5", 20.0),
    "walker2d": Task("MuJoCo Walker2d-v5 walks", "Walker2d-v5", 125.0),
    "hopper": Task("MuJoCo Hopper-v5 hops", "Hopper-v5", 125.0),
}

SETTINGS: Mapping[str, Any] = {"max_steps": 1000, "threads": 1}
"""Settings of every vector environment with their defaults; ``threads`` is how many step the copies."""


def names() -> list[str]:
    """The vector environments that `make` knows, sorted."""
    return sorted(_TASKS)


def describe(name: str) -> str:
    """One line: what the task is, and its settings with defaults."""
    settings = ", ".join(f"{key}={value}" for key, value in SETTINGS.items())
    return f"{_task(name).summary} (package envpool, extra 'sim'; settings {settings})"


def make(name: str, count: int, **settings: Any) -> EnvPoolVector:
    """Make ``count`` copies of an environment.

    Raises UsageError for an unknown name or setting (naming the nearest valid one) and MissingExtra
    without envpool.
    """
    task = _task(name)
    for key in settings:
        if key not in SETTINGS:
            raise UsageError(f"{name} has no setting {key!r}; its settings are {', '.join(SETTINGS)}")
    return EnvPoolVector(name, task, count, **{**SETTINGS, **settings})


class EnvPoolVector:
    """N copies of one envpool task; see `flowrl.scratch.vector.VectorEnvironment`."""

    def __init__(self, name: str, task: Task, count: int, max_steps: int, threads: int) -> None:
        if count < 1 or max_steps < 1:
            raise UsageError(f"{name}: count is {count} and max_steps {max_steps}; both must be at least 1")
        self._envpool = import_simulator("envpool", "envpool")
        self.name, self.count, self.max_steps = name, count, max_steps
        self._task, self._threads = task, threads
        self._pool: Any = None
        self.interface = self._interface()

    def reset(self, seeds: Sequence[int]) -> FloatArray:
        """Start an episode in every copy, (N, S); envpool takes seeds when it is made, so it is made anew."""
        if len(seeds) != self.count:
            raise UsageError(f"{self.name} has {self.count} copies, got {len(seeds)} seeds")
        self.close()
        self._pool = self._make([int(seed) for seed in seeds])
        return self._state(self._pool.reset()[0])

    def step(self, action: FloatArray, /) -> VectorStep:
        """Apply one action in each copy, (N, A); values outside the bounds are clipped to them.

        Raises DataError for another shape or a non-finite value, UsageError before the first reset.
        """
        if self._pool is None:
            raise UsageError(f"{self.name}: step was called before reset")
        observation, reward, terminated, truncated, _ = self._pool.step(self._checked(action))
        successor = self._state(observation)
        terminated = np.asarray(terminated, np.bool_)
        truncated = np.asarray(truncated, np.bool_) & ~terminated
        following, ended = successor, np.flatnonzero(terminated | truncated)
        if len(ended):
            following = successor.copy()
            following[ended] = self._state(self._pool.reset(ended.astype(np.int32))[0])
        return VectorStep(successor, np.asarray(reward, np.float32), terminated, truncated, following)

    def close(self) -> None:
        """Free the simulators."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _make(self, seeds: list[int]) -> Any:
        return self._envpool.make(
            self._task.envpool_id,
            env_type="gymnasium",
            num_envs=len(seeds),
            num_threads=min(self._threads, len(seeds)),
            seed=seeds,
            max_episode_steps=self.max_steps,
        )

    def _interface(self) -> Spec:
        spec: Any = self._envpool.make_spec(self._task.envpool_id)
        box = spec.gymnasium_action_space
        space = spec.gymnasium_observation_space
        states = space if self._task.state is None else space[self._task.state]
        low, high = (np.broadcast_to(side, box.shape) for side in (box.low, box.high))
        names = tuple(f"actuator_{i}" for i in range(box.shape[0]))
        return Spec(
            observation=(Feature(STATE, (int(states.shape[0]),)),),
            action=ActionSpec(names, tuple(map(float, low)), tuple(map(float, high)), unit="1 is full range"),
            control_hz=self._task.control_hz,
            settings={"simulator": "envpool", "task": self._task.envpool_id},
        )

    def _state(self, observation: Any) -> FloatArray:
        part = observation if self._task.state is None else observation[self._task.state]
        return np.asarray(part, np.float32)

    def _checked(self, action: FloatArray) -> NDArray[np.float64]:
        spec = self.interface.action
        if action.shape != (self.count, spec.size):
            raise DataError(
                f"{self.name}: actions have shape ({self.count}, {spec.size}), got {action.shape}"
            )
        if not np.isfinite(action).all():
            raise DataError(f"{self.name}: an action is not finite")
        return np.clip(action, spec.low, spec.high).astype(np.float64)


def _task(name: str) -> Task:
    if name not in _TASKS:
        near = difflib.get_close_matches(name, _TASKS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"unknown vector environment {name!r}{hint}; known are {', '.join(names())}")
    return _TASKS[name]
