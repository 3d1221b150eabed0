"""What demonstrations are imported for: an environment's interface, and a simulator that replays states.

flowrl never imports a simulator, so whoever calls an importer passes one (the command line wraps an
environment of `sim.registry`). Data that holds its own observations can be imported without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flowrl.replay.schema import Array
from flowrl.spec import Spec


class StateReplayer(Protocol):
    """A simulator that can be put in a recorded state."""

    def set_state(self, state: NDArray[np.float64], /) -> Mapping[str, Array]:
        """Put the simulator in a flat state (n,); its observation by feature name.

        Raises DataError when the state has another size than the simulator's.
        """
        ...

    def success(self) -> bool:
        """Whether the present state solves the task."""
        ...

    def step(self, action: NDArray[np.float32], /) -> Mapping[str, Array]:
        """Apply one action (A,) in the present state; the observation after it."""
        ...


@dataclass(frozen=True)
class Target:
    """The environment that demonstrations are imported for.

    ``name`` becomes the task text of the episodes. ``facts`` is how the environment is set up, in the
    words of `flowrl.replay.importers.recording.facts_of`; what it leaves out is not compared.
    """

    name: str
    interface: Spec
    replayer: StateReplayer | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
