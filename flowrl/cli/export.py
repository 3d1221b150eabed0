"""``flowrl export``: streams of a replay become a LeRobotDataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowrl.cli.common import existing
from flowrl.errors import Interrupted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flowrl.replay.exporters.lerobot import ExportReport
    from flowrl.replay.importers.episodes import DemonstrationDone


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


def export(
    replay: Annotated[Path, typer.Argument(help="A replay directory.")],
    to: Annotated[Path, typer.Option("--to", help="The dataset's directory, which must not exist.")],
    stream: Annotated[
        list[str] | None, typer.Option(help="A stream to export; may be repeated. By default all.")
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Store frames as videos, smaller but lossy, instead of PNG.")
    ] = False,
    successes_only: Annotated[
        bool, typer.Option("--successes-only", help="Leave out episodes that did not succeed.")
    ] = False,
    repo_id: Annotated[
        str, typer.Option(help="The dataset's name OWNER/NAME on a hub; nothing is uploaded.")
    ] = "",
) -> None:
    """Export a [bold]replay[/bold] as a LeRobotDataset that LeRobot opens, whole or not at all.

    Human corrections are kept as features of their own. Nothing is uploaded. Needs LeRobot.
    """
    from rich.console import Console

    from flowrl.cli.progress import make_progress
    from flowrl.replay.exporters.lerobot import ExportOptions, export_lerobot

    existing(replay, "replay", "make one with: flowrl collect")
    options = ExportOptions(stream, successes_only, video, repo_id)
    with make_progress() as progress:

        def on_episode(done: DemonstrationDone) -> None:
            if done.index == 1:
                progress.phase(f"exporting {replay.name}", done.total)
            progress.advance(done.index, f"{done.index} of {done.total}")

        progress.phase("loading LeRobot")
        try:
            report = export_lerobot(replay, to, options, on_episode)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; nothing was left at {to}. Run it again") from None
    Console().print(_render(report))
    typer.echo(f"open it in Python: LeRobotDataset({report.repo_id!r}, root={str(to)!r})")


def _render(report: ExportReport) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    summary = Table(box=None, show_header=False)
    for name, value in (
        ("dataset", str(report.path)),
        ("episodes", f"{report.episodes:,}"),
        ("steps", f"{report.steps:,}"),
        ("successes", f"{report.successes:,} ({report.successes / report.episodes:.0%})"),
        ("time", f"{report.seconds:.1f} s"),
    ):
        summary.add_row(name, escape(value))
    dropped = Table("dropped", "count", "reason", box=None)
    for each in report.dropped:
        dropped.add_row(escape(each.what), f"{each.count:,}", escape(each.reason))
    return Group(summary, dropped) if report.dropped else summary
