"""OGBench manipulation tasks in their single-task variants, where success is defined.

Only the environments are used; OGBench's datasets are downloads and are never asked for. The
observation is OGBench's own, with its own scaling of positions (10 times the metres from the
table's centre and so on), so that its published data fits.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from flowrl.errors import UsageError
from flowrl.spec import ActionSpec, Feature, Spec
from sim.base import BLIND, Views
from sim.gymnasium_env import ENVIRONMENT_STATE, STATE, GymnasiumEnv, axis_names, import_simulator, quiet
from sim.rendering import backend_off, import_mujoco

_ROBOT = {
    "joint_pos": 6,
    "joint_vel": 6,
    "effector_pos": 3,
    "effector_yaw_cos": 1,
    "effector_yaw_sin": 1,
    "gripper_opening": 1,
    "gripper_contact": 1,
}


class OGBenchEnv(GymnasiumEnv):
    """One OGBench task; ``task_id`` 1 to 5 picks the goal, 0 OGBench's default of the five."""

    default_camera = "front_pixels"

    def __init__(
        self,
        name: str,
        ogbench_name: str,
        scene: Mapping[str, int],
        task_id: int,
        max_steps: int,
        views: Views = BLIND,
    ) -> None:
        """Build the task. Raises UsageError for an unknown task id, MissingExtra without ogbench."""
        if task_id not in range(6):
            raise UsageError(f"{name}: task_id is {task_id}; choose 1 to 5, or 0 for OGBench's default")
        simulator = _build(ogbench_name, task_id)
        robot_names, scene_names = axis_names(_ROBOT), axis_names(scene)
        interface = Spec(
            observation=(
                Feature(STATE, (len(robot_names),), names=robot_names, unit="OGBench's scaling"),
                Feature(ENVIRONMENT_STATE, (len(scene_names),), names=scene_names, unit="OGBench's scaling"),
            ),
            action=ActionSpec(
                ("delta_x", "delta_y", "delta_z", "delta_yaw", "delta_gripper"),
                (-1.0,) * 5,
                (1.0,) * 5,
                unit="1 is 0.05 m, 0.3 rad, or the gripper's full range",
            ),
            control_hz=1 / simulator.control_timestep(),
            settings={
                "simulator": "ogbench",
                "task": ogbench_name,
                "task_id": int(simulator.cur_task_id),
            },
        )
        super().__init__(name, simulator, interface, max_steps, views)

    def _start_episode(self, seed: int) -> None:
        # OGBench builds its action space anew on every reset, with a warning about its precision.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super()._start_episode(seed)

    def _is_success(self, info: Mapping[str, Any]) -> bool:
        return bool(info.get("success", False))

    def _mujoco(self) -> tuple[Any, Any]:
        return self.simulator.model, self.simulator.data


def cubes(count: int) -> dict[str, int]:
    """The environment state of a number of cubes."""
    return {
        f"cube_{i}_{part}": size
        for i in range(count)
        for part, size in (("pos", 3), ("quat", 4), ("yaw_cos", 1), ("yaw_sin", 1))
    }


def buttons(count: int) -> dict[str, int]:
    """The environment state of a number of two-state buttons."""
    return {
        f"button_{i}_{part}": size
        for i in range(count)
        for part, size in (("state", 2), ("pos", 1), ("vel", 1))
    }


def drawer_and_window() -> dict[str, int]:
    """The environment state of the drawer and the window."""
    return {"drawer_pos": 1, "drawer_vel": 1, "window_pos": 1, "window_vel": 1}


def _build(ogbench_name: str, task_id: int) -> Any:
    import_mujoco()
    import_simulator("ogbench.manipspace", "ogbench")
    gymnasium = import_simulator("gymnasium", "gymnasium")
    suffix = f"task{task_id}-" if task_id else ""
    # "post" judges success on the state after the step; OGBench's default is one step late.
    identity = f"{ogbench_name}-singletask-{suffix}v0"
    with quiet(), backend_off():
        simulator = gymnasium.make(identity, success_timing="post", disable_env_checker=True).unwrapped
        simulator.reset(seed=0)
    return simulator
