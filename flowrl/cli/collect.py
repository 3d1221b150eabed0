"""``flowrl collect``: fill a replay stream from a scripted expert or a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowrl.cli.common import Overrides, Recipe, existing, load_config, one_thread


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(collect)


def collect(
    recipe: Recipe,
    overrides: Overrides = None,
    to: Annotated[Path, typer.Option("--to", help="The replay directory.")] = Path("replays/new"),
    policy: Annotated[Path | None, typer.Option(help="Collect with this policy, not the expert.")] = None,
    episodes: Annotated[int | None, typer.Option(help="Episodes; the recipe's number by default.")] = None,
) -> None:
    """Record [bold]episodes[/bold] into a replay: scripted demonstrations, or rollouts of a policy."""
    from flowrl.cli.progress import make_progress
    from flowrl.cli.simulation import DEMONSTRATIONS, collect_demonstrations, collect_with_policy

    count = [] if episodes is None else [f"demonstrations.episodes={episodes}"]
    config = load_config(recipe, [*(overrides or []), *count])
    with one_thread(), make_progress() as progress:
        if policy is None:
            rate = collect_demonstrations(config, to, progress)
            progress.say(
                f"stream {DEMONSTRATIONS} in {to}; the expert succeeds in {rate:.0%} of its attempts"
            )
        else:
            where = existing(policy, "policy", "make one with: flowrl pretrain")
            evaluation = collect_with_policy(config, to, where, progress)
            progress.say(f"stream policy in {to}: {evaluation}")
