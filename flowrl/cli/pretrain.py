"""``flowrl pretrain``: clone a policy from a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowrl.cli.common import Overrides, Recipe, existing, load_config, one_thread


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pretrain)


def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    replay: Annotated[Path, typer.Option(help="The replay to clone.")] = Path("replays/new"),
    to: Annotated[Path, typer.Option("--to", help="Where the policy directory goes.")] = Path("policies/new"),
    stream: Annotated[list[str] | None, typer.Option(help="Only these streams; may be repeated.")] = None,
) -> None:
    """Clone the episodes of a [bold]replay[/bold] into a new [bold]policy[/bold] (behaviour cloning)."""
    from flowrl.cli.progress import make_progress
    from flowrl.learner.pretraining import clone

    config = load_config(recipe, overrides)
    existing(replay, "replay", "make one with: flowrl collect, or flowrl import")
    with one_thread(), make_progress() as progress:
        progress.phase("cloning", config.pretrain.steps)

        def on_step(step: int, metrics: dict[str, float]) -> None:
            progress.advance(step, f"loss {metrics['pretrain/loss']:.4f}")

        clone(config, replay, to, stream, on_step)
        progress.say(f"policy in {to}; measure it with: flowrl evaluate {to} --recipe {recipe}")
