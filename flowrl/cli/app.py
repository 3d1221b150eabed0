"""The application: its commands, and how a failure ends the process.

A command lives in a module of this package with one function ``register(app)`` that adds it. Such a
module imports at its top only what is cheap, and everything heavy inside the command, so that
``flowrl --help`` stays fast. To add one, add its name to `COMMANDS`.
"""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

import flowrl
from flowrl.errors import EXIT_INTERRUPTED, EXIT_RESUMABLE, FlowRLError, Terminated

COMMANDS = (
    "demo",
    "collect",
    "import_",
    "adopt",
    "export",
    "pretrain",
    "finetune",
    "train",
    "compare",
    "evaluate",
    "ope",
    "check",
    "report",
    "replay",
    "reward",
    "show",
    "doctor",
)
"""Modules with a ``register``, in the order of ``--help``; one named like a keyword ends in ``_``."""

_HELP = (
    "Fine-tune flow, diffusion and VLA robot policies with off-policy reinforcement learning.\n\n"
    "A [bold]recipe[/bold] is a YAML file that a name finds; dotted options override it "
    "([cyan]algorithm.kl_budget=0.3[/cyan]). A [bold]run[/bold] is the directory that a recipe leaves: "
    "configuration, replay, checkpoints, metrics, report. A [bold]replay[/bold] holds streams, a stream "
    "holds episodes, an episode holds steps. A [bold]policy[/bold] is a directory that runs without "
    "training code."
)

_EPILOG = (
    "Exit codes: 0 done, 1 the task failed, 2 wrong usage, 75 stopped but resumable, "
    "130 interrupted after saving."
)


def build() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name="flowrl",
        help=_HELP,
        epilog=_EPILOG,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(  # pyright: ignore[reportUnusedFunction] - typer keeps it
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        pass

    for name in COMMANDS:
        import_module(f"flowrl.cli.{name}").register(app)
    return app


def main() -> NoReturn:
    """Run the command line and end the process with a documented exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    warnings.formatwarning = _one_line
    # Libraries that log through the root logger would otherwise set it up to print what flowrl logs.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        build()()
    except FlowRLError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as error:
        sys.exit(EXIT_RESUMABLE if isinstance(error, Terminated) else EXIT_INTERRUPTED)
    sys.exit(0)


def print_error(error: FlowRLError) -> None:
    """One readable message on standard error, without a traceback."""
    console = Console(stderr=True)
    console.print("[bold red]error:[/bold red] ", end="")
    console.print(str(error), markup=False, highlight=False, soft_wrap=True)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    return f"warning: {message}\n"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flowrl {flowrl.__version__}")
        raise typer.Exit
