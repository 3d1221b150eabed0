"""LeRobot's own classes, imported when first needed (some seconds) and typed loosely: it has no stubs."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
from collections.abc import Generator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from flowrl.errors import CheckpointError, ConfigError, MissingExtra

Json = dict[str, Any]
BACKBONES = ("vision_encoder_name", "text_encoder_name", "vlm_model_name")
"""LeRobot's settings that name a network from the hub."""


def lerobot(module: str) -> Any:
    """``lerobot.<module>``. Raises MissingExtra when LeRobot, or what the module needs, is not installed."""
    try:
        return import_module(f"lerobot.{module}")
    except ImportError as error:
        raise MissingExtra(f"lerobot ({error})", "vla") from error


def new_config(kind: str, settings: Mapping[str, Any]) -> Any:
    """LeRobot's configuration ``kind`` with ``settings``, as a fresh policy has them; on the CPU.

    Raises ConfigError with LeRobot's own words when it does not accept them.
    """
    lerobot("policies")
    try:
        cls = lerobot("configs").PreTrainedConfig.get_choice_class(kind)
        return cls(**settings, device="cpu")
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"LeRobot's {kind} does not accept these settings: {error}") from error


def config_from_json(data: Mapping[str, Any]) -> Any:
    """LeRobot's configuration object from the content of its ``config.json``; on the CPU, not compiled.

    Raises CheckpointError when LeRobot cannot read it.
    """
    lerobot("policies")
    changed = {**data, "device": "cpu"} | {name: False for name in ("compile_model",) if name in data}
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(changed))
        try:
            return lerobot("configs").PreTrainedConfig.from_pretrained(directory)
        except Exception as error:
            raise CheckpointError(
                f"LeRobot cannot read the policy's config.json ({error}); it was written by another version: "
                "check the installed one with pip show lerobot"
            ) from error


def config_to_json(config: Any) -> Json:
    """The content of the ``config.json`` that LeRobot writes for a configuration."""
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        return json.loads((Path(directory) / "config.json").read_text())


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Without what LeRobot and transformers print and warn of; errors are still raised."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def build(config: Any) -> torch.nn.Module:
    """LeRobot's policy module for a configuration, with random weights in float32.

    Raises ConfigError with LeRobot's own words, most often because a backbone is not on this machine.
    """
    try:
        with quiet():
            return lerobot("policies.factory").get_policy_class(config.type)(config).float()
    except (OSError, ValueError) as error:
        backbones = {getattr(config, name) for name in BACKBONES if hasattr(config, name)}
        raise ConfigError(
            f"LeRobot cannot build a policy of type {config.type!r}: {error}. If it looks for a backbone on the "
            f"hub ({', '.join(sorted(backbones)) or 'it names none'}), download that once while online "
            "(huggingface-cli download NAME), or name a local directory in config.json"
        ) from error
