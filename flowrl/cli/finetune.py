"""``flowrl finetune``: improve a policy from its own experience."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowrl.cli.common import Overrides, RunsOption, existing, load_config, one_thread
from flowrl.errors import UsageError

if TYPE_CHECKING:
    from flowrl.learner.run import Run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(finetune)


def finetune(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: a name in configs/ or a YAML file.")] = None,
    overrides: Overrides = None,
    policy: Annotated[
        str | None, typer.Option(help="The policy to improve; lerobot:SOURCE is a LeRobot checkpoint.")
    ] = None,
    replay: Annotated[
        list[Path] | None,
        typer.Option(help="A replay whose streams are copied into the run; may be repeated."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with a run: its name, its directory or a file inside it.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Collecting processes; 0 interleaves in this process.", min=0)
    ] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Improve a [bold]policy[/bold] by reinforcement learning; leaves a [bold]run[/bold] directory.

    Stop it with Ctrl-C: everything is saved, and [cyan]--resume RUN[/cyan] goes on from there.
    """
    from flowrl.cli.demo import filmstrips
    from flowrl.cli.progress import make_progress
    from flowrl.cli.simulation import simulation
    from flowrl.learner.loop import finetune as run_it
    from flowrl.report import write_report

    if resume is not None:
        run = _resumed(resume, runs, recipe)
    else:
        run = _fresh(recipe, overrides, policy, replay or [], workers, runs)
    config = run.config()
    with one_thread(), make_progress() as progress:
        result = run_it(run, config, simulation(config), progress)
        write_report(run, filmstrips(result, progress))
        progress.say(f"base  {result.base}\ntuned {result.tuned}\nacting rule: {result.tuned.rule}")
        progress.say(f"report: {run.report}\npolicy: {run.policy}")


def _resumed(resume: str, runs: Path, recipe: str | None) -> Run:
    from flowrl.learner.run import Run

    if recipe is not None:
        raise UsageError("--resume takes its recipe from the run; leave the recipe and overrides out")
    return Run.find(resume, runs)


def _fresh(
    recipe: str | None,
    overrides: list[str] | None,
    policy: str | None,
    replays: list[Path],
    workers: int | None,
    runs: Path,
) -> Run:
    from flowrl.cli.adopt import policy_directory, training_memory
    from flowrl.learner.loop import create_run
    from flowrl.replay.storage import stream_names

    if recipe is None or policy is None:
        raise UsageError(
            "finetune needs a recipe and a policy: flowrl finetune lift_sqam --policy policies/lift "
            "--replay replays/lift (make them with flowrl collect and flowrl pretrain)"
        )
    more: list[str] = []
    if workers is not None:
        asynchronous = ["driver.kind=asynchronous", f"driver.workers={workers}"]
        more = asynchronous if workers else ["driver.kind=interleaved"]
    config = load_config(recipe, [*(overrides or []), *more])
    streams: list[Path] = []
    for replay in replays:
        existing(replay, "replay", "make one with: flowrl collect, or flowrl import")
        streams += [replay / name for name in stream_names(replay)]
    if (needed := training_memory(policy, config)) is not None:
        typer.echo(f"memory: {needed}")
    with policy_directory(policy, config) as directory:
        return create_run(config, runs, directory, streams)
