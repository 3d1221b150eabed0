"""``flowrl check``: what fits, what does not, before any hour is spent."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowrl.cli.common import Settings, environment_config, existing
from flowrl.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from flowrl.learner.preflight import Finding

_MARKS = {"ok": "[green]ok[/green]", "warning": "[yellow]warning[/yellow]", "error": "[red]error[/red]"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    policy: Annotated[Path | None, typer.Option(help="A policy directory.")] = None,
    replay: Annotated[Path | None, typer.Option(help="A replay directory.")] = None,
    env: Annotated[str | None, typer.Option(help="An environment of the registry.")] = None,
    settings: Settings = None,
    to_json: Annotated[Path | None, typer.Option("--json", help="Also write the findings here.")] = None,
) -> None:
    """Compare policy, replay and environment by name: features, bounds, rates, settings, ranges.

    Exit code 1 when anything is an error; a run would refuse it.
    """
    from flowrl.learner import preflight
    from flowrl.policies.io import load_policy
    from flowrl.replay.reader import ReplayReader

    if policy is None and replay is None and env is None:
        raise UsageError("name at least one of --policy, --replay and --env")
    interface = None
    if env is not None:
        from flowrl.cli.simulation import make_environment

        environment = make_environment(environment_config(env, settings))
        interface = environment.interface
        environment.close()
    found = preflight.check(
        None if policy is None else load_policy(existing(policy, "policy", "make one with: flowrl pretrain")),
        None if replay is None else ReplayReader(existing(replay, "replay", "make one with: flowrl collect")),
        interface,
        Path.cwd() if Path.cwd().exists() else Path(tempfile.gettempdir()),
    )
    Console().print(_table(found))
    if to_json is not None:
        to_json.write_text(json.dumps(preflight.to_json(found), indent=2) + "\n")
    if any(finding.level == "error" for finding in found):
        raise typer.Exit(EXIT_FAILED)


def _table(findings: list[Finding]) -> Table:
    table = Table("", "what", "finding", box=None)
    for finding in findings:
        table.add_row(_MARKS[finding.level], escape(finding.name), escape(finding.message))
    return table
