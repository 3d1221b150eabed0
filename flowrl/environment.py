"""What the core asks of an environment: a gymnasium environment that states its spec.

The core never imports a simulator. `sim.registry.make` returns such environments, and so can you: see
docs/environments.md.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from flowrl.spec import Spec


class Environment(Protocol):
    """One task. Observations are dictionaries by feature name, in the shapes of ``interface``.

    ``reset(seed=s)`` makes the whole episode a function of s and the actions. ``info["success"]`` is
    set after every step; ``terminated`` means the task ended, ``truncated`` that the time limit cut it.
    """

    @property
    def name(self) -> str:
        """The task's name in its registry."""
        ...

    @property
    def instruction(self) -> str:
        """The task in words, for policies that read."""
        ...

    @property
    def interface(self) -> Spec:
        """The spec without chunking and normalisation."""
        ...

    @property
    def max_steps(self) -> int:
        """The time limit, in control steps."""
        ...

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Start an episode."""
        ...

    def step(
        self, action: NDArray[Any], /
    ) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        """Apply one action (A,): observation, reward, terminated, truncated, info."""
        ...

    def close(self) -> None:
        """Release what the environment holds."""
        ...
