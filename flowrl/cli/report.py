"""``flowrl report``: a run's report, built again from its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    run: Annotated[str, typer.Argument(help="A run's name or directory, or a file inside it.")],
    runs: Annotated[Path, typer.Option(help="Where runs are looked up by name.")] = Path("runs"),
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Build the [bold]report[/bold] of a run again: from what it measured, nothing is run.

    Works on an interrupted run too; what was not measured is named as missing.
    """
    from flowrl.learner.run import Run
    from flowrl.report import write_report

    path = write_report(Run.find(run, runs))
    typer.echo(str(path))
    if show:
        typer.launch(path.resolve().as_uri())
