"""``flowrl train``: learn a policy from scratch on many environments at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowrl.cli.common import Overrides, RunsOption, one_thread
from flowrl.errors import UsageError

if TYPE_CHECKING:
    from flowrl.learner.run import Run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe with kind: scratch: a name in configs/ or a YAML file.")
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with a run: its name, its directory or a file inside it.")
    ] = None,
    environments: Annotated[
        bool, typer.Option("--environments", help="List the vector environments.")
    ] = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Learn a [bold]policy[/bold] from scratch, without demonstrations; leaves a [bold]run[/bold] directory.

    Stop it with Ctrl-C: everything is saved, and [cyan]--resume RUN[/cyan] goes on from there.
    """
    if environments:
        _list_environments()
        return
    from flowrl.cli.progress import make_progress
    from flowrl.scratch.loop import run_config
    from flowrl.scratch.loop import train as run_it
    from flowrl.scratch.vector import VectorEnvironment

    run = _fresh(recipe, overrides, runs) if resume is None else _resumed(resume, runs, recipe)
    config = run_config(run)
    wanted = config.environment

    def make(count: int) -> VectorEnvironment:
        from sim import vector

        return vector.make(wanted.name, count, **wanted.settings)

    with one_thread(), make_progress() as progress:
        result = run_it(run, config, make, progress)
        progress.say(f"{result.final}; {result.final.rule}")
        progress.say(f"{result.steps:,} steps and {result.updates:,} updates in {result.train_s:.0f} s")
        progress.say(f"policy: {run.policy}\nmetrics: {run.metrics}")


def _resumed(resume: str, runs: Path, recipe: str | None) -> Run:
    from flowrl.learner.run import Run

    if recipe is not None:
        raise UsageError("--resume takes its recipe from the run; leave the recipe and overrides out")
    return Run.find(resume, runs)


def _fresh(recipe: str | None, overrides: list[str] | None, runs: Path) -> Run:
    from flowrl.config import find_recipe, load_recipe

    if recipe is None:
        raise UsageError("train needs a recipe, for example: flowrl train go1_qf3")
    path = find_recipe(recipe)
    from flowrl.learner.run import Run
    from flowrl.scratch.config import ScratchConfig, recipe_class
    from sim import vector

    if recipe_class(path) is not ScratchConfig:
        raise UsageError(
            f"recipe {recipe!r} fine-tunes a policy: use flowrl finetune. A recipe of training from scratch "
            "says kind: scratch"
        )
    config = load_recipe(ScratchConfig, path, overrides or [])
    vector.describe(config.environment.name)  # An unknown environment leaves no run directory.
    return Run.create(config, runs)


def _list_environments() -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sim import vector

    table = Table("environment", "what it is", box=None)
    for name in vector.names():
        table.add_row(name, escape(vector.describe(name)))
    Console().print(table)
