"""``flowrl collect``: fill a replay stream from a scripted expert or a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowrl.cli.common import Overrides, Recipe, existing, load_config, one_thread
from flowrl.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(collect)


def collect(
    recipe: Recipe,
    overrides: Overrides = None,
    to: Annotated[Path, typer.Option("--to", help="The replay directory.")] = Path("replays/new"),
    policy: Annotated[Path | None, typer.Option(help="Collect with this policy, not the expert.")] = None,
    corrections: Annotated[
        bool,
        typer.Option("--corrections", help="A scripted person finishes what the policy does not manage."),
    ] = False,
    episodes: Annotated[int | None, typer.Option(help="Episodes; the recipe's number by default.")] = None,
) -> None:
    """Record [bold]episodes[/bold] into a replay: scripted demonstrations, rollouts of a policy, or
    rollouts that a scripted person corrects."""
    from flowrl.cli import simulation
    from flowrl.cli.progress import make_progress
    from flowrl.cli.simulation import CORRECTIONS, DEMONSTRATIONS

    if corrections and policy is None:
        raise UsageError("corrections need a policy to correct: --policy DIR, made with flowrl pretrain")
    key = "demonstrations.corrections" if corrections else "demonstrations.episodes"
    count = [] if episodes is None else [f"{key}={episodes}"]
    config = load_config(recipe, [*(overrides or []), *count])
    with one_thread(), make_progress() as progress:
        if policy is None:
            rate = simulation.collect_demonstrations(config, to, progress)
            progress.say(
                f"stream {DEMONSTRATIONS} in {to}; the expert succeeds in {rate:.0%} of its attempts"
            )
        else:
            where = existing(policy, "policy", "make one with: flowrl pretrain")
            if corrections:
                evaluation = simulation.collect_corrections(config, to, where, progress)
            else:
                evaluation = simulation.collect_with_policy(config, to, where, progress)
            progress.say(f"stream {CORRECTIONS if corrections else 'policy'} in {to}: {evaluation}")
