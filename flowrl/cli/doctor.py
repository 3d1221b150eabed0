"""``flowrl doctor``: what this machine has and lacks, and what to type about it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowrl.errors import EXIT_FAILED

if TYPE_CHECKING:
    from flowrl.doctor import Check

_STYLES = {"ok": "green", "warn": "yellow", "missing": "red"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    runs: Annotated[Path, typer.Option(help="Where runs will be written.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check devices, renderers, extras, disk and memory; say what to install for what is missing.

    An extra or a renderer that you do not use may be missing. The exit code is 1 only when something
    is missing that every command needs.
    """
    from flowrl.doctor import run_checks

    if as_json:
        checks = run_checks(runs)
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        with Console(stderr=True).status("trying torch and the renderers"):
            checks = run_checks(runs)
        Console().print(findings(checks))
    if any(check.required and check.status == "missing" for check in checks):
        raise typer.Exit(EXIT_FAILED)


def findings(checks: Iterable[Check]) -> Table:
    """The findings as a table, grouped."""
    table = Table("", "check", "found", "what to do", box=None, padding=(0, 1))
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            table.add_row("", f"[bold]{escape(group)}[/bold]")
        status = f"[{_STYLES[check.status]}]{check.status}[/]"
        table.add_row(status, escape(check.name), escape(check.found), escape(check.remedy))
    return table
