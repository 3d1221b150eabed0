"""``flowrl ope``: rank a run's checkpoints from logged data, before any robot moves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowrl.cli.common import RunsOption, one_thread

if TYPE_CHECKING:
    from rich.console import Console

    from flowrl.learner.progress import Progress
    from flowrl.learner.run import Run
    from flowrl.ope.ranking import Measure, OPEConfig
    from flowrl.ope.result import Ranking


TRUTH_OFFSET = 50_000
"""First start of ``--truth``: whoever picks a checkpoint by it must not report the same starts."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ope)


def ope(
    run: Annotated[str, typer.Argument(help="A run: its name, its directory or a file inside it.")],
    policies: Annotated[
        list[Path] | None,
        typer.Option(
            help="A policy to rank beside the run's base, instead of its checkpoints; may be repeated."
        ),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="The logged data; the run's replay if left out.")
    ] = None,
    method: Annotated[str, typer.Option(help="fqe, wpdis (importance sampling) or all.")] = "fqe",
    updates: Annotated[int | None, typer.Option(help="Updates of each fit.", min=1)] = None,
    seeds: Annotated[int | None, typer.Option(help="Independent fits of each policy.", min=1)] = None,
    bootstrap: Annotated[int, typer.Option(help="Bootstrap draws of the intervals.", min=100)] = 2000,
    discount: Annotated[
        float | None, typer.Option(help="gamma per step; the run's if left out.", min=0.0, max=1.0)
    ] = None,
    reward: Annotated[str, typer.Option(help="auto, raw or success.")] = "auto",
    held_out: Annotated[float, typer.Option(help="Share of episodes held out.", min=0.01, max=0.9)] = 0.2,
    behaviour: Annotated[
        Path | None, typer.Option(help="The policy that collected the data, for importance sampling.")
    ] = None,
    truth: Annotated[
        int, typer.Option(help="Also measure each policy by this many episodes in simulation.", min=0)
    ] = 0,
    zero_noise: Annotated[
        bool, typer.Option("--zero-noise", help="Value the policies without their own noise.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of split, fits and bootstrap.")] = 0,
    jobs: Annotated[int, typer.Option(help="Policies fitted, or episodes evaluated, at a time.", min=1)] = 1,
    to_json: Annotated[Path | None, typer.Option("--json", help="Also write the result here.")] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Rank a [bold]run[/bold]'s policies from logged data, before any of them moves a robot.

    An estimate is not a measurement: the page says when not to trust it.
    """
    from rich.console import Console

    from flowrl.cli.progress import make_progress
    from flowrl.learner.run import Run
    from flowrl.ope.page import write_page
    from flowrl.ope.ranking import rank
    from flowrl.ope.result import write_json

    place = Run.find(run, runs)
    config = _config(
        {
            "method": method,
            "reward": reward,
            "discount": discount,
            "held_out": held_out,
            "bootstrap": bootstrap,
        },
        {"zero_noise": zero_noise, "seed": seed, "jobs": jobs},
        {"updates": updates, "seeds": seeds},
    )
    with one_thread(), make_progress() as progress:
        ranking = rank(
            place,
            config,
            policies=policies or (),
            replay=replay,
            behaviour=behaviour,
            measure=_measure(place, truth, jobs, progress) if truth else None,
            progress=progress,
        )
    directory = place.directory / "ope"
    directory.mkdir(exist_ok=True)
    write_page(ranking, directory / "ope.html")
    for path in (directory / "ope.json", *([to_json] if to_json else [])):
        write_json(ranking, path)
    show(ranking, Console())
    typer.echo(f"page: {directory / 'ope.html'}")


def show(ranking: Ranking, console: Console) -> None:
    """The ranking as a table, with the words that belong to it."""
    from rich.table import Table

    from flowrl.ope.page import number, verdict
    from flowrl.ope.result import TITLES

    measured = any(row.truth is not None for row in ranking.ranked)
    table = Table(title=f"{ranking.quantity}", title_justify="left")
    for name in ("", "policy", "updates", *(TITLES[name] for name in ranking.neighbours)):
        table.add_column(name, justify="left" if name in ("policy", "") else "right")
    if measured:
        table.add_column("measured success", justify="right")
    for place, row in enumerate(ranking.ranked, start=1):
        cells = [
            str(place),
            ", ".join((row.name, *row.also)),
            "-" if row.updates is None else f"{row.updates:,}",
        ]
        for name in ranking.neighbours:
            e = row.estimates[name]
            cells.append(f"{number(e.value)} [{number(e.low)}, {number(e.high)}]")
        if row.truth is not None:
            cells.append(f"{row.truth.success_rate:.0%} [{row.truth.low:.0%}, {row.truth.high:.0%}]")
        table.add_row(*cells)
    console.print(table)
    _lines(console, [verdict(ranking), *_pairs(ranking), *_agreement(ranking)])
    _lines(console, [*_warnings(ranking), *ranking.notes], style="yellow")


def _lines(console: Console, lines: list[str], style: str = "") -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True, style=style)


def _pairs(ranking: Ranking) -> list[str]:
    from flowrl.ope.result import TITLES

    return [f"{TITLES[name]}: {pair}" for name, pairs in ranking.neighbours.items() for pair in pairs]


def _warnings(ranking: Ranking) -> list[str]:
    from flowrl.ope.result import TITLES

    return [
        f"{row.name}, {TITLES[name]}: {warning}"
        for row in ranking.ranked
        for name, estimate in row.estimates.items()
        for warning in estimate.warnings
    ]


def _agreement(ranking: Ranking) -> list[str]:
    from flowrl.ope.page import number
    from flowrl.ope.result import TITLES

    return [
        f"{TITLES[name]} against the measured values: rank correlation {number(found.rank_correlation)}, "
        f"regret@1.. {', '.join(map(number, found.regret))}, "
        f"SharpeRatio@1.. {', '.join(map(number, found.sharpe_ratio))}"
        for name, found in ranking.agreement.items()
    ]


def _config(*parts: dict[str, Any]) -> OPEConfig:
    """The options as a configuration; of the last part, what was left out keeps its default."""
    from flowrl.config import load
    from flowrl.ope.ranking import OPEConfig

    *general, fits = parts
    values = {key: value for part in general for key, value in part.items()}
    return load(
        OPEConfig, {**values, "fqe": {key: value for key, value in fits.items() if value is not None}}
    )


def _measure(run: Run, episodes: int, workers: int, progress: Progress) -> Measure:
    """Evaluate in simulation, from fixed starts that no reported evaluation uses by default."""
    from flowrl import seeds
    from flowrl.acting import Actor
    from flowrl.cli.simulation import evaluate_in_processes
    from flowrl.evaluation import Evaluation

    config = run.config()

    def measure(actor: Actor) -> Evaluation:
        starts = seeds.reported(episodes, TRUTH_OFFSET)
        return evaluate_in_processes(config, actor, starts, workers, progress)

    return measure
