"""``flowrl import``: demonstrations recorded elsewhere become a stream of a replay."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from flowrl.cli.common import parse_settings
from flowrl.errors import Interrupted


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="robosuite or robomimic demonstrations (HDF5), a replay buffer of diffusion_policy (zarr, "
            "also .zip), the directory of a LeRobot dataset, or a ROS 2 bag (.mcap, .db3, or rosbag2's directory).",
        ),
    ],
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
    stream: Annotated[str | None, typer.Option(help="The stream; by default the source's name.")] = None,
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
    control_hz: Annotated[
        float | None,
        typer.Option("--control-hz", help="The control rate of a zarr, which does not state it."),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            "--feature",
            metavar="KEY=NAME",
            help="Only this array of a zarr, and its feature; another name for a feature of LeRobot's.",
        ),
    ] = None,
    success: Annotated[
        bool, typer.Option("--success", help="Every episode of a zarr succeeds; else outcomes are unknown.")
    ] = False,
    cameras: Annotated[
        list[str] | None, typer.Option("--camera", help="Of a zarr or LeRobot dataset only this camera.")
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option("--image-size", min=1, help="Height and width to resize its images to, in pixels."),
    ] = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Drop LeRobot episodes whose video lacks frames; else refuse.")
    ] = False,
    contract: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a ROS 2 bag: what its topics mean, as configs/robots/ur.yaml."),
    ] = None,
) -> None:
    """Import demonstrations into a [bold]stream[/bold] of a [bold]replay[/bold], whole or not at all.

    Recorded states are replayed in the simulator to recover observations and success. Actions outside
    the controller's range are reported and need a rule: [cyan]--actions clip[/cyan] or
    [cyan]rescale[/cyan]. An interrupted import leaves nothing behind; run it again.
    """
    from rich.console import Console

    from flowrl.cli import import_bag, import_buffer, import_hdf5
    from flowrl.cli.import_sources import ImportJob, default_stream, kind_of, require_applicable
    from flowrl.cli.progress import make_progress
    from flowrl.replay.importers.diffusion_policy import BufferOptions
    from flowrl.replay.importers.hdf5 import ImportOptions
    from flowrl.replay.importers.report import render_import
    from flowrl.replay.schema import Source

    kind, acted = kind_of(path), Source[source.upper()]
    require_applicable(context, kind, path)
    if kind == "lerobot":
        from flowrl.cli import import_lerobot

        import_lerobot.run(
            path,
            to,
            stream=stream,
            cameras=cameras,
            image_size=image_size,
            rename=features or (),
            actions=actions,
            source=source,
            limit=limit,
            salvage=salvage,
            replace=replace,
            allow_duplicate=allow_duplicate,
        )
        return
    for_environment = parse_settings(settings or [])
    with make_progress() as progress, _interruptible(path, to):
        job = ImportJob(path, to, stream or default_stream(path), env, for_environment, progress)
        if kind == "hdf5":
            options = ImportOptions(
                actions=actions,
                until_success=until_success,
                limit=limit,
                filter_key=filter_key,
                observations=observations,
                source=acted,
                replace=replace,
                allow_duplicate=allow_duplicate,
                allow_mismatch=allow_mismatch,
            )
            report = import_hdf5.run(job, options)
        elif kind == "bag":
            chosen = context.get_parameter_source("source")
            report = import_bag.run(
                job,
                contract,
                actions=actions,
                source=acted if chosen is not None and chosen.name == "COMMANDLINE" else None,
                limit=limit,
                replace=replace,
                allow_duplicate=allow_duplicate,
            )
        else:
            options = BufferOptions(
                control_hz=control_hz,
                features=import_buffer.parse_features(features or []),
                cameras=cameras or (),
                image_size=image_size,
                success=success,
                actions=actions,
                limit=limit,
                source=acted,
                replace=replace,
                allow_duplicate=allow_duplicate,
            )
            report = import_buffer.run(job, options)
    Console().print(render_import(report))
    typer.echo(f"stream {report.stream!r} is in {to}; look at it with: flowrl replay info {to}")


@contextmanager
def _interruptible(path: Path, to: Path) -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; nothing of {path.name} was left in {to}. Run it again") from None
