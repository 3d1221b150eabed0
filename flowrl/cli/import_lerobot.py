"""``flowrl import`` of a directory: a LeRobotDataset becomes a stream of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from flowrl.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from flowrl.replay.importers.episodes import DemonstrationDone
    from flowrl.spec import Spec


def run(
    directory: Path,
    to: Path,
    *,
    stream: str | None = None,
    target: Spec | None = None,
    cameras: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    rename: Sequence[str] = (),
    actions: Literal["refuse", "clip", "rescale"] = "refuse",
    source: Literal["human", "scripted"] = "human",
    limit: int | None = None,
    salvage: bool = False,
    replace: bool = False,
    allow_duplicate: bool = False,
) -> None:
    """Import a LeRobotDataset directory with progress, and print the report.

    ``image_size`` is height and width, or both in one number; ``rename`` are ``KEY=NAME``. The stream is named
    after the directory by default. Raises what `import_lerobot` raises, and Interrupted.
    """
    from rich.console import Console

    from flowrl.cli.import_sources import default_stream
    from flowrl.cli.progress import make_progress
    from flowrl.replay.importers.lerobot import LeRobotOptions, import_lerobot
    from flowrl.replay.importers.lerobot_features import Choice
    from flowrl.replay.importers.report import render_import
    from flowrl.replay.schema import Source

    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    options = LeRobotOptions(
        choice=Choice(target, cameras, size, parse_renames(rename)),
        actions=actions,
        source=Source[source.upper()],
        limit=limit,
        salvage=salvage,
        replace=replace,
        allow_duplicate=allow_duplicate,
    )
    with make_progress() as progress:

        def on_episode(done: DemonstrationDone) -> None:
            if done.index == 1:
                progress.phase(f"importing {directory.name}", done.total)
            progress.advance(done.index, f"{done.index} of {done.total}")

        progress.phase(f"reading {directory.name}")
        try:
            report = import_lerobot(directory, to, stream or default_stream(directory), options, on_episode)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; nothing of {directory.name} was left in {to}. Run it again"
            ) from None
    Console().print(render_import(report))
    typer.echo(f"stream {report.stream!r} is in {to}; look at it with: flowrl replay info {to}")


def parse_renames(texts: Sequence[str]) -> dict[str, str]:
    """``KEY=NAME`` options: a feature of the dataset, and its name here. Raises UsageError."""
    pairs = [text.partition("=") for text in texts]
    for text, (old, _, new) in zip(texts, pairs, strict=True):
        if not old or not new:
            raise UsageError(
                f"--feature {text!r}: expected KEY=NAME, for example observation.image=observation.images.top"
            )
    return {old: new for old, _, new in pairs}
