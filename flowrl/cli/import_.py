"""``flowrl import``: demonstrations recorded elsewhere become a stream of a replay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flowrl.cli.common import parse_settings
from flowrl.errors import Interrupted, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from flowrl.replay.importers.hdf5 import DemonstrationDone
    from flowrl.replay.importers.target import Target
    from sim.base import SimEnv


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    file: Annotated[Path, typer.Argument(help="robosuite or robomimic demonstrations (HDF5).")],
    to: Annotated[Path, typer.Option("--to", help="The replay directory; made when it is missing.")],
    env: Annotated[
        str | None, typer.Option(help="The environment; by default the one the file names.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the environment, for example decimation=none."),
    ] = None,
    actions: Annotated[
        Literal["refuse", "clip", "rescale"],
        typer.Option(help="What to do about actions outside the controller's range."),
    ] = "refuse",
    stream: Annotated[str | None, typer.Option(help="The stream; by default the file's name.")] = None,
    until_success: Annotated[
        bool, typer.Option("--until-success", help="Cut each demonstration at its first success.")
    ] = False,
    observations: Annotated[
        Literal["auto", "states", "file"],
        typer.Option(help="Replay the states in the simulator, or take observations from the file."),
    ] = "auto",
    source: Annotated[
        Literal["human", "scripted"], typer.Option(help="Who acted in the demonstrations.")
    ] = "human",
    filter_key: Annotated[
        str, typer.Option("--filter", help="Only the demonstrations under this key of the file's mask.")
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many demonstrations.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the stream when it is an earlier import.")
    ] = False,
    allow_duplicate: Annotated[
        bool, typer.Option("--allow-duplicate", help="Import what another stream of the replay holds.")
    ] = False,
    allow_mismatch: Annotated[
        bool,
        typer.Option("--allow-mismatch", help="Import what another control rate or controller recorded."),
    ] = False,
) -> None:
    """Import demonstrations into a [bold]stream[/bold] of a [bold]replay[/bold], whole or not at all.

    Recorded states are replayed in the simulator to recover observations and success. Actions outside
    the controller's range are reported and need a rule: [cyan]--actions clip[/cyan] or
    [cyan]rescale[/cyan]. An interrupted import leaves nothing behind; run it again.
    """
    from rich.console import Console

    from flowrl.cli.progress import make_progress
    from flowrl.replay.importers.hdf5 import ImportOptions, import_hdf5
    from flowrl.replay.importers.report import render_import
    from flowrl.replay.schema import Source

    options = ImportOptions(
        actions=actions,
        until_success=until_success,
        limit=limit,
        filter_key=filter_key,
        observations=observations,
        source=Source[source.upper()],
        replace=replace,
        allow_duplicate=allow_duplicate,
        allow_mismatch=allow_mismatch,
    )
    name, values = environment_of(file, env), parse_settings(settings or [])
    with make_progress() as progress:

        def on_demonstration(done: DemonstrationDone) -> None:
            outcome = "outcome unknown" if done.success is None else "success" if done.success else "failure"
            progress.say(f"{done.name}: {done.steps:,} steps, {outcome}")
            progress.advance(done.index, f"{done.index} of {done.total}")

        progress.phase(f"building {name}")
        try:
            target = make_target(name, values)
            progress.phase(f"importing {file.name}", _count(file, options.limit))
            report = import_hdf5(file, to, stream or default_stream(file), target, options, on_demonstration)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; nothing of {file.name} was left in {to}. Run it again") from None
    Console().print(render_import(report))
    typer.echo(f"stream {report.stream!r} is in {to}; look at it with: flowrl replay info {to}")


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


def default_stream(file: Path) -> str:
    """The file's name as a stream name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", file.stem).lstrip("._-") or "import"


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


def _count(file: Path, limit: int | None) -> float:
    from flowrl.replay.importers.demonstrations import DemonstrationFile

    with DemonstrationFile(file) as opened:
        count = len(opened.names)
    return count if limit is None else min(count, limit)
