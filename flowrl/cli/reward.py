"""``flowrl reward``: train a success classifier, label a replay with it or by hand, see what there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowrl.cli.common import existing, one_thread, parse_settings
from flowrl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from flowrl.rewards.classifier import SuccessClassifier
    from flowrl.rewards.labelling import Labelled

Replay = Annotated[Path, typer.Option(help="A replay directory.")]
_REMEDY = "make one with: flowrl collect, or flowrl import"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="[bold]Reward columns[/bold] of a replay: success by a classifier on frames or by a human.",
        no_args_is_help=True,
    )
    for command in (train, apply, label, complete):
        group.command()(command)
    group.command("list")(show_columns)
    app.add_typer(group, name="reward")


def train(
    replay: Replay,
    to: Annotated[Path, typer.Option("--to", help="Where the classifier's new directory goes.")],
    stream: Annotated[list[str] | None, typer.Option(help="Only these streams; may be repeated.")] = None,
    camera: Annotated[
        list[str] | None, typer.Option(help="Only this camera; may be repeated. All if left out.")
    ] = None,
    reward: Annotated[
        str, typer.Option(help="Which successes it learns: recorded, or a reward column.")
    ] = "recorded",
    false_positives: Annotated[
        float,
        typer.Option(help="Largest share of validation frames without success called one.", min=0, max=0.99),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of split, weights and batches.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another setting of the classifier, for example steps=1000."),
    ] = None,
) -> None:
    """Train a success classifier on the frames of a [bold]replay[/bold] and validate it on other episodes."""
    from rich.console import Console

    from flowrl.cli.progress import make_progress
    from flowrl.config import load
    from flowrl.replay.reader import ReplayReader
    from flowrl.rewards.config import ClassifierConfig
    from flowrl.rewards.io import FIGURES, require_free, save_classifier
    from flowrl.rewards.training import train as fit

    values = {"false_positives": false_positives, "seed": seed, **parse_settings(settings or [])}
    config = load(ClassifierConfig, {"cameras": camera, **values})
    require_free(to)
    with one_thread(), make_progress() as progress:
        reader = ReplayReader(existing(replay, "replay", _REMEDY), stream, reward=reward)
        classifier = save_classifier(fit(reader, config, progress), to)
    show_validation(classifier, Console())
    typer.echo(f"drawings: {to / FIGURES}")
    typer.echo(f"label a replay with: flowrl reward apply {to} --replay {replay} --name success")


def apply(
    classifier: Annotated[Path, typer.Argument(help="A classifier directory.")],
    replay: Replay,
    name: Annotated[str, typer.Option(help="Name of the column; a new version of it is made.")] = "success",
) -> None:
    """Label every closed episode of a [bold]replay[/bold] by a classifier, as a new reward column."""
    from flowrl.cli.progress import make_progress
    from flowrl.rewards.io import load_classifier
    from flowrl.rewards.labelling import apply as write

    existing(replay, "replay", _REMEDY)
    with one_thread(), make_progress() as progress:
        found = load_classifier(
            existing(classifier, "classifier", "make one with: flowrl reward train --to DIR")
        )
        labelled = write(found, replay, name, progress)
    show_labelled(labelled, replay)


def label(
    replay: Replay,
    episode: Annotated[
        list[int], typer.Option(help="Number of an episode in its stream; may be repeated.", min=0)
    ],
    success: Annotated[bool, typer.Option("--success/--failure", help="What you say of it.")],
    stream: Annotated[
        str | None, typer.Option(help="The stream of the episodes; needed where there are several.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the column; a new version of it is made.")] = "human",
    base: Annotated[
        str | None,
        typer.Option(
            help="What holds for other episodes: recorded, or a column. The newest version of NAME."
        ),
    ] = None,
) -> None:
    """Say by hand whether [bold]episodes[/bold] succeeded, as a new version of a reward column."""
    from flowrl.rewards.labelling import label as write

    found = _stream(existing(replay, "replay", _REMEDY), stream)
    labelled = write(replay, found, dict.fromkeys(episode, success), name, base)
    show_labelled(labelled, replay)


def complete(
    column: Annotated[str, typer.Argument(help="A reward column, <name>@<version>.")],
    replay: Replay,
    classifier: Annotated[
        Path | None, typer.Option(help="The column's classifier, if it lies elsewhere now.")
    ] = None,
) -> None:
    """Label the [bold]episodes[/bold] that came after a reward column was made, by the same rule."""
    from flowrl.cli.progress import make_progress
    from flowrl.replay.rewards import ColumnId
    from flowrl.rewards.labelling import complete as write

    existing(replay, "replay", _REMEDY)
    with one_thread(), make_progress() as progress:
        labelled = write(replay, ColumnId.parse(column), classifier, progress)
    if labelled:
        show_labelled(labelled, replay)
    else:
        typer.echo(f"reward column {column} labels every closed episode already")


def show_columns(replay: Replay) -> None:
    """List the reward columns of a [bold]replay[/bold]: who made them, when, and what they cover."""
    from rich.console import Console
    from rich.table import Table

    from flowrl.rewards.listing import columns

    found = columns(existing(replay, "replay", _REMEDY))
    if not found:
        typer.echo(
            "only the recorded reward; make a column with: flowrl reward apply, or flowrl reward label"
        )
        return
    table = Table("column", "made by", "time", title=f"reward columns of {replay}", title_justify="left")
    for title in ("episodes", "recorded successes", "added", "denied"):
        table.add_column(title, justify="right")
    for row in found:
        covered = f"{row.episodes:,}" if row.episodes == row.closed else f"{row.episodes:,} of {row.closed:,}"
        counts = (f"{count:,}" for count in (row.recorded, row.added, row.denied))
        table.add_row(str(row.column), row.made_by, row.time, covered, *counts)
    Console().print(table)


def show_validation(classifier: SuccessClassifier, console: Console) -> None:
    """What the classifier does on its validation episodes."""
    from rich.table import Table

    validation = classifier.validation
    table = Table("", title=f"validation at threshold {validation.threshold:.4g}", title_justify="left")
    for title in ("successes", "found", "others", "called a success", "precision", "recall", "ROC AUC"):
        table.add_column(title, justify="right")
    for name, counts, auc in (
        ("frames", validation.frames, f"{validation.auc:.4f}"),
        ("episodes", validation.episodes, ""),
    ):
        table.add_row(
            name,
            f"{counts.true_positives + counts.false_negatives:,}",
            f"{counts.true_positives:,}",
            f"{counts.false_positives + counts.true_negatives:,}",
            f"{counts.false_positives:,}",
            f"{counts.precision:.1%}",
            f"{counts.recall:.1%}",
            auc,
        )
    console.print(table)
    if validation.early:
        steps = sorted(validation.early)
        console.print(
            f"successes are found {steps[len(steps) // 2]} steps before the end of their episode (median), at most "
            f"{steps[-1]}",
            soft_wrap=True,
        )


def show_labelled(labelled: Sequence[Labelled], replay: Path) -> None:
    """What was written, stream by stream, and how to use it."""
    from rich.console import Console
    from rich.table import Table

    if not labelled:
        raise UsageError(f"replay {replay} holds no closed episode to label; {_REMEDY}")
    column = labelled[0].column
    table = Table("stream", title=f"reward column {column}", title_justify="left")
    for title in ("episodes labelled", "recorded successes", "added", "denied", "successes"):
        table.add_column(title, justify="right")
    for row in labelled:
        counts = (row.episodes, row.recorded, row.added, row.denied, row.successes)
        table.add_row(row.stream, *(f"{count:,}" for count in counts))
    Console().print(table)
    typer.echo(f"choose it in a recipe: sampling.reward={column}")


def _stream(replay: Path, name: str | None) -> str:
    """The stream that is meant, where there is only one it needs no name."""
    from flowrl.replay.storage import stream_names

    names = stream_names(replay)
    if name is None and len(names) != 1:
        raise UsageError(
            f"replay {replay} has the streams {', '.join(names) or 'none'}; name one with --stream"
        )
    return names[0] if name is None else name
