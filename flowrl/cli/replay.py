"""``flowrl replay info`` and ``flowrl replay verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flowrl.cli.common import existing
from flowrl.errors import EXIT_FAILED

Where = Annotated[Path, typer.Argument(help="A replay directory.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Look at a [bold]replay[/bold]: what it holds, whether it is sound.", no_args_is_help=True
    )
    group.command()(info)
    group.command()(verify)
    app.add_typer(group, name="replay")


def info(replay: Where) -> None:
    """Show a table of the streams: episodes, steps, successes, share of human steps, disk."""
    from flowrl.replay.info import info as read
    from flowrl.replay.info import render_info

    Console().print(render_info(read(existing(replay, "replay", "make one with: flowrl collect"))))


def verify(replay: Where) -> None:
    """Check every invariant; exit code 1 when one is violated, each named by stream, episode and step."""
    from flowrl.replay.verify import render_report
    from flowrl.replay.verify import verify as read

    report = read(existing(replay, "replay", "make one with: flowrl collect"))
    Console().print(render_report(report))
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)
