"""What training from scratch asks of its environments: N copies of one task, stepped together in numpy.

The semantics of an episode's end are explicit, because a learner that mistakes the first observation of
the next episode for the last one of this episode bootstraps from the wrong state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flowrl.spec import Spec

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class VectorStep:
    """What one action in each of N environments led to.

    Attributes:
        successor: the state that the action led to, (N, S): where an episode ended, its true last state.
        reward: (N,).
        terminated: the task ended there, so nothing follows: do not bootstrap, (N,).
        truncated: only the time limit cut the episode: bootstrap from ``successor``, (N,). Never both.
        observation: what the next action answers, (N, S): ``successor``, or the first state of a new
            episode where one ended.
    """

    successor: FloatArray
    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    observation: FloatArray

    @property
    def ended(self) -> BoolArray:
        """Where an episode ended, (N,)."""
        return self.terminated | self.truncated


class VectorEnvironment(Protocol):
    """N copies of one task that restart themselves: every `step` is a transition in every copy."""

    @property
    def name(self) -> str:
        """The task's name in its registry."""
        ...

    @property
    def interface(self) -> Spec:
        """The spec of one copy, without chunking and normalisation: one state feature, one action."""
        ...

    @property
    def count(self) -> int:
        """N."""
        ...

    @property
    def max_steps(self) -> int:
        """The time limit, in control steps."""
        ...

    def reset(self, seeds: Sequence[int]) -> FloatArray:
        """Start an episode in every copy, (N, S): all that follows depends on ``seeds`` and the actions."""
        ...

    def step(self, action: FloatArray, /) -> VectorStep:
        """Apply one action in each copy, (N, A) in the environment's units."""
        ...

    def close(self) -> None:
        """Release what the environments hold."""
        ...


MakeVector = Callable[[int], VectorEnvironment]
"""Makes N copies of the task."""
