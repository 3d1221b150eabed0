"""``flowrl show``: recipes and environments by name, a recipe resolved, every setting explained."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(show)


def show(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or YAML file; without one, all are listed.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Dotted overrides, for example [cyan]algorithm.kl_budget=0.3[/cyan]."),
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="List every setting with its type, default and meaning.")
    ] = False,
    environments: Annotated[bool, typer.Option("--environments", help="List the environments.")] = False,
) -> None:
    """Print a [bold]recipe[/bold] resolved, with every default and its meaning; or list the recipes.

    The output is YAML: saved to a file, it is a recipe again.
    """
    console = Console()
    if environments:
        console.print(_environments())
    elif settings:
        console.print(_settings())
    elif recipe is None:
        console.print(_recipes())
    else:
        _print_resolved(recipe, overrides or [])


def _print_resolved(recipe: str, overrides: list[str]) -> None:
    from flowrl.config import find_recipe, load_recipe
    from flowrl.config import show as as_yaml

    # A misspelt name is told before torch is loaded.
    path = find_recipe(recipe)
    from flowrl.scratch.config import recipe_class

    # Plain text: it must stay YAML when it goes into a file.
    typer.echo(as_yaml(load_recipe(recipe_class(path), path, overrides)), nl=False)


def _recipes() -> Table:
    from flowrl.config import list_recipes, recipe_description

    table = Table(
        "recipe", "description", box=None, title="Recipes (flowrl show RECIPE)", title_justify="left"
    )
    for name, path in list_recipes().items():
        table.add_row(escape(name), escape(recipe_description(path)))
    return table


def _settings() -> Table:
    from flowrl.config import describe
    from flowrl.learner.config import RunConfig

    table = Table("setting", "type", "default", "meaning", box=None)
    for row in describe(RunConfig):
        condition = f" (only with {row.only_for})" if row.only_for else ""
        table.add_row(*(escape(text) for text in (row.key, row.type, row.default, row.meaning + condition)))
    return table


def _environments() -> Table:
    from sim import registry

    table = Table("environment", "what it is", box=None)
    for name in registry.names():
        table.add_row(name, escape(registry.describe(name)))
    return table
