"""robosuite tasks: a Panda (or two) under operational-space control at 20 Hz.

Physics runs at 500 Hz, so a control step is 25 substeps. robosuite recomputes the controller's
torque at every one of them; that Python code, not the physics, is most of the cost. Here it is
recomputed every ``decimation`` substeps (5 by default, about three times faster; 1 is robosuite's
own behaviour, for benchmarks). The number is part of the spec, because data recorded under one
value is not data of another.

Observations are read once per control step, after bringing the kinematics up to date, so that an
observation is a function of the simulator state: `set_state` recovers it exactly.

An episode depends on its seed alone: the environment's generator and numpy's global one (which
robosuite 1.5.1 uses) are set before a reset, and the reset clears MuJoCo's data, including the
solver's warm start. What robosuite randomises in the *model* (Lift's cube size varies by 2 mm)
is drawn once, from a fixed seed, because drawing it anew means recompiling the model on every
reset.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError, MissingExtra, UsageError
from flowrl.spec import ActionSpec, Feature, Spec
from sim.base import BLIND, Action, Observations, SimEnv, Views
from sim.rendering import backend_off, import_mujoco

CONTROL_HZ = 20
SUBSTEPS = 25
MODEL_SEED = 0

_IMPORT_NOISE = (
    "No private macro file found",
    "It is recommended to use a private macro file",
    "To setup, run: python",
    "Could not import robosuite_models",
    "Could not load the mink-based whole-body IK",
)
_ROBOT_PARTS = (("eef_pos", 3), ("eef_quat", 4), ("gripper_qpos", 2))
_ACTION_PARTS = (
    *(f"eef_delta_{axis}" for axis in ("x", "y", "z", "rx", "ry", "rz")),
    "gripper",
)


@dataclass(frozen=True)
class RobosuiteTask:
    """Which robosuite class a task is, with how many arms."""

    robosuite_name: str
    arms: int = 1


class RobosuiteEnv(SimEnv):
    """One robosuite task.

    ``observation.state`` is end-effector position (3, m), quaternion (4, xyzw) and gripper finger
    positions (2, m) per arm; ``observation.environment_state`` is robosuite's object state, left out
    without ``object_state``, as a policy that sees through cameras would have it. Actions
    are OSC_POSE deltas in [-1, 1] (1 is 0.05 m or 0.5 rad) and the gripper (+1 closes), per arm. Two arms,
    whose bases are turned against each other, share the world's axes (``action_frame``), as in the
    demonstrations that people recorded with robosuite before 1.5; one arm's base has the world's.
    """

    default_camera = "agentview"
    visible_groups = (1,)

    def __init__(
        self,
        name: str,
        task: RobosuiteTask,
        max_steps: int,
        decimation: int | None,
        views: Views = BLIND,
        object_state: bool = True,
    ) -> None:
        """Build the task. Raises MissingExtra without robosuite, UsageError for a bad decimation."""
        self._decimation = 1 if decimation is None else decimation
        if not 1 <= self._decimation <= SUBSTEPS:
            raise UsageError(
                f"{name}: decimation is {decimation}; choose 1 (or none, robosuite's own behaviour) "
                f"to {SUBSTEPS} substeps"
            )
        self.simulator = _build(task)
        self._robot_keys = [f"robot{arm}_{part}" for arm in range(task.arms) for part, _size in _ROBOT_PARTS]
        self._disable_unused_observables()
        self._object_state = object_state
        features = [_robot_feature(task.arms), *([_object_feature(self._read())] if object_state else [])]
        interface = Spec(
            observation=tuple(features),
            action=_action_spec(task.arms),
            control_hz=float(CONTROL_HZ),
            settings={
                "simulator": "robosuite",
                "task": task.robosuite_name,
                "control_decimation": self._decimation,
                **({"action_frame": "world"} if task.arms > 1 else {}),
            },
        )
        super().__init__(name, interface, max_steps, views)

    def _start_episode(self, seed: int) -> None:
        _seed_generator(getattr(self.simulator, "rng", None), seed)
        with _numpy_seeded(seed):
            self.simulator.reset()

    def _apply(self, action: Action) -> None:
        """The loop of robosuite's ``MujocoEnv.step`` with the controller decimated."""
        simulator, sim = self.simulator, self.simulator.sim
        command = action.astype(np.float64)
        simulator.timestep += 1
        for substep in range(SUBSTEPS):
            sim.step1()
            if substep % self._decimation == 0:
                simulator._pre_action(command, policy_step=substep == 0)
            sim.step2()
        simulator.cur_time += simulator.control_timestep
        # step2 integrates positions; body and site poses still belong to the substep before.
        _update_kinematics(sim)

    def _observe(self) -> Observations:
        values = self._read()
        return self._features(values, self._object_state)

    def full_state(self) -> Observations:
        """The arms' state and the objects'."""
        return self._features(self._read(), objects=True)

    def _features(self, values: dict[str, NDArray[np.float64]], objects: bool) -> Observations:
        seen = {"observation.state": _flatten([values[key] for key in self._robot_keys])}
        if objects:
            seen["observation.environment_state"] = _flatten(list(_object_values(values).values()))
        return seen

    def _succeeded(self) -> bool:
        return bool(self.simulator._check_success())

    def _mujoco(self) -> tuple[Any, Any]:
        return self.simulator.sim.model._model, self.simulator.sim.data._data

    def get_state(self) -> NDArray[np.float64]:
        """Time, positions and velocities, flat, as in robosuite's demonstration files: (32,) for Lift."""
        return np.asarray(self.simulator.sim.get_state().flatten(), np.float64)

    def set_state(self, state: NDArray[Any]) -> Observations:
        """Put the simulator in a recorded state and return its observation.

        The controller forgets its history: the gripper command is neutral, as after a reset, and
        the arm's rest posture is the one in ``state``. So what follows depends on the state and
        the actions alone. Raises DataError for a wrong size or non-finite values.
        """
        flat = np.asarray(state, np.float64)
        model = self.simulator.sim.model
        size = 1 + model.nq + model.nv
        if flat.shape != (size,):
            raise DataError(
                f"{self.name}: a simulator state has shape ({size},), got {flat.shape}; "
                "it was recorded in another task or another robosuite model"
            )
        if not np.isfinite(flat).all():
            raise DataError(f"{self.name}: the simulator state holds non-finite values")
        self.simulator.sim.reset()
        self.simulator.sim.set_state_from_flattened(flat)
        self.simulator.sim.forward()
        for robot in self.simulator.robots:
            _restart_controllers(robot)
        self._begin()
        return self._observation()

    def _read(self) -> dict[str, NDArray[np.float64]]:
        """All active observables of the current state, by robosuite's names."""
        # Sensors take the values of others from this cache. robosuite lists relative poses before the
        # poses they are computed from, so in its order they would describe the step before.
        cache: dict[str, Any] = {}
        observables = self.simulator._observables
        for key in sorted(observables, key=lambda key: "_to_" in key):
            observables[key].update(timestep=0.0, obs_cache=cache, force=True)
        return {
            key: np.atleast_1d(np.asarray(observable.obs, np.float64))
            for key, observable in observables.items()
            if observable.is_enabled() and observable.is_active() and self._is_used(key, observable)
        }

    def _is_used(self, key: str, observable: Any) -> bool:
        return key in self._robot_keys or observable.modality == "object"

    def _disable_unused_observables(self) -> None:
        for key, observable in self.simulator._observables.items():
            if not self._is_used(key, observable):
                observable.set_enabled(False)


def _object_values(values: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    return {key: value for key, value in values.items() if not _is_robot_key(key)}


def _is_robot_key(key: str) -> bool:
    return key.startswith("robot") and key.split("_", 1)[1] in {part for part, _size in _ROBOT_PARTS}


def _flatten(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    return np.concatenate(parts).astype(np.float32)


def _axis_names(key: str, size: int) -> list[str]:
    axes = {1: ("",), 3: ("_x", "_y", "_z"), 4: ("_x", "_y", "_z", "_w")}.get(size)
    return [f"{key}{axis}" for axis in axes or tuple(f"_{i}" for i in range(size))]


def _robot_feature(arms: int) -> Feature:
    names: list[str] = []
    for arm in range(arms):
        prefix = f"robot{arm}_" if arms > 1 else ""
        names += [name for part, size in _ROBOT_PARTS for name in _axis_names(prefix + part, size)]
    return Feature(
        "observation.state", (len(names),), names=tuple(names), unit="m, quaternion xyzw, finger m"
    )


def _object_feature(values: dict[str, NDArray[np.float64]]) -> Feature:
    names = [name for key, value in _object_values(values).items() for name in _axis_names(key, value.size)]
    return Feature(
        "observation.environment_state", (len(names),), names=tuple(names), unit="m, quaternion xyzw"
    )


def _action_spec(arms: int) -> ActionSpec:
    names = [f"robot{arm}_{part}" if arms > 1 else part for arm in range(arms) for part in _ACTION_PARTS]
    bound = (1.0,) * len(names)
    return ActionSpec(
        tuple(names),
        tuple(-b for b in bound),
        bound,
        unit="1 is 0.05 m (x y z) or 0.5 rad (rx ry rz); gripper +1 closes",
    )


def _build(task: RobosuiteTask) -> Any:
    suite = import_robosuite()
    robots = ["Panda"] * task.arms if task.arms > 1 else "Panda"
    settings: dict[str, Any] = {
        "robots": robots,
        "controller_configs": _controller_config(suite, task.arms),
        "has_renderer": False,
        "has_offscreen_renderer": False,
        "use_camera_obs": False,
        "use_object_obs": True,
        "control_freq": CONTROL_HZ,
        "ignore_done": True,
        "hard_reset": False,
        "lite_physics": True,
    }
    # robosuite 1.5.1 has no seed; there, and in what 1.5.2 forgot, numpy's global generator decides.
    if "seed" in inspect.signature(suite.environments.manipulation.lift.Lift.__init__).parameters:
        settings["seed"] = MODEL_SEED
    with _numpy_seeded(MODEL_SEED):
        simulator = suite.make(task.robosuite_name, **settings)
        simulator.reset()
    return simulator


def _controller_config(suite: Any, arms: int) -> Any:
    """robosuite's BASIC composite controller (OSC_POSE), reduced to the one arm a Panda has.

    The stock configuration lists legs, torso and head too and warns about each one missing. For two arms it
    reads deltas in the world's axes, as robosuite did before 1.5, instead of each base's.
    """
    config = suite.load_composite_controller_config(controller="BASIC")
    parts = config["body_parts"]
    config["body_parts"] = {part: parts[part] for part in parts if part in ("arms", "right")}
    if arms > 1:
        config["body_parts"].get("arms", config["body_parts"])["right"]["input_ref_frame"] = "world"
    return config


def import_robosuite() -> Any:
    """Import robosuite without its import-time noise and without its changes to the environment.

    Raises MissingExtra when it is not installed.
    """
    import_mujoco()
    logger = logging.getLogger("robosuite_logs")
    logger.addFilter(_not_import_noise)
    try:
        with warnings.catch_warnings(), backend_off():
            warnings.simplefilter("ignore", SyntaxWarning)
            import robosuite  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        if error.name == "robosuite":
            raise MissingExtra("robosuite", "sim") from error
        raise
    finally:
        logger.removeFilter(_not_import_noise)
    logger.setLevel(logging.WARNING)
    return robosuite


def _not_import_noise(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_IMPORT_NOISE)


def _seed_generator(generator: np.random.Generator | None, seed: int) -> None:
    """Reseed in place: robosuite's placement samplers hold references to the same generator."""
    if generator is not None:
        generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


@contextmanager
def _numpy_seeded(seed: int) -> Generator[None]:
    """Seed numpy's global generator for a block and give it back untouched."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)


def _update_kinematics(sim: Any) -> None:
    import_mujoco().mj_kinematics(sim.model._model, sim.data._data)


def _restart_controllers(robot: Any) -> None:
    """Put an arm's controllers in the condition of an episode that starts in the current state."""
    robot.composite_controller.update_state()
    for part, controller in robot.part_controllers.items():
        if part in robot.arms:
            controller.update(force=True)
            controller.update_initial_joints(np.array(controller.joint_pos))
    for gripper in robot.gripper.values():
        gripper.current_action = np.zeros(gripper.dof)
    robot.composite_controller.reset()
