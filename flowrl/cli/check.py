"""``flowrl check``: what fits, what does not, before any hour is spent."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowrl.cli.common import Settings, environment_config, existing
from flowrl.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from flowrl.policies.interface import ChunkPolicy
    from flowrl.preflight import Checked
    from flowrl.replay.reader import ReplayReader
    from flowrl.spec import Spec

_MARKS = {"ok": "[green]ok[/green]", "warning": "[yellow]warning[/yellow]", "error": "[red]error[/red]"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    policy: Annotated[
        str | None,
        typer.Option(help="A policy directory, or lerobot:SOURCE, taken over for the environment or replay."),
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="A replay directory.")] = None,
    env: Annotated[str | None, typer.Option(help="An environment of the registry.")] = None,
    settings: Settings = None,
    contract: Annotated[
        Path | None, typer.Option(help="A robot's contract: what it shows and takes is compared.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="A second replay: its spec and its cameras are compared.")
    ] = None,
    end_rule: Annotated[
        Literal["strict", "padded"],
        typer.Option(help="How a run would cut chunks at the end of an episode (sampling.end_rule)."),
    ] = "strict",
    to_json: Annotated[Path | None, typer.Option("--json", help="Also write everything here.")] = None,
    to_html: Annotated[
        Path | None, typer.Option("--html", help="Also write a page with a drawing of all ranges.")
    ] = None,
) -> None:
    """Compare policy, replay and environment: interfaces, rates, values, cameras, actions, normalisation.

    Exit code 1 when anything is an error; a run would refuse it.
    """
    from flowrl.preflight import check as compare

    if policy is None and replay is None and env is None and contract is None:
        raise UsageError("name at least one of --policy, --replay, --env and --contract")
    if against is not None and replay is None:
        raise UsageError("--against is compared with a replay; name it with --replay")
    reader = None if replay is None else _reader(replay)
    environment = None if env is None else _interface(env, settings)
    robot = None if contract is None else _robot(contract)
    known = [spec for spec in (environment, robot, None if reader is None else reader.spec) if spec]
    checked = compare(
        None if policy is None else _policy(policy, known[0] if known else None),
        reader,
        environment,
        Path.cwd() if Path.cwd().exists() else Path(tempfile.gettempdir()),
        interface=robot,
        other=None if against is None else _reader(against),
        end_rule=end_rule,
    )
    show(checked, Console())
    if to_json is not None:
        to_json.write_text(json.dumps(checked.to_json(), indent=2) + "\n")
    if to_html is not None:
        from flowrl.preflight.page import write_page

        write_page(checked, to_html)
        typer.echo(f"page: {to_html}")
    if checked.at("error"):
        raise typer.Exit(EXIT_FAILED)


def show(checked: Checked, console: Console) -> None:
    """The findings by subject, and the verdict."""
    from flowrl.preflight.findings import SUBJECTS

    table = Table("", "what", "finding", box=None)
    for subject, title in SUBJECTS.items():
        found = checked.about(subject)
        if found:
            table.add_row("", f"[bold]{escape(title)}[/bold]")
        for finding in found:
            table.add_row(_MARKS[finding.level], escape(finding.name), escape(finding.message))
    console.print(table)
    console.print(checked.verdict, markup=False, highlight=False, style="bold")


def _policy(source: str, interface: Spec | None) -> ChunkPolicy:
    from flowrl.cli.adopt import PREFIX
    from flowrl.policies.io import load_policy

    if not source.startswith(PREFIX):
        return load_policy(existing(Path(source), "policy", "make one with: flowrl pretrain"))
    from flowrl.policies.lerobot.adopt import adopt

    if interface is None:
        raise UsageError(
            "a LeRobot checkpoint names no robot: say for which --env, --contract or --replay it is checked"
        )
    return adopt(source, interface)


def _reader(path: Path) -> ReplayReader:
    from flowrl.replay.reader import ReplayReader

    return ReplayReader(existing(path, "replay", "make one with: flowrl collect"))


def _robot(contract: Path) -> Spec:
    from robot_bridge.contract import load_contract

    return load_contract(existing(contract, "contract", "examples are in configs/robots/")).spec()


def _interface(name: str, settings: list[str] | None) -> Spec:
    from flowrl.cli.simulation import make_environment

    environment = make_environment(environment_config(name, settings))
    environment.close()
    return environment.interface
