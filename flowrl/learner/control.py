"""What the learner tells its workers, and the limiter that keeps updates per step within bounds.

Workers and learner meet only on disk: the replay, the published weights, and one small control file
beside the weights that says whether to collect and how far.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

_NAME = "control.json"


@dataclass(frozen=True)
class Control:
    """``collect`` until a worker has ``step_limit`` steps of its own in this run; ``stop`` ends it."""

    state: Literal["collect", "stop"] = "collect"
    step_limit: int = 0


def write_control(directory: Path, control: Control) -> None:
    """Replace the control file in one step."""
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{_NAME}"
    aside.write_text(json.dumps(asdict(control)))
    aside.replace(directory / _NAME)


def read_control(directory: Path) -> Control:
    """The latest control; before the first one, collect nothing."""
    try:
        return Control(**json.loads((directory / _NAME).read_text()))
    except FileNotFoundError:
        return Control()


@dataclass(frozen=True)
class RatioLimiter:
    """Keeps updates per environment step between ``low`` and ``high``.

    ``slack`` steps are always allowed, so that neither side waits for the other at the start.
    """

    low: float
    high: float
    slack: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(
                f"updates_per_step_low {self.low} must be below updates_per_step_high {self.high}"
            )

    def may_update(self, updates: int, steps: int) -> bool:
        """Whether one more update keeps the ratio at or below ``high``."""
        return updates + 1 <= self.high * (steps + self.slack)

    def step_limit(self, updates: int) -> int:
        """Steps that may have been collected after ``updates`` without falling below ``low``."""
        return 2**62 if self.low == 0 else math.floor(updates / self.low) + self.slack
