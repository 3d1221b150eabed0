"""The command line with the reach task among its environments: ``python -m tests.comparison.reach_flowrl ...``.

The processes of a comparison are started from it, too, so that only the simulator is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.cli import compare
from flowrl.cli.app import main
from sim import experts, registry
from tests.reach import ReachEnv, expert_action


class ReachExpert:
    noise_shape = np.ones(2)

    def reset(self, env: Any) -> None:
        pass

    def act(self, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        return expert_action(observation["observation.state"])


def install() -> None:
    entry = registry.Entry("a point to the origin", "none", {}, lambda name: ReachEnv())  # type: ignore[arg-type, return-value]
    registry._ENTRIES["reach"] = entry
    experts._EXPERTS["reach"] = ReachExpert  # type: ignore[assignment]
    compare.job_command = lambda: [sys.executable, "-m", "tests.comparison.reach_flowrl", compare.JOB]


if __name__ == "__main__":
    install()
    main()
