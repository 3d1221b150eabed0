"""MetaWorld tasks, simulated by envpool's C++ port of them.

envpool seeds an environment when it is made, not when it is reset, so every episode gets a new one:
about 40 ms, for episodes that depend on their seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.spec import ActionSpec, Feature, Spec
from sim.gymnasium_env import ENVIRONMENT_STATE, STATE, GymnasiumEnv, axis_names, import_simulator

# The package counts steps too; `SimEnv` does, so its own limit is put out of reach.
_NO_LIMIT = 10**6
_HAND = {"hand_pos": 3, "gripper_opening": 1}
_OBJECTS = {"object_0_pos": 3, "object_0_quat": 4, "object_1_pos": 3, "object_1_quat": 4}


class MetaWorldEnv(GymnasiumEnv):
    """One MetaWorld task with its goal visible: 39 values, regrouped into robot and scene.

    As in MetaWorld the observation holds the present and the previous step.
    """

    def __init__(self, name: str, task: str, max_steps: int) -> None:
        """Prepare the task. Raises MissingExtra without envpool."""
        self._envpool = import_simulator("envpool", "envpool")
        self._task = task
        hand = axis_names({**_HAND, **_previous(_HAND)})
        scene = axis_names({**_OBJECTS, **_previous(_OBJECTS), "goal": 3})
        interface = Spec(
            observation=(
                Feature(STATE, (len(hand),), names=hand, unit="m, fraction open"),
                Feature(ENVIRONMENT_STATE, (len(scene),), names=scene, unit="m, quaternion"),
            ),
            action=ActionSpec(
                ("delta_x", "delta_y", "delta_z", "gripper"),
                (-1.0,) * 4,
                (1.0,) * 4,
                unit="1 is 0.01 m; gripper +1 closes",
            ),
            control_hz=80.0,
            settings={"simulator": "envpool", "task": task},
        )
        super().__init__(name, None, interface, max_steps)

    def _start_episode(self, seed: int) -> None:
        self._free()
        self.simulator = self._envpool.make(
            self._task,
            env_type="gymnasium",
            num_envs=1,
            num_threads=1,
            seed=seed,
            max_episode_steps=_NO_LIMIT,
            partially_observable=False,
        )
        self._last, info = self.simulator.reset()
        self._solved = self._is_success(info)

    def _apply(self, action: NDArray[np.float32]) -> None:
        super()._apply(action[None])

    def _is_success(self, info: Mapping[str, Any]) -> bool:
        return bool(np.ravel(info["success"])[0])

    def _vector(self, observation: Any) -> NDArray[np.float64]:
        values = np.asarray(observation, np.float64)[0]
        now, previous, goal = values[:18], values[18:36], values[36:]
        return np.concatenate([now[:4], previous[:4], now[4:], previous[4:], goal])

    def _free(self) -> None:
        if self.simulator is not None:
            self.simulator.close()
            self.simulator = None

    def close(self) -> None:
        """Free the simulator."""
        self._free()


def _previous(parts: Mapping[str, int]) -> dict[str, int]:
    return {f"previous_{name}": size for name, size in parts.items()}
