"""A small environment with a known solution, for tests of the learner: move a point to the origin.

Fast (no simulator) and exact: the state moves by 0.2 times the action, success is being within 0.15.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.spec import ActionSpec, Feature, Spec

MAX_STEPS = 20


class ReachEnv:
    name = "reach"
    instruction = "reach the goal"
    max_steps = MAX_STEPS
    interface = Spec(
        observation=(Feature("observation.state", (2,), names=("x", "y"), unit="m"),),
        action=ActionSpec(("dx", "dy"), (-1.0, -1.0), (1.0, 1.0)),
        control_hz=10.0,
        settings={"simulator": "reach"},
    )

    def __init__(self, poison_after: int | None = None) -> None:
        self._random = np.random.default_rng(0)
        self._position = np.zeros(2, np.float32)
        self._elapsed = 0
        self._total = 0
        self._poison_after = poison_after

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._position = self._random.uniform(-1, 1, 2).astype(np.float32)
        self._elapsed = 0
        return self._observe(), {"success": False}

    def step(
        self, action: NDArray[Any], /
    ) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        self._elapsed += 1
        self._total += 1
        self._position = (self._position + 0.2 * np.clip(action, -1, 1)).astype(np.float32)
        success = bool(np.linalg.norm(self._position) < 0.15)
        truncated = not success and self._elapsed >= MAX_STEPS
        return self._observe(), float(success), success, truncated, {"success": success}

    def close(self) -> None:
        pass

    def full_state(self) -> dict[str, NDArray[Any]]:
        return self._observe()

    def _observe(self) -> dict[str, NDArray[Any]]:
        if self._poison_after is not None and self._total >= self._poison_after:
            return {"observation.state": np.full(2, np.nan, np.float32)}
        return {"observation.state": self._position.copy()}


def expert_action(position: NDArray[Any]) -> NDArray[np.float32]:
    """Straight to the origin, as fast as allowed."""
    return np.clip(-position / 0.2, -1, 1).astype(np.float32)


class SeeingReachEnv(ReachEnv):
    """The same task for a policy that sees the point, 16 pixels a side, and knows only its last x."""

    interface = Spec(
        observation=(
            Feature("observation.state", (1,), names=("x",), unit="m"),
            Feature("observation.images.top", (3, 16, 16), "uint8"),
        ),
        action=ReachEnv.interface.action,
        control_hz=10.0,
        settings={"simulator": "reach"},
    )

    @property
    def position(self) -> NDArray[np.float32]:
        """Where the point is, for an expert (2,)."""
        return self._position

    def _observe(self) -> dict[str, NDArray[Any]]:
        x, y = np.clip((self._position + 1.5) / 3 * 16, 1, 14).astype(int)
        image = np.zeros((3, 16, 16), np.uint8)
        image[:, y - 1 : y + 2, x - 1 : x + 2] = 255
        return {"observation.state": self._position[:1].copy(), "observation.images.top": image}
