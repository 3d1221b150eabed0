"""``flowrl evaluate``: success of a policy from fixed starts, with an interval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowrl.cli.common import RunsOption, load_config, one_thread
from flowrl.errors import UsageError

if TYPE_CHECKING:
    from flowrl.acting import Actor
    from flowrl.learner.config import RunConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(evaluate)


def evaluate(
    policy: Annotated[
        str, typer.Argument(help="A policy directory, lerobot:SOURCE, or a run (its tuned actor).")
    ],
    recipe: Annotated[str | None, typer.Option(help="The recipe that names the environment.")] = None,
    episodes: Annotated[int, typer.Option(help="Episodes, one from each fixed start.", min=1)] = 50,
    offset: Annotated[int, typer.Option(help="First start: another offset is an unseen set.", min=0)] = 0,
    zero_noise: Annotated[
        bool, typer.Option("--zero-noise", help="Act without the policy's own noise.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="One sample of a run's policy, whatever rule the run acts by.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Evaluating processes.", min=1)] = 2,
    to_json: Annotated[Path | None, typer.Option("--json", help="Also write the result here.")] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Measure a [bold]policy[/bold]'s success rate with its 95 % interval, from starts no training uses."""
    from dataclasses import replace

    from flowrl import seeds
    from flowrl.cli.progress import make_progress
    from flowrl.cli.simulation import evaluate_in_processes

    actor, config = _find(policy, recipe, runs)
    if plain:
        actor = actor.common()
    if zero_noise:
        actor = replace(actor, zero_noise=True)
    with one_thread(), make_progress() as progress:
        starts = seeds.reported(episodes, offset)
        result = evaluate_in_processes(config, actor, starts, workers, progress)
        progress.say(f"{result}; mean length {result.mean_length:.0f} steps; {result.rule}")
    if to_json is not None:
        to_json.write_text(json.dumps(result.to_json(), indent=2) + "\n")


def _find(policy: str, recipe: str | None, runs: Path) -> tuple[Actor, RunConfig]:
    from flowrl.acting import Actor
    from flowrl.cli.adopt import PREFIX, policy_directory
    from flowrl.learner.run import Run
    from flowrl.policies.io import load_policy

    if policy.startswith(PREFIX) or (Path(policy) / "policy.json").is_file():
        if recipe is None:
            raise UsageError("which environment? name a recipe: flowrl evaluate POLICY --recipe lift_sqam")
        config = load_config(recipe, None)
        with policy_directory(policy, config) as directory:
            return Actor(load_policy(directory)), config
    run = Run.find(policy, runs)
    if not run.policy.is_dir():
        raise UsageError(
            f"run {run.name} has no tuned policy yet; go on with: flowrl finetune --resume {run.name}"
        )
    return run.tuned_actor(), run.config() if recipe is None else load_config(recipe, None)
