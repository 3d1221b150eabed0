"""A toy simulator and small HDF5 files for the importer's tests."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError
from flowrl.replay.importers.hdf5 import DemonstrationDone, ImportOptions, import_hdf5
from flowrl.replay.importers.target import Target
from flowrl.spec import ActionSpec, Feature, Spec

SPEC = Spec(
    observation=(
        Feature("observation.state", (9,)),
        Feature("observation.environment_state", (2,), names=("gap", "speed")),
    ),
    action=ActionSpec(("push", "grip"), (-1.0, -2.0), (1.0, 1.0)),
    control_hz=20.0,
    settings={"simulator": "robosuite", "task": "Toy", "control_decimation": 1},
)
ENV_INFO = {
    "env_name": "Toy",
    "robots": "Arm",
    "control_freq": 20,
    "controller_configs": {"type": "OSC_POSE", "control_delta": True, "kp": 150, "output_max": [0.05, 0.5]},
}
FACTS = {
    "robots": ["Arm"],
    "controller.type": "OSC_POSE",
    "controller.input_type": "delta",
    "controller.kp": 150,
    "controller.output_max": [0.05, 0.5],
}


class ToySimulator:
    """Its state is time, x, y and speed; an action's first value moves x; x >= 1 solves it."""

    def __init__(self) -> None:
        self.state = np.zeros(4)

    def set_state(self, state: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        if state.shape != (4,):
            raise DataError(f"toy: a simulator state has shape (4,), got {state.shape}")
        self.state = state.copy()
        return self.observation()

    def observation(self) -> dict[str, NDArray[Any]]:
        _, x, y, speed = self.state
        return {
            "observation.state": np.array([x, y, *[0.0] * 7], np.float32),
            "observation.environment_state": np.array([x - y, speed], np.float32),
        }

    def success(self) -> bool:
        return bool(self.state[1] >= 1.0)

    def step(self, action: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        self.state[1] += action[0]
        return self.observation()


def target(simulator: bool = True, **facts: Any) -> Target:
    return Target("toy", SPEC, ToySimulator() if simulator else None, {**FACTS, **facts})


def states(xs: list[float], hz: float = 20.0) -> NDArray[np.float64]:
    """States (T, 4) with these values of x, clocked at ``hz``."""
    return np.array([[i / hz, x, 0.25, 0.5 * i] for i, x in enumerate(xs)])


def actions(length: int, extreme: float = 0.5) -> NDArray[np.float64]:
    """Actions (T, 2) within the bounds, except that the first reaches ``extreme`` in ``push``."""
    values = np.full((length, 2), 0.1)
    values[0, 0] = extreme
    return values


def demonstration(xs: list[float], **more: Any) -> dict[str, Any]:
    return {"actions": actions(len(xs)), "states": states(xs), **more}


def recorded(xs: list[float]) -> dict[str, NDArray[Any]]:
    """What robomimic's ``obs`` holds for these values of x."""
    each = states(xs)
    return {
        "robot0_eef_pos": np.stack([each[:, 1], each[:, 2], 0 * each[:, 1]], axis=1),
        "robot0_eef_quat": np.zeros((len(xs), 4)),
        "robot0_gripper_qpos": np.zeros((len(xs), 2)),
        "object": np.stack([each[:, 1] - each[:, 2], each[:, 3]], axis=1),
    }


def write_file(
    path: Path, demonstrations: Mapping[str, Mapping[str, Any]], info: Mapping[str, Any] | None = ENV_INFO
) -> Path:
    """A file in robosuite's layout; a mapping among the datasets becomes a group."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        if info is not None:
            data.attrs["env"] = info["env_name"]
            data.attrs["env_info"] = json.dumps(info)
        for name, datasets in demonstrations.items():
            group = data.create_group(name)
            group.attrs["model_file"] = "<mujoco/>"
            for key, values in datasets.items():
                if isinstance(values, Mapping):
                    for inner, array in values.items():
                        group.create_dataset(f"{key}/{inner}", data=array)
                else:
                    group.create_dataset(key, data=values)
    return path


def import_and_die(source: str, replay: str) -> None:
    """Import, and be killed when the second demonstration is done."""

    def kill(done: DemonstrationDone) -> None:
        if done.index == 2:
            print("killing", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    import_hdf5(source, replay, "toy", target(), ImportOptions(), kill)
