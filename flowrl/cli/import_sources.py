"""What ``flowrl import`` is given: the kind of the source, and the options that apply to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from flowrl.errors import UsageError

if TYPE_CHECKING:
    from flowrl.cli.progress import PlainProgress, RichProgress
    from flowrl.replay.importers.episodes import DemonstrationDone

SourceKind = Literal["hdf5", "buffer", "lerobot", "bag"]

_WORDS: Mapping[SourceKind, str] = {
    "hdf5": "HDF5 demonstrations",
    "buffer": "a replay buffer of diffusion_policy",
    "lerobot": "a LeRobot dataset",
    "bag": "a ROS 2 bag",
}
_APPLIES: Mapping[str, tuple[SourceKind, ...]] = {
    "env": ("hdf5", "buffer"),
    "settings": ("hdf5", "buffer"),
    "actions": ("hdf5", "buffer", "lerobot", "bag"),
    "until_success": ("hdf5",),
    "observations": ("hdf5",),
    "source": ("hdf5", "buffer", "lerobot", "bag"),
    "filter_key": ("hdf5",),
    "allow_mismatch": ("hdf5",),
    "control_hz": ("buffer",),
    "features": ("buffer", "lerobot"),
    "success": ("buffer",),
    "cameras": ("buffer", "lerobot"),
    "image_size": ("buffer", "lerobot"),
    "salvage": ("lerobot",),
    "contract": ("bag",),
}
"""The parameters of the command that not every kind of source has."""
_BUFFER_SIGNS = ("data", "meta", ".zgroup", "replay_buffer.zarr")


@dataclass(frozen=True)
class ImportJob:
    """What to import where, for which environment, and the display that shows it."""

    path: Path
    to: Path
    stream: str
    env: str | None
    settings: Mapping[str, Any]
    progress: PlainProgress | RichProgress

    def start(self, count: int, limit: int | None) -> None:
        """The import of ``count`` demonstrations begins."""
        self.progress.phase(f"importing {self.path.name}", count if limit is None else min(count, limit))

    def done(self, done: DemonstrationDone) -> None:
        """One demonstration is imported."""
        self.tell(done)
        self.progress.advance(done.index, f"{done.index} of {done.total}")

    def tell(self, done: DemonstrationDone) -> None:
        """A line about a demonstration."""
        outcome = "outcome unknown" if done.success is None else "success" if done.success else "failure"
        self.progress.say(f"{done.name}: {done.steps:,} steps, {outcome}")


def kind_of(path: Path) -> SourceKind:
    """What a source is, by its first look; its importer checks it.

    Raises UsageError, with what is supported, for a directory that is nothing known.
    """
    from robot_bridge.bags.bag import is_bag

    if not path.is_dir():
        return "bag" if is_bag(path) else "buffer" if path.suffix == ".zip" else "hdf5"
    if (path / "meta" / "info.json").is_file():
        return "lerobot"
    if path.suffix == ".zarr" or any((path / sign).exists() for sign in _BUFFER_SIGNS):
        return "buffer"
    if is_bag(path):
        return "bag"
    from flowrl.replay.importers.demonstrations import SUPPORTED

    raise UsageError(
        f"{str(path)!r} holds nothing that can be imported. Supported are: {'; '.join(SUPPORTED)}"
    )


def require_applicable(context: typer.Context, kind: SourceKind, path: Path) -> None:
    """Raise UsageError for an option of the command line that does not apply to this kind of source."""
    options = {each.name: each.opts[0] for each in context.command.params}
    for name, kinds in _APPLIES.items():
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or kind in kinds:
            continue
        remedy = ""
        if kind == "hdf5" and name in ("cameras", "image_size"):
            remedy = (
                "; the environment says which cameras it has: --set cameras=agentview --set image_size=84"
            )
        if kind == "bag" and name in ("env", "control_hz", "features", "cameras", "image_size"):
            remedy = "; the contract says what a bag becomes"
        if kind == "bag" and name == "salvage":
            remedy = "; what a damaged bag still holds is always imported"
        raise UsageError(
            f"{options[name]} does not apply to {path.name}, which is {_WORDS[kind]}; it is for "
            f"{' and '.join(_WORDS[each] for each in kinds)}{remedy}"
        )


def default_stream(path: Path) -> str:
    """The source's name as a stream name, without what its name ends in."""
    stem = path.name.removesuffix(".zip").removesuffix(".zarr") if path.suffix == ".zip" else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stem).lstrip("._-") or "import"
