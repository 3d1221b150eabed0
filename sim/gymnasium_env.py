"""Tasks of other packages that already are gymnasium environments: PushT and Fetch.

`GymnasiumEnv` keeps the foreign environment's last observation and success flag, so that reward,
time limit and seeding are `SimEnv`'s and not the package's own.
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import MissingExtra
from flowrl.spec import ActionSpec, Feature, Spec
from sim.base import BLIND, Action, Observations, SimEnv, Views
from sim.rendering import backend_off, import_mujoco

STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"


class GymnasiumEnv(SimEnv):
    """A foreign gymnasium environment behind the interface of `SimEnv`.

    Subclasses say how its observation splits into features and where its success flag is.
    """

    def __init__(
        self, name: str, simulator: Any, interface: Spec, max_steps: int, views: Views = BLIND
    ) -> None:
        super().__init__(name, interface, max_steps, views)
        self.simulator: Any = simulator
        self._last: Any = None
        self._solved = False

    def _is_success(self, info: Mapping[str, Any]) -> bool:
        return bool(info.get("is_success", False))

    def _vector(self, observation: Any) -> NDArray[np.float64]:
        """The foreign observation as one vector: the features of the spec one after the other."""
        return np.asarray(observation, np.float64)

    def _start_episode(self, seed: int) -> None:
        self._last, info = self.simulator.reset(seed=seed)
        self._solved = self._is_success(info)

    def _apply(self, action: Action) -> None:
        self._last, _reward, _terminated, _truncated, info = self.simulator.step(action)
        self._solved = self._is_success(info)

    def _observe(self) -> Observations:
        sizes = np.cumsum([feature.size for feature in self.interface.state_features])
        parts = np.split(self._vector(self._last).astype(np.float32), sizes[:-1])
        return {feature.name: part for feature, part in zip(self.interface.observation, parts, strict=True)}

    def _succeeded(self) -> bool:
        return self._solved

    def close(self) -> None:
        """Free the renderer and the foreign environment."""
        super().close()
        self.simulator.close()


class PushT(GymnasiumEnv):
    """PushT with state observations, in pixels of its 512 x 512 board: push the T onto the target."""

    def __init__(self, name: str, max_steps: int) -> None:
        module = import_simulator("gym_pusht.envs.pusht", "gym_pusht")
        interface = Spec(
            observation=(
                Feature(STATE, (2,), names=("agent_x", "agent_y"), unit="pixel"),
                Feature(
                    ENVIRONMENT_STATE,
                    (3,),
                    names=("block_x", "block_y", "block_angle"),
                    unit="pixel, rad in 0..2 pi",
                ),
            ),
            action=ActionSpec(("target_x", "target_y"), (0.0, 0.0), (512.0, 512.0), unit="pixel"),
            control_hz=10.0,
            settings={"simulator": "gym_pusht", "task": "PushT"},
        )
        super().__init__(name, module.PushTEnv(obs_type="state"), interface, max_steps)

    def render_frame(
        self, width: int = 256, height: int = 256, camera: str | None = None
    ) -> NDArray[np.uint8]:
        """The board drawn in software (height, width, 3); there is one camera and no backend."""
        self.simulator.visualization_width, self.simulator.visualization_height = width, height
        return np.asarray(self.simulator.render(), np.uint8)


class Fetch(GymnasiumEnv):
    """A Fetch arm that moves an object to a goal; the goal ends the environment state."""

    default_camera = "external_camera_0"

    def __init__(self, name: str, module: str, class_name: str, max_steps: int, views: Views = BLIND) -> None:
        import_mujoco()
        fetch = import_simulator(module, "gymnasium_robotics")
        with quiet():
            simulator = getattr(fetch, class_name)(reward_type="sparse")
        interface = Spec(
            observation=(
                _named(
                    STATE,
                    {"gripper_pos": 3, "finger_pos": 2, "gripper_displacement": 3, "finger_displacement": 2},
                    "m; displacements per control step",
                ),
                _named(
                    ENVIRONMENT_STATE,
                    {
                        "object_pos": 3,
                        "gripper_to_object": 3,
                        "object_rotation": 3,
                        "object_displacement": 3,
                        "object_turn": 3,
                        "goal": 3,
                    },
                    "m, rad; displacements and turns per control step",
                ),
            ),
            action=ActionSpec(
                ("delta_x", "delta_y", "delta_z", "gripper"),
                (-1.0,) * 4,
                (1.0,) * 4,
                unit="1 is 0.05 m; gripper +1 opens",
            ),
            control_hz=25.0,
            settings={"simulator": "gymnasium_robotics", "task": name},
        )
        super().__init__(name, simulator, interface, max_steps, views)

    def _vector(self, observation: Any) -> NDArray[np.float64]:
        """The package's order is hand, object, offset, fingers, object's motion, hand's motion."""
        values = np.asarray(observation["observation"], np.float64)
        robot = [values[0:3], values[9:11], values[20:23], values[23:25]]
        scene = [values[3:9], values[11:20], observation["desired_goal"]]
        return np.concatenate([*robot, *scene])

    def _mujoco(self) -> tuple[Any, Any]:
        return self.simulator.model, self.simulator.data

    def render_frame(
        self, width: int = 256, height: int = 256, camera: str | None = None
    ) -> NDArray[np.uint8]:
        """A frame (height, width, 3) with the goal marked; see `SimEnv.render_frame`."""
        self.simulator._render_callback()
        return super().render_frame(width, height, camera)


def import_simulator(module: str, package: str) -> ModuleType:
    """Import a simulator's module without its import-time notices (deprecations, release news).

    Raises MissingExtra when the package is not installed.
    """
    try:
        with quiet(), backend_off():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise MissingExtra(package.replace("_", "-"), "sim") from error
        raise


@contextmanager
def quiet() -> Generator[None]:
    """Drop warnings and standard error while a package is loaded; exceptions come through."""
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def axis_names(parts: Mapping[str, int]) -> tuple[str, ...]:
    """Dimension names for parts by size: three get x, y, z, one its own name, others an index."""
    return tuple(name for part, size in parts.items() for name in _part_names(part, size))


def _part_names(part: str, size: int) -> Sequence[str]:
    if size == 1:
        return [part]
    if size == 3:
        return [f"{part}_{axis}" for axis in "xyz"]
    return [f"{part}_{index}" for index in range(size)]


def _named(name: str, parts: Mapping[str, int], unit: str) -> Feature:
    names = axis_names(parts)
    return Feature(name, (len(names),), names=names, unit=unit)
