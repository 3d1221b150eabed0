"""Running normalisation of observations, fitted while data comes in and saved with the policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowrl.normalisation import STATE_CLIP, Normalisation
from flowrl.policies.interface import ChunkPolicy
from flowrl.spec import Spec

_SCALE_FLOOR = 1e-2
_Q99 = 2.326
"""The 99 % quantile of the standard normal."""


class RunningNormaliser:
    """Mean and standard deviation (S,) of all states seen, by the parallel update of Chan et al. (1979)."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size)
        self._squares = np.zeros(size)

    @property
    def std(self) -> NDArray[np.float64]:
        """Population standard deviation, floored; 1 before the first state."""
        if not self.count:
            return np.ones_like(self.mean)
        return np.maximum(np.sqrt(self._squares / self.count), _SCALE_FLOOR)

    def update(self, states: NDArray[Any]) -> None:
        """Take in states (N, S)."""
        rows = len(states)
        mean = states.mean(axis=0, dtype=np.float64)
        squares = np.square(states - mean).sum(axis=0)
        total = self.count + rows
        shift = mean - self.mean
        self.mean = self.mean + shift * rows / total
        self._squares = self._squares + squares + np.square(shift) * self.count * rows / total
        self.count = total

    def write_to(self, policy: ChunkPolicy) -> None:
        """Let a policy normalise by the statistics of now."""
        for name, values in (("state_mean", self.mean), ("state_scale", self.std)):
            policy.get_buffer(name).copy_(torch.from_numpy(values))

    def spec(self, spec: Spec) -> Spec:
        """A spec with the statistics of now, as a saved policy carries it.

        The quantiles, which only checks of data look at, are those of a Gaussian.
        """
        old, std = spec.normalisation, self.std
        assert old is not None
        fitted = replace(
            old,
            state_mean=_floats(self.mean),
            state_scale=_floats(std),
            state_q01=_floats(self.mean - _Q99 * std),
            state_q99=_floats(self.mean + _Q99 * std),
        )
        return replace(spec, normalisation=fitted)

    def state_dict(self) -> dict[str, Any]:
        """The statistics, exactly."""
        return {"count": self.count, "mean": self.mean, "squares": self._squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.count, self.mean, self._squares = state["count"], state["mean"], state["squares"]


def initial_spec(interface: Spec) -> Spec:
    """An environment's interface for a policy that acts step by step and has seen nothing yet."""
    size, action = interface.state_size, interface.action
    low, high = np.asarray(action.low), np.asarray(action.high)
    unknown = Normalisation(
        state_mean=(0.0,) * size,
        state_scale=(1.0,) * size,
        state_q01=(-_Q99,) * size,
        state_q99=(_Q99,) * size,
        action_centre=_floats((high + low) / 2),
        action_half_range=_floats((high - low) / 2),
        clip=STATE_CLIP,
    )
    return replace(interface, normalisation=unknown).with_chunk(1)


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
