"""``flowrl import`` of demonstrations in HDF5: the environment they belong to, and its simulator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from flowrl.cli.import_sources import ImportJob
    from flowrl.replay.importers.hdf5 import ImportOptions
    from flowrl.replay.importers.report import ImportReport
    from flowrl.replay.importers.target import Target
    from sim.base import SimEnv


def run(job: ImportJob, options: ImportOptions) -> ImportReport:
    """Import a file for the environment of the job, or the one whose task the file names."""
    from flowrl.replay.importers.hdf5 import import_hdf5

    name = environment_of(job.path, job.env)
    job.progress.phase(f"building {name}")
    target = make_target(name, job.settings)
    job.start(_count(job.path), options.limit)
    return import_hdf5(job.path, job.to, job.stream, target, options, job.done)


def environment_of(file: Path, wanted: str | None) -> str:
    """The environment's name in the registry: the wanted one, or the one whose task the file names.

    Raises UsageError when the file names a task that no environment, or not the wanted one, simulates.
    """
    from flowrl.replay.importers.demonstrations import DemonstrationFile
    from sim import registry

    with DemonstrationFile(file) as opened:
        task = opened.facts.get("env_name")
    known = {name: registry.describe(name) for name in registry.names()}
    if wanted is not None:
        # Names an unknown environment, and the nearest one.
        registry.describe(wanted)
    if task is None:
        if wanted is None:
            raise UsageError(f"{file.name} does not name its environment; give it with --env")
        return wanted
    # The registry describes robosuite tasks as "robosuite <class>: ...".
    fitting = [name for name, text in known.items() if text.startswith(f"robosuite {task}:")]
    if not fitting:
        tasks = [name for name, text in known.items() if text.startswith("robosuite ")]
        listed = "; ".join(f"{name} ({known[name].split(':')[0]})" for name in tasks)
        raise UsageError(
            f"{file.name} was recorded in robosuite's {task!r}, which is not among the environments of flowrl. "
            f"Demonstrations of these can be imported: {listed}"
        )
    if wanted is not None and wanted not in fitting:
        raise UsageError(
            f"{file.name} was recorded in robosuite's {task!r}, not in --env {wanted}; use --env {fitting[0]}"
        )
    return wanted or fitting[0]


def make_target(name: str, settings: Mapping[str, Any]) -> Target:
    """An environment of the registry as the target of an import. Raises UsageError or MissingExtra."""
    from flowrl.replay.importers.recording import facts_of
    from flowrl.replay.importers.target import Target
    from sim import registry

    env = registry.make(name, **settings)
    return Target(name, env.interface, EnvironmentReplayer(env), facts_of(_arguments(env)))


class EnvironmentReplayer:
    """A simulated environment as the `StateReplayer` of an importer."""

    def __init__(self, env: SimEnv) -> None:
        self._env = env

    def set_state(self, state: NDArray[np.float64], /) -> dict[str, NDArray[Any]]:
        """Put the simulator in a state; its observation."""
        return self._env.set_state(state)

    def success(self) -> bool:
        """Whether the present state solves the task."""
        # The environment judges a state only inside step and reset.
        return self._env._succeeded()  # pyright: ignore[reportPrivateUsage]

    def step(self, action: NDArray[np.float32], /) -> dict[str, NDArray[Any]]:
        """Apply one action; the observation after it."""
        return self._env.step(action)[0]


def _arguments(env: SimEnv) -> dict[str, Any]:
    """How a robosuite environment is set up, in the words of robosuite's own files."""
    simulator = getattr(env, "simulator", None)
    robots = getattr(simulator, "robots", None)
    if not robots:
        return {}
    return {
        "robots": [robot.name for robot in robots],
        "controller_configs": getattr(robots[0], "composite_controller_config", None),
    }


def _count(file: Path) -> int:
    from flowrl.replay.importers.demonstrations import DemonstrationFile

    with DemonstrationFile(file) as opened:
        return len(opened.names)
