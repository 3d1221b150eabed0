"""``flowrl import`` of a directory: a LeRobotDataset becomes a stream of a replay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from flowrl.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from flowrl.replay.importers.report import DemonstrationDone
    from flowrl.spec import Spec


def run(
    directory: Path,
    to: Path,
    *,
    stream: str | None = None,
    target: Spec | None = None,
    cameras: Sequence[str] | None = None,
    image_size: str | None = None,
    rename: Sequence[str] = (),
    actions: Literal["refuse", "clip", "rescale"] = "refuse",
    source: Literal["human", "scripted"] = "human",
    limit: int | None = None,
    salvage: bool = False,
    replace: bool = False,
    allow_duplicate: bool = False,
) -> None:
    """Import a LeRobotDataset directory with progress, and print the report.

    ``image_size`` is ``HEIGHTxWIDTH``, ``rename`` are ``OLD=NEW``; the stream is named after the directory by
    default. Raises what `flowrl.replay.importers.lerobot.import_lerobot` raises, and Interrupted.
    """
    from rich.console import Console

    from flowrl.cli.import_ import default_stream
    from flowrl.cli.progress import make_progress
    from flowrl.replay.importers.lerobot import LeRobotOptions, import_lerobot
    from flowrl.replay.importers.lerobot_features import Choice
    from flowrl.replay.importers.report import render_import
    from flowrl.replay.schema import Source

    size = None if image_size is None else parse_size(image_size)
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


def parse_size(text: str) -> tuple[int, int]:
    """``HEIGHTxWIDTH`` as numbers. Raises UsageError."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if found is None:
        raise UsageError(f"--image-size {text!r}: expected HEIGHTxWIDTH in pixels, for example 84x84")
    return int(found[1]), int(found[2])


def parse_renames(texts: Sequence[str]) -> dict[str, str]:
    """``OLD=NEW`` options. Raises UsageError."""
    pairs = [text.partition("=") for text in texts]
    for text, (old, _, new) in zip(texts, pairs, strict=True):
        if not old or not new:
            raise UsageError(
                f"--rename {text!r}: expected OLD=NEW, for example observation.image=observation.images.top"
            )
    return {old: new for old, _, new in pairs}
