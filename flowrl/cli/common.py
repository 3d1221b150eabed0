"""Options and small steps that several commands share."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowrl.errors import UsageError

if TYPE_CHECKING:
    from flowrl.learner.config import EnvironmentConfig, RunConfig

Recipe = Annotated[str, typer.Argument(help="A recipe: a name in configs/ or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides, for example algorithm.kl_budget=0.3.")
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Where run directories lie.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the environment, for example decimation=1.")
]


def load_config(recipe: str, overrides: Sequence[str] | None) -> RunConfig:
    """A recipe with overrides. Raises ConfigError naming key, file and the nearest valid key."""
    from flowrl.config import find_recipe, load_recipe

    path = find_recipe(recipe)
    from flowrl.learner.config import RunConfig

    return load_recipe(RunConfig, path, list(overrides or []))


def environment_config(name: str, settings: Sequence[str] | None) -> EnvironmentConfig:
    """An environment by name with the ``--set`` options of a command."""
    from flowrl.learner.config import EnvironmentConfig

    return EnvironmentConfig(name=name, settings=parse_settings(settings or []))


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """``key=value`` settings; values are YAML, and ``none`` is None."""
    from flowrl.config import yaml_text

    found: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {text!r}: expected key=value, for example decimation=none")
        found[key] = None if value.lower() == "none" else yaml_text.parse(value, f"--set {text!r}")
    return found


def existing(path: Path, what: str, remedy: str) -> Path:
    """The path itself. Raises UsageError with the remedy when nothing is there."""
    if not path.exists():
        raise UsageError(f"there is no {what} at {path}; {remedy}")
    return path


@contextmanager
def one_thread() -> Generator[None]:
    """Run torch on one thread unless OMP_NUM_THREADS says otherwise: on a small machine more is slower.

    The process also keeps memory it frees, which is faster for a learner.
    """
    import os

    import torch

    from flowrl.training import keep_freed_memory

    keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        yield
    finally:
        torch.set_num_threads(before)
