"""``flowrl compare``: which recipe is better, over seeds, from the same bases, with equal budgets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flowrl.cli.common import existing, one_thread
from flowrl.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from flowrl.comparison import Outcome, Place, Plan
    from flowrl.learner.config import RunConfig
    from flowrl.learner.drivers import Simulation
    from flowrl.learner.progress import Progress

JOB = "compare-job"


def register(app: typer.Typer) -> None:
    """Add the command, and the hidden one that its processes run."""
    app.command()(compare)
    app.command(JOB, hidden=True)(compare_job)


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE...",
            help="Recipes, the first being the one to beat, and dotted overrides for all.",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds 0 to N-1; 3 by default.", min=1)] = None,
    seed_list: Annotated[str | None, typer.Option(help="These seeds, for example 0,4,7.")] = None,
    env_steps: Annotated[int | None, typer.Option(help="Budget: environment steps of a run.", min=1)] = None,
    updates: Annotated[int | None, typer.Option(help="Budget: updates of a run.", min=1)] = None,
    updates_per_step: Annotated[
        float | None, typer.Option(help="Updates owed for each environment step (interleaved driver).")
    ] = None,
    wall: Annotated[float | None, typer.Option(help="Budget: seconds of training of a run.")] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Episodes of every reported evaluation.", min=1)
    ] = None,
    points: Annotated[
        int, typer.Option(help="Evaluations while training, where the recipes have none.", min=0)
    ] = 8,
    driver: Annotated[
        Literal["interleaved", "recipe"],
        typer.Option(help="interleaved: equal updates per step, repeatable; recipe: each recipe's own."),
    ] = "interleaved",
    jobs: Annotated[
        int | None, typer.Option(help="Processes at a time; 2, or 1 with asynchronous drivers.", min=1)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A dotted override for every recipe; the same as a bare KEY=VALUE."),
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="The base of every run, instead of a new one.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Demonstrations, instead of scripted ones.")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="The directory; runs/compare-<n> by default.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a comparison's directory.")] = None,
) -> None:
    """Run [bold]recipes[/bold] over seeds with equal budgets and say which is better, or that none is.

    All runs of a seed share their demonstrations and base policy; all evaluations share their starts.
    Leaves a directory with every run, comparison.json, table.md, figures and report.html. Stop it with
    Ctrl-C: [cyan]--resume DIR[/cyan] goes on.
    """
    from flowrl.comparison import Place, Plan, make_plan
    from flowrl.comparison.plan import budget_overrides

    if resume is not None:
        changes = (words, settings, seeds, seed_list, env_steps, updates, updates_per_step, wall, episodes)
        if any(change is not None for change in (*changes, policy, replay, to)):
            raise UsageError("--resume takes everything from the directory; only --jobs may be given with it")
        place = Place(resume)
        _run(Plan.read(place), place, jobs)
        return
    recipes, bare = _split(words or [])
    if updates_per_step is not None and driver == "recipe":
        raise UsageError("--updates-per-step needs the interleaved driver; leave out --driver recipe")
    overrides = budget_overrides(env_steps, updates, wall, updates_per_step)
    overrides += [f"evaluation.episodes={episodes}"] if episodes is not None else []
    for path, what in ((policy, "policy"), (replay, "replay")):
        if path is not None:
            existing(path, what, "name a directory that flowrl pretrain or flowrl collect made")
    plan = make_plan(
        recipes,
        _seeds(seeds, seed_list),
        [*overrides, *bare, *(settings or [])],
        driver=driver,
        points=points,
        policy=policy,
        replay=replay,
    )
    _run(plan, Place.fresh(Path("runs")) if to is None else Place(to), jobs)


def compare_job(
    words: Annotated[
        list[str], typer.Argument(metavar="DIRECTORY JOB...", help="base SEED, or run RECIPE SEED.")
    ],
) -> None:
    """Do one job of a comparison: what the processes that flowrl compare starts run. Not for people.

    Ends, saved and resumable, when its standard input does, so that it never outlives its parent.
    """
    from flowrl.comparison.work import end_with_parent, work

    end_with_parent()
    with one_thread():
        work(words, _Simulators())


def job_command() -> list[str]:
    """How a process that does one job is started."""
    return [sys.executable, "-m", "flowrl", JOB]


class _Simulators:
    """The simulators of `sim`, for `flowrl.comparison.work`."""

    def demonstrate(self, config: RunConfig, replay: Path, progress: Progress) -> None:
        """Scripted demonstrations."""
        from flowrl.cli.simulation import collect_demonstrations

        collect_demonstrations(config, replay, progress)

    def correct(self, config: RunConfig, replay: Path, policy: Path, progress: Progress) -> None:
        """Corrections by the scripted expert."""
        from flowrl.cli.simulation import collect_corrections

        collect_corrections(config, replay, policy, progress)

    def simulation(self, config: RunConfig) -> Simulation:
        """The configuration's environment."""
        from flowrl.cli.simulation import simulation

        return simulation(config)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Recipes and overrides; an override has an equals sign."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def _seeds(count: int | None, listed: str | None) -> list[int]:
    if count is not None and listed is not None:
        raise UsageError("--seeds and --seed-list exclude each other")
    if listed is None:
        return list(range(3 if count is None else count))
    try:
        return [int(part) for part in listed.split(",")]
    except ValueError:
        raise UsageError(f"--seed-list {listed!r}: expected whole numbers, for example 0,4,7") from None


def _run(plan: Plan, place: Place, jobs: int | None) -> None:
    from flowrl.cli.compare_display import make_watcher, print_outcome
    from flowrl.comparison import compare as compare_plan

    with make_watcher() as watcher:
        outcome: Outcome = compare_plan(plan, place, job_command(), jobs, watcher)
    print_outcome(outcome)
    if outcome.failed:
        raise typer.Exit(EXIT_FAILED)
