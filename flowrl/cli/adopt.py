"""``lerobot:SOURCE`` wherever a command takes a policy: a checkpoint of LeRobot's, taken over for a recipe."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowrl.cli.common import Overrides, Recipe, existing, load_config

if TYPE_CHECKING:
    from flowrl.learner.config import RunConfig
    from flowrl.policies.lerobot.base import LeRobotPolicy
    from flowrl.policies.lerobot.memory import Estimate

PREFIX = "lerobot:"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(adopt)


def adopt(
    source: Annotated[str, typer.Argument(help="A LeRobot checkpoint: a directory, or a hub id OWNER/NAME.")],
    recipe: Recipe,
    overrides: Overrides = None,
    to: Annotated[Path, typer.Option("--to", help="Where the policy directory goes.")] = Path("policies/new"),
) -> None:
    """Take a LeRobot [bold]checkpoint[/bold] over as a policy for a recipe's environment.

    The other commands do the same for [cyan]--policy lerobot:SOURCE[/cyan]. The directory still opens in LeRobot;
    [cyan]adopt.*[/cyan] of the recipe renames features, and chooses steps and chunk.
    """
    from flowrl.policies.io import save_policy

    policy = adopted(source, load_config(recipe, overrides))
    save_policy(policy, to, {"lerobot": source.removeprefix(PREFIX)})
    chunk = policy.chunk
    typer.echo(
        f"{policy.lerobot_type}: sees {', '.join(policy.inputs)}; proposes {chunk.length} of the {chunk.horizon} "
        f"actions it generates, in {policy.flow_steps} steps\npolicy in {to}"
    )


def adopted(source: str, config: RunConfig) -> LeRobotPolicy:
    """The checkpoint as a policy for the configuration's environment.

    Raises CheckpointError, SpecMismatch or ConfigError, each naming the remedy.
    """
    from flowrl.cli.simulation import make_environment
    from flowrl.policies.lerobot.adopt import adopt as take_over

    environment = make_environment(config.environment)
    interface = environment.interface
    environment.close()
    return take_over(source, interface, config.adopt)


@contextmanager
def policy_directory(policy: str, config: RunConfig) -> Generator[Path]:
    """A policy directory for what ``--policy`` names: the directory itself, or a LeRobot checkpoint taken over.

    Raises UsageError when nothing is there.
    """
    from flowrl.policies.io import POLICY_FILE, save_policy

    given = Path(policy.removeprefix(PREFIX))
    bare = (given / "config.json").is_file() and not (given / POLICY_FILE).is_file()
    if not policy.startswith(PREFIX) and not bare:
        yield existing(given, "policy", "make one with: flowrl pretrain")
        return
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "policy"
        save_policy(adopted(policy, config), place, {"lerobot": str(given)}, durable=False)
        yield place


def training_memory(policy: str | Path, config: RunConfig) -> Estimate | None:
    """What training the LeRobot policy that ``--policy`` names would take; None for another. Loads nothing.

    Raises ResourceError when the device has less.
    """
    from flowrl.learner.copies import policy_copies
    from flowrl.learner.loop import resolve_device
    from flowrl.policies.lerobot.adopt import CONFIG, WEIGHTS, Checkpoint
    from flowrl.policies.lerobot.memory import (
        adapter_size,
        estimate,
        free_memory,
        require_memory,
        shapes,
    )

    named = str(policy)
    if not named.startswith(PREFIX) and not all((Path(named) / n).is_file() for n in (CONFIG, WEIGHTS)):
        return None
    found, device = Checkpoint.find(named), resolve_device(config.device)
    adapter = found.adapter
    tensors, lora = shapes(found.directory / WEIGHTS), config.lora
    adapters = (
        adapter_size(tensors, lora.targets or adapter.lora_targets(), lora.rank)
        if config.trainable == "lora"
        else 0
    )
    needed = estimate(
        tensors,
        adapter.encoder_names,
        adapter.head_names,
        config.trainable,
        policy_copies(config.algorithm),
        adapters,
    )
    require_memory(needed, free_memory(device), device)
    return needed
